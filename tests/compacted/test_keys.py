"""Entries packed, de-duplicated and met with older ones, each kernel beside a plain-Python twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.cleaner.hashing import siphash128
from siltstone.compacted.keys import (
    PARTITION_SHIFT,
    PARTITIONS,
    Contest,
    EntryBlob,
    EntryCollector,
    Words,
    best_of_each_key,
    deleted_of,
    offsets_of,
    spread_entries,
)
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from tests.cleaner.logs import Rec, batch
from tests.records.arrays import directory

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
def test_spreading_is_a_stable_sort_by_partition(events: list[tuple[int, int, bool]], by_time: bool) -> None:
    entries = entries_of(events, by_time)
    spread, bounds = spread_entries(entries)
    assert rows_of(spread) == sorted(rows_of(entries), key=partition_of)
    counts = np.bincount([partition_of(row) for row in rows_of(entries)], minlength=PARTITIONS)
    assert np.diff(bounds).tolist() == counts.tolist()


@settings(deadline=None)
@given(EVENTS, st.booleans())
def test_the_latest_event_wins_and_of_several_the_latest_offset(
    events: list[tuple[int, int, bool]], by_time: bool
) -> None:
    entries = entries_of(events, by_time)
    best, bounds = best_of_each_key(entries)
    assert sorted(rows_of(best)) == sorted(twin_best(rows_of(entries)).values())
    for partition in range(PARTITIONS):
        mine = rows_of(best[bounds[partition] : bounds[partition + 1]])
        assert all(partition_of(row) == partition for row in mine)


@settings(deadline=None)
@given(EVENTS, EVENTS, st.booleans())
def test_older_entries_lose_or_beat_as_the_twin_says(
    older: list[tuple[int, int, bool]], newer: list[tuple[int, int, bool]], by_time: bool
) -> None:
    old, old_bounds = best_of_each_key(entries_of(older, by_time))
    if not by_time:  # deleted keys have no entry then
        old_bounds = np.concatenate(([0], np.cumsum(~deleted_of(old))))[old_bounds]
        old = old[~deleted_of(old)]
    new, bounds = best_of_each_key(entries_of(newer, by_time, len(older)))
    contest = Contest(new, bounds)
    hidden = contest.meet(old, old_bounds, 0)
    there = {(row[0], row[1]): row for row in rows_of(old)}
    beaten = [(row[0], row[1]) in there and rank(there[row[0], row[1]]) > rank(row) for row in rows_of(new)]
    lost = [
        there[row[0], row[1]][2] >> 1
        for row, wins in zip(rows_of(new), beaten, strict=True)
        if not wins and (row[0], row[1]) in there and not there[row[0], row[1]][2] & 1
    ]
    assert contest.beaten.tolist() == beaten
    assert sorted(hidden.tolist()) == sorted(lost)


def columns_of(records: list[Rec]) -> RecordColumns:
    window, batches = directory(batch(records))
    return decode_records(window, batches)


@pytest.mark.parametrize("by_time", [False, True])
def test_an_entry_holds_hash_offset_deletion_and_time(by_time: bool) -> None:
    records = [
        Rec(offset=5, key=b"a", value=b"v", timestamp=-7),
        Rec(offset=6, key=b"", value=b"", timestamp=0),
        Rec(offset=9, key=b"c", value=None, timestamp=1 << 40),
    ]
    collector = EntryCollector(hash_key=HASH_KEY, by_time=by_time, buckets=1, capacity=100)
    assert list(collector.add(columns_of(records), None)) == []
    (blob,) = collector.finish()
    found = {int(row[2]) >> 1: row for row in rows_of(blob.entries)}
    for record in records:
        row = found[record.offset]
        data = np.frombuffer(record.key or b"\0", np.uint8)
        low, high = siphash128(data, 0, len(record.key), *map(np.uint64, HASH_KEY))
        assert row[:3] == [int(low), int(high), record.offset << 1 | (not record.value)]
        assert not by_time or row[3] == (record.timestamp & (1 << 64) - 1) ^ SIGN
    assert offsets_of(blob.entries).sum() == 20 and deleted_of(blob.entries).sum() == 2


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=30), max_size=6),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 40),
    st.booleans(),
)
def test_whatever_the_capacity_and_buckets_each_key_keeps_its_winner(
    batches: list[list[tuple[int, int]]], buckets: int, capacity: int, by_time: bool
) -> None:
    collector = EntryCollector(hash_key=HASH_KEY, by_time=by_time, buckets=buckets, capacity=capacity)
    blobs: list[EntryBlob] = []
    everything: dict[bytes, tuple[int, int]] = {}
    offset = 0
    for each in batches:
        records = []
        for key, time in each:
            records.append(Rec(offset=offset, key=b"%d" % key, timestamp=time))
            before = everything.get(b"%d" % key, (-1, -1))
            everything[b"%d" % key] = max(before, (time if by_time else 0, offset))
            offset += 1
        if records:
            blobs += collector.add(columns_of(records), None)
    blobs += collector.finish()
    assert collector.collected == offset
    assert collector.handed_on == sum(len(blob.entries) for blob in blobs)
    for blob in blobs:
        mine = blob.entries[:, 0] >> np.uint64(PARTITION_SHIFT)
        assert (mine * np.uint64(buckets) // np.uint64(PARTITIONS) == blob.bucket).all()
    width = 4 if by_time else 3
    together = np.concatenate([np.empty((0, width), np.uint64), *(blob.entries for blob in blobs)])
    best, _ = best_of_each_key(together)
    assert sorted(offsets_of(best).tolist()) == sorted(offset for _, offset in everything.values())
