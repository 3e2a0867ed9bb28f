"""``clean --out s3://…``: a cleaned copy in a bucket, which is a restore point (``base.files.backups``).

::

    a log is cleaned ─► its new files, in a folder of this machine ─► chunks in the store; the folder is empty
    all other files of the source ─► chunks in the store
    all chunks are there ─► the restore point (If-None-Match)

A bucket has no rename, so no name is ever written twice: chunks are named by their bytes, and the restore
point, which is written last, says which of them the copy has. Until then readers see the copy before, or
none. A run that ends before leaves chunks that the next one uses. What is a chunk of the source already, in
the same store, is not read: the store copies it, or has it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.files import backups
from siltstone.base.files.backups import BackedUpDirectory, BackedUpFile, ChunkWriter, RestorePoint
from siltstone.compaction.inplace.destination import CleanedCopy, SpaceBudget
from siltstone.compaction.inplace.expiry import Expiry
from siltstone.compaction.inplace.planning import LogState, PlannedLog
from siltstone.log.directory import LogDirectory
from siltstone.log.names import SEGMENT_KINDS, segment_file

_READABLE = 0o644
"""The mode of files whose source is an object, which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTarget:
    """A prefix of a store that takes a copy, while no other run writes there. ``point``: the name that the
    copy gets; ``folder``: of this machine, for what is being cleaned."""

    path: Path
    backup_id: str
    now_ms: int
    folder: Path
    known_chunks: frozenset[str]


@contextlib.contextmanager
def stored_target(
    path: Path, now_ms: int, *, parent: Path | None = None, takes_over: bool = False
) -> Iterator[StoredTarget]:
    """Be the only writer of a copy. ``parent``: where the folder is made, by default that of temporary files.
    Raises BusyError while another run writes there, CorruptFileError, OSError."""
    with (
        files.temporary_directory("siltstone-out-", None if parent is None else str(parent)) as folder,
        backups.only_writer(path, now_ms, takes_over=takes_over),
    ):
        points = backups.restore_points(path)
        yield StoredTarget(
            path=path,
            backup_id=backups.new_id(points, now_ms),
            now_ms=now_ms,
            folder=Path(folder),
            known_chunks=frozenset(chunk for point in points for chunk in point.chunks),
        )


class StoredCopy(CleanedCopy):
    """A cleaned copy of ``source`` as a restore point of a store."""

    def __init__(self, run: str, source: LogDirectory, target: StoredTarget) -> None:
        super().__init__(run, source, target.folder / "copy")
        self._stored = target
        self._chunks = ChunkWriter(target.path, target.known_chunks)
        self._files: dict[str, Future[BackedUpFile]] = {}
        self._folders: dict[str, None] = {}
        self._pool = ThreadPoolExecutor(backups.THREADS, thread_name_prefix="siltstone-put")

    def space_budget(self, state: LogState, max_extra_bytes: int | None) -> SpaceBudget:
        """The free space of the folder, for the logs that are being cleaned."""
        budget = super().space_budget(state, max_extra_bytes)
        size = budget.size if max_extra_bytes is None else min(budget.size, max_extra_bytes)
        return SpaceBudget(size=size, inodes=budget.inodes, frees_sources=False)

    def refuse_too_little_space(self) -> None:
        """A store has space for the copy."""

    def commit_log(self, planned: PlannedLog) -> None:
        """Put the log's new files, and remove them from this machine."""
        folder = self._folder(planned.state)
        put = {folder / name: self._put(folder / name) for name in sorted(files.list_files(folder))}
        for path, file in put.items():
            file.result()
            files.unlink(path)
        # Only now the copy does without the old segments: if a put fails, it has the log as it was.
        super().commit_log(planned)

    def delete_old_segments(self, state: LogState, expiry: Expiry) -> None:
        """The restore point will not have them."""
        super().delete_old_segments(state, expiry)
        for base in expiry.bases:
            for kind in SEGMENT_KINDS:
                self._files.pop(f"{state.path.name}/{segment_file(base, kind)}", None)

    def abort_run(self) -> None:
        """Stop putting; no restore point is made."""
        self._pool.shutdown(cancel_futures=True)
        super().abort_run()

    def _put(self, source: Path, target: Path | None = None) -> Future[BackedUpFile]:
        """Begin to put a file, under the name that ``target`` has in the copy."""
        name = str((target or source).relative_to(self._partial_copy))
        self._files[name] = self._pool.submit(self._put_now, source, name)
        return self._files[name]

    def _put_now(self, source: Path, name: str) -> BackedUpFile:
        status = files.stat(source, follow=False)
        return BackedUpFile(
            name=name,
            size=status.size,
            modified_ns=status.modified_ns,
            inode=0,
            mode=_READABLE if files.is_object(source) else status.mode,
            chunks=self._put_chunks(source, status.size),
        )

    def _put_chunks(self, source: Path, size: int) -> tuple[str, ...]:
        """The chunks of a file. Those of a restore point are not read if the store can copy them."""
        stored = files.stored_chunks(source)
        is_near = stored is not None and files.is_same_store(stored.target, self._stored.path)
        if stored is not None and is_near and stored.chunk_bytes == backups.CHUNK_BYTES:
            return self._chunks.copy(stored.target, stored.names, size)
        with files.Reader(source) as reader:
            return self._chunks.put_file(reader, size)

    def _make_folder(self, source: Path, target: Path) -> None:
        if target == self._partial_copy:
            files.make_directory(target, parents=True)  # for the checkpoint
        else:
            self._folders[str(target.relative_to(self._partial_copy))] = None

    def _copy_file(self, source: Path, target: Path) -> None:
        self._put(source, target)

    def _sync_folder(self, target: Path) -> None:
        """The restore point is what makes the copy durable."""

    def _remove_folder(self, target: Path) -> None:
        prefix = f"{target.relative_to(self._partial_copy)}/"
        for name in [name for name in self._files if name.startswith(prefix)]:
            del self._files[name]
        super()._remove_folder(target)

    def _publish(self) -> None:
        """Put the restore point, when all its chunks are there."""
        for path in files.list_files(self._partial_copy) if files.exists(self._partial_copy) else ():
            self._put(self._partial_copy / path)  # the checkpoint
        backed_up = tuple(self._files[name].result() for name in sorted(self._files))
        self._pool.shutdown()
        directory = BackedUpDirectory(
            path=str(self._stored.path), folders=tuple(sorted(self._folders)), files=backed_up
        )
        point = RestorePoint(
            backup_id=self._stored.backup_id,
            time_ms=self._stored.now_ms,
            host=socket.gethostname(),
            is_live=False,
            chunk_bytes=backups.CHUNK_BYTES,
            directories=(directory,),
        )
        backups.put_point(self._stored.path, point)
