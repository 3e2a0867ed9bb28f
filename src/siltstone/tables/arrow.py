"""``to_batches`` and ``to_arrow``: a partition's records with the columns of Spark's Kafka source.

::

    key            binary                     timestamp      timestamp[us, UTC]   -1 ms: the format has none
    value          binary                     timestampType  int32   0 create, 1 log append, -1 none (v0)
    topic          string                     headers        list<struct<key: string, value: binary>>
    partition      int32                                     only where asked for; null: the record has none
    offset         int64

Types are those that Spark's own map to (``TimestampType`` is microseconds in UTC), every column may be null.
What is read is the log as it was at the call, whatever is deleted or swapped meanwhile.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from siltstone.base.errors import LedgerError, UsageError
from siltstone.base.records.build import copy_bytes
from siltstone.base.records.columns import RecordColumns, select
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import TIMESTAMP_TYPE_BIT, Bytes, Directory, Int32, Int64
from siltstone.base.records.varint import read_varint
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, KeyCollector, merge_bucket
from siltstone.log.fetch import READ_COMMITTED, LogView
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.names import TopicPartition
from siltstone.log.reading import EARLIEST, LogReader, Polled, ReaderSettings, Start

# From spans to Arrow's buffers, without a Python object a record.
#
# Arrow keeps byte strings as one run of bytes, int32 offsets into it, one more than strings, and a bit a
# string that is 0 where it is null::
#
#     spans  (start, size) …   ──►   validity  1 0 1     offsets  0 3 3 5     data  k e y v 2
#
# What goes in comes from one window of at most 2 GiB, so that int32 offsets always reach.

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))


@kernel
def gather(data: Bytes, start: Int32, size: Int32, offsets: Int32, out: Bytes) -> None:
    """Copy each span to its place ``offsets[row]`` in ``out``; nulls (size -1) take no room."""
    for row in range(len(start)):
        copy_bytes(data, start[row], size[row], out, offsets[row])


@kernel
def _running_sums(size: Int32, offsets: Int32) -> tuple[int, int]:
    """Fill ``offsets`` with running sums, a 0 in front; (the sum of all, how many are null)."""
    total = nulls = 0
    offsets[0] = 0
    for row in range(len(size)):
        here = size[row]
        nulls += here < 0
        total += max(here, 0)
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
    """The spans of all headers of all records, one after another; the decoder has checked them."""
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
            position += max(size, 0)
            header += 1


def _validity(is_null: Any) -> tuple[pa.Buffer | None, int]:
    """(the bits, how many nulls); no bits where there are none."""
    nulls = int(np.count_nonzero(is_null))
    return (pa.py_buffer(np.packbits(~is_null, bitorder="little")), nulls) if nulls else (None, 0)


def bytes_array(data: Bytes, start: Int32, size: Int32, kind: pa.DataType | None = None) -> pa.Array:
    """Spans as an Arrow array of ``kind``, binary unless told; a size of -1 is null."""
    offsets = np.empty(len(size) + 1, np.int32)
    total, nulls = _running_sums(size, offsets)
    assert total < 1 << 31, "Arrow's offsets are int32"
    out = np.empty(total, np.uint8)
    gather(data, start, size, offsets, out)
    validity = _validity(size < 0)[0] if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind or pa.binary(), len(size), buffers, nulls)


def headers_array(columns: RecordColumns) -> pa.Array:
    """Each record's headers as a list of (key, value); null for a record without any, as Spark has it."""
    offsets = np.empty(len(columns) + 1, np.int32)
    total, _ = _running_sums(columns.header_count, offsets)
    spans = np.empty((4, total), np.int32)
    header_spans(columns.data, columns.headers_start, columns.header_count, *spans)
    keys = _text_array(columns.data, spans[0], spans[1])
    values = bytes_array(columns.data, spans[2], spans[3])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    validity, nulls = _validity(columns.header_count == 0)
    buffers = [validity, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(HEADERS, len(columns), buffers, nulls, children=[pairs])


def _text_array(data: Bytes, start: Int32, size: Int32) -> pa.Array:
    """Spans as text; bytes that are no UTF-8 become U+FFFD, as Kafka's clients read them."""
    found = bytes_array(data, start, size, pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raw = found.view(pa.binary()).to_pylist()
        return pa.array([text.decode("utf-8", "replace") for text in raw], pa.string())
    return found


# The last record of each key over a whole log, its tail and its active segment included.
#
# The keys are compared as the cleaner compares them, by 96 bits of a keyed hash. What it costs: the log is
# read twice; 16 bytes of memory for a record with a key at worst (for a key where all keys fit
# ``COLLECTED_BYTES`` twice), and 56 for each of these while they are merged.

COLLECTED_BYTES = 256 << 20
"""Entries that are collected before they are de-duplicated."""


def latest_offsets(reader: LogReader, collected_bytes: int = COLLECTED_BYTES) -> Int64:
    """Ascending offsets of the last record of each key that ``reader`` gives; tombstones are records too.

    Records without a key are no key's last.
    """
    collector = KeyCollector(
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
        first_dirty=0,
        buckets=1,
        capacity=collected_bytes // ENTRY_BYTES,
    )
    blobs: list[EntryBlob] = []
    for polled in reader:
        blobs += (blob.kept() for blob in collector.add(polled.columns, polled.columns.key_size >= 0))
    blobs += (blob.kept() for blob in collector.finish())
    return np.sort(merge_bucket(blobs, 0, 1).offsets)


VIEWS = ("log", "latest", "compacted")
DEFAULT_BATCH_BYTES = 8 << 20
_LARGEST_MS = ((1 << 63) - 1) // 1000


class TopicLog(Protocol):
    """A log that knows whose it is, such as ``PartitionLog``; for a compacted view it has a ``directory``."""

    @property
    def where(self) -> TopicPartition:
        """Its topic and partition."""
        ...

    @property
    def view(self) -> LogView:
        """What may be read now."""
        ...


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A log that stays as it was; only readers of the compacted view ask for ``directory``."""

    view: LogView
    directory: Path = Path()


Maker = Callable[[Any, Directory, TopicPartition], pa.Array]


def in_microseconds(time_ms: int) -> int:
    """A time in ms as Arrow counts it; one that Arrow cannot hold becomes the nearest that it can."""
    return min(max(time_ms, -_LARGEST_MS), _LARGEST_MS) * 1000


def _microseconds(columns: Any, batches: Directory, where: TopicPartition) -> pa.Array:
    """Times that Arrow cannot hold become the nearest that it can."""
    times = np.clip(columns.timestamp, -_LARGEST_MS, _LARGEST_MS) * 1000
    return pa.Array.from_buffers(_TYPES["timestamp"], len(times), [None, pa.py_buffer(times)], 0)


def _timestamp_types(columns: Any, batches: Directory, where: TopicPartition) -> pa.Array:
    of_batch = np.where(batches["attributes"] & TIMESTAMP_TYPE_BIT, 1, 0)
    of_batch[batches["magic"] == 0] = -1
    return pa.array(of_batch.astype(np.int32)[columns.batch])


_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
_MAKERS: dict[str, Maker] = {
    "key": lambda columns, _, __: bytes_array(columns.data, columns.key_start, columns.key_size),
    "value": lambda columns, _, __: bytes_array(columns.data, columns.value_start, columns.value_size),
    "topic": lambda columns, _, where: pa.repeat(pa.scalar(where.topic), len(columns)),
    "partition": lambda columns, _, where: pa.array(np.full(len(columns), where.partition, np.int32)),
    "offset": lambda columns, _, __: pa.array(columns.offset),
    "timestamp": _microseconds,
    "timestampType": _timestamp_types,
    "headers": lambda columns, _, __: headers_array(columns),
}
COLUMNS = tuple(_TYPES)
"""Every column, in Spark's order."""
TIME_COLUMNS = frozenset(("topic", "partition", "offset", "timestamp", "timestampType"))
"""The columns that ``TimeColumns`` suffice for."""


def schema(columns: Sequence[str] | None = None, *, include_headers: bool = False) -> pa.Schema:
    """The schema of these columns, in the order given; all but the headers unless told."""
    names = [name for name in COLUMNS if name != "headers"] if columns is None else list(columns)
    names += ["headers"] if include_headers and "headers" not in names else []
    unknown = [name for name in names if name not in _TYPES]
    if unknown or len(set(names)) < len(names):
        raise UsageError(
            f"columns {', '.join(unknown or names)}: give some of {', '.join(COLUMNS)}, each once"
        )
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])


