"""The format of backups in a store: restore points, their chunks, and the file of the one writer.

::

    PREFIX/chunks/ab/abcd…        up to CHUNK_BYTES of a file, named by their SHA-256; never written again
    PREFIX/backups/ID.json        a restore point: all files with their sizes, times, modes and chunks
    PREFIX/writer.json            the lock: host, time and a random number of the backup that writes now;
                                  created only if there is none (If-None-Match)

Three ways to put an object that must not replace another one. They differ in what ``False`` means:

* ``put_new``: such an object exists. For chunks: whoever put it, its bytes are the same.
* ``put_own``: such an object exists, and it is another writer's. It is compared, since a store may repeat a
  put whose answer got lost. For restore points.
* ``claim``: as ``put_own``; then a second put must fail, since with a store that ignores If-None-Match two
  writers would both hold the lock. For ``writer.json``.

A restore point is written last: it is complete, or not there. ``commands.backup`` writes backups of log
directories in this format, ``compaction.inplace.stored_copy`` cleaned copies, and
``base.files.stored_directories`` reads both as directories.
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

from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import (
    BusyError,
    CorruptFileError,
    DirectoryRefusedError,
    SourceChangedError,
    UsageError,
)
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

CHUNK_BYTES = 16 << 20
THREADS = 8
"""How many chunks are put at the same time."""
BACKUPS, CHUNKS, WRITER = "backups", "chunks", "writer.json"
_ID = re.compile(r"(\d{8}T\d{6}Z)(?:-(\d{1,9}))?")
_CHUNK_NAME = re.compile(r"[0-9a-f]{64}")
_PARTS_MAX = 256
"""The most parts of a name: ``StoredDirectory.add_folder`` calls itself for the folder above, and Python
bounds the depth of calls."""
_TIME_MS_MAX = int(datetime.max.replace(tzinfo=UTC).timestamp()) * 1000
_MODIFIED_NS_MAX = 10**9 << 63
"""Python has no later date, and a file no later time."""
_SIZE_MAX = (1 << 63) - 1
"""No file is larger: ``off_t`` is an int64."""
_USE_ANOTHER = "remove it, or use an earlier one"


@decoded_in_threads
class BackedUpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a restore point. ``name``: its path in the log directory; ``chunks``: their SHA-256 in order.

    ``inode``, ``size`` and ``modified_ns`` tell the next backup of the same directory that the file has not
    changed.
    """

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


@decoded_in_threads
class RestorePoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """A backup: the content of ``backups/ID.json``. ``time_ms``: when it was put, and after all that were
    there (``next_name``); ``started_ms``: when its
    first file was read, None if an earlier version made it; ``is_live``: a broker may have been running
    meanwhile."""

    backup_id: str
    time_ms: int
    host: str
    is_live: bool
    chunk_bytes: int
    directories: tuple[BackedUpDirectory, ...]
    started_ms: int | None = None

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
        path. If two are the same, or one is no name of a folder, all are numbered."""
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
    return sorted(points, key=lambda point: (point.time_ms, _order(point.backup_id)))


def newest_id(target: Path) -> str | None:
    """The name of the newest restore point, without reading any; None if there is none. Raises OSError."""
    try:
        listed, _ = list_keys(target / BACKUPS)
    except FileNotFoundError:
        return None
    ids = [name.removesuffix(".json") for name in listed if name.endswith(".json")]
    return max(filter(is_id, ids), key=_order, default=None)


def _order(backup_id: str) -> tuple[str, int]:
    """The sort key of an id: its time, then the number of an id that is not the first of its second."""
    form = _ID.fullmatch(backup_id)
    return (backup_id, 0) if form is None else (form[1], int(form[2] or 1))


def is_id(text: str) -> bool:
    """Is it the name of a restore point?"""
    return _ID.fullmatch(text) is not None


def read_point(path: Path) -> RestorePoint:
    """Read a restore point. Raises CorruptFileError if the object is none, or has another id than its name
    says, names that lead elsewhere or that no file can have, times that no clock has, or files whose number
    of chunks does not fit their size; OSError."""
    try:
        point = msgspec.json.decode(read_whole(path), type=RestorePoint)
    except (ValueError, RecursionError) as error:
        reason = f"it is not a restore point: {error}"
        raise CorruptFileError(str(path), 0, reason, advice=_USE_ANOTHER) from None
    # Pruning deletes by this id: a copy under another name must not cost another restore point.
    if f"{point.backup_id}.json" != path.name:
        reason = f"it is the restore point {point.backup_id[:100]!r}, under another name"
        raise CorruptFileError(str(path), 0, reason, advice=_USE_ANOTHER)
    for directory in point.directories:
        _refuse_names(path, directory)
    if not 0 <= point.time_ms < _TIME_MS_MAX:
        reason = f"no backup was made at {_number_text(point.time_ms)} ms"
        raise CorruptFileError(str(path), 0, reason, advice=_USE_ANOTHER)
    if not all(map(_CHUNK_NAME.fullmatch, point.chunks)):
        raise CorruptFileError(str(path), 0, "a chunk's name is no SHA-256")
    for file in (file for directory in point.directories for file in directory.files):
        is_size = point.chunk_bytes >= 1 and 0 <= file.size <= _SIZE_MAX
        if not is_size or len(file.chunks) != -(-file.size // point.chunk_bytes):
            reason = f"{file.name} has {len(file.chunks)} chunks for {_number_text(file.size)} bytes"
            raise CorruptFileError(str(path), 0, reason, advice=_USE_ANOTHER)
        if abs(file.modified_ns) >= _MODIFIED_NS_MAX:
            reason = f"{file.name} has no time of a file: {_number_text(file.modified_ns)} ns"
            raise CorruptFileError(str(path), 0, reason, advice=_USE_ANOTHER)
    return point


def _number_text(number: int) -> str:
    """A number of a restore point as text, short even if it has a thousand digits."""
    if number.bit_length() <= 64:
        return str(number)
    return f"about {'-' if number < 0 else ''}2^{number.bit_length()}"


def _refuse_names(path: Path, directory: BackedUpDirectory) -> None:
    """Raises CorruptFileError for names that lead out of the directory, or that no file can have."""
    for name in (*directory.folders, *(file.name for file in directory.files)):
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise CorruptFileError(str(path), 0, f"it is no path below a log directory: {name[:100]!r}")
        if not is_storable(name):
            raise CorruptFileError(str(path), 0, f"no file can have the name {name[:100]!r}")
    if "\0" in directory.path:
        raise CorruptFileError(str(path), 0, f"no directory can have the name {directory.path[:100]!r}")


def is_storable(name: str) -> bool:
    """May a restore point have a file or a folder of this name (a path in its log directory)? A restore point
    is JSON, so a name that is not UTF-8 cannot be written; one of too many parts would not be read again."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in name and len(name.split("/")) <= _PARTS_MAX


