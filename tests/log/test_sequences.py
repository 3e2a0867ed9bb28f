"""Producers' states against the twin: any order of batches gets Kafka's answer."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import LogError
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import Bytes
from siltstone.base.records.scan import scan_batches
from siltstone.log.producers import ProducerBatch, ProducerStates, read_snapshot
from siltstone.log.validation import Origin
from tests.support.log import sequence_twin as twin
from tests.support.log.batches import edited, sent
from tests.support.log.sequence_twin import Sent, Stored
from tests.support.thoroughness import examples

TOP = 2**31 - 1


def bytes_of(batch: Sent, offset: int) -> Bytes:
    if batch.commit is None:
        data = sent(
            batch.count,
            producer_id=batch.producer,
            producer_epoch=batch.epoch,
            base_sequence=batch.sequence,
            transactional=batch.transactional,
        )
    else:
        data = end_transaction_marker(
            is_commit=batch.commit,
            producer_id=batch.producer,
            producer_epoch=batch.epoch,
            coordinator_epoch=batch.coordinator,
            timestamp_ms=offset,
        )
    return edited(data, 0, offset, 8, sealed=False)


class Log:
    """A log of the product and of the twin side by side."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.stored: list[Stored] = []
        self.aborted: list[tuple[int, ...]] = []
        self.end = 0

    def ask(self, batch: Sent, origin: Origin) -> int | ProducerBatch | None:
        """Kafka's error code, the duplicate, or None. Nothing changes."""
        data, before = bytes_of(batch, self.end), self.states.snapshot()
        try:
            return self.states.check(scan_batches(data).batches, data, origin=origin)
        except LogError as error:
            return error.error_code
        finally:
            assert self.states.snapshot() == before

    def append(self, batch: Sent) -> None:
        data = bytes_of(batch, self.end)
        batches = scan_batches(data).batches
        self.aborted += [tuple(transaction) for transaction in self.states.update(batches, data)]
        last = int(batches["last_offset"][-1])
        self.stored.append(Stored(sent=batch, first=self.end, last=last))
        self.end = last + 1

    def offer(self, batch: Sent) -> int | None:
        """Append it if it may be; the error otherwise."""
        client = batch.commit is None
        expected = twin.answer(self.stored, batch, client=client)
        got = self.ask(batch, Origin.CLIENT if client else Origin.COORDINATOR)
        if isinstance(expected, Stored):
            assert isinstance(got, ProducerBatch)
            assert (got.first_offset, got.last_offset) == (expected.first, expected.last)
            return None
        assert got == expected, (batch, self.stored)
        if expected is None:
            self.append(batch)
        return expected


SEQUENCES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, TOP - 1, TOP])
DATA = st.builds(
    Sent,
    producer=st.integers(0, 1),
    epoch=st.integers(0, 2),
    sequence=SEQUENCES,
    count=st.integers(1, 3),
    transactional=st.booleans(),
)
MARKERS = st.builds(
    Sent,
    producer=st.integers(0, 1),
    epoch=st.integers(0, 2),
    commit=st.booleans(),
    coordinator=st.integers(0, 2),
)


@st.composite
def likely(draw: st.DrawFn, log: Log) -> Sent:
    """The next batch of a producer that mostly does what it should."""
    producer = draw(st.integers(0, 1))
    recent = twin.recent(log.stored, producer)
    before = twin.of(log.stored, producer)
    if not before or draw(st.integers(0, 4)) == 0:
        return draw(DATA | MARKERS)
    epoch = before[-1].sent.epoch
    if recent and draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(recent)).sent
    if twin.open_from(log.stored, producer) is not None and draw(st.integers(0, 2)) == 0:
        return Sent(producer=producer, epoch=epoch, commit=draw(st.booleans()), coordinator=2)
    due = (recent[-1].sent.sequence + recent[-1].sent.count) % twin.WRAP if recent else 0
    transactional = twin.open_from(log.stored, producer) is not None or draw(st.booleans())
    return Sent(
        producer=producer,
        epoch=epoch,
        sequence=due,
        count=draw(st.integers(1, 3)),
        transactional=transactional,
    )


