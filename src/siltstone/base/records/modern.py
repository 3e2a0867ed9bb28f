"""v2 batches to record columns: the decoder (Kafka's ``DefaultRecord``, ``DefaultRecordBatch``).

One kernel decodes: all records with all columns, all with no more than keys, or chosen ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError, CorruptRecordError
from siltstone.base.records.codecs import DEFAULT_LIMIT, SPANS_END, Scratch
from siltstone.base.records.columns import (
    DECODE_REASON,
    KEY_COLUMNS,
    OTHER_COLUMNS,
    KeyColumns,
    RecordColumns,
    empty_arrays,
    empty_columns,
    record_fields,
    record_head,
)
from siltstone.base.records.inflate import inflate, refuse_impossible_counts
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Directory, Int32, Int64
from siltstone.base.records.varint import next_varint

PASSED = len(DECODE_REASON)
"""The kernel's reason where a chosen offset was passed that no record has."""
Chosen = npt.NDArray[np.uint32]
_NONE_LEFT = (1 << 63) - 1
"""Behind every offset: what follows the last chosen one."""


@kernel
def _decode_modern(
    data: Bytes,
    starts: Int64,
    ends: Int64,
    rows: Int64,
    batches: Directory,
    batch: Int32,
    offset: Int64,
    key_start: Int32,
    key_size: Int32,
    timestamp: Int64 | None,
    start: Int32 | None,
    size: Int32 | None,
    value_start: Int32 | None,
    value_size: Int32 | None,
    headers_start: Int32 | None,
    header_count: Int32 | None,
    chosen: Chosen | None,
    base: int,
    all_from: Any,
    met: int,
) -> tuple[int, int, int, int, int, int]:
    """Decode the v2 batches ``rows``: (-1 or the bad batch's index in ``rows``, reason, records, and of a
    choice: met, left out, and those of them without a key).

    Columns that are None are left out: numba compiles a kernel of its own for each set of them, and one
    without ``chosen`` and what belongs to it (see ``decode_chosen``).
    """
    count, left_out, keyless, origin = 0, 0, 0, data.ctypes.data
    if chosen is not None:
        following = base + chosen[np.uint64(met)] if met < len(chosen) else _NONE_LEFT
    for i in range(len(rows)):
        header = batches[rows[i]]
        log_append, first_offset, last_offset = header.attributes & 8, header.base_offset, header.last_offset
        at, batch_end, previous = origin + starts[i], origin + ends[i], first_offset - 1
        for _ in range(header.count):
            begin = at
            at, end, delta, offset_delta, reason = record_head(at, batch_end)
            if reason > 0:
                return i, reason, 0, 0, 0, 0
            here = first_offset + offset_delta
            if here <= previous or here > last_offset:
                return i, 5, 0, 0, 0, 0
            previous = here
            if chosen is not None and here < all_from[np.uint64(i)]:
                if here > following:
                    return i, PASSED, 0, 0, 0, 0
                if here < following:
                    key_bytes, at = next_varint(at, end)
                    left_out += 1
                    keyless += key_bytes < 0
                    at = end
                    continue
                met += 1
                following = base + chosen[np.uint64(met)] if met < len(chosen) else _NONE_LEFT
            key, key_bytes, value, value_bytes, first_header, headers, reason = record_fields(at, end)
            if reason > 0:
                return i, reason, 0, 0, 0, 0
            at = end
            row = np.uint64(count)
            batch[row], offset[row], key_start[row], key_size[row] = rows[i], here, key - origin, key_bytes
            if timestamp is not None:
                timestamp[row] = header.max_timestamp if log_append else header.base_timestamp + delta
            if start is not None and size is not None:
                start[row], size[row] = begin - origin, end - begin
            if value_start is not None and value_size is not None:
                value_start[row], value_size[row] = value - origin, value_bytes
            if headers_start is not None and header_count is not None:
                headers_start[row], header_count[row] = first_header - origin, headers
            count += 1
        if at != batch_end:
            return i, 6, 0, 0, 0, 0
    return -1, 0, count, met, left_out, keyless


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
    plain = _Plain.of(window, batches, None, scratch, limit, path, origin)
    columns = empty_columns(plain.data, plain.count)
    plain.decode([getattr(columns, name) for name in (*KEY_COLUMNS, *OTHER_COLUMNS)])
    return columns


