"""Which batches were aborted and which markers are empty, against a record of it kept by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.errors import CorruptFileError
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.transactions import NOTHING, Aborted, Carried, TransactionScan, carried_by_group
from siltstone.records.control import end_transaction_marker
from siltstone.records.layout import HEADER
from siltstone.records.scan import scan_batches
from tests.cleaner.logs import Rec, batch

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
        commit=event.kind == COMMIT,
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
            mine = data.pop(event.producer, [])
            if not mine:
                empty.append(offset)
            elif event.kind == ABORT:
                aborted += mine
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
        found = scan.follow(window, batches)
        assert found is not None
        offset = int(batches["base_offset"][0])
        aborted += [offset] * bool(found[0][0])
        empty += [offset] * bool(found[1][0])
    return aborted, empty


events_of_logs = st.lists(
    st.builds(Event, st.sampled_from((DATA, DATA, DATA, GONE, COMMIT, ABORT)), st.integers(0, 3)), max_size=40
)


@settings(deadline=None)
@given(events_of_logs, st.lists(st.integers(0, 40), max_size=6), st.lists(st.integers(0, 6), max_size=3))
def test_segments_and_groups_see_what_one_pass_sees(
    events: list[Event], cuts: list[int], starts: list[int]
) -> None:
    # A producer ends what it began, so that nothing is left open that no index could name.
    events = [*events, *(Event(COMMIT, producer) for producer in range(4))]
    bases = sorted({0, *(cut for cut in cuts if cut < len(events))})
    edges = [*bases, len(events)]
    groups = sorted({0, *(start for start in starts if start < len(bases))})
    aborted = Aborted.of(index_of(events))
    summaries = []
    for segment in range(len(bases)):
        scan = TransactionScan(aborted)
        follow(scan, events, edges[segment], edges[segment + 1])
        summaries.append(scan.summary(bases[segment]))
    carried = carried_by_group(summaries[::-1], [bases[group] for group in groups])
    seen: tuple[list[int], list[int], list[int]] = ([], [], [])
    for number, group in enumerate(groups):
        behind = groups[number + 1] if number + 1 < len(groups) else len(bases)
        scan = TransactionScan(aborted, carried.get(number, NOTHING))
        mine, empty = follow(scan, events, edges[group], edges[behind])
        entries = np.frombuffer(scan.ended_transactions(), TRANSACTION_ENTRY)
        for whole, part in zip(seen, (mine, empty, entries["last_offset"].tolist()), strict=True):
            whole.extend(part)
    assert seen == by_hand(events)


def _scan(events: list[Event], index: bytes, carried: Carried = NOTHING) -> TransactionScan:
    scan = TransactionScan(Aborted.of(index), carried)
    follow(scan, events, 0, len(events))
    return scan


def test_an_abort_with_data_that_no_index_names_is_no_transaction_to_clean() -> None:
    events = [Event(DATA, 7), Event(ABORT, 7)]
    with pytest.raises(CorruptFileError, match=r"producer 7 aborted .* recover"):
        _scan(events, b"")
    with pytest.raises(CorruptFileError, match="producer 7 aborted"):
        _scan([Event(ABORT, 7)], b"", Carried(unended=(7,)))
    assert _scan(events, index_of(events)).ended_transactions() == index_of(events)


def test_an_abort_that_no_index_names_is_found_across_segments_too() -> None:
    events = [Event(DATA, 7), Event(ABORT, 7)]
    first, second = TransactionScan(Aborted.of(b"")), TransactionScan(Aborted.of(b""))
    follow(first, events, 0, 1)
    follow(second, events, 1, 2)
    with pytest.raises(CorruptFileError, match="producer 7"):
        carried_by_group([first.summary(0), second.summary(1)], [0])


def test_a_control_record_without_a_key_is_damage() -> None:
    data = batch([Rec(offset=0, key=b"\0")], transactional=True, control=True, producer_id=1)
    window = np.frombuffer(data, np.uint8)
    batches = scan_batches(window).batches
    assert HEADER.unpack_from(data)[5] & 0x20
    with pytest.raises(CorruptFileError, match="makes no sense"):
        TransactionScan(Aborted.of(b"")).follow(window, batches)
