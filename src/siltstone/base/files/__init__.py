"""All access to the file system: the only package that reads, writes, syncs, renames or removes files.

So this package shows what is durable when, and the crash tests can stop at each step: ``observe`` installs a
function that is called before every operation that changes something.

Rules for the callers: a new file is written, fsynced, then its directory is synced; a file is replaced
through a temporary file, fsync, rename, directory sync; a pointer is written only after the file that it
points to is durable. A failed fsync is never repeated: the kernel may have dropped the dirty pages.

Guarantees about symbolic links, also when root works in a tree whose owner changes it at the same time:

- No operation that creates, changes, renames or removes a file follows a link of that name. Files are created
  with ``O_EXCL`` and ``O_NOFOLLOW``; owner, mode, times and extended attributes are set on an open file or on
  the name itself; ``remove_tree`` removes links and refuses a tree that is one.
- On the way there a link is followed only when root or the user of this process made it
  (``base.files.opening``): the directory is opened first, then the operation is done in it, so that nothing
  can be swapped between the two.
- A file that is given to another owner has one name only, so it is the new one.
- Readers follow links in paths that users name; the files of a log directory are listed without links.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import re
import shutil
import stat as modes
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.files.locking import Flock as Flock
from siltstone.base.files.locking import Lock as Lock
from siltstone.base.files.locking import is_locked as is_locked
from siltstone.base.files.opening import DIRECTORY as DIRECTORY
from siltstone.base.files.opening import FILE as FILE
from siltstone.base.files.opening import (
    FILE_KINDS,
    NOFOLLOW_FLAGS,
    OpenedParent,
    OpenFile,
    PathLike,
    before_change,
    closing,
    lstat_at,
    open_for_writing,
    open_nofollow,
    open_regular,
    set_owner,
)
from siltstone.base.files.opening import LINK as LINK
from siltstone.base.files.opening import Operation as Operation
from siltstone.base.files.opening import observe as observe
from siltstone.base.files.opening import unlink as unlink

# Writeback and the page cache. The system begins to write a file to disk while more of it is made, so that a
# sync has little left to do, and drops the pages that it keeps in memory. Both are hints: only bytes that
# were synced are durable.

_WRITE, _WRITE_AND_WAIT = 2, 7
_CANNOT = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of systems that do not know the call, or do not allow it: the hint is left out then."""


def _libc_function(name: str, *types: Any) -> Any:
    """A function of Linux's C library that takes such arguments, None elsewhere."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = types
    return function


_sync_file_range = _libc_function(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)
_fallocate = _libc_function("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def start_writeback(descriptor: int, position: int, size: int) -> None:
    """Begin to write ``size`` bytes (0: all) from ``position`` on to disk, where the system can do so."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, size, _WRITE)


def drop_cached(descriptor: int, position: int, size: int) -> None:
    """Wait until ``size`` bytes from ``position`` on are on disk, and drop them from the page cache.

    Raises OSError for a write that failed: the kernel reports it once, so a later sync would succeed.
    """
    if _sync_file_range is None:
        return
    if _sync_file_range(descriptor, position, size, _WRITE_AND_WAIT) < 0:
        number = ctypes.get_errno()
        if number in _CANNOT:
            return
        raise OSError(number, os.strerror(number))
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)


_WRITEBACK_BYTES = 8 << 20
"""Writeback begins, and pages are dropped, for so many bytes at a time."""
_KEPT_BEHIND = 24 << 20
"""Bytes so near to a file's end are hardly on disk yet: dropping them would wait for the disk."""
_BEYOND_THE_SIZE = 1 << 12
_REMOVAL_ROUNDS = 100
"""How often the removal of a tree is repeated while another process still makes files in it."""
_DEPTH_MAX = 32
"""Levels of directories in a tree that Siltstone makes; a deeper one is not its own."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def _with_path(path: PathLike) -> Iterator[None]:
    """Within the block, an OSError of a call on a bare name or a descriptor gets the whole path."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """The identity and the attributes of a file: sizes in bytes, times in ns, links as a count.

    ``kind``: ``FILE``, ``DIRECTORY``, ``LINK``, or the words for another one.
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

    @property
    def identity(self) -> tuple[int, int, int]:
        """Inode, size and modification time: the same on every machine until the file is written to, also
        after a rename. Without the device: each client of a network file system numbers devices for itself.
        """
        return self.inode, self.size, self.modified_ns

    @property
    def device_and_inode(self) -> tuple[int, int]:
        """Device and inode: the same on this machine whatever path leads to the file."""
        return self.device, self.inode


