"""Routes that append records to a topic, as Confluent's REST API v3 has them: one record; several, as
concatenated JSON, with a report for each; or a batch of entries that have ids.

Keys and values are ``{"type": "BINARY" | "JSON" | "STRING", "data": …}``; a type that needs a schema registry
is refused with Confluent's error 42206. Each record is a batch of its own in the log.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import AwareDatetime, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from siltstone.base.errors import SiltstoneError
from siltstone.commands.changes import Actor
from siltstone.commands.sending import AppendedRecord, ProducerRecord, send_records
from siltstone.web.dependencies import CurrentActor
from siltstone.web.errors import sendable, status_of
from siltstone.web.guards import ADMIN
from siltstone.web.rest.bodies import DATE_AND_TIME, NUMBERS_ONLY, Body, JsonObject, WholeNumber
from siltstone.web.rest.confluent.shapes import Cluster, NamedCluster
from siltstone.web.rest.confluent.topics import TOPIC

router = APIRouter(tags=["Confluent v3"])
TYPES = ("BINARY", "JSON", "STRING")
BATCH_MAX, CONCATENATED_MAX = 1000, 100_000
"""The most records of a batch, and of a body of concatenated JSON: of ``{}``, 64 MiB would be 33 million."""
_SPACE = re.compile(r"[ \t\r\n]*")
_MILLISECOND = datetime.timedelta(milliseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class ProduceRequestData(Body):
    """A key or a value: ``BINARY`` is base64, ``JSON`` any JSON, ``STRING`` a string; null data is a null
    key, or a tombstone."""

    model_config = ConfigDict(extra="allow")
    type: str | None = None
    data: Any = None


class RecordHeader(Body):
    """A header: its value in base64, or null."""

    name: str
    value: str | None = None


class ProduceRequest(Body):
    """One record. ``partition_id``: None for the partition that the partitioner chooses; ``timestamp``: ISO
    8601 with a time zone, None for now; ``original_size``: ignored, as clients may send it."""

    partition_id: Annotated[int, Field(ge=0), NUMBERS_ONLY] | None = None
    headers: tuple[RecordHeader, ...] = ()
    key: ProduceRequestData | None = None
    value: ProduceRequestData | None = None
    timestamp: Annotated[AwareDatetime, DATE_AND_TIME] | None = None
    original_size: WholeNumber | None = None


class BatchEntry(ProduceRequest):
    """A record of a batch. Its outcome in the response has the same ``id``."""

    id: Annotated[str, Field(min_length=1, max_length=80)]


class BatchRequest(Body):
    """Records to append, in this order."""

    entries: Annotated[list[BatchEntry], Field(min_length=1, max_length=BATCH_MAX)]


class _RefusedError(Exception):
    """A record that cannot be appended: Confluent's error code, which begins with the HTTP status, and the
    message."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number, self.message = number, message


def _bytes_of(part: ProduceRequestData | None, what: str) -> bytes | None:
    """The bytes of a key or a value; ``what``: which of the two, for errors. Raises _RefusedError."""
    if part is None:
        return None
    is_null = part.type is None and part.data is None
    if part.model_extra or not (is_null or part.type in TYPES):
        raise _RefusedError(42206, f"{what}: no schema registry here; the type is one of {', '.join(TYPES)}")
    if part.data is None:
        return None
    if part.type == "JSON":
        return _json(part.data, what)
    if not isinstance(part.data, str):
        raise _RefusedError(400, f"{what}: {part.type} data must be a string")
    return _base64(part.data, what) if part.type == "BINARY" else part.data.encode("utf-8", "surrogatepass")


