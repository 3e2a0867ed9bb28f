"""The handlers of Metadata (versions 0 to 13), DescribeTopicPartitions (0) and DescribeCluster (0 to 2): the
broker, topics and partition leaders (Kafka's ``KRaftMetadataCache``,
``DescribeTopicPartitionsRequestHandler``).

There is one broker, which leads every partition and is its only replica. A partition whose log directory is
offline has no leader (LEADER_NOT_AVAILABLE).

With ``auto.create.topics.enable``, Metadata creates topics. As in Kafka, the response to the request that
creates a topic has UNKNOWN_TOPIC_OR_PARTITION, and the client's next request finds the topic.

Metadata and DescribeTopicPartitions run in the pool: they may have to wait for the lock that a change of
topics holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from siltstone.base.errors import LogError, SiltstoneError, UnknownTopicError
from siltstone.broker.errors import Code
from siltstone.broker.handlers.topics import actor_of
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.fields import ZERO_ID
from siltstone.broker.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from siltstone.broker.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from siltstone.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from siltstone.commands import administration
from siltstone.log.names import INTERNAL_TOPICS, TopicPartition
from siltstone.runtime.topic_names import refuse_bad_name

CLUSTER_OPERATIONS, TOPIC_OPERATIONS = 8096, 3576
"""The authorized operations of every client, since there is no authorizer: bits of ``AclOperation``, as Kafka
4.3 sends them."""
OPERATIONS_OMITTED = -(1 << 31)
"""The authorized operations in a response to a client that has not requested them."""
PARTITIONS_MAX = 2000
"""The most partitions in a response of DescribeTopicPartitions (``max.request.partition.size.limit``)."""
CREATED_MAX = 100
"""The most topics that one Metadata request creates, since each takes some file operations. The client
repeats its request, and so creates the next ones."""
AUTO_CREATE = "auto.create.topics.enable"
_FIRST_VERSION_WITH_IDS = 12
_BROKER_ENDPOINT, _CONTROLLER_ENDPOINT = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """A partition in a response. ``error``: LEADER_NOT_AVAILABLE if its log is not open, else 0; ``leader``:
    this broker's node id, -1 after that error; ``epoch``: the leader epoch, -1 after that error;
    ``replicas``, ``offline``: node ids."""

    number: int
    error: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    offline: tuple[int, ...]


def _partition(broker: Broker, topic: str, number: int) -> _Partition:
    node = broker.node_id
    try:
        epoch, error = broker.manager.get(TopicPartition(topic, number)).leader_epoch, 0
    except LogError:  # its directory is offline, recovery refused it, or it is being created
        epoch, error = -1, int(Code.LEADER_NOT_AVAILABLE)
    return _Partition(
        number=number,
        error=error,
        leader=-1 if error else node,
        epoch=epoch,
        replicas=(node,),
        offline=(node,) if error else (),
    )


def _partitions(broker: Broker, topic: str, start: int = 0) -> Iterator[_Partition]:
    """The partitions of a topic from the number ``start`` on. Raises UnknownTopicError."""
    for number in broker.manager.partitions_of(topic):
        if number >= start:
            yield _partition(broker, topic, number)


# Metadata


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Describe the broker and topics. Creates topics that do not exist, if that is enabled."""
    return await broker.in_pool(_metadata, broker, request, context)


def _metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    refusal = _refusal(request, context.version)
    if refusal is not None:
        return refusal
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    if wants_all:
        topics = [_topic(broker, name) for name in broker.manager.topics.names()]
    elif any(topic.topic_id != ZERO_ID for topic in request.topics or ()):
        topics = _by_id(broker, request.topics or ())
    else:
        topics = _by_name(broker, request, context)
    if request.include_topic_authorized_operations:
        topics = [_with_operations(topic) for topic in topics]
    host, port = broker.host_and_port(context)
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_OMITTED
    return MetadataResponse(
        brokers=(MetadataResponseBroker(node_id=broker.node_id, host=host, port=port),),
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=tuple(topics),
        cluster_authorized_operations=operations,
    )


def _refusal(request: MetadataRequest, version: int) -> MetadataResponse | None:
    """The error response to a request that names a topic by id in a version without ids, or that has a topic
    with neither a name nor an id; None for other requests. (A request names its topics either all by name or
    all by id: if one has an id, those without one are ignored.)"""
    topics = request.topics or ()
    has_id = any(topic.topic_id != ZERO_ID for topic in topics)
    has_unnamed = any(topic.topic_id == ZERO_ID and topic.name is None for topic in topics)
    if version < _FIRST_VERSION_WITH_IDS and (has_id or has_unnamed):
        code = Code.INVALID_REQUEST
    elif has_unnamed and not has_id:
        code = Code.UNKNOWN_SERVER_ERROR  # as in Kafka
    else:
        return None
    return MetadataResponse(
        topics=tuple(
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in topics
        ),
        error_code=Code.NONE if version < _FIRST_VERSION_WITH_IDS else code,
    )


