"""Reads the files of a log directory as tables: a row for each batch, index entry, producer… (option
``table``).

::

    batches            every batch of the logs, control batches and aborted ones too
    offsetIndex        timeIndex        transactionIndex        the indexes' entries
    producerSnapshots  leaderEpochs     checkpoints             the other files of a log directory

Rows are those of ``siltstone dump``, after the columns topic, partition and file. Damage in a file is an
error, or with ``badBatches=quarantine`` a row that has only the reason in ``badBatch``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.log import names
from siltstone.log.coordinator_records import TOMBSTONE, Decoder, decode_record
from siltstone.log.directory import partition_files
from siltstone.log.dump import DumpOptions, Row, dump_file, identify
from siltstone.log.names import TopicPartition, parse_segment_file
from siltstone.tables.arrow import BAD_COLUMN, fields_of, in_microseconds
from siltstone.tables.options import PartitionSelection, ReadOptions
from siltstone.tables.splits import TaskSplit, partition_directories

_ROWS = 16_384

FILE_TABLES = {
    "batches": (
        "log",
        "position long, size int, baseOffset long, lastOffset long, count int, magic int, codec string, "
        "attributes int, timestampType string, baseTimestamp timestamp, maxTimestamp timestamp, "
        "leaderEpoch int, producerId long, producerEpoch int, baseSequence int, lastSequence int, "
        "isTransactional boolean, isControl boolean, deleteHorizon timestamp, crc long, crcValid boolean",
    ),
    "offsetindex": ("index", "offset long, position long"),
    "timeindex": ("timeindex", "timestamp timestamp, offset long"),
    "transactionindex": (
        "txnindex",
        "producerId long, firstOffset long, lastOffset long, lastStableOffset long",
    ),
    "producersnapshots": (
        names.SNAPSHOT,
        "producerId long, producerEpoch int, coordinatorEpoch int, currentTxnFirstOffset long, "
        "firstSequence int, lastSequence int, lastOffset long, offsetDelta int, lastTimestamp timestamp",
    ),
    "leaderepochs": ("epochs", "epoch int, startOffset long"),
    "checkpoints": ("", "offset long"),
}
"""By name in lower case: the kind of the files in a partition's directory ("": checkpoints of the log
directory), and the columns after topic, partition and file."""
_NAMES_IN_DUMP = {
    "codec": "compresscodec",
    "deleteHorizon": "deleteHorizonMs",
    "crcValid": "isvalid",
    "state": "transactionState",
    "timeoutMs": "transactionTimeoutMs",
    "lastUpdateTimestamp": "transactionLastUpdateTimestampMs",
    "startTimestamp": "transactionStartTimestampMs",
}
"""Columns that have another name in ``siltstone dump``, which is that of Kafka's tools."""


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns."""
    if options.table in DECODED_TABLES:
        return pa.schema(list({**DECODED_TABLES[options.table][2], **_DECODED}.items()))
    columns = fields_of(f"topic string, partition int, file string, {FILE_TABLES[options.table][1]}")
    if options.quarantine:
        columns[BAD_COLUMN] = pa.string()
    return pa.schema(list(columns.items()))


def plan_files(options: ReadOptions) -> list[TaskSplit]:
    """A split for each partition that has such files, or for all checkpoints. Raises as ``open_logs``, and
    UnsafeFileError."""
    kind, _ = FILE_TABLES[options.table]
    directories = partition_directories(options)
    if not kind:
        roots = dict.fromkeys(path.parent for path in directories.values())
        paths = [root / name for root in roots for name in names.OFFSET_CHECKPOINTS]
        return [TaskSplit(paths=tuple((str(path), None) for path in paths if files.exists(path)))]
    splits = []
    for topic_partition, directory in directories.items():
        selected = sorted(name for name in partition_files(directory) if _has_kind(name, kind))
        if selected:
            splits.append(
                TaskSplit(paths=tuple((str(directory / name), topic_partition) for name in selected))
            )
    return splits


def _has_kind(name: str, kind: str) -> bool:
    if kind == "epochs":
        return name == names.LEADER_EPOCH_CHECKPOINT
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.kind == kind and not parsed.suffix


def read_files(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of the split's files. Raises CorruptFileError unless ``badBatches=quarantine``, OSError."""
    schema, columns = schema_of(options), list(fields_of(FILE_TABLES[options.table][1]))
    rows = (
        row for path, topic_partition in split.paths for row in _rows(path, topic_partition, columns, options)
    )
    while batch := list(itertools.islice(rows, _ROWS)):
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def _rows(
    path: str, topic_partition: TopicPartition | None, columns: list[str], options: ReadOptions
) -> Iterator[Row]:
    for row in dump_file(identify(path), DumpOptions()):
        if isinstance(row, CorruptFileError):
            if not options.quarantine:
                raise row
            owner = (
                {}
                if topic_partition is None
                else {"topic": topic_partition.topic, "partition": topic_partition.partition}
            )
            yield {"file": path, **owner, BAD_COLUMN: f"byte {row.position}: {row.reason}"}
        elif row["type"] != "file":
            # A checkpoint's entry names the partition itself, whether it exists or not.
            entry_of = topic_partition or TopicPartition(row["topic"], row["partition"])
            if topic_partition is not None or options.selection.has(entry_of):
                values = _values({"leaderEpoch": row.get("partitionLeaderEpoch"), **row}, columns)
                yield {"topic": entry_of.topic, "partition": entry_of.partition, "file": path, **values}


