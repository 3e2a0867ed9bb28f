"""The handler of DeleteRecords (versions 0 to 2): deletes records below an offset, by raising the log start
offset (Kafka's ``ReplicaManager.deleteRecords``)."""

from __future__ import annotations

from siltstone.base.errors import LogError, OffsetOutOfRangeError
from siltstone.broker.errors import Code, code_of
from siltstone.broker.handlers.topics import actor_of
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from siltstone.commands import administration
from siltstone.log.names import INTERNAL_TOPICS, TopicPartition
from siltstone.runtime.manager import refuse_compacted_only

HIGH_WATERMARK = -1
"""The offset of a request that stands for the high watermark."""


async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Delete the records below an offset of each partition."""
    return await broker.in_pool(_delete_records, broker, request, context)


def _delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    # As in Kafka, of a partition that is listed twice the last offset counts.
    wanted = dict[str, dict[int, DeleteRecordsPartition]]()
    for topic in request.topics:
        for partition in topic.partitions:
            wanted.setdefault(topic.name, {})[partition.partition_index] = partition
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=name,
                partitions=tuple(
                    _delete_from(broker, name, partition, context) for partition in partitions.values()
                ),
            )
            for name, partitions in wanted.items()
        )
    )


def _delete_from(
    broker: Broker, topic: str, partition: DeleteRecordsPartition, context: RequestContext
) -> DeleteRecordsPartitionResult:
    """Delete the records of one partition below the requested offset. Returns the result, also of a
    failure."""
    number, offset = partition.partition_index, partition.offset
    try:
        code, start = int(Code.NONE), _delete_below(broker, topic, number, offset, context)
    except Exception as error:  # one partition's error is not the others'
        code, start = code_of(error), -1
    return DeleteRecordsPartitionResult(partition_index=number, low_watermark=start, error_code=code)


def _delete_below(broker: Broker, topic: str, number: int, offset: int, context: RequestContext) -> int:
    """Delete the records of one partition below ``offset``, which may be ``HIGH_WATERMARK``, and return the
    partition's new log start offset. Raises LogError."""
    if topic in INTERNAL_TOPICS:
        raise _InternalTopicError(f"records of {topic} cannot be deleted", path=topic)
    log = broker.manager.get(TopicPartition(topic, number))
    refuse_compacted_only(log.topic_partition, log.config)  # as in Kafka, checked before the offset
    if offset < HIGH_WATERMARK:
        raise OffsetOutOfRangeError(f"{offset} is not an offset", path=f"{topic}-{number}")
    return administration.delete_records(broker.served, actor_of(context), topic, {number: offset})[number]


class _InternalTopicError(LogError, code="INVALID_TOPIC_EXCEPTION", error_code=17):
    """Raised for a topic of ``INTERNAL_TOPICS``, whose records clients must not delete."""
