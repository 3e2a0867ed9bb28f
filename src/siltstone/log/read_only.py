"""Logs that are only read: ``ReadOnlyLogs``, and ``ReadableLog``, the read methods of every log.

``ReadOnlyLogs`` opens log directories without a lock and without changing a byte, such as a backup or the
directories of a running broker. A log is opened when it is first accessed. It is read as recovery would leave
it: without an incomplete batch at its end, and without indexes that contradict it. If a swap has to be
completed or a transaction index rebuilt first, opening the log raises DirectoryRefusedError.
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
from siltstone.log.fetch import FetchPosition, FetchResult, LogView
from siltstone.log.ledger.reading import CompactedReader, open_reader
from siltstone.log.lookup import TimestampAndOffset
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.reading import EARLIEST, LogReader, ReaderSettings, Start
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment, list_segments


class ReadableLog:
    """The methods of ``PartitionLog`` and of ``ReadOnlyLog`` that read; they take no lock."""

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
        """Readers see the records below it. It is the log end offset, unless a high watermark was set."""
        return self.view.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """``read_committed`` readers see the records below it: no transaction below it is open."""
        return self.view.last_stable_offset

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        isolation: str = fetch.READ_UNCOMMITTED,
        min_one_batch: bool = True,
        resume_at: FetchPosition | None = None,
    ) -> FetchResult:
        """Read batches from the one with ``offset`` on; see ``fetch.read``."""
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
        """The response to one fetch request; see ``fetch.fetch_response``."""
        return fetch.fetch_response(self.view, offset, max_bytes, isolation=isolation)

    def reader(
        self, start: Start = EARLIEST, *, read_compacted: bool = False, **options: Unpack[ReaderSettings]
    ) -> LogReader | CompactedReader:
        """A reader from ``start`` on. ``read_compacted``: read the compacted view, if the log has a ledger.

        ``options``: those of ``LogReader``. Raises UsageError, LedgerError, OSError.
        """
        return open_reader(self, start, read_compacted=read_compacted, **options)

    def offset_for_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record at or after ``timestamp`` (ms); see ``fetch.offset_for_time``."""
        return fetch.offset_for_time(self.view, timestamp)


@dataclass(eq=False)
class ReadOnlyLog(ReadableLog):
    """One partition as it was when it was opened.

    ``unreadable_logs``: the damage in it, a line each, and what was left out at its end; empty without
    damage. ``first_dirty_offset``: the cleaner checkpoint, 0 if the log was never cleaned.
    ``open_transactions``: the first offset of each transaction that has not ended, by producer id.
    """

    topic_partition: TopicPartition
    directory: Path
    view: LogView
    unreadable_logs: tuple[str, ...] = ()
    first_dirty_offset: int = 0
    open_transactions: Mapping[int, int] = field(default_factory=dict)


class ReadOnlyLogs(Closing):
    """The logs of some log directories or of one partition directory: ``logs[topic, partition]``."""

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
        """The path of a partition's directory; its log is not opened. Raises UnknownTopicError."""
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
            had_clean_shutdown=directory.had_clean_shutdown,
            recovery_point=checkpoints.recovery_point.get(topic_partition, 0),
            log_start_offset=checkpoints.log_start.get(topic_partition, 0),
            config=LogConfig(),
            now_ms=self._clock.now_ms(),
            require_owner=False,
            dry_run=True,
        )
        high_watermark = checkpoints.high_watermark.get(topic_partition, recovered.log_end_offset)
        reasons = (*recovered.damage, *recovered.notes) if recovered.truncated_bytes else recovered.damage
        unreadable_logs = tuple(f"{path}: {reason}" for reason in reasons)
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
        """Drop the logs. A log that the caller still has can still be read."""
        self._opened = {}


def _view(recovered: RecoveredPartition, high_watermark: int) -> LogView:
    """The view of a log after a dry run of its recovery.

    Raises DirectoryRefusedError if the files must be recovered before they can be read.
    """
    if recovered.finished_swaps or any(name.endswith("txnindex") for name in recovered.rebuilt_indexes):
        raise DirectoryRefusedError(
            "a crash interrupted a change of the log, which recovery has to complete first",
            path=recovered.directory,
            advice="run siltstone recover, or open it with mode='a'",
        )
    # Recovery would remove the last segments and truncate the one before them. In a dry run those bytes are
    # still in its file, so the view's active size leaves them out.
    bases = {segment.base_offset for segment in recovered.segments}
    removed = [segment for segment in list_segments(recovered.directory) if segment.base_offset not in bases]
    truncated_bytes = recovered.truncated_bytes - sum(segment.size for segment in removed)
    segments = tuple(_without_rebuilt_indexes(segment, recovered) for segment in recovered.segments)
    active_size = max(segments[-1].size - max(truncated_bytes, 0), 0) if segments else 0
    start, end = recovered.log_start_offset, recovered.log_end_offset
    high_watermark = min(max(high_watermark, start), end)
    states = ProducerStates(end, recovered.producers)
    last_stable_offset = states.last_stable_offset(high_watermark, start)
    return LogView(segments, start, end, high_watermark, last_stable_offset, active_size)


def _without_rebuilt_indexes(segment: Segment, recovered: RecoveredPartition) -> LiveSegment:
    """Open a segment so that searches do not use the indexes that recovery would rebuild."""
    if segment_file(segment.base_offset, "index") in recovered.rebuilt_indexes:
        segment = replace(segment, offset_index_size=0)
    if segment_file(segment.base_offset, "timeindex") in recovered.rebuilt_indexes:
        segment = replace(segment, time_index_size=0)
    return LiveSegment(segment, LogConfig(), created_ms=segment.modified_ms)
