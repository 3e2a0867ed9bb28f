"""All access to the file system: the only package that reads, writes, syncs, renames or removes files.

So one package decides what becomes durable, and in which order. The crash tests can stop at each step:
``observe`` installs a function that is called before every operation that changes something.

Rules for callers: fsync a new file, then sync its directory. Replace a file through a temporary file, fsync,
rename and a sync of the directory (``replace``). Write a file that refers to another one only after the other
one is durable. Never repeat a failed fsync: the kernel may have dropped the dirty pages.

Guarantees about symbolic links, even if root works in a tree whose owner changes it at the same time:

- No operation that creates, changes, renames or removes a file follows a link of that name. Files are created
  with ``O_EXCL`` and ``O_NOFOLLOW``; owner, mode, times and extended attributes are set on an open file or on
  the name itself; ``remove_tree`` removes the links in a tree, and refuses a tree that is itself a link.
- In the path of its directory a link is followed only if root or the user of this process made it
  (``base.files.opening``). The directory is opened first, then the operation is done in the open directory,
  so no other directory can take its place in between.
- A new file is given to another owner only while it has no second hard link, so it is really the new file.
- Readers follow links in paths that users name; the files of a log directory are listed without links.

A path may also name an object of a store (``objects``), or a file of a *joined* directory: a local log
directory together with the files of a remote storage (``joined``). Functions that read take such paths, too;
those that change something raise OSError.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import hashlib
import mmap
import os
import re
import shutil
import stat as modes
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from siltstone.base.files.joined import (
    JoinedFile,
    JoinedReader,
    joined_files,
    local_path,
    located,
    place_of_joined,
)
from siltstone.base.files.joined import is_joined as is_joined
from siltstone.base.files.joined import join as join
from siltstone.base.files.locking import Flock as Flock
from siltstone.base.files.locking import Lock as Lock
from siltstone.base.files.locking import is_locked as is_locked
from siltstone.base.files.locking import lock_holder as lock_holder
from siltstone.base.files.objects import ObjectStatus, Windows, place_of
from siltstone.base.files.objects import StoreOptions as StoreOptions
from siltstone.base.files.objects import as_named as as_named
from siltstone.base.files.objects import claim as claim
from siltstone.base.files.objects import configure as configure
from siltstone.base.files.objects import configured as configured
from siltstone.base.files.objects import copy_object as copy_object
from siltstone.base.files.objects import delete_objects as delete_objects
from siltstone.base.files.objects import forget_options as forget_options
from siltstone.base.files.objects import is_below as is_below
from siltstone.base.files.objects import is_object as is_object
from siltstone.base.files.objects import is_same_store as is_same_store
from siltstone.base.files.objects import objects_below as objects_below
from siltstone.base.files.objects import options_for as options_for
from siltstone.base.files.objects import put_file as put_file
from siltstone.base.files.objects import put_hint as put_hint
from siltstone.base.files.objects import put_new as put_new
from siltstone.base.files.objects import put_own as put_own
from siltstone.base.files.objects import read_range as read_range
from siltstone.base.files.objects import store_errors as store_errors
from siltstone.base.files.opening import DIRECTORY as DIRECTORY
from siltstone.base.files.opening import FILE as FILE
from siltstone.base.files.opening import (
    FILE_KINDS,
    NOFOLLOW_FLAGS,
    OpenedParent,
    OpenFile,
    PathLike,
    before_change,
    lstat_at,
    open_for_writing,
    open_nofollow,
    open_regular,
    refuse_object,
    set_owner,
)
from siltstone.base.files.opening import LINK as LINK
from siltstone.base.files.opening import Operation as Operation
from siltstone.base.files.opening import closing as closing
from siltstone.base.files.opening import discard_descriptors as discard_descriptors
from siltstone.base.files.opening import observe as observe
from siltstone.base.files.opening import unlink as unlink
from siltstone.base.files.stored_directories import has_keys, head, list_keys, open_windows, read_whole
from siltstone.base.files.stored_directories import is_in_restore_point as is_in_restore_point
from siltstone.base.files.stored_directories import newest_stored as newest_stored
from siltstone.base.files.stored_directories import stored_chunks as stored_chunks
from siltstone.base.files.stored_directories import stored_path as stored_path

# Writeback and the page cache. A large file is written back to disk while more of it is written, so that the
# sync has little left to do. Pages that are not read again are dropped from memory. Both are hints to the
# kernel: only bytes that were synced are durable.

# Flags of sync_file_range(2): start to write; wait for earlier writes, write, and wait for these.
_SYNC_FILE_RANGE_WRITE, _SYNC_FILE_RANGE_WRITE_AND_WAIT = 2, 7
_UNSUPPORTED_ERRNOS = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of kernels, file systems and containers that do not support a call. A hint is skipped then, and a
copy is made by reads and writes."""


def _libc_function(name: str, *types: Any) -> Any:
    """A function of the C library with these argument types; None if the system has no such function (not
    Linux)."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = types
    return function


_sync_file_range = _libc_function(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)
_fallocate = _libc_function("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def start_writeback(descriptor: int, position: int, size: int) -> None:
    """Begin to write ``size`` bytes (0: all) from ``position`` on to disk, if the system supports it."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)


