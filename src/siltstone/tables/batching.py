"""From columns of records to Kafka batches, partition by partition, without a Python object a record.

::

    Arrow batch ─► Rows (spans, times) ─► rows of each partition ─► Filling: encoded ─► a batch when full

What Kafka's producer does with its accumulator. Base offsets are 0: the log gives the offsets when it takes
the batch. A record with a key goes where Kafka's default partitioner sends it, one without goes where the
task's last ones went, until the next Arrow batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from siltstone.base.config import LONG_MAX
from siltstone.base.errors import UsageError
from siltstone.base.records.build import RECORD_ROOM, BatchShape, Spans, assemble, encode_records, put_span
from siltstone.base.records.hashing import partitions_for_keys
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64
from siltstone.base.records.varint import write_varint

# From Arrow's buffers to spans: the other way round of ``buffers``, for who writes records.
#
# An Arrow array of byte strings is spans already: offsets into one run of bytes. Nothing is copied but where
# nulls are marked; headers, which Arrow has as lists of pairs, are encoded as records hold them.

_WIDE = (pa.large_binary(), pa.large_string())
_NARROW = (pa.binary(), pa.string())
_VARINT_ROOM = 10
_LARGEST = (1 << 31) - 1


def spans_of(array: pa.Array) -> Spans:
    """A binary or string array's values where they lie; another array that can be cast to binary is copied.

    Raises UsageError for what is neither text nor bytes, or a value over 2 GiB.
    """
    if array.type not in (*_NARROW, *_WIDE):
        try:
            array = array.cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UsageError(f"{array.type} is neither text nor bytes: cast it to string or binary") from None
    _, raw, data = array.buffers()
    if not len(array):
        return Spans.of([])
    edges = np.frombuffer(raw, np.int64 if array.type in _WIDE else np.int32, len(array) + 1 + array.offset)
    edges = edges[array.offset :].astype(np.int64)
    sizes = np.diff(edges)
    if int(sizes.max()) > _LARGEST:
        raise UsageError("a value over 2 GiB fits no record")
    if array.null_count:
        sizes[np.asarray(array.is_null())] = -1
    room = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Spans(data=room, start=np.asarray(edges[:-1], np.int64), size=sizes.astype(np.int32))


def header_spans_of(array: pa.Array) -> Spans:
    """Each record's headers (a list of structs ``key``, ``value``) as a record holds them, size 0 for none.

    Raises UsageError for lists of something else, or a header without a key.
    """
    kind = array.type
    pair = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if pair is None or not pa.types.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        raise UsageError(f"headers are {kind}: give array<struct<key string, value binary>>")
    edges = np.asarray(array.offsets).astype(np.int64)
    counts = np.diff(edges)
    if array.null_count:
        counts[np.asarray(array.is_null())] = 0
    pairs = array.values
    children = dict(zip((field.name for field in pair), pairs.flatten(), strict=True))
    keys, values = spans_of(children["key"]), spans_of(children["value"])
    room = np.maximum(keys.size, 0).sum(dtype=np.int64) + np.maximum(values.size, 0).sum(dtype=np.int64)
    out = np.empty(int(room) + _VARINT_ROOM * (2 * len(pairs) + len(array)) + 1, np.uint8)
    start, size = np.zeros(len(array), np.int64), np.zeros(len(array), np.int32)
    encoded = Spans(data=out, start=start, size=size)
    if not _encode_headers(edges[:-1], counts, keys, values, encoded):
        raise UsageError("a header without a key: give each a name")
    return encoded


SpanArrays = tuple[Bytes, Int64, Int32]
"""The data, starts and sizes of ``Spans``, as kernels take them."""


@kernel
def _encode_headers(first: Int64, count: Int64, keys: Spans, values: Spans, encoded: Spans) -> bool:
    """Fill ``encoded``, its data and the spans in it; False where a header has no key."""
    position = 0
    for row in range(len(first)):
        encoded.start[row] = position
        if count[row] == 0:
            continue
        position = write_varint(encoded.data, position, count[row])
        for each in range(first[row], first[row] + count[row]):
            if keys.size[each] < 0:
                return False
            position = put_span(keys, each, encoded.data, position)
            position = put_span(values, each, encoded.data, position)
        encoded.size[row] = position - encoded.start[row]
    return True


WRITTEN = ("key", "value", "headers", "topic", "partition", "timestamp")
"""The columns that are written; ``value`` has to be there."""
PASSED_OVER = ("offset", "timestampType")
"""Columns of what was read that the log gives anew."""
_FIRST_ROOM = 16 << 10
_LARGEST_S = LONG_MAX // 1000
_UNITS_A_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records to be written: spans a column, ``timestamp`` int64 in ms."""

    keys: Spans
    values: Spans
    headers: Spans
    timestamp: Int64

    def __len__(self) -> int:
        return len(self.timestamp)


def refuse_columns(names: Sequence[str], *, topic_given: bool) -> None:
    """Raises UsageError unless these columns can be written as records."""
    strange = [name for name in names if name not in (*WRITTEN, *PASSED_OVER)]
    if strange:
        raise UsageError(
            f"column {strange[0]!r} is no part of a record: a record has {', '.join(WRITTEN)}; "
            "put what else there is into value, or leave it out"
        )
    if "value" not in names:
        raise UsageError("there is no column value: give one, null for tombstones")
    if not topic_given and "topic" not in names:
        raise UsageError("no topic: give the option topic, or a column of that name")


