"""May these batches be appended, and what do they look like then? (``LogValidator``, and
``UnifiedLog.analyzeAndValidateRecords``.)

::

    bytes ─► headers, checksums, records (records.check) ─► sizes ─► [recompress] ─► offsets, epoch, time

A batch that is refused is refused whole, with Kafka's error, and its bytes have not changed. One that is
accepted is changed where it lies: base offset and leader epoch, which no checksum covers, and under
log-append time the time. Only a ``compression.type`` that is not the batch's makes a new one.

Where this is stricter than Kafka: sizes below -1 are not taken for null; a producer may not set the delete
horizon bit, nor the transactional one without a producer id; a batch has to fit
``max.decompressed.message.bytes``.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from siltstone.config import LogConfig
from siltstone.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    LogError,
    MessageTooLargeError,
    RecordListTooLargeError,
)
from siltstone.log.recompression import recompress
from siltstone.records.check import (
    COMPRESSED,
    FAULT,
    KEYLESS,
    PENDING,
    RECORD,
    REFUSED,
    SMALL_BATCH_SIZE,
    UNCHECKED,
    UNTIMELY,
    WIDTH,
    Fault,
    admit_one,
    assign_offsets,
    check_batches,
    check_records,
    check_replicated,
    summarize,
)
from siltstone.records.checksum import first_bad_checksum, patch_checksums
from siltstone.records.codecs import DecompressedTooLargeError, DecompressionError, Scratch, decompress
from siltstone.records.inflate import records_max
from siltstone.records.layout import (
    BATCH,
    BATCH_OVERHEAD,
    CHECKED_FROM,
    CODEC_MASK,
    CRC_POSITION,
    Bytes,
    Directory,
    Int64,
)
from siltstone.records.scan import SCAN_REASON, ScanEnd

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_SMALLEST_ENTRY = 26

_REFUSAL = {
    Fault.RECORD_SIZE: "a record's size is not possible",
    Fault.RECORD_END: "a record's fields go on beyond its end, or end before it",
    Fault.VARINT: "a record has an over-long or cut varint",
    Fault.NEGATIVE_SIZE: "a record has a negative size that is not null's",
    Fault.RECORD_OFFSETS: "the records' offsets do not ascend one by one",
    Fault.LEFT_OVER: "bytes are left over behind its last record",
    Fault.CHECKSUM: "its checksum does not match: it was damaged on the way, send it again",
    Fault.BASE_OFFSET: "its base offset is not 0: offsets are given by the log",
    Fault.MAGIC: "its format is v0 or v1: only v2, Kafka's since 0.11, is appended",
    Fault.COUNT: "its record count is not positive, or not that of its offsets",
    Fault.CONTROL: "clients may not write control records",
    Fault.SEQUENCE: "it has a producer id but no sequence number",
    Fault.EPOCH: "it has a producer id but no producer epoch",
    Fault.NO_PRODUCER: "it is transactional but has no producer id",
    Fault.TIMESTAMP_TYPE: "it claims log-append time, which only the log gives",
    Fault.HORIZON: "it has a delete horizon, which only cleaning gives",
    Fault.CODEC: "its codec is unknown",
    Fault.OFFSETS: "its offsets are below the log's end, or do not ascend: fetch from the log's end on",
}


class Origin(enum.Enum):
    """Who appends: a producer, a coordinator (of groups, of transactions), or a replica of a leader's log."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class Validated(NamedTuple):
    """What is to be written. ``batches`` are the rows of ``data``; ``last_offset`` is the last batch's.

    ``max_timestamp`` (ms) is the largest one, ``offset_of_max_timestamp`` the last offset of the first batch
    that has it, as a time index wants it.
    """

    data: Bytes
    batches: Directory
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    records: int


_Rules = tuple[bool, bool, int, int]
"""Whether a client sent it, whether records need keys, and the bounds of their timestamps."""


