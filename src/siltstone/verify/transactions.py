"""The check of transactions: which batches were aborted, and which markers may be discarded.

A marker's transaction is *empty* when the producer has no data batch between its marker before this one and
this one; a batch without records counts as data. A span knows that of all its markers but the first of each
producer, which depends on the spans below. Such markers are returned as ``MarkerOutcome`` rows, and
``check_unresolved_markers`` checks them when all spans are done.

=================  =========================  ==============================================
the transaction    the marker in BEFORE       the marker in AFTER
=================  =========================  ==============================================
has data           any                        stays, its horizon as before
is empty           without a horizon          stays, with a horizon
is empty           a horizon in the future    stays
is empty           a horizon that has passed  is discarded, or emptied for its producer
=================  =========================  ==============================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeaders, Flags
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.transactions import AbortedTransactions
from siltstone.verify.findings import Findings
from siltstone.verify.pairs import LogPair

_NO_RANGES = np.empty((2, 0), np.int64)
DISCARDED, RETAINED, EMPTIED = range(3)
"""The outcome of a batch."""
NO_HORIZON = -1
"""In place of a delete horizon, where a batch has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerOutcome:
    """A marker of BEFORE and the outcome of its batch; delete horizons in ms, or NO_HORIZON."""

    offset: int
    producer_id: int
    commit: bool
    horizon: int
    outcome: int
    new_horizon: int


@dataclass(slots=True, kw_only=True)
class SpanTransactions:
    """The transactions of a span.

    ``unresolved_markers``: those whose transaction may have begun below the span. ``aborts_with_data``:
    offsets of abort markers whose transaction has data. ``open_producers`` have data after their last marker,
    ``ended_producers`` have a marker.
    """

    unresolved_markers: list[MarkerOutcome] = field(default_factory=list)
    aborts_with_data: list[int] = field(default_factory=list)
    open_producers: set[int] = field(default_factory=set)
    ended_producers: set[int] = field(default_factory=set)

    def close_transaction(self, producer_id: int, *, has_data_here: bool) -> bool | None:
        """End the producer's transaction: does it have data? None: it depends on the spans below.

        ``has_data_here``: it has data in the records at hand, which ``open_producers`` does not know of yet.
        """
        has_data = has_data_here or producer_id in self.open_producers
        is_known = has_data or producer_id in self.ended_producers
        self.open_producers.discard(producer_id)
        self.ended_producers.add(producer_id)
        return has_data if is_known else None


def control_and_data(batches: BatchHeaders) -> tuple[Flags, Flags]:
    """Which batches are control batches, and which are data of a transaction: bool, one a batch each."""
    modern, attributes = batches["magic"] == 2, batches["attributes"]
    control = modern & ((attributes & CONTROL_BIT) != 0)
    return control, modern & ~control & ((attributes & TRANSACTIONAL_BIT) != 0)


class AbortedIndex:
    """The aborted transactions of a log, out of its ``.txnindex`` files, by producer."""

    def __init__(self, data: bytes) -> None:
        index = AbortedTransactions.from_entries(data)
        self._by_producer = {
            producer: (index.first_offset[rows], index.last_offset[rows])
            for producer in np.unique(index.producer_id).tolist()
            for rows in [index.producer_id == producer]
        }

    def aborted(self, batches: BatchHeaders) -> Flags:
        """Which batches are data of an aborted transaction: bool, one a batch."""
        aborted = np.zeros(len(batches), np.bool_)
        _, data = control_and_data(batches)
        for producer in np.unique(batches["producer_id"][data]).tolist() if self._by_producer else ():
            first, last = self._by_producer.get(producer, _NO_RANGES)
            rows = np.flatnonzero(data & (batches["producer_id"] == producer))
            entry = np.searchsorted(first, batches["last_offset"][rows], side="right") - 1
            aborted[rows] = (entry >= 0) & (np.append(last, -1)[entry] >= batches["base_offset"][rows])
        return aborted

    def contradicts(self, producer: int, offset: int, commit: bool, data_is_listed: Flags) -> bool:
        """Does the index contradict the producer's marker at ``offset``?

        ``data_is_listed``: which of the data batches between its marker before this one and this one the
        index names as aborted. An abort with data of which the index names nothing is left to
        ``check_entries``.
        """
        first, last = self._by_producer.get(producer, _NO_RANGES)
        entry = int(np.searchsorted(first, offset, side="right")) - 1
        if entry < 0 or last[entry] < offset:
            return bool(data_is_listed.any())
        return commit or int(last[entry]) != offset or not data_is_listed.all()


