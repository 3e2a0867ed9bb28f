"""Validation of batches that are appended, and their offsets (``LogValidator``, ``UnifiedLog.append``).

::

    bytes ─► check headers, checksums, records (records.check) ─► check sizes ─► recompress, if necessary
          ─► assign offsets, leader epoch, log-append time

A batch is refused as a whole, with Kafka's error; its bytes have not changed then. An accepted batch is
changed in place: its base offset and leader epoch, which no checksum covers; its largest timestamp, if it is
not that of its records; with ``message.timestamp.type=LogAppendTime`` its timestamp type and time. Only if
``compression.type`` names another codec than the batch's, a new batch is built.

A producer sends one batch. A second whole batch is refused. Other bytes after the first batch, such as an
incomplete batch, are not appended, as in Kafka; ``ValidatedBatches.trailing_bytes`` counts them. Coordinators
and replicas send several batches. An incomplete batch of a coordinator is refused, because leaving it out
would lose records; a replica fetches it again.

Intended differences from Kafka 4.3, with Kafka's error code in parentheses (``docs/appending.md`` has the
table, ``tests/kafka/cleaning/test_twin_appends.py`` compares with a broker):

- Batches that readers would refuse as damaged are refused; Kafka stores them. They have sizes below -1 (which
  Kafka takes for null), varints with bits that do not fit, record offsets that do not ascend one by one (87);
  inside of compressed batches wrong record sizes (87), and bytes after the compressed stream (-1).
- A transactional batch without a producer id is refused (87): no marker could end its transaction.
- A delete horizon in a batch is removed; Kafka keeps it. With one a producer could have tombstones removed
  before any consumer has read them.
- A batch with the attribute for log-append time is accepted with its records' own timestamps, as by Kafka,
  unless the topic itself assigns that time. But these timestamps are checked, and the largest one is written
  into the header; Kafka trusts the header.
- A decompressed batch must fit ``max.decompressed.message.bytes`` (10).
- An error lists at most 10,000 records.
- Where Kafka fails with an unexpected error (-1) on a damaged record or size, the batch is refused (87, 2).
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

# Recompression: the codec of ``compression.type`` replaces the producer's (in Kafka
# ``LogValidator.buildRecordsAndAssignOffsets``).
#
# A batch with the topic's codec stays as it is, and so does a control batch, which is never compressed. Any
# other batch is built again from its records. It keeps producer, sequence and flags; its base timestamp is
# the first record's. The records keep their own timestamps, also if the batch claims log-append time.


def recompress(data: Bytes, batches: BatchHeaders, config: LogConfig) -> tuple[Bytes, BatchHeaders]:
    """Compress checked batches with the codec of ``compression.type``: (their bytes, their headers).

    Batches that have the codec are returned as they are. A new batch keeps base offset and leader epoch.
    """
    codec = codec_number(config.compression_type)
    attributes = batches["attributes"]
    to_rebuild = ((attributes & CODEC_MASK) != codec) & ((attributes & CONTROL_BIT) == 0)
    if not to_rebuild.any():
        return data, batches
    parts = []
    for row, is_rebuilt in enumerate(to_rebuild.tolist()):
        start, size = int(batches["position"][row]), int(batches["size"][row])
        batch = batches[row : row + 1]
        parts.append(_rebuild_batch(data, batch, codec, config) if is_rebuilt else data[start : start + size])
    joined = np.concatenate(parts)
    return joined, scan_batches(joined).batches


def _rebuild_batch(data: Bytes, batch: BatchHeaders, codec: int, config: LogConfig) -> Bytes:
    """Build a batch again, compressed with ``codec`` at the topic's level."""
    old, own_times = batch[0], batch.copy()
    # Decoded without the bit for log-append time, records have their own timestamps.
    own_times["attributes"] &= ~TIMESTAMP_TYPE_BIT
    columns = decode_records(data, own_times, limit=config.max_decompressed_message_bytes)
    level = getattr(config, f"compression_{config.compression_type}_level") if CODECS[codec].levels else None
    header = NewBatchHeader(
        base_offset=int(old["base_offset"]),
        leader_epoch=int(old["leader_epoch"]),
        codec=codec,
        level=level,
        producer_id=int(old["producer_id"]),
        producer_epoch=int(old["producer_epoch"]),
        base_sequence=int(old["base_sequence"]),
        transactional=bool(old["attributes"] & TRANSACTIONAL_BIT),
    )
    # A record's headers, their count included, are its bytes from the end of its value to its own end. They
    # are copied as they are.
    headers = columns.value_start.astype(np.int64) + np.maximum(columns.value_size, 0)
    headers_size = (columns.start.astype(np.int64) + columns.size - headers).astype(np.int32)
    return build_batch(
        header,
        offset=columns.offset,
        timestamp=columns.timestamp,
        keys=Spans(data=columns.data, start=columns.key_start.astype(np.int64), size=columns.key_size),
        values=Spans(data=columns.data, start=columns.value_start.astype(np.int64), size=columns.value_size),
        headers=Spans(data=columns.data, start=headers, size=headers_size),
    )


