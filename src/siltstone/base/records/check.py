"""Validation of batches before an append, and assignment of their offsets (Kafka's ``LogValidator``).

The first pass checks the bytes: header, checksum, every record's fields, without a row a record. The second
pass writes what the log assigns: offsets, leader epoch, and under log-append time the time. The first pass
changes nothing, so a batch that is refused after it still has its bytes.

Only the log sets two bits of a header: log-append time and the delete horizon. A batch that comes with them,
such as one copied from another log, is accepted without them: its records have their own times then, and its
tombstones no delete horizon yet. Kafka clears the first and keeps the second, by which a producer could have
tombstones removed at once.

The first pass fills one row of ``findings`` a batch (int64): ``FAULT`` is a ``Fault``, ``RECORD`` the index
of the record that has it, ``LARGEST`` the largest timestamp, ``KEYLESS`` and ``UNTIMELY`` the first record
without a key and the first with a timestamp out of bounds (-1: none), ``PENDING`` whether the caller has to
verify the checksum, by a library, which is faster from some size on.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from siltstone.base.codec_table import CODECS
from siltstone.base.records import columns, layout
from siltstone.base.records.build import write_int
from siltstone.base.records.checksum import crc32c_of
from siltstone.base.records.columns import record_fields, record_head
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes, Int64
from siltstone.base.records.scan import scan_into
from siltstone.base.records.varint import load_word

FAULT, RECORD, LARGEST, KEYLESS, UNTIMELY, PENDING, WIDTH = range(7)
SMALL_BATCH_SIZE = 2048
_NO_TIMESTAMP = 1 << 62
_LAST_CODEC = len(CODECS) - 1
_Walked = tuple[int, Any, Any, Any, Any]
Rules = tuple[bool, bool, int, int]
"""What records must be: whether a client sent them, whether each needs a key (``cleanup.policy=compact``),
and the least and the largest timestamp (ms) that they may have."""
Assigned = tuple[int, int, bool, int]
"""What the log assigns: next offset, leader epoch, whether log-append time holds, and the time now (ms)."""
REFUSED, UNCHECKED, COMPRESSED, APPEND_TIMED = 1, 2, 4, 8
"""What the caller of ``check_batches`` has to look into, as bits."""
_SET_BY_THE_LOG = layout.TIMESTAMP_TYPE_BIT | layout.DELETE_HORIZON_BIT
"""The bits for log-append time and for a delete horizon."""
_KEPT_WHEN_REWRITTEN = layout.CODEC_MASK | layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT
"""Codec, transactional and control: what Kafka keeps of the attributes where it writes them anew."""


class Fault(enum.IntEnum):
    """Why a batch is refused. 1 to 6 are a record's, as in ``columns.DECODE_REASON``."""

    NONE = 0
    RECORD_SIZE = columns.RECORD_SIZE
    RECORD_END = columns.RECORD_END
    VARINT = columns.VARINT
    NEGATIVE_SIZE = columns.NEGATIVE_SIZE
    RECORD_OFFSETS = columns.RECORD_OFFSETS
    LEFT_OVER = columns.LEFT_OVER
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
def _header_fault(row: Any, client: bool) -> int:
    """The ``Fault`` of a v2 batch's header, or 0, checked in Kafka's order.

    A transaction and a marker need a producer with an epoch: without one, no marker could end the
    transaction, and its producer could not be fenced.
    """
    if row.attributes & layout.CODEC_MASK > _LAST_CODEC:
        return Fault.CODEC
    if row.count <= 0 or row.last_offset - row.base_offset + 1 != row.count:
        return Fault.COUNT
    if client and row.attributes & layout.CONTROL_BIT:
        return Fault.CONTROL
    if client and row.producer_id >= 0 and row.base_sequence < 0:
        return Fault.SEQUENCE
    if row.attributes & layout.TRANSACTIONAL_BIT and row.producer_id < 0:
        return Fault.NO_PRODUCER
    fenced = row.attributes & (layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT)
    return Fault.EPOCH if fenced and row.producer_id >= 0 and row.producer_epoch < 0 else 0


