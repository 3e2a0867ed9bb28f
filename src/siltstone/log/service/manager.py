"""All logs of a process: several directories, their partitions, and what these need as time passes.

::

    with LogManager.open(["/disk1/logs", "/disk2/logs"]) as logs:
        logs.topics.create("orders", partitions=3, config={"retention.ms": "3600000"})
        logs["orders", 0].append(batch)

Kafka's ``LogManager``. A directory whose disk fails goes offline with its logs, and the others serve; a log
that makes no sense is refused, and the others are served. Nothing happens by itself until ``start``: ``tick``
does what is due. ``close`` leaves the directories as a broker leaves them after a controlled shutdown.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol

from siltstone import files
from siltstone.clock import Clock, SystemClock
from siltstone.config import Config
from siltstone.errors import (
    DirectoryRefusedError,
    PolicyViolationError,
    SiltstoneError,
    StorageError,
    UnknownTopicError,
)
from siltstone.log import names
from siltstone.log.found import Background
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.claiming import claim_all
from siltstone.log.service.loading import Surroundings, open_log, open_logs
from siltstone.log.service.metrics import Sample, samples
from siltstone.log.service.scheduler import Scheduler, Ticker
from siltstone.log.service.served_directory import ServedDirectory
from siltstone.log.service.served_logs import ServedLogs
from siltstone.log.service.topic_names import RandomBytes, deleted_directory, partition_metadata
from siltstone.log.service.topics import Topics
from siltstone.log.service.upkeep import Upkeep

_BACKGROUND_THREADS = 2
_logger = logging.getLogger("siltstone")


class Attendant(Protocol):
    """Who works on a manager's logs in threads of its own, such as the cleaner."""

    def settings_changed(self) -> None:
        """The broker's settings are others now."""

    def close(self) -> None:
        """The manager is about to close: let go of all logs."""

    def samples(self) -> list[Sample]:
        """What it is measured by; see ``log.service.metrics``."""


