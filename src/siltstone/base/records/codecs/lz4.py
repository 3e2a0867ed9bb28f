"""lz4 frames, by cramjam.

Blocks must be independent: Kafka's Java client refuses linked ones. A message set of magic 0 has a wrong
header checksum, computed over the magic number as well (KAFKA-3160); it is put right before reading.

A frame of one block without checksums, as Kafka's clients write a batch that fits, is handed to the library
as that block: a context for the frame takes longer than the block (decision 0011). Every other frame, and
what is damaged, goes the whole way.
"""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import numpy as np
import xxhash

from siltstone.base.records.codecs.scratch import Scratch, decompress_into
from siltstone.base.records.layout import Bytes

MAGIC = b"\x04\x22\x4d\x18"
_DEFAULT_LEVEL = 1
_HEAD = struct.Struct("<7sI")
"""A frame's shortest header, and the size of its first block."""
_END = bytes(4)
_INDEPENDENT, _LINKED = 0x60, 0x40
_BLOCK_MAX = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}


def _checksum(descriptor: bytes) -> int:
    """The last byte of a frame's header."""
    return (xxhash.xxh32_intdigest(descriptor) >> 8) & 0xFF


def _header(flags: int, block_max: int) -> bytes:
    descriptor = bytes((flags, block_max))
    return MAGIC + descriptor + bytes((_checksum(descriptor),))


_HEADER = _header(_INDEPENDENT, 0x40)
_HEADERS = {
    _header(flags, code): size for flags in (_INDEPENDENT, _LINKED) for code, size in _BLOCK_MAX.items()
}
"""The headers of frames without sizes and checksums, and what a block of theirs holds at most, in bytes."""


def decompress(data: memoryview, scratch: Scratch, limit: int) -> int:
    """Decompress behind what is in use; returns the size. Raises DecompressionError."""
    size = _one_block(data, scratch, limit)
    return decompress_into(cramjam.lz4.decompress_into, "lz4", data, scratch, limit) if size is None else size


def _one_block(data: memoryview, scratch: Scratch, limit: int) -> int | None:
    """None for anything but a frame of one compressed block, damaged or not."""
    if len(data) < _HEAD.size + len(_END):
        return None
    header, packed = _HEAD.unpack_from(data)
    size_max = min(_HEADERS.get(header, 0), limit)
    if not size_max or len(data) != _HEAD.size + packed + len(_END) or data[-len(_END) :] != _END:
        return None
    try:
        size = int(
            cramjam.lz4.decompress_block_into(
                data[_HEAD.size : -len(_END)], scratch.room(size_max), output_len=size_max
            )
        )
    except cramjam.DecompressionError:
        return None
    scratch.used += size
    return size


def mend(data: Bytes | memoryview) -> Bytes | memoryview:
    """The frame with its header checksum put right (magic 0 message sets, KAFKA-3160)."""
    raw = bytearray(data)
    if len(raw) < 7 or raw[:4] != MAGIC:
        return data
    end = 6 + (8 if raw[4] & 0x08 else 0)
    if len(raw) > end:
        raw[end] = _checksum(bytes(raw[4:end]))
    return np.frombuffer(raw, np.uint8)


def compress(data: memoryview, level: int | None) -> Any:
    """A frame of independent blocks, without checksums of the contents."""
    if level is None and len(data) <= _BLOCK_MAX[0x40]:
        block = cramjam.lz4.compress_block(data, store_size=False)
        if 0 < len(block) < len(data):
            return b"".join((_HEADER, len(block).to_bytes(4, "little"), block, _END))
    compressor = cramjam.lz4.Compressor(
        level=_DEFAULT_LEVEL if level is None else level, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))  # it takes nothing but bytes
    return compressor.finish()
