"""``siltstone verify``: a cleaning by this program, held to a copy, to kept originals, and spoiled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from siltstone.commands import clean as app
from tests.support.command_line import Command, tree
from tests.support.operator.staged import Staged, stage


@pytest.fixture
def pair(golden: Path, tmp_path: Path) -> tuple[Staged, Path]:
    """A log directory and a copy of it (hard links) from before it is cleaned."""
    staged = stage(golden, "tombstones", tmp_path / "logs", 1)
    shutil.copytree(staged.directory, tmp_path / "before", copy_function=lambda a, b: Path(b).hardlink_to(a))
    return staged, tmp_path / "before"


def _flags(staged: Staged) -> list[str]:
    config = [part for each in staged.request.config for part in ("--config", each)]
    return ["--topic", staged.case.topic, *config, "--now-ms", str(staged.request.now_ms), "--no-spark"]


def test_a_cleaning_passes_and_the_counts_are_the_reports(
    siltstone: Command, pair: tuple[Staged, Path]
) -> None:
    staged, before = pair
    result = staged.clean_one()
    looked = tree(staged.directory, before)
    done = siltstone("verify", before, staged.directory, *_flags(staged), "--json")
    assert done.status == 0, done.document
    (log,) = done.document["logs"]
    assert (log["status"], log["problems"]) == ("ok", [])
    assert (log["records_before"], log["records_after"]) == (result.records_before, result.records_after)
    assert log["removed"]["superseded"] == result.discarded.superseded > 0
    assert log["removed"]["tombstones"] == result.discarded.tombstones > 0
    assert tree(staged.directory, before) == looked, "looking changed something"


def test_kept_originals_are_a_before(siltstone: Command, pair: tuple[Staged, Path], tmp_path: Path) -> None:
    staged, _ = pair
    report = staged.clean(keep_originals=tmp_path / "keep")
    assert report.kept is not None
    done = siltstone("verify", report.kept, staged.directory, *_flags(staged), "--json")
    assert done.status == 0, done.document
    assert done.document["logs"][0]["records_before"] == report.results[0].records_before


def test_a_cleaned_copy_passes(siltstone: Command, pair: tuple[Staged, Path], tmp_path: Path) -> None:
    staged, _ = pair
    staged.clean_one(in_place=False, out=tmp_path / "copy")
    assert siltstone("verify", staged.directory, tmp_path / "copy", *_flags(staged)).status == 0


def test_one_partition_directory_will_do(siltstone: Command, pair: tuple[Staged, Path]) -> None:
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
    done = siltstone("verify", before, staged.directory, *_flags(staged))
    assert done.status == 1
    text = done.out.decode()
    assert "unreadable" in text and "checksum does not match" in text


def test_without_a_clock_and_settings_less_is_known_and_a_sound_result_still_passes(
    siltstone: Command, pair: tuple[Staged, Path]
) -> None:
    staged, before = pair
    staged.clean_one()
    done = siltstone("verify", before, staged.directory, "--no-spark", "--json")
    assert (done.status, json.loads(done.out)["status"]) == (0, "ok")


@pytest.mark.parametrize("flags", [("--high-watermark", "start"), ("--topic", "no-such-topic")])
def test_an_unknown_topic_or_word_is_refused(
    siltstone: Command, pair: tuple[Staged, Path], flags: tuple[str, str]
) -> None:
    staged, before = pair
    assert siltstone("verify", before, staged.directory, "--no-spark", *flags).status == 2


def test_before_and_after_must_be_two_directories(siltstone: Command, pair: tuple[Staged, Path]) -> None:
    staged, _ = pair
    done = siltstone("verify", staged.directory, staged.directory, "--no-spark")
    assert done.status == 2 and "one directory" in done.err


def test_the_whole_broker_by_its_own_settings(
    siltstone: Command, stopped_broker: tuple[Path, Path], tmp_path: Path
) -> None:
    from tests.support.operator.staged import in_process

    before = tmp_path / "before"
    shutil.copytree(stopped_broker[0], before, copy_function=shutil.copy2)
    request = app.CleanRequest(
        directories=list(stopped_broker), in_place=True, policy_from_metadata=True, force=True
    )
    report = app.clean(request, engine=in_process)
    assert any(each.status == "cleaned" for each in report.results)
    flags = ("--policy-from-metadata", "--no-spark", "--json")
    done = siltstone("verify", before, stopped_broker[0], *flags)
    problems = {log["topic"]: log["problems"] for log in done.document["logs"] if log["problems"]}
    assert done.status == 0, problems
