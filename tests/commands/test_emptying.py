"""A topic is emptied, by tombstones or by truncation: what goes is what the dry run said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    EngineError,
    JobCancelledError,
    PolicyViolationError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands.changes import Actor
from siltstone.commands.emptying import EMPTY, MODES, TOMBSTONES, TRUNCATE, Emptying, empty_topic
from siltstone.commands.forced_cleaning import OpenDirectories
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.producing import NewRecord, append
from tests.commands.test_erasing import files_with, open_at
from tests.support.cleaning.serving import USERS, TransactionalWriter, table, write
from tests.support.log.managed import NOW

ACTOR = Actor(user="ada", way="cli")


def empty(opened: OpenDirectories, mode: str = TOMBSTONES, *, dry_run: bool = False) -> Emptying:
    return empty_topic(opened, ACTOR, "users", mode, dry_run=dry_run)


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_each_key_gets_one_tombstone_and_the_values_go(tmp_path: Path, codec: str) -> None:
    clock = ManualClock(NOW)
    with open_at(tmp_path, clock, partitions=2, topic={"compression.type": codec}) as opened:
        logs = opened.manager["users"].logs()
        write(logs[0], 40, keys=5)
        write(logs[1], 3, keys=3)
        write(logs[1], 1, keys=3, value=None)  # k0 is deleted already
        planned = empty(opened, dry_run=True)
        assert [(partition.records, partition.keys) for partition in planned.partitions] == [(40, 5), (4, 2)]
        assert not planned.is_empty and [partition.bytes for partition in planned.partitions] == [
            log.size for log in logs
        ]
        emptied = empty(opened)
        assert emptied.is_empty and [partition.keys for partition in emptied.partitions] == [5, 2]
        assert [partition.keys_after for partition in emptied.partitions] == [0, 0]
        assert [partition.bytes_after for partition in emptied.partitions] == [log.size for log in logs]
        assert [table(log) for log in logs] == [{}, {}]
        assert sorted(record.key or b"" for record in logs[0]) == [b"k%d" % number for number in range(5)]
        assert files_with(tmp_path, b"v" * 50) == []
        ends = [log.log_end_offset for log in logs]
        again = empty(opened)
        assert again.is_empty and [log.log_end_offset for log in logs] == ends, (
            "a deleted key is not deleted again"
        )
        clock.advance(86_400_001)
        opened.cleaner.clean_once()
        assert [record for log in logs for record in log] == []


def test_many_keys_become_batches_that_the_log_accepts(tmp_path: Path) -> None:
    settings = {"max.message.bytes": "600", "segment.bytes": "100000"}
    with open_at(tmp_path, topic=settings) as opened:
        log = opened.manager["users", 0]
        for number in range(100):
            append(log, [NewRecord(key=b"%03d" % number * (number % 40 + 1), value=b"v")], now_ms=NOW)
        assert empty(opened).is_empty
        assert sum(record.value is None for record in log) == 100


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_truncation_moves_the_log_start_whatever_the_policy(tmp_path: Path, policy: str) -> None:
    with open_at(tmp_path, topic={"cleanup.policy": policy}) as opened:
        log = opened.manager["users", 0]
        write(log, 40)
        planned, emptied = empty(opened, TRUNCATE, dry_run=True), empty(opened, TRUNCATE)
        assert planned.partitions[0].keys == 5 and "tombstones" in planned.notes[0]
        (partition,) = emptied.partitions
        assert emptied.is_empty and (partition.records, partition.log_start_offset) == (40, 40)
        assert partition.bytes_after == log.size == 0
        assert list(log) == [] and log.log_start_offset == log.log_end_offset == 40
        assert files_with(tmp_path, b"v" * 50) == []
        write(log, 1)
        assert [record.offset for record in log] == [40]
    with open_at(tmp_path) as opened:
        assert [record.offset for record in opened.manager["users", 0]] == [40]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_tiered_topic_is_not_empty_in_its_remote_storage(tmp_path: Path, dry_run: bool) -> None:
    """Truncation moves the log start; only the broker deletes the remote segments below it."""
    with open_at(tmp_path) as opened:
        opened.manager.topics.create(
            "tiered", 1, {"cleanup.policy": "delete", "remote.storage.enable": "true"}
        )
        for topic, is_tiered in (("users", False), ("tiered", True)):
            notes = empty_topic(opened, ACTOR, topic, TRUNCATE, dry_run=dry_run).notes
            assert any("remote storage keep their records" in note for note in notes) is is_tiered


def test_what_is_appended_while_a_topic_is_truncated_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(tmp_path) as opened:
        write(opened.manager["users", 0], 3)
        monkeypatch.setattr(
            opened.manager, "remove_leftovers", lambda _: write(opened.manager["users", 0], 1)
        )
        emptied = empty(opened, TRUNCATE)
        (partition,) = emptied.partitions
        assert partition.not_removed is not None and not emptied.is_empty
        assert partition.not_removed.reason == "records from offset 3 on were appended meanwhile"
        assert "stop what writes" in emptied.sentence


def test_records_are_still_not_deleted_by_offset_from_a_compacted_topic(tmp_path: Path) -> None:
    with open_at(tmp_path) as opened:
        write(opened.manager["users", 0], 2)
        with pytest.raises(PolicyViolationError):
            opened.manager.delete_records(USERS, -1)


def test_what_holds_the_values_is_said(tmp_path: Path) -> None:
    with open_at(tmp_path, topic={"min.compaction.lag.ms": "60000"}) as opened:
        write(opened.manager["users", 0], 3)
        emptied = empty(opened)
        (partition,) = emptied.partitions
        assert not emptied.is_empty and partition.not_removed is not None
        assert (
            partition.not_removed.until_ms == NOW + 60_000
            and "min.compaction.lag.ms" in partition.not_removed.reason
        )
        assert opened.changes.newest()[0].outcome == f"held: {partition.not_removed.reason}"
        assert partition.keys_after == 0, "readers see the tombstones already"


def no_engine() -> InProcessEngine:
    raise EngineError("Java was not found", advice="install it")


@pytest.mark.parametrize("obstacle", ["no engine", "another job"])
def test_a_topic_that_was_not_cleaned_is_not_empty(tmp_path: Path, obstacle: str) -> None:
    """Readers see only tombstones then, but the values are in the files."""
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_at(tmp_path))
        write(opened.manager["users", 0], 3)
        if obstacle == "no engine":
            cleaner = stack.enter_context(LogCleaner(opened.manager, no_engine))
            emptied = empty(replace(opened, cleaner=cleaner))
        else:  # such as an erasure, which searches meanwhile
            with opened.manager.files_at_rest(USERS):
                emptied = empty(opened)
        (partition,) = emptied.partitions
        assert partition.keys_after == 0 and partition.not_removed is not None
        assert "was not cleaned" in partition.not_removed.reason
        assert not emptied.is_empty and "is not empty yet" in emptied.sentence
        assert opened.changes.newest()[0].outcome == f"held: {partition.not_removed.reason}"
        assert empty(opened).is_empty


def test_an_open_transaction_keeps_its_records(tmp_path: Path) -> None:
    with open_at(tmp_path) as opened:
        log = opened.manager["users", 0]
        write(log, 3, keys=3)
        writer = TransactionalWriter(log, 7)
        writer.put("k0", "aborted")
        writer.end(commit=False)  # so k0 still has its value
        writer.put("k9", "open")
        emptied = empty(opened)
        assert emptied.partitions[0].keys == 3
        assert (
            emptied.partitions[0].not_removed is not None
            and "transaction" in emptied.partitions[0].not_removed.reason
        )
        writer.end(commit=True)
        assert empty(opened).is_empty
        assert {record.key: record.value for record in log} == dict.fromkeys([b"k0", b"k1", b"k2", b"k9"])


def test_a_ledger_that_keeps_the_values_is_named(tmp_path: Path) -> None:
    with open_at(tmp_path) as opened:
        log = opened.manager["users", 0]
        write(log, 5)
        log.flush()
        TwoPhaseCompactor(InProcessCompactionEngine(1), clock=opened.manager.clock).compact(log)
        for mode, says in ((TOMBSTONES, "compact-topic"), (TRUNCATE, "--reset")):
            assert says in empty(opened, mode, dry_run=True).notes[-1]


def test_an_empty_topic_is_emptied(tmp_path: Path) -> None:
    with open_at(tmp_path) as opened:
        for mode in MODES:
            emptied = empty(opened, mode)
            assert emptied.is_empty and [partition.keys_after or 0 for partition in emptied.partitions] == [0]


def test_an_interrupted_run_is_completed_by_the_next(tmp_path: Path) -> None:
    with open_at(tmp_path, partitions=2) as opened:
        for log in opened.manager["users"].logs():
            write(log, 5)

        def stop(_: str, stage: str, done: int, total: int) -> None:
            if stage == "cleaning":
                raise JobCancelledError("the job was cancelled")

        with pytest.raises(JobCancelledError):
            empty_topic(opened, ACTOR, "users", TOMBSTONES, progress=stop)
        ends = [log.log_end_offset for log in opened.manager["users"].logs()]
        assert empty(opened).is_empty
        assert [log.log_end_offset for log in opened.manager["users"].logs()] == ends
        changes = opened.changes.all_of(EMPTY, "users")
        assert [change.outcome for change in changes] == ["failed: the job was cancelled", "done"]
        assert changes[0].after == {"mode": "tombstones"} and changes[0].before["records"] == [5, 5]


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_recorded_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def full(line: object) -> None:
        raise OSError(28, "No space left on device")

    with open_at(tmp_path) as opened:
        write(opened.manager["users", 0], 3)
        monkeypatch.setattr(opened.changes, "_append", full)
        with pytest.raises(StorageError, match="not recorded"):
            empty(opened, mode)
        assert (
            opened.manager["users", 0].log_end_offset == 3
            and opened.manager["users", 0].log_start_offset == 0
        )


def test_topics_that_must_not_be_emptied_are_refused(tmp_path: Path) -> None:
    with open_at(tmp_path) as opened:
        opened.manager.topics.create("events", 1, {"cleanup.policy": "delete"})
        opened.manager.topics.create("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        refused: list[tuple[type[Exception], Callable[[], object]]] = [
            (PolicyViolationError, lambda: empty_topic(opened, ACTOR, "events", TOMBSTONES)),
            (PolicyViolationError, lambda: empty_topic(opened, ACTOR, "__consumer_offsets", TRUNCATE)),
            (UnknownTopicError, lambda: empty_topic(opened, ACTOR, "nobody", TRUNCATE)),
            (UsageError, lambda: empty_topic(opened, ACTOR, "users", "burn")),
        ]
        for kind, call in refused:
            with pytest.raises(kind):
                call()
        assert opened.changes.newest() == []
