"""Names that are not UTF-8, under a locale that shows nothing but ASCII: every command escapes them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.base.interruption import InterruptHandler
from siltstone.cli import main
from tests.support.cleaning.logs import one, write_log

NAME = os.fsdecode(b"l\xc3\xa9gs-\xff")
POLICY = ["--topic", "topic", "--config", "cleanup.policy=compact"]
HOW = [*POLICY, "--force", "--high-watermark", "end", "--no-spark"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command printed, as bytes, and its exit status."""

    status: int
    out: bytes
    err: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Strictly = Callable[..., Said]


@pytest.fixture(params=["ascii", "utf-8"])
def strictly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Strictly]:
    """Run the program with outputs that refuse what their encoding lacks, as PYTHONIOENCODING=…:strict."""
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object, stdin: bytes = b"") -> Said:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=request.param, errors="strict") for _ in range(2)]
        with monkeypatch.context() as patched:
            # The handlers of a command's signals would outlive it here, with their hard end.
            patched.setattr(InterruptHandler, "install", lambda self: None)
            patched.setattr(sys, "argv", ["siltstone", *map(str, arguments)])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patched.setattr(sys, "stdout", streams[0])
            patched.setattr(sys, "stderr", streams[1])
            with pytest.raises(SystemExit) as ended:
                main.main()
            for stream in streams:
                stream.flush()
        out, err = (stream.buffer.getvalue() for stream in streams)  # type: ignore[attr-defined]
        assert b"Traceback" not in err
        return Said(status=int(str(ended.value.code)), out=out, err=err)

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory whose name is not UTF-8; in it a folder and a file with other such names."""
    directory = tmp_path / NAME
    partition = write_log(directory, {0: [one(n, f"k{n % 3}") for n in range(9)], 9: [one(9, "z")]})
    (directory / ".kafka_cleanshutdown").write_text("{}")
    (directory / os.fsdecode(b"bad\xfe-0")).mkdir()
    (partition / os.fsdecode(b"strange\xfd")).touch()
    return directory


def test_clean_undo_and_verify(strictly: Strictly, logs: Path, tmp_path: Path) -> None:
    originals, report, out = (tmp_path / (name + NAME) for name in ("kept", "report", "out"))
    for flags in (["--dry-run"], ["--dry-run", "--json"], ["--out", out]):
        assert strictly("clean", logs, *HOW, *flags).status == 0
    assert strictly("verify", logs, out, *POLICY, "--no-spark").status == 0
    assert strictly("verify", logs, out, *POLICY, "--no-spark", "--json").document
    completed = strictly(
        *("clean", logs, *HOW, "-v", "--in-place", "--all-topics"),
        *("--keep-originals", originals, "--report", report),
    )
    assert completed.status == 0 and b"passed over" in completed.out and b"\\udcff" in completed.out
    assert str(logs / "topic-0") in json.loads(report.read_bytes())["sha256_before"]
    (run,) = originals.iterdir()
    completed = strictly("undo", run)
    assert (completed.status, completed.out.endswith(b"\\udcff/topic-0: 1 segment restored\n")) == (0, True)
    assert strictly("undo", run, "--json").document["logs"][0]["directory"] == str(logs / "topic-0")
    document = strictly("clean", logs, *HOW, "--in-place", "--all-topics", "--json").document
    assert document["logs"][0]["directory"] == str(logs / "topic-0")


def test_commands_that_change_nothing_print_every_name(
    strictly: Strictly, logs: Path, tmp_path: Path
) -> None:
    html = tmp_path / os.fsdecode(b"page\xff.html")
    explain = ["explain", logs, *POLICY, "--high-watermark", "end", "--no-spark"]
    assert strictly(*explain).status == 0
    assert strictly(*explain, "--json").document["passed_over"][0]["path"].startswith(str(logs))
    assert strictly(*explain, "--html", html).status == 0 and "légs" in html.read_text("utf-8")
    log = logs / "topic-0" / f"{0:020d}.log"
    place = ["--dir", logs]
    for command in (
        ["dump", log],
        ["dump", log, "--json"],
        ["recover", logs, "--dry-run"],
        ["recover", logs, "--json"],
        ["topics", *place, "--list"],
        ["topics", *place, "--describe"],
        ["topics", *place, "--describe", "--json"],
        ["log-dirs", *place, "--describe"],
        ["get-offsets", *place, "--json"],
        ["configs", *place, "--describe", "--entity-type", "topics", "--entity-name", "topic"],
        ["consume", *place, "--topic", "topic", "-e"],
        ["consume", *place, "--topic", "topic", "-e", "-J"],
        ["compact-topic", *place, "--topic", "topic"],
    ):
        completed = strictly(*command)
        assert completed.status == 0, completed.err
        if "--json" in command and command[0] != "dump":
            assert completed.document


@pytest.mark.parametrize(
    "command",
    [
        ["clean", "\udcff", "--in-place"],
        ["clean", "DIR", "--in-place", "--topic", "\udcff"],
        ["clean", "DIR", "--in-place", "--config", "cleanup.policy=\udcff", "--topic", "topic"],
        ["clean", "DIR", "--fl\udcff"],
        ["clean", "DIR", "--dry-run", "--config-file", "\udcff"],
        ["undo", "\udcff"],
        ["dump", "\udcff"],
        ["topics", "--dir", "DIR", "--create", "--topic", "é\udcff"],
        ["produce", "--dir", "DIR", "--topic", "topic", "\udcff"],
        ["produce", "--dir", "DIR", "--topic", "topic", "-H", "na\udcffme=value"],
        ["\udcff"],
    ],
)
def test_an_error_about_a_name_that_is_no_text_is_one_line(
    strictly: Strictly, logs: Path, command: list[str]
) -> None:
    completed = strictly(*(str(logs) if word == "DIR" else word for word in command))
    assert completed.status in (1, 2) and completed.err.count(b"\n") == 1 and completed.out == b""
    assert b"udcff" in completed.err


def test_bytes_of_a_command_line_are_what_is_appended(strictly: Strictly, logs: Path) -> None:
    """A key or a header's value need be no text in any locale."""
    key = os.fsdecode(b"k\xff")
    completed = strictly(
        "produce", "--dir", logs, "--topic", "topic", "-k", key, "-H", f"é={key}", stdin=b"value\n"
    )
    assert completed.status == 0, completed.err
    completed = strictly("consume", "--dir", logs, "--topic", "topic", "-o", "10", "-e", "-f", "%k|%h\n")
    assert completed.out == b"k\xff|\xc3\xa9=k\xff\n"


def test_a_program_of_its_own_under_a_strict_locale(logs: Path, tmp_path: Path) -> None:
    """Filesystem, arguments and outputs are all in ASCII."""
    strict = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}
    program = [sys.executable, "-c", "from siltstone.cli.main import main; main()"]
    report = tmp_path / "report.json"
    completed = subprocess.run(
        [*program, "clean", logs, *HOW, "-v", "--in-place", "--all-topics", "--report", report],
        env={**os.environ, **strict},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert (
        b"passed over" in completed.stdout and b"\\udcff" in completed.stdout and completed.stdout.isascii()
    )
    assert report.exists()


def test_a_mount_point_that_is_no_text_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system is refused in place whatever its mount point is called."""
    mounts = (
        b"22 1 8:1 / / rw - ext4 root rw\n"
        b"30 22 0:40 / /srv/donn\xc3\xa9es\\040\xff rw - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(files, "read_bytes", lambda name: mounts)
    monkeypatch.setattr(os.path, "realpath", lambda name: name)
    assert files.file_system(os.fsdecode(b"/srv/donn\xc3\xa9es \xff/kafka")) == "nfs4"
    assert files.file_system("/srv/other") == "ext4"
