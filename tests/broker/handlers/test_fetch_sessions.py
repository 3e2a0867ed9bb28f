"""Fetch in a session: what is answered, in which order, and what costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from siltstone.broker import sessions as room
from siltstone.broker.handlers import fetch as handler
from siltstone.broker.handlers.fetch import fetch
from siltstone.broker.sessions import IDLE_SECONDS
from siltstone.broker.store import MANY_PARTITIONS
from siltstone.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from siltstone.log.fetch import FetchPosition
from siltstone.log.partition import PartitionLog
from siltstone.log.segment import LiveSegment
from tests.support.broker import ServedBroker, bytes_of, context_of
from tests.support.descriptors import deleted_but_open
from tests.support.log.batches import sent

WAIT_MS = 30_000
PLENTY = 1 << 20


class Client:
    """A client of one session, by names."""

    def __init__(self, broker: ServedBroker, version: int = 12) -> None:
        self.broker, self.version = broker, version
        self.number = self.epoch = 0

    def request(
        self, *partitions: tuple[int, int], forget: Sequence[int] = (), **fields: object
    ) -> FetchRequest:
        """Partitions of topic t, each (number, offset)."""
        rows = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=PLENTY)
            for number, offset in partitions
        )
        by_id = self.version >= 13
        place = {"topic_id": self.broker.broker.id_of_topic("t")} if by_id else {"topic": "t"}
        return FetchRequest(
            **{  # type: ignore[arg-type]
                "session_id": self.number,
                "session_epoch": self.epoch,
                "topics": (FetchTopic(partitions=rows, **place),) if rows else (),  # type: ignore[arg-type]
                "forgotten_topics_data": (
                    ForgottenTopic(partitions=tuple(forget), **place),  # type: ignore[arg-type]
                ),
                "min_bytes": 1,
                **fields,
            }
        )

    def ask(self, *partitions: tuple[int, int], **fields: object) -> list[tuple[int, int, int]]:
        """(partition, error, bytes) of each that is answered."""
        answer = self.broker.call(fetch, self.request(*partitions, **fields), self.version)  # type: ignore[arg-type]
        assert answer.error_code == 0
        self.number, self.epoch = answer.session_id, self.epoch + 1
        return [
            (row.partition_index, row.error_code, len(bytes_of(row.records)))
            for topic in answer.responses
            for row in topic.partitions
        ]

    def code(self, **fields: object) -> tuple[int, int]:
        """(error, session) of a request that is refused as a whole."""
        answer: FetchResponse = self.broker.call(fetch, self.request(**fields), self.version)  # type: ignore[arg-type]
        assert answer.responses == ()
        return answer.error_code, answer.session_id


def client_of(broker: ServedBroker, partitions: int = 3, version: int = 12) -> Client:
    """A client that has opened a session with empty partitions."""
    broker.manager.topics.create("t", partitions)
    client = Client(broker, version)
    assert client.ask(*((number, 0) for number in range(partitions))) == [
        (number, 0, 0) for number in range(partitions)
    ]
    assert client.number > 0
    return client


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_a_session_answers_only_with_what_is_new(broker: ServedBroker, version: int) -> None:
    client = client_of(broker, version=version)
    assert client.ask() == []
    one = broker.log("t", 1, records=1).size
    assert client.ask() == [(1, 0, one)]
    assert client.ask() == [(1, 0, one)]  # as long as it is not read on
    assert client.ask((1, 1)) == []
    broker.manager["t", 1].delete_records(1)
    assert client.ask() == [(1, 0, 0)]
    assert client.ask() == []


def test_a_partition_with_records_moves_to_the_end(broker: ServedBroker) -> None:
    client = client_of(broker)
    one, _, _ = (broker.log("t", number, records=1).size for number in range(3))
    for number in (0, 1, 2, 0):
        # The other two are told once: their high watermark is new.
        assert (number, 0, one) in client.ask(max_bytes=1)
    assert client.ask() == [(1, 0, one), (2, 0, one), (0, 0, one)]


def test_an_error_is_sent_each_time_and_its_end_once(broker: ServedBroker) -> None:
    client = client_of(broker)
    for _ in range(2):
        assert client.ask((0, 7), (8, 0)) == [(0, 1, 0), (8, 3, 0)]
    assert client.ask(max_wait_ms=WAIT_MS) == [(0, 1, 0), (8, 3, 0)]
    assert client.ask((0, 0), forget=[8]) == [(0, 0, 0)]
    assert client.ask() == []


def test_a_topic_that_is_deleted_and_created_again_stays_in_its_session(broker: ServedBroker) -> None:
    client = client_of(broker, 1)
    broker.manager.topics.delete("t")
    assert client.ask() == [(0, 3, 0)]
    broker.manager.topics.create("t")
    assert client.ask() == [(0, 0, 0)]
    assert client.ask() == []


def test_the_id_of_a_deleted_topic_stays_an_error_when_its_name_comes_back(broker: ServedBroker) -> None:
    """A session knows the topic by its name, too."""
    client = client_of(broker, 1, version=13)
    topic_id = broker.broker.id_of_topic("t")
    broker.manager.topics.delete("t")
    assert client.ask() == [(0, 3, 0)]
    broker.manager.topics.create("t")
    assert client.ask() == [(0, 103, 0)]
    assert topic_id != broker.broker.id_of_topic("t")
    assert client.ask((0, 0)) == [(0, 103, 0), (0, 0, 0)]  # under its old and its new id


def test_a_wrong_session_epoch_or_version_refuses_the_whole_request(broker: ServedBroker) -> None:
    client = client_of(broker)
    number = client.number
    assert client.code(session_epoch=2) == (71, 0)
    assert client.code(session_id=number ^ 1) == (70, 0)
    client.version = 13
    assert client.code() == (106, 0)
    client.version = 12
    assert client.ask() == []
    assert client.code(session_epoch=1, session_id=number) == (71, 0)
    assert client.code(session_epoch=-1, session_id=number) == (0, 0)
    assert client.code(session_epoch=2, session_id=number) == (70, 0)
    assert (len(broker.broker.fetch_sessions), broker.broker.fetch_sessions.partitions) == (0, 0)


def test_a_session_takes_the_place_of_the_clients_last_one(broker: ServedBroker) -> None:
    client = client_of(broker)
    number, client.epoch = client.number, 0
    assert client.ask((1, 0)) == [(1, 0, 0)]
    assert number != client.number > 0
    assert broker.broker.fetch_sessions.partitions == 1


def test_without_room_for_its_partitions_a_fetch_gets_no_session(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PARTITIONS_MAX", 2)
    broker.manager.topics.create("t", 3)
    client = Client(broker)
    assert len(client.ask((0, 0), (1, 0), (2, 0))) == 3
    assert client.number == 0


def test_the_older_of_two_requests_at_once_is_refused(broker: ServedBroker) -> None:
    """One waits while the next one of its session comes by another connection."""
    client = client_of(broker)
    pending = fetch(broker.broker, client.request(max_wait_ms=WAIT_MS), context_of(12))
    assert not isinstance(pending, FetchResponse)
    number = client.number

    async def run() -> tuple[FetchResponse, FetchResponse]:
        older = asyncio.ensure_future(pending)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        client.epoch += 1
        newer = fetch(broker.broker, client.request((1, 0), forget=[0]), context_of(12))
        assert isinstance(newer, FetchResponse)
        return await older, newer

    older, newer = broker.loop.run_until_complete(run())
    assert (older.error_code, older.session_id, older.responses) == (71, number, ())
    assert (newer.error_code, newer.session_id) == (0, number)
    assert broker.broker.purgatory.parked == 0


def test_a_session_that_waits_is_answered_with_what_comes(broker: ServedBroker) -> None:
    client = client_of(broker)
    assert client.ask(max_wait_ms=WAIT_MS) == []
    assert broker.loop.time() == pytest.approx(WAIT_MS / 1000)
    pending = fetch(broker.broker, client.request(max_wait_ms=WAIT_MS), context_of(12))

    async def run() -> FetchResponse:
        task = asyncio.ensure_future(pending)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        broker.log("t", 2, records=1)
        return await task

    answer = broker.loop.run_until_complete(run())
    assert [row.partition_index for row in answer.responses[0].partitions] == [2]
    assert broker.loop.time() == pytest.approx(WAIT_MS / 1000)


def test_read_committed_behind_an_open_transaction_gets_no_records(broker: ServedBroker) -> None:
    """The records are there, and may be told to one that asks otherwise."""
    client = client_of(broker, 1)
    log = broker.log("t")
    log.append(sent(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    assert client.ask(isolation_level=1) == [(0, 0, 0)]
    assert client.ask(isolation_level=1) == []
    assert client.ask() == [(0, 0, log.size)]


# What it costs


def test_quiet_partitions_are_not_read(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    count = MANY_PARTITIONS + 1
    client = client_of(broker, count)
    client.ask()
    read, offsets = handler.read_view, list[int]()

    def note(*arguments: object, **options: object) -> object:
        offsets.append(arguments[1])  # type: ignore[arg-type]
        return read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(handler, "read_view", note)
    monkeypatch.setattr(broker.broker, "in_pool", None)  # so few reads are made at once
    assert client.ask() == []
    broker.log("t", 7, records=1)
    assert [row[0] for row in client.ask()] == [7]
    assert client.ask((7, 1)) == []
    assert client.ask() == []
    assert offsets == [0, 1]


def test_a_read_at_the_end_searches_nothing(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(broker, 1)
    log = broker.log("t", records=1)
    client.ask()
    monkeypatch.setattr(LiveSegment, "find_batch", None)
    for offset in range(1, 4):
        log.append(sent())
        assert client.ask((0, offset)) == [(0, 0, log.read(offset, resume_at=place(broker)).size)]


def with_old_segments(broker: ServedBroker, client: Client) -> PartitionLog:
    """A log that the client has read to its end, whose first segments are deleted by now."""
    log = broker.log("t")
    for offset in range(3):
        log.append(sent())
        log.roll()
        assert client.ask((0, offset)) == [(0, 0, log.view.segments[offset].size)]
    assert client.ask((0, 3)) == []
    log.delete_records(3)
    broker.manager.upkeep.delete_old_segments_of(broker.manager.directories[0], log)
    broker.manager.scheduler.tick(broker.clock.now_ms() + 120_000)
    assert len(log.view.segments) == 1
    return log


def test_a_session_that_is_not_used_holds_no_deleted_files_open(broker: ServedBroker) -> None:
    client, sessions, directory = client_of(broker, 1), broker.broker.fetch_sessions, directory_of(broker)
    log = with_old_segments(broker, client)
    sessions.release_idle(broker.loop.time() + IDLE_SECONDS)
    assert deleted_but_open(directory)
    sessions.release_idle(broker.loop.time() + IDLE_SECONDS + 1)
    assert deleted_but_open(directory) == []
    log.append(sent())
    assert client.ask() == [(0, 0, log.size)]
    broker.manager.topics.delete("t")
    del log
    broker.manager.scheduler.tick(broker.clock.now_ms() + 240_000)
    assert deleted_but_open(directory)
    sessions.release_idle(broker.loop.time() + IDLE_SECONDS + 1)
    assert deleted_but_open(directory) == []
    assert client.ask() == [(0, 3, 0)]


def test_a_session_holds_no_files_of_a_topic_that_was_deleted(broker: ServedBroker) -> None:
    client = client_of(broker, 1)
    with_old_segments(broker, client)
    broker.manager.topics.delete("t")
    assert client.ask() == [(0, 3, 0)]
    broker.manager.scheduler.tick(broker.clock.now_ms() + 240_000)
    assert deleted_but_open(directory_of(broker)) == []


def directory_of(broker: ServedBroker) -> Path:
    """The log directory."""
    return broker.manager.directories[0].path


def place(broker: ServedBroker) -> FetchPosition | None:
    """Where the session's last read was to begin, by the size of its batch: all have the same."""
    view = broker.manager["t", 0].view
    one = view.active_size // view.log_end_offset
    return FetchPosition(view.segments[-1], view.active_size - one, view.log_end_offset - 1)


def test_a_log_that_was_truncated_is_searched(broker: ServedBroker) -> None:
    client = client_of(broker, 1)
    log = broker.log("t", records=2)
    client.ask()
    log.truncate_to(1)
    for _ in range(2):
        log.append(sent())
    assert client.ask((0, 1)) == [(0, 0, log.read(1).size)]
    assert client.ask((0, 2)) == [(0, 0, log.read(2).size)]
