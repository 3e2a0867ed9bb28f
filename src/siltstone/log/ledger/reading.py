"""Reading a log's compacted view: its ledger up to the horizon, then the originals behind it.

::

    reader = log.reader("earliest", read_compacted=True)
    for polled in reader:            # to the end as it is now; go on later with the same reader
        polled.columns.offset        # ascending, each record once

(Pulsar's ``readCompacted``.) The ledger that was current at the start, or at the last ``seek``, is read to
its horizon, whatever is compacted, swapped in and deleted meanwhile: as long as it is held, retention keeps
the originals from there on, too. It is let go at the first look at the originals. Only records whose
transaction was committed get into a ledger, so ``isolation`` is about the originals. A log without a ledger
is read as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Unpack

import numpy as np

from siltstone.base.errors import CorruptRecordError, LedgerError, OffsetOutOfRangeError
from siltstone.base.records.columns import ColumnArrays, select
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Int64
from siltstone.log import fetch
from siltstone.log.fetch import READ_UNCOMMITTED, LogView
from siltstone.log.ledger.manifest import manifest_name
from siltstone.log.ledger.store import HeldLedger, LedgerStore, Part
from siltstone.log.reading import (
    EARLIEST,
    AtTime,
    HasView,
    LogReader,
    Polled,
    ReaderSettings,
    RecordReader,
    Start,
)

# Records without those that a ledger hides: columns closed up in place, in one pass.


@kernel
def _close_up(superseded: Int64, columns: ColumnArrays) -> int:
    """Close up the rows that are not superseded; how many stay, -1 where a superseded one is missing."""
    batch, offset, key_start, key_size, timestamp = columns[:5]
    start, size, value_start, value_size, headers_start, header_count = columns[5:]
    kept, at = 0, 0
    for row in range(len(offset)):
        if at < len(superseded) and superseded[at] == offset[row]:
            at += 1
            continue
        batch[kept] = batch[row]
        offset[kept] = offset[row]
        timestamp[kept] = timestamp[row]
        start[kept] = start[row]
        size[kept] = size[row]
        key_start[kept] = key_start[row]
        key_size[kept] = key_size[row]
        value_start[kept] = value_start[row]
        value_size[kept] = value_size[row]
        headers_start[kept] = headers_start[row]
        header_count[kept] = header_count[row]
        kept += 1
    return kept if at == len(superseded) else -1


def without(polled: Polled, superseded: Int64, path: str) -> Polled:
    """What was just read, its arrays used again, less the offsets in ``superseded`` (int64, ascending).

    Raises LedgerError, with ``path``, when one between the first and the last offset is not there.
    """
    columns = polled.columns
    first, behind = np.searchsorted(superseded, [columns.offset[0], columns.offset[-1] + 1]).tolist()
    if first == behind:
        return polled
    kept = _close_up(superseded[first:behind], columns.arrays)
    if kept < 0:
        raise LedgerError(path, "an offset is superseded that is not in it")
    return replace(polled, columns=select(columns, slice(0, kept)))


class HasLedgers(HasView, Protocol):
    """A log in a directory of its own, such as ``PartitionLog``."""

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        ...


def open_reader(
    log: HasLedgers, start: Start = EARLIEST, *, read_compacted: bool = False, **how: Unpack[ReaderSettings]
) -> LogReader | CompactedReader:
    """A cursor over the log, or over its compacted view; ``how`` as ``LogReader`` takes it.

    Raises UsageError, LedgerError, OSError.
    """
    return CompactedReader(log, start, **how) if read_compacted else LogReader(log, start, **how)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A log that stays as it is."""

    view: LogView


