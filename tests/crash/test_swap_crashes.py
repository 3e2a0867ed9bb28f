"""A crash at every step of a clean in place and of its undo: nothing is lost, and the next run ends the same.

Two ways to crash: the n-th operation raises and nothing after it happens; and the tree is made anew from
what could be on disk (see ``disk``). After either, what a start does is done, the log is read, and the run
is made again.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.compaction.inplace.destination import InPlace
from siltstone.compaction.inplace.originals import Originals, check_log, read_run, refuse_changed
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO
from siltstone.log.directory import LogDirectory
from siltstone.log.replacement import finish_replacement
from tests.support.cleaning import logs
from tests.support.cleaning.logs import NOW, Rec
from tests.support.crash.breaking import BROKEN_SWAPS
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, crash_after, recorded
from tests.support.crash.swapped import Table, check_names, table
from tests.support.thoroughness import SEEDS, boundaries, examples, turn

pytestmark = pytest.mark.random

CONFIG = {"segment.bytes": 250}


def _batch(base: int, *records: tuple[str, str | None], horizon: int | None = None) -> bytes:
    rows = [
        Rec(offset=base + i, key=key.encode(), value=None if value is None else value.encode())
        for i, (key, value) in enumerate(records)
    ]
    return logs.batch(rows, delete_horizon_ms=horizon)


def write(path: Path) -> Path:
    """A log of four groups: keys that change, two that go (tombstones are due in the third and fourth)."""
    return logs.write_log(
        path,
        {
            0: [_batch(0, ("a", "1"), ("b", "1"), ("gone", "old"))],
            3: [_batch(3, ("c", "1"), ("gone", "older still"), ("late", "1"))],
            6: [_batch(6, ("a", "2"), ("d", "1"), ("e", "1"), ("f", "1"), ("g", "1"), ("h", "1"))],
            12: [_batch(12, ("gone", None), horizon=NOW - 5), _batch(13, ("i", "1"))],
            14: [_batch(14, ("b", "2"), ("c", "2"))],
            16: [_batch(16, ("a", "3"), ("late", None), horizon=NOW - 5)],
            18: [_batch(18, ("a", "4"), ("d", "2"))],
        },
    )


def write_whole(path: Path) -> Path:
    """The first and the last of three groups keep all their records: their logs only get second names."""
    first, last = ([(f"{letter}{number}", "1") for number in range(14)] for letter in "km")
    return logs.write_log(
        path,
        {
            0: [_batch(0, *first)],
            14: [_batch(14, ("a", "1"), ("b", "1"))],
            16: [_batch(16, ("a", "2"))],
            17: [_batch(17, *last)],
            31: [_batch(31, ("b", "2"))],
        },
    )


def outcome(path: Path) -> tuple[bytes, str, list[str]]:
    """What a finished run leaves: all batches in order, the checkpoint, other files' names."""
    partition = path / "topic-0"
    whole = b"".join(logs.logs_of(partition).values())
    rest = sorted(name for name in os.listdir(path) if name not in ("keep", ".lock"))
    return whole, (path / "cleaner-offset-checkpoint").read_text(), rest


def clean(path: Path, *, keep: bool = False) -> None:
    """The run that is crashed."""
    folder = path / "keep" / f"run-{sum(1 for _ in path.glob('keep/*'))}"
    destination = InPlace("run", Originals(folder) if keep else None)
    if keep:
        files.make_directory(folder, parents=True)
    result = logs.run(path, config=CONFIG, destination=destination)
    assert result.status in (CLEANED, NOTHING_TO_DO), result


def undo(path: Path) -> None:
    """What the undo command does with its one log."""
    with LogDirectory.open(path) as directory:
        for place, log in read_run(path / "keep" / "run-0"):
            refuse_changed(place, log)
            finish_replacement(Path(log.path))
            check_log(place, log).restore(directory)


@dataclass(frozen=True)
class Scenario:
    """What is crashed: ``prepare`` makes the tree, ``act`` is interrupted."""

    prepare: Callable[[Path], None]
    act: Callable[[Path], None]


def _prepare_undo(path: Path) -> None:
    write(path)
    clean(path, keep=True)


def _prepare_undo_whole(path: Path) -> None:
    write_whole(path)
    clean(path, keep=True)


