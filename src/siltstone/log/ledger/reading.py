"""The reader of a log's compacted view: first its ledger, then the log's own records from the horizon on.

::

    reader = log.reader("earliest", read_compacted=True)
    for polled in reader:            # to the end as it is now; continue later with the same reader
        polled.columns.offset        # ascending, each record once

This is Pulsar's ``readCompacted``. The reader opens the ledger that is current when it starts, or at a
``seek``, and reads that ledger up to its horizon, even if a later compaction replaces it. While the reader
has the ledger open, retention does not delete the log's records from the horizon on. The reader closes the
ledger when it first reads the log itself. A ledger has no records of open or aborted transactions, so
``isolation`` matters only from the horizon on. If a log has no ledger, all of the log is read.

A ledger has no tombstones either. If reader B continues where reader A stopped, B has to return the
tombstones of keys that A has returned, even if a newer ledger has applied these tombstones by now. So B reads
the log itself from A's ``log_from`` on, and the newer ledger only below::

    reader A        ├──── ledger 1 ────┤ log_from ── log ──►
    A stops                 ▲
    reader B                ├ ledger 2 ┤ log_from ── log ──►
    not right for B         ├ ledger 2 ──────────────┤ horizon ── log ──►
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol, Unpack

import numpy as np

from siltstone.base.closing import Closing
from siltstone.base.errors import CorruptRecordError, LedgerError, OffsetOutOfRangeError
from siltstone.base.records.columns import ColumnArrays, select
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Int64
from siltstone.log import fetch
from siltstone.log.fetch import READ_UNCOMMITTED, LogView
from siltstone.log.ledger.manifest import manifest_name
from siltstone.log.ledger.store import LedgerSegment, LedgerStore, OpenLedger
from siltstone.log.reading import (
    EARLIEST,
    AtTime,
    FixedLog,
    HasView,
    LogReader,
    PolledRecords,
    ReaderSettings,
    RecordReader,
    Start,
)

# A run may have records that a later run of the same ledger supersedes. A reader drops these records from the
# decoded columns.


@kernel
def _drop_rows(superseded: Int64, columns: ColumnArrays) -> int:
    """Move the rows whose offsets are not superseded to the front of the columns' arrays, in place. Returns
    how many rows these are, or -1 if a superseded offset has no row.

    Both ``superseded`` and the rows ascend by offset, so one pass over both finds them.
    """
    batch, offset, key_start, key_size, timestamp = columns[:5]
    start, size, value_start, value_size, headers_start, header_count = columns[5:]
    count, skipped = 0, 0
    for row in range(len(offset)):
        if skipped < len(superseded) and superseded[skipped] == offset[row]:
            skipped += 1
            continue
        batch[count] = batch[row]
        offset[count] = offset[row]
        timestamp[count] = timestamp[row]
        start[count] = start[row]
        size[count] = size[row]
        key_start[count] = key_start[row]
        key_size[count] = key_size[row]
        value_start[count] = value_start[row]
        value_size[count] = value_size[row]
        headers_start[count] = headers_start[row]
        header_count[count] = header_count[row]
        count += 1
    return count if skipped == len(superseded) else -1


def without_superseded(polled: PolledRecords, superseded: Int64, path: str) -> PolledRecords:
    """Drop the records at ``superseded`` offsets (int64, ascending). Overwrites the arrays of ``polled``.

    Raises LedgerError, with ``path``, if a superseded offset between the first and the last record has no
    record.
    """
    columns = polled.columns
    first, end = np.searchsorted(superseded, [columns.offset[0], columns.offset[-1] + 1]).tolist()
    if first == end:
        return polled
    count = _drop_rows(superseded[first:end], columns.arrays)
    if count < 0:
        raise LedgerError(path, "a superseded offset has no record")
    return replace(polled, columns=select(columns, slice(0, count)))


class HasLedgers(HasView, Protocol):
    """A log whose partition directory may have ledgers, such as ``PartitionLog``."""

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        ...


def open_reader(
    log: HasLedgers,
    start: Start = EARLIEST,
    *,
    read_compacted: bool = False,
    **options: Unpack[ReaderSettings],
) -> LogReader | CompactedReader:
    """A reader of the log, or with ``read_compacted`` of its compacted view; ``options``: ``LogReader``'s.

    Raises UsageError, LedgerError, OSError.
    """
    return CompactedReader(log, start, **options) if read_compacted else LogReader(log, start, **options)


class CompactedReader(RecordReader, Closing):
    """A reader of a log's compacted view, used like a ``LogReader``. Only one thread may use it at a time.

    ``offset``: of the next record. ``log_from``: the offset from which the log itself is read, normally the
    ledger's horizon. ``resets``: how many times the ``reset`` policy was applied: to an offset below the
    first offset of the compacted view, or after retention deleted records of the log before they were read;
    "earliest" is the view's first record. Close the reader, or use it in a ``with`` statement: until it has
    passed the horizon it keeps a ledger open, and retention keeps the log's records from the horizon on.
    """

    def __init__(
        self,
        log: HasLedgers,
        start: Start = EARLIEST,
        *,
        log_from: int | None = None,
        **options: Unpack[ReaderSettings],
    ) -> None:
        """``log_from``: that of the reader that this reader continues, else None; the other arguments are
        ``LogReader``'s.

        Raises UsageError, LedgerError, OSError; and OffsetOutOfRangeError, here or in a later ``poll``, if
        records of the log from ``log_from`` on were deleted before they were read.
        """
        self._log = log
        self._options = options
        self._reset, self._end = options.get("reset", "none"), options.get("end")
        LogReader(log, 0, **options)  # raises for wrong options
        # ``poll`` of this class applies the ``reset`` policy: the compacted view begins at another offset
        # than the log.
        without_reset: ReaderSettings = {**options, "reset": "none"}
        self._log_reader = LogReader(log, 0, **without_reset)
        self._ledger: OpenLedger | None = None
        # The segment of the ledger that is being read, and its reader.
        self._current: tuple[LedgerSegment, LogReader] | None = None
        self.log_from = 0
        self._is_closed = False
        self.resets = 0
        self.offset = 0
        self._seek(start, log_from)

    @property
    def buffer_bytes(self) -> int:
        """The bytes of one read; they grow to the size of the largest batch."""
        return self._log_reader.buffer_bytes

    @property
    def is_in_ledger(self) -> bool:
        """Does the reader still read its ledger? Then it keeps the ledger open."""
        return self._ledger is not None

    def seek(self, start: Start) -> None:
        """Continue at another offset, in the ledger that is current now. Raises as the constructor does."""
        self._seek(start, None)

    def seek_existing(self, offset: int) -> None:
        """Continue after an ``OffsetOutOfRangeError``, without the records that were deleted: at ``offset``
        or the first offset above it that the view has, in the ledger that is current now. Raises LedgerError,
        OSError."""
        self.seek(EARLIEST)
        self.offset = max(self.offset, offset)
        if self.offset >= self.log_from:
            self._release()
        if self._ledger is None:
            self.offset = max(self.offset, self._log.view.log_start_offset)

    def _seek(self, start: Start, log_from: int | None) -> None:
        self._release()
        self._is_closed = False
        store = LedgerStore(self._log.directory)
        opened = store.open()
        # The view must not be older than the ledger: the log may grow and be compacted between the two, and
        # the ledger would then cover offsets beyond the view's end.
        view = self._log.view
        if opened is None:
            self.offset = self._resolve_start(view, start)
            self.log_from = view.log_start_offset if log_from is None else log_from
            return
        self._ledger, ledger = opened, opened.ledger
        self.log_from = max(ledger.horizon, view.log_start_offset)
        if log_from is not None:
            self.log_from = min(self.log_from, log_from)
        try:
            if view.log_end_offset < ledger.horizon:
                raise LedgerError(
                    str(store.folder / manifest_name(ledger.id)),
                    f"the ledger covers offsets below {ledger.horizon}, but the log ends at "
                    f"{view.log_end_offset}",
                )
            self.offset = self._start_offset(start, view)
            if log_from is not None and max(self.offset, self.log_from) < view.log_start_offset:
                raise OffsetOutOfRangeError(
                    f"records of the log from offset {max(self.offset, self.log_from)} on, which were not "
                    f"read yet, were deleted: it starts at {view.log_start_offset}",
                    path=view.name,
                    advice="continue in the ledger that is current now; it has no tombstones",
                )
        except BaseException:
            self._release()
            raise
        if self.offset >= self.log_from:
            self._release()

    def _resolve_start(self, view: LogView, start: Start) -> int:
        """The offset in ``view`` that ``start`` stands for."""
        isolation = self._options.get("isolation", READ_UNCOMMITTED)
        return LogReader(FixedLog(view), start, isolation=isolation).offset

    def _start_offset(self, start: Start, view: LogView) -> int:
        """The offset in the compacted view that ``start`` stands for; ``view``: of the log."""
        assert self._ledger is not None
        if start == EARLIEST:
            return self._ledger.ledger.base_offset
        if not isinstance(start, AtTime):
            return self._resolve_start(view, start)
        for segment in self._ledger.segments:
            offset = self._first_offset_since(segment, start.timestamp_ms)
            if offset is not None:
                return offset
        # No record of the ledger is that new: search the log, but only the part that is read from it.
        return self._resolve_start(view._replace(log_start_offset=self.log_from), start)

    def _first_offset_since(self, segment: LedgerSegment, timestamp_ms: int) -> int | None:
        """The offset of the segment's first record that is not superseded and not older than
        ``timestamp_ms``; None if it has no such record."""
        record = fetch.offset_for_time(segment.view, timestamp_ms)
        if record is None:
            return None
        # That record may be superseded. So read from it on, as ``poll`` does: ``_poll_segment`` begins at
        # ``self.offset``, which ``_seek`` sets to the result afterwards.
        self.offset = record.offset
        offset = None
        while offset is None and (polled := self._poll_segment(segment, None)) is not None:
            rows = np.flatnonzero(polled.columns.timestamp >= timestamp_ms)
            offset = int(polled.columns.offset[rows[0]]) if len(rows) else None
        self._current = None
        return offset

    def poll(self, max_bytes: int | None = None) -> PolledRecords | None:
        """The next records, of about ``max_bytes`` of file (at least one batch); None at the end.

        Raises LedgerError for damage in the ledger, and what ``LogReader.poll`` raises.
        """
        if self._is_closed:
            self.seek(self.offset)
        while True:
            try:
                return self._poll(max_bytes)
            except OffsetOutOfRangeError as error:
                if self._reset == "none":
                    raise OffsetOutOfRangeError(
                        f"offset {self.offset} is not in the compacted view, or retention deleted it before "
                        f"it was read: {error.reason}",
                        path=error.path,
                        advice="pass reset=earliest to continue at the first record of the view",
                    ) from error
                self.resets += 1
                self.seek(self._reset)

    def _poll(self, max_bytes: int | None) -> PolledRecords | None:
        if self._ledger is not None and self.offset < self._ledger.ledger.base_offset:
            raise OffsetOutOfRangeError(f"its first offset is {self._ledger.ledger.base_offset}")
        while self._ledger is not None and self.offset < self.log_from:
            if self._end is not None and self.offset >= self._end:
                self._release()
                return None
            segment = next(
                (segment for segment in self._ledger.segments if segment.view.log_end_offset > self.offset),
                None,
            )
            if segment is None:
                break
            polled = self._poll_segment(segment, max_bytes)
            if polled is not None:
                return polled
        return self._poll_log(max_bytes)

    def _poll_segment(self, segment: LedgerSegment, max_bytes: int | None) -> PolledRecords | None:
        """The segment's next records that are not superseded; None at its end, to which it moves
        ``offset``."""
        path = segment.view.segments[0].reader.path
        if self._current is None or self._current[0] is not segment:
            self._current = segment, self._open_segment(segment)
        reader = self._current[1]
        try:
            while (polled := reader.poll(max_bytes)) is not None:
                # A batch may extend beyond ``log_from``, from where the log itself is read.
                self.offset = min(reader.offset, self.log_from)
                remaining = without_superseded(polled, segment.superseded, path)
                if len(remaining):
                    return remaining
        except CorruptRecordError as error:
            ledger_error = LedgerError(path, error.reason, advice=error.advice)
            ledger_error.position = error.position
            raise ledger_error from error
        self._log_reader.buffer_bytes = max(self._log_reader.buffer_bytes, reader.buffer_bytes)
        end = min(segment.view.log_end_offset, self.log_from)
        self.offset = max(self.offset, end if self._end is None else min(end, self._end))
        return None

    def _open_segment(self, segment: LedgerSegment) -> LogReader:
        """A reader of the segment, whose checksum is verified first, unless the options say otherwise."""
        assert self._ledger is not None
        if self._options.get("verify", True):
            self._ledger.verify_segment(segment)
            # The next segment's checksum is computed while this segment is read.
            base = segment.entry.base_offset
            next_segment = next(
                (later for later in self._ledger.segments if later.entry.base_offset > base), None
            )
            if next_segment is not None:
                self._ledger.start_verification(next_segment)
        self.offset = max(self.offset, segment.view.log_start_offset)
        options: ReaderSettings = {
            **self._options,
            "isolation": READ_UNCOMMITTED,
            "reset": "none",
            "end": self.log_from if self._end is None else min(self._end, self.log_from),
            "buffer_bytes": self.buffer_bytes,
            "limit": self._options.get("limit") or self._log.view.batch_limit,
            "verify": False,  # ``verify_segment`` has verified the whole file, or the options say not to
        }
        return LogReader(FixedLog(segment.view), self.offset, **options)

    def _poll_log(self, max_bytes: int | None) -> PolledRecords | None:
        """The next records of the log itself.

        The ledger is released only after this read: until then it keeps retention from deleting the records.
        """
        try:
            if self._ledger is not None:
                self.offset = max(self.offset, self.log_from)
            self._log_reader.offset = self.offset
            polled = self._log_reader.poll(max_bytes)
        finally:
            self._release()
        self.offset = self._log_reader.offset
        return polled

    def close(self) -> None:
        """Release the ledger. May be called twice; a later ``poll`` opens the ledger that is current then."""
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        self._current = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
