"""Logs that are only read: ``ReadOnlyLogs``, and ``ReadableLog``, the reading half of every log.

``ReadOnlyLogs`` opens log directories without a lock and without changing a byte: a backup's, or those of a
live broker. A log is opened when it is first accessed, and is read as recovery would leave it: without an
incomplete tail, and without indexes that contradict it. A log that must be recovered before it can be read
raises DirectoryRefusedError.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, SupportsIndex, TypeVar, Unpack, overload

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock, checked_ms
from siltstone.base.closing import Closing
from siltstone.base.config import LogConfig
from siltstone.base.errors import DirectoryRefusedError, UnknownTopicError, UsageError
from siltstone.base.records.fetch_results import MessageSetSend
from siltstone.log import fetch
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, require_one_broker
from siltstone.log.fetch import READ_UNCOMMITTED, Fetched, FetchPosition, LogView
from siltstone.log.following import Consumer, ConsumerOptions, RecordStream, StreamOptions
from siltstone.log.ledger.reading import CompactedReader, open_reader
from siltstone.log.lookup import TimestampAndOffset
from siltstone.log.names import (
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
    parse_partition,
    segment_file,
)
from siltstone.log.producers import ProducerStates
from siltstone.log.reading import EARLIEST, LogReader, ReaderSettings, Record, Start, records_of
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
        isolation: str = READ_UNCOMMITTED,
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
        self, offset: int, max_bytes: int = 1 << 20, *, isolation: str = READ_UNCOMMITTED
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
        """The first record at or after a time in ms; see ``fetch.offset_for_time``. Raises UsageError."""
        return fetch.offset_for_time(self.view, checked_ms(timestamp, "timestamp"))

    def records(self, start: Start = EARLIEST, *, isolation: str = READ_UNCOMMITTED) -> Iterator[Record]:
        """One object for each record, from ``start`` to the end as it is now."""
        for polled in LogReader(self, start, isolation=isolation):
            yield from records_of(polled, topic_partition=self.topic_partition)

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def follow(self, start: Start = EARLIEST, **options: Unpack[StreamOptions]) -> RecordStream:
        """The records from ``start`` on, and new ones as they come; ``options`` as ``RecordStream``."""
        return RecordStream(lambda: [self], start, **options)

    def refresh(self) -> None:
        """Look at the files for what another process has written; an open log has nothing to look for."""


SomeLog_co = TypeVar("SomeLog_co", bound=ReadableLog, covariant=True)


class LogsByPartition(Protocol[SomeLog_co]):
    """Open logs, or logs that are only read."""

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions. Raises UnknownTopicError."""
        ...

    def get(self, topic_partition: TopicPartition) -> SomeLog_co:
        """The log of a partition. Raises UnknownTopicError, StorageError."""
        ...

    def refresh(self) -> None:
        """Look for new partitions that another process has made."""
        ...


class TopicLogs(Generic[SomeLog_co]):
    """The partitions of one topic: ``logs["users"]``. Iterating reads one partition after the other."""

    def __init__(self, topic: str, logs: LogsByPartition[SomeLog_co]) -> None:
        self.topic = topic
        self._logs = logs

    def __repr__(self) -> str:
        return f"TopicLogs({self.topic!r}, partitions={self.partitions})"

    @property
    def partitions(self) -> tuple[int, ...]:
        """The numbers of its partitions. Raises UnknownTopicError once it is deleted."""
        return self._logs.partitions_of(self.topic)

    def __len__(self) -> int:
        return len(self.partitions)

    def __getitem__(self, partition: int) -> SomeLog_co:
        return self._logs.get(TopicPartition(self.topic, partition))

    def logs(self) -> list[SomeLog_co]:
        """The logs of all partitions, in order. Raises StorageError for one that is not served."""
        return [self[number] for number in self.partitions]

    def newest(self) -> list[SomeLog_co]:
        """The logs of all partitions, also of those that another process has made meanwhile. Raises as
        ``logs``."""
        self._logs.refresh()
        return self.logs()

    def records(self, start: Start = EARLIEST, *, isolation: str = READ_UNCOMMITTED) -> Iterator[Record]:
        """One object for each record of all partitions, one after the other, to the ends as they are now."""
        for log in self.logs():
            yield from log.records(start, isolation=isolation)

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def follow(self, start: Start = EARLIEST, **options: Unpack[StreamOptions]) -> RecordStream:
        """The records of all partitions from ``start`` on, and new ones as they come, those of new partitions
        too; ``options`` as ``RecordStream``."""
        return RecordStream(self.newest, start, **options)


PartitionKey = TopicPartition | tuple[str, int]


def partition_of_key(key: object) -> TopicPartition:
    """The partition that ``logs[key]`` means. Raises UsageError for what is no topic and partition."""
    match key:
        case TopicPartition():
            return key
        case (str(topic), SupportsIndex() as partition):
            return TopicPartition(topic, operator.index(partition))
    advice = 'pass logs["users", 0] for a partition, or logs["users"] for a topic'
    raise UsageError(f"{key!r} is neither a topic and a partition nor a topic", advice=advice)


def topic_views(topics: Sequence[str], logs: LogsByPartition[SomeLog_co]) -> list[TopicLogs[SomeLog_co]]:
    """The views of some topics, at least one. Raises UnknownTopicError, UsageError."""
    if not topics:
        advice = 'name the topics: logs.consumer("billing", "users")'
        raise UsageError("a consumer needs a topic", advice=advice)
    return [logs_of_topic(topic, logs) for topic in dict.fromkeys(topics)]


