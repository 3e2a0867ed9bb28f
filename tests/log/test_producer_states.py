"""What a live log asks of its producers' states beside sequences."""

from __future__ import annotations

import numpy as np
import pytest

from siltstone.base.errors import CorruptRecordError, InvalidRecordError, OutOfOrderSequenceError
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import BATCH, Bytes
from siltstone.base.records.scan import scan_batches
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.producers import ProducerBatch, ProducerEntry, ProducerStates, read_snapshot
from siltstone.log.validation import Origin
from tests.support.cleaning.logs import Rec
from tests.support.errors import raises_error
from tests.support.log.batches import TIME, edited, of_records, sent


def at(data: Bytes, offset: int) -> Bytes:
    return edited(data, 0, offset, 8, sealed=False)


def data(
    offset: int, producer: int = 1, sequence: int = 0, *, transactional: bool = False, count: int = 1
) -> Bytes:
    batch = sent(
        count, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=transactional
    )
    return at(batch, offset)


def marker(offset: int, producer: int = 1, *, commit: bool = True, coordinator: int = 0) -> Bytes:
    batch = end_transaction_marker(
        is_commit=commit,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=coordinator,
        timestamp_ms=TIME,
    )
    return at(batch, offset)


def update(states: ProducerStates, *parts: Bytes) -> list[AbortedTransaction]:
    whole = np.concatenate(parts)
    return states.update(scan_batches(whole).batches, whole)


def test_batches_without_a_producer_only_move_the_end() -> None:
    states, one = ProducerStates(), at(sent(3), 10)
    batches = scan_batches(one).batches
    assert states.check(batches, one, origin=Origin.CLIENT) is None
    assert states.update(batches, one) == []
    assert (states.end_offset, states.entries()) == (13, [])
    assert read_snapshot(states.snapshot()) == []


def test_transactions_hold_the_stable_offset_back() -> None:
    states = ProducerStates()
    assert states.last_stable_offset(9) == 9
    update(states, data(0), data(1, 2, transactional=True), data(2, 3, transactional=True))
    assert states.last_stable_offset(3) == 1
    assert states.last_stable_offset(1) == 1 and states.last_stable_offset(0) == 0
    assert update(states, marker(3, 2, commit=False)) == [AbortedTransaction(2, 1, 3, 2)]
    assert states.last_stable_offset(3) == 1, "the marker may still be lost"
    assert states.last_stable_offset(4) == 2
    assert update(states, marker(4, 3)) == []
    assert states.last_stable_offset(5) == 5


def test_a_marker_without_data_ends_nothing() -> None:
    states = ProducerStates()
    assert update(states, marker(0, commit=False, coordinator=7)) == []
    (entry,) = states.entries()
    assert (entry.coordinator_epoch, entry.last_offset, entry.last_sequence) == (7, -1, -1)
    assert states.last_stable_offset(1) == 1


def test_an_emptied_marker_is_passed_over() -> None:
    states, empty = (
        ProducerStates(),
        at(of_records([], producer_id=1, transactional=True, control=True, last_offset=0), 0),
    )
    batches = scan_batches(empty).batches
    assert states.check(batches, empty, origin=Origin.COORDINATOR) is None
    assert states.update(batches, empty) == []
    assert states.entries() == [] and states.end_offset == 1


def test_a_control_record_that_is_no_marker() -> None:
    senseless = of_records([Rec(offset=0, key=b"k")], producer_id=1, transactional=True, control=True)
    other = of_records([Rec(offset=0, key=b"\0\0\0\2")], producer_id=1, transactional=True, control=True)
    for batch, reason in ((senseless, "too short"), (other, "transaction marker")):
        with raises_error(InvalidRecordError, position=0, about=reason):
            ProducerStates().check(scan_batches(batch).batches, batch, origin=Origin.COORDINATOR)
    with raises_error(CorruptRecordError, path="x.log", position=0, about="too short"):
        ProducerStates().update(scan_batches(senseless).batches, senseless, "x.log")


def test_silent_producers_expire_but_not_in_a_transaction() -> None:
    states = ProducerStates()
    update(states, data(0, 1), data(1, 2, transactional=True), data(2, 3))
    assert states.expire(TIME + 99, 100) == 0
    assert states.expire(TIME + 100, 100) == 2
    assert [entry.producer_id for entry in states.entries()] == [2]


def test_a_snapshot_has_the_last_batch_only() -> None:
    states = ProducerStates()
    update(states, data(0, count=2), data(2, sequence=2, count=3))
    assert states.entries() == [
        ProducerEntry(
            producer_id=1,
            producer_epoch=0,
            last_sequence=4,
            last_offset=4,
            offset_delta=2,
            timestamp_ms=TIME + 2,
            coordinator_epoch=-1,
            open_transaction_offset=-1,
        )
    ]
    again = ProducerStates(5, states.entries())
    assert (again.entries(), again.end_offset) == (states.entries(), 5)
    for known, is_duplicate in ((states, True), (again, False)):
        first = data(9, count=2)
        batches = scan_batches(first).batches
        if is_duplicate:
            duplicate = known.check(batches, first, origin=Origin.CLIENT)
            assert duplicate is not None and duplicate.first_offset == 0
        else:
            with pytest.raises(OutOfOrderSequenceError):
                known.check(batches, first, origin=Origin.CLIENT)


def test_open_transactions_survive_a_snapshot() -> None:
    states = ProducerStates()
    update(states, data(4, 8, transactional=True))
    again = ProducerStates(5, read_snapshot(states.snapshot()))
    assert again.last_stable_offset(100) == 4
    assert update(again, marker(5, 8, commit=False)) == [AbortedTransaction(8, 4, 5, 6)]
    assert again.last_stable_offset(100) == 100


def test_a_row_is_read_by_its_names() -> None:
    row = np.zeros(2, BATCH)
    row[1] = tuple(range(1, 15))
    fields = {name: int(row[1][name]) for name in BATCH.names or ()}
    batch = ProducerBatch.of(row, 1)
    assert batch[:6] == tuple(
        fields[name]
        for name in (
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "base_offset",
            "last_offset",
            "max_timestamp",
        )
    )
