"""`siltstone recover`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.cli.main import run
from tests.support import golden_sets
from tests.support.cleaning.logs import tree

MARKER = ".kafka_cleanshutdown"
FIELDS = {
    "topic",
    "partition",
    "log_start_offset",
    "log_end_offset",
    "truncated_bytes",
    "rebuilt_indexes",
    "finished_swaps",
    "removed_files",
    "status",
    "reason",
    "damage",
}
SETTINGS = ["--config", "index.interval.bytes=512", "--config", "segment.index.bytes=4096"]
CLOCK = ["--now-ms", "1795227600000"]


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden_sets.unpack_recovery(tmp_path_factory.mktemp("golden-recovery"))


def stage(root: Path, name: str, destination: Path) -> Path:
    case = golden_sets.load_case(root, f"recovery/{name}")
    return golden_sets.stage_round(case, case.rounds[0], destination / name)


def recovered(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = run(["recover", *map(str, arguments), *SETTINGS, *CLOCK, "--json"])
    shown = capsys.readouterr()
    assert shown.err == ""
    return status, json.loads(shown.out)


def test_the_document_has_the_outcome_of_each_log(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stage(stopped, "u_torn_batch", tmp_path)
    status, document = recovered(path, capsys=capsys)
    (log,) = document["logs"]
    assert status == 0
    assert set(log) == FIELDS
    assert (log["topic"], log["partition"], log["status"]) == ("u_torn_batch", 0, "recovered")
    assert (log["log_start_offset"], log["log_end_offset"], log["truncated_bytes"]) == (0, 205, 148)
    assert document["directories"][0] == {"path": str(path), "clean": False, "offline": None, "notes": []}
    assert (path / MARKER).exists()
    status, document = recovered(path, capsys=capsys)
    assert (status, document["logs"][0]["status"], document["directories"][0]["clean"]) == (
        0,
        "nothing_to_do",
        True,
    )


def test_several_directories_and_what_is_wrong_with_them(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [stage(stopped, name, tmp_path) for name in ("u_bitflip_old", "u_offset_back", "u_plain")]
    status, document = recovered(*paths, capsys=capsys)
    old, back, plain = document["logs"]
    assert status == 1
    assert (old["status"], old["log_end_offset"]) == ("damaged", 171)
    assert old["damage"][0]["position"] == 494 and "checksum" in old["damage"][0]["reason"]
    assert (back["status"], back["log_end_offset"]) == ("refused", None)
    assert back["damage"][0]["path"].endswith("00000000000000000206.log")
    assert (plain["status"], plain["log_end_offset"]) == ("recovered", 165)
    assert [(path / MARKER).exists() for path in paths] == [True, False, True]


def test_the_table_says_where_a_log_was_cut(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stage(stopped, "u_bitflip_last", tmp_path)
    before = tree(path)
    assert run(["recover", str(path), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "nothing was changed" in shown.out and "truncated at" in shown.out
    assert "would recover" in shown.out and "recovered" not in shown.out.replace(
        "what would be recovered", ""
    )
    assert tree(path) == before
    assert run(["recover", str(path)]) == 0
    shown = capsys.readouterr()
    assert "u_bitflip_last-0" in shown.out and "215" in shown.out and "checksum does not match" in shown.out


def test_a_live_brokers_lock_is_respected(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stage(stopped, "u_plain", tmp_path)
    before = tree(path)
    holding = (
        "import fcntl, sys\n"
        f"file = open({str(path / '.lock')!r}, 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert run(["recover", str(path)]) == 1
        holder.communicate("")
    shown = capsys.readouterr()
    assert shown.out == "" and "holds .lock" in shown.err
    assert tree(path) == before


def test_clean_advises_recover_and_works_after_it(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = golden_sets.load_case(golden, "basic")
    path = golden_sets.stage_round(case, case.rounds[0], tmp_path / "log")
    (path / MARKER).unlink()
    cleaning = ["clean", str(path), "--dry-run", "--topic", case.topic, "--config", "cleanup.policy=compact"]
    assert run([*cleaning, "--json"]) == 1
    assert f"siltstone recover {path}" in capsys.readouterr().err
    assert run(["recover", str(path)]) == 0
    capsys.readouterr()
    assert run([*cleaning, "--force", "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert log["status"] == "cleaned", log


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--config", "index.interval.byte=1"], "index.interval.bytes"),
        (["--config", "index.interval.bytes"], "key=value"),
        (["--threads", "0"], "--threads"),
        (["--now-ms", "soon"], "--now-ms"),
    ],
)
def test_wrong_usage_has_exit_status_2_and_changes_nothing(
    stopped: Path, tmp_path: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stage(stopped, "u_plain", tmp_path)
    before = tree(path)
    assert run(["recover", str(path), *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and word in shown.err
    assert tree(path) == before


def test_a_disk_that_cannot_be_opened_is_offline(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = stage(stopped, "u_plain", tmp_path), stage(stopped, "u_gap", tmp_path)
    entries = files.entries

    def failing(directory: Path) -> object:
        if Path(directory) == bad:
            raise OSError(5, "Input/output error", str(bad))
        return entries(directory)

    monkeypatch.setattr(files, "entries", failing)
    status, document = recovered(good, bad, capsys=capsys)
    assert status == 1
    assert [directory["offline"] for directory in document["directories"]] == [
        None,
        f"{bad}: Input/output error",
    ]
    assert [log["status"] for log in document["logs"]] == ["recovered"]
