"""Requests and responses of ListPartitionReassignments.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class ListPartitionReassignmentsTopics(Message, frozen=True):
    """The type of ``topics`` in ListPartitionReassignmentsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    partition_indexes: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class ListPartitionReassignmentsRequest(Message, frozen=True):
    """The request in version 0."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    timeout_ms: Annotated[int, Field("int32", 0)] = 60000
    topics: Annotated[
        tuple[ListPartitionReassignmentsTopics, ...] | None, Field("struct", 0, nullable=0, is_array=True)
    ] = None


class OngoingPartitionReassignment(Message, frozen=True):
    """The type of ``partitions`` in OngoingTopicReassignment."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    replicas: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()
    adding_replicas: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()
    removing_replicas: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class OngoingTopicReassignment(Message, frozen=True):
    """The type of ``topics`` in ListPartitionReassignmentsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[OngoingPartitionReassignment, ...], Field("struct", 0, is_array=True)] = ()


class ListPartitionReassignmentsResponse(Message, frozen=True):
    """The response in version 0."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    topics: Annotated[tuple[OngoingTopicReassignment, ...], Field("struct", 0, is_array=True)] = ()
