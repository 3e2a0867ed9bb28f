"""Which segments go: the rules by hand, and on what a real broker's retention left of its own logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, LogConfig, parse_assignments
from siltstone.base.errors import InvalidConfigError, PolicyViolationError
from siltstone.log import retention
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog, open_partition, run_now
from siltstone.log.retention import (
    Deletion,
    SegmentMetadata,
    deletions_by_age,
    deletions_by_size,
    segment_metadata,
    segments_to_delete,
)
from siltstone.runtime.manager import LogManager
from tests.support import golden_sets
from tests.support.errors import raises_error
from tests.support.log.managed import append

DAY = 86_400_000
DELETES = LogConfig(retention_ms=-1)
ENDLESS = 1 << 62


def segments(
    *sizes: int, bases: Sequence[int] = (), times: Sequence[int] = ()
) -> tuple[SegmentMetadata, ...]:
    """Segments of ten records each unless ``bases`` say otherwise; the last one is active."""
    starts = list(bases) or [10 * number for number in range(len(sizes))]
    ends = [*starts[1:], starts[-1] + 10]
    return tuple(
        SegmentMetadata(
            base_offset=start,
            end_offset=end,
            size=size,
            largest_timestamp=times[number] if times else 0,
            is_active=number + 1 == len(sizes),
        )
        for number, (start, end, size) in enumerate(zip(starts, ends, sizes, strict=True))
    )


def count(metadata: Sequence[SegmentMetadata], now_ms: int = 0, **options: object) -> int:
    """How many segments are deleted."""
    choices = {"config": DELETES, "log_start_offset": 0, "high_watermark": ENDLESS, **options}
    return len(segments_to_delete(metadata, now_ms=now_ms, **choices))  # type: ignore[arg-type]


def test_worked_example_9_log_start() -> None:
    metadata = segments(100, 100, 100, bases=[0, 11, 23])
    decisions = segments_to_delete(metadata, now_ms=0, config=DELETES, log_start_offset=25, high_watermark=30)
    assert [decision.base_offset for decision in decisions] == [0, 11]
    assert decisions[0].reason == "below the log start offset 25"


@pytest.mark.parametrize("policies", [("compact",), ("delete",), ("compact", "delete"), ()])
def test_segments_below_the_log_start_are_deleted_first_under_any_policy(policies: tuple[str, ...]) -> None:
    config = LogConfig(policies=policies, retention_ms=DAY, retention_bytes=0)
    metadata = segments(100, 100, 100, bases=[0, 11, 23])
    decisions = segments_to_delete(
        metadata, now_ms=2 * DAY, config=config, log_start_offset=12, high_watermark=33
    )
    assert decisions[0] == Deletion(base_offset=0, reason="below the log start offset 12")
    assert len(decisions) == (3 if "delete" in policies else 1)


def test_the_active_segment_is_not_below_its_own_start() -> None:
    assert count(segments(100, 100, bases=[0, 10]), log_start_offset=20) == 1


@pytest.mark.parametrize(
    ("limit", "deleted"),
    [(-1, 0), (301, 0), (300, 0), (299, 0), (201, 0), (200, 1), (199, 1), (101, 1), (100, 2), (1, 2), (0, 3)],
)
def test_retention_by_size_never_goes_below_the_limit(limit: int, deleted: int) -> None:
    assert len(deletions_by_size(segments(100, 100, 100), limit)) == deleted


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9), st.integers(0, 5000))
def test_retention_by_size_deletes_as_many_segments_as_the_limit_allows(sizes: list[int], limit: int) -> None:
    going = len(deletions_by_size(segments(*sizes), limit))
    assert going == 0 or sum(sizes[going:]) >= limit
    assert going == len(sizes) or sum(sizes) < limit or sum(sizes[going + 1 :]) < limit


def test_retention_by_age_is_strict_and_deletes_a_prefix() -> None:
    metadata = segments(9, 9, 9, 9, times=[100, 101, 300, 100])
    assert len(deletions_by_age(metadata, 200, 100)) == 0
    assert len(deletions_by_age(metadata, 201, 100)) == 1
    assert len(deletions_by_age(metadata, 202, 100)) == 2
    assert len(deletions_by_age(metadata, 401, 100)) == 4
    assert deletions_by_age(metadata, 1 << 60, -1) == []


def test_a_segment_that_a_cleaning_emptied_is_deleted_with_the_next_one() -> None:
    metadata = segments(0, 9, 0, 9, times=[1000, 100, 1000, 1000])
    assert len(deletions_by_age(metadata, 300, 100)) == 2
    assert len(deletions_by_age(segments(0, 9, 9, times=[1000, 1000, 0]), 300, 100)) == 0
    assert len(deletions_by_age(segments(0, 9, times=[100, 1000]), 300, 100)) == 1


def test_nothing_at_or_above_the_high_watermark() -> None:
    config = LogConfig(retention_ms=0)
    metadata = segments(9, 9, 9)
    assert [count(metadata, 1, config=config, high_watermark=mark) for mark in (9, 10, 19, 29, 30)] == [
        0,
        1,
        1,
        2,
        3,
    ]


def test_an_empty_active_segment_stays() -> None:
    config = LogConfig(retention_ms=0)
    assert count(segments(9, 0), 1, config=config) == 1
    assert count(segments(0), 1, config=config) == 0


def test_worked_example_13_policies() -> None:
    """The record at offset 5 is the last of its key and over age: retention takes it under two policies."""
    metadata = segments(100, 100, bases=[0, 6], times=[5, 1000])
    deleted = {
        policies: count(metadata, 1000, config=LogConfig(policies=policies, retention_ms=100))
        for policies in (("delete",), ("compact",), ("compact", "delete"))
    }
    assert deleted == {("delete",): 1, ("compact",): 0, ("compact", "delete"): 1}


# Policies by name


@pytest.fixture
def policies() -> Iterator[None]:
    before = dict(retention._policies)
    yield
    retention._policies.clear()
    retention._policies.update(before)


@pytest.mark.usefixtures("policies")
def test_a_registered_policy_decides() -> None:
    calls = []

    def keep_two(metadata: Sequence[SegmentMetadata], now_ms: int, config: LogConfig) -> int:
        calls.append((len(metadata), now_ms, config.retention_policy))
        return len(metadata) - 2

    retention.register_policy("keep-two", keep_two)
    config = LogConfig(retention_policy="keep-two")
    metadata = segments(9, 9, 9, 9, 9)
    decisions = segments_to_delete(metadata, now_ms=7, config=config, log_start_offset=10, high_watermark=50)
    assert [decision.reason for decision in decisions] == [
        "below the log start offset 10",
        "policy keep-two",
        "policy keep-two",
    ]
    assert calls == [(4, 7, "keep-two")]
    assert count(metadata, config=replace(config, policies=("compact",))) == 0 and len(calls) == 1
    assert count(segments(9), config=config) == 0


@pytest.mark.usefixtures("policies")
def test_reasons_of_a_policy_and_only_a_prefix() -> None:
    def odd(metadata: Sequence[SegmentMetadata], now_ms: int, config: LogConfig) -> Iterable[Deletion]:
        return (Deletion(base_offset=base, reason=f"odd {base}") for base in (30, 0, 10, 99))

    retention.register_policy("odd", odd)
    config = LogConfig(retention_policy="odd")
    decisions = segments_to_delete(
        segments(9, 9, 9, 9), now_ms=0, config=config, log_start_offset=0, high_watermark=99
    )
    assert [decision.reason for decision in decisions] == ["odd 0", "odd 10"]


def test_an_unknown_policy_is_refused_with_the_names_of_the_others() -> None:
    with raises_error(InvalidConfigError, about="siltstone.retention.policy=kafak", advice="kafka"):
        count(segments(9), config=LogConfig(retention_policy="kafak"))


# On open logs


def grown(tmp_path: Path, config: LogConfig, clock: ManualClock, times: Iterable[int]) -> PartitionLog:
    """A log with one record a segment, at these times."""
    log = open_partition(tmp_path / "topic-0", config, clock)
    for number, time in enumerate(times):
        if number:
            log.roll()
        append(log, 1, time)
    return log


def test_worked_example_10_touch(tmp_path: Path) -> None:
    """The time index decides where it has an entry; the file's own time where it has none."""
    clock = ManualClock(1_000 * DAY)
    config = LogConfig(retention_ms=DAY, message_timestamp_before_max_ms=1 << 62)
    log = grown(tmp_path, config, clock, [900 * DAY, -1, 999 * DAY, 1_000 * DAY])
    log.close()
    for base, day in ((0, 1_000), (1, 998), (2, 1)):
        path = tmp_path / "topic-0" / f"{base:020d}.log"
        os.utime(path, ns=(day * DAY * 1_000_000, day * DAY * 1_000_000))
    log = open_partition(tmp_path / "topic-0", config, clock, had_clean_shutdown=True, recovery_point=4)
    facts = segment_metadata(log.view)
    assert [fact.largest_timestamp // DAY for fact in facts] == [900, 998, 999, 1_000]
    assert len(deletions_by_age(facts, clock.now_ms(), DAY)) == 2
    assert len(deletions_by_age(facts, clock.now_ms() + 1, DAY)) == 3
    log.close()


def test_worked_example_12_all_expired(tmp_path: Path) -> None:
    clock = ManualClock(10 * DAY)
    log = grown(tmp_path, LogConfig(retention_ms=DAY), clock, [10 * DAY] * 3)
    clock.advance(2 * DAY)
    view = log.view
    assert (
        log.delete_oldest_segments(
            lambda now: len(deletions_by_age(segment_metadata(now), clock.now_ms(), DAY))
        )
        != []
    )
    assert [segment.base_offset for segment in log.view.segments] == [3]
    assert (log.log_start_offset, log.log_end_offset, log.size) == (3, 3, 0)
    assert view.segments[0].reader.read(0, 8) == bytes(8), "who holds the old view reads on"
    log.close()


def test_a_log_whose_segments_are_all_deleted_begins_a_new_one_at_the_same_offset(tmp_path: Path) -> None:
    clock = ManualClock(10 * DAY)
    settings = {"log.retention.bytes": "0", "log.retention.ms": "-1"}
    config = Config(parse_assignments([f"{key}={text}" for key, text in settings.items()], "test"))
    with LogManager.open([tmp_path], config=config, clock=clock, background=run_now) as manager:
        log = manager.get_or_create(TopicPartition("topic", 0))
        append(log, 3, 10 * DAY)
        assert manager.upkeep.delete_old_segments()
        assert (bases(log), log.log_start_offset, log.log_end_offset, log.size) == ([3], 3, 3, 0)
        assert not manager.upkeep.delete_old_segments(), "an empty active segment stays"
        assert append(log, 1, 10 * DAY) is not None and log.log_end_offset == 4


# What a real broker's retention left


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.view.segments]


