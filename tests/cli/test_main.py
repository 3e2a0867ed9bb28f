"""Every error is one line and an exit status: no traceback, whatever happens."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import siltstone
from siltstone.base.errors import CheckFailedError, EngineError, SiltstoneError, UsageError
from siltstone.cli import main
from siltstone.commands import clean as app


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Nothing on standard output, one line with these words on standard error."""
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("siltstone: ")
    assert shown.err.count("\n") == 1 and shown.err.endswith("\n"), shown.err
    for word in words:
        assert word in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clean"], ["no log directory", "--dir"]),
        (["clean", "x", "--in-plaice"], ["--in-plaice"]),
        (["clean", "x", "--in-place", "--now-ms", "soon"], ["--now-ms", "soon"]),
        (["clean", "x", "--in-place", "--max-extra-bytes", "0"], ["--max-extra-bytes", "over 0"]),
        (["clean", "x", "--in-place", "--out", "y"], ["--in-place", "--out"]),
        (["clean", "x"], ["--in-place", "--out", "--dry-run"]),
        (["clean", "x", "--out", "y", "--keep-originals", "k"], ["--keep-originals", "--in-place"]),
        (["clean", "x", "--in-place", "--high-watermark", "start"], ["start", "end"]),
        (["undo"], ["run"]),
        (["undo", "a", "b", "c"], ["too many arguments: b c;"]),
        (["dump"], ["no file"]),
        (["undo", "nowhere-at-all"], ["nowhere-at-all"]),
        (["tidy"], ["tidy"]),
    ],
)
def test_wrong_usage_has_exit_status_2_and_one_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    for word in words:
        assert word.lower() in shown.err.lower()


def raising(error: BaseException) -> Callable[..., object]:
    def clean(*arguments: object, **named: object) -> object:
        raise error

    return clean


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UsageError("say what"), 2, ["say what"]),
        (SiltstoneError("two\nlines"), 1, ["two lines"]),
        (CheckFailedError("a doubt"), 1, ["a doubt"]),
        (EngineError("no Spark"), 1, ["no Spark"]),
        (OSError(errno.ENOSPC, "No space left on device", "/d/x"), 1, ["/d/x: No space left on device"]),
        (PermissionError(errno.EACCES, "Permission denied", "/d/x"), 1, ["/d/x: Permission denied"]),
        (
            ModuleNotFoundError("No module named 'pyspark'", name="pyspark"),
            1,
            ["pyspark", "siltstone[spark]"],
        ),
        (KeyboardInterrupt(), 130, ["interrupted", "run the command again"]),
    ],
)
def test_an_error_is_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    words: list[str],
) -> None:
    monkeypatch.setattr(app, "clean", raising(error))
    assert main.run(["clean", "x", "--dry-run"]) == status
    one_line(capsys, *words)


def test_the_help_lists_the_flags_and_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert siltstone.__version__ in capsys.readouterr().out
    assert main.run(["clean", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--in-place", "--out", "--dry-run", "--keep-originals", "--json", "--max-extra-bytes"):
        assert flag in shown


def test_the_installed_script_ends_with_the_exit_status(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "siltstone"
    completed = subprocess.run(
        [str(command), "clean", str(tmp_path), "--in-place"], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.count("\n") == 1 and "not a Kafka log directory" in completed.stderr


def test_a_reader_that_went_away_is_no_traceback() -> None:
    """As with `siltstone clean --help | head -0`."""
    command = Path(sys.executable).parent / "siltstone"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        completed = subprocess.run(
            [str(command), "clean", "--help"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writing)
    assert "Traceback" not in completed.stderr


def test_no_file_gets_the_descriptor_of_a_standard_file_that_is_closed(tmp_path: Path) -> None:
    """A daemon may be started without any. The ``.lock`` had descriptor 2, which the start of Spark replaces:
    another process could lock the directory then."""
    code = f"""if True:
        from siltstone.cli import main

        def run():
            with open({str(tmp_path / ".lock")!r}, "w") as lock:
                print("to nobody")
                return 0 if lock.fileno() > 2 else 1

        main.run = run
        main.main()
    """
    closed = 'exec "$0" -c "$1" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", closed, sys.executable, code], check=False).returncode == 0


def test_an_interrupt_is_one_line_whatever_py4j_has_to_say_of_it() -> None:
    code = """if True:
        import logging
        from siltstone.cli import main

        def interrupted():
            logging.exception("KeyboardInterrupt while sending command.")
            logging.warning("something else")
            raise KeyboardInterrupt

        main._run = lambda arguments: interrupted()
        main.main()
    """
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *others, last = completed.stderr.splitlines()
    assert (completed.returncode, others) == (130, ["WARNING:root:something else"])
    assert last.startswith("siltstone: interrupted")
