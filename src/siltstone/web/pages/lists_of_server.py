"""Lists of what a server knows beside topics: consumer groups, of all topics or of one, open transactions,
the audit log, jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.commands import console
from siltstone.commands.changes import AuditedChange
from siltstone.commands.emptying import EMPTY
from siltstone.commands.erasing import ERASE_KEY, KeyFingerprint
from siltstone.commands.explaining import outcome_words
from siltstone.commands.forced_cleaning import RUN_AGAIN
from siltstone.commands.groups import ConsumerGroup, GroupOffset
from siltstone.commands.jobs import BackgroundJob
from siltstone.commands.listing import Column
from siltstone.commands.transactions import OpenTransaction, OpenTransactions, last_scan
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.limits import READING
from siltstone.web.openapi import description_of
from siltstone.web.pages.equivalents import curl
from siltstone.web.pages.lists import Parameters, list_page
from siltstone.web.pages.rendering import path, refusal_to_cancel

router = APIRouter(prefix="/ui")
Committed = tuple[ConsumerGroup, GroupOffset]
"""A group, and the offset that it has committed of one partition."""
GROUPS: tuple[Column[Committed], ...] = (
    Column(name="group", title="group", value=lambda row: row[0].name),
    Column(name="type", title="type", value=lambda row: row[0].type),
    Column(name="state", title="state", value=lambda row: row[0].state),
    Column(name="members", title="members", value=lambda row: len(row[0].members), is_number=True),
    Column(name="log", title="partition", value=lambda row: str(row[1].topic_partition)),
    Column(name="committed", title="committed", value=lambda row: row[1].current_offset, is_number=True),
    Column(name="end", title="end", value=lambda row: row[1].log_end_offset, is_number=True),
    Column(name="lag", title="lag", value=lambda row: row[1].lag, is_number=True),
    Column(name="commit_ms", title="last commit (UTC)", value=lambda row: row[1].commit_timestamp),
)
_PARTITION: Column[Committed] = Column(
    name="partition", title="partition", value=lambda row: row[1].topic_partition.partition, is_number=True
)
CONSUMERS: tuple[Column[Committed], ...] = tuple(
    _PARTITION if column.name == "log" else column for column in GROUPS if column.name != "type"
)
TRANSACTIONS: tuple[Column[OpenTransaction], ...] = (
    Column(name="log", title="log", value=lambda row: f"{row.topic}-{row.partition}"),
    Column(name="producer_id", title="producer", value=lambda row: row.producer_id, is_number=True),
    Column(name="transactional_id", title="transactional id", value=lambda row: row.transactional_id),
    Column(
        name="first_offset", title="open since offset", value=lambda row: row.first_offset, is_number=True
    ),
    Column(name="began_ms", title="since (UTC)", value=lambda row: row.began_ms),
    Column(name="held_bytes", title="bytes held back", value=lambda row: row.held_bytes, is_number=True),
    Column(
        name="cleaning",
        title="keeps it from cleaning",
        value=lambda row: "yes" if row.blocks_cleaning else "no",
    ),
)
CHANGES: tuple[Column[AuditedChange], ...] = (
    Column(name="at_ms", title="time (UTC)", value=lambda change: change.at_ms),
    Column(name="user", title="who", value=lambda change: change.actor.user),
    Column(name="address", title="from", value=lambda change: change.actor.address),
    Column(name="action", title="what", value=lambda change: change.action),
    Column(name="target", title="of", value=lambda change: change.target),
    Column(name="before", title="before", value=lambda change: _pairs(change.before)),
    Column(name="after", title="after", value=lambda change: _pairs(change.after)),
    Column(name="outcome", title="outcome", value=lambda change: change.outcome),
)
JOBS: tuple[Column[BackgroundJob], ...] = (
    Column(name="kind", title="kind", value=lambda job: job.kind),
    Column(name="target", title="of", value=lambda job: job.target),
    Column(name="user", title="by", value=lambda job: job.user),
    Column(name="state", title="state", value=lambda job: job.state),
    Column(name="created_ms", title="created (UTC)", value=lambda job: job.created_ms),
    Column(name="ended_ms", title="ended", value=lambda job: job.ended_ms),
    Column(name="done", title="done", value=lambda job: job.bytes_done, is_number=True),
    Column(name="result", title="result", value=lambda job: job.error or outcome_words(job)),
)


def job_sentence(job: BackgroundJob) -> str:
    """The sentence of a job's result. Where it says, as for a command, what to run again, it here says what
    to click."""
    sentence = job.result.get("sentence", "") if isinstance(job.result, Mapping) else ""
    clicks = {
        ERASE_KEY: "erase the key again on the topic's page (Erase a key)",
        EMPTY: "empty the topic again on its page (Empty)",
    }
    return str(sentence).replace(RUN_AGAIN, clicks.get(job.kind, RUN_AGAIN))


class Operation(NamedTuple):
    """A method and path of the REST APIs, and what it does."""

    method: str
    path: str
    summary: str


OPERATIONS: tuple[Column[Operation], ...] = (
    Column(name="method", title="method", value=lambda operation: operation.method),
    Column(name="path", title="path", value=lambda operation: operation.path),
    Column(name="summary", title="what it does", value=lambda operation: operation.summary),
)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value_words(value)}" for name, value in values.items())


def value_words(value: object) -> str:
    """A value of the audit log in words: an erased key by its fingerprint, lists without brackets."""
    fingerprint = KeyFingerprint.parse(value)
    if fingerprint is not None:
        return f"SHA-256 {fingerprint.sha256} with the salt {fingerprint.salt}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_words(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(value_words, value))
    return "none" if value is None else str(value)


@router.get("/groups", dependencies=[VIEWER, READING])
def groups(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """Consumer groups and their lags, a row for each partition that a group has."""
    groups, notes = console.groups(served)
    rows = [(group, offset) for group in groups for offset in group.offsets]
    empty = [group for group in groups if not group.offsets]
    return list_page(
        request, served, "groups.html", "groups", GROUPS, rows, parameters, notes=notes, without_offsets=empty
    )


@router.get("/topics/{topic}/consumers", dependencies=[VIEWER, READING])
def consumers(request: Request, served: CurrentServed, topic: str, parameters: Parameters) -> Response:
    """The consumer groups that have committed offsets of a topic, a row for each partition."""
    row = served.catalogue.topic(topic)
    groups, notes = console.groups(served)
    return list_page(
        request,
        served,
        "consumers.html",
        f"consumers-{topic}",
        CONSUMERS,
        [
            (group, offset)
            for group in groups
            for offset in group.offsets
            if offset.topic_partition.topic == topic
        ],
        parameters,
        topic=row,
        tab="consumers",
        notes=notes,
    )


@router.get("/transactions", dependencies=[VIEWER])
def transactions(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """Open transactions, and the logs that they keep from being cleaned."""
    scan = last_scan(served)
    # A download has all rows: without a scan that has ended, ``result`` refuses it.
    transactions = scan.result() if parameters.format else scan.found or OpenTransactions()
    return list_page(
        request,
        served,
        "transactions.html",
        "transactions",
        TRANSACTIONS,
        transactions.transactions,
        parameters,
        notes=transactions.notes,
        scan=scan,
        poll_seconds=2 if scan.is_first else 5,
    )


@router.get("/changes", dependencies=[VIEWER])
def changes(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """The audit log, the newest change first."""
    rows = console.changes(served)
    return list_page(request, served, "changes.html", "changes", CHANGES, rows, parameters, words=value_words)


@router.get("/jobs", dependencies=[VIEWER])
def jobs(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """Background jobs, the newest first."""
    rows = served.jobs.all()
    running = [job for job in rows if not job.has_ended]
    return list_page(
        request,
        served,
        "jobs.html",
        "jobs",
        JOBS,
        rows,
        parameters,
        outcome_words=outcome_words,
        sentence=job_sentence,
        refused=refusal_to_cancel(request),
        equivalents=[curl(request, "DELETE", f"/api/v1/jobs/{path(job.id)}") for job in running[:1]],
        poll_seconds=2 if running else 5,
    )


@router.get("/api", dependencies=[VIEWER])
def api(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """The operations of the REST APIs, from the document that describes them."""
    rows = [
        Operation(method.upper(), path, operation["description"].replace("`", ""))
        for path, item in description_of(request.app)["paths"].items()
        for method, operation in item.items()
    ]
    return list_page(request, served, "api.html", "api", OPERATIONS, rows, parameters)