_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_NEXT_OFFSET_MAX = _INT64_MAX - (1 << 31)
"""If the next offset is above this, a batch of 2^31 records would move the log end offset beyond an int64."""
NAMED_RECORDS_MAX = 10_000
"""The most refused records that an error lists, since a small compressed batch can hold millions."""
_SCRATCH_SIZE = 4096
"""Bytes of a decompression buffer at first; it grows."""

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
"""Reasons for which a batch is refused. The first ones are faults of a record, as decoding finds them."""
_FAULT_ADVICE = {
    Fault.CHECKSUM: "it was damaged in transit; send it again",
    Fault.BASE_OFFSET: "send base offset 0, since the log assigns offsets",
    Fault.MAGIC: "send format v2 (Kafka 0.11 and later)",
    Fault.OFFSETS: "fetch from the log end offset",
}
_FAULT_ERROR: dict[Fault, type[LogError]] = {
    Fault.CHECKSUM: CorruptMessageError,
    Fault.CODEC: UnreadableBatchError,
}
"""Kafka's errors for faults; all other faults are an InvalidRecordError."""
SECOND_BATCH = "more than one batch was sent"
NO_KEY = "has no key, which a compacted topic requires"
CLAIMS_APPEND_TIME = "claims log-append time, which only the log may assign"


