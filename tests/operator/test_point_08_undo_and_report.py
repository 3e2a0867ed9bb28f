"""8. Kept originals, undo, and the audit of --report."""

import dataclasses
import errno
import getpass
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone.base import files
from siltstone.base.errors import DirectoryRefusedError, EngineError, UsageError
from siltstone.cli.main import run
from siltstone.commands import clean as app
from siltstone.commands.clean import fingerprints
from siltstone.compaction.engine import Engine
from tests.support.operator.staged import (
    Listing,
    in_process,
    is_root,
    listing,
    no_engine,
    stage,
    stage_several,
)
from tests.support.thoroughness import share

SET = "basic_zipf_ts"


class Crash(BaseException):
    """The process is gone, as far as this process can show it."""


def without_checkpoint(files_of_directory: Listing) -> Listing:
    return {name: facts for name, facts in files_of_directory.items() if name != "cleaner-offset-checkpoint"}


@pytest.mark.parametrize(("name", "number"), [("basic", 0), (SET, 1), ("grouping", 2), ("idempotent", 0)])
def test_undo_restores_everything(golden: Path, tmp_path: Path, name: str, number: int) -> None:
    staged = stage(golden, name, tmp_path / "data", number)
    before, checkpoint = listing(staged.directory), staged.checkpoint()
    report = staged.clean(keep_originals=tmp_path / "keep")
    assert report.results[0].status == "cleaned"
    assert report.kept == tmp_path / "keep" / report.run
    assert without_checkpoint(listing(staged.directory)) != without_checkpoint(before)
    restored = app.undo(report.kept)
    assert restored[str(staged.partition)]
    assert without_checkpoint(listing(staged.directory)) == without_checkpoint(before)
    assert staged.checkpoint() == checkpoint
    assert app.undo(report.kept) == {str(staged.partition): []}
    assert staged.clean_one().status == "cleaned"


@pytest.mark.parametrize("broken_off", ["undo", "clean"])
def test_undo_resumes_after_a_crash_at_any_moment(golden: Path, tmp_path: Path, broken_off: str) -> None:
    whole = stage(golden, "basic", tmp_path / "whole")
    recorded: list[files.Operation] = []
    if broken_off == "clean":
        with files.observe(recorded.append):
            whole.clean(keep_originals=tmp_path / "keep-whole")
    else:
        originals = whole.clean(keep_originals=tmp_path / "keep-whole").kept
        assert originals is not None
        with files.observe(recorded.append):
            app.undo(originals)
    for at in share(range(0, len(recorded), 5 if broken_off == "clean" else 3), 3):
        staged = stage(golden, "basic", tmp_path / f"{at}")
        before, keep = listing(staged.directory), tmp_path / f"keep-{at}"

        class Dead:
            remaining = at

            def __call__(self, operation: files.Operation) -> None:
                self.remaining -= 1
                if self.remaining < 0:
                    raise Crash

        if broken_off == "clean":
            with files.observe(Dead()), pytest.raises(Crash):
                staged.clean(keep_originals=keep)
        else:
            staged.clean(keep_originals=keep)
            (run,) = keep.iterdir()
            with files.observe(Dead()), pytest.raises(Crash):
                app.undo(run)
        runs = [run for run in keep.glob("*") if list(run.glob("*/undo.json"))]
        for run in runs:
            app.undo(run)
        staged.clean_one(force=True) if not runs else None
        if runs:
            after = {
                n: v
                for n, v in without_checkpoint(listing(staged.directory)).items()
                if ".siltstone" not in n
            }
            after.pop("cleaner-offset-checkpoint.tmp", None)
            assert after == without_checkpoint(before), at
            assert staged.checkpoint() is None


def test_the_folder_of_originals_is_durable_before_a_segment_is_replaced(
    golden: Path, tmp_path: Path
) -> None:
    """Each new folder is an entry of the one above it, which a power cut may lose."""
    staged, recorded = stage(golden, "basic", tmp_path / "data"), list[files.Operation]()
    with files.observe(recorded.append):
        staged.clean(keep_originals=tmp_path / "new" / "keep")
    swap = next(i for i, (verb, _, to) in enumerate(recorded) if verb == "rename" and to.endswith(".cleaned"))
    synced = {path for verb, path, _ in recorded[:swap] if verb == "fsync"}
    new_folders = {
        path for verb, path, _ in recorded[:swap] if verb == "mkdir" and ".siltstone" not in str(path)
    }
    assert {str(tmp_path / "new"), str(tmp_path / "new" / "keep")} < set(map(str, new_folders))
    assert {str(Path(path).parent) for path in new_folders} <= set(map(str, synced))


