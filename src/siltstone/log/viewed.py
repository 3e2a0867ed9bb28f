"""What a log with a view of the moment can be asked, be it open or only looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from siltstone.base.records.fetch_results import MessageSetSend
from siltstone.log import fetch
from siltstone.log.fetch import Fetched, FetchPosition, LogView
from siltstone.log.ledger.reading import CompactedReader, open_reader
from siltstone.log.lookup import RecordPlace
from siltstone.log.names import TopicPartition
from siltstone.log.reading import EARLIEST, LogReader, ReaderSettings, Start


class ViewedLog:
    """The reading half of ``PartitionLog`` and of ``ReadOnlyLog``; no lock is taken for it."""

    where: TopicPartition
    directory: Path
    view: LogView

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last record."""
        return self.view.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Up to where records may be read: the end, unless somebody who replicates says otherwise."""
        return self.view.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Up to where every transaction is over."""
        return self.view.last_stable_offset

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        isolation: str = fetch.READ_UNCOMMITTED,
        whole_first: bool = True,
        place: FetchPosition | None = None,
    ) -> Fetched:
        """Batches from the one that holds ``offset`` on; see ``fetch.read``."""
        return fetch.read(
            self.view, offset, max_bytes, isolation=isolation, whole_first=whole_first, place=place
        )

    def fetch(
        self, offset: int, max_bytes: int = 1 << 20, *, isolation: str = fetch.READ_UNCOMMITTED
    ) -> MessageSetSend:
        """The answer to one fetch, as ``base.records.fetch_results`` encodes it; see ``fetch.answer``."""
        return fetch.answer(self.view, offset, max_bytes, isolation=isolation)

    def reader(
        self, start: Start = EARLIEST, *, read_compacted: bool = False, **how: Unpack[ReaderSettings]
    ) -> LogReader | CompactedReader:
        """A cursor from ``start`` on; ``read_compacted``: over the log's compacted view, where it has one.

        ``how`` as ``LogReader`` takes it. Raises UsageError, LedgerError, OSError.
        """
        return open_reader(self, start, read_compacted=read_compacted, **how)

    def offset_for_time(self, timestamp: int) -> RecordPlace | None:
        """The first record at or after a time in ms; see ``fetch.offset_for_time``."""
        return fetch.offset_for_time(self.view, timestamp)
