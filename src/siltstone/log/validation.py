"""Validation of batches that are appended, and their offsets (``LogValidator``, ``UnifiedLog.append``).

::

    bytes ─► headers, checksums, records (records.check) ─► sizes ─► [recompress] ─► offsets, epoch, time

A batch is refused as a whole, with Kafka's error; its bytes have not changed then. An accepted batch is
changed in place: base offset and leader epoch, which no checksum covers, the largest timestamp where it is
not that of the records, and under log-append time the time. Only a ``compression.type`` other than the
batch's makes a new batch.

A producer sends one batch. Bytes behind it that are no whole batch, such as an incomplete one, are not
appended, as in Kafka, and counted (``Validated.left_out``); a second whole batch is refused. Coordinators and
replicas send several batches, where leaving out an incomplete one would lose records: those of coordinators
are refused, and a replica fetches the rest again.

Intended differences from Kafka 4.3 (``docs/appending.md`` has the table, and
``tests/kafka/test_twin_appends.py`` measures them):

- Batches that readers would refuse as damaged are refused, where Kafka stores them: sizes below -1 (which
  Kafka takes for null), varints with bits that do not fit, record offsets that do not ascend one by one (87);
  inside of compressed batches wrong record sizes (87), and bytes behind the compressed stream (-1).
- A transactional batch without a producer id is refused (87): no marker could end its transaction.
- A delete horizon is removed, where Kafka keeps it: with it a producer could have tombstones removed before
  any consumer has read them.
- A batch that claims log-append time is accepted with its records' own timestamps, as by Kafka; but these
  timestamps are checked and summed up, where Kafka uses the header's.
- A batch has to fit ``max.decompressed.message.bytes`` (10), and at most 10,000 records are named.
- Where Kafka fails on a damaged record or size (-1), the batch is refused for that (87, 2).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from siltstone.base.codec_table import CODECS, codec_number
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    LogError,
    MessageTooLargeError,
    RecordError,
    RecordListTooLargeError,
    UnreadableBatchError,
)
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.base.records.check import (
    ANY_CHECKSUM_PENDING,
    ANY_COMPRESSED,
    ANY_LOG_APPEND_TIME,
    ANY_REFUSED,
    CHECKSUM_PENDING,
    FAULT,
    FAULTY_RECORD,
    FINDING_COLUMNS,
    FIRST_BAD_TIMESTAMP,
    FIRST_KEYLESS,
    SMALL_BATCH_SIZE,
    Fault,
    RecordRules,
    assign_offsets,
    check_batches,
    check_records,
    check_replicated_batches,
    refused_records,
    summarize_batches,
    validate_single_batch,
)
from siltstone.base.records.checksum import first_bad_checksum, patch_checksums
from siltstone.base.records.codecs import DecompressedTooLargeError, DecompressionError, Scratch, decompress
from siltstone.base.records.columns import DECODE_REASON
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import max_records
from siltstone.base.records.layout import (
    ATTRIBUTES_POSITION,
    BATCH,
    BATCH_OVERHEAD,
    CHECKSUM_START,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MIN_SIZE_FIELD,
    SIZE_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int64,
)
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches

# Recompression: the topic's codec replaces the producer's (``compression.type``; in Kafka's ``LogValidator``
# ``buildRecordsAndAssignOffsets``).
#
# A batch with the topic's codec stays as it is, and so does a control batch, which is never compressed. Any
# other one is built again from its records: producer, sequence and flags are the old one's, the base
# timestamp is the first record's. The records keep their own times, also those of a batch that claims
# log-append time.


def recompress(data: Bytes, batches: BatchHeaders, config: LogConfig) -> tuple[Bytes, BatchHeaders]:
    """``data`` and its ``batches`` under the topic's ``compression.type``; the same ones where they have it.

    The batches have been checked; base offset and leader epoch of a new one are the old one's.
    """
    codec = codec_number(config.compression_type)
    attributes = batches["attributes"]
    to_rebuild = ((attributes & CODEC_MASK) != codec) & ((attributes & CONTROL_BIT) == 0)
    if not to_rebuild.any():
        return data, batches
    parts = []
    for row, is_rebuilt in enumerate(to_rebuild.tolist()):
        start, size = int(batches["position"][row]), int(batches["size"][row])
        one = batches[row : row + 1]
        parts.append(_rebuild(data, one, codec, config) if is_rebuilt else data[start : start + size])
    joined = np.concatenate(parts)
    return joined, scan_batches(joined).batches


def _rebuild(data: Bytes, batch: BatchHeaders, codec: int, config: LogConfig) -> Bytes:
    """One batch made anew under ``codec``, at the topic's level for it."""
    old, own_times = batch[0], batch.copy()
    # Decoded without the bit for log-append time, records have their own timestamps.
    own_times["attributes"] &= ~TIMESTAMP_TYPE_BIT
    columns = decode_records(data, own_times, limit=config.max_decompressed_message_bytes)
    level = getattr(config, f"compression_{config.compression_type}_level") if CODECS[codec].levels else None
    shape = NewBatchHeader(
        base_offset=int(old["base_offset"]),
        leader_epoch=int(old["leader_epoch"]),
        codec=codec,
        level=level,
        producer_id=int(old["producer_id"]),
        producer_epoch=int(old["producer_epoch"]),
        base_sequence=int(old["base_sequence"]),
        transactional=bool(old["attributes"] & TRANSACTIONAL_BIT),
    )
    # A record's headers are copied as they are encoded, the count in front: from its value's end to its own.
    headers = columns.value_start.astype(np.int64) + np.maximum(columns.value_size, 0)
    headers_size = (columns.start.astype(np.int64) + columns.size - headers).astype(np.int32)
    return build_batch(
        shape,
        offset=columns.offset,
        timestamp=columns.timestamp,
        keys=Spans(data=columns.data, start=columns.key_start.astype(np.int64), size=columns.key_size),
        values=Spans(data=columns.data, start=columns.value_start.astype(np.int64), size=columns.value_size),
        headers=Spans(data=columns.data, start=headers, size=headers_size),
    )


