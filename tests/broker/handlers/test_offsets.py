"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest

from siltstone.broker.handlers.offsets import list_offsets, offset_for_leader_epoch
from siltstone.broker.store import MANY_PARTITIONS
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from siltstone.broker.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from siltstone.log.partition import PartitionLog
from tests.support.broker import ServedBroker
from tests.support.log.batches import TIME, sent

NEWEST = 11
NOTHING = (0, -1, -1, -1)


def listed(
    broker: ServedBroker,
    *timestamps: int,
    version: int = NEWEST,
    topic: str = "t",
    isolation: int = 0,
    epoch: int = -1,
) -> list[tuple[int, int, int, int]]:
    """(code, timestamp, offset, leader epoch) of partitions 0 on."""
    partitions = tuple(
        ListOffsetsPartition(partition_index=row, current_leader_epoch=epoch, timestamp=timestamp)
        for row, timestamp in enumerate(timestamps)
    )
    topics = (ListOffsetsTopic(name=topic, partitions=partitions),)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    answer = broker.call(list_offsets, request, version)
    rows = answer.topics[0].partitions
    assert [row.partition_index for row in rows] == list(range(len(timestamps)))
    return [(row.error_code, row.timestamp, row.offset, row.leader_epoch) for row in rows]


@pytest.fixture
def log(broker: ServedBroker) -> PartitionLog:
    """Offsets 0 to 7 with times that rise, then fall; of two leader epochs; the first is deleted."""
    log = broker.log("t")
    log.append(sent(3), leader_epoch=2)
    log.append(sent(3, first_time=TIME + 1000), leader_epoch=4)
    log.append(sent(2, first_time=TIME + 500))
    log.delete_records(1)
    return log


@pytest.mark.usefixtures("log")
def test_what_timestamps_stand_for(broker: ServedBroker) -> None:
    expected = {
        -1: (0, -1, 8, 4),
        -2: (0, -1, 1, 2),
        -3: (0, TIME + 1002, 5, 4),
        -4: (0, -1, 1, 2),
        -5: NOTHING,
        -6: NOTHING,
        0: (0, TIME + 1, 1, 2),
        TIME + 2: (0, TIME + 2, 2, 2),
        TIME + 3: (0, TIME + 1000, 3, 4),
        TIME + 1001: (0, TIME + 1001, 4, 4),
        TIME + 1003: NOTHING,
        (1 << 63) - 1: NOTHING,
    }
    assert {timestamp: listed(broker, timestamp)[0] for timestamp in expected} == expected


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("timestamp", "first"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_a_special_timestamp_is_refused_before_its_version(
    broker: ServedBroker, timestamp: int, first: int
) -> None:
    codes = [listed(broker, timestamp, version=version)[0][0] for version in range(1, NEWEST + 1)]
    assert codes == [35 if version < first else 0 for version in range(1, NEWEST + 1)]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("timestamp", [-7, -100, -(1 << 63)])
def test_other_negative_timestamps_are_refused(broker: ServedBroker, timestamp: int) -> None:
    assert listed(broker, timestamp) == [(35, -1, -1, -1)]


def test_an_empty_log_has_start_and_end_but_no_offset_by_time(broker: ServedBroker) -> None:
    broker.log("t")
    rows = [listed(broker, timestamp)[0] for timestamp in (-1, -2, -3, 0)]
    assert rows == [(0, -1, 0, 0), (0, -1, 0, 0), NOTHING, NOTHING]


def test_read_committed_ends_at_the_last_stable_offset(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    later = sent(first_time=TIME + 9, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(later)
    assert [listed(broker, -1, isolation=level)[0][2] for level in (0, 1)] == [2, 1]
    assert [listed(broker, TIME + 9, isolation=level)[0][2] for level in (0, 1)] == [1, -1]


@pytest.mark.usefixtures("log")
def test_unknown_partitions_and_wrong_leader_epochs_are_refused(broker: ServedBroker) -> None:
    assert listed(broker, -1, topic="other") == [(3, -1, -1, -1)]
    assert [row[0] for row in listed(broker, 0, 0)] == [0, 3]
    assert [listed(broker, -1, epoch=epoch)[0][0] for epoch in (-1, 3, 4, 5)] == [0, 74, 0, 75]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("count", [3, MANY_PARTITIONS + 1])
def test_many_partitions(broker: ServedBroker, count: int) -> None:
    rows = listed(broker, *[-1] * count)
    assert [row[0] for row in rows] == [0] + [3] * (count - 1)
    partitions = tuple(OffsetForLeaderPartition(partition=row) for row in range(count))
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=partitions),))
    answer = broker.call(offset_for_leader_epoch, request, 4)
    assert [row.error_code for row in answer.topics[0].partitions] == [0] + [3] * (count - 1)


