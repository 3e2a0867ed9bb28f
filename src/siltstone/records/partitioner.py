"""Which partition a key belongs to (Kafka's ``BuiltInPartitioner`` and ``Utils.murmur2``)."""

from __future__ import annotations

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
