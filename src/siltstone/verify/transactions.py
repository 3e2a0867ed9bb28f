"""The check of transactions: which batches were aborted, and which markers may be discarded.

BEFORE and AFTER are the log before and after a cleaning. A transaction *has data* if BEFORE has a data batch
of its producer between the producer's marker before and this transaction's marker; else it is *empty*. A data
batch without records counts, too. A log is compared in spans of offsets (``checking``). A span alone tells
whether a transaction has data, except for that of a producer's first marker in the span: if the span has no
data of it, spans of lower offsets may have some. Such a marker is *unresolved*; ``check_unresolved_markers``
checks these markers when all spans were compared.

=================  =========================  ==============================================================
the transaction    the marker in BEFORE       what its marker in AFTER must be
=================  =========================  ==============================================================
has data           any                        retained, its delete horizon as before
is empty           without a delete horizon   retained, with a delete horizon
is empty           a horizon in the future    retained
is empty           a horizon that has passed  discarded, or an empty batch that keeps the producer's epoch
=================  =========================  ==============================================================

If the cleaner checkpoint did not move (``LogPair.was_cleaned``), an unchanged marker is right in the second
and in the last row, too: the cleaner need not have rewritten its batch. In the last row an unchanged marker
is also right if the time of the cleaning is not known exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from siltstone.base.config import LONG_MAX
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeaders, Flags
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.transactions import AbortedTransactions
from siltstone.verify.findings import Findings
from siltstone.verify.pairs import LogPair

_NO_RANGES = np.empty((2, 0), np.int64)
"""The first and the last offsets of a producer's aborted transactions if it has none."""
DISCARDED, RETAINED, EMPTIED = range(3)
"""The outcomes of a batch; EMPTIED: its header is retained, but no record."""
NO_HORIZON = -1
"""In place of a delete horizon, where a batch has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerOutcome:
    """A marker of BEFORE and what became of its batch. ``outcome``: DISCARDED, RETAINED or EMPTIED.
    ``horizon``, ``new_horizon``: its delete horizon in BEFORE and in AFTER, in ms, or NO_HORIZON."""

    offset: int
    producer_id: int
    is_commit: bool
    horizon: int
    outcome: int
    new_horizon: int


@dataclass(slots=True, kw_only=True)
class SpanTransactions:
    """The transactions of a span.

    ``unresolved_markers``: those whose transaction may have data below the span. ``aborts_with_data``: the
    offsets of ABORT markers whose transaction has data. ``open_producers``: ids of producers with data after
    their last marker. ``ended_producers``: ids of producers with a marker.
    """

    unresolved_markers: list[MarkerOutcome] = field(default_factory=list)
    aborts_with_data: list[int] = field(default_factory=list)
    open_producers: set[int] = field(default_factory=set)
    ended_producers: set[int] = field(default_factory=set)

    def close_transaction(self, producer_id: int, *, has_data_here: bool) -> bool | None:
        """End the producer's transaction. Does it have data? None if that depends on the spans below.

        ``has_data_here``: it has data in the batches that are being compared, which ``open_producers`` does
        not contain yet.
        """
        has_data = has_data_here or producer_id in self.open_producers
        is_known = has_data or producer_id in self.ended_producers
        self.open_producers.discard(producer_id)
        self.ended_producers.add(producer_id)
        return has_data if is_known else None


def control_and_data(batches: BatchHeaders) -> tuple[Flags, Flags]:
    """Which batches are control batches, and which are data of a transaction: two bool arrays, one a
    batch."""
    is_v2, attributes = batches["magic"] == 2, batches["attributes"]
    is_control = is_v2 & ((attributes & CONTROL_BIT) != 0)
    return is_control, is_v2 & ~is_control & ((attributes & TRANSACTIONAL_BIT) != 0)


class AbortedIndex:
    """The aborted transactions of a log by producer, from ``data``: the bytes of its ``.txnindex`` files."""

    def __init__(self, data: bytes) -> None:
        index = AbortedTransactions.from_entries(data)
        # The rows of ``index`` are sorted by producer.
        producers, starts = np.unique(index.producer_id, return_index=True)
        bounds = itertools.pairwise([*starts.tolist(), len(index.producer_id)])
        # Producer id → (first offsets, last offsets) of its aborted transactions, ascending.
        self._by_producer = {
            producer: (index.first_offset[start:end], index.last_offset[start:end])
            for producer, (start, end) in zip(producers.tolist(), bounds, strict=True)
        }

    def aborted(self, batches: BatchHeaders) -> Flags:
        """Which batches are data of an aborted transaction: bool, one a batch."""
        aborted = np.zeros(len(batches), np.bool_)
        _, data = control_and_data(batches)
        for producer in np.unique(batches["producer_id"][data]).tolist() if self._by_producer else ():
            first, last = self._by_producer.get(producer, _NO_RANGES)
            rows = np.flatnonzero(data & (batches["producer_id"] == producer))
            # The ranges of a producer do not overlap: a batch can only be in the last range that begins at or
            # below the batch's last offset. -1: there is none; then the appended -1 is looked up.
            entry = np.searchsorted(first, batches["last_offset"][rows], side="right") - 1
            aborted[rows] = (entry >= 0) & (np.append(last, -1)[entry] >= batches["base_offset"][rows])
        return aborted

    def contradicts(self, producer: int, offset: int, is_commit: bool, data_is_listed: Flags) -> bool:
        """Does the index contradict the producer's marker at ``offset``?

        ``data_is_listed``: for each data batch of the transaction, among the batches that are being compared,
        whether the index lists it as aborted. An ABORT with data of which the index lists nothing is no
        contradiction here: ``check_transaction_indexes`` reports it.
        """
        first, last = self._by_producer.get(producer, _NO_RANGES)
        entry = int(np.searchsorted(first, offset, side="right")) - 1
        if entry < 0 or last[entry] < offset:
            return bool(data_is_listed.any())
        return is_commit or int(last[entry]) != offset or not data_is_listed.all()


def check_marker(pair: LogPair, marker: MarkerOutcome, had_data: bool, findings: Findings) -> None:
    """Check one marker of the rewritten segments by the table above."""
    settings = pair.settings
    if had_data:
        if marker.outcome != RETAINED:
            _add_problem(findings, "marker_lost", marker, "data of its transaction was there")
        elif marker.new_horizon != marker.horizon:
            _add_problem(findings, "marker_stamp", marker, "data of its transaction was there")
    elif marker.horizon == NO_HORIZON or marker.horizon > settings.cleaned_at_ms:
        if marker.outcome != RETAINED:
            _add_problem(findings, "marker_lost", marker, "its delete horizon has not passed")
        elif marker.horizon == marker.new_horizon == NO_HORIZON and pair.was_cleaned:
            _add_problem(findings, "marker_stamp", marker, "its transaction is empty, and it has no horizon")
    elif marker.outcome == RETAINED and settings.cleaned_at_is_exact and pair.was_cleaned:
        _add_problem(findings, "marker_kept", marker, f"its delete horizon was {marker.horizon}")
    if marker.outcome != RETAINED:
        findings.counts["markers"] += 1


def _add_problem(findings: Findings, kind: str, marker: MarkerOutcome, why: str) -> None:
    name = "commit" if marker.is_commit else "abort"
    findings.add(kind, f"{name} of producer {marker.producer_id}: {why}", offset=marker.offset)


def check_unresolved_markers(
    pair: LogPair, spans: Sequence[SpanTransactions], findings: Findings
) -> set[int]:
    """Check the unresolved markers of all spans, which must be in order. Returns the offsets of all ABORT
    markers whose transaction has data."""
    open_producers: set[int] = set()  # after the spans so far
    aborts: set[int] = set()
    for span in spans:
        for marker in span.unresolved_markers:
            had_data = marker.producer_id in open_producers
            if pair.after[0].base_offset <= marker.offset < pair.rewritten_end_offset:
                check_marker(pair, marker, had_data, findings)
            if had_data and not marker.is_commit:
                aborts.add(marker.offset)
        aborts.update(span.aborts_with_data)
        open_producers = (open_producers - span.ended_producers) | span.open_producers
    return aborts


def check_transaction_indexes(
    pair: LogPair, after: Iterable[tuple[int, bytes]], aborts_with_data: set[int], findings: Findings
) -> None:
    """Compare AFTER's ``.txnindex`` files with BEFORE's. ``after``: (base offset of a segment, the bytes of
    its file). ``aborts_with_data``: the result of ``check_unresolved_markers``."""
    old_entries = np.frombuffer(pair.aborted_entries, TRANSACTION_ENTRY)
    by_marker = dict(zip(old_entries["last_offset"].tolist(), old_entries.tolist(), strict=True))
    missing = aborts_with_data - by_marker.keys()
    for offset in sorted(missing)[:1]:
        detail = "an aborted transaction that no .txnindex of BEFORE names"
        findings.add("before_damaged", detail, offset=offset, times=len(missing))
    bases = [segment.base_offset for segment in pair.after]
    expected = {
        offset
        for offset in by_marker
        if offset >= bases[0] and (offset in aborts_with_data or offset >= pair.rewritten_end_offset)
    }
    read_offsets: set[int] = set()
    for base, data in after:
        entries = np.frombuffer(data, TRANSACTION_ENTRY)
        offsets = entries["last_offset"].tolist()  # of the markers
        end = next((later_base for later_base in bases if later_base > base), LONG_MAX + 1)
        for entry, offset in zip(entries.tolist(), offsets, strict=True):
            if by_marker.get(offset) != entry:
                findings.add("aborted_entry", "BEFORE has no such entry", offset=offset)
            elif not base <= offset < end:
                findings.add("aborted_entry", "is in another segment than its marker", offset=offset)
            elif offset in read_offsets:
                findings.add("aborted_entry", "is there twice", offset=offset)
            elif offset not in expected and pair.was_cleaned:
                findings.add("aborted_entry", "its transaction had no data in BEFORE", offset=offset)
            read_offsets.add(offset)
        if offsets != sorted(offsets):
            findings.add("aborted_entry", "entries are not in order", offset=base)
    for offset in sorted(expected - read_offsets):
        detail = "is missing: consumers with read_committed would get the aborted records"
        findings.add("aborted_entry", detail, offset=offset)
