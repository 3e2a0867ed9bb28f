"""Opens the log directories of a process and serves their logs (Kafka's ``LogManager``).

::

    with LogManager.open(["/disk1/logs", "/disk2/logs"]) as logs:
        logs.topics.create("orders", partitions=3, config={"retention.ms": "3600000"})
        logs["orders", 0].append(batch)

A directory whose disk fails goes offline with its logs, and the other directories keep serving. A log that
cannot be recovered is refused with the reason, and the others are served. ``start`` starts the thread that
calls ``tick``, which runs the periodic tasks that are due. ``close`` leaves the directories as a broker
leaves them after a controlled shutdown.

A start and an end, step by step::

    here                            what it does                                   Kafka's LogManager
    lock_all                        lock the directories; all are one broker's     lockLogDirs
    Topics.load                     read the registry and the broker's metadata
    remove_clean_shutdown_marker    from here on a crash needs recovery            loadLogs
    Topics.exclude_partitions       leave out those of deleted or other topics     loadLog (strays)
    _open_logs                      recover and open the partitions                loadLogs, loadLog
    drop_entries_of_missing…        checkpoints list only partitions that exist
    Topics.complete_start           create partitions that a crash left uncreated
    start                           run the tasks of ``upkeep``                    startupWithConfigOverrides
    close                           services, logs, checkpoints, marker, locks     shutdown

A directory serves until ``ServedDirectory.go_offline`` (Kafka's ``handleLogDirFailure``) or ``close``, and
never again after that.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.collector import collector_paused
from siltstone.base.config import Config, LogConfig
from siltstone.base.errors import (
    DirectoryRefusedError,
    LogError,
    PolicyViolationError,
    SiltstoneError,
    StorageError,
    UnknownTopicError,
)
from siltstone.base.records.fetch_results import MessageSetSend, MultiMessageSetSend
from siltstone.compaction.inplace.destination import remove_all_staged
from siltstone.log import names
from siltstone.log.checkpoints import broker_id_of, require_node_number
from siltstone.log.directory import require_one_broker
from siltstone.log.fetch import READ_UNCOMMITTED
from siltstone.log.following import Consumer, ConsumerOptions
from siltstone.log.names import CLUSTER_METADATA, META_PROPERTIES, TopicPartition
from siltstone.log.partition import PartitionLog, TaskRunner, open_partition
from siltstone.log.read_only import (
    PartitionKey,
    TopicLogs,
    describe_logs,
    logs_of_topic,
    logs_of_topics,
    partition_of_key,
)
from siltstone.log.replacement import remove_deleted
from siltstone.runtime.cleaning_states import CleaningStates
from siltstone.runtime.metrics import Sample, samples_of
from siltstone.runtime.producing import NewRecord, RecordMetadata, RecordProducer, SendOptions, Serializer
from siltstone.runtime.served_directory import (
    OFFLINE,
    OPEN_AGAIN,
    ServedDirectory,
    Uncleanable,
    no_directory_left,
)
from siltstone.runtime.topic_names import RandomBytes, deleted_directory, new_id
from siltstone.runtime.topics import Strays, Topics
from siltstone.runtime.upkeep import Scheduler, Ticker, Upkeep

if TYPE_CHECKING:
    from siltstone.runtime.engines import LogService


OFFLINE_COUNT = "kafka_log_logmanager_offlinelogdirectorycount"
IS_OFFLINE = "kafka_log_logmanager_logdirectoryoffline"
FREE_BYTES, USED_BYTES = "siltstone_directory_free_bytes", "siltstone_directory_used_bytes"
_HELP = {
    OFFLINE_COUNT: "Log directories that are offline.",
    IS_OFFLINE: "1 if the log directory is offline, else 0.",
    FREE_BYTES: "Bytes that are free on the log directory's file system.",
    USED_BYTES: "Bytes of the .log files in the log directory.",
}
LOG_HELP = {
    "kafka_log_log_size": "Bytes of the log's .log files.",
    "kafka_log_log_numlogsegments": "Segments of the log.",
    "kafka_log_log_logstartoffset": "The first offset that may be read.",
    "kafka_log_log_logendoffset": "The offset that the next record gets.",
}
"""The gauges of a log."""


def log_figures(log: PartitionLog) -> tuple[int, int, int, int]:
    """The values of the gauges in ``LOG_HELP``, in order. Takes no lock: ``log.view`` is the immutable state
    of the log at one moment."""
    view = log.view
    size = sum(segment.size for segment in view.segments[:-1]) + (view.active_size if view.segments else 0)
    return size, len(view.segments), view.log_start_offset, view.log_end_offset


def _space_samples(served: ServedDirectory) -> list[Sample]:
    """The gauges of a directory's space; without the free space if the file system does not tell it."""
    values = {USED_BYTES: sum(log.size for log in list(served.logs.values()))}
    with contextlib.suppress(OSError):
        values[FREE_BYTES] = files.free_space(served.path).free_bytes
    return samples_of(values, _HELP, logDirectory=str(served.path))


