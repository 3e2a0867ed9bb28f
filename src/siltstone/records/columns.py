"""Batches to record columns: the one decoder (Kafka's ``DefaultRecord``, ``DefaultRecordBatch``).

A record of magic 2, varints zigzag-encoded::

    size varint | attributes 1 | timestamp delta varlong | offset delta varint
    | key size varint, key | value size varint, value | header count varint
    | per header: key size varint, key, value size varint, value          (size -1: null)

``decode`` turns the rows of a batch directory into arrays with one row a record. The bytes of keys,
values and headers stay where they are: columns hold spans into ``RecordColumns.data``, which is the
window itself when nothing in it is compressed, else the decompressed records one batch after another.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from siltstone.errors import CorruptRecordError
from siltstone.records.codecs import DEFAULT_LIMIT, DecompressionError, Scratch
from siltstone.records.kernel import inlined, kernel
from siltstone.records.layout import (
    BATCH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    Bytes,
    Directory,
    Int32,
    Int64,
    codec_of,
)
from siltstone.records.varint import next_varint, next_varlong, read_varint

DECODE_REASON = (
    "",
    "a record's size is not possible",
    "a record's fields go on beyond its end, or end before it",
    "an over-long or cut varint",
    "a negative size that is not null's",
    "offsets in the batch do not ascend, or pass its last offset",
    "bytes left over behind the last record",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """One row a record, in log order.

    ``batch``: row in the batch directory, int32. ``offset``, ``timestamp`` (ms): int64. The spans
    (``start``, ``size`` of the record itself with its size field; ``key_*``, ``value_*``; all int32)
    point into ``data`` (uint8); a size of -1 is null. ``headers_start`` is the position of the first
    header behind its count, ``header_count`` how many.
    """

    data: Bytes
    batch: Int32
    offset: Int64
    timestamp: Int64
    start: Int32
    size: Int32
    key_start: Int32
    key_size: Int32
    value_start: Int32
    value_size: Int32
    headers_start: Int32
    header_count: Int32

    def __len__(self) -> int:
        return len(self.offset)

    def key(self, row: int) -> bytes | None:
        """The key of one record as bytes, None when null. Not for hot paths."""
        return self._span(int(self.key_start[row]), int(self.key_size[row]))

    def value(self, row: int) -> bytes | None:
        """The value of one record as bytes, None when null. Not for hot paths."""
        return self._span(int(self.value_start[row]), int(self.value_size[row]))

    def headers(self, row: int) -> list[tuple[bytes, bytes | None]]:
        """The headers of one record as (key, value) pairs. Not for hot paths."""
        position, found = int(self.headers_start[row]), []
        for _ in range(int(self.header_count[row])):
            size, position = read_varint(self.data, position, len(self.data))
            key = self._span(position, size)
            size, position = read_varint(self.data, position + size, len(self.data))
            found.append((key or b"", self._span(position, size)))
            position += max(size, 0)
        return found

    def _span(self, start: int, size: int) -> bytes | None:
        return None if size < 0 else self.data[start : start + size].tobytes()


def empty_columns(data: Bytes, rows: int) -> RecordColumns:
    """Uninitialised columns for ``rows`` records over ``data``."""
    arrays: dict[str, Any] = {
        field.name: np.empty(rows, np.int64 if field.name in ("offset", "timestamp") else np.int32)
        for field in fields(RecordColumns)
        if field.name != "data"
    }
    return RecordColumns(data=data, **arrays)


@inlined
def skip_span(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """A sized field at ``position``: (its start, its size, reason); start is -1 on trouble."""
    size, position = next_varint(data, position, end)
    if position < 0:
        return -1, 0, 3
    if size < -1:
        return -1, 0, 4
    if size > end - position:
        return -1, 0, 2
    return position, size, 0


@kernel
def skip_headers(data: Bytes, position: int, end: int, count: int) -> tuple[int, int]:
    """The position behind ``count`` headers and 0, or -1 and a reason."""
    for _ in range(count):
        start, size, reason = skip_span(data, position, end)
        if start < 0 or size < 0:
            return -1, reason if start < 0 else 4
        start, size, reason = skip_span(data, start + size, end)
        if start < 0:
            return -1, reason
        position = start + max(size, 0)
    return position, 0


@kernel
def _decode_modern(
    data: Bytes,
    starts: Int64,
    ends: Int64,
    rows: Int64,
    batches: Directory,
    first: Int64,
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
    start: Int32,
    size: Int32,
    key_start: Int32,
    key_size: Int32,
    value_start: Int32,
    value_size: Int32,
    headers_start: Int32,
    header_count: Int32,
) -> tuple[int, int]:
    """Decode the v2 batches ``rows``; (-1, 0) or the bad batch's index in ``rows`` and the reason."""
    for i in range(len(rows)):
        header = batches[rows[i]]
        position = starts[i]
        batch_end = ends[i]
        log_append = (header.attributes & 8) != 0
        previous = header.base_offset - 1
        for record in range(first[i], first[i] + header.count):
            row = np.uint64(record)
            start[row] = position
            body, position = next_varint(data, position, batch_end)
            if position < 0:
                return i, 3
            if body < 6 or body > batch_end - position:
                return i, 1
            end = position + body
            delta, position = next_varlong(data, position + 1, end)
            if position < 0:
                return i, 3
            offset_delta, position = next_varint(data, position, end)
            if position < 0:
                return i, 3
            here = header.base_offset + offset_delta
            if here <= previous or here > header.last_offset:
                return i, 5
            previous = here
            key, key_bytes, reason = skip_span(data, position, end)
            if key < 0:
                return i, reason
            value, value_bytes, reason = skip_span(data, key + max(key_bytes, 0), end)
            if value < 0:
                return i, reason
            headers, position = next_varint(data, value + max(value_bytes, 0), end)
            if position < 0:
                return i, 3
            if headers < 0:
                return i, 4
            headers_start[row] = position
            if headers > 0:
                position, reason = skip_headers(data, position, end, headers)
                if position < 0:
                    return i, reason
            if position != end:
                return i, 2
            batch[row] = rows[i]
            offset[row] = here
            timestamp[row] = header.max_timestamp if log_append else header.base_timestamp + delta
            size[row] = end - start[row]
            key_start[row] = key
            key_size[row] = key_bytes
            value_start[row] = value
            value_size[row] = value_bytes
            header_count[row] = headers
        if position != batch_end:
            return i, 6
    return -1, 0


