"""A log's compacted view, to be split: its ledger's segments, and the originals behind the horizon.

The same view as ``log.ledger.reading.CompactedReader`` reads: each record once, hidden ones left out. A log
without a ledger is read as it is.
"""

from __future__ import annotations

from types import TracebackType

from siltstone.log.fetch import READ_UNCOMMITTED
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import RecordPlace
from siltstone.log.reading import AtTime
from siltstone.log.service.read_only import ReadOnlyLog
from siltstone.tables.bounds import OffsetRange
from siltstone.tables.splits import Source


class CompactedLog(ReadOnlyLog):
    """A log by its compacted view: it starts where its ledger does. A context: its ledger is held."""

    def __init__(self, log: ReadOnlyLog) -> None:
        """Raises LedgerError, OSError."""
        super().__init__(log.where, log.directory, log.view, log.not_shown, log.first_dirty_offset)
        self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
        self._held = LedgerStore(log.directory).open()

    @property
    def log_start_offset(self) -> int:
        """The ledger's first offset, the log's own without one."""
        return self.view.log_start_offset if self._held is None else self._held.ledger.base_offset

    def offset_for_time(self, timestamp: int) -> RecordPlace | None:
        """The view's first record at or after a time in ms; its own time and epoch are not told."""
        if self._held is None:
            return super().offset_for_time(timestamp)
        self._reader.seek(AtTime(timestamp))
        offset = self._reader.offset
        if offset >= self.view.high_watermark:
            return None
        return RecordPlace(offset=offset, timestamp=-1, leader_epoch=-1)

    def sources(self, wanted: OffsetRange) -> list[Source]:
        """Where the wanted offsets are read from, in order."""
        if self._held is None:
            return [self._tail(wanted)]
        horizon = self._held.ledger.horizon
        found = [
            Source(
                where=self.where,
                directory=str(part.view.segments[0].directory),
                view=part.view,
                wanted=wanted,
                hidden=part.hidden,
            )
            for part in self._held.parts()
        ]
        behind = max(horizon, self.view.log_start_offset)
        return [*found, self._tail(OffsetRange(max(wanted.start, behind), wanted.end))]

    def _tail(self, wanted: OffsetRange) -> Source:
        return Source(where=self.where, directory=str(self.directory), view=self.view, wanted=wanted)

    def close(self) -> None:
        """Let go of the ledger."""
        self._reader.close()
        if self._held is not None:
            self._held.close()

    def __enter__(self) -> CompactedLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
