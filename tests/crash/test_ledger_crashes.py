"""A crash at every step of a ledger's writing, of its cursor's move, of deletions: the view is one of two.

Every image of the disk is read as it lies, without a repair, by whoever reads the compacted view: it is the
one from before, or the one that was about to be there, never an error, and it does not go back once the run
was over. Then the next start sweeps, the run is made again, and nothing is left but what the cursor names.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.log.ledger.manifest import Cursor, encode_cursor
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import segment_file
from siltstone.log.partition import open_partition
from siltstone.log.replacement import finish_replacement
from tests.support.cleaning.logs import NOW
from tests.support.crash.breaking import leave_out_syncs
from tests.support.crash.disk import DROP, KEEP, Disk, Variant, crash_after, recorded
from tests.support.crash.ledgers import (
    WORDS,
    LogOnDisk,
    Recorded,
    Scenario,
    both,
    check_names,
    check_view,
    record,
    retain,
    start,
    view,
    write,
)
from tests.support.log import plainly
from tests.support.log.views import view_of
from tests.support.thoroughness import SEEDS, THOROUGH, boundaries, examples, turn

pytestmark = pytest.mark.random


def compacting(mark: int, name: str = "run", *, merge_runs: bool = False) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        plainly.compact(LogOnDisk(path / "topic-0", mark), name=name, merge_runs=merge_runs)

    return act


def forget(path: Path) -> None:
    LedgerStore(path / "topic-0").delete_cursor()
    LedgerStore(path / "topic-0").delete_unused()


SCENARIOS = {
    "first": Scenario(compacting(12)),
    "second": Scenario(compacting(12), compacting(8, "old")),
    "third": Scenario(compacting(16), both(compacting(6, "old"), compacting(12, "later"))),
    "fold": Scenario(compacting(12, merge_runs=True), both(compacting(4, "old"), compacting(8, "later"))),
    "retention after": Scenario(both(compacting(12), retain), compacting(8, "old")),
    "originals gone before": Scenario(compacting(16), both(compacting(12, "old"), retain)),
    "forget": Scenario(forget, compacting(12, "old")),
}


def go_on(path: Path, scenario: Scenario, known: Recorded) -> None:
    """The next start, and the run once more."""
    start(path)
    check_view(path, known)
    check_names(path / "topic-0")
    scenario.act(path)
    assert view(path) == known.after
    check_names(path / "topic-0")


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_operation_may_be_the_last(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    known = record(scenario, tmp_path / "undisturbed")
    for count in boundaries(len(known.recording.steps)):
        path = tmp_path / str(count)
        scenario.prepare(path)
        assert crash_after(count, lambda path=path: scenario.act(path))
        check_view(path, known)
        go_on(path, scenario, known)
        shutil.rmtree(path)


def failed_images(
    scenario: Scenario, known: Recorded, variants: list[Variant], maximum: int = 1000
) -> list[str]:
    """Build every image, read it, go on from it; the failures up to ``maximum``, one line each."""
    images: set[int] = set()
    failures = []
    steps = known.recording.steps
    for count in boundaries(len(steps) + 1):
        disk = Disk(known.recording, count)
        for variant in turn(count, variants):
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if len(failures) >= maximum or not disk.build(mixed, images):
                continue
            try:
                check_view(known.recording.root, known)
                if count % 4 == 0:
                    go_on(known.recording.root, scenario, known)
            except Exception as error:
                what = steps[count].operation if count < len(steps) else "end"
                failures.append(f"{count} ({what}) {mixed}: {type(error).__name__}: {error}"[:400])
    return failures


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_was_on_disk_by_then(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    assert failed_images(scenario, record(scenario, tmp_path / "log"), [KEEP, DROP, *SEEDS]) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_done_is_durable(tmp_path: Path, name: str) -> None:
    known = record(SCENARIOS[name], tmp_path / "log")
    disk = Disk(known.recording, len(known.recording.steps))
    for variant in (DROP, *range(20 if THOROUGH else 2)):
        disk.build(variant)
        assert view(known.recording.root) == known.after


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_second_crash_during_the_start_or_the_next_run(tmp_path: Path, name: str) -> None:
    scenario, rng = SCENARIOS[name], random.Random(7)
    known = record(scenario, tmp_path / "undisturbed")
    for number in range(examples(12)):
        path = tmp_path / str(number)
        scenario.prepare(path)
        crash_after(rng.randrange(len(known.recording.steps)), lambda path=path: scenario.act(path))
        crash_after(rng.randrange(8), lambda path=path: start(path))
        check_view(path, known)
        crash_after(rng.randrange(len(known.recording.steps)), lambda path=path: scenario.act(path))
        check_view(path, known)
        go_on(path, scenario, known)
        shutil.rmtree(path)


@pytest.mark.parametrize("name", ["second", "retention after"])
def test_a_second_crash_on_what_the_first_left_on_disk(tmp_path: Path, name: str) -> None:
    """Each image of the first crash is crashed again while it starts and the run is made again."""
    scenario, rng = SCENARIOS[name], random.Random(11)
    known = record(scenario, tmp_path / "log")
    root = known.recording.root
    for _ in range(examples(12)):
        Disk(known.recording, rng.randrange(len(known.recording.steps))).build(rng.randrange(1 << 30))
        check_view(root, known)
        with recorded(root) as again:
            start(root)
            scenario.act(root)
        for _ in range(8 if THOROUGH else 4):
            Disk(again, rng.randrange(len(again.steps))).build(
                rng.choice([KEEP, DROP, rng.randrange(1 << 30)])
            )
            check_view(root, known)
        go_on(root, scenario, known)


# Truncation


def cut(path: Path) -> None:
    """Open, cut off below the horizon, close."""
    log = open_partition(path / "topic-0", LogConfig(), ManualClock(NOW))
    log.truncate_to(6)
    log.close()


def test_a_ledger_and_a_log_that_was_cut_below_it_are_never_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path)
    compacting(12)(path)
    whole = {at: word.encode() for at, word in enumerate(WORDS.split())}
    with recorded(path) as recording:
        cut(path)
    assert LedgerStore(path / "topic-0").cursor() is None
    for count in boundaries(len(recording.steps) + 1):
        disk = Disk(recording, count)
        for variant in turn(count, (KEEP, DROP, *SEEDS)):
            disk.build(variant)
            finish_replacement(path / "topic-0")
            cursor = LedgerStore(path / "topic-0").cursor()
            end = view_of(path / "topic-0").log_end_offset
            assert cursor is None or cursor.horizon <= end
            for offset, key, value in view(path):
                assert key + (value or b"-") == whole[offset]


# Does the harness notice?


BROKEN = {
    "logs are not synced": lambda path: "generation-" in path and path.endswith(".log"),
    "indexes are not synced": lambda path: "generation-" in path and path.endswith("index"),
    "generations' names are not synced": lambda path: path.rpartition("/")[2].startswith("generation-"),
    "manifests are not synced": lambda path: "/ledger-" in path and path.endswith(".json"),
    "hidden offsets are not synced": lambda path: path.endswith(".hidden"),
    "the cursor is not synced": lambda path: path.endswith("cursor.json.tmp"),
    "the folder is not synced": lambda path: path.endswith(".compacted"),
}


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("name", BROKEN)
def test_the_harness_notices_a_sync_that_is_missing(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS["retention after"]
    with pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch, BROKEN[name])
        known = record(scenario, tmp_path / "log")
    assert failed_images(scenario, known, [DROP, *range(20)], maximum=1)


@pytest.mark.long  # it tests the harness
def test_the_harness_notices_a_cursor_that_moves_too_early(tmp_path: Path) -> None:
    scenario = SCENARIOS["second"]
    early = LedgerStore._rename_runs

    def cursor_first(self: LedgerStore, staged: dict[int, Path]) -> None:
        files.replace(self.folder / "cursor.json", encode_cursor(Cursor(horizon=12, ledger_id=1)))
        early(self, staged)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerStore, "_rename_runs", cursor_first)
        known = record(scenario, tmp_path / "log")
    assert failed_images(scenario, known, [KEEP, DROP], maximum=1)


def test_the_order_of_operations(tmp_path: Path) -> None:
    """Run, then superseded and manifest, then cursor; then what is old goes, originals last."""
    known = record(SCENARIOS["retention after"], tmp_path / "log")
    root = tmp_path / "log" / "topic-0"
    steps = [
        tuple(str(Path(path).relative_to(root)) if path else "" for path in step.operation[1:])
        for step in known.recording.steps
    ]
    verbs = [step.operation[0] for step in known.recording.steps]
    expected_order = [
        ("rename", (".compacted/run-run/generation-1", ".compacted/generation-1")),
        ("fsync", (".compacted", "")),
        ("create", (".compacted/ledger-1.hidden", "")),
        ("fsync", (".compacted/ledger-1.hidden", "")),
        ("create", (".compacted/ledger-1.json", "")),
        ("fsync", (".compacted/ledger-1.json", "")),
        ("fsync", (".compacted", "")),
        ("rename", (".compacted/cursor.json.tmp", ".compacted/cursor.json")),
        ("fsync", (".compacted", "")),
        ("unlink", (".compacted/ledger-0.json", "")),
        ("rename", (segment_file(0, "log"), segment_file(0, "log") + ".deleted")),
    ]
    rest = iter(zip(verbs, steps, strict=True))
    for operation in expected_order:
        assert operation in rest, operation