def drop_cached(descriptor: int, position: int, size: int) -> None:
    """Wait until ``size`` bytes from ``position`` on are on disk, and drop them from the page cache.

    Raises OSError for a write that failed: the kernel reports it once, so a later sync would succeed.
    """
    if _sync_file_range is None:
        return
    if _sync_file_range(descriptor, position, size, _SYNC_FILE_RANGE_WRITE_AND_WAIT) < 0:
        number = ctypes.get_errno()
        if number in _UNSUPPORTED_ERRNOS:
            return
        raise OSError(number, os.strerror(number))
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)


_WRITEBACK_BYTES = 8 << 20
"""Writeback is started, and pages are dropped, for at least this many bytes at a time."""
_RECENT_BYTES = 24 << 20
"""The last bytes of a file that grows, which are probably not on disk yet: dropping them would wait for the
disk."""
_COPY_BYTES = 8 << 20
"""How many bytes of a file are copied at a time."""
_EXTRA_READ_BYTES = 1 << 12
"""How much more than a file's size the first read asks for."""
_REMOVAL_ROUNDS = 100
"""How often the removal of a tree is repeated while another process still makes files in it."""
_MAX_TREE_DEPTH = 32
"""Most levels of directories in a tree that Siltstone creates; it does not remove a deeper one."""
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def _with_path_in_error(path: PathLike) -> Iterator[None]:
    """Put ``path`` into an OSError of the block, which comes from a call on a bare name or a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        raise


class FileStat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The attributes of a file from ``stat(2)``: ``size`` in bytes, ``links`` is the number of hard links.

    ``kind``: a value of ``opening.FILE_KINDS``, such as ``FILE``, ``DIRECTORY`` or ``LINK``. ``etag``: an
    object's, as its store gives it. (A ``Struct``, since a listing of 100,000 partitions makes hundreds of
    thousands.)
    """

    kind: str
    size: int
    modified_ns: int
    inode: int
    device: int
    owner: int
    group: int
    mode: int
    links: int
    etag: str | None = None

    @property
    def identity(self) -> tuple[int, int, int]:
        """(inode, size, modification time): the same on every machine, also after a rename, until the file is
        written to. The device number is left out: each client of a network file system chooses its own.
        """
        return self.inode, self.size, self.modified_ns

    @property
    def device_and_inode(self) -> tuple[int, int]:
        """(device, inode): on this machine, the same for every path that leads to the file."""
        return self.device, self.inode


class FileIdentity(NamedTuple):
    """The identity of a file when it was listed. Any machine can tell by it whether a file is still the same.

    ``may_grow``: the file may have grown since; else its size and modification time must be the same. The
    device number is left out, as in ``FileStat.identity``.
    """

    inode: int
    size: int
    modified_ns: int
    may_grow: bool

    @classmethod
    def of(cls, status: FileStat, *, may_grow: bool) -> FileIdentity:
        """The identity of a file as it is now."""
        return cls(status.inode, status.size, status.modified_ns, may_grow)

    def matches(self, status: FileStat) -> bool:
        """Whether ``status`` is that of the same file, and the bytes that it had are still there."""
        if self.may_grow and status.size > self.size:
            return status.inode == self.inode
        return status.identity == (self.inode, self.size, self.modified_ns)


class Entry(NamedTuple):
    """One name in a directory. A symbolic link is neither ``is_file`` nor ``is_directory``."""

    name: str
    is_file: bool
    is_directory: bool
    is_link: bool


def is_read_only(path: PathLike) -> bool:
    """Is it a path where Siltstone only reads: one of a store, or of a joined directory?"""
    return is_joined(path) or is_object(path)


def stat(path: PathLike, *, follow: bool = True) -> FileStat:
    """``stat(2)`` of a file. ``follow``: of a link's target, else of the link itself. Raises OSError."""
    text = os.fspath(path)
    if text[:1] == "/":  # as nearly always: neither of a store nor joined
        return file_stat(os.stat(text, follow_symlinks=follow))
    path, joined = located(text)
    if joined is not None:
        return joined.stat
    if is_object(path):
        return _object_stat(path)
    return file_stat(os.stat(path, follow_symlinks=follow))


def stats_of(directory: PathLike, names: Iterable[str]) -> dict[str, FileStat]:
    """The ``FileStat`` of each of ``names`` that is a file in the directory. In a store this takes one
    request for each name; ``stat`` would make a second one for a missing object, to see whether it is a
    directory. Raises OSError."""
    stats: dict[str, FileStat] = {}
    for name in names:
        path = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):
            stats[name] = _stat_of_object(head(path)) if is_object(path) else stat(path)
    return stats


def file_stat(status: os.stat_result) -> FileStat:
    """A ``FileStat`` of the result of ``stat(2)``."""
    return FileStat(
        kind=FILE_KINDS.get(modes.S_IFMT(status.st_mode), "file of another kind"),
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
        inode=status.st_ino,
        device=status.st_dev,
        owner=status.st_uid,
        group=status.st_gid,
        mode=status.st_mode & 0o7777,
        links=status.st_nlink,
    )


def _object_stat(path: PathLike) -> FileStat:
    """The status of an object, or of a directory of a store."""
    try:
        return _stat_of_object(head(path))
    except FileNotFoundError:
        if not has_keys(path):
            raise
    # A directory of a store has no ETag: a hash of its path takes the place of an inode.
    place = str(place_of(path)).encode()
    number = int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "big") >> 1
    return _stat_of_object(ObjectStatus(0, 0, None), kind=DIRECTORY, inode=number)


