"""An interrupted run in waves leaves a whole log, some groups swapped; the next one starts again, and trusts
nothing that lies there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.errors import EngineError
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import REMOVED_STAGED, CleanedCopy, DryRun, InPlace
from siltstone.compaction.inplace.originals import Originals
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import CLEANED, FAILED, NOTHING_TO_DO, SKIPPED, LogResult
from siltstone.log.directory import LogDirectory
from tests.support.cleaning import logs, waves
from tests.support.cleaning.logs import DAY, NOW, one
from tests.support.cleaning.waves import CONFIG, GROUPS, STAGING, Counting, interrupt, outcome, run
from tests.support.golden_sets import write_checkpoint


@pytest.fixture
def log(tmp_path: Path) -> Path:
    waves.write(tmp_path / "log")
    return tmp_path / "log"


def facts(result: LogResult) -> LogResult:
    """A result but for when and how it came about."""
    return replace(result, directory="", seconds=0.0, notes=[], settings={})


def uninterrupted(tmp_path: Path) -> tuple[LogResult, object]:
    """What one run over the whole log says and leaves."""
    waves.write(tmp_path / "whole")
    result = run(tmp_path / "whole")
    assert result.status == CLEANED and result.notes == []
    return result, outcome(tmp_path / "whole")


@pytest.mark.parametrize("after", range(GROUPS))
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_a_run_after_an_interrupt_in_any_wave_ends_as_an_uninterrupted_run(
    tmp_path: Path, log: Path, after: int, stop: BaseException
) -> None:
    uninterrupted_result, expected = uninterrupted(tmp_path)
    interrupt(log, after, stop)
    removed = len(logs.offsets(log / "topic-0"))
    engine = Counting()
    result = run(log, engine=engine)
    assert (result.status, engine.gathered, engine.rewritten) == (CLEANED, 1, GROUPS)
    assert outcome(log) == expected
    assert result.discarded.total() == removed - len(logs.offsets(log / "topic-0"))
    assert (result.bytes_after, result.records_after) == (
        uninterrupted_result.bytes_after,
        uninterrupted_result.records_after,
    )


def test_an_interrupt_leaves_a_readable_log_and_nothing_staged(log: Path) -> None:
    """The log as a reader has to find it, and nothing that was staged."""
    interrupt(log, 2)
    assert [record.offset for record in logs.records_in(logs.logs_of(log / "topic-0")[0])] == [2]
    assert not (log / STAGING).exists() and not (log / "cleaner-offset-checkpoint").exists()


def test_after_a_crash_before_the_checkpoint_the_next_run_only_moves_the_checkpoint(
    log: Path, tmp_path: Path
) -> None:
    """All groups are swapped: the next run finds nothing to change, and moves the checkpoint."""
    _, expected = uninterrupted(tmp_path)

    def crash(self: InPlace, planned: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InPlace, "commit_log", crash)
        with pytest.raises(KeyboardInterrupt):
            run(log)
    before = logs.logs_of(log / "topic-0")
    result = run(log)
    assert (result.status, result.discarded.total()) == (CLEANED, 0)
    assert logs.logs_of(log / "topic-0") == before and outcome(log) == expected


def test_a_run_after_an_engine_failed_cleans_the_rest(log: Path, tmp_path: Path) -> None:
    uninterrupted_result, expected = uninterrupted(tmp_path)
    lost = EngineError("the Spark job failed")
    lost.__cause__ = OSError()
    first = run(log, engine=Counting(3, lost))
    assert first.status == FAILED and first.bytes_after < first.bytes_before
    second = run(log)
    assert second.status == CLEANED and outcome(log) == expected
    assert first.discarded.total() > 0
    assert first.discarded.total() + second.discarded.total() == uninterrupted_result.discarded.total()
    assert (first.records_before, first.records_after) == (
        uninterrupted_result.records_before,
        second.records_before,
    )


def test_a_failed_run_removes_its_staged_files(log: Path) -> None:
    interrupt(log, 2)
    path = log / "topic-0" / f"{8:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    last = max(logs.logs_of(log / "topic-0"))
    result = run(log)
    assert "checksum does not match" in result.reason
    assert not (log / STAGING).exists()
    assert last in logs.logs_of(log / "topic-0")


def test_a_log_that_fits_the_space_is_one_job(log: Path) -> None:
    engine = Counting()
    result = logs.run(log, config=CONFIG, engine=lambda: engine, limits=RunLimits(whole_log_bytes=0))
    assert result.status == CLEANED and (engine.gathered, engine.rewritten) == (0, 0)


def test_waves_hold_a_group_for_each_worker(log: Path) -> None:
    class Two(Counting):
        sizes: list[int]

    engine = Two(parallelism=2)
    engine.sizes = []
    before = engine.rewrite
    engine.rewrite = lambda work, retained: (  # type: ignore[method-assign]
        engine.sizes.append(len(retained)),
        before(work, retained),
    )[1]
    assert run(log, engine=engine).status == CLEANED
    assert engine.sizes == [2, 2, 1]


Change = Callable[[Path], dict[str, object] | None]


def _append(path: Path, offset: int) -> None:
    with path.open("ab") as file:
        file.write(one(offset, "new"))


def _partition(path: Path, base: int) -> Path:
    return path / "topic-0" / f"{base:020d}.log"


def _checkpoint(name: str, offset: int) -> Callable[[Path], None]:
    return lambda path: write_checkpoint(path / f"{name}-offset-checkpoint", {("topic", 0): offset})


CHANGES: dict[str, Change] = {
    "nothing": lambda path: None,
    "a setting": lambda path: {"config": {"delete.retention.ms": 2 * DAY}},
    "another setting": lambda path: {"config": {"segment.bytes": 2}},
    "a flag": lambda path: {"drop_keyless": False},
    "an earlier clock": lambda path: {"now_ms": NOW - 1},
    "long ago": lambda path: {"now_ms": NOW + DAY + 1},
    "the checkpoint": _checkpoint("cleaner", 8),
    "the log start": _checkpoint("log-start", 1),
    "the high watermark": _checkpoint("replication", 12),
    "the lag": lambda path: {"config": {"min.compaction.lag.ms": 10**12}},
    "a segment to come": lambda path: os.utime(_partition(path, 8)),
    "a segment that was swapped in": lambda path: os.utime(_partition(path, 0)),
    "a first segment that went": lambda path: _partition(path, 0).unlink(),
    "a segment that went": lambda path: _partition(path, 8).unlink(),
    "the active segment": lambda path: _append(_partition(path, 14), 15),
    "a new active segment": lambda path: _partition(path, 15).touch(),
    "kept originals": lambda path: None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_staged_files_of_earlier_runs_are_removed_and_never_trusted(
    log: Path, tmp_path: Path, name: str
) -> None:
    """Whatever changed meanwhile, the next run ends as if they were not there, and says that they went."""
    interrupt(log, 2)
    changes = CHANGES[name](log) or {}
    shutil.copytree(log, tmp_path / "bare")
    waves.leave_files(log)
    expected = run(tmp_path / "bare", **changes)  # type: ignore[arg-type]
    if name == "kept originals":
        (tmp_path / "keep").mkdir()
        destination = InPlace("2", Originals(tmp_path / "keep" / "2"))
        result = logs.run(log, config=CONFIG, destination=destination, limits=waves.WAVES)
        result.distinct_dirty_keys = expected.distinct_dirty_keys
    else:
        result = run(log, **changes)  # type: ignore[arg-type]
    assert (facts(result), outcome(log)) == (facts(expected), outcome(tmp_path / "bare"))
    assert result.notes == [REMOVED_STAGED, *expected.notes]


def test_staged_files_of_a_finished_run_are_removed(log: Path) -> None:
    """The checkpoint says that it is done: what it staged goes."""
    assert run(log).status == CLEANED
    waves.leave_files(log)
    after = logs.logs_of(log / "topic-0")
    result = run(log)
    assert (result.status, result.notes) == (NOTHING_TO_DO, [REMOVED_STAGED])
    assert logs.logs_of(log / "topic-0") == after and not (log / STAGING).exists()


@pytest.mark.parametrize("way", ["dry run", "copy"])
def test_a_dry_run_and_a_copy_leave_staged_files_of_an_earlier_run_alone(
    log: Path, tmp_path: Path, way: str
) -> None:
    interrupt(log, 2)
    waves.leave_files(log)
    before = logs.tree(log)
    if way == "dry run":
        result = logs.run(log, config=CONFIG, destination=DryRun(), limits=waves.WAVES)
    else:
        with LogDirectory.open(log, lock=False) as source:
            destination = CleanedCopy("2", source, tmp_path / "copy")
            result = logs.run(log, config=CONFIG, destination=destination, limits=waves.WAVES)
    assert result.status == CLEANED and result.notes == []
    assert {name: data for name, data in logs.tree(log).items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


def test_the_dirty_ratio_counts_again_after_an_interrupt(tmp_path: Path) -> None:
    """What was swapped already made it smaller: the log waits until enough is dirty, or for --force."""
    path = tmp_path / "log"
    segments = {
        0: [one(0, "a", "a long value that stays" * 20)],
        1: [one(1, "b"), one(2, "b"), one(3, "b"), one(4, "b", "long" * 90)],
        5: [one(5, "b"), one(6, "b"), one(7, "c")],
        8: [one(8, "d")],
    }
    logs.write_log(path, segments, checkpoint=1)
    ratio = {"min.cleanable.dirty.ratio": 0.5}
    interrupt_config = {**CONFIG, **ratio}
    stop = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(path, engine=Counting(2, stop), config=interrupt_config, force=False)
    result = run(path, config=interrupt_config, force=False)
    assert result.status == "not_eligible" and "--force" in result.reason
    assert run(path, config=interrupt_config).status == CLEANED
    assert logs.offsets(path / "topic-0") == [0, 6, 7, 8]


def test_stop_after_leaves_a_log_that_can_be_stopped_again(log: Path, tmp_path: Path) -> None:
    """See ``test_runs_stopped_again_and_again``; here, what a run that was stopped says."""
    uninterrupted_result, expected = uninterrupted(tmp_path)
    limits = replace(waves.WAVES, stop_after_seconds=0.0)
    before = sum(map(len, logs.logs_of(log / "topic-0").values()))
    result = logs.run(log, config=CONFIG, limits=limits)
    assert (result.status, result.reason) == (
        SKIPPED,
        "stopped by --stop-after with 1 of 5 groups done; run again to go on",
    )
    after = sum(map(len, logs.logs_of(log / "topic-0").values()))
    assert (result.bytes_before, result.bytes_after) == (before, after) and after < before
    assert result.discarded.superseded == 2
    assert (result.records_before, result.records_after) == (uninterrupted_result.records_before, 13)
    assert result.cleaned_end_offset == result.first_dirty_offset == 0
    assert run(log).status == CLEANED and outcome(log) == expected


@pytest.mark.parametrize(
    "limit", [{"max_extra_bytes": 0}, {"stop_after_seconds": 0.0}], ids=["no space", "no time"]
)
def test_logs_that_do_not_begin_count_in_the_progress(tmp_path: Path, limit: dict[str, float]) -> None:
    waves.write_logs(tmp_path / "logs", 3)
    progress: list[tuple[int, int]] = []

    def note(log: str, stage: str, done: int, total: int) -> None:
        if log == "logs":
            progress.append((done, total))

    limits = RunLimits(whole_log_bytes=0, wave_bytes=1, **limit)  # type: ignore[arg-type]
    with LogDirectory.open(tmp_path / "logs") as directory:
        states = [
            LogState(topic_partition=name, path=path, directory=directory, config=logs.settings(CONFIG))
            for name, path in directory.partitions.items()
        ]
        cleaner = Cleaner(lambda: InProcessEngine(3), InPlace("run"), limits, progress=note)
        cleaner.run(states, PlanOptions(now_ms=NOW, force=True, drop_keyless=True))
    assert progress == [(1, 3), (2, 3), (3, 3)]
