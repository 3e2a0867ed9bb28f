"""Opens files and directories so that a planted symbolic link cannot redirect a change.

Operations that change something never go through another user's symbolic link; reads (``open_regular``)
follow links as usual. The owner of a directory may replace a subdirectory by a symbolic link at any moment,
so a path is never first checked and then used. Instead the parent directory is opened, and the operation is
done in the open directory (``openat(2)`` and similar calls), on the name itself and never on the target of a
link of that name.

In the path of the parent a symbolic link is followed only when root or the user of this process made it;
another user's link makes the operation fail. (Linux's ``fs.protected_symlinks`` has the same rule, but only
for directories that everyone may write to.) The test hook of the crash tests is here, too: every operation
that changes something calls ``before_change`` first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator

from siltstone.base.closing import Closing
from siltstone.base.errors import shown_path
from siltstone.base.files.joined import is_joined
from siltstone.base.files.objects import is_object

_STANDARD_ERROR = 2
_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)  # macOS has no O_PATH
_OPEN_DIRECTORY_FLAGS = _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_SYMLINKS = 40
"""The number of symbolic links that Linux follows in one path."""
_OPENAT2 = 437
"""The number of Linux's system call openat2(2), on all processors but Alpha."""
_RESOLVE_NO_SYMLINKS, _AT_FDCWD = 4, -100
"""The constants RESOLVE_NO_SYMLINKS and AT_FDCWD (relative to the working directory) of Linux's headers."""
_FALL_BACK_ERRNOS = (errno.ELOOP, errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.EAGAIN)
"""Errors of ``openat2`` after which the path is walked: a link in it (ELOOP), an older kernel (ENOSYS,
EINVAL, E2BIG), a container that does not allow the call (EPERM), a rename at the same time (EAGAIN)."""
NOFOLLOW_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to open an existing file or directory itself: no link, and no wait for the other end of a pipe."""

PathLike = str | os.PathLike[str]
Operation = tuple[str, str, str]
"""An operation that is about to change something: (verb, path, second path or empty)."""

_observer: Callable[[Operation], None] | None = None


@contextlib.contextmanager
def observe(observer: Callable[[Operation], None]) -> Iterator[None]:
    """Within the block, call ``observer`` before every changing operation; it may raise to stop it."""
    global _observer  # noqa: PLW0603 - a test hook
    previous, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = previous


def before_change(verb: str, path: PathLike, other: PathLike = "") -> None:
    """Tell the observer, if there is one, before an operation that changes something. Raises OSError as
    ``refuse_object``."""
    refuse_object(path)
    refuse_object(other)
    if _observer is not None:
        _observer((verb, os.fspath(path), os.fspath(other)))


def refuse_object(path: PathLike) -> None:
    """Raise OSError for a path of a store or of a joined directory: the system would take it for the name of
    a local file."""
    if is_joined(path):
        raise OSError(errno.EROFS, "a log with a remote part is only read", shown_path(path))
    if is_object(path):
        raise OSError(errno.EROFS, "objects of a store are only read", os.fspath(path))


class OpenFile(Closing):
    """Owns a descriptor until ``close``, the end of a ``with`` block, or the end of the object."""

    descriptor = -1

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close ``descriptor`` at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def discard_descriptors(kept: Collection[int]) -> None:
    """In a process that was just forked: put /dev/null in the place of every open descriptor that is not in
    ``kept``.

    They are not closed: the fork's copies of objects, such as sockets, still have their numbers, and would
    later close other files that have got these numbers.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the listing had a descriptor of its own, which is closed by now
            if number != null and number not in kept:
                os.dup2(null, number, inheritable=number <= _STANDARD_ERROR)


class _OpenHow(ctypes.Structure):
    """Linux's ``struct open_how``."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_open_how = _OpenHow(flags=_OPEN_DIRECTORY_FLAGS, mode=0, resolve=_RESOLVE_NO_SYMLINKS)


class OpenedParent:
    """A context with the open parent directory of ``path`` and the name in it. Raises OSError.

    The path must end in a name: neither in ``..`` nor in a slash. An OSError of the block that has only the
    name, or no path, gets the whole path. (It is a class, since a generator is slower, and every operation
    uses it.)
    """

    __slots__ = ("_name", "_path", "descriptor")

    def __init__(self, path: PathLike) -> None:
        self._path = os.fspath(path)
        self._name = ""
        self.descriptor = -1

    def __enter__(self) -> tuple[int, str]:
        folder, slash, self._name = self._path.rpartition("/")
        self.descriptor = open_directory(folder or slash or ".")
        return self.descriptor, self._name

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self.descriptor)
        if isinstance(error, OSError) and error.filename in (None, self._name):
            error.filename = self._path


def open_nofollow(path: PathLike) -> int:
    """A descriptor, for reading, of the file or directory itself. Raises OSError: ELOOP for a link."""
    if os.path.basename(os.fspath(path)) in ("", ".", ".."):
        return os.open(path, NOFOLLOW_FLAGS)
    with OpenedParent(path) as (parent, name):
        try:
            return os.open(name, NOFOLLOW_FLAGS, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, "is a symbolic link") from None
            raise


def open_directory(path: str) -> int:
    """A descriptor for ``dir_fd`` of a directory, reached without another user's links. Raises OSError."""
    if _libc is not None:  # one system call where no link is in the path, which is nearly always
        name = os.fsencode(path)
        if b"\0" in name:
            raise ValueError("embedded null byte")
        descriptor = _libc.syscall(
            _OPENAT2, _AT_FDCWD, name, ctypes.byref(_open_how), ctypes.sizeof(_open_how)
        )
        if descriptor >= 0:
            return int(descriptor)
        number = ctypes.get_errno()
        if number not in _FALL_BACK_ERRNOS:
            raise OSError(number, os.strerror(number), path)
    return _open_by_components(path)


