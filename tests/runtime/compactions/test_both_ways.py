"""In-place cleaning, retention and a ledger beside the originals on one log: none disturbs the others.

Whoever makes the log shorter at its end, or takes it away, ends what a compaction has begun.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.clock import ManualClock
from siltstone.commands import clean as cleaning
from siltstone.commands import review
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine
from siltstone.compaction.ledger.work import CompactionReport, CompactionWork
from siltstone.compaction.report import CLEANED
from siltstone.compaction.statistics import KEPT_BY_LEDGER
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import PartitionLog
from siltstone.runtime.compactions import ERROR, NOT_RUN, SUCCESS, Compactions
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from tests.support.ledger.serving import SOON, USERS, Blocking, compacted, put, seen, serving
from tests.support.log.managed import MINUTE, NOW
from tests.support.thoroughness import examples

COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}


class BeforeReading(InProcessCompactionEngine):
    """Waits, with its sources held, before it reads any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def compact(self, work: CompactionWork, whole: bool) -> CompactionReport:
        """As in process, with a stop before it."""
        self.begun.set()
        assert self.go_on.wait(SOON)
        return super().compact(work, whole)


def clean(manager: LogManager) -> None:
    """Let the embedded cleaner clean the log, and the files of what it replaced go."""
    with LogCleaner(manager, InProcessEngine) as cleaner:
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
    assert isinstance(manager.clock, ManualClock)
    manager.clock.advance(MINUTE)
    manager.tick()


def fill(log: PartitionLog, rounds: int, names: str = "abcde") -> None:
    for number in range(rounds):
        for name in names:
            put(log, (name, f"{number} " + "v" * 20))


def table(log: PartitionLog, *, read_compacted: bool) -> dict[str | None, str | None]:
    latest = {key: value for _, key, value in seen(log, read_compacted=read_compacted)}
    return {key: value for key, value in latest.items() if value is not None}


def test_cleaning_and_compacting_in_turn(tmp_path: Path) -> None:
    with serving(tmp_path, topic=COMPACT) as (manager, compactions):
        log = manager[USERS]
        expected: dict[str | None, str | None] = {}
        for turn in range(6):
            fill(log, 5, "abc" if turn % 2 else "cde")
            put(log, ("e", None)) if turn == 3 else None
            expected = table(log, read_compacted=False)
            if turn % 3:
                clean(manager)
                compacted(compactions)
            else:
                compacted(compactions)
                clean(manager)
            assert table(log, read_compacted=False) == expected
            assert table(log, read_compacted=True) == expected
            assert len(seen(log)) == len(expected), "the compacted view has each key once"
        assert compactions.status("users").failed == 0
    with serving(tmp_path) as (manager, compactions):
        assert table(manager[USERS], read_compacted=True) == expected


@pytest.mark.parametrize("engine", [BeforeReading, Blocking])
def test_a_log_is_cleaned_while_it_is_compacted(
    tmp_path: Path, engine: type[BeforeReading] | type[Blocking]
) -> None:
    """Its segments are swapped and unlinked between the plan and the reading, or before the commit."""
    engine_now = engine()
    with serving(tmp_path, lambda: engine_now, topic=COMPACT) as (manager, compactions):
        log = manager[USERS]
        fill(log, 8)
        expected = table(log, read_compacted=False)
        compactions.trigger("users")
        waiting = engine_now.begun if isinstance(engine_now, BeforeReading) else engine_now.staged
        assert waiting.wait(SOON)
        clean(manager)
        assert len(seen(log, read_compacted=False)) < 40
        engine_now.go_on.set()
        assert compactions.wait(SOON)
        assert compactions.status("users").status == SUCCESS
        assert table(log, read_compacted=True) == table(log, read_compacted=False) == expected


@pytest.mark.parametrize("value", ["1", None])
def test_a_tombstone_waits_for_the_ledger_that_has_its_key(tmp_path: Path, value: str | None) -> None:
    """Cleaning takes a tombstone away once its time has come; the next compaction would not know of it."""
    clock = ManualClock(NOW)
    topic = {**COMPACT, "delete.retention.ms": "1000"}
    with serving(tmp_path, topic=topic, clock=clock) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), ("b", "1"))
        if value is not None:
            compacted(compactions)
        put(log, ("a", None))
        for _ in range(3):
            fill(log, 3, "cd")
            clean(manager)
        tombstones = [offset for offset, _, value in seen(log, read_compacted=False) if value is None]
        assert tombstones == ([2] if value is not None else []), "without a ledger it goes as ever"
        with LogCleaner(manager, InProcessEngine) as cleaner:
            assert cleaner.clean_once() == [], "and nothing is cleaned again and again for it"
        compacted(compactions)
        assert "a" not in table(log, read_compacted=True)
        fill(log, 3, "cd")
        clean(manager)
        tombstones_after = [offset for offset, _, value in seen(log, read_compacted=False) if value is None]
        assert tombstones_after == [], "the ledger has met it"


