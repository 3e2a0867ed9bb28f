"""Periodic maintenance of open logs: retention, flushes, checkpoints, removal of deleted files.

Kafka's ``LogManager.startup`` schedules the same tasks with the same periods, the first run
``log.initial.task.delay.ms`` after the start. Each task covers all logs. A disk error takes the log's
directory offline, and the task continues with the other directories.

::

    here                       Kafka's LogManager             period
    delete_old_segments        cleanupLogs                    log.retention.check.interval.ms
    flush_due                  flushDirtyLogs                 log.flush.scheduler.interval.ms, or flush.ms
    write_recovery_points      checkpointLogRecoveryOffsets   log.flush.offset.checkpoint.interval.ms
    write_log_starts           checkpointLogStartOffsets      log.flush.start.offset.checkpoint.interval.ms
    remove_later               deleteLogs                     once, after file.delete.delay.ms
    expire_producers           (ProducerStateManager)         producer.id.expiration.check.interval.ms
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import SiltstoneError, StorageError
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import DISK_FULL_ERRORS, PartitionLog
from siltstone.log.retention import Deletion, deletions_of
from siltstone.runtime.served_directory import ServedDirectory

if TYPE_CHECKING:
    from siltstone.runtime.manager import LogManager

# ``Scheduler.tick(now_ms)`` runs the tasks that are due and returns their names; nothing runs between ticks.
# A task that was due several times runs once. ``Ticker`` is the thread that calls ``tick`` (Kafka's
# ``KafkaScheduler``); tests call ``tick`` themselves.

Action = Callable[[], object]
Period = Callable[[], int]
"""Returns the current period in ms; called at every run of the task, since settings may change."""

_MAX_WAIT_SECONDS = 60.0


class _Task(NamedTuple):
    """A task that waits until ``due_ms``. ``period`` is None for a task that runs once."""

    due_ms: int
    name: str
    action: Action
    period: Period | None

    def after_set_back(self, now_ms: int) -> _Task:
        """The task after the clock was set back to ``now_ms``: a periodic one waits one period at most."""
        return self if self.period is None else self._replace(due_ms=min(self.due_ms, now_ms + self.period()))


class Scheduler:
    """Runs tasks at their times. Thread-safe. ``changed`` is set when a task was scheduled or hastened.
    ``_ticked_ms``: the time of the last tick."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._waiting: list[_Task] = []
        self._ticked_ms = 0
        self.changed = threading.Event()

    def schedule(self, name: str, action: Action, *, due_ms: int, period: Period | None = None) -> None:
        """Run ``action`` at ``due_ms``; with a ``period``, once in every period from then on."""
        with self._lock:
            self._waiting.append(_Task(due_ms, name, action, period))
        self.changed.set()

    def hasten(self, name: str, due_ms: int) -> None:
        """Run the periodic task ``name`` at ``due_ms`` at the latest."""
        with self._lock:
            self._waiting = [
                task._replace(due_ms=min(task.due_ms, due_ms)) if task.name == name else task
                for task in self._waiting
            ]
        self.changed.set()

    @property
    def next_ms(self) -> int | None:
        """When the next task is due, None when there is none."""
        with self._lock:
            return min((task.due_ms for task in self._waiting), default=None)

    def tick(self, now_ms: int) -> list[str]:
        """Run the tasks that are due, in order of time, and return their names.

        When a task raises, the others still run; the first error is raised at the end. If the clock was set
        back, periodic tasks do not wait until it has caught up.
        """
        task_names = []
        errors: list[Exception] = []
        with self._ticking:
            with self._lock:
                if now_ms < self._ticked_ms:
                    self._waiting = [task.after_set_back(now_ms) for task in self._waiting]
                self._ticked_ms = now_ms
                due = [task for task in self._waiting if task.due_ms <= now_ms]
                self._waiting = [task for task in self._waiting if task.due_ms > now_ms]
            for due_ms, name, action, period in sorted(due, key=lambda task: task.due_ms):
                task_names.append(name)
                if period is not None:
                    # The next run is scheduled before this one begins: the action may hasten it. Runs that
                    # were missed are skipped.
                    period_ms = max(period(), 1)
                    missed = (now_ms - due_ms) // period_ms
                    self.schedule(name, action, due_ms=due_ms + (missed + 1) * period_ms, period=period)
                try:
                    action()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return task_names