def golden_log(case: golden_sets.Case, round_: golden_sets.Round, directory: Path, now_ms: int) -> LogManager:
    golden_sets.stage_round(case, round_, directory)
    config = Config(parse_assignments([f"{key}={text}" for key, text in round_.config.items()], "case.json"))
    return LogManager.open([directory], config=config, clock=ManualClock(now_ms), background=run_now)


def kafkas(round_: golden_sets.Round) -> list[int]:
    return sorted(
        int(item["file"][:20]) for item in round_.raw["listing_after"] if item["file"].endswith(".log")
    )


@pytest.mark.parametrize("clock", ["act_started_ms", "act_ended_ms"])
@pytest.mark.parametrize(
    "name",
    "retention_bytes retention_ms retention_ms_all compact_delete_ms compact_then_delete_ms2 "
    "delete_records_delete delete_records_compact".split(),
)
def test_segments_that_a_broker_retained_are_retained(
    golden: Path, tmp_path: Path, name: str, clock: str
) -> None:
    case = golden_sets.load_case(golden, name)
    round_ = case.rounds[0]
    directory = TopicPartition(case.topic, case.partition)
    with golden_log(case, round_, tmp_path, round_.raw[clock]) as manager:
        log = manager[directory]
        before, end = bases(log), log.log_end_offset
        if name == "delete_records_delete":
            assert manager.delete_records(directory, round_.raw["note"]["delete_records_to"]) == 361
        deletions = manager.upkeep.delete_old_segments()
        assert bases(log) == kafkas(round_)
        assert log.log_start_offset == round_.raw["log_start_after"]
        assert log.log_end_offset == end
        deleted = [decision.base_offset for decision in deletions.get(str(directory), ())]
        assert deleted == [base for base in before if base not in kafkas(round_)]
    assert golden_sets.read_checkpoint(tmp_path / "log-start-offset-checkpoint").get(
        (case.topic, case.partition)
    ) == round_.checkpoints_after.get("log-start-offset-checkpoint")
    for name_, entry in round_.checkpoints_after.items():
        if name_ in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            checkpoint = golden_sets.read_checkpoint(tmp_path / name_)
            assert checkpoint[case.topic, case.partition] == entry


