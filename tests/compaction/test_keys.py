"""Hashing, de-duplicating and merging keys, each kernel beside a plain-Python twin."""

from __future__ import annotations

import bisect
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.records.hashing import LANES, siphash128, siphash128_each
from siltstone.base.records.layout import KEYS_PER_BYTE_MAX
from siltstone.compaction.engine import bucket_count, entry_capacity
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions, plan_log
from siltstone.compaction.keys import MERGE_BYTES_PER_ENTRY, EntryBlob, group_offsets, merge_bucket
from siltstone.compaction.work import LogWork
from siltstone.log.directory import LogDirectory
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec
from tests.support.golden_sets import DATA
from tests.support.key_entries import KEY, MASK, entries_of, pairs, shard_of
from tests.support.records.arrays import array
from tests.support.thoroughness import examples


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & MASK


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        v[0] = (v[0] + v[1]) & MASK
        v[1] = _rotated(v[1], 13) ^ v[0]
        v[0] = _rotated(v[0], 32)
        v[2] = (v[2] + v[3]) & MASK
        v[3] = _rotated(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & MASK
        v[3] = _rotated(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & MASK
        v[1] = _rotated(v[1], 17) ^ v[2]
        v[2] = _rotated(v[2], 32)


def twin_siphash(data: bytes, key: bytes) -> bytes:
    """SipHash-2-4-128 as its paper and reference describe it."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    v[1] ^= 0xEE
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    _rounds(v, 4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _rounds(v, 4)
    return low.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def siphash(data: bytes, key: bytes = KEY, before: bytes = b"") -> bytes:
    words = [np.uint64(int.from_bytes(key[i : i + 8], "little")) for i in (0, 8)]
    low, high = siphash128(array(before + data), len(before), len(data), *words)
    return int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")


def test_the_reference_vectors() -> None:
    assert siphash(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(b"\0").hex() == "da87c1d86b99af44347659119b22fc45"
    assert twin_siphash(b"\0", KEY).hex() == "da87c1d86b99af44347659119b22fc45"


def test_lanes_hash_as_one_key_after_another_does() -> None:
    random = np.random.default_rng(7)
    data = random.integers(0, 256, 1 << 16, dtype=np.uint8)
    for count, longest in (
        (LANES - 1, 9),
        (3 * LANES + 5, 40),
        (LANES, 0),
        (2 * LANES, 200),
        (5 * LANES, 17),
    ):
        sizes = random.integers(0, longest + 1, count).astype(np.int32)
        starts = random.integers(0, len(data) - 200, count).astype(np.int32)
        low, high = np.zeros((2, count), np.uint64)
        words = [np.uint64(int.from_bytes(KEY[i : i + 8], "little")) for i in (0, 8)]
        siphash128_each(data, starts, sizes, *words, low, high)
        found = [
            int(a).to_bytes(8, "little") + int(b).to_bytes(8, "little")
            for a, b in zip(low, high, strict=True)
        ]
        spans = zip(starts.tolist(), sizes.tolist(), strict=True)
        assert found == [twin_siphash(data[start : start + size].tobytes(), KEY) for start, size in spans]


def test_every_length_up_to_many_words() -> None:
    for size in range(70):
        data = bytes(range(size))
        assert siphash(data) == twin_siphash(data, KEY), size


@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16), st.binary(max_size=9))
@settings(deadline=None, derandomize=True, max_examples=examples(80))
def test_any_key_anywhere_in_the_data(data: bytes, key: bytes, before: bytes) -> None:
    assert siphash(data, key, before) == twin_siphash(data, key)


# entries


@given(pairs, pairs, st.integers(1, 5), st.integers(0, 1 << 40))
@settings(deadline=None, derandomize=True, max_examples=examples(80))
def test_merging_is_a_dict_and_a_filter(
    dirty: list[tuple[int, int, int]], clean: list[tuple[int, int, int]], buckets: int, base: int
) -> None:
    latest: dict[tuple[int, int], int] = {}
    for first, high, offset in dirty:
        latest[first, high] = max(offset, latest.get((first, high), -1))
    expected = [base + 100 + offset for offset in latest.values()]
    expected += [base + offset for first, high, offset in clean if (first, high) not in latest]
    offsets: list[int] = []
    keys = 0
    for bucket in range(buckets):
        mine = [
            EntryBlob(bucket=bucket, is_dirty=kind, base_offset=start, entries=entries_of([row]))
            for kind, start, rows in ((True, base + 100, dirty), (False, base, clean))
            for row in rows
            if shard_of(row[0], buckets) == bucket
        ]
        retained = merge_bucket(mine, bucket, buckets)
        offsets += retained.offsets.tolist()
        keys += retained.dirty_keys
    assert sorted(offsets) == sorted(expected)
    assert keys == len(latest)


def test_a_large_merge_goes_through_many_shards() -> None:
    rng = np.random.default_rng(5)
    first = rng.integers(0, 1 << 63, 30_000, np.uint64) * np.uint64(2)
    entries = np.stack((np.concatenate((first, first)), np.arange(60_000, dtype=np.uint64)), axis=1)
    retained = merge_bucket([EntryBlob(bucket=0, is_dirty=True, base_offset=7, entries=entries)], 0, 1)
    assert np.array_equal(np.sort(retained.offsets), np.arange(30_000, 60_000) + 7)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(0, 1 << 34), min_size=1, max_size=40, unique=True),
    st.integers(0, 1 << 60),
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, (1 << 31) - 2)), max_size=80),
)
def test_offsets_are_grouped_by_the_last_base_below_them(
    gaps: list[int], start: int, rows: list[tuple[int, int]]
) -> None:
    bases = [start + gap for gap in sorted(gaps)]
    ends = [*bases[1:], bases[-1] + (1 << 31)]
    offsets = [min(bases[at % len(bases)] + more, ends[at % len(bases)] - 1) for at, more in rows]
    expected: dict[int, list[int]] = {}
    for offset in offsets:
        base = bisect.bisect_right(bases, offset) - 1
        expected.setdefault(base, []).append(offset - bases[base])
    out, bounds = group_offsets(np.array(offsets, np.int64), np.array(bases, np.int64))
    found = {base: out[bounds[base] : bounds[base + 1]].tolist() for base in range(len(bases))}
    assert {base: mine for base, mine in found.items() if mine} == expected


def test_two_keys_of_one_md5_both_survive(tmp_path: Path) -> None:
    pair = [bytes.fromhex(line) for line in (DATA / "md5-pair.txt").read_text().split()]
    assert len(set(pair)) == 2
    rows = [Rec(offset=i, key=key, value=b"%d" % i) for i, key in enumerate([pair[0], pair[1], *pair])]
    partition = logs.write_log(tmp_path / "log", {0: [logs.batch(rows)], 4: [logs.one(4, "active")]})
    assert logs.run(tmp_path / "log").distinct_dirty_keys == 2
    assert logs.offsets(partition) == [2, 3, 4]


# memory


def _work(tmp_path: Path) -> LogWork:
    path = tmp_path / "log"
    logs.write_log(path, {0: [logs.one(0, "a")], 1000: [logs.one(1000, "b")]})
    with LogDirectory.open(path) as log_directory:
        ((topic_partition, partition),) = log_directory.partitions.items()
        state = LogState(
            topic_partition=topic_partition, path=partition, directory=log_directory, config=logs.settings()
        )
        planned = plan_log(state, log_directory.checkpoints(), PlanOptions(now_ms=logs.NOW), None)
    assert isinstance(planned, PlannedLog)
    return planned.work


def test_buckets_follow_the_memory_that_is_allowed_and_how_many_keys_there_can_be(tmp_path: Path) -> None:
    """They followed the offsets alone: 10¹⁰ of them took 4,173 buckets, of a log of 100 MB, too."""
    work = _work(tmp_path)
    (segment,) = work.segments
    for span in (1, 1000, 10**7, 10**11):
        for size in (1000, 10**8, 10**12):
            for memory in (1 << 20, 1 << 27):
                limits = replace(work.limits, memory_bytes=memory)
                asked = replace(work, end=span, limits=limits, segments=(replace(segment, size=size),))
                keys_max, buckets = min(span, KEYS_PER_BYTE_MAX * size), bucket_count(asked)
                assert keys_max * MERGE_BYTES_PER_ENTRY <= buckets * memory
                assert buckets == 1 or keys_max * MERGE_BYTES_PER_ENTRY > (buckets - 1) * memory
    assert bucket_count(work, 7) == 7
    assert entry_capacity(replace(work, limits=replace(work.limits, memory_bytes=1 << 27))) * 48 <= 1 << 27
