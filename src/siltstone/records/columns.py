"""Record columns: what decoding makes of batches, arrays with one row a record.

The bytes of keys, values and headers stay where they are: columns hold spans into ``data``, which is the
window itself when nothing in it is compressed, else the decompressed records one batch after another.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from siltstone.records.layout import Bytes, Int32, Int64
from siltstone.records.varint import read_varint

Columns = TypeVar("Columns", bound=Any)
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """One row a record, in log order: which it is, and its key.

    ``batch``: row in the batch directory, int32. ``offset``: int64. The key's span (``key_start``,
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
    """One row a record, in log order: everything there is in it.

    ``timestamp`` (ms): int64. More spans, as the key's: ``start``, ``size`` of the record itself with its
    size field, and ``value_*``. ``headers_start`` is the position of the first header behind its count,
    ``header_count`` how many.
    """

    timestamp: Int64
    start: Int32
    size: Int32
    value_start: Int32
    value_size: Int32
    headers_start: Int32
    header_count: Int32

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


KEY_COLUMNS = tuple(each.name for each in fields(KeyColumns) if each.name != "data")
OTHER_COLUMNS = tuple(each.name for each in fields(RecordColumns))[len(KEY_COLUMNS) + 1 :]
"""The columns that both kinds have, and those that only ``RecordColumns`` has, in the decoders' order."""


def empty_columns(data: Bytes, rows: int) -> RecordColumns:
    """Uninitialised columns for ``rows`` records over ``data``."""
    return RecordColumns(data=data, **empty_arrays((*KEY_COLUMNS, *OTHER_COLUMNS), rows))


def empty_arrays(names: tuple[str, ...], rows: int) -> dict[str, Any]:
    """Uninitialised arrays by column name."""
    return {name: np.empty(rows, np.int64 if name in ("offset", "timestamp") else np.int32) for name in names}


def select(columns: Columns, rows: slice | Int64 | Flags) -> Columns:
    """Some of the rows of columns of any kind, over the same data; a slice copies nothing."""
    names = (field.name for field in fields(columns) if field.name != "data")
    return replace(columns, **{name: getattr(columns, name)[rows] for name in names})