def _refuse_to_store(point: RestorePoint) -> None:
    """Raises DirectoryRefusedError for a name that no restore point may have. Once it was put, the store's
    restore points could not be read any more."""
    for directory in point.directories:
        for name in (directory.path, *directory.folders, *(file.name for file in directory.files)):
            if not is_storable(name):
                raise DirectoryRefusedError(
                    "a restore point cannot have this name: it is not UTF-8, or in too many folders",
                    path=name if name == directory.path else PurePath(directory.path, name),
                    advice="rename it, or remove it",
                )


def next_name(points: Sequence[RestorePoint], now_ms: int) -> tuple[str, int]:
    """(id, time in ms) of the next restore point in a store that has ``points``: later than all of them, so
    that it is the newest whatever the clock says. The id is the time in UTC, with a number from the second
    one of a second on."""
    time_ms = max([now_ms, *(point.time_ms + 1 for point in points)])
    time_ms = min(time_ms, _TIME_MS_MAX - 1)  # another one could not be read
    name = datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    # Numbers go on from the last one: that of a restore point that was pruned is not used again.
    last = max((_order(point.backup_id) for point in points if is_id(point.backup_id)), default=("", 0))
    if last[0] < name:
        return name, time_ms
    return f"{last[0]}-{last[1] + 1}", time_ms


class WriterLock:
    """The lock of a prefix, ``writer.json``, which this process holds. ``note``: the bytes that this process
    has written into it, which no other process writes."""

    def __init__(self, target: Path, note: bytes) -> None:
        self._target, self.note = target, note

    def is_held(self) -> bool:
        """Does this process still hold it? A backup with ``--take-over`` replaces it. Raises OSError."""
        try:
            return bytes(read_whole(self._target / WRITER)) == self.note
        except FileNotFoundError:
            return False

    def put_point(self, point: RestorePoint) -> None:
        """Put a restore point, all of whose chunks the caller has put. Raises BusyError if another backup has
        taken the lock over, since it may have pruned chunks of this one, or if there is a restore point of
        this name; DirectoryRefusedError for a name that it may not have; OSError."""
        _refuse_to_store(point)
        if not self.is_held():
            advice = "make the backup again, when the other one has ended"
            raise BusyError("another backup has taken over; no restore point was written", advice=advice)
        if not put_own(point_path(self._target, point.backup_id), msgspec.json.encode(point)):
            raise BusyError("another backup has just been made", advice="try again")

    def release(self) -> None:
        """Delete the lock, unless another backup has taken it over. Raises OSError."""
        if self.is_held():
            delete_objects([self._target / WRITER])