class FileIdentity(NamedTuple):
    """The identity of a file when it was listed, which tells on any machine whether it is still that file.

    ``may_grow``: the file may be appended to; any other has kept its size and modification time. There is no
    device in it: each client of a network file system numbers devices for itself.
    """

    inode: int
    size: int
    modified_ns: int
    may_grow: bool

    @classmethod
    def of(cls, facts: FileStat, *, may_grow: bool) -> FileIdentity:
        """The mark of a file as it is now."""
        return cls(facts.inode, facts.size, facts.modified_ns, may_grow)

    def matches(self, facts: FileStat) -> bool:
        """Are these the facts of the same file, with the bytes that it had?"""
        if self.may_grow and facts.size > self.size:
            return facts.inode == self.inode
        return facts.identity == (self.inode, self.size, self.modified_ns)


class Entry(NamedTuple):
    """One name in a directory. A symbolic link is neither ``is_file`` nor ``is_directory``."""

    name: str
    is_file: bool
    is_directory: bool
    is_link: bool


def stat(path: PathLike, *, follow: bool = True) -> FileStat:
    """The facts of a file; of a link's target, unless not ``follow``. Raises OSError."""
    return file_stat(os.stat(path, follow_symlinks=follow))


def file_stat(status: os.stat_result) -> FileStat:
    """The facts that ``stat(2)`` returned."""
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


def exists(path: PathLike) -> bool:
    """Is there a file, directory or link of that name, even a broken link?"""
    return os.path.lexists(path)


def is_link(path: PathLike) -> bool:
    """Is it a symbolic link, even a broken one?"""
    return os.path.islink(path)


def is_directory(path: PathLike, *, follow: bool = True) -> bool:
    """Is it a directory, or a link to one, unless not ``follow``?"""
    return os.path.isdir(path) and (follow or not os.path.islink(path))


def entries(directory: PathLike | int) -> list[Entry]:
    """The directory's names in order of name. Raises OSError."""
    with os.scandir(directory) as listing:
        rows = [
            Entry(
                name=item.name,
                is_file=item.is_file(follow_symlinks=False),
                is_directory=item.is_dir(follow_symlinks=False),
                is_link=item.is_symlink(),
            )
            for item in listing
        ]
    return sorted(rows, key=lambda row: row.name)


def list_all(directory: PathLike, *, may_vanish: tuple[str, ...] = ()) -> dict[str, FileStat]:
    """Every name of the directory and its own facts: of a link, not of what it points to.

    A name that ends with one of ``may_vanish`` may be removed while the directory is read. Raises
    FileNotFoundError when another one is removed, OSError.
    """
    listed = {}
    with os.scandir(directory) as listing:
        for entry in listing:
            try:
                listed[entry.name] = file_stat(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                if not entry.name.endswith(may_vanish):
                    raise
    return listed


def list_files(directory: PathLike) -> dict[str, FileStat]:
    """Every regular file of the directory and its facts, links left out. Raises OSError."""
    return {name: facts for name, facts in list_all(directory).items() if facts.kind == FILE}


def read_slice(path: PathLike, position: int, size: int) -> bytes:
    """Up to ``size`` bytes of a regular file from ``position`` on, fewer only at its end. Raises OSError."""
    with closing(open_regular(path)) as descriptor:
        return os.pread(descriptor, size, position)


def map_file(path: PathLike) -> npt.NDArray[np.uint8]:
    """A file's bytes, uint8, read-only and not copied: for files that are never truncated. Raises OSError.

    They stay as long as the array does, also when the name is removed.
    """
    with closing(open_regular(path)) as descriptor:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, np.uint8)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ), np.uint8)


