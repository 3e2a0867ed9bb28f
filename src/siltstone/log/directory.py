"""A log directory: its lock, its checkpoints, its partitions, and the files that a partition may have.

``LogDirectory.open`` takes the directory's ``.lock`` as a broker does, and holds it until ``close``; while a
broker runs, ``open`` raises DirectoryLockedError. For the path of a partition's directory it opens the log
directory above, with that partition only.

Only the directories ``topic-N`` are partitions. Other directories and symbolic links are passed over: nothing
reads them, and ``passed_over`` lists them. Two paths may lead to the same directory, so paths are resolved,
and device and inode identify a directory. ``open_directories`` makes one object for each directory, with one
lock and one cache of checkpoints.

The rules for the entries of a partition directory (``partition_files``):

* A file that Kafka writes (a segment's file with any suffix, a snapshot, the leader epochs, the topic id)
  must be a regular file. It may have several hard links.
* A folder that Siltstone writes must be a directory.
* If anything else has such a name (a symbolic link, a FIFO, a socket, a device), the log is refused. If it
  were ignored, a cleaning would merge the segments before and after it. If a link were followed, a cleaning
  as root could write outside of the directory.
* If the caller changes or copies a log, each of these files must belong to the owner of the partition
  directory.

A broker checks none of this: it follows links.

Kafka's loader ignores folders, and the directory's owner can create anything under the names of Siltstone's
folders. So before such a folder is used or removed, ``refuse_foreign_folder`` checks that it belongs to the
owner of the partition directory, to root or to the user of this process, so that its content may be trusted.
This check allows more than the last rule above: a folder of root passes it. A command that changes the log
applies both, and so refuses a log with a folder of root, which the broker's user could not remove.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.closing import Closing
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    NotALogDirectoryError,
    UnsafeFileError,
)
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, read_properties, write_checkpoint
from siltstone.log.names import TopicPartition, ignore_reason, parse_partition, parse_segment_file

_ALLOWED_IN_EMPTY = (names.LOCK, f"{names.META_PROPERTIES}{names.TEMPORARY}", "lost+found")
"""A directory without other entries counts as empty: ``open_or_create`` makes it a log directory."""
NO_PARTITIONS: Mapping[TopicPartition, Path] = {}
_FOLDERS = (names.STAGING, names.COMPACTED, names.STAGED_WRITES)
"""Siltstone's folders in a partition directory."""
_LOG_DIRECTORY_FILES = (names.META_PROPERTIES, names.CLEAN_SHUTDOWN, *names.OFFSET_CHECKPOINTS)
"""A directory with one of these files, which brokers write, counts as a log directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """An entry of a log directory that is no log and is not read, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """A log directory's four offset checkpoints, by partition."""

    cleaner: Mapping[TopicPartition, int]
    recovery_point: Mapping[TopicPartition, int]
    log_start: Mapping[TopicPartition, int]
    high_watermark: Mapping[TopicPartition, int]

    def committed_below(self, topic_partition: TopicPartition, *, no_other_replica: bool) -> int | None:
        """The offset below which a log's records are committed; None if it is unknown.

        It is the high watermark in the checkpoint: a broker may truncate records at or above it when it joins
        the replicas in sync again. Without an entry, all records are committed (``LONG_MAX``) if the user
        states that the log has ``no_other_replica``.
        """
        return self.high_watermark.get(topic_partition, LONG_MAX if no_other_replica else None)


