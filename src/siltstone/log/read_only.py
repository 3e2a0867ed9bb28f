"""Logs that are only read: ``ReadOnlyLogs``, and ``ReadableLog``, the read methods of every log.

``ReadOnlyLogs`` opens log directories without a lock and without changing a byte, such as a backup or the
directories of a running broker. A log is opened when it is first accessed. It is read as recovery would leave
it: without an incomplete batch at its end, and without indexes that contradict it. If a swap has to be
completed or a transaction index rebuilt first, opening the log raises DirectoryRefusedError.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, SupportsIndex, TypeVar, Unpack, overload

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock, checked_ms
from siltstone.base.closing import Closing
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    CorruptRecordError,
    DirectoryRefusedError,
    ReadOnlyError,
    UnknownTopicError,
    UsageError,
    shown_path,
)
from siltstone.base.records.fetch_results import MessageSetSend
from siltstone.log import fetch
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, require_one_broker
from siltstone.log.fetch import READ_UNCOMMITTED, FetchPosition, FetchResult, LogView
from siltstone.log.following import Consumer, ConsumerOptions, RecordStream, StreamOptions
from siltstone.log.ledger.reading import CompactedReader, open_reader
from siltstone.log.lookup import TimestampAndOffset, batch_headers
from siltstone.log.names import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
    parse_partition,
    segment_file,
)
from siltstone.log.producers import ProducerStates
from siltstone.log.reading import EARLIEST, LogReader, ReaderSettings, Record, Start, records_of
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from siltstone.log.segment import NO_TIMESTAMP, LiveSegment
from siltstone.log.segments import Segment, list_segments
from siltstone.log.tiered.joining import ask_again


class ReadableLog:
    """The methods of ``PartitionLog`` and of ``ReadOnlyLog`` that read; they take no lock."""

    topic_partition: TopicPartition
    directory: Path
    view: LogView

    def __repr__(self) -> str:
        offsets = f"offsets {self.log_start_offset} to {self.log_end_offset}"
        directory = shown_path(self.directory.parent)
        return f"<{type(self).__name__} {self.topic_partition} in {directory}: {offsets}>"

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
        isolation: str = READ_UNCOMMITTED,
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
        self, offset: int, max_bytes: int = 1 << 20, *, isolation: str = READ_UNCOMMITTED
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
        """The first record at or after ``timestamp`` (ms); see ``fetch.offset_for_time``. Raises
        UsageError."""
        return fetch.offset_for_time(self.view, checked_ms(timestamp, "timestamp"))

    def records(self, start: Start = EARLIEST, *, isolation: str = READ_UNCOMMITTED) -> Iterator[Record]:
        """One object for each record, from ``start`` to the end as it is now."""
        for polled in LogReader(self, start, isolation=isolation):
            yield from records_of(polled, topic_partition=self.topic_partition)

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def follow(self, start: Start = EARLIEST, **options: Unpack[StreamOptions]) -> RecordStream:
        """The records from ``start`` on, and new ones as they come; ``options``: those of
        ``RecordStream``."""
        return RecordStream(lambda: [self], start, **options)

    def refresh(self) -> None:
        """Update the view with what another process has written. A log that is open for appends needs no
        update: no other process writes it."""


SomeLog_co = TypeVar("SomeLog_co", bound=ReadableLog, covariant=True)


class LogsByPartition(Protocol[SomeLog_co]):
    """What ``TopicLogs`` needs of a ``LogManager``, whose logs are open, or of ``ReadOnlyLogs``."""

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions. Raises UnknownTopicError."""
        ...

    def get(self, topic_partition: TopicPartition) -> SomeLog_co:
        """The log of a partition. Raises UnknownTopicError, StorageError."""
        ...

    def refresh(self) -> None:
        """Look for new partitions that another process has created."""
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
        """The logs of all partitions, also of those that another process has created meanwhile. Raises what
        ``logs`` raises."""
        self._logs.refresh()
        return self.logs()

    def records(self, start: Start = EARLIEST, *, isolation: str = READ_UNCOMMITTED) -> Iterator[Record]:
        """One object for each record of all partitions, one after the other, to the ends as they are now."""
        for log in self.logs():
            yield from log.records(start, isolation=isolation)

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def follow(self, start: Start = EARLIEST, **options: Unpack[StreamOptions]) -> RecordStream:
        """The records of all partitions from ``start`` on, and new ones as they come, also in new partitions;
        ``options``: those of ``RecordStream``."""
        return RecordStream(self.newest, start, **options)


def describe_logs(logs: object, paths: Sequence[Path], state: str) -> str:
    """The ``repr`` of the logs in the directories ``paths``; ``state``: a few words, such as ``8
    partitions``."""
    return f"<{type(logs).__name__} {', '.join(map(shown_path, paths))}: {state}>"


PartitionKey = TopicPartition | tuple[str, int]


def partition_of_key(key: object) -> TopicPartition:
    """The partition that ``logs[key]`` stands for. Raises UsageError unless ``key`` is a topic and a
    number."""
    match key:
        case TopicPartition():
            return key
        case (str(topic), SupportsIndex() as partition):
            return TopicPartition(topic, operator.index(partition))
    advice = 'pass logs["users", 0] for a partition, or logs["users"] for a topic'
    raise UsageError(f"{key!r} is neither a topic and a partition nor a topic", advice=advice)


