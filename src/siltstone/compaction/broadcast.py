"""The broadcast join: how a log with few dirty records after a large clean section is cleaned.

::

    1. extract    dirty segments ─► key entries of dirty records
    2. merge      all entries    ─► OffsetMap, the last offset of each dirty key; every task gets it
    3. rewrite    each range     ─► staged segment or piece: each record's key is looked up in the map
    4. check      all reports    ─► the last record of every key in the map was read once

Kafka's cleaner works this way, with its ``SkimpyOffsetMap``: a clean record is retained unless its key is in
the map, a dirty record only if the map has its offset. The keys of the clean section need not be exchanged; a
shuffle join sends an entry for each of them. Logs with transactions need a shuffle join, since their groups
depend on each other. So do logs with message sets (v0, v1).
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
    GroupRange,
    InputSplit,
    LogWork,
    check_keyless,
    extract,
    splits_by_task,
)

MIN_CLEAN_TO_DIRTY_RATIO = 4
"""The least ratio of a log's clean bytes to its dirty bytes for which it takes the broadcast join."""
_MAP_BYTES_PER_ENTRY = 48
"""Memory for an entry of the map, with its share of the hash table and the bit table, at most."""
_BITS_PER_KEY = 16
"""The least bits of the bit table for each key."""
_CACHE_LINE_WORDS = 8
"""uint64 words in a cache line."""

# The kernels. Most keys of the clean section are not in the map. A blocked Bloom filter, the *bit table*,
# tells so with one cache miss: each key has two bits, both in one word. Only a key whose two bits are set, a
# *suspect*, is looked up in the hash table.
#
#     word 0 of the key's hash    bits 0 and up: slot in the hash table
#                                 bits 20 and up: word of the bit table
#                                 bits 52–57, bits 58–63: the two bits in that word

_TABLE_WORD_SHIFT = np.uint64(20)
_FIRST_BIT_SHIFT, _SECOND_BIT_SHIFT = np.uint64(52), np.uint64(58)
_BIT_NUMBER_MASK = np.uint64(63)
"""The low six bits number a bit of a word."""
_HASH_BITS_OF_PACKED = np.uint64(0xFFFFFFFF)
"""The bits of word 1 that the map's entries have: these were packed, with 96 bits of the hash."""


@kernel
def _bits_of(word: np.uint64) -> np.uint64:
    """The two bits of a key in its word of the bit table; ``word``: word 0 of the key's hash."""
    one = np.uint64(1)
    first = one << ((word >> _FIRST_BIT_SHIFT) & _BIT_NUMBER_MASK)
    return np.uint64(first | (one << (word >> _SECOND_BIT_SHIFT)))


@kernel
def _set_bits(entries: Words, bit_table: Words) -> None:
    """Set the bits of each entry's key in the bit table, whose length is a power of two."""
    bit_mask = np.uint64(len(bit_table) - 1)
    for i in range(len(entries)):
        bit_table[(entries[i, 0] >> _TABLE_WORD_SHIFT) & bit_mask] |= _bits_of(entries[i, 0])


@kernel
def _find_suspects(
    low: Words, offset: Int64, bit_table: Words, first_dirty: int, is_retained: Flags, suspects: Int32
) -> tuple[int, int]:
    """Find the suspects: records whose keys may be in the map, since their bits are set. Returns (how many
    suspects there are, how many dirty records are no suspects, so that the map lacks their keys). Marks all
    records as retained; ``_look_up`` decides about the suspects.

    ``low``: word 0 of the keys' hashes. ``suspects`` gets the rows of the suspects; it has one row more than
    there are records. Every row is written to it, and the next one overwrites it unless it was a suspect's:
    there is no branch on the bits, so that the processor waits for many cache misses at the same time.
    """
    bit_mask, count, missing = np.uint64(len(bit_table) - 1), 0, 0
    for i in range(len(low)):
        is_retained[i] = True
        key_bits = _bits_of(low[i])
        is_suspect = bit_table[(low[i] >> _TABLE_WORD_SHIFT) & bit_mask] & key_bits == key_bits
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
    """Look up the suspects: one whose key is in the map stays only if the map has its offset (Kafka's
    ``Cleaner.shouldRetainRecord``). Returns (how many have the map's offset, how many dirty records have a
    key that is missing).

    ``low``, ``high``: the two words of the keys' hashes. ``entries``, ``table``: the map and its hash table.
    """
    matched, missing, mask = 0, 0, np.uint64(len(table) - 1)
    for suspect in suspects:
        i = np.uint64(suspect)
        row = table[slot_of(table, mask, entries, low[i], high[i], _HASH_BITS_OF_PACKED)]
        if row >= 0:
            # Word 2 of an entry: offset << 1 | 1 if the record deletes its key.
            is_retained[i] = np.int64(entries[np.uint64(row), np.uint64(2)] >> np.uint64(1)) == offset[i]
            matched += is_retained[i]
        elif offset[i] >= first_dirty:
            missing += 1
    return matched, missing


