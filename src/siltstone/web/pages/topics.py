"""The list of topics, and a topic's tabs: segments, records, configuration, history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from siltstone.base.config import find_topic_key
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands import console
from siltstone.commands.administration import topic_etag
from siltstone.commands.browsing import (
    RECORDS_VIEWS,
    BrowsedTopic,
    RecordQuery,
    TailEvent,
    browse,
    check_tail,
)
from siltstone.commands.catalogue import (
    PAGE_MAX,
    Catalogue,
    Listing,
    PartitionRow,
    TopicRow,
    list_topics,
)
from siltstone.commands.cluster import partition_named
from siltstone.commands.decoding import DECODINGS
from siltstone.commands.explaining import last_explanation, removal_words
from siltstone.commands.listing import Column, csv_text, json_rows
from siltstone.commands.segments import PartitionSegments
from siltstone.commands.topic_history import CLEANING, TopicEvent, history_of
from siltstone.commands.topics import settings_of_topic
from siltstone.commands.watch import STATES
from siltstone.web.guards import READER, VIEWER
from siltstone.web.here import Here, Latest
from siltstone.web.pages.equivalents import curl, shell, siltstone, topic_setting
from siltstone.web.pages.lists import KINDS, Format, ListParameters, attachment, list_page
from siltstone.web.pages.rendering import fragment, page, path, query_text
from siltstone.web.queries import RecordForm, TopicParameters
from siltstone.web.rest.tail import Tails
from siltstone.web.strip import strip

router = APIRouter(prefix="/ui/topics")
PARTITIONS_SHOWN = 20
DELETES = ("retention.ms", "retention.bytes", "cleanup.policy")
"""Settings whose change may delete data: the topic's name has to be typed."""
Problem = Annotated[str | None, Depends(lambda: None)]
"""Why a form was refused: only ``actions`` passes it, never a request."""


TOPIC_COLUMNS: tuple[Column[TopicRow], ...] = (
    Column(name="name", title="topic", value=lambda row: row.name),
    Column(name="partitions", title="partitions", value=lambda row: row.partitions, is_number=True),
    Column(name="policy", title="policy", value=lambda row: row.policy),
    Column(name="retention_ms", title="kept for", value=lambda row: row.retention_ms, is_number=True),
    Column(name="retention_bytes", title="kept up to", value=lambda row: row.retention_bytes, is_number=True),
    Column(name="bytes", title="bytes", value=lambda row: row.bytes, is_number=True),
    Column(name="dirty_bytes", title="dirty", value=lambda row: row.dirty_bytes, is_number=True),
    Column(name="dirty_ratio", title="ratio / needed", value=lambda row: row.dirty_ratio, is_number=True),
    Column(name="records", title="records stored", value=lambda row: row.records, is_number=True),
    Column(name="saved_bytes_7d", title="saved in 7 d", value=lambda row: row.saved_bytes_7d, is_number=True),
    Column(name="last_cleaning_ms", title="last cleaning (UTC)", value=lambda row: row.last_cleaning_ms),
    Column(name="state", title="state", value=lambda row: row.state),
)


class ShownTopics(TopicParameters):
    """As the list is shown: without internal topics, unless they are asked for."""

    internal: bool = False
    format: Format = ""

    @property
    def values(self) -> dict[str, Any]:
        """What of the query string stays when the page is turned."""
        return self.model_dump(exclude={"start", "format"}, exclude_defaults=True)


@router.get("", dependencies=[VIEWER])
def topics(
    request: Request, served: Here, asked: Annotated[ShownTopics, Query()], *, problem: Problem = None
) -> Response:
    """The topics."""
    listing = asked.listing()
    found = list_topics(served.catalogue, listing)
    if asked.format:
        pages = _pages(served.catalogue, replace(listing, start=0, count=PAGE_MAX))
        return StreamingResponse(
            _file(pages, as_json=asked.format == "json"),
            media_type=KINDS[asked.format],
            headers=attachment(f"topics.{asked.format}"),
        )
    return page(
        request,
        served,
        "topics.html",
        problem=problem,
        listing=listing,
        found=found,
        values=asked.values,
        columns=TOPIC_COLUMNS,
        states=STATES,
        same=[
            siltstone(served, "topics", "--describe"),
            curl(request, "GET", f"/api/v1/topics?{query_text(asked.values)}"),
        ],
    )


