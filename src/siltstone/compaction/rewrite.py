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

``judging.judge`` decides for the records of a window, window by window; ``judging.emit`` writes. No Python
object a record, and a compressed batch is the only thing that costs Python anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CheckFailedError
from siltstone.base.records.build import RECODE_ROOM, compress_batches, copy_bytes, write_header
from siltstone.base.records.checksum import patch_checksums, refuse_bad_checksum
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
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
from siltstone.compaction.discards import ABORTED, KEYLESS, MARKERS, SUPERSEDED, TOMBSTONES, no_counts
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


@kernel
def judge(
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
    value_size: Int32,
    won: Flags,
    expired: Flags,
    decision: Decisions,
    map_end: int,
    keep: Flags,
    kept: Int64,
    tombstones: Int64,
    first_time: Int64,
    last_time: Int64,
) -> int:
    """Which of the records that ``won`` stay: fills ``keep`` a record, the last four a batch.

    Tombstones of ``expired`` batches go; from ``map_end`` on none does, nor a marker. Returns how many
    went so.
    """
    gone = 0
    for i in range(len(offset)):
        here = batch[i]
        keep[i] = won[i]
        if not won[i]:
            continue
        if decision[here] == BY_KEY and value_size[i] < 0:
            if expired[here] and offset[i] < map_end:
                keep[i] = False
                gone += 1
                continue
            tombstones[here] += 1
        if kept[here] == 0:
            first_time[here] = timestamp[i]
            last_time[here] = timestamp[i]
        kept[here] += 1
        last_time[here] = max(last_time[here], timestamp[i])
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


@kernel
def emit(
    window: Bytes,
    batches: Directory,
    action: Int64,
    attributes: Int64,
    base_time: Int64,
    max_time: Int64,
    kept: Int64,
    data: Bytes,
    record_batch: Int32,
    record_start: Int32,
    record_size: Int32,
    timestamp: Int64,
    keep: Flags,
    out: Bytes,
    starts: Int64,
    sizes: Int64,
) -> int:
    """Write the batches that stay into ``out``, rebuilt ones uncompressed and without checksums.

    ``starts`` and ``sizes`` are filled a batch (size 0: dropped). Returns the end.
    """
    position = 0
    r = 0
    for b in range(len(batches)):
        first = r
        while r < len(record_batch) and record_batch[r] == b:
            r += 1
        starts[b] = position
        sizes[b] = 0
        if action[b] == 0:
            continue
        if action[b] == 1:
            position = copy_bytes(window, batches[b].position, batches[b].size, out, position)
        else:
            end = position + 61
            moved = base_time[b] != batches[b].base_timestamp
            for i in range(first, r):
                if not keep[i]:
                    continue
                if moved:
                    end = _recode(data, record_start[i], timestamp[i] - base_time[b], out, end)
                else:
                    end = copy_bytes(data, record_start[i], record_size[i], out, end)
            write_header(
                out, position, end - position, batches[b], attributes[b], base_time[b], max_time[b], kept[b]
            )
            position = end
        sizes[b] = position - starts[b]
    return position


@kernel
def meet_winners(
    offset: Int64,
    batch: Int32,
    control: Flags,
    base_offset: int,
    map_end: int,
    winners: Offsets,
    last: int,
    met: int,
) -> tuple[int, int, int]:
    """Go through records that were written: (largest offset, winners passed, what is wrong).

    ``offset`` must ascend from above ``last``, else 1; each is among the ``winners`` (ascending, less
    ``base_offset``) from number ``met`` on, else 2, but for control batches and from ``map_end`` on.
    """
    for i in range(len(offset)):
        if offset[i] <= last:
            return last, met, 1
        last = offset[i]
        if control[batch[i]] or last >= map_end:
            continue
        relative = last - base_offset
        while met < len(winners) and winners[np.uint64(met)] < relative:
            met += 1
        if met == len(winners) or winners[np.uint64(met)] != relative:
            return last, met, 2
    return last, met, 0


# Who won the keys' contests: what a rewrite asks of a group's batches.
#
# ``ByWinners`` was told the offsets of those that did, so it reads nothing else; ``lookup.ByLookup`` looks
# each key up in a map.

