"""A log directory: its lock, its checkpoints, and which of its folders are partitions.

``LogDirectory.open`` is the one way in. It takes the directory's ``.lock`` as a broker does and keeps it
until ``close``; a live broker's lock is respected. A single partition directory can be opened too: its
parent is then the log directory, and only that partition is looked at.

Everything that is no legal ``topic-N`` directory, and every symbolic link, is passed over and listed. A
directory is known by device and inode, whatever path leads to it: a path is resolved before anything is
looked for beside it, and who names several (``open_directories``) gets one object, with one lock and one
cache of checkpoints, for each directory.

In a partition directory (``partition_files``) a name that is one of Kafka's, a segment's file with any
suffix, a snapshot, the leader epochs or the topic id, must be a regular file; hard links are regular files. A
name of one of Siltstone's folders must be a directory. Anything else under such a name (a symbolic link, a
FIFO, a socket, a device) is refused, and with it the log: a segment that is passed over would have its
neighbours merged across it, and a link that is followed would lead a cleaning as root out of the directory. A
caller that changes or copies a log also requires that each of these files belongs to the owner of the
partition directory, as a broker's do. (A broker checks neither: it follows links, and cannot open what it may
not read.)

The directory's owner can put anything under the names of Siltstone's folders; Kafka's loader passes folders
over. So before such a folder is used or removed, ``has_own_folder`` checks that its owner, root or the user
of this process made it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import (
    DirectoryLockedError,
    DirectoryRefusedError,
    NotALogDirectoryError,
    UnsafeFileError,
)
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, read_properties, write_checkpoint
from siltstone.log.names import TopicPartition, parse_partition, parse_segment_file, why_not_a_partition

_CHECKPOINTS = (
    names.CLEANER_CHECKPOINT,
    names.RECOVERY_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)
_EMPTY = (names.LOCK, f"{names.META_PROPERTIES}.tmp", "lost+found")
_FOLDERS = (names.STAGING, names.COMPACTED, names.STAGED_WRITES)
_MARKS_OF_A_LOG_DIRECTORY = (names.META_PROPERTIES, names.CLEAN_SHUTDOWN, *_CHECKPOINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """Something in a log directory that is left alone, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """A log directory's four offset checkpoints, by partition."""

    cleaner: Mapping[TopicPartition, int]
    recovery_point: Mapping[TopicPartition, int]
    log_start: Mapping[TopicPartition, int]
    high_watermark: Mapping[TopicPartition, int]

    def committed_below(self, where: TopicPartition, *, no_other_replica: bool) -> int | None:
        """The offset below which a log is committed; None where nothing says so.

        An entry for the high watermark always bounds: records at or above it may be truncated when the broker
        finds its place among the replicas. ``no_other_replica``, which somebody says of logs without an
        entry, never speaks against one; without an entry all of such a log counts (``LONG_MAX``).
        """
        return self.high_watermark.get(where, LONG_MAX if no_other_replica else None)


