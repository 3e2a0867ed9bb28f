"""`siltstone clean` says what retention took: in JSON, in the table, in the audit, and in a dry run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli.main import run
from siltstone.commands import clean as app
from siltstone.log.segments import list_segments
from tests.support.operator.staged import Staged, in_process, listing, stage


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.clean, "__kwdefaults__", {**app.clean.__kwdefaults__, "engine": in_process})


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "compact_delete_ms", tmp_path / "data")


def clean(staged: Staged, *flags: object) -> int:
    settings = [part for setting in staged.request.config for part in ("--config", setting)]
    fixed = ["clean", str(staged.directory), "--topic", staged.case.topic, *settings]
    return run([*fixed, "--now-ms", str(staged.request.now_ms), *map(str, flags)])


def the_log(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    return dict(log)


def test_json_counts_what_expired(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean(staged, "--in-place", "--json") == 0
    log, round_ = the_log(capsys), staged.case.rounds[0]
    assert (log["status"], log["records_before"], log["records_after"]) == (
        "cleaned",
        round_.raw["records_before"],
        round_.raw["records_after"],
    )
    assert log["removed"]["expired"] > 0
    assert log["records_before"] - log["records_after"] == sum(log["removed"].values())
    assert log["segments_after"] == len(list_segments(staged.partition)) == 5
    assert log["bytes_after"] == sum(segment.size for segment in list_segments(staged.partition))
    (note,) = log["notes"]
    assert note.startswith("retention: 4 segments from offset 0") and "retention.ms=86400000" in note


def test_a_dry_run_counts_expired_records_and_changes_nothing(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(staged.directory)
    assert clean(staged, "--dry-run", "--json") == 0
    planned = the_log(capsys)
    assert listing(staged.directory) == before
    assert clean(staged, "--in-place", "--json") == 0
    cleaned = the_log(capsys)
    assert {**planned, "seconds": 0} == {**cleaned, "seconds": 0}


def test_the_table_has_a_column_for_expired_records_and_the_reason(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clean(staged, "--in-place") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "expired" in shown and "older than retention.ms=86400000" in shown


def test_a_log_that_needs_no_cleaning_is_cleaned_of_old_segments(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--in-place", "--json", "--config", "min.cleanable.dirty.ratio=1")
    assert clean(staged, *flags) == 0
    log = the_log(capsys)
    assert (log["status"], log["reason"]) == ("cleaned", "")
    assert log["removed"]["expired"] == sum(log["removed"].values()) == 380
    assert any(note.startswith("not compacted: dirty ratio") for note in log["notes"])
    assert staged.checkpoint() is None


def test_the_audit_lists_the_files_that_are_left(staged: Staged, tmp_path: Path) -> None:
    before = {path.name for path in staged.partition.iterdir()}
    assert clean(staged, "--in-place", "--report", tmp_path / "report.json", "--json") == 0
    report = json.loads((tmp_path / "report.json").read_text())
    ((_, old),) = report["sha256_before"].items()
    ((_, new),) = report["sha256_after"].items()
    assert set(old) == before
    assert new == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in staged.partition.iterdir()
    }
    assert f"{0:020d}.log" in old and f"{0:020d}.log" not in new


def test_undo_brings_expired_segments_back(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(staged.partition)
    assert clean(staged, "--in-place", "--json", "--keep-originals", tmp_path / "keep") == 0
    kept_originals = json.loads(capsys.readouterr().out)["kept_originals"]
    assert run(["undo", kept_originals, "--json"]) == 0
    assert listing(staged.partition) == before
