"""lz4 frames, by cramjam.

Blocks must be independent: Kafka's Java client refuses linked ones. A message set of magic 0 has a wrong
header checksum, computed over the magic number as well (KAFKA-3160); it is put right before reading.
"""

from __future__ import annotations

from typing import Any

import cramjam
import numpy as np
import xxhash

from siltstone.records.codecs.guessed import decompress_into
from siltstone.records.codecs.scratch import Scratch
from siltstone.records.layout import Bytes

MAGIC = b"\x04\x22\x4d\x18"
_DEFAULT_LEVEL = 1


def decompress(data: memoryview, scratch: Scratch, limit: int) -> int:
    """Decompress behind what is in use; returns the size. Raises DecompressionError."""
    return decompress_into(cramjam.lz4.decompress_into, "lz4", data, scratch, limit)


def mend(data: Bytes | memoryview) -> Bytes | memoryview:
    """The frame with its header checksum put right (magic 0 message sets, KAFKA-3160)."""
    raw = bytearray(data)
    if len(raw) < 7 or raw[:4] != MAGIC:
        return data
    end = 6 + (8 if raw[4] & 0x08 else 0)
    if len(raw) > end:
        raw[end] = (xxhash.xxh32_intdigest(bytes(raw[4:end])) >> 8) & 0xFF
    return np.frombuffer(raw, np.uint8)


def compress(data: memoryview, level: int | None) -> Any:
    """A frame of independent blocks, without checksums of the contents."""
    compressor = cramjam.lz4.Compressor(
        level=_DEFAULT_LEVEL if level is None else level, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))  # it takes nothing but bytes
    return compressor.finish()
