"""Why a record is still here: what is called ``due`` goes with the next cleaning, and nothing else does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config
from siltstone.base.errors import UsageError
from siltstone.commands.browsing import Budget
from siltstone.commands.cleaning_conditions import (
    ABOVE_WATERMARK,
    ACTIVE_SEGMENT,
    HELD_BY_LEDGER,
    NOT_FLUSHED,
    OPEN_TRANSACTION,
    WITHIN_MIN_LAG,
    CleaningConditions,
)
from siltstone.commands.why_retained import (
    DUE,
    MARKER_NEEDED,
    NEWEST,
    NOT_DIRTY_ENOUGH,
    PAUSED,
    POLICY_DELETE,
    SEARCHING,
    SKIPPED,
    TOMBSTONE,
    TOMBSTONE_UNSTAMPED,
    TOMBSTONE_WAITING,
    UNCLEANABLE,
    RetainedReason,
    why_retained,
)
from siltstone.compaction.inplace import ranges
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.compaction.report import CLEANED as IS_CLEANED
from siltstone.log.ledger.store import CleaningBounds
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.log.reading import LogReader
from siltstone.runtime.manager import LogManager
from siltstone.runtime.served_directory import Uncleanable
from tests.support import golden_sets
from tests.support.cleaning.serving import USERS, TransactionalWriter, conditions_in, serving, write
from tests.support.golden.rounds import clean_round, config_of
from tests.support.golden.sets import (
    CLEANED,
    OLD_FORMATS,
    RATIO_LISTED_LATER,
    TRANSACTIONS,
    old_format_rounds,
)
from tests.support.log.managed import NOW
from tests.support.thoroughness import THOROUGH, few

ASKED_MAX = 40 if THOROUGH else 15


def offsets_of(log: ReadableLog) -> list[int]:
    """The offsets of all records, markers too."""
    reader, offsets = LogReader(log), list[int]()
    reader.control_records = True
    for polled in reader:
        offsets += polled.columns.offset.tolist()
    return offsets


def sampled(offsets: list[int], seed: str) -> list[int]:
    """All offsets of a small log, else some of them."""
    return offsets if len(offsets) <= ASKED_MAX else sorted(random.Random(seed).sample(offsets, ASKED_MAX))


def staged_conditions(case: golden_sets.Case, round_: golden_sets.Round, root: Path) -> CleaningConditions:
    """A round as it was before its cleaning."""
    golden_sets.stage_round(case, round_, root)
    now_ms = round_.now_ms
    assert now_ms is not None
    return CleaningConditions(
        log=ReadOnlyLogs([root], clock=ManualClock(now_ms))[TopicPartition(case.topic, case.partition)],
        config=config_of(round_.command_config),
        now_ms=now_ms,
        checkpoint=round_.checkpoints_before["cleaner-offset-checkpoint"],
    )


def check_round(case: golden_sets.Case, round_: golden_sets.Round, root: Path) -> set[str]:
    """Ask before the round's cleaning, and look after it; returns the codes."""
    conditions = staged_conditions(case, round_, root)
    answers = {
        offset: why_retained(conditions, offset)
        for offset in sampled(offsets_of(conditions.log), f"{case.name}{root.name}")
    }
    assert clean_round(root, round_.command_config, conditions.now_ms, "whole").status == IS_CLEANED
    where = conditions.log.topic_partition
    remaining = set(offsets_of(ReadOnlyLogs([root], clock=ManualClock(conditions.now_ms))[where]))
    for offset, answer in answers.items():
        assert (answer.code == DUE) == (offset not in remaining), answer
    return {answer.code for answer in answers.values()}


ALONE = [(name,) for name in CLEANED if name not in RATIO_LISTED_LATER]


