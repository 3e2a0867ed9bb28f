"""Between the product's arrays and the twin's Python objects."""

from __future__ import annotations

import zlib

import numpy as np

from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import BatchHeaders, Bytes
from siltstone.base.records.scan import ScanEnd, scan_batches
from tests.support.records.twin import Record


def array(data: bytes) -> Bytes:
    """A writable uint8 array, the kind that readers hand to the kernels."""
    return np.frombuffer(bytearray(data), np.uint8)


def scanned(data: bytes) -> tuple[Bytes, BatchHeaders]:
    """The window and its batches; the data must be whole batches."""
    window = array(data)
    scan = scan_batches(window)
    assert scan.outcome == ScanEnd.CLEAN, scan
    return window, scan.batches


def records_of(columns: RecordColumns) -> list[Record]:
    """The columns' rows as the twin's records."""
    return [
        Record(
            offset=int(columns.offset[row]),
            timestamp=int(columns.timestamp[row]),
            key=columns.key(row),
            value=columns.value(row),
            headers=tuple(columns.headers(row)),
            size=int(columns.size[row]),
        )
        for row in range(len(columns))
    ]


def complete_headers(batches: BatchHeaders, columns: RecordColumns) -> BatchHeaders:
    """A copy of ``batches``, all of which ``columns`` are the records of, in which message set entries tell
    what only decoding could: their record ``count``, and their first and last record's offsets."""
    complete = batches.copy()
    rows = np.flatnonzero(batches["magic"] < 2)
    first = np.searchsorted(columns.batch, rows)
    behind = np.searchsorted(columns.batch, rows, side="right")
    complete["count"][rows] = behind - first
    complete["base_offset"][rows] = columns.offset[first]
    complete["last_offset"][rows] = columns.offset[behind - 1]
    return complete


def inner_checksums_hold(columns: RecordColumns) -> bool:
    """Does the CRC32 of every message hold, also inside of wrappers? ``columns`` are message sets'."""
    entries = (
        columns.data[start : start + size] for start, size in zip(columns.start, columns.size, strict=True)
    )
    return all(
        zlib.crc32(entry[16:].data) == int.from_bytes(entry[12:16].tobytes(), "big") for entry in entries
    )


def decoded(data: bytes) -> list[Record]:
    """Scan and decode whole batches."""
    return records_of(decode_records(*scanned(data)))