@kernel
def _walk_ordinary(data: Bytes, position: int, end: int, count: int, base_timestamp: int) -> _Walked:
    """Check the ordinary records at a batch's start: (how many, where the next one begins, the largest
    timestamp, the first record without a key, the least timestamp).

    Ordinary is what nearly every record of a producer is: sound, numbered one by one, its sizes of one or two
    bytes, a short key, no headers. ``check_records`` continues after them, and says what is wrong where
    something is. One load brings the fields up to the key's size; the offset is compared in its encoding.
    Numbers are unsigned: of a mixture numba makes floats. It returns from where it is: each other way that
    was tried took a tenth longer or more.
    """
    keyless: Any = np.int64(-1)
    largest, smallest = np.int64(-1), np.int64(_NO_TIMESTAMP)
    one, low, more = np.uint64(1), np.uint64(0x7F), np.uint64(0x80)
    byte, two_bytes, high = np.uint64(0xFF), np.uint64(0xFFFF), np.uint64(0x3F80)
    here, batch_end = np.uint64(position), np.uint64(end)
    for record in range(count):
        if here + np.uint64(24) > batch_end:
            return record, np.int64(here), largest, keyless, smallest
        word, at = load_word(data, here), here + np.uint64(2)  # after a size of one byte and the attributes
        if word & more:
            if word & np.uint64(0x8000):
                return record, np.int64(here), largest, keyless, smallest
            size, word, at = (word & low) | ((word >> one) & high), word >> np.uint64(24), at + one
        else:
            size, word = word & byte, word >> np.uint64(16)
        # Sizes and deltas are zigzag: an odd one is negative, half of an even one is the value.
        stop = at - one + (size >> one)
        if size & one or stop > batch_end:
            return record, np.int64(here), largest, keyless, smallest
        if word & more:
            if word & np.uint64(0x8000):
                return record, np.int64(here), largest, keyless, smallest
            raw, word, at = (word & low) | ((word >> one) & high), word >> np.uint64(16), at + np.uint64(2)
        else:
            raw, word, at = word & byte, word >> np.uint64(8), at + one
        timestamp = base_timestamp + (np.int64(raw >> one) ^ -np.int64(raw & one))
        # Ordinary offset deltas are 0, 1, 2 …: the bytes must be this record's number as a zigzag varint.
        delta = np.uint64(record) << one
        if delta < more:
            if word & byte != delta:
                return record, np.int64(here), largest, keyless, smallest
            word, at = word >> np.uint64(8), at + one
        else:
            if word & two_bytes != (delta & low) | more | ((delta >> np.uint64(7)) << np.uint64(8)):
                return record, np.int64(here), largest, keyless, smallest
            word, at = word >> np.uint64(16), at + np.uint64(2)
        key, at = word & byte, at + one
        # The key's size has one byte: null (1 in zigzag), or up to 63.
        if key & more or (key & one and key != one):
            return record, np.int64(here), largest, keyless, smallest
        if key == one:
            if keyless < 0:
                keyless = record
        else:
            at += key >> one
        if at + np.uint64(2) > stop:
            return record, np.int64(here), largest, keyless, smallest
        value, at = np.uint64(data[at]), at + one
        if value & more:
            value, at = (value & low) | (np.uint64(data[at]) << np.uint64(7)), at + one
            if value & np.uint64(0x4000):
                return record, np.int64(here), largest, keyless, smallest
        if value & one:
            if value != one:
                return record, np.int64(here), largest, keyless, smallest
        else:
            at += value >> one
        # Exactly one byte is left: a header count of 0.
        if at + one != stop or data[at] != 0:
            return record, np.int64(here), largest, keyless, smallest
        largest, smallest = max(largest, timestamp), min(smallest, timestamp)
        here = stop
    return count, np.int64(here), largest, keyless, smallest


@kernel
def check_records(
    data: Bytes,
    start: int,
    end: int,
    rows: BatchHeaders,
    row: int,
    minimum: int,
    maximum: int,
    finding: Int64,
) -> None:
    """Check the plain records ``data[start:end]`` of the batch ``rows[row]`` into its ``finding``.

    The same checks as ``decode``'s, without columns. With a fault only ``FAULT`` and ``RECORD`` count.
    """
    header = rows[row]
    base_timestamp, last_delta = header.base_timestamp, header.last_offset - header.base_offset
    done, position, largest, keyless, smallest = _walk_ordinary(
        data, start, end, header.count, base_timestamp
    )
    untimely = -1
    if smallest < minimum or largest > maximum:  # which record is out of bounds, only the walk below says
        done, position, largest, keyless = 0, start, -1, -1
    before = done - 1
    at, batch_end = data.ctypes.data + position, data.ctypes.data + end
    for record in range(done, header.count):
        at, stop, delta, here, fault = record_head(at, batch_end)
        if fault == 0 and (here <= before or here > last_delta):
            fault = Fault.RECORD_OFFSETS
        before = here
        if fault == 0:
            _, key_bytes, _, _, _, _, fault = record_fields(at, stop)
        if fault != 0:
            finding[FAULT], finding[RECORD] = fault, record
            return
        at = stop
        timestamp = base_timestamp + delta
        largest = max(largest, timestamp)
        if key_bytes < 0 and keyless < 0:
            keyless = record
        if (timestamp < minimum or timestamp > maximum) and timestamp != -1 and untimely < 0:
            untimely = record
    finding[FAULT], finding[RECORD] = (0 if at == batch_end else Fault.LEFT_OVER), -1
    finding[LARGEST], finding[KEYLESS], finding[UNTIMELY] = largest, keyless, untimely


