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
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.cleaner.contest import Contest, Contested
from siltstone.cleaner.judging import (
    ABORTED,
    BEATEN,
    BY_KEY,
    COPIED,
    DROPPED,
    EMPTIED,
    MARKER_STAYS,
    MARKERS,
    REBUILT,
    Fates,
    Flags,
    emit,
    judge,
)
from siltstone.config import LONG_MAX
from siltstone.log.transactions import TransactionScan
from siltstone.records.build import RECODE_ROOM, compress_batches
from siltstone.records.checksum import patch_checksums, refuse_bad_checksum
from siltstone.records.codecs import Scratch
from siltstone.records.columns import RecordColumns
from siltstone.records.convert import NO_HORIZON, convert_entries
from siltstone.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    Bytes,
    Directory,
    Int64,
    codec_of,
    delete_horizons,
)


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
    """What went and what stayed, summed up over a group."""

    records: int = 0
    kept: int = 0
    gone: Int64 = field(default_factory=lambda: np.zeros(5, np.int64))


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
        fates = _fates(batches, aborted, empty & passed, beaten)
        found = self._contest.of(window, batches, fates, self._scratch, path, origin)
        columns = found.columns
        judged = self._judge(batches, found, expired, fates)
        plan = _decide(self._rules, batches, judged, has_horizon, empty, must_stay)
        if modern:
            return self._write(window, batches, columns, judged, plan)
        return _convert(batches, columns, judged, plan, path, origin)

    def _judge(self, batches: Directory, found: Contested, expired: Flags, fates: Fates) -> _Judged:
        """Of those that won, or needed not, tombstones may go; everything is counted."""
        columns = found.columns
        keep = np.empty(len(columns), np.bool_)
        kept, tombstones, first_time, last_time = np.zeros((4, len(batches)), np.int64)
        spans = (columns.batch, columns.offset, columns.timestamp, columns.value_size, found.won)
        counts = (kept, tombstones, first_time, last_time)
        old = judge(*spans, expired, fates, self._rules.map_end, keep, *counts)
        of = {fate: int(batches["count"][fates == fate].sum()) for fate in (BEATEN, ABORTED, MARKERS)}
        superseded = found.lost - found.keyless + of[BEATEN]
        self.tally.gone += (superseded, old, found.keyless, of[ABORTED], of[MARKERS])
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


def _fates(batches: Directory, aborted: Flags, marker_goes: Flags, beaten: Flags) -> Fates:
    """What becomes of each batch's records, as ``BY_KEY`` says."""
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    marker = np.where(marker_goes, MARKERS, MARKER_STAYS)
    by_key = np.where(beaten, BEATEN, BY_KEY)
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
