"""Requests and responses of CreatePartitions.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class CreatePartitionsAssignment(Message, frozen=True):
    """The type of ``assignments`` in CreatePartitionsTopic."""

    broker_ids: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class CreatePartitionsTopic(Message, frozen=True):
    """The type of ``topics`` in CreatePartitionsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    count: Annotated[int, Field("int32", 0)] = 0
    assignments: Annotated[
        tuple[CreatePartitionsAssignment, ...] | None, Field("struct", 0, nullable=0, is_array=True)
    ] = ()


class CreatePartitionsRequest(Message, frozen=True):
    """The request in versions 0-3."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    topics: Annotated[tuple[CreatePartitionsTopic, ...], Field("struct", 0, is_array=True)] = ()
    timeout_ms: Annotated[int, Field("int32", 0)] = 0
    validate_only: Annotated[bool, Field("bool", 0)] = False


class CreatePartitionsTopicResult(Message, frozen=True):
    """The type of ``results`` in CreatePartitionsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = None


class CreatePartitionsResponse(Message, frozen=True):
    """The response in versions 0-3."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    results: Annotated[tuple[CreatePartitionsTopicResult, ...], Field("struct", 0, is_array=True)] = ()
