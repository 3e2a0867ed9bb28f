"""Every read, write, fsync, rename and unlink; see the package for the rules that callers keep."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np

from siltstone.base.files.parents import REAL_FILE, ParentOf, open_real

# Letting the system write what a file got to disk while more is made, so that a sync has little left to do,
# and letting go of the memory in which it keeps a copy.
#
# A wish and no promise: what is durable is what was synced.

_WRITE, _WRITE_AND_WAIT = 2, 7
_CANNOT = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP)
"""What systems say that know no such call, or do not let us."""


def _find_sync_file_range() -> Any:
    """Linux's ``sync_file_range``, None elsewhere."""
    found = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_file_range = _find_sync_file_range()


def start_writing(descriptor: int, position: int, size: int) -> None:
    """Begin to write ``size`` bytes (0: all) from ``position`` on to disk, where the system can."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, size, _WRITE)


def let_go(descriptor: int, position: int, size: int) -> None:
    """Wait until ``size`` bytes from ``position`` on were written to disk; the system need not keep a copy in
    memory then. Raises OSError for a write that failed: a sync that comes after would not tell of it again.
    """
    if _sync_file_range is None:
        return
    if _sync_file_range(descriptor, position, size, _WRITE_AND_WAIT) < 0:
        number = ctypes.get_errno()
        if number in _CANNOT:
            return
        raise OSError(number, os.strerror(number))
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)


_BEGUN_AT_ONCE = 8 << 20
_KEPT_BEHIND = 24 << 20
"""What is so near to a file's end is hardly on disk yet: nobody waits for it."""
_BEYOND_THE_SIZE = 1 << 12
_REMOVED_AGAIN = 100
"""A tree into which somebody still puts files is looked through so many times."""
_DEPTH_MAX = 32
"""Folders within folders of a tree of ours; deeper ones were made by somebody else."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Operation = tuple[str, str, str]
"""What is about to happen: (verb, path, second path or empty)."""

_observer: Callable[[Operation], None] | None = None


@contextlib.contextmanager
def observe(observer: Callable[[Operation], None]) -> Iterator[None]:
    """Within the block, call ``observer`` before every changing operation; it may raise to stop it."""
    global _observer  # noqa: PLW0603 - one seam for the crash tests
    previous, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = previous


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """An error of a call that was given a name within a directory, or a descriptor, tells the whole path."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def about_to(verb: str, path: str | os.PathLike[str], other: str | os.PathLike[str] = "") -> None:
    """Tell the observer, if there is one, before an operation that changes something."""
    if _observer is not None:
        _observer((verb, os.fspath(path), os.fspath(other)))


