"""A crash at every step of a run in waves, and of the run that goes on with it: nothing is lost, and the end
is the one of a run that was never interrupted, byte for byte.

As in ``test_swap_crashes`` the n-th operation raises, or the tree is made anew from what could be on disk.
Trees that are made anew have other inodes: there, files are told apart by size and time alone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.files import operations, places
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO
from siltstone.log.replacement import finish_replacement
from tests.cleaner import logs, waves
from tests.cleaner.logs import DAY, NOW
from tests.crash.disk import DROP, KEEP, Disk, Recording, recorded
from tests.crash.test_swap_crashes import Table, check_names, crash_after, table
from tests.crash.thoroughness import boundaries

Outcome = tuple[object, ...]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model knows what was synced; the real disk need not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def no_inodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that was made anew is the one that it was made from."""
    facts = operations.facts_of
    for module in (operations, places):
        monkeypatch.setattr(module, "facts_of", lambda found: replace(facts(found), inode=0))


def clean(path: Path, name: str = "1-first", now_ms: int = NOW) -> list[str]:
    """The run that is crashed, or goes on; its notes."""
    result = waves.run(path, name=name, now_ms=now_ms)
    assert result.status in (CLEANED, NOTHING_TO_DO), result
    return result.notes


def record(path: Path) -> tuple[Recording, Table, Outcome]:
    """The operations of an undisturbed run, what a reader sees, and what the run leaves."""
    waves.write(path)
    before = table(path / "topic-0")
    with recorded(path) as recording:
        clean(path)
    assert table(path / "topic-0") == before
    return recording, before, waves.outcome(path)


def go_on(path: Path, before: Table, ended: Outcome, *, broker: bool) -> str:
    """The log as a reader finds it, then the next run, whose clock is ahead; what it says of the first one.

    ``broker``: one starts in between, and finishes a swap.
    """
    partition = path / "topic-0"
    if broker:
        finish_replacement(partition)
        check_names(partition)
        assert table(partition) == before
    said = ", ".join(note for note in clean(path, "2-again", NOW + DAY // 2) if "run 1-first" in note)
    check_names(partition)
    assert table(partition) == before
    if "resumed" in said:
        assert waves.outcome(path) == ended
    assert not (path / waves.STAGING).exists()
    return said


def test_every_operation_may_be_the_last(tmp_path: Path) -> None:
    recording, before, ended = record(tmp_path / "undisturbed")
    said: Counter[str] = Counter()
    for count in boundaries(len(recording.steps), 3):
        path = tmp_path / str(count)
        waves.write(path)
        assert crash_after(count, lambda path=path: clean(path)) or count > len(recording.steps) - 3
        said[go_on(path, before, ended, broker=count % 2 == 0)] += 1
        shutil.rmtree(path)
    for done in range(waves.GROUPS + 1):
        assert said.pop(f"resumed run 1-first: {done} of {waves.GROUPS} groups were done") > 0, done
    without = said.pop("")
    assert without < 40
    assert sum(said.values()) < 10, said


def test_crashes_while_it_goes_on(tmp_path: Path) -> None:
    """Interrupted again and again, each time with some groups more."""
    recording, before, ended = record(tmp_path / "undisturbed")
    journal = _first_swap(recording)
    rng = random.Random(5)
    for number in range(25):
        path = tmp_path / str(number)
        waves.write(path)
        crash_after(rng.randrange(journal, len(recording.steps)), lambda path=path: clean(path))
        for again in range(4):
            gone = crash_after(rng.randrange(60), lambda path=path: clean(path, f"2-{again}"))  # noqa: B023
            assert table(path / "topic-0") == before or gone
        finish_replacement(path / "topic-0")
        assert table(path / "topic-0") == before
        clean(path, "3-last", NOW + DAY // 2)
        assert waves.outcome(path) == ended
        shutil.rmtree(path)


def _first_swap(recording: Recording) -> int:
    """The step before which the journal must be on disk, whatever was dropped."""
    renames = (
        number
        for number, step in enumerate(recording.steps)
        if step.operation[0] == "rename" and step.operation[2].endswith(".cleaned")
    )
    return next(renames)


def _end(recording: Recording) -> int:
    """The step that moves the checkpoint."""
    (moved,) = (
        number
        for number, step in enumerate(recording.steps)
        if step.operation[0] == "rename" and step.operation[2].endswith("cleaner-offset-checkpoint")
    )
    return moved


@pytest.mark.usefixtures("no_inodes")
def test_whatever_was_on_disk_by_then(tmp_path: Path) -> None:
    recording, before, ended = record(tmp_path / "log")
    for count in boundaries(len(recording.steps) + 1, 7):
        disk = Disk(recording, count)
        for variant in (KEEP, DROP, count, count + 1000):
            disk.build(variant)
            said = go_on(recording.root, before, ended, broker=count % 2 == 0)
            if _first_swap(recording) <= count <= _end(recording):
                assert "resumed" in said, (count, variant, said)


BROKEN = {
    "what is written is not synced": (operations.Writer, "sync", lambda self: None),
    "names are not synced": (operations, "sync_directory", lambda path: None),
}


@pytest.mark.usefixtures("no_inodes")
@pytest.mark.parametrize("name", BROKEN)
def test_without_syncs_runs_begin_anew(tmp_path: Path, name: str) -> None:
    """The test above would find a journal, or winners, that are not on disk when they have to be."""
    owner, attribute, nothing = BROKEN[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, nothing)
        recording, _, _ = record(tmp_path / "log")
    disk = Disk(recording, _first_swap(recording))
    disk.build(DROP)
    assert not any("resumed" in note for note in clean(recording.root, "2-again"))
    assert logs.logs_of(recording.root / "topic-0")
