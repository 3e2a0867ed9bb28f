"""Compactions in a manager: triggered, by threshold, refused, failing, and over restarts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    CompactionInProgressError,
    EngineError,
    LedgerError,
    UnknownTopicError,
    UsageError,
)
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.runtime.compactions import ERROR, NOT_RUN, RUNNING, SUCCESS, Compactions
from tests.support.errors import raises_error
from tests.support.ledger.serving import SOON, USERS, Blocking, compacted, put, seen, serving
from tests.support.log.managed import NOW

BROKERS = "brokerServiceCompactionThresholdInBytes"


def test_worked_example_22_a_compacted_view_is_the_ledger_then_the_tail(tmp_path: Path) -> None:
    """Compact; read with and without; append; read again: ledger, then tail."""
    with serving(tmp_path) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None))
        compacted(compactions, "persistent://public/default/users")
        assert seen(log) == [(2, "a", "2"), (3, "c", "1")]
        assert [offset for offset, _, _ in seen(log, read_compacted=False)] == [0, 1, 2, 3, 4]
        put(log, ("a", "3"), ("d", "1"))
        assert seen(log) == [(2, "a", "2"), (3, "c", "1"), (5, "a", "3"), (6, "d", "1")]
        assert [offset for offset, _, _ in seen(log, read_compacted=False)] == [0, 1, 2, 3, 4, 5, 6]
        compacted(compactions)
        assert seen(log) == [(3, "c", "1"), (5, "a", "3"), (6, "d", "1")]


# Triggers


def test_a_topics_threshold_overrides_the_brokers_and_that_the_namespaces(tmp_path: Path) -> None:
    """Each threshold is above or below the backlog; only the one that counts decides."""
    low, high = "10", "100000"
    cases = {
        "topic": ({"compactionThreshold": low}, high, high, True),
        "not-the-topic": ({"compactionThreshold": high}, low, low, False),
        "broker": ({}, low, high, True),
        "not-the-broker": ({}, high, low, False),
        "namespace": ({}, None, low, True),
        "not-the-namespace": ({}, None, high, False),
        "off": ({"compactionThreshold": "0"}, low, low, False),
        "nothing": ({}, None, None, False),
    }
    for name, (topic, broker, namespace, begins) in cases.items():
        config = {} if broker is None else {BROKERS: broker}
        with serving(tmp_path / name, topic=topic, config=config) as (manager, compactions):
            if namespace is not None:
                manager.topics.alter_namespace("public/default", {"compactionThreshold": namespace})
            put(manager[USERS], ("a", "1"))
            assert compactions.check() == ([USERS] if begins else []), name
            assert compactions.wait(SOON)


def test_the_logs_are_checked_every_interval(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    config = {"brokerServiceCompactionMonitorIntervalInSeconds": "7", "compactionThreshold": "100"}
    with serving(tmp_path, config=config, clock=clock) as (manager, compactions):
        compactions.start()
        compactions.start()
        log = manager[USERS]
        put(log, ("a", "1" * 200))

        def horizon_after(seconds: int) -> int | None:
            clock.advance(seconds * 1000)
            manager.tick()
            assert compactions.wait(SOON)
            cursor = LedgerStore(log.directory).cursor()
            return None if cursor is None else cursor.horizon

        assert horizon_after(6) is None
        assert horizon_after(1) == 1
        put(log, ("b", "1"))
        assert horizon_after(7) == 1, "the backlog is below the threshold"
        put(log, ("b", "1" * 200))
        assert horizon_after(7) == 3


def test_a_tick_does_not_wait_for_a_compaction(tmp_path: Path) -> None:
    clock, engine = ManualClock(NOW), Blocking()
    with serving(tmp_path, lambda: engine, topic={"compactionThreshold": "1"}, clock=clock) as served:
        manager, compactions = served
        compactions.start()
        put(manager[USERS], ("a", "1"))
        clock.advance(60_000)
        manager.tick()
        assert engine.staged.wait(SOON)
        clock.advance(60_000)
        manager.tick()
        engine.go_on.set()
        assert compactions.wait(SOON)
        assert compactions.status("users").succeeded == 1


def test_an_unknown_topic_cannot_be_triggered(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, compactions):
        for call in (compactions.trigger, compactions.status):
            with pytest.raises(UnknownTopicError):
                call("persistent://public/default/nobody")
            with raises_error(UsageError, about="non-persistent://", advice="persistent topic"):
                call("non-persistent://public/default/users")


def test_one_partition_or_all_of_a_topic(tmp_path: Path) -> None:
    with serving(tmp_path, partitions=3) as (manager, compactions):
        for number in range(3):
            put(manager["users", number], ("a", "1"), ("a", "2"))
        assert compactions.trigger("persistent://public/default/users-partition-1") == [
            TopicPartition("users", 1)
        ]
        assert compactions.wait(SOON)
        assert [len(seen(manager["users", number])) for number in range(3)] == [2, 1, 2]
        assert len(compactions.trigger("users")) == 3
        assert compactions.wait(SOON)
        assert [len(seen(manager["users", number])) for number in range(3)] == [1, 1, 1]


# One at a time


def test_a_second_run_is_refused_and_the_status_says_running(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, compactions):
        put(manager[USERS], ("a", "1"))
        assert compactions.status("users").status == NOT_RUN
        compactions.trigger("users")
        assert compactions.status("users").status == RUNNING
        for _ in range(2):
            with raises_error(
                CompactionInProgressError, path="users-0", about="Compaction already in progress"
            ):
                compactions.trigger("users")
        engine.go_on.set()
        assert compactions.wait(SOON)
        status = compactions.status("users")
        assert (status.status, status.last_error, status.succeeded) == (SUCCESS, "", 1)


def test_two_services_do_not_compact_one_log_at_once(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, compactions):
        put(manager[USERS], ("a", "1"))
        compactions.trigger("users")
        with Compactions(manager, InProcessCompactionEngine) as others:
            with pytest.raises(CompactionInProgressError):
                others.trigger("users")
            assert others.check() == []
        engine.go_on.set()
        assert compactions.wait(SOON)


@pytest.mark.parametrize(
    ("hold", "reason"), [("claim", "Compaction already in progress"), ("pause", "truncated or deleted")]
)
def test_if_one_partition_cannot_be_compacted_none_is(tmp_path: Path, hold: str, reason: str) -> None:
    with serving(tmp_path, partitions=2) as (manager, compactions):
        compacted(compactions, "persistent://public/default/users-partition-0")
        before = [compactions.status(f"users-partition-{number}") for number in range(2)]
        put(manager[USERS], ("a", "1"), ("a", "2"))
        second, states = TopicPartition("users", 1), manager.compaction_states
        claim = states.begin(second) if hold == "claim" else states.abort_and_pause(second)
        with raises_error(CompactionInProgressError, path="users-1", about=reason):
            compactions.trigger("users")
        assert compactions.wait(SOON)
        assert [compactions.status(f"users-partition-{number}") for number in range(2)] == before
        assert len(seen(manager[USERS])) == 2
        states.resume(second) if claim is None else claim.done()
        compacted(compactions)
        assert compactions.status("users").status == SUCCESS and len(seen(manager[USERS])) == 1


def test_a_cancelled_check_is_not_waited_for(tmp_path: Path) -> None:
    """Both threads are busy when the check is due, and the service is closed before one is free."""
    clock, engine = ManualClock(NOW), Blocking()
    with serving(tmp_path, lambda: engine, partitions=2, clock=clock) as (manager, compactions):
        compactions.start()
        for number in range(2):
            put(manager["users", number], ("a", "1"))
        compactions.trigger("users")
        assert engine.staged.wait(SOON)
        clock.advance(60_000)
        manager.tick()
        closing = threading.Thread(target=compactions.close)
        closing.start()
        while not compactions._pool._shutdown:
            closing.join(0.01)
        engine.go_on.set()
        closing.join(SOON)
        assert compactions.wait(SOON)


def test_a_compaction_without_new_records_succeeds_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, compactions):
        compacted(compactions)
        assert compactions.status("users").status == SUCCESS
        assert LedgerStore(manager[USERS].directory).cursor() is None
        put(manager[USERS], ("a", "1"))
        compacted(compactions)
        before = LedgerStore(manager[USERS].directory).cursor()
        compacted(compactions)
        assert LedgerStore(manager[USERS].directory).cursor() == before
        assert compactions.status("users").succeeded == 3


# Failures


def test_a_failure_is_in_the_status_and_the_next_compaction_can_succeed(tmp_path: Path) -> None:
    engine = Blocking(ValueError("odd"))
    engine.go_on.set()
    with serving(tmp_path, lambda: engine) as (manager, compactions):
        put(manager[USERS], ("a", "1"), ("a", "2"))
        compacted(compactions)
        status = compactions.status("users")
        assert (status.status, status.failed) == (ERROR, 1) and "ValueError: odd" in status.last_error
        assert len(seen(manager[USERS])) == 2, "without a ledger the originals are read"
        engine.error = None
        compacted(compactions)
        assert compactions.status("users").status == SUCCESS
        assert len(seen(manager[USERS])) == 1


def test_a_lost_engine_is_started_again(tmp_path: Path) -> None:
    started, stopped = list[Blocking](), list[object]()

    def start() -> Blocking:
        started.append(Blocking(None if started else EngineError("Java is gone")))
        started[-1].go_on.set()
        return started[-1]

    with serving(tmp_path) as (manager, _):
        with Compactions(manager, start, stop_engine=stopped.append) as compactions:
            put(manager[USERS], ("a", "1"))
            compacted(compactions)
            assert "Java is gone" in compactions.status("users").last_error
            assert stopped == started[:1]
            compacted(compactions)
            assert compactions.status("users").status == SUCCESS
        assert stopped == started and len(started) == 2


def test_a_log_whose_compaction_fails_is_not_tried_at_every_check(tmp_path: Path) -> None:
    clock, engine = ManualClock(NOW), Blocking(ValueError("odd"))
    engine.go_on.set()
    with serving(tmp_path, lambda: engine, topic={"compactionThreshold": "1"}, clock=clock) as served:
        manager, compactions = served
        put(manager[USERS], ("a", "1"))
        tries = []
        for minute in range(12):
            clock.advance(60_000)
            tries += [minute] * len(compactions.check())
            assert compactions.wait(SOON)
        assert tries == [0, 2, 6]
        compacted(compactions)
        assert compactions.status("users").failed == 4, "who triggers does not wait"


def test_a_damaged_ledger_is_an_error_with_its_name(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"compactionThreshold": "1"}) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"))
        compacted(compactions)
        (log.directory / ".compacted" / "ledger-0.json").unlink()
        with raises_error(LedgerError, path=log.directory / ".compacted" / "ledger-0.json"):
            seen(log)
        put(log, ("a", "2"))
        assert compactions.check() == [USERS]
        assert compactions.wait(SOON)
        assert str(log.directory / ".compacted" / "ledger-0.json") in compactions.status("users").last_error
        (log.directory / ".compacted" / "cursor.json").write_bytes(b"{}")
        compacted(compactions)
        assert "cursor.json" in compactions.status("users").last_error


def test_a_damaged_status_stops_neither_the_metrics_nor_the_check_and_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"compactionThreshold": "1"}) as (manager, compactions):
        put(manager[USERS], ("a", "1"))
        compacted(compactions)
        status_file = manager[USERS].directory / ".compacted" / "status.json"
        status_file.write_bytes(b'{"version":1,"status":"ERROR","lastError":"\xff"}')
        assert compactions.status("users").status == ERROR
        assert any(sample.name.startswith("pulsar_compaction_") for sample in manager.samples())
        put(manager[USERS], ("a", "2"))
        assert compactions.check() == [USERS] and compactions.wait(SOON)
        assert compactions.status("users").status == SUCCESS


# Over restarts


def test_the_status_outlives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, compactions):
        put(manager[USERS], ("a", "1"), ("a", "2"))
        compacted(compactions)
        before = compactions.status("users")
    with serving(tmp_path) as (manager, compactions):
        assert compactions.status("users") == before and before.status == SUCCESS
        assert seen(manager[USERS]) == [(1, "a", "2")]


def test_closing_withdraws_compactions_that_have_not_begun(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine, partitions=4) as (manager, compactions):
        for number in range(4):
            put(manager["users", number], ("a", "1"))
        compactions.trigger("users")
        assert engine.staged.wait(SOON)
        closing = threading.Thread(target=lambda: compactions.close(abort=False))
        closing.start()
        while compactions._pool._work_queue.qsize() > 2 or not compactions._pool._shutdown:
            closing.join(0.01)
        engine.go_on.set()
        closing.join(SOON)
        statuses = [compactions.status(f"users-partition-{number}") for number in range(4)]
    assert [status.status for status in statuses] == [SUCCESS, SUCCESS, NOT_RUN, NOT_RUN]
    assert [status.failed for status in statuses] == [0, 0, 0, 0]


def test_closing_ends_compactions_and_leaves_no_staged_files(tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine, partitions=4) as (manager, compactions):
        for number in range(4):
            put(manager["users", number], ("a", "1"))
        compactions.trigger("users")
        assert engine.staged.wait(SOON)
        manager.compaction_states.abort(USERS)
        manager.compaction_states.abort(TopicPartition("users", 1))
        engine.go_on.set()
        compactions.close()
        compactions.close()
        with raises_error(EngineError, path="users-0", advice="open the logs again"):
            compactions.trigger("users")
        status = compactions.status("users-partition-0")
        assert status.status == ERROR and "aborted" in status.last_error
    with serving(tmp_path, partitions=4) as (manager, compactions):
        compacted(compactions)
        assert compactions.status("users").status == SUCCESS
        folder = manager[USERS].directory / ".compacted"
        assert not list(folder.glob("run-*"))
