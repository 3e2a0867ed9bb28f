"""A topic's tabs: segments, configuration, history. (Records have a module of their own.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from siltstone.commands.previewing import RETENTION_SETTINGS, ChangePreview
from siltstone.commands.segments import PartitionSegments, SegmentRow
from siltstone.commands.served import Served
from siltstone.commands.topic_history import CLEANING, TopicEvent, history_of
from siltstone.commands.topics import settings_of_topic
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.limits import READING
from siltstone.web.pages.cached_pages import cached_response
from siltstone.web.pages.equivalents import cleaning_of_topic, more_partitions, topic_deletion, topic_setting
from siltstone.web.pages.lists import Parameters, list_page
from siltstone.web.pages.rendering import page, page_response, render_page, within_bytes
from siltstone.web.strip import Scale, strip

router = APIRouter(prefix="/ui/topics")
PARTITIONS_SHOWN, SEGMENTS_SHOWN = 20, 100
"""The most partitions on a page, and the most segments in the table of each."""
CACHED_SEGMENTS_MAX = 1000
"""A page of more segments is rendered for each request: the cache would hold the facts of all of them."""
EXPLAINED_LOGS, EXPLAINED_GROUPS = 10, 50
"""The most logs of a dry run that the page shows, and the most segment groups of all of them."""
DELETING_SETTINGS = RETENTION_SETTINGS
"""Settings whose change may delete data: the topic's name has to be typed."""
FromActions = Annotated[str | None, Depends(lambda: None)]
"""An argument that only ``actions`` passes, when a form was refused, and never a request: why it was refused,
the name of the wrong field, the text in it."""


def topic_page(
    request: Request, served: CurrentServed, template: str, topic: str, tab: str, **more: Any
) -> Response:
    """A page of a topic. Raises UnknownTopicError."""
    row = served.catalogue.topic(topic)
    return page(request, served, template, topic=row, tab=tab, **more)


@router.get("/{topic}", dependencies=[VIEWER, READING])
def segments(
    request: Request,
    served: CurrentServed,
    topic: str,
    start: Annotated[int, Query(ge=0)] = 0,
    segment: Annotated[int, Query(ge=0)] = 0,
    scale: Scale = "bytes",
    *,
    problem: FromActions = None,
) -> Response:
    """The partitions from ``start`` on: a drawing and a table of the segments of each, and the reason why it
    is not cleaned. With ``segment``, only the partition ``start``, and its table from that row on. Partitions
    that would make the page too large are on the next one."""
    row, rows = served.catalogue.topic(topic), served.catalogue.partitions_of(topic)
    count = PARTITIONS_SHOWN if not segment else 1
    partitions = [_with_segments(served, partition_row) for partition_row in rows[start : start + count]]
    dry_run = last_explanation(served, topic)

    def html() -> str:
        shown = [_drawn(partition, scale, segment) for partition in partitions]
        return within_bytes(partial(render, shown), len(shown))

    def render(shown: Sequence[ShownPartition], count: int) -> str:
        return render_page(
            request,
            served,
            "segments.html",
            topic=row,
            tab="segments",
            problem=problem,
            shown=shown[:count],
            next_start=start + count if start + count < len(rows) else None,
            total=len(rows),
            start=start,
            segment=segment,
            scale=scale,
            dry_run=dry_run,
            logs_max=EXPLAINED_LOGS,
            groups_max=EXPLAINED_GROUPS,
            removal_words=removal_words,
            equivalents=cleaning_of_topic(request, served, row),
        )

    if problem is not None or sum(map(_segment_count, partitions)) > CACHED_SEGMENTS_MAX:
        return page_response(request, html())
    return cached_response(request, served, html, facts=(partitions, dry_run))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPartition:
    """A partition on the page: drawn, with some rows of its segments, or why it cannot be read.
    ``next_segment``: the first that has no row here, None if there is none."""

    row: PartitionRow
    partition_segments: PartitionSegments | None = None
    drawing: Markup | None = None
    segments: Sequence[SegmentRow] = ()
    next_segment: int | None = None
    problem: str | None = None


def _with_segments(served: Served, row: PartitionRow) -> ShownPartition:
    """The partition with its segments, or why they cannot be read; nothing is drawn yet."""
    where = row.topic_partition
    try:
        partition_segments = console.partition_segments(served, where.topic, where.partition)
    except (SiltstoneError, OSError) as error:
        return ShownPartition(row=row, problem=str(error))
    return ShownPartition(row=row, partition_segments=partition_segments)


def _segment_count(partition: ShownPartition) -> int:
    return 0 if partition.partition_segments is None else len(partition.partition_segments.segments)


