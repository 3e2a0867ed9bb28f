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

``should_retain`` decides about the records of a slice of batches, ``emit`` writes them. There is no Python
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
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.convert import NO_HORIZON, convert_entries
from siltstone.base.records.decode import ChosenOffsets, decode_chosen_records
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int32,
    Int64,
    codec_of,
    delete_horizons,
)
from siltstone.base.records.varint import read_varint, read_varlong, varint_size, write_varint
from siltstone.compaction.report import ABORTED, BY_CLEANING, KEYLESS, MARKERS, SUPERSEDED, TOMBSTONES
from siltstone.compaction.work import BatchSlice, LogWork, Rules
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
BY_KEY, RETAINED = -2, -1
"""Retention decisions; the others are the reasons in ``WHOLE_BATCH``."""
WHOLE_BATCH = (SUPERSEDED, ABORTED, MARKERS)
"""Reasons that discard all records of a batch."""


class Records(NamedTuple):
    """Columns of decoded records: number of the batch, place in ``data``, offset, timestamp (ms), size of the
    value (-1 for null), and whether the key retains it, or it needs none."""

    data: Bytes
    batch: Int32
    start: Int32
    size: Int32
    offset: Int64
    timestamp: Int64
    value_size: Int32
    is_retained: Flags


class Retention(NamedTuple):
    """The decision about each record (``keep``: bool, one a record), and int64 a batch: how many are kept,
    how many of these are tombstones, the first one's timestamp, and the largest."""

    keep: Flags
    kept: Int64
    tombstones: Int64
    first_time: Int64
    last_time: Int64


@kernel
def should_retain(
    records: Records, expired: Flags, decision: Decisions, map_end: int, retention: Retention
) -> int:
    """Decide about each record that its key retains (Kafka's ``shouldRetainRecord``); fills ``retention``,
    whose sums are 0 before.

    Discards tombstones below ``map_end`` in ``expired`` batches; returns how many. Relies on records in
    order of batches.
    """
    discarded = 0
    for i in range(len(records.offset)):
        batch, time = records.batch[i], records.timestamp[i]
        retention.keep[i] = records.is_retained[i]
        if not records.is_retained[i]:
            continue
        # A marker has no value either: only where keys decide is a null value a tombstone.
        if decision[batch] == BY_KEY and records.value_size[i] < 0:
            if expired[batch] and records.offset[i] < map_end:
                retention.keep[i] = False
                discarded += 1
                continue
            retention.tombstones[batch] += 1
        if retention.kept[batch] == 0:
            retention.first_time[batch] = time
            retention.last_time[batch] = time
        retention.kept[batch] += 1
        retention.last_time[batch] = max(retention.last_time[batch], time)
    return discarded


@kernel
def _recode(data: Bytes, start: int, delta: int, out: Bytes, position: int) -> int:
    """Copy the record at ``data[start]`` with another timestamp delta; returns the end in ``out``.

    Relies on the decoder, which has read the record before: its varints are complete.
    """
    body, source = read_varint(data, start, len(data))
    end = source + body
    # After the attributes (one byte, always 0) and the old delta, the rest is copied as it is. A delta of
    # another length changes the record's length, which comes first.
    _, rest = read_varlong(data, source + 1, end)
    size = end - rest
    position = write_varint(out, position, 1 + varint_size(delta) + size)
    out[position] = 0
    position = write_varint(out, position + 1, delta)
    return copy_bytes(data, rest, size, out, position)


class BatchPlan(NamedTuple):
    """int64 a batch: its action, and the fields of its new header."""

    action: Int64
    attributes: Int64
    base_time: Int64
    max_time: Int64