_SPARSE = 16
"""Where no more than one offset in so many is a winner's, winners are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contested:
    """Records of some batches: ``columns``, and which of them ``won`` or needed not (bool, one a record).

    ``met``: how many records there were, also those that are not among the columns; ``lost``: how many of
    them did not win; ``keyless``: how many of the lost ones have no key.
    """

    columns: RecordColumns
    won: Flags
    met: int
    lost: int
    keyless: int


class Contest(Protocol):
    """The contest of one group, gone through in log order."""

    @property
    def winners(self) -> Offsets:
        """The offsets that won up to now, less the group's base, ascending."""
        ...

    def beaten(self, batches: Directory) -> Flags:
        """Which batches of magic 2 have nothing that won, nor anything that no key decides on."""
        ...

    def of(
        self,
        window: Bytes,
        batches: Directory,
        decisions: Decisions,
        scratch: Scratch,
        path: str,
        origin: int,
    ) -> Contested:
        """The records of the batches that go by key and of the markers that stay. Raises what is wrong."""
        ...

    def refuse_unmet(self, name: str) -> None:
        """The group is through. Raises CheckFailedError when not every winner of log ``name`` was met."""
        ...


def in_order(winners: Offsets, span: int) -> Offsets:
    """Offsets (uint32, less their base) ascending; ``span`` is what they are to be below.

    Where they are many they are marked and read off, which takes a fifth of the time of sorting them. What
    ought not to be, offsets beyond or twice, stays, to be found by those who check.
    """
    if len(winners) and span <= _SPARSE * len(winners) and int(winners.max()) < span:
        is_winner = np.zeros(span, np.bool_)
        is_winner[winners] = True
        found = np.flatnonzero(is_winner)
        if len(found) == len(winners):
            return found.astype(np.uint32)
    return np.sort(winners)


