"""What tests hold an error to: its kind, where it is, and that it says what to do; not its prose."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

from siltstone.base.errors import SiltstoneError

_Error = TypeVar("_Error", bound=SiltstoneError)


@contextlib.contextmanager
def raises_error(
    kind: type[_Error],
    *,
    path: str | os.PathLike[str] | None = None,
    position: int | None = None,
    advice: str | None = None,
    about: str | None = None,
) -> Iterator[pytest.ExceptionInfo[_Error]]:
    """The block raises ``kind``, or a subclass without an error code of its own; the error fits one line.

    ``path``, ``position``: the error's, where given. ``advice``: what its advice names (a flag, a command, a
    value); ``about``: what its reason names (a setting, a number). Both are names, not sentences.
    """
    with pytest.raises(kind) as raised:
        yield raised
    error = raised.value
    assert error.code == kind.code, f"{type(error).__name__}: {error}"
    assert "\n" not in str(error)
    if path is not None:
        assert error.path == os.fspath(path), str(error)
    if position is not None:
        assert error.position == position, str(error)
    if advice is not None:
        assert advice in (error.advice or ""), str(error)
    if about is not None:
        assert about in error.reason, str(error)
