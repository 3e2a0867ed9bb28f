"""A log whose groups are taken over and that fails after that: its result counts what was done."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.compaction.inplace.destination import REMOVED_STAGED, CleanedCopy, Destination
from siltstone.compaction.report import CLEANED, FAILED, NOTHING_TO_DO, LogResult
from siltstone.log.directory import LogDirectory
from tests.support.cleaning import logs
from tests.support.cleaning.logs import DAY, NOW, one, one_group_a_wave, write_log
from tests.support.golden_sets import read_checkpoint

CHECKPOINT = "cleaner-offset-checkpoint"


class NoRoomFor:
    """A disk without room for files whose names begin so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, operation: files.Operation) -> None:
        verb, path, _ = operation
        if verb in ("create", "write", "rename") and Path(path).name.startswith(self._name):
            raise OSError(errno.ENOSPC, "No space left on device", path)


def three_groups(path: Path, **more: int) -> Path:
    """Each of the first three segments loses a record, and is a group of its own."""
    segments = {10 * n: [one(10 * n, "a"), one(10 * n + 1, f"{n}")] for n in range(3)}
    return write_log(path, {**segments, 30: [one(30, "a")], 40: [one(40, "b")]}, **more)


def numbers(result: LogResult) -> dict[str, object]:
    """What a result counts."""
    names = "records_before records_after bytes_before bytes_after segments_before segments_after groups"
    return {name: getattr(result, name) for name in names.split()} | {"removed": result.discarded}


def test_a_checkpoint_that_cannot_be_written_does_not_make_the_counts_nothing(tmp_path: Path) -> None:
    whole, broken = three_groups(tmp_path / "whole"), three_groups(tmp_path / "broken")
    expected = logs.run(tmp_path / "whole")
    with files.observe(NoRoomFor(CHECKPOINT)):
        result = logs.run(tmp_path / "broken")
    assert (expected.status, result.status) == (CLEANED, FAILED)
    assert result.reason.startswith("its segments are cleaned, but the run could not be finished: ")
    assert (
        "No space left on device" in result.reason
        and "the next run cleans the log once more" in result.reason
    )
    assert numbers(result) == numbers(expected) and result.discarded.superseded == 3
    assert result.cleaned_end_offset == 0, "the checkpoint did not move"
    assert logs.logs_of(broken) == logs.logs_of(whole)
    assert result.bytes_after == sum(map(len, logs.logs_of(broken).values()))
    again = logs.run(tmp_path / "broken", now_ms=NOW + DAY)
    assert (again.status, again.discarded.superseded) == (CLEANED, 0)
    assert read_checkpoint(tmp_path / "broken" / CHECKPOINT) == read_checkpoint(
        tmp_path / "whole" / CHECKPOINT
    )


def test_a_staging_folder_that_stays_does_not_make_a_cleaned_log_a_failure(tmp_path: Path) -> None:
    """The checkpoint has moved, so retention is applied; the next run removes the folder."""
    partition = three_groups(tmp_path, log_start=10)

    def failing(operation: files.Operation) -> None:
        verb, path, _ = operation
        if verb == "rmdir" and ".siltstone" in path:
            raise OSError(errno.EIO, "Input/output error", path)

    with files.observe(failing):
        result = logs.run(tmp_path, config={"segment.bytes": 100})
    assert (result.status, result.cleaned_end_offset, result.discarded.expired) == (CLEANED, 40, 1)
    assert result.notes[0].startswith("its staged files could not be removed, the next run removes them: ")
    assert min(logs.logs_of(partition)) == 10 and (partition / ".siltstone").exists()
    again = logs.run(tmp_path, config={"segment.bytes": 100})
    assert (again.status, again.notes) == (NOTHING_TO_DO, [REMOVED_STAGED])
    assert not (partition / ".siltstone").exists()


@pytest.mark.parametrize("wave", [0, 1, 2])
def test_a_later_wave_that_fails_leaves_the_counts_of_those_before_it(tmp_path: Path, wave: int) -> None:
    config = {"segment.bytes": 100}
    partition = three_groups(tmp_path)
    limits = one_group_a_wave(tmp_path, config)
    with files.observe(NoRoomFor(f"{10 * wave:020d}.log.cleaned")):
        result = logs.run(tmp_path, config=config, limits=limits)
    assert result.status == FAILED and "No space left on device" in result.reason
    assert result.discarded.superseded == result.discarded.total() == wave
    assert result.bytes_after == sum(map(len, logs.logs_of(partition).values()))
    assert len(logs.offsets(partition)) == 8 - wave


def test_a_log_of_a_copy_that_is_aborted_counts_as_not_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the originals are copied."""
    partition = three_groups(tmp_path / "log")

    def failing(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with LogDirectory.open(tmp_path / "log", lock=False) as source:
        copy: Destination = CleanedCopy("run", source, tmp_path / "copy")
        monkeypatch.setattr(copy, "commit_log", failing)
        result = logs.run(tmp_path / "log", destination=copy)
        copy.commit_run()
    assert result.status == FAILED and "cleaned" not in result.reason
    assert result.discarded.total() == 0 and result.records_after in (None, result.records_before)
    assert (result.bytes_after, result.segments_after) == (result.bytes_before, result.segments_before)
    assert logs.logs_of(tmp_path / "copy" / partition.name) == logs.logs_of(partition)