class LogDirectory:
    """An opened, locked log directory. Use ``open``; close it, or use it as a context.

    ``is_partial``: only some of its partitions were named, and the others are left alone.
    """

    def __init__(self, path: Path, only: Mapping[TopicPartition, Path] | None = None) -> None:
        self.path = path
        self.partitions = dict(only or {})
        self.passed_over: list[PassedOver] = []
        self.is_partial = only is not None
        self._lock: files.Lock | None = None
        self._known: dict[str, tuple[files.FileStat, Mapping[TopicPartition, int]]] = {}
        self._unwritten: dict[TopicPartition, int | None] = {}
        self._noting, self._writing = threading.Lock(), threading.Lock()

    @classmethod
    def open(cls, path: Path, *, lock: bool = True) -> LogDirectory:
        """Open a log directory or one partition directory, by whatever path leads to it.

        Raises NotALogDirectoryError, DirectoryLockedError, OSError.
        """
        if not files.is_directory(path):
            raise NotALogDirectoryError(f"{path}: no such directory; give a Kafka log directory (log.dirs)")
        real = true_path(path)
        where = parse_partition(real.name)
        if where is not None and _has_segments(real):
            directory = cls(real.parent, {where: real})
        else:
            directory = cls(real)
            directory._list()
        if lock:
            directory._take_lock()
        return directory

    @classmethod
    def claim(cls, path: Path, *, only: TopicPartition | None = None) -> LogDirectory:
        """Open and lock a directory to serve its logs; made if it is not there, empty or a log directory.

        ``only``: nothing but that one partition, which need not be there, whatever else the directory holds.
        Raises NotALogDirectoryError, DirectoryLockedError, OSError.
        """
        real = true_path(path)
        if not files.is_directory(real):
            files.make_directory(real, parents=True)
            files.sync_directory(real.parent)
        directory = cls(real)
        directory._take_lock()
        try:
            directory.partitions, directory.passed_over = _find_partitions(real)
            if only is not None:
                if only not in directory.partitions and files.exists(real / str(only)):
                    raise NotALogDirectoryError(f"{real / str(only)}: no directory of its own")
                mine = {where: path for where, path in directory.partitions.items() if where == only}
                directory.partitions, directory.is_partial = mine, True
            elif any(entry.name not in _EMPTY for entry in files.entries(real)):
                directory._refuse_other_directories()
        except BaseException:
            directory.close()
            raise
        return directory

    def merge(self, other: LogDirectory) -> None:
        """The same directory, named once more: what either was limited to counts. Neither is locked yet."""
        assert self._lock is None and other._lock is None and self.place == other.place
        if self.is_partial and not other.is_partial:
            self.is_partial = False
            self._list()
        elif self.is_partial:
            # By its own name: another path may lead to the directory (a second mount of it).
            self.partitions |= {where: self.path / path.name for where, path in other.partitions.items()}

    def _list(self) -> None:
        """See which partitions there are, unless they were named."""
        if not self.is_partial:
            self.partitions, self.passed_over = _find_partitions(self.path)
            self._refuse_other_directories()

    def _refuse_other_directories(self) -> None:
        if not self.is_marked:
            self.partitions = {where: path for where, path in self.partitions.items() if _has_segments(path)}
        if not self.is_marked and not self.partitions:
            raise NotALogDirectoryError(
                f"{self.path}: no Kafka log directory "
                "(no meta.properties, no checkpoint, no topic-N directory with segments)"
            )

    def _take_lock(self) -> None:
        try:
            self._lock = files.Lock(self.path / names.LOCK)
        except BlockingIOError:
            raise DirectoryLockedError(
                f"{self.path}: a live process holds {names.LOCK}; "
                "stop the broker (or wait for the other run) and try again"
            ) from None

    @property
    def place(self) -> tuple[int, int]:
        """What the directory is known by in this process, whatever path led to it. Raises OSError."""
        return files.stat(self.path).place

    @property
    def is_marked(self) -> bool:
        """Is it a broker's log directory, and not just a folder that holds a partition?"""
        return _is_marked(self.path)

    @property
    def was_stopped_cleanly(self) -> bool:
        """Is Kafka's clean-shutdown marker there?"""
        return files.exists(self.path / names.CLEAN_SHUTDOWN)

    def properties(self) -> dict[str, str]:
        """``meta.properties``, empty where there is none."""
        try:
            return read_properties(self.path / names.META_PROPERTIES)
        except FileNotFoundError:
            return {}

    def checkpoints(self) -> Checkpoints:
        """Read the four checkpoints. Raises CorruptFileError."""
        cleaner, recovery, start, replication = (self._offsets(name) for name in _CHECKPOINTS)
        return Checkpoints(
            cleaner=cleaner, recovery_point=recovery, log_start=start, high_watermark=replication
        )

    def _offsets(self, name: str) -> Mapping[TopicPartition, int]:
        """A checkpoint's entries. Read for each log of a run, so under our lock, which keeps others from
        writing it, it is read once for each file that it was."""
        path = self.path / name
        try:
            facts = files.stat(path)
        except FileNotFoundError:
            return {}
        known = self._known.get(name)
        if known is None or known[0] != facts or self._lock is None:
            known = self._known[name] = (facts, read_checkpoint(path))
        return known[1]

    def write_cleaner_checkpoint(self, where: TopicPartition, offset: int | None) -> None:
        """Set one partition's entry (None removes it), durably. Entries of threads that wait for one another
        are written together. Raises OSError."""
        with self._noting:
            self._unwritten[where] = offset
        with self._writing:
            with self._noting:
                if where not in self._unwritten:
                    return  # the one before wrote it, too
                entries, self._unwritten = self._unwritten, {}
            try:
                self._write_cleaner_checkpoint(entries)
            except BaseException:
                del entries[where]
                with self._noting:
                    self._unwritten = entries | self._unwritten
                raise

    def _write_cleaner_checkpoint(self, entries: Mapping[TopicPartition, int | None]) -> None:
        offsets = {**self._offsets(names.CLEANER_CHECKPOINT)}
        for where, offset in entries.items():
            offsets.pop(where, None)
            if offset is not None:
                offsets[where] = offset
        self._known.pop(names.CLEANER_CHECKPOINT, None)
        path = self.path / names.CLEANER_CHECKPOINT
        write_checkpoint(path, offsets)
        self._known[names.CLEANER_CHECKPOINT] = (files.stat(path), offsets)

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> LogDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_directories(
    paths: Sequence[Path],
    *,
    lock: bool = True,
    dry_run: bool = False,
    failed: Callable[[Path, OSError], None] | None = None,
) -> list[LogDirectory]:
    """Open the log directories that are named, each once, in the order of their first names.

    Several partitions of one directory become one that is limited to these; a name that comes twice, or a
    partition beside its whole directory, adds nothing. So each directory has one owner in this process: one
    lock, and one cache of its checkpoints. A dry run makes no lock file where there is none. ``failed`` is
    told of paths that the disk refuses; without it that raises. Raises NotALogDirectoryError,
    DirectoryLockedError, OSError; nothing is locked then.
    """
    found: dict[tuple[int, int], LogDirectory] = {}
    with contextlib.ExitStack() as stack:
        for path in paths:
            try:
                directory = LogDirectory.open(path, lock=False)
                known = found.setdefault(directory.place, directory)
            except OSError as error:
                if failed is None:
                    raise
                failed(path, error)
                continue
            if known is not directory:
                known.merge(directory)
        opened = []
        for directory in found.values():
            try:
                if lock and (not dry_run or files.exists(directory.path / names.LOCK)):
                    stack.callback(directory.close)
                    directory._take_lock()
                    directory._list()  # once more: before the lock somebody may have made or deleted some
                opened.append(directory)
            except OSError as error:
                if failed is None:
                    raise
                failed(directory.path, error)
        stack.pop_all()
    return opened


