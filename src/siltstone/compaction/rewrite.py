"""Rewriting a segment group: which batches and records stay, and the bytes of the new segment.

It answers to Kafka's ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``. Each batch is one of::

    copied     no record is discarded, and no delete horizon is added: the bytes stay the same
    rebuilt    records are discarded, or the batch gets a delete horizon. Base and last offset, producer,
               epochs, sequence, codec and timestamp type stay. The base timestamp becomes the first retained
               record's, or the horizon; the largest timestamp is computed again
    emptied    all records are discarded, but the header stays, since the batch has the last sequence of an
               active producer or the last offset of the cleaned range: 61 bytes, no codec, base timestamp -1
    dropped    all records are discarded, and the batch with them
    converted  the retained records of a message set's entry (v0, v1: a message, or a wrapper of compressed
               messages) become one v2 batch

Records of aborted transactions are discarded whatever their key. A marker gets a delete horizon when a
cleaning finds no record of its transaction; a cleaning after that time discards the marker.

``Rewriter.rewrite`` takes one slice of batches through these steps::

    superseded_batches ─► transactions ─► a decision for each batch ─► the filter: records by their keys ─┐
    bytes ◄─ write_batches ◄─ _plan_batches: an action for each batch ◄─ decide_retention: tombstones ◄───┘

There is no Python object for a record; only a compressed batch costs a Python call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError
from siltstone.base.records.build import MAX_REENCODING_GROWTH, compress_batches, copy_bytes, write_header
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
    have_delete_horizons,
)
from siltstone.base.records.varint import read_varint, read_varlong, varint_size, write_varint
from siltstone.compaction import report
from siltstone.compaction.work import BatchSlice, LogWork, RetentionRules
from siltstone.log.transactions import TransactionScan

# The kernels: which records stay, and writing the batches.
#
# A batch has a *retention decision* (Kafka's ``checkBatchRetention``): the key decides about each of its
# records, all are retained (a marker), or all are discarded for one of the reasons of ``report``. What the
# rewriter does with the batch is its *action*.

Decisions = npt.NDArray[np.int8]
"""A retention decision for each batch."""
Offsets = npt.NDArray[np.uint32]
"""Offsets less the base offset of their range."""
DROPPED, COPIED, REBUILT, EMPTIED = range(4)
"""The actions (see the module's docstring)."""
BY_KEY, RETAIN_ALL = -2, -1
"""The retention decisions that discard no whole batch, below 0. The others are ``WHOLE_BATCH_REASONS``."""
WHOLE_BATCH_REASONS = (report.SUPERSEDED, report.ABORTED, report.MARKERS)
"""Reasons that discard all records of a batch."""


class RetainedRecords(NamedTuple):
    """Which records stay (``is_retained``: bool, one a record); and for each batch (int64) how many records
    stay, how many of these are tombstones, the timestamp of the first one and the largest timestamp (ms)."""

    is_retained: Flags
    records: Int64
    tombstones: Int64
    first_timestamp: Int64
    max_timestamp: Int64


@kernel
def decide_retention(
    columns: ColumnArrays,
    horizon_passed: Flags,
    decisions: Decisions,
    map_end: int,
    retained: RetainedRecords,
) -> int:
    """Decide about each record that the record filter retains (Kafka's ``Cleaner.shouldRetainRecord``), and
    sum up the records that stay by batch.

    ``retained.is_retained`` has the decisions of the record filter; this sets it to False for tombstones that
    are discarded, and adds to the sums of ``retained``, which are 0 before. ``horizon_passed`` (bool, one a
    batch): the batch's tombstones below ``map_end`` are discarded. Returns how many tombstones were
    discarded. Relies on records that come in the order of their batches.
    """
    discarded = 0
    for i in range(len(columns.offset)):
        # 1. Superseded by a record of the same key, or without a key: the filter has counted it as discarded.
        if not retained.is_retained[i]:
            continue
        batch, timestamp = columns.batch[i], columns.timestamp[i]
        # 2. A tombstone is discarded once its batch's delete horizon has passed (``shouldRetainDeletes``). A
        #    marker, whose batch has the decision RETAIN_ALL, is no tombstone. From ``map_end`` on all records
        #    stay, since the offset map does not cover them.
        if decisions[batch] == BY_KEY and columns.value_size[i] < 0:
            if horizon_passed[batch] and columns.offset[i] < map_end:
                retained.is_retained[i] = False
                discarded += 1
                continue
            retained.tombstones[batch] += 1
        # 3. What stays gives the new header its count and timestamps.
        if retained.records[batch] == 0:
            retained.first_timestamp[batch] = timestamp
            retained.max_timestamp[batch] = timestamp
        retained.records[batch] += 1
        retained.max_timestamp[batch] = max(retained.max_timestamp[batch], timestamp)
    return discarded


@kernel
def _copy_with_new_delta(data: Bytes, start: int, delta: int, out: Bytes, position: int) -> int:
    """Copy the record at ``data[start]`` to ``out[position]`` with another timestamp ``delta`` (ms); returns
    the end of the copy in ``out``.

    ::

        size (varint) | attributes (1 byte, 0) | timestamp delta (varlong) | offset delta, key, value, headers
        new             new                      new                         copied

    Relies on the decoder, which has read the record before: its varints are complete.
    """
    body_size, body = read_varint(data, start, len(data))
    end = body + body_size
    # What is copied begins after the attributes and the old delta. A delta of another length changes the
    # record's size, which comes first: so the new size is computed before anything is written.
    _, copied = read_varlong(data, body + 1, end)
    copied_size = end - copied
    position = write_varint(out, position, 1 + varint_size(delta) + copied_size)
    out[position] = 0
    position = write_varint(out, position + 1, delta)
    return copy_bytes(data, copied, copied_size, out, position)


class BatchPlan(NamedTuple):
    """For each batch (int64) its action, and the new values of header fields (timestamps in ms). A copied or
    dropped batch does not use the new values, except that indexes need its largest timestamp."""

    action: Int64
    attributes: Int64
    base_timestamp: Int64
    max_timestamp: Int64


@kernel
def write_batches(
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
    """Write the batches of a slice into ``out``, rebuilt ones uncompressed and without checksum; returns the
    end (Kafka's ``MemoryRecords.filterTo``).

    ``window``: the batches as they are in the segment. ``data``: decompressed records, which the positions in
    ``columns`` point into. Fills ``starts`` and ``sizes``: the bytes of each batch in ``out``, size 0 for a
    dropped one. The caller makes ``out`` large enough: the window, the data, a header for each batch, and
    ``MAX_REENCODING_GROWTH`` for each record, whose size and timestamp delta may get longer.
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
            # 2. No record is discarded: the same bytes, still compressed, with their checksum.
            position = copy_bytes(window, batches[b].position, batches[b].size, out, position)
        else:
            # 3. Rebuilt, or emptied: leave space for the header, then write the retained records. A record
            #    has its timestamp as a delta to the base timestamp, so another base changes each record.
            end, base_timestamp = position + BATCH_OVERHEAD, plan.base_timestamp[b]
            has_other_base = base_timestamp != batches[b].base_timestamp
            for i in range(first_row, end_row):
                if not retained.is_retained[i]:
                    continue
                if has_other_base:
                    delta = columns.timestamp[i] - base_timestamp
                    end = _copy_with_new_delta(data, columns.start[i], delta, out, end)
                else:
                    end = copy_bytes(data, columns.start[i], columns.size[i], out, end)
            # 4. The header comes last, since it has the batch's size. Base and last offset stay as they are,
            #    even if their records are discarded (as in Kafka: offsets have gaps, and batches keep their
            #    ranges).
            times = (base_timestamp, plan.max_timestamp[b])
            write_header(
                out, position, end - position, batches[b], plan.attributes[b], *times, retained.records[b]
            )
            position = end
        sizes[b] = position - starts[b]
    return position


OUT_OF_ORDER, NOT_RETAINED = 1, 2
"""The problems that ``check_offsets`` returns; 0: none."""


@kernel
def check_offsets(
    offset: Int64,
    batch: Int32,
    is_control: Flags,
    base_offset: int,
    map_end: int,
    retained: Offsets,
    last: int,
    matched: int,
) -> tuple[int, int, int]:
    """Check the offsets of written records; returns (the last offset, the new ``matched``, the problem).

    The records: ``offset`` and ``batch`` of each, ``is_control`` of each batch. ``last``: the last offset
    before them. ``matched``: how many of the ``retained`` offsets (ascending, less ``base_offset``) the
    records before have passed. ``OUT_OF_ORDER``: the offsets do not ascend. ``NOT_RETAINED``: an offset is
    not retained; control records and offsets from ``map_end`` on need not be, since no key decides there.
    """
    for i in range(len(offset)):
        if offset[i] <= last:
            return last, matched, OUT_OF_ORDER
        last = offset[i]
        if is_control[batch[i]] or last >= map_end:
            continue
        # Both ascend, so one pass compares them. Retained offsets that are passed over are of tombstones that
        # the rewriter discarded, since their horizon has passed.
        relative = last - base_offset
        while matched < len(retained) and retained[np.uint64(matched)] < relative:
            matched += 1
        if matched == len(retained) or retained[np.uint64(matched)] != relative:
            return last, matched, NOT_RETAINED
    return last, matched, 0


# Record filters: which records are the last of their key (Kafka's ``MemoryRecords.RecordFilter``).
#
# In a shuffle join ``OffsetFilter`` has the retained offsets, and compares only offsets. In a broadcast join
# ``broadcast.OffsetMapFilter`` looks up each key in the offset map.

_MARKING_SPAN_FACTOR = 16
"""Where fewer than one offset in 16 is retained, ``sort_offsets`` sorts: marking is slower then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRecords:
    """The result of a filter for the batches whose decision is by key or to retain all.

    ``columns``: records of these batches; ``is_retained`` (bool, one a record): which of them stay, as far as
    the filter knows. ``read``: how many records the batches have, also those that are not in ``columns``.
    ``discarded``: how many of them are superseded or have no key; ``keyless``: how many have no key.
    """

    columns: RecordColumns
    is_retained: Flags
    read: int
    discarded: int
    keyless: int


class RecordFilter:
    """Tells which records of one range stay because of their keys. Batches are passed in log order.

    ``retained``: the offsets that stay, less the range's base, ascending; at least those of the batches that
    were passed so far. ``staging`` reads the new segment back and compares it with them.
    """

    retained: Offsets

    def superseded_batches(self, batches: BatchHeaders) -> Flags:
        """Which v2 batches have only superseded records, so that they need not be decompressed (bool)."""
        return _no_batches(batches)

    def filter(self, batch_slice: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The records of the batches whose decision is by key or to retain all (markers).

        Raises CorruptRecordError, CheckFailedError.
        """
        raise NotImplementedError

    def refuse_unmatched(self, name: str) -> None:
        """Called after the last batch. Raises CheckFailedError if the range had no record for one of the
        retained offsets; ``name``: the log's, for the error."""


def sort_offsets(retained: Offsets, span: int) -> Offsets:
    """Sort offsets (uint32, less their base). All are below ``span``, unless something is wrong.

    Where many offsets are retained, marking them in an array takes a fifth of a sort's time. Offsets that
    occur twice or are not below ``span`` are still sorted: later checks report them.
    """
    if len(retained) and span <= _MARKING_SPAN_FACTOR * len(retained) and int(retained.max()) < span:
        is_marked = np.zeros(span, np.bool_)
        is_marked[retained] = True
        ascending = np.flatnonzero(is_marked)
        if len(ascending) == len(retained):
            return ascending.astype(np.uint32)
    return np.sort(retained)


class OffsetFilter(RecordFilter):
    """Retains the records whose offsets are in ``retained`` (ascending, less ``base_offset``).

    A batch without a retained offset need not be decompressed. With ``has_keyless`` (the log may have records
    without a key) every batch is, so that these are counted.
    """

    def __init__(self, work: LogWork, base_offset: int, retained: Offsets, *, has_keyless: bool) -> None:
        self.retained = retained
        self._base_offset = base_offset
        self._map_end, self._limit = work.rules.map_end, work.limits.batch_limit
        self._counts_keyless = has_keyless
        self._matched = 0

    def superseded_batches(self, batches: BatchHeaders) -> Flags:
        """Batches without a retained offset; none where keyless records have to be counted."""
        if self._counts_keyless:
            return _no_batches(batches)
        base, last = batches["base_offset"], batches["last_offset"]
        first = np.searchsorted(self.retained, (base - self._base_offset).astype(np.uint32))
        end = np.searchsorted(self.retained, (last - self._base_offset).astype(np.uint32), side="right")
        is_data = (batches["attributes"] & CONTROL_BIT) == 0
        return np.asarray((first == end) & is_data & (last < self._map_end))

    def filter(self, batch_slice: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """Decodes records with retained offsets, markers, and records from ``map_end`` on; counts all others.

        Raises CorruptRecordError, and CheckFailedError for a retained offset without a record.
        """
        rows = np.flatnonzero(decisions < 0)  # BY_KEY and RETAIN_ALL; no other batch has records to retain
        # ``all_from``: a batch's records from this offset on are chosen, whether retained or not: all of a
        # marker's batch, and those that the offset map does not cover.
        choice = ChosenOffsets(
            offsets=self.retained,
            base=self._base_offset,
            matched=self._matched,
            all_from=np.where(decisions[rows] == BY_KEY, self._map_end, 0),
        )
        chosen = decode_chosen_records(
            batch_slice.data,
            batch_slice.batches,
            rows,
            choice,
            scratch,
            limit=self._limit,
            path=batch_slice.path,
            origin=batch_slice.origin,
        )
        self._matched = chosen.matched
        columns = chosen.columns
        return FilteredRecords(
            columns=columns,
            is_retained=np.ones(len(columns), np.bool_),
            read=len(columns) + chosen.left_out,
            discarded=chosen.left_out,
            keyless=chosen.keyless,
        )

    def refuse_unmatched(self, name: str) -> None:
        """Raises CheckFailedError unless each retained offset had a record."""
        if self._matched != len(self.retained):
            raise CheckFailedError(
                f"{len(self.retained)} offsets were to be retained, but the sources have records for "
                f"{self._matched} of them",
                path=name,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedBatches:
    """Finished batches: their bytes, and for each batch (int64) what the indexes need.

    ``is_unchanged``: all batches of the slice stay as they are; ``data`` is a part of the window then.
    """

    data: Bytes
    last_offset: Int64
    max_timestamp: Int64
    size: Int64
    is_unchanged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatches:
    """Batches that still have to be compressed and get their checksums.

    ``starts`` and ``sizes`` (int64): the bytes of each batch in ``data``, size 0 for a dropped one.
    ``codecs`` (int16): the codec to compress each with, 0 for none. ``is_new`` (bool): rebuilt and emptied
    batches, which need a new checksum.
    """

    data: Bytes
    starts: Int64
    sizes: Int64
    codecs: npt.NDArray[np.int16]
    is_new: Flags
    last_offset: Int64
    max_timestamp: Int64

    def finished(self, compressed: Scratch) -> CleanedBatches:
        """Compress the batches (into ``compressed``) and compute their checksums."""
        data, starts, sizes = self.data, self.starts, self.sizes
        if self.codecs.any():
            data, starts, sizes = compress_batches(data, starts, sizes, self.codecs, compressed)
        patch_checksums(data, starts[self.is_new], sizes[self.is_new])
        rows = sizes > 0
        return CleanedBatches(
            data=data,
            last_offset=self.last_offset[rows],
            max_timestamp=self.max_timestamp[rows],
            size=sizes[rows],
        )


class Buffers:
    """Memory for rewriting a range: ``decompressed`` records, two ``output`` buffers in turn, ``compressed``
    batches, and what the verifier decompresses (``verified``). A task uses it for one range after another,
    since the first use of newly allocated memory is slow."""

    def __init__(self) -> None:
        self.decompressed, self.compressed, self.verified = Scratch(), Scratch(), Scratch()
        self.output = Scratch(), Scratch()


class Rewriter:
    """Rewrites the batches of one range, in log order; ``counts``: the range's figures so far."""

    def __init__(
        self, work: LogWork, record_filter: RecordFilter, transactions: TransactionScan, buffers: Buffers
    ) -> None:
        self._rules = work.rules
        self._filter = record_filter
        self._transactions = transactions
        self._scratch = buffers.decompressed
        self._out, self._other_out = buffers.output
        self.counts = report.RecordCounts()

    def rewrite(
        self, batch_slice: BatchSlice, *, keeps_legacy_tombstones: bool = True
    ) -> CleanedBatches | PendingBatches:
        """Rewrite a slice of batches, all of format v2 or all older.

        Returns ``PendingBatches`` if v2 batches change: their bytes are valid until the second call after
        this one. Returns ``CleanedBatches`` if all are copied (valid until the window changes) or converted.
        ``keeps_legacy_tombstones``: tombstones of v0 and v1 stay. Raises CorruptRecordError for a wrong
        checksum or record, CorruptFileError for a contradiction among transactions, CheckFailedError for a
        retained offset without a record.
        """
        window, batches, path, origin = batch_slice
        is_v2 = bool(batches["magic"][0] == 2)
        # 1. Which batches need not be read any further, since none of their records is retained. Their
        #    checksums were verified when keys were extracted. Those of the others are verified now, and those
        #    of batches whose headers stay in any case.
        superseded = self._filter.superseded_batches(batches) if is_v2 else _no_batches(batches)
        retain_empty = _retain_empty(self._rules, batches)
        refuse_bad_checksum(window, batches[~superseded | retain_empty], path=path, origin=origin)
        # 2. Whose delete horizon has passed: a v2 batch has it as its base timestamp (KIP-534); for v0 and v1
        #    the segment's modification time decides. A tombstone that the compacted ledger needs stays.
        has_horizon = have_delete_horizons(batches)
        is_past_horizon = has_horizon & (batches["base_timestamp"] <= self._rules.now_ms)
        horizon_passed = is_past_horizon if is_v2 else np.full(len(batches), not keeps_legacy_tombstones)
        horizon_passed = horizon_passed & (batches["last_offset"] < self._rules.tombstones_from)
        # 3. Transactions: which batches are aborted, and which markers have no data left
        #    (``Cleaner.onBatchRead``, ``onControlBatchRead``).
        flags = self._transactions.follow(window, batches, path=path, origin=origin)
        aborted, is_empty_marker = (_no_batches(batches), _no_batches(batches)) if flags is None else flags
        # 4. The decision about each batch; then about its records, by key (the filter) and by the horizon.
        decisions = _decisions(batches, aborted, is_empty_marker & is_past_horizon, superseded)
        filtered = self._filter.filter(batch_slice, decisions, self._scratch)
        columns = filtered.columns
        retained = RetainedRecords(filtered.is_retained, *np.zeros((4, len(batches)), np.int64))
        discarded_tombstones = decide_retention(
            columns.arrays, horizon_passed, decisions, self._rules.map_end, retained
        )
        self._count(batches, filtered, discarded_tombstones, decisions, retained)
        # 5. What follows for each batch: its action and its new header; then its bytes.
        plan = _plan_batches(self._rules, batches, retained, has_horizon, is_empty_marker, retain_empty)
        if is_v2:
            return self._write(batch_slice, columns, retained, plan)
        return _convert(batch_slice, columns, retained, plan)

    def _count(
        self,
        batches: BatchHeaders,
        filtered: FilteredRecords,
        discarded_tombstones: int,
        decisions: Decisions,
        retained: RetainedRecords,
    ) -> None:
        """Count each record once: as retained, or as discarded for one reason."""
        discarded = np.zeros(report.CLEANING_REASON_COUNT, np.int64)
        for reason in WHOLE_BATCH_REASONS:
            discarded[reason] = batches["count"][decisions == reason].sum()
        read = filtered.read + int(discarded.sum())
        discarded[report.SUPERSEDED] += filtered.discarded - filtered.keyless
        discarded[report.TOMBSTONES] = discarded_tombstones
        discarded[report.KEYLESS] = filtered.keyless
        self.counts.add(
            report.RecordCounts(
                records_read=read,
                records_retained=int(retained.records.sum()),
                discarded=report.Discarded.of(discarded),
            )
        )

    def _write(
        self, batch_slice: BatchSlice, columns: RecordColumns, retained: RetainedRecords, plan: BatchPlan
    ) -> CleanedBatches | PendingBatches:
        """The new bytes of a slice of v2 batches, by the ``plan``."""
        window, batches = batch_slice.data, batch_slice.batches
        if (plan.action == COPIED).all():
            return _copied(window, batches)
        size_max = len(columns.data) + len(window) + MAX_REENCODING_GROWTH * len(columns)
        size_max += BATCH_OVERHEAD * len(batches)
        # Two buffers in turn: another thread may still be compressing the batches of the call before.
        self._out, self._other_out = self._other_out, self._out
        out = self._out.reserve(size_max)
        starts, sizes = np.empty((2, len(batches)), np.int64)
        end = write_batches(window, batches, plan, retained, columns.data, columns.arrays, out, starts, sizes)
        return PendingBatches(
            data=out[:end],
            starts=starts,
            sizes=sizes,
            codecs=np.where(plan.action == REBUILT, codec_of(batches), 0),
            is_new=plan.action >= REBUILT,  # REBUILT and EMPTIED
            last_offset=batches["last_offset"],
            max_timestamp=plan.max_timestamp,
        )


def _copied(window: Bytes, batches: BatchHeaders) -> CleanedBatches:
    """All batches of a slice, which follow each other in the window, as they are."""
    start, last = int(batches["position"][0]), batches[-1]
    return CleanedBatches(
        data=window[start : int(last["position"]) + int(last["size"])],
        last_offset=batches["last_offset"],
        max_timestamp=batches["max_timestamp"],
        size=batches["size"].astype(np.int64),
        is_unchanged=True,
    )


def _no_batches(batches: BatchHeaders) -> Flags:
    """False for each batch."""
    return np.zeros(len(batches), np.bool_)


def _decisions(batches: BatchHeaders, aborted: Flags, is_obsolete: Flags, superseded: Flags) -> Decisions:
    """The retention decision about each batch. ``is_obsolete``: markers to discard."""
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    marker = np.where(is_obsolete, report.MARKERS, RETAIN_ALL)
    by_key = np.where(superseded, report.SUPERSEDED, BY_KEY)
    return np.where(control, marker, np.where(aborted, report.ABORTED, by_key)).astype(np.int8)


def _plan_batches(
    rules: RetentionRules,
    batches: BatchHeaders,
    retained: RetainedRecords,
    has_horizon: Flags,
    is_empty_marker: Flags,
    retain_empty: Flags,
) -> BatchPlan:
    """Action and new header of each batch (Kafka's ``MemoryRecords.filterBatch``).

    A batch with tombstones, or the marker of a transaction without records, gets a delete horizon unless it
    has one (KIP-534): attribute bit 6, and the horizon as base timestamp.
    """
    needs_horizon = ((retained.tombstones > 0) | is_empty_marker) & ~has_horizon
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
        base_timestamp=np.where(emptied, -1, np.where(with_horizon, horizon, retained.first_timestamp)),
        max_timestamp=np.where(
            (action == REBUILT) & ~log_append, retained.max_timestamp, batches["max_timestamp"]
        ),
    )


def _convert(
    batch_slice: BatchSlice, columns: RecordColumns, retained: RetainedRecords, plan: BatchPlan
) -> CleanedBatches:
    """The retained records of each message set entry as a v2 batch."""
    # Message sets have no horizon yet: where there are tombstones, the planned base timestamp is the new one.
    horizon = np.where(retained.tombstones > 0, plan.base_timestamp, NO_HORIZON)
    converted = convert_entries(
        batch_slice.batches,
        columns,
        is_retained=retained.is_retained,
        horizon_ms=horizon,
        keeps_empty=plan.action == EMPTIED,
        path=batch_slice.path,
        origin=batch_slice.origin,
    )
    return CleanedBatches(
        data=converted.data,
        last_offset=converted.last_offset,
        max_timestamp=converted.max_timestamp,
        size=converted.size,
    )


def _retain_empty(rules: RetentionRules, batches: BatchHeaders) -> Flags:
    """Which batches stay even without records (bool; Kafka's ``BatchRetention.RETAIN_EMPTY``).

    These are the last batch of the cleaned range, so that its last offset stays, and the last batch of each
    active producer (``isBatchLastRecordOfProducer``): the one with its last sequence, or a marker with its
    epoch if the producer has no data.
    """
    is_last: Flags = batches["last_offset"] == rules.last_offset
    if not len(rules.producers):
        return is_last
    producers, last_offsets, epochs = rules.producers.T
    ids = batches["producer_id"]
    rows = np.searchsorted(producers, ids).clip(max=len(producers) - 1)
    is_active = (ids >= 0) & (producers[rows] == ids)
    is_control = (batches["attributes"] & CONTROL_BIT) != 0
    holds_sequence = last_offsets[rows] == batches["last_offset"]
    holds_epoch = (last_offsets[rows] < 0) & is_control & (epochs[rows] == batches["producer_epoch"])
    return np.asarray(is_last | (is_active & (holds_sequence | holds_epoch)))
