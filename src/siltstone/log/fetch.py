"""Reading from a log: an immutable view of the log, and fetches from it (Kafka's ``LocalLog.read``).

A ``LogView`` is a summary of the log at one moment. Every change of the log replaces it by a new view, and a
reader keeps the view that it took: the view's segments and offsets stay the same while other threads append,
delete or swap segments.

A reader that continues where its last read ended can skip the search in the offset index:
``FetchResult.position_after`` returns the position, and ``read`` takes it as ``resume_at``::

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
EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP = -2, -1, -3
"""The special timestamps of Kafka's ``ListOffsetsRequest``; see ``offset_for_time``."""
_BATCH_START = struct.Struct(">qi4xB")
"""The first 17 bytes of a batch or message set, the same in every format::

    0              8          12            16
    | base offset  | size     | (4 bytes)   | magic |        ``size`` counts the bytes after this field
"""
Result = TypeVar("Result")


class LogView(NamedTuple):
    """An immutable summary of a log at one moment (Kafka's ``LogOffsetSnapshot``, with the segments).

    ``active_size``: bytes of the active segment at that moment; an append may have added more since.
    ``batch_limit``: the bytes that one batch may decompress to (``max.decompressed.message.bytes``).
    ``truncations``: how many times the log was truncated since it was opened. If a later view has another
    number, an offset may have another record in it than before, even if the log is longer by now. A log that
    this process only reads counts how many times its directory was listed again, since another process may
    have truncated it.
    """

    segments: tuple[LiveSegment, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    active_size: int
    batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT
    truncations: int = 0

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Log start offset, log end offset, high watermark, last stable offset."""
        return self[1:5]

    @property
    def name(self) -> str | None:
        """The log's name for errors, such as ``events-0``; None without a segment."""
        return self.segments[0].directory.name if self.segments else None

    def readable_end(self, isolation: str) -> int:
        """The offset below which records may be read: for ``READ_COMMITTED`` the last stable offset,
        otherwise the high watermark."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.high_watermark

    def size_of(self, number: int) -> int:
        """Bytes of segment ``number`` (its index in ``segments``) that belong to this view."""
        return self.active_size if number + 1 == len(self.segments) else self.segments[number].size


class FetchPosition(NamedTuple):
    """Where a read ended: at byte ``position`` of ``segment``; all batches before it are below ``offset``.

    A later view that has the same segment object can be read from here, unless the segment was truncated:
    then other bytes may be there. So the batch header at the position is checked before it is used.
    """

    segment: LiveSegment
    position: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """The result of a read (Kafka's ``FetchDataInfo``): ``slice`` of one segment's file, or None at the end.

    ``view``: the view that was read. ``segment``: the segment of the slice. ``first_offset``: the first
    batch's base offset, which is at most the requested offset, or above it where offsets are missing; in an
    empty result the smaller of the requested offset and ``offset_limit``. ``first_batch_size``: bytes of the
    first batch; a smaller slice has only a part of it. ``offset_limit``: the high watermark or, for
    read_committed, the last stable offset; the slice has only batches below. ``aborted``: for read_committed,
    the aborted transactions that may have records in the slice.
    """

    view: LogView
    slice: FileSlice | None = None
    segment: LiveSegment | None = None
    first_offset: int
    first_batch_size: int = 0
    offset_limit: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in the slice."""
        return 0 if self.slice is None else self.slice.size

    def batches(self) -> tuple[Bytes, BatchHeaders, int]:
        """Read the slice: (bytes of whole batches, their headers, how many bytes of another batch follow).

        Checksums are not checked. The result ends before a damaged batch; if the first one is damaged, raises
        CorruptRecordError.
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
        """The position after ``batches``, the first ones of the slice; None if there are none."""
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
) -> FetchResult:
    """Up to ``max_bytes`` of batches from the one with ``offset`` on, all from one segment.

    If no batch has ``offset``, the result begins at the next higher batch; at the end of the log it is empty.
    The last batch may be incomplete. ``isolation``: ``READ_COMMITTED`` or ``READ_UNCOMMITTED``.
    ``min_one_batch``: return the whole first batch even if it is larger than ``max_bytes`` (KIP-74).
    ``resume_at``: from ``FetchResult.position_after``; it counts only if its offset is ``offset``. Raises
    OffsetOutOfRangeError for an offset below the log start offset or above the log end offset.
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


def fetch_response(
    view: LogView, offset: int, max_bytes: int, *, isolation: str = READ_UNCOMMITTED
) -> MessageSetSend:
    """Up to ``max_bytes`` of the log from ``offset`` on, as a ``MessageSetSend``: the frame of Kafka's design
    documentation, not the protocol's ``FetchResponse``.

    The bytes are read once and not copied again. They may end within a batch, even within the first: a client
    that gets no whole batch asks for more bytes. For an offset out of range and for a damaged batch the
    response has Kafka's error code. Raises OSError.
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
    """The result of ``search``, repeated when another thread renamed a file before ``search`` could open it.

    That thread opened the segment's files before it renamed them (``LiveSegment.keep_open``), so the next try
    uses the open files: each segment can fail once.
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
) -> FetchResult:
    offset_limit = view.readable_end(isolation)
    first_number = max(bisect.bisect_right(view.segments, offset, key=attrgetter("base_offset")) - 1, 0)
    # At or above the limit nothing may be read: then the loop has no iteration. Otherwise the first
    # segment may end below ``offset``, since a cleaning leaves gaps, and the search goes on in the next one.
    for number in range(first_number, len(view.segments) if offset < offset_limit else 0):
        segment, end = view.segments[number], _readable_end_position(view, number, offset_limit)
        first_batch = None
        if resume_at is not None and resume_at.segment is segment:
            # If the last read ended at this segment's end, continue in the next segment.
            if resume_at.position == end:
                continue
            first_batch = _batch_at_position(resume_at, end)
        if first_batch is None:
            batch = segment.find_batch(offset, end)
            if batch is None:
                continue
            first_batch = batch.position, batch.base_offset, batch.size
        position, base_offset, size = first_batch
        # A fetch reads one segment only, as in Kafka, since a slice is a part of one file.
        max_size = max(max_bytes, size) if min_one_batch else max_bytes
        file_slice = FileSlice(segment.reader, position, min(max_size, end - position))
        return FetchResult(
            view=view,
            slice=file_slice,
            segment=segment,
            first_offset=base_offset,
            first_batch_size=size,
            offset_limit=offset_limit,
            aborted=_aborted_transactions(view, number, offset, file_slice, offset_limit)
            if isolation == READ_COMMITTED
            else (),
        )
    return FetchResult(view=view, first_offset=min(offset, offset_limit), offset_limit=offset_limit)


def _readable_end_position(view: LogView, number: int, offset_limit: int) -> int:
    """The byte at which segment ``number`` reaches ``offset_limit``; its size if all batches are below."""
    segment, end = view.segments[number], view.size_of(number)
    # Below the limit as a whole: the next segment begins at or below it.
    is_whole = number + 1 < len(view.segments) and view.segments[number + 1].base_offset <= offset_limit
    if offset_limit >= view.log_end_offset or not end or is_whole:
        return end
    above = segment.find_batch(offset_limit, end)
    return end if above is None else above.position


def _batch_at_position(at: FetchPosition, end: int) -> tuple[int, int, int] | None:
    """(position, base offset, size) of the batch that begins where the last read ended, below byte ``end``.

    None if no batch with that offset or a higher one can begin there.
    """
    head = at.segment.reader.read(at.position, _BATCH_START.size)
    if len(head) < _BATCH_START.size:
        return None
    offset, size, magic = _BATCH_START.unpack(head)
    size += LOG_OVERHEAD
    is_possible = offset >= at.offset and magic <= 2 and _BATCH_START.size <= size <= end - at.position
    return (at.position, offset, size) if is_possible else None


def _aborted_transactions(
    view: LogView, number: int, offset: int, file_slice: FileSlice, offset_limit: int
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that may have records in the slice, which begins in segment ``number`` of the
    view at ``offset`` (Kafka's ``LocalLog.collectAbortedTransactions``).

    An aborted transaction is in the index of the segment that has its marker, which may be a later one. The
    search ends at an entry whose last stable offset is at or above the slice's end: a transaction whose
    marker comes later began at that offset or above.
    """
    segment = view.segments[number]
    # ``upper``: an offset at or above the slice's end, from the offset index, so that no batch is read. If it
    # is higher than the end, the result also has transactions without a record in the slice, as in Kafka:
    # they filter nothing.
    upper = segment.upper_bound_offset(file_slice.position + file_slice.size)
    if upper is None and number + 1 < len(view.segments):
        upper = view.segments[number + 1].base_offset
    upper = offset_limit if upper is None else min(upper, offset_limit)
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

    ``EARLIEST_TIMESTAMP`` and ``LATEST_TIMESTAMP`` return the log start offset and the high watermark, with
    timestamp -1. None if every record below the high watermark is older than ``timestamp``; for
    ``MAX_TIMESTAMP`` if the record with the largest timestamp is at or above the high watermark, or was
    appended after the view was taken. As in Kafka, ``MAX_TIMESTAMP`` also finds a record below the log start
    offset if its segment still exists, and the first record if none has a timestamp.
    """
    if timestamp == EARLIEST_TIMESTAMP:
        return TimestampAndOffset(offset=view.log_start_offset, timestamp=-1, leader_epoch=-1)
    if timestamp == LATEST_TIMESTAMP:
        return TimestampAndOffset(offset=view.high_watermark, timestamp=-1, leader_epoch=-1)
    return _retry_renamed(view, lambda: _find_record_by_timestamp(view, timestamp))


def _find_record_by_timestamp(view: LogView, timestamp: int) -> TimestampAndOffset | None:
    from_offset = view.log_start_offset
    if timestamp == MAX_TIMESTAMP:  # search for the largest timestamp itself
        timestamp = max((segment.largest_timestamp_and_offset()[0] for segment in view.segments), default=-1)
        from_offset = 0
    for number, segment in enumerate(view.segments):
        if segment.largest_timestamp >= timestamp:
            size = view.size_of(number)
            record = segment.find_record_by_timestamp(timestamp, size, from_offset, view.batch_limit)
            if record is not None:
                return record if record.offset < view.high_watermark else None
    return None
