"""ElectLeaders and the reassignment of partitions, where there is one broker."""

from __future__ import annotations

import pytest

from siltstone.broker.handlers.cluster import alter_partition_reassignments, elect_leaders
from siltstone.broker.wire import codec
from siltstone.broker.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from siltstone.broker.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.support.broker import ServedBroker


@pytest.mark.parametrize("version", range(3))
def test_no_election_is_needed(broker: ServedBroker, version: int) -> None:
    broker.manager.topics.create("t", 2)
    topic_partitions = (
        TopicPartitions(topic="t", partitions=(1, 2, -1)),
        TopicPartitions(topic="../t", partitions=(0,)),
    )
    answer = broker.call(elect_leaders, ElectLeadersRequest(topic_partitions=topic_partitions), version)
    codes = [[row.error_code for row in topic.partition_result] for topic in answer.replica_election_results]
    assert (answer.error_code, codes) == (0, [[84, 3, 3], [3]])
    assert codec.write(answer, version)


def test_an_election_of_all_partitions_lists_topics_without_results(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 2)
    answer = broker.call(elect_leaders, ElectLeadersRequest(topic_partitions=None), 2)
    assert [
        (replica_election_result.topic, replica_election_result.partition_result)
        for replica_election_result in answer.replica_election_results
    ] == [("t", ())]
    assert broker.call(elect_leaders, ElectLeadersRequest(), 2).replica_election_results == ()


@pytest.mark.parametrize("kind", [-128, -1, 2, 127])
def test_an_unknown_kind_of_election_is_refused(broker: ServedBroker, kind: int) -> None:
    broker.manager.topics.create("t")
    topic_partitions = (TopicPartitions(topic="t", partitions=(0,)),)
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topic_partitions)
    answer = broker.call(elect_leaders, request, 2)
    assert answer.error_code == answer.replica_election_results[0].partition_result[0].error_code == 42


@pytest.mark.parametrize(
    ("number", "replicas", "code"),
    [
        (0, "here", 0),
        (0, None, 85),
        (0, (), 39),
        (0, (-1,), 39),
        (0, (1 << 30,), 39),
        (0, "here twice", 39),
        (1, "here", 3),
        (-1, None, 3),
    ],
)
def test_a_partition_may_be_assigned_to_this_broker_only(
    broker: ServedBroker, number: int, replicas: str | tuple[int, ...] | None, code: int
) -> None:
    broker.manager.topics.create("t")
    if isinstance(replicas, str):
        replicas = (broker.broker.node_id,) * (2 if "twice" in replicas else 1)
    partition = ReassignablePartition(partition_index=number, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name="t", partitions=(partition,)),), allow_replication_factor_change=False
    )
    for version in range(2):
        answer = broker.call(alter_partition_reassignments, request, version)
        (row,) = answer.responses[0].partitions
        assert (answer.error_code, row.partition_index, row.error_code) == (0, number, code)
        assert (row.error_message is None) == (code == 0)
        assert codec.write(answer, version)
