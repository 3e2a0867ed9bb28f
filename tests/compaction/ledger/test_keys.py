"""Entries packed, de-duplicated and met with older ones, each kernel beside a plain-Python twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.records.layout import Words
from siltstone.compaction.keys import EntryBlob, deleted_of
from siltstone.compaction.ledger import keys
from siltstone.compaction.ledger.keys import KEY_INDEX_PARTITIONS, hash_key_check, look_up_older_entries
from siltstone.compaction.ledger.work import CompactionSettings, CompactionWork, Source, bucket_count
from tests.support.ledger.entries import spread_entries

PARTITION_SHIFT = 54
HASH_KEY = (3, 5)
SIGN = 1 << 63

# A small world: few keys, two of them in one partition and in one slot of its table.
KEYS = [(number << PARTITION_SHIFT, 7) for number in range(4)] + [(0, 8), (1 << 20, 7), (1023 << 54, 1)]
EVENTS = st.lists(
    st.tuples(st.integers(0, len(KEYS) - 1), st.integers(-3, 3), st.booleans()), min_size=0, max_size=40
)


def entries_of(events: list[tuple[int, int, bool]], by_time: bool, first_offset: int = 0) -> Words:
    """Entries at ascending offsets."""
    rows = []
    for offset, (key, time, deleted) in enumerate(events, first_offset):
        row = [*KEYS[key], offset << 1 | deleted]
        rows.append([*row, (time & (1 << 64) - 1) ^ SIGN] if by_time else row)
    return np.array(rows, np.uint64).reshape(-1, 4 if by_time else 3)


def latest_entry_of_each_key(entries: Words) -> tuple[Words, np.ndarray]:
    return keys.latest_entry_of_each_key([EntryBlob(bucket=0, entries=entries)], entries.shape[1])


def partition_of(row: list[int]) -> int:
    return row[0] >> PARTITION_SHIFT


def rank(row: list[int]) -> tuple[int, int]:
    return (row[3] if len(row) == 4 else 0, row[2])


def twin_best(rows: list[list[int]]) -> dict[tuple[int, int], list[int]]:
    best: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        key = (row[0], row[1])
        if key not in best or rank(row) > rank(best[key]):
            best[key] = row
    return best


def rows_of(entries: Words) -> list[list[int]]:
    return [list(map(int, row)) for row in entries]


@settings(deadline=None)
@given(EVENTS, st.booleans())
def test_gathering_is_a_stable_sort_by_partition(events: list[tuple[int, int, bool]], by_time: bool) -> None:
    entries = entries_of(events, by_time)
    spread, bounds = spread_entries(entries)
    assert rows_of(spread) == sorted(rows_of(entries), key=partition_of)
    counts = np.bincount([partition_of(row) for row in rows_of(entries)], minlength=KEY_INDEX_PARTITIONS)
    assert np.diff(bounds).tolist() == counts.tolist()


@settings(deadline=None)
@given(EVENTS, st.booleans())
def test_the_latest_event_wins_and_of_several_the_latest_offset(
    events: list[tuple[int, int, bool]], by_time: bool
) -> None:
    entries = entries_of(events, by_time)
    best, bounds = latest_entry_of_each_key(entries)
    assert sorted(rows_of(best)) == sorted(twin_best(rows_of(entries)).values())
    for partition in range(KEY_INDEX_PARTITIONS):
        mine = rows_of(best[bounds[partition] : bounds[partition + 1]])
        assert all(partition_of(row) == partition for row in mine)


@settings(deadline=None)
@given(EVENTS, EVENTS, st.booleans())
def test_older_entries_are_superseded_or_later_as_by_the_twin(
    older: list[tuple[int, int, bool]], newer: list[tuple[int, int, bool]], by_time: bool
) -> None:
    old, old_bounds = latest_entry_of_each_key(entries_of(older, by_time))
    if not by_time:  # deleted keys have no entry then
        old_bounds = np.concatenate(([0], np.cumsum(~deleted_of(old))))[old_bounds]
        old = old[~deleted_of(old)]
    new, bounds = latest_entry_of_each_key(entries_of(newer, by_time, len(older)))
    marked = np.zeros(len(new), np.bool_)
    superseded = look_up_older_entries(new, bounds, old, old_bounds, 0, marked)
    there = {(row[0], row[1]): row for row in rows_of(old)}
    late = [(row[0], row[1]) in there and rank(there[row[0], row[1]]) > rank(row) for row in rows_of(new)]
    lost = [
        there[row[0], row[1]][2] >> 1
        for row, wins in zip(rows_of(new), late, strict=True)
        if not wins and (row[0], row[1]) in there and not there[row[0], row[1]][2] & 1
    ]
    assert marked.tolist() == late
    assert sorted(superseded.tolist()) == sorted(lost)


def test_the_check_value_of_a_hash_key_is_the_hash_of_no_bytes() -> None:
    """The first of SipHash's published vectors: key indexes of earlier versions are still recognized."""
    assert hash_key_check((0x0706050403020100, 0x0F0E0D0C0B0A0908)) == 0xE6A825BA047F81A3


def test_a_log_of_few_bytes_has_few_buckets_whatever_its_offsets() -> None:
    def buckets(offsets: int, size: int) -> int:
        source = Source(path="", base_offset=0, end_offset=offsets, size=size, inode=0)
        settings = CompactionSettings(memory_bytes=1 << 27)
        work = CompactionWork(
            name="users-0",
            hash_key=(3, 5),
            by_time=False,
            retain_null_key=False,
            settings=settings,
            key_indexes={},
            sources=(source,),
            end_offset=offsets,
        )
        return bucket_count(work)

    assert buckets(10**10, 1_000_000) == 1
    assert buckets(10**10, 100_000_000) == 64
    assert buckets(10_000_000, 100_000_000) == 8
