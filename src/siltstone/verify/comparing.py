"""Compares batches of BEFORE with those of AFTER that have their offsets, and their records.

``Comparison.match`` takes batches of AFTER piece by piece: batches are matched by their offsets, records by
theirs, and both must be as they were, but for what cleaning may change. What has no match is discarded, and
``check`` decides whether it may be: its transaction was aborted, its delete horizon has passed, or a later
record has its key, which ``keys`` finds out from the entries that ``check`` returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records import layout
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes, Flags, Int64, Words, delete_horizons
from siltstone.log.segments import Segment, Window, open_unchanged, windows
from siltstone.verify import keys
from siltstone.verify.findings import TOMBSTONE, Findings
from siltstone.verify.pairs import LogPair
from siltstone.verify.transactions import (
    DISCARDED,
    EMPTIED,
    NO_HORIZON,
    RETAINED,
    AbortedIndex,
    MarkerOutcome,
    SpanTransactions,
    check_marker,
    control_and_data,
)

# The two sides of a span are read piece by piece: whole batches with their records.
#
# Memory is bounded by a window (4 MiB, or the largest batch), a piece's decompressed records and the largest
# batch's, whatever the sizes of the segments.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecords:
    """Some batches, rows of a scan over ``data``, and their records; ``origin``: position of ``data[0]`` in
    the file ``path``.

    All batches are of magic 2, or all older.
    """

    path: str
    origin: int
    data: Bytes
    batches: BatchHeaders
    columns: RecordColumns

    @property
    def is_v2(self) -> bool:
        """Are they batches of magic 2?"""
        return bool(self.batches["magic"][0] == 2)

    def position(self, row: int) -> int:
        """Where a batch begins in the file."""
        return self.origin + int(self.batches["position"][row])

    def note(self, kind: str, detail: str, rows: Int64, findings: Findings) -> None:
        """Note a problem of the batches ``rows``: the position of the first, and how many there are."""
        if len(rows):
            offset, position = int(self.batches["base_offset"][rows[0]]), self.position(int(rows[0]))
            findings.add(kind, detail, offset=offset, path=self.path, position=position, times=len(rows))


def _decoded(window: Window, path: str, scratch: Scratch, batch_limit: int) -> Iterator[BatchRecords]:
    """A window's batches with their records. They are valid until the next ones are read."""
    for part in slices_within(window.data, window.batches):
        batches = window.batches[part]
        data, origin = window.data, window.origin
        columns = decode_records(data, batches, scratch, limit=batch_limit, path=path, origin=origin)
        yield BatchRecords(path=path, origin=origin, data=data, batches=batches, columns=columns)


def read_before(segment: Segment, start: int, end: int, batch_limit: int) -> Iterator[BatchRecords]:
    """The batches of a BEFORE segment that overlap [start, end); one across a border is in both spans.

    ``batch_limit``: what one batch may decompress to, in bytes. Raises CorruptFileError, OSError.
    """
    scratch = Scratch()
    with open_unchanged(segment) as reader:
        for window in windows(reader):
            overlap = (window.batches["last_offset"] >= start) & (window.batches["base_offset"] < end)
            yield from _decoded(
                replace(window, batches=window.batches[overlap]), segment.path, scratch, batch_limit
            )


