"""A crash at every step of an open log's life: what was acknowledged and synced is there, and the log works.

Each workload is recorded once. For each prefix of its operations, and several things that could be on the
disk then (see ``disk`` and ``survivors``), a start has to find a log as it was promised (``session``,
``checking``); and so it has after a second crash amid that start.

``SILTSTONE_CRASH=all`` (``make crash``) tries many more seeds and every second crash instead of a sample.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.runtime.manager import LogManager
from siltstone.runtime.served_directory import ServedDirectory
from tests.support import in_memory
from tests.support.cleaning.logs import NOW, tree
from tests.support.crash.checking import LATER, start_and_check
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, recorded
from tests.support.crash.session import open_manager
from tests.support.crash.workloads import WORKLOADS, record
from tests.support.thoroughness import ALL, SEEDS, THOROUGH, share, turn

pytestmark = pytest.mark.random

SECOND_CRASHES = 200 if THOROUGH else 10
LOCK = ".lock"
"""Goes with the process, not with the crash."""
Recorded = Callable[[str], Recording]


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Recovery warns of each damage; here damage is the rule."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    """A folder for thousands of images: in memory, where there is such a file system."""
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def once(room: Path) -> Recorded:
    """Each workload's recording, made when it is first asked for."""
    recordings: dict[str, Recording] = {}

    def recording_of(name: str) -> Recording:
        if name not in recordings:
            recordings[name] = record(name, room / str(len(recordings)) / "logs")
        return recordings[name]

    return recording_of


def mixed(count: int) -> list[Variant]:
    """What is tried after ``count`` operations."""
    seeds = range(24) if ALL else SEEDS
    return [*turn(count, [KEEP, DROP, *(seed * 1009 + count for seed in seeds)])]


def failures(
    recording: Recording, counts: Iterable[int], variants: Callable[[int], list[Variant]] = mixed
) -> Iterator[str]:
    """Start on every image; a line for each that breaks a promise."""
    images: dict[object, set[int]] = {}
    disk = Disk(recording, 0)
    for count in counts:
        acknowledged = recording.said_by(count)
        disk.advance(count)
        for variant in variants(count):
            if disk.build(variant, images.setdefault(acknowledged, set())):
                try:
                    start_and_check(recording.root, acknowledged)
                except Exception as error:
                    yield description(recording, count, variant, error)


def description(recording: Recording, count: int, variant: Variant, error: Exception) -> str:
    """Where the failure was and what it was, in one line."""
    steps = recording.steps
    what = steps[count].operation[:2] if count < len(steps) else "the end"
    doing = recording.said_by(count).doing
    return f"{doing}, {count} ({what}) {variant}: {type(error).__name__}: {error}"[:600]


@pytest.mark.timeout(0 if ALL else 300)
@pytest.mark.parametrize("name", WORKLOADS)
def test_whatever_was_on_disk_by_then(once: Recorded, name: str) -> None:
    recording = once(name)
    assert list(failures(recording, share(range(len(recording.steps) + 1), 19))) == []


def crash_again(recording: Recording, count: int, variant: Variant) -> Recording:
    """Crash, start and stop; what that start and stop did to the disk."""
    Disk(recording, count).build(variant)
    with recorded(recording.root) as second:
        open_manager(recording.root, ManualClock(LATER)).close()
    return second


