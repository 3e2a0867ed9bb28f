"""Makes and restores backups of log directories in an object store: ``siltstone backup``, ``siltstone
restore``.

The format is that of ``base.files.backups``. A file is cut into chunks of equal size, so a segment that has
grown since the last backup adds its new chunks, and a segment that a cleaning has written anew under its old
name adds what is new in it. A file with the size, time and inode of the last backup is not read again, unless
it was written just before that backup. The restore point is written last: it is complete, or not there. A
restore checks every chunk against its name.

The directories are locked during a backup. After an unclean shutdown, a broker recovers the restored
directories as it would the originals. With ``is_live`` they are not locked, and a broker may run: the files
of a partition are copied again until none but the active segment's has changed during the copy, and so is a
checkpoint. Checkpoints are copied before the logs, and the clean-shutdown marker is left out. So the first
start on a restore recovers as after a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock, iso_ms
from siltstone.base.errors import (
    CheckFailedError,
    DirectoryRefusedError,
    SourceChangedError,
    UsageError,
)
from siltstone.base.files import backups as backup_format
from siltstone.base.files.backups import (
    THREADS,
    BackedUpDirectory,
    BackedUpFile,
    ChunkWriter,
    RestorePoint,
    WriterLock,
    chunk_path,
    is_id,
    is_storable,
    locked_for_writing,
    next_name,
    point_path,
    read_point,
    refuse_unless_object_store,
    restore_points,
)
from siltstone.log.directory import LogDirectory, open_directories
from siltstone.log.names import CLEAN_SHUTDOWN, CLEANED, DELETED, LOCK, parse_partition

LIVE_ATTEMPTS = 5
"""How many times a partition or a checkpoint is copied at most while a broker changes it."""
_REMOVED_AT_START = (DELETED, CLEANED)
"""The suffixes of files that a broker removes at its next start: a backup leaves them out."""
_UNUSED_CHUNK_MS = 24 * 3_600_000
"""The age from which pruning removes a chunk that no restore point has. A younger one may be of an
interrupted backup, which puts only its other chunks when it is repeated."""
_SAME_TICK_MS = 2_000
"""A file that was modified at most this long before a backup began, or later, is read again by the next one:
it may have changed after it was read, without another modification time."""
Progress = Callable[[str, int, int], None]
"""Called with the step (``backup`` or ``restore``), the bytes that are done, and all bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest:
    """The options of ``siltstone backup``. ``is_live``: a broker may run, so no lock is taken; ``keep``: how
    many restore points stay, None: all; ``takes_over``: ignore the lock of another backup, which has died."""

    directories: Sequence[Path]
    target: Path
    is_live: bool = False
    keep: int | None = None
    takes_over: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult:
    """The result of a backup. ``new_chunks``, ``new_bytes``: those that the store did not have;
    ``read_bytes``: of the files that were read; ``passed_over``: what a backup does not have: links, special
    files, and names that no restore point may have (``is_storable``); ``pruned``: the ids of the restore
    points that were removed."""

    backup_id: str
    files: int
    bytes: int
    new_chunks: int
    new_bytes: int
    read_bytes: int
    passed_over: Sequence[str]
    pruned: Sequence[str]
    dry_run: bool

    def to_json(self) -> dict[str, object]:
        """One object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The result of a restore. ``needs_recovery``: the first start on it will recover the logs, as after an
    unclean shutdown."""

    backup_id: str
    time_ms: int
    directories: Sequence[str]
    files: int
    bytes: int
    needs_recovery: bool
    dry_run: bool

    def to_json(self) -> dict[str, object]:
        """One object."""
        return asdict(self)


def no_progress(step: str, done: int, total: int) -> None:
    """A ``Progress`` that shows nothing."""


# Restore points


