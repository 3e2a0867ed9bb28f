"""Logs that are only read: ``ReadOnlyLogs``, and ``ReadableLog``, the reading half of every log.

``ReadOnlyLogs`` opens log directories without a lock and without changing a byte: a backup's, or those of a
live broker. A log is opened when it is first accessed, and is read as recovery would leave it: without an
incomplete tail, and without indexes that contradict it. A log that must be recovered before it can be read
raises DirectoryRefusedError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.config import LogConfig
from siltstone.base.errors import DirectoryRefusedError, UnknownTopicError
from siltstone.base.records.fetch_results import MessageSetSend
from siltstone.log import fetch
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, require_one_broker
from siltstone.log.fetch import Fetched, FetchPosition, LogView
from siltstone.log.ledger.reading import CompactedReader, open_reader
from siltstone.log.lookup import TimestampAndOffset
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.reading import EARLIEST, LogReader, ReaderSettings, Start
from siltstone.log.recovery.partition import Recovered, recover_partition
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment, list_segments


class ReadableLog:
    """The reading half of ``PartitionLog`` and of ``ReadOnlyLog``; no lock is taken for it."""

    topic_partition: TopicPartition
    directory: Path
    view: LogView

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.view.log_end_offset

    @property
    def high_watermark(self) -> int:
        """The offset that records may be read up to: the log's end, unless a high watermark was set."""
        return self.view.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset that ``read_committed`` readers may read up to: no transaction below it is open."""
        return self.view.last_stable_offset

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        isolation: str = fetch.READ_UNCOMMITTED,
        min_one_batch: bool = True,
        resume_at: FetchPosition | None = None,
    ) -> Fetched:
        """Batches from the one with ``offset`` on; see ``fetch.read``."""
        return fetch.read(
            self.view,
            offset,
            max_bytes,
            isolation=isolation,
            min_one_batch=min_one_batch,
            resume_at=resume_at,
        )

    def fetch(
        self, offset: int, max_bytes: int = 1 << 20, *, isolation: str = fetch.READ_UNCOMMITTED
    ) -> MessageSetSend:
        """The answer to one fetch, as ``base.records.fetch_results`` encodes it; see ``fetch.answer``."""
        return fetch.answer(self.view, offset, max_bytes, isolation=isolation)

    def reader(
        self, start: Start = EARLIEST, *, read_compacted: bool = False, **options: Unpack[ReaderSettings]
    ) -> LogReader | CompactedReader:
        """A cursor from ``start`` on; ``read_compacted``: over the log's compacted view, where it has one.

        ``options`` as ``LogReader`` takes it. Raises UsageError, LedgerError, OSError.
        """
        return open_reader(self, start, read_compacted=read_compacted, **options)

    def offset_for_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record at or after a time in ms; see ``fetch.offset_for_time``."""
        return fetch.offset_for_time(self.view, timestamp)


@dataclass(eq=False)
class ReadOnlyLog(ReadableLog):
    """One partition as it was when it was opened.

    ``unreadable_logs``: why bytes at its end are not read, a line for each reason; empty where all are.
    ``first_dirty_offset``: the end of the clean section, 0 where the log was never cleaned.
    ``open_transactions``: the first offset of each transaction that has not ended, by producer id.
    """

    topic_partition: TopicPartition
    directory: Path
    view: LogView
    unreadable_logs: tuple[str, ...] = ()
    first_dirty_offset: int = 0
    open_transactions: Mapping[int, int] = field(default_factory=dict)


