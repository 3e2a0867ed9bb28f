"""CreateTopics, DeleteTopics, CreatePartitions: outcomes as a Kafka 4.3 has them, unless a test says
otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.broker.handlers.topics import create_partitions, create_topics, delete_topics
from siltstone.broker.wire.fields import ZERO_ID
from siltstone.broker.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from siltstone.broker.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from siltstone.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from siltstone.commands import administration
from siltstone.commands.changes import Actor
from siltstone.commands.served import Served
from siltstone.log.names import TopicPartition
from tests.support.broker import ServedBroker, served

NODE = 0
INVALID_TOPIC, EXISTS, BAD_COUNT, BAD_FACTOR, BAD_ASSIGNMENT, BAD_CONFIG, BAD_REQUEST, TOO_MANY = (
    17, 36, 37, 38, 39, 40, 42, 44,
)  # fmt: skip


def new(
    name: str,
    count: int = 1,
    factor: int = 1,
    assigned: dict[int, tuple[int, ...]] | None = None,
    **settings: str | None,
) -> CreatableTopic:
    """A topic of a request; underscores of settings' names are dots."""
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in (assigned or {}).items()
        ),
        configs=tuple(
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()
        ),
    )


def created(broker: ServedBroker, *topics: CreatableTopic, validate_only: bool = False) -> tuple[Any, ...]:
    """The results of CreateTopics 7."""
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return tuple(broker.call(create_topics, request, 7).topics)


def codes(results: tuple[Any, ...]) -> dict[str, int]:
    """Each topic's code."""
    return {result.name: result.error_code for result in results}


def test_a_bad_setting_comes_before_a_bad_count_factor_or_assignment(broker: ServedBroker) -> None:
    """Measured: a Kafka looks at settings first, and at the name before them."""
    wrong = {"retention_ms": "x"}
    assert codes(created(
        broker,
        new("assigned", -1, 1, {3: (7,)}, **wrong), new("count", 0, **wrong), new("factor", 1, 2, **wrong),
        new("no/name", 1, 2, **wrong), new("factor-alone", 1, 2), new("null", 1, 2, retention_ms=None),
    )) == {
        "assigned": BAD_CONFIG, "count": BAD_CONFIG, "factor": BAD_CONFIG,
        "no/name": INVALID_TOPIC, "factor-alone": BAD_FACTOR, "null": BAD_CONFIG,
    }  # fmt: skip


def test_a_new_topic_is_answered_with_its_id_and_its_settings(broker: ServedBroker) -> None:
    (result,) = created(broker, new("orders", 3, retention_ms="123", cleanup_policy="compact"))
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.topic_id == broker.broker.id_of_topic("orders") != ZERO_ID
    own = {entry.name: entry.value for entry in result.configs if entry.config_source == 1}
    assert own == {"retention.ms": "123", "cleanup.policy": "compact"}
    kafkas = [
        entry.name for entry in result.configs if entry.name.startswith("c") and entry.config_source == 5
    ]
    assert kafkas == [
        "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
        "compactionThreshold",  # Siltstone's own come after Kafka's
    ]  # fmt: skip
    change = broker.broker.served.opened_changes().newest()[0]
    assert (change.action, change.target, change.actor.user, change.actor.way) == (
        "create", "orders", "test", "kafka",
    )  # fmt: skip
    assert change.actor.address == "127.0.0.1:5000"


def test_a_long_client_id_does_not_fill_the_audit_log(broker: ServedBroker) -> None:
    request = CreateTopicsRequest(topics=(new("orders"),))
    broker.call(create_topics, request, 7, client_id="x" * 30_000)
    assert broker.broker.served.opened_changes().newest()[0].actor.user == "x" * 256