def find_restore_point(points: Sequence[RestorePoint], at: str | None, source: Path) -> RestorePoint:
    """The restore point that ``--at`` names, among those of ``source``, the oldest first. ``at``: its id, or
    a time (ISO 8601, UTC) for the newest one until then; None for the newest. Raises UsageError."""
    known = ", ".join(point.backup_id for point in points[-5:])
    if not points:
        raise UsageError(
            "there is no backup", path=source, advice="check the address; siltstone backup makes one"
        )
    if at is None:
        return points[-1]
    for point in points:
        if point.backup_id == at:
            return point
    until_ms = iso_ms(at)
    if until_ms is None:
        reason = f"--at {at}: it is neither a backup nor a time"
        raise UsageError(reason, advice=f"pass one of {known}, or a time as 2026-11-24T12:00:00Z")
    before = [point for point in points if point.time_ms <= until_ms]
    if not before:
        reason = f"--at {at}: all backups are newer"
        raise UsageError(reason, advice=f"the oldest is {points[0].backup_id}")
    return before[-1]


def _restore_point(source: Path, at: str | None) -> RestorePoint:
    """The restore point that ``--at`` names. Of one that is named by its id no other is read: a damaged one
    does not keep an earlier one from being restored. Raises UsageError, CorruptFileError, OSError."""
    refuse_unless_object_store(source)
    if at is not None and is_id(at):
        with contextlib.suppress(FileNotFoundError):  # it may be a time, which is written in the same way
            return read_point(point_path(source, at))
    return find_restore_point(restore_points(source), at, source)


# Backup


def backup(
    request: BackupRequest, clock: Clock | None = None, progress: Progress = no_progress
) -> BackupResult:
    """Make a restore point.

    Raises UsageError, BusyError while another backup writes there, DirectoryLockedError,
    DirectoryRefusedError for the directory of one partition, NotALogDirectoryError, SourceChangedError if a
    live broker changes a partition again and again, CorruptFileError, OSError.
    """
    refuse_unless_object_store(request.target)
    if request.keep is not None and request.keep < 1:
        raise UsageError(f"--keep {request.keep}: is below 1", advice="pass 1 or more")
    clock = clock or SystemClock()
    with contextlib.ExitStack() as stack:
        writer: WriterLock | None = None
        if not request.dry_run:
            locking = locked_for_writing(request.target, clock.now_ms(), takes_over=request.takes_over)
            writer = stack.enter_context(locking)
        opened = open_directories(request.directories, lock=not request.is_live and not request.dry_run)
        for directory in opened:
            stack.callback(directory.close)
        _refuse_partitions(opened)
        points = restore_points(request.target)
        work = _Backup(request, points, progress)
        started_ms = clock.now_ms()
        directories = work.back_up([directory.path for directory in opened])
        backup_id, time_ms = next_name(points, clock.now_ms())
        point = RestorePoint(
            backup_id=backup_id,
            time_ms=time_ms,
            host=socket.gethostname(),
            is_live=request.is_live,
            chunk_bytes=backup_format.CHUNK_BYTES,
            directories=directories,
            started_ms=started_ms,
        )
        pruned: list[str] = []
        if writer is not None:
            writer.put_point(point)
            if request.keep is not None:
                pruned = _prune(request.target, [*points, point], request.keep, clock.now_ms())
        return work.result(point, pruned)


def _refuse_partitions(directories: Sequence[LogDirectory]) -> None:
    """Raises DirectoryRefusedError for the directory of one partition: a backup would have all that is beside
    it, whatever that is."""
    for directory in directories:
        if directory.is_partition_subset:
            raise DirectoryRefusedError(
                "it is the directory of one partition, and a backup has whole log directories",
                path=next(iter(directory.partitions.values())),
                advice="pass the log directory; a copy of a partition can be moved into a new folder first",
            )