_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_LAST_END_OFFSET = _MAX - (1 << 31)
"""Above it a batch of 2^31 records would move the end offset beyond an int64."""
NAMED_RECORDS = 10_000
"""At most so many refused records are named: a small compressed batch can hold millions."""

FAULT_REASON: dict[int, str] = {
    **dict(enumerate(DECODE_REASON)),
    Fault.RECORD_OFFSETS: "the records' offsets do not increase by one",
    Fault.CHECKSUM: "the batch's checksum does not match",
    Fault.BASE_OFFSET: "the batch's base offset is not 0",
    Fault.MAGIC: "the batch has format v0 or v1",
    Fault.COUNT: "the batch's record count is not positive, or does not match its offsets",
    Fault.CONTROL: "clients may not write control records",
    Fault.SEQUENCE: "the batch has a producer id but no sequence number",
    Fault.EPOCH: "the batch is transactional but has no producer epoch",
    Fault.NO_PRODUCER: "the batch is transactional but has no producer id",
    Fault.CODEC: "the batch's codec is unknown",
    Fault.OFFSETS: "the batch's offsets are below the log end offset, or do not increase",
}
"""What is wrong with a refused batch; the reasons of records are those of decoding."""
_FAULT_ADVICE = {
    Fault.CHECKSUM: "it was damaged in transit; send it again",
    Fault.BASE_OFFSET: "send base offset 0, since the log assigns offsets",
    Fault.MAGIC: "send format v2 (Kafka 0.11 and later)",
    Fault.OFFSETS: "fetch from the log end offset",
}
_FAULT_KIND: dict[Fault, type[LogError]] = {
    Fault.CHECKSUM: CorruptMessageError,
    Fault.CODEC: UnreadableBatchError,
}
"""Kafka's errors for faults; those for all others are InvalidRecordError."""
SECOND_BATCH = "more than one batch was sent"
NO_KEY = "has no key, which a compacted topic requires"
CLAIMS_APPEND_TIME = "claims log-append time, which only the log may assign"


