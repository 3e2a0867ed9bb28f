"""The verifier's own hash and the check of keys, each against a plain Python twin."""

from __future__ import annotations

import random

import numpy as np
import pytest

from siltstone.verify import keys
from siltstone.verify.keys import MAY_GO, MUST_GO, RETAINED, TOMBSTONE, check_bucket, hash_keys

MASK = (1 << 64) - 1
P1, P2, P3, P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK


def _twin(key: bytes, seed0: int, seed1: int) -> tuple[int, int]:
    lanes = [(seed0 + len(key) * P1) & MASK, (seed1 ^ (len(key) * P3)) & MASK]
    whole = len(key) // 8 * 8
    words = [int.from_bytes(key[i : i + 8], "little") for i in range(0, whole, 8)]
    for word in [*words, int.from_bytes(key[whole:], "little")]:
        for lane, given in enumerate((word, word ^ P4)):
            mixed = lanes[lane] ^ (_rotated(given * P2 & MASK, 31) * P1 & MASK)
            lanes[lane] = (_rotated(mixed, 27) * P1 + P4) & MASK
    found = []
    for each in lanes:
        lane = ((each ^ (each >> 33)) * P2) & MASK
        lane = ((lane ^ (lane >> 29)) * P3) & MASK
        found.append(lane ^ (lane >> 32))
    return found[0], found[1]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_hash_is_its_twin(seed: int) -> None:
    rng = random.Random(seed)
    texts = [rng.randbytes(size) for size in [*range(40), 64, 100, 1000]]
    data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    sizes = np.array([len(each) for each in texts], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    seeds = rng.getrandbits(64), rng.getrandbits(64)
    out = np.empty((len(texts), 3), np.uint64)
    hash_keys(data, starts, sizes, np.uint64(seeds[0]), np.uint64(seeds[1]), out)
    assert [tuple(row) for row in out[:, :2].tolist()] == [_twin(each, *seeds) for each in texts]
    assert len({row[0] for row in out.tolist()}) == len(texts)


def _naive(rows: list[tuple[int, int, int]], first_dirty: int, must: bool) -> dict[str, int]:
    last: dict[int, int] = {}
    for key, offset, _ in rows:
        if offset >= first_dirty:
            last[key] = max(last.get(key, -1), offset)
    found: dict[str, int] = {}
    for key, offset, flags in rows:
        superseded = offset < last.get(key, -1)
        name = None
        if flags & RETAINED and superseded and must:
            name = "superseded_kept"
        elif flags & RETAINED and not superseded and flags & MUST_GO and must:
            name = "tombstone_kept"
        elif not flags & RETAINED and not superseded and not flags & MAY_GO:
            name = "tombstone_lost" if flags & TOMBSTONE else "lost"
        if name:
            found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.parametrize("must", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_keys_are_judged_as_a_dict_would(seed: int, must: bool) -> None:
    rng = random.Random(seed)
    first_dirty = rng.choice([0, 50, 1 << 40])
    base = max(first_dirty - 60, 0)
    rows = [(rng.randrange(20), base + offset, rng.randrange(16)) for offset in range(150)]
    rng.shuffle(rows)
    entries = np.array(
        [(key * P1 & MASK, (key * P2 & MASK & ~15) | flags, offset) for key, offset, flags in rows], np.uint64
    )
    blobs = [entries[:70], entries[70:]]
    found = check_bucket(blobs, first_dirty=first_dirty, must=must)
    assert dict(found.found) == _naive(rows, first_dirty, must)
    assert found.counts["keys"] == len({key for key, _, _ in rows})


def test_buckets_are_disjoint_and_cover() -> None:
    entries = np.random.default_rng(3).integers(0, 1 << 63, (1000, 3), np.uint64) * 2
    where = keys.bucket_of(entries, 7)
    assert set(where.tolist()) == set(range(7))
