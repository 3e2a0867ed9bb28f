"""Several large logs are cleaned at the same time where one of them cannot keep all workers busy."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.errors import EngineError
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace import cleaner
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.inplace.destination import CleanedCopy, DryRun, InPlace
from siltstone.compaction.inplace.originals import Originals
from siltstone.compaction.inplace.planning import PlannedLog
from siltstone.compaction.report import CLEANED, FAILED, SKIPPED, LogResult
from siltstone.compaction.staging import GroupReport, LogReport, RetainedFile
from siltstone.compaction.work import Group, LogWork
from siltstone.log.directory import LogDirectory
from tests.support.cleaning import logs, waves

LOGS = 3
WAIT = 120


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of three logs that are cleaned in waves."""
    waves.write_logs(tmp_path / "logs", LOGS)
    return tmp_path / "logs"


class Meeting(InProcessEngine):
    """The first steps of ``logs_met`` logs wait for each other, so they must run at the same time."""

    def __init__(self, logs_met: int = LOGS, *, parallelism: int = 1) -> None:
        super().__init__(3, parallelism=parallelism)
        self.meeting = threading.Barrier(logs_met)
        self.running, self.most = 0, 0
        self.lock = threading.Lock()

    def meet(self) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.meeting.wait(WAIT)

    def write_retained_offsets(self, work: LogWork, waves: Sequence[Sequence[Group]]) -> LogReport:
        self.meet()
        return super().write_retained_offsets(work, waves)

    def clean_distributed(self, work: LogWork) -> LogReport:
        self.meet()
        return super().clean_distributed(work)


class Alone(Meeting):
    """Notes the threads in which logs are cleaned."""

    def __init__(self, *, parallelism: int = 1) -> None:
        super().__init__(parallelism=parallelism)
        self.threads = set[int]()

    def meet(self) -> None:
        self.threads.add(threading.get_ident())


def everything(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in logs.tree(path).items() if name != ".lock"}


@pytest.fixture
def one_after_another(directory: Path, tmp_path: Path) -> tuple[list[LogResult], dict[str, bytes]]:
    shutil.copytree(directory, tmp_path / "alone", copy_function=shutil.copy2)
    results = waves.run_all(tmp_path / "alone", InProcessEngine(3))
    return results, everything(tmp_path / "alone")


def facts(results: Sequence[LogResult]) -> list[LogResult]:
    return [replace(result, directory="", seconds=0.0) for result in results]


def test_logs_cleaned_together_end_as_when_cleaned_one_after_another(
    directory: Path, one_after_another: tuple[list[LogResult], dict[str, bytes]]
) -> None:
    engine = Meeting()
    results = waves.run_all(directory, engine)
    assert engine.most == LOGS and [result.status for result in results] == [CLEANED] * LOGS
    assert (facts(results), everything(directory)) == (facts(one_after_another[0]), one_after_another[1])


