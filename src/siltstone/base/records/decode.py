"""Decodes batches of any magic into record columns: the entry point of every reader of records.

A *window* is a range of a log's bytes in memory. A log that was upgraded holds message sets (magic 0 and 1)
first and record batches (magic 2) after them. The kernel of this module decodes record batches (Kafka's
``DefaultRecord``, ``DefaultRecordBatch``): all columns, or only keys or timestamps; all records, or only
those at chosen offsets. ``legacy`` has the kernel for message sets. A window may hold both: consecutive
entries of one format are decoded together, all into the same columns.
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
    read_record_fields,
    read_record_head,
    select,
)
from siltstone.base.records.decompression import corrupt_batch, decompress_batches, refuse_impossible_counts
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import TIMESTAMP_TYPE_BIT, BatchHeaders, Bytes, Int32, Int64
from siltstone.base.records.legacy import LEGACY_REASON, count_messages, decode_messages
from siltstone.base.records.varint import next_varint

_OFFSET_NOT_FOUND = len(DECODE_REASON)
"""The kernel's reason, besides those of ``DECODE_REASON``, when no record has a chosen offset."""
_OFFSET_NOT_FOUND_TEXT = "a chosen offset is not among the records"
_NO_OFFSET = (1 << 63) - 1
"""Stands for the next chosen offset after the last one: larger than every offset."""


class ChosenOffsets(NamedTuple):
    """Which records to decode.

    ``offsets`` (uint32, ascending) are relative to ``base``. The first ``matched`` of them belong to records
    of earlier windows. ``all_from`` (int64, one for each batch that is decoded): the batch's records at and
    above this offset are all chosen.
    """

    offsets: npt.NDArray[np.uint32]
    base: int
    matched: int
    all_from: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecords:
    """The chosen records; how many of the chosen offsets have been ``matched`` so far, in all windows; how
    many records of these batches were ``left_out``, and how many of those are ``keyless``."""

    columns: RecordColumns
    matched: int
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
    """The decompressed records of the batches ``rows`` of ``batches``: from byte ``starts[i]`` to byte
    ``ends[i]`` of the memory at ``address``.

    An address, and no array: numba would compile the kernel once more for memory that cannot be written.
    """

    address: int
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
    other_columns: ColumnArrays | None,
    chosen: ChosenOffsets | None,
) -> tuple[int, int, int, int, int, int]:
    """Decode v2 batches into the columns that are not None, all records or the ``chosen`` ones.

    Returns (-1 or the index in ``rows`` of the batch that cannot be decoded, reason, number of records
    decoded, chosen offsets matched, records left out, keyless records among those left out). numba compiles
    one variant of the kernel for each combination of None. Without ``keys`` (key_start, key_size) it reads a
    record only up to its offset delta, and goes to the next one by the record's size.
    """
    address, starts, ends, rows, batches = plain
    count, left_out, keyless, matched = 0, 0, 0, 0
    if keys is not None:
        key_start, key_size = keys
    if other_columns is not None:
        _, _, _, _, _, start, size, value_start, value_size, headers_start, header_count = other_columns
    if chosen is not None:
        relative, base, matched, all_from = chosen
        next_chosen = base + relative[np.uint64(matched)] if matched < len(relative) else _NO_OFFSET
    for i in range(len(rows)):
        header = batches[rows[i]]
        is_log_append_time = header.attributes & TIMESTAMP_TYPE_BIT
        first_offset, last_offset = header.base_offset, header.last_offset
        at, batch_end, previous = address + starts[i], address + ends[i], first_offset - 1
        for _ in range(header.count):
            record_start = at
            at, end, timestamp_delta, offset_delta, reason = read_record_head(at, batch_end)
            if reason > 0:
                return i, reason, 0, 0, 0, 0
            record_offset = first_offset + offset_delta
            if record_offset <= previous or record_offset > last_offset:
                return i, RECORD_OFFSETS, 0, 0, 0, 0
            previous = record_offset
            # Chosen offsets and records both ascend, so one pass merges them. A record below the next chosen
            # offset is left out. A record above it means that no record has that offset.
            if chosen is not None and record_offset < all_from[np.uint64(i)]:
                if record_offset > next_chosen:
                    return i, _OFFSET_NOT_FOUND, 0, 0, 0, 0
                if record_offset < next_chosen:
                    size_of_key, at = next_varint(at, end)
                    left_out += 1
                    keyless += size_of_key < 0
                    at = end
                    continue
                matched += 1
                next_chosen = base + relative[np.uint64(matched)] if matched < len(relative) else _NO_OFFSET
            row = np.uint64(count)  # an unsigned index: numba adds no code for negative ones
            if keys is not None:
                fields = read_record_fields(at, end)
                key_at, size_of_key, value_at, size_of_value, headers_at, headers, reason = fields
                if reason > 0:
                    return i, reason, 0, 0, 0, 0
                key_start[row], key_size[row] = key_at - address, size_of_key
                if other_columns is not None:
                    start[row], size[row] = record_start - address, end - record_start
                    value_start[row], value_size[row] = value_at - address, size_of_value
                    headers_start[row], header_count[row] = headers_at - address, headers
            at = end
            batch[row], offset[row] = rows[i], record_offset
            if timestamp is not None:
                created = header.base_timestamp + timestamp_delta
                timestamp[row] = header.max_timestamp if is_log_append_time else created
            count += 1
        if at != batch_end:
            return i, TRAILING_BYTES, 0, 0, 0, 0
    return -1, 0, count, matched, left_out, keyless