class OffsetMap:
    """The last offset of each key of the dirty section (Kafka's ``OffsetMap``): plain entries with 96 bits of
    the hash each. Only the entries are sent to a task, which builds the tables from them once."""

    def __init__(self, entries: Words) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def of(cls, blobs: Sequence[EntryBlob]) -> OffsetMap:
        """The map of the dirty entries in ``blobs``, which are merged as one shard."""
        dirty = [blob for blob in blobs if blob.is_dirty]
        entries, _ = dedupe_shards(*gather_by_shard(dirty, shards=1, first_shard=0, count=1))
        return cls(entries)

    def __reduce__(self) -> tuple[type[OffsetMap], tuple[Words]]:
        return OffsetMap, (self.entries,)

    @cached_property
    def _tables(self) -> tuple[Int32, Words]:
        """(The hash table of the entries' rows, the bit table.)"""
        table = new_hash_table(len(self))
        table.fill(-1)
        fill_hash_table(self.entries, 0, len(self), table)
        bit_table = np.zeros(max(1, (1 << (_BITS_PER_KEY * len(self)).bit_length()) >> 6), np.uint64)
        _set_bits(self.entries, bit_table)
        return table, bit_table

    def look_up(self, low: Words, high: Words, offset: Int64, first_dirty: int) -> tuple[Flags, int, int]:
        """Look up records by the two words of their keys' hashes.

        Returns (which stay: bool, how many have the map's offset, how many dirty records have a key that is
        missing).
        """
        (table, bit_table), is_retained = self._tables, np.empty(len(offset), np.bool_)
        if len(bit_table) <= _CACHE_LINE_WORDS * len(offset):
            # Each record reads one word at random. Where the table has fewer cache lines than there are
            # records, reading it all in order first is cheaper: that brings it into the cache.
            np.bitwise_or.reduce(bit_table)
        suspects = np.empty(len(offset) + 1, np.int32)
        count, missing = _find_suspects(low, offset, bit_table, first_dirty, is_retained, suspects)
        records = (low, high, offset)
        matched, missing_suspects = _look_up(
            suspects[:count], *records, self.entries, table, first_dirty, is_retained
        )
        return is_retained, matched, missing + missing_suspects


