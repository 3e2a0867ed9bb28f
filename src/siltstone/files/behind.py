"""Letting the system write what a file got to disk while more is made, so that a sync has little left to do.

A wish and no promise: what is durable is what was synced.
"""

from __future__ import annotations

import ctypes
from typing import Any

_WRITE = 2


def _find_sync_file_range() -> Any:
    """Linux's ``sync_file_range``, None elsewhere."""
    found = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_file_range = _find_sync_file_range()


def start_writing(descriptor: int, position: int, size: int) -> None:
    """Begin to write ``size`` bytes from ``position`` on to disk, where the system can."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, size, _WRITE)