def test_a_dry_run_and_a_copy_clean_large_logs_together_too(directory: Path, tmp_path: Path) -> None:
    before = everything(directory)
    assert [result.status for result in waves.run_all(directory, Meeting(), DryRun(InPlace("run")))] == [
        CLEANED
    ] * LOGS
    with LogDirectory.open(directory, lock=False) as source:
        destination = CleanedCopy("run", source, tmp_path / "copy")
        waves.run_all(directory, Meeting(), destination)
        destination.commit_run()
    assert everything(directory) == before
    waves.run_all(directory, Meeting())
    assert everything(tmp_path / "copy") == everything(directory)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_log_that_keeps_all_workers_busy_is_cleaned_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    size = sum(path.stat().st_size for path in (directory / "topic-0").glob("*.log"))
    monkeypatch.setattr(cleaner, "LARGE_LOG_BYTES_PER_WORKER", size // (2 * parallelism))
    engine = Alone(parallelism=parallelism)
    assert [result.status for result in waves.run_all(directory, engine)] == [CLEANED] * LOGS
    assert engine.threads == {threading.get_ident()}


def test_kept_originals_are_written_for_one_log_at_a_time(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    engine = Alone()
    results = waves.run_all(directory, engine, InPlace("run", Originals(tmp_path / "keep" / "run")))
    assert (
        engine.threads == {threading.get_ident()}
        and [result.status for result in results] == [CLEANED] * LOGS
    )


def test_logs_that_need_more_than_their_share_come_last_and_alone(directory: Path) -> None:
    """The space suffices for one log, but not for a third of it each."""
    single = logs.one_group_a_wave(directory_of_one(directory), waves.CONFIG)
    engine = Alone()
    results = waves.run_all(directory, engine, limits=single)
    assert [result.status for result in results] == [CLEANED] * LOGS
    assert engine.threads == {threading.get_ident()}


def directory_of_one(directory: Path) -> Path:
    """The directory with its first log only."""
    path = directory.parent / "first"
    shutil.copytree(directory, path)
    for number in range(1, LOGS):
        shutil.rmtree(path / f"topic-{number}")
    return path


def test_a_log_that_fails_does_not_stop_the_others(directory: Path) -> None:
    path = directory / "topic-1" / f"{8:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    results = waves.run_all(directory, Meeting())
    assert [result.status for result in results] == [CLEANED, "uncleanable", CLEANED]
    assert "checksum" in results[1].reason


def test_a_job_that_fails_is_the_failure_of_its_log(directory: Path) -> None:
    class Failing(Meeting):
        def write_retained_offsets(self, work: LogWork, waves: Sequence[Sequence[Group]]) -> LogReport:
            report = super().write_retained_offsets(work, waves)
            if work.name == "topic-2":
                raise EngineError("the Spark job failed") from OSError()
            return report

    results = waves.run_all(directory, Failing())
    assert [result.status for result in results] == [CLEANED, CLEANED, FAILED]


def test_an_engine_that_cannot_tell_its_parallelism_fails_the_logs_but_not_the_run(directory: Path) -> None:
    class Silent(InProcessEngine):
        @property
        def parallelism(self) -> int:  # type: ignore[override]
            raise EngineError("asking Spark how many tasks it runs") from OSError()

        @parallelism.setter
        def parallelism(self, value: int) -> None:
            pass

    results = waves.run_all(directory, Silent())
    assert [result.status for result in results] == [FAILED] * LOGS
    assert all("asking Spark" in result.reason for result in results)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), EngineError("no Java"), RuntimeError("a bug")])
def test_after_an_interrupt_no_wave_begins_and_each_log_is_whole(
    directory: Path, one_after_another: tuple[list[LogResult], dict[str, bytes]], stop: BaseException
) -> None:
    """One log stops the run; the others end with the wave that they are in. Another run cleans the rest."""
    is_stopped = threading.Event()

    @contextlib.contextmanager
    def critical() -> Iterator[None]:
        # In the main thread once a log stopped the run: the run waits for its threads.
        if threading.current_thread() is threading.main_thread() and engine.has_raised:
            is_stopped.set()
        yield

    class Stopping(Meeting):
        rewritten = 0
        has_raised = False

        def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
            self.meeting.wait(WAIT)
            if work.name == "topic-0":
                self.has_raised = True
                raise stop
            with self.lock:
                self.rewritten += 1
            assert is_stopped.wait(WAIT)
            return super().rewrite(work, retained)

    engine = Stopping()
    results = list[LogResult]()
    with pytest.raises(type(stop)):
        waves.run_all(directory, engine, critical=critical, results=results)
    assert engine.rewritten == LOGS - 1  # a wave each, and no other one
    assert {result.status for result in results[1:]} == {SKIPPED}
    assert all("interrupted" in result.reason for result in results[1:])
    assert not list(directory.glob("*/.siltstone"))
    waves.run_all(directory, Meeting())
    assert everything(directory) == one_after_another[1]


def test_a_copy_gets_all_groups_of_a_wave_in_one_call(directory: Path, tmp_path: Path) -> None:
    class Counting(CleanedCopy):
        calls = 0

        def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
            type(self).calls += 1
            super().commit_groups(planned, groups)

    with LogDirectory.open(directory_of_one(directory), lock=False) as source:
        destination = Counting("run", source, tmp_path / "copy")
        (result,) = waves.run_all(tmp_path / "first", InProcessEngine(1), destination, limits=RunLimits())
    assert result.groups > 1 and Counting.calls == 1
