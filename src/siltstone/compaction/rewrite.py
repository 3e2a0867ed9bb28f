"""Rewriting a segment group: which batches and records stay, and the bytes of the new segment.

Kafka's ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``. Each batch is one of::

    copied     no record is discarded and no delete horizon is added: the same bytes
    rebuilt    records are discarded, or its first tombstones get a delete horizon. Base and last offset,
               producer, epochs, sequence, codec and timestamp type stay; the base timestamp is the first
               retained record's, or the horizon; the largest timestamp is computed again
    emptied    all records are discarded, but the batch stays, since it has the last sequence of a live
               producer or the last offset of the cleaned range: 61 bytes, no codec, base timestamp -1
    dropped    all records are discarded, and the batch
    converted  an entry of a message set (v0, v1) with retained records: they become one v2 batch

Records of aborted transactions are discarded whatever their key. A marker stays until no record of its
transaction is left and its delete horizon has passed; the first pass that finds no record sets the horizon.

``decide_retention`` decides about the records of a slice of batches, ``emit`` writes them. There is no Python
object for a record; only a compressed batch costs a Python call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError
from siltstone.base.records.build import RECODE_ROOM, compress_batches, copy_bytes, write_header
from siltstone.base.records.checksum import patch_checksums, refuse_bad_checksum
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import ColumnArrays, RecordColumns
from siltstone.base.records.convert import NO_HORIZON, convert_entries
from siltstone.base.records.decode import ChosenOffsets, decode_chosen_records
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int32,
    Int64,
    codec_of,
    delete_horizons,
)
from siltstone.base.records.varint import read_varint, read_varlong, varint_size, write_varint
from siltstone.compaction import report
from siltstone.compaction.work import BatchSlice, LogWork, RetentionRules
from siltstone.log.transactions import TransactionScan

# The kernels: which records stay, and writing the batches.
#
# A batch has a *retention decision* (Kafka's ``checkBatchRetention``): its records are decided by key, are
# all retained (a marker), or are all discarded for one of the reasons of ``report``. What the rewriter does
# with the batch is its *action*.

Decisions = npt.NDArray[np.int8]
Offsets = npt.NDArray[np.uint32]
DROPPED, COPIED, REBUILT, EMPTIED = range(4)
"""Actions."""
BY_KEY, RETAIN_ALL = -2, -1
"""Retention decisions; the others are the reasons in ``WHOLE_BATCH_REASONS``."""
WHOLE_BATCH_REASONS = (report.SUPERSEDED, report.ABORTED, report.MARKERS)
"""Reasons that discard all records of a batch."""


class RetainedRecords(NamedTuple):
    """Which records stay (``is_retained``: bool, one a record), and of each batch (int64) how many stay, how
    many of these are tombstones, the first one's timestamp, and the largest (ms)."""

    is_retained: Flags
    records: Int64
    tombstones: Int64
    first_time: Int64
    last_time: Int64


@kernel
def decide_retention(
    columns: ColumnArrays, horizon_passed: Flags, decision: Decisions, map_end: int, retained: RetainedRecords
) -> int:
    """Decide about each record that its key retains (Kafka's ``Cleaner.shouldRetainRecord``).

    ``retained.is_retained`` says which these are, and loses those that go; the sums per batch, 0 before, are
    filled. ``horizon_passed`` (bool, one a batch): tombstones below ``map_end`` go. Returns how many
    tombstones were discarded. Relies on records in order of batches.
    """
    discarded = 0
    for i in range(len(columns.offset)):
        # 1. Superseded by a record of the same key, or without a key: the filter has counted it.
        if not retained.is_retained[i]:
            continue
        batch, time = columns.batch[i], columns.timestamp[i]
        # 2. A tombstone goes once its batch's delete horizon has passed (Kafka: ``shouldRetainDeletes``). A
        #    marker has no value either: only where keys decide is a null value a tombstone. From ``map_end``
        #    on Kafka's map knows no key, so all records stay.
        if decision[batch] == BY_KEY and columns.value_size[i] < 0:
            if horizon_passed[batch] and columns.offset[i] < map_end:
                retained.is_retained[i] = False
                discarded += 1
                continue
            retained.tombstones[batch] += 1
        # 3. What stays gives the new header its count and times.
        if retained.records[batch] == 0:
            retained.first_time[batch] = time
            retained.last_time[batch] = time
        retained.records[batch] += 1
        retained.last_time[batch] = max(retained.last_time[batch], time)
    return discarded


