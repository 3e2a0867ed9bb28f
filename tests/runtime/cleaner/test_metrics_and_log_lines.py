"""What can be measured of a manager with a cleaner, and what that tells, by Kafka's names and words."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from siltstone.base.clock import ManualClock
from siltstone.base.errors import EngineError
from siltstone.commands.metrics import openmetrics_text, prometheus_text
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.log.names import TopicPartition
from siltstone.runtime.cleaner_metrics import UNCLEANABLE_BYTES, UNCLEANABLE_COUNT
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample
from tests.support.cleaning.serving import SOON, USERS, Blocking, in_background, joined, serving, write
from tests.support.log.managed import NOW, opened

LOG_NAMES = {
    f"kafka_log_log_{suffix}" for suffix in ("size", "numlogsegments", "logstartoffset", "logendoffset")
}
CLEANER_NAMES = {
    "kafka_log_logcleaner_max_buffer_utilization_percent",
    "kafka_log_logcleaner_cleaner_recopy_percent",
    "kafka_log_logcleaner_max_clean_time_secs",
    "kafka_log_logcleaner_max_compaction_delay_secs",
    "kafka_log_logcleaner_deadthreadcount",
    "kafka_log_logcleanermanager_max_dirty_percent",
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    UNCLEANABLE_COUNT,
    UNCLEANABLE_BYTES,
    "siltstone_cleaner_cleanings_total",
    "siltstone_cleaner_removed_records_total",
    "siltstone_cleaner_reclaimed_bytes_total",
    "siltstone_cleaner_seconds",
    "siltstone_cleaner_last_success_timestamp_seconds",
    "siltstone_cleaner_engine_up",
}


def value(samples: list[Sample], name: str, **labels: str) -> float:
    (sample,) = [sample for sample in samples if sample.name == name and dict(sample.labels) == labels]
    return sample.value


def test_each_log_is_measured_by_kafkas_four_names(tmp_path: Path) -> None:
    topic = {"cleanup.policy": "compact,delete"}
    with serving(tmp_path, topic=topic, partitions=2) as (manager, _):
        log = manager[USERS]
        write(log, 60)
        manager.delete_records(USERS, 7)
        samples, topic_partition = manager.samples(), {"topic": "users", "partition": "0"}
        on_disk = sum(path.stat().st_size for path in (tmp_path / "users-0").glob("*.log"))
        assert value(samples, "kafka_log_log_size", **topic_partition) == on_disk > 0
        assert value(samples, "kafka_log_log_numlogsegments", **topic_partition) == len(log.view.segments)
        assert value(samples, "kafka_log_log_logstartoffset", **topic_partition) == 7
        assert value(samples, "kafka_log_log_logendoffset", **topic_partition) == 60
        assert value(samples, "kafka_log_log_logendoffset", topic="users", partition="1") == 0


def test_all_names_are_kafkas_and_each_has_one_help(tmp_path: Path) -> None:
    with serving(tmp_path, partitions=2) as (manager, cleaner):
        samples = manager.samples()
        directories = {
            "kafka_log_logmanager_offlinelogdirectorycount",
            "kafka_log_logmanager_logdirectoryoffline",
            "siltstone_directory_free_bytes",
            "siltstone_directory_used_bytes",
        }
        assert {sample.name for sample in samples} == LOG_NAMES | CLEANER_NAMES | directories
        assert cleaner.metrics().keys() == CLEANER_NAMES
        for name in {sample.name for sample in samples}:
            (meaning,) = {sample.help for sample in samples if sample.name == name}
            assert meaning.endswith(".")


def test_a_manager_without_a_cleaner_has_none_of_its_gauges(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        assert not [sample for sample in manager.samples() if "cleaner" in sample.name]


def test_uncleanable_is_counted_for_each_directory_and_offline_ones_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with LogManager.open(paths, clock=ManualClock(NOW)) as manager, serving(tmp_path / "other") as (_, other):
        manager.topics.create("users", 2, {"segment.bytes": "1000", "cleanup.policy": "compact"})
        manager.services.append(other)
        other._manager.services.remove(other)
        other._manager = manager
        for number in range(2):
            write(manager["users", number], 20)
        held = {topic_partition: manager.directory_of(topic_partition).path for topic_partition in manager}
        manager.mark_uncleanable(USERS, "damaged", NOW)
        samples = manager.samples()
        own_directory, other_directory = str(held[USERS]), str(held[TopicPartition("users", 1)])
        assert value(samples, UNCLEANABLE_COUNT, logDirectory=own_directory) == 1
        assert value(samples, UNCLEANABLE_BYTES, logDirectory=own_directory) == manager[USERS].size
        assert value(samples, UNCLEANABLE_COUNT, logDirectory=other_directory) == 0
        manager.directory_of(USERS).go_offline("the disk failed")
        samples = manager.samples()
        assert value(samples, "kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert value(samples, "kafka_log_logmanager_logdirectoryoffline", logDirectory=own_directory) == 1
        assert value(samples, "kafka_log_logmanager_logdirectoryoffline", logDirectory=other_directory) == 0
        assert {sample.labels["partition"] for sample in samples if sample.name == "kafka_log_log_size"} == {
            "1"
        }


@pytest.mark.parametrize(
    ("write_page", "parse"),
    [(prometheus_text, text_string_to_metric_families), (openmetrics_text, openmetrics_families)],
    ids=["prometheus", "openmetrics"],
)
def test_a_scraper_reads_the_page_as_it_was_measured(
    tmp_path: Path,
    write_page: Callable[[list[Sample]], bytes],
    parse: Callable[[str], Iterable[Metric]],
) -> None:
    with serving(tmp_path, partitions=2) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaner.clean_once()
        samples = manager.samples()
    page = write_page(samples).decode()
    families = {family.name: family for family in parse(page)}
    read = {(s.name, *sorted(s.labels.items())): s.value for f in families.values() for s in f.samples}
    for sample in samples:
        family = families[sample.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (sample.kind, sample.help)
        if sample.kind == "histogram":
            assert read[(f"{sample.name}_count",)] == read[(f"{sample.name}_bucket", ("le", "+Inf"))] == 1
            assert read[(f"{sample.name}_sum",)] == sample.value
        else:
            assert read[(sample.name, *sorted(sample.labels.items()))] == sample.value
    assert page.count("# TYPE kafka_log_log_size ") == 1


def test_the_cleaners_own_metrics_count_since_the_start(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        write(manager[USERS], 60)
        before = manager[USERS].size
        (first,) = cleaner.clean_once()
        write(manager[USERS], 60)
        (second,) = cleaner.clean_once()
        samples = cleaner.samples()
    removed = first.discarded.superseded + second.discarded.superseded
    assert before > first.bytes_after and removed > 0
    assert value(samples, "siltstone_cleaner_cleanings_total", status="cleaned") == 2
    assert value(samples, "siltstone_cleaner_removed_records_total", reason="superseded") == removed
    assert value(samples, "siltstone_cleaner_removed_records_total", reason="tombstones") == 0
    freed = sum(result.bytes_before - result.bytes_after for result in (first, second))
    assert value(samples, "siltstone_cleaner_reclaimed_bytes_total") == freed
    assert value(samples, "siltstone_cleaner_seconds") == pytest.approx(first.seconds + second.seconds)
    last = value(samples, "siltstone_cleaner_last_success_timestamp_seconds")
    assert last == pytest.approx(NOW / 1000 + second.seconds, abs=0.002)
    assert value(samples, "siltstone_cleaner_engine_up") == 1
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        samples = cleaner.samples()
        assert value(samples, "siltstone_cleaner_cleanings_total", status="cleaned") == 0
        assert value(samples, "siltstone_cleaner_last_success_timestamp_seconds") == last


def test_an_engine_that_does_not_start_is_down_until_it_does(tmp_path: Path) -> None:
    starts = iter([EngineError("no Java"), InProcessEngine()])

    def start() -> InProcessEngine:
        engine = next(starts)
        if isinstance(engine, EngineError):
            raise engine
        return engine

    with serving(tmp_path) as (manager, _own):
        cleaner = LogCleaner(manager, start)
        write(manager[USERS], 60)
        cleaner.clean_once()
        assert value(cleaner.samples(), "siltstone_cleaner_engine_up") == 0
        cleaner.clean_once()
        assert value(cleaner.samples(), "siltstone_cleaner_engine_up") == 1
        cleaner.close()


def test_labels_are_quoted(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ path\nover two lines'
    sample = Sample(name="kafka_log_x", value=1.5, help="Help.", labels={"logDirectory": odd})
    ((family),) = text_string_to_metric_families(prometheus_text([sample]).decode())
    assert family.samples[0].labels == {"logDirectory": odd}


def test_log_lines_follow_a_cleaning_from_its_beginning_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(NOW)
    with caplog.at_level(logging.INFO, "siltstone"), serving(tmp_path, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        write(log, 5, value=None)
        write(log, 60, keys=60)
        active, count = log.view.segments[-1].base_offset, len(log.view.segments) - 1
        size = sum(segment.size for segment in log.view.segments[:-1])
        cleaner.clean_once()
        first = [record.getMessage() for record in caplog.records if record.name == "siltstone.cleaner"]
        caplog.clear()
        clock.advance(2 * 24 * 3600 * 1000)
        cleaner.clean_once()
        second = [record.getMessage() for record in caplog.records if record.name == "siltstone.cleaner"]
    assert first[:3] == [
        "Beginning cleaning of log users-0",
        f"Building offset map for log users-0 for {count} segments in offset range [0, {active}); "
        f"dirty ratio 1.000, {size} bytes",
        f"Cleaning log users-0 (cleaning prior to {active})",
    ]
    assert first[3].startswith(
        f"Log cleaner cleaned log users-0 (dirty section = [0, {active}]): "
    ) and re.search(r"MB of log processed in [\d.]+ seconds \([\d.]+ MB/sec\), end size", first[3])
    assert second[:2] == [
        "Beginning cleaning of log users-0",
        f"Cleaning log users-0 (cleaning prior to {active}, for its tombstones)",
    ]
    assert second[2] == "Log users-0: the delete horizons of all its tombstones have passed"
    assert second[3].endswith("removed: 5 tombstones")


def test_a_log_line_has_the_reason_of_an_uncleanable_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "siltstone.cleaner"), serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 60)
        segment = manager[USERS].view.segments[1].path()
        raw = segment.read_bytes()
        segment.write_bytes(raw[:150] + bytes([raw[150] ^ 1]) + raw[151:])
        cleaner.clean_once()
        reason = manager.uncleanable[USERS].reason
    (line,) = caplog.messages
    assert line == (
        f"Unexpected exception thrown when cleaning log {tmp_path / 'users-0'}. "
        f"Marking its partition (users-0) as uncleanable: {reason}"
    )


def test_log_lines_tell_abort_pause_and_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Blocking()
    with caplog.at_level(logging.DEBUG, "siltstone"), serving(tmp_path, lambda: engine) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaning = in_background(cleaner.clean_once)
        assert engine.staged.wait(SOON)
        manager.topics.alter("users", {"cleanup.policy": "delete"})
        engine.go_on.set()
        joined(cleaning)
        manager.cleaning_states.abort_and_pause(USERS)
        manager.cleaning_states.resume(USERS)
        manager.topics.alter("users", {"cleanup.policy": "compact"})
    messages = [record.getMessage() for record in caplog.records if record.name == "siltstone.cleaner"]
    expected = [
        "The cleaning for partition users-0 is aborted and paused",
        "Cleaning of log users-0 was aborted",
        "Pauses of the cleaning for partition users-0: 2",
        "Pauses of the cleaning for partition users-0: 1",
        "The cleaning for partition users-0 is resumed",
    ]
    assert [line for line in messages if line in expected] == expected


def test_log_lines_tell_the_start_the_end_and_a_dead_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fatal(BaseException):
        pass

    def start() -> Engine:
        raise Fatal("out of luck")

    with caplog.at_level(logging.INFO, "siltstone"), serving(tmp_path, start) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaner.start()
        joined(cleaner._threads[0])
        samples = manager.samples()
        assert value(samples, "kafka_log_logcleaner_deadthreadcount") == 1
    assert "Starting the log cleaner" in caplog.messages
    assert caplog.messages.count("Shutting down the log cleaner") == 1
    (dead,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert dead.getMessage().startswith("[siltstone-log-cleaner-0]: Error due to")
    assert dead.exc_info is not None and dead.exc_info[0] is Fatal
