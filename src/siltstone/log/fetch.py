"""Reading from a log: an immutable view of the log, and fetches from it (Kafka's ``LocalLog.read``).

A ``LogView`` is replaced as a whole at every change, so a reader sees one list of segments and one end,
whatever is appended, deleted or swapped meanwhile.

A reader that continues where its last read ended saves the search: ``Fetched.position_after`` returns the
position, and ``read`` takes it as ``resume_at``::

    fetched = read(view, offset, 1 << 20, resume_at=position)
    data, batches, _ = fetched.batches()
    position = fetched.position_after(batches)      # ``position.offset`` is the next offset to read
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
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT
from siltstone.base.records.fetch_results import MessageSetSend
from siltstone.base.records.layout import LOG_OVERHEAD, BatchHeaders, Bytes
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.lookup import TimestampAndOffset
from siltstone.log.segment import LiveSegment

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""Kafka's special timestamps of ListOffsets; the first two also stand for offsets."""
_HEAD = struct.Struct(">qi4xB")
"""The start of a batch or message set, in every format::

    0              8          12            16
    | base offset  | size     | (4 bytes)   | magic |        ``size`` counts the bytes after itself
"""
Result = TypeVar("Result")


class LogView(NamedTuple):
    """A log at one moment. ``active_size``: the size of the active segment at that moment, in bytes.

    ``batch_limit``: the bytes that one batch may decompress to (``max.decompressed.message.bytes``).
    """

    segments: tuple[LiveSegment, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    active_size: int
    batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT

    @property
    def name(self) -> str | None:
        """The log's name for errors, such as ``events-0``; None without a segment."""
        return self.segments[0].directory.name if self.segments else None

    def size_of(self, number: int) -> int:
        """Bytes of segment ``number`` that belong to this view."""
        return self.active_size if number + 1 == len(self.segments) else self.segments[number].size


class FetchPosition(NamedTuple):
    """Where a read ended: at byte ``position`` of ``segment``; all batches before it are below ``offset``.

    It is valid in every view that has the same segment object, except after ``truncate_to``. The header at
    the position is checked before it is used, which finds nearly every position that has become invalid.
    """

    segment: LiveSegment
    position: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The result of a read: a slice of one segment's file, None where there is nothing to read yet.

    ``view`` is the view that was read. ``first_offset`` is the first batch's base offset: at most the
    requested offset, or above it in a gap; in an empty result the offset or the limit. ``first_batch_size``
    is in bytes: a slice that is shorter has only a part of the batch. ``end_offset`` is the high watermark or
    last stable offset that limited the read.
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
        """Bytes in the slice."""
        return 0 if self.slice is None else self.slice.size

    def batches(self) -> tuple[Bytes, BatchHeaders, int]:
        """Read the slice: (bytes, the whole batches in them, bytes of an incomplete last batch).

        Checksums are not checked. Raises CorruptRecordError where the first bytes are no batch: batches
        before damage are returned first.
        """
        if self.slice is None:
            data = np.empty(0, np.uint8)
            return data, scan_batches(data).batches, 0
        data = self.slice.read()
        scan = scan_batches(data)
        if scan.outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED) and not len(scan.batches):
            raise CorruptRecordError(self.slice.reader.path, self.slice.position, SCAN_REASON[scan.outcome])
        return data[: scan.end], scan.batches, len(data) - scan.end

    def position_after(self, batches: BatchHeaders) -> FetchPosition | None:
        """Where a reader continues after ``batches``, the first ones of the slice; None if it has none."""
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
    min_one_batch: bool = True,
    resume_at: FetchPosition | None = None,
) -> Fetched:
    """Up to ``max_bytes`` of batches from the one with ``offset`` on, all from one segment.

    In a gap the result begins at the next higher batch; at the end it is empty. With ``min_one_batch`` it has
    the whole first batch whatever its size (KIP-74). The last batch may be incomplete. ``resume_at``, from
    ``Fetched.position_after``, saves the search when ``offset`` is its offset. Raises OffsetOutOfRangeError
    for an offset below the log start or above the end.
    """
    if not view.log_start_offset <= offset <= view.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} is not between {view.log_start_offset}, the log start offset, and "
            f"{view.log_end_offset}, the log end offset",
            path=view.name,
            advice="start again from the earliest or the latest offset",
        )
    if resume_at is not None and resume_at.offset != offset:
        resume_at = None
    return _retry_renamed(view, lambda: _read(view, offset, max_bytes, isolation, min_one_batch, resume_at))


def answer(
    view: LogView, offset: int, max_bytes: int, *, isolation: str = READ_UNCOMMITTED
) -> MessageSetSend:
    """The answer to one fetch: up to ``max_bytes`` of the log from ``offset`` on (``MessageSetSend``).

    The bytes are read once and not copied again. They may end within a batch, also within the first: a client
    that gets no whole batch asks for more bytes. An offset out of range and a damaged log are reported by the
    answer's error code, as in Kafka. Raises OSError.
    """
    try:
        fetched = read(view, offset, max_bytes, isolation=isolation, min_one_batch=False)
    except OffsetOutOfRangeError as error:
        return MessageSetSend.empty(error.error_code)
    except CorruptRecordError:
        return MessageSetSend.empty(CorruptMessageError.error_code)
    if fetched.slice is None:
        return MessageSetSend.empty()
    return MessageSetSend(error_code=0, messages=fetched.slice.read())


