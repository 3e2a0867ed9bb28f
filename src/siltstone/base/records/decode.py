"""Decodes batches of any magic into record columns: the entry point of every reader of records.

A log that was upgraded holds message sets (magic 0 and 1) first and record batches (magic 2) after them. One
kernel here decodes record batches (Kafka's ``DefaultRecord``, ``DefaultRecordBatch``): all records with all
columns, with their keys or times only, or chosen records. ``legacy`` has the kernel for message sets. A
window that holds both is decoded run by run into the same columns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, MAX_RECORD_BUFFER_BYTES, Scratch
from siltstone.base.records.columns import (
    DECODE_REASON,
    KEY_COLUMNS,
    RECORD_OFFSETS,
    TRAILING_BYTES,
    ColumnArrays,
    KeyColumns,
    RecordColumns,
    TimeColumns,
    empty_arrays,
    empty_columns,
    record_fields,
    record_head,
    select,
)
from siltstone.base.records.decompression import corrupt_batch, decompress_batches, refuse_impossible_counts
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import TIMESTAMP_TYPE_BIT, BatchHeaders, Bytes, Int32, Int64
from siltstone.base.records.legacy import LEGACY_REASON, count_messages, decode_messages
from siltstone.base.records.varint import next_varint

_MISSING = len(DECODE_REASON)
"""The kernel's reason when no record has a chosen offset."""
_MISSING_TEXT = "a chosen offset is not among the records"
_NO_MORE = (1 << 63) - 1
"""Larger than every offset: the next chosen offset after the last one."""


class ChosenOffsets(NamedTuple):
    """Records to decode: their offsets less ``base`` (uint32, ascending); ``met`` of them are decoded.

    ``all_from`` (int64, one a decoded batch): all of its records from this offset on are decoded.
    """

    offsets: npt.NDArray[np.uint32]
    base: int
    met: int
    all_from: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecords:
    """The chosen records, how many of the chosen offsets were ``met`` so far, how many records were
    ``left_out``, and how many of those have no key."""

    columns: RecordColumns
    met: int
    left_out: int
    keyless: int


class DecodeOptions(TypedDict, total=False):
    """Options of every decoder. ``limit`` bounds what one batch may decompress to, in bytes, and how many
    records it may have (``decompression.max_records``). ``path`` and ``origin`` (the file position of the
    window's first byte) are for errors."""

    limit: int
    path: str
    origin: int


class _PlainBatches(NamedTuple):
    """The batches ``rows`` of ``batches``, their records decompressed: ``data[starts[i]:ends[i]]``."""

    data: Bytes
    starts: Int64
    ends: Int64
    rows: Int64
    batches: BatchHeaders


@kernel
def _decode_batches(
    plain: _PlainBatches,
    batch: Int32,
    offset: Int64,
    timestamp: Int64 | None,
    keys: tuple[Int32, Int32] | None,
    others: ColumnArrays | None,
    chosen: ChosenOffsets | None,
) -> tuple[int, int, int, int, int, int]:
    """Decode v2 batches: (-1 or the bad batch's index in ``rows``, reason, records, and of chosen offsets:
    met, left out, and those of them without a key).

    Columns that are None are left out: numba compiles a kernel of its own for each set of them, and one
    without ``chosen``. Without ``keys`` only the front of a record is read: its size leads to the next one.
    """
    data, starts, ends, rows, batches = plain
    count, left_out, keyless, met, origin = 0, 0, 0, 0, data.ctypes.data
    if keys is not None:
        key_start, key_size = keys
    if others is not None:
        _, _, _, _, _, start, size, value_start, value_size, headers_start, header_count = others
    if chosen is not None:
        relative, base, met, all_from = chosen
        next_chosen = base + relative[np.uint64(met)] if met < len(relative) else _NO_MORE
    for i in range(len(rows)):
        header = batches[rows[i]]
        log_append = header.attributes & TIMESTAMP_TYPE_BIT
        first_offset, last_offset = header.base_offset, header.last_offset
        at, batch_end, previous = origin + starts[i], origin + ends[i], first_offset - 1
        for _ in range(header.count):
            begin = at
            at, end, delta, offset_delta, reason = record_head(at, batch_end)
            if reason > 0:
                return i, reason, 0, 0, 0, 0
            here = first_offset + offset_delta
            if here <= previous or here > last_offset:
                return i, RECORD_OFFSETS, 0, 0, 0, 0
            previous = here
            # Chosen offsets and records both ascend, so one pass merges them: a record below the next chosen
            # offset is left out, and one above it means that no record has that offset.
            if chosen is not None and here < all_from[np.uint64(i)]:
                if here > next_chosen:
                    return i, _MISSING, 0, 0, 0, 0
                if here < next_chosen:
                    key_bytes, at = next_varint(at, end)
                    left_out += 1
                    keyless += key_bytes < 0
                    at = end
                    continue
                met += 1
                next_chosen = base + relative[np.uint64(met)] if met < len(relative) else _NO_MORE
            row = np.uint64(count)  # an unsigned index: numba adds no code for negative ones
            if keys is not None:
                key, key_bytes, value, value_bytes, first_header, headers, reason = record_fields(at, end)
                if reason > 0:
                    return i, reason, 0, 0, 0, 0
                key_start[row], key_size[row] = key - origin, key_bytes
                if others is not None:
                    start[row], size[row] = begin - origin, end - begin
                    value_start[row], value_size[row] = value - origin, value_bytes
                    headers_start[row], header_count[row] = first_header - origin, headers
            at = end
            batch[row], offset[row] = rows[i], here
            if timestamp is not None:
                timestamp[row] = header.max_timestamp if log_append else header.base_timestamp + delta
            count += 1
        if at != batch_end:
            return i, TRAILING_BYTES, 0, 0, 0, 0
    return -1, 0, count, met, left_out, keyless