class _Backup:
    """One run: reads the files, and puts the chunks that the store does not have."""

    def __init__(self, request: BackupRequest, points: Sequence[RestorePoint], progress: Progress) -> None:
        self._request, self._progress = request, progress
        known = {chunk for point in points for chunk in point.chunks}
        self._writer = ChunkWriter(request.target, known, dry_run=request.dry_run)
        # By log directory and name: the newest restore point's file, unless it may have changed after it was
        # read.
        self._backed_up = {
            (directory.path, file.name): file
            for point in points
            for directory in point.directories
            for file in directory.files
            if point.chunk_bytes == backup_format.CHUNK_BYTES
            and file.modified_ns // 1_000_000 < _reading_began_ms(point) - _SAME_TICK_MS
        }
        self._done_bytes = self._total_bytes = 0
        self.passed_over: list[str] = []

    def back_up(self, roots: Sequence[Path]) -> tuple[BackedUpDirectory, ...]:
        """Put the new chunks of log directories, and return their files."""
        listings = [_files_below(root, self.passed_over) for root in roots]
        self._total_bytes = sum(
            status.size
            for _, statuses in listings
            for name, status in statuses.items()
            if not self._is_left_out(name)
        )
        copy = self._live_directory if self._request.is_live else self._directory
        return tuple(copy(root, *listing) for root, listing in zip(roots, listings, strict=True))

    def _directory(
        self, root: Path, folders: Sequence[str], statuses: Mapping[str, files.FileStat]
    ) -> BackedUpDirectory:
        """Back up a locked log directory, whose files do not change."""
        return BackedUpDirectory(path=str(root), folders=tuple(folders), files=self._files(root, statuses))

    def _live_directory(
        self, root: Path, folders: Sequence[str], statuses: Mapping[str, files.FileStat]
    ) -> BackedUpDirectory:
        """Back up a log directory of a running broker: its checkpoints first, then each of its partitions."""
        top = [name for name in statuses if "/" not in name and not self._is_left_out(name)]
        backed_up = [file for name in top if (file := self._live_file(root, name)) is not None]
        listed = list[str]()
        for folder in (name for name in folders if "/" not in name):
            below, inner = self._live_folder(root, folder)
            listed += below
            backed_up += inner
        return BackedUpDirectory(path=str(root), folders=tuple(listed), files=tuple(backed_up))

    def _live_file(self, root: Path, name: str) -> BackedUpFile | None:
        """Back up a file beside the partitions, such as a checkpoint, which a running broker replaces every
        few seconds. Copies it again until it has not changed during the copy. None if it was removed."""
        for _ in range(LIVE_ATTEMPTS):
            try:
                with contextlib.suppress(SourceChangedError):
                    status, done_bytes = files.stat(root / name, follow=False), self._done_bytes
                    file = self._file(root, name, status)
                    if files.stat(root / name, follow=False).identity == status.identity:
                        return file
                    self._done_bytes = done_bytes
            except FileNotFoundError:
                return None
        raise SourceChangedError(
            f"it has changed {LIVE_ATTEMPTS} times while it was copied",
            path=root / name,
            advice="try again, or stop the broker",
        )

    def _files(self, root: Path, statuses: Mapping[str, files.FileStat]) -> tuple[BackedUpFile, ...]:
        """Back up the files of a listing, without those that are left out."""
        return tuple(
            self._file(root, name, status)
            for name, status in sorted(statuses.items())
            if not self._is_left_out(name)
        )

    def _is_left_out(self, name: str) -> bool:
        """Is it a file that a restored directory must not have: a lock, one that a start removes, or, of a
        running broker, a clean-shutdown marker?"""
        base = name.rpartition("/")[2]
        if base == LOCK or base.endswith(_REMOVED_AT_START):
            return True
        return self._request.is_live and base == CLEAN_SHUTDOWN

    def _live_folder(self, root: Path, folder: str) -> tuple[list[str], tuple[BackedUpFile, ...]]:
        """Back up a partition of a running broker; returns (its folder and those below, their files). Copies
        it again until nothing but its last segment has changed during the copy."""
        done_bytes = self._done_bytes
        for _ in range(LIVE_ATTEMPTS):
            self._done_bytes = done_bytes  # an attempt counts once in the progress
            with contextlib.suppress(FileNotFoundError, SourceChangedError):
                # What is passed over there is in ``passed_over`` since ``back_up`` listed the directory.
                below, before = _files_below(root / folder, [], f"{folder}/")
                copied = self._files(root, before)
                _, after = _files_below(root / folder, [], f"{folder}/")
                if _is_unchanged(before, after):
                    return [folder, *below], copied
            if not files.is_directory(root / folder):
                return [], ()  # the topic was deleted
        raise SourceChangedError(
            f"its files have changed {LIVE_ATTEMPTS} times while they were copied",
            path=root / folder,
            advice="back it up when the cleaner has less to do, or stop the broker",
        )

    def _file(self, root: Path, name: str, status: files.FileStat) -> BackedUpFile:
        """Back up one file. Its chunks are those of the last backup if it is the same; else they are read and
        put."""
        before = self._backed_up.get((str(root), name))
        # A store may not say when an object was modified (0): then nothing shows that a file is the same.
        if (
            before is not None
            and status.modified_ns
            and (before.inode, before.size, before.modified_ns) == status.identity
        ):
            chunks: tuple[str, ...] = before.chunks
        else:
            with files.Reader(root / name) as reader:
                chunks = self._writer.put_file(reader, status.size)
        self._done_bytes += status.size
        # A running broker's files grow after they were listed.
        self._total_bytes = max(self._total_bytes, self._done_bytes)
        self._progress("backup", self._done_bytes, self._total_bytes)
        return BackedUpFile(
            name=name,
            size=status.size,
            modified_ns=status.modified_ns,
            inode=status.inode,
            mode=status.mode,
            chunks=chunks,
        )

    def result(self, point: RestorePoint, pruned: Sequence[str]) -> BackupResult:
        """The result of the run."""
        return BackupResult(
            backup_id=point.backup_id,
            files=sum(len(directory.files) for directory in point.directories),
            bytes=point.size,
            new_chunks=self._writer.new_chunks,
            new_bytes=self._writer.new_bytes,
            read_bytes=self._writer.read_bytes,
            passed_over=self.passed_over,
            pruned=pruned,
            dry_run=self._request.dry_run,
        )