def test_explain_and_verify_know_of_a_tombstone_that_waits_for_the_ledger(tmp_path: Path) -> None:
    """They must say what cleaning does, not what it would do without a ledger."""
    clock, path = ManualClock(NOW), tmp_path / "data"
    path.mkdir()
    topic = {**COMPACT, "delete.retention.ms": "1000"}
    with serving(path, topic=topic, clock=clock) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), ("b", "1"))
        compacted(compactions)
        put(log, ("a", None))
        for _ in range(2):
            fill(log, 3, "cd")
            clean(manager)
        fill(log, 3, "cd")
        directory = log.directory.parent
    arguments = {
        "config": ("cleanup.policy=compact", "segment.bytes=300", "delete.retention.ms=1000"),
        "topics": ("users",),
        "now_ms": clock.now_ms(),
        "high_watermark": "end",
    }
    explained = review.explain(
        review.ExplainRequest(directories=(directory,), force=True, no_spark=True, **arguments)
    )
    (explanation,) = explained.logs
    assert explanation.is_explained, explanation.reason
    assert explanation.outcome.removed["tombstones"] == explanation.outcome.removed_bytes["tombstones"] == 0
    assert [(waiting.at_ms, waiting.tombstones) for waiting in explanation.outcome.tombstones_waiting] == [
        (KEPT_BY_LEDGER, 1)
    ]
    shutil.copytree(directory, tmp_path / "before")
    request = cleaning.CleanRequest(
        directories=(directory,), in_place=True, force=True, no_spark=True, **arguments
    )
    (result,) = cleaning.clean(request).results
    assert (result.status, result.discarded.tombstones) == (CLEANED, 0) and result.discarded.superseded
    verdict = review.verify(
        review.VerifyRequest(before=tmp_path / "before", after=directory, no_spark=True, **arguments)
    )
    assert verdict.is_sound, [log.problems for log in verdict.logs]


def test_a_ledger_by_time_bounds_what_is_cleaned(tmp_path: Path) -> None:
    """Cleaning goes by offsets: it would take the later event and leave the older one that came late."""
    topic = {**COMPACT, "siltstone.compaction.order": "time"}
    with serving(tmp_path, topic=topic) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), timestamp=NOW - 90)
        fill(log, 2, "cd")
        compacted(compactions)
        horizon = log.log_end_offset
        put(log, ("a", None), timestamp=NOW - 50)
        fill(log, 3, "cd")
        put(log, ("a", "late"), timestamp=NOW - 70)
        fill(log, 3, "cd")
        clean(manager)
        assert horizon in [offset for offset, _, _ in seen(log, read_compacted=False)]
        compacted(compactions)
        assert "a" not in table(log, read_compacted=True)
        fill(log, 1, "cd")
        clean(manager)
        assert horizon not in [offset for offset, _, _ in seen(log, read_compacted=False)]


def test_a_log_may_be_compacted_while_it_is_claimed_for_cleaning(tmp_path: Path) -> None:
    """Both have claims of their own: neither waits for the other, nor takes the log away from it."""
    with serving(tmp_path, topic=COMPACT) as (manager, compactions):
        fill(manager[USERS], 8)
        claim = manager.cleaning_states.begin(USERS)
        assert claim is not None
        compacted(compactions)
        assert compactions.status("users").status == SUCCESS
        claim.check()
        claim.done()


@pytest.mark.parametrize("compacted_before", [False, True])
def test_originals_expire_while_they_are_compacted(tmp_path: Path, compacted_before: bool) -> None:
    """Without a ledger nothing holds retention back; the run has its sources all the same."""
    clock, engine = ManualClock(NOW), BeforeReading()
    topic = {"retention.ms": "60000", "segment.bytes": "200", "file.delete.delay.ms": "0"}
    with serving(tmp_path, lambda: engine, topic=topic, clock=clock) as (manager, compactions):
        log = manager[USERS]
        if compacted_before:
            put(log, ("first", "1"), timestamp=clock.now_ms())
            with Compactions(manager, InProcessCompactionEngine) as others:
                compacted(others)
        for number in range(20):
            put(log, (f"k{number}", "1"), timestamp=clock.now_ms())
        before = table(log, read_compacted=False)
        compactions.trigger("users")
        assert engine.begun.wait(SOON)
        clock.advance(10 * MINUTE)
        manager.upkeep.delete_old_segments()
        clock.advance(MINUTE)
        manager.tick()
        start = log.log_start_offset
        assert start <= 1 if compacted_before else start == 20
        engine.go_on.set()
        assert compactions.wait(SOON)
        assert compactions.status("users").status == SUCCESS
        assert table(log, read_compacted=True) == before


