"""Which batches were aborted and which markers are empty, against a record of it kept by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptFileError
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import HEADER
from siltstone.base.records.scan import scan_batches
from siltstone.log.indexes import TRANSACTION_ENTRY, AbortedTransaction
from siltstone.log.segments import list_segments
from siltstone.log.transactions import (
    BEGINS_ELSEWHERE,
    COMMITTED,
    CONTRADICTIONS,
    ENDS_ELSEWHERE,
    NO_TRANSACTIONS,
    NOT_LISTED,
    AbortedTransactions,
    TransactionScan,
    TransactionState,
    combine_summaries,
    expected_markers,
    read_transaction_indexes,
)
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error

REPAIR = "recover --check"
DATA, COMMIT, ABORT, GONE = "data", "commit", "abort", "gone"


@dataclass(frozen=True)
class Event:
    """What one batch is; GONE: data that an earlier cleaning has taken away."""

    kind: str
    producer: int


def encoded(offset: int, event: Event) -> bytes:
    if event.kind == DATA:
        shape = {"producer_id": event.producer, "producer_epoch": 0, "base_sequence": 0}
        return batch([Rec(offset=offset, key=b"k")], transactional=True, **shape)
    marker = end_transaction_marker(
        is_commit=event.kind == COMMIT,
        producer_id=event.producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1,
    )
    return offset.to_bytes(8, "big") + marker.tobytes()[8:]


def index_of(events: list[Event]) -> bytes:
    """The transaction index as a broker would have written it, when what is GONE was there."""
    began: dict[int, int] = {}
    entries = []
    for offset, event in enumerate(events):
        if event.kind in (DATA, GONE):
            began.setdefault(event.producer, offset)
        else:
            first = began.pop(event.producer, None)
            if first is not None and event.kind == ABORT:
                entries.append((0, event.producer, first, offset, offset + 1))
    return np.array(entries, TRANSACTION_ENTRY).tobytes()


def by_hand(events: list[Event]) -> tuple[list[int], list[int], list[int]]:
    """Offsets of aborted data, of markers of empty transactions, and of aborts whose entry stays."""
    data: dict[int, list[int]] = {}
    aborted, empty, entries = [], [], []
    for offset, event in enumerate(events):
        if event.kind == DATA:
            data.setdefault(event.producer, []).append(offset)
        elif event.kind in (COMMIT, ABORT):
            offsets = data.pop(event.producer, [])
            if not offsets:
                empty.append(offset)
            elif event.kind == ABORT:
                aborted += offsets
                entries.append(offset)
    return sorted(aborted), empty, entries


def follow(
    scan: TransactionScan, events: list[Event], first: int, behind: int
) -> tuple[list[int], list[int]]:
    aborted, empty = [], []
    parts = [encoded(o, events[o]) for o in range(first, behind) if events[o].kind != GONE]
    for data in parts:
        window = np.frombuffer(data, np.uint8)
        batches = scan_batches(window).batches
        outcome = scan.follow(window, batches)
        assert outcome is not None
        offset = int(batches["base_offset"][0])
        aborted += [offset] * bool(outcome[0][0])
        empty += [offset] * bool(outcome[1][0])
    return aborted, empty


events_of_logs = st.lists(
    st.builds(Event, st.sampled_from((DATA, DATA, DATA, GONE, COMMIT, ABORT)), st.integers(0, 3)), max_size=40
)


@settings(deadline=None)
@given(events_of_logs, st.lists(st.integers(0, 40), max_size=6), st.lists(st.integers(0, 6), max_size=3))
def test_scans_of_segments_and_groups_agree_with_one_pass(
    events: list[Event], cuts: list[int], starts: list[int]
) -> None:
    # A producer ends what it began, so that nothing is left open that no index could name.
    events = [*events, *(Event(COMMIT, producer) for producer in range(4))]
    bases = sorted({0, *(cut for cut in cuts if cut < len(events))})
    edges = [*bases, len(events)]
    groups = sorted({0, *(start for start in starts if start < len(bases))})
    aborted = AbortedTransactions.from_entries(index_of(events))
    summaries = []
    for segment in range(len(bases)):
        scan = TransactionScan(aborted)
        follow(scan, events, edges[segment], edges[segment + 1])
        summaries.append(scan.summary(bases[segment]))
    start_state = combine_summaries(summaries[::-1], [bases[group] for group in groups])
    totals: tuple[list[int], list[int], list[int]] = ([], [], [])
    for number, group in enumerate(groups):
        behind = groups[number + 1] if number + 1 < len(groups) else len(bases)
        scan = TransactionScan(aborted, start_state.get(number, NO_TRANSACTIONS))
        aborted_here, empty = follow(scan, events, edges[group], edges[behind])
        entries = np.frombuffer(scan.completed_index(), TRANSACTION_ENTRY)
        for whole, part in zip(totals, (aborted_here, empty, entries["last_offset"].tolist()), strict=True):
            whole.extend(part)
    assert totals == by_hand(events)


@contextlib.contextmanager
def contradicts(number: int, producer: int = 7) -> Iterator[None]:
    """The index contradicts the batches of a producer in this way, and the error says how to repair it."""
    with raises_error(CorruptFileError, advice=REPAIR) as caught:
        yield
    assert caught.value.reason == CONTRADICTIONS[number].format(producer=producer)


def _scan(
    events: list[Event], index: bytes, start_state: TransactionState = NO_TRANSACTIONS
) -> TransactionScan:
    scan = TransactionScan(AbortedTransactions.from_entries(index), start_state)
    follow(scan, events, 0, len(events))
    return scan


def test_an_abort_with_data_that_no_index_names_is_no_transaction_to_clean() -> None:
    events = [Event(DATA, 7), Event(ABORT, 7)]
    with contradicts(NOT_LISTED):
        _scan(events, b"")
    with contradicts(NOT_LISTED):
        _scan([Event(ABORT, 7)], b"", TransactionState(open_producers=(7,)))
    assert _scan(events, index_of(events)).completed_index() == index_of(events)


def test_an_abort_that_no_index_names_is_found_across_segments_too() -> None:
    events = [Event(DATA, 7), Event(ABORT, 7)]
    first, second = (
        TransactionScan(AbortedTransactions.from_entries(b"")),
        TransactionScan(AbortedTransactions.from_entries(b"")),
    )
    follow(first, events, 0, 1)
    follow(second, events, 1, 2)
    with contradicts(NOT_LISTED):
        combine_summaries([first.summary(0), second.summary(1)], [0])


def rows(*entries: tuple[int, int, int]) -> bytes:
    """An index's entries, each of (producer, first offset, last offset)."""
    return np.array([(0, *entry, entry[-1] + 1) for entry in entries], TRANSACTION_ENTRY).tobytes()


