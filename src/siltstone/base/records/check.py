"""Validation of batches before an append, and assignment of their offsets (Kafka's ``LogValidator``).

The first pass checks the bytes: each batch's header, its checksum, and the fields of every record. The second
pass writes what the log assigns: offsets, leader epoch, and the time under log-append time. The first pass
changes nothing, so a refused batch still has the bytes that the producer sent.

Only the log may set two attribute bits: log-append time and the delete horizon. A batch that comes with one
of them, such as one copied from another log, is accepted, and the bit is cleared. (A topic that assigns
log-append time itself refuses the first bit: ``log.validation``.) Its records then have their own timestamps,
and its tombstones get their delete horizon from a cleaning. Kafka clears the first bit and keeps the second,
so a producer could have tombstones removed at once.

The first pass fills ``findings`` (int64), one row a batch, with these columns::

    FAULT                why the batch is refused: a ``Fault``, 0 for none
    FAULTY_RECORD        the index of the record with that fault, -1 for none
    MAX_TIMESTAMP        the largest timestamp of the records (ms)
    FIRST_KEYLESS        the index of the first record without a key, -1 for none
    FIRST_BAD_TIMESTAMP  the index of the first record whose timestamp is out of bounds, -1 for none
    CHECKSUM_PENDING     1 if the caller has to verify the checksum: for large batches a library is faster
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from siltstone.base.codec_table import CODECS
from siltstone.base.records import columns, layout
from siltstone.base.records.build import write_int
from siltstone.base.records.checksum import crc32c_of
from siltstone.base.records.columns import read_record_fields, read_record_head
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes, Int64
from siltstone.base.records.scan import ScanEnd, scan_into
from siltstone.base.records.varint import load_word

FAULT, FAULTY_RECORD, MAX_TIMESTAMP, FIRST_KEYLESS, FIRST_BAD_TIMESTAMP, CHECKSUM_PENDING = range(6)
FINDING_COLUMNS = 6
SMALL_BATCH_SIZE = 2048
"""Kernels verify the checksums of batches up to this size in bytes; a library is faster for larger ones."""
_ABOVE_ALL_TIMESTAMPS = 1 << 62
"""The initial value of a running minimum of timestamps: larger than any timestamp in ms."""
_MAX_CODEC = len(CODECS) - 1
RecordRules = tuple[bool, bool, int, int]
"""The log's rules for records: (is_from_client, needs_keys, min_allowed, max_allowed).