def _drawn(partition: ShownPartition, scale: Scale, first: int) -> ShownPartition:
    """The partition with its drawing, and the rows of its segments from ``first`` on."""
    if partition.partition_segments is None:
        return partition
    all_segments, end = partition.partition_segments.segments, first + SEGMENTS_SHOWN
    return replace(
        partition,
        drawing=strip(partition.partition_segments, scale),
        segments=all_segments[first:end],
        next_segment=end if end < len(all_segments) else None,
    )


class SettingForm(BaseModel):
    """The setting in the form, and the value whose effect is previewed, "" for none; ``default``: the effect
    of removing the setting is previewed."""

    name: str = "cleanup.policy"
    value: str = ""
    default: bool = False


@router.get("/{topic}/configuration", dependencies=[VIEWER, READING])
def configuration(
    request: Request,
    served: CurrentServed,
    topic: str,
    form: Annotated[SettingForm, Query()],
    *,
    problem: FromActions = None,
    wrong: FromActions = None,
    count: FromActions = None,
    is_conflict: Annotated[bool, Depends(lambda: False)] = False,
) -> Response:
    """The topic's settings, its own first, and a form for one of them. With ``value``: what that change would
    do to the records. ``wrong``: the field that was refused; ``count``: the text of the field of partitions;
    ``is_conflict``: another user has changed the settings since the form was read."""
    try:
        key = find_topic_key(form.name)
    except UsageError as error:
        problem, form, key = str(error), SettingForm(), find_topic_key(SettingForm().name)
    previewed, refusal = _previewed(served, topic, key.name, form)
    settings = settings_of_topic(served.settings_of(topic), everything=True)
    description = served.describe(topic)
    own, partitions = description.config, len(description.partitions)
    settings.sort(key=lambda setting: setting.name not in own)
    current = next(setting.value for setting in settings if setting.name == key.name)
    value = form.value or current
    return topic_page(
        request,
        served,
        "configuration.html",
        topic,
        "configuration",
        problem=problem or refusal,
        wrong=wrong or ("value" if refusal and not problem else ""),
        settings=settings,
        own=own,
        docs={key.name: key for key in TOPIC_KEYS},
        tag=topic_etag(served, topic),
        deleting=DELETING_SETTINGS,
        previewed=previewed,
        is_conflict=is_conflict,
        form=form,
        key=key,
        current_value=current,
        partitions=partitions,
        count=str(partitions + 1) if count is None else count,
        partitions_equivalents=more_partitions(request, served, topic, partitions + 1),
        deletion_equivalents=topic_deletion(request, served, topic),
        equivalents=topic_setting(request, served, topic, key.name, value, default=form.default),
    )


def _previewed(
    served: CurrentServed, topic: str, name: str, form: SettingForm
) -> tuple[ChangePreview | None, str | None]:
    """The preview of the change that the form has, None without one, and why there is none."""
    if not form.value and not form.default:
        return None, None
    try:
        set_to, remove = ({}, [name]) if form.default else ({name: form.value}, [])
        return console.preview_change(served, topic, set_to, remove), None
    except SiltstoneError as error:
        return None, str(error)


HISTORY: tuple[Column[TopicEvent], ...] = (
    Column(name="at_ms", title="time (UTC)", value=lambda event: event.at_ms),
    Column(name="what", title="what", value=lambda event: event.what),
    Column(name="partition", title="partition", value=lambda event: event.partition, is_number=True),
    Column(name="status", title="outcome", value=lambda event: event.status),
    Column(name="bytes_before", title="bytes before", value=lambda event: event.bytes_before, is_number=True),
    Column(name="bytes_after", title="after", value=lambda event: event.bytes_after, is_number=True),
    Column(name="saved_bytes", title="saved", value=lambda event: event.saved_bytes, is_number=True),
    Column(name="seconds", title="seconds", value=lambda event: event.seconds, is_number=True),
    Column(name="details", title="details", value=lambda event: event.details),
)


@router.get("/{topic}/history", dependencies=[VIEWER])
def history(request: Request, served: CurrentServed, topic: str, parameters: Parameters) -> Response:
    """What happened to the topic: cleanings, the last side-by-side compactions, changes of settings."""
    row = served.catalogue.topic(topic)
    events = history_of(served, topic)
    return list_page(
        request,
        served,
        "history.html",
        f"history-{topic}",
        HISTORY,
        events,
        parameters,
        topic=row,
        tab="history",
        saved=sum(event.saved_bytes or 0 for event in events),
        removed=sum(event.removed for event in events),
        cleanings=sum(event.what == CLEANING for event in events),
    )
