"""The last offset of each key: hashing, de-duplicating, merging.

Kafka's ``SkimpyOffsetMap``, without its limit.

Keys are compared by 96 bits of SipHash-2-4 with a 128-bit output, under a key that is drawn anew for
every run, so that nobody can make two keys meet (Kafka's map uses plain MD5). A key in transit is an
*entry* of 16 bytes, two uint64::

    word 0: hash bits 0–63      word 1: hash bits 64–95 (high half) | offset - base, uint32 (low half)

Entries are spread over *buckets* by the top bits of word 0, and inside a task over radix partitions by
the same bits, so that every table stays in the processor's cache. Two kinds go their way: *dirty* entries,
of which only the last of each key is kept at every step, and *clean* ones, which all arrive: a clean
record stays unless a dirty record has its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.cleaner.hashing import siphash128_each
from siltstone.records.columns import KeyColumns
from siltstone.records.kernel import kernel
from siltstone.records.layout import Int32, Int64

Words = npt.NDArray[np.uint64]
RADIX = 512
"""About how many partitions a task makes: each then fits a core's cache."""
BLOB_BYTES = 32 << 20
"""The largest blob of entries or offsets that is handed on in one row."""
ENTRY_BYTES = 16
MERGE_BYTES = 56
"""What a merge takes for an entry at its peak."""
_PARTITION_ENTRIES = 4096
_FEW_SPARED, _PASSED_OVER = 7 / 8, 3
"""Where so many of a task's entries are of keys of their own, so many blobs go without a look for others."""
_FIRST_ENTRIES = 4 << 20
"""A collector's room at first: it grows where that spares entries."""
_SOME_SPARED = 3 / 4
"""Where no more of the entries are of keys of their own, a collector grows before it hands them on."""
RELATIVE_LIMIT = 1 << 32


@kernel
def _pack_entries(low: Words, high: Words, relative: Int64, out: Words) -> None:
    """Hashes and offsets less the base as entries."""
    for i in range(len(low)):
        out[i, 0] = low[i]
        out[i, 1] = (high[i] << np.uint64(32)) | np.uint64(relative[i])


