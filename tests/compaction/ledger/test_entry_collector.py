"""Records become entries: what an entry holds, and that the latest of each key stays, in little room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.hashing import siphash128
from siltstone.compaction.keys import EntryBlob, deleted_of, offsets_of
from siltstone.compaction.ledger.keys import KEY_INDEX_PARTITIONS, EntryCollector, latest_entry_of_each_key
from tests.support.cleaning.logs import Rec, batch
from tests.support.records.arrays import scanned

HASH_KEY = (3, 5)
SIGN = 1 << 63
PARTITION_SHIFT = 54


def columns_of(records: list[Rec]) -> RecordColumns:
    window, batches = scanned(batch(records))
    return decode_records(window, batches)


def add(collector: EntryCollector, columns: KeyColumns) -> list[EntryBlob]:
    """Add all records; the entries that the collector has no space for."""
    return [blob.copied() for blob in collector.add(columns, np.ones(len(columns), np.bool_))]


@pytest.mark.parametrize("by_time", [False, True])
def test_an_entry_holds_hash_offset_deletion_and_time(by_time: bool) -> None:
    records = [
        Rec(offset=5, key=b"a", value=b"v", timestamp=-7),
        Rec(offset=6, key=b"", value=b"", timestamp=0),
        Rec(offset=9, key=b"c", value=None, timestamp=1 << 40),
    ]
    collector = EntryCollector(hash_key=HASH_KEY, by_time=by_time, buckets=1, capacity=100)
    assert add(collector, columns_of(records)) == []
    (blob,) = collector.finish()
    rows = {int(row[2]) >> 1: row for row in [list(map(int, row)) for row in blob.entries]}
    for record in records:
        row = rows[record.offset]
        data = np.frombuffer(bytearray(record.key or b"\0"), np.uint8)
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
    for pairs in batches:
        records = []
        for key, time in pairs:
            records.append(Rec(offset=offset, key=b"%d" % key, timestamp=time))
            before = everything.get(b"%d" % key, (-1, -1))
            everything[b"%d" % key] = max(before, (time if by_time else 0, offset))
            offset += 1
        if records:
            blobs += add(collector, columns_of(records))
    blobs += (blob.copied() for blob in collector.finish())
    assert collector.emitted == sum(len(blob.entries) for blob in blobs)
    for blob in blobs:
        partitions = blob.entries[:, 0] >> np.uint64(PARTITION_SHIFT)
        assert (partitions * np.uint64(buckets) // np.uint64(KEY_INDEX_PARTITIONS) == blob.bucket).all()
    width = 4 if by_time else 3
    best, _ = latest_entry_of_each_key(blobs, width)
    assert sorted(offsets_of(best).tolist()) == sorted(offset for _, offset in everything.values())


@pytest.mark.parametrize("key", [b"k", b"", b"x" * 70])
@pytest.mark.parametrize("value", [None, b"", b"v", b"v" * 200])
def test_deleted_keys_are_found_without_decoding_values(key: bytes, value: bytes | None) -> None:
    records = [Rec(offset=offset, key=key, value=value, headers=((b"h", b"v"),)) for offset in range(3)]
    window, batches = scanned(batch(records))
    collector = EntryCollector(hash_key=HASH_KEY, by_time=False, buckets=1, capacity=100)
    keys = decode_record_keys(window, batches)
    assert not isinstance(keys, RecordColumns)
    assert not add(collector, keys)
    (blob,) = collector.finish()
    assert deleted_of(blob.entries).tolist() == [not value] and offsets_of(blob.entries).tolist() == [2]


def records_of(keys: list[str], first: int) -> KeyColumns:
    return columns_of([Rec(offset=first + n, key=key.encode()) for n, key in enumerate(keys)])


def test_a_repeated_key_takes_one_entry() -> None:
    collector = EntryCollector(hash_key=HASH_KEY, by_time=False, buckets=2, capacity=1)
    for first in range(0, 20_000, 1000):
        assert not add(collector, records_of(["hot"] * 1000, first))
    entries = np.concatenate([blob.entries for blob in collector.finish()])
    assert offsets_of(entries).tolist() == [19_999]


def test_entries_beyond_the_capacity_are_emitted() -> None:
    collector = EntryCollector(hash_key=HASH_KEY, by_time=False, buckets=2, capacity=1)
    blobs: list[EntryBlob] = []
    for first in range(0, 20_000, 1000):
        new = records_of([f"{first + n}" for n in range(1000)], first)
        blobs += add(collector, new)
    assert blobs
    entries = np.concatenate([blob.entries for blob in (*blobs, *collector.finish())])
    assert sorted(offsets_of(entries).tolist()) == list(range(20_000))
    assert collector.emitted == 20_000
