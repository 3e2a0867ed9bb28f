"""SipHash-2-4 with 128 bits of output (Aumasson and Bernstein): a keyed hash that nobody can aim at.

One kernel, called for each key from other kernels.
"""

from __future__ import annotations

import numpy as np

from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes


@kernel
def _rotate(word: np.uint64, by: int) -> np.uint64:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@kernel
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@kernel
def _byte(data: Bytes, position: np.uint64, at: int) -> np.uint64:
    return np.uint64(data[position + np.uint64(at)]) << np.uint64(8 * at)


@kernel
def _load(data: Bytes, position: np.uint64) -> np.uint64:
    """Eight bytes, little-endian; written out, and by an unsigned index, it becomes one load."""
    low = (
        _byte(data, position, 0)
        | _byte(data, position, 1)
        | _byte(data, position, 2)
        | _byte(data, position, 3)
    )
    high = (
        _byte(data, position, 4)
        | _byte(data, position, 5)
        | _byte(data, position, 6)
        | _byte(data, position, 7)
    )
    return low | high


@kernel
def siphash128(
    data: Bytes, start: int, size: int, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """SipHash-2-4 with 128 bits of output over ``data[start:start + size]``, as two uint64."""
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    position = np.uint64(start)
    for _ in range(size >> 3):
        word = _load(data, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += np.uint64(8)
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for i in range(size & 7):
        word |= _byte(data, position, i)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3
