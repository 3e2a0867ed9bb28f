"""A crash at every step of a run in waves, and of the runs after it: nothing is lost, and the end is the one
of a run that was never interrupted, byte for byte.

As in ``test_swap_crashes`` the n-th operation raises, or the tree is made anew from what could be on disk.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from siltstone.compaction.inplace.destination import REMOVED_STAGED
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO
from siltstone.log.replacement import finish_replacement
from tests.support.cleaning import logs, waves
from tests.support.cleaning.lives import cut_at_every_batch
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, crash_after, recorded
from tests.support.crash.swapped import Table, check_names, table
from tests.support.thoroughness import THOROUGH, boundaries, examples, turn

pytestmark = pytest.mark.random

STRIDE = 2 if THOROUGH else 1
"""Of the operations before which to crash: each leaves little more than the one before it."""

Outcome = tuple[object, ...]


@pytest.fixture(params=[False, True], ids=["whole groups", "ranges"])
def is_cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether groups are cut into ranges, one for each batch."""
    if request.param:
        cut_at_every_batch(monkeypatch)
    return bool(request.param)


def clean(path: Path, name: str = "1-first", *, is_cut: bool = False) -> list[str]:
    """The run that is crashed, or the one after it; its notes."""
    result = waves.run(path, name=name, engine=waves.Counting(parallelism=2 if is_cut else 1))
    assert result.status in (CLEANED, NOTHING_TO_DO), result
    return result.notes


def record(path: Path, *, is_cut: bool = False) -> tuple[Recording, Table, Outcome]:
    """The operations of an undisturbed run, what a reader sees, and what the run leaves."""
    waves.write(path, single=is_cut)
    before = table(path / "topic-0")
    with recorded(path) as recording:
        clean(path, is_cut=is_cut)
    pieces = sum(step.operation[0] == "create" and ".piece" in step.operation[1] for step in recording.steps)
    assert (pieces > waves.GROUPS) == is_cut
    assert table(path / "topic-0") == before
    return recording, before, waves.outcome(path)


def start_again(path: Path, before: Table, ended: Outcome, *, broker: bool) -> list[str]:
    """The log as a reader finds it, then the next run; its notes.

    ``broker``: one starts in between, and finishes a swap.
    """
    partition = path / "topic-0"
    if broker:
        finish_replacement(partition)
        check_names(partition)
        assert table(partition) == before
    notes = clean(path, "2-again")
    check_names(partition)
    assert table(partition) == before
    assert waves.outcome(path) == ended
    assert not (path / waves.STAGING).exists()
    return notes


def test_every_operation_may_be_the_last(tmp_path: Path, is_cut: bool) -> None:
    recording, before, ended = record(tmp_path / "undisturbed", is_cut=is_cut)
    outcomes: Counter[str] = Counter()
    whole = tmp_path / "undisturbed" / "topic-0"
    for number, count in enumerate(boundaries(len(recording.steps), STRIDE)):
        path = tmp_path / str(count)
        waves.write(path, single=is_cut)
        run = functools.partial(clean, path, is_cut=is_cut)
        assert crash_after(count, run) or count > len(recording.steps) - 3
        swapped = sum(item in logs.logs_of(whole).items() for item in logs.logs_of(path / "topic-0").items())
        notes = start_again(path, before, ended, broker=number % 2 == 0)
        outcomes[f"{swapped} segments as in the end"] += 1
        outcomes["staged files"] += REMOVED_STAGED in notes
        shutil.rmtree(path)
    assert len(outcomes) > waves.GROUPS, outcomes
    assert outcomes["staged files"] > len(boundaries(len(recording.steps), STRIDE)) // 2, outcomes


def test_crashes_of_one_run_after_another(tmp_path: Path) -> None:
    """Interrupted again and again, each time with some groups more."""
    recording, before, ended = record(tmp_path / "undisturbed")
    first_swap = _first_swap(recording)
    rng = random.Random(5)
    for number in range(examples(25)):
        path = tmp_path / str(number)
        waves.write(path)
        crash_after(rng.randrange(first_swap, len(recording.steps)), lambda path=path: clean(path))
        for again in range(4):
            has_crashed = crash_after(rng.randrange(90), lambda path=path: clean(path, f"2-{again}"))  # noqa: B023
            assert table(path / "topic-0") == before or has_crashed
        finish_replacement(path / "topic-0")
        assert table(path / "topic-0") == before
        clean(path, "3-last")
        assert waves.outcome(path) == ended
        shutil.rmtree(path)


def _first_swap(recording: Recording) -> int:
    """The step with which the first swap begins."""
    renames = (
        number
        for number, step in enumerate(recording.steps)
        if step.operation[0] == "rename" and step.operation[2].endswith(".cleaned")
    )
    return next(renames)


def test_whatever_was_on_disk_by_then(tmp_path: Path, is_cut: bool) -> None:
    recording, before, ended = record(tmp_path / "log", is_cut=is_cut)
    for count in boundaries(len(recording.steps) + 1, 7):
        disk = Disk(recording, count)
        for variant in turn(count, (KEEP, DROP, count, count + 1000)):
            disk.build(variant)
            start_again(recording.root, before, ended, broker=count % 2 == 0)