def read_bytes(path: PathLike, limit: int = 1 << 30) -> bytes:
    """A small regular file's bytes, at most ``limit``. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return _read_up_to(file, limit)


def read_input(path: PathLike, limit: int = 1 << 30) -> bytes:
    """The bytes of a file named on a command line, which may be a pipe, at most ``limit``. Raises OSError."""
    with open(path, "rb") as file:
        return _read_up_to(file, limit)


def _read_up_to(file: IO[bytes], limit: int) -> bytes:
    # Python allocates all that a read asks for before it reads a byte, and a pipe has no size: so a read asks
    # for the size that the file has, and a little more.
    piece_size = os.fstat(file.fileno()).st_size + _BEYOND_THE_SIZE
    parts = list[bytes]()
    while limit > 0 and (part := file.read(min(limit, piece_size))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def sha256(path: PathLike) -> str:
    """A regular file's SHA-256 in hex. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Reader(OpenFile):
    """An open regular file that is read at positions; readers outlive renames and unlinks of the file."""

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self.descriptor = open_regular(path)
        self.stat = file_stat(os.fstat(self.descriptor))
        with contextlib.suppress(OSError):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read_into(self, buffer: np.ndarray[Any, np.dtype[np.uint8]], position: int) -> int:
        """Fill ``buffer`` (uint8) from ``position``; returns the bytes read, fewer only at the end."""
        view, done = memoryview(buffer.data), 0
        while done < len(view):
            got = os.preadv(self.descriptor, [view[done:]], position + done)
            if got == 0:
                break
            done += got
        return done

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``, fewer only at the end. For small reads."""
        return os.pread(self.descriptor, size, position)


class Writer(OpenFile):
    """A new file, made with O_EXCL; ``size`` is what was written so far.

    ``will_be_synced``: it is going to be synced, so writeback of a large one begins before that.
    """

    def __init__(self, path: PathLike, *, will_be_synced: bool = True) -> None:
        self.path = os.fspath(path)
        before_change("create", path)
        with OpenedParent(path) as (parent, name):
            self.descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        self._lasting = will_be_synced
        self.size = self._written_back = self._dropped = 0

    def write(self, data: Any) -> None:
        """Append all of ``data``, however much the system takes at a time. Raises OSError (a full disk,
        …)."""
        view = memoryview(data).cast("B")
        before_change("write", self.path)
        while len(view):
            done = os.write(self.descriptor, view)
            self.size += done
            view = view[done:]
        if self._lasting and self.size - self._written_back >= _WRITEBACK_BYTES:
            start_writeback(self.descriptor, self._written_back, self.size - self._written_back)
            self._written_back = self.size

    def drop_cached(self, position: int) -> None:
        """Drop bytes before ``position`` from the page cache, as far as they are on disk, or nearly.

        For bytes that are not read again. Raises OSError when some could not be written.
        """
        end = min(position, self._written_back, self.size - _KEPT_BEHIND)
        if end - self._dropped >= _WRITEBACK_BYTES:
            drop_cached(self.descriptor, self._dropped, end - self._dropped)
            self._dropped = end

    def drop_cached_rest(self) -> None:
        """Drop what is left of a file that is synced, if a part of it was dropped before. Raises OSError."""
        if self._dropped:
            drop_cached(self.descriptor, self._dropped, self.size - self._dropped)

    def sync(self) -> None:
        """Make the contents durable."""
        before_change("fsync", self.path)
        os.fsync(self.descriptor)


_RESERVE_MAX = 64 << 20
_RESERVE_MIN = 1 << 20
_KEEP_SIZE = 1


class Appender:
    """A file open for appending, created where it does not exist; ``size`` is the position of the next byte.
    OSError for a link.

    A write that fails half-way is truncated, so that the file always ends with a whole write. After a failed
    fsync nothing is written or synced any more: the contents on disk are unknown then.

    ``reserve_up_to``: a file of over 1 MiB gets blocks ahead of its writes, as many bytes as it has and 64
    MiB at most, up to this size; that makes writes a fifth faster on ext4. ``release`` and ``close`` give
    back what was not used; the file's size never includes it.
    """

    def __init__(self, path: PathLike, size: int | None = None, *, reserve_up_to: int = 0) -> None:
        self.path = os.fspath(path)
        self._descriptor, _ = open_for_writing(path)
        self._broken = False
        self.size = os.fstat(self._descriptor).st_size if size is None else size
        self._reserve_up_to = reserve_up_to
        self._reserved = 0

    def write(self, data: Any) -> None:
        """Append bytes (anything with a contiguous buffer). Raises OSError; the file is as before then."""
        if self._broken:
            self._refuse_broken()
        before_change("write", self.path)
        view = memoryview(data)
        size = view.nbytes
        if self._reserved < self.size + size <= self._reserve_up_to:
            self._reserve()  # before the write, which then finds its blocks
        done = 0
        try:
            while done < size:
                rest = view.cast("B")[done:] if done else view
                done += os.pwrite(self._descriptor, rest, self.size + done)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += done

    def _reserve(self) -> None:
        """Reserve room where the file system can; else the write itself meets a full disk."""
        if self.size < _RESERVE_MIN or _fallocate is None:
            return
        size = min(self.size, _RESERVE_MAX, self._reserve_up_to - self.size)
        _fallocate(self._descriptor, _KEEP_SIZE, self.size, size)  # the result does not matter: see above
        self._reserved = self.size + size

    def release(self) -> None:
        """Give back room that was reserved and not used, since nothing is written for now; keep the times."""
        if self._reserved > self.size and not self._broken:
            # ftruncate(2) to the file's own size frees the blocks behind it, but also touches its time.
            times = os.fstat(self._descriptor)
            os.ftruncate(self._descriptor, self.size)
            os.utime(self._descriptor, ns=(times.st_atime_ns, times.st_mtime_ns))
        self._reserved = 0

    def truncate(self, size: int) -> None:
        """Cut the file off at ``size`` bytes, durably. Raises OSError."""
        self._refuse_broken()
        before_change("truncate", self.path, str(size))
        os.ftruncate(self._descriptor, size)
        self.size, self._reserved = size, 0
        self.sync()

    def sync(self) -> None:
        """Make the contents durable. Raises OSError, and from then on always; FileNotFoundError when
        closed."""
        self._refuse_broken()
        if self._descriptor < 0:
            raise FileNotFoundError(errno.ENOENT, "closed before it was synced", self.path)
        before_change("fsync", self.path)
        try:
            os.fsync(self._descriptor)
        except OSError:
            self._broken = True  # the kernel may have dropped the pages: a second fsync would succeed falsely
            raise

    def _refuse_broken(self) -> None:
        if self._broken:
            raise OSError(
                errno.EIO, "an fsync of this file has failed; nothing more is written to it", self.path
            )

    def close(self) -> None:
        """Close the file; bytes that are not synced are left to the system's writeback."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.release()
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(slots=True, eq=False)
class FileSlice:
    """A range of bytes of an open file: ``read`` copies it once (Kafka's ``FileRecords.slice``).

    It keeps the file open, which may be renamed or unlinked in the meantime.
    """

    reader: Reader
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def read(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The bytes: uint8, writable; fewer than ``size`` when the file was truncated since."""
        buffer = np.empty(self.size, np.uint8)
        return buffer[: self.reader.read_into(buffer, self.position)]


def write_new(path: PathLike, data: bytes) -> None:
    """Write and fsync a new file; the directory is the caller's to sync. Raises FileExistsError."""
    with Writer(path) as writer:
        writer.write(data)
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
    """Rename, replacing ``target``. Two names of one file become one: ``rename(2)`` would leave both."""
    with OpenedParent(source) as (there, old), OpenedParent(target) as (here, new):
        with contextlib.suppress(FileNotFoundError):
            # rename(2) of one hard link onto another of the same file does nothing and reports success.
            if os.path.samestat(lstat_at(new, here), lstat_at(old, there)):
                return unlink(source)
        before_change("rename", source, target)
        os.rename(old, new, src_dir_fd=there, dst_dir_fd=here)


def link(source: PathLike, target: PathLike) -> None:
    """A second name for the same file. Raises OSError across file systems."""
    before_change("link", source, target)
    with OpenedParent(source) as (there, old), OpenedParent(target) as (here, new):
        os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)


