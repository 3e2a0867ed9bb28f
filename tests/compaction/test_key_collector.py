"""Collecting entries: each kernel beside a dictionary, the same offsets retained whatever room there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.compaction import keys as collecting
from siltstone.compaction.keys import (
    EntryBlob,
    KeyCollector,
    close_gaps_between_shards,
    dedupe,
    merge_bucket,
    new_hash_table,
    put_into_shards,
)
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec
from tests.support.key_entries import LOW, WORDS, entries_of, pairs, shard_of
from tests.support.records.arrays import scanned
from tests.support.thoroughness import examples, turn

Rows = list[tuple[int, int, int]]
NOT_COUNTED = np.empty(0, np.int64)


def last_offsets(rows: Rows) -> dict[tuple[int, int], int]:
    """The largest offset of each key, in order of first meeting."""
    offsets: dict[tuple[int, int], int] = {}
    for first, high, offset in rows:
        offsets[first, high] = max(offset, offsets.get((first, high), -1))
    return offsets


def rows_of(entries: np.ndarray) -> Rows:
    return [(first, rest >> 32, rest & LOW) for first, rest in entries.tolist()]


@given(pairs, pairs)
@settings(deadline=None, derandomize=True, max_examples=examples(80))
def test_the_last_of_a_run_is_a_dict(before: Rows, rows: Rows) -> None:
    entries = entries_of([*before, *rows])
    new_entries = entries[len(before) :]
    retained_count = dedupe(new_entries, new_hash_table(len(rows)), new_entries, NOT_COUNTED)
    assert rows_of(entries[: len(before)]) == before
    expected = [(*key, offset) for key, offset in last_offsets(rows).items()]
    assert rows_of(entries[len(before) : len(before) + retained_count]) == expected


@given(pairs, st.integers(1, 9), st.integers(1, 70), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=examples(150))
def test_shards_hold_what_was_put_until_one_is_full(
    rows: Rows, shards: int, room: int, dedupes: bool
) -> None:
    """Beside lists: of what is put all stays but what is beaten, up to the entry that finds no room."""
    counts, bounds = np.zeros(shards, np.int64), np.empty(shards + 1, np.int64)
    entries, table = np.empty((shards * room, 2), np.uint64), new_hash_table(room)
    arrays = (entries, counts, table, NOT_COUNTED)
    put_count = put_into_shards(entries_of(rows), 0, room, dedupes, *arrays)
    shard_lists: list[Rows] = [[] for _ in range(shards)]
    expected_count = len(rows)
    for number, row in enumerate(rows):
        shard = shard_lists[shard_of(row[0], shards)]
        if len(shard) == room:
            if dedupes:
                shard[:] = [(*key, offset) for key, offset in last_offsets(shard).items()]
            if len(shard) > room * 5 // 8:
                expected_count = number
                break
        shard.append(row)
    assert put_count == expected_count
    assert counts.tolist() == [len(shard) for shard in shard_lists]
    close_gaps_between_shards(entries, room, dedupes, counts, table, bounds, NOT_COUNTED)
    for p, shard in enumerate(shard_lists):
        expected = [(*key, offset) for key, offset in last_offsets(shard).items()] if dedupes else shard
        assert rows_of(entries[bounds[p] : bounds[p + 1]]) == expected


@pytest.mark.parametrize("words", [2, 3, 4])
def test_nothing_is_written_beyond_the_last_row(words: int) -> None:
    guard = np.uint64(7)
    memory = np.full(5 * words + 1, guard, np.uint64)
    entries, new = memory[:-1].reshape(5, words), np.arange(5 * words, dtype=np.uint64).reshape(5, words)
    arrays = (entries, np.zeros(1, np.int64), new_hash_table(5), NOT_COUNTED)
    assert put_into_shards(new, 0, 5, False, *arrays) == 5
    assert np.array_equal(entries, new) and memory[-1] == guard


def columns_of(records: list[Rec]) -> RecordColumns:
    return decode_records(*scanned(logs.batch(records)))


def collect(
    runs: list[list[Rec]], *, first_dirty: int, buckets: int = 1, capacity: int = 1 << 20
) -> list[EntryBlob]:
    """All blobs, copied when they come, since a collector uses its buffers again."""
    collector = KeyCollector(hash_key=WORDS, first_dirty=first_dirty, buckets=buckets, capacity=capacity)
    blobs = []
    for records in runs:
        columns = columns_of(records)
        for blob in collector.add(columns, columns.key_size >= 0):
            blobs.append(replace(blob, entries=blob.entries.copy()))
    return blobs + [replace(blob, entries=blob.entries.copy()) for blob in collector.finish()]


def retained_of(blobs: list[EntryBlob], buckets: int) -> list[int]:
    offsets: list[int] = []
    for bucket in range(buckets):
        offsets += merge_bucket([b for b in blobs if b.bucket == bucket], bucket, buckets).offsets.tolist()
    return sorted(offsets)


def expected_of(runs: list[list[Rec]], first_dirty: int) -> list[int]:
    latest = {r.key: r.offset for run in runs for r in run if r.key is not None and r.offset >= first_dirty}
    clean = [
        r.offset
        for run in runs
        for r in run
        if r.key is not None and r.offset < first_dirty and r.key not in latest
    ]
    return sorted([*clean, *latest.values()])


def _runs(seed: int, count: int = 40) -> list[list[Rec]]:
    rng = np.random.default_rng(seed)
    offset, runs = 0, []
    for _ in range(count):
        keys = rng.integers(0, 60, rng.integers(1, 12)).tolist()
        runs.append([Rec(offset=offset + i, key=b"k%d" % key if key else None) for i, key in enumerate(keys)])
        offset += len(keys)
    return runs


def test_any_capacity_and_any_number_of_buckets_give_the_same_retained_offsets() -> None:
    for seed in range(examples(4)):
        runs = _runs(seed)
        for first_dirty in (0, 77, 10_000):
            expected = expected_of(runs, first_dirty)
            for buckets in (1, 2, 5, 700):
                for capacity in turn(buckets, (1, 13, 40, 1 << 20)):
                    blobs = collect(runs, first_dirty=first_dirty, buckets=buckets, capacity=capacity)
                    assert retained_of(blobs, buckets) == expected, (seed, first_dirty, buckets, capacity)


def test_a_small_capacity_bounds_what_is_kept() -> None:
    runs = _runs(9)
    collector = KeyCollector(hash_key=WORDS, first_dirty=50, buckets=3, capacity=16)
    for records in runs:
        columns = columns_of(records)
        list(collector.add(columns, columns.key_size >= 0))
        assert all(len(shards.entries) <= 16 for shards in collector._shards_by_kind.values())


@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 500, 513, 2000])
@pytest.mark.parametrize("expected", [None, 0, 100, 5000, 10**6, 10**9])
def test_a_bucket_is_some_shards_with_room_for_what_is_expected(buckets: int, expected: int | None) -> None:
    collector = KeyCollector(
        hash_key=WORDS, first_dirty=0, buckets=buckets, capacity=11 << 20, expected=expected
    )
    assert collector._shard_count % buckets == 0
    assert collector._shard_count * collector._shard_rows <= max(4 << 20, buckets * 4096)
    if expected is not None and expected < 1 << 20 and buckets < 8:
        assert collector._shard_count * collector._shard_rows >= expected


def test_hot_keys_are_deduplicated_before_they_are_handed_on() -> None:
    runs = [[Rec(offset=10 * i + j, key=b"hot%d" % (j % 3)) for j in range(10)] for i in range(100)]
    blobs = collect(runs, first_dirty=0, capacity=40)
    assert sum(len(blob.entries) for blob in blobs) == 3


def test_a_collector_grows_where_that_spares_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_INITIAL_SHARD_ROWS", 40)
    monkeypatch.setattr(collecting, "_SHARDS_MAX", 1)

    def handed_on(distinct: int, capacity: int = 1 << 20) -> int:
        runs = [
            [Rec(offset=10 * i + j, key=b"k%d" % ((10 * i + j) % distinct)) for j in range(10)]
            for i in range(40)
        ]
        blobs = collect(runs, first_dirty=0, capacity=capacity)
        assert retained_of(blobs, 1) == expected_of(runs, 0)
        return sum(len(blob.entries) for blob in blobs)

    assert handed_on(20) == 20  # half of the first room
    assert handed_on(28) == 28  # it grew once
    assert handed_on(28, capacity=40) > 28  # it may not
    assert handed_on(39) > 300  # hardly any are spared: it need not


def test_one_hot_key_among_many_does_not_empty_the_rest() -> None:
    runs = [
        [Rec(offset=100 * i + j, key=b"hot" if j % 2 else b"k%d" % (50 * i + j // 2)) for j in range(100)]
        for i in range(60)
    ]
    blobs = collect(runs, first_dirty=0, buckets=4, capacity=4096)
    assert sum(len(blob.entries) for blob in blobs) <= 3003  # the hot one may go several times
    assert retained_of(blobs, 4) == expected_of(runs, 0)


def test_remaining_entries_are_handed_on_once() -> None:
    collector = KeyCollector(hash_key=WORDS, first_dirty=2, buckets=2, capacity=100)
    assert not list(collector.finish())
    for start in (0, 1 << 40):
        columns = columns_of([Rec(offset=start + i, key=b"k%d" % i) for i in range(5)])
        assert not list(collector.add(columns, columns.key_size >= 0))
        assert sum(len(blob.entries) for blob in collector.finish()) == 5
        assert not list(collector.finish())


def test_a_blob_that_is_kept_stays_as_it_is() -> None:
    collector = KeyCollector(hash_key=WORDS, first_dirty=0, buckets=1, capacity=20)
    blobs, copies = [], []
    for i in range(12):
        columns = columns_of([Rec(offset=10 * i + j, key=b"k%d" % (10 * i + j)) for j in range(10)])
        for blob in collector.add(columns, columns.key_size >= 0):
            blobs.append(blob.copied())
            copies.append(blob.entries.tolist())
    assert len(blobs) > 2
    assert [blob.entries.tolist() for blob in blobs] == copies


def test_clean_entries_all_arrive() -> None:
    runs = [[Rec(offset=i, key=b"same") for i in range(20)]]
    blobs = collect(runs, first_dirty=1000, capacity=8)
    assert retained_of(blobs, 1) == list(range(20))
    assert not any(blob.is_dirty for blob in blobs)


def test_offsets_farther_apart_than_32_bits_are_kept() -> None:
    far = [0, 5, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, 1 << 45]
    runs = [[Rec(offset=offset, key=b"k%d" % (i % 4))] for i, offset in enumerate(far)]
    for first_dirty in (0, 1 << 32, 1 << 50):
        blobs = collect(runs, first_dirty=first_dirty, buckets=2)
        assert retained_of(blobs, 2) == expected_of(runs, first_dirty)
