"""Quotas by the protocol: what is altered holds at once; what producers, consumers and admins are told."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from siltstone.broker.dispatch import Dispatcher
from siltstone.broker.handlers import quotas as handlers
from siltstone.broker.handlers.fetch import fetch
from siltstone.broker.handlers.metadata import metadata
from siltstone.broker.handlers.quotas import alter_client_quotas, describe_client_quotas
from siltstone.broker.handlers.topics import create_topics, delete_topics
from siltstone.broker.request_context import RequestContext
from siltstone.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from siltstone.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from siltstone.broker.wire.messages.delete_topics import DeleteTopicsRequest
from siltstone.broker.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.broker import ServedBroker, context_of, served
from tests.support.log.batches import sent
from tests.support.wire_client import read_response, request_frame

TOO_MANY, POLICY_VIOLATION, INVALID_REQUEST, INVALID_TOPIC = 89, 44, 42, 17


def entry(key: str, value: float | None, **entity: str | None) -> EntryData:
    parts = [
        EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()
    ]
    return EntryData(entity=tuple(parts), ops=(OpData(key=key, value=value or 0.0, remove=value is None),))


def alter(broker: ServedBroker, *entries: EntryData, **options: Any) -> list[int]:
    answer = broker.call(alter_client_quotas, AlterClientQuotasRequest(entries=entries, **options), 1)
    return [one.error_code for one in answer.entries]


def described(broker: ServedBroker) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = broker.call(describe_client_quotas, DescribeClientQuotasRequest(), 1)
    return {
        tuple((part.entity_type, part.entity_name) for part in found.entity): {
            value.key: value.value for value in found.values
        }
        for found in answer.entries
    }


def test_what_is_altered_holds_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        assert not broker.broker.quotas.is_set
        assert alter(broker, entry("producer_byte_rate", 5.0, client_id="test"), validate_only=True) == [0]
        assert not broker.broker.quotas.is_set and described(broker) == {}
        assert alter(broker, entry("producer_byte_rate", 5.0, client_id="test")) == [0]
        assert broker.broker.quotas.bound_of("Produce", context_of(9)) == 5.0
    with served(tmp_path) as broker:
        assert broker.broker.quotas.is_set
        assert described(broker) == {(("client-id", "test"),): {"producer_byte_rate": 5.0}}
        assert alter(broker, entry("producer_byte_rate", None, client_id="test")) == [0]
        assert not broker.broker.quotas.is_set and described(broker) == {}


def test_changes_are_in_the_audit_log(broker: ServedBroker) -> None:
    for _ in range(2):  # the second time nothing changes
        alter(broker, entry("producer_byte_rate", 5.0, user="ada", client_id=None))
    (change,) = broker.broker.served.opened_changes().newest()
    assert (change.action, change.target) == ("alter-quotas", "client-id user=ada")
    assert (change.before, change.after) == ({}, {"producer_byte_rate": 5.0})


def test_a_request_has_an_end(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "ENTRIES_MAX", 2)
    entries = [entry("producer_byte_rate", 5.0, user=f"u{number}") for number in range(3)]
    assert alter(broker, *entries) == [POLICY_VIOLATION] * 3
    assert alter(broker, *[entries[0]] * 100) == [INVALID_REQUEST]
    assert described(broker) == {}


def test_an_entity_is_the_same_in_whatever_order_a_request_lists_it(broker: ServedBroker) -> None:
    one = entry("producer_byte_rate", 5.0, user="ada", client_id="app")
    other = entry("producer_byte_rate", 6.0, client_id="app", user="ada")
    assert alter(broker, one, other) == [INVALID_REQUEST]
    assert described(broker) == {}


# What clients are told


def produce_request(acks: int = 1) -> ProduceRequest:
    data = (PartitionProduceData(index=0, records=sent(3).tobytes()),)
    return ProduceRequest(acks=acks, topic_data=(TopicProduceData(name="t", partition_data=data),))


def produced(broker: ServedBroker, version: int, acks: int = 1) -> tuple[RequestContext, Any]:
    """The call with what its connection was told, and the answer, None without one."""
    context, request = context_of(version), produce_request(acks)
    frame = bytearray(request_frame(request, version)[4:])
    found = Dispatcher(broker.broker).answer(frame, context.connection)

    async def finish() -> Any:
        return await found if inspect.isawaitable(found) else found

    data = b"".join(map(bytes, broker.loop.run_until_complete(finish())))[4:]
    return context, read_response(request, version, data) if data else None


@pytest.mark.parametrize("version", range(3, 13))
def test_a_producer_gets_its_throttle_time(broker: ServedBroker, version: int) -> None:
    broker.log("t")
    size = len(request_frame(produce_request(), version)) - 4
    bound = size // 100
    alter(broker, entry("producer_byte_rate", bound, client_id="test"))
    context, answer = produced(broker, version)
    assert abs(answer.throttle_time_ms - (size / 10 - bound) / bound * 10_000) <= 1
    assert context.connection.activity.throttle_ms == answer.throttle_time_ms
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_producer_without_an_answer_is_throttled_all_the_same(broker: ServedBroker) -> None:
    broker.log("t")
    alter(broker, entry("producer_byte_rate", 1.0, client_id="test"))
    context, answer = produced(broker, 9, acks=0)
    assert answer is None and context.connection.activity.throttle_ms > 10_000


def test_other_clients_are_told_nothing(broker: ServedBroker) -> None:
    broker.log("t")
    alter(broker, entry("producer_byte_rate", 1.0, client_id="other"))
    context, answer = produced(broker, 9)
    assert answer.throttle_time_ms == context.connection.activity.throttle_ms == 0


def fetch_request(**session: int) -> FetchRequest:
    partition = FetchPartition(partition_max_bytes=1 << 20)
    topics = () if session.get("session_epoch", 0) > 0 else (FetchTopic(topic="t", partitions=(partition,)),)
    return FetchRequest(min_bytes=1, max_bytes=1 << 20, topics=topics, **session)


def test_a_consumer_over_its_quota_gets_nothing_and_asks_again(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    alter(broker, entry("consumer_byte_rate", 1.0, client_id="test"))
    answer = broker.call(fetch, fetch_request(), 12)
    assert (answer.responses, answer.error_code, answer.session_id) == ((), 0, 0)
    assert answer.throttle_time_ms > 1_000
    alter(broker, entry("consumer_byte_rate", 1e9, client_id="test"))
    answer = broker.call(fetch, fetch_request(), 12)
    assert answer.throttle_time_ms == 0 and len(answer.responses[0].partitions[0].records) > 0


def test_a_session_continues_after_a_throttling(broker: ServedBroker) -> None:
    """A client that was told nothing is told later: records, and the high watermark."""
    log = broker.log("t")
    number = broker.call(fetch, fetch_request(session_epoch=0), 12).session_id
    log.append(sent(3))
    alter(broker, entry("consumer_byte_rate", 1.0, client_id="test"))
    answer = broker.call(fetch, fetch_request(session_id=number, session_epoch=1), 12)
    assert (answer.responses, answer.error_code, answer.session_id) == ((), 0, number)
    assert answer.throttle_time_ms > 0
    alter(broker, entry("consumer_byte_rate", None, client_id="test"))
    answer = broker.call(fetch, fetch_request(session_id=number, session_epoch=2), 12)
    (partition,) = answer.responses[0].partitions
    assert len(partition.records) > 0 and partition.high_watermark == 3


def test_a_consumer_is_given_no_more_than_its_quota_of_ten_seconds(broker: ServedBroker) -> None:
    log = broker.log("t", records=10)
    size = log.size // 10
    alter(broker, entry("consumer_byte_rate", size // 2, client_id="test"))
    answer = broker.call(fetch, fetch_request(), 12)
    # Five batches, which with what is around them are a little over the quota.
    assert answer.throttle_time_ms in range(1, 10_000)
    alter(broker, entry("consumer_byte_rate", size, client_id="test"))
    other = context_of(12, "test")
    assert broker.broker.quotas.fetched_bytes_max(other) == 10 * size


def test_a_wait_for_records_is_no_time_of_a_request() -> None:
    context = context_of(12)
    context.connection.activity.begun_at = time.perf_counter() - 3_600
    assert context.seconds >= 3_600
    context.connection.activity.parked_seconds = 3_600.0
    assert context.seconds < 60


def test_a_fetch_notes_how_long_it_was_parked(broker: ServedBroker) -> None:
    broker.log("t")
    context = context_of(12)
    waiting = fetch(broker.broker, structs.replace(fetch_request(), max_wait_ms=30), context)
    broker.loop.run_until_complete(waiting)  # type: ignore[arg-type]
    assert context.connection.activity.parked_seconds > 0


def create(name: str, count: int = 1) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    return CreateTopicsRequest(topics=(topic,))


def test_topics_over_the_quota_are_not_made(broker: ServedBroker) -> None:
    alter(broker, entry("controller_mutation_rate", 0.1, client_id="test"))
    bad = broker.call(create_topics, create("a/b", 100), 7)
    assert bad.topics[0].error_code == INVALID_TOPIC  # what is refused takes nothing
    first = broker.call(create_topics, create("first", 3), 7)
    assert (first.topics[0].error_code, first.throttle_time_ms) == (0, 0)
    second = broker.call(create_topics, create("second"), 7)
    assert second.topics[0].error_code == TOO_MANY and second.throttle_time_ms > 1_000
    assert broker.manager.topics.names() == ["first"]
    gone = broker.call(delete_topics, DeleteTopicsRequest(topic_names=("first",)), 5)
    assert gone.responses[0].error_code == TOO_MANY and gone.throttle_time_ms > 0
    older = broker.call(create_topics, create("second"), 5)
    assert older.topics[0].error_code == 0 and older.throttle_time_ms > 1_000
    named = MetadataRequest(topics=(MetadataRequestTopic(name="third"),), allow_auto_topic_creation=True)
    broker.call(metadata, named, 12)
    assert broker.manager.topics.names() == ["first", "second"]
