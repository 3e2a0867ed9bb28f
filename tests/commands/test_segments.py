"""A partition's segments for people: the sections are those that the cleaner goes by, open or looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config
from siltstone.commands.cleaning_conditions import conditions_of
from siltstone.commands.counting import SegmentCounter
from siltstone.commands.segments import ACTIVE, CLEAN, CLOSED, SECTIONS, segments_of, sentence_of
from siltstone.commands.watch import DIRTY, TOMBSTONES, LogOptions, Watch, WatchedLog
from siltstone.compaction.inplace.ranges import missing_bytes
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.web.strip import BOXES_MAX, WIDTH, strip
from tests.support.cleaning.serving import USERS, serving, write
from tests.support.golden_sets import write_checkpoint
from tests.support.log.managed import NOW


def watched_logs(*paths: Path) -> dict[TopicPartition, WatchedLog]:
    logs = Watch(paths, LogOptions(), ManualClock(NOW)).snapshot().logs
    return {log.topic_partition: log for log in logs}


def test_sections_of_a_real_brokers_log_have_the_bytes_that_the_cleaner_counts(
    stopped_broker: tuple[Path, Path],
) -> None:
    where = TopicPartition("lagged", 0)
    write_checkpoint(stopped_broker[1] / "cleaner-offset-checkpoint", {("lagged", 0): 307})
    watched = watched_logs(*stopped_broker)[where]
    page = segments_of(ReadOnlyLogs(stopped_broker)[where], watched, None)
    assert watched.snapshot is not None and page.size == watched.snapshot.size
    bounds = watched.snapshot.range
    sections = {row.base_offset: row.section for row in page.segments}
    assert page.marks.cleaner_checkpoint == 307 and page.marks.first_uncleanable == bounds.end
    assert all(section == CLEAN for base, section in sections.items() if base < 307)
    assert all(section == DIRTY for base, section in sections.items() if 307 <= base < bounds.end)
    assert list(sections.values())[-1] == ACTIVE and CLEAN in sections.values()
    sizes = dict.fromkeys(SECTIONS, 0)
    for row in page.segments:
        sizes[row.section] += row.size
    assert (sizes[CLEAN], sizes[DIRTY]) == (bounds.clean_bytes, bounds.cleanable_bytes)
    assert [row.end_offset for row in page.segments[:-1]] == [row.base_offset for row in page.segments[1:]]


def test_segments_of_a_log_that_is_not_compacted_are_closed_or_active(
    stopped_broker: tuple[Path, Path],
) -> None:
    where = TopicPartition("audit", 0)
    page = segments_of(ReadOnlyLogs(stopped_broker)[where], watched_logs(*stopped_broker)[where], None)
    assert {row.section for row in page.segments[:-1]} <= {CLOSED} and page.segments[-1].section == ACTIVE
    assert page.marks.first_uncleanable is None and "It is not cleaned" in page.sentence


def test_an_open_log_and_the_same_log_in_look_mode_are_shown_alike(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaner.clean_once()
        write(manager[USERS], 60)
        manager.flush()
        watched = watched_logs(tmp_path)[USERS]
        opened = segments_of(manager[USERS], watched, None, times=False)
        looked = segments_of(ReadOnlyLogs([tmp_path])[USERS], watched, None, times=False)
        assert {row.section for row in opened.segments} >= {CLEAN, DIRTY, ACTIVE}
        assert [(row.base_offset, row.size, row.section) for row in opened.segments] == [
            (row.base_offset, row.size, row.section) for row in looked.segments
        ]
        assert opened.marks == looked.marks


def test_a_dirty_log_says_how_many_bytes_are_missing(tmp_path: Path) -> None:
    topic = {"min.cleanable.dirty.ratio": "0.9", "cleanup.policy": "compact"}
    with serving(tmp_path, topic=topic) as (manager, cleaner):
        write(manager[USERS], 200, keys=200)
        cleaner.clean_once()
        write(manager[USERS], 60)
        manager.flush()
        watched = watched_logs(tmp_path)[USERS]
        assert watched.state == DIRTY and watched.snapshot is not None
        bounds = watched.snapshot.range
        missing = missing_bytes(bounds, 0.9)
        assert missing is not None
        sentence = sentence_of(watched, manager.topics.settings("users"))
        assert f"{missing:,} bytes more" in sentence and "0.90 are needed" in sentence
        # With so many bytes more the ratio is reached, with fewer it is not.
        dirty = bounds.cleanable_bytes + missing
        assert dirty / (dirty + bounds.clean_bytes) > 0.9
        assert (dirty - 1) / (dirty - 1 + bounds.clean_bytes) <= 0.9


@pytest.mark.parametrize("count", [1, BOXES_MAX, BOXES_MAX + 1])
def test_a_strip_is_to_scale_and_merges_neighbours_beyond_its_bound(tmp_path: Path, count: int) -> None:
    with serving(tmp_path) as (manager, _):
        log = manager[USERS]
        for _ in range(count - 1):
            write(log, 1)
            log.roll()
        write(log, 1)
        manager.flush()
        page = segments_of(log, watched_logs(tmp_path)[USERS], Config(), times=False)
    drawn = str(strip(page))
    widths = [float(part.split('%"')[0]) for part in drawn.split('width="')[2:]]  # after the strip's own
    assert len(widths) == (count if count <= BOXES_MAX else len({row.section for row in page.segments}))
    assert sum(widths) == pytest.approx(WIDTH, abs=0.01 * len(widths))
    assert "style=" not in drawn and drawn.count("<title>") == len(widths) + 1


def test_the_sentence_says_what_holds_records_back(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"min.compaction.lag.ms": "60000"}) as (manager, _):
        write(manager[USERS], 30)
        manager.flush()
        watched = watched_logs(tmp_path)[USERS]
        conditions = conditions_of(manager[USERS], watched, manager.topics.settings("users"), NOW)
        young = segments_of(manager[USERS], watched, conditions.config, conditions=conditions)
        assert "held back" in young.sentence and "min.compaction.lag.ms" in young.sentence
        paused = segments_of(
            manager[USERS], watched, conditions.config, conditions=replace(conditions, is_paused=True)
        )
        assert "paused" in paused.sentence


def test_a_clean_log_says_when_its_newest_records_are_cleaned(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        log = manager[USERS]
        write(log, 60)
        cleaner.clean_once()
        manager.flush()
        watched, settings = watched_logs(tmp_path)[USERS], manager.topics.settings("users")
        sentence = sentence_of(watched, settings, conditions_of(log, watched, settings, NOW))
        assert sentence.startswith("Nothing to clean: all closed segments are clean")
        assert "What is newer is in the active segment" in sentence
        assert f"(it has {log.view.active_size:,})" in sentence and "over 0.50." in sentence
        reason = "the last delete horizon passes in 5 min"
        waiting = msgspec.structs.replace(watched, state=TOMBSTONES, reason=reason)
        sentence = sentence_of(waiting, settings, conditions_of(log, watched, settings, NOW))
        assert "passes in 5 min. A cleaning after that removes them. What is newer" in sentence
        log.roll()
        empty = sentence_of(watched, settings, conditions_of(log, watched, settings, NOW))
        assert "active segment" not in empty


def test_rows_have_counts_and_the_share_that_is_left(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 60)
        manager.flush()
        cleaner.clean_once()
        write(manager[USERS], 3)
        counter, watched = SegmentCounter(), watched_logs(tmp_path)[USERS]
        page = segments_of(manager[USERS], watched, None, counter=counter)
        assert sum(row.records or 0 for row in page.segments) == counter.records_of(manager[USERS])
        first = next(row for row in page.segments if row.section == CLEAN and row.records)
        assert (first.records, first.share_left, first.codecs) == (5, 5 / 8, ("none",))
        row = page.to_json()["segments"]
        assert isinstance(row, list) and row[0]["spanned"] == page.segments[1].base_offset
        none = segments_of(manager[USERS], watched, None, counter=SegmentCounter(), count_bytes_max=0)
        assert {row.records for row in none.segments if row.size} == {None}
        assert {row.share_left for row in none.segments if row.size} == {None}
