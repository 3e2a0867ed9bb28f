"""``FetchTurns``: fetches take turns with all other requests, which so do not wait behind many fetches.

A record that is produced wakes every consumer of its log, and a thousand consumers that find nothing ask
twice a second. The loop carries out in order what is due, so a Produce request would wait behind all of them.
Here the fetches wait in a queue of their own::

    a turn of the loop:  │ fetches of the queue, SLICE_SECONDS │ all sockets that are readable │
                           woken, timed out, not begun yet       other requests; new fetches

A fetch that waits reads all records that have come meanwhile, so the more there is to do, the fewer and
larger the responses are. (In Kafka ``num.io.threads`` does the same: while one thread completes parked
fetches, others take requests.)

Fetches do not starve: a slice of the queue is at least a ``SHARE``-th of the time since the last one, however
long the other requests took.

Everything runs in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

SLICE_SECONDS = 0.0005
"""How long fetches of the queue are carried out in one turn of the loop: time for about six."""
SHARE = 3
"""A slice is at least the time since the end of the last one, divided by this number."""


class FetchTurns:
    """The queue of fetches that wait for their turn.

    ``_ended_at``: when the last slice ended, or a fetch was added to the empty queue; ``_free_at``: the time
    from which a fetch may begin at once; both are the loop's time in seconds. ``_is_due``: is a slice
    scheduled?
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Callable[[], object]] = deque()
        self._ended_at = self._free_at = 0.0
        self._is_due = False

    @property
    def is_free(self) -> bool:
        """May a fetch begin at once: is the queue empty, and have fetches that began at once lately taken at
        most half of the time, or a slice?"""
        return not self._queue and self._loop.time() >= self._free_at

    def count(self, began: float) -> None:
        """Count a fetch that was carried out at once since ``began``, the loop's time in seconds."""
        # A fetch that takes t delays the next one until 2t after its begin, so fetches take half of the time.
        # After a pause the sum starts a slice in the past: fetches that then come together may take a slice
        # before one of them has to wait.
        self._free_at = max(self._free_at, began - SLICE_SECONDS) + 2 * (self._loop.time() - began)

    def add(self, fetch: Callable[[], object]) -> None:
        """Carry out a fetch when its turn has come, in a later turn of the loop."""
        self._queue.append(fetch)
        if not self._is_due:
            self._is_due, self._ended_at = True, self._loop.time()
            self._loop.call_soon(self._carry_out_some)

    def _carry_out_some(self) -> None:
        """Carry out fetches of the queue for one slice."""
        now = self._loop.time()
        end = now + max(SLICE_SECONDS, (now - self._ended_at) / SHARE)
        queue = self._queue
        try:
            while queue and now < end:
                queue.popleft()()
                now = self._loop.time()
        finally:
            self._ended_at, self._is_due = now, bool(queue)
            # The loop runs this in its next turn, after it has polled the sockets, so other requests follow.
            if queue:
                self._loop.call_soon(self._carry_out_some)
