"""Why a record is still here: what is called due is gone after the next cleaning, and what is the newest
stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import UsageError
from siltstone.commands.browsing import BrowsedTopic
from siltstone.commands.staying import (
    ACTIVE_SEGMENT,
    IS_DUE,
    KEYLESS,
    NEWEST,
    NOT_DIRTY_ENOUGH,
    POLICY_DELETE,
    TOMBSTONE_UNSTAMPED,
    TOMBSTONE_WAITING,
    UNCLEANABLE,
    WITHIN_MIN_LAG,
    Staying,
    why_it_stays,
)
from siltstone.commands.watch import LogOptions, Watch
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from tests.support.cleaning.serving import USERS, serving
from tests.support.log.managed import NOW

DAY = 24 * 3600 * 1000


class Case:
    """A served log, and the answers for its records."""

    def __init__(self, path: Path, manager: LogManager, cleaner: LogCleaner, clock: ManualClock) -> None:
        self.path, self.manager, self.cleaner, self.clock = path, manager, cleaner, clock

    def send(self, key: bytes | None, value: bytes | None) -> int:
        return self.manager.send("users", value, key=key, partition=0).offset

    def roll(self) -> None:
        self.manager[USERS].roll()
        self.manager.flush()

    def why(self, offset: int) -> Staying:
        self.manager.flush()
        watch = Watch([self.path], LogOptions(), self.clock)
        (watched,) = watch.snapshot().logs
        log = self.manager[USERS]
        topic = BrowsedTopic(name="users", logs=lambda: [log], partition_count=1)
        config = self.manager.topics.settings("users")
        return why_it_stays(topic, log, watched, config, offset, self.clock.now_ms())

    def offsets(self) -> list[int]:
        return [record.offset for record in self.manager[USERS]]


@pytest.fixture
def case(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Case]:
    clock = ManualClock(NOW)
    topic = {"cleanup.policy": "compact", "segment.ms": str(100 * DAY), **getattr(request, "param", {})}
    with serving(tmp_path, clock=clock, topic=topic) as (manager, cleaner):
        yield Case(tmp_path, manager, cleaner, clock)


def test_what_is_due_goes_with_the_next_cleaning_and_the_newest_stays(case: Case) -> None:
    for number in range(40):
        case.send(b"k%d" % (number % 7), b"v%d" % number)
    case.roll()
    case.send(b"another", b"in the active segment")
    codes = {offset: case.why(offset).code for offset in case.offsets()}
    assert set(codes.values()) == {IS_DUE, NEWEST}
    assert all(
        case.why(offset).superseded_at == offset + 7 for offset, code in codes.items() if code == IS_DUE
    )
    case.cleaner.clean_once()
    assert case.offsets() == [offset for offset, code in codes.items() if code == NEWEST]
    assert {case.why(offset).code for offset in case.offsets()} == {NEWEST}


def test_both_in_the_active_segment_or_only_the_newer_one(case: Case) -> None:
    first = case.send(b"a", b"1")
    assert case.why(first).code == NEWEST
    second = case.send(b"a", b"2")
    assert "both are" in case.why(first).sentence
    case.roll()
    case.send(b"a", b"3")
    assert case.why(second).code == ACTIVE_SEGMENT and "that one is" in case.why(second).sentence
    assert case.why(first).code == IS_DUE


def test_a_tombstone_waits_for_its_horizon(case: Case) -> None:
    case.send(b"a", b"1")
    tombstone = case.send(b"a", None)
    case.roll()
    assert case.why(tombstone).code == TOMBSTONE_UNSTAMPED
    case.cleaner.clean_once()
    waiting = case.why(tombstone)
    assert waiting.code == TOMBSTONE_WAITING and waiting.until_ms == NOW + DAY
    case.clock.advance(DAY - 1)
    assert case.why(tombstone).code == TOMBSTONE_WAITING
    case.clock.advance(1)
    assert case.why(tombstone).code != TOMBSTONE_WAITING
    case.clock.advance(DAY)
    case.cleaner.clean_once()
    assert tombstone not in case.offsets()


@pytest.mark.parametrize(
    "case", [{"min.compaction.lag.ms": str(DAY), "max.compaction.lag.ms": str(9 * DAY)}], indirect=True
)
def test_the_newer_one_is_too_young(case: Case) -> None:
    first = case.send(b"a", b"1")
    case.send(b"a", b"2")
    case.roll()
    assert case.why(first).code == WITHIN_MIN_LAG
    case.clock.advance(DAY + 1)
    assert case.why(first).code == IS_DUE


@pytest.mark.parametrize("case", [{"min.cleanable.dirty.ratio": "0.9"}], indirect=True)
def test_the_log_is_not_dirty_enough(case: Case) -> None:
    for number in range(200):
        case.send(b"k%d" % number, b"v")
    case.roll()
    case.cleaner.clean_once()
    case.send(b"k0", b"v")
    case.roll()
    answer = case.why(0)
    assert (answer.code, answer.superseded_at) == (
        NOT_DIRTY_ENOUGH,
        200,
    ) and "0.9 are needed" in answer.sentence


def test_the_log_is_uncleanable(case: Case) -> None:
    first = case.send(b"a", b"1")
    case.send(b"a", b"2")
    case.roll()
    case.manager.mark_uncleanable(USERS, "a damaged batch", NOW)
    answer = case.why(first)
    assert answer.code == UNCLEANABLE and "a damaged batch" in answer.sentence


@pytest.mark.parametrize("case", [{"cleanup.policy": "delete"}], indirect=True)
def test_a_topic_that_deletes_and_a_record_without_a_key(case: Case) -> None:
    offset = case.send(None, b"1")
    assert case.why(offset).code == POLICY_DELETE and "retention.ms" in case.why(offset).sentence
    case.manager.topics.alter("users", {"cleanup.policy": "compact"})
    case.roll()
    assert case.why(offset).code == KEYLESS


def test_what_is_not_there_is_said(case: Case) -> None:
    with pytest.raises(UsageError, match="no record at offset 7"):
        case.why(7)
