"""The embedded cleaner, round by round: what it chooses, what it leaves, what it does with failure."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, parse_assignments
from siltstone.base.errors import EngineError
from siltstone.compaction import staging, work
from siltstone.compaction import work as pacing
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, CLEANINGS_FILE, FAILED, UNCLEANABLE, read_cleanings
from siltstone.compaction.staging import LogReport
from siltstone.compaction.work import LogWork
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.names import CLEANER_CHECKPOINT, INTERNAL_TOPICS, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.cleaning_states import NONE
from siltstone.runtime.log_cleaner import MAX_FAILURES, LogCleaner
from siltstone.runtime.served_directory import ServedDirectory
from siltstone.runtime.upkeep import UNLINK
from tests.support.cleaning.serving import TOPIC, USERS, Jobs, serving, table, write
from tests.support.log import driving
from tests.support.log.managed import MINUTE, NOW, opened

DAY = 24 * 60 * MINUTE


def test_a_dirty_log_is_cleaned_and_reads_the_same(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        log = manager[USERS]
        write(log, 60)
        before, end, active = table(log), log.log_end_offset, log.view.segments[-1].base_offset
        (result,) = cleaner.clean_once()
        assert (result.status, result.cleaned_end_offset) == (CLEANED, active)
        assert table(log) == before and log.log_end_offset == end
        retained = [record.offset for record in driving.read_all(log) if record.offset < active]
        assert retained == list(range(active - 5, active))
        assert read_checkpoint(tmp_path / CLEANER_CHECKPOINT) == {USERS: active}
        assert cleaner.clean_once() == []
        assert manager.cleaning_states.state(USERS) == NONE
        write(log, 1)
    with serving(tmp_path) as (manager, cleaner):
        assert table(manager[USERS])[b"k0"].startswith(b"60 ")
        assert cleaner.clean_once() == []
        assert not [path for path in (tmp_path / str(USERS)).iterdir() if path.name.endswith(".deleted")]


def test_old_files_are_unlinked_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaner.clean_once()
        partition = tmp_path / str(USERS)
        assert list(partition.glob("*.deleted")) and not (partition / ".siltstone").exists()
        clock.advance(MINUTE)
        assert UNLINK in manager.tick()
        assert not list(partition.glob("*.deleted"))


def test_the_ratio_has_to_be_over_the_limit(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"min.cleanable.dirty.ratio": "1.0"}) as (manager, cleaner):
        write(manager[USERS], 60)
        assert cleaner.clean_once() == []
        manager.topics.alter("users", {"min.cleanable.dirty.ratio": "0.99"})
        assert len(cleaner.clean_once()) == 1


def test_a_record_over_the_maximum_lag_makes_its_log_eligible_whatever_the_ratio(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    topic = {"min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": str(MINUTE)}
    with serving(tmp_path, topic=topic, clock=clock) as (manager, cleaner):
        write(manager[USERS], 60)
        clock.advance(MINUTE)
        assert cleaner.clean_once() == []
        clock.advance(1000)
        assert len(cleaner.clean_once()) == 1
        assert cleaner.metrics()["kafka_log_logcleaner_max_compaction_delay_secs"] == 1.0


def test_nothing_is_cleaned_that_is_not_flushed_or_not_replicated(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"min.cleanable.dirty.ratio": "0"}) as (manager, cleaner):
        log = manager[USERS]
        write(log, 60)
        bases = [segment.base_offset for segment in log.view.segments]
        log.recovery_point = bases[2]
        log.set_high_watermark(bases[1] + 1)
        (result,) = cleaner.clean_once()
        assert result.cleaned_end_offset == bases[1]
        log.set_high_watermark(None)
        (result,) = cleaner.clean_once()
        assert result.cleaned_end_offset == bases[2]
        log.flush()
        (result,) = cleaner.clean_once()
        assert result.cleaned_end_offset == bases[-1]


def test_the_filthiest_log_comes_first_and_small_ones_come_together(tmp_path: Path) -> None:
    engine = Jobs()
    with serving(tmp_path, lambda: engine, partitions=3) as (manager, cleaner):
        for number in range(3):
            write(manager["users", number], 60)
        cleaner.clean_once()
        assert [sorted(job) for job in engine.jobs] == [["users-0", "users-1", "users-2"]]
        write(manager["users", 2], 30, keys=30)
        write(manager["users", 1], 120, keys=30)
        cleaner.clean_once()
        assert engine.jobs[1:] == [["users-1", "users-2"]]


def test_large_logs_go_alone(tmp_path: Path) -> None:
    limits = RunLimits(whole_log_bytes=3000)
    with serving(tmp_path, partitions=3, limits=limits) as (manager, cleaner):
        for number, count in ((0, 20), (1, 60), (2, 90)):
            write(manager["users", number], count)
        sizes = [{result.partition for result in cleaner.clean_once()} for _ in range(4)]
        assert sorted(map(sorted, sizes)) == [[], [0], [1], [2]]


def test_logs_that_do_not_compact_are_left_alone(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"cleanup.policy": "delete"}) as (manager, cleaner):
        write(manager[USERS], 60)
        assert cleaner.clean_once() == []
        manager.topics.alter("users", {"cleanup.policy": "compact"})
        assert len(cleaner.clean_once()) == 1


def test_a_damaged_log_is_uncleanable_the_others_go_on_and_it_can_be_tried_again(tmp_path: Path) -> None:
    with serving(tmp_path, partitions=2) as (manager, cleaner):
        for number in range(2):
            write(manager["users", number], 60)
        segment = manager[USERS].view.segments[1].path()
        sound = segment.read_bytes()
        segment.write_bytes(sound[:150] + bytes([sound[150] ^ 1]) + sound[151:])
        results = {result.partition: result.status for result in cleaner.clean_once()}
        assert results == {0: UNCLEANABLE, 1: CLEANED}
        assert "checksum" in manager.uncleanable[USERS].reason
        assert cleaner.metrics()["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 1
        assert cleaner.metrics()["kafka_log_logcleanermanager_uncleanable_bytes"] == manager[USERS].size
        assert cleaner.clean_once() == []
    with serving(tmp_path) as (manager, cleaner):
        assert list(manager.uncleanable) == [USERS] and cleaner.clean_once() == []
        segment.write_bytes(sound)
        assert manager.retry_cleaning(USERS)
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]


def test_a_log_whose_first_header_is_damaged_is_uncleanable_and_the_others_go_on(tmp_path: Path) -> None:
    """Found when the logs are chosen, since ``max.compaction.lag.ms`` needs the first timestamp."""
    topic = {"max.compaction.lag.ms": str(DAY)}
    with serving(tmp_path, partitions=2, topic=topic) as (manager, _):
        for number in range(2):
            write(manager["users", number], 60)
        path = manager[USERS].view.segments[1].path()
    sound = path.read_bytes()
    path.write_bytes(sound[:16] + b"\x07" + sound[17:])  # the magic number
    with serving(tmp_path) as (manager, cleaner):
        assert [(result.partition, result.status) for result in cleaner.clean_once()] == [(1, CLEANED)]
        assert list(manager.uncleanable) == [USERS] and path.name in manager.uncleanable[USERS].reason
        assert cleaner.clean_once() == []
        path.write_bytes(sound)
        assert manager.retry_cleaning(USERS)
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]


def test_a_directory_whose_checkpoint_cannot_be_read_stops_no_other_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = ServedDirectory.cleaner_checkpoint
    with opened(tmp_path / "a", tmp_path / "b") as manager:
        manager.topics.create("users", 2, TOPIC)
        cleaner = LogCleaner(manager, InProcessEngine)
        for number in range(2):
            write(manager["users", number], 60)
        broken = manager.directory_of(USERS)

        def checkpoint(served: ServedDirectory) -> Mapping[TopicPartition, int]:
            if served is broken:
                raise PermissionError(13, "Permission denied")
            return read(served)

        with monkeypatch.context() as patch:
            patch.setattr(ServedDirectory, "cleaner_checkpoint", checkpoint)
            assert [result.partition for _ in range(5) for result in cleaner.clean_once()] == [1]
        assert caplog.text.count("users-0 cannot be chosen for cleaning: Permission denied") == 1
        assert manager.uncleanable == {} and manager.offline == {}
        assert [result.partition for result in cleaner.clean_once()] == [0]


def test_a_lost_engine_leaves_the_logs_and_the_next_round_has_another(tmp_path: Path) -> None:
    engines: list[Jobs] = []
    closed: list[Engine] = []

    def start() -> Jobs:
        engines.append(Jobs())
        if len(engines) < 3:
            engines[-1].errors = [
                EngineError("lost") if len(engines) == 1 else ConnectionRefusedError("Java")
            ]
        return engines[-1]

    with serving(tmp_path, partitions=2) as (manager, _):
        for number in range(2):
            write(manager["users", number], 60)
        before = [path.name for path in sorted(tmp_path.rglob("*"))]
        cleaner = LogCleaner(manager, start, stop_engine=closed.append)
        assert engines == []
        assert {result.status for result in cleaner.clean_once()} == {FAILED}
        assert [path.name for path in sorted(tmp_path.rglob("*"))] == before
        assert closed == engines and manager.uncleanable == {} and read_cleanings(tmp_path) == []
        assert [result.status for result in cleaner.clean_once()] == [FAILED]
        statuses = [result.status for _ in range(3) for result in cleaner.clean_once()]
        assert (statuses, len(engines)) == ([CLEANED, CLEANED], 3)
        assert engines[2].jobs == [["users-1"], ["users-0"]]
    assert closed == engines


def test_results_before_an_engine_that_does_not_start_again_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One log was cleaned, the next one lost the engine, and no other engine starts: the first counts, and so
    does what planning changed in the third."""
    monkeypatch.setattr("siltstone.compaction.inplace.execution.fits_one_task", lambda *_: False)
    works: list[str] = []

    class LostAtTheSecondLog(InProcessEngine):
        def clean_distributed(self, work: LogWork) -> LogReport:
            works.append(work.name)
            if len(works) == 2:
                raise ConnectionRefusedError("Java")
            return super().clean_distributed(work)

    def start() -> Engine:
        if works:
            raise EngineError("Java is missing")
        return LostAtTheSecondLog()

    caplog.set_level(logging.INFO, "siltstone")
    with serving(tmp_path, start, partitions=3) as (manager, cleaner):
        for number in range(3):
            write(manager["users", number], 60)
        (tmp_path / "users-2" / ".siltstone" / "20260101T000000Z-abcdef").mkdir(parents=True)
        results = {str(result.topic_partition): result.status for result in cleaner.clean_once()}
        assert results == {works[0]: CLEANED, works[1]: FAILED}
        assert [str(cleaning.result.topic_partition) for cleaning in cleaner.cleanings] == works
        assert [str(cleaning.result.topic_partition) for cleaning in read_cleanings(tmp_path)] == works[:1]
        assert manager.uncleanable == {}
    assert any("users-2" in line and ".siltstone" in line for line in caplog.messages)


