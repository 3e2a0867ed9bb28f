"""Fetch: which bytes, when, within which limits; errors; and long polls."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.collector import collector_paused
from siltstone.base.errors import StorageError
from siltstone.base.files import FileSlice
from siltstone.broker.delayed import DelayedResponse
from siltstone.broker.handlers.fetch import fetch
from siltstone.broker.store import MANY_PARTITIONS
from siltstone.broker.turns import FetchTurns
from siltstone.broker.wire import codec
from siltstone.broker.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from siltstone.log.indexes import AbortedTransaction as TransactionIndexEntry
from siltstone.log.partition import PartitionLog
from siltstone.log.segment import LiveSegment
from siltstone.log.validation import Origin
from tests.support.broker import ServedBroker, bytes_of, context_of, served
from tests.support.cleaning.transactional import marker
from tests.support.log.batches import array, sent
from tests.support.log.managed import failing

WAIT_MS = 30_000


def request_of(
    *offsets: int, topic: str = "t", topic_id: bytes = bytes(16), max_each: int = 1 << 20, **options: object
) -> FetchRequest:
    """A request for each partition from 0 on, from these offsets."""
    partitions = tuple(
        FetchPartition(partition=row, fetch_offset=offset, partition_max_bytes=max_each)
        for row, offset in enumerate(offsets)
    )
    topics = (FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions),)
    return FetchRequest(**{"min_bytes": 1, "topics": topics, **options})  # type: ignore[arg-type]


def fetched(broker: ServedBroker, request: FetchRequest, version: int = 12) -> list[PartitionData]:
    """The answers of the first topic's partitions; the session has no id."""
    answer = broker.call(fetch, request, version)
    assert isinstance(answer, FetchResponse)
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert codec.write(answer, version)
    return list(answer.responses[0].partitions)


def size(data: PartitionData) -> int:
    return len(bytes_of(data.records))


def batch_size(log: PartitionLog, offset: int) -> int:
    return log.read(offset, 1).size


def test_records_are_slices_of_the_logs_file(broker: ServedBroker) -> None:
    log = broker.log("t", records=5)
    (data,) = fetched(broker, request_of(2))
    assert isinstance(data.records, FileSlice)
    assert bytes_of(data.records) == log.read(2).batches()[0].tobytes()
    bounds = data.high_watermark, data.last_stable_offset, data.log_start_offset
    assert bounds == (5, 5, 0)
    assert data.aborted_transactions is None
    assert data.preferred_read_replica == -1


def test_an_answer_on_the_wire(broker: ServedBroker) -> None:
    log = broker.log("t", records=3)
    parts = codec.write(broker.call(fetch, request_of(0), 11), 11)
    assert [type(part) for part in parts if isinstance(part, FileSlice)] == [FileSlice]
    whole = b"".join(bytes_of(part) for part in parts)
    read = codec.read(FetchResponse, 11, memoryview(whole))
    assert bytes_of(read.responses[0].partitions[0].records) == log.read(0).batches()[0].tobytes()


def test_topics_by_id(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    topic_id = broker.broker.id_of_topic("t")
    answer = broker.call(fetch, request_of(0, topic="", topic_id=topic_id), 13)
    assert answer.responses[0].topic_id == topic_id
    assert size(answer.responses[0].partitions[0]) > 0
    for unknown in (bytes(16), b"0123456789abcdef"):
        assert fetched(broker, request_of(0, topic_id=unknown), 13)[0].error_code == 100


# Errors


def refused(broker: ServedBroker, request: FetchRequest, version: int = 12) -> int:
    """The code of a refused partition, whose offsets are all -1. A long poll does not wait for it."""
    waits = broker.loop.time()
    (data,) = fetched(broker, request, version)
    assert broker.loop.time() == waits
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)
    assert data.records == b""
    return data.error_code


