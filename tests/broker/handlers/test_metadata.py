"""Metadata, DescribeTopicPartitions, DescribeCluster: answers as a Kafka 4.3 has them (measured)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.config import Config, parse_broker_config
from siltstone.broker.handlers.metadata import (
    CLUSTER_OPERATIONS,
    CREATED_MAX,
    OPERATIONS_OMITTED,
    TOPIC_OPERATIONS,
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from siltstone.broker.wire.fields import ZERO_ID
from siltstone.broker.wire.messages.describe_cluster import DescribeClusterRequest
from siltstone.broker.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from siltstone.runtime.topics import TOPICS_FILE
from tests.support.broker import ServedBroker, served

NODE = 0
NEWEST = 13


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker with the topics ``a`` of one partition and ``b`` of three."""
    with served(tmp_path) as broker:
        broker.manager.topics.create("a", 1)
        broker.manager.topics.create("b", 3)
        yield broker


def metadata_of(
    broker: ServedBroker, *names: str | bytes, version: int = NEWEST, **fields: Any
) -> MetadataResponse:
    """The answer about topics by their names or ids; none is created unless a test says so."""
    topics = tuple(
        MetadataRequestTopic(name=None, topic_id=name)
        if isinstance(name, bytes)
        else MetadataRequestTopic(name=name)
        for name in names
    )
    request = MetadataRequest(topics=topics, **{"allow_auto_topic_creation": False, **fields})
    answer: MetadataResponse = broker.call(metadata, request, version)
    return answer


def codes(answer: Any) -> dict[str | None, int]:
    """Each topic's code."""
    return {topic.name: topic.error_code for topic in answer.topics}


def test_the_cluster_is_one_broker_at_the_address_of_the_listener(broker: ServedBroker) -> None:
    answer = metadata_of(broker)
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port, node.rack) == (NODE, "localhost", 9092, None)
    assert (answer.cluster_id, answer.controller_id) == (broker.broker.cluster_id, NODE)
    assert answer.topics == ()


def test_a_topic_has_its_partitions_led_by_this_broker(broker: ServedBroker) -> None:
    (topic,) = metadata_of(broker, "b").topics
    assert (topic.error_code, topic.topic_id, topic.is_internal) == (0, broker.broker.id_of_topic("b"), False)
    assert [
        (
            partition.partition_index,
            partition.error_code,
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
        )
        for partition in topic.partitions
    ] == [(number, 0, NODE, 0, (NODE,), (NODE,)) for number in range(3)]
    assert topic.partitions[0].offline_replicas == ()


@pytest.mark.parametrize(("version", "topics", "expected"), [
    (0, (), ["a", "b"]), (1, (), []), (1, None, ["a", "b"]), (NEWEST, None, ["a", "b"]),
])  # fmt: skip
def test_no_list_is_all_topics(
    broker: ServedBroker, version: int, topics: tuple[()] | None, expected: list[str]
) -> None:
    """An empty one is, too, in version 0, which has no null."""
    answer = broker.call(metadata, MetadataRequest(topics=topics), version)
    assert [topic.name for topic in answer.topics] == expected


def test_topics_that_do_not_exist_come_last(broker: ServedBroker) -> None:
    answer = metadata_of(broker, "nope", "bad/name", "", "a", "a", "__transaction_state")
    assert codes(answer) == {"a": 0, "nope": 3, "bad/name": 17, "": 17, "__transaction_state": 3}
    assert answer.topics[0].name == "a"
    assert [topic.is_internal for topic in answer.topics] == [False, False, False, False, True]


def test_topics_by_id(broker: ServedBroker) -> None:
    known, unknown = broker.broker.id_of_topic("b"), b"\1" * 16
    answer = metadata_of(broker, known, known, unknown, "a")  # a name beside ids does not count
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.topics] == [
        ("b", known, 0),
        (None, unknown, 100),
    ]


