"""A log file's batches and records as rows, window by window (Kafka's ``DumpLogSegments.dumpLog``).

Checksums are flags here, not errors: a batch with a bad one is shown as not valid, its records are shown
as far as they can be read, and reading goes on. Batches are decoded one at a time, so what one holds
costs nothing to the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from siltstone import files
from siltstone.errors import CorruptRecordError
from siltstone.log.inspection.coordinators import decode_record
from siltstone.log.inspection.rows import DumpOptions, Finding, Output, Row, finding_of
from siltstone.log.segments import windows
from siltstone.records.checksum import batch_checksums
from siltstone.records.codecs import Scratch
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from siltstone.records.layout import (
    CODEC_MASK,
    CODECS,
    CONTROL_BIT,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
)
from siltstone.records.scan import SCAN_REASON, ScanEnd

BAD_CHECKSUM = "checksum does not match"
CONTROL_TYPES = (
    "ABORT COMMIT LEADER_CHANGE SNAPSHOT_HEADER SNAPSHOT_FOOTER KRAFT_VERSION KRAFT_VOTERS"
).split()
_LARGEST_SEQUENCE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One batch: its row in the output, its header in a directory of one, the window's data."""

    row: Row
    header: Directory
    data: Bytes
    origin: int


def log_rows(path: str, options: DumpOptions) -> Output:
    """Rows of every batch of a log file, its records behind it where asked for, and what is wrong.

    Damage ends the file: what comes before it was yielded. Raises OSError.
    """
    scratch = Scratch()
    with files.Reader(path) as reader:
        size = reader.stat.size
        limit = size if options.max_bytes is None else min(size, options.max_bytes)
        try:
            for window in windows(reader, size=limit, verify=False):
                valid = checksums_hold(window.data, window.batches)
                for number in range(len(window.batches)):
                    header = window.batches[number : number + 1]
                    row = batch_row(header, window.origin, bool(valid[number]))
                    batch = _Batch(row=row, header=header, data=window.data, origin=window.origin)
                    yield from _batch_output(path, batch, options, scratch)
        except CorruptRecordError as error:
            if limit == size or error.reason != SCAN_REASON[ScanEnd.TRUNCATED]:
                yield finding_of(error)


def checksums_hold(data: Bytes, batches: Directory) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Is each batch's stored checksum that of its bytes? bool, one a batch."""
    computed = np.empty(len(batches), np.uint32)
    modern = batches["magic"] == 2
    computed[modern] = batch_checksums(
        data, batches["position"][modern], batches["size"][modern].astype(np.int64)
    )
    view = data.data
    for number in np.flatnonzero(~modern).tolist():
        start = int(batches["position"][number])
        computed[number] = zlib.crc32(view[start + MAGIC_POSITION : start + int(batches["size"][number])])
    return np.asarray(computed == batches["crc"])


def batch_row(header: Directory, origin: int, valid: bool) -> Row:
    """A batch's row: ``header`` is a directory of one, ``origin`` the file position of its window."""
    found = dict(zip(header.dtype.names or (), header[0].tolist(), strict=True))
    attributes, magic = found["attributes"], found["magic"]
    row: Row = {"type": "batch"}
    if magic == 2:
        row |= _modern_fields(found)
    else:
        plain = not attributes & CODEC_MASK
        offset = found["base_offset"]
        row |= {"offset": offset, "baseOffset": offset if plain else None, "lastOffset": offset}
        row |= {"count": 1 if plain else None}
    return row | {
        "position": origin + found["position"],
        "timestampType": _timestamp_type(magic, attributes),
        "baseTimestamp": found["base_timestamp"],
        "maxTimestamp": found["max_timestamp"],
        "size": found["size"],
        "magic": magic,
        "attributes": attributes,
        "compresscodec": _codec_name(attributes & CODEC_MASK),
        "crc": found["crc"],
        "isvalid": valid,
    }


def _modern_fields(found: dict[str, int]) -> Row:
    attributes = found["attributes"]
    delta = found["last_offset"] - found["base_offset"]
    return {
        "baseOffset": found["base_offset"],
        "lastOffset": found["last_offset"],
        "count": found["count"],
        "baseSequence": found["base_sequence"],
        "lastSequence": sequence_after(found["base_sequence"], delta),
        "producerId": found["producer_id"],
        "producerEpoch": found["producer_epoch"],
        "partitionLeaderEpoch": found["leader_epoch"],
        "isTransactional": bool(attributes & TRANSACTIONAL_BIT),
        "isControl": bool(attributes & CONTROL_BIT),
        "deleteHorizonMs": found["base_timestamp"] if attributes & DELETE_HORIZON_BIT else None,
    }


