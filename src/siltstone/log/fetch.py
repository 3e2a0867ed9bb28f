"""Reading from a log: a view that stays as it is, and what a fetch finds in it (``LocalLog.read``).

A ``LogView`` is replaced as a whole at every change, so a reader sees one list of segments and one end,
whatever is appended, deleted or swapped meanwhile.

Who reads on where the last read ended need not be searched for again: ``Fetched.behind`` says where that is,
and ``read`` takes it as ``place``::

    found = read(view, offset, 1 << 20, place=place)
    data, batches, _ = found.batches()
    place = found.behind(batches)               # its ``offset`` is the next one to ask for
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from siltstone.base.errors import CorruptMessageError, CorruptRecordError, OffsetOutOfRangeError
from siltstone.base.files import FileSlice
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.base.records.fetch_results import MessageSetSend
from siltstone.base.records.layout import LOG_OVERHEAD, Bytes, Directory
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.lookup import RecordPlace
from siltstone.log.segment import LiveSegment

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""Kafka's special timestamps of ListOffsets."""
_HEAD = struct.Struct(">qi4xB")
"""An entry's offset, its size behind these two, its magic byte."""
Found = TypeVar("Found")


class LogView(NamedTuple):
    """A log at one moment. ``active_size``: bytes of the last segment that are there.

    ``batch_limit``: what one of its batches may decompress to (``max.decompressed.message.bytes``).
    """

    segments: tuple[LiveSegment, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    active_size: int
    batch_limit: int = DEFAULT_LIMIT

    def size_of(self, number: int) -> int:
        """Bytes of segment ``number`` that belong to this view."""
        return self.active_size if number + 1 == len(self.segments) else self.segments[number].size


class FetchPosition(NamedTuple):
    """Where a read ended: at byte ``position`` of ``segment``; all batches before it are below ``offset``.

    It holds for a view that has the same segment. Only ``truncate_to`` can make it wrong; what stands there
    then is looked at, but who cannot live with the rest of the chance reads without.
    """

    segment: LiveSegment
    position: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a read found: a slice of one segment's file, None where there is nothing to read yet.

    ``view`` is what was read from, with the offsets of that moment. ``first_offset`` is the first batch's
    base offset: at most the offset asked for, or above it in a gap. ``first_batch_size`` is in bytes: a slice
    that is shorter holds only part of it. ``end_offset`` is the limit that held: nothing at or above it was
    read.
    """

    view: LogView
    slice: FileSlice | None = None
    segment: LiveSegment | None = None
    first_offset: int
    first_batch_size: int = 0
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """Bytes found."""
        return 0 if self.slice is None else self.slice.size

    def batches(self) -> tuple[Bytes, Directory, int]:
        """Read it: (bytes, whole batches in them, bytes of a last batch that is there in part).

        Checksums are not looked at. Raises CorruptRecordError where no batch can be, once all before it
        was read.
        """
        if self.slice is None:
            data = np.empty(0, np.uint8)
            return data, scan_batches(data).batches, 0
        data = self.slice.read()
        scan = scan_batches(data)
        if scan.outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED) and not len(scan.batches):
            raise CorruptRecordError(self.slice.reader.path, self.slice.position, SCAN_REASON[scan.outcome])
        return data[: scan.end], scan.batches, len(data) - scan.end

    def behind(self, batches: Directory) -> FetchPosition | None:
        """Where a reader goes on who has used these first of the ``batches``, None when there are none."""
        if self.slice is None or self.segment is None or not len(batches):
            return None
        last = batches[-1]
        end = self.slice.position + int(last["position"]) + int(last["size"])
        return FetchPosition(self.segment, end, int(last["last_offset"]) + 1)


def read(
    view: LogView,
    offset: int,
    max_bytes: int,
    *,
    isolation: str = READ_UNCOMMITTED,
    whole_first: bool = True,
    place: FetchPosition | None = None,
) -> Fetched:
    """Up to ``max_bytes`` of batches from the one that holds ``offset`` on, all from one segment.

    In a gap it begins at the next higher batch; at the end it is empty. With ``whole_first`` the first batch
    is there as a whole whatever its size. The last batch may be there in part. ``place``, from
    ``Fetched.behind``, spares the search when ``offset`` is its offset. Raises OffsetOutOfRangeError for an
    offset below the log start or above the end.
    """
    if not view.log_start_offset <= offset <= view.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {view.log_start_offset} to {view.log_end_offset}; "
            "start again from the earliest or the latest offset"
        )
    known = place if place is not None and place.offset == offset else None
    return _over_renames(view, lambda: _read(view, offset, max_bytes, isolation, whole_first, known))


def answer(
    view: LogView, offset: int, max_bytes: int, *, isolation: str = READ_UNCOMMITTED
) -> MessageSetSend:
    """Up to ``max_bytes`` of the log from ``offset`` on, as one fetch is answered (``MessageSetSend``).

    The chunk is read once and not copied after that. It may end within a batch, be it the first: who gets no
    whole one asks for more. An offset that is out of range, and a log that makes no sense there, are the
    answer's error code, as Kafka has it. Raises OSError.
    """
    try:
        fetched = read(view, offset, max_bytes, isolation=isolation, whole_first=False)
    except OffsetOutOfRangeError as error:
        return MessageSetSend.empty(error.code)
    except CorruptRecordError:
        return MessageSetSend.empty(CorruptMessageError.code)
    if fetched.slice is None:
        return MessageSetSend.empty()
    return MessageSetSend(error_code=0, messages=fetched.slice.read())


def _over_renames(view: LogView, look: Callable[[], Found]) -> Found:
    """``look``, again when a file was renamed between being asked for and being opened.

    Whoever renames a segment has opened its files before, so a segment fails once at most.
    """
    for _ in view.segments:
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()


def _read(
    view: LogView, offset: int, max_bytes: int, isolation: str, whole_first: bool, known: FetchPosition | None
) -> Fetched:
    limit = view.last_stable_offset if isolation == READ_COMMITTED else view.high_watermark
    holding = max(bisect.bisect_right(view.segments, offset, key=attrgetter("base_offset")) - 1, 0)
    for number in range(holding, len(view.segments) if offset < limit else 0):
        segment, end = view.segments[number], _readable_end(view, number, limit)
        first = None
        if known is not None and known.segment is segment:
            if known.position == end:
                continue
            first = _first_at(known, end)
        if first is None:
            place = segment.place_of(offset, end)
            if place is None:
                continue
            first = place.position, place.base_offset, place.size
        position, base_offset, size = first
        wanted = max(max_bytes, size) if whole_first else max_bytes
        part = FileSlice(segment.reader, position, min(wanted, end - position))
        return Fetched(
            view=view,
            slice=part,
            segment=segment,
            first_offset=base_offset,
            first_batch_size=size,
            end_offset=limit,
            aborted=_aborted(view, number, offset, part, limit) if isolation == READ_COMMITTED else (),
        )
    return Fetched(view=view, first_offset=min(offset, limit), end_offset=limit)


def _readable_end(view: LogView, number: int, limit: int) -> int:
    """The end, in bytes, of what of a segment lies below offset ``limit``."""
    segment, end = view.segments[number], view.size_of(number)
    is_below = number + 1 < len(view.segments) and view.segments[number + 1].base_offset <= limit
    if limit >= view.log_end_offset or not end or is_below:
        return end
    above = segment.place_of(limit, end)
    return end if above is None else above.position


def _first_at(place: FetchPosition, end: int) -> tuple[int, int, int] | None:
    """(position, offset, size) of the batch at a place; None when no batch of its offset or more can be."""
    head = place.segment.reader.read(place.position, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    offset, size, magic = _HEAD.unpack(head)
    size += LOG_OVERHEAD
    is_possible = offset >= place.offset and magic <= 2 and _HEAD.size <= size <= end - place.position
    return (place.position, offset, size) if is_possible else None


def _aborted(
    view: LogView, number: int, offset: int, part: FileSlice, limit: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions with records in what was read (``LocalLog.collectAbortedTransactions``)."""
    segment = view.segments[number]
    behind = segment.offset_behind(part.position + part.size)
    if behind is None and number + 1 < len(view.segments):
        behind = view.segments[number + 1].base_offset
    upper = limit if behind is None else min(behind, limit)
    found: list[AbortedTransaction] = []
    for later in view.segments[number:]:
        for transaction in later.aborted():
            if transaction.last_offset >= offset and transaction.first_offset < upper:
                found.append(transaction)
            if transaction.last_stable_offset >= upper:
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

    def search() -> RecordPlace | None:
        for number, segment in enumerate(view.segments):
            if segment.largest_timestamp >= timestamp:
                size = view.size_of(number)
                place = segment.place_of_time(timestamp, size, view.log_start_offset, view.batch_limit)
                if place is not None:
                    return place if place.offset < view.high_watermark else None
        return None

    return _over_renames(view, search)
