"""Records as Arrow arrays, in the columns of Spark's Kafka source; ``to_batches``, ``to_arrow`` read a log.

::

    key            binary                     timestamp      timestamp[us, UTC]   -1 ms: none (v0)
    value          binary                     timestampType  int32   0 create, 1 log append, -1 none (v0)
    topic          string                     headers        list<struct<key: string, value: binary>>
    partition      int32                                     only if requested; null: the record has none
    offset         int64

The types are those that Spark's types map to (``TimestampType`` is microseconds in UTC); every column may be
null. ``to_batches`` reads the log as it was at the call, whatever is deleted or swapped meanwhile.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from siltstone.base.codec_table import codec_name
from siltstone.base.errors import LedgerError, UsageError
from siltstone.base.records.build import copy_bytes
from siltstone.base.records.columns import RecordColumns, select
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH,
    CODEC_MASK,
    CONTROL_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int32,
    Int64,
)
from siltstone.base.records.varint import read_varint
from siltstone.compaction.latest import latest_records
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import EARLIEST, HasView, LogReader, PolledRecords, ReaderSettings, Start
from siltstone.tables.decoding import ColumnDecoding
from siltstone.tables.options import VIEWS

# Spans become Arrow's buffers, without a Python object for each record. A span is a start and a size (-1:
# null) in the bytes of a window.
#
# Arrow stores byte strings as one buffer of bytes, int32 offsets into it (one more than there are strings),
# and one bit for each string, which is 0 if it is null::
#
#     spans  (start, size) …   ──►   validity  1 0 1     offsets  0 3 3 5     data  k e y v 2
#
# A window has at most 2 GiB, so int32 offsets suffice.

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))


@kernel
def gather(data: Bytes, start: Int32, size: Int32, offsets: Int32, out: Bytes) -> None:
    """Copy the bytes of each span into ``out`` at ``offsets[row]``; a null (size -1) has no bytes."""
    for row in range(len(start)):
        copy_bytes(data, start[row], size[row], out, offsets[row])


@kernel
def _running_sums(size: Int32, offsets: Int32) -> tuple[int, int]:
    """Fill ``offsets`` with 0 and the running sums of ``size``, in which a null (-1) counts as 0; returns
    (the sum of all, how many nulls)."""
    total = nulls = 0
    offsets[0] = 0
    for row in range(len(size)):
        span_size = size[row]
        nulls += span_size < 0
        total += max(span_size, 0)
        offsets[row + 1] = total
    return total, nulls


@kernel
def header_spans(
    data: Bytes,
    headers_start: Int32,
    header_count: Int32,
    key_start: Int32,
    key_size: Int32,
    value_start: Int32,
    value_size: Int32,
) -> None:
    """Parse all records' headers, and fill in the spans of their keys and values: one row for each header."""
    # The decoder has checked that all headers are within their records: no bound is checked here.
    header = 0
    for row in range(len(headers_start)):
        position = int(headers_start[row])
        for _ in range(header_count[row]):
            size, position = read_varint(data, position, len(data))
            key_start[header] = position
            key_size[header] = size
            size, position = read_varint(data, position + size, len(data))
            value_start[header] = position
            value_size[header] = size
            position += max(size, 0)  # -1: a null value, without bytes
            header += 1


def _validity(is_null: Flags) -> pa.Buffer | None:
    """One bit for each row, 0 if it is null; None if no row is null."""
    return pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None


def bytes_array(data: Bytes, start: Int32, size: Int32, dtype: pa.DataType | None = None) -> pa.Array:
    """Spans as an Arrow array of ``dtype``, binary by default; a size of -1 is null."""
    offsets = np.empty(len(size) + 1, np.int32)
    total, nulls = _running_sums(size, offsets)
    assert total < 1 << 31, "Arrow's offsets are int32"
    out = np.empty(total, np.uint8)
    gather(data, start, size, offsets, out)
    validity = _validity(size < 0) if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(dtype or pa.binary(), len(size), buffers, nulls)