class AfterStream:
    """A segment of AFTER, read up to an offset at a time; ``finish`` closes it.

    The offsets of its batches must ascend within [the segment's base, ``end``). ``batch_limit``: what one
    batch may decompress to, in bytes. The first batch that breaks this is noted in ``findings`` and ends the
    stream.
    """

    def __init__(self, segment: Segment, end: int, batch_limit: int, findings: Findings) -> None:
        self._path = segment.path
        self._next_offset, self._end = segment.base_offset, end
        self._reader: files.Reader = open_unchanged(segment)
        self._windows = windows(self._reader)
        self._rest: Window | None = None
        self._scratch, self._limit, self._findings = Scratch(), batch_limit, findings

    def take(self, upto: int) -> Iterator[BatchRecords]:
        """The batches, not read yet, that begin at or below offset ``upto``. They are valid until the next
        ones are read."""
        try:
            while True:
                if self._rest is None or not len(self._rest.batches):
                    self._rest = next(self._windows, None)
                    if self._rest is None or not self._is_in_order(self._rest):
                        return
                window, batches = self._rest, self._rest.batches
                # A window may hold batches beyond ``upto``: they are for the next batches of BEFORE.
                stop = int(np.searchsorted(batches["base_offset"], upto, side="right"))
                if not stop:
                    return
                self._rest = replace(window, batches=batches[stop:])
                taken = replace(window, batches=batches[:stop])
                yield from _decoded(taken, self._path, self._scratch, self._limit)
        except CorruptFileError as error:
            self._findings.add_error("unreadable", error)
            self._stop_on_damage()

    def _is_in_order(self, window: Window) -> bool:
        base, last = window.batches["base_offset"], window.batches["last_offset"]
        lowest = np.append(np.int64(self._next_offset), last[:-1] + 1)
        bad = np.flatnonzero((base < lowest) | (last >= self._end))
        if len(bad):
            row = int(bad[0])
            outside = last[row] >= self._end or (row == 0 and window.origin == 0)
            self._findings.add(
                "segment_bounds" if outside else "order",
                f"has offsets {base[row]} to {last[row]}, but {lowest[row]} to {self._end - 1} are allowed",
                path=self._path,
                position=window.origin + int(window.batches["position"][row]),
            )
            self._stop_on_damage()
        self._next_offset = int(last[-1]) + 1
        return not len(bad)

    def _stop_on_damage(self) -> None:
        self._findings.complete = False
        self._rest, self._windows = None, iter(())

    def finish(self, *, report_rest: bool) -> None:
        """Close the segment; with ``report_rest`` each batch that is left in it is a problem: BEFORE has none
        there."""
        for rest in self.take(self._end) if report_rest else ():
            rows = np.arange(len(rest.batches))
            rest.note("batch_unknown", "BEFORE has no batch there", rows, self._findings)
        self._reader.close()


# Two records or two batches are compared.
#
# What cleaning preserves of a batch header (``_PRESERVED_FIELDS``) must be as it was; its timestamps and its
# delete horizon follow from the records that are retained in it.