class BatchOptions(TypedDict, total=False):
    """What ``to_batches`` and ``to_arrow`` may be told."""

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
    batch_bytes: int = DEFAULT_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records with offsets in ``[start, end)`` as Arrow batches of about ``batch_bytes`` of records.

    ``start`` and ``end`` are the log's own unless told. ``view``: "log", every record; "latest", the last
    record of each key among them (keyless ones left out; ``tombstones``: "drop" or "keep" keys whose last
    value is null), which reads twice, see ``tables.arrow``; "compacted", the ledger beside the log and then
    what came after it, see ``log.ledger.reading``. Only the columns asked for are made. Raises UsageError and
    LedgerError at the call; OffsetOutOfRangeError, CorruptRecordError and LedgerError while reading.
    """
    wanted = schema(columns, include_headers=include_headers)
    if view not in VIEWS or tombstones not in ("drop", "keep"):
        views = " or ".join(VIEWS)
        raise UsageError(f"view {view!r}, tombstones {tombstones!r}: give {views}, drop or keep")
    fixed, first = _Fixed(log.view), EARLIEST if start is None else start

    def reader() -> LogReader:
        return LogReader(fixed, first, isolation=isolation, end=end, buffer_bytes=batch_bytes)

    found: Iterable[Polled]
    if view == "compacted":
        found = _compacted(log, first, isolation=isolation, end=end, buffer_bytes=batch_bytes)
    elif view == "latest":
        found = _latest(reader, tombstones == "keep")
    else:
        found = reader()
    return (
        batch
        for polled in found
        for batch in record_batches(
            polled.columns, polled.batches, wanted, log.where, batch_bytes=batch_bytes
        )
    )


def to_arrow(
    log: TopicLog, start: int | None = None, end: int | None = None, **how: Unpack[BatchOptions]
) -> pa.Table:
    """All of ``to_batches`` as one table, in chunks that may be more than 2 GiB together."""
    wanted = schema(how.get("columns"), include_headers=how.get("include_headers", False))
    return pa.Table.from_batches(to_batches(log, start, end, **how), wanted)


def _compacted(log: TopicLog, start: Start, **how: Unpack[ReaderSettings]) -> Iterator[Polled]:
    """The compacted view as it is now. A ledger that came after the log was looked at needs another look."""
    directory: object = getattr(log, "directory", None)
    if not isinstance(directory, Path):
        raise UsageError(f"{log.where}: a log without a directory has no compacted view")
    while True:
        view = log.view
        try:
            return _closing(CompactedReader(_Fixed(view, directory), start, **how))
        except LedgerError:
            if log.view is view:
                raise


def _closing(reader: CompactedReader) -> Iterator[Polled]:
    """All that it gives; the ledger is let go in any case."""
    with reader:
        yield from reader


def _latest(reader: Callable[[], LogReader], keep_tombstones: bool) -> Iterator[Polled]:
    """Of a second reading the records that a first one found to be their keys' last."""
    retained: Int64 = latest_offsets(reader())
    for polled in reader():
        offset = polled.columns.offset
        low, high = np.searchsorted(retained, [offset[0], offset[-1] + 1]).tolist()
        rows = np.searchsorted(offset, retained[low:high])
        if not keep_tombstones:
            rows = rows[polled.columns.value_size[rows] >= 0]
        if len(rows):
            yield Polled(columns=select(polled.columns, rows), batches=polled.batches)


