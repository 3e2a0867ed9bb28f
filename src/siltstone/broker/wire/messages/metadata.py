"""Requests and responses of Metadata.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import ZERO_ID, Field, Message


class MetadataRequestTopic(Message, frozen=True):
    """The type of ``topics`` in MetadataRequest."""

    topic_id: Annotated[bytes, Field("uuid", 10)] = ZERO_ID
    name: Annotated[str | None, Field("string", 0, nullable=10)] = ""


class MetadataRequest(Message, frozen=True):
    """The request in versions 0-13."""

    FIRST_FLEXIBLE: ClassVar[int] = 9

    topics: Annotated[
        tuple[MetadataRequestTopic, ...] | None, Field("struct", 0, nullable=1, is_array=True)
    ] = ()
    allow_auto_topic_creation: Annotated[bool, Field("bool", 4)] = True
    include_cluster_authorized_operations: Annotated[bool, Field("bool", 8, last=10)] = False
    include_topic_authorized_operations: Annotated[bool, Field("bool", 8)] = False


class MetadataResponseBroker(Message, frozen=True):
    """The type of ``brokers`` in MetadataResponse."""

    node_id: Annotated[int, Field("int32", 0)] = 0
    host: Annotated[str, Field("string", 0)] = ""
    port: Annotated[int, Field("int32", 0)] = 0
    rack: Annotated[str | None, Field("string", 1, nullable=1)] = None


class MetadataResponsePartition(Message, frozen=True):
    """The type of ``partitions`` in MetadataResponseTopic."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    partition_index: Annotated[int, Field("int32", 0)] = 0
    leader_id: Annotated[int, Field("int32", 0)] = 0
    leader_epoch: Annotated[int, Field("int32", 7)] = -1
    replica_nodes: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()
    isr_nodes: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()
    offline_replicas: Annotated[tuple[int, ...], Field("int32", 5, is_array=True)] = ()


class MetadataResponseTopic(Message, frozen=True):
    """The type of ``topics`` in MetadataResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    name: Annotated[str | None, Field("string", 0, nullable=12)] = ""
    topic_id: Annotated[bytes, Field("uuid", 10)] = ZERO_ID
    is_internal: Annotated[bool, Field("bool", 1)] = False
    partitions: Annotated[tuple[MetadataResponsePartition, ...], Field("struct", 0, is_array=True)] = ()
    topic_authorized_operations: Annotated[int, Field("int32", 8)] = -2147483648


class MetadataResponse(Message, frozen=True):
    """The response in versions 0-13."""

    FIRST_FLEXIBLE: ClassVar[int] = 9

    throttle_time_ms: Annotated[int, Field("int32", 3)] = 0
    brokers: Annotated[tuple[MetadataResponseBroker, ...], Field("struct", 0, is_array=True)] = ()
    cluster_id: Annotated[str | None, Field("string", 2, nullable=2)] = None
    controller_id: Annotated[int, Field("int32", 1)] = -1
    topics: Annotated[tuple[MetadataResponseTopic, ...], Field("struct", 0, is_array=True)] = ()
    cluster_authorized_operations: Annotated[int, Field("int32", 8, last=10)] = -2147483648
    error_code: Annotated[int, Field("int16", 13)] = 0