FILE, DIRECTORY, LINK = "regular file", "directory", "symbolic link"
_KINDS = {
    modes.S_IFREG: FILE,
    modes.S_IFDIR: DIRECTORY,
    modes.S_IFLNK: LINK,
    modes.S_IFIFO: "FIFO",
    modes.S_IFSOCK: "socket",
    modes.S_IFCHR: "character device",
    modes.S_IFBLK: "block device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """What identifies and describes a file: sizes in bytes, times in ns, links as a count.

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
        """What a file is known by on every machine as long as nobody writes to it: inode, size, time of its
        last change. A rename does not change it. The device is not part of it: each client of a network file
        system numbers devices for itself."""
        return self.inode, self.size, self.modified_ns

    @property
    def place(self) -> tuple[int, int]:
        """What a directory is known by on this machine, whatever path leads to it: device and inode."""
        return self.device, self.inode


class FileMark(NamedTuple):
    """What a file was known by when it was found, to tell on any machine whether it is still that file.

    ``may_grow``: somebody may be appending to it; all others are as long as they were, and were not touched
    since. There is no device in it: each client of a network file system numbers devices for itself.
    """

    inode: int
    size: int
    modified_ns: int
    may_grow: bool

    @classmethod
    def of(cls, found: FileStat, *, may_grow: bool) -> FileMark:
        """The mark of a file as it is now."""
        return cls(found.inode, found.size, found.modified_ns, may_grow)

    def is_of(self, found: FileStat) -> bool:
        """Is ``found`` the same file, with the bytes that it had?"""
        if self.may_grow and found.size > self.size:
            return found.inode == self.inode
        return found.identity == (self.inode, self.size, self.modified_ns)


class Entry(NamedTuple):
    """One name in a directory. A symbolic link is neither ``is_file`` nor ``is_directory``."""

    name: str
    is_file: bool
    is_directory: bool
    is_link: bool


def stat(path: str | os.PathLike[str], *, follow: bool = True) -> FileStat:
    """The file's own facts; links followed, unless told not to. Raises OSError."""
    return facts_of(os.stat(path, follow_symlinks=follow))


def facts_of(found: os.stat_result) -> FileStat:
    """What the system says of a file."""
    return FileStat(
        kind=_KINDS.get(modes.S_IFMT(found.st_mode), "file of another kind"),
        size=found.st_size,
        modified_ns=found.st_mtime_ns,
        inode=found.st_ino,
        device=found.st_dev,
        owner=found.st_uid,
        group=found.st_gid,
        mode=found.st_mode & 0o7777,
        links=found.st_nlink,
    )


def exists(path: str | os.PathLike[str]) -> bool:
    """Is there such a name, be it a broken link?"""
    return os.path.lexists(path)


def is_link(path: str | os.PathLike[str]) -> bool:
    """Is it a symbolic link, be it a broken one?"""
    return os.path.islink(path)


def is_directory(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    """Is it a directory, links followed unless told not to?"""
    return os.path.isdir(path) and (follow or not os.path.islink(path))


def entries(directory: str | os.PathLike[str]) -> list[Entry]:
    """The directory's names in order of name. Raises OSError."""
    with os.scandir(directory) as found:
        rows = [
            Entry(
                name=item.name,
                is_file=item.is_file(follow_symlinks=False),
                is_directory=item.is_dir(follow_symlinks=False),
                is_link=item.is_symlink(),
            )
            for item in found
        ]
    return sorted(rows, key=lambda row: row.name)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, links followed. Raises OSError, for any other kind of file too.

    Nothing waits: a FIFO that nobody writes to would otherwise stop its reader for ever.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = modes.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == modes.S_IFREG:
        return descriptor
    os.close(descriptor)
    raise _no_regular_file(kind, path)


def _no_regular_file(kind: int, path: str | os.PathLike[str]) -> OSError:
    if kind == modes.S_IFDIR:
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    what = _KINDS.get(kind, "special file")
    return OSError(errno.EINVAL, f"a {what}, no regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], limit: int = 1 << 30) -> bytes:
    """A small regular file's bytes, at most ``limit``. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return _read_up_to(file, limit)


def read_input(path: str | os.PathLike[str], limit: int = 1 << 30) -> bytes:
    """The same of a file that a person named on a command line, which may be a pipe. Raises OSError."""
    with open(path, "rb") as file:
        return _read_up_to(file, limit)


def _read_up_to(file: IO[bytes], limit: int) -> bytes:
    """Python takes as much memory as is asked for before it reads a byte, and a pipe has no size."""
    at_once = os.fstat(file.fileno()).st_size + _BEYOND_THE_SIZE
    parts = list[bytes]()
    while limit > 0 and (part := file.read(min(limit, at_once))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def sha256(path: str | os.PathLike[str]) -> str:
    """A regular file's SHA-256 in hex. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Reader:
    """An open regular file that is read at positions; readers outlive renames and unlinks of the file."""

    descriptor = -1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.descriptor = open_regular(path)
        self.stat = facts_of(os.fstat(self.descriptor))
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

    def close(self) -> None:
        """Close the file. A reader that nobody holds any more closes itself."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Writer:
    """A new file, made with O_EXCL; ``size`` is what was written so far.

    The system begins to bring large ones to disk before they are synced, unless they are not ``lasting``.
    """

    def __init__(self, path: str | os.PathLike[str], *, lasting: bool = True) -> None:
        self.path = os.fspath(path)
        about_to("create", path)
        with ParentOf(path) as (parent, name):
            self._descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        self._lasting = lasting
        self.size = self._begun = self._gone = 0

    def write(self, data: Any) -> None:
        """Append bytes; a partial write is gone on with. Raises OSError (the disk is full, …)."""
        view = memoryview(data).cast("B")
        about_to("write", self.path)
        while len(view):
            done = os.write(self._descriptor, view)
            self.size += done
            view = view[done:]
        if self._lasting and self.size - self._begun >= _BEGUN_AT_ONCE:
            start_writing(self._descriptor, self._begun, self.size - self._begun)
            self._begun = self.size

    def let_go(self, position: int) -> None:
        """Nobody here wants the bytes before ``position`` any more: those that are on disk, or nearly, give
        the system its memory back. Raises OSError when one could not be written."""
        end = min(position, self._begun, self.size - _KEPT_BEHIND)
        if end - self._gone >= _BEGUN_AT_ONCE:
            let_go(self._descriptor, self._gone, end - self._gone)
            self._gone = end

    def let_go_of_the_rest(self) -> None:
        """The same of a file all of which was synced, if some of it was let go of. Raises OSError."""
        if self._gone:
            let_go(self._descriptor, self._gone, self.size - self._gone)

    def sync(self) -> None:
        """Make the contents durable."""
        about_to("fsync", self.path)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_new(path: str | os.PathLike[str], data: bytes) -> None:
    """Write and fsync a new file; the directory is the caller's to sync. Raises FileExistsError."""
    with Writer(path) as writer:
        writer.write(data)
        writer.sync()


def replace(path: str | os.PathLike[str], data: bytes) -> None:
    """Put ``data`` in the place of ``path``, durably: temporary file, fsync, rename, directory sync.

    Owner, group, mode and extended attributes are those of the old file, else the directory's owner. A link
    of that name is replaced, and not what it points to (as by Kafka, which renames, too).
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


def rename(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename, replacing ``target``. Two names of one file become one: ``rename(2)`` would leave both."""
    with ParentOf(source) as (there, old), ParentOf(target) as (here, new):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(_own_stat(new, here), _own_stat(old, there)):
                return unlink(source)
        about_to("rename", source, target)
        os.rename(old, new, src_dir_fd=there, dst_dir_fd=here)


def _own_stat(name: str, parent: int) -> os.stat_result:
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def unlink(path: str | os.PathLike[str]) -> None:
    """Remove one name. Raises FileNotFoundError."""
    about_to("unlink", path)
    with ParentOf(path) as (parent, name):
        os.unlink(name, dir_fd=parent)


def link(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """A second name for the same file. Raises OSError across file systems."""
    about_to("link", source, target)
    with ParentOf(source) as (there, old), ParentOf(target) as (here, new):
        os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)


def make_directory(path: str | os.PathLike[str], *, parents: bool = False) -> None:
    """Make a directory if it is not there, owned as its parent is. Raises NotADirectoryError where a link,
    or anything else, has its name."""
    target = Path(path)
    if parents and not target.parent.exists():
        make_directory(target.parent, parents=True)
    if target.name in ("", ".."):
        return
    with ParentOf(target) as (parent, name):
        with contextlib.suppress(FileNotFoundError):
            if modes.S_ISDIR(_own_stat(name, parent).st_mode):
                return
            raise NotADirectoryError(errno.ENOTDIR, "is there already, and is no folder (or a link to one)")
        about_to("mkdir", path)
        os.mkdir(name, 0o755, dir_fd=parent)
        made = os.open(name, REAL_FILE | os.O_DIRECTORY, dir_fd=parent)
        try:
            _give(made, os.fstat(parent))
        finally:
            os.close(made)


def remove_directory(path: str | os.PathLike[str]) -> None:
    """Remove an empty directory. Raises OSError when it is not empty."""
    about_to("rmdir", path)
    with ParentOf(path) as (parent, name):
        os.rmdir(name, dir_fd=parent)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a directory of our own making and all in it. Links in it are removed and never followed; when
    ``path`` itself is one, nothing is removed: NotADirectoryError.

    Somebody may still put files in, or take them out: a task that outlives its job. Raises OSError.
    """
    with ParentOf(path) as (parent, name):
        _remove_tree(parent, name, os.fspath(path), _DEPTH_MAX)


def _remove_tree(parent: int, name: str, path: str, depth: int) -> None:
    if depth == 0:
        raise OSError(errno.ELOOP, "folders too deep to be ours; remove them by hand", path)
    with _naming(path):
        here = os.open(name, REAL_FILE | os.O_DIRECTORY, dir_fd=parent)
    try:
        for _ in range(_REMOVED_AGAIN):
            for entry, is_directory in _names_in(here):
                inside = os.path.join(path, entry)
                with contextlib.suppress(FileNotFoundError):
                    if is_directory:
                        _remove_tree(here, entry, inside, depth - 1)
                    else:
                        about_to("unlink", inside)
                        with _naming(inside):
                            os.unlink(entry, dir_fd=here)
            try:
                about_to("rmdir", path)
                with _naming(path):
                    return os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
    finally:
        os.close(here)
    raise OSError(errno.ENOTEMPTY, "somebody keeps putting files in", path)


def _names_in(directory: int) -> list[tuple[str, bool]]:
    """The names in an open directory, in order, and whether each is a directory itself."""
    with os.scandir(directory) as found:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)


def why_not_our_folder(path: str | os.PathLike[str]) -> str | None:
    """What keeps ``path`` from being a folder that we, or the owner of the directory that it is in, made.

    None: nothing does, or there is nothing of that name. Raises OSError.
    """
    with ParentOf(path) as (parent, name):
        try:
            facts = _own_stat(name, parent)
        except FileNotFoundError:
            return None
        if modes.S_ISLNK(facts.st_mode):
            return "is a symbolic link"
        if not modes.S_ISDIR(facts.st_mode):
            return "is no folder"
        if facts.st_uid not in (0, os.geteuid(), os.fstat(parent).st_uid):
            return f"belongs to user {facts.st_uid}, and the directory that it is in to another"
        return None


def tree_size(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, or of all files below a directory, links left out."""
    if not os.path.isdir(path):
        return os.lstat(path).st_size
    inside = (Path(path) / entry.name for entry in entries(path) if not entry.is_link)
    return sum(tree_size(each) for each in inside)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the directory's names durable."""
    about_to("fsync", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make an existing file's contents and attributes durable."""
    sync_files((path,))


def sync_files(paths: Iterable[str | os.PathLike[str]]) -> None:
    """``sync_file`` for each, in order; the system begins with all of them before the first is waited for."""
    with contextlib.ExitStack() as stack:
        opened = []
        for path in paths:
            opened.append((path, open_real(path)))
            stack.callback(os.close, opened[-1][1])
            start_writing(opened[-1][1], 0, 0)
        for path, descriptor in opened:
            about_to("fsync", path)
            os.fsync(descriptor)


def set_modified(path: str | os.PathLike[str], modified_ns: int) -> None:
    """Set the modification time (ns), of a link its own."""
    about_to("utime", path)
    with ParentOf(path) as (parent, name):
        os.utime(name, ns=(modified_ns, modified_ns), dir_fd=parent, follow_symlinks=False)


def copy_attributes(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give ``target``, a new file or directory, the owner, group, mode, ACL and extended attributes of
    ``source``, not its times. Raises OSError, also where one of the two is a link."""
    about_to("attributes", target, source)
    old = open_real(source)
    try:
        new = open_real(target)
        try:
            with _naming(target):
                _copy_attributes(old, new)
        finally:
            os.close(new)
    finally:
        os.close(old)


def _copy_attributes(old: int, new: int) -> None:
    found = os.fstat(old)
    _give(new, found)
    os.fchmod(new, found.st_mode & 0o7777)
    try:
        names = os.listxattr(old)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA):
            return
        raise
    for name in names:
        os.setxattr(new, name, os.getxattr(old, name))


def open_for_writing(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """A descriptor of a file that is read and written, and whether it had to be made: it belongs to the owner
    of its directory then. Raises OSError, also where the name is that of a link."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with ParentOf(path) as (parent, name):
        try:
            return _open_regular(name, flags, parent), False
        except FileNotFoundError:
            about_to("create", path)
        try:
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=parent)
        except FileExistsError:  # another process was faster
            return _open_regular(name, flags, parent), False
        try:
            _give(descriptor, os.fstat(parent))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor, True


def _open_regular(name: str, flags: int, parent: int) -> int:
    if not modes.S_ISREG(_own_stat(name, parent).st_mode):
        raise OSError(errno.EINVAL, "is no regular file (but a link, a folder, a pipe): remove it")
    return os.open(name, flags, dir_fd=parent)


def inherit_owner(path: str | os.PathLike[str]) -> None:
    """Give a new file or directory the owner and group of the directory that it is in."""
    with ParentOf(path) as (parent, name):
        descriptor = os.open(name, REAL_FILE, dir_fd=parent)
        try:
            _give(descriptor, os.fstat(parent))
        finally:
            os.close(descriptor)


def _give(descriptor: int, to: os.stat_result) -> None:
    """Give an open file, which is new, to the owner and group that ``to`` has.

    A new file has one name: of one with several somebody may have put another's file in its place.
    """
    mine = os.fstat(descriptor)
    if (to.st_uid, to.st_gid) == (mine.st_uid, mine.st_gid):
        return
    if mine.st_nlink > 1 and not modes.S_ISDIR(mine.st_mode):
        raise OSError(errno.EMLINK, "is not the new file that it was: it has other names, too")
    os.fchown(descriptor, to.st_uid, to.st_gid)


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """A durable copy with attributes and modification time; ``target`` must not be there, ``source`` be no
    link."""
    descriptor = open_real(source)
    facts = os.fstat(descriptor)
    if not modes.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise _no_regular_file(modes.S_IFMT(facts.st_mode), source)
    with open(descriptor, "rb", buffering=0) as reader, Writer(target) as writer:
        buffer = np.empty(1 << 22, np.uint8)
        while got := reader.readinto(buffer.data):
            writer.write(buffer[:got])
        writer.sync()
    copy_attributes(source, target)
    set_modified(target, facts.st_mtime_ns)