class Ticker:
    """A daemon thread that calls ``tick`` when a task is due; ``stop`` waits for the tick that runs."""

    def __init__(self, tick: Callable[[], object], scheduler: Scheduler, clock: Clock) -> None:
        self._tick = tick
        self._scheduler = scheduler
        self._clock = clock
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="siltstone-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopped:
            self._scheduler.changed.clear()
            try:
                self._tick()
            except Exception:
                _logger.exception(
                    "A periodic task failed; it runs again when it is due, and the others run on"
                )
            next_ms = self._scheduler.next_ms
            wait = _MAX_WAIT_SECONDS if next_ms is None else max(next_ms - self._clock.now_ms(), 0) / 1000
            if not self._is_stopped:
                # Bounded: if the clock is set back meanwhile, the computed time is too long.
                self._scheduler.changed.wait(min(wait, _MAX_WAIT_SECONDS))

    def stop(self) -> None:
        """End the thread, after a tick that is in progress."""
        self._is_stopped = True
        self._scheduler.changed.set()
        self._thread.join()


RETENTION, FLUSH, PRODUCERS = "retention", "flush", "expire-producers"
RECOVERY_POINTS, LOG_STARTS = "checkpoint-recovery-points", "checkpoint-log-starts"
UNLINK, REMOVE = "unlink-deleted-files", "remove-deleted-directory"
"""Names of the tasks, which ``tick`` returns."""
_NOT_THE_DISKS = (errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EACCES, errno.EPERM)
"""Errors of a removal that are not the disk's: a link, more levels than Siltstone creates, files of other
users or processes."""
_logger = logging.getLogger("siltstone")


