"""``GET /api/v1/topics/{topic}/records:tail``: new records as an event stream, ``TAILS_MAX`` at once.

Events are ``records`` (data: records, and what is left), ``heartbeat`` and ``end``. A slow reader holds no
memory: the next records are read when it has taken the last ones.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from siltstone.base.errors import BusyError, SiltstoneError, UsageError
from siltstone.commands import console
from siltstone.commands.browsing import BrowsedTopic, RecordQuery, TailEvent, check_tail, tail
from siltstone.commands.cluster import partition_named
from siltstone.commands.served import Served
from siltstone.web.guards import READER
from siltstone.web.here import Here
from siltstone.web.queries import RecordParameters

router = APIRouter(prefix="/api/v1", tags=["Siltstone"])
TAILS_MAX = 10


class Tails:
    """How many streams are open. Only used in the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def stream(self, topic: BrowsedTopic, query: RecordQuery) -> AsyncIterator[str]:
        """The events as text; the place is free again when the reader has gone. A reader that goes before
        the first event never takes it."""
        self.count += 1
        try:
            async for event in tail(topic, query):
                yield _text(event)
        except SiltstoneError as error:
            yield _text(TailEvent(kind="end", reason=str(error)))
        finally:
            self.count -= 1

    def refuse_too_many(self) -> None:
        """Raises BusyError if all places are taken."""
        if self.count >= TAILS_MAX:
            raise BusyError(
                f"{self.count} readers follow topics already", advice="try again when one has ended"
            )


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
    tails.refuse_too_many()
    headers = {"Cache-Control": "no-store"}
    return StreamingResponse(tails.stream(browsed, query), media_type="text/event-stream", headers=headers)