def logs_of_topics(topics: Sequence[str], logs: LogsByPartition[SomeLog_co]) -> list[TopicLogs[SomeLog_co]]:
    """The ``TopicLogs`` of a consumer's topics, each topic once. Raises UnknownTopicError, and UsageError if
    there is no topic."""
    if not topics:
        advice = 'name the topics: logs.consumer("billing", "users")'
        raise UsageError("a consumer needs a topic", advice=advice)
    return [logs_of_topic(topic, logs) for topic in dict.fromkeys(topics)]


def logs_of_topic(topic: str, logs: LogsByPartition[SomeLog_co]) -> TopicLogs[SomeLog_co]:
    """``logs[topic]``. Raises UnknownTopicError; if ``topic`` is a partition's name, such as ``users-0``, its
    advice says how to get the partition."""
    try:
        logs.partitions_of(topic)
    except UnknownTopicError as error:
        partition = parse_partition(topic)
        if partition is not None:
            error.advice = f'for a partition: logs["{partition.topic}", {partition.partition}]'
        raise
    return TopicLogs(topic, logs)


def _missing_attribute_error(owner: object, name: str, changes: frozenset[str]) -> AttributeError:
    """The error for the missing attribute ``name`` of ``owner``: a ReadOnlyError if ``name`` is in
    ``changes``, the methods that ``owner`` would have if it were open for appends."""
    kind = type(owner).__name__
    if name in changes:
        return ReadOnlyError(f"a {kind} is open for reading, and has no {name!r}")
    return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)


PARTITION_LOG_CHANGES = frozenset(
    "append roll flush delete_records truncate_to truncate_fully_and_start_at".split()
)
"""Methods of a ``PartitionLog`` that a ``ReadOnlyLog`` does not have."""
LOG_MANAGER_CHANGES = frozenset("send send_many producer topics flush delete_records truncate_to".split())
"""Methods of a ``LogManager`` that ``ReadOnlyLogs`` does not have."""


@dataclass(eq=False, repr=False)
class ReadOnlyLog(ReadableLog):
    """One partition as it was when it was opened.

    ``damage``: one line for every damage, and for bytes at the log's end that are not read; empty without
    damage. ``first_dirty_offset``: the cleaner checkpoint, 0 if the log was never cleaned.
    ``open_transactions``: the first offset of each transaction that has not ended, by producer id.
    ``refresh`` and ``follow`` bring all of it up to date. ``_state``: the ``_file_state`` when the files were
    read.
    """

    topic_partition: TopicPartition
    directory: Path
    view: LogView
    damage: tuple[str, ...] = ()
    first_dirty_offset: int = 0
    open_transactions: Mapping[int, int] = field(default_factory=dict)
    _state: object = None

    @property
    def is_current(self) -> bool:
        """Whether the files are still as they were when this was opened or refreshed. Raises OSError."""
        return _file_state(self.directory) == self._state

    def refresh(self) -> None:
        """Read the files again if they have changed. Raises what opening raises."""
        ask_again(self.directory)  # otherwise what a store's directories say of remote segments is cached
        state = _file_state(self.directory)
        if state != self._state:
            newest = ReadOnlyLogs([self.directory]).get(self.topic_partition)
            # The other process may have truncated the log; see ``LogView.truncations``.
            self.view = newest.view._replace(truncations=self.view.truncations + 1)
            self.damage = newest.damage
            self.first_dirty_offset = newest.first_dirty_offset
            self.open_transactions = newest.open_transactions
            self._state = state

    if not TYPE_CHECKING:  # with ``__getattr__``, type checkers would accept every name

        def __getattr__(self, name: str) -> object:
            raise _missing_attribute_error(self, name, PARTITION_LOG_CHANGES)


def _file_state(partition: Path) -> object:
    """A value that differs after an append, a roll, a cleaning or a move of the high watermark: inode and
    size of each segment's log, inode and time of the log directory's checkpoints."""
    names = (REPLICATION_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_CHECKPOINT)
    statuses = files.stats_of(partition.parent, names)
    checkpoints = {name: (status.inode, status.modified_ns) for name, status in statuses.items()}
    listed = files.list_files(partition)
    return checkpoints, {
        name: (status.inode, status.size) for name, status in listed.items() if ".log" in name
    }


