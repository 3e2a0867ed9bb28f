"""The kernels that decode message sets (magic 0 and 1), the formats before Kafka 0.11. Siltstone writes
neither: a cleaning writes what it retains of them as record batches (magic 2).

``LegacyRecord`` and ``AbstractLegacyRecordBatch`` in Kafka. An entry of such a log is one message, and
a compressed entry (a *wrapper*) is a message whose value is a whole compressed message set::

    offset 8 | size 4 | CRC32 4 | magic 1 | attributes 1 | timestamp 8, only in magic 1
    | key size 4, key | value size 4, value ──► offset 8 | size 4 | … | offset 8 | size 4 | …
                                                the inner messages, once decompressed

A wrapper determines two things of its inner messages:

* its offset is its last message's. The inner offsets are absolute in magic 0 and relative in magic 1
  (absolute = wrapper offset - last relative offset + relative offset; cleaning leaves gaps in them);
* under log-append time (attribute bit 3, magic 1) its timestamp is every message's.

An entry that is not compressed is a set of one message, so one kernel decodes both kinds. Kafka ends a set
silently at a truncated inner message, ignores bytes after a message's last field, and takes inner offsets
that do not fit the wrapper's; this decoder refuses the entry. The CRC32 of an inner message is not verified,
as in Kafka: the wrapper's CRC32 covers its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from siltstone.base.codec_table import CODECS
from siltstone.base.records import layout
from siltstone.base.records.codecs import RecordSpans
from siltstone.base.records.columns import ColumnArrays
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes, Int64
from siltstone.base.records.varint import read_int32, read_int64

LEGACY_REASON = (
    "",
    "a message's fields end before or beyond its end",
    "a size is negative, but not -1 for null",
    "an inner message's size is impossible",
    "an inner message's magic byte is neither 0 nor 1",
    "a compressed message inside a compressed message",
    "a compressed message set without messages",
    "inner offsets do not ascend, or do not end at the wrapper's",
    "a compressed message set that is null",
    "no message set codec has the number {codec}",
)
_FIELDS, _NEGATIVE_SIZE, _INNER_SIZE, _INNER_MAGIC, _NESTED = range(1, 6)
_NO_MESSAGES, _INNER_OFFSETS, _NULL_SET, _CODEC = range(6, 10)
"""The indexes of the reasons in ``LEGACY_REASON``; 0 if all is well. The caller that raises the error formats
the reason with the codec's number."""
_MAX_CODEC = max(codec.id for codec in CODECS if codec.first_magic < 2)


