"""One log directory in service: its lock, its logs, its checkpoints, its clean-shutdown marker.

::

    claim ─► lock ─► the marker is removed, durably ─► recover and open the logs ─► …
    close ─► logs flushed and closed ─► checkpoints ─► marker ─► unlock

The marker says that no log needs recovery. It is removed before anything else is changed, and written only
when all logs were closed in order. A checkpoint is written only when an entry has changed, and an entry only
once the data that it points to is durable. A directory whose disk fails goes offline with all its logs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, StorageError
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import LogDirectory, PassedOver
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog

# Uncleanable partitions and the reasons, in a file of Siltstone's own: ``siltstone-uncleanable.json``.
#
# Kafka's ``LogCleanerManager`` marks a partition as uncleanable in memory, and the next start tries again.
# Here the mark stays until an operator retries the cleaning, or the partition is deleted or emptied. The
# file is in the root of the log directory that holds the partitions, where a broker ignores files (an unknown
# *folder* would stop it)::
#
#     {"version": 1, "partitions": [{"topic": "users", "partition": 0, "since_ms": 1800000000000,
#                                    "reason": "/data/users-0/00000000000000000000.log: byte 61: …"}]}
#
# Only the cleaner reads it: appends, reads and retention work as for any other log.

UNCLEANABLE_FILE = "siltstone-uncleanable.json"
COUNTS_AS_EMPTY = "%s. The file counts as empty and is replaced at the next change"
NO_DIRECTORY, OFFLINE = "no log directory is in service", "the log directory is offline"
OPEN_AGAIN = "check the disk, and open the directory again"


class Uncleanable(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that is not cleaned: why, and since when (ms)."""

    topic: str
    partition: int
    since_ms: int
    reason: str


class _Listing(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    partitions: list[Uncleanable]


def read_uncleanable(directory: Path) -> dict[TopicPartition, Uncleanable]:
    """The uncleanable partitions of a log directory; empty without a file. Raises CorruptFileError,
    OSError."""
    path = directory / UNCLEANABLE_FILE
    try:
        listing = msgspec.convert(json.loads(files.read_bytes(path)), _Listing)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"the file is not a list of uncleanable partitions: {error}",
            advice="remove it; the cleaner finds uncleanable partitions again",
        ) from None
    return {TopicPartition(row.topic, row.partition): row for row in listing.partitions}


def write_uncleanable(directory: Path, uncleanable: Mapping[TopicPartition, Uncleanable]) -> None:
    """Replace the file, durably, or remove it where no partition is uncleanable. Raises OSError."""
    path = directory / UNCLEANABLE_FILE
    if uncleanable:
        rows = [uncleanable[topic_partition] for topic_partition in sorted(uncleanable)]
        # By ``json``, since the path in a reason may hold bytes that are no UTF-8, as surrogates.
        text = json.dumps(msgspec.to_builtins(_Listing(rows)), indent=1)
        files.replace(path, f"{text}\n".encode())
    elif files.exists(path):
        files.unlink(path)
        files.sync_directory(directory)


def mark_uncleanable(
    directory: Path, topic_partition: TopicPartition, reason: str, now_ms: int
) -> Uncleanable:
    """Add a partition, or replace its reason and keep its time. Raises OSError.

    For a cleaner that works on a directory that is not served; ``ServedDirectory`` has its own.
    """
    listed = _read_or_start_empty(directory)
    since_ms = listed[topic_partition].since_ms if topic_partition in listed else now_ms
    row = Uncleanable(
        topic=topic_partition.topic, partition=topic_partition.partition, since_ms=since_ms, reason=reason
    )
    write_uncleanable(directory, {**listed, topic_partition: row})
    return row


def clear_uncleanable(directory: Path, topic_partition: TopicPartition) -> bool:
    """Let a partition be cleaned again; False if it was not listed. Raises OSError."""
    listed = _read_or_start_empty(directory)
    if listed.pop(topic_partition, None) is None:
        return False
    write_uncleanable(directory, listed)
    return True