def test_deleted_records_stay_in_the_ledger_that_has_them(tmp_path: Path) -> None:
    """As in Pulsar, whose retention and truncation are about the originals."""
    with serving(tmp_path) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), ("b", "1"))
        compacted(compactions)
        put(log, ("c", "1"), ("d", "1"))
        manager.delete_records(USERS, 3)
        assert seen(log) == [(0, "a", "1"), (1, "b", "1"), (3, "d", "1")]
        compacted(compactions)
        assert seen(log) == [(0, "a", "1"), (1, "b", "1"), (3, "d", "1")]


# What takes the log from a compaction


def test_a_truncation_aborts_the_compaction_of_the_log(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"))
        put(log, ("a", "never was"))
        compactions.trigger("users")
        assert engine.staged.wait(SOON)
        assert manager.truncate_to(USERS, 1)
        put(log, ("b", "1"))
        engine.go_on.set()
        assert compactions.wait(SOON)
        status = compactions.status("users")
        assert status.status == ERROR and "compaction was aborted" in status.last_error
        assert LedgerStore(log.directory).cursor() is None
        compacted(compactions)
        assert seen(log) == [(0, "a", "1"), (1, "b", "1")]


def test_a_ledger_of_truncated_records_is_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"))
        put(log, ("a", "never was"))
        compacted(compactions)
        assert manager.truncate_to(USERS, 1)
        put(log, ("b", "1"))
        assert seen(log) == [(0, "a", "1"), (1, "b", "1")]
        compacted(compactions)
        assert seen(log) == [(0, "a", "1"), (1, "b", "1")]


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_ends_its_compaction(tmp_path: Path, again: bool) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, compactions):
        put(manager[USERS], ("a", "1"))
        compactions.trigger("users")
        assert engine.staged.wait(SOON)
        manager.topics.delete("users")
        if again:
            manager.topics.create("users")
            put(manager[USERS], ("b", "1"))
        engine.go_on.set()
        assert compactions.wait(SOON)
        if not again:
            assert not (tmp_path / "users-0").exists()
            return
        assert compactions.status("users").status == NOT_RUN, "it was another topic's"
        assert seen(manager[USERS]) == [(0, "b", "1")]
        compacted(compactions)
        assert compactions.status("users").status == SUCCESS


def test_a_directory_that_goes_offline_takes_its_logs_along(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, compactions):
        put(manager[USERS], ("a", "1"))
        compactions.trigger("users")
        assert engine.staged.wait(SOON)
        manager.directories[0].go_offline("a test")
        engine.go_on.set()
        assert compactions.wait(SOON)
        assert compactions.check() == []
        assert LedgerStore(tmp_path / "users-0").cursor() is None


# Any order of anything

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=6)),
        st.sampled_from([("clean",), ("compact",), ("expire",), ("reopen",)]),
    ),
    max_size=14,
)


@settings(max_examples=examples(40), deadline=None)
@given(steps=STEPS)
def test_any_order_of_steps_keeps_the_compacted_view(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, ...]]
) -> None:
    """The compacted view is always the table of all that was ever appended, whatever else went on."""
    path, clock = tmp_path_factory.mktemp("logs"), ManualClock(NOW)
    topic = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "60000", "segment.bytes": "200"}
    expected: dict[str | None, str | None] = {}
    with serving(path, topic=topic, clock=clock) as (manager, compactions):
        compacted(compactions)
        put(manager[USERS], ("first", "1"), timestamp=clock.now_ms())
        compacted(compactions)
        expected["first"] = "1"
    steps = [*steps, ("reopen",)]
    while steps:
        with serving(path, clock=clock) as (manager, compactions):
            while (step := steps.pop(0))[0] != "reopen":
                log = manager[USERS]
                if step[0] == "put" and step[1]:
                    pairs = [(key, "1" if has_value else None) for key, has_value in step[1]]
                    put(log, *pairs, timestamp=clock.now_ms())
                    expected |= dict(pairs)
                elif step[0] == "clean":
                    with LogCleaner(manager, InProcessEngine) as cleaner:
                        cleaner.clean_once()
                elif step[0] == "compact":
                    compacted(compactions)
                    assert compactions.status("users").status == SUCCESS
                elif step[0] == "expire":
                    clock.advance(5 * MINUTE)
                    manager.upkeep.delete_old_segments()
                    manager.tick()
                remaining = {key: value for key, value in expected.items() if value is not None}
                assert table(log, read_compacted=True) == remaining
