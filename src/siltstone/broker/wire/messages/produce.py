"""Requests and responses of Produce.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from msgspec import field

from siltstone.broker.wire.fields import ZERO_ID, Field, Message, Records


class PartitionProduceData(Message, frozen=True):
    """The type of ``partitionData`` in TopicProduceData."""

    index: Annotated[int, Field("int32", 0)] = 0
    records: Annotated[Records | None, Field("records", 0, nullable=0)] = b""


class TopicProduceData(Message, frozen=True):
    """The type of ``topicData`` in ProduceRequest."""

    name: Annotated[str, Field("string", 0, last=12)] = ""
    topic_id: Annotated[bytes, Field("uuid", 13)] = ZERO_ID
    partition_data: Annotated[tuple[PartitionProduceData, ...], Field("struct", 0, is_array=True)] = ()


class ProduceRequest(Message, frozen=True):
    """The request in versions 3-13."""

    FIRST_FLEXIBLE: ClassVar[int] = 9

    transactional_id: Annotated[str | None, Field("string", 3, nullable=3)] = None
    acks: Annotated[int, Field("int16", 0)] = 0
    timeout_ms: Annotated[int, Field("int32", 0)] = 0
    topic_data: Annotated[tuple[TopicProduceData, ...], Field("struct", 0, is_array=True)] = ()


class BatchIndexAndErrorMessage(Message, frozen=True):
    """The type of ``recordErrors`` in PartitionProduceResponse."""

    batch_index: Annotated[int, Field("int32", 8)] = 0
    batch_index_error_message: Annotated[str | None, Field("string", 8, nullable=8)] = None


class LeaderIdAndEpoch(Message, frozen=True):
    """The type of ``currentLeader`` in PartitionProduceResponse."""

    leader_id: Annotated[int, Field("int32", 10)] = -1
    leader_epoch: Annotated[int, Field("int32", 10)] = -1


class PartitionProduceResponse(Message, frozen=True):
    """The type of ``partitionResponses`` in TopicProduceResponse."""

    index: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    base_offset: Annotated[int, Field("int64", 0)] = 0
    log_append_time_ms: Annotated[int, Field("int64", 2)] = -1
    log_start_offset: Annotated[int, Field("int64", 5)] = -1
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], Field("struct", 8, is_array=True)] = ()
    error_message: Annotated[str | None, Field("string", 8, nullable=8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Field("struct", 10, tag=0, tagged=10)] = field(
        default_factory=LeaderIdAndEpoch
    )


class TopicProduceResponse(Message, frozen=True):
    """The type of ``responses`` in ProduceResponse."""

    name: Annotated[str, Field("string", 0, last=12)] = ""
    topic_id: Annotated[bytes, Field("uuid", 13)] = ZERO_ID
    partition_responses: Annotated[
        tuple[PartitionProduceResponse, ...], Field("struct", 0, is_array=True)
    ] = ()


class NodeEndpoint(Message, frozen=True):
    """The type of ``nodeEndpoints`` in ProduceResponse."""

    node_id: Annotated[int, Field("int32", 10)] = 0
    host: Annotated[str, Field("string", 10)] = ""
    port: Annotated[int, Field("int32", 10)] = 0
    rack: Annotated[str | None, Field("string", 10, nullable=10)] = None


class ProduceResponse(Message, frozen=True):
    """The response in versions 3-13."""

    FIRST_FLEXIBLE: ClassVar[int] = 9

    responses: Annotated[tuple[TopicProduceResponse, ...], Field("struct", 0, is_array=True)] = ()
    throttle_time_ms: Annotated[int, Field("int32", 1)] = 0
    node_endpoints: Annotated[
        tuple[NodeEndpoint, ...], Field("struct", 10, is_array=True, tag=0, tagged=10)
    ] = ()
