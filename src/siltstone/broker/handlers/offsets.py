"""The handlers of ListOffsets (versions 1 to 11) and OffsetForLeaderEpoch (2 to 4): offsets by time and by
leader epoch (Kafka's ``ReplicaManager.fetchOffset``, ``lastOffsetForLeaderEpoch``).

::

    timestamp   name                      offset in the response                          since version
    -1          LATEST                    high watermark, or last stable offset
    -2          EARLIEST                  log start offset
    -3          MAX_TIMESTAMP             of the record with the largest timestamp; -1    7
                                          without one, or if it is not below the end
    -4          EARLIEST_LOCAL            log start offset, since this broker does        8
                                          not tier data
    -5          LATEST_TIERED             -1, for the same reason                         9
    -6          EARLIEST_PENDING_UPLOAD   -1, for the same reason                         11
    0 …         a time in ms              of the first record at or after it; -1 without one

The *end* of a log is its last stable offset for a ``read_committed`` client, and its high watermark for
others. Searches (-3 and times) read and decode batches, so they run in the pool.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from siltstone.broker.errors import Code, RequestRefusedError, code_of
from siltstone.broker.handlers.fetch import UNKNOWN_ISOLATION_LEVEL, isolation_of, refuse_other_epoch
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import MANY_PARTITIONS, Broker
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from siltstone.broker.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from siltstone.log.fetch import MAX_TIMESTAMP, READ_COMMITTED, offset_for_time
from siltstone.log.partition import PartitionLog

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
_FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version of ListOffsets that has the special timestamp."""


def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Find offsets by timestamps; in the pool if batches are searched, or for many partitions."""
    timestamps = [wanted.timestamp for topic in request.topics for wanted in topic.partitions]
    searches = any(timestamp >= 0 or timestamp == MAX_TIMESTAMP for timestamp in timestamps)

    def find_all() -> ListOffsetsResponse:
        find = _finder(broker, request, context.version)
        # As in Kafka, a topic that is named twice is in the response once; so is a partition that is named
        # twice, with an error.
        joined = dict[str, dict[int, ListOffsetsPartition]]()
        for topic in request.topics:
            if topic.partitions:
                by_number = joined.setdefault(topic.name, {})
                by_number.update((wanted.partition_index, wanted) for wanted in topic.partitions)
        topics = tuple(
            ListOffsetsTopicResponse(
                name=name, partitions=tuple(find(name, wanted) for wanted in by_number.values())
            )
            for name, by_number in joined.items()
        )
        return ListOffsetsResponse(topics=topics)

    is_slow = searches or len(timestamps) > MANY_PARTITIONS
    return broker.in_pool(find_all) if is_slow else find_all()


def _finder(
    broker: Broker, request: ListOffsetsRequest, version: int
) -> Callable[[str, ListOffsetsPartition], ListOffsetsPartitionResponse]:
    """Returns the function that finds the offset for one partition of the request. It raises nothing: errors
    become codes."""
    counts, isolation = Counter(_partitions(request)), isolation_of(request.isolation_level)

    def find(topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        try:
            if counts[topic, wanted.partition_index] > 1:
                raise RequestRefusedError(Code.INVALID_REQUEST, "the partition is listed twice")
            if isolation is None:
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, UNKNOWN_ISOLATION_LEVEL)
            timestamp = wanted.timestamp
            # A negative timestamp that this broker does not know is refused as one of a later version.
            if timestamp < 0 and version < _FIRST_VERSIONS.get(timestamp, version + 1):
                reason = f"version {version} has no timestamp {timestamp}"
                raise RequestRefusedError(Code.UNSUPPORTED_VERSION, reason)
            log = broker.log_of(topic, wanted.partition_index)
            refuse_other_epoch(log, wanted.current_leader_epoch)
            reads_committed = isolation == READ_COMMITTED
            timestamp, offset, epoch = _offset_at(log, timestamp, reads_committed=reads_committed)
        except Exception as error:  # the other partitions get their offsets
            return ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, error_code=code_of(error)
            )
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )

    return find


def _partitions(request: ListOffsetsRequest) -> Iterator[tuple[str, int]]:
    return ((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)


_NO_OFFSET = (-1, -1, -1)
"""The timestamp, offset and leader epoch in a response without an offset."""


def _offset_at(log: PartitionLog, timestamp: int, *, reads_committed: bool) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) for a timestamp of the request: after a search those of the record
    that it found; for the other special timestamps the returned timestamp is -1. All three are -1 if there is
    no such record or offset. Raises SiltstoneError, OSError."""
    view = log.view
    end = view.last_stable_offset if reads_committed else view.high_watermark
    if timestamp == LATEST:
        return -1, end, log.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, view.log_start_offset, log.epoch_at(view.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NO_OFFSET
    record = offset_for_time(view, timestamp)
    return (
        _NO_OFFSET
        if record is None or record.offset >= end
        else (record.timestamp, record.offset, record.leader_epoch)
    )


def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """Find the end offsets of leader epochs, by which a consumer notices that a log was truncated below its
    position (KIP-320)."""
    is_slow = sum(len(topic.partitions) for topic in request.topics) > MANY_PARTITIONS
    return broker.in_pool(_epoch_ends, broker, request) if is_slow else _epoch_ends(broker, request)


def _epoch_ends(broker: Broker, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    # A request may name one unknown partition 100,000 times, and so many exceptions would take seconds.
    log_or_code = functools.cache(functools.partial(_log_or_code, broker))
    topics = tuple(
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=tuple(
                _epoch_end(log_or_code(topic.topic, wanted.partition), wanted) for wanted in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return OffsetForLeaderEpochResponse(topics=topics)


def _log_or_code(broker: Broker, topic: str, partition: int) -> PartitionLog | int:
    """The log of a partition, or an error code."""
    try:
        return broker.log_of(topic, partition)
    except Exception as error:
        return code_of(error)


def _epoch_end(log: PartitionLog | int, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    """The requested leader epoch, or the largest one below it that the log has, with its end offset; both -1
    if there is none. ``log``: an error code if the partition has no open log."""
    if isinstance(log, int):
        return EpochEndOffset(partition=wanted.partition, error_code=log)
    try:
        refuse_other_epoch(log, wanted.current_leader_epoch)
        epoch, offset = log.end_of_epoch(wanted.leader_epoch) or (-1, -1)
    except Exception as error:  # the other partitions get their end offsets
        return EpochEndOffset(partition=wanted.partition, error_code=code_of(error))
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=offset)