def _open_by_components(path: str) -> int:
    """``open_directory``, one component after another. A link is resolved here, and only if it may be
    followed."""
    components, links_followed = path.split("/")[::-1], 0
    parent = os.open("/" if path.startswith("/") else ".", _OPEN_DIRECTORY_FLAGS)
    try:
        while components:
            name = components.pop()
            if name in ("", "."):
                continue
            child, target = _open_component(parent, name)
            if target is not None:
                links_followed += 1
                if links_followed > _MAX_SYMLINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                components += target.split("/")[::-1]  # a stack: the next name is the last
                if not target.startswith("/"):
                    continue
                child = os.open("/", _OPEN_DIRECTORY_FLAGS)
            os.close(parent)
            parent = child
    except OSError as error:
        os.close(parent)
        error.filename = path
        raise
    return parent


def _open_component(parent: int, name: str) -> tuple[int, str | None]:
    """The directory ``name``, open, or -1 and the target of the symbolic link ``name``. Raises OSError, also
    for a link of another user."""
    if _O_PATH == os.O_RDONLY:
        # Without O_PATH a link cannot be opened, so it may be swapped between the calls.
        status = lstat_at(name, parent)
        if not stat.S_ISLNK(status.st_mode):
            return os.open(name, _OPEN_DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=parent), None
        return -1, _checked_target(status, name, os.readlink(name, dir_fd=parent))
    # Owner and target are read from one descriptor of the link, so they belong to the same link.
    descriptor = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        return descriptor, None
    with closing(descriptor):
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return -1, _checked_target(status, name, os.readlink("", dir_fd=descriptor))


def _checked_target(status: os.stat_result, name: str, target: str) -> str:
    """``target``, if root or this user made the link, as Linux's ``fs.protected_symlinks`` demands. Else
    OSError."""
    if status.st_uid not in (0, os.geteuid()):
        reason = f"{name}, a component of the path, is a symbolic link owned by user {status.st_uid}"
        raise OSError(errno.ELOOP, f"{reason}; links of other users are not followed: give the real path")
    return target


FILE, DIRECTORY, LINK = "regular file", "directory", "symbolic link"
FILE_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def lstat_at(name: str, parent: int) -> os.stat_result:
    """``lstat(2)`` of a name in an open directory: of a link, not of its target. Raises OSError."""
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def open_regular(path: PathLike, flags: int = os.O_RDONLY, *, follow: bool = True) -> int:
    """A descriptor of a regular file, opened with ``flags``; of a link's target. Without ``follow``, a link
    is refused, and the file is opened for reading whatever ``flags`` say.

    Raises OSError, for any other kind of file too. Nothing waits: a FIFO without a writer would otherwise
    stop its reader for ever.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK) if follow else open_nofollow(path)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    reason = f"is a {FILE_KINDS.get(kind, 'special file')}, not a regular file"
    raise OSError(errno.EINVAL, reason, os.fspath(path))


def open_for_writing(path: PathLike) -> tuple[int, bool]:
    """Open a file for reading and writing: (descriptor, whether it was created). A new file belongs to the
    owner of its directory. Raises OSError, also if the name is that of a link."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with OpenedParent(path) as (parent, name):
        try:
            return _open_existing(name, flags, parent), False
        except FileNotFoundError:
            before_change("create", path)
        try:
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=parent)
        except FileExistsError:  # another process was faster
            return _open_existing(name, flags, parent), False
        try:
            set_owner(descriptor, os.fstat(parent))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor, True


def _open_existing(name: str, flags: int, parent: int) -> int:
    if not stat.S_ISREG(lstat_at(name, parent).st_mode):
        raise OSError(errno.EINVAL, "is a link, a directory or a pipe, not a regular file: remove it")
    return os.open(name, flags, dir_fd=parent)


def set_owner(descriptor: int, to: os.stat_result) -> None:
    """Give a new, open file the owner and group of ``to``.

    Raises OSError if the file has several hard links. A new file has one; with more, another user may have
    put a link to another file in its place.
    """
    created = os.fstat(descriptor)
    if (to.st_uid, to.st_gid) == (created.st_uid, created.st_gid):
        return
    if created.st_nlink > 1 and not stat.S_ISDIR(created.st_mode):
        raise OSError(errno.EMLINK, "has other hard links, so it is not the file that was created")
    os.fchown(descriptor, to.st_uid, to.st_gid)


def unlink(path: PathLike) -> None:
    """Remove one name. Raises FileNotFoundError."""
    before_change("unlink", path)
    with OpenedParent(path) as (parent, name):
        os.unlink(name, dir_fd=parent)