def test_an_engine_that_does_not_start_makes_no_log_uncleanable(tmp_path: Path) -> None:
    def start() -> Engine:
        raise EngineError("Java is missing")

    with serving(tmp_path, start) as (manager, cleaner):
        write(manager[USERS], 60)
        for _ in range(MAX_FAILURES + 1):
            cleaner.clean_once()
        assert manager.uncleanable == {}


def test_internal_topics_are_cleaned_without_the_engine(tmp_path: Path) -> None:
    """A broker without Java, or one that has lost Spark, still cleans offsets and transactions."""

    def start() -> Engine:
        raise EngineError("Java is missing")

    with serving(tmp_path, start) as (manager, cleaner):
        for name in INTERNAL_TOPICS:
            manager.topics.create(name, config=manager.topics.describe("users").config)
            write(manager[name, 0], 60)
        write(manager[USERS], 60)
        results = [result for _ in range(4) for result in cleaner.clean_once()]
        cleaned = {result.topic for result in results if result.status == CLEANED}
        assert cleaned == INTERNAL_TOPICS
        assert manager.uncleanable == {}


def test_a_log_that_fails_repeatedly_is_uncleanable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 60)
        with monkeypatch.context() as patch:
            patch.setattr(files, "make_directory", full)
            statuses = [result.status for _ in range(MAX_FAILURES + 1) for result in cleaner.clean_once()]
        assert statuses == [FAILED] * MAX_FAILURES
        assert "No space left" in manager.uncleanable[USERS].reason


