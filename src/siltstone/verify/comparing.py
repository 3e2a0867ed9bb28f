"""Compares the batches of a span in BEFORE with those in AFTER, and their records.

A span is a range of a log's offsets: those of one segment of AFTER (``pairs.Span``).

``Comparison.match`` finds for each batch of AFTER the batch of BEFORE with its offsets, and for each record
of AFTER the record of BEFORE with its offset. Both must be as they were, except for what cleaning may change.
Batches and records of BEFORE without a match were discarded. A record may be discarded if its transaction was
aborted, if it has no key, if it is a tombstone whose delete horizon has passed, or if a later record has the
same key. ``Comparison.check`` tests the first two conditions. For each record with a key it returns an entry,
which says whether the third holds, and ``keys`` searches for the later record.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CorruptFileError
from siltstone.base.records import layout
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.control import ABORT, COMMIT
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes, Flags, Int64, Words, have_delete_horizons
from siltstone.log.segments import Segment, Window, open_unchanged, windows
from siltstone.verify import keys
from siltstone.verify.findings import FILE_ERRORS, TOMBSTONE, Findings
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

# BEFORE and AFTER are read some whole batches at a time, with their records. However large the segments are,
# the memory is that of a window (4 MiB, or the largest batch) and of the decompressed records of some
# batches.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecords:
    """Some batches, rows of a scan over ``data``, and their records. Either all have magic 2, or all are
    older.

    ``origin``: the position of ``data[0]`` in the file ``path``. ``columns``: one row a record;
    ``columns.batch`` has the row of its batch in ``batches``.
    """

    path: str
    origin: int
    data: Bytes
    batches: BatchHeaders
    columns: RecordColumns

    @property
    def is_v2(self) -> bool:
        """Have the batches magic 2? At least one batch is there, and all others are like it."""
        return bool(self.batches["magic"][0] == 2)

    def position(self, row: int) -> int:
        """The position in the file at which a batch begins."""
        return self.origin + int(self.batches["position"][row])

    def note(self, kind: str, detail: str, rows: Int64, findings: Findings) -> None:
        """Add a problem that all batches ``rows`` have: list it for the first batch, count it for all."""
        if len(rows):
            offset, position = int(self.batches["base_offset"][rows[0]]), self.position(int(rows[0]))
            findings.add(kind, detail, offset=offset, path=self.path, position=position, times=len(rows))


def _decoded(window: Window, path: str, scratch: Scratch, batch_limit: int) -> Iterator[BatchRecords]:
    """A window's batches with their records. Each result is valid until the next one is read."""
    for part in slices_within(window.data, window.batches):
        batches = window.batches[part]
        data, origin = window.data, window.origin
        columns = decode_records(data, batches, scratch, limit=batch_limit, path=path, origin=origin)
        yield BatchRecords(path=path, origin=origin, data=data, batches=batches, columns=columns)


def read_before(segment: Segment, start: int, end: int, batch_limit: int) -> Iterator[BatchRecords]:
    """The batches of a segment of BEFORE that overlap the span [start, end).

    A batch that overlaps two spans would be in both. But no segment of a sound AFTER begins within a batch,
    so no record counts twice. If a segment does begin within a batch, ``pairs`` reports it
    (``segment_name``). ``batch_limit``: how many bytes one batch may decompress to. Raises an error of
    ``FILE_ERRORS``.
    """
    scratch = Scratch()
    for window in _windows_of(segment):
        is_inside = (window.batches["last_offset"] >= start) & (window.batches["base_offset"] < end)
        yield from _decoded(
            replace(window, batches=window.batches[is_inside]), segment.path, scratch, batch_limit
        )


def _windows_of(segment: Segment) -> Generator[Window, None, None]:
    """The windows of a segment. Raises an error of ``FILE_ERRORS``."""
    with open_unchanged(segment) as reader:
        yield from windows(reader)


