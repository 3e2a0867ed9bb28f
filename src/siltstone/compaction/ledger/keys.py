"""Entries of keys in a compaction beside the originals: packed, de-duplicated, and met with older ones.

An *entry* is a row of three uint64, or of four where the winner is chosen by event time::

    word 0, 1   SipHash-128 of the key, under the ledger's own hash key
    word 2      offset << 1 | deleted        deleted: the value is null or empty
    word 3      timestamp (ms) with its sign bit turned, so that it compares as unsigned

Among the entries of one key the one with the largest (word 3, word 2) wins: the latest event, and of
several the latest offset. Entries lie in ``PARTITIONS`` partitions by the top bits of word 0, in a task as
in a key index file; a *bucket* is a run of partitions, and there is a power of two of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.hashing import siphash128_each
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Flags, Int32, Int64, Words
from siltstone.base.records.varint import next_varint
from siltstone.compaction.keys import table_for

PARTITIONS = 1024
"""Partitions of a key index: one of a million keys fits a core's cache, of a billion its memory."""
PARTITION_SHIFT = 54
WORDS, WORDS_BY_TIME = 3, 4
BLOB_BYTES = 32 << 20
"""The largest blob of entries or offsets that is handed on in one row."""


@kernel
def _spread(entries: Words, first: int, out: Words, bounds: Int64) -> None:
    """Entries in order of partition, stable; ``bounds[p]:bounds[p + 1]`` is partition ``first`` + p."""
    shift = np.uint64(54)
    bounds[:] = 0
    for i in range(len(entries)):
        bounds[np.int64(entries[i, 0] >> shift) - first + 1] += 1
    for p in range(len(bounds) - 1):
        bounds[p + 1] += bounds[p]
    cursor = bounds[:-1].copy()
    by_time = entries.shape[1] == 4
    for i in range(len(entries)):
        mine = np.int64(entries[i, 0] >> shift) - first
        where = cursor[mine]
        cursor[mine] += 1
        out[where, 0] = entries[i, 0]
        out[where, 1] = entries[i, 1]
        out[where, 2] = entries[i, 2]
        if by_time:
            out[where, 3] = entries[i, 3]


@kernel
def distinct(entries: Words, table: Int32, out: Words) -> int:
    """Keep the winning entry of each key, in order of first meeting, in ``out``; returns how many.

    ``out`` may be ``entries`` itself. ``table`` holds at least twice the entries, a power of two.
    """
    used, first, second, third, time = np.uint64(0), np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
    by_time = entries.shape[1] == 4
    size = 8
    while size < 2 * len(entries):
        size *= 2
    table[:size] = -1
    mask = np.uint64(size - 1)
    for i in range(np.uint64(len(entries))):
        low, high, order = entries[i, first], entries[i, second], entries[i, third]
        slot = low & mask
        while True:
            if table[slot] < 0:
                table[slot] = used
                out[used, first] = low
                out[used, second] = high
                out[used, third] = order
                if by_time:
                    out[used, time] = entries[i, time]
                used += second
                break
            found = np.uint64(table[slot])
            if out[found, first] == low and out[found, second] == high:
                if by_time and out[found, time] != entries[i, time]:
                    if out[found, time] < entries[i, time]:
                        out[found, third] = order
                        out[found, time] = entries[i, time]
                else:
                    out[found, third] = max(out[found, third], order)
                break
            slot = (slot + second) & mask
    return int(used)


@kernel
def _best_of_each(entries: Words, bounds: Int64, table: Int32, out: Words, kept: Int64) -> None:
    """``distinct`` in each partition: ``kept[p]:kept[p + 1]`` of ``out`` is partition p then.

    ``table`` holds at least twice the largest partition, a power of two.
    """
    kept[0] = 0
    for p in range(len(bounds) - 1):
        mine = entries[bounds[p] : bounds[p + 1]]
        kept[p + 1] = kept[p] + distinct(mine, table, out[kept[p] :])