def test_a_cleaned_log_with_compact_and_delete_has_its_retention_at_once(tmp_path: Path) -> None:
    topic = {"cleanup.policy": "compact,delete", "retention.ms": str(MINUTE)}
    with serving(tmp_path, topic=topic) as (manager, cleaner):
        log = manager[USERS]
        write(log, 30, timestamp=NOW - 10 * MINUTE)
        write(log, 30)
        cleaner.clean_once()
        assert log.log_start_offset > 0
        assert {record.timestamp for record in driving.read_all(log) if record.offset < 30} <= {
            NOW - 10 * MINUTE
        }


def test_tombstones_of_an_idle_log_go_also_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(NOW)

    def tombstones(log: PartitionLog) -> int:
        return sum(record.value is None for record in driving.read_all(log))

    with serving(tmp_path, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        write(log, 5, value=None)
        write(log, 60, keys=60)
        cleaner.clean_once()
        assert tombstones(log) == 5 and cleaner.clean_once() == []
        clock.advance(DAY - 1)
        assert cleaner.clean_once() == []
        clock.advance(1)
        (result,) = cleaner.clean_once()
        assert (result.discarded.tombstones, tombstones(log)) == (5, 0)
        clock.advance(5 * DAY)
        assert cleaner.clean_once() == []
        write(log, 5, value=None)
        write(log, 120, keys=1000)
        cleaner.clean_once()
        assert tombstones(log) == 5
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        assert cleaner.clean_once() == []
        clock.advance(DAY)
        assert [result.discarded.tombstones for result in cleaner.clean_once()] == [5]
        assert cleaner.clean_once() == []


def test_tombstones_of_an_idle_log_are_tried_again_after_a_cleaning_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine was lost, or it was aborted: nothing but the passed horizon would choose such a log."""
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        write(log, 5, value=None)
        write(log, 60, keys=60)
        cleaner.clean_once()
        clock.advance(DAY)
        with monkeypatch.context() as lost:
            lost.setattr(cleaner, "_clean", lambda *_: [])
            assert cleaner.clean_once() == []
            assert cleaner.clean_once() == [], "not before the backoff"
        clock.advance(manager.config.integer("log.cleaner.backoff.ms"))
        assert [result.discarded.tombstones for result in cleaner.clean_once()] == [5]


def test_statistics_and_kafkas_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, cleaner), caplog.at_level(logging.INFO, "siltstone"):
        assert cleaner.metrics()["kafka_log_logcleanermanager_time_since_last_run_ms"] == 0
        write(manager[USERS], 60)
        (result,) = cleaner.clean_once()
        (cleaning,) = cleaner.cleanings
        assert cleaning.result is result and cleaning.began_ms == NOW
        assert 0 < cleaning.recopy_percent < 60
        assert result.discarded.superseded == result.records_before - result.records_after
        clock.advance(5000)
        metrics = cleaner.metrics()
        assert metrics["kafka_log_logcleanermanager_time_since_last_run_ms"] == 5000
        assert metrics["kafka_log_logcleaner_cleaner_recopy_percent"] == cleaning.recopy_percent
        assert metrics["kafka_log_logcleanermanager_max_dirty_percent"] == 100
    assert "Beginning cleaning of log users-0" in caplog.messages
    assert any(
        line.startswith("Log cleaner cleaned log users-0 (dirty section = [0, ") for line in caplog.messages
    )


def test_statistics_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaner.clean_once()
        clock.advance(3000)
        (before,), metrics = cleaner.cleanings, cleaner.metrics()
        assert read_cleanings(tmp_path)[0].result.bytes_after == before.result.bytes_after
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        (cleaning,) = cleaner.cleanings
        assert cleaning.began_ms == before.began_ms and cleaning.result.discarded == before.result.discarded
        clock.advance(2000)
        names = ("cleaner_recopy_percent", "max_clean_time_secs", "max_buffer_utilization_percent")
        for name in (f"kafka_log_logcleaner_{suffix}" for suffix in names):
            assert cleaner.metrics()[name] == pytest.approx(metrics[name], abs=1e-3)
        assert cleaner.metrics()["kafka_log_logcleanermanager_time_since_last_run_ms"] == 0
        assert cleaner.clean_once() == [] and len(read_cleanings(tmp_path)) == 1


def test_statistics_that_cannot_be_written_do_not_stop_the_cleaner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "siltstone"), serving(tmp_path) as (manager, cleaner):
        (tmp_path / CLEANINGS_FILE).mkdir()
        write(manager[USERS], 60)
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
        assert manager.offline == {} and len(cleaner.cleanings) == 1
    assert sum(CLEANINGS_FILE in line for line in caplog.messages) == 1


def changed(config: dict[str, str]) -> Config:
    return Config(parse_assignments([f"{key}={text}" for key, text in config.items()], "test"))


def test_the_cleaner_starts_if_enabled_with_the_configured_threads(tmp_path: Path) -> None:
    with serving(tmp_path, config={"log.cleaner.enable": "false"}) as (manager, cleaner):
        assert not cleaner.start() and not cleaner._threads
    config = {"log.cleaner.backoff.ms": "600000"}
    with serving(tmp_path, config=config) as (manager, cleaner):
        assert cleaner.start()
        assert sum(thread.is_alive() for thread in cleaner._threads.values()) == 1
        manager.update_config(changed({**config, "log.cleaner.threads": "3"}))
        assert sum(thread.is_alive() for thread in cleaner._threads.values()) == 3
        manager.update_config(changed({**config, "log.cleaner.threads": "1"}))
        for number in (1, 2):
            cleaner._threads[number].join(20)
        assert [number for number, thread in cleaner._threads.items() if thread.is_alive()] == [0]
        assert cleaner.metrics()["kafka_log_logcleaner_deadthreadcount"] == 0
    assert not any(thread.is_alive() for thread in cleaner._threads.values())


def test_a_changed_broker_setting_applies_to_the_next_round(tmp_path: Path) -> None:
    window_sizes: list[int] = []

    class Seeing(Jobs):
        def clean_whole(self, works):  # type: ignore[no-untyped-def]
            window_sizes.extend(work.limits.window_size for work in works)
            return super().clean_whole(works)

    with serving(tmp_path, Seeing) as (manager, cleaner):
        write(manager[USERS], 60)
        manager.update_config(changed({"log.cleaner.io.buffer.size": "8192"}))
        cleaner.clean_once()
    assert window_sizes == [8192]


def test_the_cleaner_sleeps_to_keep_to_its_bytes_per_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(LogCleaner, "_sleep", lambda self, seconds, number=0: rests.append(seconds))
    monkeypatch.setattr(pacing.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(pacing.Throttler, "maybe_throttle", lambda self, size: None)
    with serving(tmp_path, config={"log.cleaner.io.max.bytes.per.second": "1000"}) as (manager, cleaner):
        write(manager[USERS], 60)
        size = sum(segment.size for segment in manager[USERS].view.segments[:-1])
        cleaner.clean_once()
        assert len(rests) == 1 and 0.5 * 3 * size / 1000 < rests[0] <= 3 * size / 1000


def test_tasks_keep_to_their_share_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: set[float] = set()
    passed: list[int] = []

    class CountingThrottler(pacing.Throttler):
        def __init__(self, bytes_per_second: float) -> None:
            super().__init__(math.inf)
            shares.add(bytes_per_second)

        def maybe_throttle(self, size: int) -> None:
            passed.append(size)

    for module in (staging, work):
        monkeypatch.setattr(module, "Throttler", CountingThrottler)
    monkeypatch.setattr(LogCleaner, "_sleep", lambda self, seconds, number=0: None)
    limits = {"log.cleaner.io.max.bytes.per.second": "1000000", "log.cleaner.threads": "4"}
    with serving(tmp_path, config=limits) as (manager, cleaner):
        write(manager[USERS], 60)
        size = sum(segment.size for segment in manager[USERS].view.segments[:-1])
        cleaner.clean_once()
        size_after = sum(segment.size for segment in manager[USERS].view.segments[:-1])
    assert shares == {1000000 / 4}
    assert sum(passed) == 2 * size + 2 * size_after, "read twice, written, read back"


def test_topics_that_are_made_later_are_cleaned_too(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        manager.topics.create("more", config={"cleanup.policy": "compact", "segment.bytes": "1000"})
        write(manager["more", 0], 60)
        assert [result.topic_partition for result in cleaner.clean_once()] == [TopicPartition("more", 0)]
