"""Requests and responses of ElectLeaders.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class TopicPartitions(Message, frozen=True):
    """The type of ``topicPartitions`` in ElectLeadersRequest."""

    topic: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class ElectLeadersRequest(Message, frozen=True):
    """The request in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    election_type: Annotated[int, Field("int8", 1)] = 0
    topic_partitions: Annotated[
        tuple[TopicPartitions, ...] | None, Field("struct", 0, nullable=0, is_array=True)
    ] = ()
    timeout_ms: Annotated[int, Field("int32", 0)] = 60000


class PartitionResult(Message, frozen=True):
    """The type of ``partitionResult`` in ReplicaElectionResult."""

    partition_id: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class ReplicaElectionResult(Message, frozen=True):
    """The type of ``replicaElectionResults`` in ElectLeadersResponse."""

    topic: Annotated[str, Field("string", 0)] = ""
    partition_result: Annotated[tuple[PartitionResult, ...], Field("struct", 0, is_array=True)] = ()


class ElectLeadersResponse(Message, frozen=True):
    """The response in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 1)] = 0
    replica_election_results: Annotated[
        tuple[ReplicaElectionResult, ...], Field("struct", 0, is_array=True)
    ] = ()
