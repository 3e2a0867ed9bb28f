"""Periodic maintenance of open logs: retention, flushes, checkpoints, removal of deleted files.

The tasks and their periods are those that Kafka's ``LogManager.startup`` schedules; they begin
``log.initial.task.delay.ms`` after the start. Each task covers all logs. A disk error takes the log's
directory offline, and the task goes on with the other directories.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import SiltstoneError, StorageError
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import PartitionLog
from siltstone.log.retention import Decision, decide, segment_metadata
from siltstone.runtime.served_directory import ServedDirectory

if TYPE_CHECKING:
    from siltstone.runtime.manager import LogManager

# ``Scheduler.tick(now_ms)`` runs the tasks that are due and returns their names; nothing runs between ticks.
# A task that was due several times runs once. ``Ticker`` calls ``tick`` from a thread (Kafka's
# ``KafkaScheduler``); tests call it themselves.

Action = Callable[[], object]
Period = Callable[[], int]
"""The period in ms as of now; read again after every run of the task."""

_LONGEST_WAIT_SECONDS = 60.0


class Scheduler:
    """Tasks by the time at which they are due, ms. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._waiting: list[tuple[int, str, Action, Period | None]] = []
        self.changed = threading.Event()

    def every(self, name: str, period: Period, action: Action, *, first_ms: int) -> None:
        """Run ``action`` at ``first_ms`` and from then on once a period."""
        self._push(first_ms, name, action, period)

    def at(self, when_ms: int, name: str, action: Action) -> None:
        """Run ``action`` once, at ``when_ms``."""
        self._push(when_ms, name, action, None)

    def hasten(self, name: str, when_ms: int) -> None:
        """Run the periodic task ``name`` at ``when_ms`` at the latest."""
        with self._lock:
            self._waiting = [
                (min(task[0], when_ms), *task[1:]) if task[1] == name else task for task in self._waiting
            ]
        self.changed.set()

    def _push(self, when_ms: int, name: str, action: Action, period: Period | None) -> None:
        with self._lock:
            self._waiting.append((when_ms, name, action, period))
        self.changed.set()

    @property
    def next_ms(self) -> int | None:
        """When the next task is due, None when there is none."""
        with self._lock:
            return min((task[0] for task in self._waiting), default=None)

    def tick(self, now_ms: int) -> list[str]:
        """Run the tasks that are due, in order of time; their names.

        When a task raises, the others still run; the first error is raised at the end.
        """
        ran = []
        errors: list[Exception] = []
        with self._ticking:
            with self._lock:
                due = sorted((task for task in self._waiting if task[0] <= now_ms), key=lambda task: task[0])
                self._waiting = [task for task in self._waiting if task[0] > now_ms]
            for when_ms, name, action, period in due:
                ran.append(name)
                if period is not None:
                    # Scheduled before it runs, at a multiple of the period: missed runs are not made up for.
                    missed = max(now_ms - when_ms, 0) // max(period(), 1)
                    self._push(when_ms + (missed + 1) * max(period(), 1), name, action, period)
                try:
                    action()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return ran


class Ticker:
    """A daemon thread that calls ``tick`` when a task is due; ``stop`` waits for the tick that runs."""

    def __init__(self, tick: Callable[[], object], scheduler: Scheduler, clock: Clock) -> None:
        self._tick = tick
        self._scheduler = scheduler
        self._clock = clock
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="siltstone-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            self._scheduler.changed.clear()
            try:
                self._tick()
            except Exception:
                _logger.exception("a periodic task failed; the other tasks still run")
            due = self._scheduler.next_ms
            wait = _LONGEST_WAIT_SECONDS if due is None else max(due - self._clock.now_ms(), 0) / 1000
            if not self._stopped:
                self._scheduler.changed.wait(min(wait, _LONGEST_WAIT_SECONDS))

    def stop(self) -> None:
        """End the thread after the tick that runs."""
        self._stopped = True
        self._scheduler.changed.set()
        self._thread.join()


RETENTION, FLUSH, PRODUCERS = "retention", "flush", "expire-producers"
RECOVERY_POINTS, LOG_STARTS = "checkpoint-recovery-points", "checkpoint-log-starts"
UNLINK, REMOVE = "unlink-deleted-files", "remove-deleted-directory"
_logger = logging.getLogger("siltstone")