class AfterStream:
    """A segment of AFTER; ``take`` reads its batches up to an offset, ``finish`` closes it.

    The offsets of its batches must ascend within [the segment's base offset, ``end``). ``batch_limit``: how
    many bytes one batch may decompress to. The first batch that breaks a rule is a problem in ``findings``
    and ends the stream; so is a file that cannot be read, or has changed since it was listed.
    """

    def __init__(self, segment: Segment, end: int, batch_limit: int, findings: Findings) -> None:
        self._path = segment.path
        self._next_offset, self._end = segment.base_offset, end
        self._windows = _windows_of(segment)
        self._untaken: Window | None = None  # what ``take`` has not returned of the window that was read last
        self._scratch, self._limit, self._findings = Scratch(), batch_limit, findings

    def take(self, last_offset: int) -> Iterator[BatchRecords]:
        """The next batches that begin at or below ``last_offset``. They are valid until the next call."""
        try:
            while True:
                if self._untaken is None or not len(self._untaken.batches):
                    self._untaken = next(self._windows, None)
                    if self._untaken is None or not self._is_in_order(self._untaken):
                        return
                window, batches = self._untaken, self._untaken.batches
                # A window may have batches above ``last_offset``: the next call takes them.
                stop = int(np.searchsorted(batches["base_offset"], last_offset, side="right"))
                if not stop:
                    return
                self._untaken = replace(window, batches=batches[stop:])
                taken = replace(window, batches=batches[:stop])
                yield from _decoded(taken, self._path, self._scratch, self._limit)
        except FILE_ERRORS as error:
            self._findings.add_error("unreadable", error, self._path)
            self._stop_on_damage()

    def _is_in_order(self, window: Window) -> bool:
        """Do the offsets ascend within the segment's bounds? If not, that is a problem and ends the
        stream."""
        base, last = window.batches["base_offset"], window.batches["last_offset"]
        minimum = np.append(np.int64(self._next_offset), last[:-1] + 1)
        bad = np.flatnonzero((base < minimum) | (last >= self._end))
        if len(bad):
            row = int(bad[0])
            is_outside = last[row] >= self._end or (row == 0 and window.origin == 0)
            self._findings.add(
                "segment_bounds" if is_outside else "order",
                f"has offsets {base[row]} to {last[row]}, but {minimum[row]} to {self._end - 1} are allowed",
                path=self._path,
                position=window.origin + int(window.batches["position"][row]),
            )
            self._stop_on_damage()
        self._next_offset = int(last[-1]) + 1
        return not len(bad)

    def _stop_on_damage(self) -> None:
        """End the stream: ``take`` returns nothing any more, and the findings are incomplete."""
        self._findings.is_complete = False
        self._untaken = None
        self._windows.close()

    def finish(self, *, report_untaken: bool) -> None:
        """Close the segment. With ``report_untaken`` each batch that was not taken is a problem: BEFORE does
        not have it."""
        for unmatched in self.take(self._end) if report_untaken else ():
            rows = np.arange(len(unmatched.batches))
            unmatched.note("batch_unknown", "BEFORE has no batch there", rows, self._findings)
        self._windows.close()


# How two batches or two records are compared.
#
# The header fields that cleaning preserves (``_PRESERVED_FIELDS``, ``_PRESERVED_BITS``) must be as they were.
# A batch's timestamps and delete horizon must be those that its retained records give.