def _reading_began_ms(point: RestorePoint) -> int:
    """When the first file of the restore point was read. Earlier versions did not write that. Then it is the
    end of the backup if the directories were locked, since no file changed meanwhile; else 0, since any file
    may have changed after it was read."""
    if point.started_ms is not None:
        return point.started_ms
    return 0 if point.is_live else point.time_ms


def _files_below(
    root: Path, passed_over: list[str], prefix: str = ""
) -> tuple[list[str], dict[str, files.FileStat]]:
    """(The folders, the regular files) below a directory, by ``prefix`` and their names relative to it.
    ``passed_over`` gets the others, with the reason."""
    folders, statuses = list[str](), dict[str, files.FileStat]()
    for name, status in sorted(files.list_all(root, may_vanish=_REMOVED_AT_START).items()):
        path = f"{prefix}{name}"
        if not is_storable(path):
            passed_over.append(f"{root / name}: a name that is not UTF-8, or in too many folders")
        elif status.kind == files.FILE:
            statuses[path] = status
        elif status.kind == files.DIRECTORY:
            inner_folders, inner = _files_below(root / name, passed_over, f"{path}/")
            folders += [path, *inner_folders]
            statuses |= inner
        else:
            passed_over.append(f"{root / name}: a {status.kind}")
    return folders, statuses


def _is_unchanged(before: Mapping[str, files.FileStat], after: Mapping[str, files.FileStat]) -> bool:
    """Have no files of a partition changed during its copy but those of the active segment, which grow?"""
    logs = sorted(name for name in before if name.endswith(".log"))
    active = logs[-1].removesuffix(".log") if logs else ""
    for name, status in before.items():
        if name.endswith(_REMOVED_AT_START) or (active and name.startswith(active)):
            continue
        later = after.get(name)
        if later is None or later.identity != status.identity:
            return False
    return not active or f"{active}.log" in after  # not if a truncation or a deletion has removed it


# Pruning


def _prune(target: Path, points: Sequence[RestorePoint], keep: int, now_ms: int) -> list[str]:
    """Remove all but the newest restore points, then the chunks that none has and that are not new."""
    old, kept = points[:-keep], points[-keep:]
    files.delete_objects([point_path(target, point.backup_id) for point in old])
    needed = {chunk for point in kept for chunk in point.chunks}
    unused = [
        target / backup_format.CHUNKS / name
        for name, status in files.objects_below(target / backup_format.CHUNKS)
        if name.rpartition("/")[2] not in needed
        and now_ms - status.modified_ns // 1_000_000 > _UNUSED_CHUNK_MS
    ]
    files.delete_objects(unused)
    return [point.backup_id for point in old]


# Restore


