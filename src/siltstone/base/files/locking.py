"""Locks: the one on a log directory that a broker respects, and shared and exclusive claims on ledgers.

``Lock`` is a POSIX record lock, as Java's ``FileChannel.lock`` takes them. ``Flock`` is ``flock(2)``: it
belongs to an open file, so two readers in one process hold one each, and it ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading

from siltstone.base.files.opening import OpenFile, PathLike, closing, open_for_writing, open_regular, unlink

_FLOCK = struct.Struct("qqihh" if sys.platform == "darwin" else "hhqqi")
"""The system's ``struct flock``: start, length, process, kind, whence; kind first on Linux."""
_KIND, _PROCESS = (3, 2) if sys.platform == "darwin" else (0, 4)

_held: set[tuple[int, int]] = set()
"""Device and inode of the files that this process has locked: the system would let it lock them again."""
_held_guard = threading.RLock()
"""Held from the check of ``_held`` until the lock is taken or released. To the system the threads of a
process are one owner: two of them would both get a lock, and a close in one drops the lock of the other."""


class Lock:
    """An exclusive POSIX lock on one file, held on one descriptor until ``release``.

    ``lockf`` and not ``flock``: Java's ``FileChannel.lock`` is a POSIX record lock. Closing any other
    descriptor of the same file in this process would drop it, so nothing else may open the file, and a second
    ``Lock`` on it is refused before it does. Raises BlockingIOError, OSError where the name is a link's.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        with _held_guard:
            self._take(self.path)

    def _take(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.lstat(path)) in _held:
                raise BlockingIOError(errno.EAGAIN, "locked by this process already", path)
        self._descriptor, self.made = open_for_writing(path)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder may have removed the file since it was opened: that lock would exclude no process.
            if not os.path.samestat(os.fstat(self._descriptor), os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "was removed by the process that held it", self.path)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.ENOENT):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", self.path) from None
            raise
        self._identity = _identity(os.fstat(self._descriptor))
        _held.add(self._identity)

    def release(self) -> None:
        """Release the lock, once. A file that the lock created is removed first, as a broker does."""
        with _held_guard:
            if self._descriptor >= 0:
                try:
                    if self.made:
                        with contextlib.suppress(FileNotFoundError):
                            unlink(self.path)
                finally:
                    os.close(self._descriptor)
                    self._descriptor = -1
                    _held.discard(self._identity)


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def lock_holder(path: PathLike) -> int | None:
    """The process that holds a ``Lock`` on the file, None for none. Nothing is locked, created or changed
    (``F_GETLK``).

    None also where there is no such file, or it may not be read, or is no regular file.
    """
    with _held_guard:
        try:
            if _identity(os.stat(path)) in _held:
                return os.getpid()
            descriptor = open_regular(path)
        except OSError:
            return None
        with closing(descriptor):
            question = [0, 0, 0, 0, 0]
            question[_KIND] = fcntl.F_WRLCK
            answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*question)))
    return None if answer[_KIND] == fcntl.F_UNLCK else int(answer[_PROCESS])


def is_locked(path: PathLike) -> bool:
    """Does a process hold a ``Lock`` on the file?"""
    return lock_holder(path) is not None


class Flock(OpenFile):
    """A claim on an existing file: of many that read what it guards, or of the one that removes it.

    Raises BlockingIOError when another claim is in the way, FileNotFoundError when the file is not there, or
    was removed before the claim held.
    """

    def __init__(self, path: PathLike, *, exclusive: bool = False) -> None:
        self.path = os.fspath(path)
        mode = os.O_RDWR if exclusive else os.O_RDONLY  # over a network an exclusive one has to write
        self.descriptor = open_regular(path, mode)
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self.descriptor), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, "was replaced meanwhile", self.path)
        except BaseException:
            self.close()
            raise

    release = OpenFile.close