@kernel
def refused_records(
    data: Bytes, start: int, end: int, header: Any, rules: Rules, append_timed: bool, named: Int64
) -> tuple[int, int, int]:
    """Find the valid, uncompressed records ``data[start:end]`` that the topic refuses.

    Returns (how many, the first without a key or -1, the first whose time is why or -1). A record without a
    key counts as that, whatever its time is. ``named`` takes a row a record, as far as it has room: the
    index, and 1 where its time is why, else 0. ``append_timed``: the batch claims log-append time in vain, so
    no record's time is accepted.
    """
    _, keyed, minimum, maximum = rules
    count, keyless, untimely = 0, -1, -1
    at, batch_end = data.ctypes.data + start, data.ctypes.data + end
    for record in range(header.count):
        at, stop, delta, _, _ = record_head(at, batch_end)
        _, key_bytes, _, _, _, _, _ = record_fields(at, stop)
        at = stop
        timestamp = header.base_timestamp + delta
        timed = append_timed or (timestamp != -1 and (timestamp < minimum or timestamp > maximum))
        without_key = keyed and key_bytes < 0
        if not (without_key or timed):
            continue
        if without_key and keyless < 0:
            keyless = record
        if not without_key and untimely < 0:
            untimely = record
        if count < len(named):
            named[count, 0] = record
            named[count, 1] = 0 if without_key else 1
        count += 1
    return count, keyless, untimely


@kernel
def _checksum_holds(data: Bytes, row: Any) -> bool:
    return bool(crc32c_of(data, row.position + layout.CHECKED_FROM, row.position + row.size) == row.crc)


@kernel
def check_batches(
    data: Bytes, rows: BatchHeaders, findings: Int64, checksum: int, rules: Rules
) -> tuple[int, int, int, int]:
    """Scan ``data`` into ``rows`` and check the batches: (batches, end, ``ScanEnd``, bits).

    ``checksum``: that of ``data`` as one large batch; at -1 the checksums of large batches are pending. The
    bits: ``REFUSED`` (a finding says why), ``UNCHECKED`` (a checksum is pending; the findings count only
    once it holds), ``COMPRESSED`` (records are to be decompressed, then checked), ``APPEND_TIMED`` (a batch
    claims log-append time).
    """
    client, keyed, minimum, maximum = rules
    count, end, outcome, _ = scan_into(data, 0, len(data), rows)
    bits = 0
    for i in range(count):
        row = rows[i]
        finding = findings[i]
        finding[:] = -1
        finding[FAULT] = finding[PENDING] = 0
        if row.magic < 2:
            finding[FAULT] = Fault.MAGIC
        elif client and row.base_offset != 0:
            finding[FAULT] = Fault.BASE_OFFSET
        elif row.size > SMALL_BATCH_SIZE and checksum < 0:
            finding[PENDING] = 1
            bits |= UNCHECKED
        elif row.crc != checksum if checksum >= 0 else not _checksum_holds(data, row):
            finding[FAULT] = Fault.CHECKSUM
        if finding[FAULT] == 0:
            finding[FAULT] = _header_fault(row, client)
        if row.attributes & layout.TIMESTAMP_TYPE_BIT:
            bits |= APPEND_TIMED
        if finding[FAULT] == 0 and row.attributes & layout.CODEC_MASK:
            bits |= COMPRESSED
        elif finding[FAULT] == 0:
            start, end_of_row = row.position + layout.BATCH_OVERHEAD, row.position + row.size
            check_records(data, start, end_of_row, rows, i, minimum, maximum, finding)
        if finding[FAULT] != 0 or finding[UNTIMELY] >= 0 or (keyed and finding[KEYLESS] >= 0):
            bits |= REFUSED
    return count, end, outcome, bits