def _read_or_start_empty(directory: Path) -> dict[TopicPartition, Uncleanable]:
    """A damaged file counts as empty: the cleaner finds again what is uncleanable."""
    try:
        return read_uncleanable(directory)
    except CorruptFileError as error:
        _logger.warning(COUNTS_AS_EMPTY, error)
        return {}


_logger = logging.getLogger("siltstone")


class ServedDirectory:
    """A claimed log directory and the logs that are open in it.

    ``logs`` by partition; ``refused``: partitions that could not be opened, and why; ``offline``: why the
    directory is out of service, None while it serves; ``had_clean_shutdown``: was it stopped cleanly before?
    ``uncleanable``: partitions that the cleaner skips, and why, replaced as a whole. ``when_offline``
    is called once the directory is out of service, before its logs are closed.

    ``_lock`` guards the files below. ``_checkpoint_entries``: the entries of each checkpoint as they are on
    disk; ``_unopened_entries``: of these, entries of partitions that were not opened here, which stay as they
    are.
    """

    def __init__(self, path: Path, *, only: TopicPartition | None = None) -> None:
        """Lock a directory; nothing else in it is changed yet. Raises SiltstoneError, OSError."""
        self.directory = LogDirectory.claim(path, only=only)
        self.path = self.directory.path
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.refused: dict[TopicPartition, str] = {}
        self._excluded: set[TopicPartition] = set()
        self.offline: str | None = None
        self.had_clean_shutdown = self.directory.had_clean_shutdown
        self._lock = threading.RLock()
        self._checkpoint_entries: dict[str, dict[TopicPartition, int]] = {}
        self._unopened_entries: dict[str, dict[TopicPartition, int]] = {}
        self.uncleanable: dict[TopicPartition, Uncleanable] = {}
        self.when_offline: Callable[[ServedDirectory], None] = lambda served: None
        try:
            self._read_checkpoints()
        except BaseException:
            self.directory.close()
            raise

    def remove_clean_shutdown_marker(self) -> None:
        """Remove the clean-shutdown marker, durably: after a crash the next start recovers. Raises
        OSError."""
        if files.exists(self.path / names.CLEAN_SHUTDOWN):
            files.unlink(self.path / names.CLEAN_SHUTDOWN)
            files.sync_directory(self.path)

    def _read_checkpoints(self) -> None:
        """Read the checkpoints. Entries of partitions that are not opened stay."""
        opened = self.directory.partitions
        for name in (names.RECOVERY_CHECKPOINT, names.LOG_START_CHECKPOINT, names.REPLICATION_CHECKPOINT):
            entries = self._read_checkpoint(name)
            # Without a checkpoint its directory needs recovery, as after a crash.
            self.had_clean_shutdown &= entries is not None
            self._checkpoint_entries[name] = entries or {}
            others = self._checkpoint_entries[name] if self.directory.is_partial else {}
            self._unopened_entries[name] = {
                topic_partition: others[topic_partition]
                for topic_partition in others
                if topic_partition not in opened
            }
        listed = _read_or_start_empty(self.path)
        self.uncleanable = {
            topic_partition: listed[topic_partition]
            for topic_partition in listed
            if topic_partition in opened
        }

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """The entries of a checkpoint, None if it is damaged. Raises OSError."""
        try:
            return read_checkpoint(self.path / name)
        except CorruptFileError as error:
            _logger.warning(COUNTS_AS_EMPTY, error)
            return None

    # Partitions

    def partition_path(self, topic_partition: TopicPartition) -> Path:
        """The directory of a partition, whether it exists or not."""
        return self.path / str(topic_partition)

    def checkpoint_entry(self, name: str, topic_partition: TopicPartition) -> int:
        """A partition's entry in the recovery or log start checkpoint, 0 without one."""
        return self._checkpoint_entries[name].get(topic_partition, 0)

    def exclude(self, topic_partition: TopicPartition, reason: str) -> None:
        """Exclude a partition that belongs to another topic: it is neither opened nor changed."""
        path = self.directory.partitions.pop(topic_partition)
        self.directory.passed_over.append(PassedOver(path=str(path), reason=reason))
        self._excluded.add(topic_partition)

    @property
    def all_partitions(self) -> set[TopicPartition]:
        """All partitions that have a directory here, excluded ones too."""
        return {*self.directory.partitions, *self._excluded}

    # Checkpoints

    def write_recovery_points(self) -> None:
        """Write the recovery points and the high watermarks. Raises OSError."""
        self._write(names.RECOVERY_CHECKPOINT, lambda log: log.recovery_point)
        self._write(names.REPLICATION_CHECKPOINT, lambda log: log.high_watermark)

    def write_log_starts(self) -> None:
        """Write the log starts that are inside a segment. Raises OSError."""
        self._write(names.LOG_START_CHECKPOINT, _start_within_a_segment)

    def write_checkpoints(self) -> None:
        """Write all checkpoints that have changed. Raises OSError."""
        self.write_recovery_points()
        self.write_log_starts()

    def _write(self, name: str, entry_of: Callable[[PartitionLog], int | None]) -> None:
        """Write a checkpoint if an entry has changed.

        Partitions that are not open keep their entries: they may be repaired, or opened later.
        """
        with self._lock:
            before, logs = self._checkpoint_entries[name], self.logs.copy()
            closed = self.all_partitions - logs.keys()
            offsets = {
                **self._unopened_entries[name],
                **{
                    topic_partition: before[topic_partition]
                    for topic_partition in closed
                    if topic_partition in before
                },
            }
            for topic_partition, log in logs.items():
                entry = entry_of(log)
                if entry is not None:
                    offsets[topic_partition] = entry
            if offsets != before:  # a replacement costs a sync of the file and of the directory
                write_checkpoint(self.path / name, offsets)
                self._checkpoint_entries[name] = offsets

    def bound_cleaner_checkpoint(self, topic_partition: TopicPartition, limit: int | None) -> None:
        """Lower a log's entry in the cleaner checkpoint to ``limit``; None removes it. Raises OSError."""
        with self._lock:
            entry = self.cleaner_checkpoint().get(topic_partition)
            if entry is not None and (limit is None or entry > limit):
                self.directory.write_cleaner_checkpoint(topic_partition, limit)

    def cleaner_checkpoint(self) -> dict[TopicPartition, int]:
        """The cleaner checkpoint by partition; a damaged file counts as empty. Raises OSError."""
        with self._lock:
            return self._read_checkpoint(names.CLEANER_CHECKPOINT) or {}

    def write_cleaner_checkpoint(self, topic_partition: TopicPartition, offset: int) -> None:
        """Write the cleaner checkpoint of a log, durably. Raises OSError."""
        with self._lock:
            offsets = {**self.cleaner_checkpoint(), topic_partition: offset}
            write_checkpoint(self.path / names.CLEANER_CHECKPOINT, offsets)

    # Uncleanable partitions

    def mark_uncleanable(self, topic_partition: TopicPartition, reason: str, now_ms: int) -> None:
        """Make the cleaner skip a partition, durably. Raises OSError."""
        with self._lock:
            listed = mark_uncleanable(self.path, topic_partition, reason, now_ms)
            self.uncleanable = {**self.uncleanable, topic_partition: listed}

    def clear_uncleanable(self, topic_partition: TopicPartition) -> bool:
        """Let a partition be cleaned again, durably; False if it was not listed. Raises OSError."""
        with self._lock:
            if topic_partition not in self.uncleanable:
                return False
            clear_uncleanable(self.path, topic_partition)
            self.uncleanable = {
                other: row for other, row in self.uncleanable.items() if other != topic_partition
            }
            return True

    def drop_entries_of_missing_partitions(self) -> None:
        """Remove entries of partitions that do not exist from all checkpoints.

        A new partition must not start with the offsets of a deleted one of its name. Raises OSError.
        """
        self.write_checkpoints()
        if self.directory.is_partial:
            return
        existing = self.all_partitions
        listed = _read_or_start_empty(self.path)
        if listed.keys() - existing:
            write_uncleanable(
                self.path,
                {
                    topic_partition: listed[topic_partition]
                    for topic_partition in listed
                    if topic_partition in existing
                },
            )
        cleaner = self.cleaner_checkpoint()
        if cleaner.keys() - existing:
            entries = {
                topic_partition: cleaner[topic_partition]
                for topic_partition in cleaner
                if topic_partition in existing
            }
            write_checkpoint(self.path / names.CLEANER_CHECKPOINT, entries)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Remove a deleted partition and its entries. Raises OSError."""
        self.logs.pop(topic_partition, None)
        self.refused.pop(topic_partition, None)
        self.directory.partitions.pop(topic_partition, None)
        self.write_checkpoints()
        self.bound_cleaner_checkpoint(topic_partition, None)
        self.clear_uncleanable(topic_partition)

    # Errors and close

    @contextlib.contextmanager
    def offline_on_error(self) -> Iterator[None]:
        """An OSError in the block takes the directory offline and becomes a StorageError."""
        try:
            yield
        except OSError as error:
            self.go_offline(error)
            raise StorageError(f"{OFFLINE}: {self.offline}", path=self.path, advice=OPEN_AGAIN) from error

    def go_offline(self, cause: OSError | str) -> None:
        """Take the directory and all its logs out of service (Kafka's ``LogManager.handleLogDirFailure``);
        other directories keep serving."""
        if self.offline is not None:
            return
        reason = cause if isinstance(cause, str) else f"{cause.strerror or cause}"
        # Set first: an error while the logs are closed must not come here again.
        self.offline = reason
        _logger.error(
            "%s: %s: %s. Its %d logs are not served; %s",
            self.path,
            OFFLINE,
            reason,
            len(self.logs),
            OPEN_AGAIN,
        )
        self.when_offline(self)
        for log in list(self.logs.values()):
            log.offline = log.offline or reason
            log.close()
        with contextlib.suppress(OSError):
            self.directory.close()

    def close(self) -> None:
        """Close the logs, write the checkpoints and, if all of that succeeded, the clean-shutdown marker.

        Raises StorageError.
        """
        if self.offline is not None:
            return
        failure: Exception | None = None
        for log in list(self.logs.values()):
            try:
                log.close()
            except StorageError as error:
                failure = failure or error
            if log.offline is not None:
                failure = failure or StorageError(f"the log is offline: {log.offline}", path=log.directory)
        try:
            self.write_checkpoints()
            # After the checkpoints: the marker promises that they are right.
            if failure is None and self._is_whole:
                files.replace(self.path / names.CLEAN_SHUTDOWN, names.CLEAN_SHUTDOWN_CONTENT)
        except OSError as error:
            reason = f"its checkpoints cannot be written: {error.strerror or error}"
            failure = failure or StorageError(
                reason, path=self.path, advice="the next start recovers its logs"
            )
        finally:
            self.offline = "closed"
            self.directory.close()
        if failure is not None:
            raise failure

    @property
    def _is_whole(self) -> bool:
        """Are all partitions of the directory in order, including those that were not opened here?"""
        if self.refused:
            return False
        if self.had_clean_shutdown or not (self._excluded or self.directory.is_partial):
            return True
        return not LogDirectory.open(self.path, lock=False).partitions.keys() - self.logs.keys()


def _start_within_a_segment(log: PartitionLog) -> int | None:
    view = log.view
    return view.log_start_offset if view.log_start_offset > view.segments[0].base_offset else None
