"""Key entries, and the last offset of each key: how entries are hashed, collected, exchanged and merged.

This is Kafka's ``SkimpyOffsetMap``, divided into buckets so that it never fills up. Both kinds of compaction
use it.

Keys are compared by SipHash-2-4: by 96 bits of it in compaction in place (Kafka's), by 128 in side-by-side
compaction (Pulsar's). Its key is random, for each log of a run or for each ledger, so that no producer can
make two keys collide; Kafka's map uses plain MD5. An *entry* stands for one record with a key: two to four
uint64 words. *Packed* entries, two words, are what tasks of compaction in place exchange. *Counted* entries
are packed ones with two words more, which stand for several records of a key (``explain``). *Plain* entries,
three or four words with absolute offsets, are in merges, offset maps and the key indexes of ledgers::

    packed   word 0: hash bits 0–63   word 1: hash bits 64–95 (high half) | offset - base, uint32 (low half)
    counted  words 0 and 1 as packed  words 2 and 3: ``compaction.statistics``
    plain    word 0: hash bits 0–63   word 1: hash bits 64–127, or 64–95 of an entry that was packed
             word 2: offset << 1 | 1 if the record deletes its key (0 in an entry that was packed)
             word 3: the record's time with its sign bit inverted, where the latest time wins

Of the entries of one key the one with the largest (time, offset) wins. A *shard* is one of many equal ranges
of hashes, by the top bits of word 0, so small that its hash table fits the processor's cache. A *bucket* is
some neighbouring shards that one task merges. *Dirty* entries are of records in the dirty section; where keys
repeat, they are de-duplicated before the exchange. *Clean* entries are all exchanged: a clean record stays
unless a dirty record has its key.

If two keys had one hash, a record would be lost. Among n keys that happens with a probability of n² / 2⁹⁷
with 96 bits, and n² / 2¹²⁹ with 128: for 10⁹ keys less than 10⁻¹¹.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.hashing import siphash128_each
from siltstone.base.records.kernel import inline_kernel, kernel
from siltstone.base.records.layout import Flags, Int32, Int64, Words

BLOB_BYTES_MAX = 32 << 20
"""The largest blob of entries that is sent as one row."""
ENTRY_BYTES = 16
"""The size of a packed entry."""
MERGE_BYTES_PER_ENTRY = 56
"""Memory that a merge takes for an entry, at most."""
PACKED_WORDS, PLAIN_WORDS, TIMED_WORDS, COUNTED_WORDS = 2, 3, 4, 4
"""Words of an entry: packed, plain without and with a time, counted."""
RELATIVE_OFFSET_LIMIT = 1 << 32
"""Packed entries hold offsets less than this above their base."""
_MERGE_SHARD_ENTRIES, _MERGE_SHARDS_MAX = 4096, 4096
"""Entries in a shard of a merge (they fit a core's cache), and the most shards of a merge."""
# numba computes an int64 with a uint64 as float64, so kernels compute a uint64 only with uint64 constants.
_ZERO, _ONE, _TWO, _THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_HALF_WORD_BITS, _LOW_HALF_MASK, _ALL_BITS = (
    np.uint64(32),
    np.uint64(0xFFFFFFFF),
    np.uint64(0xFFFFFFFFFFFFFFFF),
)


@kernel
def shard_of(word: np.uint64, shards: int) -> Any:
    """The shard (or bucket) of a hash's first word: its top 32 bits, scaled to ``shards``.

    Where the number of shards is a multiple of the number of buckets, each bucket is a range of shards. A
    product and a shift give equal ranges for any number of shards, without a division.
    """
    return np.int64(((word >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32))


# The hash table of an array of entries: each slot has the row of an entry in the array, or -1. It has open
# addressing and is at most half full.


def new_hash_table(entries: int) -> Int32:
    """A hash table for ``entries`` entries: at least twice as many slots, a power of two; the slots are not
    set."""
    return np.empty(max(8, 1 << (2 * entries - 1).bit_length()), np.int32)


@inline_kernel
def slot_mask(entries: int) -> np.uint64:
    """The mask that turns a hash's first word into its first slot, in the table for ``entries`` entries."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return np.uint64(size - 1)


@inline_kernel
def slot_of(
    table: Int32, mask: np.uint64, entries: Words, low: np.uint64, high: np.uint64, compared_bits: np.uint64
) -> np.uint64:
    """The slot of the entry whose hash has the words ``low`` and ``high``, or else the free slot for it.

    Linear probing: it ends, since the table is at most half full. ``compared_bits``: the bits of word 1 that
    are the hash's.
    """
    slot = low & mask
    while True:
        row = table[slot]
        if row < 0:
            break
        entry = np.uint64(row)
        if entries[entry, _ZERO] == low and (entries[entry, _ONE] ^ high) & compared_bits == _ZERO:
            break
        slot = (slot + _ONE) & mask
    return slot


@kernel
def fill_hash_table(entries: Words, first: int, end: int, table: Int32) -> None:
    """Put plain entries of distinct keys, rows ``first`` to ``end`` (exclusive), into a table whose slots
    are all -1. It uses all slots of the table; ``dedupe`` uses only as many as its entries need."""
    mask = np.uint64(len(table) - 1)
    for i in range(np.uint64(first), np.uint64(end)):
        table[slot_of(table, mask, entries, entries[i, _ZERO], entries[i, _ONE], _ALL_BITS)] = i


# Words 2 and 3 of a counted entry (``statistics`` says what they are for).

COUNTED_BIN_BITS = np.uint64(0xFF)
"""The mask of the bin of time in word 2."""
COUNTED_SIZE_SHIFT = np.uint64(32)
"""The size of the last record is in word 2 from this bit on."""
COUNTED_RECORDS_SHIFT = np.uint64(35)
"""The number of records is in word 3 from this bit on, their bytes are below it."""
COUNTED_RECORDS_MAX, COUNTED_BYTES_MAX = (1 << 29) - 1, (1 << 35) - 1
"""The most records and bytes that an entry counts. (One slice of batches has less: its spans are int32.)"""


@inline_kernel
def add_later_entry(earlier: Words, row: Any, later: Words, i: Any, superseded: Int64) -> None:
    """Add the counted entry ``later[i]`` to ``earlier[row]``, of earlier records with the same key.

    The last record of the earlier entry is superseded by the first one of the later entry: its bytes are
    added to ``superseded`` in the bin of that record's time.
    """
    before, after = earlier[row, _TWO], later[i, _TWO]
    superseded[after & COUNTED_BIN_BITS] += np.int64(before >> COUNTED_SIZE_SHIFT)
    earlier[row, _ONE] = later[i, _ONE]
    earlier[row, _TWO] = (after & ~COUNTED_BIN_BITS) | (before & COUNTED_BIN_BITS)
    earlier[row, _THREE] += later[i, _THREE]


@kernel
def dedupe(entries: Words, table: Int32, out: Words, superseded: Int64) -> int:
    """Write the winning entry of each key to ``out``, in the order of the keys' first entries; returns how
    many keys there are.

    ``out`` may be ``entries``. Afterwards ``table`` has the row in ``out`` of each key, for callers that use
    ``slot_mask(len(entries))``. Counted entries, which come in log order, are added up;
    ``superseded``: see ``add_later_entry``, empty for other entries.
    """
    used, width, is_counted = np.uint64(0), entries.shape[1], len(superseded) > 0
    # A packed entry has its offset in the low half of word 1: only the high half is hash. Packed entries of
    # different bases never meet here: a collector sends all of them before it takes another base.
    compared_bits = (_LOW_HALF_MASK << _HALF_WORD_BITS) if width == 2 or is_counted else _ALL_BITS
    mask = slot_mask(len(entries))
    table[: mask + _ONE] = -1
    for i in range(np.uint64(len(entries))):
        low, high = entries[i, _ZERO], entries[i, _ONE]
        slot = slot_of(table, mask, out, low, high, compared_bits)
        row = table[slot]
        # 1. A new key: append its entry to ``out``. Where that is ``entries`` itself, row ``used`` is never
        #    above row i, so no entry is lost.
        if row < 0:
            table[slot] = used
            out[used, _ZERO] = low
            out[used, _ONE] = high
            if width > 2:
                out[used, _TWO] = entries[i, _TWO]
            if width > 3:
                out[used, _THREE] = entries[i, _THREE]
            used += _ONE
            continue
        # 2. A key that ``out`` has: the larger offset wins; of entries with times the larger time, and the
        #    larger offset where the times are equal.
        winner = np.uint64(row)
        if is_counted:
            add_later_entry(out, winner, entries, i, superseded)
        elif width == 2:
            # Equal hashes have equal high halves, so the larger word has the larger offset.
            out[winner, _ONE] = max(out[winner, _ONE], high)
        elif width == 4 and out[winner, _THREE] != entries[i, _THREE]:
            if out[winner, _THREE] < entries[i, _THREE]:
                out[winner, _TWO] = entries[i, _TWO]
                out[winner, _THREE] = entries[i, _THREE]
        else:
            out[winner, _TWO] = max(out[winner, _TWO], entries[i, _TWO])
    return int(used)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBlob:
    """Entries of one bucket on their way to the task that merges it: uint64[n, 2 to 4].

    ``base_offset``: what the offsets of packed entries are relative to. A collector's blobs are views of its
    memory, and valid only until the next blob is taken from it; ``copied()`` stays valid.
    """

    bucket: int
    entries: Words
    is_dirty: bool = True
    base_offset: int = 0

    def copied(self) -> EntryBlob:
        """The blob with a copy of its entries."""
        return replace(self, entries=self.entries.copy())

    def sort_key(self) -> list[int]:
        """The sort key of non-empty blobs, so that a merge does not depend on the order in which they
        arrive: no two blobs have the same base and first entry."""
        return [self.base_offset, *self.entries[0].tolist()]


def offsets_of(entries: Words) -> Int64:
    """The offsets of plain entries: int64."""
    return (entries[:, 2] >> _ONE).astype(np.int64)


def deleted_of(entries: Words) -> Flags:
    """Which plain entries are of records that delete their keys: bool."""
    return np.asarray((entries[:, 2] & _ONE) != 0)


# Merging: the entries of a bucket are grouped by shard (a counting sort), and the last of each key is kept.


@kernel
def count_by_shard(entries: Words, shards: int, first_shard: int, bounds: Int64) -> None:
    """Add the number of entries of each shard s to ``bounds[s + 1]``, where s is the shard's number less
    ``first_shard``. (A cumulative sum makes bounds of them.)"""
    for i in range(len(entries)):
        bounds[shard_of(entries[i, 0], shards) - first_shard + 1] += 1


@kernel
def _append_to_shards(
    entries: Words, base: int, shards: int, first_shard: int, next_rows: Int64, out: Words
) -> None:
    """Append entries to their shards in ``out``, packed ones as plain ones. ``base``: the base offset of
    packed ones; ``next_rows``: the next row of each shard."""
    width = entries.shape[1]
    for i in range(len(entries)):
        s = shard_of(entries[i, 0], shards) - first_shard
        row = np.uint64(next_rows[s])
        next_rows[s] += 1
        if width == 2:
            out[row, _ZERO] = entries[i, 0]
            out[row, _ONE] = entries[i, 1] >> _HALF_WORD_BITS
            out[row, _TWO] = np.uint64(base + np.int64(entries[i, 1] & _LOW_HALF_MASK)) << _ONE
        else:
            for word in range(np.uint64(width)):
                out[row, word] = entries[i, word]


@kernel
def _dedupe_shards(entries: Words, bounds: Int64, table: Int32, out: Words, new_bounds: Int64) -> None:
    """``dedupe`` each shard; rows ``new_bounds[s]`` to ``new_bounds[s + 1]`` of ``out`` are shard s."""
    new_bounds[0], superseded = 0, np.empty(0, np.int64)
    for s in range(len(bounds) - 1):
        shard = entries[bounds[s] : bounds[s + 1]]
        new_bounds[s + 1] = new_bounds[s] + dedupe(shard, table, out[new_bounds[s] :], superseded)


@kernel
def _merge(
    dirty: Words, bounds: Int64, clean: Words, clean_bounds: Int64, table: Int32, retained: Int64
) -> tuple[int, int]:
    """Fill ``retained`` with the offsets that a bucket retains; returns (how many dirty keys are distinct,
    how many offsets are retained).

    Of the dirty entries of a key the one with the largest offset stays. A clean entry stays if its key has no
    dirty entry.
    """
    used, distinct, superseded = 0, 0, np.empty(0, np.int64)
    for s in range(len(bounds) - 1):
        # 1. Dirty entries: the last of each key, as in Kafka's map after ``buildOffsetMap``.
        shard = dirty[bounds[s] : bounds[s + 1]]
        keys = dedupe(shard, table, shard, superseded)
        for i in range(keys):
            retained[used + i] = np.int64(shard[i, 2] >> _ONE)
        used += keys
        distinct += keys
        # 2. Clean entries: the table has the dirty keys of the shard now, and a clean entry whose key is not
        #    there stays (Kafka's ``shouldRetainRecord``). The mask is the one that ``dedupe`` used.
        mask = slot_mask(len(shard))
        for i in range(clean_bounds[s], clean_bounds[s + 1]):
            if table[slot_of(table, mask, shard, clean[i, 0], clean[i, 1], _ALL_BITS)] < 0:
                retained[used] = np.int64(clean[i, 2] >> _ONE)
                used += 1
    return distinct, used


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBucket:
    """A merged bucket: its retained offsets (int64, unordered), and how many distinct dirty keys it has."""

    offsets: Int64
    dirty_keys: int


def shards_for(blobs: Sequence[EntryBlob]) -> int:
    """Into how many shards the merge of a bucket divides these blobs."""
    entries = sum(len(blob.entries) for blob in blobs)
    return max(1, min(_MERGE_SHARDS_MAX, entries // _MERGE_SHARD_ENTRIES))


def merge_bucket(blobs: list[EntryBlob], bucket: int, buckets: int) -> MergedBucket:
    """Merge all blobs of bucket number ``bucket`` of ``buckets``. The order of the blobs does not matter.

    Memory: about ``MERGE_BYTES_PER_ENTRY`` an entry.
    """
    shards_per_bucket = shards_for(blobs)
    # How many shards there are, the number of the bucket's first one, how many are the bucket's.
    shard_range = (shards_per_bucket * buckets, bucket * shards_per_bucket, shards_per_bucket)
    dirty, bounds = gather_by_shard([blob for blob in blobs if blob.is_dirty], *shard_range)
    clean, clean_bounds = gather_by_shard([blob for blob in blobs if not blob.is_dirty], *shard_range)
    retained = np.empty(len(dirty) + len(clean), np.int64)
    distinct, used = _merge(dirty, bounds, clean, clean_bounds, hash_table_of_shards(bounds), retained)
    return MergedBucket(offsets=retained[:used], dirty_keys=distinct)


def gather_by_shard(
    blobs: Sequence[EntryBlob], shards: int, first_shard: int, count: int, words: int = PLAIN_WORDS
) -> tuple[Words, Int64]:
    """The blobs' entries as plain ones, by shard and then by ``EntryBlob.sort_key``, and the shards' bounds
    in them (int64[count + 1]).

    All hashes are divided into ``shards``; those of the blobs are in ``count`` of these, from number
    ``first_shard`` on. ``words``: how many an entry of the result has.
    """
    blobs = sorted((blob for blob in blobs if len(blob.entries)), key=EntryBlob.sort_key)
    bounds = np.zeros(count + 1, np.int64)
    for blob in blobs:
        count_by_shard(blob.entries, shards, first_shard, bounds)
    np.cumsum(bounds, out=bounds)
    out = np.empty((int(bounds[-1]), words), np.uint64)
    next_rows = bounds[:-1].copy()
    for blob in blobs:
        _append_to_shards(blob.entries, blob.base_offset, shards, first_shard, next_rows, out)
    return out, bounds


def dedupe_shards(entries: Words, bounds: Int64) -> tuple[Words, Int64]:
    """The winning entry of each key of ``gather_by_shard``'s result, and the new bounds."""
    out, new_bounds = np.empty_like(entries), np.empty_like(bounds)
    _dedupe_shards(entries, bounds, hash_table_of_shards(bounds), out, new_bounds)
    return out[: new_bounds[-1]], new_bounds


def hash_table_of_shards(bounds: Int64) -> Int32:
    """A hash table that is large enough for each of the shards with these bounds."""
    return new_hash_table(int(np.diff(bounds).max(initial=1)))


# Collecting entries in log order within a bound of memory, before the exchange.
#
# ::
#
#     records ─ hash ─► shard s: [ entries … free ]     full: it is de-duplicated, in place
#                                                       still crowded: more rows, or all are sent
#
# Entries go to their shards at once, so that a shard is de-duplicated within the processor's cache.

_NOT_COUNTED: Int64 = np.empty(0, np.int64)
_NO_COUNT_WORDS: Words = np.empty(0, np.uint64)
_SHARDS_MAX = 512
"""The most shards of a collector, unless it has more buckets."""
_INITIAL_SHARD_ROWS = 4072
"""Rows of a shard at first: entries and hash table fit a core's cache. No power of two: shards that begin at
multiples of it would share a few sets of the cache, and each entry that is put would miss it."""
_CROWDED_EIGHTHS = 5
"""A de-duplicated shard that is more than five eighths full would soon be full again."""
_DISTINCT_SHARE_MAX = 3 / 4
"""If at most this share of a full shard's entries has distinct keys, keys repeat: shards get more rows, since
fewer entries are sent if more of them are de-duplicated together."""


@kernel
def put_into_shards(
    new: Words,
    start: int,
    shard_rows: int,
    dedupes: bool,
    entries: Words,
    counts: Int64,
    table: Int32,
    superseded: Int64,
) -> Any:
    """Put ``new`` entries, from number ``start`` on, into their shards. Shard s has ``shard_rows`` rows of
    ``entries``, of which the first ``counts[s]`` are used.

    With ``dedupes`` a full shard is de-duplicated (``superseded``: see ``dedupe``). Stops before the first
    entry whose shard is full, or stays crowded; returns the number of that entry, or ``len(new)``.
    """
    width = np.uint64(new.shape[1])
    for i in range(np.uint64(start), np.uint64(len(new))):
        s = shard_of(new[i, 0], len(counts))
        if counts[s] == shard_rows:
            if dedupes:
                shard = entries[s * shard_rows : (s + 1) * shard_rows]
                counts[s] = dedupe(shard, table, shard, superseded)
            if counts[s] > shard_rows * _CROWDED_EIGHTHS // 8:
                return np.int64(i)
        row = np.uint64(s * shard_rows + counts[s])
        counts[s] += 1
        entries[row, _ZERO] = new[i, _ZERO]
        entries[row, _ONE] = new[i, _ONE]
        # No loop: the checks before a loop over so few words take longer than the copy.
        if width > _TWO:
            entries[row, _TWO] = new[i, _TWO]
        if width > _THREE:
            entries[row, _THREE] = new[i, _THREE]
    return len(new)


@kernel
def close_gaps_between_shards(
    entries: Words,
    shard_rows: int,
    dedupes: bool,
    counts: Int64,
    table: Int32,
    bounds: Int64,
    superseded: Int64,
) -> None:
    """Move the shards' entries to the front, without the free rows between them; with ``dedupes`` only the
    last entry of each key. Rows ``bounds[s]`` to ``bounds[s + 1]`` are shard s then."""
    used = 0
    for s in range(len(counts)):
        bounds[s] = used
        shard = entries[s * shard_rows : s * shard_rows + counts[s]]
        count = dedupe(shard, table, shard, superseded) if dedupes else len(shard)
        for i in range(count):
            for word in range(entries.shape[1]):
                entries[used, word] = shard[i, word]
            used += 1
    bounds[len(counts)] = used


class ShardedEntries:
    """Entries in ``shard_count`` shards: each has ``shard_rows`` rows, of which ``counts[s]`` are used.

    ``words``: how many an entry has. ``dedupes``: only the last entry of each key is needed. When a shard is
    full and has few entries to drop, either all shards get twice as many rows, up to ``capacity`` entries in
    all, or the caller has to take all entries. ``superseded``: see ``dedupe``.
    """

    def __init__(
        self,
        shard_count: int,
        shard_rows: int,
        *,
        words: int,
        capacity: int,
        dedupes: bool,
        superseded: Int64 = _NOT_COUNTED,
    ) -> None:
        self._capacity, self._dedupes, self._superseded = capacity, dedupes, superseded
        self.shard_rows, self.counts = shard_rows, np.zeros(shard_count, np.int64)
        self.entries: Words = np.empty((shard_count * shard_rows, words), np.uint64)
        self._table = new_hash_table(shard_rows)

    def put(self, new: Words) -> Iterator[Int64]:
        """Add entries. Each time that the caller has to take all entries out of ``entries``, this yields the
        shards' bounds in it."""
        added = 0
        while True:
            arrays = (self.entries, self.counts, self._table, self._superseded)
            added = put_into_shards(new, added, self.shard_rows, self._dedupes, *arrays)
            if added == len(new):
                return
            # The shard of the first entry that was not added is full, and was de-duplicated.
            distinct = int(self.counts[shard_of(new[added, 0], len(self.counts))])
            repeats = self._dedupes and distinct <= _DISTINCT_SHARE_MAX * self.shard_rows
            if repeats and 2 * len(self.entries) <= self._capacity:
                self._double_rows()
            else:
                # Counted entries are added up in any case, so that a blob has one entry of a key.
                yield self.drain(dedupes=repeats or (self._dedupes and len(self._superseded) > 0))

    def drain(self, *, dedupes: bool) -> Int64:
        """Move all entries to the front of ``entries``, and count all rows as free; returns the shards'
        bounds. With ``dedupes`` only the last entry of each key is moved."""
        bounds = np.empty(len(self.counts) + 1, np.int64)
        arrays = (self.counts, self._table, bounds, self._superseded)
        close_gaps_between_shards(self.entries, self.shard_rows, dedupes, *arrays)
        self.counts[:] = 0
        return bounds

    def _double_rows(self) -> None:
        """Give each shard twice as many rows."""
        count, words = len(self.counts), self.entries.shape[1]
        grown = np.empty((count, 2 * self.shard_rows, words), np.uint64)
        grown[:, : self.shard_rows] = self.entries.reshape(count, self.shard_rows, words)
        self.entries, self.shard_rows = grown.reshape(-1, words), 2 * self.shard_rows
        self._table = new_hash_table(self.shard_rows)


def entry_blobs(
    shards: ShardedEntries, bounds: Int64, buckets: int, **blob_fields: Any
) -> Iterator[EntryBlob]:
    """The entries of ``shards`` after ``drain``, as blobs of at most ``BLOB_BYTES_MAX`` bytes: of whole
    shards, unless one is larger. ``bounds``: what ``drain`` returned; ``blob_fields``: the ``is_dirty`` and
    ``base_offset`` of the blobs."""
    shards_per_bucket = len(shards.counts) // buckets
    blob_entries = BLOB_BYTES_MAX // (8 * shards.entries.shape[1])  # the most entries of a blob
    for bucket in range(buckets):
        shard, end_shard = bucket * shards_per_bucket, (bucket + 1) * shards_per_bucket
        while shard < end_shard:
            fitting = int(np.searchsorted(bounds, bounds[shard] + blob_entries, side="right")) - 1
            next_shard = min(max(shard + 1, fitting), end_shard)
            for start in range(int(bounds[shard]), int(bounds[next_shard]), blob_entries):
                end = min(start + blob_entries, int(bounds[next_shard]))
                yield EntryBlob(bucket=bucket, entries=shards.entries[start:end], **blob_fields)
            shard = next_shard


class KeyCollector:
    """Collects packed entries of records in log order, and yields them as blobs, within a bound of memory.

    It holds up to ``capacity`` dirty and as many clean entries; fewer if fewer records are ``expected``, or
    if keys hardly repeat. A key may come in several blobs: the merge takes its last entry. Records from
    offset ``first_dirty`` on are dirty. If ``bins`` is not 0, the entries are counted ones, and
    ``superseded`` has the bytes of superseded dirty records in that many bins of time (``add_later_entry``).
    ``expected``: the most records that will come, None if not known.
    """

    def __init__(
        self,
        *,
        hash_key: tuple[int, int],
        first_dirty: int,
        buckets: int,
        capacity: int,
        expected: int | None = None,
        bins: int = 0,
    ) -> None:
        self.superseded: Int64 = np.zeros(bins, np.int64)
        self._counted_records = self._counted_bytes = 0
        self._hash_key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._first_dirty = first_dirty
        self._buckets = buckets
        self._capacity = capacity
        # A quarter more than expected, since hashes do not fill all shards equally.
        expected_entries = capacity if expected is None else min(capacity, expected + expected // 4)
        shards = min(_SHARDS_MAX, -(-expected_entries // _INITIAL_SHARD_ROWS))
        self._shard_count = buckets * max(1, shards // buckets)
        self._shard_rows = max(1, min(_INITIAL_SHARD_ROWS, expected_entries // self._shard_count))
        self._shards_by_kind: dict[bool, ShardedEntries] = {}  # True: dirty entries, False: clean ones
        self._base_offset: int | None = None

    def add(
        self, columns: KeyColumns, wanted: npt.NDArray[np.bool_], count_words: Words = _NO_COUNT_WORDS
    ) -> Iterator[EntryBlob]:
        """Add the ``wanted`` records (bool, one a record), which all have a key. Yields blobs when the memory
        is full, or when a record does not fit entries of the base offset of those collected so far.

        ``count_words``: word 2 of each record's entry, if entries are counted.
        """
        if not len(columns):
            return
        if self._base_offset is not None and not self._fits(self._base_offset, columns, count_words):
            yield from self.finish()
        if self._base_offset is None:
            self._base_offset = int(columns.offset[0])
        self._counted_records += len(count_words)
        self._counted_bytes += len(columns.data)
        dirty = columns.offset >= self._first_dirty
        for is_dirty, mask in ((True, wanted & dirty), (False, wanted & ~dirty)):
            count = int(np.count_nonzero(mask))
            if count:
                rows = slice(None) if count == len(columns) else mask
                yield from self._put(columns, rows, is_dirty, count_words)

    def _fits(self, base_offset: int, columns: KeyColumns, count_words: Words) -> bool:
        """Can these records join those collected so far: do their offsets fit packed entries of this base,
        and do the sums of counted entries have room for their number and bytes?"""
        records, size = self._counted_records + len(count_words), self._counted_bytes + len(columns.data)
        fits_sums = not len(count_words) or (records <= COUNTED_RECORDS_MAX and size <= COUNTED_BYTES_MAX)
        return int(columns.offset[-1]) - base_offset < RELATIVE_OFFSET_LIMIT and fits_sums

    def _put(self, columns: KeyColumns, rows: Any, is_dirty: bool, count_words: Words) -> Iterator[EntryBlob]:
        """Add the entries of some ``rows``, which are all dirty or all clean, as ``add`` does."""
        low, high = hashes_of(columns, rows, self._hash_key)
        is_counted = len(self.superseded) > 0
        new = np.empty((len(low), COUNTED_WORDS if is_counted else PACKED_WORDS), np.uint64)
        count_words = count_words[rows] if is_counted else count_words
        _pack(low, high, columns.offset[rows], self._base_offset or 0, count_words, new)
        if is_dirty not in self._shards_by_kind:
            self._shards_by_kind[is_dirty] = ShardedEntries(
                self._shard_count,
                self._shard_rows,
                words=new.shape[1],
                capacity=self._capacity,
                dedupes=is_dirty,
                superseded=self.superseded,
            )
        shards = self._shards_by_kind[is_dirty]
        for bounds in shards.put(new):
            yield from entry_blobs(
                shards, bounds, self._buckets, is_dirty=is_dirty, base_offset=self._base_offset
            )

    def finish(self) -> Iterator[EntryBlob]:
        """Yield the remaining entries. The collector can be used again, for later offsets."""
        for is_dirty, shards in self._shards_by_kind.items():
            if shards.counts.any():
                bounds = shards.drain(dedupes=is_dirty)
                yield from entry_blobs(
                    shards, bounds, self._buckets, is_dirty=is_dirty, base_offset=self._base_offset
                )
        self._base_offset = None
        self._counted_records = self._counted_bytes = 0


@kernel
def _pack(low: Words, high: Words, offset: Int64, base: int, count_words: Words, out: Words) -> None:
    """Packed entries of some records, whose offsets are less than 2³² above the base; or counted ones, of
    which ``count_words`` has word 2."""
    for i in range(len(low)):
        out[i, 0] = low[i]
        out[i, 1] = (high[i] << _HALF_WORD_BITS) | np.uint64(offset[i] - base)
        if len(count_words) > 0:
            out[i, 2] = count_words[i]
            out[i, 3] = (_ONE << COUNTED_RECORDS_SHIFT) | (count_words[i] >> COUNTED_SIZE_SHIFT)


def hashes_of(columns: KeyColumns, rows: Any, key: tuple[np.uint64, np.uint64]) -> tuple[Words, Words]:
    """Bits 0–63 and 64–127 of the hashes of some records' keys (``rows`` all have one): uint64 each."""
    key_start, key_size = columns.key_start[rows], columns.key_size[rows]
    low, high = np.empty((2, len(key_start)), np.uint64)
    siphash128_each(columns.data, key_start, key_size, *key, low, high)
    return low, high


# Grouping retained offsets by segment group, without sorting them.

_HINT_BITS = 12
"""The span of the offsets is divided into up to 2¹² equal parts, with a hint for each."""


@inline_kernel
def _group_of(offset: int, bases: Int64, hints: Int32, shift: int) -> int:
    """The number of the last base at or below an offset. The hint is the number for the first offset of the
    part that has this offset; the search begins there."""
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

    A counting sort. ``hints``: for each part of 2 ** ``shift`` offsets the number of the base of its first
    offset (``_group_of``).
    """
    # Count the offsets of each base; sum the counts up to where each base's offsets begin; put each offset
    # into the next free row of its base.
    bounds[:] = 0
    for i in range(len(offsets)):
        bounds[_group_of(offsets[i], bases, hints, shift) + 1] += 1
    for group in range(len(bases)):
        bounds[group + 1] += bounds[group]
    next_rows = bounds[:-1].copy()
    for i in range(len(offsets)):
        group = _group_of(offsets[i], bases, hints, shift)
        out[np.uint64(next_rows[group])] = offsets[i] - bases[group]
        next_rows[group] += 1


def group_offsets(offsets: Int64, bases: Int64) -> tuple[npt.NDArray[np.uint32], Int64]:
    """Group offsets (int64, in any order, none below the first base) by the last of the ``bases`` (ascending)
    at or below them.

    Returns the offsets less their bases (uint32), and the bounds of each base's offsets in them (int64, one
    more than bases).
    """
    out, bounds = np.empty(len(offsets), np.uint32), np.zeros(len(bases) + 1, np.int64)
    if len(offsets):
        assert int(offsets.min()) >= bases[0]
        span = int(offsets.max() - bases[0])
        shift = max(0, span.bit_length() - _HINT_BITS)
        starts = bases[0] + (np.arange((span >> shift) + 1) << shift)
        hints = (np.searchsorted(bases, starts, side="right") - 1).astype(np.int32)
        _scatter_by_group(offsets, bases, hints, shift, out, bounds)
    return out, bounds
