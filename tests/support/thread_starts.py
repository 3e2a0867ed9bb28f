"""A system that starts no more threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it the start of a thread fails, as where the system has no more."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield
