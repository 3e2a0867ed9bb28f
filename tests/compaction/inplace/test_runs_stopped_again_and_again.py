"""Runs that are stopped at the first moment, again and again: each one changes something, does to its groups
what the oracle says of the log as it is then, and in the end the log is as after one run.

The cleaner checkpoint moves with the last of them only. So each run begins at the same first dirty offset,
and makes its map of a dirty section of which some groups are cleaned already.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions, plan_log
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, SKIPPED, LogResult
from siltstone.compaction.work import LogWork
from siltstone.log.directory import LogDirectory
from tests.support import in_memory
from tests.support.cleaning import judging, logs, oracle, transactional, waves
from tests.support.cleaning.lives import Life, Living, lives
from tests.support.cleaning.logs import DAY, NOW
from tests.support.cleaning.naive import read_partition
from tests.support.cleaning.open_transactions import ROUND, committed, table, write
from tests.support.cleaning.random_logs import RandomLog, random_logs
from tests.support.cleaning.transactional import data, marker
from tests.support.records import twin
from tests.support.thoroughness import examples, few

WINDOW = RunLimits(whole_log_bytes=0, wave_bytes=1, stop_after_seconds=0.0)
"""A group at a time, and no time for a second one that changes something."""
WHOLE = RunLimits(whole_log_bytes=0)
MAX_RUNS = 60
STOPPED = re.compile(r"stopped by --stop-after with (\d+) of (\d+) groups done; run again to go on")

Run = Callable[..., LogResult]
"""A run within ``limits``."""


def judged(partition: Path, rules: oracle.Cleaning, run: Run) -> LogResult:
    """A run within the shortest window: what it swapped is as the oracle has it, all else as it was."""
    expected, before = oracle.clean(partition, rules), logs.logs_of(partition)
    result = run(limits=WINDOW)
    if result.status != SKIPPED:
        assert result.status in (CLEANED, NOTHING_TO_DO), result
        if result.status == CLEANED:
            judging.assert_cleaned(expected, partition, result)
        return result
    match = STOPPED.fullmatch(result.reason)
    assert match is not None, result
    groups_done, total = int(match[1]), int(match[2])
    assert 0 < groups_done < total == len(expected.segments)
    swapped = dict(list(expected.segments.items())[:groups_done])
    sources = {base for new in swapped.values() for base in new.sources}
    after = read_partition(partition)
    assert not judging.differences(
        replace(expected, segments=swapped), {base: after[base] for base in after if base in sources}
    )
    untouched = {base: bytes_ for base, bytes_ in before.items() if base not in sources}
    now = logs.logs_of(partition)
    assert untouched == {base: now[base] for base in now if base not in sources}
    assert result.bytes_after == sum(map(len, now.values()))
    assert result.segments_after == len(now)
    if result.records_before is not None:
        assert result.records_after == result.records_before - result.discarded.total()
    assert result.cleaned_end_offset == result.first_dirty_offset
    assert logs.logs_of(partition) != before, "a run that changed nothing"
    return result


def until_cleaned(runs: Iterator[LogResult]) -> list[LogResult]:
    """As many runs as it takes."""
    results = []
    for result in runs:
        results.append(result)
        if result.status != SKIPPED:
            return results
        assert len(results) < MAX_RUNS, "it never ends"
    raise AssertionError("no run")


def records(partition: Path) -> list[object]:
    """All records there are."""
    return [record for data in logs.logs_of(partition).values() for record in logs.records_in(data)]


def windows(log: RandomLog, root: Path, *, hours: int) -> list[LogResult]:
    """Windows that begin so many hours one after another."""
    (partition,) = root.glob("topic-*")

    def runs() -> Iterator[LogResult]:
        for number in range(MAX_RUNS):
            at = replace(log, now_ms=log.now_ms + number * hours * 3_600_000)
            yield judged(
                partition,
                at.rules,
                functools.partial(logs.run, root, config=at.config, now_ms=at.now_ms, engine=at.engine),
            )

    return until_cleaned(runs())


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_logs())
def test_random_logs_cleaned_in_windows_keep_the_values_of_one_run(log: RandomLog) -> None:
    """At one moment they end as one run does: all records. Windows that lie apart: all last values."""
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        root = Path(folder)
        original = log.write(root / "before")
        before = table(original)
        whole = log.write(root / "whole")
        expected = logs.run(
            root / "whole", config=log.config, now_ms=log.now_ms, engine=log.engine, limits=WHOLE
        )
        partition = log.write(root / "at once")
        results = windows(log, root / "at once", hours=0)
        batches = [batch for segment in read_partition(original).values() for batch in segment.batches]
        if log.retention_ms and all(batch.magic == 2 for batch in batches):
            assert records(partition) == records(whole)
            assert sum(result.discarded.total() for result in results) == expected.discarded.total()
        # A clean section drawn at random may hide a value by a tombstone, which no cleaned one does.
        is_all_dirty = log.first_dirty is None
        if log.retention_ms or is_all_dirty:
            assert table(partition) == table(whole)
        if results[-1].status == expected.status:
            assert checkpoint(root / "at once") == checkpoint(root / "whole")
        else:  # the dirty section is empty by now: only its empty segments are left, and the checkpoint
            assert results[-1].status == NOTHING_TO_DO and results[-1].dirty_ratio == 0
        apart = log.write(root / "apart")
        windows(log, root / "apart", hours=20)
        if is_all_dirty and None not in before:
            assert table(apart) == before


def checkpoint(root: Path) -> str | None:
    """The cleaner checkpoint's file."""
    path = root / "cleaner-offset-checkpoint"
    return path.read_text() if path.exists() else None


