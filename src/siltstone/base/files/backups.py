"""The format of backups in a store: restore points, their chunks, and the file of the one writer.

::

    PREFIX/chunks/ab/abcd…        up to CHUNK_BYTES of a file, named by their SHA-256; never written again
    PREFIX/backups/ID.json        a restore point: all files with their sizes, times, modes and chunks
    PREFIX/writer.json            the host and time of the backup that writes now; created only if there is
                                  none (If-None-Match)

A restore point is written last: it is complete, or not there. ``commands.backup`` writes backups of log
directories so, ``compaction.inplace.stored_copy`` cleaned copies, and ``base.files.stored_directories`` reads
both as directories.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Protocol

import msgspec

from siltstone.base.errors import BusyError, CorruptFileError, SourceChangedError, UsageError
from siltstone.base.files.objects import (
    claim,
    copy_object,
    delete_objects,
    is_object,
    list_keys,
    put_new,
    put_own,
    read_whole,
)
from siltstone.base.known_types import known

CHUNK_BYTES = 16 << 20
THREADS = 8
BACKUPS, CHUNKS, WRITER = "backups", "chunks", "writer.json"
_ID = re.compile(r"(\d{8}T\d{6}Z)(?:-(\d{1,9}))?")
_CHUNK_NAME = re.compile(r"[0-9a-f]{64}")


@known
class BackedUpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a restore point. ``name``: from its log directory on; ``chunks``: their SHA-256 in order."""

    name: str
    size: int
    modified_ns: int
    inode: int
    mode: int
    chunks: tuple[str, ...]


class BackedUpDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A log directory of a restore point. ``folders``: also those without files."""

    path: str
    folders: tuple[str, ...]
    files: tuple[BackedUpFile, ...]


@known
class RestorePoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """A backup: the content of ``backups/ID.json``. ``is_live``: a broker may have been running."""

    backup_id: str
    time_ms: int
    host: str
    is_live: bool
    chunk_bytes: int
    directories: tuple[BackedUpDirectory, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for directory in self.directories for file in directory.files)

    @property
    def chunks(self) -> set[str]:
        """The names of all chunks."""
        return {chunk for directory in self.directories for file in directory.files for chunk in file.chunks}

    @property
    def directory_names(self) -> list[str]:
        """The folder of each log directory in a restore: "" if there is only one, else the last part of its
        path; numbered if two are the same."""
        if len(self.directories) == 1:
            return [""]
        names = [PurePath(directory.path).name for directory in self.directories]
        if len(set(names)) < len(names) or not {"", ".", ".."}.isdisjoint(names):
            names = [f"{number}-{name.strip('.')}" for number, name in enumerate(names)]
        return names


def point_path(target: Path, backup_id: str) -> Path:
    """Where a restore point is."""
    return target / BACKUPS / f"{backup_id}.json"


def chunk_path(target: Path, name: str) -> Path:
    """Where a chunk is."""
    return target / CHUNKS / name[:2] / name


def refuse_unless_object_store(target: Path) -> None:
    """Raises UsageError unless it is a path of an object store."""
    if not is_object(target):
        advice = "pass s3://BUCKET/PREFIX, gs://… or abfs://…"
        raise UsageError("it is not the address of an object store", path=str(target), advice=advice)


def restore_points(target: Path) -> list[RestorePoint]:
    """The restore points of a store, the oldest first. Raises UsageError, CorruptFileError, OSError."""
    refuse_unless_object_store(target)
    try:
        listed, _ = list_keys(target / BACKUPS)
    except FileNotFoundError:
        return []
    points = [read_point(target / BACKUPS / name) for name in listed]
    return sorted(points, key=lambda point: (point.time_ms, point.backup_id))


def newest_id(target: Path) -> str | None:
    """The name of the newest restore point, without reading any; None if there is none. Raises OSError."""
    try:
        listed, _ = list_keys(target / BACKUPS)
    except FileNotFoundError:
        return None
    matches = (_ID.fullmatch(name.removesuffix(".json")) for name in listed if name.endswith(".json"))
    ids = [(form[1], int(form[2] or 1), form[0]) for form in matches if form is not None]
    return max(ids)[2] if ids else None


def is_id(text: str) -> bool:
    """Is it the name of a restore point?"""
    return _ID.fullmatch(text) is not None


def read_point(path: Path) -> RestorePoint:
    """A restore point. Raises CorruptFileError for what is none, or has names that lead elsewhere;
    OSError."""
    try:
        point = msgspec.json.decode(read_whole(path), type=RestorePoint)
    except (ValueError, RecursionError) as error:
        reason = f"it is not a restore point: {error}"
        raise CorruptFileError(str(path), 0, reason, advice="remove it, or use an earlier one") from None
    for directory in point.directories:
        for name in (*directory.folders, *(file.name for file in directory.files)):
            if name.startswith("/") or ".." in PurePath(name).parts or not name:
                raise CorruptFileError(str(path), 0, f"a file's name leads out of its directory: {name!r}")
    if not all(map(_CHUNK_NAME.fullmatch, point.chunks)):
        raise CorruptFileError(str(path), 0, "a chunk's name is no SHA-256")
    return point


def new_id(points: Sequence[RestorePoint], now_ms: int) -> str:
    """A name of the time, in UTC, that no other restore point has."""
    name = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    taken = {point.backup_id for point in points}
    number = 1
    while (new := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return new


@contextlib.contextmanager
def locked_for_writing(target: Path, now_ms: int, *, takes_over: bool = False) -> Iterator[None]:
    """Hold the lock of a prefix, ``writer.json``, so that no other backup writes there. ``takes_over``:
    replace a lock that is there. Raises BusyError if another backup holds it, OSError."""
    path = target / WRITER
    note = {"host": socket.gethostname(), "since_ms": now_ms, "run": secrets.token_hex(8)}
    if takes_over:
        delete_objects([path])
    if not claim(path, json.dumps(note).encode()):
        writer = bytes(read_whole(path)).decode("utf-8", "replace")[:200]
        raise BusyError(
            f"another backup writes there, or was interrupted: {writer}",
            advice="wait for its end; if it has died, pass --take-over",
        )
    try:
        yield
    finally:
        delete_objects([path])


def put_point(target: Path, point: RestorePoint) -> None:
    """Make a restore point visible, when all its chunks are there. Raises BusyError if there is one of its
    name, OSError."""
    if not put_own(point_path(target, point.backup_id), msgspec.json.encode(point)):
        raise BusyError("another backup has just been made", advice="try again")


class Chunked(Protocol):
    """An open file that is cut into chunks."""

    path: str

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``."""