def sequence_after(sequence: int, steps: int) -> int:
    """A sequence number ``steps`` on; behind the largest comes 0, and -1 (none) stays."""
    return sequence if sequence < 0 else (sequence + steps) & _LARGEST_SEQUENCE


def _timestamp_type(magic: int, attributes: int) -> str:
    if magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else "CreateTime"


def _codec_name(number: int) -> str:
    return CODECS[number] if number < len(CODECS) else f"unknown({number})"


def _batch_output(path: str, batch: _Batch, options: DumpOptions, scratch: Scratch) -> Output:
    """The batch's row, its records where asked for, and at most one finding about either."""
    row = batch.row
    finding = None if row["isvalid"] else Finding(path=path, position=row["position"], reason=BAD_CHECKSUM)
    columns = None
    if options.shows_records:
        try:
            columns = decode_records(
                batch.data,
                batch.header,
                scratch,
                limit=options.max_decompressed_message_bytes,
                path=path,
                origin=batch.origin,
            )
        except CorruptRecordError as error:
            finding = finding or finding_of(error)
    if columns is not None and row["magic"] < 2:
        row |= {"baseOffset": int(columns.offset[0]), "count": len(columns)}
    yield row
    if finding is not None:
        yield finding
    if columns is not None:
        yield from _record_rows(path, batch, columns, options)


def _record_rows(path: str, batch: _Batch, columns: RecordColumns, options: DumpOptions) -> Output:
    for number in range(len(columns)):
        row = record_row(batch.row, columns, number, options)
        yield row
        if batch.row["isvalid"] and not row.get("isValid", True):
            reason = f"checksum of the inner message with offset {row['offset']} does not match"
            yield Finding(path=path, position=batch.row["position"], reason=reason)


def record_row(batch: Row, columns: RecordColumns, number: int, options: DumpOptions) -> Row:
    """One record of a batch as a row; keys, values and headers only where the options show data."""
    row: Row = {
        "type": "record",
        "offset": int(columns.offset[number]),
        "timestampType": batch["timestampType"],
        "timestamp": int(columns.timestamp[number]),
        "keySize": int(columns.key_size[number]),
        "valueSize": int(columns.value_size[number]),
    }
    if batch["magic"] < 2:
        row |= _message_checksum(columns, number)
    else:
        headers = columns.headers(number)
        row["sequence"] = sequence_after(batch["baseSequence"], row["offset"] - batch["baseOffset"])
        row["headerKeys"] = [_name(name) for name, _ in headers]
        if options.shows_data:
            row["headers"] = [{"key": _name(name), "value": value} for name, value in headers]
        if batch["isControl"]:
            row |= _control_fields(columns, number)
    if options.shows_data:
        key, value = columns.key(number), columns.value(number)
        row |= {"key": key, "value": value}
        if options.decoder is not None and "controlType" not in row:
            row |= decode_record(options.decoder, key, value)
    return row


def _name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _message_checksum(columns: RecordColumns, number: int) -> Row:
    """The CRC32 of one message (magic 0 and 1), and whether it holds."""
    start = int(columns.start[number])
    entry = columns.data[start : start + int(columns.size[number])].tobytes()
    stored = int.from_bytes(entry[LOG_OVERHEAD:MAGIC_POSITION], "big")
    assert MAGIC_POSITION < CRC_POSITION < len(entry)
    return {"isValid": zlib.crc32(entry[MAGIC_POSITION:]) == stored, "crc": stored}


def _control_fields(columns: RecordColumns, number: int) -> Row:
    """What a control record says: its type, and of a transaction's end the coordinator's epoch.

    Key: version 2, type 2. Value of ABORT and COMMIT: version 2, coordinator epoch 4.
    """
    key, value = columns.key(number) or b"", columns.value(number) or b""
    if len(key) < 4:
        return {"controlType": "UNKNOWN"}
    kind = int.from_bytes(key[2:4], "big", signed=True)
    if kind in (0, 1) and len(value) >= 6:
        epoch = int.from_bytes(value[2:6], "big", signed=True)
        return {"controlType": CONTROL_TYPES[kind], "coordinatorEpoch": epoch}
    name = CONTROL_TYPES[kind] if 0 <= kind < len(CONTROL_TYPES) else "UNKNOWN"
    return {"controlType": f"{name}({kind})"}


def batch_bounds(path: str) -> Iterator[Directory]:
    """The batch directories of a log, positions counted from the file's start. Raises CorruptRecordError."""
    with files.Reader(path) as reader:
        for window in windows(reader, verify=False):
            batches = window.batches.copy()
            batches["position"] += window.origin
            yield batches
