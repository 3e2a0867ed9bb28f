"""Transactions in a check: what was aborted, and what may become of the markers.

A marker's transaction is *empty* when no data batch of its producer lies between the producer's marker before
it and this one; a batch without records counts as data. A span knows that of all its markers but for the
first of each producer, which hangs on what lies below the span. Such markers are handed on as
``MarkerOutcome`` rows and judged once all spans are there (``settle``).

=================  =========================  ==============================================
the transaction    the marker in BEFORE       the marker in AFTER
=================  =========================  ==============================================
has data           any                        stays, its horizon as before
is empty           without a horizon          stays, with a horizon
is empty           its horizon is to come     stays
is empty           its horizon has passed     goes, or stays empty for its producer's sake
=================  =========================  ==============================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Directory, Flags
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.transactions import Aborted
from siltstone.verify.findings import Findings
from siltstone.verify.pairs import LogPair

_NO_RANGES = np.empty((2, 0), np.int64)
DISCARDED, RETAINED, EMPTIED = range(3)
"""What became of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerOutcome:
    """A marker of BEFORE and what became of it; horizons in ms, None without."""

    offset: int
    producer_id: int
    commit: bool
    horizon: int | None
    outcome: int
    new_horizon: int | None


@dataclass(slots=True, kw_only=True)
class SpanTransactions:
    """How a span went: its markers that are undecided, the aborts that had data (their markers' offsets),
    and how it left each producer that it met: with data since its last marker (``opened``), or none."""

    undecided: list[MarkerOutcome] = field(default_factory=list)
    aborts_with_data: list[int] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)

    def end(self, producer_id: int, *, here: bool) -> bool | None:
        """The producer's marker was met: has the transaction that it ends data? None: hangs on what lies
        below the span. ``here``: some was met that ``opened`` does not know of yet."""
        had_data = here or producer_id in self.opened or (False if producer_id in self.closed else None)
        self.opened.discard(producer_id)
        self.closed.add(producer_id)
        return had_data


class AbortedIndex:
    """The aborted transactions of a log, out of its ``.txnindex`` files, by producer."""

    def __init__(self, data: bytes) -> None:
        index = Aborted.of(data)
        self._by_producer = {
            producer: (index.first_offset[mine], index.last_offset[mine])
            for producer in np.unique(index.producer_id).tolist()
            for mine in [index.producer_id == producer]
        }

    def aborted(self, batches: Directory) -> Flags:
        """Which data batches are part of an aborted transaction: bool, one a batch."""
        aborted = np.zeros(len(batches), np.bool_)
        bits = batches["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)
        data = (batches["magic"] == 2) & (bits == TRANSACTIONAL_BIT)
        for producer in np.unique(batches["producer_id"][data]).tolist() if self._by_producer else ():
            first, last = self._by_producer.get(producer, _NO_RANGES)
            rows = np.flatnonzero(data & (batches["producer_id"] == producer))
            entry = np.searchsorted(first, batches["last_offset"][rows], side="right") - 1
            aborted[rows] = (entry >= 0) & (np.append(last, -1)[entry] >= batches["base_offset"][rows])
        return aborted

    def contradicts(self, producer: int, offset: int, commit: bool, data_is_listed: Flags) -> bool:
        """Does an entry say something else than a marker at ``offset``?

        ``data_is_listed``: of data batches between the producer's marker before it and this one, which are
        named as aborted. Data of an abort that none of them names is for ``check_entries``.
        """
        first, last = self._by_producer.get(producer, _NO_RANGES)
        entry = int(np.searchsorted(first, offset, side="right")) - 1
        if entry < 0 or last[entry] < offset:
            return bool(data_is_listed.any())
        return commit or int(last[entry]) != offset or not data_is_listed.all()


def judge_marker(pair: LogPair, marker: MarkerOutcome, had_data: bool, findings: Findings) -> None:
    """Hold one marker of the rewritten part to the table above."""
    terms = pair.terms
    if had_data:
        if marker.outcome != RETAINED:
            _note(findings, "marker_lost", marker, "data of its transaction was there")
        elif marker.new_horizon != marker.horizon:
            _note(findings, "marker_stamp", marker, "data of its transaction was there")
    elif marker.horizon is None or marker.horizon > terms.now_ms:
        if marker.outcome != RETAINED:
            _note(findings, "marker_lost", marker, "its delete horizon has not passed")
        elif marker.horizon is None and marker.new_horizon is None and pair.was_cleaned:
            _note(findings, "marker_stamp", marker, "its transaction is empty, and it has no horizon")
    elif marker.outcome == RETAINED and terms.now_is_exact and pair.was_cleaned:
        _note(findings, "marker_kept", marker, f"its delete horizon was {marker.horizon}")
    if marker.outcome != RETAINED:
        findings.counts["markers"] += 1


def _note(findings: Findings, kind: str, marker: MarkerOutcome, why: str) -> None:
    what = "commit" if marker.commit else "abort"
    findings.add(kind, f"{what} of producer {marker.producer_id}: {why}", offset=marker.offset)


def settle(pair: LogPair, spans: Sequence[SpanTransactions], findings: Findings) -> set[int]:
    """Judge what the spans, in order, left undecided; the offsets of abort markers whose data was there."""
    opened: set[int] = set()
    aborts: set[int] = set()
    first = pair.after[0].base_offset if pair.after else 0
    for span in spans:
        for marker in span.undecided:
            had_data = marker.producer_id in opened
            if first <= marker.offset < pair.rewritten_end:
                judge_marker(pair, marker, had_data, findings)
            if had_data and not marker.commit:
                aborts.add(marker.offset)
        aborts.update(span.aborts_with_data)
        opened = (opened - span.closed) | span.opened
    return aborts


def check_entries(
    pair: LogPair, after: Iterable[tuple[int, bytes]], aborts_with_data: set[int], findings: Findings
) -> None:
    """AFTER's ``.txnindex`` files against BEFORE's: ``after`` are (base offset of the segment, entries)."""
    by_marker = {entry[3]: entry for entry in np.frombuffer(pair.aborted, TRANSACTION_ENTRY).tolist()}
    missing = aborts_with_data - by_marker.keys()
    for offset in sorted(missing)[:1]:
        detail = "an aborted transaction that no .txnindex of BEFORE names"
        findings.add("before_damaged", detail, offset=offset, times=len(missing))
    first = pair.after[0].base_offset if pair.after else 0
    wanted = {
        offset: entry
        for offset, entry in by_marker.items()
        if offset >= first and (offset in aborts_with_data or offset >= pair.rewritten_end)
    }
    bases = [segment.base_offset for segment in pair.after]
    met: set[int] = set()
    for base, data in after:
        entries = np.frombuffer(data, TRANSACTION_ENTRY).tolist()
        offsets = [entry[3] for entry in entries]
        end = next((following for following in bases if following > base), 1 << 63)
        for entry, offset in zip(entries, offsets, strict=True):
            if by_marker.get(offset) != entry:
                findings.add("aborted_entry", "no such entry was there", offset=offset)
            elif not base <= offset < end:
                findings.add("aborted_entry", "stands in another segment than its marker", offset=offset)
            elif offset in met:
                findings.add("aborted_entry", "is there twice", offset=offset)
            elif offset not in wanted and pair.was_cleaned:
                findings.add("aborted_entry", "nothing of its transaction is left", offset=offset)
            met.add(offset)
        if offsets != sorted(offsets):
            findings.add("aborted_entry", "entries are not in order", offset=base)
    for offset in sorted(wanted.keys() - met):
        detail = "is missing: readers of committed records would be shown the transaction"
        findings.add("aborted_entry", detail, offset=offset)