@pytest.mark.parametrize(("version", "topic_id", "code"), [
    (10, b"\1" * 16, 42), (11, b"\1" * 16, 42), (11, ZERO_ID, 42), (12, ZERO_ID, -1), (13, ZERO_ID, -1),
])  # fmt: skip
def test_a_topic_without_a_name_or_id_of_the_version_is_refused(
    broker: ServedBroker, version: int, topic_id: bytes, code: int
) -> None:
    answer = metadata_of(broker, topic_id, version=version)
    assert (codes(answer), answer.topics[0].topic_id) == ({"": code}, topic_id)
    assert (answer.brokers, answer.cluster_id, answer.controller_id) == ((), None, -1)
    assert answer.error_code == (code if version >= 12 else 0)


def test_operations_are_sent_if_they_are_asked_for(broker: ServedBroker) -> None:
    answer = metadata_of(broker, "a", "nope", version=8)
    assert {topic.topic_authorized_operations for topic in answer.topics} == {OPERATIONS_OMITTED}
    assert answer.cluster_authorized_operations == OPERATIONS_OMITTED
    with_operations = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    answer = metadata_of(broker, "a", "nope", version=8, **with_operations)
    assert {topic.topic_authorized_operations for topic in answer.topics} == {TOPIC_OPERATIONS}
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS


def test_a_topic_is_created_when_it_is_asked_for_and_found_from_then_on(broker: ServedBroker) -> None:
    names = ("new", "bad/name", "__transaction_state")
    assert codes(metadata_of(broker, *names, allow_auto_topic_creation=True)) == {
        "new": 3, "bad/name": 17, "__transaction_state": 3,
    }  # fmt: skip
    assert codes(metadata_of(broker, *names)) == {"new": 0, "bad/name": 17, "__transaction_state": 3}


def test_a_name_that_collides_is_not_created(broker: ServedBroker) -> None:
    broker.log("x.y")
    assert codes(metadata_of(broker, "x_y", allow_auto_topic_creation=True)) == {"x_y": 3}
    assert codes(metadata_of(broker, "x_y")) == {"x_y": 3}


def test_no_topic_is_created_where_the_setting_forbids_it(broker: ServedBroker) -> None:
    no = parse_broker_config({"auto.create.topics.enable": "false"}, "test")
    broker.manager.update_config(Config(static=no))
    for _ in range(2):
        assert codes(metadata_of(broker, "new", allow_auto_topic_creation=True)) == {"new": 3}


