"""One log directory in service: its lock, its logs, its checkpoints, its clean-shutdown marker, and the list
of partitions that the cleaner skips.

::

    open    lock ─► remove the clean-shutdown marker, durably ─► recover and open the logs
    close   flush and close the logs ─► write the checkpoints ─► write the marker ─► unlock

``LogManager`` (``runtime.manager``) calls the steps of ``open`` and opens the logs; ``close`` is here. The
marker says that no log needs recovery. It is removed before anything else changes, and written only when
all logs were closed without an error. A checkpoint is written only when an entry has changed. A recovery
point is an offset below which all data is durable; the high watermark may be ahead of it. A directory whose
disk fails goes offline with all its logs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError, StorageError
from siltstone.log import names
from siltstone.log.checkpoints import write_checkpoint
from siltstone.log.directory import LogDirectory, PassedOver
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.topic_names import partition_metadata

# Uncleanable partitions and the reasons, in a file of Siltstone's own: ``siltstone-uncleanable.json``.
#
# Kafka's ``LogCleanerManager`` marks a partition as uncleanable in memory, and the next start tries again.
# Here the mark stays until an operator retries the cleaning, or the partition is deleted or emptied. The
# file is in the root of the log directory that holds the partitions, where Kafka ignores files; a folder that
# it does not know would stop it::
#
#     {"version": 1, "partitions": [{"topic": "users", "partition": 0, "since_ms": 1800000000000,
#                                    "reason": "/data/users-0/00000000000000000000.log: byte 61: …"}]}
#
# Only the cleaner skips these partitions: appends, reads and retention go on.

UNCLEANABLE_FILE = "siltstone-uncleanable.json"
COUNTS_AS_EMPTY = "%s. The file counts as empty and is replaced at the next change"
OFFLINE = "the log directory is offline"
OPEN_AGAIN = "check the disk, and open the directory again"


def no_directory_left(offline: Mapping[Path, str]) -> StorageError:
    """The error where no directory can be used. ``offline``: why each of them cannot."""
    reasons = ", ".join(f"{path} ({reason})" for path, reason in offline.items())
    return StorageError(
        f"no log directory is in service: {reasons}", advice="check the disks, and open them again"
    )


class Uncleanable(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that the cleaner skips, since when (ms), and why."""

    topic: str
    partition: int
    since_ms: int
    reason: str


@decoded_in_threads
class _UncleanableFile(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    partitions: list[Uncleanable]


def read_uncleanable(directory: Path) -> dict[TopicPartition, Uncleanable]:
    """The uncleanable partitions of a log directory; empty without a file. Raises CorruptFileError,
    OSError."""
    path = directory / UNCLEANABLE_FILE
    try:
        content = msgspec.convert(json.loads(files.read_bytes(path)), _UncleanableFile)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"the file is not a list of uncleanable partitions: {error}",
            advice="remove it; the cleaner finds uncleanable partitions again",
        ) from None
    return {TopicPartition(row.topic, row.partition): row for row in content.partitions}


def write_uncleanable(directory: Path, uncleanable: Mapping[TopicPartition, Uncleanable]) -> None:
    """Replace the file, durably, or remove it if no partition is uncleanable. Raises OSError."""
    path = directory / UNCLEANABLE_FILE
    if uncleanable:
        rows = [uncleanable[topic_partition] for topic_partition in sorted(uncleanable)]
        # By ``json``, not msgspec: a path in a reason may have surrogates, for bytes that are not UTF-8.
        text = json.dumps(msgspec.to_builtins(_UncleanableFile(rows)), indent=1)
        files.replace(path, f"{text}\n".encode())
    elif files.exists(path):
        files.unlink(path)
        files.sync_directory(directory)


def mark_uncleanable(
    directory: Path, topic_partition: TopicPartition, reason: str, now_ms: int
) -> Uncleanable:
    """Add a partition to the file, or replace its reason and keep its time; returns its row. Raises OSError.

    For a directory that no ``LogManager`` serves. For one that is served, call ``ServedDirectory``'s method.
    """
    uncleanable = _read_or_start_empty(directory)
    since_ms = uncleanable[topic_partition].since_ms if topic_partition in uncleanable else now_ms
    row = Uncleanable(
        topic=topic_partition.topic, partition=topic_partition.partition, since_ms=since_ms, reason=reason
    )
    write_uncleanable(directory, {**uncleanable, topic_partition: row})
    return row