def headers_array(columns: RecordColumns) -> pa.Array:
    """Each record's headers as a list of (key, value); null for a record without headers, as in Spark."""
    offsets = np.empty(len(columns) + 1, np.int32)
    total, _ = _running_sums(columns.header_count, offsets)
    spans = np.empty((4, total), np.int32)
    header_spans(columns.data, columns.headers_start, columns.header_count, *spans)
    keys = _text_array(columns.data, spans[0], spans[1])
    values = bytes_array(columns.data, spans[2], spans[3])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    buffers = [_validity(columns.header_count == 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(HEADERS, len(columns), buffers, children=[pairs])


def _text_array(data: Bytes, start: Int32, size: Int32) -> pa.Array:
    """Spans as text; bytes that are no UTF-8 become U+FFFD, as Kafka's clients read them."""
    texts = bytes_array(data, start, size, pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.view(pa.binary()).to_pylist()
        return pa.array([text.decode("utf-8", "replace") for text in raw], pa.string())
    return texts


NO_DECODINGS: Mapping[str, ColumnDecoding] = {}
BATCH_BYTES = 8 << 20
"""About the bytes of records in an Arrow batch, by default."""
_LARGEST_MS = ((1 << 63) - 1) // 1000
"""The latest time in ms that has microseconds in 64 bits."""


class TopicLog(HasView, Protocol):
    """A partition's log, such as ``PartitionLog``. ``view="compacted"`` also needs its ``directory``."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and partition."""
        ...


class RecordSource(NamedTuple):
    """Where records come from: their partition and, for the column ``batch``, their file.

    ``origin``: the position in the file that position 0 of the batch headers stands for."""

    topic_partition: TopicPartition
    path: str = ""
    origin: int = 0


def to_microseconds(time_ms: int) -> int:
    """A time in ms as Arrow's microseconds; one out of their range becomes the nearest possible time."""
    return min(max(time_ms, -_LARGEST_MS), _LARGEST_MS) * 1000


def _timestamps(columns: Any, batches: BatchHeaders, source: RecordSource) -> pa.Array:
    """The column ``timestamp`` in microseconds; a time out of their range becomes the nearest possible."""
    times = np.clip(columns.timestamp, -_LARGEST_MS, _LARGEST_MS) * 1000
    return pa.Array.from_buffers(TIMESTAMP, len(times), [None, pa.py_buffer(times)], 0)


def _timestamp_types(columns: Any, batches: BatchHeaders, source: RecordSource) -> pa.Array:
    of_batch = np.where(batches["attributes"] & TIMESTAMP_TYPE_BIT, 1, 0)
    of_batch[batches["magic"] == 0] = -1
    return pa.array(of_batch.astype(np.int32)[columns.batch])


def _batch_column(columns: Any, batches: BatchHeaders, source: RecordSource) -> pa.Array:
    are_valid = np.ones(len(batches), np.bool_)  # a batch with a bad checksum is not decoded
    return batch_structs(batches, are_valid, source, columns.batch, columns.offset)


TIMESTAMP = pa.timestamp("us", tz="UTC")
_DDL_TYPES = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
    "array<string>": pa.list_(pa.string()),
}


def fields_of(ddl: str) -> dict[str, pa.DataType]:
    """Arrow's types by column, from Spark's DDL such as ``"offset long, codec string"``."""
    return {name: _DDL_TYPES[dtype] for name, dtype in (column.split() for column in ddl.split(","))}


BATCH_COLUMN, BAD_COLUMN = "batch", "badBatch"
BATCH_FIELDS = pa.struct(
    fields_of(
        "file string, position long, size int, baseOffset long, lastOffset long, magic int, codec string, "
        "attributes int, isTransactional boolean, isControl boolean, leaderEpoch int, producerId long, "
        "producerEpoch int, baseSequence int, sequence int, crc long, crcValid boolean"
    ).items()
)
"""``sequence`` is the record's own, -1 without a producer id; positions and sizes are bytes of ``file``."""
_CAMEL_CASE_NAMES = {
    re.sub("_([a-z])", lambda match: match[1].upper(), name): name for name in BATCH.names or ()
}
_HEADER_FIELDS = {
    field.name: _CAMEL_CASE_NAMES[field.name] for field in BATCH_FIELDS if field.name in _CAMEL_CASE_NAMES
}
"""By field of the column ``batch`` that a batch header has, too: its name there (in ``BATCH``)."""
_SEQUENCE_MASK = (1 << 31) - 1
_CODEC_NAMES = np.array([codec_name(number) for number in range(CODEC_MASK + 1)])
"""Names of the codecs by number, also for numbers that no codec has."""


def batch_structs(
    batches: BatchHeaders, are_valid: Flags, source: RecordSource, rows: Int32, offsets: Int64
) -> pa.Array:
    """The column ``batch``: for each record a struct of its batch's header fields.

    ``offsets``: each record's offset; ``rows``: the row of its batch in ``batches``; ``are_valid``: whether
    the checksum of each batch holds."""
    attributes = batches["attributes"]
    base_sequence = batches["base_sequence"][rows].astype(np.int64)
    # After the largest int32, a producer's numbers begin again at 0 (DefaultRecordBatch.incrementSequence).
    sequence = (base_sequence + offsets - batches["base_offset"][rows]) & _SEQUENCE_MASK
    sequence[base_sequence < 0] = -1
    of_batch = {name: batches[key] for name, key in _HEADER_FIELDS.items()}
    of_batch |= {
        "position": batches["position"].astype(np.int64) + source.origin,
        "codec": _CODEC_NAMES[attributes & CODEC_MASK],
        "isTransactional": (attributes & TRANSACTIONAL_BIT) != 0,
        "isControl": (attributes & CONTROL_BIT) != 0,
        "crcValid": are_valid,
    }
    row_indexes = pa.array(rows)
    fields = {name: pa.array(values).take(row_indexes) for name, values in of_batch.items()}
    fields |= {"file": pa.repeat(pa.scalar(source.path), len(rows)), "sequence": pa.array(sequence)}
    arrays = [fields[field.name].cast(field.type) for field in BATCH_FIELDS]
    return pa.StructArray.from_arrays(arrays, fields=list(BATCH_FIELDS))


_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Any, BatchHeaders, RecordSource], pa.Array]]] = {
    "key": (pa.binary(), lambda columns, *_: bytes_array(columns.data, columns.key_start, columns.key_size)),
    "value": (
        pa.binary(),
        lambda columns, *_: bytes_array(columns.data, columns.value_start, columns.value_size),
    ),
    "topic": (
        pa.string(),
        lambda columns, _, source: pa.repeat(pa.scalar(source.topic_partition.topic), len(columns)),
    ),
    "partition": (
        pa.int32(),
        lambda columns, _, source: pa.array(
            np.full(len(columns), source.topic_partition.partition, np.int32)
        ),
    ),
    "offset": (pa.int64(), lambda columns, *_: pa.array(columns.offset)),
    "timestamp": (TIMESTAMP, _timestamps),
    "timestampType": (pa.int32(), _timestamp_types),
    "headers": (HEADERS, lambda columns, *_: headers_array(columns)),
    BATCH_COLUMN: (BATCH_FIELDS, _batch_column),
    BAD_COLUMN: (pa.string(), lambda columns, *_: pa.nulls(len(columns), pa.string())),
}
"""Each column's Arrow type, and the function that makes it from (record columns, batch headers, source)."""
COLUMNS = tuple(name for name in _COLUMNS if name not in (BATCH_COLUMN, BAD_COLUMN))
"""Every column of a record, in Spark's order."""
COLUMNS_WITHOUT_RECORD_DATA = frozenset(
    ("topic", "partition", "offset", "timestamp", "timestampType", BATCH_COLUMN)
)
"""The columns that can be made without keys and values (``base.records.columns.TimeColumns``)."""