def logs_of_topic(topic: str, logs: LogsByPartition[SomeLog_co]) -> TopicLogs[SomeLog_co]:
    """``logs[topic]``. Raises UnknownTopicError that tells a partition's name from a topic's."""
    try:
        logs.partitions_of(topic)
    except UnknownTopicError as error:
        partition = parse_partition(topic)
        if partition is not None:
            error.advice = f'for a partition: logs["{partition.topic}", {partition.partition}]'
        raise
    return TopicLogs(topic, logs)


@dataclass(eq=False)
class ReadOnlyLog(ReadableLog):
    """One partition as it was when it was opened.

    ``unreadable_logs``: why bytes at its end are not read, a line for each reason; empty where all are.
    ``first_dirty_offset``: the end of the clean section, 0 where the log was never cleaned. ``refresh`` and
    ``follow`` replace the view by a newer one.
    """

    topic_partition: TopicPartition
    directory: Path
    view: LogView
    unreadable_logs: tuple[str, ...] = ()
    first_dirty_offset: int = 0
    _state: object = field(default=None, repr=False)

    def refresh(self) -> None:
        """Replace the view if the files have changed. Raises what opening raises."""
        state = _file_state(self.directory)
        if state != self._state:
            newest = ReadOnlyLogs([self.directory]).get(self.topic_partition)
            self.view, self.unreadable_logs = newest.view, newest.unreadable_logs
            self._state = state


def _file_state(partition: Path) -> object:
    """What an append, a roll, a swap or a higher high watermark changes: sizes and names of the segments, the
    checkpoints of the directory."""
    checkpoints = []
    for name in (REPLICATION_CHECKPOINT, LOG_START_CHECKPOINT):
        try:
            status = files.stat(partition.parent / name)
            checkpoints.append((status.inode, status.modified_ns))
        except FileNotFoundError:
            checkpoints.append((0, 0))
    listed = files.list_files(partition)
    return checkpoints, {name: (at.inode, at.size) for name, at in listed.items() if ".log" in name}


class ReadOnlyLogs(Closing):
    """The partitions of some log directories, or of one partition directory: ``logs["users", 0]`` is a
    partition, ``logs["users"]`` a topic."""

    def __init__(self, directories: Sequence[Path | str], *, clock: Clock | None = None) -> None:
        """Raises NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError."""
        self._paths = [Path(path) for path in directories]
        self._clock = clock or SystemClock()
        self._directories: dict[TopicPartition, tuple[LogDirectory, Checkpoints]] = {}
        self._opened: dict[TopicPartition, ReadOnlyLog] = {}
        self._modified_ns: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """List the directories again if names in them have changed, for new partitions; logs that are open
        stay as they are. Raises what opening raises."""
        modified_ns = [files.stat(path).modified_ns for path in self._paths if files.is_directory(path)]
        if modified_ns and modified_ns == self._modified_ns:
            return
        opened = open_directories(self._paths, lock=False)
        require_one_broker(opened)
        listed: dict[TopicPartition, tuple[LogDirectory, Checkpoints]] = {}
        for directory in opened:
            listed |= dict.fromkeys(directory.partitions, (directory, directory.checkpoints()))
        self._directories, self._modified_ns = listed, modified_ns

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._directories))

    def __len__(self) -> int:
        return len(self._directories)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return any(topic_partition.topic == key for topic_partition in self._directories)
        return (
            TopicPartition(*key) if isinstance(key, tuple) and len(key) == 2 else key
        ) in self._directories

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions in these directories. Raises UnknownTopicError."""
        numbers = tuple(at.partition for at in sorted(self._directories) if at.topic == topic)
        if not numbers:
            topics = sorted({at.topic for at in self._directories})
            advice = f"there is {', '.join(topics[:10])}" if topics else "they have no partition at all"
            raise UnknownTopicError(f"the log directories have no topic {topic!r}", advice=advice)
        return numbers

    def directory_of(self, topic_partition: TopicPartition) -> Path:
        """A partition's directory; its log is not read. Raises UnknownTopicError."""
        if topic_partition not in self._directories:
            raise UnknownTopicError("the log directories have no such partition", path=str(topic_partition))
        return self._directories[topic_partition][0].partitions[topic_partition]

    @overload
    def __getitem__(self, key: PartitionKey) -> ReadOnlyLog: ...
    @overload
    def __getitem__(self, key: str) -> TopicLogs[ReadOnlyLog]: ...
    def __getitem__(self, key: PartitionKey | str) -> ReadOnlyLog | TopicLogs[ReadOnlyLog]:
        """A partition, or a topic. Raises UnknownTopicError, UsageError, what opening a log raises."""
        return logs_of_topic(key, self) if isinstance(key, str) else self.get(partition_of_key(key))

    def get(self, topic_partition: TopicPartition) -> ReadOnlyLog:
        """The log of a partition, opened at the first call. Raises UnknownTopicError, what opening raises."""
        if topic_partition not in self._opened:
            path = self.directory_of(topic_partition)
            # Listed before it is opened: what changes in between is noticed by the next refresh.
            state = _file_state(path)
            log = self._open(topic_partition, path, *self._directories[topic_partition])
            log._state = state
            self._opened[topic_partition] = log
        return self._opened[topic_partition]

    def consumer(
        self, name: str, *topics: str, positions: Path | str, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """A consumer of some topics, whose positions are in the file ``positions``: the directories stay as
        they are. Raises UnknownTopicError, CorruptFileError, UsageError, OSError."""
        path = Path(positions)
        for directory, _ in self._directories.values():
            if path.absolute().is_relative_to(directory.path.absolute()):
                advice = "pass a path outside of the log directory"
                raise UsageError("a file of positions is in a log directory", path=path, advice=advice)
        views = topic_views(topics, self)
        return Consumer(
            name, lambda: [log for view in views for log in view.newest()], lambda _: path, **options
        )

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
