"""Waiting with a deadline: ask, pause a little, ask again, and say what was waited for when time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.05


def poll_until(ask: Callable[[], T | None], *, what: str, timeout_s: float) -> T:
    """The first answer of `ask` that is not None; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}")
        time.sleep(PAUSE_S)