@pytest.mark.usefixtures("log")
def test_an_unknown_isolation_level_is_refused(broker: ServedBroker) -> None:
    assert listed(broker, -1, isolation=2) == [(-1, -1, -1, -1)]


@pytest.mark.usefixtures("log")
def test_a_partition_that_is_listed_twice_is_refused_once(broker: ServedBroker) -> None:
    twice = ListOffsetsTopic(name="t", partitions=(ListOffsetsPartition(timestamp=-1),) * 2)
    request = ListOffsetsRequest(topics=(twice,))
    refused = ListOffsetsPartitionResponse(error_code=42)
    assert broker.call(list_offsets, request, 1).topics[0].partitions == (refused,)
    once = ListOffsetsTopic(name="t", partitions=(ListOffsetsPartition(timestamp=-1),))
    answer = broker.call(list_offsets, ListOffsetsRequest(topics=(once, once)), 1)
    assert [topic.partitions for topic in answer.topics] == [(refused,)]


def test_a_partition_whose_epochs_are_asked_for_again_and_again(
    broker: ServedBroker, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up once, and each row has its answer."""
    looked_up, log_of = list[str](), broker.broker.log_of

    def counted(topic: str, partition: int) -> PartitionLog:
        looked_up.append(topic)
        return log_of(topic, partition)

    monkeypatch.setattr(broker.broker, "log_of", counted)
    partitions = (OffsetForLeaderPartition(leader_epoch=2),) * 1_000
    topics = tuple(OffsetForLeaderTopic(topic=name, partitions=partitions) for name in ("t", "none"))
    answer = broker.call(offset_for_leader_epoch, OffsetForLeaderEpochRequest(topics=topics), 4)
    assert looked_up == ["t", "none"]
    assert [row.end_offset for row in answer.topics[0].partitions] == [3] * 1_000
    assert [row.error_code for row in answer.topics[1].partitions] == [3] * 1_000


def test_nothing_is_asked_for(broker: ServedBroker) -> None:
    for topics in ((), (ListOffsetsTopic(name="t"),)):
        assert broker.call(list_offsets, ListOffsetsRequest(topics=topics), 1).topics == ()


# OffsetForLeaderEpoch


def epoch_end(
    broker: ServedBroker, epoch: int, current: int = -1, partition: int = 0
) -> tuple[int, int, int]:
    """(code, epoch, the offset where it ends)."""
    requested = OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=(requested,)),))
    answer = broker.call(offset_for_leader_epoch, request, 4)
    (row,) = answer.topics[0].partitions
    assert isinstance(row, EpochEndOffset)
    return row.error_code, row.leader_epoch, row.end_offset


@pytest.mark.usefixtures("log")
def test_where_leader_epochs_end(broker: ServedBroker) -> None:
    ends = {epoch: epoch_end(broker, epoch)[1:] for epoch in (-1, 1, 2, 3, 4, 5)}
    assert ends == {-1: (-1, -1), 1: (1, 1), 2: (2, 3), 3: (2, 3), 4: (4, 8), 5: (-1, -1)}


@pytest.mark.usefixtures("log")
def test_unknown_partitions_and_wrong_current_epochs_have_no_end(broker: ServedBroker) -> None:
    assert epoch_end(broker, 4, current=3) == (74, -1, -1)
    assert epoch_end(broker, 4, current=5) == (75, -1, -1)
    assert epoch_end(broker, 4, current=4) == (0, 4, 8)
    assert epoch_end(broker, 4, partition=1) == (3, -1, -1)
