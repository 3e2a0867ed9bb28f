"""The file of past cleanings: what is read is what was written, it is bounded, and damage costs a line."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError, SourceChangedError
from siltstone.compaction import report as history
from siltstone.compaction.history import History
from siltstone.compaction.report import (
    CLEANED,
    CLEANINGS_FILE,
    FAILED,
    SKIPPED,
    UNCLEANABLE,
    Cleaning,
    Discarded,
    ErrorDetails,
    LogFailure,
    LogResult,
    RecordCounts,
    append_cleanings,
    failure_of,
    read_cleanings,
)
from siltstone.compaction.staging import GroupReport, LogReport
from siltstone.compaction.work import Extracted
from siltstone.log.directory import LogDirectory


def cleaning(number: int, status: str = CLEANED, reason: str = "", partition: int = 0) -> Cleaning:
    result = LogResult(
        topic="users",
        partition=partition,
        directory="",
        status=status,
        reason=reason,
        first_dirty_offset=number,
        cleaned_end_offset=number + 10,
        bytes_before=1000,
        bytes_after=250,
        records_before=10,
        records_after=3,
        counts=RecordCounts(discarded=Discarded(superseded=5, tombstones=2)),
        seconds=0.25,
    )
    return Cleaning(began_ms=1000 + number, result=result)


def test_what_was_kept_is_read_back(tmp_path: Path) -> None:
    assert read_cleanings(tmp_path) == []
    append_cleanings(tmp_path, [cleaning(1), cleaning(2)])
    append_cleanings(tmp_path, [cleaning(3, FAILED, "no space")])
    found = read_cleanings(tmp_path)
    assert [each.began_ms for each in found] == [1001, 1002, 1003]
    expected = cleaning(1).result
    expected.directory = str(tmp_path / "users-0")
    assert found[0].result == expected and found[0].recopy_percent == 25
    assert (found[2].result.status, found[2].result.reason) == (FAILED, "no space")


def test_a_line_is_one_json_object_with_the_numbers_that_people_want(tmp_path: Path) -> None:
    append_cleanings(tmp_path, [cleaning(1)])
    (line,) = (tmp_path / CLEANINGS_FILE).read_text().splitlines()
    row = json.loads(line)
    wanted = {"began_ms": 1001, "topic": "users", "partition": 0, "status": CLEANED, "seconds": 0.25}
    assert wanted.items() <= row.items()
    assert (row["bytes_before"], row["bytes_after"], row["recopy_percent"]) == (1000, 250, 25.0)
    assert row["removed"]["superseded"] == 5 and not {"settings", "directory"} & row.keys()


def test_a_path_that_is_not_utf_8_is_read_back(tmp_path: Path) -> None:
    reason = os.fsdecode(b"/logs/\xff/users-0: no space")
    append_cleanings(tmp_path, [cleaning(1, FAILED, reason)])
    assert [each.result.reason for each in read_cleanings(tmp_path)] == [reason]


def test_a_torn_last_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / CLEANINGS_FILE
    append_cleanings(tmp_path, [cleaning(1), cleaning(2)])
    path.write_bytes(path.read_bytes()[:-40])
    assert [each.began_ms for each in read_cleanings(tmp_path)] == [1001]
    append_cleanings(tmp_path, [cleaning(3)])
    assert [each.began_ms for each in read_cleanings(tmp_path)] == [1001, 1003]


@pytest.mark.parametrize(
    "noise",
    [b"", b"\n", b"\xff\x00\n", b"[]\n", b"{}\n", b'{"removed": 3}\n', b"null\n", b"[" * 5000 + b"\n"],
    ids=range(8),
)
def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path, noise: bytes) -> None:
    (tmp_path / CLEANINGS_FILE).write_bytes(noise)
    append_cleanings(tmp_path, [cleaning(1)])
    assert [each.began_ms for each in read_cleanings(tmp_path)] == [1001]


def test_fields_of_later_versions_and_missing_ones_do_no_harm(tmp_path: Path) -> None:
    row = cleaning(1).to_json() | {"later": 1}
    row["removed"] = {"superseded": 7, "later": 2}
    del row["groups"]
    (tmp_path / CLEANINGS_FILE).write_text(json.dumps(row) + "\n")
    (found,) = read_cleanings(tmp_path)
    assert found.result.discarded == Discarded(superseded=7)


def test_the_file_is_bounded_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORY_BYTES_MAX", 8000)
    for number in range(200):
        append_cleanings(tmp_path, [cleaning(number)])
        assert (tmp_path / CLEANINGS_FILE).stat().st_size <= 8000
    found = [each.began_ms for each in read_cleanings(tmp_path)]
    assert found == list(range(1200 - len(found), 1200)) and len(found) > 4
    append_cleanings(tmp_path, [cleaning(number) for number in range(300, 400)])
    assert read_cleanings(tmp_path)[-1].began_ms == 1399
    assert (tmp_path / CLEANINGS_FILE).stat().st_size <= 8000


def test_a_folder_of_kept_originals_is_named_as_long_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure finds it by the history."""
    monkeypatch.setattr(history, "HISTORY_BYTES_MAX", 8000)
    there, gone = tmp_path / "keep" / "RUN" / "users-0", tmp_path / "gone" / "RUN" / "users-0"
    there.mkdir(parents=True)
    for number, kept in enumerate([there, there, gone]):
        append_cleanings(tmp_path, [replace(cleaning(number), kept_originals=str(kept))])
    for number in range(10, 100):
        append_cleanings(tmp_path, [cleaning(number)])
    named = [each.kept_originals for each in read_cleanings(tmp_path) if each.kept_originals]
    assert named == [str(there)] and (tmp_path / CLEANINGS_FILE).stat().st_size <= 8000