def true_path(path: Path) -> Path:
    """The directory itself, whatever links lead to it: its parent is the log directory that it is in.

    Raises NotALogDirectoryError for a link among a log directory's partitions: a broker follows it, so the
    lock that counts may be the one beside the link.
    """
    named = path.absolute()
    if files.is_link(named) and parse_partition(named.name) is not None and _is_marked(named.parent):
        raise NotALogDirectoryError(
            f"{path}: a symbolic link among the partitions of {named.parent}; links are not followed. "
            f"If no broker uses it any more, name the directory that it points to, {named.resolve()}"
        )
    return named.resolve()


def refuse_network_file_system(directory: LogDirectory) -> None:
    """For whoever changes files in place. Raises DirectoryRefusedError."""
    if files.file_system(directory.path) in files.NETWORK_FILE_SYSTEMS:
        raise DirectoryRefusedError(
            f"{directory.path}: on a network file system ({files.file_system(directory.path)}), "
            "where locks and renames cannot be trusted; clean a copy with --out"
        )


def refuse_strangers(directories: list[LogDirectory]) -> None:
    """Several log directories must be one broker's: one cluster, one node, no partition twice.

    Raises DirectoryRefusedError.
    """
    facts = [directory.properties() for directory in directories]
    for key in ("cluster.id", "node.id", "broker.id"):
        values = {found[key] for found in facts if key in found}
        if len(values) > 1:
            raise DirectoryRefusedError(
                f"the directories are not one broker's: {key} is {' and '.join(sorted(values))}"
            )
    seen: dict[TopicPartition, Path] = {}
    places: dict[tuple[int, int], Path] = {}
    for directory in directories:
        for where, path in directory.partitions.items():
            if where in seen:
                raise DirectoryRefusedError(
                    f"{where} is in {seen[where]} and in {path}; remove the stray one"
                )
            seen[where] = path
            with contextlib.suppress(FileNotFoundError):
                other = places.setdefault(files.stat(path).place, path)
                if other != path:
                    raise DirectoryRefusedError(f"{other} and {path} are one directory; name it once")


