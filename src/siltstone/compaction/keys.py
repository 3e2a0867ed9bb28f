"""The last offset of each key: entries, the hash table that compares them, collecting, merging, dealing.

Kafka's ``SkimpyOffsetMap``, without its limit, for both kinds of compaction.

Keys are compared by SipHash-2-4 with a 128-bit output, under a key of its own for every log of a run (in
place) or ledger (beside the originals), so that nobody can make two keys meet; Kafka's map uses plain MD5.
What stands for a record's key is an *entry* of two to four uint64. *Packed* ones travel where many move,
which is in place; *plain* ones hold absolute offsets, and lie in merges, offset maps and key indexes::

    packed   word 0: hash bits 0–63   word 1: hash bits 64–95 (high half) | offset - base, uint32 (low half)
    plain    word 0: hash bits 0–63   word 1: hash bits 64–127, or 64–95 of one that was packed
             word 2: offset << 1 | 1 if the record deletes its key
             word 3: the record's time, its sign bit turned, where the latest time wins

Of a key's entries the one with the largest (time, offset) wins. Entries are spread over *partitions* by the
top bits of word 0, so that each table stays in the processor's cache; a *bucket*, which one task merges, is a
run of partitions. Two kinds go their way: *dirty* entries, which are de-duplicated on the way where keys
repeat, and *clean* ones, which all arrive: a clean record stays unless a dirty record has its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.hashing import siphash128_each
from siltstone.base.records.kernel import inlined, kernel
from siltstone.base.records.layout import Flags, Int32, Int64, Words

BLOB_BYTES = 32 << 20
"""The largest blob of entries that is handed on in one row."""
ENTRY_BYTES = 16
"""Of a packed entry."""
MERGE_BYTES = 56
"""What a merge takes for an entry at its peak."""
PACKED_WORDS, PLAIN_WORDS, TIMED_WORDS = 2, 3, 4
RELATIVE_LIMIT = 1 << 32
"""Offsets of packed entries are below their blob's base and this."""
_MERGE_PARTITION_ENTRIES, _MOST_PARTITIONS = 4096, 4096
"""A merge's partitions: each fits a core's cache."""
_ZERO, _ONE, _TWO, _THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_HALF, _LOW_HALF, _ALL = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def partition_of(word: np.uint64, partitions: int) -> Any:
    """The partition (or bucket) of a hash: its top 32 bits, scaled."""
    return np.int64(((word >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32))


# The hash table: rows of an array of entries, open addressing, at most half full.


def table_for(entries: int) -> Int32:
    """Room for the table of so many entries: at least twice as many slots, a power of two."""
    return np.empty(max(8, 1 << (2 * entries - 1).bit_length()), np.int32)


@inlined
def mask_for(entries: int) -> np.uint64:
    """What takes a hash to a slot in the table of so many entries."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return np.uint64(size - 1)


@inlined
def slot_of(
    table: Int32, mask: np.uint64, entries: Words, low: np.uint64, high: np.uint64, compared: np.uint64
) -> np.uint64:
    """The slot with the row of the entry that has this hash, or the free one (below 0) where it would go.

    ``compared``: the bits of word 1 that are the hash's.
    """
    slot = low & mask
    while True:
        row = table[slot]
        if row < 0:
            break
        at = np.uint64(row)
        if entries[at, _ZERO] == low and (entries[at, _ONE] ^ high) & compared == _ZERO:
            break
        slot = (slot + _ONE) & mask
    return slot


@kernel
def fill_table(entries: Words, first: int, behind: int, table: Int32) -> None:
    """Put plain entries of distinct keys, rows ``first`` up to ``behind``, into a cleared table (all slots
    -1); its whole length is its capacity."""
    mask = np.uint64(len(table) - 1)
    for i in range(np.uint64(first), np.uint64(behind)):
        table[slot_of(table, mask, entries, entries[i, _ZERO], entries[i, _ONE], _ALL)] = i


@kernel
def latest_of_each(entries: Words, table: Int32, out: Words) -> int:
    """Keep the winning entry of each key, in order of first meeting, in ``out``; how many keys.

    ``out`` may be ``entries``. ``table`` is left with the rows of ``out``, by ``mask_for(len(entries))``.
    """
    used, width = np.uint64(0), entries.shape[1]
    compared = (_LOW_HALF << _HALF) if width == 2 else _ALL
    mask = mask_for(len(entries))
    table[: mask + _ONE] = -1
    for i in range(np.uint64(len(entries))):
        low, high = entries[i, _ZERO], entries[i, _ONE]
        slot = slot_of(table, mask, out, low, high, compared)
        row = table[slot]
        if row < 0:
            table[slot] = used
            for word in range(np.uint64(width)):
                out[used, word] = entries[i, word]
            used += _ONE
            continue
        at = np.uint64(row)
        if width == 2:
            out[at, _ONE] = max(out[at, _ONE], high)
        elif width == 4 and out[at, _THREE] != entries[i, _THREE]:
            if out[at, _THREE] < entries[i, _THREE]:
                out[at, _TWO] = entries[i, _TWO]
                out[at, _THREE] = entries[i, _THREE]
        else:
            out[at, _TWO] = max(out[at, _TWO], entries[i, _TWO])
    return int(used)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBlob:
    """Entries of one bucket on their way: ``entries`` uint64[n, 2 to 4]; packed ones' offsets are relative to
    ``base_offset``.

    Those of a collector stay as they are until its next blob is asked for: who keeps one keeps ``kept()``.
    """

    bucket: int
    entries: Words
    dirty: bool = True
    base_offset: int = 0

    def kept(self) -> EntryBlob:
        """The same with entries of its own."""
        return replace(self, entries=self.entries.copy())

    def place(self) -> list[int]:
        """Orders blobs that are not empty: no two have the same base and first entry."""
        return [self.base_offset, *self.entries[0].tolist()]


def offsets_of(entries: Words) -> Int64:
    """Plain entries' offsets: int64."""
    return (entries[:, 2] >> _ONE).astype(np.int64)


def deleted_of(entries: Words) -> Flags:
    """Which plain entries stand for a deleted key: bool."""
    return np.asarray((entries[:, 2] & _ONE) != 0)


# Merging: the entries of a bucket brought together, partition by partition, and the last of each key.


@kernel
def _count(entries: Words, partitions: int, first: int, bounds: Int64) -> None:
    """Count entries of a run of partitions from ``first`` on: ``bounds[p + 1]`` grows by those of p."""
    for i in range(len(entries)):
        bounds[partition_of(entries[i, 0], partitions) - first + 1] += 1


@kernel
def _place(entries: Words, base: int, partitions: int, first: int, cursor: Int64, out: Words) -> None:
    """Put entries behind those of their partitions that are there, packed ones as plain ones; ``cursor`` is
    where each partition goes on."""
    width = entries.shape[1]
    for i in range(len(entries)):
        p = partition_of(entries[i, 0], partitions) - first
        where = np.uint64(cursor[p])
        cursor[p] += 1
        if width == 2:
            out[where, _ZERO] = entries[i, 0]
            out[where, _ONE] = entries[i, 1] >> _HALF
            out[where, _TWO] = np.uint64(base + np.int64(entries[i, 1] & _LOW_HALF)) << _ONE
        else:
            for word in range(np.uint64(width)):
                out[where, word] = entries[i, word]


@kernel
def _latest_in_each(entries: Words, bounds: Int64, table: Int32, out: Words, kept: Int64) -> None:
    """``latest_of_each`` in each partition: ``kept[p]:kept[p + 1]`` of ``out`` is partition p then."""
    kept[0] = 0
    for p in range(len(bounds) - 1):
        mine = entries[bounds[p] : bounds[p + 1]]
        kept[p + 1] = kept[p] + latest_of_each(mine, table, out[kept[p] :])


@kernel
def _merge(
    dirty: Words, bounds: Int64, clean: Words, clean_bounds: Int64, table: Int32, retained: Int64
) -> tuple[int, int]:
    """Fill ``retained`` with the offsets that a bucket retains, dirty ones first within each partition:
    (how many dirty ones, how many in all). Dirty: the largest offset of each key. Clean: those of keys
    without a dirty entry."""
    used, distinct = 0, 0
    for p in range(len(bounds) - 1):
        mine = dirty[bounds[p] : bounds[p + 1]]
        keys = latest_of_each(mine, table, mine)
        for i in range(keys):
            retained[used + i] = np.int64(mine[i, 2] >> _ONE)
        used += keys
        distinct += keys
        mask = mask_for(len(mine))
        for i in range(clean_bounds[p], clean_bounds[p + 1]):
            if table[slot_of(table, mask, mine, clean[i, 0], clean[i, 1], _ALL)] < 0:
                retained[used] = np.int64(clean[i, 2] >> _ONE)
                used += 1
    return distinct, used


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBucket:
    """What a bucket's merge found: offsets that stay (int64, unordered), and distinct dirty keys."""

    offsets: Int64
    dirty_keys: int


def merge_bucket(blobs: list[EntryBlob], bucket: int, buckets: int) -> MergedBucket:
    """Merge all blobs of one of ``buckets`` buckets: the same retained offsets in the same order, in whatever
    order the blobs come. Memory: about 56 bytes an entry."""
    each = max(1, min(_MOST_PARTITIONS, sum(len(blob.entries) for blob in blobs) // _MERGE_PARTITION_ENTRIES))
    run = (each * buckets, bucket * each, each)
    dirty, bounds = brought_together([blob for blob in blobs if blob.dirty], *run)
    clean, clean_bounds = brought_together([blob for blob in blobs if not blob.dirty], *run)
    retained = np.empty(len(dirty) + len(clean), np.int64)
    distinct, used = _merge(dirty, bounds, clean, clean_bounds, _table(bounds), retained)
    return MergedBucket(offsets=retained[:used], dirty_keys=distinct)


def brought_together(
    blobs: Sequence[EntryBlob], partitions: int, first: int, count: int, words: int = PLAIN_WORDS
) -> tuple[Words, Int64]:
    """Plain entries of ``count`` of all ``partitions``, from number ``first`` on, in order of partition and
    then of ``EntryBlob.place``; bounds (int64, one more than ``count``)."""
    blobs = sorted((blob for blob in blobs if len(blob.entries)), key=EntryBlob.place)
    bounds = np.zeros(count + 1, np.int64)
    for blob in blobs:
        _count(blob.entries, partitions, first, bounds)
    np.cumsum(bounds, out=bounds)
    out = np.empty((int(bounds[-1]), words), np.uint64)
    cursor = bounds[:-1].copy()
    for blob in blobs:
        _place(blob.entries, blob.base_offset, partitions, first, cursor, out)
    return out, bounds


def latest_in_each(entries: Words, bounds: Int64) -> tuple[Words, Int64]:
    """The winning entry of each key, partition by partition, of what was brought together; new bounds."""
    out, kept = np.empty_like(entries), np.empty_like(bounds)
    _latest_in_each(entries, bounds, _table(bounds), out, kept)
    return out[: kept[-1]], kept


def _table(bounds: Int64) -> Int32:
    return table_for(int(np.diff(bounds).max(initial=1)))


# Collecting entries in log order, within a bound of memory, on their way to the merge.
#
# ::
#
#     records ─ hash ─► partition p: [ entries … room ]     full: the last of each of its keys stays, in place
#                                                           still more than half full: all are handed on
#
# Partitions are filled side by side, so that each is de-duplicated while it is in the processor's cache, and
# nothing has to be spread first.

_PARTITIONS = 512
_PARTITION_ENTRIES = 4096
"""Room that a partition has at first: entries and hash table fit a core's cache."""
_SOME_SPARED = 3 / 4
"""Where no more of a full partition are keys of their own, a collector grows rather than hand on."""


@kernel
def put(new: Words, start: int, room: int, spares: bool, entries: Words, counts: Int64, table: Int32) -> Any:
    """Put entries from number ``start`` on into their partitions, each of ``room`` rows of ``entries``.

    A full one is de-duplicated where that ``spares``. The number of the first entry whose partition stays
    more than half full, of all when there is none.
    """
    width = np.uint64(new.shape[1])
    for i in range(np.uint64(start), np.uint64(len(new))):
        p = partition_of(new[i, 0], len(counts))
        if counts[p] == room:
            if spares:
                mine = entries[p * room : (p + 1) * room]
                counts[p] = latest_of_each(mine, table, mine)
            if counts[p] > room // 2:
                return np.int64(i)
        where = np.uint64(p * room + counts[p])
        counts[p] += 1
        entries[where, _ZERO] = new[i, _ZERO]
        entries[where, _ONE] = new[i, _ONE]
        for word in range(_TWO, width):
            entries[where, word] = new[i, word]
    return len(new)


@kernel
def pack(entries: Words, room: int, spares: bool, counts: Int64, table: Int32, bounds: Int64) -> None:
    """Bring what the partitions hold to the front, de-duplicated where that ``spares``:
    ``bounds[p]:bounds[p + 1]`` is partition p then."""
    used = 0
    for p in range(len(counts)):
        bounds[p] = used
        mine = entries[p * room : p * room + counts[p]]
        count = latest_of_each(mine, table, mine) if spares else len(mine)
        for i in range(count):
            for word in range(entries.shape[1]):
                entries[used, word] = mine[i, word]
            used += 1
    bounds[len(counts)] = used


class PartitionedEntries:
    """Entries of one kind, spread over partitions: ``counts[p]`` of the ``room`` rows of each are used.

    ``spares``: only the last of each key is wanted. All are handed on when a partition stays more than half
    full and a larger one would not spare more, or may not be: more than ``capacity`` are not kept.
    """

    def __init__(self, count: int, room: int, *, words: int, capacity: int, spares: bool) -> None:
        self._capacity, self._spares = capacity, spares
        self.room, self.counts = room, np.zeros(count, np.int64)
        self.entries: Words = np.empty((count * room, words), np.uint64)
        self._table = table_for(room)

    def put(self, new: Words) -> Iterator[Int64]:
        """Add entries; yields the bounds of all partitions in ``entries`` whenever these are to be taken."""
        done = 0
        while True:
            spans = (self.entries, self.counts, self._table)
            done = put(new, done, self.room, self._spares, *spans)
            if done == len(new):
                return
            left = int(self.counts[partition_of(new[done, 0], len(self.counts))])
            spares = self._spares and left <= _SOME_SPARED * self.room
            if spares and 2 * len(self.entries) <= self._capacity:
                self._grow()
            else:
                yield self.packed(spares=spares)

    def packed(self, *, spares: bool) -> Int64:
        """All that is there at the front of ``entries``, partition by partition; the bounds."""
        bounds = np.empty(len(self.counts) + 1, np.int64)
        pack(self.entries, self.room, spares, self.counts, self._table, bounds)
        self.counts[:] = 0
        return bounds

    def _grow(self) -> None:
        """Twice the room."""
        count, words = len(self.counts), self.entries.shape[1]
        grown = np.empty((count, 2 * self.room, words), np.uint64)
        grown[:, : self.room] = self.entries.reshape(count, self.room, words)
        self.entries, self.room = grown.reshape(-1, words), 2 * self.room
        self._table = table_for(self.room)


def blobs_of(kept: PartitionedEntries, bounds: Int64, buckets: int, **kind: Any) -> Iterator[EntryBlob]:
    """What was packed as blobs of ``BLOB_BYTES`` at most; ``kind``: ``dirty`` and ``base_offset`` of them."""
    each, step = len(kept.counts) // buckets, BLOB_BYTES // (8 * kept.entries.shape[1])
    for bucket in range(buckets):
        mine = kept.entries[bounds[bucket * each] : bounds[(bucket + 1) * each]]
        for start in range(0, len(mine), step):
            yield EntryBlob(bucket=bucket, entries=mine[start : start + step], **kind)


class KeyCollector:
    """Collects packed entries of records in log order and hands them on as blobs, within a bound of memory.

    Up to ``capacity`` entries of each kind are kept, in less room where fewer are ``expected`` or it suffices
    for the last ones of all keys. Merging sees to keys that come in several blobs, or again.
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
        self._kinds: dict[bool, PartitionedEntries] = {}
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
                yield from self._put(columns, slice(None) if count == len(columns) else mask, kind)

    def _put(self, columns: KeyColumns, rows: Any, dirty: bool) -> Iterator[EntryBlob]:
        new = packed_entries(columns, rows, self._key, self._base or 0)
        if dirty not in self._kinds:
            self._kinds[dirty] = PartitionedEntries(
                self._count, self._room, words=PACKED_WORDS, capacity=self._capacity, spares=dirty
            )
        kept = self._kinds[dirty]
        for bounds in kept.put(new):
            yield from blobs_of(kept, bounds, self._buckets, dirty=dirty, base_offset=self._base)

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left; the collector can be used again for later offsets."""
        for dirty, kept in self._kinds.items():
            if kept.counts.any():
                bounds = kept.packed(spares=dirty)
                yield from blobs_of(kept, bounds, self._buckets, dirty=dirty, base_offset=self._base)
        self._base = None


@kernel
def _packed(low: Words, high: Words, offset: Int64, base: int, out: Words) -> None:
    for i in range(len(low)):
        out[i, 0] = low[i]
        out[i, 1] = (high[i] << _HALF) | np.uint64(offset[i] - base)


def hashes_of(columns: KeyColumns, rows: Any, key: tuple[np.uint64, np.uint64]) -> tuple[Words, Words]:
    """Bits 0–63 and 64–127 of the hashes of some records' keys (``rows`` all have one): uint64 each."""
    key_start, key_size = columns.key_start[rows], columns.key_size[rows]
    low, high = np.empty((2, len(key_start)), np.uint64)
    siphash128_each(columns.data, key_start, key_size, *key, low, high)
    return low, high


def packed_entries(
    columns: KeyColumns, rows: Any, key: tuple[np.uint64, np.uint64], base_offset: int
) -> Words:
    """Packed entries of some records, each with a key, whose offsets are less than 2³² above the base."""
    low, high = hashes_of(columns, rows, key)
    new = np.empty((len(low), PACKED_WORDS), np.uint64)
    _packed(low, high, columns.offset[rows], base_offset, new)
    return new


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