class ReadOnlyLogs(Closing):
    """The logs of some log directories or of one partition directory: ``logs["users", 0]`` is a
    partition, ``logs["users"]`` a topic."""

    def __init__(
        self,
        directories: Sequence[Path | str],
        *,
        clock: Clock | None = None,
        opened: Sequence[LogDirectory] | None = None,
    ) -> None:
        """``opened``: the same directories as ``LogDirectory`` objects, if the caller has opened them. Raises
        NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError."""
        self._paths = [Path(path) for path in directories]
        self._clock = clock or SystemClock()
        self._directories: dict[TopicPartition, tuple[LogDirectory, Checkpoints]] = {}
        self._open_logs: dict[TopicPartition, ReadOnlyLog] = {}
        self._modified_ns: list[int] = []  # of the directories, when ``refresh`` listed them last
        if opened is None:
            self.refresh()
        else:
            self._list(opened)

    def refresh(self) -> None:
        """List the directories again if names in them have changed, for new partitions; logs that are open
        stay as they are. Raises what opening raises."""
        modified_ns = [  # a directory in an object store has no modification time
            0 if files.is_object(path) else files.stat(path).modified_ns
            for path in self._paths
            if files.is_object(path) or files.is_directory(path)
        ]
        if modified_ns and modified_ns == self._modified_ns:
            return
        opened = open_directories(self._paths, lock=False)
        require_one_broker(opened, only_reads=True)
        self._list(opened)
        self._modified_ns = modified_ns

    def _list(self, opened: Sequence[LogDirectory]) -> None:
        """List the partitions of the directories ``opened``, and read the directories' checkpoints."""
        listed: dict[TopicPartition, tuple[LogDirectory, Checkpoints]] = {}
        for directory in opened:
            listed |= dict.fromkeys(directory.partitions, (directory, directory.checkpoints()))
        self._directories = listed

    def __repr__(self) -> str:
        return describe_logs(self, self._paths, f"{len(self)} partitions")

    if not TYPE_CHECKING:  # with ``__getattr__``, type checkers would accept every name

        def __getattr__(self, name: str) -> object:
            raise _missing_attribute_error(self, name, LOG_MANAGER_CHANGES)

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
        numbers = tuple(listed.partition for listed in sorted(self._directories) if listed.topic == topic)
        if not numbers:
            topics = sorted({listed.topic for listed in self._directories})
            advice = f"there is {', '.join(topics[:10])}" if topics else "they have no partition at all"
            raise UnknownTopicError(f"the log directories have no topic {topic!r}", advice=advice)
        return numbers

    def directory_of(self, topic_partition: TopicPartition) -> Path:
        """The path of a partition's directory; its log is not opened. Raises UnknownTopicError."""
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
        if topic_partition not in self._open_logs:
            path = self.directory_of(topic_partition)
            # Taken before the log is opened, so that the next refresh notices a change during the opening.
            state = _file_state(path)
            log = self._open(topic_partition, path, *self._directories[topic_partition])
            log._state = state
            self._open_logs[topic_partition] = log
        return self._open_logs[topic_partition]

    def consumer(
        self, name: str, *topics: str, positions: Path | str | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """A consumer of some topics. ``positions``: the file of its positions, which must be outside of the
        log directories, since these are not changed. Raises UnknownTopicError, CorruptFileError, UsageError,
        OSError."""
        if positions is None:
            advice = "pass positions='billing.json', or open the logs with mode='a', which keeps them there"
            reason = "logs that are only read have no place for a consumer's positions"
            raise UsageError(reason, advice=advice)
        path = Path(positions)
        for directory, _ in self._directories.values():
            if path.absolute().is_relative_to(directory.path.absolute()):
                advice = "pass a path outside of the log directory"
                raise UsageError("a file of positions is in a log directory", path=path, advice=advice)
        by_topic = logs_of_topics(topics, self)
        return Consumer(
            name, lambda: [log for logs in by_topic for log in logs.newest()], lambda _: path, **options
        )

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
        # Where bytes at the log's end are not read, a note says why.
        reasons = (*recovered.damage, *recovered.notes) if recovered.truncated_bytes else recovered.damage
        damage = tuple(shown_path(f"{path}: {reason}") for reason in reasons)
        return ReadOnlyLog(
            topic_partition,
            path,
            _view(recovered, high_watermark),
            damage,
            checkpoints.cleaner.get(topic_partition, 0),
            {
                producer.producer_id: producer.open_transaction_offset
                for producer in recovered.producers
                if producer.open_transaction_offset >= 0
            },
        )

    def close(self) -> None:
        """Drop the logs. A log that the caller still has can still be read."""
        self._open_logs = {}


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
        return _WithoutTimeIndex(segment, LogConfig(), created_ms=segment.modified_ms)
    return LiveSegment(segment, LogConfig(), created_ms=segment.modified_ms)


class _WithoutTimeIndex(LiveSegment):
    """A segment whose time index is not used: its largest timestamp is that in its batch headers. (Without a
    time index, ``LiveSegment`` takes the file's modification time, which a backup may have changed.)"""

    def largest_timestamp_and_offset(self) -> tuple[int, int]:
        """As in ``LiveSegment``, but from the batch headers, which are read at the first call only."""
        if self._largest_timestamp_and_offset is None:
            largest = NO_TIMESTAMP, self.base_offset
            # Recovery would truncate the segment where its batches end.
            with contextlib.suppress(CorruptRecordError):
                for batches in batch_headers(self.reader, end=self.size):
                    row = int(batches["max_timestamp"].argmax())
                    timestamp = int(batches["max_timestamp"][row])
                    if timestamp > largest[0]:
                        largest = timestamp, int(batches["last_offset"][row])
            self._largest_timestamp_and_offset = largest
        return self._largest_timestamp_and_offset
