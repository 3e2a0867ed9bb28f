"""A stream over growing logs, trigger by trigger, without Spark: each offset once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import DirectoryRefusedError, OffsetOutOfRangeError
from siltstone.commands import clean as app
from siltstone.compaction.engine import InProcessEngine
from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import LogManager
from siltstone.tables import following
from siltstone.tables.following import MicroBatchStream, offsets_from_json, offsets_to_json
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import read_split
from tests.support.errors import raises_error
from tests.support.log.managed import NOW, append, opened

A, B = TopicPartition("events", 0), TopicPartition("events", 1)
LOSS = "failOnDataLoss=false"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    with opened(tmp_path / "logs") as manager:
        manager.topics.create("events", 2, {"segment.bytes": "1400"})
    return tmp_path / "logs"


def options_of(logs: Path, **more: str) -> ReadOptions:
    return ReadOptions.of({"path": str(logs), **more}, is_streaming=True)


def grow(logs: Path, *counts: int) -> None:
    with opened(logs) as manager:
        for topic_partition, count in zip((A, B), counts, strict=False):
            if count:
                append(manager[topic_partition], count)


class Stream:
    """A stream as Spark runs it: offsets go through its checkpoint, and batches between them are read."""

    def __init__(self, logs: Path, **more: str) -> None:
        self.options = options_of(logs, **more)
        self.clock = ManualClock(NOW)
        self.follower = MicroBatchStream(self.options, self.clock)
        self.offsets = offsets_from_json(offsets_to_json(self.follower.initial_offsets()))
        self.read: list[tuple[int, int]] = []
        self.maximum = self.options.max_offsets_per_trigger

    def restart(self) -> None:
        self.follower = MicroBatchStream(self.options, self.clock)

    def between(self, start: following.Offsets, end: following.Offsets) -> list[tuple[int, int]]:
        return [
            (partition, offset)
            for split in self.follower.splits(start, end)
            for batch in read_split(split, self.options)
            for partition, offset in zip(
                batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
            )
        ]

    def trigger(self) -> int:
        """One micro-batch; how many records it had."""
        end = offsets_from_json(offsets_to_json(self.follower.next_end(self.offsets, self.maximum)))
        records = self.between(self.offsets, end)
        self.offsets, self.read = end, self.read + records
        return len(records)


def all_of(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


def clean(logs: Path) -> None:
    """Clean all logs in place, without Spark."""
    request = app.CleanRequest(
        directories=(logs,), in_place=True, config=["cleanup.policy=compact"], topics=["events"], force=True
    )
    report = app.clean(request, engine=lambda request, progress: InProcessEngine())
    assert {result.status for result in report.results} <= {"cleaned", "nothing_to_do"}, report


def test_each_offset_is_read_once_over_rolls_and_restarts(logs: Path) -> None:
    stream = Stream(logs, startingOffsets="earliest")
    assert stream.trigger() == 0
    total = [0, 0]
    for turn in range(12):
        counts = [turn * 3, 5 if turn % 2 else 0]
        grow(logs, *counts)
        total = [total[0] + counts[0], total[1] + counts[1]]
        assert stream.trigger() == sum(counts)
        assert stream.trigger() == 0
        if turn % 3 == 0:
            stream.restart()
    assert sorted(stream.read) == all_of(*total)
    assert len(list((logs / "events-0").glob("*.log"))) > 2


def test_a_stream_starts_at_the_end_unless_startingoffsets_is_set(logs: Path) -> None:
    grow(logs, 5, 5)
    latest, earliest = Stream(logs), Stream(logs, startingOffsets="earliest")
    from_offsets = Stream(logs, startingOffsets='{"events":{"0":2,"1":-1}}')
    grow(logs, 1, 0)
    assert (latest.trigger(), earliest.trigger(), from_offsets.trigger()) == (1, 11, 4)


def test_a_micro_batch_that_is_read_again_is_the_same(logs: Path) -> None:
    stream = Stream(logs, startingOffsets="earliest")
    grow(logs, 40, 10)
    start, end = dict(stream.offsets), stream.follower.next_end(stream.offsets)
    first = stream.between(start, end)
    grow(logs, 40, 40)
    stream.restart()
    assert stream.between(start, end) == first == all_of(40, 10)


def test_maxoffsetspertrigger_is_shared_in_proportion(logs: Path) -> None:
    for _ in range(2):
        grow(logs, 45, 5)
    stream = Stream(logs, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert stream.trigger() == 20
    assert offsets_to_json(stream.offsets) == {"events": {"0": 18, "1": 2}}
    assert [stream.trigger() for _ in range(6)][:4] == [20, 20, 20, 20]
    assert sorted(stream.read) == all_of(90, 10)


def test_available_now_ends_at_the_offsets_of_its_start(logs: Path) -> None:
    grow(logs, 30, 10)
    stream = Stream(logs, startingOffsets="earliest", maxOffsetsPerTrigger="25")
    stream.follower.stop_at_current_ends()
    grow(logs, 50, 50)
    with opened(logs) as manager:
        manager.topics.add_partitions("events", 3)
        append(manager["events", 2], 5)
    while stream.trigger():
        pass
    assert sorted(stream.read) == all_of(30, 10)
    stream.restart()
    stream.maximum = None
    assert stream.trigger() == 105


def test_available_now_reports_data_loss_as_any_other_trigger(logs: Path) -> None:
    for _ in range(4):
        grow(logs, 10, 5)
    careful, easy = Stream(logs), Stream(logs, failOnDataLoss="false")
    with opened(logs) as manager:
        manager.truncate_to(A, 30)
    for stream in (careful, easy):
        stream.follower.stop_at_current_ends()
    with raises_error(OffsetOutOfRangeError, path="events-0", about="40", advice=LOSS):
        careful.trigger()
    assert easy.trigger() == 0
    easy.restart()
    grow(logs, 4, 0)
    assert easy.trigger() == 4
    shutil.rmtree(logs / "events-1")
    careful.restart()
    careful.offsets = dict(easy.offsets)
    careful.follower.stop_at_current_ends()
    with raises_error(OffsetOutOfRangeError, path="events-1", advice=LOSS):
        careful.trigger()


def test_available_now_stays_where_it_is_behind_its_end(logs: Path) -> None:
    grow(logs, 30, 10)
    stream = Stream(logs, startingOffsets="earliest")
    stream.follower.stop_at_current_ends()
    grow(logs, 20, 0)
    with opened(logs) as manager:
        manager.topics.add_partitions("events", 3)
    # The stream has gone past the end, and knows a partition that is newer than it.
    stream.offsets.update({A: 40, TopicPartition("events", 2): 0})
    assert stream.trigger() == 10
    assert stream.offsets == {A: 40, B: 10, TopicPartition("events", 2): 0}


def test_too_few_offsets_wait_for_more_or_for_the_delay(logs: Path) -> None:
    stream = Stream(logs, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="5m")
    grow(logs, 1, 0)
    assert stream.trigger() == 1
    grow(logs, 4, 0)
    assert stream.trigger() == 0
    grow(logs, 4, 3)
    assert stream.trigger() == 11
    grow(logs, 1, 0)
    assert stream.trigger() == 0
    stream.clock.advance(300_000)
    assert stream.trigger() == 1
    assert sorted(stream.read) == all_of(10, 3)


def test_a_new_partition_is_read_from_its_beginning(logs: Path) -> None:
    stream = Stream(logs)
    with opened(logs) as manager:
        manager.topics.add_partitions("events", 3)
        append(manager["events", 2], 7)
    assert stream.trigger() == 7
    assert stream.read == [(2, offset) for offset in range(7)]


def test_gaps_that_cleaning_left_are_no_data_loss(logs: Path, tmp_path: Path) -> None:
    with opened(logs) as manager:
        manager.topics.alter("events", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        for _ in range(60):
            append(manager[A], 3)
    stream = Stream(logs, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    stream.trigger()
    read_before = len(stream.read)
    clean(logs)
    while stream.offsets[A] < 180:
        stream.trigger()
    offsets = [offset for _, offset in stream.read]
    assert read_before == 30
    assert offsets == sorted(set(offsets))
    assert set(offsets[-3:]) == {177, 178, 179}
    assert len(offsets) < 180


def test_records_deleted_before_they_were_read_are_data_loss(logs: Path) -> None:
    grow(logs, 40, 0)
    careful = Stream(logs, startingOffsets="earliest")
    easy = Stream(logs, startingOffsets="earliest", failOnDataLoss="false")
    with opened(logs) as manager:
        manager.delete_records(A, 25)
    with raises_error(OffsetOutOfRangeError, path="events-0", about="0 to 25", advice=LOSS):
        careful.trigger()
    assert easy.trigger() == 15
    assert easy.read == [(0, offset) for offset in range(25, 40)]


def test_a_truncated_or_deleted_log_is_data_loss(logs: Path) -> None:
    for _ in range(4):
        grow(logs, 10, 5)
    careful, easy = Stream(logs), Stream(logs, failOnDataLoss="false")
    with opened(logs) as manager:
        manager.truncate_to(A, 30)
    with raises_error(OffsetOutOfRangeError, path="events-0", about="40", advice=LOSS):
        careful.trigger()
    assert easy.trigger() == 0
    grow(logs, 4, 0)
    assert easy.trigger() == 4
    careful.restart()
    careful.offsets = dict(easy.offsets)
    shutil.rmtree(logs / "events-1")
    with raises_error(OffsetOutOfRangeError, path="events-1", advice=LOSS):
        careful.trigger()
    grow(logs, 2, 0)
    assert easy.trigger() == 2
    assert easy.read == [(0, offset) for offset in range(30, 36)]


def test_only_logs_that_changed_are_opened_again(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_logs: list[str] = []
    real = following.ReadOnlyLogs.__getitem__

    def counted(self: following.ReadOnlyLogs, topic_partition: TopicPartition) -> object:
        opened_logs.append(str(topic_partition))
        return real(self, topic_partition)

    with LogManager.open([logs], clock=ManualClock(NOW)) as manager:
        append(manager[A], 3)
        append(manager[B], 3)
        manager.flush()
        stream = Stream(logs, startingOffsets="earliest", isolation="read_uncommitted")
        monkeypatch.setattr(following.ReadOnlyLogs, "__getitem__", counted)
        stream.trigger()
        assert opened_logs == []
        append(manager[B], 3)
        stream.trigger()
        assert opened_logs == ["events-1"]


def test_a_log_in_the_middle_of_a_swap_is_opened_again(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(logs, 5, 5)
    stream = Stream(logs, startingOffsets="earliest")
    real, remaining = following.selected_partitions, [7]

    def spoiled(*arguments: object) -> object:
        remaining[0] -= 1
        if remaining[0] >= 0:
            raise DirectoryRefusedError("a crash interrupted a change")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(following, "selected_partitions", spoiled)
    assert stream.follower.next_end(stream.offsets) == stream.offsets
    assert stream.trigger() == 10
    remaining[0] = 1000
    with pytest.raises(DirectoryRefusedError):
        for _ in range(5):
            stream.follower.next_end(stream.offsets)
