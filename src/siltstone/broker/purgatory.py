"""The fetch purgatory: Fetch requests that are parked until their logs have ``min_bytes`` (Kafka's
``DelayedFetch`` in a ``DelayedOperationPurgatory``, whose watch list is by partition, as here).

::

    1  park, by the handler    after a read with too few bytes: sets the hook ``when_moved`` of each log, then
                               counts the bytes that are there now; if they are enough, step 4 follows
    2  append, in any thread   calls the hook: it marks the log as moved (its offsets have changed), and wakes
                               the loop, unless the loop is to wake already
    3  loop                    for each marked log: counts again for the fetches that watch it
    4  enough bytes            the fetch is resumed in its turn (``turns``), reads and responds

The hook is set before the bytes are counted. So the bytes of an append between the two are counted, or it
calls the hook, or both, and no fetch stays parked although its logs have enough bytes.

Step 3 does not read records. Where the position of the fetch's offset is known, as at the end of a log, the
count is a subtraction of file sizes, one or two microseconds an append; else the offset is searched in the
index. A log that no fetch watches has no hook, so its appends pay nothing.

Steps 1, 3 and 4 run in the loop's thread. The hook runs in the thread of the append, under the log's lock, so
it only adds to a set.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from siltstone.base.errors import SiltstoneError
from siltstone.broker.turns import FetchTurns
from siltstone.log.fetch import FetchPosition, LogView, read
from siltstone.log.partition import PartitionLog

_ENOUGH_BYTES = 1 << 31
"""The count of a log whose fetch must be answered in any case: more than any ``min_bytes``, an int32."""


@dataclass(slots=True, eq=False, kw_only=True)
class AwaitedLog:
    """One log that a parked fetch watches: it waits for bytes from ``offset`` on, of which at most
    ``max_bytes`` (the partition's) count.

    ``isolation``: of the fetch; bytes count below the last stable offset (``READ_COMMITTED``) or the high
    watermark. ``position``: the segment and byte of ``offset``; None while it is not known. ``available``:
    the result of the last count.
    """

    log: PartitionLog
    offset: int
    max_bytes: int
    isolation: str
    position: FetchPosition | None = None
    available: int = 0

    def count(self) -> int:
        """Count the available bytes, and return by how many they differ from the last count.

        A log that is closed or offline, and an offset that is out of range, count as ``_ENOUGH_BYTES``: the
        fetch has an error to report, so it must be answered now.
        """
        before = self.available
        self.available = self._count(self.log.view) if self.log.is_open else _ENOUGH_BYTES
        return self.available - before

    def _count(self, view: LogView) -> int:
        """The available bytes in a view, or ``_ENOUGH_BYTES``."""
        limit = view.readable_end(self.isolation)
        if self.offset == limit:
            self._note_end(view)
            return 0
        # The subtraction holds only up to the end of the active segment's file: for a fetch that may read to
        # the log end offset, from a position in that segment.
        start = self.position
        is_to_end = view.log_start_offset <= self.offset and limit == view.log_end_offset
        if start is not None and is_to_end and start.segment is view.segments[-1]:
            return min(view.active_size - start.position, self.max_bytes)
        try:
            size = read(view, self.offset, self.max_bytes, isolation=self.isolation).size
        except (SiltstoneError, OSError):
            return _ENOUGH_BYTES
        return min(size, _ENOUGH_BYTES)

    def _note_end(self, view: LogView) -> None:
        """The fetch is at the log end offset: note the position at which the next batch will begin."""
        if self.offset == view.log_end_offset:
            self.position = FetchPosition(view.segments[-1], view.active_size, self.offset)


@dataclass(slots=True, eq=False, kw_only=True)
class DelayedFetch:
    """A parked fetch (Kafka's ``DelayedFetch``). ``resume``: is called in its turn when it may respond;
    ``logs``: those that it watches; ``missing``: the bytes that it still waits for, 0 or less if there are
    enough; ``timer``: ends the wait."""

    resume: Callable[[], object]
    logs: Sequence[AwaitedLog]
    missing: int
    timer: asyncio.TimerHandle | None = None


class FetchPurgatory:
    """The parked fetches of a broker. ``turns``: where those that may respond wait for their turn.

    ``_by_log``: the logs that are watched, each with what its fetches await of it. ``_moved``: the logs whose
    hook was called since the last count; ``_is_woken``: will the loop count them? The lock ``_marking``
    guards both. ``_loop_thread``: the id of the loop's thread, 0 before the first fetch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: FetchTurns) -> None:
        self.loop, self._turns = loop, turns
        self._fetches: set[DelayedFetch] = set()
        self._by_log: dict[PartitionLog, dict[AwaitedLog, DelayedFetch]] = {}
        self._moved: set[PartitionLog] = set()
        self._marking = threading.Lock()
        self._is_woken = self._is_closed = False
        self._loop_thread = 0

    @property
    def parked(self) -> int:
        """The number of parked fetches (Kafka's ``PurgatorySize``)."""
        return len(self._fetches)

    def park(
        self, logs: Sequence[AwaitedLog], min_bytes: int, max_wait_ms: int, resume: Callable[[], object]
    ) -> DelayedFetch:
        """Call ``resume`` in its turn, later, when the logs have ``min_bytes`` together, when one of them has
        an error to report, after ``max_wait_ms``, or when the broker stops. It then reads what there is."""
        self._loop_thread = threading.get_ident()
        fetch = DelayedFetch(resume=resume, logs=logs, missing=min_bytes)
        self._fetches.add(fetch)
        for watched in logs:
            self._by_log.setdefault(watched.log, {})[watched] = fetch
            watched.log.when_moved = self._mark
        # Only now that the hooks are set: an earlier append is counted here, a later one calls the hook.
        for watched in logs:
            fetch.missing -= watched.count()
        if fetch.missing <= 0 or self._is_closed:
            self._wake(fetch)
        else:
            fetch.timer = self.loop.call_later(max_wait_ms / 1000, self._wake, fetch)
        return fetch

    def _wake(self, fetch: DelayedFetch) -> None:
        """End the wait of a fetch: it is resumed in its turn."""
        self.forget(fetch)
        self._turns.add(fetch.resume)

    def forget(self, fetch: DelayedFetch) -> None:
        """Remove a fetch, which is then not resumed. Does nothing if it is not parked."""
        if fetch not in self._fetches:
            return
        self._fetches.remove(fetch)
        if fetch.timer is not None:
            fetch.timer.cancel()
        for watched in fetch.logs:
            self._stop_watching(watched)

    def _stop_watching(self, watched: AwaitedLog) -> None:
        """Stop watching a log for one fetch; if it was the last fetch of the log, remove the hook."""
        fetches = self._by_log[watched.log]
        fetches.pop(watched, None)
        if not fetches:
            del self._by_log[watched.log]
            watched.log.when_moved = None

    def _mark(self, log: PartitionLog) -> None:
        """The hook: in any thread, under the lock of the log."""
        with self._marking:
            self._moved.add(log)
            # One wake serves all logs that move until the loop has run ``_count_moved``.
            if self._is_woken:
                return
            self._is_woken = True
        # To wake the loop from another thread is a system call; its own thread need not be woken.
        is_own = threading.get_ident() == self._loop_thread
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no fetch is parked
            (self.loop.call_soon if is_own else self.loop.call_soon_threadsafe)(self._count_moved)

    def _count_moved(self) -> None:
        """Count the bytes of the logs that have moved, and wake the fetches that now have enough."""
        # The flag is cleared before the logs are counted: an append during the count wakes the loop again.
        with self._marking:
            moved, self._moved = self._moved, set()
            self._is_woken = False
        for log in moved:
            for watched, fetch in tuple(self._by_log.get(log, {}).items()):
                if fetch in self._fetches:  # not if another of its logs has woken it a moment ago
                    fetch.missing -= watched.count()
                    if fetch.missing <= 0:
                        self._wake(fetch)

    def close(self) -> None:
        """Wake all parked fetches, and park none from now on."""
        self._is_closed = True
        for fetch in tuple(self._fetches):
            self._wake(fetch)
