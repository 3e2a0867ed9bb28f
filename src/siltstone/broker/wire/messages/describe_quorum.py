"""Requests and responses of DescribeQuorum.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import ZERO_ID, Field, Message


class PartitionData(Message, frozen=True):
    """The type of ``partitions`` in TopicData."""

    partition_index: Annotated[int, Field("int32", 0)] = 0


class TopicData(Message, frozen=True):
    """The type of ``topics`` in DescribeQuorumRequest."""

    topic_name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[PartitionData, ...], Field("struct", 0, is_array=True)] = ()


class DescribeQuorumRequest(Message, frozen=True):
    """The request in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    topics: Annotated[tuple[TopicData, ...], Field("struct", 0, is_array=True)] = ()


class ReplicaState(Message, frozen=True):
    """The type of ``currentVoters`` and ``observers`` in ResponsePartitionData."""

    replica_id: Annotated[int, Field("int32", 0)] = 0
    replica_directory_id: Annotated[bytes, Field("uuid", 2)] = ZERO_ID
    log_end_offset: Annotated[int, Field("int64", 0)] = 0
    last_fetch_timestamp: Annotated[int, Field("int64", 1)] = -1
    last_caught_up_timestamp: Annotated[int, Field("int64", 1)] = -1


class ResponsePartitionData(Message, frozen=True):
    """The type of ``partitions`` in ResponseTopicData."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 2, nullable=2)] = ""
    leader_id: Annotated[int, Field("int32", 0)] = 0
    leader_epoch: Annotated[int, Field("int32", 0)] = 0
    high_watermark: Annotated[int, Field("int64", 0)] = 0
    current_voters: Annotated[tuple[ReplicaState, ...], Field("struct", 0, is_array=True)] = ()
    observers: Annotated[tuple[ReplicaState, ...], Field("struct", 0, is_array=True)] = ()


class ResponseTopicData(Message, frozen=True):
    """The type of ``topics`` in DescribeQuorumResponse."""

    topic_name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[ResponsePartitionData, ...], Field("struct", 0, is_array=True)] = ()


class Listener(Message, frozen=True):
    """The type of ``listeners`` in Node."""

    name: Annotated[str, Field("string", 2)] = ""
    host: Annotated[str, Field("string", 2)] = ""
    port: Annotated[int, Field("uint16", 2)] = 0


class Node(Message, frozen=True):
    """The type of ``nodes`` in DescribeQuorumResponse."""

    node_id: Annotated[int, Field("int32", 2)] = 0
    listeners: Annotated[tuple[Listener, ...], Field("struct", 2, is_array=True)] = ()


class DescribeQuorumResponse(Message, frozen=True):
    """The response in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 2, nullable=2)] = ""
    topics: Annotated[tuple[ResponseTopicData, ...], Field("struct", 0, is_array=True)] = ()
    nodes: Annotated[tuple[Node, ...], Field("struct", 2, is_array=True)] = ()
