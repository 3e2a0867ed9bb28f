"""Requests whose fields have any values: each is answered, and no handler fails."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from siltstone.broker.handlers.fetch import fetch
from siltstone.broker.handlers.offsets import list_offsets, offset_for_leader_epoch
from siltstone.broker.handlers.produce import produce
from siltstone.broker.handlers.producers import init_producer_id
from siltstone.broker.request_context import NoResponse
from siltstone.broker.wire import codec
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.broker.wire.messages.init_producer_id import InitProducerIdRequest
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from siltstone.broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from siltstone.log.reading import LogReader
from siltstone.log.validation import Origin
from tests.support.broker import ServedBroker
from tests.support.cleaning.transactional import marker
from tests.support.log.batches import TIME, array, sent
from tests.support.thoroughness import examples

SMALL = (-(1 << 31), -5, -2, -1, 0, 1, 2, 3, 100, 1 << 20, (1 << 31) - 1)
LARGE = (*SMALL, -(1 << 63), -6, 5, 13, TIME, 1 << 62, (1 << 63) - 1)
BATCHES = [
    sent(2, producer_id=3, producer_epoch=0, base_sequence=0),
    *(sent(codec=number) for number in range(5)),
]
Pick = random.Random


def some(pick: Pick, make: Callable[[], Any]) -> tuple[Any, ...]:
    return tuple(make() for _ in range(pick.randrange(3)))


def usual_or(pick: Pick, *usual: Any) -> Any:
    """Mostly one of the usual values, else any number."""
    return pick.choice(usual if pick.random() < 0.8 else SMALL)


def topic(pick: Pick) -> str:
    return pick.choice(["t", "t", "compacted", "unknown", "__consumer_offsets", ""])


def batch(pick: Pick) -> memoryview | None:
    """A batch, some of its bytes others, perhaps cut off."""
    data = bytearray(pick.choice(BATCHES).tobytes() * pick.choice([1, 1, 1, 2, 0]))
    for _ in range(pick.choice([0, 0, 1, 3]) if data else 0):
        data[pick.randrange(len(data))] = pick.randrange(256)
    size = pick.choice([len(data), len(data), pick.randrange(len(data) + 1)])
    return None if pick.random() < 0.05 else memoryview(data[:size])


def fetches(pick: Pick, topic_id: bytes) -> tuple[Any, Any, int]:
    def partition() -> FetchPartition:
        return FetchPartition(
            partition=usual_or(pick, 0, 0, 1),
            current_leader_epoch=usual_or(pick, -1),
            fetch_offset=pick.choice(LARGE),
            last_fetched_epoch=usual_or(pick, -1),
            partition_max_bytes=pick.choice(SMALL),
        )

    request = FetchRequest(
        replica_id=usual_or(pick, -1),
        max_wait_ms=pick.choice(SMALL),
        min_bytes=pick.choice(SMALL),
        max_bytes=usual_or(pick, 1 << 20),
        isolation_level=pick.choice([0, 0, 1, 1, 2, -1]),
        session_id=usual_or(pick, 0),
        session_epoch=usual_or(pick, 0, -1),
        topics=some(
            pick, lambda: FetchTopic(topic=topic(pick), topic_id=topic_id, partitions=some(pick, partition))
        ),
    )
    return fetch, request, pick.randrange(4, 19)


def produces(pick: Pick, topic_id: bytes) -> tuple[Any, Any, int]:
    def partition() -> PartitionProduceData:
        return PartitionProduceData(index=usual_or(pick, 0, 1), records=batch(pick))

    request = ProduceRequest(
        transactional_id=pick.choice([None, None, "", "x"]),
        acks=usual_or(pick, 1, -1, 0),
        topic_data=some(
            pick,
            lambda: TopicProduceData(
                name=topic(pick), topic_id=topic_id, partition_data=some(pick, partition)
            ),
        ),
    )
    return produce, request, pick.randrange(3, 14)


def offsets(pick: Pick, _: bytes) -> tuple[Any, Any, int]:
    def partition() -> ListOffsetsPartition:
        return ListOffsetsPartition(
            partition_index=usual_or(pick, 0, 1),
            current_leader_epoch=usual_or(pick, -1),
            timestamp=pick.choice(LARGE),
        )

    topics = some(pick, lambda: ListOffsetsTopic(name=topic(pick), partitions=some(pick, partition)))
    request = ListOffsetsRequest(isolation_level=usual_or(pick, 0, 1), topics=topics)
    return list_offsets, request, pick.randrange(1, 12)


def epochs(pick: Pick, _: bytes) -> tuple[Any, Any, int]:
    def partition() -> OffsetForLeaderPartition:
        return OffsetForLeaderPartition(
            partition=usual_or(pick, 0, 1),
            current_leader_epoch=usual_or(pick, -1),
            leader_epoch=pick.choice(SMALL),
        )

    topics = some(pick, lambda: OffsetForLeaderTopic(topic=topic(pick), partitions=some(pick, partition)))
    return offset_for_leader_epoch, OffsetForLeaderEpochRequest(topics=topics), pick.randrange(2, 5)


def producers(pick: Pick, _: bytes) -> tuple[Any, Any, int]:
    request = InitProducerIdRequest(
        transactional_id=pick.choice([None, "", "x"]),
        transaction_timeout_ms=pick.choice(SMALL),
        producer_id=pick.choice(LARGE),
        producer_epoch=pick.choice([-1, 0, 32_767, -32_768]),
    )
    return init_producer_id, request, pick.randrange(6)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(5))
def test_every_request_is_answered(broker: ServedBroker, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    log = broker.log("t")
    broker.manager.topics.create("compacted", config={"cleanup.policy": "compact"})
    for epoch in range(4):
        log.append(sent(3), leader_epoch=epoch)
    log.append(sent(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    log.append(array(marker(0, 7, commit=False)), origin=Origin.COORDINATOR)
    log.delete_records(1)
    pick, ids = Pick(seed), (broker.broker.id_of_topic("t"), bytes(16), bytes(range(16)))
    for _ in range(examples(400)):
        make = pick.choice([fetches, produces, offsets, epochs, producers])
        handler, request, version = make(pick, pick.choice(ids))
        answer = broker.call(handler, request, version)
        assert isinstance(answer, NoResponse) or codec.write(answer, version)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    for log in broker.manager.sorted_logs():  # what was accepted can be read
        count = sum(len(polled) for polled in LogReader(log, "earliest"))
        assert count <= log.log_end_offset - log.log_start_offset