def make_directory(path: PathLike, *, parents: bool = False) -> None:
    """Create a directory where there is none, with the owner of its parent. Raises NotADirectoryError where a
    link, or anything else, has its name."""
    target = Path(path)
    if parents and not target.parent.exists():
        make_directory(target.parent, parents=True)
    if target.name in ("", ".."):
        return
    with OpenedParent(target) as (parent, name):
        with contextlib.suppress(FileNotFoundError):
            if modes.S_ISDIR(lstat_at(name, parent).st_mode):
                return
            raise NotADirectoryError(errno.ENOTDIR, "exists and is not a directory (or is a link to one)")
        before_change("mkdir", path)
        os.mkdir(name, 0o755, dir_fd=parent)
        with closing(os.open(name, NOFOLLOW_FLAGS | os.O_DIRECTORY, dir_fd=parent)) as made:
            set_owner(made, os.fstat(parent))


def remove_directory(path: PathLike) -> None:
    """Remove an empty directory. Raises OSError when it is not empty."""
    before_change("rmdir", path)
    with OpenedParent(path) as (parent, name):
        os.rmdir(name, dir_fd=parent)


def remove_tree(path: PathLike) -> None:
    """Remove a directory that Siltstone made, with everything in it. Links in it are removed and never
    followed; where ``path`` itself is one, nothing is removed: NotADirectoryError.

    Another process may still make or remove files in it: a task that outlives its job. Raises OSError.
    """
    with OpenedParent(path) as (parent, name):
        _remove_tree(parent, name, os.fspath(path), _DEPTH_MAX)