@kernel
def _fill_tables(entries: Words, bounds: Int64, tables: Int32, places: Int64) -> None:
    """A hash table for each partition of distinct keys: partition p's is ``tables[places[p]:places[p + 1]]``,
    a power of two long; it holds rows of ``entries``."""
    tables[:] = -1
    for p in range(len(bounds) - 1):
        mask = np.uint64(places[p + 1] - places[p] - 1)
        for i in range(bounds[p], bounds[p + 1]):
            slot = np.int64(entries[i, 0] & mask)
            while tables[places[p] + slot] >= 0:
                slot = np.int64(np.uint64(slot + 1) & mask)
            tables[places[p] + slot] = i


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
        start = places[first + p]
        mask = np.uint64(places[first + p + 1] - start - 1)
        for i in range(older_bounds[p], older_bounds[p + 1]):
            slot = np.int64(older[i, 0] & mask)
            while True:
                found = tables[start + slot]
                if found < 0:
                    break
                if entries[found, 0] == older[i, 0] and entries[found, 1] == older[i, 1]:
                    if by_time and older[i, 3] > entries[found, 3]:
                        beaten[found] = True
                    elif older[i, 2] & np.uint64(1) == 0:
                        hidden[lost] = np.int64(older[i, 2] >> np.uint64(1))
                        lost += 1
                    break
                slot = np.int64(np.uint64(slot + 1) & mask)
    return lost


def spread_entries(entries: Words, first: int = 0, partitions: int = PARTITIONS) -> tuple[Words, Int64]:
    """Entries in order of partition, and the bounds (int64) of ``partitions`` from number ``first`` on."""
    out, bounds = np.empty_like(entries), np.empty(partitions + 1, np.int64)
    _spread(entries, first, out, bounds)
    return out, bounds


def best_of_each_key(entries: Words, first: int = 0, partitions: int = PARTITIONS) -> tuple[Words, Int64]:
    """The winning entry of each key, in order of partition, and the bounds as ``spread_entries`` has them.

    Memory: as many bytes again as ``entries`` takes, twice.
    """
    spread, bounds = spread_entries(entries, first, partitions)
    out, kept = np.empty_like(spread), np.empty_like(bounds)
    _best_of_each(spread, bounds, table_for(int(np.diff(bounds).max(initial=1))), out, kept)
    return out[: kept[-1]], kept


class Contest:
    """Distinct new entries that older generations' entries are met with, one run of partitions at a time.

    ``entries`` and ``bounds`` are as ``best_of_each_key`` gives them. ``beaten``: bool, one an entry.
    """

    def __init__(self, entries: Words, bounds: Int64) -> None:
        self._entries, self._bounds = entries, bounds
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


def offsets_of(entries: Words) -> Int64:
    """The entries' offsets: int64."""
    return (entries[:, 2] >> np.uint64(1)).astype(np.int64)