def _json(data: Any, what: str) -> bytes:
    """``data`` as JSON. JSON has no NaN and no infinity; Python's parser makes an infinity of ``1e400``."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise _RefusedError(400, f"{what}: it cannot be written as JSON: {error}") from None
    return text.encode("utf-8", "surrogatepass")


def _base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _RefusedError(400, f"{what}: it is not base64") from None


def _producer_record(request: ProduceRequest) -> ProducerRecord:
    """The record to append. Raises _RefusedError."""
    time = request.timestamp
    return ProducerRecord(
        key=_bytes_of(request.key, "key"),
        value=_bytes_of(request.value, "value"),
        headers=tuple(
            (
                header.name,
                None if header.value is None else _base64(header.value, f"header {header.name[:64]}"),
            )
            for header in request.headers
        ),
        partition=request.partition_id,
        timestamp_ms=None if time is None else (time - _EPOCH) // _MILLISECOND,
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parsed(text: str) -> Iterator[ProduceRequest | _RefusedError]:
    """The concatenated requests of a body. Reading ends at the first that is not JSON."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse_constant), 0
    while (at := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        try:
            document, at = decoder.raw_decode(text, at)
            yield ProduceRequest.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            yield _RefusedError(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        except (ValueError, RecursionError) as error:
            yield _RefusedError(400, f"malformed JSON: {error}")
            return


def _reports(
    cluster: Cluster, by: Actor, topic: str, requests: Sequence[ProduceRequest | _RefusedError]
) -> list[JsonObject]:
    """The outcome of each request. Raises UnknownTopicError, NotAllowedError, StorageError."""
    records: dict[int, ProducerRecord] = {}
    reports: dict[int, JsonObject] = {}
    for index, request in enumerate(requests):
        try:
            if isinstance(request, _RefusedError):
                raise request
            records[index] = _producer_record(request)
        except _RefusedError as error:
            reports[index] = {"error_code": error.number, "message": sendable(error.message)}
    outcomes = send_records(cluster.served, by, topic, list(records.values())) if records else []
    for (index, record), outcome in zip(records.items(), outcomes, strict=True):
        reports[index] = _report(cluster, topic, requests[index], record, outcome)
    return [reports[index] for index in range(len(requests))]


def _report(
    cluster: Cluster,
    topic: str,
    request: Any,
    record: ProducerRecord,
    outcome: AppendedRecord | SiltstoneError,
) -> JsonObject:
    if isinstance(outcome, SiltstoneError):
        return {"error_code": status_of(outcome)[1], "message": sendable(str(outcome))}
    time = _EPOCH + outcome.timestamp_ms * _MILLISECOND
    report: JsonObject = {
        "error_code": 200,
        "cluster_id": cluster.id,
        "topic_name": topic,
        "partition_id": outcome.partition,
        "offset": outcome.offset,
        "timestamp": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    for name, part, data in (("key", request.key, record.key), ("value", request.value, record.value)):
        if part is not None:
            report[name] = {"type": part.type or "BINARY", "size": len(data or b"")}
    return report


async def _body(request: Request) -> bytes:
    return await request.body()


@router.post(
    f"{TOPIC}/records",
    dependencies=[ADMIN],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ProduceRequest"}}},
        }
    },
)
def produce(
    cluster: NamedCluster, by: CurrentActor, topic_name: str, body: Annotated[bytes, Depends(_body)]
) -> Response:
    """Append one record, or several as concatenated JSON; the response has a line with a report for each."""
    try:
        requests = list(islice(_parsed(body.decode()), CONCATENATED_MAX + 1))
    except UnicodeDecodeError as error:
        requests = [_RefusedError(400, f"byte {error.start} of the body is not UTF-8")]
    if len(requests) > CONCATENATED_MAX:
        reason = f"more than {CONCATENATED_MAX:,} records, of which none was appended: send several requests"
        raise HTTPException(413, reason)
    reports = _reports(cluster, by, topic_name, requests or [_RefusedError(42206, "the body is empty")])
    if len(reports) == 1:
        number = int(reports[0]["error_code"])
        return JSONResponse(reports[0], number if number < 1000 else number // 100)
    lines = "".join(json.dumps(report) + "\n" for report in reports)
    return Response(lines, media_type="application/json")


@router.post(f"{TOPIC}/records:batch", dependencies=[ADMIN])
def produce_batch(
    cluster: NamedCluster, by: CurrentActor, topic_name: str, batch: BatchRequest
) -> JsonObject:
    """Append a batch of records with ids; the response lists those that were appended and those refused."""
    reports = _reports(cluster, by, topic_name, batch.entries)
    named = [{"id": entry.id, **report} for entry, report in zip(batch.entries, reports, strict=True)]
    return {
        "successes": [report for report in named if report["error_code"] == 200],
        "failures": [report for report in named if report["error_code"] != 200],
    }
