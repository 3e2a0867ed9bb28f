"""Recovers the logs of a broker's log directories before they are opened (Kafka's ``LogManager.loadLogs``).

::

    1 remove the clean-shutdown marker, durably      after a crash from here on, the stop was not clean
    2 recover every partition                        some at a time; a failed one stops no other
    3 write the checkpoints                          log start, high watermark, the recovery point last
    4 write the marker again                         only with ``close``: no log is opened afterwards

An error of the file system takes its directory offline, with the reason, and the others are served
(``LogDirFailureChannel``). While a log cannot be served, the marker is not written: the next start must not
take that log for one that was stopped cleanly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from siltstone.base import files, interruption
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import LogDirectory, PassedOver
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.recovery.partition import Recovered, recover_partition

NOTHING_TO_DO, RECOVERED, DAMAGED = "nothing_to_do", "recovered", "damaged"
REFUSED, FAILED, SKIPPED = "refused", "failed", "skipped"

Progress = Callable[[str, int, int], None]
"""Called with a directory's path, how many of its logs are done, and how many it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecovery:
    """The result of one log. ``recovered`` is None if it cannot be served. ``damage``: what is corrupt."""

    topic_partition: TopicPartition
    path: Path
    status: str
    reason: str = ""
    recovered: Recovered | None = None
    damage: tuple[CorruptFileError, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Is there something that a person has to look at?"""
        return self.status in (DAMAGED, REFUSED, FAILED)


@dataclass(slots=True, kw_only=True)
class DirectoryRecovery:
    """The result of one log directory; ``offline`` is why it is not served, None where it is."""

    path: Path
    was_clean: bool = False
    logs: list[LogRecovery] = field(default_factory=list)
    offline: str | None = None
    notes: list[str] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        """Is there something that a person has to look at?"""
        return self.offline is not None or any(log.is_bad for log in self.logs)

    @classmethod
    def failed(cls, path: Path, error: OSError) -> DirectoryRecovery:
        """The result of a directory that could not be opened."""
        return cls(path=path, offline=_error_text(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """Options of a recovery: ``config_of`` a log, ``now_ms`` for expiry, ``threads`` for each directory.

    ``check``: read below the recovery point too (None: only if the stop was not clean). ``close``: the logs
    are not opened now, so that the directory is left as after a clean stop. ``dry_run``: change nothing.
    """

    config_of: Callable[[TopicPartition], LogConfig]
    now_ms: int
    threads: int = 1
    check: bool | None = False
    close: bool = False
    dry_run: bool = False


def recover_directories(
    directories: Sequence[LogDirectory], options: RecoveryOptions, progress: Progress | None = None
) -> list[DirectoryRecovery]:
    """Recover the opened directories of one broker (``open_directories``: each once), at the same time; a
    result for each, in order."""
    with ThreadPoolExecutor(max(len(directories), 1)) as pool:
        return list(
            pool.map(lambda directory: _DirectoryRecoverer(directory, options, progress).run(), directories)
        )


class _DirectoryRecoverer:
    """The recovery of one log directory: ``run`` once."""

    def __init__(self, directory: LogDirectory, options: RecoveryOptions, progress: Progress | None) -> None:
        self._directory = directory
        self._options = options
        self._progress = progress
        self._lock = threading.Lock()
        self._done = 0
        self._points: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        self.result = DirectoryRecovery(path=directory.path, passed_over=directory.passed_over)

    def run(self) -> DirectoryRecovery:
        """Recover the directory's logs, then write what says that they are in order."""
        result, partitions = self.result, self._directory.partitions
        try:
            marker = self._read_and_remove_marker()
            result.was_clean = marker is not None
            self._points = self._read(names.RECOVERY_CHECKPOINT)
            self._starts = self._read(names.LOG_START_CHECKPOINT)
            with ThreadPoolExecutor(self._options.threads) as pool:
                logs = list(pool.map(self._recover, sorted(partitions)))
            result.logs = [log for log in logs if log is not None]
            if result.offline is None and self._directory.is_log_directory and not self._options.dry_run:
                self._write_checkpoints()
                self._write_marker(marker)
        except OSError as error:
            self._go_offline(error)
        if result.offline is not None:
            # The logs that recovery did not reach are not served either.
            reached, reason = {log.topic_partition for log in result.logs}, f"{result.path} is offline"
            result.logs += [
                LogRecovery(topic_partition=topic_partition, path=path, status=FAILED, reason=reason)
                for topic_partition, path in partitions.items()
                if topic_partition not in reached
            ]
            result.logs.sort(key=lambda log: log.topic_partition)
        return result

    def _read_and_remove_marker(self) -> bytes | None:
        """Remove the clean-shutdown marker, durably; returns its bytes, None without one."""
        path = self._directory.path / names.CLEAN_SHUTDOWN
        try:
            marker = files.read_bytes(path)
        except FileNotFoundError:
            return None
        if not (self._options.dry_run or self._directory.is_partial):
            files.unlink(path)
            files.sync_directory(self._directory.path)
        return marker

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_checkpoint(self._directory.path / name)
        except CorruptFileError as error:
            self.result.notes.append(f"{error}; the file is treated as empty")
            return {}

    # The logs

    def _recover(self, topic_partition: TopicPartition) -> LogRecovery | None:
        """One log; None once the directory is offline."""
        if self.result.offline is not None:
            return None
        # Without all of its logs a directory gets neither checkpoints nor the marker.
        interruption.current().check()
        log = self._recover_log(topic_partition, self._directory.partitions[topic_partition])
        with self._lock:
            self._done += 1
            if self._progress is not None:
                self._progress(str(self._directory.path), self._done, len(self._directory.partitions))
        return log

    def _recover_log(self, topic_partition: TopicPartition, path: Path) -> LogRecovery:
        options, clean = self._options, self.result.was_clean
        log = LogRecovery(topic_partition=topic_partition, path=path, status=REFUSED)
        if topic_partition.topic == CLUSTER_METADATA:
            return replace(log, status=SKIPPED, reason="its quorum recovers the metadata log")
        try:
            recovered = recover_partition(
                path,
                clean=clean,
                recovery_point=self._points.get(topic_partition, 0),
                log_start=self._starts.get(topic_partition, 0),
                config=options.config_of(topic_partition),
                now_ms=options.now_ms,
                check=not clean if options.check is None else options.check,
                dry_run=options.dry_run,
            )
        except CorruptFileError as error:
            return replace(log, reason=str(error), damage=(error.with_traceback(None),))
        except DirectoryRefusedError as error:
            return replace(log, reason=str(error))
        except OSError as error:
            self._go_offline(error)
            return replace(log, status=FAILED, reason=self.result.offline or "")
        status = RECOVERED if recovered.changed else NOTHING_TO_DO
        damage, reasons = recovered.damage, list(recovered.notes)
        if damage:
            status = DAMAGED
            more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
            reasons.insert(0, f"corrupt below the recovery point, left as it is: {damage[0]}{more}")
        return replace(log, status=status, reason="; ".join(reasons), recovered=recovered, damage=damage)

    def _go_offline(self, error: OSError) -> None:
        with self._lock:
            if self.result.offline is None:
                self.result.offline = _error_text(error)

    # Checkpoints and the marker

    def _write_checkpoints(self) -> None:
        """Write the checkpoints that have changed, without the entries of logs that no longer exist.

        The recovery point goes last: with an older one the next start only reads more.
        """
        partitions, is_partial = self._directory.partitions, self._directory.is_partial
        marks = self._read(names.REPLICATION_CHECKPOINT)
        new_points, new_starts = (
            {
                topic_partition: offset
                for topic_partition, offset in offsets.items()
                if is_partial or topic_partition in partitions
            }
            for offsets in (self._points, self._starts)
        )
        new_marks = dict(marks)
        for topic_partition, log in (
            (log.topic_partition, log.recovered) for log in self.result.logs if log.recovered
        ):
            new_points[topic_partition] = log.log_end_offset
            new_starts.pop(topic_partition, None)
            if log.log_start_offset > log.segments[0].base_offset:
                new_starts[topic_partition] = log.log_start_offset
            if topic_partition in new_marks:
                new_marks[topic_partition] = min(new_marks[topic_partition], log.log_end_offset)
        for name, old, new in (
            (names.LOG_START_CHECKPOINT, self._starts, new_starts),
            (names.REPLICATION_CHECKPOINT, marks, new_marks),
            (names.RECOVERY_CHECKPOINT, self._points, new_points),
        ):
            if new != old:
                write_checkpoint(self._directory.path / name, new)

    def _write_marker(self, marker: bytes | None) -> None:
        """Write the clean-shutdown marker: the old one's bytes, unless a log lost records.

        Its broker epoch tells the controller that nothing was lost (KIP-966). If a log was truncated, or the
        stop was not clean, the new marker has no broker's epoch.
        """
        served = [log.recovered for log in self.result.logs if log.status != SKIPPED]
        if not self._options.close or self._directory.is_partial or None in served:
            return
        changed = any(recovered is not None and recovered.truncated_bytes for recovered in served)
        content = names.CLEAN_SHUTDOWN_CONTENT if marker is None or changed else marker
        files.replace(self._directory.path / names.CLEAN_SHUTDOWN, content)


def _error_text(error: OSError) -> str:
    return (f"{error.filename}: " if error.filename else "") + (error.strerror or str(error))