def validate_and_assign(
    data: Bytes,
    *,
    config: LogConfig,
    next_offset: int,
    now_ms: int,
    leader_epoch: int,
    origin: Origin = Origin.CLIENT,
) -> Validated:
    """Check whole batches and make them part of the log from ``next_offset`` on, in ``data`` itself.

    ``data`` is uint8, contiguous and writable. A client sends one batch, others may send several; what is
    replicated keeps its offsets and its leader epoch, and a batch that is cut at the end is left out. Raises
    a LogError with Kafka's code for what is not accepted; ``data`` is unchanged then.
    """
    if origin is Origin.REPLICATION:
        return _take_over(data, config, next_offset)
    client, log_append = origin is Origin.CLIENT, config.message_timestamp_type == "LogAppendTime"
    rules = (client, "compact" in config.policies, *_bounds(config, now_ms, log_append))
    given = (next_offset, leader_epoch, log_append, now_ms)
    small = (
        min(config.max_message_bytes, config.segment_bytes) if config.compression_type == "producer" else 0
    )
    rows = np.empty(1, BATCH)
    checksum = _checksum(data)
    records, first, last, largest = admit_one(data, rows, checksum, *rules, small, *given)
    if records:
        return Validated(data, rows, first, last, largest, last, records)
    rows, findings = _checked(data, checksum, config, rules)
    if config.compression_type != "producer":
        data, rows = recompress(data, rows, config)
        _refuse_oversized(rows, config)
    if len(data) > config.segment_bytes:
        raise _too_much(data, config)
    if assign_offsets(data, rows, findings, *given):
        _patch_pending(data, rows, findings)
    return _validated(data, rows)


def _checksum(data: Bytes) -> int:
    """The checksum of ``data`` where it may be one large batch, else -1; faster than the kernel's."""
    if len(data) <= SMALL_BATCH_SIZE or int.from_bytes(data[8:12].tobytes(), "big") + 12 != len(data):
        return -1
    return int(crc32c(data.data[CHECKED_FROM:]))


def _bounds(config: LogConfig, now_ms: int, log_append: bool) -> tuple[int, int]:
    """The least and the largest timestamp that a record may have, ms."""
    if log_append:
        return _LEAST, _MOST
    least = now_ms - config.message_timestamp_before_max_ms
    most = now_ms + config.message_timestamp_after_max_ms
    return max(least, _LEAST), min(most, _MOST)


def _validated(data: Bytes, rows: Directory) -> Validated:
    first, last, largest, offset, records = summarize(rows)
    return Validated(
        data=data,
        batches=rows,
        first_offset=first,
        last_offset=last,
        max_timestamp=largest,
        offset_of_max_timestamp=offset,
        records=records,
    )