class LogDirectory(Closing):
    """A log directory that ``open`` or ``open_or_create`` has opened, locked unless ``lock=False``; ``close``
    releases the lock.

    ``partitions``: the paths of its partitions. ``is_partition_subset``: these are only the partitions whose
    paths the caller passed; all others are not read or changed. ``when_damaged``: called for a damaged
    cleaner checkpoint, which then counts as empty and is replaced at the next change, so that a server
    continues; None: a damaged checkpoint is an error, so that a run stops and an operator checks it.
    """

    def __init__(self, path: Path, only: Mapping[TopicPartition, Path] | None = None) -> None:
        """``only``: the partitions whose paths the caller passed; None: all, which ``_list`` lists."""
        self.path = path
        self.partitions = dict(only or {})
        self.passed_over: list[PassedOver] = []
        self.is_partition_subset = only is not None
        self.when_damaged: Callable[[CorruptFileError], None] | None = None
        self._lock: files.Lock | None = None
        # Name of a checkpoint → (its status when it was read, its entries); see ``_offsets``.
        self._cached: dict[str, tuple[files.FileStat, Mapping[TopicPartition, int]]] = {}
        # Entries of the cleaner checkpoint that wait to be written, None for an entry to remove.
        self._pending: dict[TopicPartition, int | None] = {}
        self._pending_lock, self._writing_lock = threading.Lock(), threading.Lock()

    @classmethod
    def open(cls, path: Path, *, lock: bool = True, before: LogDirectory | None = None) -> LogDirectory:
        """Open a log directory, or the directory of one partition (see the module's docstring).

        ``before``: this directory as it was listed earlier, whose objects are used again
        (``_find_partitions``).

        Raises NotALogDirectoryError, DirectoryLockedError, OSError.
        """
        if not files.is_directory(path):
            is_file = files.exists(path)
            raise NotALogDirectoryError("it is a file" if is_file else "no such directory", path=path)
        real = resolve_directory(path)
        topic_partition = parse_partition(real.name)
        if topic_partition is not None and _has_segments(real):
            directory = cls(real.parent, {topic_partition: real})
        else:
            directory = cls(real)
            directory._list(before if before is not None and before.path == real else None)
        if lock:
            directory._lock_and_list()
        return directory

    @classmethod
    def open_or_create(cls, path: Path, *, only: TopicPartition | None = None) -> LogDirectory:
        """Open and lock a directory to serve its logs; make the directory if it does not exist.

        The directory must be empty or a log directory. ``only``: open one partition, which need not exist
        yet, in a directory that may have any other entries. Raises NotALogDirectoryError,
        DirectoryLockedError, OSError, and DirectoryRefusedError for a path where Siltstone only reads.
        """
        refuse_objects(path)
        real = resolve_directory(path)
        if not files.is_directory(real):
            files.make_directory(real, parents=True)
            files.sync_directory(real.parent)
        directory = cls(real)
        directory._take_lock()
        try:
            directory.partitions, directory.passed_over = _find_partitions(real)
            if only is not None:
                if only not in directory.partitions and files.exists(real / str(only)):
                    raise NotALogDirectoryError(
                        "the partition is a symbolic link or a file, not a directory",
                        path=real / str(only),
                        advice="remove it, or choose another partition",
                    )
                existing = {
                    topic_partition: path
                    for topic_partition, path in directory.partitions.items()
                    if topic_partition == only
                }
                directory.partitions, directory.is_partition_subset = existing, True
            elif any(entry.name not in _ALLOWED_IN_EMPTY for entry in files.entries(real)):
                directory._require_log_directory()
        except BaseException:
            directory.close()
            raise
        return directory

    def add_partitions_of(self, other: LogDirectory) -> None:
        """Add the partitions of ``other``, the same directory by another path. Neither is locked yet."""
        assert self._lock is None and other._lock is None and self.device_and_inode == other.device_and_inode
        if self.is_partition_subset and not other.is_partition_subset:
            self.is_partition_subset = False
            self._list()
        elif self.is_partition_subset:
            # With paths below this object's path: that of ``other`` may be a second mount of the directory.
            self.partitions |= {
                topic_partition: self.path / path.name for topic_partition, path in other.partitions.items()
            }

    def _list(self, before: LogDirectory | None = None) -> None:
        """List the partitions of the directory, unless the caller passed their paths. ``before``: see
        ``open``. Raises NotALogDirectoryError."""
        if not self.is_partition_subset:
            known = {} if before is None else before.partitions.copy()  # another thread may change it
            self.partitions, self.passed_over = _find_partitions(self.path, known)
            self._require_log_directory()

    def _require_log_directory(self) -> None:
        """Raise NotALogDirectoryError for a directory without a broker's files and without a partition.

        Without a broker's files, ``topic-N`` directories count as partitions only if they have segments.
        """
        if not self.has_broker_files:
            self.partitions = {
                topic_partition: path
                for topic_partition, path in self.partitions.items()
                if _has_segments(path)
            }
        if not self.has_broker_files and not self.partitions:
            folders = (self.path / entry.name for entry in files.entries(self.path) if entry.is_directory)
            below = [str(folder) for folder in folders if _has_broker_files(folder)]
            raise NotALogDirectoryError(
                "it is not a Kafka log directory: it has no meta.properties, no checkpoint, and no topic-N "
                "directory with segments",
                path=self.path,
                advice=f"pass the log directories in it: {' '.join(below)}" if below else None,
            )

    def may_be_locked(self, *, dry_run: bool) -> bool:
        """May this process take the lock? A dry run does not if the lock file is missing, since it creates no
        file; a directory that is only read, such as one of a store, has no lock."""
        if files.is_read_only(self.path):
            return False
        return not dry_run or files.exists(self.path / names.LOCK)

    def _lock_and_list(self) -> None:
        """Take the lock, and list the partitions again: before the lock a broker may have changed them. After
        an error the directory is not locked."""
        self._take_lock()
        try:
            self._list()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            self._lock = files.Lock(self.path / names.LOCK)
        except BlockingIOError:
            holder = files.lock_holder(self.path / names.LOCK)
            holder_text = f"process {holder}" if holder else "another process"
            raise DirectoryLockedError(f"{holder_text} holds {names.LOCK}", path=self.path) from None

    @property
    def device_and_inode(self) -> tuple[int, int]:
        """(device, inode), which identify the directory whatever path leads to it. Raises OSError."""
        return files.stat(self.path).device_and_inode

    @property
    def has_broker_files(self) -> bool:
        """Does the directory have files that a broker writes into a log directory?"""
        return _has_broker_files(self.path)

    @property
    def had_clean_shutdown(self) -> bool:
        """Does the directory have Kafka's clean-shutdown marker?"""
        return files.exists(self.path / names.CLEAN_SHUTDOWN)

    def properties(self) -> dict[str, str]:
        """The properties in ``meta.properties``, empty without the file."""
        try:
            return read_properties(self.path / names.META_PROPERTIES)
        except FileNotFoundError:
            return {}

    def checkpoints(self) -> Checkpoints:
        """Read the four checkpoints. Raises CorruptFileError."""
        statuses = files.stats_of(self.path, names.OFFSET_CHECKPOINTS)
        recovery, replication, start, cleaner = (
            self._offsets_of(name, statuses.get(name)) for name in names.OFFSET_CHECKPOINTS
        )
        return Checkpoints(
            cleaner=cleaner, recovery_point=recovery, log_start=start, high_watermark=replication
        )

    def _offsets(self, name: str) -> Mapping[TopicPartition, int]:
        """The entries of the offset checkpoint ``name``, from the cache if the file is the same; empty
        without the file.

        With the cache a run does not read the whole file once for each log. It is used only while this
        process holds the directory's lock, since no other process writes the file then.
        """
        try:
            return self._offsets_of(name, files.stat(self.path / name))
        except FileNotFoundError:
            return {}

    def _offsets_of(self, name: str, status: files.FileStat | None) -> Mapping[TopicPartition, int]:
        """The entries of ``_offsets``. ``status``: that of the file, None if it does not exist."""
        if status is None:
            return {}
        cached = self._cached.get(name)
        if cached is None or cached[0] != status or self._lock is None:
            cached = self._cached[name] = (status, self._read_offsets(name))
        return cached[1]

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """The entries of an offset checkpoint, read now. Their keys are the objects in ``partitions``: copies
        of tens of thousands would take memory. Raises CorruptFileError, OSError."""
        keys = {topic_partition: topic_partition for topic_partition in self.partitions.copy()}
        entries = read_checkpoint(self.path / name)
        return {
            keys.get(topic_partition, topic_partition): offset for topic_partition, offset in entries.items()
        }

    def _read_offsets(self, name: str) -> Mapping[TopicPartition, int]:
        try:
            return self.read_offsets(name)
        except CorruptFileError as error:
            if self.when_damaged is None or name != names.CLEANER_CHECKPOINT:
                raise
            self.when_damaged(error)
            return {}

    def cleaner_checkpoint(self) -> Mapping[TopicPartition, int]:
        """The cleaner checkpoint. Raises OSError, and CorruptFileError unless ``when_damaged`` is set."""
        return self._offsets(names.CLEANER_CHECKPOINT)

    def write_cleaner_checkpoint(self, topic_partition: TopicPartition, offset: int | None) -> None:
        """Set one partition's entry in the cleaner checkpoint, durably; None removes it. Raises OSError.

        Threads that wait at the same time share one write of the file: the first to get ``_writing_lock``
        writes all pending entries, and the others find theirs written.
        """
        with self._pending_lock:
            self._pending[topic_partition] = offset
        with self._writing_lock:
            with self._pending_lock:
                if topic_partition not in self._pending:
                    return  # another thread has written this entry with its own
                entries, self._pending = self._pending, {}
            try:
                self._write_entries(entries)
            except BaseException:
                del entries[topic_partition]
                with self._pending_lock:
                    # The threads that wait for the other entries write them themselves. Entries that came
                    # meanwhile are newer and stay.
                    self._pending = entries | self._pending
                raise

    def remove_cleaner_entries(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove entries from the cleaner checkpoint, durably. Raises OSError."""
        with self._writing_lock:
            self._write_entries(dict.fromkeys(partitions))

    def _write_entries(self, entries: Mapping[TopicPartition, int | None]) -> None:
        offsets = {**self._offsets(names.CLEANER_CHECKPOINT)}
        for topic_partition, offset in entries.items():
            offsets.pop(topic_partition, None)
            if offset is not None:
                offsets[topic_partition] = offset
        # After a failed write the file may be the old or the new one, so the cache must not answer.
        self._cached.pop(names.CLEANER_CHECKPOINT, None)
        path = self.path / names.CLEANER_CHECKPOINT
        write_checkpoint(path, offsets)
        self._cached[names.CLEANER_CHECKPOINT] = (files.stat(path), offsets)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def open_directories(
    paths: Sequence[Path],
    *,
    lock: bool = True,
    dry_run: bool = False,
    on_error: Callable[[Path, OSError], None] | None = None,
    before: Sequence[LogDirectory] = (),
) -> list[LogDirectory]:
    """Open the log directories at ``paths``, each once, in the order in which they are first passed.

    Several partitions of one directory become one ``LogDirectory`` with these partitions. A path that is
    passed twice, or a partition of a directory that is passed too, adds nothing. So this process has one lock
    and one cache of checkpoints for each directory. ``dry_run``: create no lock file; lock only those that
    exist. ``on_error``: called with each path for which the file system returns an error; without it the
    error is raised. ``before``: see ``LogDirectory.open``. Raises NotALogDirectoryError,
    DirectoryLockedError, OSError; no directory is locked then.
    """
    by_identity: dict[tuple[int, int], LogDirectory] = {}
    earlier = {directory.path: directory for directory in before}
    with contextlib.ExitStack() as stack:
        for path in paths:
            try:
                directory = LogDirectory.open(path, lock=False, before=earlier.get(files.resolved(path)))
                opened = by_identity.setdefault(directory.device_and_inode, directory)
            except OSError as error:
                if on_error is None:
                    raise
                on_error(path, error)
                continue
            if opened is not directory:
                opened.add_partitions_of(directory)
        directories = []
        for directory in by_identity.values():
            try:
                if lock and directory.may_be_locked(dry_run=dry_run):
                    directory._lock_and_list()
                    stack.callback(directory.close)
                directories.append(directory)
            except OSError as error:
                if on_error is None:
                    raise
                on_error(directory.path, error)
        stack.pop_all()
    return directories


def resolve_directory(path: Path) -> Path:
    """The path of a directory without symbolic links; for a prefix of an object store that has restore points
    (backups), the newest of them as a directory.

    Raises NotALogDirectoryError for a symbolic link among a log directory's partitions. A broker follows such
    a link, but its lock is in the link's directory, and this process would lock the target's.
    """
    if files.is_joined(path):
        return path
    if files.is_object(path):
        return files.newest_stored(path)
    path = path.absolute()
    if files.is_link(path) and parse_partition(path.name) is not None and _has_broker_files(path.parent):
        target = files.resolved(path)
        raise NotALogDirectoryError(
            f"it is a symbolic link among the partitions of {path.parent}; such links are not followed",
            path=path,
            advice=f"if no broker uses it any more, pass the directory that it points to, {target}",
        )
    return files.resolved(path)


def log_directories_of(path: Path) -> list[Path]:
    """The log directories of the broker whose directory is ``path``: ``path`` itself if it is a log
    directory, otherwise the log directories directly in it, without links. Raises OSError."""
    listed = files.entries(path)
    folders = [path / entry.name for entry in listed if entry.is_directory]
    partitions = (folder for folder in folders if parse_partition(folder.name) is not None)
    if _has_broker_files(path) or any(map(_has_segments, partitions)):
        return [path]
    return sorted(filter(_has_broker_files, folders))


def refuse_network_file_system(directory: LogDirectory) -> None:
    """Raise DirectoryRefusedError for a directory on a network file system."""
    refuse_objects(directory.path)
    if files.file_system(directory.path) in files.NETWORK_FILE_SYSTEMS:
        raise DirectoryRefusedError(
            f"it is on a network file system ({files.file_system(directory.path)}), where locks and renames "
            "are not reliable",
            path=directory.path,
            advice="pass --out to clean into a copy on a local disk",
        )


def refuse_objects(path: Path) -> None:
    """Raise DirectoryRefusedError for a path of an object store, or with a remote part."""
    if files.is_read_only(path):
        is_object = files.is_object(path)
        raise DirectoryRefusedError(
            "objects of a store are only read" if is_object else "a log with a remote part is only read",
            path=path,
            advice="clean them with --out into a copy, on a disk or in a bucket, or copy them to a disk"
            if is_object
            else "leave --remote out; or pass --dry-run, or --out for a cleaned copy",
        )


def require_one_broker(
    directories: list[LogDirectory],
    *,
    only_reads: bool = False,
    is_stray: Callable[[TopicPartition, Path], bool] = lambda topic_partition, path: False,
) -> None:
    """Raise DirectoryRefusedError unless the log directories belong to one broker.

    They must have the same cluster id and node id, and no partition twice. ``only_reads``: nothing is
    changed, so that a single directory may have the same partition under two names (by a bind mount).
    ``is_stray``: does this directory of a partition belong to a deleted topic? It is called if a partition
    has two directories, of which a stray one does not count. Commands that clean or compare have no such
    rule: they refuse both, as Kafka's start refuses two that are of one topic.
    """
    properties = [directory.properties() for directory in directories]
    for key in ("cluster.id", "node.id", "broker.id"):
        values = {its_properties[key] for its_properties in properties if key in its_properties}
        if len(values) > 1:
            raise DirectoryRefusedError(
                f"the directories belong to different brokers: {key} is {' and '.join(sorted(values))}",
                advice="pass the log directories of one broker only",
            )
    if only_reads and len(directories) < 2:
        return  # reading device and inode of each partition takes seconds where there are many
    paths: dict[TopicPartition, Path] = {}
    by_identity: dict[tuple[int, int], Path] = {}
    for directory in directories:
        for topic_partition, path in directory.partitions.items():
            earlier = paths.get(topic_partition)
            if earlier is None or is_stray(topic_partition, earlier):
                paths[topic_partition] = path
            elif not is_stray(topic_partition, path):
                raise DirectoryRefusedError(
                    f"the partition is also in {earlier}",
                    path=path,
                    advice="move the one that the broker does not use elsewhere: that of a deleted topic, by "
                    f"the topic_id in {names.PARTITION_METADATA} (a start of Kafka adds -stray to its name), "
                    "or else the one on the disk that failed last",
                )
            with contextlib.suppress(OSError):  # opening the partition will raise it again
                other = by_identity.setdefault(files.stat(path).device_and_inode, path)
                if other != path:
                    raise DirectoryRefusedError(
                        f"it is the same directory as {other}", path=path, advice="pass it once"
                    )


def _has_broker_files(directory: Path) -> bool:
    return any(files.exists(directory / name) for name in _LOG_DIRECTORY_FILES)


def _has_segments(directory: Path) -> bool:
    """Does a directory have a ``.log`` with a segment's name, whatever kind of file it is?"""
    parsed = (parse_segment_file(entry.name) for entry in files.entries(directory))
    return any(name is not None and name.kind == "log" for name in parsed)


def _find_partitions(
    directory: Path, known: Mapping[TopicPartition, Path] = NO_PARTITIONS
) -> tuple[dict[TopicPartition, Path], list[PassedOver]]:
    """The partitions in a log directory, and what is passed over.

    ``known``: the partitions that were listed earlier. Their ``TopicPartition`` and ``Path`` objects are used
    again, since making these takes most of the time in a directory with many partitions.
    """
    partitions, passed_over = dict[TopicPartition, Path](), list[PassedOver]()
    by_name = {path.name: topic_partition for topic_partition, path in known.items()}
    # All paths at once, which is faster; with ``known``, only new entries need a path.
    paths = {} if known else files.children(directory)
    for entry in files.entries(directory):
        topic_partition = by_name.get(entry.name)
        if topic_partition is not None and entry.is_directory:
            partitions[topic_partition] = known[topic_partition]
            continue
        path = paths.get(entry.name) or directory / entry.name
        if entry.is_link:
            passed_over.append(PassedOver(path=str(path), reason="a symbolic link"))
        elif entry.is_directory:
            topic_partition = parse_partition(entry.name)
            if topic_partition is None:
                passed_over.append(PassedOver(path=str(path), reason=ignore_reason(entry.name)))
            else:
                partitions[topic_partition] = path
    return partitions, passed_over


def partition_files(directory: Path, *, require_owner: bool = False) -> dict[str, files.FileStat]:
    """List the regular files of a partition directory, by name, after a check of the rules in the module's
    docstring.

    ``require_owner``: Kafka's and Siltstone's files must belong to the directory's owner. Raises
    UnsafeFileError, OSError.
    """
    owner = files.stat(directory).owner if require_owner else None
    listed = partition_entries(directory, owner)
    return {name: status for name, status in listed.items() if status.kind == files.FILE}


def partition_entries(directory: Path, owner: int | None) -> dict[str, files.FileStat]:
    """List a partition directory, with its folders, by name, after a check of the rules in the module's
    docstring.

    ``owner``: the user id to which Kafka's and Siltstone's files must belong; None: any user's. Raises
    UnsafeFileError, OSError.
    """
    listed = files.list_all(directory, may_vanish=(names.TEMPORARY, names.DELETED))
    unusual = [
        name
        for name, status in listed.items()
        if status.kind != files.FILE or name in _FOLDERS or owner not in (None, status.owner)
    ]
    for name in sorted(unusual):
        if not names.is_kafka_file(name) and name not in _FOLDERS:
            continue
        status, path = listed[name], directory / name
        is_owned = owner in (None, status.owner)
        require_kind(path, status, files.DIRECTORY if name in _FOLDERS else files.FILE)
        if not is_owned:
            raise UnsafeFileError(
                f"the file belongs to user {status.owner}, but the partition directory to user {owner}; the "
                "log is not read or changed",
                path=path,
                advice=f"find out who created it; if it belongs to the log, run chown {owner} {path}",
            )
    return listed


def refuse_unsafe_files(directory: Path, *, require_owner: bool = True) -> None:
    """Raise UnsafeFileError for the first file or folder that breaks a rule of the module's docstring. Raises
    OSError."""
    partition_files(directory, require_owner=require_owner)


def require_kind(path: Path, status: files.FileStat, kind: str) -> None:
    """Raise UnsafeFileError unless the file at ``path`` is of ``kind``: ``files.FILE`` or ``DIRECTORY``."""
    if status.kind == kind:
        return
    advice = "find out who created it, and remove it"
    if kind == files.FILE and status.kind == files.LINK:
        advice = "replace the link by the file that it points to"
    raise UnsafeFileError(
        f"it is a {status.kind}, but must be a {kind}; the log is not read or changed",
        path=path,
        advice=advice,
    )


def has_siltstone_folder(partition: Path, name: str = names.STAGING) -> bool:
    """Does a partition's directory have Siltstone's folder ``name``?

    Raises what ``refuse_foreign_folder`` raises.
    """
    refuse_foreign_folder(partition, name)
    return files.exists(partition / name)


def refuse_foreign_folder(partition: Path, name: str = names.STAGING) -> None:
    """Raise DirectoryRefusedError if ``name`` in a partition's directory is a folder of another user, or no
    folder. Raises OSError."""
    path = partition / name
    reason = files.unsafe_directory_reason(path)
    if reason is not None:
        raise DirectoryRefusedError(
            f"it {reason}, so nothing in it is written or removed",
            path=path,
            advice="find out who created it, remove it, and run the command again",
        )
