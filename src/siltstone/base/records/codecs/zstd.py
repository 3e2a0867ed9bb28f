"""zstd, by ``zstandard``, whose contexts are used again: for a batch of 16 KB a third of the time.

It takes one frame whose size it can guess, as clients write it; ``cramjam`` reads whatever else there is, and
says what is wrong with what nobody reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import cramjam
import zstandard

from siltstone.base.codec_table import ZSTD
from siltstone.base.records.codecs.scratch import SPANS_END, Scratch, decompress_into
from siltstone.base.records.kernel import call_of_five, kernel
from siltstone.base.records.layout import Bytes, Int64

_DEFAULT_LEVEL = 3
_ROOM_MIN, _TIMES_MAX = 1 << 16, 16
_REPEATED_BYTE, _HAS_CHECKSUM = 1, 4


class _Contexts(threading.local):
    """One thread's: they must not be used by two."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}


_contexts = _Contexts()


def decompress(data: memoryview, scratch: Scratch, limit: int) -> int:
    """Decompress behind what is in use; returns the size. Raises DecompressionError."""
    plain = _one_frame(data, min(max(_TIMES_MAX * len(data), _ROOM_MIN), limit))
    if plain is None:
        return decompress_into(cramjam.zstd.decompress_into, "zstd", data, scratch, limit)
    return scratch.append(plain)


def _one_frame(data: memoryview, size_max: int) -> bytes | None:
    """None for anything but one frame of 1 to ``size_max`` bytes, damaged or not."""
    try:
        told = zstandard.frame_content_size(data)
        if told > size_max or (told < 0 and not _ends_with_its_frame(data)):
            return None
        plain = _contexts.decompressor.decompress(data, max_output_size=size_max, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    return plain or None  # of a frame that says it is empty it looks at nothing else


def _ends_with_its_frame(data: memoryview) -> bool:
    """Is nothing behind the first frame? Where a frame does not tell its size, the library does not look.

    Block by block (RFC 8878, 3.1.1.2): three bytes with a flag for the last one, a type and a size. Raises
    ZstdError.
    """
    at, is_last = zstandard.frame_header_size(data), 0
    while not is_last and at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        is_last, kind = head & 1, (head >> 1) & 3
        at += 3 + (1 if kind == _REPEATED_BYTE else head >> 3)
    return at + (4 if data[4] & _HAS_CHECKSUM else 0) == len(data)


def compress(data: memoryview, level: int | None) -> bytes:
    """One frame, which says how much is in it."""
    return _compressor(_DEFAULT_LEVEL if level is None else level).compress(data)


def compress_all(parts: Sequence[memoryview]) -> Sequence[Any]:
    """A frame of each in one call, which holds no other thread up."""
    if not parts or not all(parts):  # it takes no empty ones
        return [compress(part, None) for part in parts]
    frames = _compressor(_DEFAULT_LEVEL).multi_compress_to_buffer(list(parts))
    return [frames[number] for number in range(len(frames))]


def _compressor(level: int) -> zstandard.ZstdCompressor:
    if level not in _contexts.compressors:
        _contexts.compressors[level] = zstandard.ZstdCompressor(level=level)
    return _contexts.compressors[level]


# The system's libzstd, where there is one: a kernel calls it for all zstd frames of a run of batches.
#
# A Python library's call takes half as long again for a batch: it allocates what it cannot know the size of,
# copies it, and takes the interpreter from other threads twice. libzstd's interface is stable, and nearly
# every Linux has it; without it, and for whatever it does not take, ``zstd`` goes on.

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