def restore(
    source: Path,
    target: Path,
    *,
    at: str | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RestoreResult:
    """Write the files of a restore point into a new directory, each of several log directories into a folder
    of it (``RestorePoint.directory_names``). The directory appears when it is complete.

    Raises UsageError, DirectoryRefusedError for a target that exists and has something in it,
    CheckFailedError for a chunk that is damaged or missing, CorruptFileError, OSError.
    """
    point = _restore_point(source, at)
    if files.is_object(target):
        raise UsageError("is an object store", path=str(target), advice="restore to a directory of a disk")
    if files.exists(target) and not (files.is_directory(target, follow=False) and not files.entries(target)):
        raise DirectoryRefusedError(
            "it exists, and is not an empty directory", path=target, advice="name a new directory"
        )
    directories, target = _restored_directories(point, target), target.absolute()
    if files.exists(target) and files.stat(target).device != files.stat(target.parent).device:
        raise DirectoryRefusedError(
            "it is a mount point, which no rename can replace",
            path=target,
            advice="name a new directory in it",
        )
    if not dry_run:
        partial = target.with_name(f"{target.name}.partial")
        if files.exists(partial):
            advice = "remove it if no restore runs"
            raise DirectoryRefusedError("an interrupted restore is there", path=partial, advice=advice)
        _restore_into(source, partial, _restored_directories(point, partial), point, progress)
        if files.exists(target):
            files.remove_directory(target)
        files.rename(partial, target)
        files.sync_directory(target.parent)
    names = {file.name for directory in point.directories for file in directory.files}
    return RestoreResult(
        backup_id=point.backup_id,
        time_ms=point.time_ms,
        directories=[str(path) for path in directories],
        files=sum(len(directory.files) for directory in point.directories),
        bytes=point.size,
        needs_recovery=CLEAN_SHUTDOWN not in names,
        dry_run=dry_run,
    )


def _restored_directories(point: RestorePoint, target: Path) -> list[Path]:
    """Where each log directory is restored."""
    return [target / name for name in point.directory_names]


def _restore_into(
    source: Path, partial: Path, targets: Sequence[Path], point: RestorePoint, progress: Progress
) -> None:
    done_bytes = 0
    files.make_directory(partial, parents=True)
    for directory, target in zip(point.directories, targets, strict=True):
        files.make_directory(target, parents=True)
        for folder in directory.folders:
            files.make_directory(target / folder, parents=True)
        for file in directory.files:
            _restore_file(source, target / file.name, file)
            done_bytes += file.size
            progress("restore", done_bytes, point.size)
        for folder in sorted(directory.folders, reverse=True):  # inner folders before those that name them
            files.sync_directory(target / folder)
        files.sync_directory(target)
    files.sync_directory(partial)


_RESTORE_EARLIER = "restore an earlier backup"


def _restore_file(source: Path, path: Path, file: BackedUpFile) -> None:
    """Write a file from its chunks, of which ``THREADS`` are read at a time, durably."""

    def chunk(name: str) -> bytes:
        stored_path = chunk_path(source, name)
        try:
            # No chunk is longer; one byte more, so that one which is too long fails the check of its hash.
            data = files.read_bytes(stored_path, backup_format.CHUNK_BYTES + 1)
        except FileNotFoundError:
            raise CheckFailedError("a chunk is missing", path=stored_path, advice=_RESTORE_EARLIER) from None
        if hashlib.sha256(data).hexdigest() != name:
            raise CheckFailedError("a chunk is damaged", path=stored_path, advice=_RESTORE_EARLIER)
        return data

    with files.Writer(path, permissions=file.mode & 0o777) as writer, ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(file.chunks), THREADS):
            for data in pool.map(chunk, file.chunks[start : start + THREADS]):
                writer.write(data)
        if writer.size != file.size:
            reason = f"the restore point says {file.size} bytes, its chunks have {writer.size}"
            raise CheckFailedError(reason, path=path, advice=_RESTORE_EARLIER)
        writer.sync()
    files.set_modified(path, file.modified_ns)


def partitions_of(point: RestorePoint) -> int:
    """How many partitions a restore point has."""
    folders = (folder for directory in point.directories for folder in directory.folders)
    return sum(parse_partition(folder) is not None for folder in folders)
