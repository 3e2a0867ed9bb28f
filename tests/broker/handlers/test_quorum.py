"""What a single node says of its quorum, of features, and of moves: beside what the twin asks for."""

from __future__ import annotations

from pathlib import Path

from siltstone.broker.dispatch import Dispatcher
from siltstone.broker.handlers.quorum import alter_replica_log_dirs, describe_quorum
from siltstone.broker.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from siltstone.broker.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from tests.support.broker import ServedBroker, context_of, served
from tests.support.wire_client import read_response, request_frame

OK, STORAGE, NO_DIRECTORY = 0, 56, 57
QUORUM = DescribeQuorumRequest(
    topics=(TopicData(topic_name="__cluster_metadata", partitions=(PartitionData(partition_index=0),)),)
)


def test_the_broker_is_the_only_voter(broker: ServedBroker) -> None:
    answer = broker.call(describe_quorum, QUORUM, 2)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, [voter.replica_id for voter in partition.current_voters]) == (0, [0])
    (node,) = answer.nodes
    assert (node.node_id, node.listeners[0].host, node.listeners[0].port) == (0, "localhost", 9092)


def test_an_answer_without_a_place_for_a_time_is_throttled_all_the_same(broker: ServedBroker) -> None:
    broker.broker.quotas.replace({(("client-id", "test"),): {"request_percentage": 1e-9}})
    call = context_of(2)
    parts = Dispatcher(broker.broker).answer(bytearray(request_frame(QUORUM, 2)[4:]), call.connection)
    answer = read_response(QUORUM, 2, b"".join(map(bytes, parts))[4:])  # type: ignore[arg-type]
    assert answer.error_code == 0 and call.connection.activity.throttle_ms == 1_000


def test_a_partition_is_not_moved_to_another_directory(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with served(one, other) as broker:
        log = broker.log("t")
        holder = next(
            directory for directory in broker.manager.serving() if log.topic_partition in directory.logs
        )
        source = holder.path
        target = other if source == one else one

        def moved(path: Path) -> int:
            topic = AlterReplicaLogDirTopic(name="t", partitions=(0,))
            request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=str(path), topics=(topic,)),))
            answer = broker.call(alter_replica_log_dirs, request, 2)
            code: int = answer.results[0].partitions[0].error_code
            return code

        assert [moved(source), moved(target), moved(tmp_path)] == [OK, STORAGE, NO_DIRECTORY]
        assert log.topic_partition in holder.logs
