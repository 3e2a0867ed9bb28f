"""Requests and responses of ListOffsets.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class ListOffsetsPartition(Message, frozen=True):
    """The type of ``partitions`` in ListOffsetsTopic."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    current_leader_epoch: Annotated[int, Field("int32", 4)] = -1
    timestamp: Annotated[int, Field("int64", 0)] = 0


class ListOffsetsTopic(Message, frozen=True):
    """The type of ``topics`` in ListOffsetsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[ListOffsetsPartition, ...], Field("struct", 0, is_array=True)] = ()


class ListOffsetsRequest(Message, frozen=True):
    """The request in versions 1-11."""

    FIRST_FLEXIBLE: ClassVar[int] = 6

    replica_id: Annotated[int, Field("int32", 0)] = 0
    isolation_level: Annotated[int, Field("int8", 2)] = 0
    topics: Annotated[tuple[ListOffsetsTopic, ...], Field("struct", 0, is_array=True)] = ()
    timeout_ms: Annotated[int, Field("int32", 10)] = 0


class ListOffsetsPartitionResponse(Message, frozen=True):
    """The type of ``partitions`` in ListOffsetsTopicResponse."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    timestamp: Annotated[int, Field("int64", 1)] = -1
    offset: Annotated[int, Field("int64", 1)] = -1
    leader_epoch: Annotated[int, Field("int32", 4)] = -1


class ListOffsetsTopicResponse(Message, frozen=True):
    """The type of ``topics`` in ListOffsetsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[ListOffsetsPartitionResponse, ...], Field("struct", 0, is_array=True)] = ()


class ListOffsetsResponse(Message, frozen=True):
    """The response in versions 1-11."""

    FIRST_FLEXIBLE: ClassVar[int] = 6

    throttle_time_ms: Annotated[int, Field("int32", 2)] = 0
    topics: Annotated[tuple[ListOffsetsTopicResponse, ...], Field("struct", 0, is_array=True)] = ()
