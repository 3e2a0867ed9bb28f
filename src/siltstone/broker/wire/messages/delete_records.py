"""Requests and responses of DeleteRecords. Made by ``scripts/wire_messages.py``."""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class DeleteRecordsPartition(Message, frozen=True):
    """``partitions`` of DeleteRecordsTopic."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    offset: Annotated[int, Field("int64", 0)] = 0


class DeleteRecordsTopic(Message, frozen=True):
    """``topics`` of DeleteRecordsRequest."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[DeleteRecordsPartition, ...], Field("struct", 0, is_array=True)] = ()


class DeleteRecordsRequest(Message, frozen=True):
    """Versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    topics: Annotated[tuple[DeleteRecordsTopic, ...], Field("struct", 0, is_array=True)] = ()
    timeout_ms: Annotated[int, Field("int32", 0)] = 0


class DeleteRecordsPartitionResult(Message, frozen=True):
    """``partitions`` of DeleteRecordsTopicResult."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    low_watermark: Annotated[int, Field("int64", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0


class DeleteRecordsTopicResult(Message, frozen=True):
    """``topics`` of DeleteRecordsResponse."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[DeleteRecordsPartitionResult, ...], Field("struct", 0, is_array=True)] = ()


class DeleteRecordsResponse(Message, frozen=True):
    """Versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    topics: Annotated[tuple[DeleteRecordsTopicResult, ...], Field("struct", 0, is_array=True)] = ()