def _stat_of_object(status: ObjectStatus, *, kind: str = FILE, inode: int | None = None) -> FileStat:
    """The status of an object as that of a file of this user, whose inode is ``ObjectStatus.number``."""
    return FileStat(
        kind=kind,
        size=status.size,
        modified_ns=status.modified_ns,
        inode=status.number if inode is None else inode,
        device=_STORE_DEVICE,
        owner=os.geteuid(),
        group=os.getegid(),
        mode=0o400,
        links=1,
        etag=status.etag,
    )


_STORE_DEVICE = -1
"""The device number of all objects, which no file system has."""


def exists(path: PathLike) -> bool:
    """Is there a file, directory or link of that name, even a broken link?"""
    path, joined = located(path)
    if joined is not None:
        return True
    if is_object(path):
        with contextlib.suppress(FileNotFoundError):
            _object_stat(path)
            return True
        return False
    return os.path.lexists(path)


def absolute(path: Path) -> Path:
    """The absolute path; a path that is only read (``is_read_only``) stays as it is."""
    return as_named(path) if is_read_only(path) else path.absolute()


def resolved(path: Path) -> Path:
    """The path without links; a path that is only read stays as it is, and so does one whose links form a
    circle."""
    return as_named(path) if is_read_only(path) else Path(os.path.realpath(path))


def is_link(path: PathLike) -> bool:
    """Is it a symbolic link, even a broken one?"""
    path, joined = located(path)
    if joined is not None or is_object(path):
        return False
    return os.path.islink(path)


def is_directory(path: PathLike, *, follow: bool = True) -> bool:
    """Is it a directory, or a link to one? Without ``follow`` a link is not a directory."""
    path, joined = located(path)
    if joined is not None:
        return False
    if is_object(path):
        return has_keys(path)
    return os.path.isdir(path) and (follow or not os.path.islink(path))


def entries(directory: PathLike | int) -> list[Entry]:
    """The entries of a directory (its path, or the descriptor of an open one), sorted by name. Raises
    OSError."""
    if not isinstance(directory, int) and is_joined(directory):
        joined = joined_files(directory, again=True)
        rows = entries(_local(directory))
        names = joined.keys() - {row.name for row in rows}
        rows += [Entry(name, is_file=True, is_directory=False, is_link=False) for name in names]
        return sorted(rows, key=lambda row: row.name)
    if not isinstance(directory, int) and is_object(directory):
        objects, folders = list_keys(directory)
        rows = [Entry(name, is_file=True, is_directory=False, is_link=False) for name in objects]
        rows += [Entry(name, is_file=False, is_directory=True, is_link=False) for name in folders]
        return sorted(rows, key=lambda row: row.name)
    with os.scandir(directory) as listing:
        rows = [
            Entry(
                item.name,
                item.is_file(follow_symlinks=False),
                item.is_dir(follow_symlinks=False),
                item.is_symlink(),
            )
            for item in listing
        ]
    return sorted(rows, key=itemgetter(0))


def children(directory: PathLike) -> dict[str, Path]:
    """The path of each entry of a directory by name. (For 100,000 names, ``directory / name``, which parses
    the name, takes twice the time.) Empty for a path that is only read, where the listing would take a
    request. Raises OSError."""
    if is_read_only(directory):
        return {}
    return {path.name: path for path in Path(directory).iterdir()}


def _local(path: PathLike) -> str:
    """The local path that a joined path stands for."""
    return local_path(place_of_joined(path))


def matching(pattern: str) -> list[str]:
    """The paths that a pattern of a shell (``*``, ``?``, ``[…]``) matches, sorted; what cannot be listed
    matches nothing."""
    return sorted(glob.glob(pattern))


def list_all(
    directory: PathLike, *, may_vanish: tuple[str, ...] = (), ending: str = ""
) -> dict[str, FileStat]:
    """The ``FileStat`` of every entry of the directory by name: of a link itself, not of its target.

    An entry whose name ends with one of ``may_vanish`` may be removed while the directory is read.
    ``ending``: only entries whose names have it. Raises FileNotFoundError if another entry is removed,
    OSError.
    """
    text = os.fspath(directory)
    if text[:1] != "/" and is_read_only(text):
        listed = _list_all_elsewhere(directory, may_vanish)
        return {name: status for name, status in listed.items() if name.endswith(ending)}
    status_by_name = dict[str, FileStat]()
    with os.scandir(text) as listing:
        for entry in listing:
            name = entry.name
            if not name.endswith(ending):
                continue
            try:
                status_by_name[name] = file_stat(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                if not name.endswith(may_vanish):
                    raise
    return status_by_name


def _list_all_elsewhere(directory: PathLike, may_vanish: tuple[str, ...]) -> dict[str, FileStat]:
    """``list_all`` of a joined directory, or of one of a store."""
    if is_joined(directory):
        added = {name: file.stat for name, file in joined_files(directory, again=True).items()}
        return added | list_all(_local(directory), may_vanish=may_vanish)
    objects, folders = list_keys(directory)
    no_object = ObjectStatus(0, 0, None)
    return {
        **{name: _stat_of_object(status) for name, status in objects.items()},
        **{name: _stat_of_object(no_object, kind=DIRECTORY) for name in folders},
    }


def list_files(directory: PathLike, *, ending: str = "") -> dict[str, FileStat]:
    """The ``FileStat`` of every regular file of the directory by name, without links. ``ending``: only files
    whose names have it. Raises OSError."""
    listed = list_all(directory, ending=ending)
    return {name: status for name, status in listed.items() if status.kind == FILE}


def read_slice(path: PathLike, position: int, size: int) -> bytes:
    """Up to ``size`` bytes of a regular file from ``position`` on, fewer only at its end. Raises OSError."""
    if is_read_only(path):
        with Reader(path) as reader:
            return reader.read(position, size)
    with closing(open_regular(path)) as descriptor:
        return os.pread(descriptor, size, position)


def map_file(path: PathLike) -> npt.NDArray[np.uint8]:
    """A file's bytes mapped into memory: uint8, read-only. Raises OSError.

    Only for files that are never truncated: the system ends a process that reads bytes which are no longer
    there. The bytes stay as long as the array does, also if the file is removed.
    """
    path, joined = located(path)
    if joined is not None:
        return np.frombuffer(_read_joined(joined, joined.stat.size), np.uint8)
    if is_object(path):
        return np.frombuffer(read_whole(path), np.uint8)
    with closing(open_regular(path)) as descriptor:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, np.uint8)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ), np.uint8)