@contextlib.contextmanager
def locked_for_writing(target: Path, now_ms: int, *, takes_over: bool = False) -> Iterator[WriterLock]:
    """Hold the lock of a prefix, so that no other backup writes there. ``takes_over``: replace a lock that is
    there. Raises BusyError if another backup holds it, OSError."""
    path = target / WRITER
    note = {"host": socket.gethostname(), "since_ms": now_ms, "run": secrets.token_hex(8)}
    lock = WriterLock(target, json.dumps(note).encode())
    if takes_over:
        delete_objects([path])
    if not claim(path, lock.note):
        writer = "it has just ended"
        with contextlib.suppress(FileNotFoundError):
            writer = bytes(read_whole(path)).decode("utf-8", "replace")[:200]
        raise BusyError(
            f"another backup writes there, or was interrupted: {writer}",
            advice="wait for its end; if it has died, pass --take-over",
        )
    try:
        yield lock
    finally:
        lock.release()


class Chunked(Protocol):
    """An open file that is cut into chunks."""

    path: str

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``."""


class ChunkWriter:
    """Puts chunks that a store does not have, from several threads. ``stored``: the names of those that it
    has.

    ``new_chunks``, ``new_bytes``: how many chunks and bytes were put, or would be put (``dry_run``);
    ``read_bytes``: how many bytes of files were read.
    """

    def __init__(self, target: Path, stored: Collection[str] = (), *, dry_run: bool = False) -> None:
        self.target = target
        self._stored, self._dry_run = set(stored), dry_run
        self._uploads: dict[str, Future[None]] = {}
        self._lock, self._memory = threading.Lock(), threading.Semaphore(THREADS)
        self.new_chunks = self.new_bytes = self.read_bytes = 0

    def put(self, data: bytes) -> str:
        """Put a chunk, unless the store has it; returns its name. Raises OSError."""
        name = hashlib.sha256(data).hexdigest()
        with self._lock:
            self.read_bytes += len(data)
        self._put_once(name, len(data), lambda: put_new(chunk_path(self.target, name), data))
        return name

    def _put_once(self, name: str, size: int, put: Callable[[], object]) -> None:
        """Call ``put``, unless the store has the chunk. If another thread is putting it, wait for that."""
        with self._lock:
            if name in self._stored:
                return
            of_other_thread = self._uploads.get(name)
            upload = self._uploads.setdefault(name, Future())
        if of_other_thread is not None:
            return of_other_thread.result()
        try:
            if not self._dry_run:
                put()
        except BaseException as error:
            with self._lock:
                del self._uploads[name]
            upload.set_exception(error)
            raise
        with self._lock:
            self._stored.add(name)
            del self._uploads[name]
            self.new_chunks += 1
            self.new_bytes += size
        upload.set_result(None)

    def put_file(self, reader: Chunked, size: int) -> tuple[str, ...]:
        """Put the first ``size`` bytes of an open file in chunks; returns their names. Raises
        SourceChangedError if it has fewer bytes, OSError."""
        starts, reading = range(0, size, CHUNK_BYTES), threading.Lock()

        def put_from(start: int) -> str:
            wanted = min(CHUNK_BYTES, size - start)
            with self._memory:  # no more chunks than threads are in memory
                with reading:  # a reader has buffers, which are for one thread at a time
                    data = reader.read(start, wanted)
                if len(data) != wanted:
                    raise SourceChangedError("it was truncated while it was read", path=reader.path)
                return self.put(data)

        if len(starts) < 2:
            return tuple(map(put_from, starts))
        with ThreadPoolExecutor(min(THREADS, len(starts))) as pool:
            return tuple(pool.map(put_from, starts))

    def copy(self, source: Path, names: Sequence[str], size: int) -> tuple[str, ...]:
        """Let the store copy the chunks ``names`` of a file of ``size`` bytes from the prefix ``source`` of
        the same bucket; returns the names. Raises OSError."""

        def copied(number: int) -> None:
            path, name = chunk_path(source, names[number]), names[number]
            length = min(CHUNK_BYTES, size - number * CHUNK_BYTES)
            self._put_once(name, length, lambda: copy_object(path, chunk_path(self.target, name), length))

        with ThreadPoolExecutor(min(THREADS, max(len(names), 1))) as pool:
            list(pool.map(copied, range(len(names))))
        return tuple(names)


def missing_chunk(path: Path) -> OSError:
    """The error for a missing chunk. It is not FileNotFoundError: the file that has this chunk exists."""
    return OSError(errno.EIO, "a chunk of the restore point is missing", str(path))