@settings(max_examples=examples(150), deadline=None, print_blob=True)
@given(st.data())
def test_any_history_gets_kafkas_answers(draw: st.DataObject) -> None:
    log = Log()
    for _ in range(draw.draw(st.integers(1, 25))):
        log.offer(draw.draw(likely(log)))
    assert log.aborted == twin.aborted(log.stored)
    for mark in range(0, log.end + 1):
        assert log.states.last_stable_offset(mark) == twin.unstable_from(log.stored, mark)
    again = ProducerStates(log.states.end_offset, read_snapshot(log.states.snapshot()))
    assert again.snapshot() == log.states.snapshot()
    assert again.first_open_transaction() == log.states.first_open_transaction()


@settings(max_examples=examples(60), deadline=None, print_blob=True)
@given(st.lists(DATA | MARKERS, max_size=12))
def test_several_batches_at_once_are_checked_as_one_by_one(offered: list[Sent]) -> None:
    """What a coordinator writes in one append gets the answer of the first that is refused."""
    log, parts, expected = Log(), [], None
    for batch in offered:
        if expected is None:
            parts.append(bytes_of(batch, log.end))
            expected = twin.answer(log.stored, batch, client=False)
            log.append(batch)
    if not parts:
        return
    whole = np.concatenate(parts)
    try:
        got = ProducerStates().check(scan_batches(whole).batches, whole, origin=Origin.COORDINATOR)
    except LogError as error:
        assert error.error_code == expected
    else:
        assert expected is None and got is None


def test_the_sequence_continues_at_0_behind_the_largest() -> None:
    log = Log()
    assert log.offer(Sent(producer=1, epoch=0, sequence=TOP - 1, count=3)) is None
    assert log.offer(Sent(producer=1, epoch=0, sequence=0)) == 45
    assert log.offer(Sent(producer=1, epoch=0, sequence=1)) is None
    assert log.offer(Sent(producer=1, epoch=0, sequence=TOP - 1, count=3)) is None  # it is there already
    assert len(log.stored) == 2


def test_an_unknown_producer_may_start_anywhere() -> None:
    log = Log()
    assert log.offer(Sent(producer=1, epoch=3, sequence=77)) is None
    assert log.offer(Sent(producer=1, epoch=4, sequence=78)) == 45
    assert log.offer(Sent(producer=1, epoch=4, sequence=0)) is None
    assert log.offer(Sent(producer=1, epoch=3, sequence=78)) == 47


def test_the_sixth_last_batch_is_out_of_order() -> None:
    log = Log()
    for sequence in range(6):
        log.offer(Sent(producer=1, epoch=0, sequence=sequence))
    assert isinstance(log.ask(Sent(producer=1, epoch=0, sequence=1), Origin.CLIENT), ProducerBatch)
    assert log.ask(Sent(producer=1, epoch=0, sequence=0), Origin.CLIENT) == 45
    assert log.ask(Sent(producer=1, epoch=0, sequence=4, count=2), Origin.CLIENT) == 45


def test_coordinators_have_no_sequences_and_replicas_no_doubts() -> None:
    log = Log()
    log.offer(Sent(producer=1, epoch=5, sequence=0))
    assert log.ask(Sent(producer=1, epoch=5, sequence=9), Origin.COORDINATOR) is None
    assert log.ask(Sent(producer=1, epoch=4, sequence=9), Origin.COORDINATOR) == 47
    assert log.ask(Sent(producer=1, epoch=4, sequence=9), Origin.REPLICATION) is None
    log.append(Sent(producer=1, epoch=5, commit=True, coordinator=3))
    late = Sent(producer=1, epoch=4, commit=True, coordinator=2)
    assert log.ask(late, Origin.COORDINATOR) == 47
    assert log.ask(late, Origin.REPLICATION) is None


def test_mixing_is_refused_while_a_transaction_is_open() -> None:
    log = Log()
    assert log.offer(Sent(producer=1, epoch=0, sequence=0, transactional=True)) is None
    assert log.offer(Sent(producer=1, epoch=0, sequence=1)) == 48
    assert log.offer(Sent(producer=1, epoch=0, commit=False)) is None
    assert log.offer(Sent(producer=1, epoch=0, sequence=1)) is None
