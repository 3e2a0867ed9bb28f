"""Searches by offset and by time in a segment's file (Kafka's ``LogSegment``, ``FileRecords``).

The functions take an open file and a start position, which is a batch boundary at or below the batch that is
searched for: from the segment's offset index, or 0. All record formats are read: a compressed message set is
stored under its last message's offset, which is enough for a search by offset.

Headers are read and bodies are skipped: a first small read covers the bytes between two index entries, the
next ones grow while batches are small, and a large batch costs one read however large it is. Only a search by
time decodes batches, those whose largest timestamp is not below the searched one, after their checksums.

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
"""Bytes of a lookup's first read: a few index intervals."""
LARGEST_READ = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPosition:
    """A batch in a file: ``position`` and ``size`` in bytes, header included.

    ``base_offset`` is as stored: for a compressed message set that of its last message, as ``last_offset``.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAndOffset:
    """The result of a search by time: offset, the record's timestamp in ms, its leader epoch (-1: none).

    (Kafka's ``FileRecords.TimestampAndOffset``.)
    """

    offset: int
    timestamp: int
    leader_epoch: int


def batch_headers(
    reader: files.Reader, *, start: int = 0, end: int | None = None, first_read: int = FIRST_READ
) -> Iterator[BatchHeaders]:
    """The headers of the batches in bytes [``start``, ``end``) of the file, some rows at a time.

    ``start`` is a batch boundary, ``end`` defaults to the file's size when it was opened (an active segment
    may have grown since: pass the size up to which it has whole batches). Positions count from the file's
    first byte. Checksums are not checked. Yields all batches before the first damage, or before a batch that
    extends beyond ``end``, and then raises CorruptRecordError.
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
        is_whole = scan.outcome in (ScanEnd.CLEAN, ScanEnd.TRUNCATED) and scan.end > 0
        if not is_whole or len(data) < len(buffer):
            # A clean end before ``end``: the file is shorter than the caller says.
            reason = SCAN_REASON.get(scan.outcome, SCAN_REASON[ScanEnd.TRUNCATED])
            raise CorruptRecordError(reader.path, position + scan.end, reason)
        if len(scan.batches) > 1:
            read_size = max(read_size, min(4 * read_size, LARGEST_READ))
        position += scan.end


def read_batch(reader: files.Reader, batch: BatchHeaders) -> tuple[Bytes, BatchHeaders]:
    """The bytes of one batch and its row for them, at position 0; ``batch`` has its position in the file.

    Raises CorruptRecordError where the file ends within it, or its checksum does not match.
    """
    origin, inside = batch["position"].item(), batch.copy()
    inside["position"] = 0
    data = np.empty(batch["size"].item(), np.uint8)
    if reader.read_into(data, origin) < len(data):
        raise CorruptRecordError(reader.path, origin, SCAN_REASON[ScanEnd.TRUNCATED])
    refuse_bad_checksum(data, inside, path=reader.path, origin=origin)
    return data, inside


def position_of_offset(
    reader: files.Reader,
    offset: int,
    *,
    start: int = 0,
    end: int | None = None,
    first_read: int = FIRST_READ,
) -> BatchPosition | None:
    """The first batch from ``start`` on whose last offset is at or above ``offset``; None when all are below.

    In an offset gap that is the next higher batch. Arguments and errors as in ``batch_headers``.
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
) -> TimestampAndOffset | None:
    """The first record from ``start`` on with a timestamp (ms) of at least ``timestamp``, or None.

    Skips records below ``from_offset`` (the log's start) and records without a time: all of magic 0, and what
    was converted from it. ``limit`` is the number of bytes that a batch may decompress to. Raises
    CorruptRecordError as ``batch_headers`` does, and for a batch that has to be decoded and cannot be.
    """
    # A record without a time has timestamp -1 and is never the result.
    scratch, timestamp = Scratch(), max(timestamp, 0)
    for batches in batch_headers(reader, start=start, end=end, first_read=first_read):
        possible = (batches["max_timestamp"] >= timestamp) & (batches["last_offset"] >= from_offset)
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
