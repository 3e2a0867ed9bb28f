"""The handlers of DescribeQuorum (versions 0 to 2), UpdateFeatures (0 to 2) and AlterReplicaLogDirs (1 to 2):
the responses of a single node that has no controller quorum and no features, and moves no partitions.

The broker reports itself as the only voter, so tools see a leader. Its metadata is not a log that others
could fetch, so it reports no offsets. The cluster has no features, so none can be set. A partition stays in
its log directory: a request to move it there succeeds, to another directory is refused. Corresponds to
Kafka's ``KafkaRaftClient``, ``FeatureControlManager`` and ``ReplicaManager.alterReplicaLogDirs``.
"""

from __future__ import annotations

from siltstone.base.errors import InvalidTopicError
from siltstone.broker.errors import Code, RequestRefusedError, code_of
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from siltstone.broker.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from siltstone.broker.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from siltstone.log.names import CLUSTER_METADATA

_MOVED_SUFFIX_CHARS, _DIRECTORY_NAME_MAX = len("-future") + 32, 255
"""The length of the UUID and ``-future`` that Kafka appends, behind a dot, to the name of a partition's
directory while it moves the partition; the longest name that a directory may have."""


def describe_quorum(
    broker: Broker, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """The one voter, for a request that names only the partition of ``__cluster_metadata``; in any other
    request all partitions are unknown."""
    requested = [
        (topic.topic_name, tuple(partition.partition_index for partition in topic.partitions))
        for topic in request.topics
    ]
    if requested == [(CLUSTER_METADATA, (0,))]:
        host, port = broker.host_and_port(context)
        listener = Listener(name=context.connection.listener.name, host=host, port=port)
        return DescribeQuorumResponse(
            topics=(ResponseTopicData(topic_name=CLUSTER_METADATA, partitions=(_quorum(broker),)),),
            nodes=(Node(node_id=broker.node_id, listeners=(listener,)),),
        )
    return DescribeQuorumResponse(
        topics=tuple(
            ResponseTopicData(topic_name=name, partitions=tuple(_unknown(number) for number in numbers))
            for name, numbers in requested
        )
    )


def _quorum(broker: Broker) -> ResponsePartitionData:
    now_ms = broker.clock.now_ms()
    voter = ReplicaState(
        replica_id=broker.node_id, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    return ResponsePartitionData(leader_id=broker.node_id, current_voters=(voter,))


def _unknown(number: int) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=number,
        error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        error_message="only __cluster_metadata-0 has a quorum; ask for it alone",
    )


def update_features(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Refuse every change, with the name of the first feature."""
    for update in request.feature_updates:
        reason = f"nothing was updated: there is no feature {update.feature!r:.100} here"
        return UpdateFeaturesResponse(error_code=Code.INVALID_UPDATE_VERSION, error_message=reason)
    return UpdateFeaturesResponse(error_message=None)


async def alter_replica_log_dirs(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Leave partitions where they are, and refuse other directories."""
    return await broker.in_pool(_alter_log_dirs, broker, request)


def _alter_log_dirs(broker: Broker, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    # As in Kafka, of several directories for one partition the last one counts.
    wanted = {
        (topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    results = dict[str, list[AlterReplicaLogDirPartitionResult]]()
    for (topic, number), path in wanted.items():
        result = AlterReplicaLogDirPartitionResult(
            partition_index=number, error_code=_code_of_move(broker, topic, number, path)
        )
        results.setdefault(topic, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=topic, partitions=tuple(partitions))
            for topic, partitions in results.items()
        )
    )


def _code_of_move(broker: Broker, topic: str, number: int, path: str) -> int:
    """The error code for a partition that is to be moved to the log directory ``path``; 0 if the partition is
    in that directory. Of several errors the first in Kafka's order."""
    try:
        if len(f"{topic}-{number}.") + _MOVED_SUFFIX_CHARS > _DIRECTORY_NAME_MAX:
            raise InvalidTopicError("the topic's name is too long for the directory of a moved partition")
        serving = {str(served.path.absolute()): served for served in broker.manager.serving()}
        if path in map(str, (offline.absolute() for offline in broker.manager.offline)):
            raise RequestRefusedError(Code.KAFKA_STORAGE_ERROR, "the directory is offline")
        if path not in serving:
            raise RequestRefusedError(Code.LOG_DIR_NOT_FOUND, "this is no log directory of the broker")
        log = broker.log_of(topic, number)
        if log.topic_partition not in serving[path].logs:
            raise RequestRefusedError(Code.KAFKA_STORAGE_ERROR, "partitions are not moved here")
    except Exception as error:
        return code_of(error)
    return Code.NONE