def test_of_a_file_that_is_too_long_the_newest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "HISTORY_BYTES_MAX", 1000)
    lines = [json.dumps(cleaning(number).to_json()) + "\n" for number in range(30)]
    (tmp_path / CLEANINGS_FILE).write_text("".join(lines))
    found = [each.began_ms for each in read_cleanings(tmp_path)]
    assert found == list(range(1030 - len(found), 1030)) and 0 < len(found) < 10


def test_a_failure_that_repeats_itself_is_written_once(tmp_path: Path) -> None:
    written = History()
    for number in range(5):
        written.append(
            tmp_path, [cleaning(number, FAILED, "no engine"), cleaning(number, FAILED, "other", 1)]
        )
    written.append(tmp_path, [cleaning(5, FAILED, "no space")])
    written.append(tmp_path, [cleaning(6)])
    written.append(tmp_path, [cleaning(7, FAILED, "no space")])
    mine = [each for each in read_cleanings(tmp_path) if each.result.partition == 0]
    assert [each.began_ms for each in mine] == [1000, 1005, 1006, 1007]


def test_a_disk_that_does_not_take_it_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Appender, "write", full)
    with caplog.at_level(logging.WARNING, "siltstone"):
        History().append(tmp_path, [cleaning(1)])
    assert "No space left on device" in caplog.text and read_cleanings(tmp_path) == []


def test_the_file_makes_no_folder_a_log_directory_and_is_no_partition(tmp_path: Path) -> None:
    (tmp_path / "users-0").mkdir()
    (tmp_path / "users-0" / f"{0:020d}.log").write_bytes(b"")
    append_cleanings(tmp_path, [cleaning(1)])
    found = LogDirectory.open(tmp_path, lock=False)
    assert not found.has_broker_files and found.passed_over == []


def test_the_details_of_an_error_come_back_from_the_history(tmp_path: Path) -> None:
    failed = cleaning(1)
    failed.result.set_failure(
        failure_of(CorruptRecordError("/logs/users-0/7.log", 61, "the checksum does not match"))
    )
    append_cleanings(tmp_path, [failed])
    (row,) = (json.loads(line) for line in (tmp_path / CLEANINGS_FILE).read_text().splitlines())
    details = {"code": "CORRUPT_RECORD", "path": "/logs/users-0/7.log", "position": 61, "advice": None}
    assert row["failure"] == details and row["status"] == UNCLEANABLE
    (found,) = read_cleanings(tmp_path)
    assert found.result.failure == ErrorDetails(**details)


FAILURES = [
    (CorruptRecordError("/x", 7, "bad"), UNCLEANABLE, "/x: byte 7: bad", ("CORRUPT_RECORD", "/x", 7, None)),
    (
        SourceChangedError("changed", path="/x", advice="run again"),
        FAILED,
        "/x: changed; run again",
        ("SOURCE_CHANGED", "/x", None, "run again"),
    ),
    (OSError(28, "No space left", "/x"), FAILED, "/x: No space left", ("ENOSPC", "/x", None, None)),
    (OSError("no number"), FAILED, "no number", ("OS_ERROR", None, None, None)),
    (KeyError("k"), FAILED, "KeyError: 'k'", ("UNKNOWN_SERVER_ERROR", None, None, None)),
]


@pytest.mark.parametrize(("error", "status", "reason", "details"), FAILURES)
def test_a_failure_has_the_errors_code_path_position_and_advice(
    error: Exception, status: str, reason: str, details: tuple[object, ...]
) -> None:
    failure = failure_of(error)
    assert (failure.status, failure.reason) == (status, reason)
    assert failure.details is not None
    assert (
        failure.details.code,
        failure.details.path,
        failure.details.position,
        failure.details.advice,
    ) == details


def test_only_an_error_has_details_in_the_json() -> None:
    result = cleaning(1).result
    assert result.to_json()["failure"] is None
    assert result.set_failure(LogFailure(status=SKIPPED, reason="a rule")).to_json()["failure"] is None
    result.set_failure(failure_of(OSError(28, "No space left", "/x")))
    assert result.to_json()["failure"] == {"code": "ENOSPC", "path": "/x", "position": None, "advice": None}
    assert result.set_status(CLEANED, "").to_json()["failure"] is None


def test_the_seconds_in_the_json_are_whole_milliseconds() -> None:
    assert replace(cleaning(1).result, seconds=1.23449).to_json()["seconds"] == 1.234


def test_parts_of_a_report_add_up() -> None:
    counts = RecordCounts(records_read=9, records_retained=4, discarded=Discarded(superseded=5))
    counts.add(RecordCounts(records_read=2, records_retained=1, discarded=Discarded(markers=1)))
    assert counts == RecordCounts(
        records_read=11, records_retained=5, discarded=Discarded(superseded=5, markers=1)
    )
    failure = LogFailure(status=FAILED, reason="first")
    log = LogReport(name="a-0", retained_counts={1: 2}, dirty_keys_met=3)
    log.add(
        LogReport(
            name="b-0",
            retained_counts={1: 1, 2: 5},
            dirty_keys_met=4,
            extracted=Extracted(has_transactions=True),
        )
    )
    log.add(
        LogReport(
            name="c-0", groups=[GroupReport(group_index=7)], extracted=Extracted(records=3, failure=failure)
        )
    )
    log.add(LogReport(name="d-0", extracted=Extracted(failure=LogFailure(status=FAILED, reason="second"))))
    assert (log.name, log.retained_counts, log.dirty_keys_met, log.groups) == (
        "a-0",
        {1: 3, 2: 5},
        7,
        [GroupReport(group_index=7)],
    )
    assert log.extracted == Extracted(records=3, has_transactions=True, failure=failure)
