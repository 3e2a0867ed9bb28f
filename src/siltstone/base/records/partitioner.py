"""Which partition a key belongs to (Kafka's ``BuiltInPartitioner`` and ``Utils.murmur2``)."""

from __future__ import annotations

import numpy as np

from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64

_SEED, _MULTIPLIER, _SHIFT = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of ``data``, from 0 to 2³² − 1: what a Java client has, read as unsigned."""
    whole = len(data) & ~3
    mixed = (_SEED ^ len(data)) & _MASK
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        mixed = (mixed * _MULTIPLIER & _MASK) ^ word
    if whole < len(data):
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _MASK
    return mixed ^ mixed >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition, of so many, that Kafka's default partitioner gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@kernel
def partitions_for_keys(data: Bytes, start: Int64 | Int32, size: Int32, partitions: int, out: Int32) -> None:
    """``partition_for_key`` of each span into ``out``; -1 where there is no key (size -1)."""
    for row in range(len(start)):
        out[row] = -1
        if size[row] < 0:
            continue
        mixed = np.uint32(np.uint32(_SEED) ^ np.uint32(size[row]))
        whole = start[row] + (size[row] & ~3)
        for at in range(start[row], whole, 4):
            word = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            word |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
            word = np.uint32(word * np.uint32(_MULTIPLIER))
            word = np.uint32((word ^ (word >> np.uint32(_SHIFT))) * np.uint32(_MULTIPLIER))
            mixed = np.uint32(np.uint32(mixed * np.uint32(_MULTIPLIER)) ^ word)
        for at in range(start[row] + size[row] - 1, whole - 1, -1):
            mixed = np.uint32(mixed ^ np.uint32(data[at]) << np.uint32(8 * (at - whole)))
        if size[row] & 3:
            mixed = np.uint32(mixed * np.uint32(_MULTIPLIER))
        mixed = np.uint32((mixed ^ (mixed >> np.uint32(13))) * np.uint32(_MULTIPLIER))
        mixed = np.uint32(mixed ^ (mixed >> np.uint32(15)))
        out[row] = (mixed & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
