"""Exports of ``view=latest``: brings the rows of a table up to date, one key bucket after another.

A first stage distributes the new rows, the last record of each key that has new ones, to the key buckets; a
second one merges the new rows of a bucket with its old ones.

::

    splits ─ read ─► batches of all buckets ─ new_rows ──────► rows of one bucket ─ Spill, or shuffle ─► take
                                                                                                          │
    old files of the bucket ─ without the keys of the new rows ─┬─ new rows without tombstones ◄──────────┘
                                                                └─► one new file, or none

A bucket is Iceberg's transform ``bucket[N]`` of the key's bytes: 32-bit Murmur3 with the seed 0, without the
sign, modulo N. Readers of an Iceberg table skip buckets by it. A ``target`` is the number of a bucket among
those of all partitions (``LakePlan.bucket_at``). Memory: a bucket's new rows, a row group.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64
from siltstone.log.names import TopicPartition
from siltstone.tables.decoding import compiled
from siltstone.tables.export import ExportedFile, part_name, write_parquet
from siltstone.tables.lakes.plan import RAW_KEY, LakePlan
from siltstone.tables.lakes.table import DATA
from siltstone.tables.reading import raw_schema
from siltstone.tables.splits import TaskSplit
from siltstone.tables.table import read_split

SPLIT_BYTES = 64 << 20
"""About the bytes of rows that are split by bucket at one time."""
SPILL_MEMORY_BYTES = 256 << 20
"""Bytes of rows that wait for the merge in memory; others are in a temporary file."""
_BATCH_ROWS = 32_768
_WORD = 0xFFFFFFFF
"""The bits of a 32-bit number."""


@kernel
def _byte(data: Bytes, at: int) -> int:
    return np.int64(data[at])  # type: ignore[return-value]  # numba would make an unsigned number of it


@kernel
def _murmur3(data: Bytes, start: int, size: int) -> int:
    """MurmurHash3_x86_32 with the seed 0 (Austin Appleby's, in the public domain) of a span of bytes."""
    # int64 throughout: each product of two 32-bit numbers is masked before it is used.
    state = 0
    for block in range(size // 4):
        at = start + 4 * block
        word = (
            _byte(data, at) | _byte(data, at + 1) << 8 | _byte(data, at + 2) << 16 | _byte(data, at + 3) << 24
        )
        state ^= _scrambled(word)
        state = (state << 13 | state >> 19) & _WORD
        state = (state * 5 + 0xE6546B64) & _WORD
    word = 0
    tail = start + size - size % 4
    for at in range(start + size - 1, tail - 1, -1):
        word = word << 8 | _byte(data, at)
    if size % 4:
        state ^= _scrambled(word)
    state ^= size
    state ^= state >> 16
    state = _product(state, 0x85EBCA6B)
    state ^= state >> 13
    state = _product(state, 0xC2B2AE35)
    return state ^ state >> 16


@kernel
def _product(one: int, other: int) -> int:
    """The low 32 bits of a product; in halves, since int64 does not hold all of it."""
    return (one * (other & 0xFFFF) + ((one * (other >> 16) & 0xFFFF) << 16)) & _WORD


@kernel
def _scrambled(word: int) -> int:
    """A block of 4 bytes, multiplied and rotated before it enters the state."""
    word = _product(word, 0xCC9E2D51)
    word = (word << 15 | word >> 17) & _WORD
    return _product(word, 0x1B873593)


@kernel
def _bucket_numbers(data: Bytes, edges: Int32, buckets: int, out: Int64) -> None:
    """Fill ``out`` with the buckets of the spans between neighbouring ``edges``."""
    for row in range(len(out)):
        out[row] = (_murmur3(data, edges[row], edges[row + 1] - edges[row]) & 0x7FFFFFFF) % buckets


def buckets_of_keys(keys: pa.Array, buckets: int) -> Int64:
    """The bucket of each key of a binary array without nulls: int64."""
    _, edges, data = keys.buffers()
    if not len(keys):
        return np.empty(0, np.int64)
    spans = np.frombuffer(edges, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    out = np.empty(len(keys), np.int64)
    _bucket_numbers(np.frombuffer(data or b"", np.uint8), spans, buckets, out)
    return out


def new_rows(plan: LakePlan, splits: Iterable[TaskSplit]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of splits as (target, rows of that bucket); the rows of a split ascend by offset."""
    assert plan.options is not None
    waiting: list[pa.RecordBatch] = []
    size = 0
    for split in splits:
        for batch in read_split(split, plan.options):
            waiting.append(batch)
            size += batch.nbytes
            if size >= SPLIT_BYTES:
                yield from _by_bucket(plan, waiting)
                waiting, size = [], 0
    yield from _by_bucket(plan, waiting)


def _by_bucket(plan: LakePlan, batches: list[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(target, rows of that bucket), ascending; the rows of a bucket keep their order."""
    if not batches:
        return
    numbers = [
        plan.target_of(batch.column("partition")[0].as_py())  # a batch is of one log
        + buckets_of_keys(batch.column("key"), plan.shape.buckets)
        for batch in batches
        if len(batch)
    ]
    targets = np.concatenate(numbers)
    order = np.argsort(targets, kind="stable")
    rows = pa.Table.from_batches(batches).take(pa.array(order)).combine_chunks()
    ordered = targets[order]
    edges = np.flatnonzero(np.diff(ordered, prepend=-1)).tolist()  # the first row of each target
    for start, end in zip(edges, [*edges[1:], len(ordered)], strict=True):
        for batch in rows.slice(start, end - start).to_batches():
            yield int(ordered[start]), batch


# Between the two stages: rows as bytes.


def encode_rows(rows: pa.RecordBatch) -> pa.Buffer:
    """Rows of one bucket as bytes, for a temporary file or another task. (Of a slice only its own rows are
    written, not the whole batch.)"""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue()


def decode_rows(encoded: bytes | memoryview | pa.Buffer) -> Iterator[pa.RecordBatch]:
    """The rows of ``encode_rows``."""
    yield from pa.ipc.open_stream(encoded)


class Spill:
    """Encoded rows by bucket: ``memory_bytes`` of them in memory, the others in a temporary file.

    Threads may add rows at one time, and then, when all are added, take the rows of buckets."""

    def __init__(self, memory_bytes: int = SPILL_MEMORY_BYTES) -> None:
        self._free_bytes = memory_bytes
        self._parts: dict[int, list[pa.Buffer | tuple[int, int]]] = {}
        """By bucket, in the order in which they came: rows, or their (position, size) in the file."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def add(self, target: int, encoded: pa.Buffer) -> None:
        """Add rows of the bucket ``target``; ``encoded`` may not change any more."""
        with self._lock:
            part: pa.Buffer | tuple[int, int] = encoded
            if encoded.size <= self._free_bytes:
                self._free_bytes -= encoded.size
            else:
                if self._file is None:
                    self._file = files.temporary_file()
                part = self._file.seek(0, io.SEEK_END), encoded.size
                self._file.write(encoded)
            self._parts.setdefault(target, []).append(part)

    def targets(self) -> list[int]:
        """The targets of the buckets with rows, ascending."""
        return sorted(self._parts)

    def take(self, target: int) -> list[pa.RecordBatch]:
        """The rows of a bucket. Call it once: it frees their memory."""
        batches: list[pa.RecordBatch] = []
        for part in self._parts.pop(target):
            batches += decode_rows(self._read(*part) if isinstance(part, tuple) else part)
        return batches

    def _read(self, position: int, size: int) -> bytes:
        assert self._file is not None
        with self._lock:
            self._file.seek(position)
            return self._file.read(size)

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


# The second stage: one bucket.


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBucket:
    """What became of a bucket with new rows. ``is_changed``: its old files are removed from the table, and
    ``file`` takes their place; None if no row is left."""

    partition: int
    bucket: int
    is_changed: bool
    file: ExportedFile | None = None


def merge_bucket(plan: LakePlan, target: int, batches: list[pa.RecordBatch]) -> WrittenBucket:
    """Write the new file of a bucket, unless its rows do not change.

    ``batches``: the bucket's new rows, with tombstones. Raises UndecodableValueError, OSError."""
    partition, bucket = plan.bucket_at(target)
    # Each batch is of one split, and splits have different ranges of offsets.
    rows = pa.Table.from_batches(sorted(batches, key=lambda batch: batch.column("offset")[0].as_py()))
    live = rows.filter(pc.is_valid(rows["value"]))
    with contextlib.ExitStack() as stack:
        old = [
            stack.enter_context(_opened(plan, file.path)) for file in plan.files.get((partition, bucket), ())
        ]
        if _is_same(plan, partition, old, rows, live):
            return WrittenBucket(partition=partition, bucket=bucket, is_changed=False)
        kept = iter(()) if partition in plan.read_again else _kept(plan, old, rows)
        merged = (batch for part in (kept, _decoded(plan, live, partition)) for batch in part if len(batch))
        first = next(merged, None)
        file = None
        if first is not None:
            path = Path(plan.root) / DATA / part_name(target, plan.run)
            batches_to_write = (batch for part in ((first,), merged) for batch in part)
            file = write_parquet(path, plan.file_schema, plan.compression, batches_to_write)
    return WrittenBucket(partition=partition, bucket=bucket, is_changed=True, file=file)


def _opened(plan: LakePlan, path: str) -> pq.ParquetFile:
    file = Path(path) if files.is_object(path) else Path(plan.root) / path
    return pq.ParquetFile(pa.py_buffer(files.map_file(file)))


def _is_same(
    plan: LakePlan, partition: int, old: list[pq.ParquetFile], rows: pa.Table, live: pa.Table
) -> bool:
    """Does the bucket already have the rows that a merge would write? A partition of ``plan.compared`` is
    read again, but its log is the same one: at an offset is the record that was there before."""
    if partition in plan.compared:
        offsets = [file.read(["offset"])["offset"].to_numpy() for file in old]
        old_offsets = np.sort(np.concatenate([np.empty(0, np.int64), *offsets]))
        return np.array_equal(old_offsets, live["offset"].to_numpy())
    if partition in plan.read_again or len(live):
        return False
    column = plan.key_column  # there are tombstones only: do they delete a row?
    return not any(pc.any(pc.is_in(file.read([column])[column], rows["key"])).as_py() for file in old)


def _kept(plan: LakePlan, old: list[pq.ParquetFile], rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """The old rows whose keys have no new record, as batches to write."""
    keys = rows["key"].combine_chunks()
    for file in old:
        for batch in file.iter_batches(_BATCH_ROWS):
            is_superseded = pc.is_in(batch.column(plan.key_column), keys)
            kept = batch.filter(pc.invert(is_superseded))
            yield with_file_types(plan, {name: kept.column(name) for name in plan.file_schema.names})


def _decoded(plan: LakePlan, live: pa.Table, partition: int) -> Iterator[pa.RecordBatch]:
    """New rows with the columns of the table's files: keys and values decoded."""
    decodings = compiled(plan.source.decoders, raw_schema(plan.source).names)
    topic_partition = TopicPartition(plan.shape.topic, partition)
    for batch in live.to_batches(_BATCH_ROWS):
        offsets = batch.column("offset").to_numpy()
        columns = {}
        for name in plan.file_schema.names:
            column = batch.column("key" if name == RAW_KEY else name)
            if name in decodings:
                column = decodings[name].decoded(column, offsets, topic_partition)
            columns[name] = column
        yield with_file_types(plan, columns)


def with_file_types(plan: LakePlan, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Columns with the types of the table's files."""
    fields = plan.file_schema
    arrays = [columns[field.name].cast(field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)
