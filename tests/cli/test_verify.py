"""``siltstone verify``: a cleaning by this program, held to a copy, to kept originals, and spoiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.commands import clean as app
from tests.support.command_line import Command, tree
from tests.support.operator.staged import Staged, in_process, stage, stage_several


@pytest.fixture
def pair(golden: Path, tmp_path: Path) -> tuple[Staged, Path]:
    """A log directory and a copy of it (hard links) from before it is cleaned."""
    staged = stage(golden, "tombstones", tmp_path / "logs", 1)
    shutil.copytree(staged.directory, tmp_path / "before", copy_function=lambda a, b: Path(b).hardlink_to(a))
    return staged, tmp_path / "before"


def _flags(staged: Staged) -> list[str]:
    config = [part for setting in staged.request.config for part in ("--config", setting)]
    return ["--topic", staged.case.topic, *config, "--now-ms", str(staged.request.now_ms), "--no-spark"]


def test_a_cleaning_passes_and_the_counts_are_the_reports(
    siltstone: Command, pair: tuple[Staged, Path]
) -> None:
    staged, before = pair
    result = staged.clean_one()
    looked = tree(staged.directory, before)
    completed = siltstone("verify", before, staged.directory, *_flags(staged), "--json")
    assert completed.status == 0, completed.document
    (log,) = completed.document["logs"]
    assert (log["status"], log["problems"]) == ("ok", [])
    assert (log["records_before"], log["records_after"]) == (result.records_before, result.records_after)
    assert log["removed"]["superseded"] == result.discarded.superseded > 0
    assert log["removed"]["tombstones"] == result.discarded.tombstones > 0
    assert tree(staged.directory, before) == looked, "looking changed something"


def test_kept_originals_are_a_before(siltstone: Command, pair: tuple[Staged, Path], tmp_path: Path) -> None:
    staged, _ = pair
    report = staged.clean(keep_originals=tmp_path / "keep")
    assert report.kept is not None
    completed = siltstone("verify", report.kept, staged.directory, *_flags(staged), "--json")
    assert completed.status == 0, completed.document
    assert completed.document["logs"][0]["records_before"] == report.results[0].records_before


def test_a_cleaned_copy_passes(siltstone: Command, pair: tuple[Staged, Path], tmp_path: Path) -> None:
    staged, _ = pair
    staged.clean_one(in_place=False, out=tmp_path / "copy")
    assert siltstone("verify", staged.directory, tmp_path / "copy", *_flags(staged)).status == 0


def test_one_partition_directory_can_be_verified(siltstone: Command, pair: tuple[Staged, Path]) -> None:
    staged, before = pair
    staged.clean_one()
    partition = staged.partition.name
    assert siltstone("verify", before / partition, staged.partition, *_flags(staged)).status == 0


def test_a_problem_is_shown_and_the_status_is_1(siltstone: Command, pair: tuple[Staged, Path]) -> None:
    staged, before = pair
    staged.clean_one()
    log = next(path for path in sorted(staged.partition.glob("*.log")) if path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    completed = siltstone("verify", before, staged.directory, *_flags(staged))
    assert completed.status == 1
    text = completed.out.decode()
    assert "unreadable" in text and "checksum does not match" in text


def test_without_a_clock_and_settings_less_is_known_and_a_sound_result_still_passes(
    siltstone: Command, pair: tuple[Staged, Path]
) -> None:
    staged, before = pair
    staged.clean_one()
    completed = siltstone("verify", before, staged.directory, "--no-spark", "--json")
    assert (completed.status, json.loads(completed.out)["status"]) == (0, "ok")


@pytest.mark.parametrize("flags", [("--high-watermark", "start"), ("--topic", "no-such-topic")])
def test_an_unknown_topic_or_word_is_refused(
    siltstone: Command, pair: tuple[Staged, Path], flags: tuple[str, str]
) -> None:
    staged, before = pair
    assert siltstone("verify", before, staged.directory, "--no-spark", *flags).status == 2


def test_before_and_after_must_be_two_directories(siltstone: Command, pair: tuple[Staged, Path]) -> None:
    staged, _ = pair
    completed = siltstone("verify", staged.directory, staged.directory, "--no-spark")
    assert completed.status == 2 and "one directory" in completed.err


def flag_each(flag: str, paths: Iterable[Path]) -> list[object]:
    return [part for path in paths for part in (flag, path)]


def test_all_log_directories_of_a_broker_by_its_own_settings(
    siltstone: Command, stopped_broker: tuple[Path, Path], tmp_path: Path
) -> None:
    """The second directory has no metadata: its topics' settings are in the first one."""
    before = [tmp_path / "before" / path.name for path in stopped_broker]
    for source, copy in zip(stopped_broker, before, strict=True):
        shutil.copytree(source, copy, copy_function=shutil.copy2)
    request = app.CleanRequest(
        directories=list(stopped_broker),
        in_place=True,
        policy_from_metadata=True,
        force=True,
        keep_originals=tmp_path / "keep",
    )
    report = app.clean(request, engine=in_process)
    assert report.kept is not None
    cleaned = [result for result in report.results if result.status == "cleaned"]
    assert {Path(result.directory).parent for result in cleaned} == set(stopped_broker)
    flags = (*flag_each("--after", stopped_broker), "--policy-from-metadata", "--no-spark", "--json")
    for sides in (reversed(before), [report.kept]):
        completed = siltstone("verify", *flag_each("--before", sides), *flags)
        problems = {log["topic"]: log["problems"] for log in completed.document["logs"] if log["problems"]}
        assert completed.status == 0, problems
        names = {f"{log['topic']}-{log['partition']}" for log in completed.document["logs"]}
        assert {str(result.topic_partition) for result in cleaned} <= names


