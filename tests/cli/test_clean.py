"""`siltstone clean`: its JSON, its table, its exit status, its errors."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.cli.main import run
from siltstone.commands import clean as app
from siltstone.commands import engines
from siltstone.compaction.engine import InProcessEngine
from siltstone.log.segments import list_segments
from tests.support.golden_sets import read_checkpoint
from tests.support.operator.staged import (
    SMALL_WAVES,
    Staged,
    in_process,
    is_root,
    listing,
    log_bytes,
    names_in,
    stage,
    stage_several,
)

LOG_FIELDS = {
    "topic": str,
    "partition": int,
    "first_dirty_offset": int,
    "cleaned_end_offset": int,
    "bytes_before": int,
    "bytes_after": int,
    "records_before": int,
    "records_after": int,
    "removed": dict,
    "segments_before": int,
    "segments_after": int,
    "seconds": float,
    "status": str,
    "reason": str,
}
REMOVED = {"superseded", "tombstones", "aborted", "keyless", "markers", "expired"}


@pytest.fixture(autouse=True)
def without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are cleaned in this process where a test asks for no engine."""
    monkeypatch.setattr(app.clean, "__kwdefaults__", {**app.clean.__kwdefaults__, "engine": in_process})


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic", tmp_path / "data")


def command(staged: Staged, *flags: str | Path) -> list[str]:
    """`clean DIR --topic T --config … --now-ms N FLAGS`."""
    settings = [part for setting in staged.request.config for part in ("--config", setting)]
    fixed = ["clean", str(staged.directory), "--topic", staged.case.topic, *settings]
    return [*fixed, "--now-ms", str(staged.request.now_ms), *map(str, flags)]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The one JSON document that is all of standard output; standard error is silent."""
    shown = capsys.readouterr()
    assert shown.err == ""
    report: dict[str, Any] = json.loads(shown.out)
    return report


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, *words: str) -> None:
    assert run(arguments) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("siltstone: ") and shown.err.count("\n") == 1, shown.err
    for word in words:
        assert word in shown.err


def test_the_document_has_every_field_with_its_type(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    segments = list_segments(staged.partition)
    assert run(command(staged, "--in-place", "--json")) == 0
    report = document(capsys)
    (log,) = report["logs"]
    for name, kind in LOG_FIELDS.items():
        assert type(log[name]) is kind, name
    assert set(log["removed"]) == REMOVED
    after = list_segments(staged.partition)
    round_ = staged.case.rounds[0]
    assert (log["topic"], log["partition"]) == ("basic", 0)
    assert (log["status"], log["reason"]) == ("cleaned", "")
    assert log["first_dirty_offset"] == 0
    assert log["cleaned_end_offset"] == segments[-1].base_offset == staged.checkpoint()
    assert log["bytes_before"] == sum(segment.size for segment in segments)
    assert log["bytes_after"] == sum(segment.size for segment in after)
    assert log["records_before"] == round_.raw["records_before"]
    assert log["records_after"] == round_.raw["records_after"]
    assert log["records_before"] - log["records_after"] == sum(log["removed"].values())
    assert (log["segments_before"], log["segments_after"]) == (len(segments), len(after))
    assert log["seconds"] > 0
    assert report["kept_originals"] is None and report["dry_run"] is False and report["run"]


IN_WAVES = ["--max-extra-bytes", str(SMALL_WAVES)]


@pytest.mark.parametrize(
    ("name", "flags", "status", "reason", "code"),
    [
        ("basic", [], "cleaned", "", 0),
        ("delete_records_delete", [], "skipped", "cleanup.policy=delete", 0),
        ("keyless", [], "skipped", "--drop-keyless", 0),
        ("keyless", ["--drop-keyless"], "cleaned", "", 0),
        ("txn", [], "cleaned", "", 0),
        ("basic", ["--config", "min.cleanable.dirty.ratio=1"], "not_eligible", "--force", 0),
        ("basic", ["--config", "min.cleanable.dirty.ratio=1", "--force"], "cleaned", "", 0),
        ("basic", ["--config", "remote.storage.enable=true"], "skipped", "remote.storage.enable", 0),
        ("basic", ["--stop-after", "0"], "cleaned", "", 0),
        ("basic_zipf_ts", ["--stop-after", "0", *IN_WAVES], "skipped", "--stop-after with 1 of 6", 0),
        ("basic", ["--max-extra-bytes", "10"], "failed", "--max-extra-bytes", 1),
    ],
)
def test_each_outcome_has_its_status_reason_and_exit_status(
    golden: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    flags: list[str],
    status: str,
    reason: str,
    code: int,
) -> None:
    staged = stage(golden, name, tmp_path / "data")
    assert run(command(staged, "--in-place", "--json", *flags)) == code
    (log,) = document(capsys)["logs"]
    assert log["status"] == status
    assert reason in log["reason"] and bool(reason) == bool(log["reason"])


def test_a_second_cleaning_has_nothing_to_do(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(staged, "--in-place", "--json")) == 0
    document(capsys)
    before = listing(staged.directory)
    assert run(command(staged, "--in-place", "--json", "--force")) == 0
    (log,) = document(capsys)["logs"]
    assert log["status"] == "nothing_to_do"
    assert listing(staged.directory) == before


def test_the_table_has_a_row_for_each_log(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(staged, "--in-place", "--keep-originals", tmp_path / "keep")) == 0
    shown = capsys.readouterr().out
    for word in ("basic-0", "cleaned", "532 → 210", "322", "superseded", "siltstone undo"):
        assert word in shown


def test_the_table_says_why_a_log_is_skipped(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staged = stage(golden, "keyless", tmp_path / "data")
    (staged.directory / "gone-0.ec64a4b9f92a49eb8e376119616edc43-delete").mkdir()
    assert run(command(staged, "--in-place", "-v")) == 0
    shown = capsys.readouterr().out
    assert "skipped: keyless-0: has 202 records without a key" in shown
    assert "passed over" in shown and "-delete" in shown


def test_one_partition_directory_can_be_cleaned(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoints are its parent's; it needs no --topic."""
    arguments = ["clean", str(staged.partition), "--in-place", "--json", "--config", "cleanup.policy=compact"]
    assert run([*arguments, "--config", "min.cleanable.dirty.ratio=0"]) == 0
    assert document(capsys)["logs"][0]["status"] == "cleaned"
    assert ("basic", 0) in read_checkpoint(staged.directory / "cleaner-offset-checkpoint")