def decode_records(
    window: Bytes, batches: BatchHeaders, scratch: Scratch | None = None, **options: Unpack[DecodeOptions]
) -> RecordColumns:
    """Decode every record of ``batches`` (rows of a scan over ``window``, any magic) in log order.

    Memory is bounded by how many batches are decoded at a time (``decompression.slices_within``). ``scratch``
    takes decompressed bytes and may be used again when the columns are no longer needed. Control batches are
    decoded like others. Raises CorruptRecordError with the position of a batch that cannot be decoded.
    """
    source = _Source.of(window, batches, None, scratch, **options)
    columns = empty_columns(source.plain.data, source.records)
    is_v2 = batches["magic"] == 2
    if is_v2.all():
        source.decode(columns)
        return columns
    # Message sets, and at a log's upgrade both kinds: runs of one kind, each into its rows.
    edges, first_record = np.flatnonzero(np.diff(is_v2)) + 1, np.append(0, np.cumsum(source.counts))
    for start, end in itertools.pairwise([0, *edges.tolist(), len(batches)]):
        part = source.part(start, end)
        its_columns = select(columns, slice(first_record[start], first_record[end]))
        if is_v2[start]:
            part.decode(its_columns)
        else:
            part.decode_messages(its_columns)
    return columns


def decode_record_keys(
    window: Bytes, batches: BatchHeaders, scratch: Scratch | None = None, **options: Unpack[DecodeOptions]
) -> KeyColumns:
    """``decode_records`` with all its checks, but only the columns for keys and offsets."""
    if not (batches["magic"] == 2).all():
        return decode_records(window, batches, scratch, **options)
    source = _Source.of(window, batches, None, scratch, **options)
    columns = KeyColumns(data=source.plain.data, **empty_arrays(KEY_COLUMNS, source.records))
    source.decode(columns)
    return columns


def decode_record_times(
    window: Bytes, batches: BatchHeaders, scratch: Scratch | None = None, **options: Unpack[DecodeOptions]
) -> TimeColumns:
    """Decode offsets and timestamps; of v2 records nothing else is read. Raises CorruptRecordError."""
    if not (batches["magic"] == 2).all():
        columns = decode_records(window, batches, scratch, **options)
        return TimeColumns(batch=columns.batch, offset=columns.offset, timestamp=columns.timestamp)
    source = _Source.of(window, batches, None, scratch, **options)
    times = TimeColumns(**empty_arrays(("batch", "offset", "timestamp"), source.records))
    source.decode(times)
    return times


