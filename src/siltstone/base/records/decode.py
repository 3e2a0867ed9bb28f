"""From batches of any age to record columns: the entry point for everybody who reads records.

A log that lived through an upgrade holds message sets (magic 0 and 1) first and record batches (magic 2)
behind them. ``modern`` decodes the one, ``legacy`` the other; here it is decided which, and the two are
put together where a window holds both. Nobody else calls those decoders.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError, CorruptRecordError
from siltstone.base.records.codecs import DEFAULT_LIMIT, SPANS_END, Scratch
from siltstone.base.records.columns import DECODE_REASON, KeyColumns, RecordColumns, record_head, select
from siltstone.base.records.inflate import inflate, refuse_impossible_counts
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Directory, Int32, Int64
from siltstone.base.records.legacy import decode_legacy
from siltstone.base.records.modern import Choice, ChosenRecords, decode, decode_chosen, decode_keys

# v2 batches to offsets and timestamps, for somebody who wants nothing else of their records.
#
# Only the front of each record is read; its size leads to the next one, so what a key, a value or a header
# says of itself is not looked at. ``modern`` decodes everything.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """One row a record, in log order: ``batch`` (row in the batch directory, int32), ``offset`` (int64),
    ``timestamp`` (ms, int64)."""

    batch: Int32
    offset: Int64
    timestamp: Int64

    def __len__(self) -> int:
        return len(self.offset)


@kernel
def _decode_times(
    data: Bytes,
    starts: Int64,
    ends: Int64,
    batches: Directory,
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
) -> tuple[int, int]:
    """Fill the columns: (-1 or the bad batch's row, reason)."""
    base = data.ctypes.data
    count = 0
    for i in range(len(batches)):
        header = batches[i]
        first_offset, last_offset = header.base_offset, header.last_offset
        first_time, last_time = header.base_timestamp, header.max_timestamp
        log_append = (header.attributes & 8) != 0
        at = base + starts[i]
        batch_end = base + ends[i]
        previous = first_offset - 1
        for _ in range(header.count):
            _, end, timestamp_delta, offset_delta, reason = record_head(at, batch_end)
            if reason:
                return i, reason
            here = first_offset + offset_delta
            if here <= previous or here > last_offset:
                return i, 5
            previous = here
            row = np.uint64(count)
            batch[row] = i
            offset[row] = here
            timestamp[row] = last_time if log_append else first_time + timestamp_delta
            count += 1
            at = end
        if at != batch_end:
            return i, 6
    return -1, 0


def decode_times(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> TimeColumns:
    """Offsets and timestamps of every record of ``batches`` (rows of a scan over ``window``, magic 2).

    ``scratch`` takes decompressed bytes, ``limit`` bounds a batch's; ``path`` and ``origin`` (the file
    position of ``window[0]``) are for messages. Raises CorruptRecordError with the position of the first
    batch that makes no sense.
    """
    data, starts, ends = inflate(window, batches, scratch or Scratch(), limit=limit, path=path, origin=origin)
    assert len(data) <= SPANS_END, "no batch is larger"
    counts = batches["count"].astype(np.int64)
    refuse_impossible_counts(batches, counts, ends - starts, path, origin, limit)
    total = int(counts.sum())
    columns = TimeColumns(
        batch=np.empty(total, np.int32), offset=np.empty(total, np.int64), timestamp=np.empty(total, np.int64)
    )
    bad, reason = _decode_times(data, starts, ends, batches, columns.batch, columns.offset, columns.timestamp)
    if bad >= 0:
        raise CorruptRecordError(path, origin + int(batches["position"][bad]), DECODE_REASON[reason])
    return columns


_COLUMNS = tuple(field.name for field in fields(RecordColumns) if field.name != "data")
_POSITIONS = ("start", "key_start", "value_start", "headers_start")


def decode_records(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> RecordColumns:
    """Decode every record of ``batches`` (rows of a scan over ``window``, any magic) in log order.

    How many batches are taken at a time bounds the memory: ``pieces`` says. ``scratch`` takes decompressed
    bytes and may be used again once the columns are done with. ``limit`` bounds what one batch may
    decompress to, in bytes, and how many records it may have (``inflate.records_max``). ``path`` and
    ``origin`` (the file position of ``window[0]``) are for messages. Control batches are decoded like
    others. Raises CorruptRecordError with the position of a batch that makes no sense.
    """
    modern = batches["magic"] == 2
    if modern.all():
        return decode(window, batches, scratch, limit=limit, path=path, origin=origin)
    if not modern.any():
        return decode_legacy(window, batches, scratch, limit=limit, path=path, origin=origin)
    return _decode_mixed(window, batches, modern, scratch, limit, path, origin)


def decode_record_keys(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> KeyColumns:
    """``decode_records``, with all its checks, for somebody who wants no more than keys and offsets."""
    if (batches["magic"] == 2).all():
        return decode_keys(window, batches, scratch, limit=limit, path=path, origin=origin)
    return decode_records(window, batches, scratch, limit=limit, path=path, origin=origin)


def decode_record_times(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> TimeColumns:
    """Offsets and timestamps; of v2 records nothing else is looked at. Raises CorruptRecordError."""
    if (batches["magic"] == 2).all():
        return decode_times(window, batches, scratch, limit=limit, path=path, origin=origin)
    found = decode_records(window, batches, scratch, limit=limit, path=path, origin=origin)
    return TimeColumns(batch=found.batch, offset=found.offset, timestamp=found.timestamp)


def decode_chosen_records(
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
    """``decode_chosen`` for batches that are all of magic 2, or none; message sets are decoded whole first.

    Raises CorruptRecordError and CheckFailedError.
    """
    if not len(rows) or batches["magic"][rows[0]] == 2:
        return decode_chosen(window, batches, rows, choice, scratch, limit=limit, path=path, origin=origin)
    columns = decode_legacy(window, batches[rows], scratch, limit=limit, path=path, origin=origin)
    relative = columns.offset - choice.base
    always = columns.offset >= choice.all_from[columns.batch]
    met = choice.met
    if len(columns) and not always.all():
        met += int(np.searchsorted(choice.offsets[met:], relative[~always][-1], side="right"))
    mine = choice.offsets[choice.met : met]
    wanted = always | np.isin(relative, mine)
    if np.count_nonzero(wanted & ~always) != len(mine):
        raise CheckFailedError(f"{path}: a chosen offset is not among the records")
    found = select(columns, wanted)
    return ChosenRecords(
        columns=replace(found, batch=rows[found.batch].astype(np.int32)),
        met=met,
        left_out=int(np.count_nonzero(~wanted)),
        keyless=int(np.count_nonzero(~wanted & (columns.key_size < 0))),
    )


def _decode_mixed(
    window: Bytes,
    batches: Directory,
    modern: npt.NDArray[np.bool_],
    scratch: Scratch | None,
    limit: int,
    path: str,
    origin: int,
) -> RecordColumns:
    """Both kinds in one window. Happens once a log, at its upgrade: clarity before speed."""
    old_rows, new_rows = np.flatnonzero(~modern), np.flatnonzero(modern)
    old = decode_legacy(window, batches[old_rows], scratch, limit=limit, path=path, origin=origin)
    new = decode(window, batches[new_rows], Scratch(), limit=limit, path=path, origin=origin)
    shift = 0 if new.data is old.data else len(old.data)
    data = new.data if shift == 0 else np.concatenate((old.data, new.data))
    if len(data) > SPANS_END:
        position = origin + int(batches["position"][0])
        raise CorruptRecordError(path, position, "more than 2 GiB of records at a time")
    return _interleave(data, old, new, old_rows, new_rows, shift)


def _interleave(
    data: Bytes, old: RecordColumns, new: RecordColumns, old_rows: Int64, new_rows: Int64, shift: int
) -> RecordColumns:
    """The records of both in the order of their batches; ``new``'s spans lie ``shift`` further on."""
    batch = np.concatenate((old_rows[old.batch], new_rows[new.batch]))
    order = np.argsort(batch, kind="stable")
    arrays: dict[str, Any] = {"batch": batch[order].astype(np.int32)}
    for name in (name for name in _COLUMNS if name != "batch"):
        behind = getattr(new, name) + np.int32(shift) if name in _POSITIONS else getattr(new, name)
        arrays[name] = np.concatenate((getattr(old, name), behind))[order]
    return RecordColumns(data=data, **arrays)
