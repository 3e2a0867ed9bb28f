"""Statistics of a log's records and keys, which a dry run counts for ``explain``.

The pass that finds the last record of each key reads all records, so it counts them as well::

    extract    each record     ─► ``count_records``: records and bytes by kind, by reason and by time
               each key        ─► a counted entry: the sum of some records of one key
    merge      one bucket      ─► ``merge_counted_bucket``: retained offsets, as in a cleaning, and what
                                  depends on all records of a key: how many keys, hot keys, superseded
                                  bytes by time

A *counted entry* has four uint64 words; the first two are those of a packed entry (``keys``)::

    word 2   bytes of the last record (high half) | 1 if it is a tombstone that may go (bit 8)
             | bin of the first record's time (bits 0–7)
    word 3   records (high 29 bits) | their bytes (low 35 bits)

Where two entries of one key meet, the last record of the earlier one is superseded by the first record of the
later one: its bytes are counted in that record's bin (``keys.add_later_entry``), and the sum takes no more
memory than one entry. A clean record is superseded only by a dirty one, which comes later in the log. So
clean entries are not added up before the merge, which has all dirty ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from siltstone.base.config import LONG_MAX
from siltstone.base.records.columns import ColumnArrays, RecordColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    CONTROL_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int32,
    Int64,
    Words,
    have_delete_horizons,
)
from siltstone.compaction import report
from siltstone.compaction.keys import (
    COUNTED_BIN_BITS,
    COUNTED_BYTES_MAX,
    COUNTED_RECORDS_SHIFT,
    COUNTED_SIZE_SHIFT,
    EntryBlob,
    MergedBucket,
    count_by_shard,
    hash_table_of_shards,
    shard_of,
    shards_for,
    slot_mask,
    slot_of,
)
from siltstone.compaction.report import CLEANING_REASONS, Summable

RECORD_KINDS = ("records", "control", "tombstones")
"""Kinds of records that are counted, retained or not: all records, control records, tombstones. A record of
an aborted batch counts only among all records."""
KEY_COUNTS = ("keys", "dirty_keys")
"""Kinds of distinct keys that are counted: all keys, keys with a record in the dirty section."""
Name = TypeVar("Name", str, int)
Sums = dict[Name, int]
"""Sums of records or bytes, by a name or a number."""
DELETE_HORIZONS_MAX = 64
"""The most delete horizons that are counted separately. (Each cleaning sets another one.)"""
NOT_STAMPED, KEPT_BY_LEDGER = -1, -2
"""In place of a delete horizon: no cleaning has given the batch one; the horizon has passed, but the
compacted ledger still needs the tombstone (``RetentionRules.tombstones_from``)."""
FREQUENCY_STEPS = 24
"""Keys are counted by their number of records, in this many steps: up to 1, 2, 4, 8, … records. The last step
has all keys with more."""


class Bins(NamedTuple):
    """Equal bins of time: ``bin_count`` (at most 256: a counted entry has 8 bits for the bin) of ``width_ms``
    each, from ``start_ms`` on. Times outside are in the first or the last bin."""

    start_ms: int
    width_ms: int
    bin_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsOptions:
    """The options of counting: bytes by ``bins`` of time, and the ``top`` keys with the most records."""

    bins: Bins
    top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCount:
    """The records of one key: their number and bytes, number and bytes of those that are superseded, and the
    offset of the last one."""

    records: int
    bytes: int
    superseded: int
    superseded_bytes: int
    last_offset: int


@dataclass(slots=True, kw_only=True)
class LogStatistics(Summable):
    """The counts of a log below the first uncleanable offset. Parts add up: ``count_records`` counts
    what depends on single records, ``merge_counted_bucket`` what depends on all records of a key. Bytes are
    of uncompressed records.

    ``counts``: by ``RECORD_KINDS`` and ``KEY_COUNTS``; ``sizes``: bytes by ``RECORD_KINDS``. ``discarded``,
    ``discarded_sizes``: records and bytes that a cleaning would remove now, by reason; 0 for markers, which
    only the rewrite can count. ``waiting``, ``waiting_sizes``: tombstones and their bytes by the delete
    horizon (ms) that they wait for, or by ``NOT_STAMPED`` or ``KEPT_BY_LEDGER``.

    Bytes by bin of time: ``written``, all, by the records' timestamps; ``discarded_written``, those of
    aborted records and of records without a key; ``superseded``, those of superseded records, by the
    timestamp of the record that supersedes them. ``frequencies``: how many keys have more than 2ⁿ⁻¹ and up to
    2ⁿ records, by n below ``FREQUENCY_STEPS``. ``hottest``: of each bucket the keys with the most records.
    """

    counts: Sums[str] = field(default_factory=lambda: dict.fromkeys(RECORD_KINDS + KEY_COUNTS, 0))
    sizes: Sums[str] = field(default_factory=lambda: dict.fromkeys(RECORD_KINDS, 0))
    discarded: Sums[str] = field(default_factory=lambda: dict.fromkeys(CLEANING_REASONS, 0))
    discarded_sizes: Sums[str] = field(default_factory=lambda: dict.fromkeys(CLEANING_REASONS, 0))
    waiting: Sums[int] = field(default_factory=dict)
    waiting_sizes: Sums[int] = field(default_factory=dict)
    written: Sums[int] = field(default_factory=dict)
    discarded_written: Sums[int] = field(default_factory=dict)
    superseded: Sums[int] = field(default_factory=dict)
    frequencies: Sums[int] = field(default_factory=dict)
    hottest: list[KeyCount] = field(default_factory=list)

    def hottest_keys(self, top: int) -> list[KeyCount]:
        """The ``top`` hottest keys, the hottest first; the same whatever the order in which keys came."""
        return sorted(self.hottest, key=lambda key: (-key.records, -key.bytes, key.last_offset))[:top]

    def add_discarded(self, reason: int, records: int, size: int) -> None:
        """Count discarded records and their bytes; ``reason``: its number in ``report``."""
        self.discarded[CLEANING_REASONS[reason]] += records
        self.discarded_sizes[CLEANING_REASONS[reason]] += size


def add_sums(sums: Sums[Any], numbers: Sequence[Any], values: Int64) -> None:
    """Add each of the ``values`` that is not 0 to the sum of its number, the item of ``numbers`` in its
    row."""
    for row in np.flatnonzero(values).tolist():
        sums[numbers[row]] = sums.get(numbers[row], 0) + int(values[row])


# What depends on single records.

DATA, CONTROL, ABORTED = range(3)
"""Kinds of batches."""
TOMBSTONE_BIT = np.uint64(1 << 8)
"""The bit of word 2 for a tombstone that a cleaning may remove: its delete horizon has passed, and the
compacted ledger has read it."""
_ONE = np.uint64(1)
_LONG_MIN = -LONG_MAX - 1


@kernel
def bin_of(time_ms: int, bins: Bins) -> tuple[int, int, int]:
    """The bin of a time, and the first and the last time (ms) that are known to be in it, too.

    Differences of two times may not fit an int64, so they are computed modulo 2⁶⁴.
    """
    if time_ms < bins.start_ms:
        return 0, _LONG_MIN, bins.start_ms - 1
    width = np.uint64(bins.width_ms)
    passed = np.uint64(time_ms) - np.uint64(bins.start_ms)
    number = passed // width
    if number >= np.uint64(bins.bin_count - 1):
        return bins.bin_count - 1, time_ms, LONG_MAX
    rest = passed - number * width
    left = width - rest - np.uint64(1)
    end_fits = left < np.uint64(LONG_MAX) - np.uint64(time_ms)  # the bin's last ms is an int64
    last_ms: Any = np.int64(np.uint64(time_ms) + left) if end_fits else LONG_MAX
    return int(np.int64(number)), int(np.int64(np.uint64(time_ms) - rest)), last_ms


class RecordSums(NamedTuple):
    """The sums that ``_sum_up`` adds to, int64 arrays. ``written``, ``discarded_written``: bytes by bin of
    time. ``records``, ``sizes``: records and bytes by kind of batch. ``keyless``, ``tombstones``: (records,
    bytes). ``waiting``, ``waiting_sizes``: records and bytes of tombstones that stay for now, by batch."""

    written: Int64
    discarded_written: Int64
    records: Int64
    sizes: Int64
    keyless: Int64
    tombstones: Int64
    waiting: Int64
    waiting_sizes: Int64


@kernel
def _sum_up(
    columns: ColumnArrays,
    kinds: Bytes,
    is_past_horizon: Flags,
    bins: Bins,
    sums: RecordSums,
    size_words: Words,
) -> None:
    """Sum up records, and fill ``size_words`` with word 2 of the entries of the records with a key that are
    not aborted.

    ``kinds`` (uint8) and ``is_past_horizon`` (bool) have one row a batch. The bin is computed, with a
    division, only for a record whose time is outside the bin of the record before.
    """
    number, first_ms, last_ms = 0, 1, 0  # no time is in [1, 0], so the first record computes its bin
    for i in range(len(columns.offset)):
        time_ms, size, batch = columns.timestamp[i], columns.size[i], np.uint64(columns.batch[i])
        if time_ms < first_ms or time_ms > last_ms:
            number, first_ms, last_ms = bin_of(time_ms, bins)
        bin_number, kind = np.uint64(number), np.uint64(kinds[batch])
        sums.written[bin_number] += size
        sums.records[kind] += 1
        sums.sizes[kind] += size
        if kind == CONTROL:
            continue
        if kind == ABORTED or columns.key_size[i] < 0:
            sums.discarded_written[bin_number] += size
            if kind == DATA:
                sums.keyless[0] += 1
                sums.keyless[1] += size
            continue
        size_word = (np.uint64(size) << COUNTED_SIZE_SHIFT) | bin_number
        if columns.value_size[i] < 0:
            sums.tombstones[0] += 1
            sums.tombstones[1] += size
            if is_past_horizon[batch]:
                size_word |= TOMBSTONE_BIT
            else:
                sums.waiting[batch] += 1
                sums.waiting_sizes[batch] += size
        size_words[np.uint64(i)] = size_word


class TombstoneRules(NamedTuple):
    """What decides whether tombstones of a segment may be removed: the time of the cleaning (ms), the offset
    from which on they stay (``RetentionRules.tombstones_from``), and whether those of v0 and v1 stay."""

    now_ms: int
    tombstones_from: int
    keeps_legacy: bool


def count_records(
    statistics: LogStatistics,
    bins: Bins,
    batches: BatchHeaders,
    columns: RecordColumns,
    aborted: Flags | None,
    rules: TombstoneRules,
) -> Words:
    """Count the records of some batches; returns word 2 of the counted entry of each record with a key that
    is not aborted (other rows are not set). ``aborted``: bool, one a batch; None if no batch is aborted."""
    # 1. Delete horizons, as in ``Rewriter.rewrite``: of the batch (KIP-534), or of a v0 or v1 segment.
    is_v2, has_horizon = batches["magic"] == 2, have_delete_horizons(batches)
    horizon = np.where(has_horizon, batches["base_timestamp"], NOT_STAMPED)
    is_past_horizon = np.where(is_v2, has_horizon & (horizon <= rules.now_ms), not rules.keeps_legacy)
    is_kept_by_ledger = is_past_horizon & (batches["last_offset"] >= rules.tombstones_from)
    horizon = np.where(is_kept_by_ledger, KEPT_BY_LEDGER, horizon)
    # 2. Whole batches whose records have no entry: aborted and control batches.
    kinds = np.full(len(batches), DATA, np.uint8)
    if aborted is not None:
        kinds[aborted] = ABORTED
    kinds[is_v2 & ((batches["attributes"] & CONTROL_BIT) != 0)] = CONTROL
    # 3. The records.
    sums = RecordSums(
        *np.zeros((2, bins.bin_count), np.int64),
        *np.zeros((2, 3), np.int64),
        *np.zeros((2, 2), np.int64),
        *np.zeros((2, len(batches)), np.int64),
    )
    size_words = np.empty(len(columns), np.uint64)
    _sum_up(columns.arrays, kinds, is_past_horizon & ~is_kept_by_ledger, bins, sums, size_words)
    _add_records(statistics, sums)
    _add_waiting(statistics, horizon, sums)
    return size_words


def _add_records(statistics: LogStatistics, sums: RecordSums) -> None:
    statistics.counts["records"] += int(sums.records.sum())
    statistics.sizes["records"] += int(sums.sizes.sum())
    statistics.counts["control"] += int(sums.records[CONTROL])
    statistics.sizes["control"] += int(sums.sizes[CONTROL])
    statistics.counts["tombstones"] += int(sums.tombstones[0])
    statistics.sizes["tombstones"] += int(sums.tombstones[1])
    statistics.add_discarded(report.ABORTED, int(sums.records[ABORTED]), int(sums.sizes[ABORTED]))
    statistics.add_discarded(report.KEYLESS, *sums.keyless.tolist())
    add_sums(statistics.written, range(len(sums.written)), sums.written)
    add_sums(statistics.discarded_written, range(len(sums.written)), sums.discarded_written)


def _add_waiting(statistics: LogStatistics, horizons: Int64, sums: RecordSums) -> None:
    """Count the tombstones that stay, by horizon (``horizons``: one a batch). Once there are
    ``DELETE_HORIZONS_MAX`` horizons, tombstones of a further one are counted with the nearest of these."""
    batches = np.flatnonzero(sums.waiting)
    values, numbers = np.unique(horizons[batches], return_inverse=True)
    for number, horizon in enumerate(values.tolist()):
        waiting = statistics.waiting
        is_full = horizon >= 0 and horizon not in waiting and len(waiting) >= DELETE_HORIZONS_MAX
        nearest = min(waiting, key=lambda other: abs(other - horizon)) if is_full else horizon
        of_horizon = batches[numbers == number]
        waiting[nearest] = waiting.get(nearest, 0) + int(sums.waiting[of_horizon].sum())
        size = int(sums.waiting_sizes[of_horizon].sum())
        statistics.waiting_sizes[nearest] = statistics.waiting_sizes.get(nearest, 0) + size


# The keys of one bucket.
#
# The merge has one array of *rows*, six uint64 words each, of all entries of a shard: first the dirty ones in
# log order, then the clean ones from the last back to the first. So the records of each row come directly
# after those of the key's rows so far or, if the row is clean, directly before them, and the two can be added
# up::
#
#     words 0, 1   the hash       word 2   last offset << 1 | 1 if it is dirty
#     word 3       as word 2 of a counted entry
#     word 4       records        word 5   their bytes

ROW_WORDS = 6
MERGE_BYTES_PER_COUNTED_ENTRY = 144
"""Memory that a merge takes for a counted entry, at most."""
_ALL_BITS, _LOW_HALF_MASK, _HALF_WORD_BITS = (
    np.uint64(0xFFFFFFFFFFFFFFFF),
    np.uint64(0xFFFFFFFF),
    np.uint64(32),
)
_COUNTED_BYTES_MASK = np.uint64(COUNTED_BYTES_MAX)


@kernel
def _append_rows(
    entries: Words, base: int, is_dirty: bool, shards: int, first_shard: int, next_rows: Int64, out: Words
) -> None:
    """Append counted entries as rows to their shards in ``out``, clean ones from the last to the first.

    ``base``: their base offset; ``next_rows``: the next row of each shard.
    """
    for n in range(len(entries)):
        i = np.uint64(n if is_dirty else len(entries) - 1 - n)
        s = shard_of(entries[i, 0], shards) - first_shard
        row = np.uint64(next_rows[s])
        next_rows[s] += 1
        offset = base + np.int64(entries[i, 1] & _LOW_HALF_MASK)
        out[row, 0] = entries[i, 0]
        out[row, 1] = entries[i, 1] >> _HALF_WORD_BITS
        out[row, 2] = (np.uint64(offset) << _ONE) | np.uint64(is_dirty)
        out[row, 3] = entries[i, 2]
        out[row, 4] = entries[i, 3] >> COUNTED_RECORDS_SHIFT
        out[row, 5] = entries[i, 3] & _COUNTED_BYTES_MASK


@kernel
def _merge_rows(
    rows: Words, bounds: Int64, table: Int32, superseded: Int64, tombstones: Int64, retained: Int64
) -> tuple[int, int]:
    """Add up the rows of each key in one row at the front of ``rows``, and fill ``retained`` with the offsets
    of the records that no later record supersedes. Among these are tombstones that may go, which the rewrite
    removes. Returns (how many keys, how many offsets).

    Rows ``bounds[s]`` to ``bounds[s + 1]`` are shard s. Adds to ``superseded`` the bytes of superseded
    records by bin, and to ``tombstones`` the records and bytes of tombstones that go.
    """
    used, kept = 0, 0
    for s in range(len(bounds) - 1):
        shard, keys, count = rows[bounds[s] : bounds[s + 1]], rows[used:], 0
        mask = slot_mask(len(shard))
        table[: mask + _ONE] = -1
        for i in range(np.uint64(len(shard))):
            slot = slot_of(table, mask, keys, shard[i, 0], shard[i, 1], _ALL_BITS)
            row, is_dirty = table[slot], shard[i, 2] & _ONE == _ONE
            # 1. A clean record stays unless a later dirty one has its key.
            if not is_dirty and (row < 0 or keys[np.uint64(row), 2] & _ONE != _ONE):
                retained[kept] = np.int64(shard[i, 2] >> _ONE)
                kept += 1
                if shard[i, 3] & TOMBSTONE_BIT:
                    tombstones[0] += 1
                    tombstones[1] += np.int64(shard[i, 3] >> COUNTED_SIZE_SHIFT)
            # 2. A new key. Row ``used + count`` is never above this row, so no row is lost.
            if row < 0:
                table[slot] = count
                for word in range(np.uint64(ROW_WORDS)):
                    keys[np.uint64(count), word] = shard[i, word]
                count += 1
                continue
            # 3. Dirty entries come in log order, clean ones in reverse. The last record of the earlier one of
            #    the two is superseded by the first record of the later one, if the key is dirty.
            key = np.uint64(row)
            earlier, later = (keys[key, 3], shard[i, 3]) if is_dirty else (shard[i, 3], keys[key, 3])
            if keys[key, 2] & _ONE == _ONE:
                superseded[later & COUNTED_BIN_BITS] += np.int64(earlier >> COUNTED_SIZE_SHIFT)
            if is_dirty:
                keys[key, 2] = shard[i, 2]
            keys[key, 3] = (later & ~COUNTED_BIN_BITS) | (earlier & COUNTED_BIN_BITS)
            keys[key, 4] += shard[i, 4]
            keys[key, 5] += shard[i, 5]
        # 4. The last record of a dirty key is retained. A tombstone that may go is counted here, and the
        #    rewrite removes it.
        for k in range(np.uint64(count)):
            if keys[k, 2] & _ONE == _ONE:
                retained[kept] = np.int64(keys[k, 2] >> _ONE)
                kept += 1
                if keys[k, 3] & TOMBSTONE_BIT:
                    tombstones[0] += 1
                    tombstones[1] += np.int64(keys[k, 3] >> COUNTED_SIZE_SHIFT)
        used += count
    return used, kept


def _first_offset(blob: EntryBlob) -> int:
    """The offset of a blob's first entry. Sorted by it, the blobs with entries of one key are in log order:
    they are of different input splits, or one collector has yielded them one after another."""
    return blob.base_offset + int(blob.entries[0, 1] & _LOW_HALF_MASK)


def merge_counted_bucket(
    blobs: Sequence[EntryBlob], bucket: int, buckets: int, options: StatisticsOptions
) -> tuple[MergedBucket, LogStatistics]:
    """``keys.merge_bucket`` of counted entries, and the statistics of the bucket's keys. The order of the
    blobs does not matter. Memory: about ``MERGE_BYTES_PER_COUNTED_ENTRY`` an entry."""
    blobs = sorted((blob for blob in blobs if len(blob.entries)), key=_first_offset)
    shards = shards_for(blobs)
    first_shard = bucket * shards
    bounds = np.zeros(shards + 1, np.int64)
    for blob in blobs:
        count_by_shard(blob.entries, shards * buckets, first_shard, bounds)
    np.cumsum(bounds, out=bounds)
    rows, next_rows = np.empty((int(bounds[-1]), ROW_WORDS), np.uint64), bounds[:-1].copy()
    dirty, clean = [blob for blob in blobs if blob.is_dirty], [blob for blob in blobs if not blob.is_dirty]
    for blob in [*dirty, *reversed(clean)]:
        target = (shards * buckets, first_shard, next_rows, rows)
        _append_rows(blob.entries, blob.base_offset, blob.is_dirty, *target)
    superseded, tombstones = np.zeros(options.bins.bin_count, np.int64), np.zeros(2, np.int64)
    retained = np.empty(len(rows), np.int64)
    table = hash_table_of_shards(bounds)
    keys, kept = _merge_rows(rows, bounds, table, superseded, tombstones, retained)
    statistics = _statistics_of_keys(rows[:keys], options.top)
    add_sums(statistics.superseded, range(len(superseded)), superseded)
    statistics.add_discarded(report.TOMBSTONES, *tombstones.tolist())
    merged = MergedBucket(offsets=retained[:kept], dirty_keys=statistics.counts["dirty_keys"])
    return merged, statistics


@kernel
def _sum_up_keys(rows: Words, frequencies: Int64, superseded: Int64) -> int:
    """Count keys by their records in ``frequencies`` (by step, int64), and add the records and bytes of
    dirty keys that are superseded to ``superseded``; returns how many keys are dirty."""
    dirty_keys = 0
    for k in range(np.uint64(len(rows))):
        records, step = rows[k, 4], 0
        while step < FREQUENCY_STEPS - 1 and (_ONE << np.uint64(step)) < records:
            step += 1
        frequencies[step] += 1
        # Of a dirty key all records but the last are superseded.
        if rows[k, 2] & _ONE == _ONE:
            dirty_keys += 1
            superseded[0] += np.int64(records - _ONE)
            superseded[1] += np.int64(rows[k, 5] - (rows[k, 3] >> COUNTED_SIZE_SHIFT))
    return dirty_keys


def _statistics_of_keys(rows: Words, top: int) -> LogStatistics:
    """The counts that follow from the rows of all keys of a bucket."""
    frequencies, superseded = np.zeros(FREQUENCY_STEPS, np.int64), np.zeros(2, np.int64)
    statistics = LogStatistics()
    statistics.counts["dirty_keys"] = _sum_up_keys(rows, frequencies, superseded)
    statistics.counts["keys"] = len(rows)
    add_sums(statistics.frequencies, range(FREQUENCY_STEPS), frequencies)
    statistics.add_discarded(report.SUPERSEDED, *superseded.tolist())
    # The last steps that have enough keys together: no key with fewer records is among the hottest.
    enough = np.flatnonzero(np.cumsum(frequencies[::-1])[::-1] >= top)
    more_than = (1 << int(enough[-1])) >> 1 if len(enough) else 0
    statistics.hottest = _hottest(rows[rows[:, 4] > more_than], top)
    return statistics


def _hottest(rows: Words, top: int) -> list[KeyCount]:
    """The ``top`` hottest of the keys with these rows, in any order."""
    records, sizes = rows[:, 4].astype(np.int64), rows[:, 5].astype(np.int64)
    is_dirty = (rows[:, 2] & _ONE) != 0
    superseded = np.where(is_dirty, records - 1, 0)
    superseded_sizes = np.where(is_dirty, sizes - (rows[:, 3] >> COUNTED_SIZE_SHIFT).astype(np.int64), 0)
    offsets = (rows[:, 2] >> _ONE).astype(np.int64)
    return [
        KeyCount(
            records=int(records[key]),
            bytes=int(sizes[key]),
            superseded=int(superseded[key]),
            superseded_bytes=int(superseded_sizes[key]),
            last_offset=int(offsets[key]),
        )
        for key in largest_rows((records, sizes, -offsets), top).tolist()
    ]


def largest_rows(measures: Sequence[Int64], top: int) -> Int64:
    """The ``top`` rows with the largest first measure, of equal ones those with the largest second one, and
    so on, in any order. Nothing is sorted, since nearly all of millions of keys are not among the hottest."""
    rows, chosen = np.arange(len(measures[0])), [np.empty(0, np.int64)]
    for measure in measures:
        left = top - sum(map(len, chosen))
        if left <= 0 or len(rows) <= left:
            break
        values = measure[rows]
        least = np.partition(values, len(values) - left)[len(values) - left]
        chosen.append(rows[values > least])
        rows = rows[values == least]
    return np.concatenate([*chosen, rows])[: max(top, 0)]
