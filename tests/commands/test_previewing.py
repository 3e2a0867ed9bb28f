"""Previews of changes: the segments are those that retention then takes; keyless records are counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, parse_topic_config
from siltstone.base.errors import UsageError
from siltstone.commands.cleaning_conditions import CleaningConditions
from siltstone.commands.counting import SegmentCounter
from siltstone.commands.previewing import ChangePreview, count_kinds, preview
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, batch_of
from tests.support import golden_sets
from tests.support.cleaning.serving import USERS, TransactionalWriter, conditions_in, serving, write
from tests.support.golden.rounds import clean_round
from tests.support.log.managed import NOW

DAY_MS = 86_400_000


def changed(
    manager: LogManager, change: Mapping[str, str], now_ms: int = NOW, log: ReadableLog | None = None
) -> ChangePreview:
    """The preview of a change of the topic's own settings; ``log``: instead of the open one."""
    facts = conditions_in(manager, now_ms)
    facts = facts if log is None else replace(facts, log=log)
    return preview("users", [facts], with_settings(facts.config, change))


def with_settings(config: Config, change: Mapping[str, str]) -> Config:
    return config.with_topic_layer(parse_topic_config(change, "test"))


def expiring(previewed: ChangePreview) -> list[int]:
    return [segment.base_offset for partition in previewed.partitions for segment in partition.expiring]


@pytest.mark.parametrize(
    "name", "retention_bytes retention_ms retention_ms_all compact_delete_ms compact_then_delete_ms2".split()
)
def test_segments_of_a_preview_are_those_that_kafkas_retention_took(
    golden: Path, tmp_path: Path, name: str
) -> None:
    case = golden_sets.load_case(golden, name)
    round_ = case.rounds[0]
    now_ms, where = round_.raw["act_ended_ms"], TopicPartition(case.topic, case.partition)
    log = ReadOnlyLogs([golden_sets.stage_round(case, round_, tmp_path)], clock=ManualClock(now_ms))[where]
    keeping = with_settings(Config(), {"retention.ms": "-1"})
    facts = CleaningConditions(log=log, config=keeping, now_ms=now_ms)
    previewed = preview(case.topic, [facts], with_settings(Config(), round_.command_config))
    remaining = {
        int(item["file"][:20]) for item in round_.raw["listing_after"] if item["file"].endswith(".log")
    }
    before = [segment.base_offset for segment in log.view.segments]
    assert expiring(previewed) == [base for base in before if base not in remaining] != []
    assert previewed.deletes_data and previewed.partitions[0].expires_already == 0
    sizes = (round_.before / segment_file(base, "log") for base in expiring(previewed))
    assert previewed.expiring_bytes == sum(path.stat().st_size for path in sizes)
    assert any(" at the next check, within 5 min" in sentence for sentence in previewed.sentences)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"cleanup.policy": "delete", "retention.bytes": "3000"},
        {"cleanup.policy": "compact,delete", "retention.ms": "5000"},
        {"cleanup.policy": "delete", "retention.ms": "5000", "retention.bytes": "9000"},
        {"cleanup.policy": "delete", "retention.ms": "86400000000"},
        {"cleanup.policy": "delete", "retention.bytes": "0"},
    ],
)
def test_a_change_then_takes_exactly_the_segments_of_its_preview(
    tmp_path: Path, change: Mapping[str, str], is_open: bool
) -> None:
    with serving(tmp_path) as (manager, _):
        for number in range(60):
            write(manager[USERS], 1, timestamp=NOW - 10_000 + 200 * number)
        manager.flush()
        previewed = changed(manager, change, log=None if is_open else ReadOnlyLogs([tmp_path])[USERS])
        manager.topics.alter("users", change)
        taken = manager.upkeep.delete_old_segments().get("users-0", ())
        assert [deletion.base_offset for deletion in taken] == expiring(previewed)
        if "86400000000" not in change.values():
            assert taken and previewed.deletes_data