def test_one_request_creates_so_many_topics_and_no_more(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CREATED_MAX < 1000
    monkeypatch.setattr("siltstone.broker.handlers.metadata.CREATED_MAX", 2)
    metadata_of(broker, *(f"new{number}" for number in range(4)), allow_auto_topic_creation=True)
    assert broker.manager.topics.names() == ["a", "b", "new0", "new1"]


def test_a_partition_of_a_directory_out_of_service_has_no_leader(broker: ServedBroker) -> None:
    broker.manager.serving()[0].go_offline("test")
    (topic,) = metadata_of(broker, "b").topics
    assert topic.error_code == 0
    assert [
        (partition.error_code, partition.leader_id, partition.offline_replicas)
        for partition in topic.partitions
    ] == [(5, -1, (NODE,))] * 3
    (described,) = described_topics(broker, "b").topics
    assert {partition.error_code for partition in described.partitions} == {5}


def test_a_topic_of_a_directory_out_of_service_that_no_registry_lists_is_not_created_again(
    tmp_path: Path,
) -> None:
    """As the topics of a Kafka's directory."""
    a, b = tmp_path / "a", tmp_path / "b"
    with served(a, b) as broker:
        broker.manager.topics.create("a", 1)
        broker.manager.topics.create("b", 1)
    for directory in (a, b):
        (directory / TOPICS_FILE).unlink()
    with served(a, b) as broker:
        topic_id = broker.broker.id_of_topic("b")
        broker.manager.directories[1].go_offline("test")
        for _ in range(2):
            (topic,) = metadata_of(broker, "b", allow_auto_topic_creation=True).topics
            assert (topic.error_code, topic.topic_id) == (0, topic_id) and topic_id != ZERO_ID
            assert [(partition.error_code, partition.leader_id) for partition in topic.partitions] == [
                (5, -1)
            ]
        assert codes(metadata_of(broker, topic_id)) == {"b": 0}
        assert not (a / "b-0").exists()


# DescribeTopicPartitions


def described_topics(
    broker: ServedBroker, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    """The answer about topics of these names, all without one."""
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return broker.call(describe_topic_partitions, request, 0)


def pages(answer: Any) -> tuple[dict[str, list[int]], tuple[str, int] | None]:
    """(the partitions of each topic, the cursor)."""
    cursor = answer.next_cursor
    return (
        {
            topic.name: [partition.partition_index for partition in topic.partitions]
            for topic in answer.topics
        },
        None if cursor is None else (cursor.topic_name, cursor.partition_index),
    )


def test_topics_are_described_in_order_of_name(broker: ServedBroker) -> None:
    answer = described_topics(broker, "b", "nope", "a", "bad/name", "a")
    assert codes(answer) == {"a": 0, "b": 0, "bad/name": 17, "nope": 3}
    assert [topic.name for topic in answer.topics] == ["a", "b", "bad/name", "nope"]
    assert {topic.topic_authorized_operations for topic in answer.topics} == {TOPIC_OPERATIONS}
    (first, *_) = answer.topics
    assert first.topic_id == broker.broker.id_of_topic("a")
    assert (first.partitions[0].eligible_leader_replicas, first.partitions[0].last_known_elr) == ((), ())


@pytest.mark.parametrize(("limit", "cursor", "page"), [
    (2000, None, ({"a": [0], "b": [0, 1, 2]}, None)),
    (2, None, ({"a": [0], "b": [0]}, ("b", 1))),
    (1, None, ({"a": [0]}, ("b", 0))),
    (0, None, ({"a": [0]}, ("b", 0))),
    (-1, None, ({"a": [0]}, ("b", 0))),
    (2, ("b", 1), ({"b": [1, 2]}, None)),
    (1, ("b", 1), ({"b": [1]}, ("b", 2))),
    (2, ("b", 9), ({"b": []}, None)),
])  # fmt: skip
def test_partitions_are_described_page_by_page(
    broker: ServedBroker, limit: int, cursor: tuple[str, int] | None, page: Any
) -> None:
    assert pages(described_topics(broker, "a", "b", limit=limit, cursor=cursor)) == page
    assert pages(described_topics(broker, limit=limit, cursor=cursor)) == page


@pytest.mark.parametrize("cursor", [("nope", 0), ("", 0), ("b", -1)])
def test_a_cursor_that_none_of_the_topics_has_is_refused(
    broker: ServedBroker, cursor: tuple[str, int]
) -> None:
    answer = described_topics(broker, "a", "b", cursor=cursor)
    assert codes(answer) == {"a": 42, "b": 42}
    assert {topic.topic_authorized_operations for topic in answer.topics} == {OPERATIONS_OMITTED}


# DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described(broker: ServedBroker, version: int) -> None:
    answer = broker.call(describe_cluster, DescribeClusterRequest(), version)
    (node,) = answer.brokers
    assert (node.broker_id, node.host, node.port, node.is_fenced) == (NODE, "localhost", 9092, False)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.cluster_id, answer.controller_id) == (broker.broker.cluster_id, NODE)
    assert answer.cluster_authorized_operations == OPERATIONS_OMITTED
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = broker.call(describe_cluster, request, version)
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize(("endpoint", "code"), [(2, 114), (9, 115), (0, 115)])
def test_there_is_no_other_endpoint(broker: ServedBroker, endpoint: int, code: int) -> None:
    answer = broker.call(describe_cluster, DescribeClusterRequest(endpoint_type=endpoint), 1)
    assert (answer.error_code, answer.brokers, answer.cluster_id, answer.controller_id) == (code, (), "", -1)
    assert answer.error_message
