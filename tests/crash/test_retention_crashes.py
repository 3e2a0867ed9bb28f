"""A crash at every step of a clean that also deletes old segments, and of its undo: only a prefix goes.

What a reader finds after a crash is the log from one of its segments on: no key comes back because a
tombstone went before the value that it hides. The next run, or undo, ends as if nothing had been.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.compaction.inplace import originals
from siltstone.compaction.inplace.destination import InPlace
from siltstone.compaction.inplace.originals import Originals, read_run, refuse_changed
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO
from siltstone.log import replacement
from siltstone.log.directory import LogDirectory
from siltstone.log.names import CLEANER_CHECKPOINT, SNAPSHOT, segment_file
from siltstone.log.producers import write_snapshot
from siltstone.log.replacement import finish_replacement, swap_leftovers
from tests.support.cleaning import logs
from tests.support.cleaning.logs import DAY, NOW, Rec
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, crash_after, recorded
from tests.support.crash.swapped import Table
from tests.support.thoroughness import SEEDS, boundaries, examples, turn

pytestmark = pytest.mark.random

OLD, YOUNG = NOW - 2 * DAY, NOW - DAY // 2
CONFIG = {"segment.bytes": 60, "cleanup.policy": "compact,delete", "retention.ms": DAY}
ROWS: dict[int, list[tuple[str, str | None, int]]] = {
    0: [("a", "1", OLD), ("gone", "old", OLD), ("stays", "1", OLD)],
    3: [("b", "1", OLD), ("c", "1", OLD), ("d", "1", OLD), ("e", "1", OLD)],
    7: [("gone", None, OLD), ("b", "2", OLD)],
    9: [("c", "2", OLD), ("f", "1", OLD)],
    11: [("a", "2", YOUNG), ("g", "1", YOUNG), ("h", "1", YOUNG), ("i", "1", YOUNG)],
    15: [("g", "2", YOUNG), ("late", "1", YOUNG)],
    17: [("a", "3", OLD)],
}
LEFT = [11, 15, 17]


def write(path: Path, checkpoint: int | None = None) -> Path:
    """A log of which retention takes what is below 11, with a snapshot for each segment but the first."""
    segments = {
        base: [
            logs.batch(
                [
                    Rec(offset=base + i, key=key.encode(), value=value and value.encode(), timestamp=time)
                    for i, (key, value, time) in enumerate(rows)
                ]
            )
        ]
        for base, rows in ROWS.items()
    }
    partition = logs.write_log(path, segments, checkpoint=checkpoint)  # type: ignore[arg-type]
    for base in list(ROWS)[1:]:
        (partition / segment_file(base, SNAPSHOT)).write_bytes(write_snapshot([]))
    return partition


def table_from(start: int) -> Table:
    """The table of a reader that begins at ``start``: the last value of each key, deleted keys left out."""
    last_values = {
        key.encode(): value and value.encode()
        for base, rows in ROWS.items()
        for i, (key, value, _) in enumerate(rows)
        if base + i >= start
    }
    return {key: value for key, value in last_values.items() if value is not None}


def check_log(partition: Path) -> None:
    """The log is in order, and it is whole from one of its segments on."""
    assert swap_leftovers(partition) == [] and not list(partition.glob("*.deleted"))
    bases = sorted(logs.logs_of(partition))
    assert {path.stem for path in partition.glob("*.index")} <= {f"{base:020d}" for base in bases}
    snapshots = {int(path.stem) for path in partition.glob("*.snapshot")}
    assert (partition.parent / "keep").exists() or min(snapshots) >= bases[0]  # undo puts them back first
    last_values: dict[bytes, bytes | None] = {}
    following = 0
    for data in logs.logs_of(partition).values():
        for record in logs.records_in(data):
            assert record.offset >= following and record.key is not None
            last_values[record.key], following = record.value, record.offset + 1
    live = {key: value for key, value in last_values.items() if value is not None}
    assert live == table_from(bases[0]), bases
    assert bases[0] <= LEFT[0]


def clean(path: Path, *, keep: bool = False) -> None:
    """The run that is crashed."""
    folder = path / "keep" / f"run-{sum(1 for _ in path.glob('keep/*'))}"
    if keep:
        files.make_directory(folder, parents=True)
    result = logs.run(path, config=CONFIG, destination=InPlace("run", Originals(folder) if keep else None))
    assert result.status in (CLEANED, NOTHING_TO_DO), result


def undo(path: Path) -> None:
    """What the undo command does with its one log."""
    with LogDirectory.open(path) as directory:
        for place, log in read_run(path / "keep" / "run-0"):
            refuse_changed(place, log)
            finish_replacement(Path(log.path))
            originals.check_log(place, log).restore(directory)


def _prepare_undo(path: Path) -> None:
    write(path)
    clean(path, keep=True)


def _prepare_cleaned(path: Path) -> None:
    write(path, checkpoint=17)


@dataclass(frozen=True)
class Scenario:
    """Something that is crashed: what makes the tree, what is done."""

    prepare: Callable[[Path], object]
    act: Callable[[Path], None]


SCENARIOS = {
    "clean": Scenario(write, clean),
    "clean and keep originals": Scenario(write, lambda path: clean(path, keep=True)),
    "delete only": Scenario(_prepare_cleaned, clean),
    "delete only and keep originals": Scenario(_prepare_cleaned, lambda path: clean(path, keep=True)),
    "undo": Scenario(_prepare_undo, undo),
}

STRIDES = {"clean": 2, "clean and keep originals": 4, "undo": 3}


def outcome(path: Path) -> tuple[dict[str, bytes], str]:
    """What a finished run leaves of the log, but for indexes, which a crash may take; the checkpoint."""
    checkpoint = path / CLEANER_CHECKPOINT
    data_files = {name: data for name, data in logs.tree(path / "topic-0").items() if "index" not in name}
    return data_files, checkpoint.read_text() if checkpoint.exists() else ""


def record(scenario: Scenario, path: Path) -> tuple[Recording, tuple[dict[str, bytes], str]]:
    """The operations of an undisturbed run, and its outcome."""
    scenario.prepare(path)
    with recorded(path) as recording:
        scenario.act(path)
    check_log(path / "topic-0")
    return recording, outcome(path)


def reopen_and_check(
    scenario: Scenario, path: Path, ended: tuple[dict[str, bytes], str], *, again: bool
) -> None:
    """A start after the crash, what a reader then sees, and (``again``) the same once more."""
    partition = path / "topic-0"
    finish_replacement(partition)
    check_log(partition)
    if again:
        scenario.act(path)
        check_log(partition)
        assert outcome(path) == ended
        assert not (partition / ".siltstone").exists()


def test_each_scenario_ends_with_its_segments(tmp_path: Path) -> None:
    for name, scenario in SCENARIOS.items():
        record(scenario, tmp_path / name)
        bases = sorted(logs.logs_of(tmp_path / name / "topic-0"))
        assert bases == (list(ROWS) if name == "undo" else LEFT), name


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_operation_may_be_the_last(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    recording, ended = record(scenario, tmp_path / "undisturbed")
    crashes, stride = 0, STRIDES.get(name, 1)
    for count in boundaries(len(recording.steps), stride):
        path = tmp_path / str(count)
        scenario.prepare(path)
        if not crash_after(count, lambda path=path: scenario.act(path)):
            break
        crashes += 1
        reopen_and_check(scenario, path, ended, again=count % 3 == 0)
        shutil.rmtree(path)
    assert crashes >= len(boundaries(25, stride))


def failed_images(
    scenario: Scenario,
    recording: Recording,
    ended: tuple[dict[str, bytes], str],
    variants: list[Variant],
    *,
    again: bool = True,
    in_turns: bool = False,
    stride: int = 1,
) -> list[str]:
    """Build every image, or (``in_turns``) one for each count, start on it and check; the failures, one line
    each."""
    images: set[int] = set()
    failures = []
    for number, count in enumerate(boundaries(len(recording.steps) + 1, stride)):
        disk = Disk(recording, count)
        for variant in turn(number, variants) if in_turns else variants:
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if not disk.build(mixed, images):
                continue
            rerun = again and (isinstance(variant, str) or mixed % 3 == 0)
            try:
                reopen_and_check(scenario, recording.root, ended, again=rerun)
            except Exception as error:
                what = recording.steps[count].operation if count < len(recording.steps) else "end"
                failures.append(f"{count} ({what}) {mixed}: {type(error).__name__}: {error}"[:400])
    return failures


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_was_on_disk_by_then(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    recording, ended = record(scenario, tmp_path / "log")
    variants: list[Variant] = [KEEP, DROP, *SEEDS]
    assert (
        failed_images(scenario, recording, ended, variants, in_turns=True, stride=STRIDES.get(name, 1)) == []
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_done_is_durable(tmp_path: Path, name: str) -> None:
    recording, ended = record(SCENARIOS[name], tmp_path / "log")
    Disk(recording, len(recording.steps)).build(DROP)
    finish_replacement(recording.root / "topic-0")
    assert outcome(recording.root) == ended


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_second_crash_during_the_recovery(tmp_path: Path, name: str) -> None:
    scenario, rng = SCENARIOS[name], random.Random(7)
    recording, ended = record(scenario, tmp_path / "undisturbed")
    for number in range(examples(12)):
        path = tmp_path / str(number)
        scenario.prepare(path)
        crash_after(rng.randrange(len(recording.steps)), lambda path=path: scenario.act(path))
        crash_after(rng.randrange(10), lambda path=path: finish_replacement(path / "topic-0"))
        crash_after(rng.randrange(len(recording.steps)), lambda path=path: scenario.act(path))
        reopen_and_check(scenario, path, ended, again=True)


def _all_at_once(directory: Path, bases: list[int]) -> None:
    replacement._mark_deleted(directory, bases, keep_snapshots_of=())
    replacement.remove_deleted(directory)


def _youngest_first(directory: Path, bases: list[int]) -> None:
    for base in reversed(bases):
        replacement._mark_deleted(directory, [base], keep_snapshots_of=())
    replacement.remove_deleted(directory)


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("broken", [_all_at_once, _youngest_first])
def test_the_harness_finds_a_deletion_that_is_no_prefix(
    tmp_path: Path, broken: Callable[[Path, list[int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SCENARIOS["delete only"]
    with monkeypatch.context() as patch:
        patch.setattr("siltstone.compaction.inplace.destination.delete_oldest", broken)
        recording, ended = record(scenario, tmp_path / "log")
    assert failed_images(scenario, recording, ended, [KEEP, DROP, *range(20)], again=False)


def test_the_order_of_operations(tmp_path: Path) -> None:
    recording, _ = record(SCENARIOS["clean and keep originals"], tmp_path / "log")
    steps = [step.operation for step in recording.steps]
    (moved,) = (
        i for i, step in enumerate(steps) if step[0] == "rename" and step[2].endswith(CLEANER_CHECKPOINT)
    )
    going = [i for i, step in enumerate(steps) if i > moved and step[2].endswith(".log.deleted")]
    undo_written = [
        i for i, step in enumerate(steps) if step[0] == "rename" and step[2].endswith("undo.json")
    ]
    unlinks = [
        i for i, step in enumerate(steps) if step[0] == "unlink" and i > moved and ".deleted" in step[1]
    ]
    partition = str(recording.root / "topic-0")
    synced = [i for i, step in enumerate(steps) if step == ("fsync", partition, "")]
    bases = [Path(steps[i][2]).name for i in going]
    assert len(going) > 1 and bases == sorted(bases)
    assert moved < undo_written[-1] < going[0] and going[-1] < unlinks[0]
    for earlier, later in zip(going, [*going[1:], unlinks[0]], strict=True):
        assert any(earlier < sync < later for sync in synced)
