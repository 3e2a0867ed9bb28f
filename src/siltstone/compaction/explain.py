"""``siltstone explain``: what a cleaning of a log would do.

A log is planned as for a cleaning, cleaned in a dry run, and *observed*: all its records are read and
counted. Retention is planned on what the dry run leaves. Nothing is locked or written. Beside a live broker
files may disappear between two of these steps. That log is ``failed`` then, with the reason, and another run
may succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec
import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, Config, LogConfig, Setting, format_value
from siltstone.base.errors import (
    EngineError,
    InvalidConfigError,
    LedgerError,
    SiltstoneError,
    SourceChangedError,
)
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, Flags, Int64, Words, have_delete_horizons
from siltstone.base.records.scan import scan_batches
from siltstone.compaction import report
from siltstone.compaction.engine import Engine, Progress, fits_one_task, offset_span, report_progress
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.cleaner import (
    RETENTION_LEFT_OUT,
    WHOLE_LOG_BYTES,
    fill_records_before,
    fill_result,
)
from siltstone.compaction.inplace.expiry import (
    Expiry,
    expiry_notes,
    fill_expiry,
    find_expiry,
    retention_applies,
)
from siltstone.compaction.inplace.planning import (
    LogState,
    PlannedLog,
    PlanOptions,
    initial_result,
    log_facts,
    mismatched_topic_ids,
    plan_log,
)
from siltstone.compaction.keys import hashes_of
from siltstone.compaction.report import CLEANING_REASONS, REASONS, LogFailure, LogResult, Summable, failure_of
from siltstone.compaction.staging import GroupReport, LogReport
from siltstone.compaction.work import HAS_KEYLESS_RECORDS, Extracted, LogWork, batch_slices
from siltstone.log.coordinator_records import describe_key
from siltstone.log.directory import Checkpoints
from siltstone.log.lookup import position_of_offset
from siltstone.log.names import CLUSTER_METADATA, OfOneLog, parse_partition
from siltstone.log.producers import load_producers
from siltstone.log.segments import (
    first_batch_timestamp,
    floor_segment_index,
    largest_timestamp,
    open_unchanged,
    windows,
)

# Observing: a pass over a log's segments counts records and bytes, and makes an entry of five uint64 words
# for each record whose key decides about it::
#
#     word 0    bits 0–63 of the key's hash
#     word 1    bits 67–127 of the key's hash | a reason (the low three bits)
#     word 2    offset
#     word 3    timestamp, ms
#     word 4    bytes of the record (high half) | bytes of the key (low half)
#
# The reason is why the record goes if it is not superseded, by its number in ``report``; for none it is 0,
# the number of ``SUPERSEDED``. So each record is counted with one reason, as in a cleaning.

REASON_BITS = np.uint64(7)
"""The mask of the reason in word 1."""
assert report.CLEANING_REASON_COUNT <= REASON_BITS
ENTRY_WORDS = 5
ENTRY_BYTES = 8 * ENTRY_WORDS
BLOB_ENTRIES = (16 << 20) // ENTRY_BYTES
"""The most entries that are sent at one time: 16 MiB."""
RECORD_KINDS = ("records", "control", "tombstones")
"""Counts of records whether they stay or go: all of them, control records, tombstones."""
KEY_COUNTS = ("keys", "dirty_keys")
"""Counts of distinct keys: all of them, those with a record in the dirty section."""
OBSERVED_REASONS = tuple(reason for reason in CLEANING_REASONS if reason != REASONS[report.MARKERS])
"""The reasons that an observation counts, too: all but markers, which only the dry run knows."""
Name = TypeVar("Name", str, int)
Sums = dict[Name, int]
"""Sums of records or bytes, by a name or a number."""
DELETE_HORIZONS_MAX = 64
"""The most delete horizons that are counted apart. (Each past cleaning gave the batches it changed one.)"""
NOT_STAMPED, KEPT_BY_LEDGER = -1, -2
"""In place of a delete horizon: no cleaning has given the batch one; the horizon has passed, but the
compacted ledger still needs the tombstone (``RetentionRules.tombstones_from``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Equal bins of time: ``count`` of ``width_ms`` each, from ``start_ms`` on. Times outside are in the
    first or the last bin."""

    start_ms: int
    width_ms: int
    count: int

    def of(self, times: Int64) -> Int64:
        """The bin of each time."""
        last_ms = min(self.start_ms + self.count * self.width_ms, LONG_MAX)
        # Clipped first: the difference of two times of a damaged or a far-off clock may not fit into 64 bits.
        return np.clip(
            (np.clip(times, self.start_ms, last_ms) - self.start_ms) // self.width_ms, 0, self.count - 1
        )

    def weigh(self, times: Int64, weights: Int64) -> Sums[int]:
        """Sums of weights by bin."""
        sums = np.bincount(self.of(times), weights=weights, minlength=self.count)
        return {number: int(sums[number]) for number in np.flatnonzero(sums).tolist()}


MASKED_KEY = "••••"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key with many records: how many it has, how many are superseded, and the offset of the last one.

    ``key``: its text, masked without ``--show-keys``. ``key_size``: of the key in bytes; ``bytes``,
    ``superseded_bytes``: of the records.
    """

    key: str = MASKED_KEY
    key_size: int
    records: int
    bytes: int
    superseded: int
    superseded_bytes: int
    last_offset: int


@dataclass(slots=True, kw_only=True)
class LogStatistics(Summable):
    """What an observation counts in a log below the first uncleanable offset. Parts add up: ``observe``
    counts what single records tell, ``count_keys`` what all records of a key tell. Bytes are of uncompressed
    records.

    ``counts``: by ``RECORD_KINDS`` and ``KEY_COUNTS``; ``sizes``: bytes by ``RECORD_KINDS``. ``discarded``,
    ``discarded_sizes``: records and bytes that a cleaning would remove now, by reason. ``waiting``,
    ``waiting_sizes``: tombstones and their bytes by the delete horizon (ms) that they wait for, or by
    ``NOT_STAMPED`` or ``KEPT_BY_LEDGER``.

    Bytes by bin of time: ``written``, all, by the records' timestamps; ``discarded_written``, those that go
    whatever their key; ``superseded``, those that go since a later record has their key, by that record's
    timestamp. ``frequencies``: how many keys have up to 2ⁿ records, and more than 2ⁿ⁻¹, by n below
    ``FREQUENCY_STEPS``. ``hottest``: the keys with the most records. ``failure``: why the statistics are
    incomplete, None if they are complete.
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
    hottest: list[HotKey] = field(default_factory=list)
    failure: LogFailure | None = None

    def merge(self, other: LogStatistics, top: int) -> None:
        """Add another part; keeps the ``top`` hottest keys and the first failure."""
        self.add(other)
        # The hottest first; the same whatever the order in which keys came.
        self.hottest.sort(key=lambda key: (-key.records, -key.bytes, key.last_offset))
        del self.hottest[top:]

    def add_discarded(self, reasons: Int64, sizes: Int64) -> None:
        """Count discarded records and their bytes. ``reasons``: the number of each record's reason, below 0
        for one that stays."""
        is_discarded = reasons >= 0
        counts = np.bincount(reasons[is_discarded], minlength=report.CLEANING_REASON_COUNT)
        weights = np.bincount(
            reasons[is_discarded], weights=sizes[is_discarded], minlength=report.CLEANING_REASON_COUNT
        )
        for reason, count, size in zip(CLEANING_REASONS, counts.tolist(), weights.tolist(), strict=True):
            self.discarded[reason] += count
            self.discarded_sizes[reason] += int(size)


def _add(sums: dict[Any, int], others: Mapping[Any, int]) -> None:
    for name, count in others.items():
        sums[name] = sums.get(name, 0) + count


def bucket_of(entries: Words, buckets: int) -> Int64:
    """The bucket of each entry, by the top bits of word 0."""
    return (((entries[:, 0] >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


def observe(
    work: LogWork,
    segments: Sequence[int],
    buckets: int,
    bins: Bins,
    statistics: LogStatistics,
    only: int | None = None,
) -> Iterator[tuple[int, Words]]:
    """Read some segments (numbers into ``work.segments``): yields (bucket, entries), 16 MiB each at most, and
    adds to ``statistics``.

    ``only``: yield only the entries of this bucket. Raises CorruptFileError, SourceChangedError, OSError.
    """
    pending: dict[int, list[Words]] = {}
    pending_entries = 0
    for number in segments:
        for entries in _entries(work, number, bins, statistics):
            numbers = bucket_of(entries, buckets)
            for bucket in range(buckets) if only is None else (only,):
                entries_of_bucket = entries[numbers == bucket] if buckets > 1 else entries
                if len(entries_of_bucket):
                    pending.setdefault(bucket, []).append(entries_of_bucket)
                    pending_entries += len(entries_of_bucket)
            if pending_entries >= BLOB_ENTRIES * max(1, min(buckets, 4)):
                yield from _flushed(pending)
                pending_entries = 0
    yield from _flushed(pending)


def _flushed(pending: dict[int, list[Words]]) -> Iterator[tuple[int, Words]]:
    for bucket in list(pending):
        entries = np.concatenate(pending.pop(bucket))
        for start in range(0, len(entries), BLOB_ENTRIES):
            yield bucket, entries[start : start + BLOB_ENTRIES]


def _entries(work: LogWork, number: int, bins: Bins, statistics: LogStatistics) -> Iterator[Words]:
    segment, scratch, scan = work.segments[number], Scratch(), work.transaction_scan()
    limit = work.limits.batch_limit
    keeps_legacy_tombstones = work.rules.keeps_legacy_tombstones(segment.modified_ms)
    with open_unchanged(segment) as reader:
        for window in windows(reader, window_size=work.limits.window_size):
            for data, batches, path, origin in batch_slices(segment.path, window):
                columns = decode_records(data, batches, scratch, limit=limit, path=path, origin=origin)
                if not len(columns):
                    continue
                flags = scan.follow(data, batches, path=path, origin=origin)
                aborted = np.zeros(len(batches), np.bool_) if flags is None else flags[0]
                yield _count_records(
                    work, batches, columns, aborted[columns.batch], keeps_legacy_tombstones, bins, statistics
                )
    scan.refuse_missing_markers(*work.offsets_of(number), segment.path)


def _count_records(
    work: LogWork,
    batches: BatchHeaders,
    columns: RecordColumns,
    aborted: Flags,
    keeps_legacy_tombstones: bool,
    bins: Bins,
    statistics: LogStatistics,
) -> Words:
    """Count the records of some batches; returns the entries of those whose key decides. ``aborted``: bool,
    one a record."""
    # 1. Delete horizons, as in ``Rewriter.rewrite``: of the batch (KIP-534), or of a v0 or v1 segment.
    is_v2 = batches["magic"] == 2
    has_horizon = have_delete_horizons(batches)
    horizon = np.where(has_horizon, batches["base_timestamp"], NOT_STAMPED)
    is_past_horizon = np.where(
        is_v2, has_horizon & (horizon <= work.rules.now_ms), not keeps_legacy_tombstones
    )
    is_kept_by_ledger = is_past_horizon & (batches["last_offset"] >= work.rules.tombstones_from)
    horizon = np.where(is_kept_by_ledger, KEPT_BY_LEDGER, horizon)
    is_past_horizon = (is_past_horizon & ~is_kept_by_ledger)[columns.batch]
    # 2. What each record is: control, aborted, without a key, or decided by its key.
    is_control = (((batches["attributes"] & CONTROL_BIT) != 0) & is_v2)[columns.batch]
    is_data = ~is_control & ~aborted
    keyed = is_data & (columns.key_size >= 0)
    is_tombstone = keyed & (columns.value_size < 0)
    reasons = np.full(len(columns), -1)
    reasons[is_data & ~keyed] = report.KEYLESS
    reasons[aborted & ~is_control] = report.ABORTED
    sizes = columns.size.astype(np.int64)
    for kind, rows_of_kind in zip(RECORD_KINDS, (slice(None), is_control, is_tombstone), strict=True):
        statistics.counts[kind] += len(sizes[rows_of_kind])
        statistics.sizes[kind] += int(sizes[rows_of_kind].sum())
    statistics.add_discarded(reasons, sizes)
    # 3. Bytes over time, and the tombstones that wait for their horizon.
    is_discarded, waits = reasons >= 0, is_tombstone & ~is_past_horizon
    _add(statistics.written, bins.weigh(columns.timestamp, sizes))
    _add(statistics.discarded_written, bins.weigh(columns.timestamp[is_discarded], sizes[is_discarded]))
    _add_waiting(statistics, horizon[columns.batch][waits], sizes[waits])
    # 4. The entries. A tombstone whose horizon has passed goes as one, unless a later record supersedes it.
    rows = np.flatnonzero(keyed)
    return _key_entries(
        work,
        columns,
        rows,
        np.where((is_tombstone & is_past_horizon)[rows], report.TOMBSTONES, report.SUPERSEDED),
    )


def _add_waiting(statistics: LogStatistics, horizons: Int64, sizes: Int64) -> None:
    """Count tombstones by horizon. When there are ``DELETE_HORIZONS_MAX``, those of another horizon are
    counted with the nearest one."""
    values, numbers, counts = np.unique(horizons, return_inverse=True, return_counts=True)
    weights = np.bincount(numbers, weights=sizes, minlength=len(values))
    for horizon, count, size in zip(values.tolist(), counts.tolist(), weights.tolist(), strict=True):
        waiting = statistics.waiting
        is_full = horizon >= 0 and horizon not in waiting and len(waiting) >= DELETE_HORIZONS_MAX
        nearest = min(waiting, key=lambda other: abs(other - horizon)) if is_full else horizon
        _add(waiting, {nearest: int(count)})
        _add(statistics.waiting_sizes, {nearest: int(size)})


def _key_entries(work: LogWork, columns: RecordColumns, rows: Int64, reasons: Int64) -> Words:
    out = np.empty((len(rows), ENTRY_WORDS), np.uint64)
    out[:, 0], high = hashes_of(columns, rows, (np.uint64(work.hash_key[0]), np.uint64(work.hash_key[1])))
    out[:, 1] = (high & ~REASON_BITS) | reasons.astype(np.uint64)
    out[:, 2] = columns.offset[rows].astype(np.uint64)
    out[:, 3] = columns.timestamp[rows].astype(np.int64).view(np.uint64)
    weight = columns.size[rows].astype(np.uint64) << np.uint64(32)
    out[:, 4] = weight | columns.key_size[rows].astype(np.uint64)
    return out


# The keys of one bucket: how many records each has, which are superseded, and since when.

KEY_COUNT_BYTES = 160
"""Memory that ``count_keys`` takes for an entry at its peak."""
FREQUENCY_STEPS = 24
"""Keys are counted by their number of records, in so many steps of powers of two; the last one has the
rest."""


_OFFSET_BITS_MAX = 40
"""The bits of an offset that leave enough bits of a hash to tell nearly all keys of a bucket apart."""


def count_keys(blobs: list[Words], first_dirty: int, bins: Bins, top: int) -> LogStatistics:
    """Statistics of the keys of one bucket, whose entries come in any order. ``top``: how many of the hottest
    keys to keep. Memory: about ``KEY_COUNT_BYTES`` an entry.
    """
    # 1. Entries of a key become neighbours, ascending by offset.
    entries = np.concatenate([*blobs, np.empty((0, ENTRY_WORDS), np.uint64)])
    entries = entries[order_by_key(entries)]
    hashes = entries[:, 1] & ~REASON_BITS
    # 2. Arrays with one row a key: entries ``first`` to ``last`` (inclusive) are the key's.
    is_new = (entries[1:, 0] != entries[:-1, 0]) | (hashes[1:] != hashes[:-1])
    first = np.flatnonzero(np.concatenate((np.ones(min(1, len(entries)), np.bool_), is_new)))
    last = np.append(first[1:], len(entries))[: len(first)] - 1
    records, offsets = last - first + 1, entries[last, 2].astype(np.int64)
    sizes = (entries[:, 4] >> np.uint64(32)).astype(np.int64)
    is_dirty = offsets >= first_dirty
    # 3. Arrays with one row an entry: each entry of a dirty key but the last is superseded, by the next one.
    superseded = np.repeat(is_dirty, records)
    superseded[last] = False
    rows = np.flatnonzero(superseded)
    reasons = (entries[:, 1] & REASON_BITS).astype(np.int64)
    reasons[reasons == report.SUPERSEDED] = -1
    reasons[rows] = report.SUPERSEDED
    steps = np.ceil(np.log2(records)).astype(np.int64).clip(max=FREQUENCY_STEPS - 1)
    frequencies, keys_of = np.unique(steps, return_counts=True)
    statistics = LogStatistics(
        counts={"keys": len(first), "dirty_keys": int(is_dirty.sum())},
        frequencies=dict(zip(frequencies.tolist(), keys_of.tolist(), strict=True)),
        superseded=bins.weigh(entries[rows + 1, 3].view(np.int64), sizes[rows]),
        hottest=_hottest(entries, first, last, is_dirty, top),
    )
    statistics.add_discarded(reasons, sizes)
    return statistics


def order_by_key(entries: Words) -> Int64:
    """The order of entries by the hashes of their keys, and of a key's entries by offset.

    One sort of 64-bit numbers takes less than half the time of one by three words. Such a number has as many
    first bits of word 0 as the span of the offsets leaves, and the offset. The few entries of different keys
    with the same first bits are sorted by all words.
    """
    hashes = entries[:, 1] & ~REASON_BITS
    offset_bits = int(np.ptp(entries[:, 2])).bit_length() if len(entries) else 0
    if offset_bits > _OFFSET_BITS_MAX:
        return np.lexsort((entries[:, 2], hashes, entries[:, 0]))
    shift = np.uint64(offset_bits)
    numbers = entries[:, 0] >> shift << shift
    if len(entries):
        numbers |= entries[:, 2] - entries[:, 2].min()
    order = np.argsort(numbers)
    first_bits = numbers[order] >> shift
    is_same = first_bits[1:] == first_bits[:-1]
    first_words, second_words = entries[order, 0], hashes[order]
    is_other = (first_words[1:] != first_words[:-1]) | (second_words[1:] != second_words[:-1])
    shared = first_bits[1:][is_same & is_other]
    if len(shared):
        places = np.flatnonzero(np.isin(first_bits, shared))
        rows = order[places]
        order[places] = rows[np.lexsort((entries[rows, 2], hashes[rows], entries[rows, 0]))]
    return order


def _hottest(entries: Words, first: Int64, last: Int64, is_dirty: Flags, top: int) -> list[HotKey]:
    """The ``top`` keys with the most records; entries ``first`` to ``last`` (inclusive) are a key's."""
    sizes, records = (entries[:, 4] >> np.uint64(32)).astype(np.int64), last - first + 1
    total = np.add.reduceat(sizes, first) if len(first) else sizes
    offsets = entries[last, 2].astype(np.int64)
    return [
        HotKey(
            records=int(records[key]),
            bytes=int(total[key]),
            superseded=int(records[key] - 1) if is_dirty[key] else 0,
            superseded_bytes=int(total[key] - sizes[last[key]]) if is_dirty[key] else 0,
            key_size=int(entries[last[key], 4] & np.uint64(0xFFFFFFFF)),
            last_offset=int(offsets[key]),
        )
        for key in np.lexsort((offsets, -total, -records))[:top].tolist()
    ]


# The data of an explanation: the JSON of ``siltstone explain``, and the input of its page and tables.

WOULD_CLEAN = "would_clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplained:
    """A segment group: its offsets [base, end), the number of its segments, its bytes and records before and
    after the cleaning, and the records removed by reason."""

    base_offset: int
    end_offset: int
    segments: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    removed: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Bytes of records with timestamps up to ``at_ms``, and how many of these a cleaning at that time could
    have removed."""

    at_ms: int
    written_bytes: int
    reclaimable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTombstones:
    """Tombstones by delete horizon (ms): ``NOT_STAMPED`` before a cleaning gives them one,
    ``KEPT_BY_LEDGER`` if it has passed but the compacted ledger still needs them. Some may be superseded."""

    at_ms: int
    tombstones: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """So many ``keys`` have from ``records_from`` to ``records_to`` records."""

    records_from: int
    records_to: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningBound:
    """One of the offsets at and above which nothing may be cleaned, and why; the least one applies."""

    name: str
    offset: int


@dataclass(slots=True, kw_only=True)
class KafkaExplained:
    """What Kafka's cleaner would need for a log: how many keys its offset map holds with the buffer and load
    factor of the settings, how many passes that takes, and the buffer for one pass."""

    buffer_bytes: int
    load_factor: float
    map_keys: int
    passes: int
    buffer_bytes_for_one_pass: int


@dataclass(slots=True, kw_only=True)
class RangeExplained:
    """The cleanable range of a log, its bounds, and its dirty ratio; None where unknown."""

    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    log_end_offset: int | None = None
    bounds: list[CleaningBound] = field(default_factory=list)
    dirty_ratio: float | None = None
    min_dirty_ratio: float | None = None
    overdue_ms: int = 0
    cleanable_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class ExpiredExplained:
    """What retention would remove: whole segments, with their records (None: one is damaged) and the bytes
    of their ``.log`` files. Of a log that is cleaned, segments are counted as they are after the cleaning."""

    segments: int = 0
    records: int | None = 0
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class OutcomeExplained:
    """What a cleaning, and retention after it, would keep and remove. ``records_before``, ``records_after``:
    of the whole log; ``records``: below the first uncleanable offset, by kind, and after the cleaning.
    ``bytes_after``: of ``.log`` files; ``removed_bytes``: of uncompressed records. None where not known."""

    bytes_after: int | None = None
    records_before: int | None = None
    records_after: int | None = None
    expired: ExpiredExplained = field(default_factory=ExpiredExplained)
    records: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    removed_bytes: dict[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    groups: list[GroupExplained] = field(default_factory=list)
    tombstones_waiting: list[WaitingTombstones] = field(default_factory=list)
    reclaimable: list[Moment] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class KeysExplained:
    """A log's keys, and what Kafka would need for the dirty ones; None if the log was not read."""

    distinct_keys: int | None = None
    distinct_dirty_keys: int | None = None
    keys_by_records: list[Frequency] = field(default_factory=list)
    hottest_keys: list[HotKey] = field(default_factory=list)
    kafka: KafkaExplained | None = None


@dataclass(slots=True, kw_only=True)
class LogExplanation(OfOneLog):
    """One log; ``bytes_before`` is of ``.log`` files.

    ``status``: would_clean, or why not (nothing_to_do, not_eligible, skipped, uncleanable, failed), with the
    ``reason``. A log that is not eligible is explained as if it were, unless retention alone changes it now.
    """

    topic: str
    partition: int
    directory: str
    status: str
    reason: str = ""
    segments: int = 0
    bytes_before: int = 0
    range: RangeExplained = field(default_factory=RangeExplained)
    outcome: OutcomeExplained = field(default_factory=OutcomeExplained)
    keys: KeysExplained = field(default_factory=KeysExplained)
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def bytes_after(self) -> int | None:
        """Bytes of ``.log`` files after the cleaning, None if they are not known."""
        return self.outcome.bytes_after

    @property
    def is_explained(self) -> bool:
        """Were the log's records read?"""
        return self.keys.distinct_keys is not None

    def to_json(self) -> dict[str, Any]:
        """A plain, flat dictionary for ``json``, settings as {key: {value, source}}."""
        flat: dict[str, Any] = msgspec.to_builtins(replace(self, settings={}))
        for part in ("range", "outcome", "keys"):
            flat |= flat.pop(part)
        flat["settings"] = {
            name: {"value": format_value(setting.value), "source": setting.source}
            for name, setting in self.settings.items()
        }
        return flat


@dataclass(slots=True, kw_only=True)
class Explanation:
    """The explanations of all logs as of ``now_ms``. ``passed_over``: (path, reason) of files and folders
    that are no logs."""

    now_ms: int
    logs: list[LogExplanation] = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {
            "now_ms": self.now_ms,
            "dry_run": True,
            "logs": [log.to_json() for log in self.logs],
            "passed_over": [{"path": path, "reason": reason} for path, reason in self.passed_over],
            "notes": self.notes,
        }


# The parts of an explanation: bounds, groups, times, keys.

TIME_BINS = 60
"""The bins of the plot of bytes over time."""
KEY_BYTES_SHOWN = 64
"""The most characters of a key's text, or bytes of a binary key, that are shown."""
_DECODED_KEY_MAX = 600
"""Characters of a decoded key: enough for a group, a topic and a partition."""


def bins_of(work: LogWork) -> Bins:
    """Bins from the first batch's timestamp to the largest one below the first uncleanable offset."""
    non_empty = [segment for segment in work.segments if segment.size]
    first = first_batch_timestamp(non_empty[0]) if non_empty else None
    last = max((largest_timestamp(segment) for segment in non_empty), default=work.rules.now_ms)
    start = last if first is None else min(first, last)
    return Bins(start_ms=start, width_ms=max(1, -(-(last - start + 1) // TIME_BINS)), count=TIME_BINS)


def range_of(state: LogState, checkpoints: Checkpoints, plan_options: PlanOptions) -> RangeExplained:
    """The cleanable range, and its bounds by name."""
    assert state.config is not None
    segments = state.segments()
    if not segments:
        return RangeExplained()
    producers = load_producers(state.path, segments)
    mark = checkpoints.high_watermark.get(state.topic_partition)
    config = LogConfig.of(state.config)
    facts = log_facts(state, config, checkpoints, segments, producers, LONG_MAX if mark is None else mark)
    cleanable = ranges.cleanable_range(facts, config, plan_options.now_ms)
    bounds = {
        "active segment": segments[-1].base_offset,
        "high watermark": mark,
        "open transaction": producers.first_open_transaction(),
    }
    known = {name: offset for name, offset in bounds.items() if offset is not None}
    if cleanable.end < min(known.values()) and config.min_compaction_lag_ms > 0:
        known["min.compaction.lag.ms"] = cleanable.end
    return RangeExplained(
        log_start_offset=facts.log_start_offset,
        first_dirty_offset=cleanable.first_dirty,
        first_uncleanable_offset=cleanable.end,
        log_end_offset=facts.log_end_offset,
        bounds=[
            CleaningBound(name=name, offset=offset)
            for name, offset in sorted(known.items(), key=itemgetter(1))
        ],
        dirty_ratio=cleanable.dirty_ratio,
        min_dirty_ratio=config.min_cleanable_dirty_ratio,
        overdue_ms=cleanable.overdue_ms,
        cleanable_bytes=cleanable.cleanable_bytes,
    )


def groups_of(work: LogWork, done: Sequence[GroupReport]) -> list[GroupExplained]:
    """The segment groups before and after the dry run, whose reports are ``done``."""
    return [
        GroupExplained(
            base_offset=work.groups[new.group_index].base_offset,
            end_offset=work.groups[new.group_index].end_offset,
            segments=len(work.sources(work.groups[new.group_index])),
            bytes_before=sum(segment.size for segment in work.sources(work.groups[new.group_index])),
            bytes_after=new.size,
            records_before=new.counts.records_read,
            records_after=new.counts.records_retained,
            removed={name: new.counts.discarded.counts[name] for name in CLEANING_REASONS},
        )
        for new in sorted(done, key=attrgetter("group_index"))
    ]


def moments(bins: Bins, statistics: LogStatistics) -> list[Moment]:
    """Running sums at the end of each bin. What goes for a reason without a time of its own, such as a delete
    horizon, counts in the last bin."""
    numbers = range(bins.count)
    written = np.cumsum([statistics.written.get(number, 0) for number in numbers])
    sums = (statistics.superseded, statistics.discarded_written)
    reclaimable = np.cumsum([sum(part.get(number, 0) for part in sums) for number in numbers])
    reclaimable[-1:] = sum(statistics.discarded_sizes.values())
    return [
        Moment(
            at_ms=bins.start_ms + (number + 1) * bins.width_ms - 1,
            written_bytes=int(written[number]),
            reclaimable_bytes=int(reclaimable[number]),
        )
        for number in numbers
    ]


def frequencies(statistics: LogStatistics) -> list[Frequency]:
    """How many keys have 1, 2, 3–4, 5–8, … records."""
    return [
        Frequency(records_from=(1 << step >> 1) + 1, records_to=1 << step, keys=keys)
        for step, keys in sorted(statistics.frequencies.items())
    ]


def key_text(work: LogWork, offset: int) -> str:
    """The key of the record at ``offset`` as text to show: decoded (of a coordinator's topic), its own text,
    or hexadecimal digits. Long ones are cut; it is empty if the record is not there.

    Raises CorruptFileError, OSError.
    """
    segment = work.segments[floor_segment_index(list(work.segments), offset)]
    with files.Reader(segment.path) as reader:
        place = position_of_offset(reader, offset, end=segment.size)
        if place is None:
            return ""
        window = np.empty(place.size, np.uint8)
        reader.read_into(window, place.position)
    columns = decode_records(
        window,
        scan_batches(window).batches,
        limit=work.limits.batch_limit,
        path=segment.path,
        origin=place.position,
    )
    rows = np.flatnonzero(columns.offset == offset)
    key = columns.key(int(rows[0])) if len(rows) else None
    if key is None:
        return ""
    if not key:
        return '""'
    log = parse_partition(work.name)
    decoded = None if log is None else describe_key(log.topic, key)
    if decoded is not None and decoded.isprintable():
        return decoded[:_DECODED_KEY_MAX]
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text:
        return text[:KEY_BYTES_SHOWN] + ("…" if len(text) > KEY_BYTES_SHOWN else "")
    return f"0x{key[:KEY_BYTES_SHOWN].hex()}{'…' if len(key) > KEY_BYTES_SHOWN else ''}"


HOTTEST_KEYS_DEFAULT = 10
"""The default number of hottest keys."""


Observer = Callable[[Sequence[tuple[LogWork, Bins]], int], dict[str, LogStatistics]]
"""Observes logs: called with (the logs, the number of hottest keys), returns statistics by the log's name.
Raises EngineError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The options of an explanation. ``show_keys``: show the hottest keys instead of a mask; ``top``: how
    many of them."""

    plan_options: PlanOptions
    show_keys: bool = False
    top: int = HOTTEST_KEYS_DEFAULT


def explain_logs(
    states: Sequence[LogState],
    options: ExplainOptions,
    engine: Callable[[], Engine],
    observer: Callable[[], Observer],
) -> list[LogExplanation]:
    """Explain logs: an explanation for each, in order. ``engine`` and ``observer`` are called for an engine
    and an observer when a log needs them.

    Raises EngineError when Spark fails. What is wrong with one log is said in its explanation.
    """
    mismatched = mismatched_topic_ids(states)
    logs = [_plan_explanation(state, options, mismatched.get(state.topic_partition)) for state in states]
    by_name = {planned.work.name: (log, planned) for log, planned in logs if planned is not None}
    if by_name:
        works = [planned.work for _, planned in by_name.values()]
        done = _run_dry(works, engine())
        statistics = observer()([(work, bins_of(work)) for work in works], options.top)
        for name, (log, planned) in by_name.items():
            _complete_explanation(log, planned, done[name], statistics[name], options)
    return [log for log, _ in logs]


def _run_dry(works: Sequence[LogWork], engine: Engine) -> dict[str, LogReport]:
    """Run the logs dry: small ones each in one task, large ones on all workers. Reports by the log's name."""
    small = [work for work in works if fits_one_task(work, WHOLE_LOG_BYTES)]
    done = {log.name: log for log in engine.clean_whole(small)} if small else {}
    for work in works:
        if work.name not in done:
            done[work.name] = _run_distributed(work, engine)
    return done


def _run_distributed(work: LogWork, engine: Engine) -> LogReport:
    """Run a large log dry. A failed job is the log's failure. Raises EngineError if the engine is lost."""
    try:
        return engine.clean_distributed(work)
    except EngineError as error:
        if error.__cause__ is None:
            raise
        return LogReport(name=work.name, extracted=Extracted(failure=failure_of(error)))


def _plan_explanation(
    state: LogState, options: ExplainOptions, mismatch: str | None
) -> tuple[LogExplanation, PlannedLog | None]:
    """Plan a log twice: as a cleaning now would, for its status, and as if it were eligible and could lose
    keyless records, for the dry run. Without the second plan the log is not explained any further."""
    log = LogExplanation(
        topic=state.topic_partition.topic,
        partition=state.topic_partition.partition,
        directory=str(state.path),
        status=report.SKIPPED,
        settings={} if state.config is None else state.config.settings(),
    )
    try:
        if mismatch is not None:
            _copy_plan_result(
                log, initial_result(state, state.segments()).set_status(report.SKIPPED, mismatch)
            )
            return log, None
        checkpoints, plan_options = state.checkpoints(), options.plan_options
        now = plan_log(state, checkpoints, plan_options, None)
        expiry = None
        if isinstance(now, LogResult):
            expiry = _expiry_without_cleaning(state, now, plan_options)
        _copy_plan_result(log, now)
        if log.status == report.SKIPPED:
            log.outcome.expired = _expired(expiry)
            return log, None
        forced = plan_log(state, checkpoints, replace(plan_options, force=True, drop_keyless=True), None)
        log.range = range_of(state, checkpoints, plan_options)
        if expiry is not None and isinstance(now, LogResult):  # only retention changes the log now
            _copy_outcome(log, now, expiry)
            return log, None
        return log, forced if isinstance(forced, PlannedLog) else None
    except (SiltstoneError, OSError) as error:
        failure = failure_of(error)
        log.status, log.reason = failure.status, failure.reason
        return log, None


def _expiry_without_cleaning(state: LogState, result: LogResult, options: PlanOptions) -> Expiry | None:
    """What retention removes of a log that is not cleaned; None for nothing. The result has the notes, and
    is as after a cleaning where a cleaning applies retention. Raises SiltstoneError, OSError."""
    if retention_applies(result):
        expiry = _find_expiry(state, result, options, None)
        if expiry is not None:
            fill_expiry(result, expiry)
        return expiry
    # A broker, or a program that serves the directory, applies retention to a log that only deletes.
    if state.topic_partition.topic == CLUSTER_METADATA or state.refused is not None or state.config is None:
        return None
    if state.config.policies != ("delete",) or state.config.flag("remote.storage.enable"):
        return None
    try:
        # As if cleaned: then only the records of expired segments are counted.
        expiry = find_expiry(state, replace(result, status=report.CLEANED), options, None)
    except (SiltstoneError, OSError):  # no failure of a log that is skipped
        return None
    if expiry is not None:
        result.notes += [f"{note}; clean leaves it to the broker" for note in expiry_notes(expiry)]
    return expiry


def _find_expiry(
    state: LogState, result: LogResult, options: PlanOptions, planned: PlannedLog | None
) -> Expiry | None:
    """``find_expiry``; retention that a cleaning leaves out is None, with a note."""
    try:
        return find_expiry(state, result, options, planned)
    except (InvalidConfigError, LedgerError) as error:
        result.notes.append(RETENTION_LEFT_OUT.format(error=error))
        return None


def _expired(expiry: Expiry | None) -> ExpiredExplained:
    if expiry is None:
        return ExpiredExplained()
    return ExpiredExplained(
        segments=len(expiry.segments),
        records=expiry.records,
        bytes=sum(segment.size for segment in expiry.segments),
    )


def _copy_outcome(log: LogExplanation, result: LogResult, expiry: Expiry | None) -> None:
    """Copy what a cleaning and retention leave of the whole log."""
    log.outcome.bytes_after = result.bytes_after
    log.outcome.records_before, log.outcome.records_after = result.records_before, result.records_after
    log.outcome.expired = _expired(expiry)


def _copy_plan_result(log: LogExplanation, plan: PlannedLog | LogResult) -> None:
    result = plan.result if isinstance(plan, PlannedLog) else plan
    # A result is ``cleaned`` if retention alone changes the log.
    would_clean = isinstance(plan, PlannedLog) or result.status == report.CLEANED
    log.status = WOULD_CLEAN if would_clean else result.status
    log.segments, log.bytes_before = result.segments_before, result.bytes_before
    log.reason, log.notes = result.reason, list(result.notes)


def _complete_explanation(
    log: LogExplanation,
    planned: PlannedLog,
    done: LogReport,
    statistics: LogStatistics,
    options: ExplainOptions,
) -> None:
    state = planned.state
    assert state.config is not None
    failure = done.failure or statistics.failure
    if failure is None:
        log.outcome = _outcome(log.bytes_before, planned.work, done, statistics)
        log.keys = KeysExplained(
            distinct_keys=statistics.counts["keys"],
            distinct_dirty_keys=statistics.counts["dirty_keys"],
            keys_by_records=frequencies(statistics),
        )
        failure = _disagreement(log, statistics)
    if failure is not None:
        log.status, log.reason = failure.status, failure.reason
        return
    keyless = log.outcome.records["keyless"]
    if keyless and not (options.plan_options.drop_keyless or state.drop_keyless):
        log.status, log.reason = report.SKIPPED, HAS_KEYLESS_RECORDS.format(count=keyless)
    try:
        _complete_with_retention(log, planned, done, options.plan_options)
    except (SiltstoneError, OSError) as error:
        failure = failure_of(error)
        log.status, log.reason = failure.status, failure.reason
        return
    log.keys.kafka = kafka_needs(state.config, statistics.counts["dirty_keys"])
    log.outcome.tombstones_waiting = [
        WaitingTombstones(at_ms=horizon, tombstones=count, bytes=statistics.waiting_sizes[horizon])
        for horizon, count in sorted(statistics.waiting.items())
    ]
    log.outcome.reclaimable = moments(bins_of(planned.work), statistics)
    try:
        log.keys.hottest_keys = [
            replace(key, key=key_text(planned.work, key.last_offset)) if options.show_keys else key
            for key in statistics.hottest
        ]
    except (SiltstoneError, OSError) as error:
        log.notes.append(f"the hottest keys could not be read: {failure_of(error).reason}")


def _complete_with_retention(
    log: LogExplanation, planned: PlannedLog, done: LogReport, options: PlanOptions
) -> None:
    """Count the whole log's records before and after the cleaning, and after retention where it applies.
    Raises SiltstoneError, OSError."""
    result, notes_before = planned.result, len(planned.result.notes)
    planned.committed = sorted(done.groups, key=attrgetter("group_index"))
    fill_records_before(planned, done)
    fill_result(planned, done)
    expiry = None
    if log.status == WOULD_CLEAN:
        expiry = _find_expiry(planned.state, result, options, planned)
        if expiry is not None:
            fill_expiry(result, expiry)
    _copy_outcome(log, result, expiry)
    log.notes += result.notes[notes_before:]


def _outcome(
    bytes_before: int, work: LogWork, done: LogReport, statistics: LogStatistics
) -> OutcomeExplained:
    counts = report.RecordCounts()
    for group in done.groups:
        counts.add(group.counts)
    removed = {reason: counts.discarded.counts[reason] for reason in CLEANING_REASONS}
    # Only the dry run knows which markers go, and it counts no bytes: an average marker's are taken.
    marker_bytes = statistics.sizes["control"] // max(statistics.counts["control"], 1)
    removed_bytes = {reason: statistics.discarded_sizes[reason] for reason in OBSERVED_REASONS}
    removed_bytes[REASONS[report.MARKERS]] = removed[REASONS[report.MARKERS]] * marker_bytes
    kinds = {
        "keyless": statistics.discarded["keyless"],
        "aborted": statistics.discarded["aborted"],
        "control": statistics.counts["control"],
    }
    total = statistics.counts["records"]
    return OutcomeExplained(
        bytes_after=bytes_before - work.size + sum(group.size for group in done.groups),
        records={
            "total": total,
            "keyed": total - sum(kinds.values()),
            **kinds,
            "tombstones": statistics.counts["tombstones"],
            "after": total - sum(removed.values()),
        },
        removed=removed,
        removed_bytes=removed_bytes,
        kept_bytes=statistics.sizes["records"] - sum(removed_bytes.values()),
        groups=groups_of(work, done.groups),
    )


def _disagreement(log: LogExplanation, statistics: LogStatistics) -> LogFailure | None:
    """The failure if the dry run and the observation count differently, since the log changed between them;
    None if they agree."""
    for reason in OBSERVED_REASONS:
        removed, count = log.outcome.removed[reason], statistics.discarded[reason]
        if removed != count:
            error = SourceChangedError(
                f"the log changed while it was read: the dry run removes {removed} {reason} records, but "
                f"{count} were counted",
                path=log.directory,
                advice="run explain again",
            )
            return failure_of(error)
    return None


def kafka_needs(config: Config, dirty_keys: int) -> KafkaExplained:
    """Kafka's offset map with these settings, and how many passes so many dirty keys take at least."""
    buffer = config.integer("log.cleaner.dedupe.buffer.size")
    load = config.number("log.cleaner.io.buffer.load.factor")
    map_keys = ranges.kafka_map_keys(config)
    return KafkaExplained(
        buffer_bytes=buffer,
        load_factor=load,
        map_keys=map_keys,
        passes=ranges.kafka_passes(dirty_keys, map_keys),
        buffer_bytes_for_one_pass=ranges.kafka_buffer_bytes_for_keys(dirty_keys, load),
    )


# Observing in this process. To bound the memory, a large log is read once for each bucket.

MEMORY_BYTES = 1 << 30
"""The memory for the entries of one bucket."""


def buckets_of(work: LogWork, memory_bytes: int = MEMORY_BYTES, at_least: int = 1) -> int:
    """How many buckets are needed so that the entries of each fit ``memory_bytes``. There are no more records
    than offsets."""
    return max(at_least, -(-offset_span(work) * KEY_COUNT_BYTES // memory_bytes))


def observe_in_process(
    works: Sequence[tuple[LogWork, Bins]],
    top: int,
    memory_bytes: int = MEMORY_BYTES,
    progress: Progress | None = None,
) -> dict[str, LogStatistics]:
    """Observe one log after another."""
    statistics = {}
    for work, bins in works:
        with report_progress(progress, work.name, work.size * buckets_of(work, memory_bytes)):
            statistics[work.name] = _observe_one(work, bins, top, memory_bytes)
    return statistics


def _observe_one(work: LogWork, bins: Bins, top: int, memory_bytes: int) -> LogStatistics:
    statistics, buckets = LogStatistics(), buckets_of(work, memory_bytes)
    try:
        for bucket in range(buckets):
            # Each pass over the segments counts the same records: only the counts of the first are taken.
            counted = statistics if bucket == 0 else LogStatistics()
            entries = observe(work, range(len(work.segments)), buckets, bins, counted, bucket)
            statistics.merge(count_keys([part for _, part in entries], work.first_dirty, bins, top), top)
    except (SiltstoneError, OSError) as error:
        statistics.failure = failure_of(error)
    return statistics