def read_bytes(path: PathLike, limit: int = 1 << 30) -> bytes:
    """A small regular file's bytes, at most ``limit``. Raises OSError."""
    path, joined = located(path)
    if joined is not None:
        return _read_joined(joined, limit)
    if is_object(path):
        return bytes(read_whole(path, limit))
    with open(open_regular(path), "rb") as file:
        return _read_up_to(file, limit)


def read_input(path: PathLike, limit: int = 1 << 30) -> bytes:
    """The bytes of a file named on a command line, which may be a pipe, at most ``limit``. Raises OSError."""
    path, joined = located(path)
    if joined is not None:
        return _read_joined(joined, limit)
    if is_object(path):
        return bytes(read_whole(path, limit))
    with open(path, "rb") as file:
        return _read_up_to(file, limit)


def input_parts(path: PathLike, part_size: int) -> Iterator[bytes]:
    """All bytes of a file named on a command line, which may be a pipe, up to ``part_size`` at a time. Raises
    OSError."""
    if is_read_only(path):
        with Reader(path) as reader:
            for position in range(0, reader.stat.size, part_size):
                yield reader.read(position, part_size)
        return
    with open(path, "rb") as file:
        while part := file.read1(part_size):
            yield part


def _read_joined(joined: JoinedFile, limit: int) -> bytes:
    with Reader(joined) as reader:
        return reader.read(0, min(limit, joined.stat.size))


