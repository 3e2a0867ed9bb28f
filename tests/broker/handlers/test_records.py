"""DeleteRecords, DescribeLogDirs, ListPartitionReassignments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.handlers.cluster import list_partition_reassignments
from siltstone.broker.handlers.log_dirs import describe_log_dirs
from siltstone.broker.handlers.records import delete_records
from siltstone.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from siltstone.broker.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from siltstone.broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.support.broker import ServedBroker


def deleted(
    broker: ServedBroker, *partition_offsets: tuple[str, int, int], version: int = 2
) -> dict[tuple[str, int], Any]:
    """(code, new start) of each partition, for (topic, partition, offset)."""
    request = DeleteRecordsRequest(
        topics=tuple(
            DeleteRecordsTopic(
                name=name, partitions=(DeleteRecordsPartition(partition_index=number, offset=offset),)
            )
            for name, number, offset in partition_offsets
        )
    )
    return {
        (topic.name, partition.partition_index): (partition.error_code, partition.low_watermark)
        for topic in broker.call(delete_records, request, version).topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_deleted_up_to_an_offset(broker: ServedBroker, version: int) -> None:
    log = broker.log("t", records=10)
    assert deleted(broker, ("t", 0, 3), version=version) == {("t", 0): (0, 3)}
    assert deleted(broker, ("t", 0, 1), version=version) == {("t", 0): (0, 3)}  # already gone
    assert deleted(broker, ("t", 0, -1), version=version) == {("t", 0): (0, 10)}
    assert log.log_start_offset == 10
    change = broker.broker.served.opened_changes().newest()[0]
    assert (change.action, change.target, change.actor.way) == ("delete-records", "t", "kafka")


def test_deletions_of_records_that_are_refused_have_kafkas_codes(broker: ServedBroker) -> None:
    broker.manager.topics.create("compacted", 1, {"cleanup.policy": "compact"})
    broker.log("__consumer_offsets", records=1)
    log = broker.log("t", records=2)
    assert deleted(
        broker,
        ("t", 0, 3),
        ("compacted", 0, 0),
        ("__consumer_offsets", 0, 1),
        ("t", 9, 0),
        ("t", -1, 0),
        ("nope", 0, 0),
        ("bad/name", 0, 0),
        ("", 0, 0),
    ) == {
        ("t", 0): (1, -1),
        ("compacted", 0): (44, -1),
        ("__consumer_offsets", 0): (17, -1),
        ("t", 9): (3, -1),
        ("t", -1): (3, -1),
        ("nope", 0): (3, -1),
        ("bad/name", 0): (3, -1),
        ("", 0): (3, -1),
    }
    for offset in (-2, -(2**63), 2**63 - 1):
        assert deleted(broker, ("t", 0, offset)) == {("t", 0): (1, -1)}
    assert log.log_start_offset == 0


def test_of_a_partition_that_comes_twice_the_last_offset_counts(broker: ServedBroker) -> None:
    broker.log("t", records=5)
    assert deleted(broker, ("t", 0, 99), ("t", 0, 2)) == {("t", 0): (0, 2)}


# DescribeLogDirs


def listed(broker: ServedBroker, topics: dict[str, tuple[int, ...]] | None, version: int = 5) -> Any:
    """The one log directory, with the partitions that are asked for."""
    requested = None
    if topics is not None:
        requested = tuple(
            DescribableLogDirTopic(topic=name, partitions=numbers) for name, numbers in topics.items()
        )
    answer = broker.call(describe_log_dirs, DescribeLogDirsRequest(topics=requested), version)
    assert answer.error_code == 0
    (directory,) = answer.results
    return directory


def sizes(directory: Any) -> dict[tuple[str, int], int]:
    """The bytes of each partition."""
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


def test_the_log_directory_and_its_partitions(broker: ServedBroker, tmp_path: Path) -> None:
    broker.manager.topics.create("a", 2)
    log = broker.log("b", records=3)
    directory = listed(broker, None)
    assert (directory.error_code, directory.log_dir) == (0, str(tmp_path))
    assert sizes(directory) == {("a", 0): 0, ("a", 1): 0, ("b", 0): log.size}
    assert log.size > 0
    assert 0 < directory.usable_bytes <= directory.total_bytes
    assert not directory.is_cordoned


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ({}, set()),
        ({"a": ()}, set()),
        ({"a": (1, 9, -1), "nope": (0,)}, {("a", 1)}),
        ({"a": (0, 0, 1)}, {("a", 0), ("a", 1)}),
    ],
)
def test_only_named_partitions_that_exist_are_described(
    broker: ServedBroker, topics: dict[str, tuple[int, ...]], expected: set[tuple[str, int]]
) -> None:
    broker.manager.topics.create("a", 2)
    assert set(sizes(listed(broker, topics))) == expected


def test_a_directory_out_of_service_is_described_without_topics_and_sizes(broker: ServedBroker) -> None:
    broker.log("t")
    broker.manager.serving()[0].go_offline("test")
    directory = listed(broker, None)
    assert (directory.error_code, directory.topics) == (56, ())
    assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)


# ListPartitionReassignments


@pytest.mark.parametrize(
    "topics", [None, (), (ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 7)),)]
)
def test_no_partition_moves(broker: ServedBroker, topics: Any) -> None:
    broker.log("t")
    answer = broker.call(list_partition_reassignments, ListPartitionReassignmentsRequest(topics=topics), 0)
    assert (answer.error_code, answer.error_message, answer.topics) == (0, None, ())
