"""The partitioner against what Kafka's own tests say of its hash."""

from __future__ import annotations

import random

import pytest

from siltstone.base.records.hashing import murmur2, partition_for_key


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
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_every_partition_gets_keys() -> None:
    source = random.Random(5)
    counts = [0] * 7
    for _ in range(7000):
        counts[partition_for_key(source.randbytes(source.randrange(12)), 7)] += 1
    assert min(counts) > 700


def test_the_sign_bit_does_not_count() -> None:
    assert partition_for_key(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10