def _retry_renamed(view: LogView, search: Callable[[], Result]) -> Result:
    """The result of ``search``, repeated when a file was renamed before ``search`` could open it.

    A segment's files are opened before they are renamed (``LiveSegment.keep_open``): each fails at most once.
    """
    for _ in view.segments:
        try:
            return search()
        except FileNotFoundError:
            continue
    return search()


def _read(
    view: LogView,
    offset: int,
    max_bytes: int,
    isolation: str,
    min_one_batch: bool,
    resume_at: FetchPosition | None,
) -> Fetched:
    limit = view.last_stable_offset if isolation == READ_COMMITTED else view.high_watermark
    floor = max(bisect.bisect_right(view.segments, offset, key=attrgetter("base_offset")) - 1, 0)
    for number in range(floor, len(view.segments) if offset < limit else 0):
        segment, end = view.segments[number], _readable_end_position(view, number, limit)
        first = None
        if resume_at is not None and resume_at.segment is segment:
            # The last read ended at this segment's end: continue in the next segment.
            if resume_at.position == end:
                continue
            first = _batch_at(resume_at, end)
        if first is None:
            batch = segment.find_batch(offset, end)
            if batch is None:
                continue
            first = batch.position, batch.base_offset, batch.size
        position, base_offset, size = first
        # One segment a fetch, as in Kafka: a slice is of one file.
        max_size = max(max_bytes, size) if min_one_batch else max_bytes
        part = FileSlice(segment.reader, position, min(max_size, end - position))
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


def _readable_end_position(view: LogView, number: int, limit: int) -> int:
    """The byte at which a segment's batches reach offset ``limit``, or its size where all are below."""
    segment, end = view.segments[number], view.size_of(number)
    is_below = number + 1 < len(view.segments) and view.segments[number + 1].base_offset <= limit
    if limit >= view.log_end_offset or not end or is_below:
        return end
    above = segment.find_batch(limit, end)
    return end if above is None else above.position


def _batch_at(at: FetchPosition, end: int) -> tuple[int, int, int] | None:
    """(position, offset, size) of the batch that begins at a position.

    None when no batch of the position's offset or more can begin there.
    """
    head = at.segment.reader.read(at.position, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    offset, size, magic = _HEAD.unpack(head)
    size += LOG_OVERHEAD
    is_possible = offset >= at.offset and magic <= 2 and _HEAD.size <= size <= end - at.position
    return (at.position, offset, size) if is_possible else None


def _aborted(
    view: LogView, number: int, offset: int, part: FileSlice, limit: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions with records in the slice (``LocalLog.collectAbortedTransactions``).

    Markers are in later segments too: the search ends at the first entry that was written when everything
    below ``upper`` was stable.
    """
    segment = view.segments[number]
    # The offset index has an offset at or above the slice's end without reading batches. It may be too high,
    # so that an aborted transaction is named whose records were not read: readers match producer and offset.
    upper = segment.upper_bound_offset(part.position + part.size)
    if upper is None and number + 1 < len(view.segments):
        upper = view.segments[number + 1].base_offset
    upper = limit if upper is None else min(upper, limit)
    transactions: list[AbortedTransaction] = []
    for later in view.segments[number:]:
        for transaction in later.aborted():
            if transaction.last_offset >= offset and transaction.first_offset < upper:
                transactions.append(transaction)
            if transaction.last_stable_offset >= upper:
                return tuple(transactions)
    return tuple(transactions)


def offset_for_time(view: LogView, timestamp: int) -> TimestampAndOffset | None:
    """The first record at or after ``timestamp`` (ms); for ``MAX_TIMESTAMP`` one with the largest timestamp.

    ``EARLIEST`` and ``LATEST`` give the log's start and its high watermark, with timestamp -1. None where
    every record below the high watermark is older.
    """
    if timestamp == EARLIEST:
        return TimestampAndOffset(offset=view.log_start_offset, timestamp=-1, leader_epoch=-1)
    if timestamp == LATEST:
        return TimestampAndOffset(offset=view.high_watermark, timestamp=-1, leader_epoch=-1)
    if timestamp == MAX_TIMESTAMP:
        timestamp = max((segment.largest()[0] for segment in view.segments), default=-1)
        if timestamp < 0:
            return None

    def search() -> TimestampAndOffset | None:
        for number, segment in enumerate(view.segments):
            if segment.largest_timestamp >= timestamp:
                size = view.size_of(number)
                record = segment.find_record_by_timestamp(
                    timestamp, size, view.log_start_offset, view.batch_limit
                )
                if record is not None:
                    return record if record.offset < view.high_watermark else None
        return None

    return _retry_renamed(view, search)
