"""Requests and responses of AlterPartitionReassignments.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class ReassignablePartition(Message, frozen=True):
    """The type of ``partitions`` in ReassignableTopic."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    replicas: Annotated[tuple[int, ...] | None, Field("int32", 0, nullable=0, is_array=True)] = None


class ReassignableTopic(Message, frozen=True):
    """The type of ``topics`` in AlterPartitionReassignmentsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[ReassignablePartition, ...], Field("struct", 0, is_array=True)] = ()


class AlterPartitionReassignmentsRequest(Message, frozen=True):
    """The request in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    timeout_ms: Annotated[int, Field("int32", 0)] = 60000
    allow_replication_factor_change: Annotated[bool, Field("bool", 1)] = True
    topics: Annotated[tuple[ReassignableTopic, ...], Field("struct", 0, is_array=True)] = ()


class ReassignablePartitionResponse(Message, frozen=True):
    """The type of ``partitions`` in ReassignableTopicResponse."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class ReassignableTopicResponse(Message, frozen=True):
    """The type of ``responses`` in AlterPartitionReassignmentsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[ReassignablePartitionResponse, ...], Field("struct", 0, is_array=True)] = ()


class AlterPartitionReassignmentsResponse(Message, frozen=True):
    """The response in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    allow_replication_factor_change: Annotated[bool, Field("bool", 1)] = True
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    responses: Annotated[tuple[ReassignableTopicResponse, ...], Field("struct", 0, is_array=True)] = ()
