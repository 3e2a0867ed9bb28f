"""Writing what stays: one group of segments becomes one new segment (``Cleaner.cleanInto``, ``filterTo``).

For every batch one of five things happens::

    copied    nothing goes and nothing has to be stamped: its bytes, as they are
    rebuilt   some records go, or its first tombstones are stamped with their delete horizon: base and
              last offset, producer, epochs, sequence, codec and timestamp type stay; the base timestamp is
              the first kept record's, or the horizon; the largest timestamp is computed anew
    emptied   all records go, but the batch must stay (a live producer's last one, or the last offset of
              the cleaned range): 61 bytes, no codec, base timestamp -1
    dropped   all records go
    converted an entry of a message set (v0, v1) of which anything stays: one v2 batch with what stays of it

Records of aborted transactions go whatever their key; a marker stays until its transaction is empty and its
horizon, with which the first such pass stamps it, has passed.

``judge`` decides for the records of a window, window by window; ``emit`` writes. No Python
object a record, and a compressed batch is the only thing that costs Python anything.
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
    Bytes,
    Directory,
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

# The kernels of a rewrite: which records stay, and writing the batches that do.
#
# What becomes of a batch's records is its *retention decision* (Kafka: ``checkBatchRetention``): each goes by
# its key, all stay (a marker), or all are discarded, for one of the reasons of ``discards``. What is done
# with the batch is its *action*.

Decisions = npt.NDArray[np.int8]
Offsets = npt.NDArray[np.uint32]
DROPPED, COPIED, REBUILT, EMPTIED = range(4)
"""Actions."""
BY_KEY, RETAINED = -2, -1
"""Retention decisions, beside the numbers of ``WHOLE_BATCH``."""
WHOLE_BATCH = (SUPERSEDED, ABORTED, MARKERS)
"""The reasons for which all records of a batch may be discarded."""


class Records(NamedTuple):
    """Decoded records: the batch and offset of each, its time (ms), its value's size (-1 for null), its place
    in ``data``, and whether it is retained, by its key or regardless of it."""

    data: Bytes
    batch: Int32
    start: Int32
    size: Int32
    offset: Int64
    timestamp: Int64
    value_size: Int32
    is_retained: Flags


class Judgement(NamedTuple):
    """Which records stay (bool, one a record), and a row a batch (int64): how many, how many tombstones among
    them, the first one's time and the largest."""

    keep: Flags
    kept: Int64
    tombstones: Int64
    first_time: Int64
    last_time: Int64


@kernel
def judge(records: Records, expired: Flags, decision: Decisions, map_end: int, judged: Judgement) -> int:
    """Which of the records stay that are retained by their keys: fills ``judged``, whose rows are 0.

    Tombstones of ``expired`` batches go; from ``map_end`` on none does, nor a marker. Returns how many
    went so.
    """
    gone = 0
    for i in range(len(records.offset)):
        here, time = records.batch[i], records.timestamp[i]
        judged.keep[i] = records.is_retained[i]
        if not records.is_retained[i]:
            continue
        if decision[here] == BY_KEY and records.value_size[i] < 0:
            if expired[here] and records.offset[i] < map_end:
                judged.keep[i] = False
                gone += 1
                continue
            judged.tombstones[here] += 1
        if judged.kept[here] == 0:
            judged.first_time[here] = time
            judged.last_time[here] = time
        judged.kept[here] += 1
        judged.last_time[here] = max(judged.last_time[here], time)
    return gone


@kernel
def _recode(data: Bytes, start: int, delta: int, out: Bytes, position: int) -> int:
    """Copy the record at ``data[start]`` with another timestamp delta; returns the end in ``out``.

    The record was decoded before, so its varints are known to be whole.
    """
    body, source = read_varint(data, start, len(data))
    end = source + body
    _, rest = read_varlong(data, source + 1, end)
    size = end - rest
    position = write_varint(out, position, 1 + varint_size(delta) + size)
    out[position] = 0
    position = write_varint(out, position + 1, delta)
    return copy_bytes(data, rest, size, out, position)