_RECORD_PROBLEMS = ("key_changed", "value_changed", "headers_changed", "timestamp_changed")
"""By number, from 1 on: the first three are the spans of ``_record_spans``."""
_PRESERVED_FIELDS = ("last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
_PRESERVED_BITS = (
    (layout.TIMESTAMP_TYPE_BIT, "timestamp type"),
    (layout.TRANSACTIONAL_BIT, "transactional bit"),
    (layout.CONTROL_BIT, "control bit"),
)


@kernel
def first_difference(
    one: Bytes, spans: Int64, other: Bytes, other_spans: Int64, out: npt.NDArray[np.int8]
) -> None:
    """Number the first span of each pair of rows whose bytes differ, from 1 on; 0: all are the same.

    ``spans``, ``other_spans`` (int64[n, 2k]): starts and sizes in ``one`` and ``other``; a size of -1 is
    null. ``out``: int8[n].
    """
    for i in range(len(spans)):
        out[i] = 0
        for field in range(spans.shape[1] // 2):
            start, size = spans[i, 2 * field], spans[i, 2 * field + 1]
            other_start = other_spans[i, 2 * field]
            same = size == other_spans[i, 2 * field + 1]
            at = 0
            while same and at < size:
                same = one[start + at] == other[other_start + at]
                at += 1
            if not same:
                out[i] = field + 1
                break


def _batch_spans(batches: BatchHeaders) -> Int64:
    return np.column_stack((batches["position"], batches["size"])).astype(np.int64)


def _record_spans(columns: RecordColumns, rows: Int64) -> Int64:
    """Starts and sizes of key, value and headers of some records: int64[n, 6]."""
    end = columns.start[rows].astype(np.int64) + columns.size[rows]
    headers_size = np.where(columns.header_count[rows] > 0, end - columns.headers_start[rows], 0)
    named = ("key_start", "key_size", "value_start", "value_size", "headers_start")
    return np.column_stack((*(getattr(columns, name)[rows] for name in named), headers_size)).astype(np.int64)


def _horizons(batches: BatchHeaders) -> Int64:
    """The delete horizon of each batch in ms, ``NO_HORIZON`` without one."""
    return np.where(delete_horizons(batches), batches["base_timestamp"], NO_HORIZON)


def _header_problems(old: BatchHeaders, after: BatchRecords, rows: Int64) -> Iterator[tuple[str, str, Flags]]:
    """Check the headers of rewritten batches, pair by pair; yields (kind, detail, bool[n]: which are wrong).

    ``old``: what the batches ``rows`` of ``after`` were, all of v2, or all message sets (v0, v1), which
    cleaning converts.
    """
    new = after.batches[rows]
    empty = new["count"] == 0
    changed = old["attributes"] ^ new["attributes"]
    if old["magic"][0] == 2:
        for name in _PRESERVED_FIELDS:
            yield "header_changed", f"{name} changed", old[name] != new[name]
        for bit, name in _PRESERVED_BITS:
            yield "header_changed", f"the {name} changed", (changed & bit) != 0
        yield "header_changed", "the codec changed", ((changed & layout.CODEC_MASK) != 0) & ~empty
        yield "header_changed", "the record format is older", new["magic"] != 2
    else:
        for name in _PRESERVED_FIELDS[1:]:
            yield "header_changed", f"{name} is not -1", new[name] != -1
        converted = (changed & (layout.TIMESTAMP_TYPE_BIT | layout.CODEC_MASK)) != 0
        yield "header_changed", "codec or timestamp type changed", converted & ~empty & (old["magic"] == 1)
    # An emptied batch is a header alone, with the largest timestamp that it had (magic 0 had none).
    not_bare = (new["size"] != layout.BATCH_OVERHEAD) | (new["base_timestamp"] != -1)
    not_bare |= (new["attributes"] & (layout.CODEC_MASK | layout.DELETE_HORIZON_BIT)) != 0
    not_bare |= (new["max_timestamp"] != old["max_timestamp"]) & (old["magic"] > 0)
    yield "empty_batch", "more than a header, or another largest timestamp", empty & not_bare
    wrong = np.zeros(len(rows), np.bool_)
    wrong[~empty] = _times_are_wrong(old[~empty], after, rows[~empty])
    yield "batch_times", "base or largest timestamp is not its records'", wrong


def _times_are_wrong(old: BatchHeaders, after: BatchRecords, rows: Int64) -> Flags:
    """Which rewritten batches with records have a base or a largest timestamp that is not theirs: bool[n]."""
    new, columns = after.batches[rows], after.columns
    first = np.searchsorted(columns.batch, rows)
    largest = np.full(len(after.batches), np.iinfo(np.int64).min)
    np.maximum.at(largest, columns.batch, columns.timestamp)
    # With LogAppendTime the largest timestamp is the broker's, whatever records are retained; with a delete
    # horizon the base timestamp is that (KIP-534).
    appended = (new["attributes"] & layout.TIMESTAMP_TYPE_BIT) != 0
    wrong = new["max_timestamp"] != np.where(appended, old["max_timestamp"], largest[rows])
    wrong |= (_horizons(new) == NO_HORIZON) & (new["base_timestamp"] != columns.timestamp[first])
    return np.asarray(wrong, np.bool_)


class Comparison:
    """The check of some batches of BEFORE: ``match`` them with all that AFTER has of them, then ``check``.

    ``rewritable``: they are of a segment that cleaning may have rewritten; others must be as they were.
    """

    def __init__(
        self, pair: LogPair, before: BatchRecords, index: AbortedIndex, rewritable: bool, findings: Findings
    ) -> None:
        self._pair, self._before, self._findings = pair, before, findings
        self._index, self._aborted, self._rewritable = index, index.aborted(before.batches), rewritable
        self._control, self._data = control_and_data(before.batches)
        count = len(before.batches)
        self._retained = np.zeros(len(before.columns), np.bool_)
        self._outcome = np.zeros(count, np.int8)
        self._new_horizon = np.full(count, NO_HORIZON, np.int64)
        self.new_horizons: set[int] = set()

    def match(self, after: BatchRecords) -> None:
        """Compare with batches of AFTER that begin at or below the last offset of these."""
        new, old = after.batches, self._before.batches
        # A v2 batch keeps its first and last offset. A message set is stored under its last message's offset,
        # and becomes a batch that ends with the last message that is retained.
        old_rows = np.searchsorted(old["last_offset"], new["last_offset"]).clip(max=len(old) - 1)
        is_matched = (old["base_offset"][old_rows] == new["base_offset"]) | (old["magic"][old_rows] < 2)
        is_matched &= old["last_offset"][old_rows] >= new["last_offset"]
        unknown, rows = np.flatnonzero(~is_matched), np.flatnonzero(is_matched)
        for first in unknown[:1].tolist():
            detail = f"offsets {new['base_offset'][first]} to {new['last_offset'][first]}"
            after.note("batch_unknown", detail, unknown, self._findings)
        old_rows = old_rows[rows]
        differs = np.empty(len(rows), np.int8)
        spans, new_spans = _batch_spans(old[old_rows]), _batch_spans(new[rows])
        first_difference(self._before.data, spans, after.data, new_spans, differs)
        self._outcome[old_rows] = np.where(new["count"][rows] == 0, EMPTIED, RETAINED)
        self._match_unchanged(old_rows[differs == 0])
        if differs.any():
            self._match_changed(after, rows[differs != 0], old_rows[differs != 0])

    def _match_unchanged(self, old_rows: Int64) -> None:
        """Batches with the same bytes: all their records are retained."""
        unchanged_batches = np.zeros(len(self._before.batches), np.bool_)
        unchanged_batches[old_rows] = True
        self._retained |= unchanged_batches[self._before.columns.batch]
        self._new_horizon[old_rows] = _horizons(self._before.batches[old_rows])
        if self._rewritable and not self._before.is_v2 and self._pair.was_cleaned:
            offsets = self._before.batches["base_offset"][old_rows]
            self._findings.add_offsets("not_converted", "is a message set", offsets)

    def _match_changed(self, after: BatchRecords, rows: Int64, old_rows: Int64) -> None:
        """Batches with other bytes: rows ``rows`` of ``after``, which were rows ``old_rows`` of BEFORE."""
        old, new, findings = self._before.batches[old_rows], after.batches[rows], self._findings
        if not self._rewritable:
            after.note("beyond_range", "the bytes of the batch changed", rows, findings)
        for kind, detail, bad in _header_problems(old, after, rows):
            after.note(kind, detail, rows[bad], findings)
        self._match_records(after, rows, old_rows)
        self._check_horizons(after, rows, old_rows)
        # A batch that loses no record and gets no delete horizon is copied as it is.
        if self._before.is_v2:
            retained = self._before.columns.batch[self._retained]
            counts = np.bincount(retained, minlength=len(self._before.batches))[old_rows]
            unneeded = (new["count"] > 0) & (new["count"] == old["count"]) & (counts == old["count"])
            unneeded &= (self._new_horizon[old_rows] == NO_HORIZON) | (_horizons(old) != NO_HORIZON)
            detail = "all its records were retained, and it has no new horizon"
            after.note("batch_changed", detail, rows[unneeded], findings)

    def _match_records(self, after: BatchRecords, rows: Int64, old_rows: Int64) -> None:
        """The records of changed batches: each must be a record of the same batch, and unchanged."""
        old_batch = np.full(len(after.batches), -1, np.int64)
        old_batch[rows] = old_rows
        new_records = np.flatnonzero(old_batch[after.columns.batch] >= 0)
        offsets, old = after.columns.offset[new_records], self._before.columns
        records = np.searchsorted(old.offset, offsets).clip(max=max(len(old) - 1, 0))
        is_matched = np.zeros(len(new_records), np.bool_)
        if len(old):
            is_matched = old.batch[records] == old_batch[after.columns.batch[new_records]]
            is_matched &= old.offset[records] == offsets
        unknown = offsets[~is_matched]
        self._findings.add_offsets("record_unknown", "the batch had no such record", unknown, after.path)
        new_records, records = new_records[is_matched], records[is_matched]
        differs = np.empty(len(records), np.int8)
        spans, new_spans = _record_spans(old, records), _record_spans(after.columns, new_records)
        first_difference(old.data, spans, after.columns.data, new_spans, differs)
        retimed = old.timestamp[records] != after.columns.timestamp[new_records]
        differs[(differs == 0) & retimed] = len(_RECORD_PROBLEMS)
        for number, kind in enumerate(_RECORD_PROBLEMS, 1):
            changed = after.columns.offset[new_records[differs == number]]
            self._findings.add_offsets(kind, "changed", changed, after.path)
        self._retained[records] = True

    def _check_horizons(self, after: BatchRecords, rows: Int64, old_rows: Int64) -> None:
        """Delete horizons: one that was set stays; a new one needs a tombstone, or a marker, in its batch."""
        new = after.batches[rows]
        old_horizon, horizon = _horizons(self._before.batches[old_rows]), _horizons(new)
        changed = (new["count"] > 0) & (old_horizon != NO_HORIZON) & (horizon != old_horizon)
        after.note("horizon_changed", "it had one before", rows[changed], self._findings)
        self._new_horizon[old_rows] = horizon
        is_new = (horizon != NO_HORIZON) & (old_horizon == NO_HORIZON)
        self.new_horizons.update(np.unique(horizon[is_new]).tolist())
        has_tombstone = np.isin(rows, after.columns.batch[after.columns.value_size < 0])
        unneeded = is_new & ~has_tombstone & ((new["attributes"] & layout.CONTROL_BIT) == 0)
        after.note("needless_horizon", "no tombstone is in it", rows[unneeded], self._findings)

    def skip_expired(self, transactions: SpanTransactions) -> None:
        """Follow the transactions of batches that retention deleted; nothing else of them is checked."""
        self._findings.counts.update(before=len(self._before.columns), expired=len(self._before.columns))
        self._follow_markers(transactions)

    def check(self, transactions: SpanTransactions) -> Words:
        """Check what was retained and what was discarded; returns the entries (uint64[n, 3]) of records with
        a key in the cleaned range, which ``keys`` checks."""
        batches, columns, pair = self._before.batches, self._before.columns, self._pair
        counts = self._findings.counts
        self._check_emptied()
        self._follow_markers(transactions)
        control, aborted = self._control[columns.batch], self._aborted[columns.batch]
        discarded = ~self._retained
        counts.update(before=len(columns), after=int(self._retained.sum()))
        if not self._rewritable:
            offsets = batches["base_offset"][self._outcome == DISCARDED]
            self._findings.add_offsets("beyond_range", "a batch is gone", offsets)
            return np.empty((0, 3), np.uint64)
        data = ~control & ~aborted
        in_range = columns.offset < pair.cleaned_end
        keyless = columns.key_size < 0
        counts["aborted"] += int(np.count_nonzero(discarded & aborted))
        counts["keyless"] += int(np.count_nonzero(discarded & data & in_range & keyless))
        tombstones = (columns.value_size < 0) & data & (in_range | self._retained)
        without_horizon = tombstones & self._retained & (self._new_horizon == NO_HORIZON)[columns.batch]
        self._note("lost_unkeyed", "it lies above what was cleaned by key", discarded & data & ~in_range)
        if pair.was_cleaned:
            self._note("aborted_kept", "its transaction was aborted", self._retained & aborted & ~control)
            self._note("keyless_kept", "it has no key", self._retained & data & in_range & keyless)
            self._note("unstamped", "its batch has no delete horizon", without_horizon & in_range)
        return self._entries(np.flatnonzero(data & in_range & ~keyless), tombstones)

    def _note(self, kind: str, detail: str, bad: Flags) -> None:
        self._findings.add_offsets(kind, detail, self._before.columns.offset[bad])

    def _entries(self, rows: Int64, tombstones: Flags) -> Words:
        """The entries of the records ``rows``, each with its reason besides a later record."""
        may_discard, must_discard = self._removable_tombstones()
        is_tombstone, batch = tombstones[rows], self._before.columns.batch[rows]
        reasons = np.where(is_tombstone, TOMBSTONE, 0) << keys.REASON_SHIFT
        flags = np.where(self._retained[rows], keys.IS_RETAINED, 0)
        flags |= np.where(is_tombstone & may_discard[batch], keys.MAY_DISCARD, 0)
        flags |= np.where(is_tombstone & must_discard[batch], keys.MUST_DISCARD, 0)
        return keys.entries_of(self._before.columns, rows, reasons | flags, self._pair.hash_key)

    def _removable_tombstones(self) -> tuple[Flags, Flags]:
        """Which batches' tombstones may be discarded, and which must be: bool, one a batch each.

        By delete horizon; message sets have none, and their segment's modification time decides.
        """
        settings, batches = self._pair.settings, self._before.batches
        is_certain = settings.now_is_exact
        horizon = _horizons(batches)
        may_discard = (horizon != NO_HORIZON) & (horizon <= settings.now_ms)
        if not self._before.is_v2:
            segment = next(one for one in self._pair.before if one.path == self._before.path)
            may_discard = np.full(len(batches), segment.modified_ms <= self._pair.legacy_horizon_ms)
            is_certain = settings.delete_retention_ms is not None
        # Tombstones that the log's compacted ledger does not cover yet are retained until it does.
        return may_discard, may_discard & is_certain & (batches["last_offset"] < self._pair.tombstones_from)

    def _check_emptied(self) -> None:
        """Batches that must be retained even without records, and emptied ones that need not be.

        A broker restores a producer's sequence number and epoch from its last batch, so that one stays
        (``isBatchLastRecordOfProducer`` in Kafka's ``Cleaner.cleanInto``, ``RETAIN_EMPTY``), and so does the
        batch with the last offset.
        """
        batches, pair = self._before.batches, self._pair
        last = batches["last_offset"] + 1 == pair.last_kept_end
        needed = np.zeros(len(batches), np.bool_)
        if pair.producers:
            ids, offsets, epochs = np.array(pair.producers, np.int64).T
            rows = np.searchsorted(ids, batches["producer_id"]).clip(max=len(ids) - 1)
            is_active = (batches["producer_id"] >= 0) & (ids[rows] == batches["producer_id"])
            # Of a producer without data a marker holds the epoch.
            holds_epoch = (offsets[rows] < 0) & self._control & (epochs[rows] == batches["producer_epoch"])
            needed = is_active & ((offsets[rows] == batches["last_offset"]) | holds_epoch)
        discarded = self._outcome == DISCARDED
        for kind, bad in (("sequence_lost", needed), ("last_batch_lost", last & ~needed)):
            for row in np.flatnonzero(discarded & bad)[:1].tolist():
                offset = int(batches["last_offset"][row])
                self._findings.add(kind, f"of producer {batches['producer_id'][row]}", offset=offset)
        if pair.settings.now_is_exact and self._rewritable and pair.was_cleaned:
            offsets = batches["last_offset"][(self._outcome == EMPTIED) & ~needed & ~last]
            self._findings.add_offsets("empty_batch", "no active producer needs it", offsets)

    def _follow_markers(self, transactions: SpanTransactions) -> None:
        """Follow the transactions of the batches; a Python step a marker, none a batch of data.

        Raises CorruptFileError where BEFORE's transaction indexes say otherwise than a marker.
        """
        batches = self._before.batches
        data = np.flatnonzero(self._data)
        producers = batches["producer_id"][data]
        order = np.argsort(producers, kind="stable")
        data, producers = data[order], producers[order]
        last: dict[int, int] = {}
        first_record = np.searchsorted(self._before.columns.batch, np.arange(len(batches)))
        for row in np.flatnonzero(self._control & (batches["count"] > 0)).tolist():
            key = self._before.columns.key(int(first_record[row])) or b""
            kind = int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1
            if kind not in (0, 1):
                continue  # no end of a transaction
            producer, offset = int(batches["producer_id"][row]), int(batches["base_offset"][row])
            rows = _between(data, producers, producer, last.get(producer, -1), row)
            if self._index.contradicts(producer, offset, bool(kind), self._aborted[rows]):
                marker = "commit" if kind else "abort"
                reason = f"the {marker} of producer {producer} at offset {offset} contradicts a .txnindex"
                raise CorruptFileError(self._before.path, self._before.position(row), reason)
            self._marker(row, bool(kind), transactions, has_data_here=len(rows) > 0)
            last[producer] = row
        for producer in np.unique(producers).tolist():
            if len(_between(data, producers, producer, last.get(producer, -1), len(batches))):
                transactions.open_producers.add(producer)

    def _marker(self, row: int, commit: bool, transactions: SpanTransactions, *, has_data_here: bool) -> None:
        """Follow one marker; ``has_data_here``: a data batch of its transaction is among these batches."""
        batches = self._before.batches
        marker = MarkerOutcome(
            offset=int(batches["base_offset"][row]),
            producer_id=int(batches["producer_id"][row]),
            commit=commit,
            horizon=int(_horizons(batches[row : row + 1])[0]),
            outcome=int(self._outcome[row]),
            new_horizon=int(self._new_horizon[row]),
        )
        had_data = transactions.close_transaction(marker.producer_id, has_data_here=has_data_here)
        if had_data and not commit:
            transactions.aborts_with_data.append(marker.offset)
        # None: a span below decides, and ``check_unresolved_markers`` checks the marker.
        if had_data is None and (self._rewritable or not commit):
            transactions.unresolved_markers.append(marker)
        elif had_data is not None and self._rewritable:
            check_marker(self._pair, marker, had_data, self._findings)


def _between(data: Int64, producers: Int64, producer: int, after: int, before: int) -> Int64:
    """The rows between ``after`` and ``before``, both exclusive, with data batches of the producer.

    ``data``: rows of data batches, and ``producers`` their producer ids, sorted by producer and row.
    """
    low, high = np.searchsorted(producers, [producer, producer + 1])
    rows = data[low:high]
    return rows[np.searchsorted(rows, after, side="right") : np.searchsorted(rows, before)]
