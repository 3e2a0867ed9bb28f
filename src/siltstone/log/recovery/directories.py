"""Recovers the logs of a broker's log directories for ``siltstone recover``, as Kafka does at its start
(``LogManager.loadLogs``). A log that Siltstone opens is recovered when it is opened (``partition``).

::

    1 remove the clean-shutdown marker, durably      a crash after this is no clean shutdown
    2 recover every partition                        several at a time; if one fails, the others continue
    3 write the checkpoints                          log start offset, high watermark, recovery point last
    4 write the marker again                         only with ``mark_clean_shutdown``

An error of the file system takes its log directory offline; the others are served (Kafka's
``LogDirFailureChannel``). If a log cannot be served, the marker is not written: with a marker the next start
would assume that this log had a clean shutdown, too.
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
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition

NOTHING_TO_DO, RECOVERED, DAMAGED = "nothing_to_do", "recovered", "damaged"
REFUSED, FAILED, SKIPPED = "refused", "failed", "skipped"
"""The statuses of a ``LogRecovery``. RECOVERED: files were changed. DAMAGED: the log can be served, but has
corrupt batches below its recovery point. REFUSED, FAILED: it cannot be served, because of its files or of an
error of the file system. SKIPPED: it is the metadata log, which recovery leaves alone."""

Progress = Callable[[str, int, int], None]
"""Called with a directory's path, how many of its logs are done, and how many it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecovery:
    """The result for one log. ``status``: ``NOTHING_TO_DO`` …; ``reason``: why, in words.

    ``recovered`` is None if the log cannot be served. ``damage``: what is corrupt in it.
    """

    topic_partition: TopicPartition
    path: Path
    status: str
    reason: str = ""
    recovered: RecoveredPartition | None = None
    damage: tuple[CorruptFileError, ...] = ()

    @property
    def needs_attention(self) -> bool:
        """Does an operator have to do something about it?"""
        return self.status in (DAMAGED, REFUSED, FAILED)