def decode_records(
    window: Bytes, batches: BatchHeaders, scratch: Scratch | None = None, **options: Unpack[DecodeOptions]
) -> RecordColumns:
    """Decode every record of ``batches`` (rows of a scan over ``window``, any magic) in log order.

    ``scratch`` takes the decompressed bytes, which the columns point into: use it again only when they are no
    longer needed. To bound the memory, pass one slice of ``decompression.slices_within`` at a time. Control
    batches are decoded like others. Raises CorruptRecordError with the position of a batch that cannot be
    decoded.
    """
    source = _Source.of(window, batches, None, scratch, **options)
    columns = empty_columns(source.data, source.records)
    is_v2 = batches["magic"] == 2
    if is_v2.all():
        source.decode(columns)
        return columns
    # There are message sets, and perhaps both formats. Consecutive entries of one format are decoded at once,
    # into their rows of the columns.
    edges, first_record = np.flatnonzero(np.diff(is_v2)) + 1, np.append(0, np.cumsum(source.counts))
    for start, end in itertools.pairwise([0, *edges.tolist(), len(batches)]):
        part = source.part(start, end)
        part_columns = select(columns, slice(first_record[start], first_record[end]))
        if is_v2[start]:
            part.decode(part_columns)
        else:
            part.decode_messages(part_columns)
    return columns


def decode_record_keys(
    window: Bytes, batches: BatchHeaders, scratch: Scratch | None = None, **options: Unpack[DecodeOptions]
) -> KeyColumns:
    """``decode_records`` with all its checks, but only the columns for keys and offsets."""
    if not (batches["magic"] == 2).all():
        return decode_records(window, batches, scratch, **options)
    source = _Source.of(window, batches, None, scratch, **options)
    columns = KeyColumns(data=source.data, **empty_arrays(KEY_COLUMNS, source.records))
    source.decode(columns)
    return columns


