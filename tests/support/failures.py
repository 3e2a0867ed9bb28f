"""What tests hold a failed log to: its status, and the parts of the error, not its prose."""

from __future__ import annotations

import os

from siltstone.compaction.report import UNCLEANABLE, LogResult


def assert_failed(
    result: LogResult,
    code: str,
    *,
    status: str = "failed",
    path: str | os.PathLike[str] | None = None,
    position: int | None = None,
    about: str = "",
    advice: str = "",
) -> None:
    """The log failed with an error of this code; ``path`` and ``position`` are the error's, where given,
    ``about`` and ``advice`` are named in the reason and in the advice."""
    error = result.failure
    assert (result.status, error is None) == (status, False), result
    assert error is not None and error.code == code, result
    assert path is None or error.path == os.fspath(path), result
    assert position is None or error.position == position, result
    assert about in result.reason and "\n" not in result.reason, result
    assert advice in (error.advice or ""), result


def assert_uncleanable(
    result: LogResult, path: str | os.PathLike[str], position: int | None = None, about: str = ""
) -> None:
    """The log is damaged, in this file."""
    assert result.failure is not None, result
    assert_failed(result, result.failure.code, status=UNCLEANABLE, path=path, position=position, about=about)
    assert result.failure.code in ("CORRUPT_FILE", "CORRUPT_RECORD"), result
