"""The scanner: finds the batches in bytes (Kafka's ``FileLogInputStream``, ``RecordBatchIterator``).

The scanner reads only headers. It checks sizes, magic bytes and offsets, and stops at the first header that
cannot be right. ``checksum`` verifies checksums, ``decode`` reads records. ``ScanEnd`` says how a scan ended:
cleanly, with a truncated tail (the last entry ends beyond the buffer), or at damage.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from siltstone.base.records import layout
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes
from siltstone.base.records.varint import read_int16, read_int32, read_int64


class ScanEnd(enum.IntEnum):
    """How a scan ended."""

    CLEAN = 0
    TRUNCATED = 1
    BAD_SIZE = 2
    BAD_MAGIC = 3
    BAD_COUNT = 4
    """The record count, the last offset delta or the base offset is impossible."""
    ROWS_FULL = 5
    """The array of batch headers is full; never the outcome of a ``Scan``."""


SCAN_REASON = {
    ScanEnd.TRUNCATED: "the last batch goes on beyond the end of the data",
    ScanEnd.BAD_SIZE: "impossible batch size",
    ScanEnd.BAD_MAGIC: "unknown magic byte",
    ScanEnd.BAD_COUNT: "impossible record count, offset delta or base offset",
}


_OFFSET_MAX = (1 << 63) - 2
"""The largest offset of a record: a log end offset is one more, and is an int64 as well."""
_INITIAL_ROWS = 1024
"""Rows of the first array of batch headers. When it is full, the number of batches is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The result of a scan: the batch headers, the position it reached, and why it ended."""

    batches: BatchHeaders
    end: int
    """Position after the last whole batch; what is truncated or damaged starts there."""
    outcome: ScanEnd
    needed: int
    """After TRUNCATED: the size in bytes of the whole entry at ``end``, if its size field is there; else
    0."""


@kernel
def _fill_v2(data: Bytes, position: int, size: int, row: Any) -> bool:
    """Fill a row from a record batch's header. Returns False if its offsets or its count are impossible. (A
    batch that is not compressed has no more records than bytes.)"""
    row.leader_epoch = read_int32(data, position + layout.LEADER_EPOCH_POSITION)
    row.crc = read_int32(data, position + layout.CRC_POSITION) & 0xFFFFFFFF
    row.attributes = read_int16(data, position + layout.ATTRIBUTES_POSITION)
    last_offset_delta = read_int32(data, position + layout.LAST_OFFSET_DELTA_POSITION)
    row.last_offset = row.base_offset + last_offset_delta
    row.base_timestamp = read_int64(data, position + layout.BASE_TIMESTAMP_POSITION)
    row.max_timestamp = read_int64(data, position + layout.MAX_TIMESTAMP_POSITION)
    row.producer_id = read_int64(data, position + layout.PRODUCER_ID_POSITION)
    row.producer_epoch = read_int16(data, position + layout.PRODUCER_EPOCH_POSITION)
    row.base_sequence = read_int32(data, position + layout.BASE_SEQUENCE_POSITION)
    row.count = read_int32(data, position + layout.COUNT_POSITION)
    if row.base_offset > _OFFSET_MAX - max(last_offset_delta, 0):
        return False
    # A compressed record may take less than a byte: ``decompression`` checks these counts afterwards.
    return (
        row.count >= 0
        and last_offset_delta >= 0
        and (row.count <= size or (row.attributes & layout.CODEC_MASK) != 0)
    )


@kernel
def _fill_legacy(data: Bytes, position: int, magic: int, row: Any) -> None:
    """Fill a row from a message set entry. Fields that only batches have are -1, as Kafka's ``NO_*``
    constants."""
    row.leader_epoch = -1
    row.crc = read_int32(data, position + layout.MESSAGE_CRC_POSITION) & 0xFFFFFFFF
    row.attributes = int(data[position + layout.MESSAGE_ATTRIBUTES_POSITION])
    row.last_offset = row.base_offset
    row.base_timestamp = read_int64(data, position + layout.MESSAGE_TIMESTAMP_POSITION) if magic == 1 else -1
    row.max_timestamp = row.base_timestamp
    row.producer_id = layout.NO_PRODUCER_ID
    row.producer_epoch = -1
    row.base_sequence = -1
    row.count = -1


@kernel
def scan_into(data: Bytes, position: int, limit: int, out: BatchHeaders) -> tuple[int, int, int, int]:
    """Scan ``data[position:limit]`` into ``out``: (rows, end, ``ScanEnd``, needed), as in ``Scan``."""
    rows = 0
    while position < limit:
        # Size and magic are read before anything else: all versions have them in the same place.
        if limit - position <= layout.MAGIC_POSITION:
            return rows, position, ScanEnd.TRUNCATED, 0
        size = read_int32(data, position + layout.SIZE_POSITION)
        magic = int(data[position + layout.MAGIC_POSITION])
        if magic > 2:
            # Kafka checks the size first: a size that no entry can have is the fault, whatever the magic is.
            return rows, position, ScanEnd.BAD_MAGIC if size > 0 else ScanEnd.BAD_SIZE, 0
        if size < layout.MIN_SIZE_FIELD[magic]:
            return rows, position, ScanEnd.BAD_SIZE, 0
        if size + layout.LOG_OVERHEAD > limit - position:
            return rows, position, ScanEnd.TRUNCATED, size + layout.LOG_OVERHEAD
        if rows == len(out):
            return rows, position, ScanEnd.ROWS_FULL, 0
        row = out[rows]
        row.position = position
        row.size = size + layout.LOG_OVERHEAD
        row.magic = magic
        row.base_offset = read_int64(data, position)
        if magic == 2:
            if not _fill_v2(data, position, size, row):
                return rows, position, ScanEnd.BAD_COUNT, 0
        elif row.base_offset > _OFFSET_MAX:
            return rows, position, ScanEnd.BAD_COUNT, 0
        else:
            _fill_legacy(data, position, magic, row)
        rows += 1
        position += size + layout.LOG_OVERHEAD
    return rows, position, ScanEnd.CLEAN, 0


def scan_batches(data: Bytes) -> Scan:
    """Scan ``data`` (uint8, contiguous), which begins at a batch boundary.

    Returns the whole batches, in file order, whatever the outcome. Raises nothing: damage is an outcome.
    """
    out, rows, position = np.empty(_INITIAL_ROWS, layout.BATCH), 0, 0
    while True:
        new_rows, position, outcome, needed = scan_into(data, position, len(data), out[rows:])
        rows += new_rows
        if outcome != ScanEnd.ROWS_FULL:
            return Scan(batches=out[:rows], end=position, outcome=ScanEnd(outcome), needed=needed)
        # The array is full: estimate the rest from the batches so far, and add an eighth.
        estimated_rows = rows * len(data) // position
        grown = np.empty(estimated_rows + estimated_rows // 8 + _INITIAL_ROWS, layout.BATCH)
        grown[:rows] = out[:rows]
        out = grown


def scan_headers(data: Bytes, limit: int) -> Scan:
    """Scan ``data``, which begins at a batch boundary of a file. The file continues after ``data``; ``limit``
    is its end, counted from the first byte of ``data``.

    As ``scan_batches``, but the last batch is included even if only its header is within ``data``; then
    ``end`` is beyond ``data``. So a reader can find the batches of a file without reading their records.
    """
    out = np.empty(len(data) // layout.MIN_ENTRY_SIZE + 2, layout.BATCH)
    rows, position, outcome, needed = scan_into(data, 0, len(data), out)
    end = position + needed
    has_header = len(data) - position >= layout.BATCH_OVERHEAD
    if outcome == ScanEnd.TRUNCATED and needed and end <= limit and has_header:
        new_rows, position, outcome, needed = scan_into(data, position, end, out[rows:])
        rows += new_rows
    return Scan(batches=out[:rows], end=position, outcome=ScanEnd(outcome), needed=needed)
