"""``LogReader`` reads a log from an offset on, as Kafka's consumer reads one partition, and returns columns.

::

    reader = LogReader(log, "earliest", isolation="read_committed")
    for polled in reader:            # up to the current end; the same reader can continue later
        polled.columns.offset        # an array with one element for each record

Each poll takes the log's newest view, so the reader also returns what was appended since, and is not
disturbed when segments are rolled, swapped or deleted. It skips records below the start offset, control
records and, with read_committed, records of aborted transactions. After a batch that is larger than
``buffer_bytes``, later reads are at least as large as that batch. A damaged batch raises an error, after all
batches before it were returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from siltstone.base.clock import checked_ms
from siltstone.base.errors import CorruptRecordError, MessageTooLargeError, OffsetOutOfRangeError, UsageError
from siltstone.base.files import FileSlice
from siltstone.base.records.checksum import BAD_CHECKSUM, first_bad_checksum
from siltstone.base.records.columns import RecordColumns, select
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import SLICE_BYTES, slices_within
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeaders, Bytes
from siltstone.base.records.scan import SCAN_REASON, ScanEnd
from siltstone.log import fetch
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchPosition, FetchResult, LogView
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.names import TopicPartition
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import LARGEST_BATCH
from siltstone.log.transactions import AbortedTransactions, TransactionScan, TransactionState

EARLIEST, LATEST = "earliest", "latest"
RESET_POLICIES = (EARLIEST, LATEST, "none")
DEFAULT_BUFFER_BYTES = 1 << 20  # as the default of Kafka's ``max.partition.fetch.bytes``
NO_PARTITION = TopicPartition("", -1)
_CORRUPT_READ_RETRIES_MAX = 5
"""How often a poll reads again after damage that a truncation by another thread may explain."""
_DECOMPRESSION_RATIO_MAX = 8
"""One poll decodes only as many batches as decompress to this many times their stored size, or to
``SLICE_BYTES`` if that is more, so that well compressed batches do not fill the memory; always at least one
batch."""


class HasView(Protocol):
    """Whatever has a current ``LogView``: an open log or a log that is only read."""

    @property
    def view(self) -> LogView:
        """The current view."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLog:
    """A ``HasView`` whose view does not change, such as a segment of a ledger."""

    view: LogView


@dataclass(frozen=True, slots=True)
class AtTime:
    """A start by time: the first record at or after ``timestamp_ms``, or the end if all are older."""

    timestamp_ms: int

    def __post_init__(self) -> None:
        checked_ms(self.timestamp_ms, "timestamp_ms")


Start = int | str | AtTime
"""Where a reader starts: at an offset, at the "earliest" or "latest" offset that the log has when the reader
is created, or at a time."""


class ReaderSettings(TypedDict, total=False):
    """The keyword arguments of ``LogReader``, which explains them."""

    isolation: str
    reset: str
    end: int | None
    buffer_bytes: int
    largest_batch_bytes: int
    limit: int | None
    verify: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledRecords:
    """The records of one poll, at least one (Kafka's ``ConsumerRecords``).

    ``columns``: one row a record; ``columns.batch`` has the row of each record's batch in ``batches``, the
    batch headers. The next poll does not change these arrays.
    """

    columns: RecordColumns
    batches: BatchHeaders

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as an object; ``timestamp`` in ms, -1 where the format has none.

    ``topic`` and ``partition`` are those of the log; "" and -1 if the reader does not know them.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    leader_epoch: int
    topic: str = ""
    partition: int = -1


class _LastRead(NamedTuple):
    """Where the last read of a ``LogReader`` ended: at ``offset``, within transactions of ``open_producers``
    (ids) that no transaction index lists as aborted. A later read meets their markers, which must be
    COMMIT."""

    view: LogView | None = None
    segment: LiveSegment | None = None
    offset: int = -1
    open_producers: tuple[int, ...] = ()