def test_segments_that_expire_already_are_counted_apart(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"cleanup.policy": "delete", "retention.bytes": "5000"}) as (manager, _):
        write(manager[USERS], 60)
        less, same = (changed(manager, {"retention.bytes": size}) for size in ("3000", "5000"))
        (before, after) = same.partitions[0], less.partitions[0]
        assert before.expires_already == len(before.expiring) == after.expires_already
        assert len(after.expiring) > after.expires_already > 0
        assert less.deletes_data and not same.deletes_data and not same.changed
        assert dict(less.changed) == {"retention.bytes": ("5000", "3000")}


def test_keyless_records_of_a_change_to_compact_are_counted_exactly(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"cleanup.policy": "delete"}) as (manager, cleaner):
        log, writer = manager[USERS], TransactionalWriter(manager[USERS], 9)
        for number in range(40):
            key = None if number % 3 == 0 else b"k%d" % (number % 7)
            value = None if number % 7 == 3 else b"v" * 60
            log.append(batch_of([NewRecord(key=key, value=value, timestamp=NOW)], "producer", NOW))
        writer.put("k", "v")
        writer.end(commit=False)
        log.roll()
        for key in (None, b"k1", None):
            log.append(batch_of([NewRecord(key=key, value=b"later", timestamp=NOW)], "producer", NOW))
        manager.flush()
        previewed = changed(manager, {"cleanup.policy": "compact"})
        (part,) = previewed.partitions
        assert previewed.deletes_data and part.is_due and not part.was_due
        assert part.first_uncleanable_offset == 42 and "begins to compact" in " ".join(previewed.sentences)
        counts = count_kinds(log, part.first_uncleanable_offset)
        assert (counts.keyless, counts.keyless_later) == (14, 2)
        assert counts == count_kinds(ReadOnlyLogs([tmp_path])[USERS], part.first_uncleanable_offset)
        manager.topics.alter("users", {"cleanup.policy": "compact"})
        (result,) = cleaner.clean_once()
        assert result.discarded.keyless == counts.keyless
        stop = threading.Event()
        stop.set()
        assert count_kinds(log, 0, stop).records == 0


def test_keyless_records_of_the_golden_set_are_counted_exactly(golden: Path, tmp_path: Path) -> None:
    case = golden_sets.load_case(golden, "keyless")
    round_ = next(round_ for round_ in case.rounds if round_.cleaned)
    assert round_.now_ms is not None
    root = golden_sets.stage_round(case, round_, tmp_path)
    log = ReadOnlyLogs([root], clock=ManualClock(round_.now_ms))[TopicPartition(case.topic, case.partition)]
    facts = CleaningConditions(log=log, config=Config(), now_ms=round_.now_ms)
    after = with_settings(Config(), {**round_.command_config, "cleanup.policy": "compact"})
    (part,) = preview(case.topic, [facts], after).partitions
    assert part.first_uncleanable_offset is not None
    counts = count_kinds(log, part.first_uncleanable_offset)
    result = clean_round(root, round_.command_config, round_.now_ms, "whole")
    assert counts.keyless == result.discarded.keyless > 0


def test_logs_become_due_and_stop_being_due(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"min.cleanable.dirty.ratio": "0.9"}) as (manager, cleaner):
        write(manager[USERS], 30, keys=30)
        manager[USERS].roll()
        manager.flush()
        cleaner.clean_once()
        write(manager[USERS], 10)
        manager[USERS].roll()
        manager.flush()
        for change in ({"min.cleanable.dirty.ratio": "0.1"}, {"max.compaction.lag.ms": "1"}):
            previewed = changed(manager, change, now_ms=NOW + 2)
            assert (previewed.partitions[0].was_due, previewed.partitions[0].is_due) == (False, True)
            assert "1 log becomes due for a cleaning." in previewed.sentences and not previewed.deletes_data
        manager.topics.alter("users", {"min.cleanable.dirty.ratio": "0.1"})
        for change in ({"min.cleanable.dirty.ratio": "0.9"}, {"min.compaction.lag.ms": "5000"}):
            assert "1 log stops being due for a cleaning." in changed(manager, change).sentences
        facts = replace(conditions_in(manager), is_paused=True)
        (part,) = preview("users", [facts], facts.config).partitions
        assert not part.was_due and not part.is_due, "a paused log is not taken"
        assert changed(manager, {"min.cleanable.dirty.ratio": "0.9"}).partitions[0].was_due