class ChunkWriter:
    """Puts chunks that a store does not have, from several threads. ``known``: those that it has.

    ``new_chunks``, ``new_bytes``: what was put, or would be put (``dry_run``); ``read_bytes``: of files.
    """

    def __init__(self, target: Path, known: Collection[str] = (), *, dry_run: bool = False) -> None:
        self.target = target
        self._known, self._dry_run = set(known), dry_run
        self._coming: dict[str, Future[None]] = {}
        self._lock, self._room = threading.Lock(), threading.Semaphore(THREADS)
        self.new_chunks = self.new_bytes = self.read_bytes = 0

    def put(self, data: bytes) -> str:
        """The name of a chunk, which the store has afterwards. Raises OSError."""
        name = hashlib.sha256(data).hexdigest()
        self._once(name, len(data), lambda: put_new(chunk_path(self.target, name), data))
        return name

    def _once(self, name: str, size: int, put: Callable[[], object]) -> None:
        with self._lock:
            self.read_bytes += size
            if name in self._known:
                return
            of_other_thread = self._coming.get(name)
            upload = self._coming.setdefault(name, Future())
        if of_other_thread is not None:
            return of_other_thread.result()
        try:
            if not self._dry_run:
                put()
        except BaseException as error:
            with self._lock:
                del self._coming[name]
            upload.set_exception(error)
            raise
        with self._lock:
            self._known.add(name)
            del self._coming[name]
            self.new_chunks += 1
            self.new_bytes += size
        upload.set_result(None)

    def put_file(self, reader: Chunked, size: int) -> tuple[str, ...]:
        """The chunks of the first ``size`` bytes of an open file. Raises SourceChangedError if it has fewer,
        OSError."""
        starts, reading = range(0, size, CHUNK_BYTES), threading.Lock()

        def piece(start: int) -> str:
            wanted = min(CHUNK_BYTES, size - start)
            with self._room:  # no more chunks than threads are in memory
                with reading:  # the windows of an object are for one thread at a time
                    data = reader.read(start, wanted)
                if len(data) != wanted:
                    raise SourceChangedError("it was truncated while it was read", path=reader.path)
                return self.put(data)

        if len(starts) < 2:
            return tuple(map(piece, starts))
        with ThreadPoolExecutor(min(THREADS, len(starts))) as pool:
            return tuple(pool.map(piece, starts))

    def copy(self, source: Path, names: Sequence[str], size: int) -> tuple[str, ...]:
        """The chunks of a file of ``size`` bytes that another prefix of the same store has, which the store
        itself copies. Raises OSError."""

        def copied(number: int) -> None:
            path, name = chunk_path(source, names[number]), names[number]
            length = min(CHUNK_BYTES, size - number * CHUNK_BYTES)
            self._once(name, length, lambda: copy_object(path, chunk_path(self.target, name), length))

        with ThreadPoolExecutor(min(THREADS, max(len(names), 1))) as pool:
            list(pool.map(copied, range(len(names))))
        return tuple(names)


def missing_chunk(path: Path) -> OSError:
    """The error for a chunk that is not there: the file that it belongs to is."""
    return OSError(errno.EIO, "a chunk of the restore point is missing", str(path))
