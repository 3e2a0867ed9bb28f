"""Letting the system write what a file got to disk while more is made, so that a sync has little left to do,
and letting go of the memory in which it keeps a copy.

A wish and no promise: what is durable is what was synced.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

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
