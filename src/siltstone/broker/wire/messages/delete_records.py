"""Requests and responses of DeleteRecords.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class DeleteRecordsPartition(Message, frozen=True):
    """The type of ``partitions`` in DeleteRecordsTopic."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    offset: Annotated[int, Field("int64", 0)] = 0


class DeleteRecordsTopic(Message, frozen=True):
    """The type of ``topics`` in DeleteRecordsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[DeleteRecordsPartition, ...], Field("struct", 0, is_array=True)] = ()


class DeleteRecordsRequest(Message, frozen=True):
    """The request in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    topics: Annotated[tuple[DeleteRecordsTopic, ...], Field("struct", 0, is_array=True)] = ()
    timeout_ms: Annotated[int, Field("int32", 0)] = 0


class DeleteRecordsPartitionResult(Message, frozen=True):
    """The type of ``partitions`` in DeleteRecordsTopicResult."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    low_watermark: Annotated[int, Field("int64", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0


class DeleteRecordsTopicResult(Message, frozen=True):
    """The type of ``topics`` in DeleteRecordsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[DeleteRecordsPartitionResult, ...], Field("struct", 0, is_array=True)] = ()


class DeleteRecordsResponse(Message, frozen=True):
    """The response in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    topics: Annotated[tuple[DeleteRecordsTopicResult, ...], Field("struct", 0, is_array=True)] = ()
