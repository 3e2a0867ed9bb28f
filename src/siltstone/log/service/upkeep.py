"""What logs need from time to time: retention, flushes, checkpoints, and taking away what was deleted.

Kafka's ``LogManager.startup`` schedules the same tasks with the same periods, beginning
``log.initial.task.delay.ms`` after the start. Each goes over all logs; what the disk refuses takes the log's
directory offline, and the others go on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from siltstone import files
from siltstone.clock import Clock
from siltstone.config import LONG_MAX, Config, LogConfig
from siltstone.errors import SiltstoneError, StorageError
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import PartitionLog
from siltstone.log.service.cleaning_states import CleaningStates
from siltstone.log.service.retention import Decision, decide, segment_facts
from siltstone.log.service.scheduler import Scheduler
from siltstone.log.service.served_directory import ServedDirectory

RETENTION, FLUSH, PRODUCERS = "retention", "flush", "expire-producers"
RECOVERY_POINTS, LOG_STARTS = "checkpoint-recovery-points", "checkpoint-log-starts"
UNLINK, REMOVE = "unlink-deleted-files", "remove-deleted-directory"
_logger = logging.getLogger("siltstone")


class Upkeep:
    """The periodic tasks over some directories, on a scheduler."""

    def __init__(
        self,
        directories: Sequence[ServedDirectory],
        scheduler: Scheduler,
        config: Config,
        clock: Clock,
        cleaning: CleaningStates,
    ) -> None:
        self._cleaning = cleaning
        self._directories = directories
        self._scheduler = scheduler
        self._flush_interval_ms = config.integer("log.flush.scheduler.interval.ms")
        self._clock = clock
        first = clock.now_ms() + config.integer("log.initial.task.delay.ms")

        def every(name: str, key: str, action: Callable[[], object]) -> None:
            period = config.integer(key)
            scheduler.every(name, lambda: period, action, first_ms=first)

        every(RETENTION, "log.retention.check.interval.ms", self.delete_old_segments)
        every(RECOVERY_POINTS, "log.flush.offset.checkpoint.interval.ms", self.write_recovery_points)
        every(LOG_STARTS, "log.flush.start.offset.checkpoint.interval.ms", self.write_log_starts)
        every(PRODUCERS, "producer.id.expiration.check.interval.ms", self.expire_producers)
        due = clock.now_ms() + self._flush_interval_ms
        scheduler.every(FLUSH, self._flush_period, self.flush_due, first_ms=due)

    def settings_changed(self, config: LogConfig) -> None:
        """A log has come, or goes by these settings now: it may have to be flushed earlier."""
        if 0 < config.flush_ms < LONG_MAX:
            self._scheduler.hasten(FLUSH, self._clock.now_ms() + config.flush_ms)

    def _flush_period(self) -> int:
        """The scheduler's interval, or the shortest ``flush.ms`` of a log where that is shorter.

        Kafka keeps to the interval, which is endless unless set: a topic's ``flush.ms`` then only counts
        when something is appended, and the last records of a log wait for ever.
        """
        periods = (log.config.flush_ms for _, log in self._all_logs() if log.config.flush_ms > 0)
        return min(self._flush_interval_ms, min(periods, default=LONG_MAX))

    def _all_logs(self) -> Iterator[tuple[ServedDirectory, PartitionLog]]:
        for served in self._directories:
            for log in list(served.logs.values()):
                if served.offline is None:
                    yield served, log

    @contextlib.contextmanager
    def guarded(self, served: ServedDirectory) -> Iterator[None]:
        """The disk's errors within take the directory offline; a full disk is only told of."""
        try:
            yield
        except StorageError as error:
            _logger.warning("%s", error)
            self.take_failed_offline()
        except SiltstoneError as error:
            _logger.error("%s", error)
        except OSError as error:
            served.go_offline(f"{error.strerror or error}")

    def take_failed_offline(self) -> None:
        """A log whose disk failed takes its directory with it."""
        for served, log in self._all_logs():
            if log.offline is not None:
                served.go_offline(log.offline)

    # The tasks

    def delete_old_segments(self) -> dict[str, tuple[Decision, ...]]:
        """Carry retention out on every log; what went, by partition.

        A log that is being cleaned has its turn from the cleaner, once that is through with it.
        """
        gone = {}
        for served, log in self._all_logs():
            if not self._cleaning.try_pause(log.where):
                continue
            try:
                with self.guarded(served):
                    decisions = self.delete_old_segments_of(served, log)
                    if decisions:
                        gone[str(log.where)] = decisions
            finally:
                self._cleaning.resume(log.where)
        return gone

    def delete_old_segments_of(self, served: ServedDirectory, log: PartitionLog) -> tuple[Decision, ...]:
        """Carry retention out on one log that no cleaner has, or on the caller's own claim.

        Raises StorageError, InvalidConfigError for an unknown policy, LedgerError: originals may be all that
        is left of what a damaged ledger covered.
        """
        decisions: tuple[Decision, ...] = ()
        now_ms = self._clock.now_ms()
        held_from = LedgerStore(log.directory).held_horizon() if log.config.deletes else None

        def count(view: LogView) -> int:
            nonlocal decisions
            decisions = decide(
                segment_facts(view, with_times=log.config.deletes),
                now_ms=now_ms,
                config=log.config,
                log_start_offset=view.log_start_offset,
                high_watermark=view.high_watermark,
                held_from=held_from,
            )
            return len(decisions)

        if log.offline is None:
            self.unlink_later(served, log.delete_prefix(count), log.config.file_delete_delay_ms)
        return decisions

    def unlink_later(self, served: ServedDirectory, paths: Sequence[Path], delay_ms: int) -> None:
        """Unlink ``.deleted`` files after a while: somebody who reads may still want to open them."""
        if paths:
            when_ms = self._clock.now_ms() + delay_ms
            self._scheduler.at(when_ms, UNLINK, lambda: self._unlink(served, paths))

    def _unlink(self, served: ServedDirectory, paths: Sequence[Path]) -> None:
        with self.guarded(served):
            for path in paths if served.offline is None else ():
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(path)

    def remove_later(self, served: ServedDirectory, directory: Path, delay_ms: int) -> None:
        """Remove a deleted partition's directory after a while."""

        def remove() -> None:
            with self.guarded(served):
                if served.offline is None and files.exists(directory):
                    files.remove_tree(directory)

        self._scheduler.at(self._clock.now_ms() + delay_ms, REMOVE, remove)

    def flush_due(self) -> None:
        """Flush the logs that have waited for their ``flush.ms``."""
        now_ms = self._clock.now_ms()
        for served, log in self._all_logs():
            waited = now_ms - log.flushed_ms
            if log.log_end_offset > log.recovery_point and waited >= log.config.flush_ms < LONG_MAX:
                with self.guarded(served):
                    log.flush()

    def write_recovery_points(self) -> None:
        """Write down below what the logs are durable, and their high watermarks."""
        for served in self._serving():
            with self.guarded(served):
                served.write_recovery_points()

    def write_log_starts(self) -> None:
        """Write down where the logs start."""
        for served in self._serving():
            with self.guarded(served):
                served.write_log_starts()

    def _serving(self) -> list[ServedDirectory]:
        return [served for served in self._directories if served.offline is None]

    def expire_producers(self) -> None:
        """Forget producers that were silent for too long."""
        for _, log in self._all_logs():
            log.expire_producers()
