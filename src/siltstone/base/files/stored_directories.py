"""Restore points of a store read as directories: ``s3://bucket/prefix/@ID/users-0/00000000000000000000.log``.

::

    PREFIX            ─► resolved once, when a directory is opened, to PREFIX/@ID of the newest restore point
    PREFIX/@ID/…      ─► files of that restore point (``base.files.backups``); several log directories are
                         folders of it
    everything else   ─► objects as they are (``base.files.objects``)

A path with ``@ID`` names one restore point in any process. A restore point is never written again, so a
reader sees one of them and never a mixture, whatever is put meanwhile. A file is read through its chunks; its
identity is a hash of their names.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from siltstone.base.files import objects
from siltstone.base.files.backups import (
    BackedUpFile,
    chunk_path,
    is_id,
    missing_chunk,
    newest_id,
    point_path,
    read_point,
)
from siltstone.base.files.objects import SMALL_BYTES, ObjectStatus, Windows, place_of, read_range

AnyPath = str | os.PathLike[str]
_MARK = "@"
"""The first character of the part of a path that is the id of a restore point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDirectory:
    """The files and folders of a restore point of the prefix ``target``, by their names from its root on.

    ``chunk_bytes``: the size of every chunk of a file but the last. ``folders``: for each folder, the names
    of the files and of the folders in it.
    """

    target: Path
    chunk_bytes: int
    files: dict[str, BackedUpFile] = field(default_factory=dict)
    folders: dict[str, tuple[list[str], list[str]]] = field(default_factory=lambda: {"": ([], [])})

    def add_folder(self, name: str) -> tuple[list[str], list[str]]:
        """The (files, folders) in a folder, which is added with those above it if it is missing."""
        if name not in self.folders:
            above, _, last = name.rpartition("/")
            self.add_folder(above)[1].append(last)
            self.folders[name] = [], []
        return self.folders[name]

    def add_file(self, name: str, file: BackedUpFile) -> None:
        """Add a file, with the folders above it."""
        above, _, last = name.rpartition("/")
        self.add_folder(above)[0].append(last)
        self.files[name] = file


class _Inside(NamedTuple):
    """A path within a restore point. ``name``: from its root on, "" for the root."""

    target: str
    backup_id: str
    name: str


def _inside(path: AnyPath) -> _Inside | None:
    """The parts of a path within a restore point; None for another path."""
    text = os.fspath(path)
    if f"/{_MARK}" not in text:
        return None
    parts = text.split("/")
    for number, part in enumerate(parts):
        if part.startswith(_MARK) and is_id(part[1:]):
            return _Inside("/".join(parts[:number]), part[1:], "/".join(filter(None, parts[number + 1 :])))
    return None


def is_in_restore_point(path: AnyPath) -> bool:
    """Is it a path of a store within a restore point?"""
    return objects.is_object(path) and _inside(path) is not None


def newest_stored(path: Path) -> Path:
    """The directory that a path of a store stands for: the newest restore point of a prefix that has some,
    else the path itself. Raises OSError."""
    path = objects.as_named(path)
    if _inside(path) is not None:
        return path
    newest = newest_id(path)
    return path if newest is None else path / f"{_MARK}{newest}"


def stored_path(target: Path, backup_id: str) -> Path:
    """The path of a restore point as a directory."""
    return objects.as_named(target) / f"{_MARK}{backup_id}"


@functools.lru_cache(16)
def _directory(target: str, backup_id: str) -> StoredDirectory:
    """A restore point as a directory. Raises FileNotFoundError, CorruptFileError, OSError."""
    path = point_path(Path(target), backup_id)
    point = read_point(path)
    stored = StoredDirectory(target=Path(target), chunk_bytes=point.chunk_bytes)
    for directory, folder in zip(point.directories, point.directory_names, strict=True):
        prefix = f"{folder}/" if folder else ""
        for name in directory.folders:
            stored.add_folder(f"{prefix}{name}".rstrip("/"))  # a log directory itself has the name ""
        for file in directory.files:
            stored.add_file(f"{prefix}{file.name}", file)
    return stored


objects.when_forgotten.append(_directory.cache_clear)  # another store's options, or a test's end


