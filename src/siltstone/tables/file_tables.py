"""The files beside the records as tables: option ``table``, one row a batch, an index entry, a producer…

::

    batches            every batch of the logs as it lies there, control batches and aborted ones too
    offsetIndex        timeIndex        transactionIndex        the indexes' entries
    producerSnapshots  leaderEpochs     checkpoints             what else a log directory knows

Rows are those of ``siltstone dump``, with topic, partition and file in front. What is wrong with a file is an
error, or with ``badBatches=quarantine`` a row with nothing but the reason in ``badBatch``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.log import names
from siltstone.log.coordinator_records import TOMBSTONE, Decoder, decode_record
from siltstone.log.directory import partition_files
from siltstone.log.dump import DumpOptions, Row, dump_file, identify
from siltstone.log.indexes import Finding
from siltstone.log.names import TopicPartition, parse_segment_file
from siltstone.tables.arrow import in_microseconds
from siltstone.tables.forensics import BAD_COLUMN
from siltstone.tables.options import PartitionSelection, ReadOptions
from siltstone.tables.splits import open_directories

_TIME = pa.timestamp("us", tz="UTC")
_ROWS = 16_384
_CHECKPOINTS = (
    names.RECOVERY_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)
_FILE = {"topic": pa.string(), "partition": pa.int32(), "file": pa.string()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTable:
    """``kind`` of the files in a partition's directory, "" for those of the log directory; ``columns``: by
    column the dump's name and the type."""

    kind: str
    columns: Mapping[str, tuple[str, pa.DataType]]


def _same(**types: pa.DataType) -> dict[str, tuple[str, pa.DataType]]:
    return {name: (name, kind) for name, kind in types.items()}


_LONG, _INT, _FLAG = pa.int64(), pa.int32(), pa.bool_()
FILE_TABLES: dict[str, FileTable] = {
    "batches": FileTable(
        kind="log",
        columns=_same(position=_LONG, size=_INT, baseOffset=_LONG, lastOffset=_LONG, count=_INT, magic=_INT)
        | {"codec": ("compresscodec", pa.string())}
        | _same(attributes=_INT, timestampType=pa.string(), baseTimestamp=_TIME, maxTimestamp=_TIME)
        | {"leaderEpoch": ("partitionLeaderEpoch", _INT)}
        | _same(producerId=_LONG, producerEpoch=_INT, baseSequence=_INT, lastSequence=_INT)
        | _same(isTransactional=_FLAG, isControl=_FLAG)
        | {"deleteHorizon": ("deleteHorizonMs", _TIME)}
        | _same(crc=_LONG)
        | {"crcValid": ("isvalid", _FLAG)},
    ),
    "offsetindex": FileTable(kind="index", columns=_same(offset=_LONG, position=_LONG)),
    "timeindex": FileTable(kind="timeindex", columns=_same(timestamp=_TIME, offset=_LONG)),
    "transactionindex": FileTable(
        kind="txnindex",
        columns=_same(producerId=_LONG, firstOffset=_LONG, lastOffset=_LONG, lastStableOffset=_LONG),
    ),
    "producersnapshots": FileTable(
        kind=names.SNAPSHOT,
        columns=_same(producerId=_LONG, producerEpoch=_INT, coordinatorEpoch=_INT)
        | _same(currentTxnFirstOffset=_LONG, firstSequence=_INT, lastSequence=_INT)
        | _same(lastOffset=_LONG, offsetDelta=_INT, lastTimestamp=_TIME),
    ),
    "leaderepochs": FileTable(kind="epochs", columns=_same(epoch=_INT, startOffset=_LONG)),
    "checkpoints": FileTable(kind="", columns=_same(offset=_LONG)),
}
"""By name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSplit:
    """What one task reads: files, each with its partition, None for one of the log directory."""

    paths: tuple[tuple[str, TopicPartition | None], ...]


def file_table_schema(options: ReadOptions) -> pa.Schema:
    """The table's columns."""
    table = FILE_TABLES[options.table]
    types = {**_FILE, **{name: kind for name, (_, kind) in table.columns.items()}}
    if options.quarantine:
        types[BAD_COLUMN] = pa.string()
    return pa.schema(list(types.items()))


def plan_files(options: ReadOptions) -> list[FilesSplit]:
    """A split for each partition that has such files, or for all checkpoints. Raises as ``open_logs``, and
    UnsafeFileError."""
    table, found = FILE_TABLES[options.table], []
    directories = open_directories(options)
    if not table.kind:
        roots = dict.fromkeys(path.parent for path in directories.values())
        places = [root / name for root in roots for name in _CHECKPOINTS]
        return [FilesSplit(paths=tuple((str(path), None) for path in places if files.exists(path)))]
    for where, directory in directories.items():
        inside = sorted(name for name in partition_files(directory) if _is_of(name, table.kind))
        if inside:
            found.append(FilesSplit(paths=tuple((str(directory / name), where) for name in inside)))
    return found


def _is_of(name: str, kind: str) -> bool:
    if kind == "epochs":
        return name == names.LEADER_EPOCH_CHECKPOINT
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.kind == kind and not parsed.suffix


def read_files(split: FilesSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of the split's files. Raises CorruptFileError unless ``badBatches=quarantine``, OSError."""
    wanted, table = file_table_schema(options), FILE_TABLES[options.table]
    sources = {name: source for name, (source, _) in table.columns.items()}
    rows = (row for path, where in split.paths for row in _rows(path, where, sources, options))
    while some := list(itertools.islice(rows, _ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=wanted)


def _rows(
    path: str, where: TopicPartition | None, sources: Mapping[str, str], options: ReadOptions
) -> Iterator[Row]:
    place: Row = {"file": path}
    if where is not None:
        place |= {"topic": where.topic, "partition": where.partition}
    for found in dump_file(identify(path), DumpOptions()):
        if isinstance(found, Finding):
            if not options.quarantine:
                raise CorruptFileError(found.path, found.position, found.reason)
            yield {**place, BAD_COLUMN: f"byte {found.position}: {found.reason}"}
        elif found["type"] != "file":
            # A checkpoint's entry names the partition itself, be it there or not.
            of = where or TopicPartition(found["topic"], found["partition"])
            if where is not None or options.selection.has(of):
                own = {name: _value(found.get(source), name) for name, source in sources.items()}
                yield {"topic": of.topic, "partition": of.partition, "file": path, **own}


def _value(value: Any, name: str) -> Any:
    """Times are in ms in the files; -1 stands for none."""
    if not name.lower().endswith(("timestamp", "horizon")) or value is None:
        return value
    return None if value < 0 else in_microseconds(value)


# What coordinators keep, decoded: ``table=consumerOffsets`` and ``table=transactionState``.
#
# Records of ``__consumer_offsets`` and ``__transaction_state`` are read as any others are, so ``view=latest``
# shows what holds, which is what ``kafka-consumer-groups`` lists. Each becomes a row; of one that cannot be
# decoded ``undecodable`` says why.

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
    chosen = (
        options.selection
        if options.selection != PartitionSelection()
        else PartitionSelection(subscribe=(topic,))
    )
    columns = ("key", "value", "partition", "offset", "timestamp")
    return dataclasses.replace(options, table="records", selection=chosen, columns=columns, quarantine=False)


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
