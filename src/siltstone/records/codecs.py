"""Compression as Kafka's clients write and read it: gzip, snappy (xerial), lz4 frames, zstd.

``cramjam`` does the work; what is Kafka's own goes around it:

* snappy is framed as xerial's ``SnappyOutputStream`` does: 8 magic bytes, two int32 versions, then
  blocks of ``int32 size + raw snappy``. Raw snappy without a frame is read too.
* lz4 frames must have independent blocks: Kafka's Java client refuses linked ones.
* a message set of magic 0 has a wrong lz4 header checksum, computed over the magic number as well
  (KAFKA-3160); it is put right before reading.

Decompression never allocates far over what the data turns out to be: it starts from a guess, doubles
while the output does not fit, and stops at ``limit``.
"""

from __future__ import annotations

from typing import Any

import cramjam
import numpy as np
import xxhash

from siltstone.records.layout import CODECS, Bytes

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_SIZE = 32 * 1024
LZ4_MAGIC = b"\x04\x22\x4d\x18"
DEFAULT_LIMIT = (1 << 31) - 1
_LZ4_LEVEL, _ZSTD_LEVEL = 1, 3


class DecompressionError(ValueError):
    """Compressed bytes that make no sense, or that grow past the limit: says which."""


class DecompressedTooLargeError(DecompressionError):
    """Compressed bytes that grow past the limit."""


class Scratch:
    """A buffer that is used again and grows: where decompressed records go.

    ``fill`` appends one batch's decompressed bytes; the array may move when it grows, so take
    ``array()`` only when all of a window is in.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self._array: Bytes = np.empty(capacity, np.uint8)
        self.used = 0

    def clear(self) -> None:
        """Forget the contents, keep the memory."""
        self.used = 0

    def array(self) -> Bytes:
        """The bytes in use: uint8, a view."""
        return self._array[: self.used]

    def reserve(self, size: int) -> Bytes:
        """At least ``size`` free bytes behind what is in use: uint8, a view."""
        if len(self._array) - self.used < size:
            grown = np.empty(max(self.used + size, 2 * len(self._array)), np.uint8)
            grown[: len(self._array)] = self._array  # blocks of a frame may lie behind ``used``
            self._array = grown
        return self._array[self.used :]

    def append(self, data: Bytes) -> int:
        """Copy ``data`` in as it is; returns its size."""
        self.reserve(len(data))[: len(data)] = data
        self.used += len(data)
        return len(data)

    def fill(self, codec: int, data: Bytes, limit: int, magic: int = 2) -> int:
        """Decompress ``data`` behind what is in use; returns the decompressed size.

        Raises DecompressionError for bytes that are no such stream and for output over ``limit``.
        """
        if not 0 < codec < len(CODECS):
            raise DecompressionError(f"no codec has the number {codec}")
        if CODECS[codec] == "snappy":
            size = _unsnappy(self, data, limit)
        else:
            size = _inflate(self, codec, _mend_lz4(data) if magic == 0 and codec == 3 else data, limit)
        self.used += size
        return size


def _module(codec: int) -> Any:
    return {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}[codec]


def _inflate(scratch: Scratch, codec: int, data: Bytes, limit: int) -> int:
    guess = min(max(4 * len(data), 4096), limit)
    while True:
        room = scratch.reserve(guess)[:limit]
        try:
            return int(_module(codec).decompress_into(data, room))
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise DecompressionError(f"{CODECS[codec]}: {error}") from None
        if len(room) >= limit:
            raise DecompressedTooLargeError(f"{CODECS[codec]}: decompresses to more than {limit} bytes")
        guess = min(4 * len(room), limit)


def _snappy_block(scratch: Scratch, data: memoryview, used: int, limit: int) -> int:
    try:
        size = int(cramjam.snappy.decompress_raw_len(data))
        if used + size > limit:
            raise DecompressedTooLargeError(f"snappy: decompresses to more than {limit} bytes")
        if size > 64 * len(data) + 64:
            raise DecompressionError("snappy: impossible block size")
        room = scratch.reserve(used + size)[used : used + size]
        written = int(cramjam.snappy.decompress_raw_into(data, room.data))
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}") from None
    if written != size:
        raise DecompressionError("snappy: block shorter than it says")
    return size


def _unsnappy(scratch: Scratch, data: Bytes, limit: int) -> int:
    view = data.data
    if bytes(view[:8]) != XERIAL_MAGIC:
        return _snappy_block(scratch, view, 0, limit)
    position, used = len(XERIAL_HEADER), 0
    if len(view) < position:
        raise DecompressionError("snappy: the frame's header is cut")
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size <= 0 or position + size > len(view):
            raise DecompressionError("snappy: block goes on beyond the batch")
        used += _snappy_block(scratch, view[position : position + size], used, limit)
        position += size
    return used


def _mend_lz4(data: Bytes) -> Bytes:
    """The frame with its header checksum put right (magic 0 message sets, KAFKA-3160)."""
    raw = bytearray(data.tobytes())
    if len(raw) < 7 or raw[:4] != LZ4_MAGIC:
        return data
    end = 6 + (8 if raw[4] & 0x08 else 0)
    if len(raw) > end:
        raw[end] = (xxhash.xxh32_intdigest(bytes(raw[4:end])) >> 8) & 0xFF
    return np.frombuffer(raw, np.uint8)


def compress(codec: int, data: Bytes, level: int | None = None) -> Any:
    """Compress one batch's records; returns a bytes-like object that Kafka's Java client reads.

    ``codec`` is the number in the batch's attributes, 1 to 4; ``level`` the codec's own, snappy has none.
    """
    if codec == 1:
        return cramjam.gzip.compress(data.data, level=level)
    if codec == 2:
        return _xerial(data.data)
    if codec == 3:
        compressor = cramjam.lz4.Compressor(
            level=_LZ4_LEVEL if level is None else level, content_checksum=False, block_linked=False
        )
        compressor.compress(data.tobytes())  # it takes nothing but bytes
        return compressor.finish()
    if codec == 4:
        return cramjam.zstd.compress(data.data, level=_ZSTD_LEVEL if level is None else level)
    raise ValueError(f"no codec has the number {codec}")


def _xerial(data: memoryview) -> bytes:
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_SIZE]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)
