"""Reading a log from somewhere on: a cursor that gives columns (Kafka's consumer of one partition).

::

    reader = LogReader(log, "earliest", isolation="read_committed")
    for polled in reader:            # to the end as it is now; go on later with the same reader
        polled.columns.offset        # arrays, one row a record

``LogReader`` looks at the log's newest view at each poll, so it goes on over appends, rolls, swaps and
deletes. Records below the offset asked for, control records and, under read_committed, those of aborted
transactions are left out. A batch that is larger than the buffer doubles it until it fits (seed 000); bad
bytes are refused once everything before them was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CorruptRecordError, MessageTooLargeError, OffsetOutOfRangeError, UsageError
from siltstone.base.files import FileSlice
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.columns import RecordColumns, select
from siltstone.base.records.decode import decode_records
from siltstone.base.records.inflate import PIECE_BYTES, pieces
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Bytes, Directory
from siltstone.base.records.scan import SCAN_REASON, ScanEnd
from siltstone.log import fetch
from siltstone.log.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Fetched,
    FetchPosition,
    LogView,
)
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import LARGEST_BATCH
from siltstone.log.transactions import Aborted, Carried, TransactionScan

EARLIEST, LATEST = "earliest", "latest"
RESET_POLICIES = (EARLIEST, LATEST, "none")
DEFAULT_BUFFER_BYTES = 1 << 20
_TRIES = 5
_GROWTH = 8
"""What is polled takes so many times its stored bytes in memory at most, or ``PIECE_BYTES``, or one batch."""


class HasView(Protocol):
    """A log: an object with the ``LogView`` of this moment."""

    @property
    def view(self) -> LogView:
        """What may be read now."""
        ...


@dataclass(frozen=True, slots=True)
class AtTime:
    """A place to start: the first record at or after ``timestamp_ms``, the end where none is that late."""

    timestamp_ms: int


Start = int | str | AtTime
"""An offset, "earliest", "latest" (from now on: the end at the time of asking), or a time."""


class ReaderSettings(TypedDict, total=False):
    """How a reader reads: the keyword arguments of ``LogReader``, each as it says there."""

    isolation: str
    reset: str
    end: int | None
    buffer_bytes: int
    largest_batch_bytes: int
    limit: int | None
    verify: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """Records of one read, at least one: ``columns``, whose ``batch`` counts rows of ``batches``.

    The arrays are the caller's to keep.
    """

    columns: RecordColumns
    batches: Directory

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record for people to look at; ``timestamp`` in ms, -1 where the format has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    leader_epoch: int


class _Before(NamedTuple):
    """What a reader read last: up to ``offset``; ``unended``: the producers that it left in a transaction."""

    view: LogView | None = None
    segment: LiveSegment | None = None
    offset: int = -1
    unended: tuple[int, ...] = ()


class RecordReader:
    """What gives a log's records in order, read by ``poll``."""

    def poll(self, max_bytes: int | None = None) -> Polled | None:
        """The next records; None at the end."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Polled]:
        while (polled := self.poll()) is not None:
            yield polled

    def records(self) -> Iterator[Record]:
        """One object a record, to the end as it is now: for people; columns are a hundred times faster."""
        for polled in self:
            yield from records_of(polled)


class LogReader(RecordReader):
    """A cursor over a log. ``offset`` is the next one to be read, ``resets`` how often it had to jump.

    ``reset`` says what becomes of an offset that is no longer, or not yet, in the log: it goes on at the
    "earliest" or "latest" one, or "none": OffsetOutOfRangeError. ``end``: nothing at or above is read.
    ``buffer_bytes`` is read at once and grows up to ``largest_batch_bytes``; of what grows by far when it is
    decompressed less is taken. ``limit`` is what one batch may decompress to: the log's own unless told. One
    thread at a time.
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
            raise UsageError(f"isolation {isolation!r}: give {READ_COMMITTED} or {READ_UNCOMMITTED}")
        if reset not in RESET_POLICIES:
            raise UsageError(f"reset {reset!r}: give one of {', '.join(RESET_POLICIES)}")
        if buffer_bytes <= 0:
            raise UsageError(f"buffer_bytes {buffer_bytes}: give at least 1")
        self._log = log
        self._isolation, self._reset, self._end = isolation, reset, end
        self.buffer_bytes, self._largest = buffer_bytes, largest_batch_bytes
        self._limit, self._verify = limit, verify
        self._place: FetchPosition | None = None
        self._before = _Before()
        self.resets = 0
        self.offset = self._offset_of(start, log.view)

    def seek(self, start: Start) -> None:
        """Go on somewhere else."""
        self.offset = self._offset_of(start, self._log.view)

    def _offset_of(self, start: Start, view: LogView) -> int:
        end = view.last_stable_offset if self._isolation == READ_COMMITTED else view.high_watermark
        if isinstance(start, AtTime):
            found = fetch.offset_for_time(view, start.timestamp_ms)
            return end if found is None else found.offset
        if isinstance(start, str):
            if start not in (EARLIEST, LATEST):
                raise UsageError(f"start {start!r}: give {EARLIEST}, {LATEST}, an offset or AtTime(ms)")
            return view.log_start_offset if start == EARLIEST else end
        return start

    def poll(self, max_bytes: int | None = None) -> Polled | None:
        """The next records, of about ``max_bytes`` of log (at least one batch); None at the end.

        Raises OffsetOutOfRangeError (``reset``), MessageTooLargeError for a batch over
        ``largest_batch_bytes``, CorruptRecordError for a batch that makes no sense, CorruptFileError for a
        ``.txnindex`` that the markers contradict; ``offset`` is still the same then: ``seek`` behind it to go
        on.
        """
        tries = 0
        while self._end is None or self.offset < self._end:
            place, self._place = self._place, None
            view = self._log.view
            try:
                fetched = self._fetch(view, max_bytes or self.buffer_bytes, place)
                polled = None if fetched.slice is None else self._take(fetched, fetched.slice)
            except CorruptRecordError:
                # The log may have been cut off, and may have grown again: look the offset up once more.
                tries += 1
                if tries > _TRIES or (place is None and self._log.view is view):
                    raise
                continue
            if polled is None or len(polled):
                return polled
        return None

    def _fetch(self, view: LogView, max_bytes: int, place: FetchPosition | None) -> Fetched:
        try:
            fetched = fetch.read(view, self.offset, max_bytes, isolation=self._isolation, place=place)
        except OffsetOutOfRangeError:
            if self._reset == "none":
                raise
            self.offset = self._offset_of(self._reset, view)
            self.resets += 1
            fetched = fetch.read(view, self.offset, max_bytes, isolation=self._isolation)
        # The buffer doubles until the first batch fits: its header says so, nothing is read twice.
        if fetched.first_batch_size > self._largest:
            raise MessageTooLargeError(
                f"the batch at offset {fetched.first_offset} takes {fetched.first_batch_size} bytes, over "
                f"this reader's largest_batch_bytes, {self._largest}; raise that, or seek behind the batch"
            )
        while self.buffer_bytes < fetched.first_batch_size:
            self.buffer_bytes = min(2 * self.buffer_bytes, self._largest)
        return fetched

    def _take(self, fetched: Fetched, part: FileSlice) -> Polled:
        """Decode what was fetched and move on; no record may be left of it."""
        path, origin = part.reader.path, part.position
        limit = fetched.view.batch_limit if self._limit is None else self._limit
        data, batches, _ = fetched.batches()
        if not len(batches):
            raise CorruptRecordError(path, origin, SCAN_REASON[ScanEnd.TRUNCATED])
        bad = first_bad_checksum(data, batches) if self._verify else None
        if bad == 0:
            raise CorruptRecordError(path, origin, "checksum does not match")
        batches = batches[:bad]
        budget = max(_GROWTH * len(data), PIECE_BYTES)
        batches = batches[next(pieces(data, batches, budget))]
        kept, unended = self._wanted(batches, data, fetched, part)
        try:
            columns = decode_records(data, kept, limit=limit, path=path, origin=origin)
        except CorruptRecordError as error:
            batches = batches[batches["position"] < error.position - origin]
            if not len(batches):
                raise
            kept, unended = self._wanted(batches, data, fetched, part)
            columns = decode_records(data, kept, limit=limit, path=path, origin=origin)
        end = fetched.end_offset if self._end is None else min(self._end, fetched.end_offset)
        first, behind = np.searchsorted(columns.offset, [self.offset, end]).tolist()
        if first or behind < len(columns):
            columns = select(columns, slice(first, behind))
        self._place = fetched.behind(batches)
        self.offset = max(self.offset, int(batches["last_offset"][-1]) + 1)
        self._before = _Before(fetched.view, fetched.segment, self.offset, unended)
        return Polled(columns=columns, batches=kept)

    def _wanted(
        self, batches: Directory, data: Bytes, fetched: Fetched, part: FileSlice
    ) -> tuple[Directory, tuple[int, ...]]:
        """The batches with records for the caller, and the producers that they leave in a transaction.

        Raises CorruptFileError where a transaction index and the markers contradict each other.
        """
        wanted = ((batches["attributes"] & CONTROL_BIT) == 0) | (batches["magic"] < 2)
        wanted &= batches["last_offset"] >= self.offset
        wanted &= batches["count"] != 0
        # In another view's segment a cleaning may have removed the marker of a transaction read before.
        before = self._before
        follows = before.view is fetched.view or before.segment is fetched.segment
        unended = before.unended if follows and before.offset == self.offset else ()
        flags = TRANSACTIONAL_BIT | CONTROL_BIT
        concerned = bool(fetched.aborted) or bool((batches["attributes"] & flags).any())
        if self._isolation == READ_COMMITTED and concerned:
            path = part.reader.path
            scan = TransactionScan(Aborted.among(fetched.aborted, path), Carried(unended=unended))
            wanted &= ~scan.aborted_among(data, batches, path=path, origin=part.position)
            unended = scan.unended
        return (batches if wanted.all() else batches[wanted]), unended


def in_aborted(batches: Directory, aborted: tuple[AbortedTransaction, ...]) -> npt.NDArray[np.bool_]:
    """Which batches belong to aborted transactions: bool, one a batch."""
    found = np.zeros(len(batches), np.bool_)
    transactional = (batches["attributes"] & TRANSACTIONAL_BIT) != 0
    for producer_id, first, last, _ in aborted:
        found |= (
            (batches["producer_id"] == producer_id)
            & (batches["last_offset"] >= first)
            & (batches["base_offset"] <= last)
        )
    return np.asarray(found & transactional)


def records_of(polled: Polled, most: int | None = None) -> Iterator[Record]:
    """One object a record, of all that were polled or the first ``most``."""
    columns, epochs = polled.columns, polled.batches["leader_epoch"].tolist()
    for row in range(len(columns) if most is None else min(most, len(columns))):
        yield Record(
            offset=int(columns.offset[row]),
            timestamp=int(columns.timestamp[row]),
            key=columns.key(row),
            value=columns.value(row),
            headers=tuple(columns.headers(row)),
            leader_epoch=epochs[columns.batch[row]],
        )
