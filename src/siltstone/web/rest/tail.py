"""``GET /api/v1/topics/{topic}/records:tail``: a stream of records, of which ``limits.TAILS_MAX`` may be open
at once. It sends new records, or with ``view=compacted`` first those of the ledger, then the log's after it
(Pulsar's readCompacted).

::

    Accept: text/event-stream (default)         Accept: application/x-ndjson

    id: AaR5…                                   {"kind": "records", "id": "AaR5…", "records": […], …}
    event: records
    data: {"records": […], "left": […], "reason": null}

Events are ``records``, ``gap`` (some were deleted before they were read), ``heartbeat`` and ``end``;
``left`` says how many offsets of each partition are still to be read. A reader that comes back says the last
``id`` that it has seen, as browsers do (``Last-Event-ID``), or passes it as ``cursor``. A slow reader holds
no memory: the next records are read when it has taken the last ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from siltstone.base.errors import SiltstoneError
from siltstone.commands import console
from siltstone.commands.browsing import BrowsedTopic, RecordQuery
from siltstone.commands.cluster import partition_named
from siltstone.commands.served import Served
from siltstone.commands.streaming import StreamEvent, check_stream, follow_rendered
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import READER
from siltstone.web.limits import Tails
from siltstone.web.queries import StreamParameters

router = APIRouter(prefix="/api/v1", tags=["Siltstone"])
EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"
EventText = Callable[[StreamEvent], str]
"""Writes an event of a stream."""


def opened_stream(
    tails: Tails,
    topic: BrowsedTopic,
    query: RecordQuery,
    text_of: EventText,
    *,
    position: str | None = None,
    waits: bool = True,
    media_type: str = EVENT_STREAM,
) -> StreamingResponse:
    """The response with a stream, which counts as open until its reader goes. ``waits``: for new records;
    otherwise it ends where there is no more. Raises BusyError if too many streams are open."""
    stopped = tails.claim()
    followed = follow_rendered(
        topic, query, text_of, position, waits=waits, stopped=stopped, executor=tails.executor
    )
    texts = _with_error(followed, text_of)
    return _Stream(texts, tails, stopped, media_type=media_type, headers={"Cache-Control": "no-store"})


class _Stream(StreamingResponse):
    """A stream that counts as open until its reader goes, also if that is before the first event."""

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


async def _with_error(texts: AsyncIterator[str], text_of: EventText) -> AsyncIterator[str]:
    """The texts; an error is the last one."""
    try:
        async for text in texts:
            yield text
    except (SiltstoneError, OSError) as error:
        yield text_of(StreamEvent(kind="end", reason=str(error)))


def _event_text(event: StreamEvent) -> str:
    place = "" if event.position is None else f"id: {event.position}\n"
    return f"{place}event: {event.kind}\ndata: {json.dumps(event.to_json())}\n\n"


def _line(event: StreamEvent) -> str:
    return json.dumps({"kind": event.kind, "id": event.position, **event.to_json()}) + "\n"


def _checked(
    served: Served, topic: str, query: RecordQuery, position: str | None
) -> tuple[BrowsedTopic, RecordQuery]:
    """The topic and the query of a stream, refused now where they are wrong: a stream that has begun has sent
    its status 200, and could only end. Raises UsageError, UnknownTopicError."""
    browsed = console.browsed_topic(served, topic)
    check_stream(browsed, query, position)
    for partition in query.partitions or ():
        partition_named(served, topic, partition)
    return browsed, query


@router.get(
    "/topics/{topic}/records:tail",
    dependencies=[READER],
    response_class=StreamingResponse,
    responses={200: {"content": {EVENT_STREAM: {}, NDJSON: {}}}},
)
async def tail(
    request: Request,
    served: CurrentServed,
    topic: str,
    parameters: Annotated[StreamParameters, Query()],
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Records as they come: from ``offset`` or ``from_ms`` on, else with ``view=compacted`` all of the ledger
    and what comes after it, else from now on. With ``wait=false`` the stream ends where there is no more."""
    position = parameters.cursor or last_event_id or None
    browsed, query = await run_in_threadpool(_checked, served, topic, parameters.query(), position)
    wants_lines = NDJSON in request.headers.get("accept", "")
    return opened_stream(
        request.app.state.tails,
        browsed,
        query,
        _line if wants_lines else _event_text,
        position=position,
        waits=parameters.wait,
        media_type=NDJSON if wants_lines else EVENT_STREAM,
    )
