"""A topic's records: a page of them, new ones as they are written, and why one is still here."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, Response, StreamingResponse

from siltstone.base.errors import SiltstoneError, TooManyKeysError, UnknownTopicError
from siltstone.commands import console
from siltstone.commands.browsing import (
    RECORDS_VIEWS,
    BrowsedTopic,
    RecordQuery,
    browse,
)
from siltstone.commands.cluster import partition_named
from siltstone.commands.decoding import DECODINGS
from siltstone.commands.latest_job import unfinished_find
from siltstone.commands.streaming import StreamEvent, check_stream
from siltstone.web.dependencies import CurrentServed, Latest
from siltstone.web.errors import status_of
from siltstone.web.guards import READER
from siltstone.web.limits import READING
from siltstone.web.pages.equivalents import curl, shell
from siltstone.web.pages.rendering import (
    page_response,
    path,
    query_text,
    render_fragment,
    render_page,
    within_bytes,
)
from siltstone.web.pages.topic_tabs import topic_page
from siltstone.web.queries import RecordForm
from siltstone.web.rest.tail import opened_stream

router = APIRouter(prefix="/ui/topics")
TEXT_MAX = 16 << 10
"""Characters of a key, a value or a header that are shown, fewer where the page would get too large."""
DECODING_COOKIE = "siltstone-decoding"
"""Has ``KEYS.VALUES``, how the user has last decoded the records of one topic, whose path it has."""


@router.get("/{topic}/records", dependencies=[READER, READING])
def records(
    request: Request,
    served: CurrentServed,
    latest: Latest,
    topic: str,
    parameters: Annotated[RecordForm, Query()],
) -> Response:
    """Records: the last ones, those from an offset or a time on, or those that a search finds."""
    parameters, decoding = _with_decoding(request, parameters)
    page, problem, wrong, status, equivalents = None, None, "", 200, list[str]()
    has_too_many_keys, browsed = False, None
    try:
        url = f"/api/v1/topics/{path(topic)}/records?{query_text(parameters.api_parameters())}"
        consume = shell("siltstone", "consume", *served.paths, "--topic", topic)
        equivalents = [consume, curl(request, "GET", url)]
        with parameters.field("partition" if parameters.partition else "", UnknownTopicError):
            browsed = console.browsed_topic(served, topic)
            page = browse(browsed, parameters.query(), cursor=parameters.cursor or None, latest=latest)
    except SiltstoneError as error:
        problem, status = str(error), status_of(error)[0]
        has_too_many_keys = isinstance(error, TooManyKeysError)
        wrong = parameters.refused_field

    def render(text_max: int) -> str:
        return render_page(
            request,
            served,
            "records.html",
            topic=served.catalogue.topic(topic),
            tab="records",
            page=page,
            text_max=text_max,
            problem=problem,
            wrong=wrong,
            has_too_many_keys=has_too_many_keys,
            finding=unfinished_find(served, topic) if browsed and parameters.view == "latest" else None,
            equivalents=equivalents,
            values=parameters.model_dump(exclude={"cursor"}),
            views=RECORDS_VIEWS,
            decodings=DECODINGS,
        )

    html = within_bytes(render, TEXT_MAX)  # here not rows are fewer, but characters of each text
    # A page that shows damage of the log (an error of status 500) has not failed itself: it gets 200.
    has_succeeded = status in (200, 500)
    response = page_response(request, html) if has_succeeded else HTMLResponse(html, status)
    if decoding and not problem:
        cookie_path = f"/ui/topics/{path(topic)}/records"
        response.set_cookie(DECODING_COOKIE, decoding, samesite="strict", path=cookie_path)
    return response


def _with_decoding(request: Request, parameters: RecordForm) -> tuple[RecordForm, str]:
    """The form with the decoding that the browser remembers of this topic, if the request names none; and
    what it is to remember now, "" for no change."""
    asked = parameters.model_fields_set & {"key_decoding", "value_decoding"}
    kept = request.cookies.get(DECODING_COOKIE, "")
    if asked:
        now = f"{parameters.key_decoding}.{parameters.value_decoding}"
        return parameters, now if now != (kept or "auto.auto") else ""
    key, _, value = kept.partition(".")
    if key not in DECODINGS or value not in DECODINGS:
        return parameters, ""
    return parameters.model_copy(update={"key_decoding": key, "value_decoding": value}), ""


@router.get("/{topic}/records:tail", dependencies=[READER], response_class=StreamingResponse)
async def follow(
    request: Request, served: CurrentServed, topic: str, parameters: Annotated[RecordForm, Query()]
) -> StreamingResponse:
    """New records that fit the form, as rows of the table."""
    browsed, query = await run_in_threadpool(_followed, served, topic, parameters)

    def rows(event: StreamEvent) -> str:
        html = render_fragment(
            "record_rows.html", records=event.records[::-1], topic_name=topic, text_max=TEXT_MAX
        )
        data = html if event.kind == "records" else event.reason or event.kind
        # Also a carriage return ends a line of an event stream.
        return f"event: {event.kind}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"

    return opened_stream(request.app.state.tails, browsed, query, rows)


def _followed(served: CurrentServed, topic: str, parameters: RecordForm) -> tuple[BrowsedTopic, RecordQuery]:
    """The topic and the query of a stream, checked before it begins. Raises UsageError, UnknownTopicError."""
    query = parameters.tail_query()
    browsed = console.browsed_topic(served, topic)
    check_stream(browsed, query)
    for partition in query.partitions or ():
        partition_named(served, topic, partition)
    return browsed, query


@router.get("/{topic}/why/{partition}/{offset}", dependencies=[READER, READING])
def why(
    request: Request,
    served: CurrentServed,
    topic: str,
    partition: int,
    offset: int,
    search_from: Annotated[int | None, Query(ge=0)] = None,
    superseded_by: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """Why a record is still here."""
    reason = console.why_record_retained(
        served, topic, partition, offset, search_from=search_from, superseded_by=superseded_by
    )
    return topic_page(
        request,
        served,
        "why.html",
        topic,
        "records",
        reason=reason,
        partition=partition,
        offset=offset,
    )