def deleted_of(entries: Words) -> Flags:
    """Which entries stand for a deleted key: bool."""
    return np.asarray((entries[:, 2] & np.uint64(1)) != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBlob:
    """Entries of one bucket on their way: ``entries`` is uint64[n, 3] or [n, 4]."""

    bucket: int
    entries: Words

    def place(self) -> list[int]:
        """Orders blobs that are not empty: no two have the same first entry."""
        return [*self.entries[0].tolist()]


# From records to entries: hashed, spread over partitions, and de-duplicated within a bound of memory.
#
# ::
#
#   records ─► hash ─► partitions  │ p0 ▓▓▓▓░░ │ p1 ▓▓░░░░ │ p2 ▓▓▓▓▓▓ │ …   ─► blobs of entries, by bucket
#                                                            ▲ full: one entry a key stays, in place
#
# A partition that is full is de-duplicated where it lies; when that does not free a quarter of it, all of
# them are handed on. So keys that come again and again cost no memory, whatever their number of records.

_LEAST_SLOTS = 8
_SIGN = np.uint64(1 << 63)


@kernel
def _find_deletions(data: Bytes, key_start: Int32, key_size: Int32, deleted: Flags) -> None:
    """Whose value is null or empty: its size lies behind the key of a record that was decoded."""
    origin = data.ctypes.data
    end = origin + len(data)
    for i in range(len(key_start)):
        size, _ = next_varint(origin + key_start[i] + max(key_size[i], 0), end)
        deleted[i] = size <= 0


@kernel
def _spread_in(
    start: int,
    low: Words,
    high: Words,
    offset: Int64,
    deleted: Flags,
    time: Words,
    entries: Words,
    counts: Int64,
    table: Int32,
) -> int:
    """Put the entries of records from ``start`` on into their partitions; how far it came.

    ``entries`` is [partition, slot, word], ``counts`` the slots in use. It ends early where a partition is
    full of keys of its own.
    """
    slots = entries.shape[1]
    by_time = entries.shape[2] == 4
    for i in range(np.uint64(start), np.uint64(len(low))):
        mine = low[i] >> np.uint64(54)
        used = counts[mine]
        if used == slots:
            used = distinct(entries[mine], table, entries[mine])
            counts[mine] = used
            if 4 * used > 3 * slots:
                return i
        slot = np.uint64(used)
        entries[mine, slot, np.uint64(0)] = low[i]
        entries[mine, slot, np.uint64(1)] = high[i]
        entries[mine, slot, np.uint64(2)] = (np.uint64(offset[i]) << np.uint64(1)) | np.uint64(deleted[i])
        if by_time:
            entries[mine, slot, np.uint64(3)] = time[i]
        counts[mine] = used + 1
    return len(low)


@kernel
def _gather(entries: Words, counts: Int64, out: Words) -> None:
    """The slots in use, partition by partition."""
    position = 0
    for p in range(len(counts)):
        out[position : position + counts[p]] = entries[p, : counts[p]]
        position += counts[p]


@kernel
def _distinct_in_each(entries: Words, counts: Int64, table: Int32) -> None:
    for p in range(len(counts)):
        counts[p] = distinct(entries[p, : counts[p]], table, entries[p])


class EntryCollector:
    """Collects entries of records in log order and hands them on as blobs, within a bound of memory.

    About ``capacity`` entries are kept (24 or 32 bytes each). ``collected`` counts the entries that came in,
    ``handed_on`` those that went out: one a key, unless there are more keys than the capacity.
    """

    def __init__(self, *, hash_key: tuple[int, int], by_time: bool, buckets: int, capacity: int) -> None:
        assert PARTITIONS % buckets == 0
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._words = WORDS_BY_TIME if by_time else WORDS
        self._buckets = buckets
        even = capacity // PARTITIONS
        slots = even + 8 * math.isqrt(even) + _LEAST_SLOTS  # some get more than their share
        self._entries: Words = np.empty((PARTITIONS, slots, self._words), np.uint64)
        self._counts: Int64 = np.zeros(PARTITIONS, np.int64)
        self._table = table_for(slots)
        self.collected = self.handed_on = 0

    def add(self, columns: KeyColumns, wanted: Flags | None) -> Iterator[EntryBlob]:
        """The ``wanted`` records (None: all), each with a key; yields what no longer fits.

        By time, ``columns`` are ``RecordColumns``.
        """
        count = len(columns) if wanted is None else int(np.count_nonzero(wanted))
        if not count:
            return
        rows = slice(None) if wanted is None or count == len(columns) else wanted
        key_start, key_size = columns.key_start[rows], columns.key_size[rows]
        low, high = np.empty((2, count), np.uint64)
        siphash128_each(columns.data, key_start, key_size, *self._key, low, high)
        deleted, time = np.empty(count, np.bool_), np.empty(0, np.uint64)
        if isinstance(columns, RecordColumns):
            deleted[:] = columns.value_size[rows] <= 0
        else:
            _find_deletions(columns.data, key_start, key_size, deleted)
        if self._words == WORDS_BY_TIME:
            assert isinstance(columns, RecordColumns)
            time = columns.timestamp[rows].view(np.uint64) ^ _SIGN
        given: list[Any] = [low, high, columns.offset[rows], deleted, time]
        given += [self._entries, self._counts, self._table]
        done = 0
        while (done := _spread_in(done, *given)) < count:
            yield from self.finish()
        self.collected += count

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left, one winner a key; the collector can be used again."""
        _distinct_in_each(self._entries, self._counts, self._table)
        each, step = PARTITIONS // self._buckets, BLOB_BYTES // (8 * self._words)
        for bucket in range(self._buckets):
            mine = slice(bucket * each, (bucket + 1) * each)
            out = np.empty((int(self._counts[mine].sum()), self._words), np.uint64)
            _gather(self._entries[mine], self._counts[mine], out)
            self.handed_on += len(out)
            for start in range(0, len(out), step):
                yield EntryBlob(bucket=bucket, entries=out[start : start + step])
        self._counts[:] = 0