def rows_of(batch: pa.RecordBatch, now_ms: int) -> Rows:
    """The columns of an Arrow batch as spans; records without a time get ``now_ms``. Raises UsageError."""
    count, found = batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
    none = Spans(
        data=np.zeros(1, np.uint8), start=np.zeros(count, np.int64), size=np.full(count, -1, np.int32)
    )
    return Rows(
        keys=spans_of(found["key"]) if "key" in found else none,
        values=spans_of(found["value"]),
        headers=header_spans_of(found["headers"]) if "headers" in found else none,
        timestamp=_milliseconds(found.get("timestamp"), count, now_ms),
    )


def _milliseconds(column: pa.Array | None, count: int, now_ms: int) -> Int64:
    if column is None:
        return np.full(count, now_ms, np.int64)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
        raise UsageError(f"timestamp is {column.type}: give a timestamp, or milliseconds as a long")
    times = np.asarray(column.cast(pa.int64()).fill_null(0)).astype(np.int64)
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    # Seconds whose milliseconds do not fit into 64 bits become the first or the last that do.
    times = np.clip(times, -_LARGEST_S, _LARGEST_S) * 1000 if unit == "s" else times // _UNITS_A_MS[unit]
    if column.null_count:
        times[np.asarray(column.is_null())] = now_ms
    return times


def partitions_of(batch: pa.RecordBatch, keys: Spans, numbers: Sequence[int], sticky: int) -> Int32:
    """Each row's partition: the column's, else its key's, else ``sticky``. Raises UsageError."""
    found = np.empty(len(keys.start), np.int32)
    given = batch.column("partition") if "partition" in batch.schema.names else None
    if given is not None and not pa.types.is_integer(given.type):
        raise UsageError(f"partition is {given.type}: give an int")
    if given is None or given.null_count:
        if list(numbers) != list(range(len(numbers))):
            raise UsageError(
                f"only partitions {', '.join(map(str, numbers))} are here, so a key's cannot be told: "
                "give a column partition"
            )
        partitions_for_keys(keys.data, keys.start, keys.size, len(numbers), found)
        found[found < 0] = sticky
    if given is not None:
        told = np.asarray(given.is_valid())
        found[told] = np.asarray(given.cast(pa.int64()).fill_null(0))[told]
    strange = np.flatnonzero(~np.isin(found, np.array(numbers, np.int32)))
    if len(strange):
        raise UsageError(f"there is no partition {found[strange[0]]}: it has {', '.join(map(str, numbers))}")
    return found


def by_value(values: Int32) -> Iterator[tuple[int, Int64]]:
    """(value, its rows in order), for each value that there is."""
    order = np.argsort(values, kind="stable").astype(np.int64)
    ordered = values[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for first, behind in itertools.pairwise(edges):
        if behind > first:
            yield int(ordered[first]), order[first:behind]


class Filling:
    """One partition's batches: ``add`` rows, ``flush`` at the end; ``put(batch, records)`` takes each.

    ``most_bytes``: of encoded records before compression; a record that is larger is a batch by itself.
    ``pending``: bytes that wait.
    """

    def __init__(self, codec: int, most_bytes: int, put: Callable[[Bytes, int], None]) -> None:
        self._codec, self._most, self._put = codec, most_bytes, put
        self._out = np.empty(0, np.uint8)
        self.pending = 0
        self._count = 0
        self._base = self._largest = 0

    def add(self, rows: Rows, picked: Int64) -> None:
        """Encode the picked rows, in their order."""
        room = RECORD_ROOM + sum(
            np.maximum(part.size[picked], 0).astype(np.int64)
            for part in (rows.keys, rows.values, rows.headers)
        )
        ends = np.cumsum(room)
        done = 0
        while done < len(picked):
            before = int(ends[done - 1]) if done else 0
            fit = int(np.searchsorted(ends, before + self._most - self.pending, side="right"))
            if fit <= done and self._count == 0:
                fit = done + 1
            if fit > done:
                self._encode(rows, picked[done:fit], int(ends[fit - 1]) - before)
            if fit < len(picked):
                self.flush()
            done = max(fit, done)

    def _encode(self, rows: Rows, picked: Int64, room: int) -> None:
        if self.pending + room > len(self._out):
            wider = np.empty(max(self.pending + room, 2 * len(self._out), _FIRST_ROOM), np.uint8)
            wider[: self.pending] = self._out[: self.pending]
            self._out = wider
        times = rows.timestamp[picked]
        if not self._count:
            self._base = self._largest = int(times[0])
        self._largest = max(self._largest, int(times.max()))
        deltas = np.arange(self._count, self._count + len(picked), dtype=np.int64)
        keys, values, headers = (
            Spans(data=part.data, start=part.start[picked], size=part.size[picked])
            for part in (rows.keys, rows.values, rows.headers)
        )
        self.pending = encode_records(
            deltas, times - self._base, keys, values, headers, self._out, self.pending
        )
        self._count += len(picked)

    def flush(self) -> None:
        """Make a batch of what waits."""
        if not self._count:
            return
        shape, records, count = BatchShape(codec=self._codec), self._out[: self.pending], self._count
        batch = assemble(shape, records, count - 1, self._base, self._largest, count)
        self.pending = self._count = 0
        self._put(batch, count)


def topics_of(batch: pa.RecordBatch, known: Mapping[str, int]) -> Int32:
    """Each row's topic by its number in ``known``. Raises UsageError for one that is not there."""
    found = batch.column("topic").dictionary_encode()
    names = found.dictionary.to_pylist()
    strange = next((name for name in names if name not in known), None)
    if found.null_count or strange is not None:
        raise UsageError(
            f"there is no topic {strange!r} here: make it with siltstone topics --create"
            if strange is not None
            else "a record without a topic: give the option topic, or fill the column"
        )
    numbers = np.array([known[name] for name in names], np.int32)
    return np.asarray(numbers[np.asarray(found.indices)])
