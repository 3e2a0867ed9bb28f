"""What all commands print alike: tables of 100 columns, durations, the progress of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from siltstone.base.clock import duration_text
from siltstone.cli import output
from siltstone.commands.explain_page import counted


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (9000, "2 h 30 min"),
        (48 * 3600 - 1, "47 h 59 min"),
        (48 * 3600, "2 d"),
        (50 * 3600, "2 d 2 h"),
        (4000 * 86_400, "4,000 d"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("done", "total", "read", "seconds", "text"),
    [
        (0, 5_000_000_000, 0, 10.0, "users-0 reading 0 B/5.0 GB"),
        (1_200_000_000, 5_000_000_000, 0, 10.0, "users-0 reading 1.2/5.0 GB"),
        (1_200_000_000, 5_000_000_000, 1_200_000_000, 0.5, "users-0 reading 1.2/5.0 GB"),
        (
            1_200_000_000,
            5_000_000_000,
            1_200_000_000,
            4.0,
            "users-0 reading 1.2/5.0 GB · 300.0 MB/s · 13 s left",
        ),
        (5_000, 5_000, 5_000, 4.0, "users-0 reading 5.0/5.0 kB · 1.2 kB/s · 0 s left"),
    ],
)
def test_a_stage_says_how_far_it_is_and_how_long_it_takes(
    done: int, total: int, read: int, seconds: float, text: str
) -> None:
    assert output.stage_text("users-0 reading", done, total, read, seconds) == text


def test_off_a_terminal_a_line_a_minute_shows_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with output.RunProgress(clock=lambda: now[0]) as progress:
        for second in range(0, 200, 10):
            now[0] = float(second)
            progress("users-0", "reading", second * 1_000_000, 400_000_000)
            if second == 100:
                progress("logs", "done", 1, 3)
    first, second_line, third = capsys.readouterr().err.splitlines()
    assert first == "siltstone: users-0 reading 60.0/400.0 MB · 1.0 MB/s · 5 min left"
    assert second_line.startswith("siltstone: 1/3 logs · users-0 reading 120.0/400.0 MB")
    assert third.startswith("siltstone: 1/3 logs · users-0 reading 180.0/400.0 MB")


def test_a_quiet_run_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with output.RunProgress(quiet=True, clock=lambda: now[0]) as progress:
        for second in (0.0, 500.0, 1000.0):
            now[0] = second
            progress("users-0", "reading", 5, 9)
    assert capsys.readouterr() == ("", "")


def test_a_table_leaves_out_empty_columns_and_never_folds_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a" * 249 + "-12"
    output.write_table("", ("log", "bytes", "markers"), [("users-0", 5, None), (long, 1_000, None)])
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["log", "bytes"]
    assert [row.split() for row in rows] == [["users-0", "5"], [long, "1,000"]]


def test_the_tables_of_a_whole_broker_fit_100_columns(
    stopped_broker: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from siltstone.cli.main import run

    directories = list(map(str, stopped_broker))
    assert run(["clean", *directories, "--dry-run", "--engine=process", "--force"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.rstrip() for line in lines if "would clean" in line or line.startswith("log ")]
    assert len(rows) > 10 and max(map(len, rows)) <= 100
    assert "of 17 logs would be cleaned" in lines[-1] and "records removed; in-process" in lines[-1]
    assert len(lines[-1]) <= 100
    assert run(["explain", *directories, "--engine=process"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and "of 17 logs would be cleaned" in lines[-1]
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []


def test_a_long_line_is_wrapped_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    short, path = "x" * output.TABLE_WIDTH, "/" + "y" * 150
    output.write_wrapped(short, f"skipped: a-0: {'word ' * 18}{path}: {'word ' * 5}end")
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == short
    assert [line for line in rest if len(line) > output.TABLE_WIDTH] == [f"    {path}:"]
    assert all(line.startswith("    ") for line in rest[1:]) and rest[-1].endswith("word end")


def test_nouns_are_counted_in_english() -> None:
    assert [counted(number, "log") for number in (0, 1, 2000)] == ["0 logs", "1 log", "2,000 logs"]
    assert counted(2, "entry", "entries") == "2 entries"


def test_a_terminal_obeys_no_text_of_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting in somebody else's directory once changed the title of the terminal."""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    output.write_lines("Topic: a\tConfigs: \x1b]0;title\x07 \x9b31m, ü → 日")
    output.write_table("", ["directory"], [["/data/\x1b[2J"]])
    output.note("a \x1b[2J")
    output.write_json({"key": "a\x7f\x9b31m ü"})
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "Topic: a\tConfigs: \\x1b]0;title\\x07 \\x9b31m, ü → 日"
    assert shown.err == "siltstone: a \\x1b[2J\n"
    assert shown.out.splitlines()[2].rstrip() == "/data/\\x1b[2J"
    document = shown.out.splitlines()[-1]
    assert document.isprintable() and json.loads(document) == {"key": "a\x7f\x9b31m ü"}
