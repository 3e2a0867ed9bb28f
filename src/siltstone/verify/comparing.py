"""One piece of BEFORE beside what AFTER has in its place.

``Comparison.match`` takes the pieces of AFTER one after another: batches are matched by their offsets,
records by theirs, and both are held to what they were. What no piece matched is gone then, and ``judge`` asks
whether it may be: by transaction, by horizon, or (an entry for ``keys``) because a later record has its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.inflate import pieces
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
from siltstone.log.segments import Segment, Window, unchanged, windows
from siltstone.verify import keys
from siltstone.verify.findings import Findings
from siltstone.verify.pairs import LogPair
from siltstone.verify.transactions import (
    DISCARDED,
    EMPTIED,
    RETAINED,
    AbortedIndex,
    MarkerOutcome,
    SpanTransactions,
    judge_marker,
)

# Reading the two sides of a span, piece by piece: whole batches with their records.
#
# Memory is bounded by a window (4 MiB, or the largest batch), a piece's decompressed records and the largest
# batch's, whatever the sizes of the segments.


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
    to, in bytes. What is wrong with it is noted in ``findings``, and ends it.
    """

    def __init__(self, segment: Segment, end: int, batch_limit: int, findings: Findings) -> None:
        self._path = segment.path
        self._following, self._end = segment.base_offset, end
        self._reader: files.Reader = unchanged(segment)
        self._windows = windows(self._reader)
        self._window: Window | None = None
        self._row = 0
        self._scratch, self._limit, self._findings = Scratch(), batch_limit, findings

    def take(self, upto: int) -> Iterator[Piece]:
        """What begins at or below offset ``upto``, once. A piece is good until the next one is asked for."""
        try:
            yield from self._take(upto)
        except CorruptFileError as error:
            self._give_up("unreadable", error.reason, error.path, error.position)

    def _take(self, upto: int) -> Iterator[Piece]:
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
                yield _piece(self._window, mine[part], self._path, self._scratch, self._limit)

    def _advance(self) -> bool:
        self._window, self._row = next(self._windows, None), 0
        return self._window is not None and self._is_in_order(self._window)

    def _is_in_order(self, window: Window) -> bool:
        base, last = window.batches["base_offset"], window.batches["last_offset"]
        before = np.concatenate((np.array([self._following], np.int64), last[:-1] + 1))
        bad = np.flatnonzero((base < before) | (last >= self._end))
        if len(bad):
            row = int(bad[0])
            outside = last[row] >= self._end or (row == 0 and window.origin == 0)
            self._give_up(
                "segment_bounds" if outside else "order",
                f"offsets {base[row]} to {last[row]}, where {before[row]} to {self._end - 1} may be",
                self._path,
                window.origin + int(window.batches["position"][row]),
            )
        self._following = int(last[-1]) + 1
        return not len(bad)

    def _give_up(self, kind: str, detail: str, path: str, position: int) -> None:
        self._findings.whole = False
        self._findings.add(kind, detail, path=path, position=position)
        self._window, self._windows = None, iter(())

    def finish(self, *, read_on: bool) -> None:
        """Close it; where ``read_on``, what is left in it is noted: it is in no batch of BEFORE."""
        for piece in self.take(self._end) if read_on else ():
            note_batches(
                "batch_unknown",
                "nothing of BEFORE is there",
                piece,
                np.arange(len(piece.batches)),
                self._findings,
            )
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