def _topic(broker: Broker, name: str) -> MetadataResponseTopic:
    """Describe a topic. Its error code is UNKNOWN_TOPIC_OR_PARTITION if it does not exist,
    INVALID_TOPIC_EXCEPTION if its name is invalid."""
    code, topic_id = Code.NONE, broker.id_of_topic(name)
    partitions: Sequence[_Partition] = ()
    try:
        partitions = tuple(_partitions(broker, name))
    except UnknownTopicError:
        code, topic_id = _code_of_missing(name), ZERO_ID
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(
            MetadataResponsePartition(
                error_code=partition.error,
                partition_index=partition.number,
                leader_id=partition.leader,
                leader_epoch=partition.epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.replicas,
                offline_replicas=partition.offline,
            )
            for partition in partitions
        ),
    )


def _code_of_missing(name: str) -> Code:
    try:
        refuse_bad_name(name)
    except LogError:
        return Code.INVALID_TOPIC_EXCEPTION
    return Code.UNKNOWN_TOPIC_OR_PARTITION


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    if topic.name is None:  # as in Kafka, if no topic has the id
        return topic
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _by_id(broker: Broker, topics: Iterable[MetadataRequestTopic]) -> list[MetadataResponseTopic]:
    """Describe the topics that a request names by id. As in Kafka, names in such a request are ignored."""
    responses = []
    for topic_id in dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id != ZERO_ID):
        name = broker.topic_of_id(topic_id)
        if name is None:
            responses.append(
                MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            )
        else:
            responses.append(_topic(broker, name))
    return responses


def _by_name(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> list[MetadataResponseTopic]:
    """Describe the topics that a request names, those without an error first, as in Kafka. Creates the topics
    that do not exist, if that is enabled."""
    topics = [
        _topic(broker, name) for name in dict.fromkeys(topic.name or "" for topic in request.topics or ())
    ]
    if request.allow_auto_topic_creation and broker.config.flag(AUTO_CREATE):
        missing = [topic.name for topic in topics if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION]
        # Strict in every version: a topic over the quota stays unknown, and the client asks again.
        quota = broker.quotas.mutations(context, strict_from=0)
        for name in missing[:CREATED_MAX]:
            if quota.take(broker.config.integer("num.partitions")):
                _create(broker, name or "", context)
    return sorted(topics, key=lambda topic: topic.error_code != 0)


def _create(broker: Broker, name: str, context: RequestContext) -> None:
    """Try to create a topic. An error is not reported: the client repeats its request, and the topic is still
    unknown then. Internal topics are not created: in Kafka, only their coordinators do that."""
    if name not in INTERNAL_TOPICS:
        with contextlib.suppress(SiltstoneError, OSError):
            # With the default number of partitions, and no settings of its own.
            administration.create_topic(broker.served, actor_of(context), name, None, {})


# DescribeTopicPartitions


async def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Describe the partitions of topics, sorted by name, a page at a time (KIP-966)."""
    return await broker.in_pool(_describe_topic_partitions, broker, request)


def _describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    requested = [topic.name for topic in request.topics]
    names, cursor = sorted(set(requested) or broker.manager.topics.names()), request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (requested and cursor.topic_name not in names):
            return DescribeTopicPartitionsResponse(
                topics=tuple(
                    DescribeTopicPartitionsResponseTopic(error_code=Code.INVALID_REQUEST, name=name)
                    for name in requested
                )
            )
        names = [name for name in names if name >= cursor.topic_name]
    remaining = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
    topics = list[DescribeTopicPartitionsResponseTopic]()
    for name in names:
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if remaining == 0:
            return DescribeTopicPartitionsResponse(
                topics=tuple(topics), next_cursor=Cursor(topic_name=name, partition_index=start)
            )
        topic, next_partition = _describe_page(broker, name, start, remaining)
        topics.append(topic)
        remaining -= len(topic.partitions)
        if next_partition is not None:
            return DescribeTopicPartitionsResponse(
                topics=tuple(topics), next_cursor=Cursor(topic_name=name, partition_index=next_partition)
            )
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _describe_page(
    broker: Broker, name: str, start: int, limit: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    """Describe a page of a topic's partitions: (the topic with at most ``limit`` partitions from ``start``
    on, the partition at which the next page starts or None)."""
    try:
        numbers = [number for number in broker.manager.partitions_of(name) if number >= start]
    except UnknownTopicError:
        return DescribeTopicPartitionsResponseTopic(
            error_code=_code_of_missing(name),
            name=name,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=TOPIC_OPERATIONS,
        ), None
    partitions = [_partition(broker, name, number) for number in numbers[:limit]]
    topic = DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=broker.id_of_topic(name),
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(
            DescribeTopicPartitionsResponsePartition(
                error_code=partition.error,
                partition_index=partition.number,
                leader_id=partition.leader,
                leader_epoch=partition.epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.replicas,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=partition.offline,
            )
            for partition in partitions
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    return topic, numbers[limit] if len(numbers) > limit else None


# DescribeCluster


def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Describe the cluster, which has this broker only. Kafka describes controllers at a controller's
    listener, which this broker does not have."""
    if request.endpoint_type != _BROKER_ENDPOINT:
        is_controller = request.endpoint_type == _CONTROLLER_ENDPOINT
        return DescribeClusterResponse(
            error_code=Code.MISMATCHED_ENDPOINT_TYPE if is_controller else Code.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of "
            "type CONTROLLER"
            if is_controller
            else f"Unsupported endpoint type {request.endpoint_type}",
        )
    host, port = broker.host_and_port(context)
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_OMITTED
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=(DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port),),
        cluster_authorized_operations=operations,
    )
