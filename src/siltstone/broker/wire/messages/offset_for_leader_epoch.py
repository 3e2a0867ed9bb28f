"""Requests and responses of OffsetForLeaderEpoch.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class OffsetForLeaderPartition(Message, frozen=True):
    """The type of ``partitions`` in OffsetForLeaderTopic."""

    partition: Annotated[int, Field("int32", 0)] = 0
    current_leader_epoch: Annotated[int, Field("int32", 2)] = -1
    leader_epoch: Annotated[int, Field("int32", 0)] = 0


class OffsetForLeaderTopic(Message, frozen=True):
    """The type of ``topics`` in OffsetForLeaderEpochRequest."""

    topic: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[OffsetForLeaderPartition, ...], Field("struct", 0, is_array=True)] = ()


class OffsetForLeaderEpochRequest(Message, frozen=True):
    """The request in versions 2-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    replica_id: Annotated[int, Field("int32", 3)] = -2
    topics: Annotated[tuple[OffsetForLeaderTopic, ...], Field("struct", 0, is_array=True)] = ()


class EpochEndOffset(Message, frozen=True):
    """The type of ``partitions`` in OffsetForLeaderTopicResult."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    partition: Annotated[int, Field("int32", 0)] = 0
    leader_epoch: Annotated[int, Field("int32", 1)] = -1
    end_offset: Annotated[int, Field("int64", 0)] = -1


class OffsetForLeaderTopicResult(Message, frozen=True):
    """The type of ``topics`` in OffsetForLeaderEpochResponse."""

    topic: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[EpochEndOffset, ...], Field("struct", 0, is_array=True)] = ()


class OffsetForLeaderEpochResponse(Message, frozen=True):
    """The response in versions 2-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    throttle_time_ms: Annotated[int, Field("int32", 2)] = 0
    topics: Annotated[tuple[OffsetForLeaderTopicResult, ...], Field("struct", 0, is_array=True)] = ()