def clear_uncleanable(directory: Path, topic_partition: TopicPartition) -> bool:
    """Remove a partition from the file, so that it is cleaned again. False if it was not there. Raises
    OSError."""
    uncleanable = _read_or_start_empty(directory)
    if uncleanable.pop(topic_partition, None) is None:
        return False
    write_uncleanable(directory, uncleanable)
    return True


def _read_or_start_empty(directory: Path) -> dict[TopicPartition, Uncleanable]:
    """The uncleanable partitions. A damaged file counts as empty: the cleaner finds the partitions again."""
    try:
        return read_uncleanable(directory)
    except CorruptFileError as error:
        _warn_counts_as_empty(error)
        return {}


def _warn_counts_as_empty(error: CorruptFileError) -> None:
    _logger.warning(COUNTS_AS_EMPTY, error)


_logger = logging.getLogger("siltstone")


class ServedDirectory:
    """A locked log directory and the logs that are open in it.

    ``logs`` by partition; ``refused``: partitions that could not be opened, and why; ``offline``: why the
    directory is offline ("closed" after ``close``), None while it serves; ``had_clean_shutdown``: no log
    needs recovery. ``uncleanable``: partitions that the cleaner skips, and why, replaced as a whole.
    ``when_offline`` is called when the directory goes offline, before its logs are closed. ``_excluded``: see
    ``exclude``.

    ``_lock`` guards the checkpoints and the list of uncleanable partitions, on disk and here.
    ``_checkpoint_entries``: by name of a checkpoint, its entries on disk. ``_unopened_entries``: of these, if
    only one partition is opened, those of all others, which stay as they are. ``_damaged``: the names of
    checkpoints whose file is damaged, until they are written again. ``_offline_lock`` guards ``offline``, and
    nothing else is locked within it.
    """

    def __init__(self, path: Path, *, only: TopicPartition | None = None) -> None:
        """Lock a directory, and change nothing else in it yet. ``only``: the one partition to open, None for
        all. Raises SiltstoneError, OSError."""
        self.directory = LogDirectory.open_or_create(path, only=only)
        self.path = self.directory.path
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.refused: dict[TopicPartition, str] = {}
        self._excluded: dict[TopicPartition, str] = {}
        self.offline: str | None = None
        self.had_clean_shutdown = self.directory.had_clean_shutdown
        self._lock, self._offline_lock = threading.RLock(), threading.Lock()
        self._checkpoint_entries: dict[str, dict[TopicPartition, int]] = {}
        self._unopened_entries: dict[str, dict[TopicPartition, int]] = {}
        self._damaged = set[str]()
        self.directory.when_damaged = _warn_counts_as_empty
        self.uncleanable: dict[TopicPartition, Uncleanable] = {}
        self.when_offline: Callable[[ServedDirectory], None] = lambda served: None
        try:
            self.directory.properties()  # read here, so that a disk error concerns this directory only
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
        """Read the checkpoints, and the uncleanable partitions."""
        opened = self.directory.partitions
        for name in (names.RECOVERY_CHECKPOINT, names.LOG_START_CHECKPOINT, names.REPLICATION_CHECKPOINT):
            entries = self._read_checkpoint(name)
            # With a damaged checkpoint the directory needs recovery, as after a crash.
            if entries is None:
                self.had_clean_shutdown = False
                self._damaged.add(name)
            self._checkpoint_entries[name] = entries or {}
            listed = (entries or {}).items() if self.directory.is_partition_subset else ()
            unopened = {partition: offset for partition, offset in listed if partition not in opened}
            self._unopened_entries[name] = unopened
        uncleanable = _read_or_start_empty(self.path)
        self.uncleanable = {
            topic_partition: row for topic_partition, row in uncleanable.items() if topic_partition in opened
        }

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """The entries of a checkpoint, None if its file is damaged. Raises OSError."""
        try:
            return self.directory.read_offsets(name)
        except CorruptFileError as error:
            _warn_counts_as_empty(error)
            return None

    # Partitions

    def partition_path(self, topic_partition: TopicPartition) -> Path:
        """The path of a partition's directory, whether it exists or not."""
        return self.path / str(topic_partition)

    def checkpoint_entry(self, name: str, topic_partition: TopicPartition) -> int:
        """A partition's entry in the checkpoint ``name``, 0 without an entry."""
        return self._checkpoint_entries[name].get(topic_partition, 0)

    def exclude(self, topic_partition: TopicPartition, reason: str) -> None:
        """Exclude a partition whose topic id is another one than its topic's (Kafka's stray log): it is
        neither opened nor changed."""
        path = self.directory.partitions.pop(topic_partition)
        self.directory.passed_over.append(PassedOver(path=str(path), reason=reason))
        self._excluded[topic_partition] = reason

    def exclusion_reason(self, topic_partition: TopicPartition) -> str | None:
        """Why a partition was excluded; None if it was not."""
        return self._excluded.get(topic_partition)

    @property
    def all_partitions(self) -> set[TopicPartition]:
        """All partitions that have a directory here, excluded ones too."""
        return {*self.directory.partitions, *self._excluded}

    def create_partitions(self, partitions: Iterable[TopicPartition], topic_id: str | None) -> None:
        """Create directories with an empty first segment and the topic's id, durably. Raises OSError.

        A directory that exists gets the id if it has none. After a crash any of them may be there, complete
        or not: ``runtime.topics`` has listed them as not yet created before, and calls this again at the next
        start. All files are synced together, then all names, which takes a hundredth of the time that one
        partition after another takes.
        """
        directories = [self.partition_path(topic_partition) for topic_partition in partitions]
        temporaries = dict[Path, Path]()
        for directory in directories:
            if not files.exists(directory):
                files.make_directory(directory)
                for kind in ("log", "index", "timeindex"):
                    _create_file(directory / names.segment_file(0, kind), b"")
            metadata = directory / names.PARTITION_METADATA
            if topic_id and not files.exists(metadata):
                temporary = metadata.with_name(metadata.name + names.TEMPORARY)
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(temporary)
                _create_file(temporary, partition_metadata(topic_id))
                temporaries[temporary] = metadata
        files.sync_together(temporaries)
        for temporary, metadata in temporaries.items():
            files.rename(temporary, metadata)
        # The directories are durable before the logs take records: after a crash the partition of an
        # acknowledged record must exist.
        files.sync_together(directories)
        files.sync_directory(self.path)

    # Checkpoints

    def write_recovery_points(self) -> None:
        """Write the recovery points and the high watermarks. Raises OSError."""
        self._write_checkpoint(names.RECOVERY_CHECKPOINT, lambda log: log.recovery_point)
        self._write_checkpoint(names.REPLICATION_CHECKPOINT, lambda log: log.high_watermark)

    def write_log_starts(self) -> None:
        """Write the log start offsets above the first segment's base offset. Raises OSError."""
        self._write_checkpoint(names.LOG_START_CHECKPOINT, _start_above_first_segment)

    def write_checkpoints(self) -> None:
        """Write all checkpoints that have changed. Raises OSError."""
        self.write_recovery_points()
        self.write_log_starts()

    def _write_checkpoint(self, name: str, entry_of: Callable[[PartitionLog], int | None]) -> None:
        """Write a checkpoint if an entry has changed, or its file is damaged. ``entry_of`` returns a log's
        offset, None for no entry.

        Partitions that are not open keep their entries: they may be repaired, or opened later.
        """
        with self._lock:
            before, logs = self._checkpoint_entries[name], self.logs.copy()
            closed = self.all_partitions - logs.keys()
            kept = {partition: before[partition] for partition in closed if partition in before}
            offsets = {**self._unopened_entries[name], **kept}
            for topic_partition, log in logs.items():
                entry = entry_of(log)
                if entry is not None:
                    offsets[topic_partition] = entry
            # A write costs a sync of the file and one of the directory.
            if offsets != before or name in self._damaged:
                write_checkpoint(self.path / name, offsets)
                self._checkpoint_entries[name] = offsets
                self._damaged.discard(name)

    def bound_cleaner_checkpoint(self, topic_partition: TopicPartition, limit: int | None) -> None:
        """Lower a log's entry in the cleaner checkpoint to ``limit`` if it is higher; None removes the entry.
        Raises OSError."""
        with self._lock:
            entry = self.cleaner_checkpoint().get(topic_partition)
            if entry is not None and (limit is None or entry > limit):
                self.directory.write_cleaner_checkpoint(topic_partition, limit)

    def cleaner_checkpoint(self) -> Mapping[TopicPartition, int]:
        """The cleaner checkpoint by partition, read again when its file was replaced; a damaged file counts
        as empty. Raises OSError."""
        with self._lock:
            return self.directory.cleaner_checkpoint()

    def write_cleaner_checkpoint(self, topic_partition: TopicPartition, offset: int) -> None:
        """Write the cleaner checkpoint of a log, durably. Raises OSError."""
        with self._lock:
            self.directory.write_cleaner_checkpoint(topic_partition, offset)

    # Uncleanable partitions

    def mark_uncleanable(self, topic_partition: TopicPartition, reason: str, now_ms: int) -> None:
        """Make the cleaner skip a partition, durably. Raises OSError."""
        with self._lock:
            row = mark_uncleanable(self.path, topic_partition, reason, now_ms)
            self.uncleanable = {**self.uncleanable, topic_partition: row}

    def clear_uncleanable(self, topic_partition: TopicPartition) -> bool:
        """Let the cleaner clean a partition again, durably. False if it was not uncleanable. Raises
        OSError."""
        with self._lock:
            if topic_partition not in self.uncleanable:
                return False
            clear_uncleanable(self.path, topic_partition)
            self.uncleanable = {
                other: row for other, row in self.uncleanable.items() if other != topic_partition
            }
            return True

    def drop_entries_of_missing_partitions(self) -> None:
        """Remove the entries of partitions that do not exist from all checkpoints. Raises OSError.

        A new partition must not start with the offsets of a deleted partition of the same name.
        """
        self.write_checkpoints()  # which keeps no entries of partitions that do not exist
        if self.directory.is_partition_subset:
            return
        existing = self.all_partitions
        with self._lock:
            uncleanable = _read_or_start_empty(self.path)
            if uncleanable.keys() - existing:
                rows = {partition: row for partition, row in uncleanable.items() if partition in existing}
                write_uncleanable(self.path, rows)
            missing = self.cleaner_checkpoint().keys() - existing
            if missing:
                self.directory.remove_cleaner_entries(missing)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Remove a deleted partition from this object only: if its directory is offline, the next start with
        that directory deletes the partition."""
        self.logs.pop(topic_partition, None)
        self.refused.pop(topic_partition, None)
        self.directory.partitions.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Remove a deleted partition from this object and from all checkpoints. Raises OSError."""
        self.drop(topic_partition)
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
        """Take the directory and all its logs offline (Kafka's ``LogManager.handleLogDirFailure``);
        other directories keep serving."""
        reason = cause if isinstance(cause, str) else f"{cause.strerror or cause}"
        if self._set_offline(reason):
            _logger.error(
                "%s: %s: %s. Its %d logs are not served; %s",
                self.path,
                OFFLINE,
                reason,
                len(self.logs),
                OPEN_AGAIN,
            )
            self._release(reason)

    def abandon(self, reason: str) -> None:
        """Close the logs and unlock the directory, without checkpoints and marker, as if the process had been
        killed."""
        if self._set_offline(reason):
            self._release(reason)

    def _set_offline(self, reason: str) -> bool:
        """Set ``offline``; False if it is set already. It is set before the logs are closed: an error there
        must not take the directory offline a second time."""
        with self._offline_lock:
            if self.offline is not None:
                return False
            self.offline = reason
            return True

    def _release(self, reason: str) -> None:
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
            # After the checkpoints: with the marker the next start relies on them.
            if failure is None and self._needs_no_recovery:
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
    def _needs_no_recovery(self) -> bool:
        """May the marker be written? Not if a partition was refused. Partitions that were not opened here
        (``exclude``, ``only``) were closed cleanly if there was a marker when this directory was opened."""
        if self.refused:
            return False
        if self.had_clean_shutdown or not (self._excluded or self.directory.is_partition_subset):
            return True
        return not LogDirectory.open(self.path, lock=False).partitions.keys() - self.logs.keys()


def _create_file(path: Path, data: bytes) -> None:
    files.write_new(path, data, sync=False)
    files.inherit_owner(path)


def _start_above_first_segment(log: PartitionLog) -> int | None:
    """The log start offset. None if it is the first segment's base offset: a start finds that without a
    checkpoint."""
    view = log.view
    return view.log_start_offset if view.log_start_offset > view.segments[0].base_offset else None
