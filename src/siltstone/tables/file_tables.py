"""The files beside the records as tables: option ``table``, one row a batch, an index entry, a producer…

::

    batches            every batch of the logs as it lies there, control batches and aborted ones too
    offsetIndex        timeIndex        transactionIndex        the indexes' entries
    producerSnapshots  leaderEpochs     checkpoints             what else a log directory knows

Rows are those of ``siltstone dump``, with topic, partition and file in front. What is wrong with a file is an
error, or with ``badBatches=quarantine`` a row with nothing but the reason in ``badBatch``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from siltstone import files
from siltstone.arrow.batches import in_microseconds
from siltstone.errors import CorruptFileError
from siltstone.log import names
from siltstone.log.inspection.dump import dump_file, identify
from siltstone.log.inspection.rows import DumpOptions, Finding, Row
from siltstone.log.names import TopicPartition, parse_segment_file
from siltstone.log.partition_files import partition_files
from siltstone.tables.forensics import BAD_COLUMN
from siltstone.tables.opened import open_directories
from siltstone.tables.options import ReadOptions

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
        elif found["type"] != "file" and _is_chosen(found, where, options):
            own = {name: _value(found.get(source), name) for name, source in sources.items()}
            yield {**_place_of(found, where), **place, **own}


def _is_chosen(row: Row, where: TopicPartition | None, options: ReadOptions) -> bool:
    """A checkpoint's entry is one of a partition that was asked for, be it there or not."""
    choice = options.choice
    if where is not None:
        return True
    if choice.assign is not None:
        return TopicPartition(row["topic"], row["partition"]) in choice.assign
    if choice.subscribe is not None:
        return row["topic"] in choice.subscribe
    return choice.pattern is None or re.fullmatch(choice.pattern, row["topic"]) is not None


def _place_of(row: Row, where: TopicPartition | None) -> Row:
    return {"topic": row["topic"], "partition": row["partition"]} if where is None else {}


def _value(value: Any, name: str) -> Any:
    """Times are in ms in the files; -1 stands for none."""
    if not name.lower().endswith(("timestamp", "horizon")) or value is None:
        return value
    return None if value < 0 else in_microseconds(value)
