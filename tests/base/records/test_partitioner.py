"""The partitioner against what Kafka's own tests say of its hash."""

from __future__ import annotations

import random

import numpy as np
import pytest

from siltstone.base.records.hashing import murmur2, partition_for_key

MULTIPLIER, MASK = 0x5BD1E995, 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_values_of_kafkas_own_test(key: bytes, hashed: int) -> None:
    assert hashed_in_the_middle(key) == hashed & 0xFFFFFFFF


def hashed_in_the_middle(key: bytes) -> int:
    """The kernel's hash of a key with bytes before it; with the types for which it is compiled anyway."""
    return int(murmur2(np.frombuffer(b"before" + key, np.uint8), 6, np.int32(len(key))))


def murmur2_twin(key: bytes) -> int:
    """``Utils.murmur2`` of Kafka, with Python's integers."""
    whole = len(key) & ~3
    mixed = (0x9747B28C ^ len(key)) & MASK
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        mixed = (mixed * MULTIPLIER & MASK) ^ word
    if whole < len(key):
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & MASK
    mixed = (mixed ^ mixed >> 13) * MULTIPLIER & MASK
    return mixed ^ mixed >> 15


def test_the_hash_is_its_twins() -> None:
    source = random.Random(3)
    for size in [*range(40), 1000]:
        key = source.randbytes(size)
        assert hashed_in_the_middle(key) == murmur2_twin(key)


def test_every_partition_gets_keys() -> None:
    source = random.Random(5)
    counts = [0] * 7
    for _ in range(7000):
        counts[partition_for_key(source.randbytes(source.randrange(12)), 7)] += 1
    assert min(counts) > 700


def test_an_empty_key_is_a_key() -> None:
    assert partition_for_key(b"", 1000) == (murmur2_twin(b"") & 0x7FFFFFFF) % 1000


def test_the_sign_bit_does_not_count() -> None:
    assert partition_for_key(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10