def test_a_topic_without_numbers_has_the_brokers(broker: ServedBroker) -> None:
    (result,) = created(broker, new("orders", -1, -1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 1, 1)


def test_what_is_only_checked_is_not_created(broker: ServedBroker) -> None:
    good, bad = created(broker, new("orders", 3), new("bad", 0), validate_only=True)
    assert (good.error_code, good.num_partitions) == (0, 3)
    assert (len(good.configs) >= 33, bad.error_code) == (True, BAD_COUNT)
    assert broker.manager.topics.names() == []


REFUSED: dict[str, tuple[CreatableTopic, int]] = {
    "a slash": (new("bad/name"), INVALID_TOPIC),
    "the empty name": (new(""), INVALID_TOPIC),
    "a dot": (new("."), INVALID_TOPIC),
    "a NUL": (new("a\0b"), INVALID_TOPIC),
    "no ASCII": (new("ü"), INVALID_TOPIC),
    "a long name": (new("x" * 250), INVALID_TOPIC),
    "another one's metrics": (new("a_b"), INVALID_TOPIC),
    "the metadata log": (new("__cluster_metadata"), BAD_REQUEST),
    "a name that is taken": (new("a.b"), EXISTS),
    "no partitions": (new("t", 0), BAD_COUNT),
    "fewer than none": (new("t", -2), BAD_COUNT),
    "a million partitions": (new("t", 10**6), TOO_MANY),
    "two replicas": (new("t", 1, 2), BAD_FACTOR),
    "no replicas": (new("t", 1, 0), BAD_FACTOR),
    "assigned and counted": (new("t", 1, -1, {0: (NODE,)}), BAD_REQUEST),
    "assigned and replicated": (new("t", -1, 1, {0: (NODE,)}), BAD_REQUEST),
    "assigned to another broker": (new("t", -1, -1, {0: (7,)}), BAD_ASSIGNMENT),
    "assigned to nobody": (new("t", -1, -1, {0: ()}), BAD_ASSIGNMENT),
    "assigned to one broker twice": (new("t", -1, -1, {0: (NODE, NODE)}), BAD_ASSIGNMENT),
    "a gap": (new("t", -1, -1, {0: (NODE,), 2: (NODE,)}), BAD_ASSIGNMENT),
    "a negative partition": (new("t", -1, -1, {-1: (NODE,)}), BAD_ASSIGNMENT),
    "an unknown setting": (new("t", nope="1"), BAD_CONFIG),
    "a broker's setting": (new("t", log_retention_ms="1"), BAD_CONFIG),
    "no number": (new("t", retention_ms="abc"), BAD_CONFIG),
    "a number out of range": (new("t", retention_ms="-5"), BAD_CONFIG),
    "a huge value": (new("t", retention_ms="9" * 1_000_000), BAD_CONFIG),
    "a null value": (new("t", retention_ms=None), BAD_CONFIG),
    "a contradiction": (new("t", min_compaction_lag_ms="10", max_compaction_lag_ms="5"), BAD_CONFIG),
    "tiered storage": (new("t", remote_storage_enable="true"), BAD_CONFIG),
}


@pytest.mark.parametrize("case", REFUSED, ids=list(REFUSED))
def test_what_cannot_be_is_refused(broker: ServedBroker, case: str) -> None:
    broker.log("a.b")
    topic, code = REFUSED[case]
    (result,) = created(broker, topic)
    assert (result.name, result.error_code) == (topic.name, code)
    assert result.error_message
    assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, ())
    assert broker.manager.topics.names() == ["a.b"]


def test_topics_of_one_request_have_each_their_outcome(broker: ServedBroker) -> None:
    results = created(broker, new("twice"), new("twice"), new("good"), new("bad", 0))
    assert codes(results) == {"good": 0, "bad": BAD_COUNT, "twice": BAD_REQUEST}
    assert broker.manager.topics.names() == ["good"]


def test_partitions_of_all_topics_of_a_request_count(broker: ServedBroker) -> None:
    results = created(broker, new("a", 5001), new("b", 5001), validate_only=True)
    assert codes(results) == {"a": TOO_MANY, "b": TOO_MANY}
    assert codes(created(broker, new("a", 9_999), validate_only=True)) == {"a": 0}


def test_of_a_setting_that_comes_twice_the_last_value_counts(broker: ServedBroker) -> None:
    configs = tuple(CreatableTopicConfig(name="retention.ms", value=value) for value in ("1", "2"))
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    assert codes(created(broker, topic)) == {"t": 0}
    assert broker.manager.topics.describe("t").config == {"retention.ms": "2"}


def test_an_assignment_says_how_many_partitions(broker: ServedBroker) -> None:
    (result,) = created(broker, new("t", -1, -1, {1: (NODE,), 0: (NODE,)}))
    assert (result.error_code, result.num_partitions) == (0, 2)


# DeleteTopics


def deleted(broker: ServedBroker, *states: DeleteTopicState) -> list[tuple[str | None, bytes, int]]:
    """(name, id, code) of each result of DeleteTopics 6, refused ones first."""
    request = DeleteTopicsRequest(topics=states)
    results = broker.call(delete_topics, request, 6).responses
    return [(result.name, result.topic_id, result.error_code) for result in results]


@pytest.mark.parametrize("version", [1, 4, 5])
def test_topics_are_deleted_by_name(broker: ServedBroker, version: int) -> None:
    broker.log("gone")
    request = DeleteTopicsRequest(topic_names=("gone", "bad/name", "", "nope", "twice", "twice"))
    results = broker.call(delete_topics, request, version).responses
    assert codes(results) == {"gone": 0, "bad/name": 3, "": 3, "nope": 3, "twice": BAD_REQUEST}
    assert broker.manager.topics.names() == []
    assert TopicPartition("gone", 0) not in broker.manager


def test_topics_are_deleted_by_name_or_id_but_not_by_both(broker: ServedBroker) -> None:
    for name in ("a", "b", "c"):
        broker.log(name)
    a, b, c = (broker.broker.id_of_topic(name) for name in ("a", "b", "c"))
    unknown = b"\1" * 16
    assert deleted(
        broker,
        DeleteTopicState(name="a"),
        DeleteTopicState(topic_id=b),
        DeleteTopicState(name="c", topic_id=c),
        DeleteTopicState(topic_id=unknown),
        DeleteTopicState(),
    ) == [
        ("c", c, BAD_REQUEST),
        (None, unknown, 100),
        (None, ZERO_ID, BAD_REQUEST),
        ("a", a, 0),
        ("b", b, 0),
    ]
    assert broker.manager.topics.names() == ["c"]