def test_active_segments_that_the_next_append_rolls_are_counted(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"segment.bytes": "100000", "segment.ms": "50000"}) as (manager, _):
        log = manager[USERS]
        write(log, 5)
        for change, rolls in (
            ({"segment.bytes": "700"}, False),
            ({"segment.bytes": "600"}, True),
            ({"segment.ms": "1000"}, False),
            ({"segment.ms": "999"}, True),
        ):
            previewed = changed(manager, change, now_ms=NOW + 1000)
            assert previewed.partitions[0].rolls == rolls and not previewed.partitions[0].rolled
            rolled = "1 active segment" if rolls else "0 active segments"
            assert f"The next append rolls {rolled} that" in " ".join(previewed.sentences)
        # And so it comes.
        manager.topics.alter("users", {"segment.bytes": "600"})
        write(log, 1)
        assert len(log.view.segments) == 2


def test_a_changed_compaction_threshold_says_whether_the_log_is_over_it(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 5)
        size = manager[USERS].size
        (part,) = changed(manager, {"compactionThreshold": str(size - 1)}).partitions
        assert part.is_over_threshold and not part.was_over_threshold
        assert not changed(manager, {"compactionThreshold": str(size)}).partitions[0].is_over_threshold
        TwoPhaseCompactor(InProcessCompactionEngine(1), clock=ManualClock(NOW)).compact(manager[USERS])
        assert not changed(manager, {"compactionThreshold": "1"}).partitions[0].is_over_threshold


def test_stamped_tombstones_keep_their_horizon(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 3, value=None)
        manager[USERS].roll()
        manager.flush()
        cleaner.clean_once()
        write(manager[USERS], 2, value=None)
        facts, counter = conditions_in(manager), SegmentCounter()
        after = with_settings(facts.config, {"delete.retention.ms": "1"})
        assert preview("users", [facts], after, counter=counter).stamped_batches is None
        counter.counts_of(facts.log)
        previewed = preview("users", [facts], after, counter=counter)
        assert (previewed.stamped_batches, previewed.newest_horizon_ms) == (3, NOW + DAY_MS)
        assert "the 3 batches that have one keep it" in " ".join(previewed.sentences)
        counts = count_kinds(facts.log, facts.range.end)
        assert (counts.stamped_tombstones, counts.unstamped_tombstones) == (3, 2)


def test_contradictions_and_damage_are_reported(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 30)
        manager.flush()
        change = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
        previewed = changed(manager, change)
        assert previewed.contradiction is not None and previewed.contradiction in previewed.sentences[0]
        assert json.loads(json.dumps(previewed.to_json()))["contradiction"] == previewed.contradiction
        facts = conditions_in(manager)
        with pytest.raises(UsageError, match="no partition"):
            preview("users", [], facts.config)
        looked = replace(facts, log=ReadOnlyLogs([tmp_path])[USERS])
        for segment in manager[USERS].view.segments[:-1]:
            segment.path().unlink()
        (part,) = preview("users", [looked], with_settings(facts.config, {"segment.ms": "1"})).partitions
        assert part.problem is None, "no file is read for it"
        previewed = preview("users", [looked], with_settings(facts.config, {"max.compaction.lag.ms": "1"}))
        assert previewed.partitions[0].problem is not None and not previewed.deletes_data


def test_a_partition_that_cannot_be_read_is_not_reported_to_lose_nothing(tmp_path: Path) -> None:
    topic = {"cleanup.policy": "delete", "retention.ms": "-1"}
    with serving(tmp_path, topic=topic) as (manager, _):
        write(manager[USERS], 60, timestamp=NOW - DAY_MS)
        manager.flush()
        facts = conditions_in(manager, NOW)
    looked = replace(facts, log=ReadOnlyLogs([tmp_path])[USERS])
    for segment in looked.log.view.segments:
        for kind in ("log", "timeindex"):
            (tmp_path / "users-0" / segment_file(segment.base_offset, kind)).unlink()
    previewed = preview("users", [looked], with_settings(facts.config, {"retention.ms": "1"}))
    problem = previewed.partitions[0].problem
    assert problem is not None and previewed.deletes_data and not expiring(previewed)
    assert previewed.sentences == [
        f"What it would do to 1 partition is not known, since files cannot be read: partition 0: {problem}."
    ]
