"""The GET requests of Siltstone's own REST API (beside Confluent's), below ``/api/v1``, and the preview of a
change; the objects are those that commands print with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from siltstone.commands import clients, console
from siltstone.commands.administration import topic_etag
from siltstone.commands.browsing import browse, one_record, raw_value
from siltstone.commands.catalogue import PAGE_MAX, PAGE_ROWS, dirtiest, list_topics
from siltstone.commands.catalogue import uncleanable as uncleanable_logs
from siltstone.commands.topics import settings_of_broker, settings_of_topic
from siltstone.commands.transactions import OpenTransactions, last_scan
from siltstone.web import limits
from siltstone.web.dependencies import CurrentServed, Latest
from siltstone.web.guards import READER, VIEWER
from siltstone.web.limits import READING
from siltstone.web.queries import (
    DIGITS,
    BoolText,
    DecodingParameters,
    IntText,
    RecordParameters,
    TopicParameters,
)
from siltstone.web.rest.bodies import JSON_ONLY, Body, JsonObject

router = APIRouter(prefix="/api/v1", tags=["Siltstone"])
Count = Annotated[int, Query(ge=1, le=PAGE_MAX), DIGITS]
Start = Annotated[int, Query(ge=0), DIGITS]


class Listed(Protocol):
    """A row of a list."""

    def to_json(self) -> Mapping[str, object]:
        """The row as a JSON object."""


def _page(name: str, rows: Iterable[Listed], total: int, start: int) -> JsonObject:
    """The rows as far as a page has room, how many there are in all, and where the next page begins."""
    shown, size = list[Mapping[str, object]](), 0
    for row in rows:
        document = row.to_json()
        size += len(json.dumps(document))
        if shown and size > limits.PAGE_BYTES:
            break
        shown.append(document)
    end = start + len(shown)
    return {name: shown, "total": total, "next_start": end if shown and end < total else None}


def _page_of(name: str, rows: Sequence[Listed], start: int, count: int) -> JsonObject:
    """A page of rows that are all known."""
    return _page(name, rows[start : start + count], len(rows), start)


class SettingsToPreview(Body):
    """Settings of a topic that would be set, and removed."""

    set: dict[str, str] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()


@router.get("/overview", dependencies=[VIEWER])
def overview(served: CurrentServed) -> JsonObject:
    """Sums over all logs, the ten dirtiest ones, the last ten cleanings, the state of the cleaner,
    directories that are offline, notes."""
    catalogue, saved = served.catalogue, console.saved_bytes(served)
    health = console.cleaner_health(served)
    return {
        "at_ms": catalogue.at_ms,
        "totals": catalogue.totals.to_json(),
        "dirtiest": [row.to_json() for row in dirtiest(catalogue, 10)],
        "cleanings": [cleaning.to_json() for cleaning in console.cleanings(served)[:10]],
        "saved_bytes_24h": saved.last_24_hours,
        "saved_bytes_7d": saved.last_7_days,
        "cleaner": None if health is None else health.to_json(),
        "offline": dict(console.offline_directories(served)),
        "notes": list(catalogue.notes),
        "error": catalogue.error,
    }


@router.get("/topics", dependencies=[VIEWER])
def topics(served: CurrentServed, parameters: Annotated[TopicParameters, Query()]) -> JsonObject:
    """A page of topics."""
    page = list_topics(served.catalogue, parameters.query())
    return {"at_ms": served.catalogue.at_ms, **_page("topics", page.rows, page.total, parameters.start)}


@router.get("/topics/{topic}", dependencies=[VIEWER])
def topic(
    served: CurrentServed, topic: str, response: Response, start: Start = 0, count: Count = PAGE_ROWS
) -> JsonObject:
    """One topic, a page of its partitions, and its settings, with its ETag."""
    catalogue = served.catalogue
    response.headers["ETag"] = topic_etag(served, topic)
    return {
        "at_ms": catalogue.at_ms,
        **catalogue.topic(topic).to_json(),
        **_page_of("logs", catalogue.partitions_of(topic), start, count),
        "config": dict(served.describe(topic).config),
    }


@router.get("/topics/{topic}/configs", dependencies=[VIEWER])
def topic_configs(served: CurrentServed, topic: str, response: Response) -> JsonObject:
    """A topic's effective settings with their sources, and the topic's ETag."""
    response.headers["ETag"] = topic_etag(served, topic)
    settings = settings_of_topic(served.settings_of(topic), everything=True)
    return {"topic": topic, "settings": [_setting(setting) for setting in settings]}


def _setting(setting: Any) -> JsonObject:
    synonyms = [{"source": source, "name": name, "value": value} for source, name, value in setting.synonyms]
    return {"name": setting.name, "value": setting.value, "source": setting.source, "synonyms": synonyms}


@router.get("/topics/{topic}/partitions/{partition}/segments", dependencies=[VIEWER, READING])
def segments(
    served: CurrentServed, topic: str, partition: IntText, start: Start = 0, count: Count = PAGE_ROWS
) -> JsonObject:
    """A page of the segments of a partition, the offsets that divide it, and why it is not cleaned."""
    segments = console.partition_segments(served, topic, partition)
    return {**segments.to_json(), **_page_of("segments", segments.segments, start, count)}


@router.get("/topics/{topic}/records", dependencies=[READER, READING])
def records(
    served: CurrentServed, latest: Latest, topic: str, parameters: Annotated[RecordParameters, Query()]
) -> JsonObject:
    """A page of records: at most 64 MiB or a second of reading; ``cursor`` is for the next one."""
    browsed = console.browsed_topic(served, topic)
    return browse(browsed, parameters.query(), cursor=parameters.cursor, latest=latest).to_json()


@router.get("/topics/{topic}/cleanings", dependencies=[VIEWER])
def topic_cleanings(
    served: CurrentServed, topic: str, start: Start = 0, count: Count = PAGE_ROWS
) -> JsonObject:
    """The last cleanings of a topic, the newest first."""
    return _page_of("cleanings", console.cleanings(served, topic), start, count)


@router.post("/topics/{topic}/configs:preview", dependencies=[VIEWER, JSON_ONLY, READING])
def preview_configs(served: CurrentServed, topic: str, change: SettingsToPreview) -> JsonObject:
    """What a change of a topic's own settings would do, from the facts of its segments. Changes nothing."""
    return console.preview_change(served, topic, change.set, change.remove).to_json()