def _remove_tree(parent: int, name: str, path: str, depth: int) -> None:
    if depth == 0:
        raise OSError(errno.ELOOP, "has more levels than Siltstone creates; remove it by hand", path)
    with _with_path(path):
        opened = os.open(name, NOFOLLOW_FLAGS | os.O_DIRECTORY, dir_fd=parent)
    with closing(opened) as here:
        for _ in range(_REMOVAL_ROUNDS):
            for entry in entries(here):
                inside = os.path.join(path, entry.name)
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_directory:
                        _remove_tree(here, entry.name, inside, depth - 1)
                    else:
                        before_change("unlink", inside)
                        with _with_path(inside):
                            os.unlink(entry.name, dir_fd=here)
            try:
                before_change("rmdir", path)
                with _with_path(path):
                    return os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
    raise OSError(
        errno.ENOTEMPTY, "another process keeps creating files in it; stop it and remove the directory", path
    )


def unsafe_directory_reason(path: PathLike) -> str | None:
    """Why ``path`` is no directory made by root, this user or the owner of the directory that it is in.

    None where it is one, or there is nothing of that name. Raises OSError.
    """
    with OpenedParent(path) as (parent, name):
        try:
            facts = lstat_at(name, parent)
        except FileNotFoundError:
            return None
        if modes.S_ISLNK(facts.st_mode):
            return "is a symbolic link"
        if not modes.S_ISDIR(facts.st_mode):
            return "is no folder"
        if facts.st_uid not in (0, os.geteuid(), os.fstat(parent).st_uid):
            return f"belongs to user {facts.st_uid}, and the directory that it is in to another"
        return None


def tree_size(path: PathLike) -> int:
    """Bytes of a file, or of all files below a directory, links left out."""
    if not os.path.isdir(path):
        return os.lstat(path).st_size
    inside = (Path(path) / entry.name for entry in entries(path) if not entry.is_link)
    return sum(tree_size(child) for child in inside)


def sync_directory(path: PathLike) -> None:
    """Make the directory's names durable."""
    before_change("fsync", path)
    with closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


def sync_file(path: PathLike) -> None:
    """Make an existing file's contents and attributes durable."""
    sync_files((path,))