class OffsetMapFilter(RecordFilter):
    """Looks up the keys of one range in the offset map while the range is rewritten.

    ``retained``: the offsets retained so far, less the range's base (uint32). ``has_transactions``: the
    filter raised an error at a batch of a transaction, or at a marker. ``matched``: how many records have the
    map's offset.
    """

    def __init__(self, work: LogWork, offset_map: OffsetMap, base_offset: int) -> None:
        self._work, self._map, self._base_offset = work, offset_map, base_offset
        self._key = (np.uint64(work.hash_key[0]), np.uint64(work.hash_key[1]))
        self.retained = self._reserved = np.empty(0, np.uint32)
        self.has_transactions = False
        self.matched = 0

    def filter(self, batch_slice: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """Decodes all records and looks up their keys; those without a key do not stay.

        Raises CorruptRecordError, and CheckFailedError for a dirty record whose key is not in the map.
        """
        if (batch_slice.batches["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)).any():
            self.has_transactions = True
            raise CheckFailedError(
                "a broadcast join found a transaction in the segment", path=batch_slice.path
            )
        window, batches, path, origin = batch_slice
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
        self._add_retained(columns.offset[is_retained] - self._base_offset)
        return FilteredRecords(
            columns=columns,
            is_retained=is_retained,
            read=len(columns),
            discarded=len(columns) - int(np.count_nonzero(is_retained)),
            keyless=len(columns) - int(np.count_nonzero(keyed)),
        )

    def _add_retained(self, retained: Int64) -> None:
        """Append retained offsets, less the range's base; the array grows to twice its size when it is
        full."""
        start, end = len(self.retained), len(self.retained) + len(retained)
        if end > len(self._reserved):
            self._reserved = np.empty(max(end, 2 * len(self._reserved)), np.uint32)
            self._reserved[:start] = self.retained
        self._reserved[start:end] = retained
        # A view, not a copy: the verification of the staged segment asks for it after every few batches.
        self.retained = self._reserved[:end]


def should_broadcast(work: LogWork, min_clean_to_dirty_ratio: float = MIN_CLEAN_TO_DIRTY_RATIO) -> bool:
    """Does the log take the broadcast join?

    Its dirty section must be small, and its keys must fit the memory. It must have no message sets, no
    ``.txnindex`` entries and no ``map_end``, which only tests set. (Committed transactions leave no entry:
    the tasks that read the log notice them.)
    """
    sizes = [segment.size for segment in work.segments]
    first = first_dirty_segment(work)
    clean, dirty = sum(sizes[:first]), sum(sizes[first:])
    fits = (work.end - work.first_dirty) * _MAP_BYTES_PER_ENTRY <= work.limits.memory_bytes
    is_applicable = not work.has_message_sets and not work.txnindex_entries and work.rules.map_end == LONG_MAX
    is_applicable = is_applicable and work.statistics is None  # statistics need the clean keys, too
    return fits and is_applicable and clean > 0 and clean >= min_clean_to_dirty_ratio * dirty


def first_dirty_segment(work: LogWork) -> int:
    """The number of the first segment that may hold dirty records; it may hold clean ones, too. If none may,
    the number of segments."""
    count = len(work.segments)
    return next((number for number in range(count) if work.offsets_of(number)[1] > work.first_dirty), count)


def dirty_splits(work: LogWork, tasks: int) -> list[list[InputSplit]]:
    """The dirty segments as lists of input splits for up to ``tasks`` tasks, of about the same size."""
    first = first_dirty_segment(work)
    splits_of_tasks = splits_by_task(work.segments[first:], work.end, tasks, may_cut=work.may_cut_segments)
    return [[replace(split, segment=first + split.segment) for split in splits] for splits in splits_of_tasks]


def dirty_entries(work: LogWork, splits: Sequence[InputSplit], extracted: Extracted) -> list[EntryBlob]:
    """The dirty entries of some splits; the caller must not use them when ``extracted`` has a failure."""
    # Room for all dirty records, so that each key is de-duplicated over all splits and sent once.
    capacity = max(1024, work.end - work.first_dirty)
    return [blob.copied() for blob in extract(work, splits, 1, capacity, extracted) if blob.is_dirty]


def clean_range(
    work: LogWork, group_range: GroupRange, offset_map: OffsetMap, attempt: str, buffers: Buffers
) -> LogReport:
    """Rewrite one range and look up its keys; the report is a part of the log's. Never raises: the report has
    the failure.

    ``attempt``: a part of the staged files' names, another one for each attempt of a task. A range with
    transactions is not rewritten: its log needs a shuffle join.
    """
    record_filter = OffsetMapFilter(work, offset_map, group_range.base_offset)
    log_report = rewrite_with_filter(work, group_range, record_filter, attempt, buffers=buffers)
    if record_filter.has_transactions:
        log_report = LogReport(name=work.name)
        log_report.extracted.has_transactions = True
        return log_report
    (report,) = [*log_report.groups, *(piece.group for piece in log_report.pieces)]
    log_report.extracted.records = report.counts.records_read
    log_report.extracted.keyless = report.counts.discarded.keyless
    log_report.extracted.failure = report.failure
    log_report.dirty_keys_met = record_filter.matched
    log_report.retained_counts[report.group_index] = report.retained_count
    return log_report


def merge_range_reports(work: LogWork, dirty_keys: int, parts: Iterable[LogReport]) -> LogReport | None:
    """Sum up the reports on a log's ranges, and check that the last record of each of the ``dirty_keys`` keys
    in the map was read. None if a range has transactions: all staged files are removed then, and the caller
    takes a shuffle join."""
    log_report = LogReport(name=work.name, dirty_keys=dirty_keys)
    for part in parts:
        log_report.add(part)
    extracted = log_report.extracted
    if extracted.has_transactions and extracted.failure is None:
        for report in [*log_report.groups, *(piece.group for piece in log_report.pieces)]:
            remove_staged(report)
        return None
    extracted.failure = extracted.failure or check_keyless(work, extracted)
    if extracted.failure is None and log_report.dirty_keys_met != dirty_keys:
        read = log_report.dirty_keys_met
        reason = (
            f"the offset map has {dirty_keys} keys, but the last records of only {read} of them were read"
        )
        extracted.failure = failure_of(CheckFailedError(reason, path=work.name))
    log_report.groups.sort(key=lambda group_report: group_report.group_index)
    return log_report
