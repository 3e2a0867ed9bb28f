"""Requests and responses of CreateTopics.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import ZERO_ID, Field, Message


class CreatableReplicaAssignment(Message, frozen=True):
    """The type of ``assignments`` in CreatableTopic."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    broker_ids: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class CreatableTopicConfig(Message, frozen=True):
    """The type of ``configs`` in CreatableTopic."""

    name: Annotated[str, Field("string", 0)] = ""
    value: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class CreatableTopic(Message, frozen=True):
    """The type of ``topics`` in CreateTopicsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    num_partitions: Annotated[int, Field("int32", 0)] = 0
    replication_factor: Annotated[int, Field("int16", 0)] = 0
    assignments: Annotated[tuple[CreatableReplicaAssignment, ...], Field("struct", 0, is_array=True)] = ()
    configs: Annotated[tuple[CreatableTopicConfig, ...], Field("struct", 0, is_array=True)] = ()


class CreateTopicsRequest(Message, frozen=True):
    """The request in versions 2-7."""

    FIRST_FLEXIBLE: ClassVar[int] = 5

    topics: Annotated[tuple[CreatableTopic, ...], Field("struct", 0, is_array=True)] = ()
    timeout_ms: Annotated[int, Field("int32", 0)] = 60000
    validate_only: Annotated[bool, Field("bool", 1)] = False


class CreatableTopicConfigs(Message, frozen=True):
    """The type of ``configs`` in CreatableTopicResult."""

    name: Annotated[str, Field("string", 5)] = ""
    value: Annotated[str | None, Field("string", 5, nullable=5)] = ""
    read_only: Annotated[bool, Field("bool", 5)] = False
    config_source: Annotated[int, Field("int8", 5)] = -1
    is_sensitive: Annotated[bool, Field("bool", 5)] = False


class CreatableTopicResult(Message, frozen=True):
    """The type of ``topics`` in CreateTopicsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    topic_id: Annotated[bytes, Field("uuid", 7)] = ZERO_ID
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 1, nullable=0)] = ""
    topic_config_error_code: Annotated[int, Field("int16", 5, tag=0, tagged=5)] = 0
    num_partitions: Annotated[int, Field("int32", 5)] = -1
    replication_factor: Annotated[int, Field("int16", 5)] = -1
    configs: Annotated[
        tuple[CreatableTopicConfigs, ...] | None, Field("struct", 5, nullable=5, is_array=True)
    ] = ()


class CreateTopicsResponse(Message, frozen=True):
    """The response in versions 2-7."""

    FIRST_FLEXIBLE: ClassVar[int] = 5

    throttle_time_ms: Annotated[int, Field("int32", 2)] = 0
    topics: Annotated[tuple[CreatableTopicResult, ...], Field("struct", 0, is_array=True)] = ()