def _locate(path: AnyPath) -> tuple[StoredDirectory, str] | None:
    """The restore point of a path, and the name in it; None for a path outside of restore points."""
    inside = _inside(path)
    if inside is None:
        return None
    return _directory(inside.target, inside.backup_id), inside.name


class StoredChunks(NamedTuple):
    """The chunks of a file of a restore point of ``target``."""

    target: Path
    chunk_bytes: int
    names: tuple[str, ...]


def stored_chunks(path: AnyPath) -> StoredChunks | None:
    """The chunks of a file; None if it is not one of a restore point. Raises FileNotFoundError, OSError."""
    if not is_in_restore_point(path) or (located := _locate(path)) is None:
        return None
    directory, name = located
    if name not in directory.files:
        raise _not_found(path)
    return StoredChunks(directory.target, directory.chunk_bytes, directory.files[name].chunks)


def _not_found(path: AnyPath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place_of(path)))


def _status_of(file: BackedUpFile) -> ObjectStatus:
    etag = hashlib.blake2b(",".join(file.chunks).encode(), digest_size=16).hexdigest()
    return ObjectStatus(file.size, file.modified_ns, etag)


def head(path: AnyPath) -> ObjectStatus:
    """The status of a file. Raises FileNotFoundError, OSError."""
    if (located := _locate(path)) is None:
        return objects.head(path)
    directory, name = located
    if name not in directory.files:
        raise _not_found(path)
    return _status_of(directory.files[name])


def has_keys(path: AnyPath) -> bool:
    """Is it a directory? Raises OSError."""
    try:
        located = _locate(path)
    except FileNotFoundError:
        return False
    return objects.has_keys(path) if located is None else located[1] in located[0].folders


def list_keys(path: AnyPath) -> tuple[dict[str, ObjectStatus], list[str]]:
    """The entries directly in a directory: (files by name, names of folders). Raises FileNotFoundError,
    OSError."""
    if (located := _locate(path)) is None:
        return objects.list_keys(path)
    directory, name = located
    if name not in directory.folders:
        raise _not_found(path)
    inner, folders = directory.folders[name]
    prefix = f"{name}/" if name else ""
    return {last: _status_of(directory.files[f"{prefix}{last}"]) for last in inner}, list(folders)


def read_whole(path: AnyPath, limit: int | None = None) -> memoryview:
    """All bytes of a file, at most ``limit``. Raises OSError."""
    if _inside(path) is None:
        return objects.read_whole(path, limit)
    opened = _Chunks(path)
    size = opened.status.size
    return opened.get(0, size if limit is None else min(size, limit))


def open_windows(path: AnyPath) -> Windows:
    """The bytes of a file, fetched in windows. Raises FileNotFoundError, OSError."""
    return Windows(path) if _inside(path) is None else _Chunks(path)


class _Chunks(Windows):
    """The bytes of a file of a restore point, from its chunks. Long windows end where a chunk ends, so that a
    file that is read in order fetches each chunk whole."""

    def __init__(self, path: AnyPath) -> None:
        located = _locate(path)
        if located is None or located[1] not in located[0].files:
            raise _not_found(path)
        self._directory, self._file = located[0], located[0].files[located[1]]
        self._place = place_of(path)
        self.requests = 0
        self._set_state(_status_of(self._file), memoryview(b""))

    def _window_end(self, start: int, length: int) -> int:
        """As in ``Windows``; a long window ends where a chunk does."""
        if length <= SMALL_BYTES:
            return super()._window_end(start, length)
        chunk = self._directory.chunk_bytes
        end = (start + length) // chunk * chunk  # so that the next window begins with a chunk
        return min(end if end > start else start + length, self.status.size)

    def get(self, start: int, end: int) -> memoryview:
        """The bytes from ``start`` to ``end``. Raises OSError."""
        chunk, parts = self._directory.chunk_bytes, list[memoryview]()
        while start < end:
            number, skipped = divmod(start, chunk)
            size = min(chunk, self.status.size - number * chunk)
            until = min(size, skipped + end - start)
            path = chunk_path(self._directory.target, self._file.chunks[number])
            self.requests += 1
            try:
                parts.append(read_range(path, skipped, until, size))
            except FileNotFoundError:
                raise missing_chunk(path) from None
            start += until - skipped
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    _get = get  # ``Windows`` calls it by this name
