"""Message sets to record columns: magic 0 and 1, which are read and never written.

``LegacyRecord`` and ``AbstractLegacyRecordBatch`` in Kafka. An entry of such a log is one message, and
a compressed entry (a *wrapper*) is a message whose value is a whole compressed message set::

    offset 8 | size 4 | CRC32 4 | magic 1 | attributes 1 | [timestamp 8, magic 1]
    | key size 4, key | value size 4, value ──► offset 8 | size 4 | … | offset 8 | size 4 | …
                                                the inner messages, once decompressed

What a wrapper says of its inner messages:

* its offset is its last message's. The inner offsets are the log's own in magic 0, relative in magic 1
  (absolute = wrapper offset - last relative offset + relative offset; cleaning leaves gaps in them);
* under log-append time (attribute bit 3, magic 1) its timestamp is every message's.

Plain entries and wrappers take one kernel each, so a segment of a million one-record entries makes no
Python object an entry; only the decompression calls are one a wrapper. Where Kafka stops in silence at
a cut inner message, and reads on behind a message's last field, this decoder refuses the entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.codec_table import is_allowed
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import (
    DEFAULT_LIMIT,
    SPANS_END,
    DecompressedTooLargeError,
    DecompressionError,
    Scratch,
    decompress,
)
from siltstone.base.records.columns import ColumnArrays, RecordColumns, empty_columns
from siltstone.base.records.inflate import oversized, refuse_impossible_counts
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    CODEC_MASK,
    ENTRY_MIN,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MESSAGE_ATTRIBUTES_POSITION,
    MESSAGE_OVERHEAD_V0,
    MESSAGE_OVERHEAD_V1,
    MESSAGE_SIZE_MIN_V0,
    MESSAGE_SIZE_MIN_V1,
    MESSAGE_TIMESTAMP_POSITION,
    SIZE_POSITION,
    TIMESTAMP_TYPE_BIT,
    Bytes,
    Directory,
    Int32,
    Int64,
    codec_of,
)
from siltstone.base.records.varint import read_int32, read_int64

LEGACY_REASON = (
    "",
    "a message's fields go on beyond its end, or end before it",
    "a negative size that is not null's",
    "an inner message's size is not possible",
    "an inner message's magic byte is neither 0 nor 1",
    "a compressed message inside a compressed message",
    "a compressed message set without messages",
    "inner offsets do not ascend, or do not end at the wrapper's",
)
_FIELDS, _NEGATIVE, _INNER_SIZE, _INNER_MAGIC, _NESTED, _NO_MESSAGES, _INNER_OFFSETS = range(1, 8)
"""Reasons, by their places in ``LEGACY_REASON``."""
NULL_SET = "a compressed message set that is null"
Mask = npt.NDArray[np.bool_]


class _Spans(NamedTuple):
    """Key and value of each entry itself: positions in the window, int64, and sizes, int32."""

    key_start: Int64
    key_size: Int32
    value_start: Int64
    value_size: Int32


@kernel
def _sized(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """A field with its int32 size in front: (its start, its size, reason)."""
    if end - position < 4:
        return position, 0, _FIELDS
    size = read_int32(data, position)
    if size < -1:
        return position, 0, _NEGATIVE
    if size > end - position - 4:
        return position, 0, _FIELDS
    return position + 4, size, 0


@kernel
def _message(data: Bytes, position: int, end: int) -> tuple[int, int, int, int, int]:
    """The spans of the message entry ``data[position:end]``: key start, size, value start, size, reason."""
    fields_start = position + (
        MESSAGE_OVERHEAD_V0 if data[position + MAGIC_POSITION] == 0 else MESSAGE_OVERHEAD_V1
    )
    key, key_bytes, reason = _sized(data, fields_start, end)
    if reason != 0:
        return 0, 0, 0, 0, reason
    value, value_bytes, reason = _sized(data, key + max(key_bytes, 0), end)
    if reason == 0 and value + max(value_bytes, 0) != end:
        reason = _FIELDS
    return key, key_bytes, value, value_bytes, reason


@kernel
def _decode_entries(window: Bytes, batches: Directory, spans: _Spans) -> tuple[int, int]:
    """Spans of every entry itself; (-1, 0) or the bad entry's row and the reason."""
    for i in range(len(batches)):
        position = batches[i].position
        key, key_bytes, value, value_bytes, reason = _message(window, position, position + batches[i].size)
        if reason != 0:
            return i, reason
        spans.key_start[i], spans.key_size[i] = key, key_bytes
        spans.value_start[i], spans.value_size[i] = value, value_bytes
    return -1, 0


