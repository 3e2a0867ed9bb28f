"""Runs scans of all logs, which take longer than a request may, in the background, and keeps the last result
of each.

::

    request ─► ``Scans.of`` ─► ``LastScan``: what the last one has found, and when; how far a running one is
                    └ none yet, or too old ─► the one thread that scans: one scan at a time

A scan is only made for a request: the next one begins at the first request after a pause of ``AGAIN_MS`` and
ten times as long as the last scan took.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from siltstone.base.clock import Clock
from siltstone.base.closing import Closing
from siltstone.base.errors import BusyError, JobCancelledError, SiltstoneError

AGAIN_MS = 5_000
"""The least time from the end of a scan to the next one of the same name."""
FIRST_SECONDS = 0.03
"""How long a request waits for a first scan: that of a few logs ends within it."""
Found = TypeVar("Found")
Report = Callable[[int, int], None]
"""Called with how many logs were read, and of how many; raises JobCancelledError to end the scan."""
_STOPPING = "the server is being stopped"
_logger = logging.getLogger("siltstone")


def no_report(done: int, total: int) -> None:
    """A ``Report`` that is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastScan(Generic[Found]):
    """The state of one scan: its last result, and whether it runs.

    ``found``: by the last scan that has succeeded, which began ``at_ms``; both None before. ``error``: why
    the last one failed. ``is_running``: one runs, or waits; it has read ``done`` of ``total`` logs.
    ``ended_ms``: when the last one has ended; the next begins ``pause_ms`` later."""

    found: Found | None = None
    at_ms: int | None = None
    error: str | None = None
    is_running: bool = False
    done: int = 0
    total: int = 0
    ended_ms: int | None = None
    pause_ms: int = 0

    @property
    def is_first(self) -> bool:
        """Is the first scan not complete yet?"""
        return self.found is None and self.error is None

    def is_due(self, now_ms: int) -> bool:
        """Is it time for the next one? (A clock that was set back does not put it off.)"""
        is_recent = self.ended_ms is not None and 0 <= now_ms - self.ended_ms < self.pause_ms
        return not self.is_running and not is_recent

    def result(self) -> Found:
        """The result. Raises BusyError if it is not known yet."""
        if self.found is not None:
            return self.found
        reason = self.error or f"the logs are being scanned: {self.done:,} of {self.total:,} are done"
        raise BusyError(reason, advice="try again in a moment")

    def to_json(self) -> dict[str, object]:
        """The state of the scan, for the REST API. ``looking``: the earlier name of ``scanning``, kept until
        the first release, since scripts read it."""
        running = {"logs_done": self.done, "logs_total": self.total} if self.is_running else None
        return {"at_ms": self.at_ms, "error": self.error, "scanning": running, "looking": running}


class Scans(Closing):
    """The scans of a server, by name. Safe in several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock, self._is_closed = clock, threading.Lock(), False
        self._scans = dict[str, LastScan[Any]]()
        self._futures = dict[str, Future[None]]()
        self._pool = _pool()

    def of(self, name: str, scan: Callable[[Report], Found]) -> LastScan[Found]:
        """The result of the last scan of this name. ``scan`` makes the next one, if it is due; it may
        raise SiltstoneError and OSError."""
        with self._lock:
            kept = self._scans.setdefault(name, LastScan())
            if self._is_closed:
                return replace(kept, error=_STOPPING) if kept.is_first else kept
            is_due = kept.is_due(self._clock.now_ms())
            if is_due:
                self._scans[name] = self._started(name, scan, kept)
        if kept.is_first and is_due:
            self.wait(name, FIRST_SECONDS)
        return self._scans.get(name, kept)  # ``forget`` may have dropped it

    def _started(self, name: str, scan: Callable[[Report], Found], kept: LastScan[Found]) -> LastScan[Found]:
        """The state of a scan that is started now, or why it cannot be. The caller holds the lock."""
        try:
            self._futures[name] = self._pool.submit(self._run, name, scan)
        except RuntimeError as error:  # there can be no more threads
            # In the old pool, which has no thread, the scan would wait for the next one.
            self._pool = _pool()
            ended_ms = self._clock.now_ms()
            reason = f"the scan could not be started: {error}"
            return replace(kept, error=reason, ended_ms=ended_ms, pause_ms=AGAIN_MS)
        return replace(kept, is_running=True, done=0, total=0)

    def _run(self, name: str, scan: Callable[[Report], object]) -> None:
        """Scan, in the pool's thread; the result or the error becomes the state of the scan."""

        def report(done: int, total: int) -> None:
            if self._is_closed:
                raise JobCancelledError(_STOPPING)
            self._change(name, done=done, total=total)

        began_ms, values = self._clock.now_ms(), dict[str, object]()
        try:
            values = {"found": scan(report), "at_ms": began_ms, "error": None}
        except (SiltstoneError, OSError) as error:
            values = {"error": str(error)}
        except Exception as error:
            _logger.exception("The scan %s failed", name)
            values = {"error": f"{type(error).__name__}: {error}"}
        ended_ms = self._clock.now_ms()
        pause_ms = AGAIN_MS + 10 * max(ended_ms - began_ms, 0)
        self._change(name, **values, is_running=False, ended_ms=ended_ms, pause_ms=pause_ms)

    def _change(self, name: str, **values: object) -> None:
        """Set fields of a scan's ``LastScan``."""
        with self._lock:
            if name in self._scans:  # ``forget`` may have dropped it
                self._scans[name] = replace(self._scans[name], **values)  # type: ignore[arg-type]

    def wait(self, name: str, timeout: float | None = None) -> None:
        """Return when the scan that runs has ended, or after ``timeout`` seconds."""
        if name in self._futures:
            concurrent.futures.wait([self._futures[name]], timeout)

    def forget(self, name: str) -> None:
        """Drop the result, once a running scan has ended, so that the next request scans again."""
        self.wait(name)
        with self._lock:
            self._scans.pop(name, None)

    def close(self) -> None:
        """End a running scan at its next report; requests then get what is known."""
        with self._lock:  # the pool takes no scan that a request would start later
            self._is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="siltstone-scan")