def decode_record_times(
    window: Bytes, batches: BatchHeaders, scratch: Scratch | None = None, **options: Unpack[DecodeOptions]
) -> TimeColumns:
    """Decode only offsets and timestamps. Of a v2 record nothing else is checked. Raises
    CorruptRecordError."""
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
    """Decode the chosen records of the batches ``rows`` of ``batches`` (ascending, either all or none of
    magic 2).

    A v2 record that is not chosen is read only up to its key's size. Message sets are decoded whole, then the
    chosen records are selected. The other arguments are those of ``decode_records``. Raises
    CorruptRecordError, and CheckFailedError if no record has one of the chosen offsets.
    """
    if len(rows) and batches["magic"][rows[0]] != 2:
        all_columns = decode_records(window, batches[rows], scratch, **options)
        return _choose_records(all_columns, rows, chosen, options.get("path", ""))
    source = _Source.of(window, batches, rows, scratch, **options)
    columns = empty_columns(source.data, source.max_chosen_records(chosen))
    count, matched, left_out, keyless = source.decode(columns, chosen)
    columns = select(columns, slice(0, count))
    return ChosenRecords(columns=columns, matched=matched, left_out=left_out, keyless=keyless)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Decompressed batches, ready for the kernels: ``plain`` says where in ``data`` they are, ``counts`` how
    many records each has. ``path`` and ``origin`` are for errors."""

    data: Bytes
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
        """Decompress the batches ``rows`` (None: all), and count their records. Raises CorruptRecordError."""
        path, origin = options.get("path", ""), options.get("origin", 0)
        selected = batches if rows is None else batches[rows]
        data, starts, ends = decompress_batches(window, selected, scratch or Scratch(), **options)
        assert len(data) <= MAX_RECORD_BUFFER_BYTES, "spans are int32"
        counts = selected["count"].astype(np.int64)
        bad, reason = count_messages(data, selected, starts, ends, counts)
        if reason:
            raise corrupt_batch(selected, bad, LEGACY_REASON[reason], path, origin)
        limit = options.get("limit", DEFAULT_DECOMPRESSION_LIMIT)
        refuse_impossible_counts(selected, counts, ends - starts, path, origin, limit)
        rows = np.arange(len(batches)) if rows is None else rows
        plain = _PlainBatches(data.ctypes.data, starts, ends, rows, batches)
        return cls(data=data, plain=plain, counts=counts, path=path, origin=origin)

    @property
    def records(self) -> int:
        return int(self.counts.sum())

    def part(self, start: int, end: int) -> _Source:
        """The batches ``start`` to ``end`` (exclusive), over the same data."""
        address, starts, ends, rows, batches = self.plain
        plain = _PlainBatches(address, starts[start:end], ends[start:end], rows[start:end], batches)
        return replace(self, plain=plain, counts=self.counts[start:end])

    def decode_messages(self, columns: RecordColumns) -> None:
        """Fill the columns with the records of message sets."""
        _, starts, _, rows, batches = self.plain
        bad, reason = decode_messages(self.data, starts, self.counts, rows, batches, columns.arrays)
        if reason:
            raise corrupt_batch(batches, rows[bad], LEGACY_REASON[reason], self.path, self.origin)

    def max_chosen_records(self, chosen: ChosenOffsets) -> int:
        """An upper bound for the number of chosen records: the columns are allocated before decoding."""
        by_offset = self.plain.batches["last_offset"][self.plain.rows] < chosen.all_from
        records = int(self.counts[by_offset].sum())
        return min(records, len(chosen.offsets) - chosen.matched) + int(self.counts[~by_offset].sum())

    def decode(
        self, columns: KeyColumns | TimeColumns, chosen: ChosenOffsets | None = None
    ) -> tuple[int, int, int, int]:
        """Fill the columns with v2 records: (records decoded, chosen offsets matched, records left out,
        keyless records among those left out)."""
        keys = (columns.key_start, columns.key_size) if isinstance(columns, KeyColumns) else None
        other_columns = columns.arrays if isinstance(columns, RecordColumns) else None
        timestamp = columns.timestamp if isinstance(columns, RecordColumns | TimeColumns) else None
        bad, reason, count, matched, left_out, keyless = _decode_batches(
            self.plain, columns.batch, columns.offset, timestamp, keys, other_columns, chosen
        )
        if bad >= 0 and reason == _OFFSET_NOT_FOUND:
            raise CheckFailedError(_OFFSET_NOT_FOUND_TEXT, path=self.path)
        if bad >= 0:
            row = self.plain.rows[bad]
            raise corrupt_batch(self.plain.batches, row, DECODE_REASON[reason], self.path, self.origin)
        return count, matched, left_out, keyless


def _choose_records(columns: RecordColumns, rows: Int64, chosen: ChosenOffsets, path: str) -> ChosenRecords:
    """Select the chosen records among ``columns``, all records of the message sets ``rows``."""
    relative = columns.offset - chosen.base
    is_in_all_from = columns.offset >= chosen.all_from[columns.batch]
    matched = chosen.matched
    # The chosen offsets up to the last record that is chosen only by its offset belong to these message sets.
    if len(columns) and not is_in_all_from.all():
        last = relative[~is_in_all_from][-1]
        matched += int(np.searchsorted(chosen.offsets[matched:], last, side="right"))
    listed = chosen.offsets[chosen.matched : matched]
    is_chosen = is_in_all_from | np.isin(relative, listed)
    if np.count_nonzero(is_chosen & ~is_in_all_from) != len(listed):
        raise CheckFailedError(_OFFSET_NOT_FOUND_TEXT, path=path)
    chosen_columns = select(columns, is_chosen)
    return ChosenRecords(
        columns=replace(chosen_columns, batch=rows[chosen_columns.batch].astype(np.int32)),
        matched=matched,
        left_out=int(np.count_nonzero(~is_chosen)),
        keyless=int(np.count_nonzero(~is_chosen & (columns.key_size < 0))),
    )