@kernel
def _recode(data: Bytes, start: int, delta: int, out: Bytes, position: int) -> int:
    """Copy the record at ``data[start]`` with another timestamp delta; returns the end in ``out``.

    ::

        size (varint) | attributes (1 byte, 0) | timestamp delta (varlong) | offset delta, key, value, headers
        new             new                      new                         copied

    Relies on the decoder, which has read the record before: its varints are complete.
    """
    body, source = read_varint(data, start, len(data))
    end = source + body
    # The rest begins after the attributes and the old delta. A delta of another length changes the record's
    # size, which comes first: so the new one is computed before anything is written.
    _, rest = read_varlong(data, source + 1, end)
    size = end - rest
    position = write_varint(out, position, 1 + varint_size(delta) + size)
    out[position] = 0
    position = write_varint(out, position + 1, delta)
    return copy_bytes(data, rest, size, out, position)


class BatchPlan(NamedTuple):
    """int64 a batch: its action, and the fields of its new header (times in ms)."""

    action: Int64
    attributes: Int64
    base_time: Int64
    max_time: Int64


@kernel
def emit(
    window: Bytes,
    batches: BatchHeaders,
    plan: BatchPlan,
    retained: RetainedRecords,
    data: Bytes,
    columns: ColumnArrays,
    out: Bytes,
    starts: Int64,
    sizes: Int64,
) -> int:
    """Write the batches into ``out``, rebuilt ones uncompressed and without checksum; returns the end.

    ``data``: what the spans of ``columns`` point into. Fills ``starts`` and ``sizes`` (bytes in ``out``, size
    0 for a dropped batch). ``out`` has at least the size of the window and, for each record, ``RECODE_ROOM``
    bytes more. (Kafka's ``MemoryRecords.filterTo``.)
    """
    position, end_row = 0, 0
    for b in range(len(batches)):
        # 1. The batch's records are rows ``first_row`` to ``end_row``; a batch that was not decoded has none.
        first_row = end_row
        while end_row < len(columns.batch) and columns.batch[end_row] == b:
            end_row += 1
        starts[b] = position
        sizes[b] = 0
        if plan.action[b] == DROPPED:
            continue
        if plan.action[b] == COPIED:
            # 2. Nothing goes: the same bytes, still compressed, with their checksum.
            position = copy_bytes(window, batches[b].position, batches[b].size, out, position)
        else:
            # 3. Rebuilt, or emptied: space for the header, then the retained records. A record holds its
            #    timestamp as a delta to the base, so another base changes each of them.
            end, base_time = position + BATCH_OVERHEAD, plan.base_time[b]
            has_other_base = base_time != batches[b].base_timestamp
            for i in range(first_row, end_row):
                if not retained.is_retained[i]:
                    continue
                if has_other_base:
                    delta = columns.timestamp[i] - base_time
                    end = _recode(data, columns.start[i], delta, out, end)
                else:
                    end = copy_bytes(data, columns.start[i], columns.size[i], out, end)
            # 4. The header at last, since it has the batch's size. Base and last offset stay, whatever goes.
            times = (base_time, plan.max_time[b])
            write_header(
                out, position, end - position, batches[b], plan.attributes[b], *times, retained.records[b]
            )
            position = end
        sizes[b] = position - starts[b]
    return position


OUT_OF_ORDER, NOT_RETAINED = 1, 2
"""What ``check_offsets`` finds wrong; 0 for nothing."""


