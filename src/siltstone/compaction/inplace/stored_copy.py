"""``clean --out s3://…``: a cleaned copy in a bucket, which is a restore point (``base.files.backups``).

::

    a log is cleaned ─► its new files, in a folder of this machine ─► chunks in the store; the folder is empty
      on executors: each task cleans into a folder of its own, and puts the files itself
    all other files of the source ─► chunks in the store
    all chunks are there ─► the restore point (If-None-Match)

A bucket has no rename, so no name is ever written twice: chunks are named by their bytes, and the restore
point, which is written last, says which of them the copy has. Until then readers see the previous copy, or
none. A run that ends before that leaves chunks, which the next run uses. If the source is a restore point in
the same store, its files that stay as they are need not be read: the store copies their chunks, or the copy
names the ones that are there.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CheckFailedError
from siltstone.base.files import backups
from siltstone.base.files.backups import BackedUpDirectory, BackedUpFile, RestorePoint, WriterLock
from siltstone.compaction.inplace.destination import CleanedCopy, SpaceBudget
from siltstone.compaction.inplace.expiry import Expiry
from siltstone.compaction.inplace.planning import LogState, PlannedLog
from siltstone.compaction.putting import ChunkStore, put_file
from siltstone.compaction.staging import GroupReport
from siltstone.log.directory import LogDirectory
from siltstone.log.names import SEGMENT_KINDS, segment_file


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTarget:
    """The prefix of a store that takes a copy, locked so that no other run writes there. ``backup_id``,
    ``time_ms``: the name and the time of the new restore point; ``folder``: a local folder for the logs that
    are being cleaned; ``known_chunks``: the names of the chunks that the store has."""

    path: Path
    lock: WriterLock
    backup_id: str
    time_ms: int
    folder: Path
    known_chunks: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToPut:
    """A file of the copy: where it is read, its name in the copy, its bytes."""

    source: str
    name: str
    size: int


@runtime_checkable
class FilePutter(Protocol):
    """An engine whose workers can put files of the source that are in a store. ``has_executors``: its workers
    may be other machines, which share no folder with this one."""

    @property
    def has_executors(self) -> bool:
        """May tasks run on other machines?"""
        ...

    def put_files(self, store: ChunkStore, to_put: Sequence[FileToPut]) -> list[BackedUpFile]:
        """Put the chunks of files. Raises EngineError."""


@contextlib.contextmanager
def stored_target(
    path: Path, now_ms: int, *, parent: Path | None = None, takes_over: bool = False
) -> Iterator[StoredTarget]:
    """Lock the prefix ``path``, so that this run is its only writer. ``parent``: where the local folder is
    made, by default where temporary files are; ``takes_over``: replace the lock of a run that has died.
    Raises BusyError while another run writes there, CorruptFileError, OSError."""
    with (
        files.temporary_directory("siltstone-out-", None if parent is None else str(parent)) as folder,
        backups.locked_for_writing(path, now_ms, takes_over=takes_over) as lock,
    ):
        points = backups.restore_points(path)
        backup_id, time_ms = backups.next_name(points, now_ms)
        yield StoredTarget(
            path=path,
            lock=lock,
            backup_id=backup_id,
            time_ms=time_ms,
            folder=Path(folder),
            known_chunks=frozenset(chunk for point in points for chunk in point.chunks),
        )


class StoredCopy(CleanedCopy):
    """A cleaned copy of ``source`` as a restore point of a store.

    ``engine``: returns the run's engine, None if there is none yet; its workers put the files of the source
    that are in a store and stay as they are. ``start_engine``: starts the engine, and returns it. If its
    tasks may run on other machines, each puts the new segments that it writes; else this process does. The
    command sets both, since the engine is made after the destination.
    """

    engine: Callable[[], object] = staticmethod(lambda: None)
    start_engine: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, run: str, source: LogDirectory, target: StoredTarget) -> None:
        super().__init__(run, source, target.folder / "copy")
        self._stored = target
        self._store = ChunkStore(target=target.path, known_chunks=target.known_chunks)
        self._chunks = self._store.writer()
        # By name in the copy: files that this process or a task puts; files that stay as they are, which the
        # engine's workers put at the end; folders.
        self._files: dict[str, Future[BackedUpFile]] = {}
        self._unchanged: dict[str, FileToPut] = {}
        self._folders: dict[str, None] = {}
        self._pool = ThreadPoolExecutor(backups.THREADS, thread_name_prefix="siltstone-put")

    def space_budget(self, state: LogState, max_extra_bytes: int | None) -> SpaceBudget:
        """The free space of the folder, for the logs that are being cleaned. What executors have is not
        known: if one has too little, its log fails."""
        if self._tasks_put():
            size = LONG_MAX if max_extra_bytes is None else max_extra_bytes
            return SpaceBudget(size=size, inodes=None, frees_sources=False)
        budget = super().space_budget(state, max_extra_bytes)
        size = budget.size if max_extra_bytes is None else min(budget.size, max_extra_bytes)
        return SpaceBudget(size=size, inodes=budget.inodes, frees_sources=False)

    def refuse_too_little_space(self) -> None:
        """Checks nothing: a store does not say how much space it has."""

    def _tasks_put(self) -> bool:
        """Do the tasks put the new segments? Starts the engine, which alone knows where its tasks run."""
        engine = self.start_engine()
        return isinstance(engine, FilePutter) and engine.has_executors

    def setup_log(self, planned: PlannedLog) -> None:
        """Tell the tasks where they put new segments."""
        super().setup_log(planned)
        if self._tasks_put():
            planned.work = replace(planned.work, chunk_store=self._store)

    def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
        """Take over the files that the tasks have put, and move the other new segments to their names. Raises
        CheckFailedError if a log that was put has not the size that its task reported."""
        super().commit_groups(planned, [group for group in groups if not group.put])
        for group in groups:
            for kind, file in group.put.items():
                base = planned.work.groups[group.group_index].base_offset
                name = f"{planned.state.path.name}/{segment_file(base, kind)}"
                if kind == "log" and file.size != group.size:
                    reason = f"{file.size} bytes were put, but its task reported {group.size}"
                    raise CheckFailedError(reason, path=name)
                self._files[name] = Future()
                self._files[name].set_result(msgspec.structs.replace(file, name=name))

    def commit_log(self, planned: PlannedLog) -> None:
        """Put the log's new files that are here, and remove them from this machine."""
        folder = self._folder(planned.state)
        new = [folder / name for name in sorted(files.list_files(folder))]
        for put in [self._put(path) for path in new]:
            put.result()
        for path in new:
            files.unlink(path)
        # Last: this leaves the old segments out of the copy. If a put fails, the copy has the log as it was.
        super().commit_log(planned)

    def delete_old_segments(self, state: LogState, expiry: Expiry) -> None:
        """Leave the segments out of the restore point, too."""
        super().delete_old_segments(state, expiry)
        for base in expiry.bases:
            for kind in SEGMENT_KINDS:
                self._forget(f"{state.path.name}/{segment_file(base, kind)}")

    def abort_run(self) -> None:
        """Stop putting; no restore point is made."""
        self._pool.shutdown(cancel_futures=True)
        super().abort_run()

    def _put(self, source: Path, target: Path | None = None) -> Future[BackedUpFile]:
        """Begin to put the file ``source``, under the name that ``target`` (by default ``source``) has in the
        copy."""
        name = str((target or source).relative_to(self._partial_copy))
        self._files[name] = self._pool.submit(put_file, source, name, self._chunks)
        return self._files[name]

    def _make_folder(self, source: Path, target: Path) -> None:
        if target == self._partial_copy:
            files.make_directory(target, parents=True)  # for the checkpoint
        else:
            self._folders[str(target.relative_to(self._partial_copy))] = None

    def _copy_file(self, source: Path, target: Path) -> None:
        # A file that is not on this machine is left to the engine's workers, if they can put files.
        if not files.is_read_only(source) or not isinstance(self.engine(), FilePutter):
            self._put(source, target)
            return
        name = str(target.relative_to(self._partial_copy))
        self._unchanged[name] = FileToPut(source=str(source), name=name, size=files.stat(source).size)

    def _put_unchanged(self) -> dict[str, BackedUpFile]:
        """Let the engine's workers put the unchanged files of a source that is in a store; returns them by
        name."""
        putter = self.engine()
        if not self._unchanged or not isinstance(putter, FilePutter):
            return {}
        put = putter.put_files(self._store, list(self._unchanged.values()))
        return {file.name: file for file in put}

    def _forget(self, name: str) -> None:
        """Leave a file out of the restore point. (Its chunks may stay: a later copy can use them.)"""
        self._files.pop(name, None)
        self._unchanged.pop(name, None)

    def _sync_folder(self, target: Path) -> None:
        """Does nothing: the restore point makes the copy durable."""

    def _remove_folder(self, target: Path) -> None:
        """Leave a partition out of the restore point, too."""
        prefix = f"{target.relative_to(self._partial_copy)}/"
        for name in [name for name in (*self._files, *self._unchanged) if name.startswith(prefix)]:
            self._forget(name)
        super()._remove_folder(target)

    def _publish(self) -> None:
        """Put the restore point, when all its chunks are there."""
        for path in files.list_files(self._partial_copy) if files.exists(self._partial_copy) else ():
            self._put(self._partial_copy / path)  # the checkpoint
        by_name = {name: future.result() for name, future in self._files.items()} | self._put_unchanged()
        self._pool.shutdown()
        backed_up = tuple(by_name[name] for name in sorted(by_name))
        directory = BackedUpDirectory(
            path=str(self._stored.path), folders=tuple(sorted(self._folders)), files=backed_up
        )
        point = RestorePoint(
            backup_id=self._stored.backup_id,
            time_ms=self._stored.time_ms,
            host=socket.gethostname(),
            is_live=False,
            chunk_bytes=backups.CHUNK_BYTES,
            directories=(directory,),
        )
        self._stored.lock.put_point(point)