@kernel
def emit(
    window: Bytes,
    batches: BatchHeaders,
    plan: BatchPlan,
    retention: Retention,
    records: Records,
    out: Bytes,
    starts: Int64,
    sizes: Int64,
) -> int:
    """Write the batches into ``out``, rebuilt ones uncompressed and without checksum; returns the end.

    Fills ``starts`` and ``sizes`` (bytes in ``out``, size 0 for a dropped batch). ``out`` has room for the
    window and, for each record, ``RECODE_ROOM`` more.
    """
    position, behind = 0, 0
    for b in range(len(batches)):
        first = behind
        while behind < len(records.batch) and records.batch[behind] == b:
            behind += 1
        starts[b] = position
        sizes[b] = 0
        if plan.action[b] == DROPPED:
            continue
        if plan.action[b] == COPIED:
            position = copy_bytes(window, batches[b].position, batches[b].size, out, position)
        else:
            end, base_time = position + BATCH_OVERHEAD, plan.base_time[b]
            # A record holds its timestamp as a delta to the base: another base changes each delta.
            moved = base_time != batches[b].base_timestamp
            for i in range(first, behind):
                if not retention.keep[i]:
                    continue
                if moved:
                    delta = records.timestamp[i] - base_time
                    end = _recode(records.data, records.start[i], delta, out, end)
                else:
                    end = copy_bytes(records.data, records.start[i], records.size[i], out, end)
            times = (base_time, plan.max_time[b])
            write_header(
                out, position, end - position, batches[b], plan.attributes[b], *times, retention.kept[b]
            )
            position = end
        sizes[b] = position - starts[b]
    return position


@kernel
def meet_retained(
    offset: Int64,
    batch: Int32,
    control: Flags,
    base_offset: int,
    map_end: int,
    retained: Offsets,
    last: int,
    met: int,
) -> tuple[int, int, int]:
    """Verify offsets that were written: (largest offset, how many retained offsets were passed, an error).

    Error 1: ``offset`` does not ascend from ``last``. Error 2: an offset is not among ``retained``
    (ascending, less ``base_offset``) from number ``met`` on; control batches and offsets from ``map_end`` on
    need not be.
    """
    for i in range(len(offset)):
        if offset[i] <= last:
            return last, met, 1
        last = offset[i]
        if control[batch[i]] or last >= map_end:
            continue
        relative = last - base_offset
        while met < len(retained) and retained[np.uint64(met)] < relative:
            met += 1
        if met == len(retained) or retained[np.uint64(met)] != relative:
            return last, met, 2
    return last, met, 0


# Record filters: which records their keys retain (Kafka's ``MemoryRecords.RecordFilter``).
#
# ``OffsetFilter`` has the retained offsets of a shuffle join and compares offsets only;
# ``broadcast.OffsetMapFilter`` looks up each key in the offset map.

_SPARSE = 16
"""Where fewer than one offset in 16 is retained, sorting is faster than marking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRecords:
    """Records of some batches: ``columns``, and which of these are retained by their keys, or need none
    (bool, one a record).

    ``met``: records in the batches, also those that are not in ``columns``. ``lost``: how many of them are
    discarded, superseded or without a key; ``keyless``: how many of these have no key.
    """

    columns: RecordColumns
    is_retained: Flags
    met: int
    lost: int
    keyless: int


class RecordFilter:
    """Tells which records of one group are retained by their keys; the group is read in log order.

    ``retained``: the offsets that are retained so far, less the group's base, ascending.
    """

    retained: Offsets

    def superseded(self, batches: BatchHeaders) -> Flags:
        """Which v2 batches are superseded as a whole, so that they need not be decompressed (bool)."""
        return _none(batches)

    def of(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The records of the batches that are decided by key, and of retained markers.

        Raises CorruptRecordError, CheckFailedError.
        """
        raise NotImplementedError

    def refuse_unmet(self, name: str) -> None:
        """Called after the last batch. Raises CheckFailedError if a retained offset of log ``name`` was not
        met."""


