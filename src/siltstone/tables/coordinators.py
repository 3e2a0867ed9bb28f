"""What coordinators keep, decoded: ``table=consumerOffsets`` and ``table=transactionState``.

Records of ``__consumer_offsets`` and ``__transaction_state`` are read as any others are, so ``view=latest``
shows what holds, which is what ``kafka-consumer-groups`` lists. Each becomes a row; of one that cannot be
decoded ``undecodable`` says why.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from siltstone.arrow.batches import in_microseconds
from siltstone.log.inspection.coordinators import TOMBSTONE, decode_record
from siltstone.log.inspection.rows import Decoder, Row
from siltstone.tables.choice import Choice
from siltstone.tables.options import ReadOptions

_TIME = pa.timestamp("us", tz="UTC")
_RECORD = {
    "isTombstone": pa.bool_(),
    "undecodable": pa.string(),
    "logPartition": pa.int32(),
    "logOffset": pa.int64(),
    "logTimestamp": _TIME,
}
_OFFSETS = {
    "type": pa.string(),
    "group": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "leaderEpoch": pa.int32(),
    "metadata": pa.string(),
    "commitTimestamp": _TIME,
    "expireTimestamp": _TIME,
    "protocolType": pa.string(),
    "generation": pa.int32(),
    "protocol": pa.string(),
    "leader": pa.string(),
    "members": pa.string(),
}
_TRANSACTIONS = {
    "transactionalId": pa.string(),
    "producerId": pa.int64(),
    "producerEpoch": pa.int32(),
    "state": pa.string(),
    "timeoutMs": pa.int32(),
    "partitions": pa.list_(pa.string()),
    "lastUpdateTimestamp": _TIME,
    "startTimestamp": _TIME,
}
_TABLES: dict[str, tuple[str, Decoder, dict[str, pa.DataType]]] = {
    "consumeroffsets": ("__consumer_offsets", "offsets", _OFFSETS),
    "transactionstate": ("__transaction_state", "transactions", _TRANSACTIONS),
}
DECODED_TABLES = tuple(_TABLES)
"""By name in lower case."""


def decoded_schema(options: ReadOptions) -> pa.Schema:
    """The table's columns."""
    return pa.schema(list({**_TABLES[options.table][2], **_RECORD}.items()))


def decoded_source(options: ReadOptions) -> ReadOptions:
    """The records that the table is made of, as a table of their own."""
    topic = _TABLES[options.table][0]
    chosen = options.choice if options.choice != Choice() else Choice(subscribe=(topic,))
    columns = ("key", "value", "partition", "offset", "timestamp")
    return dataclasses.replace(options, table="records", choice=chosen, columns=columns, quarantine=False)


def decoded(batches: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of ``decoded_source``, decoded."""
    _, decoder, _ = _TABLES[options.table]
    fields: Callable[[Row], Row] = _offsets_row if decoder == "offsets" else _transaction_row
    wanted = decoded_schema(options)
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows = [
            _row(decoder, fields, record, time)
            for record, time in zip(batch.drop_columns("timestamp").to_pylist(), times, strict=True)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=wanted)


def _row(decoder: Decoder, fields: Callable[[Row], Row], record: Row, time: int) -> Row:
    found = decode_record(decoder, record["key"], record["value"])
    return {
        **fields(found),
        "isTombstone": found.get("decodedValue") == TOMBSTONE,
        "undecodable": found.get("undecodable"),
        "logPartition": record["partition"],
        "logOffset": record["offset"],
        "logTimestamp": time,
    }


def _data_of(found: Row, name: str) -> dict[str, Any]:
    part = found.get(name)
    return part["data"] if isinstance(part, dict) else {}


def _offsets_row(found: Row) -> Row:
    if "decodedKey" not in found:
        return {}
    key, value = _data_of(found, "decodedKey"), _data_of(found, "decodedValue")
    is_group = found["decodedKey"]["type"] == "2"
    members = value.get("members")
    return {
        **{name: item for name, item in {**key, **value}.items() if name in _OFFSETS},
        "type": "group" if is_group else "offset",
        "members": None if members is None else json.dumps(members, ensure_ascii=False),
        "commitTimestamp": _microseconds(value.get("commitTimestamp")),
        "expireTimestamp": _microseconds(value.get("expireTimestamp")),
    }


def _transaction_row(found: Row) -> Row:
    key, value = _data_of(found, "decodedKey"), _data_of(found, "decodedValue")
    listed = value.get("transactionPartitions")
    return {
        "transactionalId": key.get("transactionalId"),
        "producerId": value.get("producerId"),
        "producerEpoch": value.get("producerEpoch"),
        "state": value.get("transactionState"),
        "timeoutMs": value.get("transactionTimeoutMs"),
        "partitions": None
        if listed is None
        else [f"{each['topic']}-{number}" for each in listed for number in each["partitionIds"] or ()],
        "lastUpdateTimestamp": _microseconds(value.get("transactionLastUpdateTimestampMs")),
        "startTimestamp": _microseconds(value.get("transactionStartTimestampMs")),
    }


def _microseconds(ms: int | None) -> int | None:
    return None if ms is None or ms < 0 else in_microseconds(ms)
