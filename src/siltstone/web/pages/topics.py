"""The list of topics, and a topic's tabs: segments, records, configuration, history."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import SiltstoneError
from siltstone.commands import console
from siltstone.commands.administration import topic_etag
from siltstone.commands.browsing import RECORDS_VIEWS, browse
from siltstone.commands.catalogue import PAGE_MAX, PartitionRow, list_topics
from siltstone.commands.decoding import DECODINGS
from siltstone.commands.segments import PartitionSegments
from siltstone.commands.topics import settings_of_topic
from siltstone.commands.watch import STATES
from siltstone.web.guards import READER, VIEWER
from siltstone.web.here import Here, Latest
from siltstone.web.limits import READING
from siltstone.web.pages.rendering import page
from siltstone.web.queries import RecordForm, TopicParameters
from siltstone.web.strip import strip

router = APIRouter(prefix="/ui/topics")
PARTITIONS_SHOWN = 20
DELETES = ("retention.ms", "retention.bytes", "cleanup.policy")
"""Settings whose change may delete data: the topic's name has to be typed."""
Problem = Annotated[str | None, Depends(lambda: None)]
"""Why a form was refused: only ``actions`` passes it, never a request."""


class ShownTopics(TopicParameters):
    """As the list is shown: without internal topics, unless they are asked for."""

    internal: bool = False


@router.get("", dependencies=[VIEWER])
def topics(
    request: Request, served: Here, asked: Annotated[ShownTopics, Query()], *, problem: Problem = None
) -> Response:
    """The topics."""
    values = asked.model_dump(exclude={"start"}, exclude_defaults=True)
    return page(
        request,
        served,
        "topics.html",
        problem=problem,
        listing=asked.listing(),
        found=list_topics(served.catalogue, asked.listing()),
        values=values,
        states=STATES,
    )


def _topic_page(request: Request, served: Here, template: str, topic: str, tab: str, **more: Any) -> Response:
    row = served.catalogue.topic(topic)
    return page(request, served, template, topic=row, tab=tab, **more)


@router.get("/{topic}", dependencies=[VIEWER, READING])
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
    )


@router.get("/{topic}/records", dependencies=[READER, READING])
def records(
    request: Request, served: Here, latest: Latest, topic: str, asked: Annotated[RecordForm, Query()]
) -> Response:
    """Records: the last ones, those from an offset on, or those that are found."""
    found, problem = None, None
    try:
        browsed = console.browsed_topic(served, topic)
        found = browse(browsed, asked.query(), cursor=asked.cursor or None, latest=latest)
    except ValueError:
        problem = "partition and offset are numbers"
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
        values=asked.model_dump(exclude={"cursor"}),
        views=RECORDS_VIEWS,
        decodings=DECODINGS,
    )


@router.get("/{topic}/why/{partition}/{offset}", dependencies=[READER, READING])
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


@router.get("/{topic}/configuration", dependencies=[VIEWER, READING])
def configuration(
    request: Request,
    served: Here,
    topic: str,
    name: str = "",
    value: str = "",
    default: bool = False,
    *,
    problem: Problem = None,
) -> Response:
    """The topic's settings, its own first. With ``name``: what that change would do."""
    previewed = None
    if name:
        try:
            set_to, remove = ({}, [name]) if default else ({name: value}, [])
            previewed = console.preview_change(served, topic, set_to, remove)
        except SiltstoneError as error:
            problem = str(error)
    settings = settings_of_topic(served.settings_of(topic), everything=True)
    own = served.describe(topic).config
    settings.sort(key=lambda setting: setting.name not in own)
    docs = {key.name: key for key in TOPIC_KEYS}
    return _topic_page(
        request,
        served,
        "configuration.html",
        topic,
        "configuration",
        problem=problem,
        settings=settings,
        own=own,
        docs=docs,
        tag=topic_etag(served, topic),
        deleting=DELETES,
        previewed=previewed,
        asked={"name": name, "value": value, "default": default},
    )


@router.get("/{topic}/history", dependencies=[VIEWER])
def history(request: Request, served: Here, topic: str) -> Response:
    """The topic's cleanings."""
    cleanings = [found for found in console.cleanings(served) if found.result.topic == topic][:PAGE_MAX]
    return _topic_page(request, served, "history.html", topic, "history", cleanings=cleanings)
