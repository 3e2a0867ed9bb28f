"""The room is tested: a cleaner that is broken on purpose is found among the cases of CI."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adversary import spoiling
from tests.adversary.drawing import random_cases
from tests.adversary.judging import Case
from tests.adversary.room import run_room
from tests.adversary.test_hostile_cases import ci_cases
from tests.support.in_memory import FOLDER

SECONDS = 60
QUEUES = ("odd_file", "extra_odd_segment")
"""A product that waits for a queue would take the time of the others."""
DIRECTED = {
    spoiling.the_high_watermark_is_no_bound: ((), ("life/2", "life/16", "life/18", "life/19")),
    spoiling.bad_metadata_is_a_bug: (("flip=data/settled-0/partition.metadata:3",), ("made/settled",)),
    spoiling.links_are_followed_when_trees_are_removed: (
        ("link_folders",),
        ("life/2", "life/3", "made/settled"),
    ),
    spoiling.contradictions_of_transactions_pass: (("forge_aborted",), ("made/settled", "life/2", "life/18")),
    spoiling.producers_are_forgotten: (("strange_names",), ("golden/idempotent/0",)),
    spoiling.an_interrupted_swap_is_thrown_away: (("flip_log",), ("made/tombstones", "made/plain")),
}
"""Those for which the CI's cases need long: its attacks on the logs that are concerned."""
KILLED = {spoiling.an_interrupted_swap_is_thrown_away}
"""Those that show only after a run that was killed."""
SYMPTOMS = {
    spoiling.the_high_watermark_is_no_bound: "is gone: (at or above|the last committed)",
    spoiling.horizons_pass_early: "is gone: a tombstone with horizon",
    spoiling.tombstones_are_stamped_with_the_past: "was stamped with",
    spoiling.keyless_records_always_go: "is gone: it has no key",
    spoiling.producers_are_forgotten: "the last batch of live producer",
    spoiling.contradictions_of_transactions_pass: "is gone: the last committed|was aborted and",
    spoiling.links_are_followed_when_trees_are_removed: "the bystander changed",
    spoiling.bad_metadata_is_a_bug: "Traceback",
    spoiling.an_interrupted_swap_is_thrown_away: "offset .* is gone|the end went back",
    spoiling.the_process_dies: "the process died: exit code 9",
    spoiling.memory_is_taken: "MemoryError",
}


@pytest.fixture
def store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="siltstone-adversary-", dir=FOLDER) as name:
        (Path(name) / "names").mkdir()
        yield Path(name)


@pytest.mark.long  # it tests the room, and takes as long as all cases before the one that shows the fault
@pytest.mark.parametrize("spoil", SYMPTOMS)
def test_the_room_finds_a_broken_product(spoil: Callable[[], None], store: Path) -> None:
    cases = (
        case
        for case in ci_cases(store)
        if any(command.startswith("clean") for command in case.commands) and not {*QUEUES} & {*case.attacks}
    )
    if spoil in DIRECTED:
        attacked, names = DIRECTED[spoil]
        bases = itertools.islice(itertools.cycle(names), 60)
        commands = ("clean_killed", "clean") if spoil in KILLED else ("clean",)
        cases = (Case(name, attacked, commands, seed) for seed, name in enumerate(bases))
    pattern = re.compile(SYMPTOMS[spoil])
    findings = run_room(cases, store, seconds=SECONDS, workers=1, spoil=spoil, until=pattern.search)
    assert any(pattern.search(failure) for failure in findings.failures), findings.text()


def test_a_seed_always_draws_the_same_cases() -> None:
    first, second = (random_cases(5, ["made/plain", "life/1"]) for _ in range(2))
    assert [str(next(first)) for _ in range(40)] == [str(next(second)) for _ in range(40)]


@pytest.mark.long  # it tests the room
def test_the_room_reports_a_cleaning_that_hangs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.adversary.room.SECONDS_MAX", 1)
    case = Case.of("made/plain~~clean~1")
    findings = run_room([case], store, seconds=5, workers=1, spoil=spoiling.a_cleaning_waits_for_ever)
    assert "it hangs" in findings.failures[0]
