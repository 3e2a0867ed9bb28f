"""Requests and responses of AlterReplicaLogDirs.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class AlterReplicaLogDirTopic(Message, frozen=True):
    """The type of ``topics`` in AlterReplicaLogDir."""

    name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[tuple[int, ...], Field("int32", 0, is_array=True)] = ()


class AlterReplicaLogDir(Message, frozen=True):
    """The type of ``dirs`` in AlterReplicaLogDirsRequest."""

    path: Annotated[str, Field("string", 0)] = ""
    topics: Annotated[tuple[AlterReplicaLogDirTopic, ...], Field("struct", 0, is_array=True)] = ()


class AlterReplicaLogDirsRequest(Message, frozen=True):
    """The request in versions 1-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    dirs: Annotated[tuple[AlterReplicaLogDir, ...], Field("struct", 0, is_array=True)] = ()


class AlterReplicaLogDirPartitionResult(Message, frozen=True):
    """The type of ``partitions`` in AlterReplicaLogDirTopicResult."""

    partition_index: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0


class AlterReplicaLogDirTopicResult(Message, frozen=True):
    """The type of ``results`` in AlterReplicaLogDirsResponse."""

    topic_name: Annotated[str, Field("string", 0)] = ""
    partitions: Annotated[
        tuple[AlterReplicaLogDirPartitionResult, ...], Field("struct", 0, is_array=True)
    ] = ()


class AlterReplicaLogDirsResponse(Message, frozen=True):
    """The response in versions 1-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    results: Annotated[tuple[AlterReplicaLogDirTopicResult, ...], Field("struct", 0, is_array=True)] = ()
