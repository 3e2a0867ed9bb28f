"""Key entries and the last offset of each key: hashing, a hash table, collecting, merging, grouping offsets.

Kafka's ``SkimpyOffsetMap``, spread over buckets so that it never fills up, for both kinds of compaction.

Keys are compared by SipHash-2-4: 96 bits of it in place, 128 side by side. Its key is random, for each log of
a run or for each ledger, so that no producer can make two keys collide; Kafka's map uses plain MD5. An
*entry* stands for a record's key: two to four uint64. *Packed* entries are exchanged between tasks (in
place), *plain* entries with absolute offsets are in merges, offset maps and key indexes::

    packed   word 0: hash bits 0–63   word 1: hash bits 64–95 (high half) | offset - base, uint32 (low half)
    plain    word 0: hash bits 0–63   word 1: hash bits 64–127, or 64–95 of an entry that was packed
             word 2: offset << 1 | 1 if the record deletes its key
             word 3: the record's time with its sign bit inverted, where the latest time wins

The entry of a key with the largest (time, offset) wins. The top bits of word 0 spread entries over *shards*,
equal ranges of the hash, so that each hash table fits the processor's cache; a *bucket* is some neighbouring
shards that one task merges. *Dirty* entries are de-duplicated before the exchange where keys repeat. *Clean*
entries are all exchanged: a clean record stays unless a dirty record has its key.

Two keys with one hash would lose a record. Among n keys that happens with a probability of n² / 2⁹⁷, side by
side n² / 2¹²⁹: for 10⁹ keys less than 10⁻¹¹.
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

BLOB_BYTES_MAX = 32 << 20
"""The largest blob of entries in one row."""
ENTRY_BYTES = 16
"""The size of a packed entry."""
MERGE_BYTES_PER_ENTRY = 56
"""Memory that a merge takes for an entry, at most."""
PACKED_WORDS, PLAIN_WORDS, TIMED_WORDS = 2, 3, 4
RELATIVE_OFFSET_LIMIT = 1 << 32
"""Packed entries hold offsets less than this above their base."""
_MERGE_SHARD_ENTRIES, _MERGE_SHARDS_MAX = 4096, 4096
"""Entries in a shard of a merge (they fit a core's cache), and the most shards."""
# numba makes a float64 of an int64 and a uint64: so what meets a uint64 in a kernel is a uint64.
_ZERO, _ONE, _TWO, _THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_HALF, _LOW_HALF, _ALL = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def shard_of(word: np.uint64, shards: int) -> Any:
    """The shard (or bucket) of a hash's first word: its top 32 bits, scaled to ``shards``.

    Ranges nest: where ``shards`` is a multiple of the buckets, each bucket is a range of shards. A product of
    two numbers below 2³² needs no division, and any number of shards gets equal ranges.
    """
    return np.int64(((word >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32))


# The hash table: rows of an array of entries, open addressing, at most half full.


def new_hash_table(entries: int) -> Int32:
    """A table for so many entries: at least twice as many slots, a power of two; not cleared."""
    return np.empty(max(8, 1 << (2 * entries - 1).bit_length()), np.int32)


@inlined
def slot_mask(entries: int) -> np.uint64:
    """The mask from a hash to a slot in the table of so many entries."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return np.uint64(size - 1)


@inlined
def slot_of(
    table: Int32, mask: np.uint64, entries: Words, low: np.uint64, high: np.uint64, compared: np.uint64
) -> np.uint64:
    """The slot of the entry with this hash, or the free slot (below 0) for it.

    Linear probing; a table is at most half full, so it ends. ``compared``: the bits of word 1 that are the
    hash's.
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
def fill_hash_table(entries: Words, first: int, end: int, table: Int32) -> None:
    """Put plain entries of distinct keys, rows ``first`` to ``end`` (exclusive), into a table whose slots
    are all -1. Unlike ``dedupe`` this uses all slots of the table."""
    mask = np.uint64(len(table) - 1)
    for i in range(np.uint64(first), np.uint64(end)):
        table[slot_of(table, mask, entries, entries[i, _ZERO], entries[i, _ONE], _ALL)] = i


@kernel
def dedupe(entries: Words, table: Int32, out: Words) -> int:
    """Write the winning entry of each key to ``out``, in the order in which keys come; returns how many.

    ``out`` may be ``entries``. ``table`` is left with the rows of ``out``, by ``mask_for(len(entries))``.
    """
    used, width = np.uint64(0), entries.shape[1]
    # A packed entry has its offset in the low half of word 1: only the high half is hash. Packed entries of
    # different bases never meet here: a collector sends all of them before it takes another base.
    compared = (_LOW_HALF << _HALF) if width == 2 else _ALL
    mask = slot_mask(len(entries))
    table[: mask + _ONE] = -1
    for i in range(np.uint64(len(entries))):
        low, high = entries[i, _ZERO], entries[i, _ONE]
        slot = slot_of(table, mask, out, low, high, compared)
        row = table[slot]
        # 1. A new key: its entry is appended to ``out``, which is never ahead of ``entries``.
        if row < 0:
            table[slot] = used
            for word in range(np.uint64(width)):
                out[used, word] = entries[i, word]
            used += _ONE
            continue
        # 2. A key that was there: the larger offset wins, or with times the larger time, then the offset.
        at = np.uint64(row)
        if width == 2:
            # Equal hashes have equal high halves, so the larger word has the larger offset.
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
    """Entries of one bucket in transit: uint64[n, 2 to 4]; offsets of packed ones are relative to
    ``base_offset``.

    A collector's blobs are views of its memory, valid until the next one is asked for: ``copied()`` copies.
    """

    bucket: int
    entries: Words
    is_dirty: bool = True
    base_offset: int = 0

    def copied(self) -> EntryBlob:
        """The blob with a copy of its entries."""
        return replace(self, entries=self.entries.copy())

    def sort_key(self) -> list[int]:
        """A key that sorts non-empty blobs: no two have the same base and first entry."""
        return [self.base_offset, *self.entries[0].tolist()]


def offsets_of(entries: Words) -> Int64:
    """The offsets of plain entries: int64."""
    return (entries[:, 2] >> _ONE).astype(np.int64)


def deleted_of(entries: Words) -> Flags:
    """Which plain entries are of tombstones: bool."""
    return np.asarray((entries[:, 2] & _ONE) != 0)


# Merging: the entries of a bucket are grouped by shard, and the last of each key is kept.


@kernel
def _count_by_shard(entries: Words, shards: int, first: int, bounds: Int64) -> None:
    """Add the number of entries of each shard p to ``bounds[p + 1]``; shards count from ``first``."""
    for i in range(len(entries)):
        bounds[shard_of(entries[i, 0], shards) - first + 1] += 1


@kernel
def _scatter(entries: Words, base: int, shards: int, first: int, cursor: Int64, out: Words) -> None:
    """Append entries to their shards, packed ones as plain ones; ``cursor``: the next row of each."""
    width = entries.shape[1]
    for i in range(len(entries)):
        p = shard_of(entries[i, 0], shards) - first
        topic_partition = np.uint64(cursor[p])
        cursor[p] += 1
        if width == 2:
            out[topic_partition, _ZERO] = entries[i, 0]
            out[topic_partition, _ONE] = entries[i, 1] >> _HALF
            out[topic_partition, _TWO] = np.uint64(base + np.int64(entries[i, 1] & _LOW_HALF)) << _ONE
        else:
            for word in range(np.uint64(width)):
                out[topic_partition, word] = entries[i, word]


@kernel
def _dedupe_shards(entries: Words, bounds: Int64, table: Int32, out: Words, new_bounds: Int64) -> None:
    """``dedupe`` for each shard; rows ``new_bounds[p]`` to ``new_bounds[p + 1]`` of ``out`` are shard
    p."""
    new_bounds[0] = 0
    for p in range(len(bounds) - 1):
        shard = entries[bounds[p] : bounds[p + 1]]
        new_bounds[p + 1] = new_bounds[p] + dedupe(shard, table, out[new_bounds[p] :])


@kernel
def _merge(
    dirty: Words, bounds: Int64, clean: Words, clean_bounds: Int64, table: Int32, retained: Int64
) -> tuple[int, int]:
    """Fill ``retained`` with the offsets that a bucket retains: (distinct dirty keys, how many offsets).

    Of dirty entries each key's largest offset stays; of clean entries those without a dirty entry of the key.
    """
    used, distinct = 0, 0
    for p in range(len(bounds) - 1):
        # 1. Dirty entries: the last of each key, as in Kafka's map after ``buildOffsetMap``.
        shard = dirty[bounds[p] : bounds[p + 1]]
        keys = dedupe(shard, table, shard)
        for i in range(keys):
            retained[used + i] = np.int64(shard[i, 2] >> _ONE)
        used += keys
        distinct += keys
        # 2. Clean entries: the table has the rows of ``shard`` now, and those without such a key stay.
        mask = slot_mask(len(shard))
        for i in range(clean_bounds[p], clean_bounds[p + 1]):
            if table[slot_of(table, mask, shard, clean[i, 0], clean[i, 1], _ALL)] < 0:
                retained[used] = np.int64(clean[i, 2] >> _ONE)
                used += 1
    return distinct, used


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBucket:
    """A merged bucket: its retained offsets (int64, unordered), and its distinct dirty keys."""

    offsets: Int64
    dirty_keys: int


def merge_bucket(blobs: list[EntryBlob], bucket: int, buckets: int) -> MergedBucket:
    """Merge all blobs of one of ``buckets`` buckets. The result does not depend on the order of the blobs.

    Memory: about ``MERGE_BYTES_PER_ENTRY`` an entry.
    """
    per_bucket = max(
        1, min(_MERGE_SHARDS_MAX, sum(len(blob.entries) for blob in blobs) // _MERGE_SHARD_ENTRIES)
    )
    run = (per_bucket * buckets, bucket * per_bucket, per_bucket)
    dirty, bounds = gather_by_shard([blob for blob in blobs if blob.is_dirty], *run)
    clean, clean_bounds = gather_by_shard([blob for blob in blobs if not blob.is_dirty], *run)
    retained = np.empty(len(dirty) + len(clean), np.int64)
    distinct, used = _merge(dirty, bounds, clean, clean_bounds, _table(bounds), retained)
    return MergedBucket(offsets=retained[:used], dirty_keys=distinct)


def gather_by_shard(
    blobs: Sequence[EntryBlob], shards: int, first: int, count: int, words: int = PLAIN_WORDS
) -> tuple[Words, Int64]:
    """The blobs' entries as plain ones, by shard and then by ``EntryBlob.sort_key``, and the shards'
    bounds (int64[count + 1]). The blobs have ``count`` of all ``shards``, from number ``first`` on."""
    blobs = sorted((blob for blob in blobs if len(blob.entries)), key=EntryBlob.sort_key)
    bounds = np.zeros(count + 1, np.int64)
    for blob in blobs:
        _count_by_shard(blob.entries, shards, first, bounds)
    np.cumsum(bounds, out=bounds)
    out = np.empty((int(bounds[-1]), words), np.uint64)
    cursor = bounds[:-1].copy()
    for blob in blobs:
        _scatter(blob.entries, blob.base_offset, shards, first, cursor, out)
    return out, bounds


def dedupe_shards(entries: Words, bounds: Int64) -> tuple[Words, Int64]:
    """The winning entry of each key of ``gather_by_shard``'s result, and the new bounds."""
    out, new_bounds = np.empty_like(entries), np.empty_like(bounds)
    _dedupe_shards(entries, bounds, _table(bounds), out, new_bounds)
    return out[: new_bounds[-1]], new_bounds


def _table(bounds: Int64) -> Int32:
    return new_hash_table(int(np.diff(bounds).max(initial=1)))


# Collecting entries in log order within a bound of memory, before the exchange.
#
# ::
#
#     records ─ hash ─► shard p: [ entries … free ]     full: the last of each of its keys stays, in place
#                                                           still more than half full: all are sent
#
# Entries go to their shards at once, so that a shard is de-duplicated within the processor's cache.

_SHARDS = 512
_SHARD_ENTRIES = 4096
"""Initial rows of a shard: entries and hash table fit a core's cache."""
_DISTINCT_SHARE_MAX = 3 / 4
"""If no more than this share of a full shard is distinct keys, the collector grows."""


@kernel
def scatter_new(
    new: Words, start: int, shard_rows: int, dedupes: bool, entries: Words, counts: Int64, table: Int32
) -> Any:
    """Put entries from number ``start`` on into their shards, each ``shard_rows`` rows of ``entries``.

    A full one is de-duplicated where that ``dedupes``. The number of the first entry whose shard stays
    more than half full, of all when there is none.
    """
    width = np.uint64(new.shape[1])
    for i in range(np.uint64(start), np.uint64(len(new))):
        p = shard_of(new[i, 0], len(counts))
        if counts[p] == shard_rows:
            if dedupes:
                shard = entries[p * shard_rows : (p + 1) * shard_rows]
                counts[p] = dedupe(shard, table, shard)
            if counts[p] > shard_rows // 2:
                return np.int64(i)
        topic_partition = np.uint64(p * shard_rows + counts[p])
        counts[p] += 1
        entries[topic_partition, _ZERO] = new[i, _ZERO]
        entries[topic_partition, _ONE] = new[i, _ONE]
        for word in range(_TWO, width):
            entries[topic_partition, word] = new[i, word]
    return len(new)


@kernel
def close_gaps_between_shards(
    entries: Words, shard_rows: int, dedupes: bool, counts: Int64, table: Int32, bounds: Int64
) -> None:
    """Move the shards' entries to the front, de-duplicated if that ``dedupes`` any: rows ``bounds[p]`` to
    ``bounds[p + 1]`` are shard p."""
    used = 0
    for p in range(len(counts)):
        bounds[p] = used
        shard = entries[p * shard_rows : p * shard_rows + counts[p]]
        count = dedupe(shard, table, shard) if dedupes else len(shard)
        for i in range(count):
            for word in range(entries.shape[1]):
                entries[used, word] = shard[i, word]
            used += 1
    bounds[len(counts)] = used


class ShardedEntries:
    """Entries of one kind in shards: ``counts[p]`` of the ``shard_rows`` rows of each are used.

    ``dedupes``: only the last entry of each key is needed. When a shard stays more than half full, the
    rows are doubled, up to ``capacity`` entries in all, or all entries are sent.
    """

    def __init__(self, count: int, shard_rows: int, *, words: int, capacity: int, dedupes: bool) -> None:
        self._capacity, self._dedupes = capacity, dedupes
        self.shard_rows, self.counts = shard_rows, np.zeros(count, np.int64)
        self.entries: Words = np.empty((count * shard_rows, words), np.uint64)
        self._table = new_hash_table(shard_rows)

    def put(self, new: Words) -> Iterator[Int64]:
        """Add entries; yields the shards' bounds in ``entries`` each time that the caller has to take
        them."""
        done = 0
        while True:
            spans = (self.entries, self.counts, self._table)
            done = scatter_new(new, done, self.shard_rows, self._dedupes, *spans)
            if done == len(new):
                return
            left = int(self.counts[shard_of(new[done, 0], len(self.counts))])
            dedupes = self._dedupes and left <= _DISTINCT_SHARE_MAX * self.shard_rows
            if dedupes and 2 * len(self.entries) <= self._capacity:
                self._grow()
            else:
                yield self.packed(dedupes=dedupes)

    def packed(self, *, dedupes: bool) -> Int64:
        """Move all entries to the front of ``entries``; returns the shards' bounds."""
        bounds = np.empty(len(self.counts) + 1, np.int64)
        close_gaps_between_shards(self.entries, self.shard_rows, dedupes, self.counts, self._table, bounds)
        self.counts[:] = 0
        return bounds

    def _grow(self) -> None:
        """Double the shard_rows of each shard."""
        count, words = len(self.counts), self.entries.shape[1]
        grown = np.empty((count, 2 * self.shard_rows, words), np.uint64)
        grown[:, : self.shard_rows] = self.entries.reshape(count, self.shard_rows, words)
        self.entries, self.shard_rows = grown.reshape(-1, words), 2 * self.shard_rows
        self._table = new_hash_table(self.shard_rows)


def entry_blobs(shards: ShardedEntries, bounds: Int64, buckets: int, **kind: Any) -> Iterator[EntryBlob]:
    """Packed shards as blobs of ``BLOB_BYTES_MAX`` at most; ``kind``: their ``dirty`` and ``base_offset``."""
    per_bucket, step = len(shards.counts) // buckets, BLOB_BYTES_MAX // (8 * shards.entries.shape[1])
    for bucket in range(buckets):
        bucket_entries = shards.entries[bounds[bucket * per_bucket] : bounds[(bucket + 1) * per_bucket]]
        for start in range(0, len(bucket_entries), step):
            yield EntryBlob(bucket=bucket, entries=bucket_entries[start : start + step], **kind)


class KeyCollector:
    """Collects packed entries of records in log order, and sends them as blobs, within a bound of memory.

    It holds up to ``capacity`` entries of each kind, fewer if fewer are ``expected`` or if fewer keys are
    distinct. A key may come in several blobs, which merging allows for.
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
        wanted = min(_SHARDS, -(-likely // _SHARD_ENTRIES))
        self._count = buckets * max(1, wanted // buckets)
        self._shard_rows = max(1, min(_SHARD_ENTRIES, likely // self._count))
        self._kinds: dict[bool, ShardedEntries] = {}
        self._base: int | None = None

    def add(self, columns: KeyColumns, wanted: npt.NDArray[np.bool_]) -> Iterator[EntryBlob]:
        """Add the ``wanted`` records, which all have a key; yields blobs when the memory is full."""
        if not len(columns):
            return
        if self._base is not None and int(columns.offset[-1]) - self._base >= RELATIVE_OFFSET_LIMIT:
            yield from self.finish()
        if self._base is None:
            self._base = int(columns.offset[0])
        dirty = columns.offset >= self._first_dirty
        for kind, mask in ((True, wanted & dirty), (False, wanted & ~dirty)):
            count = int(np.count_nonzero(mask))
            if count:
                yield from self._put(columns, slice(None) if count == len(columns) else mask, kind)

    def _put(self, columns: KeyColumns, rows: Any, dirty: bool) -> Iterator[EntryBlob]:
        low, high = hashes_of(columns, rows, self._key)
        new = np.empty((len(low), PACKED_WORDS), np.uint64)
        _pack(low, high, columns.offset[rows], self._base or 0, new)
        if dirty not in self._kinds:
            self._kinds[dirty] = ShardedEntries(
                self._count, self._shard_rows, words=PACKED_WORDS, capacity=self._capacity, dedupes=dirty
            )
        shards = self._kinds[dirty]
        for bounds in shards.put(new):
            yield from entry_blobs(shards, bounds, self._buckets, is_dirty=dirty, base_offset=self._base)

    def finish(self) -> Iterator[EntryBlob]:
        """Yield the remaining entries; the collector can be used again, for later offsets."""
        for dirty, shards in self._kinds.items():
            if shards.counts.any():
                bounds = shards.packed(dedupes=dirty)
                yield from entry_blobs(shards, bounds, self._buckets, is_dirty=dirty, base_offset=self._base)
        self._base = None


@kernel
def _pack(low: Words, high: Words, offset: Int64, base: int, out: Words) -> None:
    """Packed entries of some records, whose offsets are less than 2³² above the base."""
    for i in range(len(low)):
        out[i, 0] = low[i]
        out[i, 1] = (high[i] << _HALF) | np.uint64(offset[i] - base)


def hashes_of(columns: KeyColumns, rows: Any, key: tuple[np.uint64, np.uint64]) -> tuple[Words, Words]:
    """Bits 0–63 and 64–127 of the hashes of some records' keys (``rows`` all have one): uint64 each."""
    key_start, key_size = columns.key_start[rows], columns.key_size[rows]
    low, high = np.empty((2, len(key_start)), np.uint64)
    siphash128_each(columns.data, key_start, key_size, *key, low, high)
    return low, high


# Grouping offsets by segment group, without sorting them.

_HINT_BITS = 12


@inlined
def _group_of(offset: int, bases: Int64, hints: Int32, shift: int) -> int:
    """The number of the last base at or below an offset."""
    number = int(hints[np.uint64((offset - bases[0]) >> shift)])
    while number + 1 < len(bases) and offset >= bases[number + 1]:
        number += 1
    return number


@kernel
def _scatter_by_group(
    offsets: Int64, bases: Int64, hints: Int32, shift: int, out: npt.NDArray[np.uint32], bounds: Int64
) -> None:
    """Group offsets by the last base at or below them: ``out`` from ``bounds[g]`` to ``bounds[g + 1]`` has
    those of base g, less the base.

    A counting sort. ``hints``: of each 2 ** ``shift`` offsets the base that the first one has; a search
    begins there, and goes on over few bases.
    """
    # 1. Count the offsets of each base, 2. sum up where each begins, 3. put each offset there.
    bounds[:] = 0
    for i in range(len(offsets)):
        bounds[_group_of(offsets[i], bases, hints, shift) + 1] += 1
    for group in range(len(bases)):
        bounds[group + 1] += bounds[group]
    cursor = bounds[:-1].copy()
    for i in range(len(offsets)):
        group = _group_of(offsets[i], bases, hints, shift)
        out[np.uint64(cursor[group])] = offsets[i] - bases[group]
        cursor[group] += 1


def group_offsets(offsets: Int64, bases: Int64) -> tuple[npt.NDArray[np.uint32], Int64]:
    """Group offsets (int64, in any order, none below the first base) by the last of the ``bases`` (ascending)
    at or below them: (offsets less their base: uint32, bounds of each base's: int64, one more than bases)."""
    out, bounds = np.empty(len(offsets), np.uint32), np.zeros(len(bases) + 1, np.int64)
    if len(offsets):
        assert int(offsets.min()) >= bases[0]
        span = int(offsets.max() - bases[0])
        shift = max(0, span.bit_length() - _HINT_BITS)
        starts = bases[0] + (np.arange((span >> shift) + 1) << shift)
        hints = (np.searchsorted(bases, starts, side="right") - 1).astype(np.int32)
        _scatter_by_group(offsets, bases, hints, shift, out, bounds)
    return out, bounds
