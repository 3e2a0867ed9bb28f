"""zstd, by ``zstandard``, whose contexts are used again: for a batch of 16 KB a third of the time.

It takes one frame whose size it can guess, as clients write it; ``cramjam`` reads whatever else there is, and
says what is wrong with what nobody reads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import cramjam
import zstandard

from siltstone.records.codecs.guessed import decompress_into
from siltstone.records.codecs.scratch import Scratch

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
