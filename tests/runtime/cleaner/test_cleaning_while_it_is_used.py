"""Logs that are cleaned while they are appended to, read, cut, retained, deleted and closed; with real
threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.names import CLEANER_CHECKPOINT
from siltstone.log.partition import PartitionLog
from siltstone.runtime.cleaning_states import NONE, Phase, paused
from siltstone.runtime.log_cleaner import IntoOpenLogs, LogCleaner
from siltstone.runtime.manager import LogManager
from tests.support.cleaning.serving import (
    SOON,
    TOPIC,
    USERS,
    Blocking,
    in_background,
    joined,
    serving,
    table,
    write,
)
from tests.support.log import driving

EAGER = {"min.cleanable.dirty.ratio": "0", "segment.bytes": "3000"}
MANY_GROUPS = RunLimits(whole_log_bytes=0)


@pytest.fixture(autouse=True)
def threads_take_turns_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And no disk holds them up: many small segments have more syncs than anything else."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


class Watching:
    """Reads a log again and again, and holds it to what every reader must see."""

    def __init__(self, log: PartitionLog) -> None:
        self.errors: list[str] = []
        self.reads = 0
        self._read = threading.Condition()
        self._log = log
        self._over = threading.Event()
        self._threads = [in_background(call) for call in (self._read_all, self._follow)]

    def _guarded(self, look: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                look()
                with self._read:
                    self.reads += 1
                    self._read.notify_all()
        except BaseException as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def some_reads(self) -> None:
        """Wait until the log was read a few times more: who writes is not to run away from who cleans."""
        with self._read:
            enough = self.reads + 4
            assert self._read.wait_for(lambda: self.reads >= enough or self.errors, SOON)

    def _read_all(self) -> None:
        def look() -> None:
            end = self._log.log_end_offset
            records = driving.read_all(self._log)
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            assert all(record.value.startswith(b"%d " % record.offset) for record in records if record.value)
            assert not offsets or offsets[-1] >= end - 1, "the newest record is missing"
            keys = {record.key for record in records if record.offset < end}
            assert len(keys) == min(end, 5), "the last value of a key is missing"

        self._guarded(look)

    def _follow(self) -> None:
        """At the head nothing is cleaned: a follower that keeps up meets every record."""
        position = self._log.log_end_offset

        def look() -> None:
            nonlocal position
            active = self._log.view.segments[-1].base_offset
            records, last = driving.fetched(self._log.read(position))
            assert position < active or [record.offset for record in records] == list(
                range(position, position + len(records))
            )
            position = position if last is None else last + 1

        self._guarded(look)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            joined(thread)
        assert self.errors == [] and self.reads > 4


@pytest.mark.parametrize("limits", [None, MANY_GROUPS], ids=["one task", "spread"])
def test_nothing_is_lost_while_threads_append_and_read(tmp_path: Path, limits: RunLimits | None) -> None:
    config = {"log.cleaner.threads": "2", "log.cleaner.backoff.ms": "1"}
    with serving(tmp_path, topic=EAGER, limits=limits, config=config) as (manager, cleaner):
        log = manager[USERS]
        write(log, 30)
        watching = Watching(log)
        cleaner.start()
        cleaned, end = 0, 30
        while cleaned < 4 and end < 5000 and not watching.errors:
            write(log, 10)
            watching.some_reads()
            end += 10
            cleaned = sum(cleaning.result.status == CLEANED for cleaning in cleaner.cleanings)
        watching.stop()
        assert cleaned >= 4 and log.log_end_offset == end
        assert table(log) == {b"k%d" % key: b"%d " % (end - 5 + key) + b"v" * 50 for key in range(5)}
        assert manager.uncleanable == {}
    with serving(tmp_path) as (manager, cleaner):
        assert len(table(manager[USERS])) == 5 and manager[USERS].log_end_offset == end


class Stopped:
    """A cleaning that has staged everything and waits; its results once it may go on."""

    def __init__(self, cleaner: LogCleaner, engine: Blocking) -> None:
        self.results: list[LogResult] = []
        self._engine = engine
        self._thread = in_background(lambda: self.results.extend(cleaner.clean_once()))
        assert engine.staged.wait(SOON)

    def go_on(self) -> list[LogResult]:
        self._engine.go_on.set()
        joined(self._thread)
        return self.results


def staged(tmp_path: Path) -> list[str]:
    """What is left of a cleaning, but for what goes with the directory of a deleted partition."""
    paths = (path for path in tmp_path.rglob("*") if "-delete" not in str(path))
    return [path.name for path in paths if path.name == ".siltstone" or ".cleaned" in path.name]


INTERRUPTIONS: dict[str, Callable[[LogManager, PartitionLog], object]] = {
    "truncation": lambda manager, log: manager.truncate_to(USERS, 25),
    "a new start": lambda manager, log: manager.truncate_fully_and_start_at(USERS, 200),
    "another policy": lambda manager, log: manager.topics.alter("users", {"cleanup.policy": "delete"}),
    "the topic deleted": lambda manager, log: manager.topics.delete("users"),
    "deleted and made again": lambda manager, log: (
        manager.topics.delete("users"),
        manager.topics.create("users", config=TOPIC),
    ),
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_an_interruption_aborts_the_cleaning_and_nothing_of_it_is_used(tmp_path: Path, name: str) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, cleaner):
        log = manager[USERS]
        write(log, 60)
        stopped = Stopped(cleaner, engine)
        INTERRUPTIONS[name](manager, log)
        now = [driving.read_all(manager[topic_partition]) for topic_partition in manager]
        assert [result.status for result in stopped.go_on()] != [CLEANED]
        assert [driving.read_all(manager[topic_partition]) for topic_partition in manager] == now
        assert manager.uncleanable == {} and staged(tmp_path) == []
        assert read_checkpoint(tmp_path / CLEANER_CHECKPOINT) == {}
        for topic_partition in manager:
            expected = paused(1) if name == "another policy" else NONE
            assert manager.cleaning_states.state(topic_partition) == expected
    with serving(tmp_path) as (manager, cleaner):
        assert [driving.read_all(manager[topic_partition]) for topic_partition in manager] == (now or [[]])


def test_after_a_truncation_the_log_is_cleaned_again(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, cleaner):
        log = manager[USERS]
        write(log, 60)
        stopped = Stopped(cleaner, engine)
        manager.truncate_to(USERS, 40)
        assert cleaner.clean_once() == [], "the cleaner that was aborted is still at it"
        stopped.go_on()
        before = table(log)
        (result,) = cleaner.clean_once()
        assert result.status == CLEANED and result.cleaned_end_offset <= 40
        assert table(log) == before


def test_a_truncation_amid_the_swaps_waits_for_the_one_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped, cut = threading.Event(), threading.Event()
    with serving(tmp_path, topic={"segment.bytes": "600"}, limits=MANY_GROUPS) as (manager, cleaner):
        log = manager[USERS]
        write(log, 90, keys=90)
        replace = PartitionLog.replace

        def slow(self: PartitionLog, *arguments: Any) -> list[Path]:
            replaced = replace(self, *arguments)
            if not swapped.is_set():
                swapped.set()
                with manager.cleaning_states._condition:
                    assert manager.cleaning_states._condition.wait_for(
                        lambda: manager.cleaning_states.state(USERS).phase is Phase.ABORTED, SOON
                    )
                assert not cut.is_set()
            return replaced

        monkeypatch.setattr(PartitionLog, "replace", slow)
        cleaning = in_background(cleaner.clean_once)
        assert swapped.wait(SOON)
        manager.truncate_to(USERS, 45)
        cut.set()
        joined(cleaning)
        assert [record.offset for record in driving.read_all(log)] == list(range(45))
        assert cleaner.cleanings[-1].result.status != CLEANED
        write(log, 3)
    with serving(tmp_path) as (manager, _):
        assert [record.offset for record in driving.read_all(manager[USERS])] == list(range(48))


def test_rolls_and_records_deleted_meanwhile_do_not_matter(tmp_path: Path) -> None:
    engine = Blocking()
    topic = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    with serving(tmp_path, lambda: engine, topic=topic) as (manager, cleaner):
        log = manager[USERS]
        write(log, 60)
        stopped = Stopped(cleaner, engine)
        write(log, 60)
        manager.delete_records(USERS, 50)
        assert manager.upkeep.delete_old_segments() == {}, "retention leaves it to the cleaner"
        before = table(log)
        (result,) = stopped.go_on()
        assert result.status == CLEANED and result.cleaned_end_offset < 60
        assert table(log) == before and log.log_start_offset >= 50
        assert log.view.segments[0].base_offset > 0, "retention came after"


def test_a_directory_that_fails_takes_only_its_own_logs_along(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, cleaner):
        write(manager[USERS], 60)
        stopped = Stopped(cleaner, engine)
        manager.directories[0].go_offline("the disk failed")
        assert [result.status for result in stopped.go_on()] != [CLEANED]
        assert cleaner.clean_once() == []


def test_a_swap_that_fails_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 60)
        before = table(manager[USERS])

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr("siltstone.log.partition.swap_in", fail)
            (result,) = cleaner.clean_once()
        assert "Input/output error" in result.reason and len(manager.offline) == 1
    with serving(tmp_path) as (manager, cleaner):
        assert table(manager[USERS]) == before
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]


def test_close_aborts_a_cleaning_without_waiting_for_its_engine(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path) as (manager, _):
        log = manager[USERS]
        write(log, 60)
        before = driving.read_all(log)
        cleaner = LogCleaner(manager, lambda: engine, stop_engine=lambda _: engine.go_on.set())
        assert cleaner.start() and engine.staged.wait(SOON)
    assert staged(tmp_path) == []
    with serving(tmp_path) as (manager, _):
        assert driving.read_all(manager[USERS]) == before


def test_close_may_finish_what_was_begun(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaner.start()
        assert engine.staged.wait(SOON)
        closing = in_background(lambda: cleaner.close(abort=False))
        engine.go_on.set()
        joined(closing)
        assert [cleaning.result.status for cleaning in cleaner.cleanings] == [CLEANED]


def test_files_that_a_killed_process_staged_are_removed_by_the_next_cleaning(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 60)
        leftover = tmp_path / str(USERS) / ".siltstone" / "20260101T000000Z-abcdef"
        leftover.mkdir(parents=True)
        (leftover / "00000000000000000000.0.log").write_bytes(b"half")
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
        assert staged(tmp_path) == []


def test_swapped_groups_stay_when_the_rest_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is whole by itself; the checkpoint moves only with the last one."""
    with serving(tmp_path, topic={"segment.bytes": "600"}, limits=MANY_GROUPS) as (manager, cleaner):
        log = manager[USERS]
        write(log, 200)
        before, size, accept = table(log), log.size, IntoOpenLogs.commit_groups
        accepted: list[int] = []

        def once(self: IntoOpenLogs, planned, groups) -> None:  # type: ignore[no-untyped-def]
            accept(self, planned, groups)
            accepted.extend(group.group_index for group in groups)
            manager.cleaning_states.abort(USERS)

        with monkeypatch.context() as patch:
            patch.setattr(IntoOpenLogs, "commit_groups", once)
            (result,) = cleaner.clean_once()
        assert accepted == [0] and result.status != CLEANED
        assert log.size < size and table(log) == before
        assert read_checkpoint(tmp_path / CLEANER_CHECKPOINT) == {}
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
        assert table(log) == before


def test_a_cleaning_now_can_wait_for_one_that_is_under_way(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, cleaner):
        write(manager["users", 0], 40)
        manager.flush()
        first = in_background(cleaner.clean_once)
        assert engine.begun.wait(SOON)
        assert cleaner.clean_now(["users"]) == [], "by default it is left out"
        results = list[LogResult]()
        second = in_background(lambda: results.extend(cleaner.clean_now(["users"], wait_seconds=SOON)))
        engine.go_on.set()
        joined(first)
        joined(second)
        assert [result.status for result in results] == [CLEANED]
