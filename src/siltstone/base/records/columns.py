"""Record columns, arrays with one row a record, and the kernels that read one record's fields.

The bytes of keys, values and headers stay where they are: columns hold spans into ``data``, which is the
window itself when none of its batches is compressed, else the decompressed records one batch after another.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from siltstone.base.records.kernel import inline_kernel, kernel
from siltstone.base.records.layout import Bytes, Flags, Int32, Int64
from siltstone.base.records.varint import next_varint, next_varlong, read_varint

Columns = TypeVar("Columns", bound=Any)


def span_bytes(data: Bytes, start: int, size: int) -> bytes | None:
    """``data[start:start + size]`` as bytes, None for a negative size: null."""
    return None if size < 0 else data[start : start + size].tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """One row a record, in log order: which it is, and its key.

    ``batch``: row in the batch headers, int32. ``offset``: int64. The key's span (``key_start``,
    ``key_size``, int32) points into ``data`` (uint8); a size of -1 is null.
    """

    data: Bytes
    batch: Int32
    offset: Int64
    key_start: Int32
    key_size: Int32

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns(KeyColumns):
    """One row a record, in log order, with all of its fields.

    ``timestamp`` (ms): int64. More spans, as the key's: ``start``, ``size`` of the record itself with its
    size field, and ``value_*``. ``headers_start`` is the position of the first header after its count,
    ``header_count`` how many.
    """

    timestamp: Int64
    start: Int32
    size: Int32
    value_start: Int32
    value_size: Int32
    headers_start: Int32
    header_count: Int32

    @property
    def arrays(self) -> ColumnArrays:
        """The columns as kernels take them."""
        return ColumnArrays(*(getattr(self, name) for name in ColumnArrays._fields))

    def key(self, row: int) -> bytes | None:
        """The key of one record as bytes, None when null. Not for hot paths."""
        return span_bytes(self.data, int(self.key_start[row]), int(self.key_size[row]))

    def value(self, row: int) -> bytes | None:
        """The value of one record as bytes, None when null. Not for hot paths."""
        return span_bytes(self.data, int(self.value_start[row]), int(self.value_size[row]))

    def headers(self, row: int) -> list[tuple[bytes, bytes | None]]:
        """The headers of one record as (key, value) pairs. Not for hot paths."""
        position, headers = int(self.headers_start[row]), []
        for _ in range(int(self.header_count[row])):
            size, position = read_varint(self.data, position, len(self.data))
            key = span_bytes(self.data, position, size)
            size, position = read_varint(self.data, position + size, len(self.data))
            headers.append((key or b"", span_bytes(self.data, position, size)))
            position += max(size, 0)
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """One row a record, in log order: ``batch`` (row in the batch headers, int32), ``offset`` (int64),
    ``timestamp`` (ms, int64)."""

    batch: Int32
    offset: Int64
    timestamp: Int64

    def __len__(self) -> int:
        return len(self.offset)


ColumnArrays = namedtuple(
    "ColumnArrays",
    "batch offset key_start key_size timestamp start size value_start value_size headers_start header_count",
)
"""The arrays of ``RecordColumns``, for kernels: numba takes named tuples, and no dataclasses."""
KEY_COLUMNS = ColumnArrays._fields[:4]
"""The columns of ``KeyColumns``."""


def empty_columns(data: Bytes, rows: int) -> RecordColumns:
    """Uninitialised columns for ``rows`` records over ``data``."""
    return RecordColumns(data=data, **empty_arrays(ColumnArrays._fields, rows))


def empty_arrays(names: tuple[str, ...], rows: int) -> dict[str, Any]:
    """Uninitialised arrays by column name."""
    return {name: np.empty(rows, np.int64 if name in ("offset", "timestamp") else np.int32) for name in names}


def select(columns: Columns, rows: slice | Int64 | Flags) -> Columns:
    """Select rows of columns of any kind, over the same data; a slice copies nothing."""
    names = (field.name for field in fields(columns) if field.name != "data")
    return replace(columns, **{name: getattr(columns, name)[rows] for name in names})


# One record's fields, by address: decoding, validation and compaction all read records by these kernels.
#
# A record of magic 2, varints zigzag-encoded::
#
#     size varint | attributes 1 | timestamp delta varlong | offset delta varint
#     | key size varint, key | value size varint, value | header count varint
#     | per header: key size varint, key, value size varint, value          (size -1: null)
#
# The functions are compiled into their callers. They check every size; the reason that they return is an
# index into ``DECODE_REASON``, 0 for none.

DECODE_REASON = (
    "",
    "a record's size is impossible",
    "a record's fields end before or beyond its end",
    "a varint is too long or truncated",
    "a size is negative, but not -1 for null",
    "offsets in the batch do not ascend, or pass its last offset",
    "bytes are left after the last record",
)
RECORD_SIZE, RECORD_END, VARINT, NEGATIVE_SIZE, RECORD_OFFSETS, TRAILING_BYTES = range(1, 7)
"""Reasons, by their places in ``DECODE_REASON``."""


@inline_kernel
def span_at(at: int, end: int) -> tuple[int, int, int]:
    """A sized field at address ``at``: (its start, its size, reason); start is -1 on failure."""
    size, at = next_varint(at, end)
    if at < 0:
        return -1, 0, VARINT
    if size < -1:
        return -1, 0, NEGATIVE_SIZE
    if size > end - at:
        return -1, 0, RECORD_END
    return at, size, 0


@kernel
def _skip_headers(at: int, end: int, count: int) -> tuple[int, int]:
    """The address after ``count`` headers and 0, or -1 and a reason."""
    for _ in range(count):
        start, size, reason = span_at(at, end)
        if start < 0 or size < 0:
            return -1, reason if start < 0 else NEGATIVE_SIZE
        start, size, reason = span_at(start + size, end)
        if start < 0:
            return -1, reason
        at = start + max(size, 0)
    return at, 0


@inline_kernel
def record_head(at: int, batch_end: int) -> tuple[int, int, int, int, int]:
    """A record up to its key: (address of the key, of the end, timestamp delta, offset delta, reason)."""
    body, at = next_varint(at, batch_end)
    if at < 0:
        return 0, 0, 0, 0, VARINT
    # At least six bytes follow: attributes, two deltas, two sizes and the header count.
    if body < 6 or body > batch_end - at:
        return 0, 0, 0, 0, RECORD_SIZE
    end = at + body
    timestamp_delta, at = next_varlong(at + 1, end)  # after the attributes, which Kafka does not use
    if at < 0:
        return 0, 0, 0, 0, VARINT
    offset_delta, at = next_varint(at, end)
    return at, end, timestamp_delta, offset_delta, VARINT if at < 0 else 0


@inline_kernel
def record_fields(at: int, end: int) -> tuple[int, int, int, int, int, int, int]:
    """A record from its key on: spans of key and value, its first header, how many, reason."""
    key, key_size, reason = span_at(at, end)
    if key < 0:
        return 0, 0, 0, 0, 0, 0, reason
    value, value_size, reason = span_at(key + max(key_size, 0), end)
    if value < 0:
        return 0, 0, 0, 0, 0, 0, reason
    headers, first = next_varint(value + max(value_size, 0), end)
    if first < 0 or headers < 0:
        return 0, 0, 0, 0, 0, 0, VARINT if first < 0 else NEGATIVE_SIZE
    at = first
    if headers > 0:
        at, reason = _skip_headers(first, end, headers)
        if at < 0:
            return 0, 0, 0, 0, 0, 0, reason
    return key, key_size, value, value_size, first, headers, 0 if at == end else RECORD_END