ONE_OF_EACH = [Event(DATA, 7), Event(COMMIT, 7), Event(DATA, 7), Event(DATA, 7), Event(ABORT, 7)]


@pytest.mark.parametrize(
    ("index", "number"),
    [
        (rows((7, 0, 4)), COMMITTED),
        (rows((7, 1, 4)), COMMITTED),
        (rows((7, 3, 4)), BEGINS_ELSEWHERE),
        (rows((7, 2, 5)), ENDS_ELSEWHERE),
        (rows((7, 2, 3)), ENDS_ELSEWHERE),
        (rows((7, 0, 1), (7, 2, 4)), COMMITTED),
        (rows((8, 2, 4)), NOT_LISTED),
    ],
)
def test_an_entry_that_contradicts_the_batches_is_refused(index: bytes, number: int) -> None:
    assert _scan(ONE_OF_EACH, rows((7, 2, 4))).completed_index() == rows((7, 2, 4))
    with contradicts(number):
        _scan(ONE_OF_EACH, index)
    for cut in range(1, len(ONE_OF_EACH)):  # and where no single input split shows it
        with raises_error(CorruptFileError, advice=REPAIR):
            summed_up(ONE_OF_EACH, index, cut)


def summed_up(events: list[Event], index: bytes, cut: int) -> None:
    """Two input splits, each scanned alone, and their summaries combined."""
    summaries = []
    for first, behind in ((0, cut), (cut, len(events))):
        scan = TransactionScan(AbortedTransactions.from_entries(index))
        follow(scan, events, first, behind)
        scan.refuse_missing_markers(first, behind, "")
        summaries.append(scan.summary(first))
    combine_summaries(summaries, [0])