def inflate(
    window: Bytes,
    batches: Directory,
    scratch: Scratch,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> tuple[Bytes, Int64, Int64]:
    """The records of v2 ``batches`` in plain form: (data, starts, ends), int64, one a batch.

    ``data`` is ``window`` itself when no batch with records is compressed, else ``scratch``'s bytes.
    Raises CorruptRecordError for a compressed batch that cannot be read or passes ``limit`` bytes.
    """
    sizes = batches["size"].astype(np.int64)
    codecs = np.where(batches["count"] > 0, codec_of(batches), 0)
    if not codecs.any():
        return window, batches["position"] + BATCH_OVERHEAD, batches["position"] + sizes
    scratch.clear()
    ends = np.empty(len(batches), np.int64)
    for row, (position, size, codec) in enumerate(
        zip(batches["position"].tolist(), sizes.tolist(), codecs.tolist(), strict=True)
    ):
        body = window[position + BATCH_OVERHEAD : position + size]
        try:
            scratch.fill(codec, body, limit) if codec else scratch.append(body)
        except DecompressionError as error:
            raise CorruptRecordError(path, origin + position, str(error)) from None
        if scratch.used > DEFAULT_LIMIT:
            raise CorruptRecordError(path, origin + position, "more than 2 GiB of records in one window")
        ends[row] = scratch.used
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return scratch.array(), starts, ends


def decode(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> RecordColumns:
    """Decode every record of ``batches`` (rows of a scan over ``window``, magic 2) into columns.

    ``scratch`` takes decompressed bytes and may be used again once the columns are done with; ``path``
    and ``origin`` (the file position of ``window[0]``) are for messages. Control batches are decoded
    like others. Raises CorruptRecordError with the position of the first batch that makes no sense.
    """
    data, starts, ends = inflate(window, batches, scratch or Scratch(), limit=limit, path=path, origin=origin)
    assert len(data) <= DEFAULT_LIMIT, "spans are int32"
    counts = batches["count"].astype(np.int64)
    first = np.cumsum(counts) - counts
    _refuse_impossible_counts(batches, counts, ends - starts, path, origin)
    columns = empty_columns(data, int(counts.sum()))
    arrays = [getattr(columns, field.name) for field in fields(RecordColumns) if field.name != "data"]
    bad, reason = _decode_modern(data, starts, ends, np.arange(len(batches)), batches, first, *arrays)
    if bad >= 0:
        raise CorruptRecordError(path, origin + int(batches["position"][bad]), DECODE_REASON[reason])
    return columns


def _refuse_impossible_counts(
    batches: Directory, counts: Int64, sizes: Int64, path: str, origin: int
) -> None:
    """A record takes at least seven bytes: a larger count would only make us allocate."""
    bad = np.flatnonzero(counts * 7 > sizes)
    if len(bad):
        raise CorruptRecordError(
            path, origin + int(batches["position"][bad[0]]), "more records than its bytes can hold"
        )


def is_log_append(batches: Directory) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which batches carry log-append time: bool, one a batch."""
    return np.asarray((batches["attributes"] & TIMESTAMP_TYPE_BIT) != 0)