class ReadOnlyLogs(Closing):
    """The partitions of some log directories, or of one partition directory, by ``[topic, partition]``."""

    def __init__(self, directories: Sequence[Path | str], *, clock: Clock | None = None) -> None:
        """Raises NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError."""
        opened = open_directories([Path(path) for path in directories], lock=False)
        require_one_broker(opened)
        self._clock = clock or SystemClock()
        self._directories: dict[TopicPartition, tuple[LogDirectory, Checkpoints]] = {}
        for directory in opened:
            self._directories |= dict.fromkeys(directory.partitions, (directory, directory.checkpoints()))
        self._opened: dict[TopicPartition, ReadOnlyLog] = {}

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._directories))

    def __len__(self) -> int:
        return len(self._directories)

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._directories

    def directory_of(self, topic_partition: TopicPartition) -> Path:
        """A partition's directory; its log is not read. Raises UnknownTopicError."""
        if topic_partition not in self._directories:
            raise UnknownTopicError("the log directories have no such partition", path=str(topic_partition))
        return self._directories[topic_partition][0].partitions[topic_partition]

    def __getitem__(self, topic_partition: TopicPartition | tuple[str, int]) -> ReadOnlyLog:
        topic_partition = (
            topic_partition
            if isinstance(topic_partition, TopicPartition)
            else TopicPartition(*topic_partition)
        )
        if topic_partition not in self._opened:
            self._opened[topic_partition] = self._open(
                topic_partition, self.directory_of(topic_partition), *self._directories[topic_partition]
            )
        return self._opened[topic_partition]

    def _open(
        self, topic_partition: TopicPartition, path: Path, directory: LogDirectory, checkpoints: Checkpoints
    ) -> ReadOnlyLog:
        recovered = recover_partition(
            path,
            clean=directory.had_clean_shutdown,
            recovery_point=checkpoints.recovery_point.get(topic_partition, 0),
            log_start=checkpoints.log_start.get(topic_partition, 0),
            config=LogConfig(),
            now_ms=self._clock.now_ms(),
            owned=False,
            dry_run=True,
        )
        high_watermark = checkpoints.high_watermark.get(topic_partition, recovered.log_end_offset)
        lost = (*recovered.damage, *recovered.notes) if recovered.truncated_bytes else recovered.damage
        unreadable_logs = tuple(f"{path}: {reason}" for reason in lost)
        return ReadOnlyLog(
            topic_partition,
            path,
            _view(recovered, high_watermark),
            unreadable_logs,
            checkpoints.cleaner.get(topic_partition, 0),
            {
                producer.producer_id: producer.open_transaction_offset
                for producer in recovered.producers
                if producer.open_transaction_offset >= 0
            },
        )

    def close(self) -> None:
        """Close the logs; those that callers still refer to can still be read."""
        self._opened = {}


def _view(recovered: Recovered, high_watermark: int) -> LogView:
    """The view after the recovery. Raises DirectoryRefusedError where recovery has to be run first."""
    if recovered.finished_swaps or any(name.endswith("txnindex") for name in recovered.rebuilt_indexes):
        raise DirectoryRefusedError(
            "a crash interrupted a change of the log, which recovery has to complete first",
            path=recovered.directory,
            advice="run siltstone recover, or open it with mode='a'",
        )
    # Recovery would remove whole segments and truncate the last of the others: what it would truncate there
    # is still in the file, so the view ends before it.
    bases = {segment.base_offset for segment in recovered.segments}
    removed = [segment for segment in list_segments(recovered.directory) if segment.base_offset not in bases]
    truncated = recovered.truncated_bytes - sum(segment.size for segment in removed)
    segments = tuple(_live(segment, recovered) for segment in recovered.segments)
    active_size = max(segments[-1].size - max(truncated, 0), 0) if segments else 0
    start, end = recovered.log_start_offset, recovered.log_end_offset
    high_watermark = min(max(high_watermark, start), end)
    stable = ProducerStates(end, recovered.producers).last_stable_offset(high_watermark, start)
    return LogView(segments, start, end, high_watermark, stable, active_size)


def _live(segment: Segment, recovered: Recovered) -> LiveSegment:
    """A segment without the indexes that recovery would build again."""
    if segment_file(segment.base_offset, "index") in recovered.rebuilt_indexes:
        segment = replace(segment, offset_index_size=0)
    if segment_file(segment.base_offset, "timeindex") in recovered.rebuilt_indexes:
        segment = replace(segment, time_index_size=0)
    return LiveSegment(segment, LogConfig(), created_ms=segment.modified_ms)