@dataclass(slots=True, kw_only=True)
class DirectoryRecovery:
    """The result for one log directory. ``offline``: why it cannot be served, None if it can.

    ``was_clean``: it had the clean-shutdown marker. ``notes``: checkpoints that could not be read.
    ``passed_over``: the entries of the directory that are no partitions.
    """

    path: Path
    was_clean: bool = False
    logs: list[LogRecovery] = field(default_factory=list)
    offline: str | None = None
    notes: list[str] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)

    @property
    def needs_attention(self) -> bool:
        """Does an operator have to do something about it?"""
        return self.offline is not None or any(log.needs_attention for log in self.logs)

    @classmethod
    def failed(cls, path: Path, error: OSError) -> DirectoryRecovery:
        """The result of a directory that could not be opened."""
        return cls(path=path, offline=_error_text(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """Options of a recovery.

    ``config_of``: returns a partition's settings. ``now_ms``: the time by which producers expire.
    ``threads``: how many logs of a directory are recovered at once. ``check``: read the segments below the
    recovery point too; None: only without a clean shutdown. ``mark_clean_shutdown``: write the marker at the
    end, because no log is opened afterwards. ``dry_run``: change nothing.
    """

    config_of: Callable[[TopicPartition], LogConfig]
    now_ms: int
    threads: int = 1
    check: bool | None = False
    mark_clean_shutdown: bool = False
    dry_run: bool = False


def recover_directories(
    directories: Sequence[LogDirectory], options: RecoveryOptions, progress: Progress | None = None
) -> list[DirectoryRecovery]:
    """Recover the open log directories of one broker, all at once; returns a result for each, in order.

    Each directory may be passed only once, as ``open_directories`` returns them.
    """
    with ThreadPoolExecutor(max(len(directories), 1)) as pool:
        return list(
            pool.map(lambda directory: _DirectoryRecoverer(directory, options, progress).run(), directories)
        )


class _DirectoryRecoverer:
    """The recovery of one log directory; call ``run`` once."""

    def __init__(self, directory: LogDirectory, options: RecoveryOptions, progress: Progress | None) -> None:
        self._directory = directory
        self._options = options
        self._progress = progress
        self._lock = threading.Lock()
        self._done_count = 0
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_start_offsets: dict[TopicPartition, int] = {}
        self.result = DirectoryRecovery(path=directory.path, passed_over=directory.passed_over)

    def run(self) -> DirectoryRecovery:
        """Recover the directory's logs, then write its checkpoints and the clean-shutdown marker."""
        result, partitions = self.result, self._directory.partitions
        try:
            marker = self._read_and_remove_marker()
            result.was_clean = marker is not None
            self._recovery_points = self._read_checkpoint(names.RECOVERY_CHECKPOINT)
            self._log_start_offsets = self._read_checkpoint(names.LOG_START_CHECKPOINT)
            with ThreadPoolExecutor(self._options.threads) as pool:
                logs = list(pool.map(self._recover, sorted(partitions)))
            result.logs = [log for log in logs if log is not None]
            if result.offline is None and self._directory.has_broker_files and not self._options.dry_run:
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
        # The marker stays for partitions that are not recovered now, if only some are.
        if not (self._options.dry_run or self._directory.is_partition_subset):
            files.unlink(path)
            files.sync_directory(self._directory.path)
        return marker

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_checkpoint(self._directory.path / name)
        except CorruptFileError as error:
            self.result.notes.append(f"{error}; the file is treated as empty")
            return {}

    # The logs

    def _recover(self, topic_partition: TopicPartition) -> LogRecovery | None:
        """Recover one log; None if the directory is offline."""
        if self.result.offline is not None:
            return None
        # Ctrl-C raises here: then the directory gets neither checkpoints nor the marker.
        interruption.current().check()
        log = self._recover_log(topic_partition, self._directory.partitions[topic_partition])
        with self._lock:
            self._done_count += 1
            if self._progress is not None:
                self._progress(str(self._directory.path), self._done_count, len(self._directory.partitions))
        return log

    def _recover_log(self, topic_partition: TopicPartition, path: Path) -> LogRecovery:
        options, had_clean_shutdown = self._options, self.result.was_clean
        log = LogRecovery(topic_partition=topic_partition, path=path, status=REFUSED)
        if topic_partition.topic == CLUSTER_METADATA:
            return replace(log, status=SKIPPED, reason="its quorum recovers the metadata log")
        try:
            recovered = recover_partition(
                path,
                had_clean_shutdown=had_clean_shutdown,
                recovery_point=self._recovery_points.get(topic_partition, 0),
                log_start_offset=self._log_start_offsets.get(topic_partition, 0),
                config=options.config_of(topic_partition),
                now_ms=options.now_ms,
                check=not had_clean_shutdown if options.check is None else options.check,
                dry_run=options.dry_run,
            )
        except CorruptFileError as error:
            # With a traceback the error would keep the recovery's arrays in memory.
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
        """Record the first error that takes the directory offline."""
        with self._lock:
            if self.result.offline is None:
                self.result.offline = _error_text(error)

    # Checkpoints and the marker

    def _write_checkpoints(self) -> None:
        """Write the checkpoints that have changed, without entries of logs that no longer exist (if only some
        partitions are recovered, all other entries stay).

        The recovery points are written last: after a crash before that, the next start only scans more.
        """
        partitions, is_subset = self._directory.partitions, self._directory.is_partition_subset
        high_watermarks = self._read_checkpoint(names.REPLICATION_CHECKPOINT)
        new_recovery_points, new_log_start_offsets = (
            {
                topic_partition: offset
                for topic_partition, offset in offsets.items()
                if is_subset or topic_partition in partitions
            }
            for offsets in (self._recovery_points, self._log_start_offsets)
        )
        new_watermarks = dict(high_watermarks)
        for log in self.result.logs:
            topic_partition, recovered = log.topic_partition, log.recovered
            if recovered is None:
                continue
            new_recovery_points[topic_partition] = recovered.log_end_offset
            new_log_start_offsets.pop(topic_partition, None)
            if recovered.log_start_offset > recovered.segments[0].base_offset:
                new_log_start_offsets[topic_partition] = recovered.log_start_offset
            if topic_partition in new_watermarks:
                new_watermarks[topic_partition] = min(
                    new_watermarks[topic_partition], recovered.log_end_offset
                )
        for name, old, new in (
            (names.LOG_START_CHECKPOINT, self._log_start_offsets, new_log_start_offsets),
            (names.REPLICATION_CHECKPOINT, high_watermarks, new_watermarks),
            (names.RECOVERY_CHECKPOINT, self._recovery_points, new_recovery_points),
        ):
            if new != old:
                write_checkpoint(self._directory.path / name, new)

    def _write_marker(self, marker: bytes | None) -> None:
        """Write the clean-shutdown marker; ``marker`` has the old one's bytes, None if there was none.

        The broker epoch in a marker tells the controller that no log lost records (KIP-966). So the old bytes
        are written again only if no log was truncated; else the marker gets broker epoch -1.
        """
        results = [log.recovered for log in self.result.logs if log.status != SKIPPED]
        is_subset = self._directory.is_partition_subset
        if not self._options.mark_clean_shutdown or is_subset or None in results:  # None: not served
            return
        is_truncated = any(recovered is not None and recovered.truncated_bytes for recovered in results)
        content = names.CLEAN_SHUTDOWN_CONTENT if marker is None or is_truncated else marker
        files.replace(self._directory.path / names.CLEAN_SHUTDOWN, content)


def _error_text(error: OSError) -> str:
    return (f"{error.filename}: " if error.filename else "") + (error.strerror or str(error))