def _read_up_to(file: IO[bytes], limit: int) -> bytes:
    """The bytes of an open file up to its end, at most ``limit``."""
    # Python allocates as many bytes as a read asks for, and a pipe has no size. So a read asks for the size
    # of the file and a little more, not for ``limit``.
    piece_size = os.fstat(file.fileno()).st_size + _EXTRA_READ_BYTES
    parts = list[bytes]()
    while limit > 0 and (part := file.read(min(limit, piece_size))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def sha256(path: PathLike) -> str:
    """A regular file's SHA-256 in hex. Raises OSError."""
    if is_read_only(path):
        digest = hashlib.sha256()
        for part in input_parts(path, _COPY_BYTES):
            digest.update(part)
        return digest.hexdigest()
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Reader(OpenFile):
    """An open regular file that is read at any position. It can be read after the file was renamed or
    removed.

    ``total_read``: the bytes that all readers of this process have read into buffers. ``windows``: what
    reads an object of a store, or a file that is joined to a directory, neither of which has a descriptor
    here; None for any other file.
    """

    total_read: ClassVar[int] = 0
    windows: Windows | JoinedReader | None = None

    def __init__(self, path: PathLike | JoinedFile) -> None:
        path, joined = (path.path, path) if isinstance(path, JoinedFile) else located(path)
        self.path = os.fspath(path)
        if joined is not None:
            self.windows = JoinedReader(joined)
            self.stat = joined.stat
            return
        if is_object(path):
            self.windows = open_windows(path)
            self.stat = _stat_of_object(self.windows.status)
            return
        self.descriptor = open_regular(path)
        self.stat = file_stat(os.fstat(self.descriptor))
        with contextlib.suppress(OSError):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.windows is not None:
            self.windows.close()
        super().close()

    def read_into(self, buffer: np.ndarray[Any, np.dtype[np.uint8]], position: int) -> int:
        """Fill ``buffer`` (uint8) from ``position``; returns the bytes read, fewer only at the end."""
        if self.windows is not None:
            count = self.windows.read_into(buffer, position)
            Reader.total_read += count
            return count
        view, total_read = memoryview(buffer.data), 0
        while total_read < len(view):
            count = os.preadv(self.descriptor, [view[total_read:]], position + total_read)
            if count == 0:
                break
            total_read += count
        Reader.total_read += total_read
        return total_read

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``, fewer only at the end. For small reads."""
        if self.windows is not None:
            buffer = np.empty(max(min(size, self.stat.size - position), 0), np.uint8)
            return buffer[: self.windows.read_into(buffer, position)].tobytes()
        return os.pread(self.descriptor, size, position)


def bytes_read() -> int:
    """The bytes that this process has read into buffers so far, for showing progress."""
    return Reader.total_read


def _copy_in_kernel(source: int, target: int, size: int, position: int) -> int | None:
    """Copy up to ``size`` bytes of the open file ``source``, from ``position`` on, to the end of the open
    file ``target``; returns how many. None if the system or a file system does not support it. Raises
    OSError."""
    if not hasattr(os, "copy_file_range"):  # not Linux
        return None
    try:
        return os.copy_file_range(source, target, size, position)
    except OSError as error:
        if error.errno in (*_UNSUPPORTED_ERRNOS, errno.EXDEV):
            return None
        raise


class Writer(OpenFile):
    """A new file that is written from start to end; ``size`` is the number of bytes written so far.

    Raises FileExistsError if there is a file of that name. ``will_be_synced``: the caller is going to call
    ``sync``, so the writeback of a large file begins before that. ``permissions``: its mode, less the umask.
    """

    def __init__(self, path: PathLike, *, will_be_synced: bool = True, permissions: int = 0o600) -> None:
        self.path = os.fspath(path)
        before_change("create", path)
        with OpenedParent(path) as (parent, name):
            self.descriptor = os.open(name, _NEW_FILE_FLAGS, permissions, dir_fd=parent)
        self._will_be_synced = will_be_synced
        # Positions: the bytes before them were handed to writeback, and dropped from the page cache.
        self.size = self._written_back = self._dropped = 0

    def write(self, data: Any) -> None:
        """Append all of ``data``. Raises OSError, such as for a full disk."""
        view = memoryview(data).cast("B")
        before_change("write", self.path)
        while len(view):
            written = os.write(self.descriptor, view)
            self.size += written
            view = view[written:]
        self._start_writeback()

    def copy(self, reader: Reader, position: int, size: int) -> int:
        """Append ``size`` bytes of another file from ``position`` on; returns how many: fewer only at its
        end. Raises OSError.

        The kernel copies, where both file systems allow it, or shares the blocks (``copy_file_range(2)``).
        """
        end = self.size + size
        before_change("write", self.path)
        while self.size < end:
            step = min(end - self.size, _COPY_BYTES)
            copied: int | None = None
            if reader.windows is None:
                copied = _copy_in_kernel(reader.descriptor, self.descriptor, step, position)
            if not copied:  # a file system that does not copy may say 0 instead of an error
                copied = self._write_some(reader.read(position, step))
            if copied == 0:
                break
            position, self.size = position + copied, self.size + copied
            self._start_writeback()
        return size - (end - self.size)

    def _write_some(self, data: bytes) -> int:
        return os.write(self.descriptor, data) if data else 0

    def _start_writeback(self) -> None:
        if self._will_be_synced and self.size - self._written_back >= _WRITEBACK_BYTES:
            start_writeback(self.descriptor, self._written_back, self.size - self._written_back)
            self._written_back = self.size

    def drop_cached(self, position: int) -> None:
        """Drop bytes before ``position``, which are not read again, from the page cache, except the last
        bytes that were written: they are probably not on disk yet. Raises OSError if some could not be
        written.
        """
        end = min(position, self._written_back, self.size - _RECENT_BYTES)
        if end - self._dropped >= _WRITEBACK_BYTES:
            drop_cached(self.descriptor, self._dropped, end - self._dropped)
            self._dropped = end

    def drop_cached_rest(self) -> None:
        """Drop the rest of a synced file from the page cache, if a part of it was dropped before. Raises
        OSError."""
        if self._dropped:
            drop_cached(self.descriptor, self._dropped, self.size - self._dropped)

    def sync(self) -> None:
        """Make the contents durable."""
        before_change("fsync", self.path)
        os.fsync(self.descriptor)


_MAX_RESERVED_BYTES = 64 << 20
_MIN_RESERVED_BYTES = 1 << 20
"""The most bytes that are reserved at a time; the least size of a file for which bytes are reserved."""
_FALLOC_FL_KEEP_SIZE = 1
"""The flag of fallocate(2) that leaves the file's size as it is."""


class Appender:
    """A file open for appending, created if it does not exist; ``size`` is the position of the next byte, by
    default the file's end. Raises OSError, also for a link.

    If a write fails half-way, the file is truncated to its end before the write. After a failed fsync nothing
    is written or synced any more, since the contents on disk are unknown.

    ``reserve_up_to``: disk blocks are allocated before they are written, up to this file size. A file of 1
    MiB or more is allocated as many more bytes as it already has, at most 64 MiB at a time. Writes are a
    fifth faster on ext4 that way. The file's size never includes reserved blocks; ``release`` and ``close``
    free those that were not used.
    """

    def __init__(self, path: PathLike, size: int | None = None, *, reserve_up_to: int = 0) -> None:
        self.path = os.fspath(path)
        self._descriptor, _ = open_for_writing(path)
        self._closing = threading.Lock()
        self._is_broken = False
        self.size = os.fstat(self._descriptor).st_size if size is None else size
        self._reserve_up_to = reserve_up_to
        self._reserved = 0

    def write(self, data: Any) -> None:
        """Append bytes (any object with a contiguous buffer). Raises OSError; then the file is as it was
        before."""
        if self._is_broken:
            self._refuse_broken()
        before_change("write", self.path)
        view = memoryview(data)
        size = view.nbytes
        if self._reserved < self.size + size <= self._reserve_up_to:
            self._reserve()
        written = 0
        try:
            while written < size:
                rest = view.cast("B")[written:] if written else view
                written += os.pwrite(self._descriptor, rest, self.size + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += written

    def _reserve(self) -> None:
        """Allocate blocks after the file's end, if the file system supports it."""
        if self.size < _MIN_RESERVED_BYTES or _fallocate is None:
            return
        size = min(self.size, _MAX_RESERVED_BYTES, self._reserve_up_to - self.size)
        # If this fails, the write itself allocates the blocks.
        _fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, self.size, size)
        self._reserved = self.size + size

    def release(self) -> None:
        """Free the reserved blocks that were not used; keep the file's times."""
        if self._reserved > self.size and not self._is_broken:
            # ftruncate(2) to the file's own size frees the blocks after it, but also changes its time.
            times = os.fstat(self._descriptor)
            os.ftruncate(self._descriptor, self.size)
            os.utime(self._descriptor, ns=(times.st_atime_ns, times.st_mtime_ns))
        self._reserved = 0

    def truncate(self, size: int) -> None:
        """Truncate the file to ``size`` bytes, durably. Raises OSError."""
        self._refuse_broken()
        before_change("truncate", self.path, str(size))
        os.ftruncate(self._descriptor, size)
        self.size, self._reserved = size, 0
        self.sync()

    def sync(self) -> None:
        """Make the contents durable. Raises OSError; after a failure every further call raises it, too.
        FileNotFoundError if the file was closed."""
        self._refuse_broken()
        before_change("fsync", self.path)
        # A descriptor of its own: another thread may close the file meanwhile, and the file that it opens
        # next may get the same descriptor number.
        with self._closing:
            if self._descriptor < 0:
                raise FileNotFoundError(errno.ENOENT, "closed before it was synced", self.path)
            descriptor = os.dup(self._descriptor)
        try:
            os.fsync(descriptor)
        except OSError:
            # The kernel may have dropped the dirty pages, so a second fsync would succeed falsely.
            self._is_broken = True
            raise
        finally:
            os.close(descriptor)

    def _refuse_broken(self) -> None:
        if self._is_broken:
            raise OSError(
                errno.EIO, "an fsync of this file has failed; nothing more is written to it", self.path
            )

    def close(self) -> None:
        """Close the file. Bytes that were not synced are written to disk by the system, some time later."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.release()
            with self._closing:
                descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


@dataclass(slots=True, eq=False)
class FileSlice:
    """A range of bytes of an open file, not yet read (Kafka's ``FileRecords.slice``).

    It keeps the file open, so the range can be read after the file was renamed or removed.
    """

    reader: Reader
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def read(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Read the bytes: uint8, writable; fewer than ``size`` if the file was truncated in the meantime."""
        buffer = np.empty(self.size, np.uint8)
        return buffer[: self.reader.read_into(buffer, self.position)]

    def send(self, socket: int, start: int = 0) -> int:
        """Send bytes from ``start`` on into a socket (its descriptor) without copying them through this
        process; returns how many were sent: 0 if the file was truncated and has none of them any more.

        Raises BlockingIOError if a non-blocking socket takes none now, OSError.
        """
        return os.sendfile(socket, self.reader.descriptor, self.position + start, self.size - start)


def write_new(path: PathLike, data: bytes, *, sync: bool = True) -> None:
    """Write and fsync a new file; the caller syncs the directory. Without ``sync`` the caller syncs the file,
    too, with others (``sync_together``). Raises FileExistsError."""
    with Writer(path, will_be_synced=sync) as writer:
        if data:
            writer.write(data)
        if sync:
            writer.sync()


def replace(path: PathLike, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, durably: temporary file, fsync, rename, directory sync.

    Owner, group, mode and extended attributes are those of the old file, else the directory's owner. A link
    of that name is replaced, not its target (as by Kafka, which renames, too).
    """
    target = Path(path)
    temporary = target.with_name(target.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        unlink(temporary)
    try:
        write_new(temporary, data)
        if exists(target) and not target.is_symlink():
            copy_attributes(target, temporary)
        else:
            inherit_owner(temporary)
        rename(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(temporary)
        raise
    sync_directory(target.parent)


def rename(source: PathLike, target: PathLike) -> None:
    """Rename a file, replacing ``target``. If both are hard links to one file, only ``target`` is left."""
    refuse_object(source)
    refuse_object(target)
    with OpenedParent(source) as (source_parent, old), OpenedParent(target) as (target_parent, new):
        with contextlib.suppress(FileNotFoundError):
            # rename(2) of one hard link onto another of the same file does nothing and reports success.
            if os.path.samestat(lstat_at(new, target_parent), lstat_at(old, source_parent)):
                return unlink(source)
        before_change("rename", source, target)
        os.rename(old, new, src_dir_fd=source_parent, dst_dir_fd=target_parent)


def link(source: PathLike, target: PathLike) -> None:
    """Make ``target`` a hard link to the file ``source``. Raises OSError, also across file systems."""
    before_change("link", source, target)
    with OpenedParent(source) as (source_parent, old), OpenedParent(target) as (target_parent, new):
        os.link(old, new, src_dir_fd=source_parent, dst_dir_fd=target_parent, follow_symlinks=False)


def make_directory(path: PathLike, *, parents: bool = False) -> None:
    """Create a directory, unless it exists, with the owner of its parent. Raises NotADirectoryError if a link
    or a file has its name."""
    refuse_object(path)
    target = Path(path)
    if parents and not target.parent.exists():
        make_directory(target.parent, parents=True)
    if target.name in ("", ".."):
        return
    with OpenedParent(target) as (parent, name):
        if _has_directory(parent, name):
            return
        before_change("mkdir", path)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:  # another thread or process was faster
            if _has_directory(parent, name):
                return
            raise
        with closing(os.open(name, NOFOLLOW_FLAGS | os.O_DIRECTORY, dir_fd=parent)) as created:
            set_owner(created, os.fstat(parent))


def _has_directory(parent: int, name: str) -> bool:
    """Is there a directory of that name? Raises NotADirectoryError if it is something else."""
    try:
        mode = lstat_at(name, parent).st_mode
    except FileNotFoundError:
        return False
    if not modes.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "exists and is not a directory (or is a link to one)")
    return True


def remove_directory(path: PathLike) -> None:
    """Remove an empty directory. Raises OSError when it is not empty."""
    before_change("rmdir", path)
    with OpenedParent(path) as (parent, name):
        os.rmdir(name, dir_fd=parent)


def remove_tree(path: PathLike) -> None:
    """Remove a directory that Siltstone created, with everything in it. Links in it are removed and never
    followed. Raises NotADirectoryError, and removes nothing, if ``path`` itself is a link.

    Another process, such as a task that outlives its job, may create or remove files in it meanwhile. Raises
    OSError.
    """
    with OpenedParent(path) as (parent, name):
        _remove_tree(parent, name, os.fspath(path), _MAX_TREE_DEPTH)


def _remove_tree(parent: int, name: str, path: str, levels_left: int) -> None:
    """Remove the tree ``name`` in the open directory ``parent``. ``path``: its path, for errors and the
    observer; ``levels_left``: how deep the tree may be."""
    if levels_left == 0:
        raise OSError(errno.ELOOP, "has more levels than Siltstone creates; remove it by hand", path)
    with _with_path_in_error(path):
        opened = os.open(name, NOFOLLOW_FLAGS | os.O_DIRECTORY, dir_fd=parent)
    with closing(opened) as directory:
        for _ in range(_REMOVAL_ROUNDS):
            for entry in entries(directory):
                entry_path = os.path.join(path, entry.name)
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_directory:
                        _remove_tree(directory, entry.name, entry_path, levels_left - 1)
                    else:
                        before_change("unlink", entry_path)
                        with _with_path_in_error(entry_path):
                            os.unlink(entry.name, dir_fd=directory)
            try:
                before_change("rmdir", path)
                with _with_path_in_error(path):
                    return os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
    raise OSError(
        errno.ENOTEMPTY, "another process keeps creating files in it; stop it and remove the directory", path
    )


def unsafe_directory_reason(path: PathLike) -> str | None:
    """Why files may not be put into the directory ``path``: it is not a directory, or its owner is neither
    root nor this user nor the owner of its parent.

    None if they may, or if nothing has that name. Raises OSError.
    """
    with OpenedParent(path) as (parent, name):
        try:
            status = lstat_at(name, parent)
        except FileNotFoundError:
            return None
        if modes.S_ISLNK(status.st_mode):
            return "is a symbolic link"
        if not modes.S_ISDIR(status.st_mode):
            return "is not a directory"
        if status.st_uid not in (0, os.geteuid(), os.fstat(parent).st_uid):
            return f"belongs to user {status.st_uid}, and the directory that it is in to another"
        return None


def tree_size(path: PathLike) -> int:
    """The size in bytes of a file, or of all files below a directory, without links."""
    if not is_directory(path):
        return stat(path, follow=False).size
    # Without recursion: folders may be nested deeper than Python's calls can be.
    size, waiting = 0, [Path(path)]
    while waiting:
        folder = waiting.pop()
        for name, status in list_all(folder).items():
            if status.kind == DIRECTORY:
                waiting.append(folder / name)
            elif status.kind != LINK:
                size += status.size
    return size


def sync_directory(path: PathLike) -> None:
    """Make the entries of a directory durable: files that were created, renamed or removed in it."""
    before_change("fsync", path)
    with closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


def sync_file(path: PathLike) -> None:
    """Make an existing file's contents and attributes durable."""
    sync_files((path,))


def sync_files(paths: Iterable[PathLike]) -> None:
    """``sync_file`` of all ``paths``, in order. Writeback of all files begins before the first fsync."""
    with contextlib.ExitStack() as stack:
        opened = []
        for path in paths:
            opened.append((path, stack.enter_context(closing(open_nofollow(path)))))
            start_writeback(opened[-1][1], 0, 0)
        for path, descriptor in opened:
            before_change("fsync", path)
            os.fsync(descriptor)


_SYNC_THREADS = 8


def sync_together(paths: Iterable[PathLike]) -> None:
    """Make files and directories durable, in any order. Raises OSError.

    Several threads wait for the disk at the same time, and the file system's journal is written once for all
    of them: with ext4 a thousand new files take 0.2 s, one after another 4 s.
    """
    listed = list(paths)
    for path in listed:
        before_change("fsync", path)
    with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="siltstone-sync") as pool:
        list(pool.map(_sync, listed))


def _sync(path: PathLike) -> None:
    with closing(open_nofollow(path)) as descriptor:
        os.fsync(descriptor)


def set_modified(path: PathLike, modified_ns: int) -> None:
    """Set the modification time (ns); of a link itself, not of its target."""
    before_change("utime", path)
    with OpenedParent(path) as (parent, name):
        os.utime(name, ns=(modified_ns, modified_ns), dir_fd=parent, follow_symlinks=False)


def copy_attributes(source: PathLike, target: PathLike) -> None:
    """Give ``target``, a new file or directory, the owner, group, mode, ACL and extended attributes of
    ``source``, not its times. An object of a store has none of these. Labels of the system (``security.*``:
    of SELinux, IMA) are copied where this process may set them; elsewhere the system gives a new file its
    own. Raises OSError, also where one of the two is a link."""
    source, joined = located(source)
    if joined is not None or is_object(source):
        return
    before_change("attributes", target, source)
    with (
        closing(open_nofollow(source)) as old,
        closing(open_nofollow(target)) as new,
        _with_path_in_error(target),
    ):
        status = os.fstat(old)
        set_owner(new, status)
        os.fchmod(new, status.st_mode & 0o7777)
        try:
            names = os.listxattr(old)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENODATA):
                return
            raise
        for name in names:
            try:
                os.setxattr(new, name, os.getxattr(old, name))
            except OSError as error:
                if not name.startswith("security.") or error.errno not in (errno.EPERM, errno.ENOTSUP):
                    raise


def inherit_owner(path: PathLike) -> None:
    """Give a new file or directory the owner and group of the directory that it is in."""
    with OpenedParent(path) as (parent, name), closing(os.open(name, NOFOLLOW_FLAGS, dir_fd=parent)) as new:
        set_owner(new, os.fstat(parent))


_COPY_BUFFER_BYTES = 4 << 20


def copy(source: PathLike, target: PathLike) -> None:
    """Copy a file durably, with attributes and modification time. Raises OSError if ``target`` exists or
    ``source`` is a link."""
    source, joined = located(source)
    if joined is not None or is_object(source):
        with Reader(source if joined is None else joined) as stored, Writer(target) as writer:
            writer.copy(stored, 0, stored.stat.size)
            writer.sync()
        set_modified(target, stored.stat.modified_ns)
        return
    with open(open_regular(source, follow=False), "rb", buffering=0) as reader, Writer(target) as writer:
        status = os.fstat(reader.fileno())
        shutil.copyfileobj(reader, writer, _COPY_BUFFER_BYTES)
        writer.sync()
    copy_attributes(source, target)
    set_modified(target, status.st_mtime_ns)


class FreeSpace(NamedTuple):
    """The free space of a file system for this user, and its size. ``free_inodes`` is None if it does not
    count inodes."""

    free_bytes: int
    free_inodes: int | None
    total_bytes: int = 0


def free_space(path: PathLike) -> FreeSpace:
    """The free space of the file system that holds ``path``."""
    path, _ = located(path)
    status = os.statvfs(path)
    free_inodes = status.f_favail if status.f_files else None
    return FreeSpace(
        free_bytes=status.f_bavail * status.f_frsize,
        free_inodes=free_inodes,
        total_bytes=status.f_blocks * status.f_frsize,
    )


OBJECTS = "objects of a store"
"""What ``file_system`` returns where there is no file system."""
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p fuse.sshfs fuse.s3fs ceph glusterfs lustre afs".split()
)
_OCTAL_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")
"""How /proc/self/mountinfo writes a space, a tab, a line end or a backslash of a mount point."""