def transactional_windows(living: Living, *, hours: int) -> list[LogResult]:
    """The same with a log of transactions; the table of a committed reader stays at every moment."""
    before = table(living.partition)
    run = functools.partial(logs.run, living.root, config=living.settings(ROUND))

    def runs() -> Iterator[LogResult]:
        for _ in range(MAX_RUNS):
            at = functools.partial(run, now_ms=living.clock.now_ms())
            yield judged(living.partition, living.rules(ROUND), at)
            assert table(living.partition) == before
            living.clock.advance(hours * 3_600_000)

    return until_cleaned(runs())


@pytest.mark.parametrize("hours", few([(0,), (5,), (30,), (200,)], 0, 2))
def test_transactions_over_several_groups_are_read_the_same_after_every_window(
    tmp_path: Path, hours: int
) -> None:
    living, whole = write(tmp_path / "log"), write(tmp_path / "whole")
    results = transactional_windows(living, hours=hours)
    assert len(results) >= 4
    logs.run(whole.root, config=whole.settings(ROUND), now_ms=whole.clock.now_ms(), limits=WHOLE)
    if hours < 5:
        assert committed(living.partition) == committed(whole.partition)
    assert table(living.partition) == table(whole.partition)
    assert checkpoint(living.root) == checkpoint(whole.root)


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lives())
def test_random_lives_cleaned_in_windows_match_the_oracle(life: Life) -> None:
    """Windows a day apart between which the log is appended to: every one is held to the oracle."""
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        living = Living(Path(folder) / "log", life)
        for round_ in life.rounds:
            living.write(round_)
            for _ in range(3):
                rules = living.rules(round_)
                run = functools.partial(
                    logs.run, living.root, config=living.settings(round_), now_ms=living.clock.now_ms()
                )
                if rules.log_start or judged(living.partition, rules, run).status != SKIPPED:
                    break
                living.clock.advance(DAY)


def test_unchanged_groups_do_not_use_up_a_window(tmp_path: Path) -> None:
    """The run goes on to the first that changes; else it would do the same nothing again and again."""
    segments = {10 * n: [logs.one(10 * n, f"alone-{n}")] for n in range(5)}
    segments[50] = [logs.one(50, "a"), logs.one(51, "a")]
    partition = logs.write_log(tmp_path, {**segments, 60: [logs.one(60, "b"), logs.one(61, "b")], 70: []})
    config = {"segment.bytes": 1}
    first = logs.run(tmp_path, config=config, limits=WINDOW)
    assert (first.status, first.discarded.superseded) == (SKIPPED, 1)
    assert first.reason.startswith("stopped by --stop-after with 6 of 7 groups done")
    second = logs.run(tmp_path, config=config, limits=WINDOW)
    assert (second.status, second.discarded.superseded) == (CLEANED, 1)
    assert logs.offsets(partition) == [0, 10, 20, 30, 40, 51, 61]


