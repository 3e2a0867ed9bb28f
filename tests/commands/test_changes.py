"""The audit log: intents, outcomes, receipts, as lines of a file that a crash may cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import StorageError
from siltstone.commands import changes as module
from siltstone.commands.changes import CHANGES_FILE, DONE, Actor, ChangeLog
from tests.support.crash.disk import DROP, Disk, recorded

ADA = Actor(user="ada")


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(tmp_path, ManualClock(5))


def test_a_receipt_is_in_the_line_that_ends_its_change(log: ChangeLog) -> None:
    change_id = log.begin(ADA, "erase-key", "users")
    assert [change.outcome for change in log.newest()] == [None]
    log.end_with_receipt(change_id, {"step": "values"})
    (change,) = log.newest()
    assert (change.outcome, change.receipt) == (DONE, {"step": "values"})
    assert log.all_of("erase-key", "users") == [change]


def test_the_intent_of_the_very_first_change_survives_a_crash(log: ChangeLog, tmp_path: Path) -> None:
    with recorded(tmp_path) as recording:
        log.begin(ADA, "erase-key", "users")
    Disk(recording, len(recording.steps)).build(DROP, set())
    assert [change.action for change in log.newest()] == ["erase-key"]


def test_a_receipt_that_cannot_be_written_is_an_error(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_id = log.begin(ADA, "erase-key", "users")

    def full(line: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "_append", full)
    log.end(change_id, "failed: x")  # an outcome that cannot be written changes nothing
    with pytest.raises(StorageError, match="receipt"):
        log.end_with_receipt(change_id, {})


def test_all_changes_of_a_kind_are_found_in_a_long_file(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 100)  # lines are cut by every read
    for number in range(20):
        for action, target in (("erase-key", "users"), ("erase-key", "orders"), ("clean", "users")):
            with log.recorded(ADA, action, target, after={"number": number}):
                pass
    changes = log.all_of("erase-key", "users")
    assert [change.after["number"] for change in changes] == list(range(20))
    assert {change.outcome for change in changes} == {DONE}


def test_lines_that_are_of_no_change_are_passed_over(log: ChangeLog, tmp_path: Path) -> None:
    assert log.all_of("clean", "users") == []
    with log.recorded(ADA, "clean", "users"):
        pass
    with (tmp_path / CHANGES_FILE).open("ab") as file:
        file.write(
            b'{"stage":"outcome","id":"x","outcome":1}\n"clean"\n[]\n{"action":"clean"}\n'
            b'{"stage":"intent","id":"x","at_ms":1e999,"user":"","address":"","way":"","action":"clean",'
            b'"target":"users","before":{},"after":{}}\n{"stage":"inte'
        )
    with log.recorded(ADA, "clean", "users"):
        pass
    assert [change.outcome for change in log.all_of("clean", "users")] == [DONE, DONE]
    assert len(log.newest()) == 2
