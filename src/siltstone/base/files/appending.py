"""Files that grow at their end, and slices of files that are handed on without being copied."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import Any

import numpy as np

from siltstone.base.files.operations import Reader, about_to, open_for_writing

_RESERVED_AT_ONCE = 64 << 20
_SMALLEST_RESERVE = 1 << 20
_KEEP_SIZE = 1


def _find_fallocate() -> Any:
    """Linux's ``fallocate``, None elsewhere."""
    found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate = _find_fallocate()


class Appender:
    """A file open for appending, made if it is not there; ``size`` is where the next byte goes. A link is
    refused: OSError.

    A write that fails half-way is cut off again, so that the file always ends behind a whole write. After
    an fsync that failed nothing is written or synced any more: what is on the disk then is not known.

    ``reserve_up_to``: a file of over 1 MiB gets room on the disk ahead of its writes, as much as it is large
    and 64 MiB at most, up to this size: a write then finds its blocks, which makes it a fifth faster (ext4).
    ``release`` and ``close`` give back what was not used; its size never tells of it.
    """

    def __init__(
        self, path: str | os.PathLike[str], size: int | None = None, *, reserve_up_to: int = 0
    ) -> None:
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
        about_to("write", self.path)
        view = memoryview(data)
        size = view.nbytes
        if self._reserved < self.size + size <= self._reserve_up_to:
            self._reserve()
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
        """Ask for room; a file system that has none to give, or cannot, is asked again when that is used."""
        if self.size < _SMALLEST_RESERVE or _fallocate is None:
            return
        size = min(self.size, _RESERVED_AT_ONCE, self._reserve_up_to - self.size)
        _fallocate(self._descriptor, _KEEP_SIZE, self.size, size)
        self._reserved = self.size + size

    def release(self) -> None:
        """Give back what was reserved and not used, as nothing more is written for now; the times stay."""
        if self._reserved > self.size and not self._broken:
            found = os.fstat(self._descriptor)
            os.ftruncate(self._descriptor, self.size)
            os.utime(self._descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
        self._reserved = 0

    def truncate(self, size: int) -> None:
        """Cut the file off at ``size`` bytes, durably. Raises OSError."""
        self._refuse_broken()
        about_to("truncate", self.path, str(size))
        os.ftruncate(self._descriptor, size)
        self.size, self._reserved = size, 0
        self.sync()

    def sync(self) -> None:
        """Make the contents durable. Raises OSError once and for all, FileNotFoundError when it is closed."""
        self._refuse_broken()
        if self._descriptor < 0:
            raise FileNotFoundError(errno.ENOENT, "closed before it was synced", self.path)
        about_to("fsync", self.path)
        try:
            os.fsync(self._descriptor)
        except OSError:
            self._broken = True
            raise

    def _refuse_broken(self) -> None:
        if self._broken:
            raise OSError(5, "an fsync of this file failed before; it is not written to any more", self.path)

    def close(self) -> None:
        """Close the file; what is not synced is the system's to write."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.release()
            os.close(self._descriptor)
            self._descriptor = -1


class FileSlice:
    """A run of bytes of an open file: ``read`` copies it once.

    It holds on to the file, which may be renamed or unlinked meanwhile.
    """

    __slots__ = ("position", "reader", "size")

    def __init__(self, reader: Reader, position: int, size: int) -> None:
        self.reader = reader
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The bytes: uint8, writable; fewer than ``size`` when the file was cut off since."""
        buffer = np.empty(self.size, np.uint8)
        return buffer[: self.reader.read_into(buffer, self.position)]
