"""snappy, by cramjam, framed as xerial's ``SnappyOutputStream`` does.

8 magic bytes, two int32 versions, then blocks of ``int32 size + raw snappy``. Raw snappy without a frame is
read too.
"""

from __future__ import annotations

import cramjam

from siltstone.base.records.codecs.scratch import DecompressedTooLargeError, DecompressionError, Scratch

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_SIZE = 32 * 1024


def decompress(data: memoryview, scratch: Scratch, limit: int) -> int:
    """Decompress behind what is in use; returns the size. Raises DecompressionError."""
    size = _decompress(data, scratch, limit)
    scratch.used += size
    return size


def _decompress(data: memoryview, scratch: Scratch, limit: int) -> int:
    if data[:8] != XERIAL_MAGIC:
        return _block(scratch, data, 0, limit)
    position, used = len(XERIAL_HEADER), 0
    if len(data) < position:
        raise DecompressionError("snappy: the frame's header is cut")
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size <= 0 or position + size > len(data):
            raise DecompressionError("snappy: block goes on beyond the batch")
        used += _block(scratch, data[position : position + size], used, limit)
        position += size
    return used


def _block(scratch: Scratch, data: memoryview, used: int, limit: int) -> int:
    try:
        size = int(cramjam.snappy.decompress_raw_len(data))
        if used + size > limit:
            raise DecompressedTooLargeError("snappy", limit)
        if size > 64 * len(data) + 64:
            raise DecompressionError("snappy: impossible block size")
        written = int(cramjam.snappy.decompress_raw_into(data, scratch.room(used + size)[used:]))
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}") from None
    if written != size:
        raise DecompressionError("snappy: block shorter than it says")
    return size


def compress(data: memoryview, level: int | None) -> bytes:
    """A xerial frame; snappy has no levels."""
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_SIZE]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)
