"""Where in a segment's file an offset or a time is (Kafka's ``LogSegment`` searches).

Functions over an open file and a start position: whoever calls them takes the start from the segment's
indexes (a batch boundary, at or before what is looked for) and may pass 0. Any record format: a compressed
message set's entry has its last message's offset, which is all that a search by offset asks.

Headers are read, bodies are passed over: a first small read holds what lies between two index entries, the
next ones grow while batches are small, and a large batch costs one read however large it is. Only a search by
time decodes, and only batches whose largest timestamp reaches the one asked for; those are checksummed first.

    with files.Reader(segment.path) as reader:
        place = position_of_offset(reader, 4711, start=hint)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import Directory
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_headers

FIRST_READ = 16 << 10
"""Bytes of a lookup's first read: a few index intervals."""
LARGEST_READ = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """A batch in a file: ``position`` and ``size`` in bytes, header included.

    ``base_offset`` is as stored: for a compressed message set that of its last message, as ``last_offset``.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlace:
    """A record found by its time: offset, its own timestamp in ms, its batch's leader epoch (-1: none)."""

    offset: int
    timestamp: int
    leader_epoch: int


def batch_headers(
    reader: files.Reader, *, start: int = 0, end: int | None = None, first_read: int = FIRST_READ
) -> Iterator[Directory]:
    """The headers of the batches in ``[start, end)`` of the file, as directories of some rows each.

    ``start`` is a batch boundary, ``end`` defaults to the file's size when it was opened (an active segment
    has grown since: pass the size that is known to be whole). Positions count from the file's first byte.
    Checksums are not looked at. Raises CorruptRecordError where no batch can be, or one goes on beyond
    ``end``, once everything before it was yielded.
    """
    limit = reader.stat.size if end is None else end
    position, room = start, first_read
    while position < limit:
        buffer = np.empty(min(room, limit - position), np.uint8)
        data = buffer[: reader.read_into(buffer, position)]
        scan = scan_headers(data, limit - position)
        if len(scan.batches):
            scan.batches["position"] += position
            yield scan.batches
        whole = scan.outcome in (ScanEnd.CLEAN, ScanEnd.TRUNCATED) and scan.end > 0
        if not whole or len(data) < len(buffer):
            _refuse(reader.path, position + scan.end, scan.outcome)
        if len(scan.batches) > 1:
            room = max(room, min(4 * room, LARGEST_READ))
        position += scan.end


def _refuse(path: str, position: int, outcome: ScanEnd) -> None:
    """Damage, or a file that is shorter than it was said to be."""
    reason = SCAN_REASON.get(outcome, SCAN_REASON[ScanEnd.TRUNCATED])
    raise CorruptRecordError(path, position, reason)


def position_of_offset(
    reader: files.Reader,
    offset: int,
    *,
    start: int = 0,
    end: int | None = None,
    first_read: int = FIRST_READ,
) -> BatchPlace | None:
    """The first batch from ``start`` on whose last offset is at or above ``offset``; None when all are below.

    In an offset gap that is the next higher batch. Arguments and errors are ``batch_headers``'s.
    """
    for batches in batch_headers(reader, start=start, end=end, first_read=first_read):
        reached = batches["last_offset"] >= offset
        row = int(reached.argmax())
        if reached[row]:
            found = batches[row]
            return BatchPlace(
                position=int(found["position"]),
                size=int(found["size"]),
                base_offset=int(found["base_offset"]),
                last_offset=int(found["last_offset"]),
            )
    return None


def first_offset_at_or_after(
    reader: files.Reader,
    timestamp: int,
    *,
    start: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    limit: int = DEFAULT_LIMIT,
    first_read: int = FIRST_READ,
) -> RecordPlace | None:
    """The first record from ``start`` on with a timestamp (ms) at or above the one given, or None.

    Records below ``from_offset`` (the log's start) are passed over, and so are those without a time: all of
    magic 0, and what was converted from it. ``limit`` bounds what a batch may decompress to, in bytes.
    Raises CorruptRecordError as ``batch_headers``, and for a batch that has to be decoded and cannot be.
    """
    scratch, wanted = Scratch(), max(timestamp, 0)
    for batches in batch_headers(reader, start=start, end=end, first_read=first_read):
        possible = (batches["max_timestamp"] >= wanted) & (batches["last_offset"] >= from_offset)
        for row in np.flatnonzero(possible).tolist():
            batch = batches[row : row + 1]
            found = _first_in_batch(reader, batch, wanted, from_offset, scratch, limit)
            if found is not None:
                return found
    return None


def _first_in_batch(
    reader: files.Reader, batch: Directory, wanted: int, from_offset: int, scratch: Scratch, limit: int
) -> RecordPlace | None:
    """The first record of one batch (a directory of one row, at its file position) that will do."""
    origin = int(batch["position"][0])
    window = np.empty(int(batch["size"][0]), np.uint8)
    if reader.read_into(window, origin) < len(window):
        _refuse(reader.path, origin, ScanEnd.TRUNCATED)
    inside = batch.copy()
    inside["position"] = 0
    if first_bad_checksum(window, inside) is not None:
        raise CorruptRecordError(reader.path, origin, "checksum does not match")
    columns = decode_records(window, inside, scratch, limit=limit, path=reader.path, origin=origin)
    rows = np.flatnonzero((columns.timestamp >= wanted) & (columns.offset >= from_offset))
    if not len(rows):
        return None
    return RecordPlace(
        offset=int(columns.offset[rows[0]]),
        timestamp=int(columns.timestamp[rows[0]]),
        leader_epoch=int(batch["leader_epoch"][0]),
    )