class CompactedReader(RecordReader):
    """A cursor over a log's compacted view, used as a ``LogReader`` is: ``offset``, ``resets``.

    An offset below the view's first one, or of originals that were deleted before they were read, is for the
    ``reset`` rule; "earliest" is the view's first record. To be closed, or used as a context: until it has
    passed the horizon it holds a ledger, and retention back. One thread at a time.
    """

    def __init__(self, log: HasLedgers, start: Start = EARLIEST, **how: Unpack[ReaderSettings]) -> None:
        """Arguments are ``LogReader``'s. Raises UsageError, LedgerError, OSError."""
        self._log = log
        self._how = how
        self._reset, self._end = how.get("reset", "none"), how.get("end")
        LogReader(log, 0, **how)  # refuses what makes no sense
        without_reset: ReaderSettings = {**how, "reset": "none"}
        self._tail = LogReader(log, 0, **without_reset)
        self._held: HeldLedger | None = None
        self._reading: tuple[Part, LogReader] | None = None
        self._tail_from = 0
        self._closed = False
        self.resets = 0
        self.offset = 0
        self.seek(start)

    @property
    def buffer_bytes(self) -> int:
        """Bytes that are read at once; grows with the largest batch."""
        return self._tail.buffer_bytes

    def seek(self, start: Start) -> None:
        """Go on somewhere else, in the ledger that is current now. Raises as the constructor does."""
        self._let_go()
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
                    f"covers offsets below {ledger.horizon}, but the log ends at {view.log_end_offset}",
                )
            self.offset = self._place_of(start, view)
        except BaseException:
            self._let_go()
            raise
        if self.offset >= ledger.horizon:
            self._let_go()

    def _offset_in(self, view: LogView, start: Start) -> int:
        return LogReader(_Fixed(view), start, isolation=self._how.get("isolation", READ_UNCOMMITTED)).offset

    def _place_of(self, start: Start, view: LogView) -> int:
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

    def _first_since(self, part: Part, timestamp_ms: int) -> int | None:
        """The first record of a part that is not superseded and not older than ``timestamp_ms``."""
        place = fetch.offset_for_time(part.view, timestamp_ms)
        if place is None:
            return None
        self.offset = place.offset
        found = None
        while found is None and (polled := self._poll_part(part, None)) is not None:
            late = np.flatnonzero(polled.columns.timestamp >= timestamp_ms)
            found = int(polled.columns.offset[late[0]]) if len(late) else None
        self._reading = None
        return found

    def poll(self, max_bytes: int | None = None) -> Polled | None:
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
                        f"offset {self.offset} is not in the compacted view, or its originals were deleted "
                        f"before they were read: {error}"
                    ) from error
                self.resets += 1
                self.seek(self._reset)

    def _poll(self, max_bytes: int | None) -> Polled | None:
        if self._held is not None and self.offset < self._held.ledger.base_offset:
            raise OffsetOutOfRangeError(f"the compacted view begins at {self._held.ledger.base_offset}")
        while self._held is not None:
            if self._end is not None and self.offset >= self._end:
                self._let_go()
                return None
            part = next((part for part in self._held.parts if part.view.log_end_offset > self.offset), None)
            if part is None:
                break
            polled = self._poll_part(part, max_bytes)
            if polled is not None:
                return polled
        return self._poll_tail(max_bytes)

    def _poll_part(self, part: Part, max_bytes: int | None) -> Polled | None:
        """The next records of a part that are not superseded; None, and ``offset`` behind it, at its end."""
        path = part.view.segments[0].reader.path
        if self._reading is None or self._reading[0] is not part:
            self._reading = part, self._begin(part)
        reader = self._reading[1]
        try:
            while (polled := reader.poll(max_bytes)) is not None:
                self.offset = reader.offset
                shown = without(polled, part.superseded, path)
                if len(shown):
                    return shown
        except CorruptRecordError as error:
            raise LedgerError(path, f"damaged: byte {error.position}: {error.reason}") from error
        self._tail.buffer_bytes = max(self._tail.buffer_bytes, reader.buffer_bytes)
        end = part.view.log_end_offset
        self.offset = max(self.offset, end if self._end is None else min(end, self._end))
        return None

    def _begin(self, part: Part) -> LogReader:
        assert self._held is not None
        if self._how.get("verify", True):
            self._held.sum_up(part)
            base = part.entry.base_offset
            for following in [part for part in self._held.parts if part.entry.base_offset > base][:1]:
                self._held.sum_ahead(following)
        self.offset = max(self.offset, part.view.log_start_offset)
        how: ReaderSettings = {
            **self._how,
            "isolation": READ_UNCOMMITTED,
            "reset": "none",
            "buffer_bytes": self.buffer_bytes,
            "limit": self._how.get("limit") or self._log.view.batch_limit,
            "verify": False,  # all of it has just been summed up, or was not to be
        }
        return LogReader(_Fixed(part.view), self.offset, **how)

    def _poll_tail(self, max_bytes: int | None) -> Polled | None:
        """At the first look at the originals the ledger is let go, which keeps them until then."""
        try:
            if self._held is not None:
                self.offset = max(self.offset, self._tail_from)
            self._tail.offset = self.offset
            polled = self._tail.poll(max_bytes)
        finally:
            self._let_go()
        self.offset = self._tail.offset
        return polled

    def close(self) -> None:
        """Let go of the ledger; twice is once. A poll takes the one that is current then."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        self._reading = None
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> CompactedReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