@kernel
def check_offsets(
    offset: Int64,
    batch: Int32,
    control: Flags,
    base_offset: int,
    map_end: int,
    retained: Offsets,
    last: int,
    matched: int,
) -> tuple[int, int, int]:
    """Verify offsets that were written: (largest offset, how many retained offsets were passed, what is
    wrong).

    ``OUT_OF_ORDER``: ``offset`` does not ascend from ``last``. ``NOT_RETAINED``: an offset is not among
    ``retained`` (ascending, less ``base_offset``) from number ``matched`` on; control batches (``control``,
    one a batch) and offsets from ``map_end`` on need not be.
    """
    for i in range(len(offset)):
        if offset[i] <= last:
            return last, matched, OUT_OF_ORDER
        last = offset[i]
        if control[batch[i]] or last >= map_end:
            continue
        # Both ascend, so one pass merges them. Retained offsets that are passed over are tombstones that the
        # rewriter discarded, since their horizon has passed.
        relative = last - base_offset
        while matched < len(retained) and retained[np.uint64(matched)] < relative:
            matched += 1
        if matched == len(retained) or retained[np.uint64(matched)] != relative:
            return last, matched, NOT_RETAINED
    return last, matched, 0


# Record filters: which records their keys retain (Kafka's ``MemoryRecords.RecordFilter``).
#
# ``OffsetFilter`` has the retained offsets of a shuffle join and compares offsets only;
# ``broadcast.OffsetMapFilter`` looks up each key in the offset map.

_SPARSE = 16
"""Where fewer than one offset in 16 is retained, sorting is faster than marking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRecords:
    """Records of some batches: ``columns``, and which of these their keys retain, or that are decided
    without their key (bool, one a record).

    ``read``: records in the batches, also those that are not in ``columns``. ``discarded``: how many of them
    are superseded or have no key; ``keyless``: how many of these have no key.
    """

    columns: RecordColumns
    is_retained: Flags
    read: int
    discarded: int
    keyless: int


class RecordFilter:
    """Tells which records of one group are retained by their keys; the group is read in log order.

    ``retained``: the offsets that are retained so far, less the group's base, ascending.
    """

    retained: Offsets

    def superseded_batches(self, batches: BatchHeaders) -> Flags:
        """Which v2 batches are superseded as a whole, so that they need not be decompressed (bool)."""
        return _no_batch(batches)

    def filter(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The records of the batches that are decided by key, and of markers that stay.

        Raises CorruptRecordError, CheckFailedError.
        """
        raise NotImplementedError

    def refuse_unmatched(self, name: str) -> None:
        """Called after the last batch. Raises CheckFailedError if log ``name`` has no record for a retained
        offset."""


def sort_offsets(retained: Offsets, span: int) -> Offsets:
    """Sort offsets (uint32, less their base, all below ``span`` if nothing is wrong).

    Many offsets are sorted by marking them in an array, in a fifth of the time. Offsets that occur twice or
    are not below ``span`` stay: later checks report them.
    """
    if len(retained) and span <= _SPARSE * len(retained) and int(retained.max()) < span:
        is_marked = np.zeros(span, np.bool_)
        is_marked[retained] = True
        ascending = np.flatnonzero(is_marked)
        if len(ascending) == len(retained):
            return ascending.astype(np.uint32)
    return np.sort(retained)