@kernel
def _count_inner(data: Bytes, starts: Int64, ends: Int64, counts: Int64) -> tuple[int, int]:
    """How many messages each set ``data[starts[i]:ends[i]]`` holds, and that each may be parsed."""
    for i in range(len(starts)):
        position = starts[i]
        end = ends[i]
        counts[i] = 0
        while position < end:
            if end - position < ENTRY_MIN:
                return i, _INNER_SIZE
            size = read_int32(data, position + SIZE_POSITION)
            magic = int(data[position + MAGIC_POSITION])
            if magic > 1:
                return i, _INNER_MAGIC
            least = MESSAGE_SIZE_MIN_V0 if magic == 0 else MESSAGE_SIZE_MIN_V1
            if size < least or size > end - position - LOG_OVERHEAD:
                return i, _INNER_SIZE
            if data[position + MESSAGE_ATTRIBUTES_POSITION] & CODEC_MASK:
                return i, _NESTED
            counts[i] += 1
            position += LOG_OVERHEAD + size
        if counts[i] == 0:
            return i, _NO_MESSAGES
    return -1, 0


@kernel
def _settle_offsets(wrapper: Any, offset: Int64, first: int, count: int) -> bool:
    """Turn one set's relative offsets (magic 1) into the log's; False when they are not possible.

    A wrapper of magic 0 carries the offset of its last message, and no checksum covers either: two
    numbers that differ mean that one of them was changed after the broker wrote it.
    """
    previous = -1
    for record in range(first, first + count):
        if offset[record] <= previous:
            return False
        previous = offset[record]
    if wrapper.magic == 0:
        return bool(previous == wrapper.base_offset)
    if previous > wrapper.base_offset:
        return False
    for record in range(first, first + count):
        offset[record] += wrapper.base_offset - previous
    return True


@kernel
def _decode_inner(
    data: Bytes,
    starts: Int64,
    rows: Int64,
    batches: Directory,
    counts: Int64,
    first: Int64,
    columns: ColumnArrays,
) -> tuple[int, int]:
    """Decode the counted sets of the wrappers ``rows``; (-1, 0) or the bad one's index and the reason."""
    batch, offset, key_start, key_size, timestamp, start, size, value_start, value_size, _, _ = columns
    for i in range(len(rows)):
        wrapper = batches[rows[i]]
        log_append = wrapper.magic == 1 and (wrapper.attributes & TIMESTAMP_TYPE_BIT) != 0
        position = starts[i]
        for record in range(first[i], first[i] + counts[i]):
            end = position + LOG_OVERHEAD + read_int32(data, position + SIZE_POSITION)
            key, key_bytes, value, value_bytes, reason = _message(data, position, end)
            if reason != 0:
                return i, reason
            batch[record] = rows[i]
            offset[record] = read_int64(data, position)
            if data[position + MAGIC_POSITION] == 0:
                timestamp[record] = -1
            elif log_append:
                timestamp[record] = wrapper.base_timestamp
            else:
                timestamp[record] = read_int64(data, position + MESSAGE_TIMESTAMP_POSITION)
            start[record] = position
            size[record] = end - position
            key_start[record] = key
            key_size[record] = key_bytes
            value_start[record] = value
            value_size[record] = value_bytes
            position = end
        if not _settle_offsets(wrapper, offset, first[i], counts[i]):
            return i, _INNER_OFFSETS
    return -1, 0


