"""``FetchTurns``: fetches take turns with all other requests, which do not wait behind them.

A record that is produced wakes every consumer of its log, and a thousand consumers that find nothing ask
twice a second. The loop carries out in order what is due, so a Produce request would wait behind all of them.
Here they wait in a queue of their own::

    a turn of the loop:  │ fetches of the queue, SLICE_SECONDS │ all sockets that are readable │
                           woken, timed out, not begun yet       other requests; new fetches

A fetch that waits reads all records that have come meanwhile, so the more there is to do, the fewer and
larger its responses are. (Kafka has ``num.io.threads`` for the same: while one completes parked fetches,
others take requests.)

Fetches do not starve: a slice of the queue is at least a ``SHARE``-th of the time since the last one, however
long the other requests took.

Everything runs in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

SLICE_SECONDS = 0.0005
"""How long the fetches of the queue are carried out in one turn of the loop: half a dozen."""
SHARE = 3


class FetchTurns:
    """The queue of fetches that wait for their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Callable[[], object]] = deque()
        self._ended_at = self._free_at = 0.0
        self._is_due = False

    @property
    def is_free(self) -> bool:
        """May a fetch begin at once: is the queue empty, and have fetches of late had no more than a slice,
        or half of the time?"""
        return not self._queue and self._loop.time() >= self._free_at

    def count(self, began: float) -> None:
        """Count a fetch that was carried out at once since ``began``, the loop's time in seconds."""
        self._free_at = max(self._free_at, began - SLICE_SECONDS) + 2 * (self._loop.time() - began)

    def add(self, fetch: Callable[[], object]) -> None:
        """Carry out a fetch when its turn has come, in a later turn of the loop."""
        self._queue.append(fetch)
        if not self._is_due:
            self._is_due, self._ended_at = True, self._loop.time()
            self._loop.call_soon(self._carry_out_some)

    def _carry_out_some(self) -> None:
        now = self._loop.time()
        end = now + max(SLICE_SECONDS, (now - self._ended_at) / SHARE)
        queue = self._queue
        try:
            while queue and now < end:
                queue.popleft()()
                now = self._loop.time()
        finally:
            self._ended_at, self._is_due = now, bool(queue)
            if queue:
                self._loop.call_soon(self._carry_out_some)
