"""The last offset of each key: hashing, de-duplicating, merging.

Kafka's ``SkimpyOffsetMap``, without its limit.

Keys are compared by 96 bits of SipHash-2-4 with a 128-bit output, under a key that is drawn anew for
every run, so that nobody can make two keys meet (Kafka's map uses plain MD5). A key in transit is an
*entry* of 16 bytes, two uint64::

    word 0: hash bits 0–63      word 1: hash bits 64–95 (high half) | offset - base, uint32 (low half)

Entries are spread over *buckets* by the top bits of word 0, and inside a task (``collecting``, and the merge
here) over partitions by the same bits, so that every table stays in the processor's cache. Two kinds go their
way: *dirty* entries, of which only the last of each key is kept at every step, and *clean* ones, which all
arrive: a clean record stays unless a dirty record has its key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.records.kernel import kernel
from siltstone.records.layout import Int32, Int64

Words = npt.NDArray[np.uint64]
BLOB_BYTES = 32 << 20
"""The largest blob of entries or offsets that is handed on in one row."""
ENTRY_BYTES = 16
MERGE_BYTES = 56
"""What a merge takes for an entry at its peak."""
_PARTITION_ENTRIES, _MOST_PARTITIONS = 4096, 4096
"""A merge's partitions: each fits a core's cache."""


@kernel
def partition_of(word: np.uint64, partitions: int) -> Any:
    """The partition (or bucket) of a hash: its top 32 bits, scaled."""
    return np.int64(((word >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32))


@kernel
def _count(entries: Words, partitions: int, first: int, bounds: Int64) -> None:
    """Count entries of a run of partitions from ``first`` on: ``bounds[p + 1]`` grows by those of p."""
    for i in range(len(entries)):
        bounds[partition_of(entries[i, 0], partitions) - first + 1] += 1


@kernel
def _place(
    entries: Words, base: int, partitions: int, first: int, cursor: Int64, words: Words, offsets: Int64
) -> None:
    """Put entries behind those of their partitions that are there, with offsets (``base`` + the entry's) in
    an array of their own; ``cursor`` is where each partition goes on."""
    for i in range(len(entries)):
        p = partition_of(entries[i, 0], partitions) - first
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


def merge_bucket(blobs: list[EntryBlob], bucket: int, buckets: int) -> Winners:
    """Merge all blobs of one of ``buckets`` buckets: the same winners in the same order, in whatever order
    the blobs come. Memory: about 56 bytes an entry."""
    blobs = sorted((blob for blob in blobs if len(blob.entries)), key=EntryBlob.place)
    each = max(1, min(_MOST_PARTITIONS, sum(len(blob.entries) for blob in blobs) // _PARTITION_ENTRIES))
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
