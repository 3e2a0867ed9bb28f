"""Packed key entries of tests, and the plain twin of how they are spread over shards."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

MASK = (1 << 64) - 1
LOW = 0xFFFFFFFF
KEY = bytes(range(16))
"""A hash key, and its words."""
WORDS = (int.from_bytes(KEY[:8], "little"), int.from_bytes(KEY[8:], "little"))

hashes = st.sampled_from([0, 1, 1 << 32, 5 << 40, MASK, MASK - 1, 1 << 63, (1 << 63) + 1])
pairs = st.lists(st.tuples(hashes | st.integers(0, MASK), st.integers(0, 3), st.integers(0, 40)), max_size=60)
"""Rows of (first word, high half of the second, relative offset), with equal and neighbouring hashes."""


def entries_of(rows: list[tuple[int, int, int]]) -> np.ndarray:
    """Packed entries of such rows."""
    return np.array([[first, high << 32 | offset] for first, high, offset in rows], np.uint64).reshape(-1, 2)


def shard_of(first: int, shards: int) -> int:
    """The shard of a hash's first word."""
    return (first >> 32) * shards >> 32
