"""A topic's tabs: segments, configuration, history. (Records have a module of their own.)"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from pydantic import BaseModel
from starlette.responses import Response

from siltstone.base.config import find_topic_key
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands import console
from siltstone.commands.administration import topic_etag
from siltstone.commands.catalogue import PartitionRow
from siltstone.commands.explaining import last_explanation, removal_words
from siltstone.commands.listing import Column
from siltstone.commands.segments import PartitionSegments
from siltstone.commands.topic_history import CLEANING, TopicEvent, history_of
from siltstone.commands.topics import settings_of_topic
from siltstone.web.guards import VIEWER
from siltstone.web.here import Here
from siltstone.web.limits import READING
from siltstone.web.pages.equivalents import curl, shell, topic_setting
from siltstone.web.pages.lists import ListParameters, list_page
from siltstone.web.pages.rendering import page, path
from siltstone.web.strip import Scale, strip

router = APIRouter(prefix="/ui/topics")
PARTITIONS_SHOWN = 20
DELETES = ("retention.ms", "retention.bytes", "cleanup.policy")
"""Settings whose change may delete data: the topic's name has to be typed."""
Problem = Annotated[str | None, Depends(lambda: None)]
"""Why a form was refused: only ``actions`` passes it, never a request."""


def topic_page(request: Request, served: Here, template: str, topic: str, tab: str, **more: Any) -> Response:
    """A page of a topic. Raises UnknownTopicError."""
    row = served.catalogue.topic(topic)
    return page(request, served, template, topic=row, tab=tab, **more)


@router.get("/{topic}", dependencies=[VIEWER, READING])
def segments(
    request: Request,
    served: Here,
    topic: str,
    start: Annotated[int, Query(ge=0)] = 0,
    scale: Scale = "bytes",
    *,
    problem: Problem = None,
) -> Response:
    """Each partition's segments, drawn, with the reason why it is not cleaned."""
    rows = served.catalogue.partitions_of(topic)
    shown = list[tuple[PartitionRow, PartitionSegments | None, Markup | None, str | None]]()
    for row in rows[start : start + PARTITIONS_SHOWN]:
        try:
            found = console.partition_segments(served, topic, row.topic_partition.partition)
            shown.append((row, found, strip(found, scale), None))
        except (SiltstoneError, OSError) as error:
            shown.append((row, None, None, str(error)))
    more = start + PARTITIONS_SHOWN if start + PARTITIONS_SHOWN < len(rows) else None
    return topic_page(
        request,
        served,
        "segments.html",
        topic,
        "segments",
        problem=problem,
        shown=shown,
        next_start=more,
        total=len(rows),
        start=start,
        scale=scale,
        dry_run=last_explanation(served, topic),
        removal_words=removal_words,
        same=[
            shell("siltstone", "clean", *served.paths, "--topic", topic, "--dry-run"),
            curl(request, "POST", f"/api/v1/topics/{path(topic)}:explain", {}),
            curl(request, "POST", f"/api/v1/topics/{path(topic)}:clean", {"force": False}),
        ],
    )


class Asked(BaseModel):
    """The setting in the form, and the value that is previewed; empty: as it is."""

    name: str = "cleanup.policy"
    value: str = ""
    default: bool = False


@router.get("/{topic}/configuration", dependencies=[VIEWER, READING])
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
    return topic_page(
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