class Upkeep:
    """The periodic tasks over the directories of a manager."""

    def __init__(self, manager: LogManager) -> None:
        self._cleaning, self._directories = manager.cleaning, manager.directories
        self._scheduler, self._clock = manager.scheduler, manager.clock
        config = manager.config
        self._flush_interval_ms = config.integer("log.flush.scheduler.interval.ms")
        first = self._clock.now_ms() + config.integer("log.initial.task.delay.ms")

        def every(name: str, key: str, action: Callable[[], object]) -> None:
            period = config.integer(key)
            self._scheduler.every(name, lambda: period, action, first_ms=first)

        every(RETENTION, "log.retention.check.interval.ms", self.delete_old_segments)
        every(RECOVERY_POINTS, "log.flush.offset.checkpoint.interval.ms", self.write_recovery_points)
        every(LOG_STARTS, "log.flush.start.offset.checkpoint.interval.ms", self.write_log_starts)
        every(PRODUCERS, "producer.id.expiration.check.interval.ms", self.expire_producers)
        due = self._clock.now_ms() + self._flush_interval_ms
        self._scheduler.every(FLUSH, self._flush_period, self.flush_due, first_ms=due)

    def settings_changed(self, config: LogConfig) -> None:
        """A log was opened, or has these settings now: it may have to be flushed earlier."""
        if 0 < config.flush_ms < LONG_MAX:
            self._scheduler.hasten(FLUSH, self._clock.now_ms() + config.flush_ms)

    def _flush_period(self) -> int:
        """The scheduler's interval, or the shortest ``flush.ms`` of a log where that is shorter.

        Kafka uses the interval, which is endless by default: a topic's ``flush.ms`` then only counts when
        records are appended, and the last records of a log are never flushed.
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
        """Errors of the disk in the block take the directory offline; a full disk is only logged."""
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
        """Take directories offline that have a log whose disk failed."""
        for served, log in self._all_logs():
            if log.offline is not None:
                served.go_offline(log.offline)

    # The tasks

    def delete_old_segments(self) -> dict[str, tuple[Decision, ...]]:
        """Apply retention to every log; the decisions by partition.

        Logs that are being cleaned are skipped: the cleaner applies retention after the cleaning.
        """
        deleted = {}
        for served, log in self._all_logs():
            # Paused: a cleaning that starts meanwhile would plan with segments that retention deletes.
            if not self._cleaning.try_pause(log.where):
                continue
            try:
                with self.guarded(served):
                    decisions = self.delete_old_segments_of(served, log)
                    if decisions:
                        deleted[str(log.where)] = decisions
            finally:
                self._cleaning.resume(log.where)
        return deleted

    def delete_old_segments_of(self, served: ServedDirectory, log: PartitionLog) -> tuple[Decision, ...]:
        """Apply retention to one log that is paused, or under the caller's claim.

        Raises StorageError, InvalidConfigError for an unknown policy, LedgerError for a damaged ledger: its
        records may be left in the originals only.
        """
        decisions: tuple[Decision, ...] = ()
        retain_from = LedgerStore(log.directory).held_horizon() if log.config.deletes else None

        def count(view: LogView) -> int:
            nonlocal decisions
            decisions = decide(
                segment_metadata(view, with_times=log.config.deletes),
                now_ms=self._clock.now_ms(),
                config=log.config,
                log_start_offset=view.log_start_offset,
                high_watermark=view.high_watermark,
                retain_from=retain_from,
            )
            return len(decisions)

        if log.offline is None:
            self.unlink_later(served, log.delete_prefix(count), log.config.file_delete_delay_ms)
        return decisions

    def unlink_later(self, served: ServedDirectory, paths: Sequence[Path], delay_ms: int) -> None:
        """Unlink ``.deleted`` files after ``delay_ms``: a reader may still open them until then."""

        def unlink() -> None:
            with self.guarded(served):
                for path in paths if served.offline is None else ():
                    with contextlib.suppress(FileNotFoundError):
                        files.unlink(path)

        if paths:
            self._scheduler.at(self._clock.now_ms() + delay_ms, UNLINK, unlink)

    def remove_later(self, served: ServedDirectory, directory: Path, delay_ms: int) -> None:
        """Remove a deleted partition's directory after ``delay_ms``."""

        def remove() -> None:
            with self.guarded(served):
                if served.offline is None and files.exists(directory):
                    files.remove_tree(directory)

        self._scheduler.at(self._clock.now_ms() + delay_ms, REMOVE, remove)

    def flush_due(self) -> None:
        """Flush the logs whose ``flush.ms`` has passed."""
        now_ms = self._clock.now_ms()
        for served, log in self._all_logs():
            waited = now_ms - log.flushed_ms
            if log.log_end_offset > log.recovery_point and waited >= log.config.flush_ms < LONG_MAX:
                with self.guarded(served):
                    log.flush()

    def write_recovery_points(self) -> None:
        """Write the recovery points and the high watermarks of all logs."""
        self._in_each_directory(lambda served: served.write_recovery_points())

    def write_log_starts(self) -> None:
        """Write the log starts of all logs."""
        self._in_each_directory(lambda served: served.write_log_starts())

    def _in_each_directory(self, write: Callable[[ServedDirectory], None]) -> None:
        for served in self._directories:
            if served.offline is None:
                with self.guarded(served):
                    write(served)

    def expire_producers(self) -> None:
        """Expire producers that were silent for ``producer.id.expiration.ms``."""
        for _, log in self._all_logs():
            log.expire_producers()
