"""What is known to go wrong with Pulsar's compaction, held against ours: through the service and readers."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import PartitionLog
from siltstone.runtime.compactions import ERROR, SUCCESS
from siltstone.runtime.manager import LogManager
from tests.support.ledger.serving import USERS, compacted, put, seen, serving
from tests.support.log.managed import MINUTE, NOW
from tests.support.thoroughness import THOROUGH, few

EXPIRING = {"retention.ms": "60000", "segment.bytes": "200", "file.delete.delay.ms": "0"}


def keys(log: PartitionLog) -> dict[str | None, str | None]:
    return {key: value for _, key, value in seen(log)}


def expire(manager: LogManager, clock: ManualClock) -> None:
    """Retention takes all originals that it may."""
    clock.advance(10 * MINUTE)
    manager.upkeep.delete_old_segments()
    clock.advance(MINUTE)
    manager.tick()


def test_compacted_records_survive_the_expiry_of_the_originals(tmp_path: Path) -> None:
    """A run that reads the originals alone would keep what they still hold, and drop the rest."""
    clock = ManualClock(NOW)
    with serving(tmp_path, topic=EXPIRING, clock=clock) as (manager, compactions):
        log = manager[USERS]
        for number in range(20):
            put(log, (f"old-{number}", "1"), timestamp=clock.now_ms())
        compacted(compactions)
        expire(manager, clock)
        assert log.log_start_offset == 20, "all that is compacted has expired"
        put(log, ("new", "1"), ("old-3", "2"), ("old-4", None), timestamp=clock.now_ms())
        compacted(compactions)
        expected = {f"old-{number}": "1" for number in range(20)} | {"new": "1", "old-3": "2"}
        del expected["old-4"]
        assert keys(log) == expected
        expire(manager, clock)
        assert log.log_start_offset == 23 and keys(log) == expected
    with serving(tmp_path, clock=clock) as (manager, compactions):
        assert keys(manager[USERS]) == expected


def test_records_that_are_not_compacted_do_not_expire(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, topic=EXPIRING, clock=clock) as (manager, compactions):
        log = manager[USERS]
        for number in range(10):
            put(log, (f"a-{number}", "1"), timestamp=clock.now_ms())
        compacted(compactions)
        for number in range(10):
            put(log, (f"b-{number}", "1"), timestamp=clock.now_ms())
        expire(manager, clock)
        assert log.log_start_offset <= 10, "the cursor's backlog is kept, as a subscription's is"
        assert len(keys(log)) == 20
        compacted(compactions)
        expire(manager, clock)
        assert log.log_start_offset == 20 and len(keys(log)) == 20


def test_a_second_run_keeps_what_the_first_compacted(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, compactions):
        log = manager[USERS]
        expected: dict[str | None, str | None] = {}
        for run in range(12):
            for number in range(5):
                put(log, (f"{run}-{number}", "1"), ("shared", str(run)))
            expected |= {f"{run}-{number}": "1" for number in range(5)} | {"shared": str(run)}
            compacted(compactions)
            assert keys(log) == expected
            assert len(seen(log)) == len(expected), "each key once"


@pytest.mark.parametrize(
    ("codec", "nothing"),
    few(itertools.product(["producer", "lz4", "zstd", "gzip", "snappy"], [None, ""]), 0, 3, 4, 7, 8),
)
def test_a_null_or_empty_value_takes_nothing_else_of_its_batch(
    tmp_path: Path, codec: str, nothing: str | None
) -> None:
    with serving(tmp_path, topic={"compression.type": codec}) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), ("b", "1"), ("c", "1"))
        put(log, ("d", "1"), ("b", nothing), ("e", "1"), ("", "empty key"), (None, "no key"))
        compacted(compactions)
        assert seen(log) == [(0, "a", "1"), (2, "c", "1"), (3, "d", "1"), (5, "e", "1"), (6, "", "empty key")]
        put(log, ("a", nothing))
        compacted(compactions)
        assert [offset for offset, _, _ in seen(log)] == [2, 3, 5, 6], "no placeholders for what is gone"


def test_keyless_records_stay_where_the_topic_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"topicCompactionRetainNullKey": "true"}) as (manager, compactions):
        log = manager[USERS]
        put(log, (None, "1"), ("a", "1"), (None, "2"), ("a", "2"))
        compacted(compactions)
        assert seen(log) == [(0, None, "1"), (2, None, "2"), (3, "a", "2")]
        manager.topics.alter("users", {"topicCompactionRetainNullKey": "false"})
        put(log, (None, "3"))
        compacted(compactions)
        status = compactions.status("users")
        assert status.status == ERROR and "--reset" in status.last_error


def test_a_late_older_event_does_not_bring_a_deleted_key_back(tmp_path: Path) -> None:
    with serving(tmp_path, topic={"siltstone.compaction.order": "time"}) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "old"), ("b", "old"), timestamp=NOW - 50)
        put(log, ("a", None), ("b", "new"), timestamp=NOW - 10)
        compacted(compactions)
        assert keys(log) == {"b": "new"}
        put(log, ("a", "late"), ("b", "late"), timestamp=NOW - 30)
        compacted(compactions)
        assert keys(log) == {"b": "new"}, "the events of 30 ms ago are older than those of 10 ms ago"
        put(log, ("a", "again"), timestamp=NOW)
        compacted(compactions)
        assert keys(log) == {"a": "again", "b": "new"}


# The pointer and what it points to


class Stopped(Exception):
    """The process ends here."""


@contextmanager
def stopping_at(step: int) -> Iterator[list[files.Operation]]:
    """The process dies before its operation number ``step``, and does nothing more."""
    operations: list[files.Operation] = []

    def observe(operation: files.Operation) -> None:
        if len(operations) >= step:
            raise Stopped
        operations.append(operation)

    with files.observe(observe):
        yield operations


def test_the_old_view_is_served_until_the_cursor_has_moved(tmp_path: Path) -> None:
    """Whenever one looks while a compaction commits, what is served is the old view or the new one, whole."""
    with serving(tmp_path) as (manager, compactions):
        log = manager[USERS]
        put(log, ("a", "1"), ("b", "1"))
        compacted(compactions)
        put(log, ("a", "2"), ("b", None), ("c", "2"))
        views: list[tuple[str, list[tuple[int, str | None, str | None]]]] = []
        looking = False

        def look(operation: files.Operation) -> None:
            nonlocal looking
            if not looking:
                looking = True
                cursor = LedgerStore(log.directory).cursor()
                assert cursor is not None
                views.append((f"{operation[0]} {Path(operation[2] or operation[1]).name}", seen(log)))
                looking = False

        with files.observe(look):
            compacted(compactions)
    old = [(0, "a", "1"), (1, "b", "1"), (2, "a", "2"), (3, "b", None), (4, "c", "2")]
    new = [(2, "a", "2"), (4, "c", "2")]
    moved = [name for name, _ in views].index("rename cursor.json")
    assert all(view == old for _, view in views[: moved + 1])
    assert all(view == new for _, view in views[moved + 1 :]) and len(views) > moved + 1


@pytest.mark.random
def test_a_process_that_dies_at_any_step_leaves_the_old_view_or_the_new_one(tmp_path: Path) -> None:
    """Not what a power cut does (``tests/crash``), but every step of service, status and ledger."""
    old = [(0, "a", "1"), (1, "b", "1"), (2, "a", "2"), (3, "c", "2")]
    new = [(1, "b", "1"), (2, "a", "2"), (3, "c", "2")]
    outcomes = set()
    with serving(tmp_path / "before") as (manager, compactions):
        put(manager[USERS], ("a", "1"), ("b", "1"))
        compacted(compactions)
        put(manager[USERS], ("a", "2"), ("c", "2"))
    for step in range(0, 200, 1 if THOROUGH else 11):
        path = shutil.copytree(tmp_path / "before", tmp_path / str(step))
        with serving(path) as (manager, compactions):
            log = manager[USERS]
            with stopping_at(step) as operations:
                with suppress(Stopped):
                    compacted(compactions)
                compactions.wait(20)
            after = seen(log)
            assert after in (old, new)
            outcomes.add(after == new)
        with serving(path) as (manager, compactions):
            assert seen(manager[USERS]) == after
            compacted(compactions)
            assert seen(manager[USERS]) == new
            assert compactions.status("users").status == SUCCESS
            folder = manager[USERS].directory / ".compacted"
            kinds = sorted(entry.name.partition("-")[0] for entry in folder.iterdir())
            assert kinds.count("run") == 0 and kinds.count("ledger") <= 2 and "cursor.json.tmp" not in kinds
        if len(operations) < step:
            break
    assert len(operations) < step, "the whole compaction was gone through"
    assert outcomes == {False, True}
