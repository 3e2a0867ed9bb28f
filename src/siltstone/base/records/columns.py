"""Record columns, arrays with one row a record, and the kernels that read one record's fields.

The columns do not copy keys, values and headers: they hold spans (start and size) into ``data``. If no batch
is compressed, ``data`` is the window: the bytes of the file that were read. Otherwise it has the decompressed
records of the batches, one after another.
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
    """``data[start:start + size]`` as bytes; None for a negative size, which stands for null."""
    return None if size < 0 else data[start : start + size].tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """Offsets and keys, one row a record, in log order.

    ``batch``: the row of the record's batch in the batch headers, int32. ``offset``: int64. ``key_start`` and
    ``key_size`` (int32): the key's span in ``data`` (uint8); a size of -1 is a null key.
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
    """All fields of the records, one row a record, in log order.

    ``timestamp`` (ms): int64. ``start`` and ``size``: the span of the whole record, its size field included.
    ``value_start`` and ``value_size``: the value's span; a size of -1 is a null value. ``headers_start``: the
    position of the first header, after the header count; ``header_count``: how many headers there are.
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
        """The columns as a named tuple, for kernels."""
        return ColumnArrays(*(getattr(self, name) for name in ColumnArrays._fields))

    def key(self, row: int) -> bytes | None:
        """The key of one record as bytes, None when null. Not for hot paths."""
        return span_bytes(self.data, int(self.key_start[row]), int(self.key_size[row]))

    def value(self, row: int) -> bytes | None:
        """The value of one record as bytes, None when null. Not for hot paths."""
        return span_bytes(self.data, int(self.value_start[row]), int(self.value_size[row]))

    def headers(self, row: int, count_max: int | None = None) -> list[tuple[bytes, bytes | None]]:
        """The headers of one record, or the first ``count_max``, as (key, value) pairs. Not for hot paths."""
        position, headers = int(self.headers_start[row]), []
        count = int(self.header_count[row])
        for _ in range(count if count_max is None else min(count, count_max)):
            size, position = read_varint(self.data, position, len(self.data))
            key = span_bytes(self.data, position, size)
            size, position = read_varint(self.data, position + size, len(self.data))
            headers.append((key or b"", span_bytes(self.data, position, size)))
            position += max(size, 0)
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """Offsets and timestamps, one row a record, in log order: ``batch`` (row in the batch headers, int32),
    ``offset`` (int64), ``timestamp`` (ms, int64)."""

    batch: Int32
    offset: Int64
    timestamp: Int64

    def __len__(self) -> int:
        return len(self.offset)


ColumnArrays = namedtuple(
    "ColumnArrays",
    "batch offset key_start key_size timestamp start size value_start value_size headers_start header_count",
)
"""The arrays of ``RecordColumns``, for kernels: numba supports named tuples, but no dataclasses."""
KEY_COLUMNS = ColumnArrays._fields[:4]
"""The names of the columns of ``KeyColumns``."""


def empty_columns(data: Bytes, rows: int) -> RecordColumns:
    """Uninitialised columns for ``rows`` records over ``data``."""
    return RecordColumns(data=data, **empty_arrays(ColumnArrays._fields, rows))


def empty_arrays(names: tuple[str, ...], rows: int) -> dict[str, Any]:
    """Uninitialised arrays by column name."""
    return {name: np.empty(rows, np.int64 if name in ("offset", "timestamp") else np.int32) for name in names}


def select(columns: Columns, rows: slice | Int64 | Flags) -> Columns:
    """The ``rows`` of columns, which may be of any of these classes, over the same ``data``. A slice copies
    nothing."""
    names = (field.name for field in fields(columns) if field.name != "data")
    return replace(columns, **{name: getattr(columns, name)[rows] for name in names})


# Kernels that read the fields of one record, by address (see ``kernel``). Decoding, validation and compaction
# use them.
#
# A record of magic 2; all varints are zigzag-encoded::
#
#     size varint | attributes 1 | timestamp delta varlong | offset delta varint
#     | key size varint, key | value size varint, value | header count varint
#     | per header: key size varint, key, value size varint, value          (size -1: null)
#
# The functions check every size. The reason that they return is an index into ``DECODE_REASON``: 0 if all is
# well. In a tuple after a failure, only the reason counts.

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
"""The indexes of the reasons in ``DECODE_REASON``."""


@inline_kernel
def read_sized_field(at: int, end: int) -> tuple[int, int, int]:
    """Read a field with its size in front, at address ``at``: (its address, its size, reason); address -1 on
    failure."""
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
    """Skip ``count`` headers: (the address after them, 0), or (-1, reason)."""
    for _ in range(count):
        start, size, reason = read_sized_field(at, end)
        if start < 0 or size < 0:
            return -1, reason if start < 0 else NEGATIVE_SIZE
        start, size, reason = read_sized_field(start + size, end)
        if start < 0:
            return -1, reason
        at = start + max(size, 0)
    return at, 0


_MIN_BODY_SIZE = 6
"""Bytes of the smallest record after its size: attributes, two deltas, two sizes and the header count."""


@inline_kernel
def read_record_head(at: int, batch_end: int) -> tuple[int, int, int, int, int]:
    """Read a record up to its key: (address of the key's size, address of the record's end, timestamp delta,
    offset delta, reason)."""
    body_size, at = next_varint(at, batch_end)
    if at < 0:
        return 0, 0, 0, 0, VARINT
    if body_size < _MIN_BODY_SIZE or body_size > batch_end - at:
        return 0, 0, 0, 0, RECORD_SIZE
    end = at + body_size
    timestamp_delta, at = next_varlong(at + 1, end)  # after the attributes, which Kafka does not use
    if at < 0:
        return 0, 0, 0, 0, VARINT
    offset_delta, at = next_varint(at, end)
    return at, end, timestamp_delta, offset_delta, VARINT if at < 0 else 0


@inline_kernel
def read_record_fields(at: int, end: int) -> tuple[int, int, int, int, int, int, int]:
    """Read a record from its key's size at ``at`` to its ``end``: (key address, key size, value address,
    value size, address of the first header, number of headers, reason)."""
    key, key_size, reason = read_sized_field(at, end)
    if key < 0:
        return 0, 0, 0, 0, 0, 0, reason
    value, value_size, reason = read_sized_field(key + max(key_size, 0), end)
    if value < 0:
        return 0, 0, 0, 0, 0, 0, reason
    header_count, headers = next_varint(value + max(value_size, 0), end)
    if headers < 0 or header_count < 0:
        return 0, 0, 0, 0, 0, 0, VARINT if headers < 0 else NEGATIVE_SIZE
    at = headers
    if header_count > 0:
        at, reason = _skip_headers(headers, end, header_count)
        if at < 0:
            return 0, 0, 0, 0, 0, 0, reason
    return key, key_size, value, value_size, headers, header_count, 0 if at == end else RECORD_END
