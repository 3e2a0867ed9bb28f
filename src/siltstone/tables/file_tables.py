"""Reads files of a log directory as tables: a row for each batch, index entry, producer and so on (option
``table``).

::

    batches            every batch of the logs, control batches and aborted ones too
    offsetIndex        timeIndex        transactionIndex        the indexes' entries
    producerSnapshots  leaderEpochs     checkpoints             the other files of a log directory

Each row has the columns topic, partition and file, and then what ``siltstone dump`` shows. Damage in a file
is an error, or with ``badBatches=quarantine`` a row with the reason in ``badBatch`` and no other values.

``consumerOffsets`` and ``transactionState`` are tables of decoded records: the second half of the module.
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
from siltstone.tables.arrow import BAD_COLUMN, fields_of, to_microseconds
from siltstone.tables.options import RECORDS_TABLE, PartitionSelection, ReadOptions
from siltstone.tables.splits import TaskSplit, partition_directories

_BATCH_ROWS = 16_384

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
"""By the table's name in lower case: the kind of its files in a partition's directory ("": checkpoint files
of the log directory), and its columns after topic, partition and file."""
_NAMES_IN_DUMP = {
    "codec": "compresscodec",
    "deleteHorizon": "deleteHorizonMs",
    "crcValid": "isvalid",
    "state": "transactionState",
    "timeoutMs": "transactionTimeoutMs",
    "lastUpdateTimestamp": "transactionLastUpdateTimestampMs",
    "startTimestamp": "transactionStartTimestampMs",
}
"""The name in ``siltstone dump`` by the column, where they differ: dump has the names of Kafka's tools."""


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns."""
    if options.table in DECODED_TABLES:
        return pa.schema(list({**DECODED_TABLES[options.table][2], **_COMMON_COLUMNS}.items()))
    columns = fields_of(f"topic string, partition int, file string, {FILE_TABLES[options.table][1]}")
    if options.quarantine_bad_batches:
        columns[BAD_COLUMN] = pa.string()
    return pa.schema(list(columns.items()))


def plan_files(options: ReadOptions) -> list[TaskSplit]:
    """A split for each partition that has files of the table, or one split of all checkpoint files.

    Raises as ``open_logs``, and UnsafeFileError."""
    file_kind, _ = FILE_TABLES[options.table]
    directories = partition_directories(options)
    if not file_kind:
        roots = dict.fromkeys(path.parent for path in directories.values())
        paths = [root / name for root in roots for name in names.OFFSET_CHECKPOINTS]
        return [TaskSplit(paths=tuple((str(path), None) for path in paths if files.exists(path)))]
    splits = []
    for topic_partition, directory in directories.items():
        selected = sorted(name for name in partition_files(directory) if _has_kind(name, file_kind))
        if selected:
            splits.append(
                TaskSplit(paths=tuple((str(directory / name), topic_partition) for name in selected))
            )
    return splits


def _has_kind(name: str, file_kind: str) -> bool:
    if file_kind == "epochs":
        return name == names.LEADER_EPOCH_CHECKPOINT
    segment_file = parse_segment_file(name)
    return segment_file is not None and segment_file.kind == file_kind and not segment_file.suffix


def read_files(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of the split's files. Raises CorruptFileError unless ``badBatches=quarantine``, OSError."""
    schema, columns = schema_of(options), list(fields_of(FILE_TABLES[options.table][1]))
    rows = (
        row for path, topic_partition in split.paths for row in _rows(path, topic_partition, columns, options)
    )
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def _rows(
    path: str, topic_partition: TopicPartition | None, columns: list[str], options: ReadOptions
) -> Iterator[Row]:
    """The rows of one file. Damage is a row with ``badBatches=quarantine``, else raised: CorruptFileError."""
    for row in dump_file(identify(path), DumpOptions()):
        if isinstance(row, CorruptFileError):
            if not options.quarantine_bad_batches:
                raise row
            owner = (
                {}
                if topic_partition is None
                else {"topic": topic_partition.topic, "partition": topic_partition.partition}
            )
            yield {"file": path, **owner, BAD_COLUMN: f"byte {row.position}: {row.reason}"}
        elif row["type"] != "file":  # a row of this type describes the file itself
            # An entry of a checkpoint file names its partition, which may not exist any more.
            entry_of = topic_partition or TopicPartition(row["topic"], row["partition"])
            if topic_partition is not None or options.selection.selects(entry_of):
                values = _column_values({"leaderEpoch": row.get("partitionLeaderEpoch"), **row}, columns)
                yield {"topic": entry_of.topic, "partition": entry_of.partition, "file": path, **values}


