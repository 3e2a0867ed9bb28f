"""The broadcast join: few dirty records after a large clean section, whose keys need no exchange.

::

    dirty segments ─ extract ─► entries ─► OffsetMap, sent to every task
    each group     ─ rewritten; its keys are looked up in the map        (no exchange between groups)

Kafka's cleaner works this way, with its ``SkimpyOffsetMap``: a clean record is retained unless its key is in
the map, a dirty record only if the map has its offset. A shuffle join would send an entry for each keyed
record of the clean section. Logs with transactions are left to it, since their groups depend on each other,
and so are message sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CheckFailedError
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Flags, Int32, Int64, Words
from siltstone.compaction.keys import (
    EntryBlob,
    dedupe_shards,
    fill_hash_table,
    gather_by_shard,
    hashes_of,
    new_hash_table,
    slot_of,
)
from siltstone.compaction.report import failure_of
from siltstone.compaction.rewrite import Buffers, Decisions, FilteredRecords, RecordFilter
from siltstone.compaction.staging import LogReport, remove_staged, rewrite_with_filter
from siltstone.compaction.work import (
    BatchSlice,
    Extracted,
    Group,
    InputSplit,
    LogWork,
    check_keyless,
    extract,
    splits_by_task,
)

MIN_CLEAN_TO_DIRTY_RATIO = 4
"""The broadcast join is taken when the clean segments are so many times larger than the dirty ones."""
_ENTRY_BYTES = 48
"""Memory for an entry of the map, with its part of the tables."""
_BITS_PER_KEY = 16
_WORDS_OF_A_LINE = 8
"""uint64 words in a cache line."""

# The kernels. A blocked Bloom filter, the *bit table*, rules out most keys of the clean section: each key has
# two bits, both in one word, so a look-up costs one cache miss. Only a key whose bits are set is compared
# with the entries. The word is chosen by bits 20 and up of the hash's first half, the two bits within it by
# bits 52 to 57 and 58 to 63: the slot in the hash table is taken from its low bits.


@kernel
def _bits_of(word: np.uint64) -> np.uint64:
    """The two bits of a hash in its word of the bit table."""
    one = np.uint64(1)
    return np.uint64((one << ((word >> np.uint64(52)) & np.uint64(63))) | (one << (word >> np.uint64(58))))


@kernel
def _set_bits(entries: Words, bits: Words) -> None:
    """Set the bits of each key in the bit table, whose length is a power of two."""
    bit_mask = np.uint64(len(bits) - 1)
    for i in range(len(entries)):
        bits[(entries[i, 0] >> np.uint64(20)) & bit_mask] |= _bits_of(entries[i, 0])


@kernel
def _suspect(
    low: Words, offset: Int64, bits: Words, first_dirty: int, is_retained: Flags, suspects: Int32
) -> tuple[int, int]:
    """Find the records whose keys may be in the map: their bits are set. Returns (how many ``suspects``,
    dirty records that are not suspects). All records are retained for now.

    ``suspects`` has one row more than there are records: each number is written, and kept by counting on.
    Without a branch on the bits the processor waits for many cache misses at a time.
    """
    bit_mask, count, missing = np.uint64(len(bits) - 1), 0, 0
    for i in range(len(low)):
        is_retained[i] = True
        own_bits = _bits_of(low[i])
        is_suspect = bits[(low[i] >> np.uint64(20)) & bit_mask] & own_bits == own_bits
        suspects[np.uint64(count)] = i
        count += is_suspect
        missing += (offset[i] >= first_dirty) & (not is_suspect)
    return count, missing


@kernel
def _look_up(
    suspects: Int32,
    low: Words,
    high: Words,
    offset: Int64,
    entries: Words,
    table: Int32,
    first_dirty: int,
    is_retained: Flags,
) -> tuple[int, int]:
    """Look up the suspects: one whose key is in the map stays only with the map's offset (Kafka's
    ``Cleaner.shouldRetainRecord``). Returns (records that have the map's offset, dirty records whose key is
    missing)."""
    matched, missing, mask = 0, 0, np.uint64(len(table) - 1)
    for suspect in suspects:
        i = np.uint64(suspect)
        # The map's entries were packed: 96 bits of the hash, so the low half of ``high`` is compared.
        row = table[slot_of(table, mask, entries, low[i], high[i], np.uint64(0xFFFFFFFF))]
        if row >= 0:
            is_retained[i] = np.int64(entries[np.uint64(row), np.uint64(2)] >> np.uint64(1)) == offset[i]
            matched += is_retained[i]
        elif offset[i] >= first_dirty:
            missing += 1
    return matched, missing


class OffsetMap:
    """The last offset of each key of the dirty section: plain entries with 96 bits of the hash each. Only the
    entries are sent to a task, which builds its tables once."""

    def __init__(self, entries: Words) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def of(cls, blobs: Sequence[EntryBlob]) -> OffsetMap:
        """The map of all dirty entries."""
        entries, _ = dedupe_shards(*gather_by_shard([blob for blob in blobs if blob.is_dirty], 1, 0, 1))
        return cls(entries)

    def __reduce__(self) -> tuple[type[OffsetMap], tuple[Words]]:
        return OffsetMap, (self.entries,)

    @cached_property
    def _tables(self) -> tuple[Int32, Words]:
        """(hash table of rows, bit table)."""
        table = new_hash_table(len(self))
        table.fill(-1)
        fill_hash_table(self.entries, 0, len(self), table)
        bits = np.zeros(max(1, (1 << (_BITS_PER_KEY * len(self)).bit_length()) >> 6), np.uint64)
        _set_bits(self.entries, bits)
        return table, bits

    def look_up(self, low: Words, high: Words, offset: Int64, first_dirty: int) -> tuple[Flags, int, int]:
        """Records by the words of their hashes: (which stay: bool, how many have the map's offset, dirty
        records whose key is missing)."""
        (table, bits), is_retained = self._tables, np.empty(len(offset), np.bool_)
        if len(bits) <= _WORDS_OF_A_LINE * len(offset):
            # Reading the bits in order brings them into the cache before they are read at random.
            np.bitwise_or.reduce(bits)
        suspects = np.empty(len(offset) + 1, np.int32)
        count, missing = _suspect(low, offset, bits, first_dirty, is_retained, suspects)
        spans = (low, high, offset, self.entries, table, first_dirty)
        matched, unknown = _look_up(suspects[:count], *spans, is_retained)
        return is_retained, matched, missing + unknown


class OffsetMapFilter(RecordFilter):
    """Looks up the keys of one group while it is rewritten.

    ``has_transactions``: the filter stopped at a batch of a transaction, or at a marker. ``matched``: records
    that have the map's offset.
    """

    def __init__(self, work: LogWork, offset_map: OffsetMap, base_offset: int) -> None:
        self._work, self._map, self._base_offset = work, offset_map, base_offset
        self._key = (np.uint64(work.hash_key[0]), np.uint64(work.hash_key[1]))
        self.retained = self._reserved = np.empty(0, np.uint32)
        self.has_transactions = False
        self.matched = 0

    def filter(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """All records; those without a key do not stay.

        Raises CorruptRecordError, and CheckFailedError for a dirty record whose key is not in the map.
        """
        if (part.batches["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)).any():
            self.has_transactions = True
            raise CheckFailedError("a broadcast join found a transaction in the segment", path=part.path)
        window, batches, path, origin = part
        limit = self._work.limits.batch_limit
        columns = decode_records(window, batches, scratch, limit=limit, path=path, origin=origin)
        keyed = columns.key_size >= 0
        rows: Any = slice(None) if keyed.all() else keyed
        low, high = hashes_of(columns, rows, self._key)
        is_retained = np.zeros(len(columns), np.bool_)
        is_retained[rows], matched, missing = self._map.look_up(
            low, high, columns.offset[rows], self._work.first_dirty
        )
        if missing:
            raise CheckFailedError(
                f"{missing} records of the dirty section have keys that the offset map lacks",
                path=self._work.name,
            )
        self.matched += matched
        self._add(columns.offset[is_retained] - self._base_offset)
        return FilteredRecords(
            columns=columns,
            is_retained=is_retained,
            read=len(columns),
            discarded=len(columns) - int(np.count_nonzero(is_retained)),
            keyless=len(columns) - int(np.count_nonzero(keyed)),
        )

    def _add(self, retained: Int64) -> None:
        start, end = len(self.retained), len(self.retained) + len(retained)
        if end > len(self._reserved):
            self._reserved = np.empty(max(end, 2 * len(self._reserved)), np.uint32)
            self._reserved[:start] = self.retained
        self._reserved[start:end] = retained
        # A view: the verifier asks for it after every few batches.
        self.retained = self._reserved[:end]


def should_broadcast(work: LogWork, min_clean_to_dirty_ratio: float = MIN_CLEAN_TO_DIRTY_RATIO) -> bool:
    """Is the dirty section small enough, and is there no reason against it that planning knows?"""
    sizes = [segment.size for segment in work.segments]
    first = first_dirty_segment(work)
    clean, dirty = sum(sizes[:first]), sum(sizes[first:])
    fits = (work.end - work.first_dirty) * _ENTRY_BYTES <= work.limits.memory_bytes
    is_simple = not work.has_message_sets and not work.txnindex_entries and work.rules.map_end == LONG_MAX
    return fits and is_simple and clean > 0 and clean >= min_clean_to_dirty_ratio * dirty


def first_dirty_segment(work: LogWork) -> int:
    """Number of the first segment that may hold dirty records; it may hold clean ones too."""
    count = len(work.segments)
    return next((number for number in range(count) if work.offsets_of(number)[1] > work.first_dirty), count)


def dirty_splits(work: LogWork, tasks: int) -> list[list[InputSplit]]:
    """The dirty segments in up to ``tasks`` runs of input splits of about the same size."""
    first = first_dirty_segment(work)
    runs = splits_by_task(work.segments[first:], work.end, tasks, may_cut=work.may_cut)
    return [[replace(split, segment=first + split.segment) for split in run] for run in runs]


def dirty_entries(work: LogWork, splits: Sequence[InputSplit], extracted: Extracted) -> list[EntryBlob]:
    """The dirty entries of some splits; the caller must not use them when ``extracted`` has a failure."""
    capacity = max(1024, work.end - work.first_dirty)
    return [blob.copied() for blob in extract(work, splits, 1, capacity, extracted) if blob.is_dirty]


def clean_group(
    work: LogWork, group: Group, offset_map: OffsetMap, attempt: str, buffers: Buffers
) -> LogReport:
    """Rewrite a group and look up its keys. Never raises: the report has the failure.

    A group with transactions is not rewritten: its log needs a shuffle join.
    """
    record_filter = OffsetMapFilter(work, offset_map, group.base_offset)
    rewritten = rewrite_with_filter(work, group, record_filter, attempt, buffers=buffers)
    done = LogReport(name=work.name)
    done.extracted.has_transactions = record_filter.has_transactions
    if not record_filter.has_transactions:
        done.extracted.records = rewritten.counts.records_read
        done.extracted.keyless = rewritten.counts.discarded.keyless
        done.extracted.failure = rewritten.failure
        done.dirty_keys_met, done.groups = record_filter.matched, [rewritten]
        done.retained_counts[rewritten.group_index] = rewritten.retained_count
    return done


def merge_group_reports(work: LogWork, dirty_keys: int, groups: Iterable[LogReport]) -> LogReport | None:
    """Sum up the groups of a log with ``dirty_keys`` keys in its map, and verify that each key's last record
    was read. None where a group has transactions: all staged files are removed then."""
    done = LogReport(name=work.name, dirty_keys=dirty_keys)
    for group in groups:
        done.add(group)
    extracted = done.extracted
    if extracted.has_transactions and extracted.failure is None:
        for rewritten in done.groups:
            remove_staged(rewritten)
        return None
    extracted.failure = extracted.failure or check_keyless(work, extracted)
    if extracted.failure is None and done.dirty_keys_met != dirty_keys:
        read = done.dirty_keys_met
        reason = f"the offset map has {dirty_keys} keys, but the last records of {read} of them were read"
        extracted.failure = failure_of(CheckFailedError(reason, path=work.name))
    done.groups.sort(key=lambda rewritten: rewritten.group_index)
    return done
