"""The reader of a log's compacted view: its ledger below the horizon, the log's own records from there on.

::

    reader = log.reader("earliest", read_compacted=True)
    for polled in reader:            # to the end as it is now; continue later with the same reader
        polled.columns.offset        # ascending, each record once

(Pulsar's ``readCompacted``.) The ledger that is current at the start, or at the last ``seek``, is read up to
its horizon, whatever is compacted, swapped or deleted meanwhile: while the reader holds it, retention keeps
the log's records from the horizon on. The reader releases it when it first reads the log itself. A ledger has
no records of open or aborted transactions, so ``isolation`` matters only from the horizon on. A log without a
ledger is read as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from siltstone.log.ledger.store import HeldLedger, LedgerSegment, LedgerStore
from siltstone.log.reading import (
    EARLIEST,
    AtTime,
    HasView,
    LogReader,
    PolledRecords,
    ReaderSettings,
    RecordReader,
    Start,
)

# Superseded records are dropped from decoded columns in place, in one pass over the rows.


@kernel
def _drop_rows(superseded: Int64, columns: ColumnArrays) -> int:
    """Move the rows that are not superseded to the front: how many, -1 where a superseded offset has no
    row."""
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
    """Drop the records at ``superseded`` offsets (int64, ascending), in the same arrays.

    Raises LedgerError, with ``path``, for an offset between the first and the last one that has no record.
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
    """A log in a directory of its own, such as ``PartitionLog``."""

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
    """A cursor over the log, or over its compacted view; ``options`` as ``LogReader`` takes it.

    Raises UsageError, LedgerError, OSError.
    """
    return CompactedReader(log, start, **options) if read_compacted else LogReader(log, start, **options)


@dataclass(frozen=True, slots=True)
class _FixedLog:
    """A log whose view does not change."""

    view: LogView