def sync_files(paths: Iterable[PathLike]) -> None:
    """``sync_file`` for each, in order; writeback of all of them begins before the first is waited for."""
    with contextlib.ExitStack() as stack:
        opened = []
        for path in paths:
            opened.append((path, stack.enter_context(closing(open_nofollow(path)))))
            start_writeback(opened[-1][1], 0, 0)
        for path, descriptor in opened:
            before_change("fsync", path)
            os.fsync(descriptor)


def set_modified(path: PathLike, modified_ns: int) -> None:
    """Set the modification time (ns), of a link its own."""
    before_change("utime", path)
    with OpenedParent(path) as (parent, name):
        os.utime(name, ns=(modified_ns, modified_ns), dir_fd=parent, follow_symlinks=False)


def copy_attributes(source: PathLike, target: PathLike) -> None:
    """Give ``target``, a new file or directory, the owner, group, mode, ACL and extended attributes of
    ``source``, not its times. Raises OSError, also where one of the two is a link."""
    before_change("attributes", target, source)
    with closing(open_nofollow(source)) as old, closing(open_nofollow(target)) as new, _with_path(target):
        facts = os.fstat(old)
        set_owner(new, facts)
        os.fchmod(new, facts.st_mode & 0o7777)
        try:
            names = os.listxattr(old)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENODATA):
                return
            raise
        for name in names:
            os.setxattr(new, name, os.getxattr(old, name))


def inherit_owner(path: PathLike) -> None:
    """Give a new file or directory the owner and group of the directory that it is in."""
    with OpenedParent(path) as (parent, name), closing(os.open(name, NOFOLLOW_FLAGS, dir_fd=parent)) as new:
        set_owner(new, os.fstat(parent))


def copy(source: PathLike, target: PathLike) -> None:
    """A durable copy with attributes and modification time; ``target`` must not be there, ``source`` be no
    link."""
    with open(open_regular(source, follow=False), "rb", buffering=0) as reader, Writer(target) as writer:
        facts = os.fstat(reader.fileno())
        shutil.copyfileobj(reader, writer, 1 << 22)
        writer.sync()
    copy_attributes(source, target)
    set_modified(target, facts.st_mtime_ns)


class FreeSpace(NamedTuple):
    """What a file system has left for this user: bytes and inodes."""

    free_bytes: int
    free_inodes: int | None


def free_space(path: PathLike) -> FreeSpace:
    """Free space where ``path`` is; inodes None where the file system does not count them."""
    status = os.statvfs(path)
    free_inodes = status.f_favail if status.f_files else None
    return FreeSpace(free_bytes=status.f_bavail * status.f_frsize, free_inodes=free_inodes)


NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p fuse.sshfs fuse.s3fs ceph glusterfs lustre afs".split()
)
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
"""How the kernel writes a space, a tab, a line end or a backslash of a mount point."""


def file_system(path: PathLike) -> str:
    """The name of the file system that holds ``path`` ("ext4", "nfs4"…), "" where it is unknown."""
    real = os.path.realpath(path)
    try:
        lines = read_bytes("/proc/self/mountinfo").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(b" - ")
        mount = os.fsdecode(_OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), left.split()[4]))
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, os.fsdecode(right.split()[0])
    return kind


def temporary_directory(prefix: str, parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """A directory that is removed at the end of its context; what cannot be removed is left."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)


def temporary_file() -> IO[bytes]:
    """An open file without a name."""
    return tempfile.TemporaryFile()


def find_program(name: str) -> str | None:
    """The program that the shell would start, None where there is none."""
    return shutil.which(name)


def zip_package(root: Path, target: Path) -> None:
    """Zip a Python package's modules and settings, so that they can be imported from ``target``."""
    with zipfile.ZipFile(target, "w") as archive:
        for source in sorted(root.rglob("*")):
            if source.suffix in (".py", ".properties"):
                archive.write(source, Path(root.name) / source.relative_to(root))


@contextlib.contextmanager
def redirect_standard_error(descriptor: int) -> Iterator[None]:
    """Within the block, standard error is ``descriptor``; a process started in it keeps that."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def discard_standard_output() -> None:
    """Discard standard output from now on: its reader has closed the pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