``is_from_client``: a producer sent them, not a coordinator. ``needs_keys``: the topic has
``cleanup.policy=compact``. ``min_allowed`` and ``max_allowed`` bound the timestamps (ms)."""
AssignedFields = tuple[int, int, bool, int]
"""The values that the log assigns: (next offset, leader epoch, is_log_append_time, the time now in ms)."""
ANY_REFUSED, ANY_CHECKSUM_PENDING, ANY_COMPRESSED, ANY_LOG_APPEND_TIME = 1, 2, 4, 8
"""The flags that ``check_batches`` returns: what holds for at least one of the batches."""
_LOG_ONLY_ATTRIBUTES = layout.TIMESTAMP_TYPE_BIT | layout.DELETE_HORIZON_BIT
"""The attribute bits that only the log may set: log-append time and the delete horizon."""
_KEPT_ATTRIBUTES = layout.CODEC_MASK | layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT
"""The attribute bits that stay when the log writes the attributes again, as in Kafka."""


class Fault(enum.IntEnum):
    """Why a batch is refused; ``log.validation`` has a text for each. The numbers 1 to 6 are faults of a
    record, by their index in ``columns.DECODE_REASON``."""

    NONE = 0
    RECORD_SIZE = columns.RECORD_SIZE
    RECORD_END = columns.RECORD_END
    VARINT = columns.VARINT
    NEGATIVE_SIZE = columns.NEGATIVE_SIZE
    RECORD_OFFSETS = columns.RECORD_OFFSETS
    TRAILING_BYTES = columns.TRAILING_BYTES
    CHECKSUM = 7
    BASE_OFFSET = 8
    MAGIC = 9
    COUNT = 10
    CONTROL = 11
    SEQUENCE = 12
    EPOCH = 13
    NO_PRODUCER = 14
    CODEC = 15
    OFFSETS = 16


@kernel
def _header_fault(row: Any, is_from_client: bool) -> int:
    """The ``Fault`` of a v2 batch's header, or 0. The checks are in Kafka's order.

    A transactional batch and a marker need a producer id and an epoch. Without an id no marker could end the
    transaction; without an epoch its producer could not be fenced.
    """
    if row.attributes & layout.CODEC_MASK > _MAX_CODEC:
        return Fault.CODEC
    if row.count <= 0 or row.last_offset - row.base_offset + 1 != row.count:
        return Fault.COUNT
    if is_from_client and row.attributes & layout.CONTROL_BIT:
        return Fault.CONTROL
    if is_from_client and row.producer_id >= 0 and row.base_sequence < 0:
        return Fault.SEQUENCE
    if row.attributes & layout.TRANSACTIONAL_BIT and row.producer_id < 0:
        return Fault.NO_PRODUCER
    needs_epoch = row.attributes & (layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT)
    return Fault.EPOCH if needs_epoch and row.producer_id >= 0 and row.producer_epoch < 0 else 0


# Masks of ``_check_ordinary_records`` for a word that begins with a varint. Each byte has seven bits of the
# number, and ``more`` if another byte follows: ``low7`` and ``high7`` cut the number out of two bytes;
# ``second_more`` means a third byte, so that the record is not ordinary. All are unsigned: numba turns a
# mixture into floats.
@kernel
def _check_ordinary_records(
    data: Bytes, start: int, end: int, count: int, base_timestamp: int
) -> tuple[int, Any, Any, Any, Any]:
    """Check records as long as they are ordinary: the fast path of ``check_records``.

    A record is ordinary if it is valid, its offset delta is its index in the batch, its sizes and deltas take
    one or two bytes, its key has up to 63 bytes, and it has no headers. Nearly all records of producers are.

    Returns (ordinary records, position after them, largest timestamp, index of the first record without a key
    or -1, smallest timestamp).
    """
    first_keyless: Any = np.int64(-1)
    max_timestamp, min_timestamp = np.int64(-1), np.int64(_ABOVE_ALL_TIMESTAMPS)
    one, low7, more, byte = np.uint64(1), np.uint64(0x7F), np.uint64(0x80), np.uint64(0xFF)
    high7, second_more, two_bytes = np.uint64(0x3F80), np.uint64(0x8000), np.uint64(0xFFFF)
    position, batch_end = np.uint64(start), np.uint64(end)
    for record in range(count):
        # One load of eight bytes brings all fields up to the key's size. Records that begin in the last 24
        # bytes (more than enough) are left to the slow path, so that no load reads beyond the data.
        if position + np.uint64(24) > batch_end:
            return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        # The record's size, of one byte or two, and the attributes byte, which Kafka does not use.
        word, at = load_word(data, position), position + np.uint64(2)
        if word & more:
            if word & second_more:
                return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
            size, word, at = (word & low7) | ((word >> one) & high7), word >> np.uint64(24), at + one
        else:
            size, word = word & byte, word >> np.uint64(16)
        # Zigzag: odd numbers are negative, an even one is twice the value. The size counts from the
        # attributes.
        record_end = at - one + (size >> one)
        if size & one or record_end > batch_end:
            return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        if word & more:  # the timestamp delta
            if word & second_more:
                return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
            raw, word, at = (word & low7) | ((word >> one) & high7), word >> np.uint64(16), at + np.uint64(2)
        else:
            raw, word, at = word & byte, word >> np.uint64(8), at + one
        timestamp = base_timestamp + (np.int64(raw >> one) ^ -np.int64(raw & one))
        # The offset delta. It has to be the record's index, so the index is encoded and the bytes are
        # compared.
        delta = np.uint64(record) << one
        if delta < more:
            if word & byte != delta:
                return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
            word, at = word >> np.uint64(8), at + one
        else:
            if word & two_bytes != (delta & low7) | more | ((delta >> np.uint64(7)) << np.uint64(8)):
                return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
            word, at = word >> np.uint64(16), at + np.uint64(2)
        # The key's size, of one byte: 1 in zigzag is -1, a null key.
        key_size, at = word & byte, at + one
        if key_size & more or (key_size & one and key_size != one):
            return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        if key_size == one:
            if first_keyless < 0:
                first_keyless = record
        else:
            at += key_size >> one
        # The value's size, of one byte or two, and at least the byte of the header count after it.
        if at + np.uint64(2) > record_end:
            return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        value_size, at = np.uint64(data[at]), at + one
        if value_size & more:
            value_size, at = (value_size & low7) | (np.uint64(data[at]) << np.uint64(7)), at + one
            if value_size & np.uint64(0x4000):  # ``more`` of the second byte, shifted by seven bits
                return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        if value_size & one:
            if value_size != one:
                return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        else:
            at += value_size >> one
        # Exactly one byte is left: a header count of 0.
        if at + one != record_end or data[at] != 0:
            return record, np.int64(position), max_timestamp, first_keyless, min_timestamp
        max_timestamp, min_timestamp = max(max_timestamp, timestamp), min(min_timestamp, timestamp)
        position = record_end
    return count, np.int64(position), max_timestamp, first_keyless, min_timestamp


@kernel
def check_records(
    data: Bytes,
    start: int,
    end: int,
    rows: BatchHeaders,
    row: int,
    min_allowed: int,
    max_allowed: int,
    finding: Int64,
) -> None:
    """Check the uncompressed records ``data[start:end]`` of the batch ``rows[row]``, and fill its
    ``finding``.

    The checks are those of ``decode``. After a fault only ``FAULT`` and ``FAULTY_RECORD`` are set. A
    timestamp of -1 means that the record has none, and is never out of bounds.
    """
    header = rows[row]
    base_timestamp, last_delta = header.base_timestamp, header.last_offset - header.base_offset
    checked, position, max_timestamp, first_keyless, min_timestamp = _check_ordinary_records(
        data, start, end, header.count, base_timestamp
    )
    first_bad_time = -1
    if min_timestamp < min_allowed or max_timestamp > max_allowed:
        # A timestamp is out of bounds. The loop below finds which one, from the first record on.
        checked, position, max_timestamp, first_keyless = 0, start, -1, -1
    previous_delta = checked - 1
    at, batch_end = data.ctypes.data + position, data.ctypes.data + end
    for record in range(checked, header.count):
        at, record_end, timestamp_delta, offset_delta, fault = read_record_head(at, batch_end)
        if fault == 0 and (offset_delta <= previous_delta or offset_delta > last_delta):
            fault = Fault.RECORD_OFFSETS
        previous_delta = offset_delta
        if fault == 0:
            _, key_size, _, _, _, _, fault = read_record_fields(at, record_end)
        if fault != 0:
            finding[FAULT], finding[FAULTY_RECORD] = fault, record
            return
        at = record_end
        timestamp = base_timestamp + timestamp_delta
        max_timestamp = max(max_timestamp, timestamp)
        if key_size < 0 and first_keyless < 0:
            first_keyless = record
        if (timestamp < min_allowed or timestamp > max_allowed) and timestamp != -1 and first_bad_time < 0:
            first_bad_time = record
    finding[FAULT], finding[FAULTY_RECORD] = (0 if at == batch_end else Fault.TRAILING_BYTES), -1
    finding[MAX_TIMESTAMP] = max_timestamp
    finding[FIRST_KEYLESS], finding[FIRST_BAD_TIMESTAMP] = first_keyless, first_bad_time


@kernel
def refused_records(
    data: Bytes,
    start: int,
    end: int,
    header: Any,
    rules: RecordRules,
    claims_append_time: bool,
    refused: Int64,
) -> tuple[int, int, int]:
    """Find the records that the topic refuses among the valid, uncompressed ones ``data[start:end]``.

    Returns (how many are refused, the first one without a key or -1, the first one with a bad timestamp or
    -1). A record with both counts only as one without a key. Fills ``refused`` (int64, two columns), up to
    its length: the record's index, and 1 for a bad timestamp, 0 for a missing key. ``claims_append_time``:
    the batch has the attribute bit for log-append time where it may not, so every timestamp of it is bad.
    """
    _, needs_keys, min_allowed, max_allowed = rules
    count, first_keyless, first_bad_time = 0, -1, -1
    at, batch_end = data.ctypes.data + start, data.ctypes.data + end
    for record in range(header.count):
        at, record_end, timestamp_delta, _, _ = read_record_head(at, batch_end)
        _, key_size, _, _, _, _, _ = read_record_fields(at, record_end)
        at = record_end
        timestamp = header.base_timestamp + timestamp_delta
        is_in_bounds = timestamp == -1 or min_allowed <= timestamp <= max_allowed
        lacks_key = needs_keys and key_size < 0
        if not lacks_key and is_in_bounds and not claims_append_time:
            continue
        if lacks_key and first_keyless < 0:
            first_keyless = record
        if not lacks_key and first_bad_time < 0:
            first_bad_time = record
        if count < len(refused):
            refused[count, 0] = record
            refused[count, 1] = 0 if lacks_key else 1
        count += 1
    return count, first_keyless, first_bad_time


@kernel
def _checksum_holds(data: Bytes, row: Any) -> bool:
    return bool(crc32c_of(data, row.position + layout.CHECKSUM_START, row.position + row.size) == row.crc)


@kernel
def check_batches(
    data: Bytes, rows: BatchHeaders, findings: Int64, checksum: int, rules: RecordRules
) -> tuple[int, int, int, int]:
    """Scan ``data`` into ``rows`` and check the batches: (number of batches, end, ``ScanEnd``, flags).

    ``checksum``: the CRC32C of ``data`` where it is one large batch and the caller has computed it, else -1.
    The flags:

    - ``ANY_REFUSED``: the batch's row of ``findings`` says why.
    - ``ANY_CHECKSUM_PENDING``: the row's other columns are valid only if the checksum is right.
    - ``ANY_COMPRESSED``: the caller decompresses the records and calls ``check_records``.
    - ``ANY_LOG_APPEND_TIME``: the batch has the attribute bit for log-append time.
    """
    is_from_client, needs_keys, min_allowed, max_allowed = rules
    count, end, outcome, _ = scan_into(data, 0, len(data), rows)
    flags = 0
    for i in range(count):
        row = rows[i]
        finding = findings[i]
        finding[:] = -1
        finding[FAULT] = finding[CHECKSUM_PENDING] = 0
        if row.magic < 2:
            finding[FAULT] = Fault.MAGIC
        elif is_from_client and row.base_offset != 0:
            finding[FAULT] = Fault.BASE_OFFSET
        elif row.size > SMALL_BATCH_SIZE and checksum < 0:
            finding[CHECKSUM_PENDING] = 1
            flags |= ANY_CHECKSUM_PENDING
        elif row.crc != checksum if checksum >= 0 else not _checksum_holds(data, row):
            finding[FAULT] = Fault.CHECKSUM
        if finding[FAULT] == 0:
            finding[FAULT] = _header_fault(row, is_from_client)
        if row.attributes & layout.TIMESTAMP_TYPE_BIT:
            flags |= ANY_LOG_APPEND_TIME
        if finding[FAULT] == 0 and row.attributes & layout.CODEC_MASK:
            flags |= ANY_COMPRESSED
        elif finding[FAULT] == 0:
            start, batch_end = row.position + layout.BATCH_OVERHEAD, row.position + row.size
            check_records(data, start, batch_end, rows, i, min_allowed, max_allowed, finding)
        is_keyless = needs_keys and finding[FIRST_KEYLESS] >= 0
        if finding[FAULT] != 0 or finding[FIRST_BAD_TIMESTAMP] >= 0 or is_keyless:
            flags |= ANY_REFUSED
    return count, end, outcome, flags


@kernel
def check_replicated_batches(
    data: Bytes, rows: BatchHeaders, findings: Int64, next_offset: int
) -> tuple[int, int, int, int]:
    """``check_batches`` for a follower: batches of a leader keep their offsets, which must ascend from
    ``next_offset`` on.

    It does not check records, since the leader has accepted them. It refuses an unknown codec, since no
    reader could decompress the batch. The checksums of message sets (magic 0 and 1) are pending, since they
    are CRC32s: the kernels here compute only CRC32C.
    """
    count, end, outcome, _ = scan_into(data, 0, len(data), rows)
    flags = 0
    for i in range(count):
        row = rows[i]
        finding = findings[i]
        finding[:] = -1
        finding[FAULT] = finding[CHECKSUM_PENDING] = 0
        if row.magic < 2 or row.size > SMALL_BATCH_SIZE:
            finding[CHECKSUM_PENDING] = 1
            flags |= ANY_CHECKSUM_PENDING
        elif not _checksum_holds(data, row):
            finding[FAULT] = Fault.CHECKSUM
        if finding[FAULT] == 0 and row.attributes & layout.CODEC_MASK > _MAX_CODEC:
            finding[FAULT] = Fault.CODEC
        if finding[FAULT] == 0 and row.base_offset < next_offset:
            finding[FAULT] = Fault.OFFSETS
        if finding[FAULT] != 0:
            flags |= ANY_REFUSED
        next_offset = row.last_offset + 1
    return count, end, outcome, flags


@kernel
def assign_offsets(data: Bytes, rows: BatchHeaders, findings: Int64, assigned: AssignedFields) -> int:
    """Write offsets and leader epoch of checked batches into ``data`` and ``rows``; returns how many
    checksums the caller has to compute.

    The batch's largest timestamp becomes that of its records, or ``now_ms`` under log-append time. Under
    log-append time, or if the header had another largest timestamp or a bit of ``_LOG_ONLY_ATTRIBUTES``, the
    timestamp, the attributes and the checksum are written again. The caller computes the checksums of large
    batches: those with ``CHECKSUM_PENDING``.
    """
    next_offset, leader_epoch, is_log_append_time, now_ms = assigned
    pending, timestamp_type = 0, layout.TIMESTAMP_TYPE_BIT if is_log_append_time else 0
    for i in range(len(rows)):
        row = rows[i]
        position = row.position
        row.last_offset += next_offset - row.base_offset
        row.base_offset = next_offset
        row.leader_epoch = leader_epoch
        next_offset = row.last_offset + 1
        write_int(data, position, row.base_offset, 8)
        write_int(data, position + layout.LEADER_EPOCH_POSITION, leader_epoch, 4)
        max_timestamp = now_ms if is_log_append_time else findings[i, MAX_TIMESTAMP]
        findings[i, CHECKSUM_PENDING] = 0
        # The checksum does not cover offsets and leader epoch, so it stays right unless other fields change.
        is_changed = row.max_timestamp != max_timestamp or (row.attributes & _LOG_ONLY_ATTRIBUTES) != 0
        if not is_log_append_time and not is_changed:
            continue
        row.max_timestamp = max_timestamp
        write_int(data, position + layout.MAX_TIMESTAMP_POSITION, max_timestamp, 8)
        row.attributes = row.attributes & _KEPT_ATTRIBUTES | timestamp_type
        write_int(data, position + layout.ATTRIBUTES_POSITION, row.attributes, 2)
        if row.size > SMALL_BATCH_SIZE:
            findings[i, CHECKSUM_PENDING] = 1
            pending += 1
        else:
            row.crc = crc32c_of(data, position + layout.CHECKSUM_START, position + row.size)
            write_int(data, position + layout.CRC_POSITION, row.crc, 4)
    return pending


@kernel
def validate_single_batch(
    data: Bytes,
    rows: BatchHeaders,
    checksum: int,
    rules: RecordRules,
    size_limit: int,
    assigned: AssignedFields,
) -> tuple[int, int, int, int]:
    """``check_batches`` and ``assign_offsets`` in one call, for the common case: one valid, uncompressed
    batch.

    ``rows`` has one row; ``checksum`` is that of a large batch, as in ``check_batches``. Returns (number of
    records, first offset, last offset, largest timestamp). In every other case it leaves ``data`` unchanged
    and returns 0 records: also if ``data`` has more than ``size_limit`` bytes, or if a large batch needs a
    new checksum, which the caller has to compute.
    """
    is_large = len(data) > SMALL_BATCH_SIZE
    _, _, is_log_append_time, _ = assigned
    if len(data) > size_limit or (is_large and (checksum < 0 or is_log_append_time)):
        return 0, 0, 0, 0
    findings = np.empty((1, FINDING_COLUMNS), np.int64)
    count, _, outcome, flags = check_batches(data, rows, findings, checksum, rules)
    if count != 1 or outcome != ScanEnd.CLEAN or flags != 0:
        return 0, 0, 0, 0
    is_changed = (
        rows[0].max_timestamp != findings[0, MAX_TIMESTAMP] or rows[0].attributes & _LOG_ONLY_ATTRIBUTES
    )
    if is_large and is_changed:
        return 0, 0, 0, 0
    assign_offsets(data, rows, findings, assigned)
    return rows[0].count, rows[0].base_offset, rows[0].last_offset, rows[0].max_timestamp


@kernel
def summarize_batches(rows: BatchHeaders) -> tuple[int, int, int, int, int]:
    """(first offset, last offset, largest timestamp, last offset of the first batch with that timestamp,
    number of records).

    A message set entry (magic 0 or 1) counts as one record.
    """
    max_timestamp = offset_of_max_timestamp = -1
    records = 0
    for i in range(len(rows)):
        if i == 0 or rows[i].max_timestamp > max_timestamp:
            max_timestamp = rows[i].max_timestamp
            offset_of_max_timestamp = rows[i].last_offset
        records += rows[i].count if rows[i].magic == 2 else 1
    last_offset = rows[len(rows) - 1].last_offset
    return rows[0].base_offset, last_offset, max_timestamp, offset_of_max_timestamp, records
