"""One piece of BEFORE beside what AFTER has in its place.

``Comparison.match`` takes the pieces of AFTER one after another: batches are matched by their offsets,
records by theirs, and both are held to what they were. What no piece matched is gone then, and ``judge`` asks
whether it may be: by transaction, by horizon, or (an entry for ``keys``) because a later record has its key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from siltstone.errors import CorruptFileError
from siltstone.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Int64
from siltstone.verifying import keys
from siltstone.verifying.findings import Findings
from siltstone.verifying.keys import Words
from siltstone.verifying.matching import (
    DIFFERENCES,
    check_converted,
    check_empty,
    check_kept_fields,
    check_times,
    compare_records,
    horizons_of,
    same_batches,
    spans_of_records,
)
from siltstone.verifying.pairs import LogPair
from siltstone.verifying.streams import Piece
from siltstone.verifying.transactions import (
    EMPTIED,
    GONE,
    STAYED,
    AbortedIndex,
    Marker,
    SpanTransactions,
    judge_marker,
)

Flags = npt.NDArray[np.bool_]
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