_RECORD_PROBLEMS = ("key_changed", "value_changed", "headers_changed", "timestamp_changed")
"""Kinds of problems, numbered from 1 on. The first three numbers are those that ``first_difference`` gives to
the ranges of ``_record_byte_ranges``; a timestamp is no range of bytes, and is compared after these."""
_PRESERVED_FIELDS = ("last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
_PRESERVED_BITS = (
    (layout.TIMESTAMP_TYPE_BIT, "timestamp type"),
    (layout.TRANSACTIONAL_BIT, "transactional bit"),
    (layout.CONTROL_BIT, "control bit"),
)


@kernel
def first_difference(
    old: Bytes, old_ranges: Int64, new: Bytes, new_ranges: Int64, out: npt.NDArray[np.int8]
) -> None:
    """Compare n pairs of batches or records, each k ranges of bytes. Fills ``out`` (int8[n]) with the number
    of the first range that differs, from 1 on, or 0 if all are the same.

    ``old_ranges``, ``new_ranges`` (int64[n, 2k]): start and size of each range in ``old`` and in ``new``; a
    size of -1 is null.
    """
    for i in range(len(old_ranges)):
        out[i] = 0
        for field in range(old_ranges.shape[1] // 2):
            old_start, size = old_ranges[i, 2 * field], old_ranges[i, 2 * field + 1]
            new_start = new_ranges[i, 2 * field]
            is_same = size == new_ranges[i, 2 * field + 1]
            byte = 0
            while is_same and byte < size:
                is_same = old[old_start + byte] == new[new_start + byte]
                byte += 1
            if not is_same:
                out[i] = field + 1
                break


def _batch_byte_ranges(batches: BatchHeaders) -> Int64:
    return np.column_stack((batches["position"], batches["size"])).astype(np.int64)


def _record_byte_ranges(columns: RecordColumns, rows: Int64) -> Int64:
    """Starts and sizes of key, value and headers of some records: int64[n, 6]."""
    end = columns.start[rows].astype(np.int64) + columns.size[rows]
    headers_size = np.where(columns.header_count[rows] > 0, end - columns.headers_start[rows], 0)
    names = ("key_start", "key_size", "value_start", "value_size", "headers_start")
    return np.column_stack((*(getattr(columns, name)[rows] for name in names), headers_size)).astype(np.int64)


def _horizons(batches: BatchHeaders) -> Int64:
    """The delete horizon of each batch in ms, or ``NO_HORIZON``. It replaces the base timestamp (KIP-534)."""
    return np.where(have_delete_horizons(batches), batches["base_timestamp"], NO_HORIZON)


def _header_problems(old: BatchHeaders, after: BatchRecords, rows: Int64) -> Iterator[tuple[str, str, Flags]]:
    """Check the headers of rewritten batches; yields (kind, detail, bool[n]: which batches have the problem).

    ``old``: the batches of BEFORE that became the batches ``rows`` of ``after``: either all v2, or all
    message sets (v0, v1), which cleaning converts to v2.
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
        # A message set has none of these fields. Its last offset may change (``Comparison.match``).
        for name in _PRESERVED_FIELDS[1:]:
            yield "header_changed", f"{name} is not -1", new[name] != -1
        converted = (changed & (layout.TIMESTAMP_TYPE_BIT | layout.CODEC_MASK)) != 0
        yield "header_changed", "codec or timestamp type changed", converted & ~empty & (old["magic"] == 1)
    # An emptied batch is only a header. It keeps its largest timestamp (magic 0 had none).
    has_more = (new["size"] != layout.BATCH_OVERHEAD) | (new["base_timestamp"] != -1)
    has_more |= (new["attributes"] & (layout.CODEC_MASK | layout.DELETE_HORIZON_BIT)) != 0
    has_more |= (new["max_timestamp"] != old["max_timestamp"]) & (old["magic"] > 0)
    yield "empty_batch", "more than a header, or another largest timestamp", empty & has_more
    wrong = np.zeros(len(rows), np.bool_)
    wrong[~empty] = _has_wrong_times(old[~empty], after, rows[~empty])
    yield "batch_times", "base or largest timestamp is not its records'", wrong


def _has_wrong_times(old: BatchHeaders, after: BatchRecords, rows: Int64) -> Flags:
    """Which batches do not have the base or largest timestamp that their records give: bool[n]."""
    new, columns = after.batches[rows], after.columns
    first = np.searchsorted(columns.batch, rows)
    largest = np.full(len(after.batches), np.iinfo(np.int64).min)
    np.maximum.at(largest, columns.batch, columns.timestamp)
    # With LogAppendTime the largest timestamp is the broker's, whatever records are retained. With a delete
    # horizon the base timestamp is the horizon (KIP-534).
    is_append_time = (new["attributes"] & layout.TIMESTAMP_TYPE_BIT) != 0
    wrong = new["max_timestamp"] != np.where(is_append_time, old["max_timestamp"], largest[rows])
    wrong |= (_horizons(new) == NO_HORIZON) & (new["base_timestamp"] != columns.timestamp[first])
    return np.asarray(wrong, np.bool_)


class Comparison:
    """The check of some batches of BEFORE, ``before``: call ``match`` with all batches of AFTER below their
    end, then ``check``.

    ``is_rewritable``: they are in a segment that cleaning may have rewritten; the batches of other segments
    must be as they were. ``new_horizons``: delete horizons (ms) that AFTER has in these batches and BEFORE
    has not. ``_retained``: bool, one a record; ``_outcome`` (DISCARDED as long as there is no match) and
    ``_new_horizon`` (the delete horizon in AFTER): one a batch.
    """

    def __init__(
        self,
        pair: LogPair,
        before: BatchRecords,
        index: AbortedIndex,
        is_rewritable: bool,
        findings: Findings,
    ) -> None:
        self._pair, self._before, self._findings = pair, before, findings
        self._index, self._aborted, self._is_rewritable = index, index.aborted(before.batches), is_rewritable
        self._control, self._transaction_data = control_and_data(before.batches)
        count = len(before.batches)
        self._retained = np.zeros(len(before.columns), np.bool_)
        self._outcome = np.zeros(count, np.int8)
        self._new_horizon = np.full(count, NO_HORIZON, np.int64)
        self.new_horizons: set[int] = set()

    def match(self, after: BatchRecords) -> None:
        """Compare these batches of BEFORE with ``after``, the next batches of AFTER.

        Each batch of ``after`` begins at or below the last offset of these batches.
        """
        new, old = after.batches, self._before.batches
        # A v2 batch keeps its base and last offset. A message set is stored under its last message's offset,
        # and cleaning converts it to a batch that ends with the last retained message.
        old_rows = np.searchsorted(old["last_offset"], new["last_offset"]).clip(max=len(old) - 1)
        is_matched = (old["base_offset"][old_rows] == new["base_offset"]) | (old["magic"][old_rows] < 2)
        is_matched &= old["last_offset"][old_rows] >= new["last_offset"]
        unknown, rows = np.flatnonzero(~is_matched), np.flatnonzero(is_matched)
        if len(unknown):
            first, last = (int(new[name][unknown[0]]) for name in ("base_offset", "last_offset"))
            after.note("batch_unknown", f"offsets {first} to {last}", unknown, self._findings)
        old_rows = old_rows[rows]
        differs = np.empty(len(rows), np.int8)
        old_ranges, new_ranges = _batch_byte_ranges(old[old_rows]), _batch_byte_ranges(new[rows])
        first_difference(self._before.data, old_ranges, after.data, new_ranges, differs)
        self._outcome[old_rows] = np.where(new["count"][rows] == 0, EMPTIED, RETAINED)
        self._match_unchanged(old_rows[differs == 0])
        if differs.any():
            self._match_changed(after, rows[differs != 0], old_rows[differs != 0])

    def _match_unchanged(self, old_rows: Int64) -> None:
        """Record that batches with the same bytes in AFTER retain all their records."""
        unchanged_batches = np.zeros(len(self._before.batches), np.bool_)
        unchanged_batches[old_rows] = True
        self._retained |= unchanged_batches[self._before.columns.batch]
        self._new_horizon[old_rows] = _horizons(self._before.batches[old_rows])
        if self._is_rewritable and not self._before.is_v2 and self._pair.was_cleaned:
            offsets = self._before.batches["base_offset"][old_rows]
            self._findings.add_offsets("not_converted", "is a message set", offsets)

    def _match_changed(self, after: BatchRecords, rows: Int64, old_rows: Int64) -> None:
        """Compare batches whose bytes differ: ``rows`` of ``after`` were ``old_rows`` of these batches."""
        old, new, findings = self._before.batches[old_rows], after.batches[rows], self._findings
        if not self._is_rewritable:
            after.note("beyond_range", "the bytes of the batch changed", rows, findings)
        for kind, detail, bad in _header_problems(old, after, rows):
            after.note(kind, detail, rows[bad], findings)
        self._match_records(after, rows, old_rows)
        self._check_horizons(after, rows, old_rows)
        # A cleaning that discards no record of a v2 batch, and sets no delete horizon in it, must copy the
        # batch byte for byte. (A message set always changes: it is converted to v2.)
        if self._before.is_v2:
            retained = self._before.columns.batch[self._retained]
            counts = np.bincount(retained, minlength=len(self._before.batches))[old_rows]
            needless = (new["count"] > 0) & (new["count"] == old["count"]) & (counts == old["count"])
            needless &= (self._new_horizon[old_rows] == NO_HORIZON) | (_horizons(old) != NO_HORIZON)
            detail = "all its records were retained, and it has no new horizon"
            after.note("batch_changed", detail, rows[needless], findings)

    def _match_records(self, after: BatchRecords, rows: Int64, old_rows: Int64) -> None:
        """Each record of a changed batch must be an unchanged record of the same batch of BEFORE."""
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
        old_ranges = _record_byte_ranges(old, records)
        new_ranges = _record_byte_ranges(after.columns, new_records)
        first_difference(old.data, old_ranges, after.columns.data, new_ranges, differs)
        is_retimed = old.timestamp[records] != after.columns.timestamp[new_records]
        differs[(differs == 0) & is_retimed] = len(_RECORD_PROBLEMS)
        for number, kind in enumerate(_RECORD_PROBLEMS, 1):
            changed = after.columns.offset[new_records[differs == number]]
            self._findings.add_offsets(kind, "changed", changed, after.path)
        self._retained[records] = True

    def _check_horizons(self, after: BatchRecords, rows: Int64, old_rows: Int64) -> None:
        """A delete horizon must not change. A batch with a new one must have a tombstone or a marker."""
        new = after.batches[rows]
        old_horizon, horizon = _horizons(self._before.batches[old_rows]), _horizons(new)
        changed = (new["count"] > 0) & (old_horizon != NO_HORIZON) & (horizon != old_horizon)
        after.note("horizon_changed", "it had one before", rows[changed], self._findings)
        self._new_horizon[old_rows] = horizon
        is_new = (horizon != NO_HORIZON) & (old_horizon == NO_HORIZON)
        self.new_horizons.update(np.unique(horizon[is_new]).tolist())
        has_tombstone = np.isin(rows, after.columns.batch[after.columns.value_size < 0])
        needless = is_new & ~has_tombstone & ((new["attributes"] & layout.CONTROL_BIT) == 0)
        after.note("needless_horizon", "no tombstone is in it", rows[needless], self._findings)

    def skip_expired(self, transactions: SpanTransactions) -> None:
        """Count batches that retention deleted and follow their transactions. Nothing else is checked."""
        self._findings.counts.update(before=len(self._before.columns), expired=len(self._before.columns))
        self._follow_markers(transactions)

    def check(self, transactions: SpanTransactions) -> Words:
        """Check what was retained and what was discarded.

        Returns the entries of the records with a key in the cleaned range, which ``keys`` checks: uint64[n,
        3], two words with the key's hash, the second also with reason and flags, and the offset.
        """
        batches, columns, pair = self._before.batches, self._before.columns, self._pair
        counts = self._findings.counts
        self._check_emptied()
        self._follow_markers(transactions)
        control, aborted = self._control[columns.batch], self._aborted[columns.batch]
        discarded = ~self._retained
        counts.update(before=len(columns), after=int(self._retained.sum()))
        if not self._is_rewritable:
            offsets = batches["base_offset"][self._outcome == DISCARDED]
            self._findings.add_offsets("beyond_range", "a batch is missing", offsets)
            return np.empty((0, 3), np.uint64)
        visible = ~control & ~aborted  # to read_committed consumers
        in_range = columns.offset < pair.cleaned_end_offset
        keyless = columns.key_size < 0
        counts["aborted"] += int(np.count_nonzero(discarded & aborted))
        counts["keyless"] += int(np.count_nonzero(discarded & visible & in_range & keyless))
        tombstones = (columns.value_size < 0) & visible & in_range
        without_horizon = (self._new_horizon == NO_HORIZON)[columns.batch]
        # The last rewritten segment may have records above the cleaned range. None of these may be discarded
        # for its key, nor because it has no key, so ``keys`` gets no entries of them.
        lost_above_range = discarded & visible & ~in_range
        self._add_problems("lost_unkeyed", "it lies above the cleaned range", lost_above_range)
        if pair.was_cleaned:
            self._add_problems(
                "aborted_kept", "its transaction was aborted", self._retained & aborted & ~control
            )
            self._add_problems("keyless_kept", "it has no key", self._retained & visible & in_range & keyless)
            unstamped = tombstones & self._retained & without_horizon
            self._add_problems("unstamped", "its batch has no delete horizon", unstamped)
        return self._entries(np.flatnonzero(visible & in_range & ~keyless), tombstones)

    def _add_problems(self, kind: str, detail: str, bad: Flags) -> None:
        self._findings.add_offsets(kind, detail, self._before.columns.offset[bad])

    def _entries(self, rows: Int64, tombstones: Flags) -> Words:
        """The entries of the records ``rows``. ``tombstones``: bool, one a record; their entries have the
        reason TOMBSTONE."""
        may_discard, must_discard = self._removable_tombstones()
        is_tombstone, batch = tombstones[rows], self._before.columns.batch[rows]
        reasons = np.where(is_tombstone, TOMBSTONE, 0) << keys.REASON_SHIFT
        flags = np.where(self._retained[rows], keys.IS_RETAINED, 0)
        flags |= np.where(is_tombstone & may_discard[batch], keys.MAY_DISCARD, 0)
        flags |= np.where(is_tombstone & must_discard[batch], keys.MUST_DISCARD, 0)
        return keys.entries_of(self._before.columns, rows, reasons | flags, self._pair.hash_seeds)

    def _removable_tombstones(self) -> tuple[Flags, Flags]:
        """Two arrays of bool, one a batch: its tombstones may be discarded; they must be discarded.

        The delete horizon decides. Message sets have none: there the modification time of the segment
        decides. No tombstone must be discarded if the time of the cleaning, or for message sets
        ``delete.retention.ms``, is not known exactly.
        """
        settings, batches = self._pair.settings, self._before.batches
        is_certain = settings.cleaned_at_is_exact
        horizon = _horizons(batches)
        may_discard = (horizon != NO_HORIZON) & (horizon <= settings.cleaned_at_ms)
        if not self._before.is_v2:
            path = self._before.path
            segment = next(segment for segment in self._pair.before if segment.path == path)
            may_discard = np.full(len(batches), segment.modified_ms <= self._pair.legacy_horizon_ms)
            is_certain = settings.delete_retention_ms is not None
        # The next side-by-side compaction needs tombstones at or above the compaction horizon: the compacted
        # ledger may still have records of their keys. So cleaning retains them at any age.
        return may_discard, may_discard & is_certain & (batches["last_offset"] < self._pair.tombstones_from)

    def _check_emptied(self) -> None:
        """Check that the batches that are needed even without records are retained, and no other empty batch.

        A broker restores a producer's sequence number and epoch from its last batch, so cleaning retains it
        (``isBatchLastRecordOfProducer`` in Kafka's ``Cleaner.cleanInto``, ``RETAIN_EMPTY``). It also retains
        the batch with the last offset.
        """
        batches, pair = self._before.batches, self._pair
        is_last = batches["last_offset"] == pair.last_offset_to_retain
        is_needed = np.zeros(len(batches), np.bool_)
        if pair.producers:
            ids, offsets, epochs = np.array(pair.producers, np.int64).T
            rows = np.searchsorted(ids, batches["producer_id"]).clip(max=len(ids) - 1)
            is_active = (batches["producer_id"] >= 0) & (ids[rows] == batches["producer_id"])
            # If an active producer has no data left, its last epoch is that of a marker.
            holds_epoch = (offsets[rows] < 0) & self._control & (epochs[rows] == batches["producer_epoch"])
            is_needed = is_active & ((offsets[rows] == batches["last_offset"]) | holds_epoch)
        discarded = self._outcome == DISCARDED
        is_lost = discarded & is_needed
        if is_lost.any():
            row = int(is_lost.argmax())
            offset, producer = int(batches["last_offset"][row]), batches["producer_id"][row]
            self._findings.add("sequence_lost", f"of producer {producer}", offset=offset)
        last_lost = batches["last_offset"][discarded & is_last & ~is_needed]
        self._findings.add_offsets("last_batch_lost", "it has to stay even without records", last_lost)
        if pair.settings.cleaned_at_is_exact and self._is_rewritable and pair.was_cleaned:
            offsets = batches["last_offset"][(self._outcome == EMPTIED) & ~is_needed & ~is_last]
            self._findings.add_offsets("empty_batch", "no active producer needs it", offsets)

    def _follow_markers(self, transactions: SpanTransactions) -> None:
        """Follow the transactions of the batches and check their markers. Raises CorruptFileError if BEFORE's
        transaction indexes contradict a marker.

        Data batches are sorted by producer, so that the Python loop has one step for each marker only.
        """
        batches = self._before.batches
        data = np.flatnonzero(self._transaction_data)
        producers = batches["producer_id"][data]
        order = np.argsort(producers, kind="stable")
        data, producers = data[order], producers[order]
        last_marker: dict[int, int] = {}  # producer id → row
        first_record = np.searchsorted(self._before.columns.batch, np.arange(len(batches)))
        for row in np.flatnonzero(self._control & (batches["count"] > 0)).tolist():
            # The key of a control record is two int16: its version and its type.
            key = self._before.columns.key(int(first_record[row])) or b""
            marker_type = int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1
            if marker_type not in (ABORT, COMMIT):
                continue  # another control batch, such as a leader change
            producer, offset = int(batches["producer_id"][row]), int(batches["base_offset"][row])
            rows = _rows_between(data, producers, producer, last_marker.get(producer, -1), row)
            if self._index.contradicts(producer, offset, marker_type == COMMIT, self._aborted[rows]):
                marker = "commit" if marker_type == COMMIT else "abort"
                reason = f"the {marker} of producer {producer} at offset {offset} contradicts a .txnindex"
                raise CorruptFileError(self._before.path, self._before.position(row), reason)
            self._check_marker(row, marker_type == COMMIT, transactions, has_data_here=len(rows) > 0)
            last_marker[producer] = row
        for producer in np.unique(producers).tolist():
            if len(_rows_between(data, producers, producer, last_marker.get(producer, -1), len(batches))):
                transactions.open_producers.add(producer)

    def _check_marker(
        self, row: int, is_commit: bool, transactions: SpanTransactions, *, has_data_here: bool
    ) -> None:
        """Check the marker in the batch ``row``, or leave it to ``check_unresolved_markers`` if the spans
        below decide whether its transaction has data.

        ``has_data_here``: these batches have data of the transaction.
        """
        batches = self._before.batches
        marker = MarkerOutcome(
            offset=int(batches["base_offset"][row]),
            producer_id=int(batches["producer_id"][row]),
            is_commit=is_commit,
            horizon=int(_horizons(batches[row : row + 1])[0]),
            outcome=int(self._outcome[row]),
            new_horizon=int(self._new_horizon[row]),
        )
        had_data = transactions.close_transaction(marker.producer_id, has_data_here=has_data_here)
        if had_data and not is_commit:
            transactions.aborts_with_data.append(marker.offset)
        # ``had_data`` is None: a span below may have data of the transaction. The marker is left for later if
        # it was in a segment that may have been rewritten, or if it is an ABORT: for any ABORT with data,
        # AFTER's .txnindex files must have an entry. A COMMIT in any other segment only had to stay as it
        # was.
        if had_data is None and (self._is_rewritable or not is_commit):
            transactions.unresolved_markers.append(marker)
        elif had_data is not None and self._is_rewritable:
            check_marker(self._pair, marker, had_data, self._findings)


def _rows_between(data: Int64, producers: Int64, producer: int, after: int, before: int) -> Int64:
    """The rows of a producer's data batches between the rows ``after`` and ``before``, both exclusive.

    ``data``: rows of data batches; ``producers``: their producer ids. Both are sorted by producer, then row.
    """
    low, high = np.searchsorted(producers, [producer, producer + 1])
    rows = data[low:high]
    return rows[np.searchsorted(rows, after, side="right") : np.searchsorted(rows, before)]