def test_an_entry_whose_marker_is_missing_is_refused() -> None:
    scan = _scan([Event(DATA, 7), Event(GONE, 7), Event(DATA, 7)], rows((7, 0, 1), (9, 2, 5)))
    with contradicts(ENDS_ELSEWHERE):
        scan.refuse_missing_markers(0, 3, "")
    scan.refuse_missing_markers(2, 5, "")  # neither is due there
    with contradicts(ENDS_ELSEWHERE, producer=9):
        scan.refuse_missing_markers(2, 6, "")


def test_data_in_part_of_a_listed_range_contradicts_it() -> None:
    """A batch is aborted as a whole: no entry begins or ends inside one."""
    shape = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    window = np.frombuffer(
        batch([Rec(offset=o, key=b"k") for o in (4, 5, 6)], transactional=True, **shape), "u1"
    )
    for first, last, number in ((5, 9, BEGINS_ELSEWHERE), (4, 6, ENDS_ELSEWHERE), (2, 5, ENDS_ELSEWHERE)):
        with contradicts(number):
            TransactionScan(AbortedTransactions.from_entries(rows((7, first, last)))).follow(
                window, scan_batches(window).batches
            )


def test_entries_that_overlap_or_share_an_end_are_refused() -> None:
    with raises_error(
        CorruptFileError, path="log", position=0, about="producer 7 that overlap", advice=REPAIR
    ):
        AbortedTransactions.from_entries(rows((7, 2, 6), (7, 6, 9)), "log")
    with raises_error(CorruptFileError, about="offset 6", advice=REPAIR):
        AbortedTransactions.from_entries(rows((9, 0, 1), (7, 2, 6), (8, 3, 6)))
    AbortedTransactions.from_entries(rows((7, 2, 6), (8, 3, 7), (7, 7, 9)))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ((0, 7, 9, 9, 10), "ends before it begins"),
        ((0, 7, -1, 9, 10), "below offset 0"),
        ((0, -1, 8, 9, 10), "without a producer"),
        ((0, 7, 1, 4, 5), "in another segment"),
        ((0, 7, 8, 12, 13), "beyond the log's end"),
        ((0, 7, 8, 9, 11), "last stable offset"),
        ((1, 7, 8, 9, 10), "version 1"),
    ],
)
def test_entries_that_cannot_be_of_their_segment(tmp_path: Path, entry: tuple[int, ...], reason: str) -> None:
    partition = logs.write_log(tmp_path / "log", {0: [logs.one(0, "a")], 5: [logs.one(5, "b")]})
    index = partition / "00000000000000000005.txnindex"
    index.write_bytes(np.array([(0, 7, 8, 9, 10), entry], TRANSACTION_ENTRY).tobytes())
    with raises_error(CorruptFileError, path=index, position=34, about=reason):
        read_transaction_indexes(list_segments(partition), 12)


def test_the_markers_that_are_expected_after_the_last_input_split() -> None:
    events = [Event(DATA, 1), Event(DATA, 2), Event(DATA, 3), Event(COMMIT, 1), Event(DATA, 4)]
    index, summaries = AbortedTransactions.from_entries(rows((3, 2, 9))), []
    for first, behind in ((0, 3), (3, 5)):
        scan = TransactionScan(index)
        follow(scan, events, first, behind)
        summaries.append(scan.summary(first))
    assert expected_markers(summaries[::-1], index, 5) == {2: None, 4: None, 3: 9}
    assert expected_markers([], index, 5) == {}


def test_a_control_record_without_a_key_is_damage() -> None:
    data = batch([Rec(offset=0, key=b"\0")], transactional=True, control=True, producer_id=1)
    window = np.frombuffer(data, np.uint8)
    batches = scan_batches(window).batches
    assert HEADER.unpack_from(data)[5] & 0x20
    with raises_error(CorruptFileError, position=0, about="key of a control record"):
        TransactionScan(AbortedTransactions.from_entries(b"")).follow(window, batches)


def test_an_end_at_the_largest_offset_is_no_bug() -> None:
    """The entry is forged; readers compare it with the markers."""
    transactions = AbortedTransactions.from_transactions([AbortedTransaction(7, 0, 2**63 - 1, 2**63 - 1)])
    assert (transactions.first_offset.tolist(), transactions.last_offset.tolist()) == ([0], [2**63 - 1])