def test_settings_may_come_from_a_file(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    arguments = ["clean", str(directory), "--in-place", "--json", "--now-ms", str(request.now_ms)]
    assert run([*arguments, "--all-topics", "--config-file", str(request.config_file)]) == 0
    assert {log["topic"]: log["status"] for log in document(capsys)["logs"]} == {
        "basic": "cleaned",
        "tombstones": "cleaned",
    }


@pytest.mark.parametrize("locked_before", [True, False])
def test_a_dry_run_changes_nothing_and_says_the_same(
    staged: Staged, capsys: pytest.CaptureFixture[str], locked_before: bool
) -> None:
    if not locked_before:
        (staged.directory / ".lock").unlink()
    names, before = names_in(staged.directory.parent), listing(staged.directory)
    times = staged.directory.stat().st_mtime_ns
    operations: list[files.Operation] = []
    with files.observe(operations.append):
        assert run(command(staged, "--dry-run", "--json")) == 0
    assert operations == []
    planned = document(capsys)
    assert names_in(staged.directory.parent) == names
    assert staged.directory.stat().st_mtime_ns == times
    assert listing(staged.directory) == before
    assert run(command(staged, "--in-place", "--json")) == 0
    cleaned = document(capsys)
    assert planned["dry_run"] is True
    apart = {"seconds"}
    for a, b in zip(planned["logs"], cleaned["logs"], strict=True):
        assert {k: v for k, v in a.items() if k not in apart} == {
            k: v for k, v in b.items() if k not in apart
        }


def test_a_copy_is_whole_and_the_source_unchanged(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = stage_several(golden, ["basic", "tombstones", "txn"], tmp_path)
    in_place = stage(golden, "basic", tmp_path / "in-place")
    in_place.clean_one()
    names, before = names_in(directory), listing(directory)
    settings = [part for setting in in_place.request.config for part in ("--config", setting)]
    arguments = ["clean", str(directory), "--out", str(tmp_path / "new"), "--topic", "basic", *settings]
    assert run([*arguments, "--now-ms", str(in_place.request.now_ms), "--json"]) == 0
    assert document(capsys)["logs"][0]["status"] == "cleaned"
    assert names_in(directory) == names
    assert listing(directory) == before
    copied = listing(tmp_path / "new")
    others = {name for name in before if not name.startswith("basic-0/") and name != ".lock"}
    assert {name: copied[name] for name in others} == {name: before[name] for name in others}
    assert set(copied) - others == {
        "cleaner-offset-checkpoint",
        *(name for name in listing(in_place.directory) if name.startswith("basic-0/")),
    }
    for name, facts in listing(in_place.directory).items():
        if name.startswith("basic-0/"):
            assert copied[name] == facts, name
    assert [path.name for path in tmp_path.glob("new*")] == ["new"]


def test_what_is_no_log_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing of Kafka's")
    refused(capsys, ["clean", str(tmp_path), "--in-place"], 1, str(tmp_path), "not a Kafka log directory")
    refused(capsys, ["clean", str(tmp_path / "nowhere"), "--in-place"], 1, "no such directory")
    refused(capsys, ["clean", str(tmp_path / "notes.txt"), "--in-place"], 1, "it is a file")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_unclean_directory_is_refused_and_stays_as_it_is(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    (staged.directory / ".kafka_cleanshutdown").unlink()
    before = listing(staged.directory)
    refused(capsys, command(staged, "--in-place"), 1, ".kafka_cleanshutdown", "start the broker")
    assert listing(staged.directory) == before


def test_a_directory_that_is_locked_is_refused(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR); "
        "fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(staged.directory / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        refused(capsys, command(staged, "--in-place"), 1, ".lock", "stop the broker")
        holder.communicate()


def test_a_log_with_a_corrupt_batch_is_uncleanable_and_stays_as_it_is(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(list_segments(staged.partition)[1].path)
    data = bytearray(path.read_bytes())
    data[100] ^= 0x40
    path.write_bytes(data)
    before = listing(staged.directory)
    assert run(command(staged, "--in-place", "--json")) == 1
    (log,) = document(capsys)["logs"]
    assert (log["status"], log["reason"]) == ("uncleanable", f"{path}: byte 0: checksum does not match")
    assert listing(staged.directory) == before


def test_a_log_with_a_truncated_batch_is_uncleanable_and_stays_as_it_is(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(list_segments(staged.partition)[1].path)
    path.write_bytes(path.read_bytes()[:-1])
    before = listing(staged.directory)
    assert run(command(staged, "--in-place", "--json")) == 1
    (log,) = document(capsys)["logs"]
    assert log["status"] == "uncleanable" and str(path) in log["reason"]
    assert listing(staged.directory) == before


def test_an_unreadable_directory_is_refused(
    staged: Staged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = str(staged.directory / "meta.properties")
    read = files.read_bytes

    def refusing(path: str | os.PathLike[str], limit: int = 1 << 30) -> bytes:
        if os.fspath(path) == checkpoint:
            raise PermissionError(errno.EACCES, "Permission denied", checkpoint)
        return read(path, limit)

    monkeypatch.setattr(files, "read_bytes", refusing)
    refused(capsys, command(staged, "--in-place"), 1, f"{checkpoint}: Permission denied")


def test_a_lock_that_may_not_be_opened_is_refused(
    staged: Staged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the directory of another user."""
    lock = staged.directory / ".lock"
    if is_root():
        opened = os.open

        def refusing(path: Any, *others: Any, **named: Any) -> int:
            if os.path.basename(os.fspath(path)) == lock.name:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return opened(path, *others, **named)

        monkeypatch.setattr(os, "open", refusing)
    else:
        lock.chmod(0)
    refused(capsys, command(staged, "--in-place"), 1, f"{lock}: Permission denied")


def test_a_full_disk_fails_the_log_and_changes_nothing(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(staged.directory)

    def full(operation: files.Operation) -> None:
        if operation[0] == "write":
            raise OSError(errno.ENOSPC, "No space left on device", operation[1])

    with files.observe(full):
        assert run(command(staged, "--in-place", "--json")) == 1
    (log,) = document(capsys)["logs"]
    assert log["status"] == "failed" and log["reason"].endswith(": No space left on device")
    assert listing(staged.directory) == before


def test_a_malformed_high_watermark_checkpoint_makes_a_log_uncleanable(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    path = staged.directory / "replication-offset-checkpoint"
    path.write_text("0\n5\nbasic 0 1\n")
    assert run(command(staged, "--in-place", "--json")) == 1
    (log,) = document(capsys)["logs"]
    assert log["status"] == "uncleanable" and str(path) in log["reason"]


def test_wrong_settings_are_refused(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, command(staged, "--in-place", "--config", "cleanup.policy=tidy"), 2, "tidy", "compact")
    lines = tmp_path / "topics.config"
    lines.write_text("basic:cleanup.policy=compact\nbasic segment.bytes=3\n")
    refused(capsys, command(staged, "--in-place", "--config-file", lines), 2, f"{lines}:2")
    refused(
        capsys,
        command(staged, "--in-place", "--config-file", tmp_path / "none"),
        2,
        "--config-file",
        "No such file",
    )


def test_the_lock_is_free_afterwards(staged: Staged) -> None:
    assert run(command(staged, "--in-place", "--json")) == 0
    with (staged.directory / ".lock").open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


SPARK = ["--engine", "spark"]


@pytest.mark.parametrize(
    ("environment", "flags", "words"),
    [
        (
            {"PATH": "/nonexistent", "JAVA_HOME": ""},
            SPARK,
            ["Java is missing", "Java 17", "--engine process"],
        ),
        pytest.param(
            {"JAVA_HOME": "/nonexistent"}, SPARK, ["Java is missing", "JAVA_HOME"], marks=pytest.mark.long
        ),
        pytest.param(
            {},
            ["--master", "nonsense://nowhere"],
            ["Spark did not start on nonsense://nowhere"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_without_java_or_spark_the_error_is_one_line_and_nothing_changes(
    staged: Staged, environment: dict[str, str], flags: list[str], words: list[str]
) -> None:
    """In a process of its own, with the real engine."""
    before = listing(staged.directory)
    completed = subprocess.run(
        [str(Path(sys.executable).parent / "siltstone"), *command(staged, "--in-place", "--json", *flags)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (completed.returncode, completed.stdout) == (1, ""), completed.stderr
    assert completed.stderr.startswith("siltstone: ") and completed.stderr.count("\n") == 1, completed.stderr
    for word in words:
        assert word in completed.stderr
    assert listing(staged.directory) == before


def by_size(monkeypatch: pytest.MonkeyPatch, spark_engine: Callable[..., object]) -> None:
    """Let the command choose its engine, as it does for users; ``spark_engine`` stands in for Spark."""
    monkeypatch.setattr(app.clean, "__kwdefaults__", {**app.clean.__kwdefaults__, "engine": None})
    monkeypatch.setattr(app, "spark_engine", spark_engine)
    monkeypatch.setattr(engines, "has_session", lambda: False)


@pytest.mark.parametrize("flags", [[], ["--no-spark"], ["--engine", "process"]])
def test_small_logs_need_no_java_and_the_report_says_what_cleaned(
    staged: Staged, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_engine(*_: object) -> None:
        raise AssertionError("an engine was asked for")

    by_size(monkeypatch, no_engine)
    assert run(command(staged, "--in-place", *flags, "--json")) == 0
    report = document(capsys)
    assert (report["engine"], report["logs"][0]["status"]) == ("in-process", "cleaned")
    assert run(command(staged, "--in-place", "--json")) == 0
    assert document(capsys)["engine"] is None


@pytest.mark.parametrize("flags", [SPARK, ["--master", "local[2]"]])
def test_spark_is_used_where_it_is_asked_for(
    staged: Staged, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[app.CleanRequest] = []
    by_size(monkeypatch, lambda request, progress: requests.append(request) or InProcessEngine())
    assert run(command(staged, "--dry-run", *flags, "--json")) == 0
    assert len(requests) == 1
    monkeypatch.setattr(engines, "SPARK_BYTES", 1)
    assert run(command(staged, "--dry-run", "--json")) == 0
    assert len(requests) == 2
    assert run(command(staged, "--dry-run", *flags, "--no-spark")) == 2
    assert run(command(staged, "--dry-run", "--engine", "flink")) == 2 and len(requests) == 2


def test_all_topics_are_cleaned_in_place_only_if_that_is_asked_for(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    before = listing(directory)
    arguments = ["clean", str(directory), "--in-place", "--now-ms", str(request.now_ms)]
    arguments += ["--config-file", str(request.config_file)]
    assert run(arguments) == 2
    assert "2 logs of 2 topics" in capsys.readouterr().err and listing(directory) == before
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    beside = sorted(tmp_path.rglob("*"))
    for answer, status in (("", 1), ("n", 1), ("yess", 1), ("Y", 0)):
        monkeypatch.setattr(sys.stdin, "readline", lambda answer=answer: f"{answer}\n")
        assert run([*arguments, "--keep-originals", str(tmp_path / "keep")]) == status, answer
        shown = capsys.readouterr()
        assert "basic: 1 log" in shown.err and "clean 2 logs of 2 topics" in shown.err
        assert (listing(directory) == before) == (status == 1) == (sorted(tmp_path.rglob("*")) == beside)
        assert shown.err.endswith("siltstone: nothing was changed\n") == (status == 1)
    # The question is about the logs that would change: none now, unless the active segments are rolled.
    monkeypatch.setattr(sys.stdin, "readline", lambda: "n\n")
    assert run(arguments) == 0
    assert "[y/N]" not in capsys.readouterr().err
    assert run([*arguments, "--roll"]) == 1
    assert "clean 2 logs of 2 topics" in capsys.readouterr().err


def test_the_question_counts_only_logs_that_would_change(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    app.clean(replace(request, topics=["basic"]), engine=in_process)
    arguments = ["clean", str(directory), "--in-place", "--now-ms", str(request.now_ms)]
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", lambda: "n\n")
    assert run([*arguments, "--config-file", str(request.config_file)]) == 1
    shown = capsys.readouterr().err
    assert "clean 1 log of 1 topic" in shown and "(1 of 2 compacted logs need no cleaning)" in shown
    assert "tombstones: 1 log" in shown and "basic" not in shown


def test_the_closing_line_names_the_copy(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(staged, "--out", tmp_path / "first")) == 0
    assert capsys.readouterr().out.endswith(f"; the cleaned copy is {tmp_path / 'first'}\n")
    again = command(staged, "--out", tmp_path / "second", "--config", "cleanup.policy=delete")
    assert run(again) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown.startswith("none of 1 log cleaned, ")
    assert shown.endswith(f"; the copy, with all logs as they were, is {tmp_path / 'second'}")
    assert run(command(staged, "--out", tmp_path / "third", "--json")) == 0
    assert document(capsys)["out"] == str(tmp_path / "third")
    assert run(command(staged, "--out", tmp_path / "fourth", "--json", "--dry-run")) == 0
    assert document(capsys)["out"] is None and not (tmp_path / "fourth").exists()


def test_the_active_segment_is_rolled_on_request(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(staged, "--in-place", "--json")) == 0
    (first,) = document(capsys)["logs"]
    assert run(command(staged, "--in-place", "--roll", "--json")) == 0
    (second,) = document(capsys)["logs"]
    assert second["status"] == "cleaned" and second["cleaned_end_offset"] > first["cleaned_end_offset"]
    assert run(command(staged, "--in-place", "--roll", "--json", "--force")) == 0
    assert document(capsys)["logs"][0]["status"] == "nothing_to_do"
    for flags in (["--dry-run"], ["--out", "new"]):
        assert run(command(staged, *flags, "--roll")) == 2


def test_cleaned_logs_are_the_same_through_the_command_as_through_the_package(
    staged: Staged, golden: Path, tmp_path: Path
) -> None:
    assert run(command(staged, "--in-place", "--json")) == 0
    other = stage(golden, "basic", tmp_path / "other")
    other.clean_one()
    assert log_bytes(staged.partition) == log_bytes(other.partition)
