"""A seeded part of the room in CI: the same cases each time, and none of them may fail.

Each part is a file's worth of work for one worker, so that it ends in time on two cores.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversary.attacks import ATTACKS
from tests.adversary.bases import Bases, place_of
from tests.adversary.commands import COMMANDS, call_apart
from tests.adversary.drawing import flips, interleaved, random_cases
from tests.adversary.judging import Case
from tests.adversary.room import Findings, run_room
from tests.support.in_memory import FOLDER
from tests.support.thoroughness import THOROUGH

pytestmark = pytest.mark.random

SEED = 20
CASES, FLIPS = (900, 300) if THOROUGH else (80, 12)
SECONDS = 150
"""More than it takes: who is slower does fewer cases, never fails for it."""
GOLDEN = ("golden/txn/0", "golden/tombstones/0", "golden/idempotent/0", "golden/compact_delete_ms/0")


@pytest.fixture(scope="module")
def store(golden: Path) -> Iterator[Path]:
    """Where the room works; the golden sets that other tests read are there already."""
    with tempfile.TemporaryDirectory(prefix="siltstone-adversary-", dir=FOLDER) as name:
        (Path(name) / "names").mkdir()
        place_of(Path(name), "g").symlink_to(golden.parent)
        yield Path(name)


def _names(store: Path) -> list[str]:
    return [*Bases(store / "names").names(golden=False), *GOLDEN, "legacy/v1_mixed", "recovery/us_3_swap"]


def ci_cases(store: Path) -> Iterator[Case]:
    """The cases of CI, in order."""
    return itertools.islice(random_cases(SEED, _names(store)), CASES)


def bringing_new(cases: Iterator[Case]) -> Iterator[Case]:
    """The cases that have an attack, a command or a log that none before had; all when thorough.

    Random logs, which the product wrote, count as one.
    """
    met = set[str]()
    for case in cases:
        base = "life" if case.base.startswith("life/") else case.base
        names = {base, *case.attacks, *case.commands}
        if THOROUGH or not names <= met:
            yield case
        met |= names


@pytest.fixture(scope="module")
def findings(store: Path) -> Findings:
    """What came of all cases, the flips among the others: one worker starts and unpacks the golden sets."""
    flipped = flips(SEED, Bases(store / "names"), GOLDEN)[:FLIPS]
    cases = interleaved(bringing_new(ci_cases(store)), flipped, share=3)
    return run_room(cases, store, seconds=SECONDS, workers=1)


def is_flip(text: str) -> bool:
    return "~flip=" in text


@pytest.mark.timeout(600)
def test_logs_hold_against_attacks(findings: Findings) -> None:
    failures = [failure for failure in findings.failures if not is_flip(failure)]
    assert not failures, "\n".join([*failures, findings.text()])
    assert findings.cases - flips_done(findings) > 10


@pytest.mark.timeout(600)
def test_logs_hold_against_every_single_bit(findings: Findings) -> None:
    failures = list(filter(is_flip, findings.failures))
    assert not failures, "\n".join([*failures, findings.text()])
    assert flips_done(findings) > 10


def flips_done(findings: Findings) -> int:
    """How many flips were tried: each is the only attack of its case."""
    return sum(count for (attack, _), count in findings.table.items() if attack.startswith("every bit: "))


def test_every_attack_and_every_quick_command_is_among_the_cases(store: Path) -> None:
    cases = list(bringing_new(ci_cases(store)))
    assert {name for case in cases for name in case.attacks} == set(ATTACKS)
    slow = {"clean_apart", "clean_on_spark"}
    assert {name for case in cases for name in case.commands} == set(COMMANDS) - slow


def test_a_case_is_the_same_when_it_is_read_from_its_text(store: Path) -> None:
    for case in itertools.islice(ci_cases(store), 50):
        assert Case.of(str(case)) == case


def test_call_apart_runs_the_command_line() -> None:
    """Else ``clean_apart`` and ``clean_on_spark`` would find every log refused, and unharmed."""
    answer = call_apart(["clean", "--help"])
    assert answer.status == 0, answer.stderr
    assert "--in-place" in answer.output
