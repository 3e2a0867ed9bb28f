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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.hashing import siphash128_each
from siltstone.base.records.kernel import inlined, kernel
from siltstone.base.records.layout import Int32, Int64, Words

BLOB_BYTES = 32 << 20
"""The largest blob of entries or offsets that is handed on in one row."""
ENTRY_BYTES = 16
MERGE_BYTES = 56
"""What a merge takes for an entry at its peak."""
_MERGE_PARTITION_ENTRIES, _MOST_PARTITIONS = 4096, 4096
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
    each = max(1, min(_MOST_PARTITIONS, sum(len(blob.entries) for blob in blobs) // _MERGE_PARTITION_ENTRIES))
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


# Collecting the keys of records in log order, within a bound of memory, on their way to the merge.
#
# ::
#
#     records ─ hash ─► partition p: [ entries … room ]     full: the last of each of its keys stays, in place
#                                                           still more than half full: all are handed on
#
# Partitions are filled side by side, so that each is de-duplicated while it is in the processor's cache, and
# nothing has to be spread first. Offsets in entries are relative to the first one that was collected.

RELATIVE_LIMIT = 1 << 32
_PARTITIONS = 512
_PARTITION_ENTRIES = 4096
"""Room that a partition has at first: entries and hash table fit a core's cache."""
_SOME_SPARED = 3 / 4
"""Where no more of a full partition are keys of their own, a collector grows rather than hand on."""


@kernel
def last_of_run(entries: Words, first: int, count: int, table: Int32) -> int:
    """Of ``count`` entries from ``first`` on keep the largest offset of each key, in order of first meeting,
    in place; how many. ``table`` has room for twice as many, a power of two."""
    size = 8
    while size < 2 * count:
        size *= 2
    table[:size] = -1
    mask, low, used = np.uint64(size - 1), np.uint64(0xFFFFFFFF), 0
    mine = entries[first : first + count]
    for i in range(count):
        word = mine[i, 0]
        rest = mine[i, 1]
        slot = word & mask
        while True:
            found = table[slot]
            if found < 0:
                table[slot] = used
                mine[used, 0] = word
                mine[used, 1] = rest
                used += 1
                break
            at = np.uint64(found)
            if mine[at, np.uint64(0)] == word and (mine[at, np.uint64(1)] ^ rest) <= low:
                mine[at, np.uint64(1)] = max(mine[at, np.uint64(1)], rest)
                break
            slot = (slot + np.uint64(1)) & mask
    return used


@kernel
def put(
    low: Words,
    high: Words,
    relative: Int64,
    start: int,
    room: int,
    spares: bool,
    entries: Words,
    counts: Int64,
    table: Int32,
) -> int:
    """Put entries from number ``start`` on into their partitions, each of ``room`` rows of ``entries``.

    A full one is de-duplicated where that ``spares``. The number of the first entry whose partition stays
    more than half full, of all when there is none.
    """
    for i in range(start, len(low)):
        p = partition_of(low[i], len(counts))
        if counts[p] == room:
            if spares:
                counts[p] = last_of_run(entries, p * room, room, table)
            if counts[p] > room // 2:
                return i
        where = np.uint64(p * room + counts[p])
        entries[where, np.uint64(0)] = low[i]
        entries[where, np.uint64(1)] = (high[i] << np.uint64(32)) | np.uint64(relative[i])
        counts[p] += 1
    return len(low)


@kernel
def pack(entries: Words, room: int, spares: bool, counts: Int64, table: Int32, bounds: Int64) -> None:
    """Bring what the partitions hold to the front, de-duplicated where that ``spares``:
    ``bounds[p]:bounds[p + 1]`` is partition p then."""
    used = 0
    for p in range(len(counts)):
        bounds[p] = used
        count = counts[p]
        if spares:
            count = last_of_run(entries, p * room, count, table)
        for i in range(p * room, p * room + count):
            entries[used, 0] = entries[i, 0]
            entries[used, 1] = entries[i, 1]
            used += 1
    bounds[len(counts)] = used


@dataclass(slots=True)
class _Partitions:
    """Entries of one kind: ``counts[p]`` of the ``room`` rows of each partition are used."""

    room: int
    counts: Int64
    entries: Words
    table: Int32

    @classmethod
    def of(cls, count: int, room: int) -> _Partitions:
        entries = np.empty((count * room, 2), np.uint64)
        return cls(room=room, counts=np.zeros(count, np.int64), entries=entries, table=table_for(room))

    def grown(self) -> _Partitions:
        """The same with twice the room."""
        found = _Partitions.of(len(self.counts), 2 * self.room)
        shape = (len(self.counts), -1, 2)
        found.entries.reshape(shape)[:, : self.room] = self.entries.reshape(shape)
        found.counts[:] = self.counts
        return found


class KeyCollector:
    """Collects entries of records in log order and hands them on as blobs, within a bound of memory.

    Up to ``capacity`` entries of each kind are kept, in less room where fewer are ``expected`` or it suffices
    for the last ones of all keys. All are handed on when a partition stays more than half full and a larger
    one would not spare more, or may not be. Merging sees to keys that come in several blobs, or again.
    """

    def __init__(
        self,
        *,
        hash_key: tuple[int, int],
        first_dirty: int,
        buckets: int,
        capacity: int,
        expected: int | None = None,
    ) -> None:
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._first_dirty = first_dirty
        self._buckets = buckets
        self._capacity = capacity
        likely = capacity if expected is None else min(capacity, expected + expected // 4)
        wanted = min(_PARTITIONS, -(-likely // _PARTITION_ENTRIES))
        self._count = buckets * max(1, wanted // buckets)
        self._room = max(1, min(_PARTITION_ENTRIES, likely // self._count))
        self._kinds: dict[bool, _Partitions] = {}
        self._base: int | None = None

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
                yield from self._put(columns, slice(None) if count == len(columns) else mask, kind, count)

    def _put(self, columns: KeyColumns, rows: Any, dirty: bool, count: int) -> Iterator[EntryBlob]:
        low, high = np.empty((2, count), np.uint64)
        siphash128_each(columns.data, columns.key_start[rows], columns.key_size[rows], *self._key, low, high)
        relative = columns.offset[rows] - self._base
        if dirty not in self._kinds:
            self._kinds[dirty] = _Partitions.of(self._count, self._room)
        done = 0
        while True:
            kept = self._kinds[dirty]
            spans = (kept.entries, kept.counts, kept.table)
            done = put(low, high, relative, done, kept.room, dirty, *spans)
            if done == count:
                return
            left = int(kept.counts[partition_of(low[done], len(kept.counts))])
            spares = left <= _SOME_SPARED * kept.room
            if spares and 2 * len(kept.entries) <= self._capacity:
                self._kinds[dirty] = kept.grown()
            else:
                yield from self._hand_on(dirty, spares)

    def _hand_on(self, dirty: bool, spares: bool) -> Iterator[EntryBlob]:
        kept = self._kinds[dirty]
        bounds, each = np.empty(len(kept.counts) + 1, np.int64), len(kept.counts) // self._buckets
        pack(kept.entries, kept.room, spares, kept.counts, kept.table, bounds)
        kept.counts[:] = 0
        assert self._base is not None
        for bucket in range(self._buckets):
            mine = kept.entries[bounds[bucket * each] : bounds[(bucket + 1) * each]]
            for start in range(0, len(mine), BLOB_BYTES // ENTRY_BYTES):
                part = mine[start : start + BLOB_BYTES // ENTRY_BYTES]
                yield EntryBlob(bucket=bucket, dirty=dirty, base_offset=self._base, entries=part)

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left; the collector can be used again for later offsets."""
        for dirty in (True, False):
            if dirty in self._kinds and self._kinds[dirty].counts.any():
                yield from self._hand_on(dirty, spares=dirty)
        self._base = None


# Dealing offsets to the groups that they lie in, without a sort.

_HINT_BITS = 12


@inlined
def _base_of(offset: int, bases: Int64, hints: Int32, shift: int) -> int:
    """The number of the last base at or below an offset."""
    number = int(hints[np.uint64((offset - bases[0]) >> shift)])
    while number + 1 < len(bases) and offset >= bases[number + 1]:
        number += 1
    return number


@kernel
def _deal(
    offsets: Int64, bases: Int64, hints: Int32, shift: int, out: npt.NDArray[np.uint32], bounds: Int64
) -> None:
    """Offsets by the last base at or below them, less it: ``bounds[g]:bounds[g + 1]`` of ``out`` are g's.

    ``hints``: for each run of 2 ** ``shift`` offsets the base that its first one has.
    """
    bounds[:] = 0
    for i in range(len(offsets)):
        bounds[_base_of(offsets[i], bases, hints, shift) + 1] += 1
    for group in range(len(bases)):
        bounds[group + 1] += bounds[group]
    cursor = bounds[:-1].copy()
    for i in range(len(offsets)):
        group = _base_of(offsets[i], bases, hints, shift)
        out[np.uint64(cursor[group])] = offsets[i] - bases[group]
        cursor[group] += 1


def by_base(offsets: Int64, bases: Int64) -> tuple[npt.NDArray[np.uint32], Int64]:
    """Offsets (int64, in any order, none below the first base) by the last of the ``bases`` (ascending) at or
    below them: (less that base: uint32, where each base's begin: int64, one more than bases)."""
    out, bounds = np.empty(len(offsets), np.uint32), np.zeros(len(bases) + 1, np.int64)
    if len(offsets):
        assert int(offsets.min()) >= bases[0]
        span = int(offsets.max() - bases[0])
        shift = max(0, span.bit_length() - _HINT_BITS)
        starts = bases[0] + (np.arange((span >> shift) + 1) << shift)
        hints = (np.searchsorted(bases, starts, side="right") - 1).astype(np.int32)
        _deal(offsets, bases, hints, shift, out, bounds)
    return out, bounds
