"""The handlers of ElectLeaders (versions 0 to 2), AlterPartitionReassignments (0 to 1) and
ListPartitionReassignments (0); in Kafka ``ReplicationControlManager``.

There is one broker, which leads every partition: no election is needed, and a partition can only be
reassigned to this broker, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from siltstone.broker.errors import Code, RequestRefusedError, code_of, message_of
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from siltstone.broker.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from siltstone.broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_ELECTION_TYPES = (0, 1)
"""PREFERRED and UNCLEAN (``ElectionType``)."""


async def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """The results: ELECTION_NOT_NEEDED for each partition that exists."""
    return await broker.in_pool(_elect_leaders, broker, request)


def _elect_leaders(broker: Broker, request: ElectLeadersRequest) -> ElectLeadersResponse:
    topics, kind = request.topic_partitions, request.election_type
    if topics is None and kind in _ELECTION_TYPES:
        # As in Kafka every topic is listed, with the partitions that an election changed: here there are
        # none.
        topics = tuple(TopicPartitions(topic=name) for name in broker.manager.topics.names())
    return ElectLeadersResponse(
        # An unknown type of election is an error of each partition, and also of the whole request, unless the
        # request names no topic.
        error_code=Code.INVALID_REQUEST if kind not in _ELECTION_TYPES and topics != () else Code.NONE,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    _election_result(broker, kind, topic.topic, number) for number in topic.partitions
                ),
            )
            for topic in topics or ()
        ),
    )


def _election_result(broker: Broker, kind: int, topic: str, number: int) -> PartitionResult:
    try:
        if kind not in _ELECTION_TYPES:
            raise RequestRefusedError(Code.INVALID_REQUEST, f"there is no election of type {kind}")
        broker.log_of(topic, number)  # raises if there is no such partition, or it is offline
        # As in Kafka, that there is nothing to do is an error.
        raise RequestRefusedError(Code.ELECTION_NOT_NEEDED, "the only replica leads")
    except Exception as error:
        return PartitionResult(
            partition_id=number, error_code=code_of(error), error_message=message_of(error)
        )


async def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Accept reassignments to this broker alone, which change nothing, and refuse others."""
    return await broker.in_pool(_alter_reassignments, broker, request)


def _alter_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not request.topics:
        # As in Kafka, this response does not repeat ``allow_replication_factor_change``.
        return AlterPartitionReassignmentsResponse(error_message=None)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _reassignment_result(broker, topic.name, partition.partition_index, partition.replicas)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _reassignment_result(
    broker: Broker, topic: str, number: int, replicas: Sequence[int] | None
) -> ReassignablePartitionResponse:
    try:
        broker.log_of(topic, number)  # raises if there is no such partition, or it is offline
        if replicas is None:  # the request is to cancel a reassignment
            raise RequestRefusedError(Code.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being moved")
        if tuple(replicas) != (broker.node_id,):
            reason = f"the only broker is {broker.node_id}"
            raise RequestRefusedError(Code.INVALID_REPLICA_ASSIGNMENT, reason)
        return ReassignablePartitionResponse(partition_index=number, error_message=None)
    except Exception as error:
        return ReassignablePartitionResponse(
            partition_index=number, error_code=code_of(error), error_message=message_of(error)
        )


def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """The empty list: no partition is being reassigned."""
    return ListPartitionReassignmentsResponse(error_message=None)
