"""The verifier's own hash and the check of keys, each against a plain Python twin."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np
import pytest

from siltstone.verify import checking, keys
from siltstone.verify.checking import BUCKET_BYTES, bucket_count
from siltstone.verify.findings import KEY_REASONS, PROBLEM_KINDS, REASONS, SUPERSEDED, KeyReason
from siltstone.verify.keys import (
    CHECK_BYTES_PER_ENTRY,
    IS_RETAINED,
    MAY_DISCARD,
    MUST_DISCARD,
    REASON_SHIFT,
    bucket_of,
    check_bucket,
    hash_keys,
)
from siltstone.verify.pairs import LogPair

MASK = (1 << 64) - 1
P1, P2, P3, P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63


def _rotate_left(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK


def _twin(key: bytes, seed0: int, seed1: int) -> tuple[int, int]:
    lanes = [(seed0 + len(key) * P1) & MASK, (seed1 ^ (len(key) * P3)) & MASK]
    whole = len(key) // 8 * 8
    words = [int.from_bytes(key[i : i + 8], "little") for i in range(0, whole, 8)]
    for word in [*words, int.from_bytes(key[whole:], "little")]:
        for lane, mixed_in in enumerate((word, word ^ P4)):
            mixed = lanes[lane] ^ (_rotate_left(mixed_in * P2 & MASK, 31) * P1 & MASK)
            lanes[lane] = (_rotate_left(mixed, 27) * P1 + P4) & MASK
    finished = []
    for lane in lanes:
        word = ((lane ^ (lane >> 33)) * P2) & MASK
        word = ((word ^ (word >> 29)) * P3) & MASK
        finished.append(word ^ (word >> 32))
    return finished[0], finished[1]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_hash_is_its_twin(seed: int) -> None:
    rng = random.Random(seed)
    texts = [rng.randbytes(size) for size in [*range(40), 64, 100, 1000]]
    data = np.frombuffer(bytearray(b"".join(texts) + b"\0"), np.uint8)
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    seeds = rng.getrandbits(64), rng.getrandbits(64)
    out = np.empty((len(texts), 3), np.uint64)
    hash_keys(data, starts, sizes, np.uint64(seeds[0]), np.uint64(seeds[1]), out)
    assert [tuple(row) for row in out[:, :2].tolist()] == [_twin(text, *seeds) for text in texts]
    assert len({row[0] for row in out.tolist()}) == len(texts)


class Row(NamedTuple):
    """What an entry says of a record: its key, offset, reason and flags."""

    key: int
    offset: int
    reason: int
    flags: int

    @property
    def entry(self) -> tuple[int, int, int]:
        low = (self.reason << REASON_SHIFT) | self.flags
        return self.key * P1 & MASK, (self.key * P2 & MASK & ~0xFF) | low, self.offset


def _naive(rows: list[Row], first_dirty_offset: int, was_cleaned: bool) -> tuple[Counter[str], Counter[str]]:
    """Problems by kind, and records that were rightly discarded by reason."""
    last: dict[int, int] = {}
    for row in rows:
        if row.offset >= first_dirty_offset:
            last[row.key] = max(last.get(row.key, -1), row.offset)
    problems: Counter[str] = Counter()
    discarded: Counter[str] = Counter()
    for row in rows:
        superseded = row.offset < last.get(row.key, -1)
        reason = REASONS_OF_THREE[SUPERSEDED if superseded else row.reason]
        if row.flags & IS_RETAINED:
            if was_cleaned and (superseded or row.flags & MUST_DISCARD):
                problems[reason.if_retained[0]] += 1
        elif superseded or row.flags & MAY_DISCARD:
            discarded[reason.name] += 1
        else:
            problems[reason.if_lost[0]] += 1
    return problems, discarded


NEW_REASON = KeyReason("keyless", ("lost_unkeyed", "a new reason"), ("keyless_kept", "a new reason"))
REASONS_OF_THREE = (*KEY_REASONS, NEW_REASON)


@pytest.mark.parametrize("was_cleaned", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_keys_are_checked_as_by_a_dict_for_any_list_of_reasons(
    seed: int, was_cleaned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reason that is added to the list needs no change of the check."""
    monkeypatch.setattr(keys, "KEY_REASONS", REASONS_OF_THREE)
    rng = random.Random(seed)
    first_dirty_offset = rng.choice([0, 50, 1 << 40])
    base = max(first_dirty_offset - 60, 0)
    rows = []
    for offset in range(base, base + 150):
        reason, flags = rng.randrange(3), rng.randrange(8)
        rows.append(Row(rng.randrange(20), offset, reason, flags if reason else flags & IS_RETAINED))
    rng.shuffle(rows)
    entries = np.array([row.entry for row in rows], np.uint64)
    findings = check_bucket(
        [entries[:70], entries[70:]], first_dirty_offset=first_dirty_offset, was_cleaned=was_cleaned
    )
    problems, discarded = _naive(rows, first_dirty_offset, was_cleaned)
    assert findings.problem_counts == problems
    assert {reason.name: findings.counts[reason.name] for reason in REASONS_OF_THREE} == {
        reason.name: discarded[reason.name] for reason in REASONS_OF_THREE
    }
    assert findings.counts["keys"] == len({row.key for row in rows})


def test_every_reason_has_a_name_and_fits_an_entry() -> None:
    assert {reason.name for reason in KEY_REASONS} <= set(REASONS)
    assert {
        kind for reason in KEY_REASONS for kind, _ in (reason.if_lost, reason.if_retained)
    } <= PROBLEM_KINDS.keys()
    assert KEY_REASONS[SUPERSEDED].name == "superseded" and len(KEY_REASONS) <= 32


def test_buckets_are_disjoint_and_cover() -> None:
    entries = np.random.default_rng(3).integers(0, 1 << 63, (1000, 3), np.uint64) * 2
    topic_partition = keys.bucket_of(entries, 7)
    assert set(topic_partition.tolist()) == set(range(7))


def test_a_log_of_few_bytes_has_few_buckets_whatever_its_offsets() -> None:
    def buckets(offsets: int, size: int) -> int:
        segment = SimpleNamespace(base_offset=0, size=size)
        return bucket_count(cast(LogPair, SimpleNamespace(before=(segment,), cleaned_end_offset=offsets)))

    assert buckets(1 << 62, 1000) == 1  # as a forged checkpoint or batch says
    assert buckets(1 << 40, 10 << 30) == (10 << 30) * CHECK_BYTES_PER_ENTRY // BUCKET_BYTES
    assert buckets(100_000_000, 1 << 30) == -(-100_000_000 * CHECK_BYTES_PER_ENTRY // BUCKET_BYTES)


@pytest.mark.parametrize("buckets", [1, 3, 1_000, 1 << 40])
def test_entries_are_split_by_bucket_and_stay_in_their_order(
    buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_CHUNK_ENTRIES", 50)
    words = np.random.default_rng(5).integers(0, 1 << 63, (700, 3), np.uint64)
    words[:, 2] = np.arange(len(words))
    split = list(checking._split_by_bucket([words[:300], words[300:]], buckets))
    assert all(len(entries) <= 50 for _, entries in split)
    assert all((bucket_of(entries, buckets) == bucket).all() for bucket, entries in split)
    by_bucket: dict[int, list[int]] = {}
    for bucket, entries in split:
        by_bucket.setdefault(bucket, []).extend(entries[:, 2].tolist())
    assert all(offsets == sorted(offsets) for offsets in by_bucket.values())
    assert sorted(offset for offsets in by_bucket.values() for offset in offsets) == list(range(700))
    assert list(checking._split_by_bucket([], buckets)) == []