def in_order(retained: Offsets, span: int) -> Offsets:
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
        self._met = 0

    def superseded(self, batches: BatchHeaders) -> Flags:
        """Batches without a retained offset."""
        if self._counts_keyless:
            return _none(batches)
        base, last = batches["base_offset"], batches["last_offset"]
        first = np.searchsorted(self.retained, (base - self._base_offset).astype(np.uint32))
        behind = np.searchsorted(self.retained, (last - self._base_offset).astype(np.uint32), side="right")
        is_data = (batches["attributes"] & CONTROL_BIT) == 0
        return np.asarray((first == behind) & is_data & (last < self._map_end))

    def of(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The records with retained offsets, and those that no key decides on; all others are only counted.

        Raises CorruptRecordError, and CheckFailedError for a retained offset without a record.
        """
        rows = np.flatnonzero(decisions < 0)
        choice = ChosenOffsets(
            offsets=self.retained,
            base=self._base_offset,
            met=self._met,
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
        self._met = chosen.met
        columns, left_out = chosen.columns, chosen.left_out
        return FilteredRecords(
            columns=columns,
            is_retained=np.ones(len(columns), np.bool_),
            met=len(columns) + left_out,
            lost=left_out,
            keyless=chosen.keyless,
        )

    def refuse_unmet(self, name: str) -> None:
        """Raises CheckFailedError."""
        if self._met != len(self.retained):
            counts = f"{len(self.retained)} retained offsets, but {self._met} of them were met"
            raise CheckFailedError(f"{name}: {counts}")


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
    """Rewrites the batches of one group, in log order.

    ``records``, ``kept``, and ``discarded`` (int64, by reason) count the group's records so far.
    """

    def __init__(
        self, work: LogWork, record_filter: RecordFilter, transactions: TransactionScan, buffers: Buffers
    ) -> None:
        self._rules = work.rules
        self._filter = record_filter
        self._transactions = transactions
        self._scratch = buffers.plain
        self._out, self._other_out = buffers.drafts
        self.records = self.kept = 0
        self.discarded = np.zeros(BY_CLEANING, np.int64)

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
        superseded = self._filter.superseded(batches) if modern else _none(batches)
        must_stay = _must_stay(self._rules, batches)
        # A superseded batch is not read any further: extraction has verified its checksum.
        refuse_bad_checksum(window, batches[~superseded | must_stay], path=path, origin=origin)
        has_horizon = delete_horizons(batches)
        passed = has_horizon & (batches["base_timestamp"] <= self._rules.now_ms)
        # v2 batches have a delete horizon each (KIP-534); for v0 and v1 the segment's time decides.
        expired = passed if modern else np.full(len(batches), not keeps_legacy_tombstones)
        expired = expired & (batches["last_offset"] < self._rules.tombstones_from)
        followed = self._transactions.follow(window, batches, path=path, origin=origin)
        aborted, empty = (_none(batches), _none(batches)) if followed is None else followed
        decisions = _decisions(batches, aborted, empty & passed, superseded)
        filtered = self._filter.of(part, decisions, self._scratch)
        columns = filtered.columns
        records = Records(
            data=columns.data,
            batch=columns.batch,
            start=columns.start,
            size=columns.size,
            offset=columns.offset,
            timestamp=columns.timestamp,
            value_size=columns.value_size,
            is_retained=filtered.is_retained,
        )
        retention = Retention(np.empty(len(columns), np.bool_), *np.zeros((4, len(batches)), np.int64))
        tombstones = should_retain(records, expired, decisions, self._rules.map_end, retention)
        self._count(batches, filtered, tombstones, decisions, retention)
        plan = _decide(self._rules, batches, retention, has_horizon, empty, must_stay)
        if modern:
            return self._write(part, records, retention, plan)
        return _convert(part, columns, retention, plan)

    def _count(
        self,
        batches: BatchHeaders,
        filtered: FilteredRecords,
        tombstones: int,
        decisions: Decisions,
        retention: Retention,
    ) -> None:
        """Count each record once: as kept, or as discarded with its reason."""
        whole = {reason: int(batches["count"][decisions == reason].sum()) for reason in WHOLE_BATCH}
        for reason, count in whole.items():
            self.discarded[reason] += count
        self.discarded[SUPERSEDED] += filtered.lost - filtered.keyless
        self.discarded[TOMBSTONES] += tombstones
        self.discarded[KEYLESS] += filtered.keyless
        self.kept += int(retention.kept.sum())
        self.records += filtered.met + sum(whole.values())

    def _write(
        self, part: BatchSlice, records: Records, retention: Retention, plan: BatchPlan
    ) -> CleanedBatches | PendingBatches:
        window, batches = part.data, part.batches
        if (plan.action == COPIED).all():
            return _as_they_are(window, batches)
        room = len(records.data) + len(window) + RECODE_ROOM * len(records.batch)
        room += BATCH_OVERHEAD * len(batches)
        # Two buffers in turn: the batches before these may still be compressed in another thread.
        self._out, self._other_out = self._other_out, self._out
        out = self._out.reserve(room)
        starts, sizes = np.empty((2, len(batches)), np.int64)
        end = emit(window, batches, plan, retention, records, out, starts, sizes)
        return PendingBatches(
            data=out[:end],
            starts=starts,
            sizes=sizes,
            codecs=np.where(plan.action == REBUILT, codec_of(batches), 0),
            new=plan.action >= REBUILT,
            last_offset=batches["last_offset"],
            max_timestamp=plan.max_time,
        )


def _as_they_are(window: Bytes, batches: BatchHeaders) -> CleanedBatches:
    """Batches that follow each other in the window, copied as a whole."""
    start, last = int(batches["position"][0]), batches[-1]
    return CleanedBatches(
        data=window[start : int(last["position"]) + int(last["size"])],
        last_offset=batches["last_offset"],
        max_timestamp=batches["max_timestamp"],
        size=batches["size"].astype(np.int64),
        unchanged=True,
    )


def _none(batches: BatchHeaders) -> Flags:
    return np.zeros(len(batches), np.bool_)


def _decisions(batches: BatchHeaders, aborted: Flags, is_obsolete: Flags, superseded: Flags) -> Decisions:
    """The retention decision for each batch; ``is_obsolete``: markers that are discarded."""
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    marker = np.where(is_obsolete, MARKERS, RETAINED)
    by_key = np.where(superseded, SUPERSEDED, BY_KEY)
    return np.where(control, marker, np.where(aborted, ABORTED, by_key)).astype(np.int8)


def _decide(
    rules: Rules,
    batches: BatchHeaders,
    retention: Retention,
    has_horizon: Flags,
    empty_marker: Flags,
    must_stay: Flags,
) -> BatchPlan:
    """Action and new header of each batch. A tombstone, or the marker of an empty transaction, gets a delete
    horizon (KIP-534): attribute bit 6, and the horizon as base timestamp."""
    stamp = ((retention.tombstones > 0) | empty_marker) & ~has_horizon
    action = np.where(
        retention.kept == 0,
        np.where(must_stay, EMPTIED, DROPPED),
        np.where((retention.kept == batches["count"]) & ~stamp, COPIED, REBUILT),
    )
    horizon = np.where(has_horizon, batches["base_timestamp"], rules.new_horizon_ms)
    stamped = has_horizon | stamp
    attributes = batches["attributes"].astype(np.int64) & ~DELETE_HORIZON_BIT
    log_append = (attributes & 8) != 0  # its largest timestamp is the broker's, not a record's
    emptied = action == EMPTIED
    return BatchPlan(
        action=action.astype(np.int64),
        attributes=np.where(
            emptied, attributes & ~CODEC_MASK, attributes | np.where(stamped, DELETE_HORIZON_BIT, 0)
        ),
        base_time=np.where(emptied, -1, np.where(stamped, horizon, retention.first_time)),
        max_time=np.where((action == REBUILT) & ~log_append, retention.last_time, batches["max_timestamp"]),
    )


def _convert(
    part: BatchSlice, columns: RecordColumns, retention: Retention, plan: BatchPlan
) -> CleanedBatches:
    """The retained records of message set entries as v2 batches."""
    horizon = np.where(retention.tombstones > 0, plan.base_time, NO_HORIZON)
    converted = convert_entries(
        part.batches,
        columns,
        keep=retention.keep,
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


def _must_stay(rules: Rules, batches: BatchHeaders) -> Flags:
    """Which batches stay without records (bool): the last one of the range, so that its last offset stays,
    and the last one of each live producer: its data with the last sequence, or else a marker with its
    epoch."""
    last: Flags = batches["last_offset"] == rules.last_offset
    if not len(rules.producers):
        return last
    producers, last_offsets, epochs = rules.producers.T
    ids = batches["producer_id"]
    where = np.searchsorted(producers, ids).clip(max=len(producers) - 1)
    known = (ids >= 0) & (producers[where] == ids)
    control = (batches["attributes"] & CONTROL_BIT) != 0
    fences = (last_offsets[where] < 0) & control & (epochs[where] == batches["producer_epoch"])
    kept: Flags = last | (known & ((last_offsets[where] == batches["last_offset"]) | fences))
    return kept