@pytest.mark.parametrize("change", ["append", "cleaned segment", "rolled", "gone"])
def test_undo_is_refused_once_the_log_changed(golden: Path, tmp_path: Path, change: str) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    originals = staged.clean(keep_originals=tmp_path / "keep").kept
    assert originals is not None
    logs = sorted(staged.partition.glob("*.log"))
    if change == "append":
        with logs[-1].open("ab") as file:
            file.write(b"\0" * 70)
    elif change == "cleaned segment":
        with logs[0].open("ab") as file:
            file.write(b"\0" * 70)
    elif change == "rolled":
        (staged.partition / f"{10_000:020d}.log").touch()
    else:
        logs[-1].unlink()
    before = listing(staged.directory)
    with pytest.raises(DirectoryRefusedError, match="nothing was changed"):
        app.undo(originals)
    assert listing(staged.directory) == before


def test_undo_of_what_is_no_run_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run kept its originals here"):
        app.undo(tmp_path)
    with pytest.raises(UsageError, match="no run kept its originals here"):
        app.undo(tmp_path / "nowhere")


def test_a_damaged_undo_file_is_refused(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    originals = staged.clean(keep_originals=tmp_path / "keep").kept
    assert originals is not None
    path = originals / staged.partition.name / "undo.json"
    for text in ("{", "[]", "{}", '{"groups": [{}]}', "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(DirectoryRefusedError, match=r"undo\.json"):
            app.undo(originals)


def sha256(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize("way", ["in place", "out"])
def test_the_audit_has_user_run_time_and_every_file(golden: Path, tmp_path: Path, way: str) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    destination: dict[str, Any] = {} if way == "in place" else {"in_place": False, "out": tmp_path / "new"}
    after_folder = staged.partition if way == "in place" else tmp_path / "new" / staged.partition.name
    before, began = sha256(staged.partition), time.time() * 1000
    outcome = app.clean(staged.asking(report=tmp_path / "report.json", **destination), engine=in_process)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["run"] == outcome.run
    assert report["version"] == siltstone.__version__
    assert report["user"] == getpass.getuser()
    assert report["host"]
    assert began - 1 <= report["started_ms"] <= time.time() * 1000
    assert str(staged.directory) in report["options"]["directories"]
    assert report["options"]["in_place"] is (way == "in place")
    (log,) = report["logs"]
    assert (log["topic"], log["partition"], log["status"], log["reason"]) == ("basic", 0, "cleaned", "")
    assert log["settings"]["cleanup.policy"] == {"value": ["compact"], "source": "--config"}
    assert report["sha256_before"] == {str(staged.partition): before}
    assert report["sha256_after"] == {str(after_folder): sha256(after_folder)}
    assert sha256(after_folder) != before


def test_the_report_has_no_secret_of_spark(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    settings = ("spark.hadoop.fs.s3a.secret.key=hunter2", "spark.executor.memory=2g")
    staged.clean(report=tmp_path / "report.json", spark_conf=settings)
    options = json.loads((tmp_path / "report.json").read_text())["options"]
    assert options["spark_conf"] == ["spark.hadoop.fs.s3a.secret.key=***", "spark.executor.memory=2g"]
    with pytest.raises(UsageError, match="is not a setting of Spark") as caught:
        app.clean(staged.asking(spark_conf=("fs.s3a.secret.key=hunter2",)))
    assert "hunter2" not in str(caught.value)


def test_the_report_gives_the_reason_of_what_was_not_cleaned(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "keyless", tmp_path / "data")
    staged.clean(report=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert "without a key" in report["logs"][0]["reason"]
    assert report["sha256_before"] == report["sha256_after"]


def test_a_report_that_cannot_be_written_is_refused_before_the_run(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    (tmp_path / "report.json").write_text("{}")
    for path in (tmp_path / "report.json", tmp_path / "nowhere" / "report.json"):
        with pytest.raises(UsageError, match="--report"):
            app.clean(staged.asking(report=path), engine=no_engine)
    assert listing(staged.directory) == before


def refuse_reading(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As a file of another user does, or a disk with a bad block; root can read what is mode 0."""
    sha256 = files.sha256

    def refusing(path: Path) -> str:
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return sha256(path)

    monkeypatch.setattr(files, "sha256", refusing)


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", f"{0:020d}.log"])
def test_a_file_that_cannot_be_read_is_named_with_its_error(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It costs neither the run nor the rest of the report, before or after the cleaning."""
    staged = stage(golden, "basic", tmp_path / "data")
    before = sha256(staged.partition)
    refuse_reading(monkeypatch, name)
    outcome = staged.clean(report=tmp_path / "report.json")
    assert outcome.results[0].status == "cleaned" and outcome.report_error is None
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["logs"][0]["status"] == "cleaned" and report["error"] is None
    unread = {name: {"error": "Permission denied"}}
    assert report["sha256_before"] == {str(staged.partition): before | unread}
    assert report["sha256_after"] == {str(staged.partition): sha256(staged.partition) | unread}


@pytest.mark.skipif(is_root(), reason="root reads what is mode 0")
def test_a_log_of_mode_0_is_in_the_report_beside_the_others(golden: Path, tmp_path: Path) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    path = min((directory / "basic-0").glob("*.log"))
    path.chmod(0)
    outcome = app.clean(dataclasses.replace(request, report=tmp_path / "report.json"), engine=in_process)
    assert {result.topic: result.status for result in outcome.results} == {
        "basic": "failed",
        "tombstones": "cleaned",
    }
    report = json.loads((tmp_path / "report.json").read_text())
    for moment in ("sha256_before", "sha256_after"):
        assert report[moment][str(directory / "basic-0")][path.name] == {"error": "Permission denied"}


def test_a_directory_that_cannot_be_listed_is_named_with_its_error(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    entries, listed = files.entries, list[Path]()

    def refusing(directory: Path) -> list[files.Entry]:
        listed.append(Path(directory))
        if listed.count(staged.partition) > 1:
            raise OSError(errno.EIO, "Input/output error", str(directory))
        return entries(directory)

    audited = fingerprints([staged.partition, tmp_path / "nowhere"])
    assert audited == {str(staged.partition): sha256(staged.partition), str(tmp_path / "nowhere"): {}}
    monkeypatch.setattr(files, "entries", refusing)
    fingerprints([staged.partition])
    assert fingerprints([staged.partition]) == {str(staged.partition): {".": {"error": "Input/output error"}}}


class FullDisk:
    """The disk that the report goes to takes a part of it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __call__(self, operation: files.Operation) -> None:
        verb, path, _ = operation
        if path == self._path and verb not in ("create", "unlink"):
            raise OSError(errno.ENOSPC, "No space left on device", path)


def test_a_report_that_cannot_be_written_loses_no_result(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    path = tmp_path / "report.json"
    with files.observe(FullDisk(path)):
        outcome = staged.clean(report=path)
    assert outcome.results[0].status == "cleaned" and staged.checkpoint() is not None
    assert outcome.report_error == f"--report {path}: No space left on device"
    assert not path.exists(), "half a report is none, and stands in the way of the next run's"


@pytest.mark.parametrize("json_", [False, True])
def test_the_command_shows_the_results_when_the_report_cannot_be_written(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], json_: bool
) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    path = tmp_path / "report.json"
    settings = [f"--config={setting}" for setting in staged.request.config]
    flags = ["--in-place", "--no-spark", f"--topic={staged.case.topic}", f"--report={path}"]
    with files.observe(FullDisk(path)):
        status = run(["clean", str(staged.directory), *flags, *settings, *(["--json"] if json_ else [])])
    out, err = capsys.readouterr()
    assert status == 1
    assert f"the audit was not written: --report {path}: No space left on device" in err
    if json_:
        document = json.loads(out)
        assert document["logs"][0]["status"] == "cleaned" and "No space" in document["report_error"]
    else:
        assert "basic-0" in out and "cleaned" in out


def test_a_run_that_fails_as_a_whole_is_in_the_report(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = sha256(staged.partition)

    def no_java(request: app.CleanRequest, progress: object) -> Engine:
        raise EngineError("Java was not found")

    with pytest.raises(EngineError) as raised:
        app.clean(staged.asking(report=tmp_path / "report.json"), engine=no_java)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["logs"], report["error"]) == ([], str(raised.value))
    assert report["sha256_before"] == report["sha256_after"] == {str(staged.partition): before}