def decode_keys(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> KeyColumns:
    """``decode`` with all its checks for somebody who wants no more than keys and offsets."""
    plain = _Plain.of(window, batches, None, scratch, limit, path, origin)
    columns = KeyColumns(data=plain.data, **empty_arrays(KEY_COLUMNS, plain.count))
    plain.decode([*(getattr(columns, name) for name in KEY_COLUMNS), *[None] * len(OTHER_COLUMNS)])
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Records that are wanted: their offsets less ``base`` (uint32, ascending), ``met`` of which came before.

    ``all_from`` (int64, one a decoded batch): of its records all are wanted from this offset on.
    """

    offsets: Chosen
    base: int
    met: int
    all_from: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecords:
    """What a choice found: the wanted records, how many of its offsets were ``met`` by now, how many records
    were ``left_out``, and how many of those have no key."""

    columns: RecordColumns
    met: int
    left_out: int
    keyless: int


def decode_chosen(
    window: Bytes,
    batches: Directory,
    rows: Int64,
    choice: Choice,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> ChosenRecords:
    """Decode the chosen records of the batches ``rows`` (of ``batches``, ascending, magic 2).

    Of a record that is not wanted only what tells its offset is read, and whether it has a key. The other
    arguments are ``decode``'s. Raises CorruptRecordError as it does, and CheckFailedError where a chosen
    offset is passed that no record has.
    """
    plain = _Plain.of(window, batches, rows, scratch, limit, path, origin)
    columns = empty_columns(plain.data, plain.most_chosen(choice))
    arrays: list[Any] = [getattr(columns, name) for name in (*KEY_COLUMNS, *OTHER_COLUMNS)]
    count, met, left_out, keyless = plain.decode(arrays, choice)
    found = {name: array[:count] for name, array in zip((*KEY_COLUMNS, *OTHER_COLUMNS), arrays, strict=True)}
    return ChosenRecords(
        columns=RecordColumns(data=plain.data, **found), met=met, left_out=left_out, keyless=keyless
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """Some batches with their records in plain form, ready for the kernel."""

    batches: Directory
    rows: Int64
    counts: Int64
    data: Bytes
    starts: Int64
    ends: Int64
    path: str
    origin: int

    @classmethod
    def of(
        cls,
        window: Bytes,
        batches: Directory,
        rows: Int64 | None,
        scratch: Scratch | None,
        limit: int,
        path: str,
        origin: int,
    ) -> _Plain:
        mine = batches if rows is None else batches[rows]
        data, starts, ends = inflate(
            window, mine, scratch or Scratch(), limit=limit, path=path, origin=origin
        )
        assert len(data) <= SPANS_END, "spans are int32"
        counts = mine["count"].astype(np.int64)
        refuse_impossible_counts(mine, counts, ends - starts, path, origin, limit)
        rows = np.arange(len(batches)) if rows is None else rows
        return cls(
            batches=batches,
            rows=rows,
            counts=counts,
            data=data,
            starts=starts,
            ends=ends,
            path=path,
            origin=origin,
        )

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def most_chosen(self, choice: Choice) -> int:
        """How many of the records can be wanted at most."""
        by_choice = self.batches["last_offset"][self.rows] < choice.all_from
        among = int(self.counts[by_choice].sum())
        return min(among, len(choice.offsets) - choice.met) + int(self.counts[~by_choice].sum())

    def decode(self, arrays: list[Any], choice: Choice | None = None) -> tuple[int, int, int, int]:
        """Fill the columns; how many rows of them, and of a choice: met, left out, and of these keyless."""
        told: tuple[Any, ...] = (None, 0, None, 0)
        if choice is not None:
            told = (choice.offsets, choice.base, choice.all_from, choice.met)
        spans = (self.data, self.starts, self.ends, self.rows, self.batches)
        bad, reason, *counts = _decode_modern(*spans, *arrays, *told)
        if bad >= 0 and reason == PASSED:
            raise CheckFailedError(f"{self.path}: a chosen offset is not among the records")
        if bad >= 0:
            position = int(self.batches["position"][self.rows[bad]])
            raise CorruptRecordError(self.path, self.origin + position, DECODE_REASON[reason])
        count, met, left_out, keyless = counts
        return count, met, left_out, keyless