def test_a_log_that_is_missing_in_all_directories_is_a_problem(
    siltstone: Command, stopped_broker: tuple[Path, Path], tmp_path: Path
) -> None:
    before = tmp_path / "before"
    shutil.copytree(stopped_broker[1], before, copy_function=shutil.copy2)
    (missing, *_) = (path.name for path in sorted(before.iterdir()) if any(path.glob("*.log")))
    shutil.rmtree(stopped_broker[1] / missing)
    completed = siltstone("verify", before, stopped_broker[1], "--no-spark", "--json")
    problem_counts = {
        f"{log['topic']}-{log['partition']}": log["found"] for log in completed.document["logs"]
    }
    assert completed.status == 1 and problem_counts[missing] == {"log_missing": 1}


@pytest.mark.parametrize(
    "sides",
    [
        [],
        ["0"],
        ["0", "1", "2"],
        ["0", "1", "--after", "2"],
        ["--before", "0"],
        ["--before", "0", "--after", "0"],
        ["--before", "0", "--before", "1", "--after", "2", "--after", "0"],
    ],
)
def test_sides_that_are_incomplete_or_one_directory_are_refused(
    siltstone: Command, tmp_path: Path, sides: list[str]
) -> None:
    for name in "012":
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text("version=1\n")
    named = [tmp_path / side if side.isdigit() else side for side in sides]
    refused = siltstone("verify", *named, "--no-spark")
    assert (refused.status, refused.out) == (2, b"") and refused.err.count("\n") == 1


def test_a_run_and_a_copy_of_one_log_are_refused_as_before(
    siltstone: Command, pair: tuple[Staged, Path], tmp_path: Path
) -> None:
    staged, before = pair
    kept_originals = staged.clean(keep_originals=tmp_path / "keep").kept
    assert kept_originals is not None
    refused = siltstone(
        "verify",
        *flag_each("--before", [before, kept_originals]),
        "--after",
        staged.directory,
        *_flags(staged),
    )
    assert refused.status == 2 and "twice" in refused.err


def test_a_run_that_was_undone_is_called_so(siltstone: Command, golden: Path, tmp_path: Path) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    run = app.clean(replace(request, keep_originals=tmp_path / "keep"), engine=in_process).kept
    assert run is not None
    flags = ("--config-file", request.config_file, "--now-ms", request.now_ms)
    assert siltstone("undo", run, "--topic", "basic").status == 0
    half = siltstone("verify", run, directory, *flags)
    assert half.status == 0 and f"{run}: undone, and so not checked: basic-0" in half.err
    assert b"1 log checked, all ok" in half.out and b"basic-0" not in half.out
    assert siltstone("undo", run).status == 0
    completed = siltstone("verify", run, directory, *flags)
    assert (completed.status, completed.out, completed.err.count("\n")) == (2, b"", 1)
    assert f"{run}: the run was undone: AFTER has its originals" in completed.err


def test_a_directory_without_a_partner_is_one_line(
    siltstone: Command, golden: Path, tmp_path: Path, pair: tuple[Staged, Path]
) -> None:
    staged, before = pair
    several, _ = stage_several(golden, ["basic", "txn"], tmp_path / "several")
    for sides in ([before, several], [several, staged.directory]):
        completed = siltstone("verify", *sides)
        assert (completed.status, completed.out, completed.err.count("\n")) == (2, b"", 1), completed.err
        assert completed.err.startswith(
            f"siltstone: {sides[1]}: BEFORE has none of the logs of this directory"
        )
    more_after = ["--before", before, "--after", staged.directory, "--after", several]
    assert f"{several}: BEFORE has none" in siltstone("verify", *more_after).err
    more_before = ["--before", before, "--before", several, "--after", staged.directory]
    assert f"{several}: AFTER has none" in siltstone("verify", *more_before).err


def test_a_directory_may_be_named_for_its_metadata_or_for_other_logs(
    siltstone: Command, golden: Path, tmp_path: Path, pair: tuple[Staged, Path]
) -> None:
    staged, before = pair
    several, _ = stage_several(golden, ["basic", "txn"], tmp_path / "several")
    after = ["--after", staged.directory, "--after", several]
    assert siltstone("verify", "--before", before, *after, *_flags(staged)).status == 0  # --topic
    run = staged.clean(keep_originals=tmp_path / "keep").kept
    assert siltstone("verify", "--before", run, *after, *_flags(staged)[2:-1]).status == 2  # --config alone
    assert siltstone("verify", "--before", run, *after).status == 0


def test_logs_that_only_one_side_has_are_one_line(siltstone: Command, golden: Path, tmp_path: Path) -> None:
    directory, _ = stage_several(golden, ["basic", "tombstones", "txn"], tmp_path)
    shutil.copytree(directory, tmp_path / "after")
    for name in ("basic-0", "txn-0"):
        shutil.rmtree(tmp_path / "after" / name)
    completed = siltstone("verify", directory, tmp_path / "after")
    assert completed.status == 1
    about = [line for line in completed.lines if line.startswith(("log_missing", "basic-0: ", "txn-0: "))]
    assert about == ["log_missing: basic-0, txn-0: a log of BEFORE is not in AFTER"]
