"""One piece of BEFORE beside what AFTER has in its place.

``Comparison.match`` takes the pieces of AFTER one after another: batches are matched by their offsets,
records by theirs, and both are held to what they were. What no piece matched is gone then, and ``judge`` asks
whether it may be: by transaction, by horizon, or (an entry for ``keys``) because a later record has its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
    Flags,
    Int32,
    Int64,
    Words,
    delete_horizons,
)
from siltstone.base.records.pieces import pieces
from siltstone.log.segments import Segment, Window, unchanged, windows
from siltstone.verify import keys
from siltstone.verify.findings import Findings
from siltstone.verify.pairs import LogPair
from siltstone.verify.transactions import (
    EMPTIED,
    GONE,
    STAYED,
    AbortedIndex,
    Marker,
    SpanTransactions,
    judge_marker,
)

# Reading the two sides of a span, piece by piece: whole batches with their records.
#
# Memory is bounded by a window (4 MiB, or the largest batch), a piece's decompressed records and the largest
# batch's, whatever the sizes of the segments.


class DisorderError(Exception):
    """Batches of AFTER that cannot be told apart by their offsets: ``kind`` of problem, and where."""

    def __init__(self, kind: str, position: int, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some batches, rows of a scan over ``data``, and their records; ``origin``: ``data[0]`` in the file.

    All batches are of magic 2, or all older.
    """

    path: str
    origin: int
    data: Bytes
    batches: Directory
    columns: RecordColumns

    @property
    def is_modern(self) -> bool:
        """Batches of magic 2?"""
        return bool(self.batches["magic"][0] == 2)

    def position(self, row: int) -> int:
        """Where a batch begins in the file."""
        return self.origin + int(self.batches["position"][row])


def before_pieces(segment: Segment, start: int, end: int, batch_limit: int) -> Iterator[Piece]:
    """A segment of BEFORE, as far as its batches end in [start, end).

    ``batch_limit``: what one batch may decompress to, in bytes. Raises CorruptFileError, OSError.
    """
    scratch = Scratch()
    with unchanged(segment) as reader:
        for window in windows(reader):
            inside = (window.batches["last_offset"] >= start) & (window.batches["base_offset"] < end)
            batches = window.batches if inside.all() else window.batches[np.flatnonzero(inside)]
            for part in pieces(window.data, batches):
                yield _piece(window, batches[part], segment.path, scratch, batch_limit)


def _piece(window: Window, batches: Directory, path: str, scratch: Scratch, limit: int) -> Piece:
    columns = decode_records(window.data, batches, scratch, limit=limit, path=path, origin=window.origin)
    return Piece(path=path, origin=window.origin, data=window.data, batches=batches, columns=columns)


class AfterStream:
    """A segment of AFTER, handed out up to an offset at a time; close it.

    Every batch must lie in [the segment's base, ``end``) and ascend. ``batch_limit``: what one may decompress
    to, in bytes.
    """

    def __init__(self, segment: Segment, end: int, batch_limit: int) -> None:
        self.path = segment.path
        self._following, self._end = segment.base_offset, end
        self._reader: files.Reader = unchanged(segment)
        self._windows = windows(self._reader)
        self._window: Window | None = None
        self._row = 0
        self._scratch, self._limit = Scratch(), batch_limit

    def take(self, upto: int) -> Iterator[Piece]:
        """What begins at or below offset ``upto``, once. A piece is good until the next one is asked for.

        Raises CorruptFileError, DisorderError.
        """
        while True:
            at_end = self._window is None or self._row == len(self._window.batches)
            if at_end and not self._advance():
                return
            assert self._window is not None
            bases = self._window.batches["base_offset"]
            stop = int(np.searchsorted(bases, upto, side="right"))
            if stop <= self._row:
                return
            mine = self._window.batches[self._row : stop]
            self._row = stop
            for part in pieces(self._window.data, mine):
                yield _piece(self._window, mine[part], self.path, self._scratch, self._limit)

    def _advance(self) -> bool:
        try:
            window = next(self._windows, None)
        except CorruptFileError:
            self._window = None
            raise
        if window is None:
            return False
        self._window, self._row = window, 0
        self._refuse_disorder(window)
        return True

    def _refuse_disorder(self, window: Window) -> None:
        base, last = window.batches["base_offset"], window.batches["last_offset"]
        before = np.concatenate((np.array([self._following], np.int64), last[:-1] + 1))
        bad = np.flatnonzero((base < before) | (last >= self._end))
        if len(bad):
            row = int(bad[0])
            outside = last[row] >= self._end or (row == 0 and window.origin == 0)
            raise DisorderError(
                "segment_bounds" if outside else "order",
                window.origin + int(window.batches["position"][row]),
                f"offsets {base[row]} to {last[row]}, where {before[row]} to {self._end - 1} may be",
            )
        self._following = int(last[-1]) + 1

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()


