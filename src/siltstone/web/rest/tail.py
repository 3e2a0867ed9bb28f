"""``GET /api/v1/topics/{topic}/records:tail``: new records as an event stream.

``limits.TAILS_MAX`` may be open. Events are ``records`` (data: records, and what is left), ``heartbeat`` and
``end``. A slow reader holds no memory: the next records are read when it has taken the last ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands import console
from siltstone.commands.browsing import BrowsedTopic, RecordQuery, TailEvent, check_tail, tail
from siltstone.commands.cluster import partition_named
from siltstone.commands.served import Served
from siltstone.web.guards import READER
from siltstone.web.here import Here
from siltstone.web.limits import Tails
from siltstone.web.queries import RecordParameters

router = APIRouter(prefix="/api/v1", tags=["Siltstone"])


async def _events(topic: BrowsedTopic, query: RecordQuery, stopped: asyncio.Event) -> AsyncIterator[str]:
    """The events as text."""
    try:
        async for event in tail(topic, query, stopped=stopped):
            yield _text(event)
    except SiltstoneError as error:
        yield _text(TailEvent(kind="end", reason=str(error)))


class _Stream(StreamingResponse):
    """A stream that has a place, and frees it whenever the reader goes: also before the first event."""

    def __init__(
        self, events: AsyncIterator[str], tails: Tails, stopped: asyncio.Event, **options: Any
    ) -> None:
        super().__init__(events, **options)
        self._tails, self._stopped = tails, stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._tails.free(self._stopped)


def _text(event: TailEvent) -> str:
    data = {
        "records": [record.to_json() for record in event.records],
        "left": [progress.to_json() for progress in event.left],
        "reason": event.reason,
    }
    return f"event: {event.kind}\ndata: {json.dumps(data)}\n\n"


def _checked(served: Served, topic: str, asked: RecordParameters) -> tuple[BrowsedTopic, RecordQuery]:
    """Refuse now what a stream that has begun could only end with. Raises UsageError, UnknownTopicError."""
    if asked.last is not None or asked.view != "log":
        raise UsageError("a stream has no last records and no view", advice="leave last and view out")
    if asked.cursor is not None:
        raise UsageError("a page's cursor is none of a stream", advice="leave cursor out, or pass offset")
    browsed, query = console.browsed_topic(served, topic), asked.query()
    check_tail(browsed, query)
    for partition in query.partitions or ():
        partition_named(served, topic, partition)
    return browsed, query


@router.get(
    "/topics/{topic}/records:tail",
    dependencies=[READER],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def follow(
    request: Request, served: Here, topic: str, asked: Annotated[RecordParameters, Query()]
) -> StreamingResponse:
    """New records as they come; from ``offset`` or ``from_ms`` on, else from now."""
    browsed, query = await run_in_threadpool(_checked, served, topic, asked)
    tails: Tails = request.app.state.tails
    stopped = tails.claim()
    headers = {"Cache-Control": "no-store"}
    events = _events(browsed, query, stopped)
    return _Stream(events, tails, stopped, media_type="text/event-stream", headers=headers)