@router.get("/topics/{topic}/partitions/{partition}/records/{offset}", dependencies=[READER, READING])
def record(
    served: CurrentServed,
    topic: str,
    partition: IntText,
    offset: IntText,
    parameters: Annotated[DecodingParameters, Query()],
) -> JsonObject:
    """One record."""
    of_keys, of_values = parameters.decodings()
    browsed = console.browsed_topic(served, topic)
    record = one_record(browsed, partition, offset, key_decoding=of_keys, value_decoding=of_values)
    return record.to_json()


@router.get(
    "/topics/{topic}/partitions/{partition}/records/{offset}/value",
    dependencies=[READER, READING],
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}, 204: {"description": "A null value"}},
)
def value(served: CurrentServed, topic: str, partition: IntText, offset: IntText) -> Response:
    """A record's value as bytes, to be saved; 204 for none."""
    data = raw_value(console.browsed_topic(served, topic), partition, offset)
    if data is None:
        return Response(status_code=204)
    headers = {"Content-Disposition": f'attachment; filename="{partition}-{offset}.bin"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get("/topics/{topic}/partitions/{partition}/records/{offset}/why", dependencies=[READER, READING])
def why(
    served: CurrentServed,
    topic: str,
    partition: IntText,
    offset: IntText,
    search_from: Annotated[int | None, Query(ge=0), DIGITS] = None,
    superseded_by: Annotated[int | None, Query(ge=0), DIGITS] = None,
) -> JsonObject:
    """Why a record is still here, and what changes that. If ``code`` is ``searching``, repeat the request
    with the response's ``next_offset`` as ``search_from``, and its ``superseded_by``."""
    return console.why_record_retained(
        served, topic, partition, offset, search_from=search_from, superseded_by=superseded_by
    ).to_json()


@router.get("/cleaner/queue", dependencies=[VIEWER])
def queue(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The compacted logs, the dirtiest first."""
    catalogue = served.catalogue
    rows = dirtiest(catalogue, count, start)
    return {"at_ms": catalogue.at_ms, **_page("logs", rows, len(catalogue.by_dirty_ratio), start)}


@router.get("/cleaner/runs", dependencies=[VIEWER])
def runs(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The last cleanings, the newest first."""
    return _page_of("cleanings", console.cleanings(served), start, count)


@router.get("/cleaner/uncleanable", dependencies=[VIEWER])
def uncleanable(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The logs that the cleaner skips, since when, and why."""
    catalogue = served.catalogue
    rows = uncleanable_logs(catalogue, count, start)
    return _page("logs", rows, len(catalogue.uncleanable_rows), start)


@router.get("/cleaner/savings", dependencies=[VIEWER])
def savings(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """What cleanings have saved, by day and topic, the newest day first."""
    return _page_of("savings", console.savings(served), start, count)


@router.get("/configs", dependencies=[VIEWER])
def broker_configs(served: CurrentServed, everything: BoolText = False) -> JsonObject:
    """The broker's settings with their sources."""
    settings = settings_of_broker(served.broker_settings(), everything=everything)
    return {"settings": [_setting(setting) for setting in settings]}


@router.get("/broker/connections", dependencies=[VIEWER])
def broker_connections(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The broker's open connections, the oldest first."""
    connections = clients.connections(served)
    end = start + count
    return {
        "connections": [connection.to_json() for connection in connections[start:end]],
        "total": len(connections),
        "next_start": end if end < len(connections) else None,
    }


@router.get("/broker/requests", dependencies=[VIEWER])
def broker_requests(served: CurrentServed) -> JsonObject:
    """The requests that the broker has received since its start, by API."""
    return {"requests": [row.to_json() for row in clients.requests(served)]}


@router.get("/groups", dependencies=[VIEWER, READING])
def groups(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """Consumer groups with their offsets and lags, from ``__consumer_offsets``."""
    groups, notes = console.groups(served)
    return {**_page_of("groups", groups, start, count), "notes": notes}


@router.get("/transactions", dependencies=[VIEWER])
def transactions(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The open transactions as the last scan of all logs has found them: it began ``at_ms``, null before
    the first has ended; ``scanning``: how far a scan that runs now has come (``looking``: the earlier
    name of this member)."""
    scan = last_scan(served)
    transactions = scan.found or OpenTransactions()
    return {
        **scan.to_json(),
        **_page_of("transactions", transactions.transactions, start, count),
        "notes": list(transactions.notes),
    }


@router.get("/directories", dependencies=[VIEWER])
def directories(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The log directories, and whether a process uses them."""
    return _page_of("directories", console.directories(served), start, count)


@router.get("/changes", dependencies=[VIEWER])
def changes(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The audit log, the newest change first, as far back as the console shows it."""
    changes = console.changes(served)
    return _page("changes", changes[start : start + count], len(changes), start)


@router.get("/jobs", dependencies=[VIEWER])
def jobs(served: CurrentServed, start: Start = 0, count: Count = PAGE_ROWS) -> JsonObject:
    """The background jobs, the newest first."""
    return _page_of("jobs", served.jobs.all(), start, count)


@router.get("/jobs/{job_id}", dependencies=[VIEWER])
def job(served: CurrentServed, job_id: str) -> JsonObject:
    """One job."""
    return served.jobs.get(job_id).to_json()