class LogManager(ServedLogs):
    """Logs of some directories, open for appending. Use ``open``; close it, or use it as a context.

    ``topics``: make, change and delete topics. ``directories``: those in service; ``offline``: directories
    that are not, and why. ``config``: the broker's settings. ``changing``: held by whoever makes or deletes
    partitions. ``cleaning``: see ``ServedLogs``. ``attendants``: told of other settings, and closed before
    the logs are.
    """

    def __init__(
        self,
        directories: Sequence[ServedDirectory],
        offline: Mapping[Path, str],
        *,
        config: Config,
        clock: Clock,
        background: Background | None,
        random_bytes: RandomBytes,
        only: TopicPartition | None,
    ) -> None:
        super().__init__(directories, offline)
        self.config = config
        self.clock = clock
        self.only = only
        self._random_bytes = random_bytes
        self.changing = threading.RLock()
        self._closed = False
        self._ticker: Ticker | None = None
        self._pool: ThreadPoolExecutor | None = None
        if background is None:
            self._pool = ThreadPoolExecutor(_BACKGROUND_THREADS, thread_name_prefix="siltstone-background")
            background = self._in_background
        self.scheduler = Scheduler()
        self.topics = Topics(self, random_bytes)
        self._surroundings = Surroundings(
            config_of=self.topics.log_config, clock=clock, background=background
        )
        self.upkeep = Upkeep(self.directories, self.scheduler, config, clock, self.cleaning)
        self.attendants: list[Attendant] = []

    @classmethod
    def open(
        cls,
        directories: Sequence[Path | str],
        *,
        config: Config | None = None,
        clock: Clock | None = None,
        background: Background | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
        only: TopicPartition | None = None,
    ) -> LogManager:
        """Claim the directories (made where they are not there), recover and open their logs.

        ``config`` is the broker's; ``background`` runs what can wait (a small pool of threads, unless given);
        ``only``: nothing but this one partition. Raises DirectoryLockedError, DirectoryRefusedError,
        NotALogDirectoryError, CorruptFileError, and StorageError when no directory can be used.
        """
        config = config or Config()
        served, offline = claim_all([Path(each) for each in directories], config, random_bytes, only)
        manager = cls(
            served,
            offline,
            config=config,
            clock=clock or SystemClock(),
            background=background,
            random_bytes=random_bytes,
            only=only,
        )
        try:
            manager._load()
        except BaseException:
            manager._abandon()
            raise
        return manager

    def _load(self) -> None:
        self.topics.load()
        threads = self.config.integer("num.recovery.threads.per.data.dir")

        def load(served: ServedDirectory) -> None:
            try:
                served.take_marker()
                self.topics.sort_out(served)
                open_logs(served, self._surroundings, threads)
                served.drop_strange_entries()
            except StorageError:
                pass
            except OSError as error:
                served.go_offline(f"{error.strerror or error}")

        with ThreadPoolExecutor(max(len(self.directories), 1)) as pool:
            list(pool.map(load, self.directories))
        self.topics.finish()
        for where in self:
            self._settings_hold(self[where])

    def _abandon(self) -> None:
        """Let go of everything as if the process had been killed: no marker, no checkpoint."""
        for served in self.directories:
            served.go_offline("the start failed")
        self._end_threads()

    def _in_background(self, task: Callable[[], None]) -> None:
        assert self._pool is not None
        self._pool.submit(self._run_quietly, task)

    def _run_quietly(self, task: Callable[[], None]) -> None:
        try:
            task()
        except SiltstoneError as error:
            _logger.warning("%s", error)
            self.upkeep.take_failed_offline()

    # Making and deleting partitions

    def get_or_create(self, where: TopicPartition) -> PartitionLog:
        """The log of a partition, made in the directory that has the fewest when it is not there.

        Raises InvalidTopicError, StorageError.
        """
        with contextlib.suppress(UnknownTopicError):
            return self.get(where)
        with self.changing:
            with contextlib.suppress(UnknownTopicError):
                return self.get(where)
            self.topics.add(where)
            return self.get(where)

    def refuse_in_the_way(self, where: TopicPartition) -> None:
        """Raises DirectoryRefusedError where something has a partition's name and is no directory.

        A file is no reason to go offline, and a link would lead out of the log directory.
        """
        for served in self.serving():
            path = served.partition_path(where)
            if files.exists(path) and files.stat(path, follow=False).kind != files.DIRECTORY:
                kind = files.stat(path, follow=False).kind
                raise DirectoryRefusedError(f"{path}: a {kind} is in the way of {where}; take it away")

    def make(self, where: TopicPartition) -> PartitionLog:
        """Make the directory and the log of a partition that ``topics`` lists. Raises StorageError,
        DirectoryRefusedError."""
        self.refuse_in_the_way(where)
        with self.changing:
            serving = self.serving()
            if not serving:
                raise StorageError("no log directory is in service")
            served = min(serving, key=lambda each: len(each.directory.partitions))
            path = served.partition_path(where)
            with served.failing():
                files.make_directory(path)
                topic_id = self.topics.id_of(where.topic)
                if topic_id and not files.exists(path / names.PARTITION_METADATA):
                    files.replace(path / names.PARTITION_METADATA, partition_metadata(topic_id))
                files.sync_directory(served.path)
                log = open_log(where, path, self._surroundings, clean=True)
            served.directory.partitions[where] = path
            served.logs[where] = log
            self._settings_hold(log)
            return log

    def _settings_hold(self, log: PartitionLog) -> None:
        """A log goes by its settings now."""
        self.cleaning.set_compacts(log.where, log.config.compacts)
        self.upkeep.settings_changed(log.config)

    def take_away(self, served: ServedDirectory, where: TopicPartition, delay_ms: int) -> None:
        """Rename a partition's directory, which is removed after ``delay_ms``. Raises StorageError."""
        log = served.logs.get(where)
        with self.alone_with(where):
            if log is not None:
                with contextlib.suppress(StorageError):
                    log.close()
            target = served.path / deleted_directory(where, self._random_bytes)
            with served.failing():
                files.rename(served.partition_path(where), target)
                files.sync_directory(served.path)
                served.forget(where)
        self.cleaning.forget(where)
        self.upkeep.remove_later(served, target, delay_ms)

    # What changes logs and checkpoints together

    def delete_records(self, where: TopicPartition, before: int) -> int:
        """Move a log's start up to ``before`` (-1: the high watermark); the new start, which is durable.

        Raises PolicyViolationError for a log that is only compacted, OffsetOutOfRangeError, StorageError.
        """
        served, log = self.directory_of(where), self.get(where)
        if log.config.compacts and not log.config.deletes:
            raise PolicyViolationError(
                f"{where}: records of a topic with cleanup.policy=compact cannot be deleted; "
                "set compact,delete"
            )
        start = log.delete_records(before)
        with served.failing():
            served.write_log_starts()
        return start

    def truncate_to(self, where: TopicPartition, offset: int) -> bool:
        """Drop everything at and above ``offset``; False when there was nothing. Raises StorageError."""
        served, log = self.directory_of(where), self.get(where)
        with self.alone_with(where):
            if not log.truncate_to(offset):
                return False
            with served.failing():
                self._after_truncation(served, log)
            return True

    def truncate_fully_and_start_at(self, where: TopicPartition, offset: int) -> None:
        """Drop everything and go on at ``offset``. Raises StorageError."""
        served, log = self.directory_of(where), self.get(where)
        with self.alone_with(where):
            log.truncate_fully_and_start_at(offset)
            with served.failing():
                self._after_truncation(served, log)
                served.clear_uncleanable(where)

    def _after_truncation(self, served: ServedDirectory, log: PartitionLog) -> None:
        served.bound_cleaner_checkpoint(log.where, log.view.segments[-1].base_offset)
        served.write_checkpoints()

    def settings_changed(self, topic: str | None = None) -> None:
        """Hand the logs of one topic, or all logs, the settings that hold for them now."""
        for served in self.serving():
            for where, log in list(served.logs.items()):
                if topic is None or where.topic == topic:
                    log.update_config(self._surroundings.config_of(where.topic))
                    self._settings_hold(log)

    def update_config(self, config: Config) -> None:
        """Other settings of the broker, from now on."""
        self.config = config
        self.topics.forget_settings()
        self.settings_changed()
        for attendant in self.attendants:
            attendant.settings_changed()

    # As time passes

    def tick(self, now_ms: int | None = None) -> list[str]:
        """Do what is due at ``now_ms``, the clock's time unless given; the names of what was done."""
        self.upkeep.take_failed_offline()
        ran = self.scheduler.tick(self.clock.now_ms() if now_ms is None else now_ms)
        self.upkeep.take_failed_offline()
        return ran

    def start(self) -> None:
        """Let a thread call ``tick`` as time passes, until ``close``."""
        if self._ticker is None:
            self._ticker = Ticker(self.tick, self.scheduler, self.clock)

    def samples(self) -> list[Sample]:
        """What all of it is measured by: logs, directories, attendants; see ``log.service.metrics``."""
        return samples(self)

    def flush(self) -> None:
        """Make everything that was appended durable. Raises StorageError."""
        for served in self.serving():
            for log in list(served.logs.values()):
                log.flush()

    def close(self) -> None:
        """Close all logs in order, write checkpoints and markers, let go of the locks; twice is once.

        Raises StorageError when a directory could not be left clean; the others are.
        """
        if self._closed:
            return
        self._closed = True
        for attendant in reversed(self.attendants.copy()):
            attendant.close()
        self._end_threads()
        trouble: StorageError | None = None
        for served in self.serving():
            try:
                served.close()
            except StorageError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    def _end_threads(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> LogManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
