"""A crash at every step of a ledger's writing, of its cursor's move, of deletions: the view is one of two.

Every image of the disk is read as it lies, without a repair, by whoever reads the compacted view: it is the
one from before, or the one that was about to be there, never an error, and it does not go back once the run
was over. Then the next start sweeps, the run is made again, and nothing is left but what the cursor names.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import Cursor, encode_cursor
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore, recover_ledgers
from siltstone.log.names import segment_file
from siltstone.log.partition import open_partition
from siltstone.log.replacement import delete_oldest, finish_replacement
from siltstone.log.segments import list_segments
from tests.crash.test_swap_crashes import crash_after
from tests.support.cleaning import logs
from tests.support.cleaning.logs import NOW, Rec
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, recorded
from tests.support.crash.missing_syncs import leave_out_syncs
from tests.support.log import plainly
from tests.support.log.views import view_of

SEEDS = range(3)
WORDS = "a1 b1 c1 d1 e1 b2 f- a2 g1 c- h1 b3 i1 a3 j1 d2"
"""One record each, four to a segment: at 8 and at 12 a compaction ends."""
View = list[tuple[int, bytes, bytes]]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model knows what was synced; the real disk need not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass(frozen=True)
class Lying:
    """A partition as it lies there; ``mark``: up to where it may be compacted."""

    directory: Path
    mark: int | None = None

    @property
    def view(self) -> LogView:
        return view_of(self.directory, high_watermark=self.mark)


def write(path: Path) -> None:
    rows = [
        Rec(offset=at, key=word[:1].encode(), value=None if word[1:] == "-" else word[1:].encode())
        for at, word in enumerate(WORDS.split())
    ]
    logs.write_log(
        path, {base: [logs.batch([row]) for row in rows[base : base + 4]] for base in (0, 4, 8, 12)}
    )


def compacting(mark: int, name: str = "run", *, merge_runs: bool = False) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        plainly.compact(Lying(path / "topic-0", mark), name=name, merge_runs=merge_runs)

    return act


def retain(path: Path) -> None:
    """Originals go as far as they may."""
    partition = path / "topic-0"
    horizon = LedgerStore(partition).held_horizon() or 0
    segments = list_segments(partition)
    ends = [each.base_offset for each in segments[1:]]
    delete_oldest(
        partition,
        [each.base_offset for each, end in zip(segments, ends, strict=False) if end <= horizon],
    )


def forget(path: Path) -> None:
    LedgerStore(path / "topic-0").forget()
    LedgerStore(path / "topic-0").collect()


def both(*acts: Callable[[Path], None]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        for each in acts:
            each(path)

    return act


@dataclass(frozen=True)
class Doing:
    """What is crashed, and what comes before it."""

    act: Callable[[Path], None]
    earlier: Callable[[Path], None] = lambda path: None

    def prepare(self, path: Path) -> None:
        write(path)
        self.earlier(path)


DOINGS = {
    "first": Doing(compacting(12)),
    "second": Doing(compacting(12), compacting(8, "old")),
    "third": Doing(compacting(16), both(compacting(6, "old"), compacting(12, "later"))),
    "fold": Doing(compacting(12, merge_runs=True), both(compacting(4, "old"), compacting(8, "later"))),
    "retention after": Doing(both(compacting(12), retain), compacting(8, "old")),
    "originals gone before": Doing(compacting(16), both(compacting(12, "old"), retain)),
    "forget": Doing(forget, compacting(12, "old")),
}


def view(path: Path) -> View:
    with CompactedReader(Lying(path / "topic-0")) as reader:
        return [(each.offset, each.key or b"", each.value or b"") for each in plainly.recs_of(reader)]


def table(found: View) -> dict[bytes, bytes]:
    last = {key: value for _, key, value in found}
    return {key: value for key, value in last.items() if value}


TABLE = {word[:1].encode(): word[1:].encode() for word in WORDS.split() if word[0] not in "cf"}


@dataclass(frozen=True)
class Recorded:
    recording: Recording
    before: View
    after: View


def record(doing: Doing, path: Path) -> Recorded:
    """The operations of an undisturbed run, and what a reader sees before and after it."""
    doing.prepare(path)
    before = view(path)
    with recorded(path) as recording:
        doing.act(path)
    after = view(path)
    assert table(before) == table(after) == TABLE
    return Recorded(recording, before, after)


def check_view(path: Path, known: Recorded) -> None:
    """As it lies there: nothing has been repaired."""
    found = view(path)
    assert found in (known.before, known.after), ("view", found)
    assert table(found) == TABLE


def check_names(partition: Path) -> None:
    """Nothing is there but what the cursor names."""
    store = LedgerStore(partition)
    ledger, names = store.current(), set()
    if ledger is not None:
        names = {"cursor.json", f"ledger-{ledger.id}.json"}
        names |= {f"generation-{each.id}" for each in ledger.runs}
        names |= {f"ledger-{ledger.id}.hidden"} if ledger.superseded_crc is not None else set()
    there = {path.name for path in store.folder.iterdir()} if store.folder.exists() else set()
    assert there == names


def start(path: Path) -> None:
    partition = path / "topic-0"
    finish_replacement(partition)
    recover_ledgers(partition, view_of(partition).log_end_offset)


def go_on(path: Path, doing: Doing, known: Recorded) -> None:
    """The next start, and the run once more."""
    start(path)
    check_view(path, known)
    check_names(path / "topic-0")
    doing.act(path)
    assert view(path) == known.after
    check_names(path / "topic-0")


@pytest.mark.parametrize("name", DOINGS)
def test_every_operation_may_be_the_last(tmp_path: Path, name: str) -> None:
    doing = DOINGS[name]
    known = record(doing, tmp_path / "undisturbed")
    for count in range(len(known.recording.steps)):
        path = tmp_path / str(count)
        doing.prepare(path)
        assert crash_after(count, lambda path=path: doing.act(path))
        check_view(path, known)
        go_on(path, doing, known)
        shutil.rmtree(path)


def images(doing: Doing, known: Recorded, variants: list[Variant], most: int = 1000) -> list[str]:
    """Build every image, read it, go on from it; the failures up to ``most``, one line each."""
    seen: set[int] = set()
    failures = []
    steps = known.recording.steps
    for count in range(len(steps) + 1):
        disk = Disk(known.recording, count)
        for variant in variants:
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if len(failures) >= most or not disk.build(mixed, seen):
                continue
            try:
                check_view(known.recording.root, known)
                if count % 4 == 0:
                    go_on(known.recording.root, doing, known)
            except Exception as error:
                what = steps[count].operation if count < len(steps) else "end"
                failures.append(f"{count} ({what}) {mixed}: {type(error).__name__}: {error}"[:400])
    return failures


@pytest.mark.parametrize("name", DOINGS)
def test_whatever_was_on_disk_by_then(tmp_path: Path, name: str) -> None:
    doing = DOINGS[name]
    assert images(doing, record(doing, tmp_path / "log"), [KEEP, DROP, *SEEDS]) == []


@pytest.mark.parametrize("name", DOINGS)
def test_what_is_done_is_durable(tmp_path: Path, name: str) -> None:
    known = record(DOINGS[name], tmp_path / "log")
    disk = Disk(known.recording, len(known.recording.steps))
    for variant in (DROP, *range(20)):
        disk.build(variant)
        assert view(known.recording.root) == known.after


@pytest.mark.parametrize("name", DOINGS)
def test_a_second_crash_while_it_starts_or_runs_again(tmp_path: Path, name: str) -> None:
    doing, rng = DOINGS[name], random.Random(7)
    known = record(doing, tmp_path / "undisturbed")
    for number in range(12):
        path = tmp_path / str(number)
        doing.prepare(path)
        crash_after(rng.randrange(len(known.recording.steps)), lambda path=path: doing.act(path))
        crash_after(rng.randrange(8), lambda path=path: start(path))
        check_view(path, known)
        crash_after(rng.randrange(len(known.recording.steps)), lambda path=path: doing.act(path))
        check_view(path, known)
        go_on(path, doing, known)
        shutil.rmtree(path)


@pytest.mark.parametrize("name", ["second", "retention after"])
def test_a_second_crash_on_what_the_first_left_on_disk(tmp_path: Path, name: str) -> None:
    """Each image of the first crash is crashed again while it starts and the run is made again."""
    doing, rng = DOINGS[name], random.Random(11)
    known = record(doing, tmp_path / "log")
    root = known.recording.root
    for _ in range(12):
        Disk(known.recording, rng.randrange(len(known.recording.steps))).build(rng.randrange(1 << 30))
        check_view(root, known)
        with recorded(root) as again:
            start(root)
            doing.act(root)
        for _ in range(8):
            Disk(again, rng.randrange(len(again.steps))).build(
                rng.choice([KEEP, DROP, rng.randrange(1 << 30)])
            )
            check_view(root, known)
        go_on(root, doing, known)


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
    for count in range(len(recording.steps) + 1):
        disk = Disk(recording, count)
        for variant in (KEEP, DROP, *SEEDS):
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


@pytest.mark.parametrize("name", BROKEN)
def test_the_harness_notices_a_sync_that_is_missing(tmp_path: Path, name: str) -> None:
    doing = DOINGS["retention after"]
    with pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch, BROKEN[name])
        known = record(doing, tmp_path / "log")
    assert images(doing, known, [DROP, *range(20)], most=1)


def test_the_harness_notices_a_cursor_that_moves_too_early(tmp_path: Path) -> None:
    doing = DOINGS["second"]
    early = LedgerStore._rename_runs

    def cursor_first(self: LedgerStore, staged: dict[int, Path]) -> None:
        files.replace(self.folder / "cursor.json", encode_cursor(Cursor(horizon=12, ledger_id=1)))
        early(self, staged)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerStore, "_rename_runs", cursor_first)
        known = record(doing, tmp_path / "log")
    assert images(doing, known, [KEEP, DROP], most=1)


def test_the_order_of_operations(tmp_path: Path) -> None:
    """Run, then superseded and manifest, then cursor; then what is old goes, originals last."""
    known = record(DOINGS["retention after"], tmp_path / "log")
    root = tmp_path / "log" / "topic-0"
    steps = [
        tuple(str(Path(path).relative_to(root)) if path else "" for path in step.operation[1:])
        for step in known.recording.steps
    ]
    verbs = [step.operation[0] for step in known.recording.steps]
    there = [
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
    for wanted in there:
        assert wanted in rest, wanted