@kernel
def _partition_of(word: np.uint64, partitions: int) -> Any:
    """The partition (or bucket) of a hash: its top 32 bits, scaled."""
    return np.int64(((word >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32))


@kernel
def _count(entries: Words, partitions: int, first: int, bounds: Int64) -> None:
    """Count entries of a run of partitions from ``first`` on: ``bounds[p + 1]`` grows by those of p."""
    for i in range(len(entries)):
        bounds[_partition_of(entries[i, 0], partitions) - first + 1] += 1


@kernel
def _radix(entries: Words, partitions: int, out: Words, bounds: Int64) -> None:
    """Entries in order of partition, stable; ``bounds[p]:bounds[p + 1]`` is partition p."""
    bounds[:] = 0
    _count(entries, partitions, 0, bounds)
    for p in range(partitions):
        bounds[p + 1] += bounds[p]
    cursor = bounds[:-1].copy()
    for i in range(len(entries)):
        p = _partition_of(entries[i, 0], partitions)
        where = cursor[p]
        cursor[p] += 1
        out[where, 0] = entries[i, 0]
        out[where, 1] = entries[i, 1]


@kernel
def _last_of_each(entries: Words, bounds: Int64, table: Int32, out: Words, kept: Int64) -> None:
    """In each partition keep the entry with the largest offset of each key, in order of first meeting.

    ``table`` holds at least twice the largest partition, a power of two. ``kept[p]:kept[p + 1]`` of
    ``out``, which may be ``entries``, is partition p then. Offsets are compared as the low half of word 1.
    """
    used = 0
    low = np.uint64(0xFFFFFFFF)
    for p in range(len(bounds) - 1):
        kept[p] = used
        count = bounds[p + 1] - bounds[p]
        size = 8
        while size < 2 * count:
            size *= 2
        table[:size] = -1
        mask = np.uint64(size - 1)
        for i in range(bounds[p], bounds[p + 1]):
            word = entries[i, 0]
            rest = entries[i, 1]
            slot = np.int64(word & mask)
            while True:
                found = table[slot]
                if found < 0:
                    table[slot] = used
                    out[used, 0] = word
                    out[used, 1] = rest
                    used += 1
                    break
                if out[found, 0] == word and (out[found, 1] ^ rest) <= low:
                    out[found, 1] = max(out[found, 1], rest)
                    break
                slot = np.int64(np.uint64(slot + 1) & mask)
    kept[len(bounds) - 1] = used


@kernel
def _place(
    entries: Words, base: int, partitions: int, first: int, cursor: Int64, words: Words, offsets: Int64
) -> None:
    """Put entries behind those of their partitions that are there, with offsets (``base`` + the entry's) in
    an array of their own; ``cursor`` is where each partition goes on."""
    for i in range(len(entries)):
        p = _partition_of(entries[i, 0], partitions) - first
        where = np.uint64(cursor[p])
        cursor[p] += 1
        words[where, np.uint64(0)] = entries[i, 0]
        words[where, np.uint64(1)] = entries[i, 1] >> np.uint64(32)
        offsets[where] = base + np.int64(entries[i, 1] & np.uint64(0xFFFFFFFF))


@kernel
def _merge(
    words: Words,
    offsets: Int64,
    bounds: Int64,
    clean_words: Words,
    clean_offsets: Int64,
    clean_bounds: Int64,
    table: Int32,
    winners: Int64,
) -> tuple[int, int]:
    """Winners of a bucket: (dirty winners, all winners); the offsets are in ``winners``, dirty ones first
    within each partition. Dirty: the largest offset of each key. Clean: keys without a dirty entry."""
    used = 0
    distinct = 0
    for p in range(len(bounds) - 1):
        size = 8
        while size < 2 * (bounds[p + 1] - bounds[p]):
            size *= 2
        table[:size] = -1
        mask = np.uint64(size - 1)
        for i in range(bounds[p], bounds[p + 1]):
            slot = np.int64(words[i, 0] & mask)
            while True:
                found = table[slot]
                if found < 0:
                    table[slot] = i
                    break
                if words[found, 0] == words[i, 0] and words[found, 1] == words[i, 1]:
                    offsets[found] = max(offsets[found], offsets[i])
                    break
                slot = np.int64(np.uint64(slot + 1) & mask)
        for entry in range(size):
            if table[entry] >= 0:
                winners[used] = offsets[table[entry]]
                used += 1
                distinct += 1
        for i in range(clean_bounds[p], clean_bounds[p + 1]):
            slot = np.int64(clean_words[i, 0] & mask)
            while table[slot] >= 0 and (
                words[table[slot], 0] != clean_words[i, 0] or words[table[slot], 1] != clean_words[i, 1]
            ):
                slot = np.int64(np.uint64(slot + 1) & mask)
            if table[slot] < 0:
                winners[used] = clean_offsets[i]
                used += 1
    return distinct, used


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBlob:
    """Entries of one bucket on their way: ``entries`` uint64[n, 2], offsets relative to ``base_offset``.

    Those of a collector stay as they are until its next blob is asked for: who keeps one keeps ``kept()``.
    """

    bucket: int
    dirty: bool
    base_offset: int
    entries: Words

    def kept(self) -> EntryBlob:
        """The same with entries of its own."""
        return replace(self, entries=self.entries.copy())

    def place(self) -> list[int]:
        """Orders blobs that are not empty: no two have the same base and first entry."""
        return [self.base_offset, *self.entries[0].tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """What a bucket's merge found: offsets that stay (int64, unordered), and distinct dirty keys."""

    offsets: Int64
    dirty_keys: int


def table_for(entries: int) -> Int32:
    """Room for the hash table of so many entries: at least twice as many, a power of two."""
    return np.empty(max(8, 1 << (2 * entries - 1).bit_length()), np.int32)


def _table(bounds: Int64) -> Int32:
    return table_for(int(np.diff(bounds).max(initial=1)))


def radix_partitions(buckets: int) -> int:
    """Radix partitions for that many buckets: a multiple, so that a bucket is a run of partitions."""
    return buckets * max(1, RADIX // buckets)


def last_of_each_key(entries: Words, partitions: int, out: Words | None = None) -> tuple[Words, Int64]:
    """De-duplicate dirty entries: (entries in order of partition, bounds of the partitions).

    They are in ``out`` if given, which has room for as many as ``entries``.
    """
    spread, bounds = partition_entries(entries, partitions, out)
    kept = np.empty_like(bounds)
    _last_of_each(spread, bounds, _table(bounds), spread, kept)
    return spread[: kept[-1]], kept


def partition_entries(entries: Words, partitions: int, out: Words | None = None) -> tuple[Words, Int64]:
    """Entries in order of partition, in ``out`` if given, and the partitions' bounds (int64, one more than
    partitions)."""
    out = np.empty_like(entries) if out is None else out[: len(entries)]
    bounds = np.empty(partitions + 1, np.int64)
    _radix(entries, partitions, out, bounds)
    return out, bounds


def merge_bucket(blobs: list[EntryBlob], bucket: int, buckets: int) -> Winners:
    """Merge all blobs of one of ``buckets`` buckets: the same winners in the same order, in whatever order
    the blobs come. Memory: about 56 bytes an entry."""
    blobs = sorted((blob for blob in blobs if len(blob.entries)), key=EntryBlob.place)
    each = max(1, min(8 * RADIX, sum(len(blob.entries) for blob in blobs) // _PARTITION_ENTRIES))
    words, offsets, bounds = _brought_together([blob for blob in blobs if blob.dirty], bucket, buckets, each)
    clean = _brought_together([blob for blob in blobs if not blob.dirty], bucket, buckets, each)
    winners = np.empty(len(offsets) + len(clean[1]), np.int64)
    distinct, used = _merge(words, offsets, bounds, *clean, _table(bounds), winners)
    return Winners(offsets=winners[:used], dirty_keys=distinct)


def _brought_together(
    blobs: list[EntryBlob], bucket: int, buckets: int, each: int
) -> tuple[Words, Int64, Int64]:
    """Hashes, absolute offsets and bounds of the ``each`` partitions of a bucket."""
    where, bounds = (each * buckets, bucket * each), np.zeros(each + 1, np.int64)
    for blob in blobs:
        _count(blob.entries, *where, bounds)
    np.cumsum(bounds, out=bounds)
    words, offsets = np.empty((int(bounds[-1]), 2), np.uint64), np.empty(int(bounds[-1]), np.int64)
    cursor = bounds[:-1].copy()
    for blob in blobs:
        _place(blob.entries, blob.base_offset, *where, cursor, words, offsets)
    return words, offsets, bounds


class KeyCollector:
    """Collects entries of records in log order and hands them on as blobs, within a bound of memory.

    Up to ``capacity`` entries of each kind are kept; a full buffer of dirty ones is de-duplicated, and handed
    on only when that freed less than half of it and a larger one would not spare more, or may not be.
    Merging sees to keys that come in several blobs, or again. Memory: 32 bytes an entry that is kept.
    """

    def __init__(self, *, hash_key: tuple[int, int], first_dirty: int, buckets: int, capacity: int) -> None:
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._first_dirty = first_dirty
        self._buckets = buckets
        self._capacity = capacity
        self._entries = {True: np.empty((0, 2), np.uint64), False: np.empty((0, 2), np.uint64)}
        self._spread = np.empty((0, 2), np.uint64)
        self._used = {True: 0, False: 0}
        self._room = {True: min(capacity, _FIRST_ENTRIES), False: min(capacity, _FIRST_ENTRIES)}
        self._base: int | None = None
        self._distinct_ahead = 0

    def add(self, columns: KeyColumns, wanted: npt.NDArray[np.bool_]) -> Iterator[EntryBlob]:
        """The ``wanted`` records (all with a key); yields what no longer fits."""
        if not len(columns):
            return
        if self._base is not None and int(columns.offset[-1]) - self._base >= RELATIVE_LIMIT:
            yield from self.finish()
        if self._base is None:
            self._base = int(columns.offset[0])
        dirty = columns.offset >= self._first_dirty
        for kind, mask in ((True, wanted & dirty), (False, wanted & ~dirty)):
            count = int(np.count_nonzero(mask))
            if count:
                yield from self._make_room(kind, count)
                self._hash(columns, slice(None) if count == len(columns) else mask, kind, count)

    def _hash(self, columns: KeyColumns, rows: Any, kind: bool, count: int) -> None:
        low, high = np.empty((2, count), np.uint64)
        siphash128_each(columns.data, columns.key_start[rows], columns.key_size[rows], *self._key, low, high)
        used = self._used[kind]
        _pack_entries(low, high, columns.offset[rows] - self._base, self._entries[kind][used : used + count])
        self._used[kind] = used + count

    def _make_room(self, dirty: bool, count: int) -> Iterator[EntryBlob]:
        used = self._used[dirty]
        if used + count <= len(self._entries[dirty]):
            return
        if used + count > self._room[dirty]:
            out, bounds = self._in_order(dirty)
            if dirty and self._is_worth_keeping(len(out), used, count):
                self._entries[dirty][: len(out)] = out
                self._used[dirty] = len(out)
            else:
                yield from self._hand_on(dirty, out, bounds)
        needed = self._used[dirty] + count
        if needed > len(self._entries[dirty]):
            # All at once: what is not written to takes no memory, and nothing has to be copied later.
            grown = np.empty((max(needed, self._room[dirty]), 2), np.uint64)
            grown[: self._used[dirty]] = self._entries[dirty][: self._used[dirty]]
            self._entries[dirty] = grown

    def _is_worth_keeping(self, kept: int, of: int, more: int) -> bool:
        """Is the buffer half empty again with ``kept`` dirty entries of so many, or may it grow?"""
        room = self._room[True]
        if kept > room // 2 and kept <= _SOME_SPARED * of:
            room = self._room[True] = min(2 * room, self._capacity)
        return kept <= room // 2 and kept + more <= room

    def _in_order(self, dirty: bool) -> tuple[Words, Int64]:
        """What is kept in order of partition, and the partitions' bounds; of dirty ones one a key, but for a
        while after there were few to be spared."""
        entries, partitions = self._entries[dirty][: self._used[dirty]], radix_partitions(self._buckets)
        if len(self._spread) < len(entries):
            self._spread = np.empty((max(len(entries), self._room[dirty]), 2), np.uint64)
        if not dirty or self._distinct_ahead > 0:
            self._distinct_ahead -= dirty
            return partition_entries(entries, partitions, self._spread)
        out, bounds = last_of_each_key(entries, partitions, self._spread)
        if len(out) > _FEW_SPARED * len(entries):
            self._distinct_ahead = _PASSED_OVER
        return out, bounds

    def _hand_on(self, dirty: bool, out: Words, bounds: Int64) -> Iterator[EntryBlob]:
        self._used[dirty] = 0
        each = radix_partitions(self._buckets) // self._buckets
        assert self._base is not None
        for bucket in range(self._buckets):
            mine = out[bounds[bucket * each] : bounds[(bucket + 1) * each]]
            for start in range(0, len(mine), BLOB_BYTES // ENTRY_BYTES):
                part = mine[start : start + BLOB_BYTES // ENTRY_BYTES]
                yield EntryBlob(bucket=bucket, dirty=dirty, base_offset=self._base, entries=part)

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left; the collector can be used again for later offsets."""
        for dirty in (True, False):
            if self._used[dirty]:
                yield from self._hand_on(dirty, *self._in_order(dirty))
        self._base = None