def test_what_kafka_retained_is_retained(golden: Path, tmp_path: Path) -> None:
    """Kafka's results lose no more segments, but where an emptied segment held expired ones back."""
    held_back = {}
    for name in golden_sets.case_names(golden):
        case = golden_sets.load_case(golden, name)
        round_ = case.rounds[-1]
        if round_.after is None or "delete" not in round_.config["cleanup.policy"]:
            continue
        now_ms = round_.raw["act_ended_ms"]
        after = replace(round_, before=round_.after, mtimes_before_ms=_times(round_))
        with golden_log(case, after, tmp_path / name, now_ms) as manager:
            log = manager[case.topic, case.partition]
            before = bases(log)
            manager.upkeep.delete_old_segments()
            if bases(log) != before:
                held_back[name] = sorted(set(before) - set(bases(log)))
    assert held_back == {"compact_then_delete_ms": [0, 173]}


def _times(round_: golden_sets.Round) -> dict[str, int]:
    return {item["file"]: item["mtime_ms"] for item in round_.raw["listing_after"]}


def test_delete_records_on_a_compacted_topic(golden: Path, tmp_path: Path) -> None:
    case = golden_sets.load_case(golden, "delete_records_compact")
    with golden_log(case, case.rounds[0], tmp_path, 0) as manager:
        with pytest.raises(PolicyViolationError):
            manager.delete_records(TopicPartition(case.topic, 0), 300)
        assert manager[case.topic, 0].log_start_offset == 219


def test_delete_records_inside_a_cleaned_segment(golden: Path, tmp_path: Path) -> None:
    case = golden_sets.load_case(golden, "delete_records_compact2")
    first, second = case.rounds
    with golden_log(case, first, tmp_path / "1", first.raw["act_ended_ms"]) as manager:
        directory = TopicPartition(case.topic, 0)
        assert manager.delete_records(directory, second.raw["note"]["delete_records_to"]) == 165
        assert golden_sets.read_checkpoint(tmp_path / "1" / "log-start-offset-checkpoint") == {
            (case.topic, 0): 165
        }
        manager.upkeep.delete_old_segments()
        assert bases(manager[directory])[0] == 0
    with golden_log(case, second, tmp_path / "2", second.raw["act_ended_ms"]) as manager:
        assert manager[case.topic, 0].log_start_offset == second.raw["log_start_before"]