def test_a_removed_tombstone_never_uncovers_a_value(tmp_path: Path) -> None:
    """It was swapped, stamped, in one window and goes in a later one, while its log is still not done."""
    rows = [
        [("gone", "1"), ("a", "1")],
        [("gone", None), ("b", "1")],
        [("a", "2")],
        [("b", "2")],
        [("c", "1")],
    ]
    segments, base = {}, 0
    for row in rows:
        segments[base] = [logs.one(base + i, key, value) for i, (key, value) in enumerate(row)]
        base += len(row)
    partition = logs.write_log(tmp_path, segments)
    before = table(partition)
    keys_after_runs = []
    for number in range(9):
        result = waves_run(tmp_path, NOW + number * (DAY + 1))
        assert table(partition) == before
        keys_after_runs.append([record.key for record in records(partition)])  # type: ignore[attr-defined]
        if result.status != SKIPPED:
            break
    assert any(b"gone" in keys for keys in keys_after_runs) and b"gone" not in keys_after_runs[-1]
    assert result.status == CLEANED


def waves_run(path: Path, now_ms: int) -> LogResult:
    """The shortest window at a moment."""
    return logs.run(path, config=waves.CONFIG, now_ms=now_ms, limits=WINDOW)


def test_an_aborted_transaction_stays_aborted_when_only_its_first_group_is_cleaned(tmp_path: Path) -> None:
    """Its data is gone from one group, and is there in the next; then its marker is alone, for its time."""
    segments = {
        0: [data(0, 7, "x", "never"), logs.one(1, "a")],
        2: [data(2, 7, "y", "never"), logs.one(3, "a")],
        4: [marker(4, 7, commit=False), logs.one(5, "a")],
        6: [logs.one(6, "b")],
    }
    partition = logs.write_log(tmp_path, segments)
    transactional.write_index(partition, 4, (7, 0, 4, 4))
    before = table(partition)
    rules = oracle.Cleaning(now_ms=NOW, delete_retention_ms=DAY, segment_bytes=1)
    for number in range(9):
        at = NOW + number * (DAY // 2)
        result = judged(
            partition,
            replace(rules, now_ms=at),
            functools.partial(logs.run, tmp_path, config=waves.CONFIG, now_ms=at),
        )
        assert table(partition) == before
        if result.status != SKIPPED:
            break
    assert result.status == CLEANED and number >= 2


def test_message_sets_behind_a_cleaned_segment_are_still_noticed(tmp_path: Path) -> None:
    """The log no longer begins with them, but they may still grow, and must not be cut by their indexes."""
    segments: dict[int, list[bytes]] = {}
    for base in (0, 10, 20):
        keys = [b"stays-%d" % base, b"a", b"b", b"a"]
        segments[base] = [
            twin.message(base + i, key, b"v", magic=1, timestamp=logs.RECORD_TIME)
            for i, key in enumerate(keys)
        ]
    partition = logs.write_log(tmp_path, {**segments, 30: [logs.one(30, "end")]})
    assert works(tmp_path).has_message_sets
    result = waves_run(tmp_path, NOW)
    assert result.status == SKIPPED and read_partition(partition)[0].batches[0].magic == 2
    assert works(tmp_path).has_message_sets
    while result.status == SKIPPED:
        result = waves_run(tmp_path, NOW)
    assert result.status == CLEANED and not works(tmp_path).has_message_sets
    assert logs.offsets(partition) == [0, 10, 20, 22, 23, 30]


def works(path: Path) -> LogWork:
    """What a cleaning of all the log would do, from its start."""
    (path / "cleaner-offset-checkpoint").unlink(missing_ok=True)
    with LogDirectory.open(path) as directory:
        ((topic_partition, partition),) = directory.partitions.items()
        state = LogState(
            topic_partition=topic_partition,
            path=partition,
            directory=directory,
            config=logs.settings(waves.CONFIG),
        )
        planned = plan_log(state, directory.checkpoints(), PlanOptions(now_ms=NOW, force=True), None)
    assert isinstance(planned, PlannedLog)
    return planned.work