class BatchPlan(NamedTuple):
    """A row a batch: what to do, and the header fields of what comes out (int64)."""

    action: Int64
    attributes: Int64
    base_time: Int64
    max_time: Int64


@kernel
def emit(
    window: Bytes,
    batches: Directory,
    plan: BatchPlan,
    judged: Judgement,
    records: Records,
    out: Bytes,
    starts: Int64,
    sizes: Int64,
) -> int:
    """Write the batches that stay into ``out``, rebuilt ones uncompressed and without checksums.

    ``starts`` and ``sizes`` are filled a batch (size 0: dropped). Returns the end.
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
            moved = base_time != batches[b].base_timestamp
            for i in range(first, behind):
                if not judged.keep[i]:
                    continue
                if moved:
                    delta = records.timestamp[i] - base_time
                    end = _recode(records.data, records.start[i], delta, out, end)
                else:
                    end = copy_bytes(records.data, records.start[i], records.size[i], out, end)
            times = (base_time, plan.max_time[b])
            write_header(
                out, position, end - position, batches[b], plan.attributes[b], *times, judged.kept[b]
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
    """Go through records that were written: (largest offset, retained offsets passed, what is wrong).

    ``offset`` must ascend from above ``last``, else 1; each is among the ``retained`` (ascending, less
    ``base_offset``) from number ``met`` on, else 2, but for control batches and from ``map_end`` on.
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


# Which records are retained by their keys (Kafka's ``RecordFilter``), asked batch by batch.
#
# ``OffsetFilter`` has the offsets that are retained, and reads nothing else; ``broadcast.OffsetMapFilter``
# looks each key up in the offset map.

_SPARSE = 16
"""Where no more than one offset in so many is retained, they are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRecords:
    """Records of some batches: ``columns``, and which of them are retained by their
    keys, or need none (bool, one a record).

    ``met``: how many records there were, also those that are not among the columns; ``lost``: how many of
    them did not win; ``keyless``: how many of the lost ones have no key.
    """

    columns: RecordColumns
    is_retained: Flags
    met: int
    lost: int
    keyless: int


class RecordFilter:
    """Decides which records of one group its keys retain; the group is read in log order.

    ``retained``: the offsets retained up to now, less the group's base, ascending.
    """

    retained: Offsets

    def superseded(self, batches: Directory) -> Flags:
        """Which batches of magic 2 have no retained record, and none that no key decides on (bool)."""
        return _none(batches)

    def of(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The records of the batches that go by key and of the markers that stay. Raises what is wrong."""
        raise NotImplementedError

    def refuse_unmet(self, name: str) -> None:
        """The group is through. Raises CheckFailedError when not every retained offset of log ``name`` was
        met."""


def in_order(retained: Offsets, span: int) -> Offsets:
    """Offsets (uint32, less their base) ascending; ``span`` is what they are to be below.

    Where they are many they are marked and read off, which takes a fifth of the time of sorting them. Offsets
    that are there twice, or out of range, are not removed: the checks that follow report them.
    """
    if len(retained) and span <= _SPARSE * len(retained) and int(retained.max()) < span:
        is_marked = np.zeros(span, np.bool_)
        is_marked[retained] = True
        ascending = np.flatnonzero(is_marked)
        if len(ascending) == len(retained):
            return ascending.astype(np.uint32)
    return np.sort(retained)