def check_marker(pair: LogPair, marker: MarkerOutcome, had_data: bool, findings: Findings) -> None:
    """Check one marker of the rewritten segments by the table above."""
    settings = pair.settings
    if had_data:
        if marker.outcome != RETAINED:
            _note(findings, "marker_lost", marker, "data of its transaction was there")
        elif marker.new_horizon != marker.horizon:
            _note(findings, "marker_stamp", marker, "data of its transaction was there")
    elif marker.horizon == NO_HORIZON or marker.horizon > settings.now_ms:
        if marker.outcome != RETAINED:
            _note(findings, "marker_lost", marker, "its delete horizon has not passed")
        elif marker.horizon == marker.new_horizon == NO_HORIZON and pair.was_cleaned:
            _note(findings, "marker_stamp", marker, "its transaction is empty, and it has no horizon")
    elif marker.outcome == RETAINED and settings.now_is_exact and pair.was_cleaned:
        _note(findings, "marker_kept", marker, f"its delete horizon was {marker.horizon}")
    if marker.outcome != RETAINED:
        findings.counts["markers"] += 1


def _note(findings: Findings, kind: str, marker: MarkerOutcome, why: str) -> None:
    name = "commit" if marker.commit else "abort"
    findings.add(kind, f"{name} of producer {marker.producer_id}: {why}", offset=marker.offset)


def check_unresolved_markers(
    pair: LogPair, spans: Sequence[SpanTransactions], findings: Findings
) -> set[int]:
    """Check the unresolved markers of the spans, which are in order; returns the offsets of all abort markers
    whose transaction has data."""
    open_producers: set[int] = set()
    aborts: set[int] = set()
    for span in spans:
        for marker in span.unresolved_markers:
            had_data = marker.producer_id in open_producers
            if pair.after[0].base_offset <= marker.offset < pair.rewritten_end:
                check_marker(pair, marker, had_data, findings)
            if had_data and not marker.commit:
                aborts.add(marker.offset)
        aborts.update(span.aborts_with_data)
        open_producers = (open_producers - span.ended_producers) | span.open_producers
    return aborts


def check_entries(
    pair: LogPair, after: Iterable[tuple[int, bytes]], aborts_with_data: set[int], findings: Findings
) -> None:
    """Compare AFTER's ``.txnindex`` files with BEFORE's; ``after``: (base offset of a segment, its
    entries)."""
    by_marker = {entry[3]: entry for entry in np.frombuffer(pair.aborted, TRANSACTION_ENTRY).tolist()}
    missing = aborts_with_data - by_marker.keys()
    for offset in sorted(missing)[:1]:
        detail = "an aborted transaction that no .txnindex of BEFORE names"
        findings.add("before_damaged", detail, offset=offset, times=len(missing))
    bases = [segment.base_offset for segment in pair.after]
    expected = {
        offset
        for offset in by_marker
        if offset >= bases[0] and (offset in aborts_with_data or offset >= pair.rewritten_end)
    }
    seen: set[int] = set()
    for base, data in after:
        entries = np.frombuffer(data, TRANSACTION_ENTRY).tolist()
        offsets = [entry[3] for entry in entries]
        end = next((following for following in bases if following > base), 1 << 63)
        for entry, offset in zip(entries, offsets, strict=True):
            if by_marker.get(offset) != entry:
                findings.add("aborted_entry", "BEFORE has no such entry", offset=offset)
            elif not base <= offset < end:
                findings.add("aborted_entry", "is in another segment than its marker", offset=offset)
            elif offset in seen:
                findings.add("aborted_entry", "is there twice", offset=offset)
            elif offset not in expected and pair.was_cleaned:
                findings.add("aborted_entry", "nothing of its transaction is left", offset=offset)
            seen.add(offset)
        if offsets != sorted(offsets):
            findings.add("aborted_entry", "entries are not in order", offset=base)
    for offset in sorted(expected - seen):
        detail = "is missing: readers of committed records would get the transaction's"
        findings.add("aborted_entry", detail, offset=offset)