class OffsetFilter(RecordFilter):
    """Compares offsets with ``retained``: ascending, less ``base_offset``.

    Without ``drop_keyless`` no log with keyless records is cleaned. There is none to count then, and a batch
    without a retained offset need not be decompressed.
    """

    def __init__(self, work: LogWork, base_offset: int, retained: Offsets) -> None:
        self.retained = retained
        self._base_offset = base_offset
        self._map_end, self._limit = work.rules.map_end, work.limits.batch_limit
        self._counts_keyless = work.rules.drop_keyless
        self._matched = 0

    def superseded_batches(self, batches: BatchHeaders) -> Flags:
        """Batches without a retained offset."""
        if self._counts_keyless:
            return _no_batch(batches)
        base, last = batches["base_offset"], batches["last_offset"]
        first = np.searchsorted(self.retained, (base - self._base_offset).astype(np.uint32))
        end = np.searchsorted(self.retained, (last - self._base_offset).astype(np.uint32), side="right")
        is_data = (batches["attributes"] & CONTROL_BIT) == 0
        return np.asarray((first == end) & is_data & (last < self._map_end))

    def filter(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The records with retained offsets, and those that no key decides on; all others are only counted.

        Raises CorruptRecordError, and CheckFailedError for a retained offset without a record.
        """
        rows = np.flatnonzero(decisions < 0)
        choice = ChosenOffsets(
            offsets=self.retained,
            base=self._base_offset,
            met=self._matched,
            all_from=np.where(decisions[rows] == BY_KEY, self._map_end, 0),
        )
        chosen = decode_chosen_records(
            part.data,
            part.batches,
            rows,
            choice,
            scratch,
            limit=self._limit,
            path=part.path,
            origin=part.origin,
        )
        self._matched = chosen.met
        columns = chosen.columns
        return FilteredRecords(
            columns=columns,
            is_retained=np.ones(len(columns), np.bool_),
            read=len(columns) + chosen.left_out,
            discarded=chosen.left_out,
            keyless=chosen.keyless,
        )

    def refuse_unmatched(self, name: str) -> None:
        """Raises CheckFailedError."""
        if self._matched != len(self.retained):
            raise CheckFailedError(
                f"{len(self.retained)} offsets were to be retained, but the sources have records for "
                f"{self._matched} of them",
                path=name,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedBatches:
    """Finished batches: their bytes, and int64 a batch for the indexes.

    ``unchanged``: all batches of the slice are copied; ``data`` is then a part of the window, not a copy.
    """

    data: Bytes
    last_offset: Int64
    max_timestamp: Int64
    size: Int64
    unchanged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatches:
    """Batches before compression and checksums.

    ``starts`` and ``sizes`` (int64): their places in ``data``, size 0 for a dropped batch. ``codecs``
    (int16): the codec of each, 0 for none. ``new``: whose checksum has to be computed.
    """

    data: Bytes
    starts: Int64
    sizes: Int64
    codecs: npt.NDArray[np.int16]
    new: Flags
    last_offset: Int64
    max_timestamp: Int64

    def finished(self, packed: Scratch) -> CleanedBatches:
        """Compress the batches (into ``packed``) and compute their checksums."""
        data, starts, sizes = self.data, self.starts, self.sizes
        if self.codecs.any():
            data, starts, sizes = compress_batches(data, starts, sizes, self.codecs, packed)
        patch_checksums(data, starts[self.new], sizes[self.new])
        rows = sizes > 0
        return CleanedBatches(
            data=data,
            last_offset=self.last_offset[rows],
            max_timestamp=self.max_timestamp[rows],
            size=sizes[rows],
        )


class Buffers:
    """Memory for rewriting a group. A task uses it for one group after another, since new memory is slow."""

    def __init__(self) -> None:
        self.plain, self.packed, self.read_back = Scratch(), Scratch(), Scratch()
        self.drafts = Scratch(), Scratch()


class Rewriter:
    """Rewrites the batches of one group, in log order; ``counts``: the group's figures so far."""

    def __init__(
        self, work: LogWork, record_filter: RecordFilter, transactions: TransactionScan, buffers: Buffers
    ) -> None:
        self._rules = work.rules
        self._filter = record_filter
        self._transactions = transactions
        self._scratch = buffers.plain
        self._out, self._other_out = buffers.drafts
        self.counts = report.RecordCounts()

    def rewrite(
        self, part: BatchSlice, *, keeps_legacy_tombstones: bool = True
    ) -> CleanedBatches | PendingBatches:
        """Rewrite batches, all of magic 2 or all older: ``PendingBatches`` unless all of them are copied.

        Pending bytes are valid until the second call after this one, finished ones until the window changes.
        ``keeps_legacy_tombstones``: tombstones of v0 and v1 stay. Raises CorruptRecordError for a wrong
        checksum or record, CorruptFileError for a contradiction among transactions, CheckFailedError for a
        retained offset without a record.
        """
        window, batches, path, origin = part
        modern = bool(batches["magic"][0] == 2)
        # 1. Which batches need not be read any further, since none of their records is retained: extraction
        #    has verified their checksums. The others are verified now.
        superseded = self._filter.superseded_batches(batches) if modern else _no_batch(batches)
        retain_empty = _retain_empty(self._rules, batches)
        refuse_bad_checksum(window, batches[~superseded | retain_empty], path=path, origin=origin)
        # 2. Whose delete horizon has passed: v2 batches have one each (KIP-534); for v0 and v1 the segment's
        #    time decides. A tombstone that the compacted ledger still needs stays.
        has_horizon = delete_horizons(batches)
        passed = has_horizon & (batches["base_timestamp"] <= self._rules.now_ms)
        horizon_passed = passed if modern else np.full(len(batches), not keeps_legacy_tombstones)
        horizon_passed = horizon_passed & (batches["last_offset"] < self._rules.tombstones_from)
        # 3. Transactions: which batches are aborted, and which markers have no data left
        #    (``Cleaner.onBatchRead``, ``onControlBatchRead``).
        followed = self._transactions.follow(window, batches, path=path, origin=origin)
        aborted, empty = (_no_batch(batches), _no_batch(batches)) if followed is None else followed
        # 4. The decision about each batch, then about each record.
        decisions = _decisions(batches, aborted, empty & passed, superseded)
        filtered = self._filter.filter(part, decisions, self._scratch)
        columns = filtered.columns
        retained = RetainedRecords(filtered.is_retained, *np.zeros((4, len(batches)), np.int64))
        tombstones = decide_retention(
            columns.arrays, horizon_passed, decisions, self._rules.map_end, retained
        )
        self._count(batches, filtered, tombstones, decisions, retained)
        # 5. What that makes of each batch, and its bytes.
        plan = _plan_batches(self._rules, batches, retained, has_horizon, empty, retain_empty)
        if modern:
            return self._write(part, columns, retained, plan)
        return _convert(part, columns, retained, plan)

    def _count(
        self,
        batches: BatchHeaders,
        filtered: FilteredRecords,
        tombstones: int,
        decisions: Decisions,
        retained: RetainedRecords,
    ) -> None:
        """Count each record once: as retained, or as discarded with its reason."""
        discarded = np.zeros(report.CLEANING_REASON_COUNT, np.int64)
        for reason in WHOLE_BATCH_REASONS:
            discarded[reason] = batches["count"][decisions == reason].sum()
        read = filtered.read + int(discarded.sum())
        discarded[report.SUPERSEDED] += filtered.discarded - filtered.keyless
        discarded[report.TOMBSTONES] = tombstones
        discarded[report.KEYLESS] = filtered.keyless
        self.counts.add(
            report.RecordCounts(
                records_read=read,
                records_retained=int(retained.records.sum()),
                discarded=report.Discarded.of(discarded),
            )
        )

    def _write(
        self, part: BatchSlice, columns: RecordColumns, retained: RetainedRecords, plan: BatchPlan
    ) -> CleanedBatches | PendingBatches:
        window, batches = part.data, part.batches
        if (plan.action == COPIED).all():
            return _copied(window, batches)
        size_max = len(columns.data) + len(window) + RECODE_ROOM * len(columns)
        size_max += BATCH_OVERHEAD * len(batches)
        # Two buffers in turn: the batches before these may still be compressed in another thread.
        self._out, self._other_out = self._other_out, self._out
        out = self._out.reserve(size_max)
        starts, sizes = np.empty((2, len(batches)), np.int64)
        end = emit(window, batches, plan, retained, columns.data, columns.arrays, out, starts, sizes)
        return PendingBatches(
            data=out[:end],
            starts=starts,
            sizes=sizes,
            codecs=np.where(plan.action == REBUILT, codec_of(batches), 0),
            new=plan.action >= REBUILT,
            last_offset=batches["last_offset"],
            max_timestamp=plan.max_time,
        )


def _copied(window: Bytes, batches: BatchHeaders) -> CleanedBatches:
    """Batches that follow each other in the window, copied as a whole."""
    start, last = int(batches["position"][0]), batches[-1]
    return CleanedBatches(
        data=window[start : int(last["position"]) + int(last["size"])],
        last_offset=batches["last_offset"],
        max_timestamp=batches["max_timestamp"],
        size=batches["size"].astype(np.int64),
        unchanged=True,
    )


def _no_batch(batches: BatchHeaders) -> Flags:
    return np.zeros(len(batches), np.bool_)


def _decisions(batches: BatchHeaders, aborted: Flags, is_obsolete: Flags, superseded: Flags) -> Decisions:
    """The retention decision for each batch; ``is_obsolete``: markers that are discarded."""
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    marker = np.where(is_obsolete, report.MARKERS, RETAIN_ALL)
    by_key = np.where(superseded, report.SUPERSEDED, BY_KEY)
    return np.where(control, marker, np.where(aborted, report.ABORTED, by_key)).astype(np.int8)


def _plan_batches(
    rules: RetentionRules,
    batches: BatchHeaders,
    retained: RetainedRecords,
    has_horizon: Flags,
    empty_marker: Flags,
    retain_empty: Flags,
) -> BatchPlan:
    """Action and new header of each batch. A tombstone, or the marker of an empty transaction, gets a delete
    horizon (KIP-534): attribute bit 6, and the horizon as base timestamp."""
    needs_horizon = ((retained.tombstones > 0) | empty_marker) & ~has_horizon
    action = np.where(
        retained.records == 0,
        np.where(retain_empty, EMPTIED, DROPPED),
        np.where((retained.records == batches["count"]) & ~needs_horizon, COPIED, REBUILT),
    )
    emptied = action == EMPTIED
    with_horizon = has_horizon | needs_horizon
    horizon = np.where(has_horizon, batches["base_timestamp"], rules.new_delete_horizon_ms)
    attributes = batches["attributes"].astype(np.int64) & ~DELETE_HORIZON_BIT
    # With log append time the largest timestamp is the broker's, not a record's.
    log_append = (attributes & TIMESTAMP_TYPE_BIT) != 0
    return BatchPlan(
        action=action.astype(np.int64),
        attributes=np.where(
            emptied, attributes & ~CODEC_MASK, attributes | np.where(with_horizon, DELETE_HORIZON_BIT, 0)
        ),
        base_time=np.where(emptied, -1, np.where(with_horizon, horizon, retained.first_time)),
        max_time=np.where((action == REBUILT) & ~log_append, retained.last_time, batches["max_timestamp"]),
    )


def _convert(
    part: BatchSlice, columns: RecordColumns, retained: RetainedRecords, plan: BatchPlan
) -> CleanedBatches:
    """The retained records of message set entries as v2 batches."""
    horizon = np.where(retained.tombstones > 0, plan.base_time, NO_HORIZON)
    converted = convert_entries(
        part.batches,
        columns,
        keep=retained.is_retained,
        horizon_ms=horizon,
        keep_empty=plan.action == EMPTIED,
        path=part.path,
        origin=part.origin,
    )
    return CleanedBatches(
        data=converted.data,
        last_offset=converted.last_offset,
        max_timestamp=converted.max_timestamp,
        size=converted.size,
    )


def _retain_empty(rules: RetentionRules, batches: BatchHeaders) -> Flags:
    """Which batches stay even without records (bool; Kafka's ``BatchRetention.RETAIN_EMPTY``): the last one
    of the range, so that its last offset stays, and the last one of each active producer
    (``isBatchLastRecordOfProducer``): its data with the last sequence, or else a marker with its epoch."""
    is_last: Flags = batches["last_offset"] == rules.last_offset
    if not len(rules.producers):
        return is_last
    producers, last_offsets, epochs = rules.producers.T
    ids = batches["producer_id"]
    rows = np.searchsorted(producers, ids).clip(max=len(producers) - 1)
    is_active = (ids >= 0) & (producers[rows] == ids)
    control = (batches["attributes"] & CONTROL_BIT) != 0
    holds_sequence = last_offsets[rows] == batches["last_offset"]
    holds_epoch = (last_offsets[rows] < 0) & control & (epochs[rows] == batches["producer_epoch"])
    return np.asarray(is_last | (is_active & (holds_sequence | holds_epoch)))