def _pages(catalogue: Catalogue, listing: Listing) -> Iterator[Sequence[TopicRow]]:
    """All topics that fit, some at a time: there may be 100,000."""
    start: int | None = listing.start
    while start is not None:
        found = list_topics(catalogue, replace(listing, start=start))
        yield found.rows
        start = found.next_start


def _file(pages: Iterator[Sequence[TopicRow]], *, as_json: bool) -> Iterator[str]:
    for number, rows in enumerate(pages):
        if not as_json:
            yield csv_text(rows, TOPIC_COLUMNS, with_head=number == 0)
            continue
        texts = map(json.dumps, json_rows(rows, TOPIC_COLUMNS))
        yield ("[" if number == 0 else ",") + ",".join(texts)
    if as_json:
        yield "]"


def _topic_page(request: Request, served: Here, template: str, topic: str, tab: str, **more: Any) -> Response:
    row = served.catalogue.topic(topic)
    return page(request, served, template, topic=row, tab=tab, **more)


@router.get("/{topic}", dependencies=[VIEWER])
def segments(
    request: Request,
    served: Here,
    topic: str,
    start: Annotated[int, Query(ge=0)] = 0,
    *,
    problem: Problem = None,
) -> Response:
    """Each partition's segments, drawn, with the reason why it is not cleaned."""
    rows = served.catalogue.partitions_of(topic)
    shown = list[tuple[PartitionRow, PartitionSegments | None, Markup | None, str | None]]()
    for row in rows[start : start + PARTITIONS_SHOWN]:
        try:
            found = console.partition_segments(served, topic, row.topic_partition.partition)
            shown.append((row, found, strip(found), None))
        except (SiltstoneError, OSError) as error:
            shown.append((row, None, None, str(error)))
    more = start + PARTITIONS_SHOWN if start + PARTITIONS_SHOWN < len(rows) else None
    return _topic_page(
        request,
        served,
        "segments.html",
        topic,
        "segments",
        problem=problem,
        shown=shown,
        next_start=more,
        total=len(rows),
        dry_run=last_explanation(served, topic),
        removal_words=removal_words,
        same=[
            shell("siltstone", "clean", *served.paths, "--topic", topic, "--dry-run"),
            curl(request, "POST", f"/api/v1/topics/{path(topic)}:explain", {}),
            curl(request, "POST", f"/api/v1/topics/{path(topic)}:clean", {"force": False}),
        ],
    )


@router.get("/{topic}/records", dependencies=[READER])
def records(
    request: Request, served: Here, latest: Latest, topic: str, asked: Annotated[RecordForm, Query()]
) -> Response:
    """Records: the last ones, those from an offset on, or those that are found."""
    found, problem, same = None, None, list[str]()
    try:
        url = f"/api/v1/topics/{path(topic)}/records?{query_text(asked.api_parameters())}"
        same = [shell("siltstone", "consume", *served.paths, "--topic", topic), curl(request, "GET", url)]
        browsed = console.browsed_topic(served, topic)
        found = browse(browsed, asked.query(), cursor=asked.cursor or None, latest=latest)
    except ValueError:
        problem = "partition and offset are numbers, the time is a date with a time"
    except SiltstoneError as error:
        problem = str(error)
    return _topic_page(
        request,
        served,
        "records.html",
        topic,
        "records",
        found=found,
        problem=problem,
        same=same,
        values=asked.model_dump(exclude={"cursor"}),
        views=RECORDS_VIEWS,
        decodings=DECODINGS,
    )


@router.get("/{topic}/records:tail", dependencies=[READER], response_class=StreamingResponse)
async def follow(
    request: Request, served: Here, topic: str, asked: Annotated[RecordForm, Query()]
) -> StreamingResponse:
    """New records that fit the form, as rows of the table."""
    browsed, query = await run_in_threadpool(_followed, served, topic, asked)
    tails: Tails = request.app.state.tails

    def rows(event: TailEvent) -> str:
        html = fragment("record_rows.html", records=event.records[::-1], topic_name=topic)
        data = html if event.kind == "records" else event.reason or "The stream has ended."
        # Also a carriage return ends a line of an event stream.
        return f"event: {event.kind}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"

    return tails.opened(browsed, query, rows)


