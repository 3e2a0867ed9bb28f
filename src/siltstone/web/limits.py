"""Limits on what the requests of one kind may take of a server: how many run at once, for how long, how
large.

::

    8 reads of records at once · 16 more wait for a slot, 10 s at most · then 429
    10 tails (streams of new records) at once, in turns in one thread · then 429; all end when the server does
    passwords checked one at a time in one thread · 20 more wait · then 429
    a body within 60 s · 408; a piece of a response taken within 60 s, else the connection is closed
    a page of a list, as HTML or as JSON, about 140 kB: the rest is on the next one

Each read stops after 64 MiB or a second, so slots become free soon. A request that waits takes no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Depends, Request

from siltstone.base.errors import BusyError

READS_MAX, WAITING_MAX, WAITING_SECONDS = 8, 16, 10.0
TAILS_MAX = 10
CHECKS_MAX = 20
"""Passwords that wait to be checked, or are: about a second's worth."""
BODY_SECONDS, RESPONSE_SECONDS = 60.0, 60.0
"""The time for all of a body, and for each piece of a response."""
PAGE_BYTES = 140_000
"""The most bytes of a page of a list, unless one row has more."""
Result = TypeVar("Result")


class ReadSlots:
    """The slots of requests that read records, and a bounded queue for them. Only used in the event loop."""

    def __init__(
        self, count: int = READS_MAX, waiting_max: int = WAITING_MAX, seconds: float = WAITING_SECONDS
    ) -> None:
        self._free = asyncio.Semaphore(count)
        self._waiting, self._waiting_max, self._seconds = 0, waiting_max, seconds

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot within the block. Raises BusyError if too many requests wait, or after the time."""
        if self._free.locked() and self._waiting >= self._waiting_max:
            raise BusyError("too many requests read records", advice="try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            reason = f"other requests read records, and no slot got free within {self._seconds:.0f} s"
            raise BusyError(reason, advice="try again in a moment") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()


class PasswordChecks:
    """Checks passwords in a thread: a hash takes 50 ms, in which the event loop would not answer. Only
    used in the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="siltstone-passwords")
        self._count = 0

    async def run(self, check: Callable[[], Result]) -> Result:
        """What a check returns. Raises BusyError if too many wait."""
        if self._count >= CHECKS_MAX:
            raise BusyError("too many passwords are checked", advice="try again in a moment")
        self._count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, check)
        finally:
            self._count -= 1


class Tails:
    """The tails that are open: responses that send new records until the client ends them. ``count``: how
    many are open. ``executor``: the one thread in which the tails read new records and render them, in turns.
    Only ``end`` may be called in another thread than the event loop's."""

    def __init__(self) -> None:
        self.count, self._has_ended = 0, False
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="siltstone-tails")
        self._open: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def claim(self) -> asyncio.Event:
        """Count a new tail, until ``free``. Returns an event that is set when the tail has to end. Raises
        BusyError."""
        if self._has_ended:
            raise BusyError("the server is being stopped", advice="try again when it has started")
        if self.count >= TAILS_MAX:
            raise BusyError(
                f"{self.count} readers follow topics already", advice="try again when one has ended"
            )
        self.count += 1
        stopped = asyncio.Event()
        self._open[stopped] = asyncio.get_running_loop()
        return stopped

    def free(self, stopped: asyncio.Event) -> None:
        """Count a tail no more: it has ended."""
        self.count -= 1
        del self._open[stopped]

    def end(self) -> None:
        """End all tails, and refuse new ones. (The caller shuts ``executor`` down after they have
        ended.)"""
        self._has_ended = True
        for stopped, loop in list(self._open.items()):
            loop.call_soon_threadsafe(stopped.set)


async def _reading(request: Request) -> AsyncIterator[None]:
    slots: ReadSlots = request.app.state.reads
    async with slots.slot():
        yield


READING = Depends(_reading, scope="function")
"""For a route that reads records: ``dependencies=[READER, READING]``. The slot is free when the route has
returned, however long the client takes for the response."""