# Two records, two batches: are they the same? Kernels and the checks of headers.
#
# What cleaning keeps of a batch (``KEPT_FIELDS``) must be as it was; its times and its stamp follow from the
# records that are left in it.

SAME, OTHER_KEY, OTHER_VALUE, OTHER_HEADERS, OTHER_TIME = range(5)
DIFFERENCES = (
    (OTHER_KEY, "key_changed"),
    (OTHER_VALUE, "value_changed"),
    (OTHER_HEADERS, "headers_changed"),
    (OTHER_TIME, "timestamp_changed"),
)
KEPT_FIELDS = ("last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
_KEPT_BITS = (
    (TIMESTAMP_TYPE_BIT, "timestamp type"),
    (TRANSACTIONAL_BIT, "transactional bit"),
    (CONTROL_BIT, "control bit"),
)


@kernel
def _same_span(one: Bytes, start: int, size: int, other: Bytes, at: int, other_size: int) -> bool:
    if size != other_size:
        return False
    i = 0
    while i < size and one[start + i] == other[at + i]:
        i += 1
    return i >= size


@kernel
def same_batches(
    one: Bytes, position: Int64, size: Int32, other: Bytes, at: Int64, other_size: Int32, out: Flags
) -> None:
    """Which pairs of batches are the same bytes: ``out``, bool, one a pair."""
    for i in range(len(position)):
        out[i] = _same_span(one, position[i], size[i], other, at[i], other_size[i])


@kernel
def compare_records(
    one: Bytes,
    spans: Int64,
    timestamp: Int64,
    other: Bytes,
    other_spans: Int64,
    other_timestamp: Int64,
    out: npt.NDArray[np.int8],
) -> None:
    """What differs first in each pair of records (``SAME`` …). ``spans`` (int64[n, 6]): starts and sizes of
    key, value and headers; a size of -1 is null."""
    for i in range(len(timestamp)):
        out[i] = 0
        for field in range(3):
            start, size = spans[i, 2 * field], spans[i, 2 * field + 1]
            at, other_size = other_spans[i, 2 * field], other_spans[i, 2 * field + 1]
            if not _same_span(one, start, size, other, at, other_size):
                out[i] = field + 1
                break
        if out[i] == 0 and timestamp[i] != other_timestamp[i]:
            out[i] = 4


def spans_of_records(piece: Piece, rows: Int64) -> Int64:
    """The spans that ``compare_records`` takes, of some records of a piece."""
    columns = piece.columns
    end = columns.start[rows].astype(np.int64) + columns.size[rows]
    headers = np.where(columns.header_count[rows] > 0, end - columns.headers_start[rows], 0)
    named = (
        columns.key_start[rows],
        columns.key_size[rows],
        columns.value_start[rows],
        columns.value_size[rows],
        columns.headers_start[rows],
        headers,
    )
    return np.column_stack(named).astype(np.int64)


def horizons_of(batches: Directory) -> tuple[Flags, Int64]:
    """(which batches have a delete horizon, base timestamps: the horizon where there is one)."""
    return delete_horizons(batches), batches["base_timestamp"].copy()


def check_kept_fields(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Rewritten batches ``new`` (rows ``rows`` of ``piece``) against what they were, pair by pair (v2)."""
    for name in KEPT_FIELDS:
        _report(old[name] != new[name], f"{name} is another one", new, piece, rows, findings)
    for bit, name in _KEPT_BITS:
        other = ((old["attributes"] ^ new["attributes"]) & bit) != 0
        _report(other, f"the {name} is another one", new, piece, rows, findings)
    codec = ((old["attributes"] ^ new["attributes"]) & CODEC_MASK) != 0
    _report(codec & (new["count"] > 0), "the codec is another one", new, piece, rows, findings)
    _report(new["magic"] != 2, "the record format went back", new, piece, rows, findings)


def check_converted(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Batches that were made of message sets (v0, v1), pair by pair."""
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        _report(new[name] != -1, f"{name} is not -1", new, piece, rows, findings)
    kept = TIMESTAMP_TYPE_BIT | CODEC_MASK
    other = ((old["attributes"] ^ new["attributes"]) & kept) != 0
    other &= (new["count"] > 0) & (old["magic"] == 1)
    _report(other, "codec or timestamp type is another one", new, piece, rows, findings)


def check_empty(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Emptied batches: a header, and in it nothing of what the records said."""
    bad = (
        (new["size"] != BATCH_OVERHEAD)
        | ((new["attributes"] & (CODEC_MASK | DELETE_HORIZON_BIT)) != 0)
        | (new["base_timestamp"] != -1)
        | ((new["max_timestamp"] != old["max_timestamp"]) & (old["magic"] > 0))
    )
    detail = "not 61 bytes, a codec, a horizon, a base timestamp, or another largest timestamp"
    _report(bad, detail, new, piece, rows, findings, "empty_batch")


def check_times(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Base and largest timestamp of rewritten batches that hold records."""
    columns = piece.columns
    first = np.searchsorted(columns.batch, rows)
    largest = np.full(len(piece.batches), np.iinfo(np.int64).min)
    np.maximum.at(largest, columns.batch, columns.timestamp)
    stamped, base = horizons_of(new)
    appended = (new["attributes"] & TIMESTAMP_TYPE_BIT) != 0
    wrong = ~stamped & (base != columns.timestamp[first])
    wrong |= np.where(
        appended, new["max_timestamp"] != old["max_timestamp"], new["max_timestamp"] != largest[rows]
    )
    detail = "base or largest timestamp is not its records'"
    _report(wrong, detail, new, piece, rows, findings, "batch_times")


def _report(
    bad: Any,
    detail: str,
    new: Directory,
    piece: Piece,
    rows: Int64,
    findings: Findings,
    kind: str = "header_changed",
) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        offset, position = int(new["base_offset"][where[0]]), piece.position(int(rows[where[0]]))
        findings.add(kind, detail, offset=offset, path=piece.path, position=position, times=len(where))


_GONE, _STAYED, _EMPTIED = range(3)
_FATES = (GONE, STAYED, EMPTIED)


class Comparison:
    """A piece of BEFORE, a part of ``pair`` below ``rewritten_end`` or above it."""

    def __init__(
        self, pair: LogPair, before: Piece, index: AbortedIndex, rewritten: bool, findings: Findings
    ) -> None:
        self._pair, self._before, self._findings = pair, before, findings
        self._index, self._aborted, self._rewritten = index, index.aborted(before.batches), rewritten
        count = len(before.batches)
        self._kept = np.zeros(len(before.columns), np.bool_)
        self._fate = np.zeros(count, np.int8)
        self._new_stamp = np.zeros(count, np.bool_)
        self._new_horizon = np.zeros(count, np.int64)
        self.new_horizons: set[int] = set()

    def match(self, after: Piece) -> None:
        """Take in a piece of AFTER that begins at or below the last offset of this one."""
        batches, old = after.batches, self._before.batches
        where = np.searchsorted(old["last_offset"], batches["last_offset"]).clip(max=len(old) - 1)
        known = (old["base_offset"][where] == batches["base_offset"]) | (old["magic"][where] < 2)
        known &= old["last_offset"][where] >= batches["last_offset"]
        self._unknown(after, ~known)
        rows = np.flatnonzero(known)
        if not len(rows):
            return
        where = where[rows]
        same = np.empty(len(rows), np.bool_)
        places = old["position"][where].copy(), old["size"][where].copy()
        others = batches["position"][rows].copy(), batches["size"][rows].copy()
        same_batches(self._before.data, *places, after.data, *others, same)
        self._fate[where] = np.where(batches["count"][rows] == 0, _EMPTIED, _STAYED)
        self._same(where[same])
        self._changed(after, rows[~same], where[~same])

    def _unknown(self, after: Piece, bad: Flags) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            row = int(rows[0])
            self._findings.add(
                "batch_unknown",
                f"offsets {after.batches['base_offset'][row]} to {after.batches['last_offset'][row]}",
                offset=int(after.batches["base_offset"][row]),
                path=after.path,
                position=after.position(row),
                times=len(rows),
            )

    def _same(self, where: Int64) -> None:
        """Batches that are as they were: so are their records."""
        mine = np.zeros(len(self._before.batches), np.bool_)
        mine[where] = True
        self._kept |= mine[self._before.columns.batch]
        stamped, horizon = horizons_of(self._before.batches[where])
        self._new_stamp[where], self._new_horizon[where] = stamped, horizon
        if self._rewritten and not self._before.is_modern and self._pair.was_cleaned and len(where):
            row = int(where[0])
            self._findings.add(
                "not_converted",
                "message set",
                offset=int(self._before.batches["base_offset"][row]),
                times=len(where),
            )

    def _changed(self, after: Piece, rows: Int64, where: Int64) -> None:
        """Batches that are not the same bytes."""
        if not len(rows):
            return
        old, new, findings = self._before.batches[where], after.batches[rows], self._findings
        if not self._rewritten:
            position, offset = after.position(int(rows[0])), int(new["base_offset"][0])
            detail = "a batch is not the same bytes"
            findings.add(
                "beyond_range", detail, offset=offset, path=after.path, position=position, times=len(rows)
            )
        (check_kept_fields if self._before.is_modern else check_converted)(old, new, after, rows, findings)
        empty = new["count"] == 0
        check_empty(old[empty], new[empty], after, rows[empty], findings)
        full = ~empty
        check_times(old[full], new[full], after, rows[full], findings)
        self._records(after, rows, where)
        self._stamps(after, rows, where)
        counts = np.bincount(self._before.columns.batch[self._kept], minlength=len(self._before.batches))
        idle = full & (new["count"] == old["count"]) & (counts[where] == old["count"])
        idle &= ~(self._new_stamp[where] & ~horizons_of(old)[0])
        if self._before.is_modern and idle.any():
            row = int(np.argmax(idle))
            findings.add(
                "batch_changed",
                "all its records stayed, and it has no new horizon",
                offset=int(new["base_offset"][row]),
                path=after.path,
                position=after.position(int(rows[row])),
                times=int(idle.sum()),
            )

    def _records(self, after: Piece, rows: Int64, where: Int64) -> None:
        """The records of changed batches: each must be one of the batch that they were in."""
        owner = np.full(len(after.batches), -1, np.int64)
        owner[rows] = where
        mine = np.flatnonzero(owner[after.columns.batch] >= 0)
        offsets, old = after.columns.offset[mine], self._before.columns
        if not len(mine):
            return
        found = np.searchsorted(old.offset, offsets).clip(max=max(len(old) - 1, 0))
        known = np.zeros(len(mine), np.bool_)
        if len(old):
            known = (old.offset[found] == offsets) & (old.batch[found] == owner[after.columns.batch[mine]])
        self._first("record_unknown", "no record of its batch", offsets[~known], after)
        mine, found = mine[known], found[known]
        if not len(mine):
            return
        differs = np.empty(len(mine), np.int8)
        spans, others = spans_of_records(self._before, found), spans_of_records(after, mine)
        times, new_times = old.timestamp[found], after.columns.timestamp[mine]
        compare_records(old.data, spans, times, after.columns.data, others, new_times, differs)
        for code, kind in DIFFERENCES:
            self._first(kind, "is not what it was", after.columns.offset[mine[differs == code]], after)
        self._kept[found] = True

    def _first(self, kind: str, detail: str, offsets: Int64, after: Piece) -> None:
        if len(offsets):
            self._findings.add(kind, detail, offset=int(offsets[0]), path=after.path, times=len(offsets))

    def _stamps(self, after: Piece, rows: Int64, where: Int64) -> None:
        """Delete horizons: one that was there stays; a new one needs a tombstone, or a marker."""
        new = after.batches[rows]
        stamped, horizon = horizons_of(new)
        had, before = horizons_of(self._before.batches[where])
        full = new["count"] > 0
        moved = full & had & (~stamped | (horizon != before))
        self._batches(
            "horizon_changed", "was there before, and another one", new["base_offset"][moved], after
        )
        self._new_stamp[where], self._new_horizon[where] = stamped, horizon
        fresh = stamped & ~had
        self.new_horizons.update(np.unique(horizon[fresh]).tolist())
        dead = np.zeros(len(after.batches), np.bool_)
        dead[after.columns.batch[after.columns.value_size < 0]] = True
        control = (new["attributes"] & CONTROL_BIT) != 0
        needless = fresh & ~dead[rows] & ~control
        self._batches("needless_horizon", "no tombstone is in it", new["base_offset"][needless], after)

    def _batches(self, kind: str, detail: str, offsets: Int64, after: Piece) -> None:
        if len(offsets):
            self._findings.add(kind, detail, offset=int(offsets[0]), path=after.path, times=len(offsets))

    def follow(self, transactions: SpanTransactions) -> None:
        """Take in the transactions of a piece that retention took, of which nothing is judged."""
        self._findings.counts.update(before=len(self._before.columns), expired=len(self._before.columns))
        self._markers(transactions)

    def judge(self, transactions: SpanTransactions) -> Words:
        """What became of the piece; entries of its records with a key that are judged by it."""
        batches, columns, pair = self._before.batches, self._before.columns, self._pair
        self._empties()
        self._markers(transactions)
        control = (((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2))[columns.batch]
        aborted, gone = self._aborted[columns.batch], ~self._kept
        self._findings.counts.update(before=len(columns), after=int(self._kept.sum()))
        if not self._rewritten:
            self._batches_gone()
            return np.empty((0, 3), np.uint64)
        self._findings.counts["aborted"] += int(np.count_nonzero(gone & aborted))
        data = ~control & ~aborted
        mapped = columns.offset < pair.cleaned_end
        keyless = columns.key_size < 0
        self._gone("lost_unkeyed", "it lies above what was cleaned by key", gone & data & ~mapped)
        self._findings.counts["keyless"] += int(np.count_nonzero(gone & data & mapped & keyless))
        if pair.was_cleaned:
            self._gone("aborted_kept", "its transaction was aborted", self._kept & aborted & ~control)
            self._gone("keyless_kept", "it has no key", self._kept & data & mapped & keyless)
        dead = (columns.value_size < 0) & data & (mapped | self._kept)
        unstamped = dead & self._kept & ~self._new_stamp[columns.batch]
        if pair.was_cleaned:
            self._gone("unstamped", "no delete horizon in its batch", unstamped & mapped)
        return self._entries(np.flatnonzero(data & mapped & ~keyless), dead)

    def _entries(self, rows: Int64, dead: Flags) -> Words:
        may, must = self._tombstone_windows()
        batch = self._before.columns.batch
        flags = np.where(self._kept[rows], keys.KEPT, 0)
        flags |= np.where(dead[rows], keys.TOMBSTONE, 0)
        flags |= np.where(dead[rows] & may[batch[rows]], keys.MAY_GO, 0)
        flags |= np.where(dead[rows] & must[batch[rows]], keys.MUST_GO, 0)
        return keys.entries_of(self._before.columns, rows, flags, self._pair.hash_key)

    def _tombstone_windows(self) -> tuple[Flags, Flags]:
        """Whose batches' tombstones may go, and must: by horizon, or by file time for v0 and v1."""
        terms = self._pair.terms
        if self._before.is_modern:
            stamped, horizon = horizons_of(self._before.batches)
            may = stamped & (horizon <= terms.now_ms)
            return may, may & terms.now_is_exact
        segment = next(each for each in self._pair.before if each.path == self._before.path)
        over = segment.modified_ms <= self._pair.legacy_horizon_ms
        may = np.full(len(self._before.batches), over)
        return may, may & (terms.delete_retention_ms is not None)

    def _gone(self, kind: str, detail: str, bad: Flags) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            offset = int(self._before.columns.offset[rows[0]])
            self._findings.add(kind, detail, offset=offset, times=len(rows))

    def _batches_gone(self) -> None:
        rows = np.flatnonzero(self._fate == _GONE)
        if len(rows):
            offset = int(self._before.batches["base_offset"][rows[0]])
            self._findings.add("beyond_range", "a batch is gone", offset=offset, times=len(rows))

    def _empties(self) -> None:
        """Batches that must stay even without records, and those that need not."""
        batches, pair = self._before.batches, self._pair
        last = batches["last_offset"] + 1 == pair.last_kept_end
        needed = np.zeros(len(batches), np.bool_)
        if pair.producers:
            ids, offsets, epochs = np.array(pair.producers, np.int64).T
            where = np.searchsorted(ids, batches["producer_id"]).clip(max=len(ids) - 1)
            alive = (batches["producer_id"] >= 0) & (ids[where] == batches["producer_id"])
            control = (batches["attributes"] & CONTROL_BIT) != 0
            fence = (offsets[where] < 0) & control & (epochs[where] == batches["producer_epoch"])
            needed = alive & ((offsets[where] == batches["last_offset"]) | fence)
        gone = self._fate == _GONE
        for kind, bad in (("sequence_lost", gone & needed), ("last_batch_lost", gone & last & ~needed)):
            for row in np.flatnonzero(bad)[:1].tolist():
                offset = int(batches["last_offset"][row])
                self._findings.add(kind, f"of producer {batches['producer_id'][row]}", offset=offset)
        if pair.terms.now_is_exact and self._rewritten and pair.was_cleaned:
            needless = (self._fate == _EMPTIED) & ~needed & ~last
            for row in np.flatnonzero(needless)[:1].tolist():
                self._findings.add(
                    "empty_batch",
                    "no producer that is alive needs it",
                    offset=int(batches["last_offset"][row]),
                    times=int(needless.sum()),
                )

    def _markers(self, transactions: SpanTransactions) -> None:
        """Follow the transactions of the piece; a Python step a marker, none a batch of data."""
        batches = self._before.batches
        attributes = batches["attributes"]
        modern = batches["magic"] == 2
        control = modern & ((attributes & CONTROL_BIT) != 0)
        data = np.flatnonzero(modern & ((attributes & TRANSACTIONAL_BIT) != 0) & ~control)
        producers = batches["producer_id"][data]
        order = np.argsort(producers, kind="stable")
        data, producers = data[order], producers[order]
        last: dict[int, int] = {}
        first_record = np.searchsorted(self._before.columns.batch, np.arange(len(batches)))
        for row in np.flatnonzero(control & (batches["count"] > 0)).tolist():
            producer = int(batches["producer_id"][row])
            commit = self._commits(int(first_record[row]))
            if commit is None:
                continue
            mine = _between(data, producers, producer, last.get(producer, -1), row)
            self._refuse_contradiction(row, producer, commit, mine)
            here = bool(len(mine))
            self._marker(row, commit, transactions, transactions.data_between(producer, here=here))
            transactions.end(producer)
            last[producer] = row
        for producer in np.unique(producers).tolist():
            if len(_between(data, producers, producer, last.get(producer, -1), len(batches))):
                transactions.opened.add(producer)

    def _refuse_contradiction(self, row: int, producer: int, commit: bool, data: Int64) -> None:
        """Raises CorruptFileError where BEFORE's indexes say otherwise than its marker in this row."""
        offset = int(self._before.batches["base_offset"][row])
        if self._index.contradicts(producer, offset, commit, self._aborted[data]):
            what = "commit" if commit else "abort"
            reason = f"the {what} of producer {producer} at offset {offset} contradicts a .txnindex"
            raise CorruptFileError(self._before.path, self._before.position(row), reason)

    def _commits(self, record: int) -> bool | None:
        key = self._before.columns.key(record)
        kind = int.from_bytes(key[2:4], "big") if key is not None and len(key) >= 4 else 2
        return bool(kind) if kind in (0, 1) else None

    def _marker(self, row: int, commit: bool, transactions: SpanTransactions, had_data: bool | None) -> None:
        batches = self._before.batches
        stamped, horizon = horizons_of(batches[row : row + 1])
        marker = Marker(
            offset=int(batches["base_offset"][row]),
            producer_id=int(batches["producer_id"][row]),
            commit=commit,
            horizon=int(horizon[0]) if stamped[0] else None,
            fate=_FATES[self._fate[row]],
            new_horizon=int(self._new_horizon[row]) if self._new_stamp[row] else None,
            had_data=had_data,
        )
        if had_data and not commit:
            transactions.aborts_with_data.append(marker.offset)
        if not self._rewritten:
            if had_data is None and not commit:
                transactions.undecided.append(marker)
            return
        if had_data is None:
            transactions.undecided.append(marker)
        else:
            judge_marker(self._pair, marker, had_data, self._findings)


def _between(data: Int64, producers: Int64, producer: int, after: int, before: int) -> Int64:
    """The rows (``after``, ``before``) with data batches of the producer. Sorted by producer, then row."""
    low, high = np.searchsorted(producers, [producer, producer + 1])
    mine = data[low:high]
    return mine[np.searchsorted(mine, after, side="right") : np.searchsorted(mine, before)]
