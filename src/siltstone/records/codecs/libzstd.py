"""The system's libzstd, where there is one: a kernel calls it for all zstd frames of a run of batches.

A Python library's call takes half as long again for a batch: it allocates what it cannot know the size of,
copies it, and takes the interpreter from other threads twice. libzstd's interface is stable, and nearly every
Linux has it; without it, and for whatever it does not take, ``zstd`` goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading

from siltstone.records.codecs.scratch import SPANS_END, Scratch
from siltstone.records.kernel import call_of_five, kernel
from siltstone.records.layout import Bytes, Int64

ZSTD = 4
"""zstd's number in a batch's attributes."""
_NAMES = ("libzstd.so.1", "libzstd.1.dylib")


def _found() -> ctypes.CDLL | None:
    if ctypes.sizeof(ctypes.c_void_p) != 8:  # the kernel's integers are its sizes
        return None
    for name in _NAMES:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            library.ZSTD_createDCtx.restype = ctypes.c_void_p
            library.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
            return library
    return None


_library = _found()
_function = ctypes.cast(_library.ZSTD_decompressDCtx, ctypes.c_void_p).value if _library is not None else None


class _Context:
    """One of libzstd's, freed with its owner. Its address is None where there is no memory for one."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free = library.ZSTD_freeDCtx
        self.address: int | None = library.ZSTD_createDCtx()

    def __del__(self) -> None:
        self._free(self.address)


class _Mine(threading.local):
    """One thread's: it must not be used by two."""

    context: _Context | None = None


_mine = _Mine()


@kernel
def _decompress(
    function: int,
    context: int,
    data: Bytes,
    starts: Int64,
    ends: Int64,
    codecs: Int64,
    first: int,
    out: Bytes,
    limit: int,
    sizes: Int64,
) -> tuple[int, int]:
    """Spans of ``data`` from number ``first`` on go to ``out``, those of codec 0 as they are; fills ``sizes``
    and returns (the first one that was not taken, the bytes in ``out``)."""
    source, target, used = data.ctypes.data, out.ctypes.data, 0
    for i in range(first, len(starts)):
        room, size = len(out) - used, ends[i] - starts[i]
        if codecs[i] == ZSTD:
            size = call_of_five(function, context, target + used, min(room, limit), source + starts[i], size)
            if size <= 0:  # its errors are negative as int64
                return i, used
        elif codecs[i] == 0 and size <= room:
            out[used : used + size] = data[starts[i] : ends[i]]
        else:
            return i, used
        sizes[i] = size
        used += size
    return len(starts), used


def decompress_run(
    data: Bytes,
    starts: Int64,
    ends: Int64,
    codecs: Int64,
    first: int,
    scratch: Scratch,
    limit: int,
    sizes: Int64,
) -> int:
    """Decompress spans of ``data`` behind what is in use, from number ``first`` up to one that is not taken;
    returns that one's number.

    ``codecs`` (int64, one a span): those of 0 are copied. ``sizes`` is filled. Only frames that are sound,
    hold 1 to ``limit`` bytes, and find room in ``scratch`` as it is are taken.
    """
    if _library is None or _function is None or codecs[first] not in (0, ZSTD):
        return first
    if _mine.context is None:
        _mine.context = _Context(_library)
    if _mine.context.address is None:
        return first
    out = scratch.reserve(0)[: max(SPANS_END - scratch.used, 0)]
    given = (data, starts, ends, codecs, first, out, limit, sizes)
    behind, used = _decompress(_function, _mine.context.address, *given)
    scratch.used += used
    return int(behind)