class OffsetFilter(RecordFilter):
    """``retained``: offsets less ``base_offset``, ascending.

    Where no record without a key is to be counted (of a log that is cleaned there is none then), a batch in
    which there is no retained offset is not decompressed: all of it is superseded.
    """

    def __init__(self, work: LogWork, base_offset: int, retained: Offsets) -> None:
        self.retained = retained
        self._base_offset = base_offset
        self._map_end, self._limit = work.rules.map_end, work.limits.batch_limit
        self._counts_keyless = work.rules.drop_keyless
        self._met = 0

    def superseded(self, batches: Directory) -> Flags:
        """By their offsets alone."""
        if self._counts_keyless:
            return _none(batches)
        base, last = batches["base_offset"], batches["last_offset"]
        first = np.searchsorted(self.retained, (base - self._base_offset).astype(np.uint32))
        behind = np.searchsorted(self.retained, (last - self._base_offset).astype(np.uint32), side="right")
        is_data = (batches["attributes"] & CONTROL_BIT) == 0
        return np.asarray((first == behind) & is_data & (last < self._map_end))

    def of(self, part: BatchSlice, decisions: Decisions, scratch: Scratch) -> FilteredRecords:
        """The retained offsets, and what no key decides on; all others are only counted. Raises
        CorruptRecordError, and CheckFailedError for a retained offset that is no record."""
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
    """Finished batches of one window: the bytes, and a row a batch for the indexes (int64).

    ``unchanged``: all batches of the window as they are; ``data`` is a part of it then, and no copy.
    """

    data: Bytes
    last_offset: Int64
    max_timestamp: Int64
    size: Int64
    unchanged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatches:
    """Batches of one window before they are compressed and their checksums computed.

    ``starts`` and ``sizes`` (int64) are their places in ``data``, a size of 0 for none; ``codecs`` (int16):
    how to compress each, 0 for not; ``new``: whose checksum is to be computed.
    """

    data: Bytes
    starts: Int64
    sizes: Int64
    codecs: npt.NDArray[np.int16]
    new: Flags
    last_offset: Int64
    max_timestamp: Int64

    def finished(self, packed: Scratch) -> CleanedBatches:
        """The output; compressed batches are in ``packed``."""
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
    """Where a group's bytes go while it is rewritten. New memory is dear: a task's groups use the same ones,
    one after another."""

    def __init__(self) -> None:
        self.plain, self.packed, self.read_back = Scratch(), Scratch(), Scratch()
        self.drafts = Scratch(), Scratch()


class Rewriter:
    """Turns the windows of a group, in order, into output. One for each group."""

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
        """The output for these batches: ``PendingBatches`` where some do not stay as they are.

        Pending bytes stay valid until two more were made; others may be a part of its window, or
        change with the next one.

        They are all of magic 2, or all older; of those tombstones stay where ``keeps_legacy_tombstones`` says
        so. Raises CorruptRecordError for a checksum that does not hold and for records, and CorruptFileError
        for transactions, that make no sense, and CheckFailedError for a retained offset that is no record.
        """
        window, batches, path, origin = part
        modern = bool(batches["magic"][0] == 2)
        superseded = self._filter.superseded(batches) if modern else _none(batches)
        must_stay = _must_stay(self._rules, batches)
        refuse_bad_checksum(window, batches[~superseded | must_stay], path=path, origin=origin)
        has_horizon = delete_horizons(batches)
        passed = has_horizon & (batches["base_timestamp"] <= self._rules.now_ms)
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
        judged = Judgement(np.empty(len(columns), np.bool_), *np.zeros((4, len(batches)), np.int64))
        tombstones = judge(records, expired, decisions, self._rules.map_end, judged)
        self._count(batches, filtered, tombstones, decisions, judged)
        plan = _decide(self._rules, batches, judged, has_horizon, empty, must_stay)
        if modern:
            return self._write(part, records, judged, plan)
        return _convert(part, columns, judged, plan)

    def _count(
        self,
        batches: Directory,
        filtered: FilteredRecords,
        tombstones: int,
        decisions: Decisions,
        judged: Judgement,
    ) -> None:
        """Every record is counted once, with the reason of its discard or as kept."""
        whole = {reason: int(batches["count"][decisions == reason].sum()) for reason in WHOLE_BATCH}
        for reason, count in whole.items():
            self.discarded[reason] += count
        self.discarded[SUPERSEDED] += filtered.lost - filtered.keyless
        self.discarded[TOMBSTONES] += tombstones
        self.discarded[KEYLESS] += filtered.keyless
        self.kept += int(judged.kept.sum())
        self.records += filtered.met + sum(whole.values())

    def _write(
        self, part: BatchSlice, records: Records, judged: Judgement, plan: BatchPlan
    ) -> CleanedBatches | PendingBatches:
        window, batches = part.data, part.batches
        if (plan.action == COPIED).all():
            return _as_they_are(window, batches)
        room = len(records.data) + len(window) + RECODE_ROOM * len(records.batch)
        room += BATCH_OVERHEAD * len(batches)
        self._out, self._other_out = self._other_out, self._out
        out = self._out.reserve(room)
        starts, sizes = np.empty((2, len(batches)), np.int64)
        end = emit(window, batches, plan, judged, records, out, starts, sizes)
        return PendingBatches(
            data=out[:end],
            starts=starts,
            sizes=sizes,
            codecs=np.where(plan.action == REBUILT, codec_of(batches), 0),
            new=plan.action >= REBUILT,
            last_offset=batches["last_offset"],
            max_timestamp=plan.max_time,
        )


