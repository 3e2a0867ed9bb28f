"""Savings: a line for each topic and day, bounded; hostile contents break nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from siltstone.commands.savings import DAY_MS, Histories, saved_by_topic, saved_lately
from siltstone.compaction import savings
from siltstone.compaction.history import History
from siltstone.compaction.report import (
    CLEANED,
    CLEANINGS_FILE,
    FAILED,
    Cleaning,
    Discarded,
    LogResult,
    RecordCounts,
    append_cleanings,
    read_cleanings,
)
from siltstone.compaction.savings import (
    SAVINGS_FILE,
    append_savings,
    day_of,
    read_savings,
    savings_of_cleanings,
)
from tests.support.cleaning.serving import USERS, serving, write
from tests.support.log.managed import NOW


def cleaning(topic: str = "users", at_ms: int = NOW, *, status: str = CLEANED, after: int = 40) -> Cleaning:
    result = LogResult(
        topic=topic,
        partition=0,
        directory="",
        status=status,
        bytes_before=100,
        bytes_after=after,
        counts=RecordCounts(discarded=Discarded(superseded=3, keyless=1)),
    )
    return Cleaning(began_ms=at_ms, result=result)


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / SAVINGS_FILE).read_bytes().splitlines()]


def test_cleanings_of_a_topic_and_a_day_are_added_up(tmp_path: Path) -> None:
    history = History()
    history.append(tmp_path, [cleaning(), cleaning("other"), cleaning(status=FAILED)])
    history.append(tmp_path, [cleaning(after=70)])
    history.append(tmp_path, [cleaning(at_ms=NOW + DAY_MS)])
    rows = [
        (saving.day, saving.topic, saving.cleanings, saving.saved_bytes) for saving in read_savings(tmp_path)
    ]
    today, tomorrow = day_of(NOW), day_of(NOW + DAY_MS)
    assert rows == [(today, "other", 1, 60), (today, "users", 2, 90), (tomorrow, "users", 1, 60)]
    assert read_savings(tmp_path)[1].removed == {"superseded": 6, "keyless": 2}
    assert read_savings(tmp_path)[1].to_json()["records_removed"] == 8
    shown = Histories().savings([tmp_path, tmp_path / "none"])
    assert [(saving.day, saving.topic) for saving in shown] == [
        (tomorrow, "users"),
        (today, "users"),
        (today, "other"),
    ]
    assert saved_by_topic(shown, NOW + DAY_MS) == {"users": 150, "other": 60}
    assert saved_by_topic(shown, NOW + DAY_MS, days=1) == {"users": 60}


def test_what_was_saved_in_24_hours_is_that_of_today_and_of_the_end_of_yesterday() -> None:
    noon = NOW - NOW % DAY_MS + DAY_MS // 2
    times = [
        noon,
        noon - DAY_MS // 2 - 1,
        noon - DAY_MS,
        noon - DAY_MS - 1,
        noon - 6 * DAY_MS,
        noon - 7 * DAY_MS,
    ]
    cleanings = [cleaning(at_ms=at_ms, after=100 - 2**number) for number, at_ms in enumerate(times)]
    savings = savings_of_cleanings([*cleanings, cleaning(status=FAILED, at_ms=noon)])
    lately = saved_lately(savings, cleanings, noon)
    assert (lately.last_24_hours, lately.last_7_days) == (1 + 2 + 4, 1 + 2 + 4 + 8 + 16)


def test_histories_are_parsed_again_only_when_a_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def counted(directory: Path) -> list[Cleaning]:
        parsed.append(directory.name)
        return read_cleanings(directory)

    monkeypatch.setattr("siltstone.commands.savings.read_cleanings", counted)
    first, second = tmp_path / "one", tmp_path / "two"
    for directory in (first, second):
        directory.mkdir()
    histories, history = Histories(), History()
    assert histories.cleanings([first, second]) == () and histories.savings([first, second]) == ()
    history.append(first, [cleaning()])
    cleanings = histories.cleanings([first, second])
    assert len(cleanings) == 1 and histories.cleanings([first, second]) is cleanings
    assert histories.savings([first, second]) is histories.savings([first, second])
    history.append(second, [cleaning(at_ms=NOW + 1)])
    assert [entry.began_ms for entry in histories.cleanings([first, second])] == [NOW + 1, NOW]
    assert sum(saving.cleanings for saving in histories.savings([first, second])) == 2
    assert parsed.count("one") == 2 and parsed.count("two") == 2
    os.unlink(first / CLEANINGS_FILE)
    assert [entry.began_ms for entry in histories.cleanings([first, second])] == [NOW + 1]


def test_a_directory_without_savings_begins_with_its_history(tmp_path: Path) -> None:
    append_cleanings(tmp_path, [cleaning(), cleaning()])
    assert [saving.cleanings for saving in read_savings(tmp_path)] == [2]
    History().append(tmp_path, [cleaning()])
    assert [saving.cleanings for saving in read_savings(tmp_path)] == [3]
    os.unlink(tmp_path / CLEANINGS_FILE)
    assert [saving.cleanings for saving in read_savings(tmp_path)] == [3]


def test_the_file_is_bounded_and_the_newest_days_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savings, "SAVINGS_BYTES_MAX", 4000)
    for day in range(60):
        for _ in range(5):
            append_savings(tmp_path, [cleaning(at_ms=NOW + day * DAY_MS)])
            assert (tmp_path / SAVINGS_FILE).stat().st_size <= 4000
    daily = read_savings(tmp_path)
    assert [saving.cleanings for saving in daily] == [5] * len(daily) and len(daily) >= 10
    assert daily[-1].day == day_of(NOW + 59 * DAY_MS), "a day's lines become one before days go"
    assert len(lines(tmp_path)) > len(daily)


HOSTILE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"day": "2026-01-01", "topic": "a"}',
    *(
        json.dumps({**good, **bad}).encode()
        for good in [
            {
                "day": "2026-01-01",
                "topic": "a",
                "cleanings": 1,
                "bytes_before": 2,
                "bytes_after": 1,
                "removed": {},
            }
        ]
        for bad in [
            {"day": "../../etc"},
            {"day": 7},
            {"day": "2026-01-01\n"},
            {"topic": ["a"]},
            {"topic": ""},
            {"topic": "x" * 250},
            {"cleanings": True},
            {"cleanings": "1"},
            {"bytes_before": -1},
            {"bytes_before": 1 << 80},
            {"bytes_after": 1.5},
            {"bytes_after": None},
            {"removed": 3},
            {"removed": {"superseded": "many"}},
        ]
    ),
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_are_skipped(tmp_path: Path, line: bytes) -> None:
    append_savings(tmp_path, [])
    append_cleanings(tmp_path, [cleaning()])
    append_savings(tmp_path, [cleaning()])
    with (tmp_path / SAVINGS_FILE).open("ab") as file:
        file.write(line + b"\n")
    append_savings(tmp_path, [cleaning()])
    assert [(saving.topic, saving.cleanings) for saving in Histories().savings([tmp_path])] == [("users", 2)]


def test_a_line_that_a_crash_cut_off_spoils_no_other(tmp_path: Path) -> None:
    append_cleanings(tmp_path, [cleaning()])
    append_savings(tmp_path, [cleaning()])
    with (tmp_path / SAVINGS_FILE).open("ab") as file:
        file.write(b'{"day": "20')
    assert [saving.cleanings for saving in read_savings(tmp_path)] == [1]
    append_savings(tmp_path, [cleaning()])
    assert [saving.cleanings for saving in read_savings(tmp_path)] == [2]


def test_a_file_that_cannot_be_written_is_logged_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SAVINGS_FILE).mkdir()
    History().append(tmp_path, [cleaning()])
    assert any(SAVINGS_FILE in line for line in caplog.messages)
    assert (tmp_path / CLEANINGS_FILE).is_file()


def test_the_embedded_cleaner_writes_savings(tmp_path: Path) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 40)
        manager[USERS].roll()
        manager.flush()
        (result,) = cleaner.clean_once()
    (saving,) = read_savings(tmp_path)
    assert (saving.topic, saving.day, saving.cleanings) == ("users", day_of(NOW), 1)
    assert saving.saved_bytes == result.bytes_before - result.bytes_after > 0
    assert saving.records_removed == result.discarded.total() > 0


@pytest.mark.parametrize(
    ("at_ms", "day"), [(0, "1970-01-01"), (-(1 << 62), "0001-01-01"), (1 << 62, "9999-12-31")]
)
def test_a_time_beyond_the_calendar_has_its_first_or_last_day(at_ms: int, day: str) -> None:
    assert day_of(at_ms) == day