def decode_chosen_records(
    window: Bytes,
    batches: BatchHeaders,
    rows: Int64,
    chosen: ChosenOffsets,
    scratch: Scratch | None = None,
    **options: Unpack[DecodeOptions],
) -> ChosenRecords:
    """Decode the chosen records of the batches ``rows`` (of ``batches``, ascending; all of magic 2, or none).

    Of a v2 record that is not chosen only the fields up to the key's size are read; message sets are decoded
    whole first. The other arguments are ``decode_records``'s. Raises CorruptRecordError, and CheckFailedError
    when no record has a chosen offset.
    """
    if len(rows) and batches["magic"][rows[0]] != 2:
        all_columns = decode_records(window, batches[rows], scratch, **options)
        return _chosen_of(all_columns, rows, chosen, options.get("path", ""))
    source = _Source.of(window, batches, rows, scratch, **options)
    columns = empty_columns(source.plain.data, source.max_chosen(chosen))
    count, met, left_out, keyless = source.decode(columns, chosen)
    columns = select(columns, slice(0, count))
    return ChosenRecords(columns=columns, met=met, left_out=left_out, keyless=keyless)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Decompressed batches, ready for the kernels, and their record ``counts``."""

    plain: _PlainBatches
    counts: Int64
    path: str
    origin: int

    @classmethod
    def of(
        cls,
        window: Bytes,
        batches: BatchHeaders,
        rows: Int64 | None,
        scratch: Scratch | None,
        **options: Unpack[DecodeOptions],
    ) -> _Source:
        path, origin = options.get("path", ""), options.get("origin", 0)
        chosen = batches if rows is None else batches[rows]
        data, starts, ends = decompress_batches(window, chosen, scratch or Scratch(), **options)
        assert len(data) <= MAX_RECORD_BUFFER_BYTES, "spans are int32"
        counts = chosen["count"].astype(np.int64)
        bad, reason = count_messages(data, chosen, starts, ends, counts)
        if reason:
            raise corrupt_batch(chosen, bad, LEGACY_REASON[reason], path, origin)
        limit = options.get("limit", DEFAULT_DECOMPRESSION_LIMIT)
        refuse_impossible_counts(chosen, counts, ends - starts, path, origin, limit)
        rows = np.arange(len(batches)) if rows is None else rows
        plain = _PlainBatches(data, starts, ends, rows, batches)
        return cls(plain=plain, counts=counts, path=path, origin=origin)

    @property
    def records(self) -> int:
        return int(self.counts.sum())

    def part(self, start: int, end: int) -> _Source:
        """The batches from ``start`` up to ``end``."""
        data, starts, ends, rows, batches = self.plain
        plain = _PlainBatches(data, starts[start:end], ends[start:end], rows[start:end], batches)
        return replace(self, plain=plain, counts=self.counts[start:end])

    def decode_messages(self, columns: RecordColumns) -> None:
        """Fill the columns with the records of message sets."""
        data, starts, _, rows, batches = self.plain
        bad, reason = decode_messages(data, starts, self.counts, rows, batches, columns.arrays)
        if reason:
            raise corrupt_batch(batches, rows[bad], LEGACY_REASON[reason], self.path, self.origin)

    def max_chosen(self, chosen: ChosenOffsets) -> int:
        """The most records that can be chosen."""
        by_offset = self.plain.batches["last_offset"][self.plain.rows] < chosen.all_from
        among = int(self.counts[by_offset].sum())
        return min(among, len(chosen.offsets) - chosen.met) + int(self.counts[~by_offset].sum())

    def decode(
        self, columns: KeyColumns | TimeColumns, chosen: ChosenOffsets | None = None
    ) -> tuple[int, int, int, int]:
        """Fill the columns with v2 records; returns how many rows, and of chosen offsets: met, left out, and
        of these keyless."""
        keys = (columns.key_start, columns.key_size) if isinstance(columns, KeyColumns) else None
        others = columns.arrays if isinstance(columns, RecordColumns) else None
        timestamp = columns.timestamp if isinstance(columns, RecordColumns | TimeColumns) else None
        bad, reason, count, met, left_out, keyless = _decode_batches(
            self.plain, columns.batch, columns.offset, timestamp, keys, others, chosen
        )
        if bad >= 0 and reason == _MISSING:
            raise CheckFailedError(_MISSING_TEXT, path=self.path)
        if bad >= 0:
            row = self.plain.rows[bad]
            raise corrupt_batch(self.plain.batches, row, DECODE_REASON[reason], self.path, self.origin)
        return count, met, left_out, keyless


def _chosen_of(columns: RecordColumns, rows: Int64, chosen: ChosenOffsets, path: str) -> ChosenRecords:
    """The chosen records among all of some message sets."""
    relative = columns.offset - chosen.base
    always = columns.offset >= chosen.all_from[columns.batch]
    met = chosen.met
    if len(columns) and not always.all():
        met += int(np.searchsorted(chosen.offsets[met:], relative[~always][-1], side="right"))
    listed = chosen.offsets[chosen.met : met]
    is_chosen = always | np.isin(relative, listed)
    if np.count_nonzero(is_chosen & ~always) != len(listed):
        raise CheckFailedError(_MISSING_TEXT, path=path)
    chosen_columns = select(columns, is_chosen)
    return ChosenRecords(
        columns=replace(chosen_columns, batch=rows[chosen_columns.batch].astype(np.int32)),
        met=met,
        left_out=int(np.count_nonzero(~is_chosen)),
        keyless=int(np.count_nonzero(~is_chosen & (columns.key_size < 0))),
    )