def _as_they_are(window: Bytes, batches: Directory) -> CleanedBatches:
    """Batches that lie one behind the other in their window."""
    start, last = int(batches["position"][0]), batches[-1]
    return CleanedBatches(
        data=window[start : int(last["position"]) + int(last["size"])],
        last_offset=batches["last_offset"],
        max_timestamp=batches["max_timestamp"],
        size=batches["size"].astype(np.int64),
        unchanged=True,
    )


def _none(batches: Directory) -> Flags:
    return np.zeros(len(batches), np.bool_)


def _decisions(batches: Directory, aborted: Flags, marker_goes: Flags, superseded: Flags) -> Decisions:
    """The retention decision about each batch's records."""
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    marker = np.where(marker_goes, MARKERS, RETAINED)
    by_key = np.where(superseded, SUPERSEDED, BY_KEY)
    return np.where(control, marker, np.where(aborted, ABORTED, by_key)).astype(np.int8)


def _decide(
    rules: Rules,
    batches: Directory,
    judged: Judgement,
    has_horizon: Flags,
    empty_marker: Flags,
    must_stay: Flags,
) -> BatchPlan:
    """What to do with each batch; a tombstone or the marker of an empty transaction asks for the stamp."""
    stamp = ((judged.tombstones > 0) | empty_marker) & ~has_horizon
    action = np.where(
        judged.kept == 0,
        np.where(must_stay, EMPTIED, DROPPED),
        np.where((judged.kept == batches["count"]) & ~stamp, COPIED, REBUILT),
    )
    horizon = np.where(has_horizon, batches["base_timestamp"], rules.new_horizon_ms)
    stamped = has_horizon | stamp
    attributes = batches["attributes"].astype(np.int64) & ~DELETE_HORIZON_BIT
    log_append = (attributes & 8) != 0
    emptied = action == EMPTIED
    return BatchPlan(
        action=action.astype(np.int64),
        attributes=np.where(
            emptied, attributes & ~CODEC_MASK, attributes | np.where(stamped, DELETE_HORIZON_BIT, 0)
        ),
        base_time=np.where(emptied, -1, np.where(stamped, horizon, judged.first_time)),
        max_time=np.where((action == REBUILT) & ~log_append, judged.last_time, batches["max_timestamp"]),
    )


def _convert(part: BatchSlice, columns: RecordColumns, judged: Judgement, plan: BatchPlan) -> CleanedBatches:
    """What stays of message set entries, as v2 batches; the last one of the range stays even when empty."""
    horizon = np.where(judged.tombstones > 0, plan.base_time, NO_HORIZON)
    converted = convert_entries(
        part.batches,
        columns,
        keep=judged.keep,
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


def _must_stay(rules: Rules, batches: Directory) -> Flags:
    """Batches that stay even without records."""
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