class ByWinners:
    """``winners``: offsets less ``base_offset``, ascending; ``map_end``: records from it on all stay.

    ``batch_limit``: what one batch may decompress to. Without ``counts_keyless`` a batch in which there is no
    winner is not looked into: all of it is beaten.
    """

    def __init__(
        self,
        winners: Offsets,
        base_offset: int,
        *,
        map_end: int = LONG_MAX,
        counts_keyless: bool = True,
        batch_limit: int = DEFAULT_LIMIT,
    ) -> None:
        self.winners = winners
        self._base_offset = base_offset
        self._map_end = map_end
        self._counts_keyless = counts_keyless
        self._limit = batch_limit
        self._met = 0

    def beaten(self, batches: Directory) -> Flags:
        """By their offsets alone."""
        if self._counts_keyless:
            return np.zeros(len(batches), np.bool_)
        base, last = batches["base_offset"], batches["last_offset"]
        first = np.searchsorted(self.winners, (base - self._base_offset).astype(np.uint32))
        behind = np.searchsorted(self.winners, (last - self._base_offset).astype(np.uint32), side="right")
        is_data = (batches["attributes"] & CONTROL_BIT) == 0
        return np.asarray((first == behind) & is_data & (last < self._map_end))

    def of(
        self,
        window: Bytes,
        batches: Directory,
        decisions: Decisions,
        scratch: Scratch,
        path: str,
        origin: int,
    ) -> Contested:
        """The winners, and what no key decides on; all others are only counted. Raises CorruptRecordError,
        and CheckFailedError for a winner that is no record."""
        rows = np.flatnonzero(decisions < 0)
        choice = ChosenOffsets(
            offsets=self.winners,
            base=self._base_offset,
            met=self._met,
            all_from=np.where(decisions[rows] == BY_KEY, self._map_end, 0),
        )
        found = decode_chosen_records(
            window, batches, rows, choice, scratch, limit=self._limit, path=path, origin=origin
        )
        self._met = found.met
        won = np.ones(len(found.columns), np.bool_)
        met = len(won) + found.left_out
        return Contested(columns=found.columns, won=won, met=met, lost=found.left_out, keyless=found.keyless)

    def refuse_unmet(self, name: str) -> None:
        """Raises CheckFailedError."""
        if self._met != len(self.winners):
            raise CheckFailedError(f"{name}: {len(self.winners)} winners, but {self._met} of them were met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a cleaning's rules hang on: times in ms, ``end`` the first uncleanable offset.

    ``producers`` (int64[n, 3]): ids, ascending, their last data offsets (-1 without one) and epochs.
    ``map_end``: records from it on all stay. ``tombstones_from``: tombstones from it on stay at any age.
    """

    now_ms: int
    delete_retention_ms: int
    end: int
    producers: Int64
    map_end: int = LONG_MAX
    tombstones_from: int = LONG_MAX

    @property
    def new_horizon_ms(self) -> int:
        """The delete horizon that this pass stamps with; a retention that is longer than time goes is for
        ever. (In Kafka the sum wraps around, and the batch stays without a stamp.)"""
        return min(self.now_ms + self.delete_retention_ms, LONG_MAX)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What went, by number of its reason (``discards``), and what stayed, summed up over a group."""

    records: int = 0
    kept: int = 0
    gone: Int64 = field(default_factory=no_counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Finished batches of one window: the bytes, and a row a batch for the indexes (int64).

    ``unchanged``: all batches of the window as they are; ``data`` is a part of it then, and no copy.
    """

    data: Bytes
    last_offset: Int64
    max_timestamp: Int64
    size: Int64
    unchanged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
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

    def finished(self, packed: Scratch) -> Output:
        """The output; compressed batches are in ``packed``."""
        data, starts, sizes = self.data, self.starts, self.sizes
        if self.codecs.any():
            data, starts, sizes = compress_batches(data, starts, sizes, self.codecs, packed)
        patch_checksums(data, starts[self.new], sizes[self.new])
        rows = sizes > 0
        return Output(
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
        self, rules: Rules, contest: Contest, transactions: TransactionScan, buffers: Buffers
    ) -> None:
        self._rules = rules
        self._contest = contest
        self._transactions = transactions
        self._scratch = buffers.plain
        self._out, self._other_out = buffers.drafts
        self.tally = Tally()

    def rewrite(
        self,
        window: Bytes,
        batches: Directory,
        *,
        keeps_legacy_tombstones: bool = True,
        path: str = "",
        origin: int = 0,
    ) -> Output | Draft:
        """The output for these batches; a draft of it where some do not stay as they are.

        A draft's bytes stay as they are until two more were made; an output's may be a part of ``window``, or
        change with the next one.

        They are all of magic 2, or all older; of those tombstones stay where ``keeps_legacy_tombstones`` says
        so. ``path`` and ``origin`` are for messages. Raises CorruptRecordError for a checksum that does not
        hold and for records, and CorruptFileError for transactions, that make no sense, and CheckFailedError
        for a winner that is no record.
        """
        modern = bool(batches["magic"][0] == 2)
        beaten = self._contest.beaten(batches) if modern else _none(batches)
        must_stay = _must_stay(self._rules, batches)
        refuse_bad_checksum(window, batches[~beaten | must_stay], path=path, origin=origin)
        has_horizon = delete_horizons(batches)
        passed = has_horizon & (batches["base_timestamp"] <= self._rules.now_ms)
        expired = passed if modern else np.full(len(batches), not keeps_legacy_tombstones)
        expired = expired & (batches["last_offset"] < self._rules.tombstones_from)
        followed = self._transactions.follow(window, batches, path=path, origin=origin)
        aborted, empty = (_none(batches), _none(batches)) if followed is None else followed
        decisions = _decisions(batches, aborted, empty & passed, beaten)
        found = self._contest.of(window, batches, decisions, self._scratch, path, origin)
        columns = found.columns
        judged = self._judge(batches, found, expired, decisions)
        plan = _decide(self._rules, batches, judged, has_horizon, empty, must_stay)
        if modern:
            return self._write(window, batches, columns, judged, plan)
        return _convert(batches, columns, judged, plan, path, origin)

    def _judge(self, batches: Directory, found: Contested, expired: Flags, decisions: Decisions) -> _Judged:
        """Of those that won, or needed not, tombstones may go; everything is counted."""
        columns = found.columns
        keep = np.empty(len(columns), np.bool_)
        kept, tombstones, first_time, last_time = np.zeros((4, len(batches)), np.int64)
        spans = (columns.batch, columns.offset, columns.timestamp, columns.value_size, found.won)
        counts = (kept, tombstones, first_time, last_time)
        old = judge(*spans, expired, decisions, self._rules.map_end, keep, *counts)
        of = {reason: int(batches["count"][decisions == reason].sum()) for reason in WHOLE_BATCH}
        for reason, count in of.items():
            self.tally.gone[reason] += count
        self.tally.gone[SUPERSEDED] += found.lost - found.keyless
        self.tally.gone[TOMBSTONES] += old
        self.tally.gone[KEYLESS] += found.keyless
        self.tally.kept += int(kept.sum())
        self.tally.records += found.met + sum(of.values())
        return _Judged(
            keep=keep, kept=kept, tombstones=tombstones, first_time=first_time, last_time=last_time
        )

    def _write(
        self, window: Bytes, batches: Directory, columns: RecordColumns, judged: _Judged, plan: _Plan
    ) -> Output | Draft:
        if (plan.action == COPIED).all():
            return _as_they_are(window, batches)
        room = len(columns.data) + len(window) + RECODE_ROOM * len(columns) + BATCH_OVERHEAD * len(batches)
        self._out, self._other_out = self._other_out, self._out
        out = self._out.reserve(room)
        starts, sizes = np.empty((2, len(batches)), np.int64)
        records: tuple[Any, ...] = (
            columns.data,
            columns.batch,
            columns.start,
            columns.size,
            columns.timestamp,
            judged.keep,
        )
        headers = (plan.action, plan.attributes, plan.base_time, plan.max_time, judged.kept)
        arguments: list[Any] = [window, batches, *headers, *records, out, starts, sizes]
        end = emit(*arguments)
        return Draft(
            data=out[:end],
            starts=starts,
            sizes=sizes,
            codecs=np.where(plan.action == REBUILT, codec_of(batches), 0),
            new=plan.action >= REBUILT,
            last_offset=batches["last_offset"],
            max_timestamp=plan.max_time,
        )


def _as_they_are(window: Bytes, batches: Directory) -> Output:
    """Batches that lie one behind the other in their window."""
    start, last = int(batches["position"][0]), batches[-1]
    return Output(
        data=window[start : int(last["position"]) + int(last["size"])],
        last_offset=batches["last_offset"],
        max_timestamp=batches["max_timestamp"],
        size=batches["size"].astype(np.int64),
        unchanged=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Which records stay (bool, one a record), and a row a batch (int64): how many, how many tombstones among
    them, the first one's time and the largest."""

    keep: Flags
    kept: Int64
    tombstones: Int64
    first_time: Int64
    last_time: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A row a batch: what to do, and the header fields of what comes out (int64)."""

    action: Int64
    attributes: Int64
    base_time: Int64
    max_time: Int64


def _none(batches: Directory) -> Flags:
    return np.zeros(len(batches), np.bool_)


def _decisions(batches: Directory, aborted: Flags, marker_goes: Flags, beaten: Flags) -> Decisions:
    """The retention decision about each batch's records."""
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    marker = np.where(marker_goes, MARKERS, RETAINED)
    by_key = np.where(beaten, SUPERSEDED, BY_KEY)
    return np.where(control, marker, np.where(aborted, ABORTED, by_key)).astype(np.int8)


def _decide(
    rules: Rules,
    batches: Directory,
    judged: _Judged,
    has_horizon: Flags,
    empty_marker: Flags,
    must_stay: Flags,
) -> _Plan:
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
    return _Plan(
        action=action.astype(np.int64),
        attributes=np.where(
            emptied, attributes & ~CODEC_MASK, attributes | np.where(stamped, DELETE_HORIZON_BIT, 0)
        ),
        base_time=np.where(emptied, -1, np.where(stamped, horizon, judged.first_time)),
        max_time=np.where((action == REBUILT) & ~log_append, judged.last_time, batches["max_timestamp"]),
    )


def _convert(
    entries: Directory, columns: RecordColumns, judged: _Judged, plan: _Plan, path: str, origin: int
) -> Output:
    """What stays of message set entries, as v2 batches; the last one of the range stays even when empty."""
    horizon = np.where(judged.tombstones > 0, plan.base_time, NO_HORIZON)
    found = convert_entries(
        entries,
        columns,
        keep=judged.keep,
        horizon_ms=horizon,
        keep_empty=plan.action == EMPTIED,
        path=path,
        origin=origin,
    )
    return Output(
        data=found.data, last_offset=found.last_offset, max_timestamp=found.max_timestamp, size=found.size
    )


def _must_stay(rules: Rules, batches: Directory) -> Flags:
    """Batches that stay even without records."""
    last: Flags = batches["last_offset"] + 1 == rules.end
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
