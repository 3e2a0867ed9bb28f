"""Every read, write, fsync, rename and unlink; see the package for the rules that callers keep."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from siltstone.files.behind import let_go, start_writing

_BEGUN_AT_ONCE = 8 << 20
_KEPT_BEHIND = 24 << 20
"""What is so near to a file's end is hardly on disk yet: nobody waits for it."""
_BEYOND_THE_SIZE = 1 << 12
_REMOVED_AGAIN = 100
"""A tree into which somebody still puts files is looked through so many times."""
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


def about_to(verb: str, path: str | os.PathLike[str], other: str | os.PathLike[str] = "") -> None:
    """Tell the observer, if there is one, before an operation that changes something."""
    if _observer is not None:
        _observer((verb, os.fspath(path), os.fspath(other)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """What identifies and describes a file: sizes in bytes, times in ns, links as a count."""

    size: int
    modified_ns: int
    inode: int
    device: int
    owner: int
    group: int
    mode: int
    links: int

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """What a file is known by as long as nobody writes to it: device, inode, size, time of its last
        change; a rename does not change it."""
        return self.device, self.inode, self.size, self.modified_ns


class Entry(NamedTuple):
    """One name in a directory. A symbolic link is neither ``is_file`` nor ``is_directory``."""

    name: str
    is_file: bool
    is_directory: bool
    is_link: bool


def stat(path: str | os.PathLike[str]) -> FileStat:
    """The file's own facts, links followed. Raises OSError."""
    return _facts(os.stat(path))


def _facts(found: os.stat_result) -> FileStat:
    return FileStat(
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


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Is it a directory, links followed?"""
    return os.path.isdir(path)


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


def read_bytes(path: str | os.PathLike[str], limit: int = 1 << 30) -> bytes:
    """A small file's bytes, at most ``limit``. Raises OSError."""
    with open(path, "rb") as file:
        # Python takes as much memory as is asked for before it reads a byte, and a pipe has no size.
        at_once = os.fstat(file.fileno()).st_size + _BEYOND_THE_SIZE
        parts = list[bytes]()
        while limit > 0 and (part := file.read(min(limit, at_once))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)


def sha256(path: str | os.PathLike[str]) -> str:
    """The file's SHA-256 in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Reader:
    """An open file that is read at positions; readers outlive renames and unlinks of the file."""

    descriptor = -1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.stat = _facts(os.fstat(self.descriptor))
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
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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

    Owner, group, mode and extended attributes are those of the old file, else the directory's owner.
    """
    target = Path(path)
    temporary = target.with_name(target.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        unlink(temporary)
    try:
        write_new(temporary, data)
        if exists(target):
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
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.lstat(target), os.lstat(source)):
            return unlink(source)
    about_to("rename", source, target)
    os.rename(source, target)


def unlink(path: str | os.PathLike[str]) -> None:
    """Remove one name. Raises FileNotFoundError."""
    about_to("unlink", path)
    os.unlink(path)


def link(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """A second name for the same file. Raises OSError across file systems."""
    about_to("link", source, target)
    os.link(source, target)


def make_directory(path: str | os.PathLike[str], *, parents: bool = False) -> None:
    """Make a directory if it is not there, owned as its parent is."""
    target = Path(path)
    if parents and not target.parent.exists():
        make_directory(target.parent, parents=True)
    if not target.is_dir():
        about_to("mkdir", path)
        os.mkdir(path, 0o755)
        inherit_owner(path)


def remove_directory(path: str | os.PathLike[str]) -> None:
    """Remove an empty directory. Raises OSError when it is not empty."""
    about_to("rmdir", path)
    os.rmdir(path)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a directory of our own making and all in it; links are removed, not followed.

    Somebody may still put files in, or take them out: a task that outlives its job. Raises OSError.
    """
    for _ in range(_REMOVED_AGAIN):
        for entry in entries(path):
            inside = Path(path) / entry.name
            with contextlib.suppress(FileNotFoundError):
                (remove_tree if entry.is_directory else unlink)(inside)
        try:
            return remove_directory(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
    raise OSError(errno.ENOTEMPTY, "somebody keeps putting files in", str(path))


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
            opened.append((path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
            stack.callback(os.close, opened[-1][1])
            start_writing(opened[-1][1], 0, 0)
        for path, descriptor in opened:
            about_to("fsync", path)
            os.fsync(descriptor)


def set_modified(path: str | os.PathLike[str], modified_ns: int) -> None:
    """Set the modification time (ns)."""
    about_to("utime", path)
    os.utime(path, ns=(modified_ns, modified_ns))


def copy_attributes(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give ``target`` the owner, group, mode, ACL and extended attributes of ``source``, not its times."""
    about_to("attributes", target, source)
    found = os.stat(source)
    mine = os.stat(target)
    if (found.st_uid, found.st_gid) != (mine.st_uid, mine.st_gid):
        os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, found.st_mode & 0o7777)
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA):
            return
        raise
    for name in names:
        os.setxattr(target, name, os.getxattr(source, name))


def inherit_owner(path: str | os.PathLike[str]) -> None:
    """Give a new file or directory the owner and group of the directory that it is in."""
    parent, mine = os.stat(Path(path).absolute().parent), os.stat(path)
    if (parent.st_uid, parent.st_gid) != (mine.st_uid, mine.st_gid):
        os.chown(path, parent.st_uid, parent.st_gid)


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """A durable copy with attributes and modification time; ``target`` must not be there."""
    with Reader(source) as reader, Writer(target) as writer:
        buffer = np.empty(1 << 22, np.uint8)
        position = 0
        while got := reader.read_into(buffer, position):
            writer.write(buffer[:got])
            position += got
        writer.sync()
    copy_attributes(source, target)
    set_modified(target, reader.stat.modified_ns)