def decode_legacy(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> RecordColumns:
    """Decode every message of ``batches`` (rows of a scan over ``window``, magic 0 and 1) into columns.

    Arguments and result are ``decode_records``'s. ``start`` and ``size`` span a message's own entry with
    its offset and size fields, in the window or in the decompressed set; there are no headers; a message
    of magic 0 has the timestamp -1. ``limit`` bounds each set's decompressed bytes. The CRC32 of a message
    inside a wrapper is not looked at, as by Kafka: the wrapper's own covers it. Raises CorruptRecordError
    with the position of an entry that makes no sense.
    """
    entries = _entry_spans(window, batches, path, origin)
    wrapped = codec_of(batches) != 0
    if not wrapped.any():
        return _plain_columns(window, batches, entries)
    scratch = scratch or Scratch()
    shift = _copy_plain(window, batches, wrapped, scratch)
    rows = np.flatnonzero(wrapped)
    starts, ends = _inflate_sets(window, batches, rows, entries, scratch, limit, path, origin)
    counts = np.empty(len(rows), np.int64)
    data = scratch.array()
    _refuse(_count_inner(data, starts, ends, counts), batches, rows, path, origin)
    refuse_impossible_counts(batches[rows], counts, ends - starts, path, origin, limit)
    columns = _place(data, batches, entries, wrapped, counts, shift)
    first = np.searchsorted(columns.batch, rows)
    outcome = _decode_inner(data, starts, rows, batches, counts, first, columns.arrays)
    _refuse(outcome, batches, rows, path, origin)
    return columns


def _refuse(outcome: tuple[int, int], batches: Directory, rows: Int64 | None, path: str, origin: int) -> None:
    bad, reason = outcome
    if bad >= 0:
        row = bad if rows is None else int(rows[bad])
        raise CorruptRecordError(path, origin + int(batches["position"][row]), LEGACY_REASON[reason])


def _entry_spans(window: Bytes, batches: Directory, path: str, origin: int) -> _Spans:
    """Key and value of each entry itself."""
    starts, sizes = np.empty((2, len(batches)), np.int64), np.empty((2, len(batches)), np.int32)
    spans = _Spans(starts[0], sizes[0], starts[1], sizes[1])
    _refuse(_decode_entries(window, batches, spans), batches, None, path, origin)
    return spans


def _plain_columns(window: Bytes, batches: Directory, entries: _Spans) -> RecordColumns:
    """Columns over the window itself: one row an entry."""
    assert len(window) <= SPANS_END, "spans are int32"
    columns = empty_columns(window, len(batches))
    columns.batch[:] = np.arange(len(batches))
    _fill_plain(columns, slice(None), batches, entries, 0)
    return columns


def _fill_plain(
    columns: RecordColumns, rows: slice | Int64, batches: Directory, entries: _Spans, shift: int
) -> None:
    """Put plain entries into ``rows``; ``shift`` is what their positions in the window lack in ``data``."""
    columns.offset[rows] = batches["base_offset"]
    columns.timestamp[rows] = batches["base_timestamp"]
    columns.start[rows] = batches["position"] + shift
    columns.size[rows] = batches["size"]
    columns.key_start[rows] = entries.key_start + shift
    columns.key_size[rows] = entries.key_size
    columns.value_start[rows] = entries.value_start + shift
    columns.value_size[rows] = entries.value_size
    columns.headers_start[:] = 0
    columns.header_count[:] = 0


def _copy_plain(window: Bytes, batches: Directory, wrapped: Mask, scratch: Scratch) -> int:
    """Start ``scratch`` with the stretch of the window that holds plain entries; returns their shift."""
    scratch.clear()
    plain = np.flatnonzero(~wrapped)
    if not len(plain):
        return 0
    first, last = batches[plain[0]], batches[plain[-1]]
    start = int(first["position"])
    scratch.append(window[start : int(last["position"]) + int(last["size"])].data)
    return -start


def _inflate_sets(
    window: Bytes,
    batches: Directory,
    rows: Int64,
    entries: _Spans,
    scratch: Scratch,
    limit: int,
    path: str,
    origin: int,
) -> tuple[Int64, Int64]:
    """Decompress the wrappers ``rows`` behind what ``scratch`` holds: (starts, ends), int64."""
    bounds = np.empty(len(rows) + 1, np.int64)
    bounds[0] = scratch.used
    wrappers = batches[rows]
    columns = (
        wrappers["position"],
        codec_of(wrappers),
        wrappers["magic"],
        entries.value_start[rows],
        entries.value_size[rows],
    )
    for i, (position, codec, magic, start, size) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        try:
            if size < 0:
                raise DecompressionError(NULL_SET)
            if not is_allowed(codec, magic):
                raise DecompressionError(f"no message set codec has the number {codec}")
            decompress(codec, window[start : start + size], scratch, limit, magic)
        except DecompressedTooLargeError as error:
            raise CorruptRecordError(path, origin + position, oversized(error)) from None
        except DecompressionError as error:
            raise CorruptRecordError(path, origin + position, str(error)) from None
        if scratch.used > SPANS_END:
            raise CorruptRecordError(path, origin + position, "more than 2 GiB of records at a time")
        bounds[i + 1] = scratch.used
    return bounds[:-1], bounds[1:]


def _place(
    data: Bytes, batches: Directory, entries: _Spans, wrapped: Mask, counts: Int64, shift: int
) -> RecordColumns:
    """Columns for all messages, in log order, plain entries filled in and ``batch`` set everywhere."""
    each = np.ones(len(batches), np.int64)
    each[wrapped] = counts
    columns = empty_columns(data, int(each.sum()))
    columns.batch[:] = np.repeat(np.arange(len(batches)), each)
    plain = ~wrapped
    rows = (np.cumsum(each) - each)[plain]
    mine = _Spans(
        key_start=entries.key_start[plain],
        key_size=entries.key_size[plain],
        value_start=entries.value_start[plain],
        value_size=entries.value_size[plain],
    )
    _fill_plain(columns, rows, batches[plain], mine, shift)
    return columns
