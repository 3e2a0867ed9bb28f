"""Locks that a broker sees: POSIX record locks, as Java's ``FileChannel.lock`` takes them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from siltstone.files.operations import about_to, inherit_owner, unlink


class Lock:
    """An exclusive POSIX lock on one file, held on one descriptor until ``release``.

    ``lockf`` and not ``flock``: Java's ``FileChannel.lock`` is a POSIX record lock. Closing any other
    descriptor of the same file in this process would drop it, so nothing else may open the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.made = not os.path.lexists(path)
        if self.made:
            about_to("create", path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._descriptor), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, "was removed by the process that held it", self.path)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.ENOENT):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", self.path) from None
            raise
        if self.made:
            inherit_owner(path)

    def release(self) -> None:
        """Let go, once. A file that was not there before is removed first, as a broker does."""
        if self._descriptor >= 0:
            if self.made:
                with contextlib.suppress(FileNotFoundError):
                    unlink(self.path)
            os.close(self._descriptor)
            self._descriptor = -1
