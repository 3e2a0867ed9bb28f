"""The cleaner's four tabs: its queue, runs, uncleanable logs, savings."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.commands import cleaner_lists, console
from siltstone.commands.cleaner_lists import CleaningRow, QueueRow, UncleanableRow
from siltstone.commands.explaining import removal_words
from siltstone.commands.listing import Column
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.pages.cached_pages import cached_response
from siltstone.web.pages.equivalents import log_actions
from siltstone.web.pages.lists import Parameters, list_html, list_page
from siltstone.web.pages.topic_tabs import FromActions

router = APIRouter(prefix="/ui/cleaner")
QUEUE: tuple[Column[QueueRow], ...] = (
    Column(name="rank", title="rank", value=lambda row: row.rank, is_number=True),
    Column(name="log", title="log", value=lambda row: str(row.topic_partition)),
    Column(name="state", title="state", value=lambda row: row.state),
    Column(name="dirty_bytes", title="dirty bytes", value=lambda row: row.dirty_bytes, is_number=True),
    Column(name="dirty_ratio", title="ratio / needed", value=lambda row: row.dirty_ratio, is_number=True),
    Column(name="overdue_ms", title="overdue", value=lambda row: row.overdue_ms, is_number=True),
    Column(name="last_cleaning_ms", title="last cleaning (UTC)", value=lambda row: row.last_cleaning_ms),
    Column(name="waits_for", title="what it waits for", value=lambda row: row.waits_for),
)
RUNS: tuple[Column[CleaningRow], ...] = (
    Column(name="began_ms", title="began (UTC)", value=lambda row: row.began_ms),
    Column(name="log", title="log", value=lambda row: str(row.topic_partition)),
    Column(name="status", title="status", value=lambda row: row.status),
    Column(name="bytes_before", title="bytes before", value=lambda row: row.bytes_before, is_number=True),
    Column(name="bytes_after", title="after", value=lambda row: row.bytes_after, is_number=True),
    Column(name="removed", title="records removed", value=lambda row: row.removed, is_number=True),
    Column(
        name="removed_by_reason",
        title="removed, by reason",
        value=lambda row: row.removed_by_reason or row.reason,
    ),
    Column(name="seconds", title="seconds", value=lambda row: row.seconds, is_number=True),
    Column(name="recopy_percent", title="recopy", value=lambda row: row.recopy_percent, is_number=True),
)
UNCLEANABLE: tuple[Column[UncleanableRow], ...] = (
    Column(name="log", title="log", value=lambda row: str(row.topic_partition)),
    Column(name="since_ms", title="since (UTC)", value=lambda row: row.since_ms),
    Column(name="file", title="file", value=lambda row: row.file),
    Column(name="byte", title="byte", value=lambda row: row.byte, is_number=True),
    Column(name="reason", title="reason", value=lambda row: row.reason),
    Column(name="command", title="look at it", value=lambda row: row.command),
)
# A row is a ``Saving`` of the file, not a row class of its own: there may be 30,000.
SAVINGS: tuple[Column[Any], ...] = (
    Column(name="day", title="day (UTC)", value=lambda row: row.day),
    Column(name="topic", title="topic", value=lambda row: row.topic),
    Column(name="cleanings", title="cleanings", value=lambda row: row.cleanings, is_number=True),
    Column(name="bytes_before", title="bytes before", value=lambda row: row.bytes_before, is_number=True),
    Column(name="bytes_after", title="after", value=lambda row: row.bytes_after, is_number=True),
    Column(name="saved_bytes", title="saved", value=lambda row: row.saved_bytes, is_number=True),
    Column(name="removed", title="records removed", value=lambda row: row.records_removed, is_number=True),
    Column(
        name="removed_by_reason", title="removed, by reason", value=lambda row: removal_words(row.removed)
    ),
)


@router.get("", dependencies=[VIEWER])
def queue(
    request: Request, served: CurrentServed, parameters: Parameters, *, problem: FromActions = None
) -> Response:
    """The compacted logs, the dirtiest first."""
    template, tab = "cleaner_queue.html", "queue"
    values = {"problem": problem, "tab": tab, "equivalents": partial(log_actions, request)}
    if parameters.format or problem is not None:  # a download, or the reason of a refusal: not cached
        rows = cleaner_lists.queue(served)
        return list_page(request, served, template, tab, QUEUE, rows, parameters, **values)

    def html() -> str:
        rows = cleaner_lists.queue(served)
        return list_html(request, served, template, QUEUE, rows, parameters, **values)

    paused = None if served.cleaner is None else served.cleaner.paused
    return cached_response(request, served, html, facts=paused)


@router.get("/runs", dependencies=[VIEWER])
def runs(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """The cleanings that ended."""
    rows = cleaner_lists.ended_cleanings(served)
    return list_page(request, served, "cleaner_runs.html", "runs", RUNS, rows, parameters, tab="runs")


@router.get("/uncleanable", dependencies=[VIEWER])
def uncleanable(
    request: Request, served: CurrentServed, parameters: Parameters, *, problem: FromActions = None
) -> Response:
    """The logs that the cleaner skips."""
    rows, tab = cleaner_lists.uncleanable(served), "uncleanable"
    values = {"problem": problem, "tab": tab, "equivalents": partial(log_actions, request)}
    return list_page(
        request, served, "cleaner_uncleanable.html", tab, UNCLEANABLE, rows, parameters, **values
    )


@router.get("/savings", dependencies=[VIEWER])
def savings(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """What cleanings have saved, by day and topic."""
    rows = console.savings(served)
    return list_page(
        request,
        served,
        "cleaner_savings.html",
        "savings",
        SAVINGS,
        rows,
        parameters,
        tab="savings",
        removal_words=removal_words,
        saved=sum(row.saved_bytes for row in rows),
    )