def test_one_topic_by_name_and_by_id_is_not_deleted(broker: ServedBroker) -> None:
    broker.log("a")
    topic_id = broker.broker.id_of_topic("a")
    by_id, by_name = DeleteTopicState(topic_id=topic_id), DeleteTopicState(name="a")
    assert deleted(broker, by_name, by_id) == [("a", topic_id, BAD_REQUEST)]
    assert deleted(broker, by_id, by_id) == [(None, topic_id, BAD_REQUEST)]
    assert broker.manager.topics.names() == ["a"]


@pytest.mark.parametrize("is_created_again", [True, False])
def test_a_topic_that_is_deleted_by_its_id_is_not_another_of_its_name(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, is_created_again: bool
) -> None:
    broker.log("first")
    broker.log("other", records=1)
    first, other = (broker.broker.id_of_topic(name) for name in ("first", "other"))
    delete = administration.delete_topic

    def delete_beside_another_client(served: Served, actor: Actor, name: str, **options: Any) -> Any:
        if name == "first":
            broker.manager.topics.delete("other")
            if is_created_again:
                broker.log("other", records=3)
        return delete(served, actor, name, **options)

    monkeypatch.setattr(administration, "delete_topic", delete_beside_another_client)
    states = [DeleteTopicState(topic_id=topic_id) for topic_id in (first, other)]
    assert deleted(broker, *states) == [("first", first, 0), (None, other, 100)]
    assert broker.manager.topics.names() == ["other"] * is_created_again
    if is_created_again:
        assert broker.manager["other", 0].log_end_offset == 3


# CreatePartitions


def raised(
    broker: ServedBroker, *topics: tuple[str, int], assigned: list[tuple[int, ...]] | None = None
) -> dict[str, int]:
    """The codes of CreatePartitions 3."""
    assignments = None
    if assigned is not None:
        assignments = tuple(CreatePartitionsAssignment(broker_ids=brokers) for brokers in assigned)
    request = CreatePartitionsRequest(
        topics=tuple(
            CreatePartitionsTopic(name=name, count=count, assignments=assignments) for name, count in topics
        )
    )
    return codes(broker.call(create_partitions, request, 3).results)


def test_partitions_are_added(broker: ServedBroker) -> None:
    broker.log("t")
    assert raised(broker, ("t", 3), ("nope", 2), ("twice", 2), ("twice", 3)) == {
        "t": 0, "nope": 3, "twice": BAD_REQUEST,
    }  # fmt: skip
    assert broker.manager.partitions_of("t") == (0, 1, 2)
    assert raised(broker, ("t", 5), assigned=[(NODE,), (NODE,)]) == {"t": 0}


@pytest.mark.parametrize("count", [3, 2, 0, -1])
def test_no_fewer_partitions(broker: ServedBroker, count: int) -> None:
    broker.manager.topics.create("t", 3)
    assert raised(broker, ("t", count)) == {"t": BAD_COUNT}


@pytest.mark.parametrize(
    "assigned", [[], [(NODE,)], [(NODE,)] * 3, [(7,), (NODE,)], [(), ()], [(NODE, NODE)] * 2]
)
def test_bad_assignments_of_new_partitions(broker: ServedBroker, assigned: list[tuple[int, ...]]) -> None:
    broker.log("t")
    assert raised(broker, ("t", 3), assigned=assigned) == {"t": BAD_ASSIGNMENT}
    assert broker.manager.partitions_of("t") == (0,)


def test_a_million_new_partitions_are_refused(broker: ServedBroker) -> None:
    """A Kafka 4.3 answers UNKNOWN_SERVER_ERROR."""
    broker.log("t")
    assert raised(broker, ("t", 10**6)) == {"t": TOO_MANY}
    assert broker.manager.partitions_of("t") == (0,)


def test_what_is_only_checked_adds_no_partition(broker: ServedBroker) -> None:
    broker.log("t")
    request = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name="t", count=2, assignments=None),), validate_only=True
    )
    assert codes(broker.call(create_partitions, request, 3).results) == {"t": 0}
    assert broker.manager.partitions_of("t") == (0,)


def test_a_change_that_cannot_be_recorded_is_not_made(broker: ServedBroker) -> None:
    changes = broker.broker.served.opened_changes()
    changes.path.mkdir()  # the audit log cannot be written
    assert codes(created(broker, new("t"))) == {"t": 56}
    assert broker.manager.topics.names() == []


def test_the_brokers_number_of_partitions_counts(tmp_path: Any) -> None:
    with served(tmp_path, config={"num.partitions": "4"}) as broker:
        (result,) = created(broker, new("orders", -1, -1))
        assert (result.error_code, result.num_partitions) == (0, 4)
