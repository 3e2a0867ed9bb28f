"""Requests and responses of DescribeTopicPartitions.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import ZERO_ID, Field, Message


class TopicRequest(Message, frozen=True):
    """The type of ``topics`` in DescribeTopicPartitionsRequest."""

    name: Annotated[str, Field("string", 0)] = ""


class Cursor(Message, frozen=True):
    """The type of ``cursor`` in DescribeTopicPartitionsRequest."""

    topic_name: Annotated[str, Field("string", 0)] = ""
    partition_index: Annotated[int, Field("int32", 0)] = 0


class DescribeTopicPartitionsRequest(Message, frozen=True):
    """The request in version 0."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    topics: Annotated[tuple[TopicRequest, ...], Field("struct", 0, is_array=True)] = ()
    response_partition_limit: Annotated[int, Field("int32", 0)] = 2000
    cursor: Annotated[Cursor | None, Field("struct", 0, nullable=0)] = None


class DescribeTopicPartitionsResponsePartition(Message, frozen=True):
    """The type of ``partitions`` in DescribeTopicPartitionsResponseTopic."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    partition_index: Annotated[int, Field("int32", 0)] = 0
    leader_id: Annotated[int, Field("int32", 0)] = 0
    leader_epoch: Annotated[int, Field("int32", 0)] = -1
    replica_nodes: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()
    isr_nodes: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()
    eligible_leader_replicas: Annotated[
        tuple[int, ...] | None, Field("int32", 0, nullable=0, is_array=True)
    ] = None
    last_known_elr: Annotated[tuple[int, ...] | None, Field("int32", 0, nullable=0, is_array=True)] = None
    offline_replicas: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class DescribeTopicPartitionsResponseTopic(Message, frozen=True):
    """The type of ``topics`` in DescribeTopicPartitionsResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    name: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    topic_id: Annotated[bytes, Field("uuid", 0)] = ZERO_ID
    is_internal: Annotated[bool, Field("bool", 0)] = False
    partitions: Annotated[
        tuple[DescribeTopicPartitionsResponsePartition, ...], Field("struct", 0, is_array=True)
    ] = ()
    topic_authorized_operations: Annotated[int, Field("int32", 0)] = -2147483648


class DescribeTopicPartitionsResponse(Message, frozen=True):
    """The response in version 0."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    topics: Annotated[
        tuple[DescribeTopicPartitionsResponseTopic, ...], Field("struct", 0, is_array=True)
    ] = ()
    next_cursor: Annotated[Cursor | None, Field("struct", 0, nullable=0)] = None