# Opening the log directories: each is locked, all must belong to one broker, and each has its identity in
# ``meta.properties``. A partition may be in two of them only if its topic was deleted, and perhaps created
# again, while one of them was offline.


def lock_all(
    paths: Sequence[Path], config: Config, random_bytes: RandomBytes, only: TopicPartition | None
) -> tuple[list[ServedDirectory], dict[Path, str]]:
    """Lock the directories. Returns those that serve, and the reason for each one whose disk fails.

    A new directory gets a ``meta.properties``, unless ``only`` one partition is opened. Raises SiltstoneError
    if a directory is locked or belongs to another broker, and StorageError if no directory is left.
    """
    if only is not None and only.topic == CLUSTER_METADATA:
        raise DirectoryRefusedError(
            "the broker's metadata log must not be changed", path=str(only), advice="open it read-only"
        )
    locked: list[ServedDirectory] = []
    offline: dict[Path, str] = {}
    try:
        for path in paths:
            try:
                # Device and inode: two paths may lead to one directory.
                identity = files.stat(path).device_and_inode if files.is_directory(path) else None
                for served in locked:
                    if served.directory.device_and_inode == identity:
                        raise DirectoryRefusedError(
                            f"{served.path} is the same log directory", path=path, advice="pass it once"
                        )
                locked.append(ServedDirectory(path, only=only))
            except OSError as error:
                offline[path] = f"{error.strerror or error}"
                _logger.error("%s: %s: %s; %s", path, OFFLINE, offline[path], OPEN_AGAIN)
        directories = [served.directory for served in locked]
        require_one_broker(directories, is_stray=Strays(directories))
        if only is None:
            node_ids = (config.integer(name) for name in ("node.id", "broker.id"))
            node_id = next((number for number in node_ids if number >= 0), -1)
            _complete_identity(locked, node_id, random_bytes)
    except BaseException:
        for served in locked:
            served.directory.close()
        raise
    serving = [served for served in locked if served.offline is None]
    offline.update({served.path: served.offline for served in locked if served.offline is not None})
    if not serving:
        raise no_directory_left(offline)
    return serving, offline


def _complete_identity(locked: Sequence[ServedDirectory], node_id: int, random_bytes: RandomBytes) -> None:
    """Write ``meta.properties`` for directories without one, in the form of a KRaft broker's (version 1).

    Cluster id and node id are those of the directories that have the file, else a new id and ``node_id``, or
    0 if that is not set (-1). Also takes the broker's metadata log out of the partitions: it is not served.
    Raises DirectoryRefusedError if a directory belongs to another node, or its node id is no number.
    """
    cluster, node, missing = None, None, []
    for served in locked:
        partitions = served.directory.partitions
        served.directory.partitions = {
            topic_partition: path
            for topic_partition, path in partitions.items()
            if topic_partition.topic != CLUSTER_METADATA
        }
        properties = served.directory.properties()
        if not properties:
            missing.append(served)
        cluster = cluster or properties.get("cluster.id")
        stated = broker_id_of(properties)
        if stated is not None:
            require_node_number(stated, served.path / META_PROPERTIES)
        node = node or stated
    if node is not None and node_id >= 0 and node != str(node_id):
        raise DirectoryRefusedError(
            f"the log directory belongs to node {node}, not to node.id={node_id}",
            path=", ".join(str(served.path) for served in locked),
            advice=f"set node.id={node}, or open the directories of node {node_id}",
        )
    cluster = cluster or new_id(random_bytes)
    lines = f"#\nversion=1\ncluster.id={cluster}\nnode.id={node or max(node_id, 0)}\ndirectory.id="
    for served in missing:
        try:
            files.replace(served.path / META_PROPERTIES, f"{lines}{new_id(random_bytes)}\n".encode())
        except OSError as error:
            served.go_offline(error)