@kernel
def _read_sized_field(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Read a field with its int32 size in front: (its start, its size, reason)."""
    if end - position < 4:
        return position, 0, _FIELDS
    size = read_int32(data, position)
    if size < -1:
        return position, 0, _NEGATIVE_SIZE
    if size > end - position - 4:
        return position, 0, _FIELDS
    return position + 4, size, 0


@kernel
def _read_message_spans(data: Bytes, position: int, end: int) -> tuple[int, int, int, int, int]:
    """The spans of the message ``data[position:end]``: (key start, key size, value start, value size,
    reason)."""
    overhead = layout.MESSAGE_OVERHEAD[data[position + layout.MAGIC_POSITION]]
    key, size_of_key, reason = _read_sized_field(data, position + overhead, end)
    if reason != 0:
        return 0, 0, 0, 0, reason
    value, size_of_value, reason = _read_sized_field(data, key + max(size_of_key, 0), end)
    if reason == 0 and value + max(size_of_value, 0) != end:
        reason = _FIELDS
    return key, size_of_key, value, size_of_value, reason


@kernel
def find_record_spans(data: Bytes, batches: BatchHeaders, spans: RecordSpans) -> tuple[int, int]:
    """Fill ``spans`` with where the records of each batch are in ``data``, still compressed, and their codec.
    Returns (-1, 0), or (index in ``batches`` of the first wrapper that cannot be read, reason).

    The records of a record batch are the bytes after its header, those of a wrapper its value (an empty span
    if that cannot be read). A message that is not compressed is itself a set of one message.
    """
    bad_row, bad_reason = -1, 0
    for i in range(len(batches)):
        row = batches[i]
        start, end, codec = row.position, row.position + row.size, row.attributes & layout.CODEC_MASK
        if row.magic == 2:
            start += layout.BATCH_OVERHEAD
            codec = codec if row.count > 0 else 0  # a cleaning left no record: there is nothing to decompress
        elif codec > 0:
            _, _, start, size, reason = _read_message_spans(data, start, end)
            if reason == 0 and size < 0:
                reason = _NULL_SET
            elif reason == 0 and codec > _MAX_CODEC:
                reason = _CODEC
            # The loop continues: ``decompressed_size_bounds`` needs a span for damaged batches too.
            if reason != 0:
                start = end
                if bad_row < 0:
                    bad_row, bad_reason = i, reason
        # A message's value is its last field, so a wrapper's set ends where the wrapper does.
        spans.start[i], spans.end[i], spans.codec[i] = start, end, codec
    return bad_row, bad_reason


@kernel
def count_messages(
    data: Bytes, batches: BatchHeaders, starts: Int64, ends: Int64, counts: Int64
) -> tuple[int, int]:
    """Count the messages of the decompressed sets ``data[starts[i]:ends[i]]``. ``counts``: the number of
    records of each batch. It is negative for an entry of a message set, and this kernel fills it in.

    Returns (-1, 0), or (index in ``batches`` of the first wrapper whose set cannot be parsed, reason).
    """
    for i in range(len(batches)):
        if counts[i] >= 0:  # a record batch has its count in the header
            continue
        if batches[i].attributes & layout.CODEC_MASK == 0:
            counts[i] = 1
            continue
        position, end = starts[i], ends[i]
        counts[i] = 0
        while position < end:
            if end - position < layout.MIN_ENTRY_SIZE:
                return i, _INNER_SIZE
            size = read_int32(data, position + layout.SIZE_POSITION)
            magic = int(data[position + layout.MAGIC_POSITION])
            if magic > 1:
                return i, _INNER_MAGIC
            if size < layout.MIN_SIZE_FIELD[magic] or size > end - position - layout.LOG_OVERHEAD:
                return i, _INNER_SIZE
            if data[position + layout.MESSAGE_ATTRIBUTES_POSITION] & layout.CODEC_MASK:
                return i, _NESTED
            counts[i] += 1
            position += layout.LOG_OVERHEAD + size
        if counts[i] == 0:
            return i, _NO_MESSAGES
    return -1, 0


@kernel
def _assign_offsets(wrapper: Any, offset: Int64, first_record: int, count: int) -> bool:
    """Check the inner offsets of ``wrapper``, ``offset[first_record:first_record + count]``, and replace
    relative ones (magic 1) by absolute ones. False if they do not ascend, or do not end at the wrapper's.

    ``wrapper.base_offset`` is the wrapper's offset field, its last message's. No checksum covers it. If it
    differs from the last inner offset of magic 0, it was changed after the broker wrote it.
    """
    previous = -1
    for record in range(first_record, first_record + count):
        if offset[record] <= previous:
            return False
        previous = offset[record]
    if wrapper.magic == 0:
        return bool(previous == wrapper.base_offset)
    if previous > wrapper.base_offset:
        return False
    for record in range(first_record, first_record + count):
        offset[record] += wrapper.base_offset - previous
    return True


@kernel
def decode_messages(
    data: Bytes, starts: Int64, counts: Int64, rows: Int64, batches: BatchHeaders, columns: ColumnArrays
) -> tuple[int, int]:
    """Decode the message sets of the entries ``rows`` (indexes in ``batches``) into ``columns``. ``starts``
    and ``counts`` are by index in ``rows``: where the set ``i`` begins, and how many messages
    ``count_messages`` found in it.

    Returns (-1, 0), or (index in ``rows`` of the first entry that cannot be decoded, reason). The span
    (``start``, ``size``) of a message includes its offset and size fields. Messages have no headers, and
    those of magic 0 have the timestamp -1.
    """
    batch, offset, key_start, key_size, timestamp = columns[:5]
    start, size, value_start, value_size, headers_start, header_count = columns[5:]
    record = 0
    for i in range(len(rows)):
        entry = batches[rows[i]]
        is_wrapper = entry.attributes & layout.CODEC_MASK != 0
        is_log_append_time = entry.magic == 1 and (entry.attributes & layout.TIMESTAMP_TYPE_BIT) != 0
        position, first_record = starts[i], record
        for _ in range(counts[i]):
            end = position + entry.size
            message_offset, message_timestamp = entry.base_offset, entry.base_timestamp
            if is_wrapper:
                end = position + layout.LOG_OVERHEAD + read_int32(data, position + layout.SIZE_POSITION)
                message_offset = read_int64(data, position)
                # An inner message may have another magic than its wrapper.
                if data[position + layout.MAGIC_POSITION] == 0:
                    message_timestamp = -1
                elif not is_log_append_time:
                    message_timestamp = read_int64(data, position + layout.MESSAGE_TIMESTAMP_POSITION)
            # ``count_messages`` has checked that the message's bytes are there, ``_read_message_spans``
            # checks its fields.
            key, size_of_key, value, size_of_value, reason = _read_message_spans(data, position, end)
            if reason != 0:
                return i, reason
            row = np.uint64(record)  # numba checks a signed index for being negative
            batch[row], offset[row], timestamp[row] = rows[i], message_offset, message_timestamp
            start[row], size[row] = position, end - position
            key_start[row], key_size[row] = key, size_of_key
            value_start[row], value_size[row] = value, size_of_value
            headers_start[row] = header_count[row] = 0
            position = end
            record += 1
        if is_wrapper and not _assign_offsets(entry, offset, first_record, counts[i]):
            return i, _INNER_OFFSETS
    return -1, 0
