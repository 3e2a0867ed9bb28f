"""Integers out of bytes: the leaf kernels that scanner, decoders, checks and hashing share.

The caller has seen to it that the bytes are there.
"""

from __future__ import annotations

import numpy as np

from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes


@kernel
def read_int64(data: Bytes, position: int) -> int:
    """The int64 at ``position``."""
    value = 0
    for i in range(8):
        value = (value << 8) | int(data[position + i])
    return value


@kernel
def read_int32(data: Bytes, position: int) -> int:
    """The int32 at ``position``."""
    value = 0
    for i in range(4):
        value = (value << 8) | int(data[position + i])
    return value - ((value & 0x80000000) << 1)


@kernel
def read_int16(data: Bytes, position: int) -> int:
    """The int16 at ``position``."""
    value = (int(data[position]) << 8) | int(data[position + 1])
    return value - ((value & 0x8000) << 1)


@kernel
def byte_of_word(data: Bytes, position: np.uint64, at: int) -> np.uint64:
    """Byte number ``at`` behind ``position`` in its place in a little-endian word."""
    return np.uint64(data[position + np.uint64(at)]) << np.uint64(8 * at)


@kernel
def load_word(data: Bytes, position: np.uint64) -> np.uint64:
    """Eight bytes, little-endian; written out, and by an unsigned index, it becomes one load."""
    low = (
        byte_of_word(data, position, 0)
        | byte_of_word(data, position, 1)
        | byte_of_word(data, position, 2)
        | byte_of_word(data, position, 3)
    )
    high = (
        byte_of_word(data, position, 4)
        | byte_of_word(data, position, 5)
        | byte_of_word(data, position, 6)
        | byte_of_word(data, position, 7)
    )
    return low | high