def _followed(served: Here, topic: str, asked: RecordForm) -> tuple[BrowsedTopic, RecordQuery]:
    """Raises UsageError, UnknownTopicError."""
    try:
        query = asked.tail_query()
    except ValueError:
        raise UsageError("partition is a number", advice="leave it empty for all") from None
    browsed = console.browsed_topic(served, topic)
    check_tail(browsed, query)
    for partition in query.partitions or ():
        partition_named(served, topic, partition)
    return browsed, query


@router.get("/{topic}/why/{partition}/{offset}", dependencies=[READER])
def why(
    request: Request,
    served: Here,
    topic: str,
    partition: int,
    offset: int,
    search_from: Annotated[int | None, Query(ge=0)] = None,
    superseded_by: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """Why a record is still here."""
    staying = console.why_record_stays(
        served, topic, partition, offset, search_from=search_from, superseded_by=superseded_by
    )
    return _topic_page(
        request,
        served,
        "why.html",
        topic,
        "records",
        staying=staying,
        partition=partition,
        offset=offset,
    )


class Asked(BaseModel):
    """The setting in the form, and the value that is previewed; empty: as it is."""

    name: str = "cleanup.policy"
    value: str = ""
    default: bool = False


@router.get("/{topic}/configuration", dependencies=[VIEWER])
def configuration(
    request: Request,
    served: Here,
    topic: str,
    asked: Annotated[Asked, Query()],
    *,
    problem: Problem = None,
    is_conflict: Annotated[bool, Depends(lambda: False)] = False,
) -> Response:
    """The topic's settings, its own first, and a form for one of them. With ``value``: what that change would
    do. ``is_conflict``: somebody has changed the settings since the form was read."""
    previewed = None
    try:
        key = find_topic_key(asked.name)
    except UsageError as error:
        problem, asked = str(error), Asked()
        key = find_topic_key(asked.name)
    if asked.value or asked.default:
        try:
            set_to, remove = ({}, [key.name]) if asked.default else ({key.name: asked.value}, [])
            previewed = console.preview_change(served, topic, set_to, remove)
        except SiltstoneError as error:
            problem = problem or str(error)
    settings = settings_of_topic(served.settings_of(topic), everything=True)
    own = served.describe(topic).config
    settings.sort(key=lambda setting: setting.name not in own)
    value = next(setting.value for setting in settings if setting.name == key.name)
    return _topic_page(
        request,
        served,
        "configuration.html",
        topic,
        "configuration",
        problem=problem,
        settings=settings,
        own=own,
        docs={key.name: key for key in TOPIC_KEYS},
        tag=topic_etag(served, topic),
        deleting=DELETES,
        previewed=previewed,
        is_conflict=is_conflict,
        asked=asked,
        key=key,
        now=value,
        partitions=len(served.describe(topic).partitions),
        same=topic_setting(request, served, topic, key.name, asked.value or value, default=asked.default),
    )


HISTORY: tuple[Column[TopicEvent], ...] = (
    Column(name="at_ms", title="time (UTC)", value=lambda event: event.at_ms),
    Column(name="what", title="what", value=lambda event: event.what),
    Column(name="partition", title="partition", value=lambda event: event.partition, is_number=True),
    Column(name="status", title="outcome", value=lambda event: event.status),
    Column(name="bytes_before", title="bytes before", value=lambda event: event.bytes_before, is_number=True),
    Column(name="bytes_after", title="after", value=lambda event: event.bytes_after, is_number=True),
    Column(name="saved_bytes", title="saved", value=lambda event: event.saved_bytes, is_number=True),
    Column(name="seconds", title="seconds", value=lambda event: event.seconds, is_number=True),
    Column(name="details", title="what went, and why", value=lambda event: event.details),
)


@router.get("/{topic}/history", dependencies=[VIEWER])
def history(
    request: Request, served: Here, topic: str, asked: Annotated[ListParameters, Query()]
) -> Response:
    """What happened to the topic: cleanings, and changes of its settings."""
    row = served.catalogue.topic(topic)
    events = history_of(served, topic)
    return list_page(
        request,
        served,
        "history.html",
        f"history-{topic}",
        HISTORY,
        events,
        asked,
        topic=row,
        tab="history",
        saved=sum(event.saved_bytes or 0 for event in events),
        cleanings=sum(event.what == CLEANING for event in events),
    )