SCENARIOS = {
    "clean": Scenario(lambda path: write(path) and None, clean),
    "clean and keep originals": Scenario(
        lambda path: write(path) and None, lambda path: clean(path, keep=True)
    ),
    "undo": Scenario(_prepare_undo, undo),
    "clean what stays whole": Scenario(lambda path: write_whole(path) and None, clean),
    "undo what stays whole": Scenario(_prepare_undo_whole, undo),
}

STRIDES = {"clean": 1, "clean and keep originals": 3, "undo": 3}


def record(scenario: Scenario, path: Path) -> tuple[Recording, Table, tuple[bytes, str, list[str]]]:
    """The operations of an undisturbed run, the table, and the outcome."""
    scenario.prepare(path)
    before = table(path / "topic-0")
    with recorded(path) as recording:
        scenario.act(path)
    assert table(path / "topic-0") == before
    return recording, before, outcome(path)


def reopen_and_check(
    scenario: Scenario, path: Path, before: Table, ended: tuple[bytes, str, list[str]], *, again: bool = True
) -> None:
    """A start after the crash, what a reader then sees, and (``again``) the same run once more."""
    partition = path / "topic-0"
    finish_replacement(partition)
    check_names(partition)
    assert table(partition) == before
    if not again:
        return
    scenario.act(path)
    check_names(partition)
    assert table(partition) == before
    assert outcome(path) == ended
    assert not (partition / ".siltstone").exists()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_operation_may_be_the_last(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    recording, before, ended = record(scenario, tmp_path / "undisturbed")
    total = len(recording.steps)
    assert total > 60
    crashes, stride = 0, STRIDES.get(name, 1)
    for count in boundaries(total, stride):
        path = tmp_path / str(count)
        scenario.prepare(path)
        if not crash_after(count, lambda path=path: scenario.act(path)):
            break
        crashes += 1
        reopen_and_check(scenario, path, before, ended, again=count % 3 == 0)
        shutil.rmtree(path)
    assert crashes >= len(boundaries(60, stride))


def test_a_second_crash_during_the_recovery(tmp_path: Path) -> None:
    scenario = SCENARIOS["clean"]
    recording, before, ended = record(scenario, tmp_path / "undisturbed")
    rng = random.Random(11)
    for number in range(examples(40)):
        path = tmp_path / str(number)
        scenario.prepare(path)
        crash_after(rng.randrange(len(recording.steps)), lambda path=path: scenario.act(path))
        crash_after(rng.randrange(20), lambda path=path: finish_replacement(path / "topic-0"))
        crash_after(rng.randrange(len(recording.steps)), lambda path=path: scenario.act(path))
        reopen_and_check(scenario, path, before, ended)


def _try_images(
    scenario: Scenario,
    recording: Recording,
    before: Table,
    ended: tuple[bytes, str, list[str]],
    variants: list[Variant],
    counts: range,
    *,
    again: bool = True,
    in_turns: bool = False,
    change: Callable[[Disk], None] = lambda disk: None,
) -> Iterator[str]:
    """Build every image, start on it and check; the failures, one line each.

    Every image is started on; the run is made again on those of KEEP and DROP and on each third other.
    ``change``: what is done to the model before; ``in_turns``: one variant for each of ``counts``.
    """
    images: set[int] = set()
    for number, count in enumerate(counts):
        disk = Disk(recording, count)
        change(disk)
        for variant in turn(number, variants) if in_turns else variants:
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if not disk.build(mixed, images):
                continue
            rerun = again and (isinstance(variant, str) or mixed % 3 == 0)
            try:
                reopen_and_check(scenario, recording.root, before, ended, again=rerun)
            except Exception as error:
                what = recording.steps[count].operation if count < len(recording.steps) else "end"
                yield f"{count} ({what}) {mixed}: {type(error).__name__}: {error}"[:400]


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_was_on_disk_by_then(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    recording, before, ended = record(scenario, tmp_path / "log")
    counts = boundaries(len(recording.steps) + 1, STRIDES.get(name, 1))
    images = _try_images(scenario, recording, before, ended, [KEEP, DROP, *SEEDS], counts, in_turns=True)
    assert list(images) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_done_is_durable(tmp_path: Path, name: str) -> None:
    recording, _, ended = record(SCENARIOS[name], tmp_path / "log")
    Disk(recording, len(recording.steps)).build(DROP)
    finish_replacement(recording.root / "topic-0")
    assert outcome(recording.root) == ended


def test_the_model_is_the_disk_when_everything_is_kept(tmp_path: Path) -> None:
    for name, scenario in SCENARIOS.items():
        recording, _, _ = record(scenario, tmp_path / name)
        real = logs.tree(recording.root)
        Disk(recording, len(recording.steps)).build(KEEP)
        assert logs.tree(recording.root) == real


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("name", BROKEN_SWAPS)
def test_the_harness_finds_what_is_taken_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SCENARIOS["clean"]
    with monkeypatch.context() as patch:
        BROKEN_SWAPS[name](patch)
        recording, before, ended = record(scenario, tmp_path / "log")
    counts = range(len(recording.steps) + 1)
    assert any(_try_images(scenario, recording, before, ended, [KEEP, DROP, *SEEDS], counts, again=False))


def _syncs_of_partition(recording: Recording) -> list[int]:
    partition = str(recording.root / "topic-0")
    return [i for i, step in enumerate(recording.steps) if step.operation == ("fsync", partition, "")]


def test_a_new_segment_is_no_swap_before_those_below_it_have_their_names(tmp_path: Path) -> None:
    """Or the last group would be swapped alone: its tombstone is gone, and what it hid is there again."""
    scenario = SCENARIOS["clean"]
    recording, before, ended = record(scenario, tmp_path / "log")
    adopted, swapped = _syncs_of_partition(recording)[:2]

    def only_the_last(disk: Disk) -> None:
        disk.waiting = [entry for entry in disk.waiting if Path(entry.name).name.startswith(f"{16:020d}")]

    def failures(count: int) -> list[str]:
        images, counts = [DROP, *range(30)], range(count, count + 1)
        tried = _try_images(
            scenario, recording, before, ended, images, counts, again=False, change=only_the_last
        )
        return list(tried)

    assert not failures(swapped)
    del recording.steps[adopted]
    assert failures(swapped - 1)


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize(
    ("which", "name"),
    [(4, "swapped"), (5, "retired"), (6, "first promoted"), (7, "second promoted")],
)
def test_each_directory_sync_of_the_swap_is_needed(tmp_path: Path, which: int, name: str) -> None:
    scenario = SCENARIOS["clean"]
    recording, before, ended = record(scenario, tmp_path / "log")
    del recording.steps[_syncs_of_partition(recording)[which]]
    counts = range(_syncs_of_partition(recording)[which] + 20)
    assert any(_try_images(scenario, recording, before, ended, [DROP, *range(20)], counts, again=False)), name


def _step(recording: Recording, verb: str, ending: str, other: str = "") -> list[int]:
    return [
        i
        for i, step in enumerate(recording.steps)
        if step.operation[0] == verb
        and step.operation[1].endswith(ending)
        and step.operation[2].endswith(other)
    ]


def test_the_order_of_operations(tmp_path: Path) -> None:
    recording, _, _ = record(SCENARIOS["clean"], tmp_path / "log")
    adopts = _step(recording, "rename", ".log", ".log.cleaned")
    swaps = _step(recording, "rename", ".log.cleaned", ".log.swap")
    retires = _step(recording, "rename", ".log", ".log.deleted")
    finals = _step(recording, "rename", ".log.swap", ".log")
    unlinks = _step(recording, "unlink", ".log.deleted")
    syncs = _syncs_of_partition(recording)
    assert len(adopts) == len(swaps) == len(finals) == 4
    assert len(retires) == len(unlinks) == 6
    for adopt in adopts:
        staged = recording.steps[adopt].operation[1]
        synced = [i for i, step in enumerate(recording.steps) if step.operation == ("fsync", staged, "")]
        assert synced and synced[-1] < adopt
    parts = [adopts, *([swap] for swap in swaps), retires, *([final] for final in finals), unlinks]
    for earlier, later in pairwise(parts):
        assert any(earlier[-1] < sync < later[0] for sync in syncs)
    (moved,) = _step(recording, "rename", ".tmp", "cleaner-offset-checkpoint")
    assert max(finals) < moved
    for steps, is_ascending in ((adopts, True), (swaps, False), (retires, True), (finals, True)):
        bases = [Path(recording.steps[i].operation[1]).name for i in steps]
        assert bases == sorted(bases, reverse=not is_ascending)