@kernel
def check_replicated(
    data: Bytes, rows: BatchHeaders, findings: Int64, next_offset: int
) -> tuple[int, int, int, int]:
    """The same for replicated batches, whose offsets stay: they must ascend from ``next_offset`` on.

    Records are not checked: the leader's log has them like that. An unknown codec is refused, since no reader
    could decompress it. Checksums of magic 0 and 1 are pending.
    """
    count, end, outcome, _ = scan_into(data, 0, len(data), rows)
    bits = 0
    for i in range(count):
        row = rows[i]
        finding = findings[i]
        finding[:] = -1
        finding[FAULT] = finding[PENDING] = 0
        if row.magic < 2 or row.size > SMALL_BATCH_SIZE:
            finding[PENDING] = 1
            bits |= UNCHECKED
        elif not _checksum_holds(data, row):
            finding[FAULT] = Fault.CHECKSUM
        if finding[FAULT] == 0 and row.attributes & layout.CODEC_MASK > _LAST_CODEC:
            finding[FAULT] = Fault.CODEC
        if finding[FAULT] == 0 and row.base_offset < next_offset:
            finding[FAULT] = Fault.OFFSETS
        if finding[FAULT] != 0:
            bits |= REFUSED
        next_offset = row.last_offset + 1
    return count, end, outcome, bits


@kernel
def assign_offsets(data: Bytes, rows: BatchHeaders, findings: Int64, assigned: Assigned) -> int:
    """Write offsets and leader epoch of checked batches into ``data`` and ``rows``; returns how many
    checksums are pending.

    The largest timestamp becomes the records', or ``now_ms`` under log-append time. Where that changes it, or
    where a bit is set that only the log sets, the attributes are rewritten and the checksum is computed
    again, by the caller for a large batch.
    """
    next_offset, leader_epoch, log_append, now_ms = assigned
    pending, time_bit = 0, layout.TIMESTAMP_TYPE_BIT if log_append else 0
    for i in range(len(rows)):
        row = rows[i]
        position = row.position
        row.last_offset += next_offset - row.base_offset
        row.base_offset = next_offset
        row.leader_epoch = leader_epoch
        next_offset = row.last_offset + 1
        write_int(data, position, row.base_offset, 8)
        write_int(data, position + layout.LEADER_EPOCH_POSITION, leader_epoch, 4)
        largest = now_ms if log_append else findings[i, LARGEST]
        findings[i, PENDING] = 0
        # No checksum covers offsets and leader epoch: most batches are done here.
        if row.max_timestamp == largest and not log_append and not row.attributes & _SET_BY_THE_LOG:
            continue
        row.max_timestamp = largest
        write_int(data, position + layout.MAX_TIMESTAMP_POSITION, largest, 8)
        row.attributes = row.attributes & _KEPT_WHEN_REWRITTEN | time_bit
        write_int(data, position + layout.ATTRIBUTES_POSITION, row.attributes, 2)
        if row.size > SMALL_BATCH_SIZE:
            findings[i, PENDING] = 1
            pending += 1
        else:
            row.crc = crc32c_of(data, position + layout.CHECKED_FROM, position + row.size)
            write_int(data, position + layout.CRC_POSITION, row.crc, 4)
    return pending


@kernel
def admit_one(
    data: Bytes, rows: BatchHeaders, checksum: int, rules: Rules, size_limit: int, assigned: Assigned
) -> tuple[int, int, int, int]:
    """``check_batches`` and ``assign_offsets`` in one call, for the common case: one batch, plain and valid.

    ``rows`` has one row; ``checksum`` is needed for a large batch. Returns the number of records, the first
    and the last offset, and the largest timestamp. In every other case, where ``data`` is over ``size_limit``
    bytes, and where a large batch needs a new checksum, ``data`` stays unchanged and the result is 0 records.
    """
    large = len(data) > SMALL_BATCH_SIZE
    if len(data) > size_limit or (large and (checksum < 0 or assigned[2])):
        return 0, 0, 0, 0
    findings = np.empty((1, WIDTH), np.int64)
    count, _, outcome, bits = check_batches(data, rows, findings, checksum, rules)
    if count != 1 or outcome != 0 or bits != 0:
        return 0, 0, 0, 0
    if large and (rows[0].max_timestamp != findings[0, LARGEST] or rows[0].attributes & _SET_BY_THE_LOG):
        return 0, 0, 0, 0
    assign_offsets(data, rows, findings, assigned)
    return rows[0].count, rows[0].base_offset, rows[0].last_offset, rows[0].max_timestamp


@kernel
def summarize(rows: BatchHeaders) -> tuple[int, int, int, int, int]:
    """First and last offset, the largest timestamp, the last offset of the first batch that has it, and the
    number of records.

    An entry of magic 0 or 1 counts as one record.
    """
    largest = offset = -1
    records = 0
    for i in range(len(rows)):
        if i == 0 or rows[i].max_timestamp > largest:
            largest = rows[i].max_timestamp
            offset = rows[i].last_offset
        records += rows[i].count if rows[i].magic == 2 else 1
    return rows[0].base_offset, rows[len(rows) - 1].last_offset, largest, offset, records
