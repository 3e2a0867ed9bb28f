"""Locks: the lock of a log directory, which brokers respect, and shared and exclusive locks on ledgers'
files.

``Lock`` is a POSIX record lock, as Java's ``FileChannel.lock`` takes them. It belongs to the process, and
ends when the process closes any descriptor of the file. ``Flock`` is ``flock(2)``: it belongs to one open
file, so two readers in one process hold one each. Locks of both kinds end with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading

from siltstone.base.files.objects import is_object
from siltstone.base.files.opening import OpenFile, PathLike, closing, open_for_writing, open_regular, unlink

_FLOCK = struct.Struct("qqihh" if sys.platform == "darwin" else "hhqqi")
"""The system's ``struct flock``. Linux: type, whence, start, length, process; macOS: start, length, process,
type, whence."""
_LOCK_TYPE_FIELD, _LOCK_PROCESS_FIELD = (3, 2) if sys.platform == "darwin" else (0, 4)
"""The numbers of the fields type and process in that order."""

_locked_files: set[tuple[int, int]] = set()
"""Device and inode of the files that this process has locked: the system would let it lock them again."""
_locked_files_guard = threading.RLock()
"""Held from the check of ``_locked_files`` until the lock is taken or released. To the system the threads of
a process are one owner: two of them would both get a lock, and a close in one drops the lock of the other."""
os.register_at_fork(after_in_child=_locked_files.clear)  # a child does not inherit record locks


class Lock:
    """An exclusive POSIX lock on one file, held on one descriptor until ``release``.

    ``lockf`` and not ``flock``: Java's ``FileChannel.lock`` is a POSIX record lock. Closing any other
    descriptor of the same file in this process would drop it, so nothing else may open the file, and a second
    ``Lock`` on it is refused before it opens the file. Raises BlockingIOError if the lock is held, OSError if
    ``path`` is a link.

    ``created``: whether the file did not exist before, so that ``release`` removes it.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        with _locked_files_guard:
            self._take(self.path)

    def _take(self, path: str) -> None:
        """Open and lock the file. The caller holds ``_locked_files_guard``."""
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.lstat(path)) in _locked_files:
                raise BlockingIOError(errno.EAGAIN, "locked by this process already", path)
        self._descriptor, self.created = open_for_writing(path)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file between the open and the lock. A lock on a removed
            # file would exclude no process.
            if not os.path.samestat(os.fstat(self._descriptor), os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "was removed by the process that held it", self.path)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.ENOENT):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", self.path) from None
            raise
        self._identity = _identity(os.fstat(self._descriptor))
        _locked_files.add(self._identity)

    def release(self) -> None:
        """Release the lock, once. A file that the lock created is removed while the lock is still held. (A
        broker unlocks first, and always removes the file.)"""
        with _locked_files_guard:
            if self._descriptor >= 0:
                try:
                    if self.created:
                        with contextlib.suppress(FileNotFoundError):
                            if _identity(os.lstat(self.path)) == self._identity:  # else it is another's lock
                                unlink(self.path)
                finally:
                    os.close(self._descriptor)
                    self._descriptor = -1
                    _locked_files.discard(self._identity)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def lock_holder(path: PathLike) -> int | None:
    """The process that holds a ``Lock`` on the file, None if none does. Nothing is locked, created or changed
    (``F_GETLK``).

    0 where the system does not say which: a process outside of this one's container, or a lock that belongs
    to an open file. None also where there is no such file, or it may not be read, or is no regular file.
    """
    with _locked_files_guard:
        try:
            if _identity(os.stat(path)) in _locked_files:
                return os.getpid()
            descriptor = open_regular(path)
        except OSError:
            return None
        with closing(descriptor):
            request = [0, 0, 0, 0, 0]  # from the start (whence 0, start 0) to the end of the file (length 0)
            request[_LOCK_TYPE_FIELD] = fcntl.F_WRLCK
            reply = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*request)))
    return None if reply[_LOCK_TYPE_FIELD] == fcntl.F_UNLCK else max(int(reply[_LOCK_PROCESS_FIELD]), 0)


def is_locked(path: PathLike) -> bool:
    """Does a process hold a ``Lock`` on the file? Objects of a store have none."""
    return not is_object(path) and lock_holder(path) is not None


class Flock(OpenFile):
    """A ``flock(2)`` on an existing file: shared by many readers, or ``exclusive`` for the process that
    removes it.

    Raises BlockingIOError if another open file, of this process or another one, has a lock that excludes this
    one, FileNotFoundError if the file does not exist, or was removed before the lock was taken.
    """

    def __init__(self, path: PathLike, *, exclusive: bool = False) -> None:
        self.path = os.fspath(path)
        # NFS grants an exclusive lock only on a file that is open for writing.
        mode = os.O_RDWR if exclusive else os.O_RDONLY
        self.descriptor = open_regular(path, mode)
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self.descriptor), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, "was replaced meanwhile", self.path)
        except BaseException:
            self.close()
            raise

    release = OpenFile.close