def check_kept_fields(old: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Rewritten batches (rows ``rows`` of ``piece``) against what they were, pair by pair (v2)."""
    new = piece.batches[rows]
    changed = old["attributes"] ^ new["attributes"]
    for bad, detail in (
        *((old[name] != new[name], f"{name} is another one") for name in KEPT_FIELDS),
        *(((changed & bit) != 0, f"the {name} is another one") for bit, name in _KEPT_BITS),
        (((changed & CODEC_MASK) != 0) & (new["count"] > 0), "the codec is another one"),
        (new["magic"] != 2, "the record format went back"),
    ):
        note_batches("header_changed", detail, piece, rows[bad], findings)


def check_converted(old: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Batches that were made of message sets (v0, v1), pair by pair."""
    new = piece.batches[rows]
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        note_batches("header_changed", f"{name} is not -1", piece, rows[new[name] != -1], findings)
    kept = TIMESTAMP_TYPE_BIT | CODEC_MASK
    other = ((old["attributes"] ^ new["attributes"]) & kept) != 0
    other &= (new["count"] > 0) & (old["magic"] == 1)
    note_batches("header_changed", "codec or timestamp type is another one", piece, rows[other], findings)


def check_empty(old: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Emptied batches: a header, and in it nothing of what the records said."""
    new = piece.batches[rows]
    bad = (
        (new["size"] != BATCH_OVERHEAD)
        | ((new["attributes"] & (CODEC_MASK | DELETE_HORIZON_BIT)) != 0)
        | (new["base_timestamp"] != -1)
        | ((new["max_timestamp"] != old["max_timestamp"]) & (old["magic"] > 0))
    )
    detail = "not 61 bytes, a codec, a horizon, a base timestamp, or another largest timestamp"
    note_batches("empty_batch", detail, piece, rows[bad], findings)


def check_times(old: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Base and largest timestamp of rewritten batches that hold records."""
    new = piece.batches[rows]
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
    note_batches("batch_times", detail, piece, rows[wrong], findings)


def note_batches(kind: str, detail: str, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Note a problem for each of some batches of a piece, of which the first is told."""
    if len(rows):
        offset, position = int(piece.batches["base_offset"][rows[0]]), piece.position(int(rows[0]))
        findings.add(kind, detail, offset=offset, path=piece.path, position=position, times=len(rows))


class Comparison:
    """A piece of BEFORE, a part of ``pair`` below ``rewritten_end`` or above it."""

    def __init__(
        self, pair: LogPair, before: Piece, index: AbortedIndex, rewritten: bool, findings: Findings
    ) -> None:
        self._pair, self._before, self._findings = pair, before, findings
        self._index, self._aborted, self._rewritten = index, index.aborted(before.batches), rewritten
        count = len(before.batches)
        self._kept = np.zeros(len(before.columns), np.bool_)
        self._outcome = np.zeros(count, np.int8)
        self._new_stamp = np.zeros(count, np.bool_)
        self._new_horizon = np.zeros(count, np.int64)
        self.new_horizons: set[int] = set()

    def match(self, after: Piece) -> None:
        """Take in a piece of AFTER that begins at or below the last offset of this one."""
        batches, old = after.batches, self._before.batches
        where = np.searchsorted(old["last_offset"], batches["last_offset"]).clip(max=len(old) - 1)
        known = (old["base_offset"][where] == batches["base_offset"]) | (old["magic"][where] < 2)
        known &= old["last_offset"][where] >= batches["last_offset"]
        unknown = np.flatnonzero(~known)
        if len(unknown):
            first, last = batches["base_offset"][unknown[0]], batches["last_offset"][unknown[0]]
            note_batches("batch_unknown", f"offsets {first} to {last}", after, unknown, self._findings)
        rows = np.flatnonzero(known)
        if not len(rows):
            return
        where = where[rows]
        same = np.empty(len(rows), np.bool_)
        places = old["position"][where].copy(), old["size"][where].copy()
        others = batches["position"][rows].copy(), batches["size"][rows].copy()
        same_batches(self._before.data, *places, after.data, *others, same)
        self._outcome[where] = np.where(batches["count"][rows] == 0, EMPTIED, RETAINED)
        self._same(where[same])
        self._changed(after, rows[~same], where[~same])

    def _same(self, where: Int64) -> None:
        """Batches that are as they were: so are their records."""
        mine = np.zeros(len(self._before.batches), np.bool_)
        mine[where] = True
        self._kept |= mine[self._before.columns.batch]
        stamped, horizon = horizons_of(self._before.batches[where])
        self._new_stamp[where], self._new_horizon[where] = stamped, horizon
        if self._rewritten and not self._before.is_modern and self._pair.was_cleaned:
            offsets = self._before.batches["base_offset"][where]
            self._findings.add_offsets("not_converted", "message set", offsets)

    def _changed(self, after: Piece, rows: Int64, where: Int64) -> None:
        """Batches that are not the same bytes."""
        if not len(rows):
            return
        old, new, findings = self._before.batches[where], after.batches[rows], self._findings
        if not self._rewritten:
            note_batches("beyond_range", "a batch is not the same bytes", after, rows, findings)
        (check_kept_fields if self._before.is_modern else check_converted)(old, after, rows, findings)
        empty = new["count"] == 0
        check_empty(old[empty], after, rows[empty], findings)
        full = ~empty
        check_times(old[full], after, rows[full], findings)
        self._records(after, rows, where)
        self._stamps(after, rows, where)
        counts = np.bincount(self._before.columns.batch[self._kept], minlength=len(self._before.batches))
        idle = full & (new["count"] == old["count"]) & (counts[where] == old["count"])
        idle &= ~(self._new_stamp[where] & ~horizons_of(old)[0])
        if self._before.is_modern:
            detail = "all its records stayed, and it has no new horizon"
            note_batches("batch_changed", detail, after, rows[idle], findings)

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
        self._findings.add_offsets("record_unknown", "no record of its batch", offsets[~known], after.path)
        mine, found = mine[known], found[known]
        if not len(mine):
            return
        differs = np.empty(len(mine), np.int8)
        spans, others = spans_of_records(self._before, found), spans_of_records(after, mine)
        times, new_times = old.timestamp[found], after.columns.timestamp[mine]
        compare_records(old.data, spans, times, after.columns.data, others, new_times, differs)
        for code, kind in DIFFERENCES:
            changed = after.columns.offset[mine[differs == code]]
            self._findings.add_offsets(kind, "is not what it was", changed, after.path)
        self._kept[found] = True

    def _stamps(self, after: Piece, rows: Int64, where: Int64) -> None:
        """Delete horizons: one that was there stays; a new one needs a tombstone, or a marker."""
        new = after.batches[rows]
        stamped, horizon = horizons_of(new)
        had, before = horizons_of(self._before.batches[where])
        full = new["count"] > 0
        moved = full & had & (~stamped | (horizon != before))
        detail = "was there before, and another one"
        self._findings.add_offsets("horizon_changed", detail, new["base_offset"][moved], after.path)
        self._new_stamp[where], self._new_horizon[where] = stamped, horizon
        fresh = stamped & ~had
        self.new_horizons.update(np.unique(horizon[fresh]).tolist())
        dead = np.zeros(len(after.batches), np.bool_)
        dead[after.columns.batch[after.columns.value_size < 0]] = True
        control = (new["attributes"] & CONTROL_BIT) != 0
        needless = fresh & ~dead[rows] & ~control
        offsets = new["base_offset"][needless]
        self._findings.add_offsets("needless_horizon", "no tombstone is in it", offsets, after.path)

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
            offsets = batches["base_offset"][self._outcome == DISCARDED]
            self._findings.add_offsets("beyond_range", "a batch is gone", offsets)
            return np.empty((0, 3), np.uint64)
        self._findings.counts["aborted"] += int(np.count_nonzero(gone & aborted))
        data = ~control & ~aborted
        mapped = columns.offset < pair.cleaned_end
        keyless = columns.key_size < 0
        self._note("lost_unkeyed", "it lies above what was cleaned by key", gone & data & ~mapped)
        self._findings.counts["keyless"] += int(np.count_nonzero(gone & data & mapped & keyless))
        if pair.was_cleaned:
            self._note("aborted_kept", "its transaction was aborted", self._kept & aborted & ~control)
            self._note("keyless_kept", "it has no key", self._kept & data & mapped & keyless)
        dead = (columns.value_size < 0) & data & (mapped | self._kept)
        unstamped = dead & self._kept & ~self._new_stamp[columns.batch]
        if pair.was_cleaned:
            self._note("unstamped", "no delete horizon in its batch", unstamped & mapped)
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
            waits = self._before.batches["last_offset"] >= self._pair.tombstones_from
            return may, may & terms.now_is_exact & ~waits
        segment = next(each for each in self._pair.before if each.path == self._before.path)
        over = segment.modified_ms <= self._pair.legacy_horizon_ms
        may = np.full(len(self._before.batches), over)
        waits = self._before.batches["last_offset"] >= self._pair.tombstones_from
        return may, may & (terms.delete_retention_ms is not None) & ~waits

    def _note(self, kind: str, detail: str, bad: Flags) -> None:
        self._findings.add_offsets(kind, detail, self._before.columns.offset[bad])

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
        gone = self._outcome == DISCARDED
        for kind, bad in (("sequence_lost", gone & needed), ("last_batch_lost", gone & last & ~needed)):
            for row in np.flatnonzero(bad)[:1].tolist():
                offset = int(batches["last_offset"][row])
                self._findings.add(kind, f"of producer {batches['producer_id'][row]}", offset=offset)
        if pair.terms.now_is_exact and self._rewritten and pair.was_cleaned:
            needless = (self._outcome == EMPTIED) & ~needed & ~last
            offsets = batches["last_offset"][needless]
            self._findings.add_offsets("empty_batch", "no producer that is alive needs it", offsets)

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
        marker = MarkerOutcome(
            offset=int(batches["base_offset"][row]),
            producer_id=int(batches["producer_id"][row]),
            commit=commit,
            horizon=int(horizon[0]) if stamped[0] else None,
            outcome=int(self._outcome[row]),
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