class Origin(enum.Enum):
    """Who appends (``AppendOrigin``): a producer, a coordinator of groups or transactions, or a replica."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class Validated(NamedTuple):
    """Validated batches. ``batches`` are the rows of ``data``; ``last_offset`` is the last batch's.

    ``offset_of_max_timestamp`` is the last offset of the first batch with the largest timestamp (ms), as in a
    time index. ``left_out``: the number of bytes behind a producer's batch, which are not in ``data``.
    """

    data: Bytes
    batches: BatchHeaders
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    records: int
    left_out: int = 0


def validate_and_assign(
    data: Bytes,
    *,
    config: LogConfig,
    next_offset: int,
    now_ms: int,
    leader_epoch: int,
    origin: Origin = Origin.CLIENT,
) -> Validated:
    """Check batches and assign offsets from ``next_offset`` on, in ``data`` itself.

    ``data`` is uint8, contiguous and writable. A client sends one batch; the start of another one behind it
    is left out. Other origins may send several. Replicated batches keep their offsets and leader epochs, and
    an incomplete one at the end is left out. Raises a LogError with Kafka's code for batches that are not
    accepted; ``data`` has not changed then.
    """
    if next_offset > _LAST_END_OFFSET:
        raise LogError(
            f"no offsets are left above {next_offset}, to which a checkpoint or a batch has moved the log",
            advice="delete the partition, or restore it from a replica",
        )
    if origin is Origin.REPLICATION:
        return _validate_replicated(data, config, next_offset)
    client, log_append = origin is Origin.CLIENT, config.message_timestamp_type == "LogAppendTime"
    rules = (client, config.compacts, *_bounds(config, now_ms, log_append))
    assigned = (next_offset, leader_epoch, log_append, now_ms)
    small = (
        min(config.max_message_bytes, config.segment_bytes) if config.compression_type == "producer" else 0
    )
    # The common case first: one uncompressed, valid batch is checked and gets its offsets in one kernel call.
    rows = np.empty(1, BATCH)
    checksum = _checksum(data)
    records, first, last, largest = validate_single_batch(data, rows, checksum, rules, small, assigned)
    if records:
        return Validated(data, rows, first, last, largest, last, records)
    one = _first_batch(data) if client else data
    left_out = len(data) - len(one)
    if left_out:
        data, checksum = one, _checksum(one)
    rows, findings = _checked(data, checksum, config, rules, log_append)
    if config.compression_type != "producer":
        data, rows = recompress(data, rows, config)
        _refuse_oversized(rows, config)
    _refuse_more_than_a_segment(data, config)
    if assign_offsets(data, rows, findings, assigned):
        pending = np.flatnonzero(findings[:, CHECKSUM_PENDING])
        patch_checksums(data, rows["position"][pending], rows["size"][pending].astype(np.int64))
        for row in pending.tolist():
            rows["crc"][row] = _stored(data, int(rows["position"][row]) + CRC_POSITION)
    return Validated(data, rows, *summarize_batches(rows), left_out)


def _checksum(data: Bytes) -> int:
    """The checksum of ``data`` if it may be one large batch, else -1. The library is faster than a kernel."""
    if len(data) <= SMALL_BATCH_SIZE:
        return -1
    is_one = _stored(data, SIZE_POSITION) + LOG_OVERHEAD == len(data)
    return int(crc32c(data.data[CHECKSUM_START:])) if is_one else -1


def _stored(data: Bytes, position: int, *, signed: bool = False) -> int:
    """The four-byte number at a position."""
    return int.from_bytes(data[position : position + 4].tobytes(), "big", signed=signed)


def _bounds(config: LogConfig, now_ms: int, log_append: bool) -> tuple[int, int]:
    """The least and the largest timestamp that a record may have, ms."""
    if log_append:
        return _MIN, _MAX
    minimum = now_ms - config.message_timestamp_before_max_ms
    maximum = now_ms + config.message_timestamp_after_max_ms
    return max(minimum, _MIN), min(maximum, _MAX)


def _first_batch(data: Bytes) -> Bytes:
    """A producer's batch without the bytes behind it (``ProduceRequest.validateRecords``).

    Raises InvalidRecordError for no batch and for a second one, CorruptMessageError for bytes that cannot be
    a batch.
    """
    size = _whole_batch_at(data, 0)
    if size == 0:
        raise _no_batches(data, 0, ScanEnd.TRUNCATED if len(data) else ScanEnd.CLEAN)
    if _whole_batch_at(data, size):
        raise InvalidRecordError(SECOND_BATCH, advice="send one batch for each partition and request")
    return data[:size]


def _whole_batch_at(data: Bytes, position: int) -> int:
    """The size of the batch there, 0 when it is not whole (Kafka's ``ByteBufferLogInputStream``).

    Raises CorruptMessageError for a size or a magic byte that no batch has.
    """
    available = len(data) - position
    if available < LOG_OVERHEAD:
        return 0
    size = _stored(data, position + SIZE_POSITION, signed=True)
    if size < MIN_SIZE_FIELD[0]:
        raise CorruptMessageError(SCAN_REASON[ScanEnd.BAD_SIZE], position=position)
    if available <= MAGIC_POSITION:
        return 0
    if data[position + MAGIC_POSITION] > 2:
        raise CorruptMessageError(SCAN_REASON[ScanEnd.BAD_MAGIC], position=position)
    return size + LOG_OVERHEAD if size + LOG_OVERHEAD <= available else 0


def _scanned(
    data: Bytes, capacity: int, check: Callable[..., tuple[int, int, int, int]], *arguments: object
) -> tuple[BatchHeaders, Int64, int, ScanEnd, int]:
    """(batches, findings, end, outcome, flags) of a kernel that fills one row for each batch.

    ``capacity``: the number of rows to begin with. ``flags``: what is left to check (``ANY_REFUSED`` …).
    """
    while True:
        rows, findings = np.empty(capacity, BATCH), np.empty((capacity, FINDING_COLUMNS), np.int64)
        count, end, outcome, flags = check(data, rows, findings, *arguments)
        if outcome != ScanEnd.ROWS_FULL:
            return rows[:count], findings[:count], end, ScanEnd(outcome), flags
        capacity = max(8 * capacity, len(data) // 1024)


def _checked(
    data: Bytes, checksum: int, config: LogConfig, rules: RecordRules, log_append: bool
) -> tuple[BatchHeaders, Int64]:
    """The batches, one from a client, and their findings. ``checksum``: see ``_checksum``."""
    rows, findings, end, outcome, flags = _scanned(data, 1 if rules[0] else 2, check_batches, checksum, rules)
    if outcome or len(rows) == 0:
        raise _no_batches(data, end, outcome)
    if flags & ANY_REFUSED:
        # Kafka checks the format and the base offset first, then sizes, then checksums.
        early = (findings[:, FAULT] == Fault.MAGIC) | (findings[:, FAULT] == Fault.BASE_OFFSET)
        _refuse_first(rows, findings, early)
    if len(data) > config.max_message_bytes:
        _refuse_oversized(rows, config)
    _refuse_faults(data, rows, findings, flags)
    if flags & ANY_COMPRESSED:
        scratch = Scratch(4096)
        for row in np.flatnonzero(rows["attributes"] & CODEC_MASK).tolist():
            records, start, end = _decompressed(data, rows, row, config, scratch)
            check_records(records, start, end, rows, row, rules[2], rules[3], findings[row])
        _refuse_faults(data, rows, findings, ANY_REFUSED)
    if flags & (ANY_REFUSED | ANY_COMPRESSED | ANY_LOG_APPEND_TIME):
        _refuse_records(data, rows, findings, config, rules, log_append)
    return rows, findings


def _no_batches(data: Bytes, end: int, outcome: ScanEnd) -> LogError:
    """The error for ``data`` that is no sequence of whole batches: what is wrong at byte ``end``."""
    if outcome == ScanEnd.CLEAN:
        return InvalidRecordError("no batch was sent", advice="send at least one record")
    if outcome == ScanEnd.BAD_SIZE and data[end + MAGIC_POSITION] == 1:
        return _fault_error(Fault.MAGIC, end)
    if outcome in (ScanEnd.BAD_SIZE, ScanEnd.BAD_MAGIC):
        return CorruptMessageError(SCAN_REASON[outcome], position=end)
    # Kafka checks the checksum and the codec before the record count.
    if outcome == ScanEnd.BAD_COUNT:
        size = _stored(data, end + SIZE_POSITION) + LOG_OVERHEAD
        if crc32c(data.data[end + CHECKSUM_START : end + size]) != _stored(data, end + CRC_POSITION):
            return _fault_error(Fault.CHECKSUM, end)
        if data[end + ATTRIBUTES_POSITION + 1] & CODEC_MASK >= len(CODECS):
            return _fault_error(Fault.CODEC, end)
    return at_position(InvalidRecordError(SCAN_REASON[outcome]), end)


def _fault_error(fault: Fault, position: int, record: int = -1) -> LogError:
    """Kafka's error for the fault of the batch at ``position``, found in its ``record``; -1: in none."""
    reason, advice = FAULT_REASON[fault], _FAULT_ADVICE.get(fault)
    if record >= 0:
        return at_position(InvalidRecordError(reason, record, advice=advice), position)
    return at_position(_FAULT_KIND.get(fault, InvalidRecordError)(reason, advice=advice), position)


def at_position(error: LogError, position: int) -> LogError:
    """``error`` with the byte, in the bytes that were sent, at which the refused batch starts."""
    error.position = position
    return error


def _refuse_first(rows: BatchHeaders, findings: Int64, wrong: Flags) -> None:
    """Raise the error for the fault of the first batch that is wrong, if any is."""
    if wrong.any():
        row = int(wrong.argmax())
        fault, record = findings[row, [FAULT, FAULTY_RECORD]].tolist()
        raise _fault_error(Fault(fault), int(rows["position"][row]), record)


def _refuse_faults(data: Bytes, rows: BatchHeaders, findings: Int64, flags: int) -> None:
    """Check the pending checksums, then refuse: bad checksums of all batches come before other faults."""
    if flags & ANY_CHECKSUM_PENDING:
        for row in np.flatnonzero(findings[:, CHECKSUM_PENDING]).tolist():
            start, size = int(rows["position"][row]), int(rows["size"][row])
            if rows["magic"][row] < 2:
                holds = first_bad_checksum(data, rows[row : row + 1]) is None
            else:
                holds = crc32c(data.data[start + CHECKSUM_START : start + size]) == int(rows["crc"][row])
            if not holds:
                findings[row, FAULT], findings[row, FAULTY_RECORD] = Fault.CHECKSUM, -1
    if flags & (ANY_CHECKSUM_PENDING | ANY_REFUSED):
        _refuse_first(rows, findings, findings[:, FAULT] == Fault.CHECKSUM)
        _refuse_first(rows, findings, findings[:, FAULT] != Fault.NONE)


def _refuse_oversized(rows: BatchHeaders, config: LogConfig) -> None:
    large = np.flatnonzero(rows["size"] > config.max_message_bytes)
    if len(large):
        size, limit = int(rows["size"][large[0]]), config.max_message_bytes
        raise MessageTooLargeError(
            f"the batch has {size} bytes, which is more than max.message.bytes={limit}",
            position=int(rows["position"][large[0]]),
            advice="send smaller batches, or raise max.message.bytes",
        )


def _refuse_more_than_a_segment(data: Bytes, config: LogConfig) -> None:
    if len(data) > config.segment_bytes:
        raise RecordListTooLargeError(
            f"{len(data)} bytes do not fit into a segment of segment.bytes={config.segment_bytes}",
            advice="send smaller batches, or raise segment.bytes",
        )


def _decompressed(
    data: Bytes, rows: BatchHeaders, row: int, config: LogConfig, scratch: Scratch
) -> tuple[Bytes, int, int]:
    """The records of a batch, decompressed if needed: (bytes, start, end)."""
    start, size = int(rows["position"][row]), int(rows["size"][row])
    codec = int(rows["attributes"][row]) & CODEC_MASK
    if not codec:
        return data, start + BATCH_OVERHEAD, start + size
    limit = config.max_decompressed_message_bytes
    if int(rows["count"][row]) > max_records(limit):
        raise _too_large(start, f"more than {max_records(limit)} records")
    scratch.clear()
    try:
        body = data[start + BATCH_OVERHEAD : start + size]
        decompress(codec, body, scratch, limit)
    except DecompressedTooLargeError as error:
        raise _too_large(start, str(error)) from None
    except DecompressionError as error:
        raise at_position(UnreadableBatchError(str(error)), start) from None
    records = scratch.array()
    return records, 0, len(records)


def _too_large(position: int, reason: str) -> MessageTooLargeError:
    advice = "send smaller batches, or raise max.decompressed.message.bytes"
    return MessageTooLargeError(reason, position=position, advice=advice)


def _refuse_records(
    data: Bytes, rows: BatchHeaders, findings: Int64, config: LogConfig, rules: RecordRules, log_append: bool
) -> None:
    """Refuse sound batches with records that the topic does not accept, and name these records.

    A batch that claims log-append time is refused where the topic gives that itself, and where it claims
    "no time": its records may not have one. Where a batch has records of both kinds the timestamp decides.
    """
    claims = (rows["attributes"] & TIMESTAMP_TYPE_BIT) != 0
    claims &= np.full(len(rows), log_append) | (rows["max_timestamp"] == -1)
    wrong = claims | (findings[:, FIRST_BAD_TIMESTAMP] >= 0)
    if rules[1]:
        wrong |= findings[:, FIRST_KEYLESS] >= 0
    if not wrong.any():
        return
    row = int(wrong.argmax())
    records, start, end = _decompressed(data, rows, row, config, Scratch(4096))
    named = np.empty((min(NAMED_RECORDS, int(rows["count"][row])), 2), np.int64)
    claimed = bool(claims[row])
    count, keyless, untimely = refused_records(records, start, end, rows[row], rules, claimed, named)
    bounds = (
        f"has a timestamp outside [{rules[2]}, {rules[3]}], which message.timestamp.before.max.ms="
        f"{config.message_timestamp_before_max_ms} and message.timestamp.after.max.ms="
        f"{config.message_timestamp_after_max_ms} allow"
    )
    reasons = (NO_KEY, CLAIMS_APPEND_TIME if claimed else bounds)
    errors = [RecordError(index=index, message=reasons[timed]) for index, timed in named[:count].tolist()]
    timed = untimely >= 0
    kind, record = (InvalidTimestampError, untimely) if timed else (InvalidRecordError, keyless)
    reason = f"record {record} {reasons[timed]} ({count} of {rows['count'][row]} records are refused)"
    raise at_position(kind(reason, record, errors), int(rows["position"][row]))


def _validate_replicated(data: Bytes, config: LogConfig, next_offset: int) -> Validated:
    """Validate a leader's batches: offsets and epochs stay, an incomplete batch at the end is left out."""
    rows, findings, end, outcome, flags = _scanned(data, 2, check_replicated_batches, next_offset)
    if len(rows) == 0 and outcome in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
        raise InvalidRecordError("no complete batch was fetched", advice="fetch more bytes")
    if outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
        raise CorruptMessageError(SCAN_REASON[outcome], position=end, advice="fetch it again")
    _refuse_faults(data, rows, findings, flags)
    _refuse_more_than_a_segment(data[:end], config)
    return Validated(data if end == len(data) else data[:end], rows, *summarize_batches(rows))
