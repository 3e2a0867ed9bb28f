"""Counts from batch headers: exact, kept for closed segments, counted on for the active one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.commands.counting import SegmentCounter, SegmentCounts, sum_of
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.log.reading import LogReader
from tests.support import golden_sets
from tests.support.cleaning.serving import USERS, TransactionalWriter, serving, write
from tests.support.golden.sets import CLEANED, OLD_FORMATS, one_of_each_kind
from tests.support.log.managed import NOW


def records_of(log: ReadableLog) -> int:
    """By reading all of them, markers too."""
    reader = LogReader(log)
    reader.control_records = True
    return sum(len(polled) for polled in reader)


def bytes_read_by(counter: SegmentCounter, log: ReadableLog) -> int:
    before = files.bytes_read()
    counter.counts_of(log)
    return files.bytes_read() - before


@pytest.mark.parametrize("name", one_of_each_kind(CLEANED))
def test_counts_are_those_of_kafkas_reader(golden: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(golden, name)
    round_ = case.rounds[-1]
    root = golden_sets.stage_round(case, round_, tmp_path / "log")
    log = ReadOnlyLogs([root], clock=ManualClock(NOW))[TopicPartition(case.topic, case.partition)]
    counter = SegmentCounter()
    stored = sum(line["t"] == "rec" for line in golden_sets.read_records(round_.records_before))
    assert counter.records_of(log) == stored > 0
    assert counter.records_of(log, bytes_max=0) == stored, "all of it is kept"


@pytest.mark.parametrize("name", one_of_each_kind(OLD_FORMATS))
def test_counts_of_old_formats_are_those_of_a_reader(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    root = golden_sets.stage_round(case, case.rounds[0], tmp_path / "log")
    log = ReadOnlyLogs([root], clock=ManualClock(NOW))[TopicPartition(case.topic, case.partition)]
    assert SegmentCounter().records_of(log) == records_of(log) > 0


def test_a_closed_segment_is_read_once_and_the_active_one_is_counted_on(tmp_path: Path) -> None:
    counter = SegmentCounter()
    with serving(tmp_path, topic={"segment.bytes": "4000"}) as (manager, cleaner):
        log = manager[USERS]
        write(log, 100)
        first = bytes_read_by(counter, log)
        assert counter.records_of(log) == 100
        again = bytes_read_by(counter, log)
        assert again < first / 4, "only the last batch of the active segment is compared"
        write(log, 1)
        assert bytes_read_by(counter, log) < first / 4 and counter.records_of(log) == 101
        log.roll()
        write(log, 2)
        assert counter.records_of(log) == 103
        manager.flush()
        cleaner.clean_once()
        assert counter.records_of(log) == records_of(log) < 103
        assert [counts is not None for counts in counter.counts_of(log)] == [True] * len(log.view.segments)


def test_a_truncated_log_that_has_grown_again_is_counted_anew(tmp_path: Path) -> None:
    counter = SegmentCounter()
    with serving(tmp_path, topic={"segment.bytes": "100000"}) as (manager, _):
        log = manager[USERS]
        write(log, 10)
        assert counter.records_of(log) == 10
        log.truncate_to(2)
        for size in (b"v" * 10, b"v" * 500):
            write(log, 3, value=size)
            assert counter.records_of(log) == records_of(log)


def test_counts_have_markers_horizons_and_codecs(tmp_path: Path) -> None:
    counter = SegmentCounter()
    with serving(tmp_path, topic={"compression.type": "zstd"}) as (manager, cleaner):
        log, writer = manager[USERS], TransactionalWriter(manager[USERS], 7)
        write(log, 1, value=None)
        writer.put("a", "b")
        writer.end(commit=True)
        log.roll()
        manager.flush()
        before = sum_of(counts for counts in counter.counts_of(log) if counts is not None)
        assert (before.records, before.markers, before.stamped_batches) == (3, 1, 0)
        assert "zstd" in before.codecs and before.newest_horizon_ms is None
        cleaner.clean_once()
        after = sum_of(counts for counts in counter.counts_of(log) if counts is not None)
        horizon = NOW + 86_400_000
        assert (after.stamped_batches, after.oldest_horizon_ms, after.newest_horizon_ms) == (
            1,
            horizon,
            horizon,
        )


def test_bytes_and_memory_are_bounded_and_damage_is_unknown(tmp_path: Path) -> None:
    counter = SegmentCounter(cached_max=2)
    with serving(tmp_path) as (manager, _):
        log = manager[USERS]
        write(log, 60)
        counts = counter.counts_of(log, bytes_max=log.view.segments[0].size)
        assert counts[0] is not None and counts.count(None) == len(counts) - 1
        counter.counts_of(log)
        assert len(counter._cached) == 2
        damaged = log.view.segments[1].path()
    data = bytearray(damaged.read_bytes())
    data[16] = 99
    damaged.write_bytes(data)
    looked = ReadOnlyLogs([tmp_path], clock=ManualClock(NOW))[USERS]
    counts = SegmentCounter().counts_of(looked)
    assert counts[1] is None and counts[0] is not None and SegmentCounter().records_of(looked) is None
    os.unlink(looked.view.segments[0].path())
    assert SegmentCounter().counts_of(looked)[0] is None


def test_sums_take_the_extremes_of_horizons() -> None:
    parts = [
        SegmentCounts(records=1, codecs=("none",), oldest_horizon_ms=5, newest_horizon_ms=9),
        SegmentCounts(records=2, codecs=("none", "gzip")),
        SegmentCounts(records=3, oldest_horizon_ms=3, newest_horizon_ms=7),
    ]
    total = sum_of(parts)
    assert (total.records, total.codecs) == (6, ("none", "gzip"))
    assert (total.oldest_horizon_ms, total.newest_horizon_ms) == (3, 9)


@pytest.mark.parametrize("name", ["v0_basic", "v1_gzip"])
def test_a_message_set_that_is_written_now_is_left_out(cleaned: Path, tmp_path: Path, name: str) -> None:
    """In look mode a file may end within a message set. The whole ones before it are counted."""
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    root = golden_sets.stage_round(case, case.rounds[0], tmp_path / "log")
    log = ReadOnlyLogs([root], clock=ManualClock(NOW))[TopicPartition(case.topic, case.partition)]
    counter, stored = SegmentCounter(), records_of(log)
    with open(log.view.segments[-1].path(), "ab") as file:
        file.write(bytes(11) + b"\x40")
    assert counter.records_stored(log.directory, lambda size: True).records == stored
    assert counter.records_stored(log.directory, lambda size: True).records == stored
