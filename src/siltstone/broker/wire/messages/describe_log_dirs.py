"""Requests and responses of DescribeLogDirs.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class DescribableLogDirTopic(Message, frozen=True):
    """The type of ``topics`` in DescribeLogDirsRequest."""

    topic: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class DescribeLogDirsRequest(Message, frozen=True):
    """The request in versions 1-5."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    topics: Annotated[
        tuple[DescribableLogDirTopic, ...] | None, Field("struct", 0, nullable=0, is_array=True)
    ] = ()


class DescribeLogDirsPartition(Message, frozen=True):
    """The type of ``partitions`` in DescribeLogDirsTopic."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    partition_size: Annotated[int, Field("int64", 0)] = 0
    offset_lag: Annotated[int, Field("int64", 0)] = 0
    is_future_key: Annotated[bool, Field("bool", 0)] = False


class DescribeLogDirsTopic(Message, frozen=True):
    """The type of ``topics`` in DescribeLogDirsResult."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[DescribeLogDirsPartition, ...], Field("struct", 0, is_array=True)] = ()


class DescribeLogDirsResult(Message, frozen=True):
    """The type of ``results`` in DescribeLogDirsResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    log_dir: Annotated[str, Field("string", 0)] = ""
    topics: Annotated[tuple[DescribeLogDirsTopic, ...], Field("struct", 0, is_array=True)] = ()
    total_bytes: Annotated[int, Field("int64", 4)] = -1
    usable_bytes: Annotated[int, Field("int64", 4)] = -1
    is_cordoned: Annotated[bool, Field("bool", 5)] = False


class DescribeLogDirsResponse(Message, frozen=True):
    """The response in versions 1-5."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 3)] = 0
    results: Annotated[tuple[DescribeLogDirsResult, ...], Field("struct", 0, is_array=True)] = ()