def _values(row: Row, columns: Iterable[str]) -> Row:
    """Columns of a dump's row. Times in files are in ms, -1 without one."""
    values = {name: row.get(_NAMES_IN_DUMP.get(name, name)) for name in columns}
    for name, value in values.items():
        if name.lower().endswith(("timestamp", "horizon")) and value is not None:
            values[name] = None if value < 0 else in_microseconds(value)
    return values


# Records of the coordinators, decoded: ``table=consumerOffsets`` and ``table=transactionState``.
#
# Records of ``__consumer_offsets`` and ``__transaction_state`` are read as any others, so ``view=latest`` has
# the current ones, which ``kafka-consumer-groups`` lists. Each becomes a row; if one cannot be decoded,
# ``undecodable`` has the reason.

_DECODED = fields_of(
    "isTombstone boolean, undecodable string, logPartition int, logOffset long, logTimestamp timestamp"
)
_OFFSETS = fields_of(
    "type string, group string, topic string, partition int, offset long, leaderEpoch int, metadata string, "
    "commitTimestamp timestamp, expireTimestamp timestamp, protocolType string, generation int, "
    "protocol string, leader string, members string"
)
_TYPES = {"0": "offset", "1": "offset", "2": "group"}
"""The column ``type`` by the number in the key; all others are of the consumer protocol (KIP-848)."""
_TRANSACTIONS = fields_of(
    "transactionalId string, producerId long, producerEpoch int, state string, timeoutMs int, "
    "partitions array<string>, lastUpdateTimestamp timestamp, startTimestamp timestamp"
)
DECODED_TABLES: dict[str, tuple[str, Decoder, dict[str, pa.DataType]]] = {
    "consumeroffsets": ("__consumer_offsets", "offsets", _OFFSETS),
    "transactionstate": ("__transaction_state", "transactions", _TRANSACTIONS),
}
"""By name in lower case: the topic, the decoder of its records, and the columns."""


def decoded_source(options: ReadOptions) -> ReadOptions:
    """The options of the records that the table decodes."""
    selection = options.selection
    if selection == PartitionSelection():
        selection = PartitionSelection(subscribe=(DECODED_TABLES[options.table][0],))
    columns = ("key", "value", "partition", "offset", "timestamp")
    return dataclasses.replace(
        options, table="records", selection=selection, columns=columns, quarantine=False
    )


def decode_table(batches: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of ``decoded_source``, decoded."""
    _, decoder, columns = DECODED_TABLES[options.table]
    schema = schema_of(options)
    for batch in batches:
        # Arrow's times may be out of the range of Python's datetime: they stay numbers.
        times = batch.schema.get_field_index("timestamp")
        numbers = batch.set_column(times, "timestamp", batch.column(times).cast(pa.int64()))
        rows = []
        for record in numbers.to_pylist():
            row = decode_record(decoder, record["key"], record["value"])
            rows.append(
                {
                    **_decoded_values(row, columns),
                    "isTombstone": row.get("decodedValue") == TOMBSTONE,
                    "undecodable": row.get("undecodable"),
                    "logPartition": record["partition"],
                    "logOffset": record["offset"],
                    "logTimestamp": record["timestamp"],
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _decoded_values(row: Row, columns: Iterable[str]) -> Row:
    """A decoded key's and value's fields as columns."""
    key, value = row.get("decodedKey"), row.get("decodedValue")
    if not isinstance(key, dict):
        return {}
    data: Row = key["data"] | (value["data"] if isinstance(value, dict) else {})
    values = _values(data, columns)
    if "type" in values:
        values["type"] = _TYPES.get(key["type"], "consumerGroup")
        values["group"] = data.get("group", data.get("groupId"))
    if data.get("members") is not None:
        values["members"] = json.dumps(data["members"], ensure_ascii=False)
    if data.get("transactionPartitions") is not None:
        values["partitions"] = [
            f"{part['topic']}-{number}"
            for part in data["transactionPartitions"]
            for number in part["partitionIds"] or ()
        ]
    return values