def file_system(path: PathLike) -> str:
    """The type of the file system that holds ``path`` ("ext4", "nfs4"…), "" if it is unknown, ``OBJECTS`` for
    a path of a store, or of a joined directory."""
    if is_read_only(path):
        return OBJECTS
    real = os.path.realpath(path)
    try:
        lines = read_bytes("/proc/self/mountinfo").splitlines()
    except OSError:
        return ""
    longest_mount, kind = "", ""
    for line in lines:
        # mount id, parent, device, root, mount point, options … - file system, source, options
        mount_fields, _, file_system_fields = line.partition(b" - ")
        mount = os.fsdecode(
            _OCTAL_ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), mount_fields.split()[4])
        )
        is_inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if is_inside and len(mount) >= len(longest_mount):
            longest_mount, kind = mount, os.fsdecode(file_system_fields.split()[0])
    return kind


def temporary_directory(prefix: str, parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """A directory that is removed at the end of its context. Files that cannot be removed are left."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)


def local_folder_of_executor() -> str | None:
    """In a task of Spark: a folder of its executor's own disks, which Spark removes when the executor ends.
    Else None."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def temporary_file() -> IO[bytes]:
    """An open file without a name."""
    return tempfile.TemporaryFile()


def find_program(name: str) -> str | None:
    """The path of the program that a shell would start under this name; None if there is none."""
    return shutil.which(name)


def zip_package(root: Path, target: Path, suffixes: tuple[str, ...]) -> None:
    """Zip the files of a Python package that have one of the ``suffixes``, so that it can be imported from
    ``target``."""
    with zipfile.ZipFile(target, "w") as archive:
        for source in sorted(root.rglob("*")):
            if source.suffix in suffixes:
                archive.write(source, Path(root.name) / source.relative_to(root))


def write_zip(target: Path, contents: Mapping[str, bytes]) -> None:
    """Write a zip with these files, by their path in it."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR = range(3)


def open_standard_files() -> None:
    """Open standard input, output and error on the null device, where the process was started without them.

    Otherwise the next files that are opened get their descriptors. A segment with that of standard error
    would get what libraries and Java write there; a ``.lock`` with it would be unlocked when it is
    redirected."""
    for number in (_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest descriptor that is free: this one
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


@contextlib.contextmanager
def redirect_standard_error(descriptor: int) -> Iterator[None]:
    """Redirect standard error to ``descriptor`` within the block, also of processes that are started in
    it."""
    sys.stderr.flush()
    before = os.dup(_STANDARD_ERROR)
    os.dup2(descriptor, _STANDARD_ERROR)
    try:
        yield
    finally:
        os.dup2(before, _STANDARD_ERROR)
        os.close(before)


def discard_standard_output() -> None:
    """Discard standard output from now on, after its reader has closed the pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STANDARD_OUTPUT)
    os.close(null)