def _is_marked(directory: Path) -> bool:
    return any(files.exists(directory / name) for name in _MARKS_OF_A_LOG_DIRECTORY)


def _has_segments(directory: Path) -> bool:
    """Are there names of segments' logs? Of whatever kind they are: what is no regular file is refused
    later."""
    named = (parse_segment_file(entry.name) for entry in files.entries(directory))
    return any(name is not None and name.kind == "log" for name in named)


def _find_partitions(directory: Path) -> tuple[dict[TopicPartition, Path], list[PassedOver]]:
    found, passed_over = {}, []
    for entry in files.entries(directory):
        path = directory / entry.name
        if entry.is_link:
            passed_over.append(PassedOver(path=str(path), reason="a symbolic link"))
        elif entry.is_directory:
            where = parse_partition(entry.name)
            if where is None:
                passed_over.append(PassedOver(path=str(path), reason=why_not_a_partition(entry.name)))
            else:
                found[where] = path
    return found, passed_over


def partition_files(directory: Path, *, owned: bool = False) -> dict[str, files.FileStat]:
    """Every regular file of a partition directory by name.

    ``owned``: those of Kafka's and Siltstone's must be the directory owner's, too. Raises UnsafeFileError,
    OSError.
    """
    listed = files.list_all(directory, may_vanish=(names.TEMPORARY, names.DELETED))
    owner = files.stat(directory).owner if owned else None
    for name, facts in sorted(listed.items()):
        is_owned = owner in (None, facts.owner)
        if facts.kind == files.FILE and is_owned and name not in _FOLDERS:
            continue
        if not names.is_kafkas_file(name) and name not in _FOLDERS:
            continue
        path = directory / name
        refuse_kind(path, facts, files.DIRECTORY if name in _FOLDERS else files.FILE)
        if not is_owned:
            raise UnsafeFileError(
                f"{path}: belongs to user {facts.owner}, but its partition directory to user {owner}; the "
                f"log is left alone. Find out who put it there; if it is the log's own, chown {owner} {path}"
            )
    return {name: facts for name, facts in listed.items() if facts.kind == files.FILE}


def refuse_unsafe_files(directory: Path, *, owned: bool = True) -> None:
    """Raises UnsafeFileError for the first file or folder that is not what it has to be, OSError."""
    partition_files(directory, owned=owned)


def refuse_kind(path: Path, facts: files.FileStat, wanted: str) -> None:
    """Raises UnsafeFileError unless the file at ``path`` is of the ``wanted`` kind."""
    if facts.kind == wanted:
        return
    advice = "put the file itself in its place" if facts.kind == files.LINK else "find out who put it there"
    if wanted == files.DIRECTORY:
        advice = "look at what it is, and remove it"
    raise UnsafeFileError(
        f"{path}: a {facts.kind}, but a {wanted} is wanted here; the log is left alone. {advice.capitalize()}"
    )


def has_own_folder(partition: Path, name: str = names.STAGING) -> bool:
    """Is our folder ``name`` in the partition's directory? Raises DirectoryRefusedError, with the log's name,
    when something else has its name: nothing was changed then; OSError."""
    path = partition / name
    reason = files.folder_refusal(path)
    if reason is not None:
        raise DirectoryRefusedError(
            f"{partition.name}: {path} {reason}, so nothing is written to it or removed; "
            "look at what it is, remove it, and run the command again"
        )
    return files.exists(path)