def _checked(data: Bytes, checksum: int, config: LogConfig, rules: _Rules) -> tuple[Directory, Int64]:
    """The batches and what was found in them; ``checksum`` is ``_checksum``'s."""
    client, room = rules[0], 2
    while True:
        rows, findings = np.empty(room, BATCH), np.empty((room, WIDTH), np.int64)
        count, end, outcome, left = check_batches(data, rows, findings, checksum, *rules)
        if outcome != ScanEnd.DIRECTORY_FULL or client:
            break
        room = max(8 * room, len(data) // 1024)
    rows, findings = rows[:count], findings[:count]
    if outcome or count == 0 or (count > 1 and client):
        raise _no_batches(data, client and count > 1, end, ScanEnd(outcome))
    if left & REFUSED:
        _refuse_before_sizes(rows, findings)
    if len(data) > config.max_message_bytes:
        _refuse_oversized(rows, config)
    if left & UNCHECKED and not _pending_hold(data, rows, findings):
        left |= REFUSED
    if left & REFUSED:
        _refuse_faults(rows, findings)
    if left & COMPRESSED:
        _check_compressed(data, rows, findings, config, rules)
        _refuse_faults(rows, findings)
    if left & (REFUSED | COMPRESSED):
        _refuse_records(rows, findings, config, rules)
    return rows, findings


def _no_batches(data: Bytes, several: bool, end: int, outcome: ScanEnd) -> LogError:
    """Why ``data`` is not a run of whole batches, or not the one that a client may send."""
    if several:
        return InvalidRecordError("more than one batch: send one for each partition and request")
    if outcome in (ScanEnd.CLEAN, ScanEnd.DIRECTORY_FULL):
        return InvalidRecordError("no batch at all: send at least one record")
    if outcome == ScanEnd.BAD_COUNT:
        size = int.from_bytes(data[end + 8 : end + 12].tobytes(), "big") + 12
        stored = int.from_bytes(data[end + CRC_POSITION : end + CHECKED_FROM].tobytes(), "big")
        if crc32c(data.data[end + CHECKED_FROM : end + size]) != stored:
            return CorruptMessageError(_at(end, _REFUSAL[Fault.CHECKSUM]))
    return InvalidRecordError(_at(end, SCAN_REASON[outcome]))


def _at(position: int, reason: str) -> str:
    return f"batch at byte {position}: {reason}"


def _refuse_before_sizes(rows: Directory, findings: Int64) -> None:
    """Kafka looks at the format and the base offset first, then at sizes, then at checksums."""
    early = np.flatnonzero((findings[:, FAULT] == Fault.MAGIC) | (findings[:, FAULT] == Fault.BASE_OFFSET))
    if len(early):
        raise _refusal(rows, findings, int(early[0]))


def _refusal(rows: Directory, findings: Int64, row: int) -> LogError:
    fault, record = Fault(int(findings[row, FAULT])), int(findings[row, RECORD])
    message = _at(int(rows["position"][row]), _REFUSAL[fault])
    if fault == Fault.CHECKSUM:
        return CorruptMessageError(message)
    if fault == Fault.TIMESTAMP_TYPE:
        return InvalidTimestampError(message, 0)
    return InvalidRecordError(message, record if record >= 0 else None)


def _refuse_oversized(rows: Directory, config: LogConfig) -> None:
    large = np.flatnonzero(rows["size"] > config.max_message_bytes)
    if len(large):
        size = int(rows["size"][large[0]])
        raise MessageTooLargeError(
            _at(
                int(rows["position"][large[0]]),
                f"{size} bytes are over max.message.bytes={config.max_message_bytes}: "
                "send smaller batches, or raise it",
            )
        )


def _too_much(data: Bytes, config: LogConfig) -> LogError:
    return RecordListTooLargeError(
        f"{len(data)} bytes do not fit into a segment of segment.bytes={config.segment_bytes}: "
        "send smaller batches, or raise it"
    )


def _pending_hold(data: Bytes, rows: Directory, findings: Int64) -> bool:
    """Do the checksums hold that are pending? One that does not is its batch's fault from now on."""
    all_hold = True
    for row in np.flatnonzero(findings[:, PENDING]).tolist():
        start, size = int(rows["position"][row]), int(rows["size"][row])
        if rows["magic"][row] < 2:
            holds = first_bad_checksum(data, rows[row : row + 1]) is None
        else:
            holds = crc32c(data.data[start + CHECKED_FROM : start + size]) == int(rows["crc"][row])
        if not holds:
            findings[row, FAULT], findings[row, RECORD] = Fault.CHECKSUM, -1
            all_hold = False
    return all_hold


def _refuse_faults(rows: Directory, findings: Int64) -> None:
    """Checksums of all batches come before what is inside of any."""
    faults = findings[:, FAULT]
    for found in (np.flatnonzero(faults == Fault.CHECKSUM), np.flatnonzero(faults)):
        if len(found):
            raise _refusal(rows, findings, int(found[0]))


def _check_compressed(
    data: Bytes, rows: Directory, findings: Int64, config: LogConfig, rules: _Rules
) -> None:
    scratch, limit = Scratch(4096), config.max_decompressed_message_bytes
    for row in np.flatnonzero(rows["attributes"] & CODEC_MASK).tolist():
        start, size = int(rows["position"][row]), int(rows["size"][row])
        codec = int(rows["attributes"][row]) & CODEC_MASK
        if int(rows["count"][row]) > records_max(limit):
            raise _too_large(start, f"more than {records_max(limit)} records")
        scratch.clear()
        try:
            body = data[start + BATCH_OVERHEAD : start + size]
            decompress(codec, body, scratch, limit)
        except DecompressedTooLargeError as error:
            raise _too_large(start, str(error)) from None
        except DecompressionError as error:
            raise InvalidRecordError(_at(start, str(error))) from None
        plain = scratch.array()
        check_records(plain, 0, len(plain), rows, row, rules[2], rules[3], findings[row])


def _too_large(position: int, reason: str) -> MessageTooLargeError:
    return MessageTooLargeError(
        _at(position, f"{reason}: send smaller batches, or raise max.decompressed.message.bytes")
    )


def _refuse_records(rows: Directory, findings: Int64, config: LogConfig, rules: _Rules) -> None:
    """Records that the topic does not take; a timestamp names the error where there are both."""
    untimely = np.flatnonzero(findings[:, UNTIMELY] >= 0)
    if len(untimely):
        row = int(untimely[0])
        raise InvalidTimestampError(
            _at(
                int(rows["position"][row]),
                f"the timestamp of record {findings[row, UNTIMELY]} is not within "
                f"[{rules[2]}, {rules[3]}], which message.timestamp.before.max.ms="
                f"{config.message_timestamp_before_max_ms} and message.timestamp.after.max.ms="
                f"{config.message_timestamp_after_max_ms} allow",
            ),
            int(findings[row, UNTIMELY]),
        )
    keyless = np.flatnonzero(findings[:, KEYLESS] >= 0)
    if rules[1] and len(keyless):
        row = int(keyless[0])
        index = int(findings[row, KEYLESS])
        reason = f"record {index} has no key: a compacted topic takes none without"
        raise InvalidRecordError(_at(int(rows["position"][row]), reason), index)


def _patch_pending(data: Bytes, rows: Directory, findings: Int64) -> None:
    pending = np.flatnonzero(findings[:, PENDING])
    starts, sizes = rows["position"][pending], rows["size"][pending].astype(np.int64)
    patch_checksums(data, starts, sizes)
    for row, start in zip(pending.tolist(), starts.tolist(), strict=True):
        rows["crc"][row] = int.from_bytes(data[start + CRC_POSITION : start + CHECKED_FROM].tobytes(), "big")


def _take_over(data: Bytes, config: LogConfig, next_offset: int) -> Validated:
    """Batches of another log: their offsets and epochs stay, a cut one at the end is left out."""
    room = 2
    while True:
        rows, findings = np.empty(room, BATCH), np.empty((room, WIDTH), np.int64)
        count, end, outcome, left = check_replicated(data, rows, findings, next_offset)
        if outcome != ScanEnd.DIRECTORY_FULL:
            break
        room = max(8 * room, len(data) // _SMALLEST_ENTRY // 8)
    rows, findings = rows[:count], findings[:count]
    if count == 0 and outcome in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
        raise InvalidRecordError("no whole batch to append: fetch more bytes")
    if outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
        raise CorruptMessageError(_at(end, f"{SCAN_REASON[ScanEnd(outcome)]}: fetch it again"))
    if (left & UNCHECKED and not _pending_hold(data, rows, findings)) or left & REFUSED:
        _refuse_faults(rows, findings)
    if end > config.segment_bytes:
        raise _too_much(data[:end], config)
    return _validated(data if end == len(data) else data[:end], rows)
