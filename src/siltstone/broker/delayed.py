"""``DelayedResponse``: a response that is not ready yet when the handler returns.

::

    handler ─► DelayedResponse ─► dispatch sets ``encode`` ─► connection: deliver_to(its function)
    later: complete(message or error) ─► encode ─► parts ─► the connection's function, which sends them

An asyncio future with a task would do the same. But thousands of fetches are parked at one time, and each
would take a dozen objects and three turns of the loop; here the response is made and sent within the call of
``complete``. ``awaited`` makes a delayed response of an awaitable, such as a coroutine.

Everything runs in the loop's thread; any thread may read ``is_parked``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any


def _as_it_is(outcome: Any) -> Any:
    """The ``encode`` that stays where dispatch sets none: the outcome is delivered, or its error."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class DelayedResponse:
    """The response to one request. It is completed once, in a later turn of the loop than the one in which
    the handler returned it, unless it was cancelled before.

    ``encode``: makes the parts to send (``request_context.ResponseParts``) from the response message, or from
    the error that was raised instead. ``on_cancel``: is called when the response is cancelled. ``is_parked``:
    does the request wait in the purgatory? ``_made``: the parts, or the error that ``encode`` raised; None
    before ``complete``. ``_deliver``: see ``deliver_to``."""

    __slots__ = ("_deliver", "_made", "encode", "is_cancelled", "is_parked", "on_cancel")

    def __init__(self, on_cancel: Callable[[], object] | None = None) -> None:
        self.encode: Callable[[Any], Any] = _as_it_is
        self._deliver: Callable[[Any], object] | None = None
        self._made: Any = None
        self.on_cancel = on_cancel
        self.is_cancelled = self.is_parked = False

    def complete(self, outcome: Any) -> None:
        """Encode a response message or an error, and deliver the parts."""
        if self.is_cancelled:
            return
        try:
            self._made = self.encode(outcome)
        except (Exception, asyncio.CancelledError) as error:
            self._made = error
        if self._deliver is not None:
            self._deliver(self._made)

    def deliver_to(self, deliver: Callable[[Any], object]) -> None:
        """Call this function with what ``encode`` returns, or with the error that it raises: now if the
        response is complete, else as soon as it is."""
        self._deliver = deliver
        if self._made is not None:
            deliver(self._made)

    def cancel(self) -> None:
        """The connection is closed, so the response is not delivered."""
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()
            self.on_cancel = None

    def __await__(self) -> Generator[Any, None, Any]:
        """For a coroutine that waits for the response of a handler (``faults``); if the coroutine is
        cancelled, so is the response."""
        future = asyncio.get_running_loop().create_future()
        self.deliver_to(partial(_set_outcome, future))
        try:
            return (yield from future)
        except asyncio.CancelledError:
            self.cancel()
            raise


def _set_outcome(future: asyncio.Future[Any], outcome: Any) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def awaited(awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> DelayedResponse:
    """A delayed response with the result of an awaitable; a coroutine runs in a task."""
    task = asyncio.ensure_future(awaitable, loop=loop)
    # It is cancelled in the loop's next turn, after its first step: a coroutine that never began to run gives
    # a warning.
    delayed = DelayedResponse(on_cancel=lambda: loop.call_soon(task.cancel))

    def complete(task: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        delayed.complete(task.result() if error is None else error)

    task.add_done_callback(complete)
    return delayed
