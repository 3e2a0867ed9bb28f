"""Entries of keys in a compaction beside the originals, and how they meet those of older generations.

Entries are plain (``compaction.keys``), of three words or, where the latest event time wins, four, under the
ledger's own hash key. They lie in ``PARTITIONS`` partitions, in a task as in a key index file; a bucket is a
run of these, and there is a power of two of them. An entry is *deleted* where its record's value is null or
empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Flags, Int32, Int64, Words
from siltstone.base.records.varint import next_varint
from siltstone.compaction.keys import (
    PLAIN_WORDS,
    TIMED_WORDS,
    EntryBlob,
    PartitionedEntries,
    blobs_of,
    brought_together,
    fill_table,
    hashes_of,
    latest_in_each,
    slot_of,
)

PARTITIONS = 1024
"""Partitions of a key index: one of a million keys fits a core's cache, of a billion its memory."""
_LEAST_ROOM = 8
_SIGN = np.uint64(1 << 63)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def best_of_each_key(
    blobs: Sequence[EntryBlob], words: int, first: int = 0, partitions: int = PARTITIONS
) -> tuple[Words, Int64]:
    """The winning entry of each key, in order of partition, and the bounds (int64) of ``partitions`` from
    number ``first`` on. Memory: twice what the entries take."""
    return latest_in_each(*brought_together(blobs, PARTITIONS, first, partitions, words))


@kernel
def _fill_tables(entries: Words, bounds: Int64, tables: Int32, places: Int64) -> None:
    """A hash table for each partition of distinct keys: partition p's is ``tables[places[p]:places[p + 1]]``,
    a power of two long; it holds rows of ``entries``."""
    tables[:] = -1
    for p in range(len(bounds) - 1):
        fill_table(entries, bounds[p], bounds[p + 1], tables[places[p] : places[p + 1]])


@kernel
def _meet(
    entries: Words,
    tables: Int32,
    places: Int64,
    older: Words,
    older_bounds: Int64,
    first: int,
    beaten: Flags,
    hidden: Int64,
) -> int:
    """Let older entries, in order of partition from number ``first`` of the tables on, meet the new ones.

    Marks the new ones that an older one beats, and puts the offsets of older records that lose into
    ``hidden``; returns how many. A deleted older entry has no record that could be hidden.
    """
    lost = 0
    by_time = entries.shape[1] == 4
    for p in range(len(older_bounds) - 1):
        table = tables[places[first + p] : places[first + p + 1]]
        mask = np.uint64(len(table) - 1)
        for i in range(older_bounds[p], older_bounds[p + 1]):
            row = table[slot_of(table, mask, entries, older[i, 0], older[i, 1], _ALL)]
            if row < 0:
                continue
            if by_time and older[i, 3] > entries[row, 3]:
                beaten[row] = True
            elif older[i, 2] & np.uint64(1) == 0:
                hidden[lost] = np.int64(older[i, 2] >> np.uint64(1))
                lost += 1
    return lost


class NewEntries:
    """Distinct new entries that older generations' entries are met with, one run of partitions at a time.

    ``entries`` and ``bounds`` are as ``best_of_each_key`` gives them. ``beaten``: bool, one an entry.
    """

    def __init__(self, entries: Words, bounds: Int64) -> None:
        self._entries = entries
        self.beaten: Flags = np.zeros(len(entries), np.bool_)
        counts = np.diff(bounds)
        sizes = 1 << np.ceil(np.log2(np.maximum(2 * counts, 8))).astype(np.int64)
        self._places = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        self._tables = np.empty(int(self._places[-1]), np.int32)
        _fill_tables(entries, bounds, self._tables, self._places)

    def meet(self, older: Words, older_bounds: Int64, first: int) -> Int64:
        """Meet older entries whose bounds begin at partition ``first`` of ours: the offsets that are hidden
        by it (int64, in any order)."""
        hidden = np.empty(len(older), np.int64)
        lost = _meet(
            self._entries, self._tables, self._places, older, older_bounds, first, self.beaten, hidden
        )
        return hidden[:lost].copy()


# From records to entries.


@kernel
def _find_deletions(data: Bytes, key_start: Int32, key_size: Int32, deleted: Flags) -> None:
    """Whose value is null or empty: its size lies behind the key of a record that was decoded."""
    origin = data.ctypes.data
    end = origin + len(data)
    for i in range(len(key_start)):
        size, _ = next_varint(origin + key_start[i] + max(key_size[i], 0), end)
        deleted[i] = size <= 0


class EntryCollector:
    """Collects entries of records in log order and hands them on as blobs, within a bound of memory.

    About ``capacity`` entries are kept (24 or 32 bytes each). ``handed_on`` counts those that went out: one a
    key, unless there are more keys than the capacity.
    """

    def __init__(self, *, hash_key: tuple[int, int], by_time: bool, buckets: int, capacity: int) -> None:
        assert PARTITIONS % buckets == 0
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._words = TIMED_WORDS if by_time else PLAIN_WORDS
        self._buckets = buckets
        even = capacity // PARTITIONS
        room = even + 8 * math.isqrt(even) + _LEAST_ROOM  # some get more than their share
        self._kept = PartitionedEntries(PARTITIONS, room, words=self._words, capacity=0, spares=True)
        self.handed_on = 0

    def add(self, columns: KeyColumns, wanted: Flags | None) -> Iterator[EntryBlob]:
        """The ``wanted`` records (None: all), each with a key; yields what no longer fits.

        By time, ``columns`` are ``RecordColumns``.
        """
        count = len(columns) if wanted is None else int(np.count_nonzero(wanted))
        if not count:
            return
        rows = slice(None) if wanted is None or count == len(columns) else wanted
        new = np.empty((count, self._words), np.uint64)
        new[:, 0], new[:, 1] = hashes_of(columns, rows, self._key)
        deleted = np.empty(count, np.bool_)
        if isinstance(columns, RecordColumns):
            deleted[:] = columns.value_size[rows] <= 0
        else:
            _find_deletions(columns.data, columns.key_start[rows], columns.key_size[rows], deleted)
        new[:, 2] = columns.offset[rows].view(np.uint64) << np.uint64(1) | deleted
        if self._words == TIMED_WORDS:
            assert isinstance(columns, RecordColumns)
            new[:, 3] = columns.timestamp[rows].view(np.uint64) ^ _SIGN
        for bounds in self._kept.put(new):
            yield from self._hand_on(bounds)

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left, one retained offset a key; the collector can be used again."""
        yield from self._hand_on(self._kept.packed(spares=True))

    def _hand_on(self, bounds: Int64) -> Iterator[EntryBlob]:
        self.handed_on += int(bounds[-1])
        yield from blobs_of(self._kept, bounds, self._buckets)
