"""Requests and responses of Fetch.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from msgspec import field

from siltstone.broker.wire.fields import ZERO_ID, Field, Message, Records


class ReplicaState(Message, frozen=True):
    """The type of ``replicaState`` in FetchRequest."""

    replica_id: Annotated[int, Field("int32", 15)] = -1
    replica_epoch: Annotated[int, Field("int64", 15)] = -1


class FetchPartition(Message, frozen=True):
    """The type of ``partitions`` in FetchTopic."""

    partition: Annotated[int, Field("int32", 0)] = 0
    current_leader_epoch: Annotated[int, Field("int32", 9)] = -1
    fetch_offset: Annotated[int, Field("int64", 0)] = 0
    last_fetched_epoch: Annotated[int, Field("int32", 12)] = -1
    log_start_offset: Annotated[int, Field("int64", 5)] = -1
    partition_max_bytes: Annotated[int, Field("int32", 0)] = 0
    replica_directory_id: Annotated[bytes, Field("uuid", 17, tag=0, tagged=17)] = ZERO_ID
    high_watermark: Annotated[int, Field("int64", 18, tag=1, tagged=18)] = 9223372036854775807


class FetchTopic(Message, frozen=True):
    """The type of ``topics`` in FetchRequest."""

    topic: Annotated[str, Field("string", 0, last=12)] = ""
    topic_id: Annotated[bytes, Field("uuid", 13)] = ZERO_ID
    partitions: Annotated[tuple[FetchPartition, ...], Field("struct", 0, is_array=True)] = ()


class ForgottenTopic(Message, frozen=True):
    """The type of ``forgottenTopicsData`` in FetchRequest."""

    topic: Annotated[str, Field("string", 7, last=12)] = ""
    topic_id: Annotated[bytes, Field("uuid", 13)] = ZERO_ID
    partitions: Annotated[tuple[int, ...], Field("int32", 7, is_array=True)] = ()


class FetchRequest(Message, frozen=True):
    """The request in versions 4-18."""

    FIRST_FLEXIBLE: ClassVar[int] = 12

    cluster_id: Annotated[str | None, Field("string", 12, nullable=12, tag=0, tagged=12)] = None
    replica_id: Annotated[int, Field("int32", 0, last=14)] = -1
    replica_state: Annotated[ReplicaState, Field("struct", 15, tag=1, tagged=15)] = field(
        default_factory=ReplicaState
    )
    max_wait_ms: Annotated[int, Field("int32", 0)] = 0
    min_bytes: Annotated[int, Field("int32", 0)] = 0
    max_bytes: Annotated[int, Field("int32", 3)] = 2147483647
    isolation_level: Annotated[int, Field("int8", 4)] = 0
    session_id: Annotated[int, Field("int32", 7)] = 0
    session_epoch: Annotated[int, Field("int32", 7)] = -1
    topics: Annotated[tuple[FetchTopic, ...], Field("struct", 0, is_array=True)] = ()
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], Field("struct", 7, is_array=True)] = ()
    rack_id: Annotated[str, Field("string", 11)] = ""


class EpochEndOffset(Message, frozen=True):
    """The type of ``divergingEpoch`` in PartitionData."""

    epoch: Annotated[int, Field("int32", 12)] = -1
    end_offset: Annotated[int, Field("int64", 12)] = -1


class LeaderIdAndEpoch(Message, frozen=True):
    """The type of ``currentLeader`` in PartitionData."""

    leader_id: Annotated[int, Field("int32", 12)] = -1
    leader_epoch: Annotated[int, Field("int32", 12)] = -1


class SnapshotId(Message, frozen=True):
    """The type of ``snapshotId`` in PartitionData."""

    end_offset: Annotated[int, Field("int64", 0)] = -1
    epoch: Annotated[int, Field("int32", 0)] = -1


class AbortedTransaction(Message, frozen=True):
    """The type of ``abortedTransactions`` in PartitionData."""

    producer_id: Annotated[int, Field("int64", 4)] = 0
    first_offset: Annotated[int, Field("int64", 4)] = 0


class PartitionData(Message, frozen=True):
    """The type of ``partitions`` in FetchableTopicResponse."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    high_watermark: Annotated[int, Field("int64", 0)] = 0
    last_stable_offset: Annotated[int, Field("int64", 4)] = -1
    log_start_offset: Annotated[int, Field("int64", 5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, Field("struct", 12, tag=0, tagged=12)] = field(
        default_factory=EpochEndOffset
    )
    current_leader: Annotated[LeaderIdAndEpoch, Field("struct", 12, tag=1, tagged=12)] = field(
        default_factory=LeaderIdAndEpoch
    )
    snapshot_id: Annotated[SnapshotId, Field("struct", 12, tag=2, tagged=12)] = field(
        default_factory=SnapshotId
    )
    aborted_transactions: Annotated[
        tuple[AbortedTransaction, ...] | None, Field("struct", 4, nullable=4, is_array=True)
    ] = ()
    preferred_read_replica: Annotated[int, Field("int32", 11)] = -1
    records: Annotated[Records | None, Field("records", 0, nullable=0)] = b""


class FetchableTopicResponse(Message, frozen=True):
    """The type of ``responses`` in FetchResponse."""

    topic: Annotated[str, Field("string", 0, last=12)] = ""
    topic_id: Annotated[bytes, Field("uuid", 13)] = ZERO_ID
    partitions: Annotated[tuple[PartitionData, ...], Field("struct", 0, is_array=True)] = ()


class NodeEndpoint(Message, frozen=True):
    """The type of ``nodeEndpoints`` in FetchResponse."""

    node_id: Annotated[int, Field("int32", 16)] = 0
    host: Annotated[str, Field("string", 16)] = ""
    port: Annotated[int, Field("int32", 16)] = 0
    rack: Annotated[str | None, Field("string", 16, nullable=16)] = None


class FetchResponse(Message, frozen=True):
    """The response in versions 4-18."""

    FIRST_FLEXIBLE: ClassVar[int] = 12

    throttle_time_ms: Annotated[int, Field("int32", 1)] = 0
    error_code: Annotated[int, Field("int16", 7)] = 0
    session_id: Annotated[int, Field("int32", 7)] = 0
    responses: Annotated[tuple[FetchableTopicResponse, ...], Field("struct", 0, is_array=True)] = ()
    node_endpoints: Annotated[
        tuple[NodeEndpoint, ...], Field("struct", 16, is_array=True, tag=0, tagged=16)
    ] = ()
