"""Reading from a log: a view that stays as it is, and what a fetch finds in it (``LocalLog.read``).

A ``LogView`` is replaced as a whole at every change, so a reader sees one list of segments and one end,
whatever is appended, deleted or swapped meanwhile.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from siltstone.errors import OffsetOutOfRangeError
from siltstone.files import FileSlice
from siltstone.log.live_segment import LiveSegment
from siltstone.log.lookup import RecordPlace
from siltstone.records.layout import Bytes, Directory
from siltstone.records.scan import scan_batches

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""Kafka's special timestamps of ListOffsets."""


class LogView(NamedTuple):
    """A log at one moment. ``active_size``: bytes of the last segment that are there."""

    segments: tuple[LiveSegment, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    active_size: int

    def size_of(self, number: int) -> int:
        """Bytes of segment ``number`` that belong to this view."""
        return self.active_size if number + 1 == len(self.segments) else self.segments[number].size


class AbortedTransaction(NamedTuple):
    """A producer's records from ``first_offset`` to its next abort marker do not count."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a read found: a slice of one segment's file, None where there is nothing to read yet.

    ``first_offset`` is the first batch's base offset: at most the offset asked for, or above it in a gap.
    ``first_batch_size`` is in bytes: a slice that is shorter holds only part of it. ``end_offset`` is the
    limit that held: nothing at or above it was read.
    """

    slice: FileSlice | None
    first_offset: int
    first_batch_size: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """Bytes found."""
        return 0 if self.slice is None else self.slice.size

    def batches(self) -> tuple[Bytes, Directory, int]:
        """Read it: (bytes, whole batches in them, bytes of a last batch that is there in part)."""
        data = np.empty(0, np.uint8) if self.slice is None else self.slice.read()
        scan = scan_batches(data)
        return data[: scan.end], scan.batches, len(data) - scan.end


def read(
    view: LogView,
    offset: int,
    max_bytes: int,
    *,
    isolation: str = READ_UNCOMMITTED,
    whole_first: bool = True,
) -> Fetched:
    """Up to ``max_bytes`` of batches from the one that holds ``offset`` on, all from one segment.

    In a gap it begins at the next higher batch; at the end it is empty. With ``whole_first`` the first batch
    is there as a whole whatever its size. The last batch may be there in part. Raises
    OffsetOutOfRangeError for an offset below the log start or above the end.
    """
    if not view.log_start_offset <= offset <= view.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {view.log_start_offset} to {view.log_end_offset}; "
            "start again from the earliest or the latest offset"
        )
    limit = view.last_stable_offset if isolation == READ_COMMITTED else view.high_watermark
    number = max(bisect.bisect_right(view.segments, offset, key=_base) - 1, 0)
    while offset < limit and number < len(view.segments):
        found = _read_segment(view, number, offset, limit, max_bytes, whole_first)
        if found is not None:
            part, base, first_size = found
            aborted = _aborted(view, number, offset, part, limit) if isolation == READ_COMMITTED else ()
            return _fetched(view, part, base, first_size, limit, aborted)
        number += 1
    return _fetched(view, None, min(offset, limit), 0, limit, ())


def _base(segment: LiveSegment) -> int:
    return segment.base_offset


def _read_segment(
    view: LogView, number: int, offset: int, limit: int, max_bytes: int, whole_first: bool
) -> tuple[FileSlice, int, int] | None:
    """(slice, first batch's base offset, its size), None when the segment has nothing from ``offset`` on."""
    segment = view.segments[number]
    end = view.size_of(number)
    if limit < view.log_end_offset and end:
        above = segment.place_of(limit, end)
        end = above.position if above is not None else end
    place = segment.place_of(offset, end)
    if place is None:
        return None
    wanted = max(max_bytes, place.size) if whole_first else max_bytes
    part = FileSlice(segment.reader, place.position, min(wanted, end - place.position))
    return part, place.base_offset, place.size


def _fetched(
    view: LogView,
    part: FileSlice | None,
    first_offset: int,
    first_size: int,
    limit: int,
    aborted: tuple[AbortedTransaction, ...],
) -> Fetched:
    return Fetched(
        slice=part,
        first_offset=first_offset,
        first_batch_size=first_size,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        high_watermark=view.high_watermark,
        last_stable_offset=view.last_stable_offset,
        end_offset=limit,
        aborted=aborted,
    )


def _aborted(
    view: LogView, number: int, offset: int, part: FileSlice, limit: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions with records in what was read (``LocalLog.collectAbortedTransactions``)."""
    segment = view.segments[number]
    upper = segment.offset_behind(part.position + part.size)
    if upper is None:
        upper = view.segments[number + 1].base_offset if number + 1 < len(view.segments) else limit
    upper = min(upper, limit)
    found: list[AbortedTransaction] = []
    for each in view.segments[number:]:
        for producer_id, first, last, stable in each.aborted():
            if last >= offset and first < upper:
                found.append(AbortedTransaction(producer_id, first))
            if stable >= upper:
                return tuple(found)
    return tuple(found)


def offset_for_time(view: LogView, timestamp: int) -> RecordPlace | None:
    """The first record at or after ``timestamp`` (ms), or for ``MAX_TIMESTAMP`` one with the largest time.

    ``EARLIEST`` and ``LATEST`` give the log's start and its high watermark, with timestamp -1. None: no
    record is that late.
    """
    if timestamp == EARLIEST:
        return RecordPlace(offset=view.log_start_offset, timestamp=-1, leader_epoch=-1)
    if timestamp == LATEST:
        return RecordPlace(offset=view.high_watermark, timestamp=-1, leader_epoch=-1)
    if timestamp == MAX_TIMESTAMP:
        timestamp = max((segment.largest()[0] for segment in view.segments), default=-1)
        if timestamp < 0:
            return None
    for number, segment in enumerate(view.segments):
        if segment.largest_timestamp >= timestamp:
            place = segment.place_of_time(timestamp, view.size_of(number), view.log_start_offset)
            if place is not None:
                return place if place.offset < view.high_watermark else None
    return None