class Origin(enum.Enum):
    """Who appends (``AppendOrigin``): a producer, a coordinator of groups or transactions, or a replica."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class ValidatedBatches(NamedTuple):
    """Batches that may be appended, with the offsets that they got (Kafka's ``ValidationResult``).

    ``data``: their bytes; ``batches``: their headers. ``offset_of_max_timestamp``: the last offset of the
    first batch with the largest timestamp (ms), as a time index has it. ``trailing_bytes``: how many bytes
    after a producer's batch were left out of ``data``.
    """

    data: Bytes
    batches: BatchHeaders
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    record_count: int
    trailing_bytes: int = 0


def validate_and_assign(
    data: Bytes,
    *,
    config: LogConfig,
    next_offset: int,
    now_ms: int,
    leader_epoch: int,
    origin: Origin = Origin.CLIENT,
) -> ValidatedBatches:
    """Check batches and write their offsets, from ``next_offset`` on, into ``data`` itself, or into new bytes
    if they are recompressed.

    ``data`` is uint8, contiguous and writable. A client sends one batch; an incomplete one after it is left
    out. Other origins may send several batches. Replicated batches keep their offsets and leader epochs, and
    an incomplete one at the end is left out. Raises a LogError with Kafka's code for batches that are not
    accepted; ``data`` has not changed then.
    """
    if next_offset > _NEXT_OFFSET_MAX:
        raise LogError(
            f"no offsets are left above {next_offset}, to which a checkpoint or a batch has moved the log",
            advice="delete the partition, or restore it from a replica",
        )
    if origin is Origin.REPLICATION:
        return _validate_replicated(data, config, next_offset)
    is_client, is_append_time = origin is Origin.CLIENT, config.message_timestamp_type == "LogAppendTime"
    rules: RecordRules = (is_client, config.compacts, *_timestamp_bounds(config, now_ms, is_append_time))
    assigned = (next_offset, leader_epoch, is_append_time, now_ms)  # ``AssignedFields`` of ``records.check``
    is_recompressed = config.compression_type != "producer"
    size_limit = 0 if is_recompressed else min(config.max_message_bytes, config.segment_bytes)
    # The common case first: a kernel checks one uncompressed batch and writes its offsets. For anything else,
    # and with size limit 0 (recompression), it returns 0 records, and the steps below check the batches.
    rows = np.empty(1, BATCH)
    checksum = _checksum_of_one_batch(data)
    record_count, first, last, largest = validate_single_batch(
        data, rows, checksum, rules, size_limit, assigned
    )
    if record_count:
        return ValidatedBatches(data, rows, first, last, largest, last, record_count)
    batch_data = _only_batch(data) if is_client else data
    trailing_bytes = len(data) - len(batch_data)
    if trailing_bytes:
        data, checksum = batch_data, _checksum_of_one_batch(batch_data)
    rows, findings = _check_batches(data, checksum, config, rules, is_append_time)
    if is_recompressed:
        data, rows = recompress(data, rows, config)
        _refuse_oversized(rows, config)
    _refuse_more_than_a_segment(data, config)
    if assign_offsets(data, rows, findings, assigned):
        _write_pending_checksums(data, rows, np.flatnonzero(findings[:, CHECKSUM_PENDING]))
    return ValidatedBatches(data, rows, *summarize_batches(rows), trailing_bytes)


def _write_pending_checksums(data: Bytes, rows: BatchHeaders, pending: Int64) -> None:
    """Compute the checksums of the batches ``pending`` (row numbers), into ``data`` and ``rows``."""
    patch_checksums(data, rows["position"][pending], rows["size"][pending].astype(np.int64))
    for row in pending.tolist():
        rows["crc"][row] = _read_int32(data, int(rows["position"][row]) + CRC_POSITION)


def _checksum_of_one_batch(data: Bytes) -> int:
    """The CRC32C of ``data`` if it is one large batch by its size field, else -1.

    For a large batch the library is faster than the kernel of ``check_batches``, which computes the checksums
    of small ones.
    """
    if len(data) <= SMALL_BATCH_SIZE:
        return -1
    is_one = _read_int32(data, SIZE_POSITION) + LOG_OVERHEAD == len(data)
    return int(crc32c(data.data[CHECKSUM_START:])) if is_one else -1


def _read_int32(data: Bytes, position: int, *, signed: bool = False) -> int:
    """Read the big-endian int32 at ``position``, unsigned by default."""
    return int.from_bytes(data[position : position + 4].tobytes(), "big", signed=signed)


def _timestamp_bounds(config: LogConfig, now_ms: int, is_append_time: bool) -> tuple[int, int]:
    """The smallest and the largest timestamp (ms) that a record may have."""
    if is_append_time:
        return _INT64_MIN, _INT64_MAX
    minimum = now_ms - config.message_timestamp_before_max_ms
    maximum = now_ms + config.message_timestamp_after_max_ms
    return max(minimum, _INT64_MIN), min(maximum, _INT64_MAX)


def _only_batch(data: Bytes) -> Bytes:
    """The bytes of a producer's batch, without any other bytes after it (Kafka's
    ``ProduceRequest.validateRecords``).

    Raises InvalidRecordError if there is no batch or a second one, CorruptMessageError for bytes that cannot
    be a batch.
    """
    size = _first_batch_size(data)
    if _whole_batch_size(data, size):
        raise InvalidRecordError(SECOND_BATCH, advice="send one batch for each partition and request")
    return data[:size]


def _first_batch_size(data: Bytes) -> int:
    """The size of the first batch. Raises InvalidRecordError if there is no whole batch, CorruptMessageError
    for bytes that cannot be a batch."""
    size = _whole_batch_size(data, 0)
    if size == 0:
        raise _incomplete_data_error(data, 0, ScanEnd.TRUNCATED if len(data) else ScanEnd.CLEAN)
    return size


def refuse_unless_one_batch(data: Bytes, *, or_several: bool = False) -> None:
    """Check what a broker checks of a producer's batch before it looks for the log: that there is one batch,
    in format v2 (Kafka's ``ProduceRequest.validateRecords``). ``or_several``: do not look for a second batch,
    because the caller refuses the first one for a reason that Kafka checks earlier. Raises
    InvalidRecordError, CorruptMessageError."""
    if or_several:
        _first_batch_size(data)
    else:
        _only_batch(data)
    if data[MAGIC_POSITION] < 2:
        raise _fault_error(Fault.MAGIC, 0)


def refuse_bad_head(data: Bytes) -> None:
    """Raise CorruptMessageError if the first batch has a size or a magic byte that no batch has (Kafka's
    ``ByteBufferLogInputStream``). An incomplete header raises nothing."""
    _whole_batch_size(data, 0)


def _whole_batch_size(data: Bytes, position: int) -> int:
    """The size of the batch at ``position``, 0 if it is incomplete (Kafka's ``ByteBufferLogInputStream``).

    Raises CorruptMessageError for a size or a magic byte that no batch has.
    """
    available = len(data) - position
    if available < LOG_OVERHEAD:
        return 0
    size = _read_int32(data, position + SIZE_POSITION, signed=True)
    if size < MIN_SIZE_FIELD[0]:  # that of magic 0, the smallest of all formats
        raise CorruptMessageError(SCAN_REASON[ScanEnd.BAD_SIZE], position=position)
    if available <= MAGIC_POSITION:
        return 0
    if data[position + MAGIC_POSITION] > 2:
        raise CorruptMessageError(SCAN_REASON[ScanEnd.BAD_MAGIC], position=position)
    return size + LOG_OVERHEAD if size + LOG_OVERHEAD <= available else 0


def _run_check(
    data: Bytes, capacity: int, check: Callable[..., tuple[int, int, int, int]], *arguments: object
) -> tuple[BatchHeaders, Int64, int, ScanEnd, int]:
    """Run a kernel of ``records.check`` with enough rows: (batches, findings, end, outcome, flags).

    ``capacity``: the number of rows of the first try. Each batch has a row in ``batches`` and one in
    ``findings``, whose columns are ``FAULT`` … ``CHECKSUM_PENDING`` of ``records.check``. ``end``: the
    position after the last whole batch; ``outcome``: why the scan ends there. ``flags``: what holds for at
    least one batch (``ANY_REFUSED``, ``ANY_CHECKSUM_PENDING``, ``ANY_COMPRESSED``, ``ANY_LOG_APPEND_TIME``).
    """
    while True:
        rows, findings = np.empty(capacity, BATCH), np.empty((capacity, FINDING_COLUMNS), np.int64)
        count, end, outcome, flags = check(data, rows, findings, *arguments)
        if outcome != ScanEnd.ROWS_FULL:
            return rows[:count], findings[:count], end, ScanEnd(outcome), flags
        capacity = max(8 * capacity, len(data) // 1024)  # at a guess of 1 KiB a batch


def _check_batches(
    data: Bytes, checksum: int, config: LogConfig, rules: RecordRules, is_append_time: bool
) -> tuple[BatchHeaders, Int64]:
    """Check batches and their records: (headers, findings). ``checksum``: that of ``_checksum_of_one_batch``.

    Raises a LogError for the first fault in Kafka's order.
    """
    is_client, _, timestamp_min, timestamp_max = rules
    rows, findings, end, outcome, flags = _run_check(
        data, 1 if is_client else 2, check_batches, checksum, rules
    )
    if outcome or len(rows) == 0:  # an outcome other than CLEAN (0)
        raise _incomplete_data_error(data, end, outcome, size_max=config.max_message_bytes)
    if flags & ANY_REFUSED:
        # Kafka checks the format and the base offset first, then sizes, then checksums. So do the next steps.
        is_first_check = (findings[:, FAULT] == Fault.MAGIC) | (findings[:, FAULT] == Fault.BASE_OFFSET)
        _refuse_first(rows, findings, is_first_check)
    if len(data) > config.max_message_bytes:
        _refuse_oversized(rows, config)
    _refuse_faults(data, rows, findings, flags)
    if flags & ANY_COMPRESSED:
        scratch = Scratch(_SCRATCH_SIZE)
        for row in np.flatnonzero(rows["attributes"] & CODEC_MASK).tolist():
            records, start, end = _decompressed_records(data, rows, row, config, scratch)
            check_records(records, start, end, rows, row, timestamp_min, timestamp_max, findings[row])
        _refuse_faults(data, rows, findings, ANY_REFUSED)
    if flags & (ANY_REFUSED | ANY_COMPRESSED | ANY_LOG_APPEND_TIME):
        _refuse_records(data, rows, findings, config, rules, is_append_time)
    return rows, findings


def _incomplete_data_error(
    data: Bytes, end: int, outcome: ScanEnd, *, size_max: int | None = None
) -> LogError:
    """The error for ``data`` that is not a sequence of whole batches; ``end``: where the last one ends;
    ``size_max``: ``max.message.bytes``."""
    if outcome == ScanEnd.CLEAN:
        return InvalidRecordError("no batch was sent", advice="send at least one record")
    # A message of format v1 may be smaller than the scan's minimum; Kafka reports its format.
    if outcome == ScanEnd.BAD_SIZE and data[end + MAGIC_POSITION] == 1:
        return _fault_error(Fault.MAGIC, end)
    if outcome in (ScanEnd.BAD_SIZE, ScanEnd.BAD_MAGIC):
        return CorruptMessageError(SCAN_REASON[outcome], position=end)
    # Kafka checks the base offset, the size, the checksum and the codec before the record count.
    if outcome == ScanEnd.BAD_COUNT:
        size = _read_int32(data, end + SIZE_POSITION) + LOG_OVERHEAD
        if data[end : end + SIZE_POSITION].any():
            return _fault_error(Fault.BASE_OFFSET, end)
        if size_max is not None and size > size_max:
            return _oversized_error(size, size_max, end)
        if crc32c(data.data[end + CHECKSUM_START : end + size]) != _read_int32(data, end + CRC_POSITION):
            return _fault_error(Fault.CHECKSUM, end)
        if data[end + ATTRIBUTES_POSITION + 1] & CODEC_MASK >= len(CODECS):
            return _fault_error(Fault.CODEC, end)
    return at_position(InvalidRecordError(SCAN_REASON[outcome]), end)


def _fault_error(fault: Fault, position: int, record: int = -1) -> LogError:
    """Kafka's error for a fault of the batch at ``position``. ``record``: the number of the record that has
    the fault, -1 if it is one of the batch as a whole."""
    reason, advice = FAULT_REASON[fault], _FAULT_ADVICE.get(fault)
    if record >= 0:
        return at_position(InvalidRecordError(reason, record, advice=advice), position)
    return at_position(_FAULT_ERROR.get(fault, InvalidRecordError)(reason, advice=advice), position)


def at_position(error: LogError, position: int) -> LogError:
    """Set the position of an error, where the refused batch begins in the bytes that were sent; return it."""
    error.position = position
    return error


def _refuse_first(rows: BatchHeaders, findings: Int64, wrong: Flags) -> None:
    """Raise the error for the first batch that is ``wrong`` (bool, one for each batch), if there is one."""
    if wrong.any():
        row = int(wrong.argmax())
        fault, record = findings[row, [FAULT, FAULTY_RECORD]].tolist()
        raise _fault_error(Fault(fault), int(rows["position"][row]), record)


def _refuse_faults(data: Bytes, rows: BatchHeaders, findings: Int64, flags: int) -> None:
    """Check the pending checksums, then raise the first error: wrong checksums come before other faults."""
    if flags & ANY_CHECKSUM_PENDING:
        for row in np.flatnonzero(findings[:, CHECKSUM_PENDING]).tolist():
            start, size = int(rows["position"][row]), int(rows["size"][row])
            if rows["magic"][row] < 2:
                is_right = first_bad_checksum(data, rows[row : row + 1]) is None
            else:
                is_right = crc32c(data.data[start + CHECKSUM_START : start + size]) == int(rows["crc"][row])
            if not is_right:
                findings[row, FAULT], findings[row, FAULTY_RECORD] = Fault.CHECKSUM, -1
    if flags & (ANY_CHECKSUM_PENDING | ANY_REFUSED):
        _refuse_first(rows, findings, findings[:, FAULT] == Fault.CHECKSUM)
        _refuse_first(rows, findings, findings[:, FAULT] != Fault.NONE)


def _refuse_oversized(rows: BatchHeaders, config: LogConfig) -> None:
    large = np.flatnonzero(rows["size"] > config.max_message_bytes)
    if len(large):
        size, position = int(rows["size"][large[0]]), int(rows["position"][large[0]])
        raise _oversized_error(size, config.max_message_bytes, position)


def _oversized_error(size: int, limit: int, position: int) -> MessageTooLargeError:
    """The error for a batch of ``size`` bytes, of which only ``limit`` are allowed."""
    return MessageTooLargeError(
        f"the batch has {size} bytes, which is more than max.message.bytes={limit}",
        position=position,
        advice="send smaller batches, or raise max.message.bytes",
    )


def _refuse_more_than_a_segment(data: Bytes, config: LogConfig) -> None:
    if len(data) > config.segment_bytes:
        raise RecordListTooLargeError(
            f"{len(data)} bytes do not fit into a segment of segment.bytes={config.segment_bytes}",
            advice="send smaller batches, or raise segment.bytes",
        )


def _decompressed_records(
    data: Bytes, rows: BatchHeaders, row: int, config: LogConfig, scratch: Scratch
) -> tuple[Bytes, int, int]:
    """The records of batch ``row``, decompressed if necessary: (bytes, where the records start in them, where
    they end). Raises MessageTooLargeError, UnreadableBatchError."""
    start, size = int(rows["position"][row]), int(rows["size"][row])
    codec = int(rows["attributes"][row]) & CODEC_MASK
    if not codec:
        return data, start + BATCH_OVERHEAD, start + size
    limit = config.max_decompressed_message_bytes
    if int(rows["count"][row]) > max_records(limit):
        raise _too_large_error(start, f"more than {max_records(limit)} records")
    scratch.clear()
    try:
        body = data[start + BATCH_OVERHEAD : start + size]
        decompress(codec, body, scratch, limit)
    except DecompressedTooLargeError as error:
        raise _too_large_error(start, str(error)) from None
    except DecompressionError as error:
        raise at_position(UnreadableBatchError(str(error)), start) from None
    records = scratch.array()
    return records, 0, len(records)


def _too_large_error(position: int, reason: str) -> MessageTooLargeError:
    advice = "send smaller batches, or raise max.decompressed.message.bytes"
    return MessageTooLargeError(reason, position=position, advice=advice)


def _refuse_records(
    data: Bytes,
    rows: BatchHeaders,
    findings: Int64,
    config: LogConfig,
    rules: RecordRules,
    is_append_time: bool,
) -> None:
    """Refuse the first batch with records that the topic does not accept; the error lists these records.

    A batch that claims log-append time is refused if the topic assigns that time, or if its largest
    timestamp is -1 (none). If some records have a wrong timestamp and others have no key, the error is the
    one for timestamps.
    """
    _, is_key_required, timestamp_min, timestamp_max = rules
    claims_append_time = (rows["attributes"] & TIMESTAMP_TYPE_BIT) != 0
    claims_append_time &= np.full(len(rows), is_append_time) | (rows["max_timestamp"] == -1)
    wrong = claims_append_time | (findings[:, FIRST_BAD_TIMESTAMP] >= 0)
    if is_key_required:
        wrong |= findings[:, FIRST_KEYLESS] >= 0
    if not wrong.any():
        return
    row = int(wrong.argmax())
    records, start, end = _decompressed_records(data, rows, row, config, Scratch(_SCRATCH_SIZE))
    refused = np.empty((min(NAMED_RECORDS_MAX, int(rows["count"][row])), 2), np.int64)
    is_claim = bool(claims_append_time[row])
    # How many are refused, the first one without a key, the first one with a bad timestamp (-1: none).
    count, keyless, bad_time = refused_records(records, start, end, rows[row], rules, is_claim, refused)
    bounds = (
        f"has a timestamp outside [{timestamp_min}, {timestamp_max}], which message.timestamp.before.max.ms="
        f"{config.message_timestamp_before_max_ms} and message.timestamp.after.max.ms="
        f"{config.message_timestamp_after_max_ms} allow"
    )
    reasons = (NO_KEY, CLAIMS_APPEND_TIME if is_claim else bounds)
    listed = refused[:count].tolist()  # a kernel's rows: (index, 1 for a bad timestamp, 0 for a missing key)
    errors = [RecordError(index=index, message=reasons[is_time]) for index, is_time in listed]
    is_time = bad_time >= 0
    error_type, record = (InvalidTimestampError, bad_time) if is_time else (InvalidRecordError, keyless)
    reason = f"record {record} {reasons[is_time]} ({count} of {rows['count'][row]} records are refused)"
    raise at_position(error_type(reason, record, errors), int(rows["position"][row]))


def _validate_replicated(data: Bytes, config: LogConfig, next_offset: int) -> ValidatedBatches:
    """Check a leader's batches, which keep offsets and epochs; an incomplete one at the end is left out."""
    rows, findings, end, outcome, flags = _run_check(data, 2, check_replicated_batches, next_offset)
    if len(rows) == 0 and outcome in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
        raise InvalidRecordError("no complete batch was fetched", advice="fetch more bytes")
    if outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
        raise CorruptMessageError(SCAN_REASON[outcome], position=end, advice="fetch it again")
    _refuse_faults(data, rows, findings, flags)
    _refuse_more_than_a_segment(data[:end], config)
    return ValidatedBatches(data if end == len(data) else data[:end], rows, *summarize_batches(rows))