_BACKGROUND_THREADS = 2
_CHUNKS_PER_THREAD = 8
"""Threads open logs in chunks: with several chunks for each thread all of them stay busy to the end."""
_logger = logging.getLogger("siltstone")


class ManagerOptions(TypedDict, total=False):
    """Options of ``LogManager``.

    ``config``: the broker's settings. ``background``: runs tasks that may run later, by default in a small
    pool of threads. ``random_bytes``: for ids, and for names of deleted directories. ``only``: the one
    partition to open.
    """

    config: Config | None
    clock: Clock | None
    background: TaskRunner | None
    random_bytes: RandomBytes
    only: TopicPartition | None


def refuse_compacted_only(topic_partition: TopicPartition, config: LogConfig) -> None:
    """Raises PolicyViolationError for a log with ``cleanup.policy=compact``: as in Kafka, its records must
    not be deleted by offset."""
    if config.compacts and not config.deletes:
        raise PolicyViolationError(
            "records of a topic with cleanup.policy=compact cannot be deleted",
            path=str(topic_partition),
            advice="write tombstones, or set cleanup.policy=compact,delete",
        )


class LogManager(Closing):
    """The logs of some directories, open for appending: ``logs["users", 0]`` is a partition,
    ``logs["users"]`` a topic. Use ``open``; close it, or use it as a context.

    ``topics``: creates, changes and deletes topics. ``directories``: all that could be opened, ``serving()``:
    those in service; ``offline``: the others, and why. ``config``: the broker's settings.
    ``creation_or_deletion_lock`` (Kafka's name): held while partitions are created or deleted.
    ``cleaning_states``, ``compaction_states``: the states of each log's cleaning and side-by-side compaction.
    ``services``: the log cleaner and the compactions, which are closed before the logs. ``when_deleted``: is
    called with a partition that was deleted, after its directory was renamed.
    """

    def __init__(self, directories: Sequence[Path | str], **options: Unpack[ManagerOptions]) -> None:
        """As ``open``."""
        self.config = options.get("config") or Config()
        self.clock = options.get("clock") or SystemClock()
        self.only = options.get("only")
        self.random_bytes = options.get("random_bytes", secrets.token_bytes)
        paths = list(map(Path, directories))
        locked, self._unopened = lock_all(paths, self.config, self.random_bytes, self.only)
        self.directories = tuple(locked)
        self.cleaning_states = CleaningStates()
        self.compaction_states = CleaningStates("compaction")
        for served in self.directories:
            served.when_offline = self._abort_cleanings
        self.creation_or_deletion_lock = threading.RLock()
        self._is_closed = False
        self._ticker: Ticker | None = None
        self._pool = ThreadPoolExecutor(_BACKGROUND_THREADS, thread_name_prefix="siltstone-background")
        self._background = options.get("background") or self._in_background
        self.scheduler = Scheduler()
        self.topics = Topics(self)
        self.upkeep = Upkeep(self)
        self.services: list[LogService[Any]] = []
        self.when_deleted: Callable[[TopicPartition], object] | None = None
        self._producer = RecordProducer(self)
        try:
            with collector_paused():
                self._load()
        except BaseException:
            self._abandon()
            raise

    @classmethod
    def open(cls, directories: Sequence[Path | str], **options: Unpack[ManagerOptions]) -> LogManager:
        """Lock the directories (created if they are missing), recover and open their logs.

        Raises DirectoryLockedError, DirectoryRefusedError, NotALogDirectoryError, CorruptFileError, and
        StorageError if no directory can be used.
        """
        return cls(directories, **options)

    def _load(self) -> None:
        """The steps of a start from ``Topics.load`` on (see the module), with all directories at the same
        time."""
        self.topics.load()

        def load(served: ServedDirectory) -> None:
            try:
                # Before any other change: from here on a crash needs recovery.
                served.remove_clean_shutdown_marker()
                self.topics.exclude_partitions(served)
                self._open_logs(served)
                served.drop_entries_of_missing_partitions()
            except StorageError:
                pass  # whatever raised it has taken the directory offline
            except OSError as error:
                served.go_offline(error)

        with ThreadPoolExecutor(max(len(self.directories), 1)) as pool:
            list(pool.map(load, self.serving()))
        self.require_serving()
        self.topics.complete_start()
        for _, log in self.logs():
            self._apply_settings(log)

    def _abandon(self) -> None:
        """Release locks and threads. Write no marker and no checkpoint, as if the process had been killed."""
        for served in self.directories:
            served.abandon("the start failed")
        self._end_threads()

    def _in_background(self, task: Callable[[], None]) -> None:
        """Run a flush in the pool; none after the pool's end, since ``close`` flushes all logs."""

        def run() -> None:
            try:
                task()
            except SiltstoneError as error:
                _logger.warning("A background task failed: %s", error)
                self.upkeep.take_failed_offline()

        with contextlib.suppress(RuntimeError):  # the pool has ended
            self._pool.submit(run)

    def _open_logs(self, served: ServedDirectory) -> None:
        """Open all partitions of a directory in several threads, and fill its ``logs`` and ``refused``.

        After a clean shutdown no log needs recovery. A log that cannot be served is refused with the reason,
        and the others are opened (Kafka would stop). Raises OSError: an error of the disk takes the whole
        directory offline.
        """

        def open_chunk(chunk: Sequence[tuple[TopicPartition, Path]]) -> None:
            for topic_partition, path in chunk:
                try:
                    served.logs[topic_partition] = open_partition(
                        path,
                        self.topics.log_config(topic_partition.topic),
                        self.clock,
                        topic_partition=topic_partition,
                        had_clean_shutdown=served.had_clean_shutdown,
                        recovery_point=served.checkpoint_entry(names.RECOVERY_CHECKPOINT, topic_partition),
                        log_start_offset=served.checkpoint_entry(names.LOG_START_CHECKPOINT, topic_partition),
                        background=self._background,
                        create=False,
                    )
                except SiltstoneError as error:
                    served.refused[topic_partition] = str(error)

        threads = self.config.integer("num.recovery.threads.per.data.dir")
        partitions = sorted(served.directory.partitions.items())
        size = max(-(-len(partitions) // (threads * _CHUNKS_PER_THREAD)), 1)  # rounded up
        chunks = [partitions[start : start + size] for start in range(0, len(partitions), size)]
        with ThreadPoolExecutor(threads, thread_name_prefix="siltstone-open") as pool:
            list(pool.map(open_chunk, chunks))

    # The logs and their directories

    def _abort_cleanings(self, served: ServedDirectory) -> None:
        for topic_partition in list(served.logs):
            self.cleaning_states.abort(topic_partition)
            self.compaction_states.abort(topic_partition)

    @contextlib.contextmanager
    def cleaning_paused(self, topic_partition: TopicPartition) -> Iterator[None]:
        """Abort the cleaning and the side-by-side compaction of a log, and pause both until the block
        ends."""
        with (
            self.cleaning_states.aborted_and_paused(topic_partition),
            self.compaction_states.aborted_and_paused(topic_partition),
        ):
            yield

    @property
    def offline(self) -> dict[Path, str]:
        """The offline directories, and why."""
        failed = {served.path: served.offline for served in self.directories if served.offline is not None}
        return {**self._unopened, **failed}

    @property
    def refused(self) -> dict[TopicPartition, str]:
        """Partitions that could not be opened, and why."""
        return {
            topic_partition: reason
            for served in self.serving()
            for topic_partition, reason in served.refused.items()
        }

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self)} partitions"
        return describe_logs(self, [served.path for served in self.directories], state)

    def __iter__(self) -> Iterator[TopicPartition]:
        return (log.topic_partition for log in self.sorted_logs())

    def __len__(self) -> int:
        return sum(len(served.logs) for served in self.serving())

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return any(topic_partition.topic == key for topic_partition in self)
        partition = TopicPartition(*key) if isinstance(key, tuple) and len(key) == 2 else key
        return any(partition in served.logs for served in self.serving())

    @overload
    def __getitem__(self, key: PartitionKey) -> PartitionLog: ...
    @overload
    def __getitem__(self, key: str) -> TopicLogs[PartitionLog]: ...
    def __getitem__(self, key: PartitionKey | str) -> PartitionLog | TopicLogs[PartitionLog]:
        """A partition, or a topic. Raises UnknownTopicError, UsageError, StorageError."""
        return logs_of_topic(key, self) if isinstance(key, str) else self.get(partition_of_key(key))

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions, served or not. Raises UnknownTopicError."""
        return self.topics.partitions_of(topic)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, here and in other directories of its broker; None if neither the
        registry nor the broker's metadata says it."""
        return self.topics.partition_count(topic)

    def refresh(self) -> None:
        """Do nothing: open logs are always up to date, since no other process writes them."""

    # Producing and consuming

    def producer(
        self, *, key_serializer: Serializer | None = None, value_serializer: Serializer | None = None
    ) -> RecordProducer:
        """A producer that encodes keys and values with these functions; see ``RecordProducer``."""
        return RecordProducer(self, key_serializer=key_serializer, value_serializer=value_serializer)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        **options: Unpack[SendOptions],
    ) -> RecordMetadata:
        """Append one record to the partition that Kafka's partitioner picks; see ``RecordProducer.send``."""
        return self._producer.send(topic, value, key=key, **options)

    def send_many(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        sync: bool = False,
    ) -> list[RecordMetadata]:
        """Append records, each to its partition by Kafka's partitioner; see ``RecordProducer``."""
        return self._producer.send_many(topic, records, partition=partition, sync=sync)

    def consumer(self, name: str, *topics: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A consumer of some topics, whose positions are kept in the partitions' directories.

        Raises UnknownTopicError, StorageError, CorruptFileError, UsageError, OSError.
        """
        by_topic = logs_of_topics(topics, self)
        return Consumer(
            name, lambda: [log for logs in by_topic for log in logs.newest()], self._positions_file, **options
        )

    def _positions_file(self, topic_partition: TopicPartition) -> Path:
        if self._is_closed:
            raise StorageError("the logs are closed", path=str(topic_partition), advice="open them again")
        return self.get(topic_partition).directory / names.POSITIONS

    # Directories and fetches

    def serving(self) -> list[ServedDirectory]:
        """The directories that are in service."""
        return [served for served in self.directories if served.offline is None]

    def require_serving(self) -> list[ServedDirectory]:
        """The directories that are in service. Raises StorageError if there is none."""
        serving = self.serving()
        if not serving:
            raise no_directory_left(self.offline)
        return serving

    def logs(self) -> Iterator[tuple[ServedDirectory, PartitionLog]]:
        """The logs that are served, each with its directory."""
        for served in self.serving():
            for log in list(served.logs.values()):
                if served.offline is None:  # an error may take it offline between two of its logs
                    yield served, log

    def sorted_logs(self) -> list[PartitionLog]:
        """The logs that are served, in order of partition."""
        return sorted((log for _, log in self.logs()), key=lambda log: log.topic_partition)

    def get(self, topic_partition: TopicPartition) -> PartitionLog:
        """The log of a partition.

        Raises UnknownTopicError; StorageError if its directory is offline, or the log was refused.
        """
        return self.directory_of(topic_partition).logs[topic_partition]

    def fetch(
        self, requests: Sequence[tuple[TopicPartition, int, int]], *, isolation: str = READ_UNCOMMITTED
    ) -> MultiMessageSetSend:
        """Responses to several fetches, each (partition, offset, maximum bytes), in the same order.

        The error of a fetch, such as an unknown partition, is the error code of its response; see
        ``ReadableLog.fetch``.
        """
        results = []
        for topic_partition, offset, max_bytes in requests:
            try:
                results.append(self[topic_partition].fetch(offset, max_bytes, isolation=isolation))
            except LogError as error:
                results.append(MessageSetSend.empty(error.error_code))
        return MultiMessageSetSend(error_code=0, results=tuple(results))

    def directory_of(self, topic_partition: TopicPartition) -> ServedDirectory:
        """The directory that a partition is in. Raises as ``get`` does."""
        for served in self.serving():
            if topic_partition in served.logs:
                return served
            if topic_partition in served.refused:
                raise StorageError(
                    f"the log is not served: {served.refused[topic_partition]}", path=str(topic_partition)
                )
        if self.topics.has(topic_partition):
            offline = ", ".join(f"{path} ({reason})" for path, reason in self.offline.items())
            raise StorageError(
                "no directory in service has the partition" + (f"; offline: {offline}" if offline else ""),
                path=str(topic_partition),
                advice="open the directory that has it, too, or delete the topic",
            )
        raise UnknownTopicError("the log directories have no such partition", path=str(topic_partition))

    # Uncleanable partitions

    @property
    def uncleanable(self) -> dict[TopicPartition, Uncleanable]:
        """Partitions that the cleaner skips, since when, and why; each directory keeps its own in a file."""
        return {
            topic_partition: row
            for served in self.serving()
            for topic_partition, row in served.uncleanable.items()
        }

    def mark_uncleanable(self, topic_partition: TopicPartition, reason: str, now_ms: int) -> None:
        """Make the cleaner skip a partition. Raises UnknownTopicError, StorageError."""
        served = self.directory_of(topic_partition)
        with served.offline_on_error():
            served.mark_uncleanable(topic_partition, reason, now_ms)

    def retry_cleaning(self, topic_partition: TopicPartition) -> bool:
        """Let the cleaner try a partition again. False if it was not uncleanable.

        Raises UnknownTopicError, StorageError.
        """
        served = self.directory_of(topic_partition)
        with served.offline_on_error():
            return served.clear_uncleanable(topic_partition)

    # Creating and deleting partitions

    def get_or_create(self, topic_partition: TopicPartition) -> PartitionLog:
        """The log of a partition, created if there is none (``LogManager.getOrCreateLog``).

        Raises InvalidTopicError, InvalidPartitionsError, StorageError; DirectoryRefusedError if something
        else has the name of its directory.
        """
        with contextlib.suppress(UnknownTopicError):
            return self.get(topic_partition)
        with self.creation_or_deletion_lock:
            # Again under the lock: another thread may have created it.
            with contextlib.suppress(UnknownTopicError):
                return self.get(topic_partition)
            self.topics.add_partition(topic_partition)
            return self.get(topic_partition)

    def refuse_occupied_paths(self, topic: str, numbers: Iterable[int]) -> None:
        """Raises DirectoryRefusedError if a file, a link, or a directory that is not the topic's has the name
        of a partition's directory.

        ``numbers``: the numbers of the topic's partitions. Without this check the file would take the log
        directory offline, the link would lead out of it, and the new topic would have the records of another
        one. A directory of a partition that the registry lists is the topic's, unless it is excluded.
        """
        for topic_partition in (TopicPartition(topic, number) for number in numbers):
            for served in self.serving():
                path = served.partition_path(topic_partition)
                kind = files.stat(path, follow=False).kind if files.exists(path) else None
                if kind not in (None, files.DIRECTORY):
                    raise DirectoryRefusedError(
                        f"a {kind} has the name of partition {topic_partition}'s directory",
                        path=path,
                        advice="remove or rename it",
                    )
                reason = served.exclusion_reason(topic_partition)
                is_known = topic_partition in served.directory.partitions or self.topics.has(topic_partition)
                if kind is not None and not is_known:
                    reason = reason or "it came, or was left, while the log directory was open"
                if reason is not None:
                    raise DirectoryRefusedError(
                        f"partition {topic_partition} cannot be created in place of this directory: {reason}",
                        path=path,
                        advice="move it out of the log directory, and open the log directory again",
                    )

    def create_partitions(self, topic: str, numbers: Iterable[int]) -> None:
        """Create the directories and logs of partitions that the registry of ``topics`` lists.

        Each is created in the log directory with the fewest partitions, as in Kafka
        (``LogManager.nextLogDirs``). One that a crash has left incomplete is completed. Raises StorageError,
        DirectoryRefusedError.
        """
        numbers = tuple(numbers)
        self.refuse_occupied_paths(topic, numbers)
        with self.creation_or_deletion_lock:
            topic_id, config = self.topics.id_of(topic), self.topics.log_config(topic)
            wanted = [TopicPartition(topic, number) for number in numbers]
            for served, partitions in self._directories_for(wanted).items():
                existing = served.all_partitions
                with served.offline_on_error():
                    served.create_partitions(partitions, topic_id)
                    for topic_partition in partitions:
                        if topic_partition not in existing:
                            path = served.partition_path(topic_partition)
                            served.logs[topic_partition] = open_partition(
                                path,
                                config,
                                self.clock,
                                topic_partition=topic_partition,
                                had_clean_shutdown=True,
                                background=self._background,
                                create=False,
                            )
                            served.directory.partitions[topic_partition] = path
                            self._apply_settings(served.logs[topic_partition])
                self.topics.forget_partitions()

    def _directories_for(
        self, wanted: Iterable[TopicPartition]
    ) -> dict[ServedDirectory, list[TopicPartition]]:
        """The directory that each partition is in, or is to be created in. Raises StorageError."""
        serving = self.require_serving()
        existing = {
            topic_partition: served for served in serving for topic_partition in served.all_partitions
        }
        counts = {served: len(served.directory.partitions) for served in serving}
        chosen = dict[ServedDirectory, list[TopicPartition]]()
        for topic_partition in wanted:
            served = existing.get(topic_partition) or min(serving, key=counts.__getitem__)
            counts[served] += 1
            chosen.setdefault(served, []).append(topic_partition)
        return chosen

    def _apply_settings(self, log: PartitionLog) -> None:
        """Apply a log's settings to its cleaning state and to the upkeep."""
        self.cleaning_states.set_is_compacted(log.topic_partition, log.config.compacts)
        self.upkeep.settings_changed(log.config)

    def delete_partition(
        self, served: ServedDirectory, topic_partition: TopicPartition, delay_ms: int
    ) -> None:
        """Rename a partition's directory to ``-delete``; it is removed after ``delay_ms`` (Kafka's
        ``LogManager.asyncDelete``).

        Raises StorageError.
        """
        log = served.logs.get(topic_partition)
        # 1. Abort and pause the cleaner. 2. Close the log, even if its disk fails. 3. Rename its directory,
        # durably. 4. Remove its entries from the checkpoints: a new partition of the same name must not start
        # with them. After a crash between 3 and 4 the next start removes them
        # (``drop_entries_of_missing_partitions``).
        with self.cleaning_paused(topic_partition):
            if log is not None:
                with contextlib.suppress(StorageError):
                    log.close()
            # A unique name: a new partition of the same name may be deleted, too, before this one is removed.
            target = served.path / deleted_directory(topic_partition, self.random_bytes)
            with served.offline_on_error():
                files.rename(served.partition_path(topic_partition), target)
                files.sync_directory(served.path)
                served.forget(topic_partition)
        if self.when_deleted is not None:
            self.when_deleted(topic_partition)
        self.topics.forget_partitions()
        # A new partition of this name has its own ``cleanup.policy``.
        self.cleaning_states.set_is_compacted(topic_partition, True)
        self.upkeep.remove_later(served, target, delay_ms)

    # Operations that change logs and checkpoints together

    def delete_records(self, topic_partition: TopicPartition, before: int) -> int:
        """Raise the log start offset to ``before`` (-1: the high watermark), durably. Returns the new log
        start offset (Kafka's ``ReplicaManager.deleteRecords``).

        Raises PolicyViolationError for a log with ``cleanup.policy=compact``, OffsetOutOfRangeError,
        StorageError.
        """
        served, log = self.directory_of(topic_partition), self.get(topic_partition)
        refuse_compacted_only(topic_partition, log.config)
        start = log.delete_records(before)
        with served.offline_on_error():
            served.write_log_starts()
        return start

    def delete_all_records(self, topic_partition: TopicPartition) -> int:
        """Raise the log start offset to the high watermark and remove the segments below it, whatever the
        policy; Kafka refuses this for ``cleanup.policy=compact``. Returns the new log start offset.

        Readers that are behind do not learn of the deletion: there are no tombstones. Raises StorageError,
        UnknownTopicError.
        """
        served, log = self.directory_of(topic_partition), self.get(topic_partition)
        with self.cleaning_paused(topic_partition):
            log.roll()  # else the active segment keeps the records
            start = log.delete_records(-1)
            with served.offline_on_error():
                served.write_log_starts()
            self.upkeep.delete_old_segments_of(served, log)
        return start

    @contextlib.contextmanager
    def files_at_rest(self, topic_partition: TopicPartition) -> Iterator[PartitionLog]:
        """The log, while nothing replaces or writes files of its directory but appends and retention:
        cleaning and side-by-side compaction are aborted, paused, and over. Raises UnknownTopicError,
        StorageError."""
        log = self.get(topic_partition)
        with self.cleaning_paused(topic_partition):
            self.cleaning_states.wait_until_unclaimed(topic_partition)
            self.compaction_states.wait_until_unclaimed(topic_partition)
            yield log

    def remove_leftovers(self, topic_partition: TopicPartition) -> None:
        """Remove, durably, replaced and deleted segments' files without waiting for ``file.delete.delay.ms``,
        and what interrupted cleanings have staged; within ``files_at_rest``. A reader of an older view may
        then miss a file that it has not opened yet. Raises StorageError, DirectoryRefusedError."""
        served, log = self.directory_of(topic_partition), self.get(topic_partition)
        with served.offline_on_error():
            remove_deleted(log.directory)
            remove_all_staged(log.directory)
            files.sync_directory(log.directory)  # also what the upkeep has unlinked a moment ago

    def truncate_to(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Remove all records at and above ``offset`` (``LogManager.truncateTo``). False if there was none.

        Raises StorageError.
        """
        served, log = self.directory_of(topic_partition), self.get(topic_partition)
        with self.cleaning_paused(topic_partition):
            if not log.truncate_to(offset):
                return False
            with served.offline_on_error():
                self._after_truncation(served, log)
            return True

    def truncate_fully_and_start_at(self, topic_partition: TopicPartition, offset: int) -> None:
        """Remove all records; the next append gets ``offset`` (Kafka's method of this name).

        Raises StorageError.
        """
        served, log = self.directory_of(topic_partition), self.get(topic_partition)
        with self.cleaning_paused(topic_partition):
            log.truncate_fully_and_start_at(offset)
            with served.offline_on_error():
                self._after_truncation(served, log)
                served.clear_uncleanable(topic_partition)

    def _after_truncation(self, served: ServedDirectory, log: PartitionLog) -> None:
        # New records will get the offsets above the new end: the cleaner checkpoint must not cover them
        # (Kafka's ``maybeTruncateCleanerCheckpointToActiveSegmentBaseOffset``).
        served.bound_cleaner_checkpoint(log.topic_partition, log.view.segments[-1].base_offset)
        served.write_checkpoints()

    def settings_changed(self, topic: str | None = None) -> None:
        """Apply the current settings to the logs of one topic, or to all logs."""
        for _, log in self.logs():
            if topic is None or log.topic_partition.topic == topic:
                log.update_config(self.topics.log_config(log.topic_partition.topic))
                self._apply_settings(log)

    def update_config(self, config: Config) -> None:
        """Replace the broker's settings at run time."""
        self.config = config
        self.topics.forget_settings()
        self.settings_changed()
        for service in self.services:
            service.settings_changed()

    # Periodic tasks, metrics, close

    def tick(self, now_ms: int | None = None) -> list[str]:
        """Run the periodic tasks that are due at ``now_ms`` (default: the clock's time). Returns their
        names."""
        self.upkeep.take_failed_offline()
        task_names = self.scheduler.tick(self.clock.now_ms() if now_ms is None else now_ms)
        self.upkeep.take_failed_offline()
        return task_names

    def start(self) -> None:
        """Start the thread that calls ``tick`` until ``close``."""
        if self._ticker is None:
            self._ticker = Ticker(self.tick, self.scheduler, self.clock)

    def samples(self, *, with_logs: bool = True) -> list[Sample]:
        """The gauges of the directories and, ``with_logs``, of their logs, named as exporters name Kafka's
        MBeans, then those of the services, such as the cleaner. A log that is offline has no gauges."""
        offline = self.offline
        directories = {**dict.fromkeys(offline, 1), **{served.path: 0 for served in self.serving()}}
        samples = samples_of({OFFLINE_COUNT: len(offline)}, _HELP)
        for path, is_offline in sorted(directories.items()):
            samples += samples_of({IS_OFFLINE: is_offline}, _HELP, logDirectory=str(path))
        for served in self.serving():
            samples += _space_samples(served)
        for log in self.sorted_logs() if with_logs else ():
            if log.offline is None:
                where, values = log.topic_partition, dict(zip(LOG_HELP, log_figures(log), strict=True))
                samples += samples_of(values, LOG_HELP, topic=where.topic, partition=str(where.partition))
        return samples + [sample for service in self.services for sample in service.samples()]

    def flush(self) -> None:
        """Make everything that was appended durable. Raises StorageError."""
        for _, log in self.logs():
            log.flush()

    def close(self) -> None:
        """Close all logs, write checkpoints and clean-shutdown markers, release the locks. May be called
        twice.

        Raises StorageError if a directory could not be closed cleanly; the others were.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # The services first: they have claims on the logs, and write to the directories.
        for service in reversed(self.services.copy()):
            service.close()
        self._end_threads()
        failure: StorageError | None = None
        for served in self.serving():
            try:
                served.close()
            except StorageError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _end_threads(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        self._pool.shutdown()
