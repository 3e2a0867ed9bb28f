"""5. Staging: each attempt has files of its own, durable before they are reported, and removed afterwards."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.commands import clean as app
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.staging import LogReport, rewrite_range
from siltstone.compaction.work import LogWork
from tests.support.operator.staged import Staged, listing, no_leftovers, stage


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic", tmp_path / "data")


class Remembering(InProcessEngine):
    """Keeps the work that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[LogWork] = []

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        self.works += works
        return super().clean_whole(works)


def work_of(staged: Staged) -> LogWork:
    """The work of a cleaning of this log, which is done."""
    engine = Remembering()
    assert app.clean(staged.request, engine=lambda request, progress: engine).results[0].status == "cleaned"
    return engine.works[0]


def retained(work: LogWork, group: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    span = work.groups[group].end_offset - work.groups[group].base_offset
    return np.arange(span, dtype=np.uint32)


def test_tasks_write_below_their_runs_folder_and_sync_before_they_report(staged: Staged) -> None:
    operations: list[files.Operation] = []
    with files.observe(operations.append):
        report = app.clean(staged.request, engine=lambda request, progress: InProcessEngine())
    first_swap = next(i for i, (verb, _, other) in enumerate(operations) if other.endswith(".cleaned"))
    created = [path for verb, path, _ in operations[:first_swap] if verb == "create"]
    folder = staged.partition / ".siltstone" / report.run
    assert len(created) == 9
    assert {str(Path(path).parent) for path in created} == {str(folder)}
    for path in created:
        last_write = max(
            i
            for i, operation in enumerate(operations[:first_swap])
            if operation[:2] in (("write", path), ("create", path))
        )
        assert ("fsync", path, "") in operations[last_write:first_swap]
        attributes = max(
            i for i, operation in enumerate(operations[:first_swap]) if operation[:2] == ("utime", path)
        )
        assert ("fsync", path, "") in operations[attributes:first_swap]


def test_a_late_attempt_changes_nothing_after_the_swap(staged: Staged) -> None:
    work = work_of(staged)
    after = listing(staged.directory)
    report = rewrite_range(work, work.ranges[0], retained(work, 0), "late").groups[0]
    assert report.failure is not None and report.failure.status == "failed"
    assert listing(staged.directory) == after


def test_an_attempt_that_sees_a_changed_source_stops(staged: Staged) -> None:
    work = work_of(staged)
    assert work.staging is not None
    Path(work.staging).mkdir(parents=True)
    after = listing(staged.directory)
    report = rewrite_range(work, work.ranges[0], retained(work, 0), "late").groups[0]
    assert report.failure is not None and "changed since" in report.failure.reason
    assert listing(staged.directory) == after


def test_a_second_attempt_has_files_of_its_own(staged: Staged, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(staged.directory, source, copy_function=os.link)
    work = work_of(staged)
    shutil.rmtree(staged.directory)
    source.rename(staged.directory)
    assert work.staging is not None
    Path(work.staging).mkdir(parents=True)
    before = listing(staged.directory)
    all_records = np.arange(work.groups[0].end_offset - work.groups[0].base_offset, dtype=np.uint32)
    first = rewrite_range(work, work.ranges[0], all_records, "a").groups[0]
    second = rewrite_range(work, work.ranges[0], all_records, "b").groups[0]
    assert first.failure is None and second.failure is None
    assert not set(first.staged.values()) & set(second.staged.values())
    files_of_first = {path: Path(path).read_bytes() for path in first.staged.values()}
    again = rewrite_range(work, work.ranges[0], all_records, "a").groups[0]
    assert again.failure is not None and "exists" in again.failure.reason
    for path, data in files_of_first.items():
        if Path(path).exists():
            assert Path(path).read_bytes() == data
    now = listing(staged.directory)
    assert {name: now[name] for name in before} == before


def test_leftovers_of_an_earlier_run_are_removed(staged: Staged) -> None:
    stale = staged.partition / ".siltstone" / "20200101T000000Z-abcdef"
    stale.mkdir(parents=True)
    (stale / "00000000000000000000.0.log").write_bytes(b"half a segment")
    result = staged.clean_one()
    assert result.status == "cleaned"
    assert any(".siltstone" in note for note in result.notes)
    no_leftovers(staged.directory)


def test_a_dry_run_does_not_remove_leftovers(staged: Staged) -> None:
    stale = staged.partition / ".siltstone" / "20200101T000000Z-abcdef"
    stale.mkdir(parents=True)
    (stale / "00000000000000000000.0.log").write_bytes(b"half a segment")
    before = listing(staged.directory)
    staged.clean_one(dry_run=True)
    assert listing(staged.directory) == before


def test_the_brokers_other_files_are_not_touched(staged: Staged) -> None:
    strange = staged.partition / "somebodys.file"
    strange.write_bytes(b"theirs")
    active = max(staged.partition.glob("*.log")).stem
    untouched = ("somebodys.file", "partition.metadata", "leader-epoch-checkpoint", active)
    before = {
        n: v
        for n, v in listing(staged.directory).items()
        if Path(n).name.startswith(untouched) or "/" not in n
    }
    staged.clean_one()
    after = listing(staged.directory)
    assert len(before) >= 8
    assert {name: after[name] for name in before} == before
