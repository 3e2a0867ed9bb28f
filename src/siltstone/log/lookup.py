"""Searches by offset and by time in a segment's file (Kafka's ``LogSegment``, ``FileRecords``).

The functions take an open file and the position at which a search starts: the segment's offset index has that
of a batch at or below the one that is searched for; without an entry it is 0. All record formats are read.
The header of a compressed message set has only its last message's offset, which is what a search by offset
compares.

A search reads headers and skips the records after them. The first read covers the bytes between two index
entries. The next reads grow as long as batches are small; a large batch takes one read, whatever its size.
Only a search by time decodes records: those of batches whose largest timestamp is high enough, after it has
checked their checksums.

    with files.Reader(segment.path) as reader:
        batch = position_of_offset(reader, 4711, start=position)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import refuse_bad_checksum
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import BatchHeaders, Bytes
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_headers

FIRST_READ = 16 << 10
"""Bytes that a search reads first: a few times ``index.interval.bytes``."""
LARGEST_READ = 1 << 20
"""Bytes that a search reads at once at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPosition:
    """Where a batch is in a file (Kafka's ``LogOffsetPosition``): ``position`` and ``size`` in bytes.

    ``base_offset`` is the one in the header: a compressed message set has its last message's offset there, so
    it equals ``last_offset``.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAndOffset:
    """The record that a search by time found (Kafka's ``FileRecords.TimestampAndOffset``).

    ``timestamp`` is in ms; ``leader_epoch`` is -1 if there is none.
    """

    offset: int
    timestamp: int
    leader_epoch: int


def batch_headers(
    reader: files.Reader, *, start: int = 0, end: int | None = None, first_read: int = FIRST_READ
) -> Iterator[BatchHeaders]:
    """Read the headers of the batches in bytes [``start``, ``end``) of a file; one array for each read.

    A batch begins at ``start``. ``end`` defaults to the file's size when it was opened; for an active
    segment, which may have grown since, pass the size up to which it has whole batches. ``first_read``: the
    bytes of the first read, before reads grow. Positions count from the file's first byte. Checksums are not
    checked. Yields all batches before the first damage, or before a batch that extends beyond ``end``, and
    then raises CorruptRecordError.
    """
    end = reader.stat.size if end is None else end
    position, read_size = start, first_read
    while position < end:
        buffer = np.empty(min(read_size, end - position), np.uint8)
        data = buffer[: reader.read_into(buffer, position)]
        scan = scan_headers(data, end - position)
        if len(scan.batches):
            scan.batches["position"] += position
            yield scan.batches
        # TRUNCATED after at least one batch: the next read begins at the batch that is cut off, and shows
        # whether it is only cut off by the buffer's end.
        is_intact = scan.outcome in (ScanEnd.CLEAN, ScanEnd.TRUNCATED) and scan.end > 0
        if not is_intact or len(data) < len(buffer):
            # CLEAN has no reason of its own: then the file is shorter than ``end``, as after TRUNCATED.
            reason = SCAN_REASON.get(scan.outcome, SCAN_REASON[ScanEnd.TRUNCATED])
            raise CorruptRecordError(reader.path, position + scan.end, reason)
        # A larger read pays only if it gets more headers: of a large batch all but the header is skipped.
        if len(scan.batches) > 1:
            read_size = max(read_size, min(4 * read_size, LARGEST_READ))
        position += scan.end


def read_batch(reader: files.Reader, batch: BatchHeaders) -> tuple[Bytes, BatchHeaders]:
    """Read one batch: (its bytes, its header with position 0, where it is in these bytes).

    ``batch`` is its header with the position in the file. Raises CorruptRecordError if the file ends within
    the batch, or its checksum does not match.
    """
    origin, header = batch["position"].item(), batch.copy()
    header["position"] = 0
    data = np.empty(batch["size"].item(), np.uint8)
    if reader.read_into(data, origin) < len(data):
        raise CorruptRecordError(reader.path, origin, SCAN_REASON[ScanEnd.TRUNCATED])
    refuse_bad_checksum(data, header, path=reader.path, origin=origin)
    return data, header


def position_of_offset(
    reader: files.Reader,
    offset: int,
    *,
    start: int = 0,
    end: int | None = None,
    first_read: int = FIRST_READ,
) -> BatchPosition | None:
    """The first batch from ``start`` on whose last offset is at or above ``offset``; None if all are below.

    So if no batch has ``offset``, the result is the next higher batch. Arguments and errors as in
    ``batch_headers``.
    """
    for batches in batch_headers(reader, start=start, end=end, first_read=first_read):
        reached = batches["last_offset"] >= offset
        row = int(reached.argmax())
        if reached[row]:
            names = ("position", "size", "base_offset", "last_offset")
            return BatchPosition(**{name: batches[name].item(row) for name in names})
    return None


def first_offset_at_or_after(
    reader: files.Reader,
    timestamp: int,
    *,
    start: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    limit: int = DEFAULT_DECOMPRESSION_LIMIT,
    first_read: int = FIRST_READ,
    min_timestamp: int = 0,
) -> TimestampAndOffset | None:
    """The first record from ``start`` on with a timestamp (ms) of at least ``timestamp``, or None.

    Skips records below ``from_offset`` (the log start offset), and records without a timestamp (-1): those of
    magic 0, and those converted from magic 0. With ``min_timestamp`` -1 it skips only those of magic 0.
    ``limit``: the bytes that a batch may decompress to. Raises CorruptRecordError as ``batch_headers`` does,
    and for a batch that it cannot decode.
    """
    scratch, timestamp = Scratch(), max(timestamp, min_timestamp)
    for batches in batch_headers(reader, start=start, end=end, first_read=first_read):
        possible = (batches["max_timestamp"] >= timestamp) & (batches["last_offset"] >= from_offset)
        possible &= (batches["magic"] > 0) | (timestamp >= 0)
        for row in np.flatnonzero(possible).tolist():
            data, batch = read_batch(reader, batches[row : row + 1])
            origin = batches["position"].item(row)
            columns = decode_records(data, batch, scratch, limit=limit, path=reader.path, origin=origin)
            rows = np.flatnonzero((columns.timestamp >= timestamp) & (columns.offset >= from_offset))
            if len(rows):
                return TimestampAndOffset(
                    offset=int(columns.offset[rows[0]]),
                    timestamp=int(columns.timestamp[rows[0]]),
                    leader_epoch=batch["leader_epoch"].item(),
                )
    return None