def schema(
    columns: Sequence[str] | None = None,
    *,
    include_headers: bool = False,
    include_batch_metadata: bool = False,
    quarantine_bad_batches: bool = False,
) -> pa.Schema:
    """The schema of these columns, in this order; by default all but ``headers``, ``batch`` and ``badBatch``,
    which the three flags add.

    Raises UsageError for a name that is unknown or repeated."""
    names = [name for name in COLUMNS if name != "headers"] if columns is None else list(columns)
    names += ["headers"] if include_headers and "headers" not in names else []
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) < len(names):
        reason = f"columns {', '.join(unknown or names)} are unknown, or named twice"
        raise UsageError(reason, advice=f"name each column once; there are {', '.join(COLUMNS)}")
    names += [BATCH_COLUMN] if include_batch_metadata else []
    names += [BAD_COLUMN] if quarantine_bad_batches else []
    return pa.schema([(name, _COLUMNS[name][0]) for name in names])


class BatchOptions(TypedDict, total=False):
    """Options of ``to_batches`` and ``to_arrow``."""

    columns: Sequence[str] | None
    include_headers: bool
    isolation: str
    view: str
    tombstones: str


def to_batches(
    log: TopicLog,
    start: int | None = None,
    end: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    isolation: str = READ_COMMITTED,
    view: str = "log",
    tombstones: str = "drop",
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records with offsets in ``[start, end)`` as Arrow batches of about ``batch_bytes`` of records.

    ``start`` and ``end`` are those of the log by default. ``view``: "log", every record; "latest", the last
    of these records of each key, which reads the log twice and leaves out records without a key
    (``tombstones``: "drop" or "keep" keys whose last value is null); "compacted", the compacted ledger and
    the records after it (``log.ledger.reading``). Only the requested columns are made. Raises UsageError and
    LedgerError at the call; OffsetOutOfRangeError, CorruptRecordError and LedgerError while reading.
    """
    out_schema = schema(columns, include_headers=include_headers)
    if view not in VIEWS or tombstones not in ("drop", "keep"):
        advice = f"set view to {' or '.join(VIEWS)}, tombstones to drop or keep"
        raise UsageError(f"view {view!r} with tombstones {tombstones!r} is not allowed", advice=advice)
    # The view as it is now: a reader of ``log`` itself would see later records, too. No directory is needed.
    snapshot, first = ReadOnlyLog(log.topic_partition, Path(), log.view), EARLIEST if start is None else start
    options: ReaderSettings = {"isolation": isolation, "end": end, "buffer_bytes": batch_bytes}
    parts: Iterable[PolledRecords]
    if view == "compacted":
        parts = _compacted_view(log, first, options)
    elif view == "latest":
        parts = latest_records(
            LogReader(snapshot, first, **options),
            LogReader(snapshot, first, **options),
            keep_tombstones=tombstones == "keep",
        )
    else:
        parts = LogReader(snapshot, first, **options)
    source = RecordSource(log.topic_partition)
    return (
        batch
        for polled in parts
        for batch in record_batches(
            polled.columns, polled.batches, out_schema, source, batch_bytes=batch_bytes
        )
    )


def to_arrow(
    log: TopicLog, start: int | None = None, end: int | None = None, **options: Unpack[BatchOptions]
) -> pa.Table:
    """All of ``to_batches`` as one table, in chunks that may be more than 2 GiB together."""
    out_schema = schema(options.get("columns"), include_headers=options.get("include_headers", False))
    return pa.Table.from_batches(to_batches(log, start, end, **options), out_schema)


def _compacted_view(log: TopicLog, start: Start, options: ReaderSettings) -> Iterator[PolledRecords]:
    """The records of the compacted ledger, then those after it, as they are now."""
    directory: object = getattr(log, "directory", None)
    if not isinstance(directory, Path):
        reason = "a log without a directory has no compacted view"
        raise UsageError(reason, path=str(log.topic_partition), advice="read it with another view")
    while True:
        log_view = log.view
        try:
            return _closing(
                CompactedReader(ReadOnlyLog(log.topic_partition, directory, log_view), start, **options)
            )
        except LedgerError:
            # A compaction may have written a ledger that goes beyond this view: try again with a newer view.
            if log.view is log_view:
                raise


def _closing(reader: CompactedReader) -> Iterator[PolledRecords]:
    """All records of the reader. It is closed after them, or after an error."""
    with reader:
        yield from reader


def record_batches(
    columns: Any,
    batches: BatchHeaders,
    out_schema: pa.Schema,
    source: RecordSource,
    *,
    batch_bytes: int,
    rows_max: int | None = None,
    decodings: Mapping[str, ColumnDecoding] = NO_DECODINGS,
) -> Iterator[pa.RecordBatch]:
    """Split records (at least one) into Arrow batches of about ``batch_bytes`` and at most ``rows_max`` rows.

    ``columns``: ``RecordColumns``, or others with the fields that the columns of ``out_schema`` need;
    ``columns.batch`` has the row in ``batches`` of each record. Decompressed records may be many times as
    large as the window that they were read from. An Arrow batch has at most 2 GiB of keys, and of values.
    ``decodings``: of the columns that are decoded; ``out_schema`` has their types. Raises
    UndecodableValueError.
    """
    count = len(columns)
    parts = 1 if rows_max is None else -(-count // rows_max)
    edges = {count * part // parts for part in range(parts + 1)}
    if isinstance(columns, RecordColumns):
        # A new Arrow batch begins wherever the bytes up to a record pass a multiple of batch_bytes.
        batch_number = np.cumsum(columns.size, dtype=np.int64) // max(batch_bytes, 1)
        edges |= set((np.flatnonzero(np.diff(batch_number)) + 1).tolist())
    for start, end in itertools.pairwise(sorted(edges)):
        part = columns if end - start == count else select(columns, slice(start, end))
        arrays = [_COLUMNS[name][1](part, batches, source) for name in out_schema.names]
        for at, name in enumerate(out_schema.names):
            if name in decodings:
                arrays[at] = decodings[name].decoded(arrays[at], part.offset, source.topic_partition)
        yield pa.RecordBatch.from_arrays(arrays, schema=out_schema)