def _column_values(row: Row, columns: Iterable[str]) -> Row:
    """The values of these columns in a row of ``dump``. Times in files are in ms, -1 for none."""
    values = {name: row.get(_NAMES_IN_DUMP.get(name, name)) for name in columns}
    for name, value in values.items():
        if name.lower().endswith(("timestamp", "horizon")) and value is not None:
            values[name] = None if value < 0 else to_microseconds(value)
    return values


# Records of the coordinators, decoded: ``table=consumerOffsets`` and ``table=transactionState``.
#
# Records of ``__consumer_offsets`` and ``__transaction_state`` are read as any others, so ``view=latest`` has
# the current ones, which ``kafka-consumer-groups`` lists. Each record becomes a row. If it cannot be decoded,
# the column ``undecodable`` has the reason.

_COMMON_COLUMNS = fields_of(
    "isTombstone boolean, undecodable string, logPartition int, logOffset long, logTimestamp timestamp"
)
_CONSUMER_OFFSETS_COLUMNS = fields_of(
    "type string, group string, topic string, partition int, offset long, leaderEpoch int, metadata string, "
    "commitTimestamp timestamp, expireTimestamp timestamp, protocolType string, generation int, "
    "protocol string, leader string, members string"
)
_TYPE_OF_KEY_VERSION = {"0": "offset", "1": "offset", "2": "group"}
"""The column ``type`` by the version of the key: 0 and 1 are an ``OffsetCommitKey``, 2 a
``GroupMetadataKey``. All others are of the consumer protocol (KIP-848)."""
_TRANSACTION_STATE_COLUMNS = fields_of(
    "transactionalId string, producerId long, producerEpoch int, state string, timeoutMs int, "
    "partitions array<string>, lastUpdateTimestamp timestamp, startTimestamp timestamp"
)
DECODED_TABLES: dict[str, tuple[str, Decoder, dict[str, pa.DataType]]] = {
    "consumeroffsets": ("__consumer_offsets", "offsets", _CONSUMER_OFFSETS_COLUMNS),
    "transactionstate": ("__transaction_state", "transactions", _TRANSACTION_STATE_COLUMNS),
}
"""By the table's name in lower case: the topic, the decoder of its records, and the columns of the values."""


def decoded_source(options: ReadOptions) -> ReadOptions:
    """The options for reading the records that the table decodes."""
    selection = options.selection
    if selection == PartitionSelection():
        topic, _, _ = DECODED_TABLES[options.table]
        selection = PartitionSelection(subscribe=(topic,))
    columns = ("key", "value", "partition", "offset", "timestamp")
    return dataclasses.replace(
        options, table=RECORDS_TABLE, selection=selection, columns=columns, quarantine_bad_batches=False
    )


def decode_table(batches: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Rows of the table from the records that were read with ``decoded_source(options)``."""
    _, decoder, columns = DECODED_TABLES[options.table]
    schema = schema_of(options)
    for batch in batches:
        # A time in Arrow may be out of the range of Python's datetime, so times stay numbers.
        time_column = batch.schema.get_field_index("timestamp")
        numbers = batch.set_column(time_column, "timestamp", batch.column(time_column).cast(pa.int64()))
        rows = []
        for record in numbers.to_pylist():
            decoded = decode_record(decoder, record["key"], record["value"])
            rows.append(
                {
                    **_decoded_values(decoded, columns),
                    "isTombstone": decoded.get("decodedValue") == TOMBSTONE,
                    "undecodable": decoded.get("undecodable"),
                    "logPartition": record["partition"],
                    "logOffset": record["offset"],
                    "logTimestamp": record["timestamp"],
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _decoded_values(row: Row, columns: Iterable[str]) -> Row:
    """The fields of a decoded key and value, as columns; none if the key cannot be decoded."""
    key, value = row.get("decodedKey"), row.get("decodedValue")
    if not isinstance(key, dict):
        return {}
    data: Row = key["data"] | (value["data"] if isinstance(value, dict) else {})
    values = _column_values(data, columns)
    if "type" in values:
        values["type"] = _TYPE_OF_KEY_VERSION.get(key["type"], "consumerGroup")
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