class CompactedReader(RecordReader, Closing):
    """A cursor over a log's compacted view, used as a ``LogReader`` is: ``offset``, ``resets``.

    The ``reset`` policy applies to an offset below the view's first one, and where retention deleted records
    of the log before they were read; "earliest" is the view's first record. Close it, or use it as a context:
    below the horizon it holds a ledger, and with it the log's records from there on. One thread at a time.
    """

    def __init__(self, log: HasLedgers, start: Start = EARLIEST, **options: Unpack[ReaderSettings]) -> None:
        """Arguments are ``LogReader``'s. Raises UsageError, LedgerError, OSError."""
        self._log = log
        self._options = options
        self._reset, self._end = options.get("reset", "none"), options.get("end")
        LogReader(log, 0, **options)  # checks the arguments
        without_reset: ReaderSettings = {**options, "reset": "none"}
        self._tail = LogReader(log, 0, **without_reset)
        self._held: HeldLedger | None = None
        self._reading: tuple[LedgerSegment, LogReader] | None = None
        self._tail_from = 0
        self._closed = False
        self.resets = 0
        self.offset = 0
        self.seek(start)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one read; grows to the largest batch."""
        return self._tail.buffer_bytes

    def seek(self, start: Start) -> None:
        """Continue at another offset, in the ledger that is current now. Raises as the constructor does."""
        self._release()
        self._closed = False
        store, view = LedgerStore(self._log.directory), self._log.view
        held = store.open()
        if held is None:
            self.offset = self._offset_in(view, start)
            return
        self._held, ledger = held, held.ledger
        self._tail_from = max(ledger.horizon, view.log_start_offset)
        try:
            if view.log_end_offset < ledger.horizon:
                raise LedgerError(
                    str(store.folder / manifest_name(ledger.id)),
                    f"the ledger covers offsets below {ledger.horizon}, but the log ends at "
                    f"{view.log_end_offset}",
                )
            self.offset = self._start_offset(start, view)
        except BaseException:
            self._release()
            raise
        if self.offset >= ledger.horizon:
            self._release()

    def _offset_in(self, view: LogView, start: Start) -> int:
        isolation = self._options.get("isolation", READ_UNCOMMITTED)
        return LogReader(_FixedLog(view), start, isolation=isolation).offset

    def _start_offset(self, start: Start, view: LogView) -> int:
        assert self._held is not None
        if start == EARLIEST:
            return self._held.ledger.base_offset
        if not isinstance(start, AtTime):
            return self._offset_in(view, start)
        for part in self._held.parts:
            offset = self._first_since(part, start.timestamp_ms)
            if offset is not None:
                return offset
        return self._offset_in(view._replace(log_start_offset=self._tail_from), start)

    def _first_since(self, part: LedgerSegment, timestamp_ms: int) -> int | None:
        """The offset of the first record of a part, not superseded, at or after ``timestamp_ms``; None
        without one."""
        position = fetch.offset_for_time(part.view, timestamp_ms)
        if position is None:
            return None
        self.offset = position.offset
        offset = None
        while offset is None and (polled := self._poll_part(part, None)) is not None:
            late = np.flatnonzero(polled.columns.timestamp >= timestamp_ms)
            offset = int(polled.columns.offset[late[0]]) if len(late) else None
        self._reading = None
        return offset

    def poll(self, max_bytes: int | None = None) -> PolledRecords | None:
        """The next records, of about ``max_bytes`` of file (at least one batch); None at the end.

        Raises LedgerError for damage in the ledger, and what ``LogReader.poll`` raises.
        """
        if self._closed:
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
        if self._held is not None and self.offset < self._held.ledger.base_offset:
            raise OffsetOutOfRangeError(f"its first offset is {self._held.ledger.base_offset}")
        while self._held is not None:
            if self._end is not None and self.offset >= self._end:
                self._release()
                return None
            part = next((part for part in self._held.parts if part.view.log_end_offset > self.offset), None)
            if part is None:
                break
            polled = self._poll_part(part, max_bytes)
            if polled is not None:
                return polled
        return self._poll_tail(max_bytes)

    def _poll_part(self, part: LedgerSegment, max_bytes: int | None) -> PolledRecords | None:
        """The next records of a part that are not superseded; None at its end, with ``offset`` after it."""
        path = part.view.segments[0].reader.path
        if self._reading is None or self._reading[0] is not part:
            self._reading = part, self._begin(part)
        reader = self._reading[1]
        try:
            while (polled := reader.poll(max_bytes)) is not None:
                self.offset = reader.offset
                remaining = without_superseded(polled, part.superseded, path)
                if len(remaining):
                    return remaining
        except CorruptRecordError as error:
            ledger_error = LedgerError(path, error.reason)
            ledger_error.position = error.position
            raise ledger_error from error
        self._tail.buffer_bytes = max(self._tail.buffer_bytes, reader.buffer_bytes)
        end = part.view.log_end_offset
        self.offset = max(self.offset, end if self._end is None else min(end, self._end))
        return None

    def _begin(self, part: LedgerSegment) -> LogReader:
        assert self._held is not None
        if self._options.get("verify", True):
            self._held.verify_part(part)
            base = part.entry.base_offset
            following = next((part for part in self._held.parts if part.entry.base_offset > base), None)
            if following is not None:
                self._held.verify_ahead(following)
        self.offset = max(self.offset, part.view.log_start_offset)
        options: ReaderSettings = {
            **self._options,
            "isolation": READ_UNCOMMITTED,
            "reset": "none",
            "buffer_bytes": self.buffer_bytes,
            "limit": self._options.get("limit") or self._log.view.batch_limit,
            "verify": False,  # ``verify_part`` has just checked all of it, or was not asked to
        }
        return LogReader(_FixedLog(part.view), self.offset, **options)

    def _poll_tail(self, max_bytes: int | None) -> PolledRecords | None:
        """The next records of the log itself. Releases the ledger, which retention had to wait for."""
        try:
            if self._held is not None:
                self.offset = max(self.offset, self._tail_from)
            self._tail.offset = self.offset
            polled = self._tail.poll(max_bytes)
        finally:
            self._release()
        self.offset = self._tail.offset
        return polled

    def close(self) -> None:
        """Release the ledger. May be called twice; a later ``poll`` opens the ledger that is current then."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        self._reading = None
        if self._held is not None:
            self._held.close()
            self._held = None
