"""Fetches that wait for bytes: parked by log, woken when a log moves (Kafka's ``DelayedFetch``).

::

    handler ─► park: the hooks of its logs are set, bytes are counted ─► enough? answer : sleep
    append, in any thread ─► PartitionLog.when_moved: the log is marked, the loop is woken once
    loop ─► for each marked log: count the bytes of the fetches that wait for it ─► enough? wake the handler

A wake counts and reads nothing, so an append costs a parked fetch a microsecond or two until ``min_bytes``
are there. A log without waiting fetches has no hook.

Everything but the hook runs in the loop's thread. The hook runs in the thread of an append, under the log's
lock: it puts the log into a set and, if the loop was not woken yet, wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.base.errors import SiltstoneError
from siltstone.log.fetch import READ_COMMITTED, FetchPosition, LogView, read
from siltstone.log.partition import PartitionLog

_COUNTED_MAX = 1 << 31
"""More than any ``min_bytes``: a log that is to be looked at in any case counts as so many bytes."""


@dataclass(slots=True, eq=False, kw_only=True)
class WaitedLog:
    """What a fetch waits for in one log: bytes from ``offset`` on, of which ``max_bytes`` count.

    ``position``: where ``offset`` is, if that is known, so that counting is a subtraction. ``available``: the
    bytes that were there when they were last counted.
    """

    log: PartitionLog
    offset: int
    max_bytes: int
    isolation: str
    position: FetchPosition | None = None
    available: int = 0

    def count(self) -> int:
        """Count the bytes; returns by how many there are more. A log that is closed or offline, and an offset
        that is out of range, count as more than any fetch waits for: the fetch is to be answered."""
        before = self.available
        self.available = min(self._count(self.log.view), _COUNTED_MAX) if self.log.is_open else _COUNTED_MAX
        return self.available - before

    def _count(self, view: LogView) -> int:
        limit = view.last_stable_offset if self.isolation == READ_COMMITTED else view.high_watermark
        if self.offset == limit:
            self._note_end(view)
            return 0
        at, is_whole = self.position, view.log_start_offset <= self.offset and limit == view.log_end_offset
        if at is not None and is_whole and at.segment is view.segments[-1]:
            return min(view.active_size - at.position, self.max_bytes)
        try:
            return read(view, self.offset, self.max_bytes, isolation=self.isolation).size
        except (SiltstoneError, OSError):
            return _COUNTED_MAX

    def _note_end(self, view: LogView) -> None:
        """Note where the next batch of the log will begin, if that is where this fetch goes on."""
        if self.offset == view.log_end_offset:
            self.position = FetchPosition(view.segments[-1], view.active_size, self.offset)


@dataclass(slots=True, eq=False, kw_only=True)
class _ParkedFetch:
    """A fetch that waits until ``missing`` bytes more are there; ``woken`` is done when it is to go on."""

    woken: asyncio.Future[None]
    missing: int

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class WaitingFetches:
    """The parked fetches of a broker. ``tasks``: those that wait; any thread may look for one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.tasks: set[asyncio.Task[object] | None] = set()
        self._by_log: dict[PartitionLog, dict[WaitedLog, _ParkedFetch]] = {}
        self._moved: set[PartitionLog] = set()
        self._marking = threading.Lock()
        self._is_woken = self._is_closed = False
        self._loop_thread = 0

    @property
    def parked(self) -> int:
        """How many fetches wait."""
        return len(self.tasks)

    async def until_bytes(self, logs: Sequence[WaitedLog], min_bytes: int, max_wait_ms: int) -> None:
        """Return when the logs have ``min_bytes`` together, one of them is to be looked at for another
        reason, ``max_wait_ms`` are over, or the broker stops. The caller then reads what there is."""
        self._loop_thread = threading.get_ident()
        fetch = _ParkedFetch(woken=self.loop.create_future(), missing=min_bytes)
        timer = self.loop.call_later(max_wait_ms / 1000, fetch.wake)
        task = asyncio.current_task(self.loop)
        self.tasks.add(task)
        for waited in logs:
            self._by_log.setdefault(waited.log, {})[waited] = fetch
            waited.log.when_moved = self._mark
        try:
            # After the hooks are set: what was appended before is counted here, what comes later wakes.
            for waited in logs:
                fetch.missing -= waited.count()
            if fetch.missing > 0 and not self._is_closed:
                await fetch.woken
        finally:
            timer.cancel()
            self.tasks.discard(task)
            for waited in logs:
                self._forget(waited)

    def _forget(self, waited: WaitedLog) -> None:
        fetches = self._by_log[waited.log]
        fetches.pop(waited, None)
        if not fetches:
            del self._by_log[waited.log]
            waited.log.when_moved = None

    def _mark(self, log: PartitionLog) -> None:
        """The hook; in any thread."""
        with self._marking:
            self._moved.add(log)
            if self._is_woken:
                return
            self._is_woken = True
        # An append in the loop's own thread need not wake it, which would be a system call.
        is_own = threading.get_ident() == self._loop_thread
        with contextlib.suppress(RuntimeError):  # the loop is closed: no fetch waits any more
            (self.loop.call_soon if is_own else self.loop.call_soon_threadsafe)(self._count_moved)

    def _count_moved(self) -> None:
        with self._marking:
            moved, self._moved = self._moved, set()
            self._is_woken = False
        for log in moved:
            for waited, fetch in self._by_log.get(log, {}).items():
                fetch.missing -= waited.count()
                if fetch.missing <= 0:
                    fetch.wake()

    def close(self) -> None:
        """Wake all fetches, and let none wait from now on."""
        self._is_closed = True
        for fetches in self._by_log.values():
            for fetch in fetches.values():
                fetch.wake()