@pytest.mark.parametrize("offset", [-5, -1, 1, 4, 1 << 62])
def test_an_offset_out_of_range(broker: ServedBroker, offset: int) -> None:
    broker.log("t", records=3).delete_records(2)
    assert refused(broker, request_of(offset, max_wait_ms=WAIT_MS)) == 1


def test_unknown_topics_and_partitions(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    assert refused(broker, request_of(0, topic="other", max_wait_ms=WAIT_MS)) == 3
    assert refused(broker, request_of(0, topic="../t", max_wait_ms=WAIT_MS)) == 3
    assert fetched(broker, request_of(0, 0))[1].error_code == 3


def test_a_known_partition_is_waited_for_beside_an_unknown_one(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    found = fetched(broker, request_of(1, 0, max_wait_ms=WAIT_MS))
    assert broker.loop.time() == pytest.approx(WAIT_MS / 1000)
    assert [data.error_code for data in found] == [0, 3]
    assert found[1].aborted_transactions == ()


def test_a_topic_without_partitions_is_left_out(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    topics = (FetchTopic(topic="t"), *request_of(0).topics, FetchTopic(topic="other"))
    answer = broker.call(fetch, FetchRequest(topics=topics), 12)
    assert [(topic.topic, len(topic.partitions)) for topic in answer.responses] == [("t", 1)]


def test_followers_are_refused(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    assert refused(broker, request_of(0, replica_id=1)) == 6
    topic_id = broker.broker.id_of_topic("t")
    assert (
        refused(broker, request_of(0, topic_id=topic_id, replica_state=ReplicaState(replica_id=0)), 15) == 6
    )


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (4, 74), (5, 0), (6, 75)])
def test_the_leader_epoch_that_a_client_has(broker: ServedBroker, epoch: int, code: int) -> None:
    broker.log("t").append(sent(), leader_epoch=5)
    wanted = FetchPartition(current_leader_epoch=epoch, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=(FetchTopic(topic="t", partitions=(wanted,)),))
    assert fetched(broker, request)[0].error_code == code


def test_a_client_that_has_read_another_history(broker: ServedBroker) -> None:
    log = broker.log("t")
    log.append(sent(3), leader_epoch=2)
    log.append(sent(3), leader_epoch=4)

    def epoch_end(offset: int, last_epoch: int) -> tuple[int, EpochEndOffset]:
        wanted = FetchPartition(fetch_offset=offset, last_fetched_epoch=last_epoch, partition_max_bytes=1000)
        request = FetchRequest(
            min_bytes=1 << 20, max_wait_ms=WAIT_MS, topics=(FetchTopic(topic="t", partitions=(wanted,)),)
        )
        before = broker.loop.time()
        (data,) = fetched(broker, request)
        has_waited = broker.loop.time() > before
        # Both are told at once, without records.
        assert has_waited == (size(data) > 0)
        return data.error_code, data.diverging_epoch

    assert epoch_end(3, 2) == (0, EpochEndOffset())
    assert epoch_end(4, 2) == (0, EpochEndOffset(epoch=2, end_offset=3))
    assert epoch_end(3, 3) == (0, EpochEndOffset(epoch=2, end_offset=3))
    assert epoch_end(3, 7) == (1, EpochEndOffset())


def test_a_disk_that_cannot_be_read(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broker.log("t", records=1)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("siltstone.broker.handlers.fetch.read_view", fail)
    assert refused(broker, request_of(0, max_wait_ms=WAIT_MS)) == 56
    assert log.is_open


def test_a_directory_that_goes_offline(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        log = broker.log("t", records=1)
        with failing(log.directory, "write"), pytest.raises(StorageError):
            log.append(sent())
        assert refused(broker, request_of(0, max_wait_ms=WAIT_MS)) == 56


# Without sessions (those with: test_fetch_sessions.py)


@pytest.mark.parametrize(("session", "epoch"), [(0, 1), (5, 3), (0, -2)])
def test_a_session_is_unknown(broker: ServedBroker, session: int, epoch: int) -> None:
    broker.log("t", records=1)
    request = request_of(0, session_id=session, session_epoch=epoch, max_wait_ms=WAIT_MS)
    assert broker.call(fetch, request, 12) == FetchResponse(error_code=70)


@pytest.mark.parametrize("session", [0, 5])
def test_a_session_is_not_begun(broker: ServedBroker, session: int) -> None:
    broker.log("t", records=1)
    (data,) = fetched(broker, request_of(0, session_id=session, session_epoch=-1))
    assert size(data) > 0


def test_nothing_is_asked_for(broker: ServedBroker) -> None:
    request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1)
    assert broker.call(fetch, request, 12) == FetchResponse()
    assert broker.loop.time() == 0


# Limits


def test_a_partitions_limit_and_its_first_batch(broker: ServedBroker) -> None:
    log = broker.log("t", records=5)
    one = batch_size(log, 0)
    sizes = [size(fetched(broker, request_of(0, max_each=limit))[0]) for limit in (0, 1, one, 2 * one + 7)]
    assert sizes == [one, one, one, 2 * one + 7]


def test_the_brokers_limit(tmp_path: Path) -> None:
    with served(tmp_path, config={"fetch.max.bytes": "1024"}) as broker:
        broker.log("t", records=50)
        (data,) = fetched(broker, request_of(0, max_bytes=1 << 20))
        assert size(data) == 1024


def test_a_negative_number_of_bytes(broker: ServedBroker) -> None:
    broker.log("t", records=5)
    assert refused(broker, request_of(0, max_each=-1, max_wait_ms=WAIT_MS)) == -1
    assert refused(broker, request_of(0, max_bytes=-1, max_wait_ms=WAIT_MS)) == -1


def test_an_unknown_isolation_level(broker: ServedBroker) -> None:
    broker.log("t", records=5)
    answer = broker.call(fetch, request_of(0, isolation_level=2, max_wait_ms=WAIT_MS), 12)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (-1, -1)
    assert broker.call(fetch, request_of(0, isolation_level=-1), 13) == FetchResponse(error_code=-1)


def test_a_partition_that_is_listed_twice(broker: ServedBroker) -> None:
    log = broker.log("t", records=5)
    rows = tuple(FetchPartition(fetch_offset=offset, partition_max_bytes=1) for offset in (0, 3))
    request = FetchRequest(topics=(FetchTopic(topic="t", partitions=rows),))
    (data,) = fetched(broker, request)
    assert bytes_of(data.records) == log.read(3, 1).batches()[0].tobytes()


def test_later_partitions_get_what_is_left(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 3)
    for number in range(3):
        broker.log("t", number, records=4)
    one = batch_size(broker.manager["t", 0], 0)

    def sizes(max_bytes: int, *offsets: int) -> list[int]:
        return [size(data) for data in fetched(broker, request_of(*offsets, max_bytes=max_bytes))]

    assert sizes(0, 0, 0, 0) == [one, 0, 0]
    assert sizes(5 * one, 0, 0, 0) == [4 * one, one, 0]
    assert sizes(6 * one + 10, 0, 0, 0) == [4 * one, 2 * one + 10, 0]
    assert sizes(4 * one + 10, 0, 0, 0) == [4 * one, 0, 0]  # less than one batch is of no use
    assert sizes(0, 4, 3, 0) == [0, one, 0]  # the first that has records


# Isolation


def test_read_committed_ends_at_the_last_stable_offset(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    log.append(sent(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    log.append(sent())
    one = batch_size(log, 0)
    (data,) = fetched(broker, request_of(0, isolation_level=1))
    assert (size(data), data.high_watermark, data.last_stable_offset) == (one, 4, 1)
    assert data.aborted_transactions == ()
    (data,) = fetched(broker, request_of(0))
    assert size(data) > 3 * one
    assert data.aborted_transactions is None
    log.append(array(marker(0, 7, commit=False)), origin=Origin.COORDINATOR)
    (data,) = fetched(broker, request_of(0, isolation_level=1))
    assert data.aborted_transactions == (AbortedTransaction(producer_id=7, first_offset=1),)
    (data,) = fetched(broker, request_of(5, isolation_level=1))
    assert (size(data), data.aborted_transactions) == (0, ())


# Long polls


def fetched_while(
    broker: ServedBroker, request: FetchRequest, *steps: Callable[[], object]
) -> tuple[FetchResponse, int]:
    """(the answer of a fetch that waits, how many steps had been made until it came)."""
    found = fetch(broker.broker, request, context_of(12))
    assert not isinstance(found, FetchResponse)

    async def run() -> tuple[FetchResponse, int]:
        task = asyncio.ensure_future(found)  # type: ignore[arg-type]
        for number, step in enumerate(steps):
            for _ in range(5):
                await asyncio.sleep(0)
            if task.done():
                return task.result(), number
            step()
        return await task, len(steps)

    return broker.loop.run_until_complete(run())


def test_a_fetch_at_the_end_waits_for_max_wait(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    (data,) = fetched(broker, request_of(1, max_wait_ms=WAIT_MS))
    assert broker.loop.time() == pytest.approx(WAIT_MS / 1000)
    assert (data.error_code, data.records, data.high_watermark) == (0, b"", 1)
    assert broker.broker.purgatory.parked == 0
    assert log.when_moved is None


@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_a_fetch_that_does_not_wait(broker: ServedBroker, max_wait_ms: int) -> None:
    broker.log("t", records=1)
    assert fetched(broker, request_of(1, max_wait_ms=max_wait_ms))[0].records == b""
    assert fetched(broker, request_of(1, min_bytes=0, max_wait_ms=WAIT_MS))[0].records == b""
    assert broker.loop.time() == 0


def test_a_fetch_is_answered_when_a_record_comes(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    answer, steps = fetched_while(
        broker, request_of(1, max_wait_ms=WAIT_MS), lambda: log.append(sent()), lambda: None
    )
    assert (size(answer.responses[0].partitions[0]), steps) == (batch_size(log, 1), 1)
    assert broker.loop.time() == 0


def test_a_fetch_is_answered_when_min_bytes_are_there(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 2)
    logs = [broker.log("t", number, records=1) for number in range(2)]
    one = batch_size(logs[0], 0)
    appends = [lambda log=log: log.append(sent()) for log in (*logs, *logs)]
    request = request_of(1, 1, min_bytes=3 * one, max_wait_ms=WAIT_MS)
    answer, steps = fetched_while(broker, request, *appends)
    assert ([size(data) for data in answer.responses[0].partitions], steps) == ([2 * one, one], 3)


def test_more_than_max_bytes_is_not_waited_for(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    request = request_of(1, min_bytes=1 << 30, max_bytes=10, max_wait_ms=WAIT_MS)
    answer, steps = fetched_while(broker, request, lambda: log.append(sent()), lambda: None)
    assert (size(answer.responses[0].partitions[0]), steps) == (batch_size(log, 1), 1)


def test_what_is_there_counts(broker: ServedBroker) -> None:
    """A fetch below the end that waits for more."""
    log = broker.log("t", records=2)
    one = batch_size(log, 0)
    request = request_of(1, min_bytes=2 * one, max_wait_ms=WAIT_MS)
    answer, steps = fetched_while(broker, request, lambda: log.append(sent()), lambda: None)
    assert (size(answer.responses[0].partitions[0]), steps) == (2 * one, 1)


WAKING: dict[str, tuple[Callable[[ServedBroker, PartitionLog], object], int]] = {
    "deleted records": (lambda _, log: (log.append(sent()), log.delete_records(-1)), 1),
    "a truncation": (lambda _, log: log.truncate_to(0), 1),
    "a deleted topic": (lambda broker, _: broker.manager.topics.delete("t"), 0),
    "a directory offline": (lambda broker, _: broker.manager.directories[0].go_offline("broken"), 0),
    "a broker that stops": (lambda broker, _: broker.broker.purgatory.close(), 0),
}


@pytest.mark.parametrize(("move", "code"), WAKING.values(), ids=WAKING)
def test_a_fetch_is_answered_when_its_log_is_no_more(
    broker: ServedBroker, move: Callable[[ServedBroker, PartitionLog], object], code: int
) -> None:
    log = broker.log("t", records=1)
    request = request_of(1, max_wait_ms=WAIT_MS, min_bytes=1 << 20)
    answer, _ = fetched_while(broker, request, lambda: move(broker, log))
    assert broker.loop.time() == 0
    data = answer.responses[0].partitions[0]
    assert (data.error_code, data.records) == (code, b"")


def test_a_roll_while_a_fetch_waits(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    one = batch_size(log, 0)
    request = request_of(1, max_wait_ms=WAIT_MS, min_bytes=2 * one)
    steps = [lambda: log.append(sent()), log.roll, lambda: log.append(sent()), lambda: log.append(sent())]
    answer, made = fetched_while(broker, request, *steps)
    # The records are in two segments, and one fetch reads one of them: what is there is answered in time.
    assert size(answer.responses[0].partitions[0]) >= one
    assert made <= 4


def test_read_committed_is_woken_by_the_marker(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    data = sent(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    request = request_of(1, isolation_level=1, max_wait_ms=WAIT_MS)
    end = lambda: log.append(array(marker(0, 7, commit=True)), origin=Origin.COORDINATOR)  # noqa: E731
    answer, steps = fetched_while(broker, request, lambda: log.append(data), end, lambda: None)
    assert steps == 2
    assert answer.responses[0].partitions[0].last_stable_offset == 4


# Turns


class InTurn:
    """A fetch that may not begin at once. ``answer``: its answer; ``delivered``: what of it has come."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, request: FetchRequest) -> None:
        monkeypatch.setattr(FetchTurns, "is_free", False)
        self.call, self.delivered, self._loop = context_of(12), list[Any](), broker.loop
        answer = fetch(broker.broker, request, self.call)
        assert isinstance(answer, DelayedResponse) and not answer.is_parked
        answer.deliver_to(self.delivered.append)
        self.answer = answer

    def turn(self, times: int) -> None:
        for _ in range(times):
            self._loop.run_until_complete(asyncio.sleep(0))

    def outcome(self) -> Any:
        """The response or the error, which comes within a minute."""
        until = time.monotonic() + 60
        while not self.delivered and time.monotonic() < until:
            self.turn(1)
        (outcome,) = self.delivered
        return outcome


def test_a_fetch_that_waits_for_its_turn_reads_what_comes_meanwhile(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.log("t", records=1)
    waiting = InTurn(broker, monkeypatch, request_of(0))
    for _ in range(3):
        log.append(sent())
    (data,) = waiting.outcome().responses[0].partitions
    assert (size(data), data.high_watermark) == (log.size, 4)
    assert waiting.call.connection.activity.begun_at > 0


def test_a_fetch_is_parked_when_its_turn_has_come(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.log("t", records=1)
    waiting = InTurn(broker, monkeypatch, request_of(1, max_wait_ms=WAIT_MS))
    assert broker.broker.purgatory.parked == 0
    waiting.turn(1)
    assert (waiting.answer.is_parked, broker.broker.purgatory.parked) == (True, 1)
    log.append(sent())
    (data,) = waiting.outcome().responses[0].partitions
    assert (size(data), waiting.answer.is_parked, broker.loop.time()) == (batch_size(log, 1), False, 0)


@pytest.mark.parametrize("turns", [0, 1], ids=["queued", "parked"])
def test_a_fetch_whose_connection_is_closed_leaves_nothing(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    log = broker.log("t", records=1)
    waiting = InTurn(broker, monkeypatch, request_of(1, max_wait_ms=WAIT_MS))
    waiting.turn(turns)
    waiting.answer.cancel()
    log.append(sent())
    waiting.turn(4)
    assert (waiting.delivered, broker.broker.purgatory.parked, log.when_moved) == ([], 0, None)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_fetch_that_was_parked_leaves_no_garbage_to_the_collector(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """A full collection stops the broker, and fetches would bring it about every second."""
    log = broker.log("t", records=1)
    waiting = InTurn(broker, monkeypatch, request_of(1, max_wait_ms=WAIT_MS))
    waiting.turn(1)
    left = weakref.ref(next(iter(broker.broker.purgatory._fetches)).resume.__self__)  # type: ignore[attr-defined]
    with collector_paused():
        if is_closed:
            waiting.answer.cancel()
        else:
            log.append(sent())
            assert waiting.outcome().responses
        del waiting
        broker.loop.run_until_complete(asyncio.sleep(0))
        assert left() is None


def test_a_fetch_that_is_read_in_the_pool_when_its_turn_has_come(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.log("t", records=1)
    log.roll()
    waiting = InTurn(broker, monkeypatch, request_of(0, max_wait_ms=WAIT_MS))
    assert size(waiting.outcome().responses[0].partitions[0]) > 0


@pytest.mark.parametrize("step", ["_limit", "_find_and_read", "_respond"])
def test_a_bug_in_a_later_step_is_the_answer(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log = broker.log("t", records=1)
    log.roll()

    def fail(*_: object) -> None:
        raise ValueError(step)

    monkeypatch.setattr(f"siltstone.broker.handlers.fetch._Fetch.{step}", fail)
    outcome = InTurn(broker, monkeypatch, request_of(0)).outcome()
    assert isinstance(outcome, ValueError) and str(outcome) == step


def test_old_segments_are_read_in_the_pool(broker: ServedBroker) -> None:
    log = broker.log("t", records=2)
    log.roll()
    log.append(sent())
    old, new = fetched(broker, request_of(0))[0], fetched(broker, request_of(2))[0]
    assert size(old) == 2 * size(new)


def test_an_index_of_aborted_transactions_is_read_in_the_pool(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.log("t")
    log.append(sent(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    threads = list[str]()
    found = LiveSegment.aborted

    def note(segment: LiveSegment) -> list[TransactionIndexEntry]:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return found(segment)

    monkeypatch.setattr(LiveSegment, "aborted", note)
    log.append(array(marker(0, 7, commit=False)), origin=Origin.COORDINATOR)
    (data,) = fetched(broker, request_of(0, isolation_level=1))
    assert data.aborted_transactions == (AbortedTransaction(producer_id=7, first_offset=0),)
    assert set(threads) == {"siltstone-broker"}


def test_a_request_about_many_partitions_is_answered_in_the_pool(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.log("t", records=1)
    threads = list[str]()
    found = broker.broker.log_of

    def note(topic: str, partition: int) -> PartitionLog:
        threads.append(threading.current_thread().name)
        return found(topic, partition)

    monkeypatch.setattr(broker.broker, "log_of", note)
    data = fetched(broker, request_of(1, *[0] * MANY_PARTITIONS, max_wait_ms=WAIT_MS))
    assert [row.error_code for row in data] == [0] + [3] * MANY_PARTITIONS
    assert {name.rpartition("_")[0] for name in threads} == {"siltstone-broker"}
    assert broker.loop.time() == pytest.approx(WAIT_MS / 1000)


def test_a_slice_outlives_its_segment(broker: ServedBroker) -> None:
    log = broker.log("t", records=2)
    expected = log.read(0).batches()[0].tobytes()
    (data,) = fetched(broker, request_of(0))
    log.roll()
    for path in log.delete_oldest_segments(1):
        path.unlink()
    assert bytes_of(data.records) == expected
