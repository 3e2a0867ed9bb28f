"""Work that goes on one step behind its caller, in a thread of its own.

Codecs and kernels leave the other threads alone, so a task whose neighbours are done can use a second core.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class OneBehind:
    """Calls that return bytes written, one after another; when one is given, the one before it is done.

    There is no thread before the first call, and none after the block.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[int] | None = None

    def give(self, call: Callable[[], int]) -> int:
        """Begin a call; returns what the one before wrote, and raises what it raised."""
        written = self.wait()
        self._pool = self._pool or ThreadPoolExecutor(1, "behind")
        self._last = self._pool.submit(call)
        return written

    def wait(self) -> int:
        """Let the last call end; returns what it wrote, 0 without one, and raises what it raised."""
        last, self._last = self._last, None
        return last.result() if last is not None else 0

    def __enter__(self) -> OneBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