class Upkeep:
    """The periodic tasks of a ``LogManager``, for all its logs and directories."""

    def __init__(self, manager: LogManager) -> None:
        self._cleaning_states = manager.cleaning_states
        self._logs, self._serving = manager.logs, manager.serving
        self._scheduler, self._clock = manager.scheduler, manager.clock
        config, now_ms = manager.config, self._clock.now_ms()
        self._flush_interval_ms = config.integer("log.flush.scheduler.interval.ms")
        first_ms = now_ms + config.integer("log.initial.task.delay.ms")
        for name, key, action in (
            (RETENTION, "log.retention.check.interval.ms", self.delete_old_segments),
            (RECOVERY_POINTS, "log.flush.offset.checkpoint.interval.ms", self.write_recovery_points),
            (LOG_STARTS, "log.flush.start.offset.checkpoint.interval.ms", self.write_log_starts),
            (PRODUCERS, "producer.id.expiration.check.interval.ms", self.expire_producers),
        ):
            period = functools.partial(config.integer, key)
            self._scheduler.schedule(name, action, due_ms=first_ms, period=period)
        flush_ms = now_ms + self._flush_interval_ms
        self._scheduler.schedule(FLUSH, self.flush_due, due_ms=flush_ms, period=self._flush_period)

    def settings_changed(self, config: LogConfig) -> None:
        """A log was opened, or has new settings (``config``): the next flush may be due earlier."""
        if 0 < config.flush_ms < LONG_MAX:
            self._scheduler.hasten(FLUSH, self._clock.now_ms() + config.flush_ms)

    def _flush_period(self) -> int:
        """``log.flush.scheduler.interval.ms``, or the shortest ``flush.ms`` of a log if that is shorter.

        Kafka uses the former alone, which is endless by default. A topic's ``flush.ms`` then has no
        effect, and the last records of a log are never flushed.
        """
        periods = (log.config.flush_ms for _, log in self._logs() if log.config.flush_ms > 0)
        return min(self._flush_interval_ms, min(periods, default=LONG_MAX))

    @contextlib.contextmanager
    def guarded(self, served: ServedDirectory) -> Iterator[None]:
        """An error of the disk in the block takes the directory offline; other errors are only logged."""
        try:
            yield
        # If a log went offline, so does its directory. After a full disk the log is not offline.
        except StorageError as error:
            _logger.warning("Maintenance of a log failed: %s", error)
            self.take_failed_offline()
        except SiltstoneError as error:
            _logger.error("Maintenance of a log failed: %s", error)
        except OSError as error:
            served.go_offline(error)

    def take_failed_offline(self) -> None:
        """Take directories offline that have a log whose disk failed."""
        for served, log in self._logs():
            if log.offline is not None:
                served.go_offline(log.offline)

    # The tasks

    def delete_old_segments(self) -> dict[str, tuple[Deletion, ...]]:
        """Apply retention to every log; returns the deletions by partition.

        As in ``LogManager.cleanupLogs`` the cleaning of each log is paused meanwhile: a cleaning that began
        then would plan with segments that retention deletes. A log that is being cleaned is skipped: the
        cleaner applies retention after the cleaning.
        """
        deleted = {}
        for served, log in self._logs():
            if not self._cleaning_states.try_pause(log.topic_partition):
                continue
            try:
                with self.guarded(served):
                    decisions = self.delete_old_segments_of(served, log)
                    if decisions:
                        deleted[str(log.topic_partition)] = decisions
            finally:
                self._cleaning_states.resume(log.topic_partition)
        return deleted

    def delete_old_segments_of(self, served: ServedDirectory, log: PartitionLog) -> tuple[Deletion, ...]:
        """Apply retention to one log, whose cleaning is paused, or which the caller has claimed for a
        cleaning (``CleaningStates``).

        Raises StorageError; InvalidConfigError for an unknown policy; LedgerError for a damaged compacted
        ledger: the log may have the only copy of its records.
        """
        decisions: tuple[Deletion, ...] = ()
        # The horizon of a compacted ledger: retention keeps all records above. It is read before the log's
        # lock is taken; it only rises, which would let retention delete more.
        retain_from = LedgerStore(log.directory).first_needed_offset() if log.config.deletes else None

        def count_expired(view: LogView) -> int:
            # Called under the lock of the log's segments, so that exactly the counted segments are deleted.
            nonlocal decisions
            decisions = deletions_of(view, log.config, self._clock.now_ms(), retain_from)
            return len(decisions)

        if log.offline is None:
            self.unlink_later(
                served, log.delete_oldest_segments(count_expired), log.config.file_delete_delay_ms
            )
        return decisions

    def unlink_later(self, served: ServedDirectory, paths: Sequence[Path], delay_ms: int) -> None:
        """Unlink ``.deleted`` files after ``delay_ms``: a reader may still open them until then."""

        def unlink() -> None:
            with self.guarded(served):
                for path in paths if served.offline is None else ():
                    with contextlib.suppress(FileNotFoundError):
                        files.unlink(path)

        if paths:
            self._scheduler.schedule(UNLINK, unlink, due_ms=self._clock.now_ms() + delay_ms)

    def remove_later(self, served: ServedDirectory, directory: Path, delay_ms: int) -> None:
        """Remove a deleted partition's directory after ``delay_ms``. If it cannot be removed, and the disk is
        not the reason, it is left with a warning, and the next start tries again."""

        def remove() -> None:
            with self.guarded(served):
                try:
                    if served.offline is None and files.exists(directory):
                        files.remove_tree(directory)
                except OSError as error:
                    if error.errno not in _NOT_THE_DISKS:
                        raise
                    _logger.warning(
                        "%s was not removed: %s; remove it by hand", directory, error.strerror or error
                    )

        self._scheduler.schedule(REMOVE, remove, due_ms=self._clock.now_ms() + delay_ms)

    def flush_due(self) -> None:
        """Flush the logs whose ``flush.ms`` has passed."""
        now_ms = self._clock.now_ms()
        for served, log in self._logs():
            if log.is_flush_time(now_ms) and log.log_end_offset > log.recovery_point:
                with self.guarded(served):
                    log.flush()

    def write_recovery_points(self) -> None:
        """Write the recovery points and the high watermarks of all logs."""
        self._for_each_directory(ServedDirectory.write_recovery_points)

    def write_log_starts(self) -> None:
        """Write the log start offsets of all logs."""
        self._for_each_directory(ServedDirectory.write_log_starts)

    def _for_each_directory(self, write: Callable[[ServedDirectory], None]) -> None:
        for served in self._serving():
            with self.guarded(served):
                try:
                    write(served)
                except OSError as error:
                    # A full disk may be freed. The checkpoint before is in place, and the next task writes
                    # the new one; after a crash there is more to recover.
                    if error.errno not in DISK_FULL_ERRORS:
                        raise
                    _logger.warning("%s: a checkpoint was not written: %s", served.path, error.strerror)

    def expire_producers(self) -> None:
        """Expire producers that have not written for ``producer.id.expiration.ms``."""
        for _, log in self._logs():
            log.expire_producers()