def record_batches(
    columns: Any,
    batches: Directory,
    wanted: pa.Schema,
    where: TopicPartition,
    *,
    batch_bytes: int,
    most_rows: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Records, at least one, as Arrow batches of about ``batch_bytes`` and at most ``most_rows``: what is
    compressed may be many times what was read.

    ``columns``: ``RecordColumns``, or others with the fields that the arrays are made of; ``batches``: where
    their ``batch`` points.
    """
    count = len(columns)
    parts = 1 if most_rows is None else -(-count // most_rows)
    edges = {count * part // parts for part in range(parts + 1)}
    if isinstance(columns, RecordColumns):
        behind = np.cumsum(columns.size, dtype=np.int64) // max(batch_bytes, 1)
        edges |= set((np.flatnonzero(np.diff(behind)) + 1).tolist())
    for first, last in itertools.pairwise(sorted(edges)):
        part = columns if last - first == count else select(columns, slice(first, last))
        yield record_batch(part, batches, wanted, where)


def record_batch(
    columns: Any, batches: Directory, wanted: pa.Schema, where: TopicPartition
) -> pa.RecordBatch:
    """Records as one Arrow batch of ``wanted``, a ``schema``; at most 2 GiB of keys, and of values."""
    arrays = [_MAKERS[name](columns, batches, where) for name in wanted.names]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