class RecordReader:
    """Reads records in the order of their offsets: ``LogReader``, and the reader of a compacted view."""

    def poll(self, max_bytes: int | None = None) -> PolledRecords | None:
        """The next records; None at the end."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[PolledRecords]:
        while (polled := self.poll()) is not None:
            yield polled

    def records(self) -> Iterator[Record]:
        """The records as objects, up to the current end. The columns of ``poll`` are 100 times faster."""
        for polled in self:
            yield from records_of(polled)


class LogReader(RecordReader):
    """A cursor over a log, for one thread. ``offset``: the next offset to read; ``resets``: how many times
    the ``reset`` policy was applied.

    ``reset`` is Kafka's ``auto.offset.reset``: if ``offset`` is outside of the log, continue at the
    "earliest" or "latest" offset, or ("none") raise OffsetOutOfRangeError. ``end``: stop below this offset.
    ``buffer_bytes``: how much of the log one poll reads. It grows up to ``largest_batch_bytes``; a larger
    batch raises MessageTooLargeError. ``limit``: the bytes that one batch may decompress to, by default the
    log's ``max.decompressed.message.bytes``. ``verify``: check each batch's checksum. Set ``control_records``
    to get control records, too. ``bytes_read``: of the log's files, by all polls together.
    """

    def __init__(
        self,
        log: HasView,
        start: Start = EARLIEST,
        *,
        isolation: str = READ_UNCOMMITTED,
        reset: str = "none",
        end: int | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        largest_batch_bytes: int = LARGEST_BATCH,
        limit: int | None = None,
        verify: bool = True,
    ) -> None:
        if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            advice = f"pass {READ_COMMITTED} or {READ_UNCOMMITTED}"
            raise UsageError(f"isolation={isolation!r} is not an isolation level", advice=advice)
        if reset not in RESET_POLICIES:
            advice = f"pass one of {', '.join(RESET_POLICIES)}"
            raise UsageError(f"reset={reset!r} is not a reset policy", advice=advice)
        if buffer_bytes <= 0:
            raise UsageError(f"buffer_bytes={buffer_bytes} is not positive", advice="pass at least 1")
        self._log = log
        self._isolation, self._reset, self._end = isolation, reset, end
        self.buffer_bytes, self._largest = buffer_bytes, largest_batch_bytes
        self._limit, self._verify = limit, verify
        self.control_records, self.bytes_read = False, 0
        self._resume_at: FetchPosition | None = None
        self._last_read = _LastRead()
        self.resets = 0
        self.offset = self._offset_of(start, log.view)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._log!r} at offset {self.offset}>"

    def seek(self, start: Start) -> None:
        """Continue at another offset or time."""
        # ``_resume_at`` may stay: ``fetch`` uses it only for the offset that it belongs to.
        self.offset = self._offset_of(start, self._log.view)

    def _offset_of(self, start: Start, view: LogView) -> int:
        """The offset in ``view`` that ``start`` stands for. Raises UsageError, and what a search by time
        raises."""
        end = view.readable_end(self._isolation)
        if isinstance(start, AtTime):
            record = fetch.offset_for_time(view, start.timestamp_ms)
            return end if record is None else record.offset
        if start in (EARLIEST, LATEST):
            return view.log_start_offset if start == EARLIEST else end
        if isinstance(start, (int, np.integer)):
            return int(start)
        advice = f"pass {EARLIEST!r}, {LATEST!r}, an offset or AtTime(ms)"
        raise UsageError(f"start={start!r} is not a position in a log", advice=advice)

    def poll(self, max_bytes: int | None = None) -> PolledRecords | None:
        """The next records, of about ``max_bytes`` of the log but at least one batch; None at the end.

        Raises OffsetOutOfRangeError (see ``reset``), MessageTooLargeError for a batch over
        ``largest_batch_bytes``, CorruptRecordError for a damaged batch, CorruptFileError for a ``.txnindex``
        that the markers contradict. ``offset`` is not changed by an error: to skip the batch, ``seek`` to the
        offset after it.
        """
        while (polled := self.poll_once(max_bytes)) is not None:
            if len(polled):
                return polled
        return None

    def poll_once(self, max_bytes: int | None = None) -> PolledRecords | None:
        """As ``poll``, but one read only: the result is empty if none of the records read is for the caller.
        So a caller that bounds its work gets control back, even where a long part of the log has only aborted
        records. None at the end."""
        retries = 0
        while self._end is None or self.offset < self._end:
            resume_at, self._resume_at = self._resume_at, None
            view = self._log.view
            try:
                fetched = self._fetch(view, max_bytes or self.buffer_bytes, resume_at)
                polled = None if fetched.slice is None else self._decode(fetched, fetched.slice)
            except CorruptRecordError:
                # After a truncation and an append, other bytes may be where the last read ended. So search
                # for the offset in the newest view, unless that is what failed.
                retries += 1
                if retries > _CORRUPT_READ_RETRIES_MAX or (resume_at is None and self._log.view is view):
                    raise
                continue
            return polled
        return None

    def _fetch(self, view: LogView, max_bytes: int, resume_at: FetchPosition | None) -> FetchResult:
        """Fetch from ``offset`` on; apply the ``reset`` policy if it is outside of the log, and grow
        ``buffer_bytes`` to the size of the first batch."""
        try:
            fetched = fetch.read(view, self.offset, max_bytes, isolation=self._isolation, resume_at=resume_at)
        except OffsetOutOfRangeError:
            if self._reset == "none":
                raise
            self.offset = self._offset_of(self._reset, view)
            self.resets += 1
            fetched = fetch.read(view, self.offset, max_bytes, isolation=self._isolation)
        # The header says how large the first batch is. ``fetch.read`` covers it whole, whatever its size.
        if fetched.first_batch_size > self._largest:
            raise MessageTooLargeError(
                f"the batch at offset {fetched.first_offset} has {fetched.first_batch_size} bytes, more than "
                f"this reader's largest_batch_bytes, {self._largest}",
                path=view.name,
                advice="pass a larger largest_batch_bytes, or seek to the offset after the batch",
            )
        self.bytes_read += fetched.size
        while self.buffer_bytes < fetched.first_batch_size:
            self.buffer_bytes = min(2 * self.buffer_bytes, self._largest)
        return fetched

    def _decode(self, fetched: FetchResult, file_slice: FileSlice) -> PolledRecords:
        """Decode the fetched batches and advance ``offset``; the result may have no records."""
        path, origin = file_slice.reader.path, file_slice.position
        limit = fetched.view.batch_limit if self._limit is None else self._limit
        data, batches, _ = fetched.batches()
        if not len(batches):
            raise CorruptRecordError(path, origin, SCAN_REASON[ScanEnd.TRUNCATED])
        bad = first_bad_checksum(data, batches) if self._verify else None
        if bad == 0:
            raise CorruptRecordError(path, origin, BAD_CHECKSUM)
        batches = batches[:bad]  # all of them if ``bad`` is None
        budget = max(_DECOMPRESSION_RATIO_MAX * len(data), SLICE_BYTES)
        # Only the first slice: the next poll reads the batches after it again.
        batches = batches[next(slices_within(data, batches, budget))]
        visible, open_producers = self._visible(batches, data, fetched, file_slice)
        try:
            columns = decode_records(data, visible, limit=limit, path=path, origin=origin)
        except CorruptRecordError as error:
            # Return the batches before the damaged one; the next poll begins with it.
            batches = batches[batches["position"] < error.position - origin]
            if not len(batches):
                raise
            visible, open_producers = self._visible(batches, data, fetched, file_slice)
            columns = decode_records(data, visible, limit=limit, path=path, origin=origin)
        end = fetched.offset_limit if self._end is None else min(self._end, fetched.offset_limit)
        first_row, end_row = np.searchsorted(columns.offset, [self.offset, end]).tolist()
        if first_row or end_row < len(columns):
            columns = select(columns, slice(first_row, end_row))
        self._resume_at = fetched.position_after(batches)
        self.offset = max(self.offset, int(batches["last_offset"][-1]) + 1)
        self._last_read = _LastRead(fetched.view, fetched.segment, self.offset, open_producers)
        return PolledRecords(columns=columns, batches=visible)

    def _visible(
        self, batches: BatchHeaders, data: Bytes, fetched: FetchResult, file_slice: FileSlice
    ) -> tuple[BatchHeaders, tuple[int, ...]]:
        """(the batches with records for the caller, the ids of producers with an open transaction after
        them).

        Raises CorruptFileError if a transaction index and the markers contradict each other.
        """
        visible = ((batches["attributes"] & CONTROL_BIT) == 0) | (batches["magic"] < 2) | self.control_records
        visible &= batches["last_offset"] >= self.offset
        visible &= batches["count"] != 0
        # The transactions in which the last read ended count only in the same view or the same segment. In a
        # new segment of another view, a cleaning may have removed the marker of one of them.
        last = self._last_read
        is_continuation = last.view is fetched.view or last.segment is fetched.segment
        open_producers = last.open_producers if is_continuation and last.offset == self.offset else ()
        flags = TRANSACTIONAL_BIT | CONTROL_BIT
        has_transactions = bool(fetched.aborted) or bool((batches["attributes"] & flags).any())
        if self._isolation == READ_COMMITTED and has_transactions:
            path = file_slice.reader.path
            scan = TransactionScan(
                AbortedTransactions.from_transactions(fetched.aborted, path),
                TransactionState(open_producers=open_producers),
            )
            visible &= ~scan.find_aborted(data, batches, path=path, origin=file_slice.position)
            open_producers = scan.open_producers
        return (batches if visible.all() else batches[visible]), open_producers


def in_aborted(batches: BatchHeaders, aborted: tuple[AbortedTransaction, ...]) -> npt.NDArray[np.bool_]:
    """Which batches belong to the ``aborted`` transactions: bool, one for each batch. Unlike
    ``TransactionScan`` it needs no batches before these, and does not compare the index with the markers."""
    inside = np.zeros(len(batches), np.bool_)
    transactional = (batches["attributes"] & TRANSACTIONAL_BIT) != 0
    for producer_id, first, last, _ in aborted:
        inside |= (
            (batches["producer_id"] == producer_id)
            & (batches["last_offset"] >= first)
            & (batches["base_offset"] <= last)
        )
    return np.asarray(inside & transactional)


def records_of(
    polled: PolledRecords, limit: int | None = None, *, topic_partition: TopicPartition = NO_PARTITION
) -> Iterator[Record]:
    """The polled records, or the first ``limit`` of them, as objects."""
    columns, epochs = polled.columns, polled.batches["leader_epoch"].tolist()
    for row in range(len(columns) if limit is None else min(limit, len(columns))):
        yield Record(
            offset=int(columns.offset[row]),
            timestamp=int(columns.timestamp[row]),
            key=columns.key(row),
            value=columns.value(row),
            headers=tuple(columns.headers(row)),
            leader_epoch=epochs[columns.batch[row]],
            topic=topic_partition.topic,
            partition=topic_partition.partition,
        )
