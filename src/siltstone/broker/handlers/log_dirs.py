"""The handler of DescribeLogDirs (versions 1 to 5): the log directories, and how much each partition takes
there (Kafka's ``ReplicaManager.describeLogDirs``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from siltstone.base import files
from siltstone.broker.errors import Code
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from siltstone.log.partition import PartitionLog
from siltstone.runtime.served_directory import ServedDirectory

Wanted = Mapping[str, frozenset[int]] | None
"""The numbers of the requested partitions by topic; None: all partitions."""


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Answers with the log directories, their space, and the sizes of the requested partitions."""
    wanted: Wanted = None
    if request.topics is not None:
        numbers = dict[str, set[int]]()
        for topic in request.topics:
            numbers.setdefault(topic.topic, set()).update(topic.partitions)
        wanted = {name: frozenset(partitions) for name, partitions in numbers.items()}
    results = await broker.in_pool(_results, broker, wanted)
    return DescribeLogDirsResponse(results=tuple(results))


def _results(broker: Broker, wanted: Wanted) -> list[DescribeLogDirsResult]:
    serving = [_serving_result(served, wanted) for served in broker.manager.serving()]
    offline = [_offline_result(path) for path in broker.manager.offline]
    return [*serving, *offline]


def _offline_result(path: Path) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=Code.KAFKA_STORAGE_ERROR, log_dir=str(path.absolute()))


def _serving_result(served: ServedDirectory, wanted: Wanted) -> DescribeLogDirsResult:
    try:
        space = files.free_space(served.path)
    except OSError:
        return _offline_result(served.path)
    topics = dict[str, list[DescribeLogDirsPartition]]()
    for log in sorted(served.logs.values(), key=lambda log: log.topic_partition):
        topic, number = log.topic_partition.topic, log.topic_partition.partition
        if wanted is None or number in wanted.get(topic, ()):
            topics.setdefault(topic, []).append(_partition(log))
    return DescribeLogDirsResult(
        log_dir=str(served.path.absolute()),
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
        total_bytes=space.total_bytes,
        usable_bytes=space.free_bytes,
    )


def _partition(log: PartitionLog) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(partition_index=log.topic_partition.partition, partition_size=log.size)