@pytest.mark.random
@pytest.mark.parametrize("name", few(ALONE, *range(0, len(ALONE), 6)))
def test_what_is_due_goes_and_nothing_else(golden: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(golden, name)
    codes = set[str]()
    for round_ in (round_ for round_ in case.rounds if round_.cleaned):
        codes |= check_round(case, round_, tmp_path / str(round_.number))
    assert DUE in codes


@pytest.mark.random
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_what_is_due_goes_with_transactions(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"transactions/{name}")
    codes = set[str]()
    for round_ in (round_ for round_ in case.rounds if round_.cleaned):
        codes |= check_round(case, round_, tmp_path / str(round_.number))
    assert DUE in codes


@pytest.mark.random
@pytest.mark.parametrize("name", few([(name,) for name in OLD_FORMATS], *range(0, len(OLD_FORMATS), 6)))
def test_what_is_due_goes_in_old_formats(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    for round_ in old_format_rounds(case):
        check_round(case, round_, tmp_path / str(round_.number))


def test_a_tombstone_of_an_old_format_waits_for_a_ledger(cleaned: Path, tmp_path: Path) -> None:
    """As the cleaner keeps it: from offset ``tombstones_from`` on."""
    codes = set[str]()
    for name in OLD_FORMATS:
        case = golden_sets.load_case(cleaned, f"old_formats/{name}")
        for round_ in old_format_rounds(case):
            root = tmp_path / name / str(round_.number)
            conditions = staged_conditions(case, round_, root)
            for offset in sampled(offsets_of(conditions.log), name):
                answer = why_retained(conditions, offset)
                if answer.kind == TOMBSTONE and answer.superseded_by is None and answer.code == DUE:
                    behind = replace(conditions)
                    vars(behind)["bounds"] = CleaningBounds(tombstones_from=0)
                    codes.add(why_retained(behind, offset).code)
        if codes:
            break
    assert codes == {HELD_BY_LEDGER}


def test_a_topic_that_only_deletes_says_when_the_segment_goes(stopped_broker: tuple[Path, Path]) -> None:
    log = ReadOnlyLogs(stopped_broker)[TopicPartition("audit", 0)]
    answer = why_retained(CleaningConditions(log=log, config=Config(), now_ms=NOW), log.log_start_offset)
    assert answer.code == POLICY_DELETE
    assert answer.until_ms == log.view.segments[0].largest_timestamp + Config().integer("retention.ms")
    assert "retention.ms" in answer.sentence and "retention.bytes" not in answer.sentence


# An open log, through the life of a record.


def code_of(manager: LogManager, offset: int, **more: Any) -> str:
    return why_retained(conditions_in(manager, **more), offset).code


def roll(manager: LogManager) -> None:
    manager[USERS].roll()
    manager[USERS].flush()


def test_the_reason_follows_a_value_from_its_append_to_its_end(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"min.cleanable.dirty.ratio": "0.9"}) as (manager, cleaner):
        log = manager[USERS]
        write(log, 5)
        assert code_of(manager, 0) == NEWEST
        write(log, 1)
        answer = why_retained(conditions_in(manager), 0)
        assert (answer.code, answer.superseded_by) == (ACTIVE_SEGMENT, 5)
        assert "1,000 bytes" in answer.sentence and answer.until_ms == NOW + 7 * 86_400_000
        log.roll()
        flushed, log.recovery_point = log.recovery_point, 5
        assert code_of(manager, 0) == NOT_FLUSHED
        log.recovery_point = flushed
        assert code_of(manager, 0) == DUE, "all is dirty"
        answer = why_retained(conditions_in(manager, place=3), 0)
        assert answer.place == 3 and "place 3" in answer.sentence
        uncleanable = Uncleanable(topic="users", partition=0, since_ms=NOW, reason="a bad batch")
        answer = why_retained(conditions_in(manager, uncleanable=uncleanable), 0)
        assert answer.code == UNCLEANABLE and "a bad batch" in answer.sentence
        assert code_of(manager, 0, is_paused=True) == PAUSED
        assert code_of(manager, 0, skipped="tiered storage") == SKIPPED
        assert code_of(manager, 5, is_paused=True) == NEWEST
        cleaner.clean_once()
        with pytest.raises(UsageError, match="no record at offset 0") as removed:
            why_retained(conditions_in(manager), 0)
        assert "a cleaning has removed the one that was there" in str(removed.value.advice)
        with pytest.raises(UsageError, match="no record at offset 99") as unwritten:
            why_retained(conditions_in(manager), 99)
        end = log.log_end_offset
        assert f"the next record that is written gets the offset {end}" in str(unwritten.value.advice)
        with pytest.raises(UsageError, match="no record at offset -1") as below:
            why_retained(conditions_in(manager), -1)
        assert "below the log start, 0" in str(below.value.advice)
        # A clean section that is large beside one new record.
        write(log, 1)
        roll(manager)
        answer = why_retained(conditions_in(manager), 1)
        assert (answer.code, answer.superseded_by) == (NOT_DIRTY_ENOUGH, 6)
        assert "bytes more" in answer.sentence and answer.until_ms is None


def test_not_dirty_enough_has_the_bytes_and_the_date_that_make_it_due(tmp_path: Path) -> None:
    topic = {"min.cleanable.dirty.ratio": "0.6", "max.compaction.lag.ms": "5000", "segment.bytes": "100000"}
    clock = ManualClock(NOW)
    with serving(tmp_path, topic=topic, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        write(log, 20, keys=20)
        roll(manager)
        cleaner.clean_once()
        write(log, 1, timestamp=NOW + 10)
        roll(manager)
        conditions = conditions_in(manager)
        answer = why_retained(conditions, 0)
        assert (answer.code, answer.until_ms) == (NOT_DIRTY_ENOUGH, NOW + 10 + 5000)
        missing = ranges.missing_bytes(conditions.range, 0.6)
        assert missing is not None and f"{missing:,} bytes more" in answer.sentence
        total = conditions.range.clean_bytes + conditions.range.cleanable_bytes
        assert (conditions.range.cleanable_bytes + missing) / (total + missing) > 0.6
        assert (conditions.range.cleanable_bytes + missing - 1) / (total + missing - 1) <= 0.6
        assert code_of(manager, 0, now_ms=NOW + 5010) == NOT_DIRTY_ENOUGH
        assert code_of(manager, 0, now_ms=NOW + 5011) == DUE
        clock.advance(5011)
        cleaner.clean_once()
        assert 0 not in offsets_of(log)


def test_a_lag_holds_a_record_until_its_segments_time(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"min.compaction.lag.ms": "3000"}) as (manager, _):
        write(manager[USERS], 6, timestamp=NOW - 1000)
        roll(manager)
        write(manager[USERS], 6, timestamp=NOW - 500)
        roll(manager)
        first, second = (why_retained(conditions_in(manager), offset) for offset in (0, 2))
        assert (first.code, first.until_ms, first.superseded_by) == (WITHIN_MIN_LAG, NOW + 2000, 5)
        assert (second.code, second.until_ms, second.superseded_by) == (WITHIN_MIN_LAG, NOW + 2500, 7)
        assert code_of(manager, 0, now_ms=NOW + 1999) == WITHIN_MIN_LAG
        assert code_of(manager, 0, now_ms=NOW + 2000) == DUE
        assert code_of(manager, 2, now_ms=NOW + 2000) == WITHIN_MIN_LAG


def test_what_is_not_replicated_stays(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, _):
        log = manager[USERS]
        write(log, 12)
        log.roll()
        write(log, 5)
        roll(manager)
        log.set_high_watermark(14)
        assert code_of(manager, 14) == ABOVE_WATERMARK, "it cannot be read, either"
        assert code_of(manager, 16) == ABOVE_WATERMARK
        answer = why_retained(conditions_in(manager), 8)
        assert (answer.code, answer.superseded_by) == (ABOVE_WATERMARK, 13)
        assert "the high watermark" in answer.sentence and code_of(manager, 0) == DUE


def test_an_open_transaction_holds_and_is_named(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        log, writer = manager[USERS], TransactionalWriter(manager[USERS], 77)
        write(log, 3)
        log.roll()
        writer.put("k0", "new")
        roll(manager)
        answer = why_retained(conditions_in(manager), 0)
        assert answer.code == OPEN_TRANSACTION and answer.superseded_by == 3
        assert "producer 77" in answer.sentence and "offset 3" in answer.sentence
        writer.end(commit=False)
        roll(manager)
        assert code_of(manager, 0) == NEWEST, "an aborted record supersedes none"
        aborted = why_retained(conditions_in(manager), 3)
        assert (aborted.code, aborted.kind) == (DUE, "aborted") and "aborted" in aborted.sentence
        assert code_of(manager, 4) == MARKER_NEEDED
        cleaner.clean_once()
        assert set(offsets_of(log)) == {0, 1, 2, 4}
        assert why_retained(conditions_in(manager), 4).kind == "marker"


def test_an_aborted_record_behind_an_open_transaction_supersedes_none(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, _):
        log = manager[USERS]
        still_open, aborted = TransactionalWriter(log, 77), TransactionalWriter(log, 78)
        write(log, 3)  # keys k0, k1, k2
        log.roll()
        still_open.put("k1", "new")
        aborted.put("k0", "new")
        aborted.end(commit=False)
        still_open.put("k2", "new")
        roll(manager)
        answers = [why_retained(conditions_in(manager), offset) for offset in range(3)]
        assert [answer.superseded_by for answer in answers] == [None, 3, 6]
        assert [answer.code for answer in answers] == [NEWEST, OPEN_TRANSACTION, OPEN_TRANSACTION]
        answer = why_retained(conditions_in(manager), 4)
        assert (answer.kind, answer.code) == ("aborted", OPEN_TRANSACTION)


def test_a_tombstone_gets_a_horizon_waits_and_goes(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    topic, config = {"delete.retention.ms": "1000"}, {"log.cleaner.backoff.ms": "0"}
    with serving(tmp_path, topic=topic, config=config, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        write(log, 1)
        write(log, 1, keys=1, value=None)
        roll(manager)
        answer = why_retained(conditions_in(manager), 1)
        assert answer.code == TOMBSTONE_UNSTAMPED and "1,000 ms" in answer.sentence
        cleaner.clean_once()
        answer = why_retained(conditions_in(manager), 1)
        assert (answer.code, answer.until_ms) == (TOMBSTONE_WAITING, NOW + 1000)
        assert code_of(manager, 1, now_ms=NOW + 999) == TOMBSTONE_WAITING
        assert code_of(manager, 1, now_ms=NOW + 1000) == DUE, "an idle log is cleaned for its tombstones"
        clock.advance(1000)
        cleaner.clean_once()
        assert offsets_of(log) == []


def test_side_by_side_compaction_holds_tombstones(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, topic={"delete.retention.ms": "0"}, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        write(log, 2)
        roll(manager)
        TwoPhaseCompactor(InProcessCompactionEngine(1), clock=clock).compact(log)
        write(log, 1, keys=1, value=None)
        roll(manager)
        cleaner.clean_once()
        answer = why_retained(conditions_in(manager, now_ms=NOW + 1), 2)
        assert answer.code == HELD_BY_LEDGER and "offset 2" in answer.sentence
        clock.advance(1)
        cleaner.clean_once()
        assert 2 in offsets_of(log)
        TwoPhaseCompactor(InProcessCompactionEngine(1), clock=clock).compact(log)
        assert code_of(manager, 2, now_ms=NOW + 1) == DUE


def test_a_search_that_was_cut_off_continues(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"segment.bytes": "100000"}) as (manager, _):
        log = manager[USERS]
        write(log, 1, keys=1)
        for _ in range(30):
            write(log, 1, keys=1000)
            log.roll()
        write(log, 1, keys=1)
        roll(manager)
        conditions, steps, answer = conditions_in(manager), 0, why(manager, None)
        while answer.code == SEARCHING:
            steps, answer = steps + 1, why(manager, answer)
        assert steps > 10 and answer == why_retained(conditions, 0) and answer.superseded_by == 31


def test_a_search_does_not_deny_the_clean_record_that_it_has_met(tmp_path: Path) -> None:
    """A cleaning does not compare two clean records, so the search goes on for a dirty one."""
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 1, keys=1)
        write(manager[USERS], 1, keys=1)
        write(manager[USERS], 40)
        roll(manager)
        conditions = replace(conditions_in(manager), checkpoint=manager[USERS].view.segments[-1].base_offset)
        answer = why_retained(conditions, 0, budget=Budget(read_bytes=1))
        assert answer.code == SEARCHING and answer.superseded_by is not None
        assert "No later record" not in answer.sentence and f"offset {answer.next_offset}" in answer.sentence


def why(manager: LogManager, before: RetainedReason | None) -> RetainedReason:
    """One step of a search in which each has a budget of one byte."""
    return why_retained(
        conditions_in(manager),
        0,
        search_from=None if before is None else before.next_offset,
        superseded_by=None if before is None else before.superseded_by,
        budget=Budget(read_bytes=1),
    )


def test_an_open_log_and_the_same_log_in_look_mode_say_the_same(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 40)
        roll(manager)
        cleaner.clean_once()
        write(manager[USERS], 33)
        manager.flush()
        opened = conditions_in(manager)
        looked = replace(opened, log=ReadOnlyLogs([tmp_path], clock=ManualClock(NOW))[USERS])
        for offset in offsets_of(manager[USERS]):
            of_opened, of_looked = why_retained(opened, offset), why_retained(looked, offset)
            assert of_opened.to_json() == of_looked.to_json()