def second_crashes(recording: Recording, name: str) -> Iterator[tuple[int, Variant, Recording, int]]:
    """(operations, variant, what the start did, how many operations of it happened)."""
    rng, total = random.Random(name), len(recording.steps)
    if ALL:
        for count in range(total + 1):
            variant = rng.choice([KEEP, DROP, rng.randrange(NOW)])
            second = crash_again(recording, count, variant)
            yield from ((count, variant, second, amid) for amid in range(len(second.steps)))
        return
    for _ in range(SECOND_CRASHES // len(WORKLOADS) + 1):
        count, variant = (
            rng.randrange(total + 1),
            rng.choice([KEEP, DROP, *(rng.randrange(NOW) for _ in "ab")]),
        )
        second = crash_again(recording, count, variant)
        yield count, variant, second, rng.randrange(len(second.steps))


@pytest.mark.timeout(0 if ALL else 300)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_second_crash_during_the_recovery(once: Recorded, name: str) -> None:
    recording, wrong = once(name), []
    for count, variant, second, amid in second_crashes(recording, name):
        Disk(second, amid).build(random.Random(f"{variant} {amid}").choice([KEEP, DROP, count * 1009 + amid]))
        try:
            start_and_check(recording.root, recording.said_by(count))
        except Exception as error:
            wrong.append(
                f"{description(recording, count, variant, error)} then {amid} {second.steps[amid].operation}"
            )
    assert wrong == []


def test_the_model_is_the_disk_when_everything_is_kept(room: Path) -> None:
    for name in WORKLOADS:
        recording = record(name, room / "kept" / name)
        real = {**tree(recording.root), LOCK: b""}
        Disk(recording, len(recording.steps)).build(KEEP)
        assert {**tree(recording.root), LOCK: b""} == real


# The harness itself: what is taken out must be missed


BROKEN: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "no fsync of what is appended": (
        "append and flush",
        lambda patch: patch.setattr(files.Appender, "sync", lambda self: None),
    ),
    "no fsync of new files": (
        "DeleteRecords",
        lambda patch: patch.setattr(files.Writer, "sync", lambda self: None),
    ),
    "no directory sync": (
        "append and flush",
        lambda patch: patch.setattr(files, "sync_directory", lambda path: None),
    ),
    "no fsync of a cleaned segment": (
        "clean and swap",
        lambda patch: patch.setattr(files, "sync_files", lambda paths: None),
    ),
    "log starts are not written down": (
        "DeleteRecords",
        lambda patch: patch.setattr(ServedDirectory, "write_log_starts", lambda self: None),
    ),
    "recovery points stay after a truncation": (
        "truncation",
        lambda patch: patch.setattr(LogManager, "_after_truncation", lambda self, served, log: None),
    ),
}


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("name", BROKEN)
def test_the_harness_finds_what_is_taken_out(room: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, break_it = BROKEN[name]
    with monkeypatch.context() as patch:
        break_it(patch)
        recording = record(workload, room / name / "logs")
    assert any(failures(recording, range(len(recording.steps) + 1)))


def without(recording: Recording, removed: list[int]) -> Recording:
    """The recording, with some operations never done."""
    steps = [step for number, step in enumerate(recording.steps) if number not in removed]
    marks = [
        (at - sum(number < at for number in removed), acknowledged) for at, acknowledged in recording.marks
    ]
    return dataclasses.replace(recording, steps=steps, marks=marks)


def steps_of(recording: Recording, verb: str, ending: str, doing: str) -> list[int]:
    """The operations of a verb on names that end so, while something was under way."""
    return [
        number
        for number, step in enumerate(recording.steps)
        if step.operation[0] == verb
        and (step.operation[2] or step.operation[1]).endswith(ending)
        and recording.said_by(number).doing == doing
    ]


NEEDED = [
    ("append and flush", "fsync", ".log", "append"),
    ("append and flush", "fsync", ".log", "flush"),
    ("retention", "fsync", "topic-0", "retention"),
    ("retention of a compacted log", "fsync", "topic-0", "retention"),
    ("DeleteRecords", "fsync", "log-start-offset-checkpoint.tmp", "DeleteRecords"),
    ("DeleteRecords", "rename", "log-start-offset-checkpoint", "DeleteRecords"),
    ("DeleteRecords", "fsync", "logs", "DeleteRecords"),
    ("clean and swap", "fsync", ".0.log", "clean"),
    ("clean and swap", "rename", "9.log.deleted", "clean"),
    ("embedded cleaner", "fsync", ".0.log", "clean"),
    ("truncation", "fsync", ".log", "truncation"),
    ("checkpoints", "fsync", ".timeindex", "close"),
]


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize(("workload", "verb", "ending", "doing"), NEEDED)
def test_these_operations_are_needed(
    once: Recorded, workload: str, verb: str, ending: str, doing: str
) -> None:
    recording = once(workload)
    removed = steps_of(recording, verb, ending, doing)
    assert removed
    broken = without(recording, removed)
    counts = range(removed[0], min(removed[-1] + 60, len(broken.steps) + 1))
    assert any(failures(broken, counts, lambda count: [DROP, *range(count, count + 4)]))
