"""The golden data arrives as it was written: times, checkpoints, markers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_sets import (
    case_names,
    legacy_names,
    load_case,
    partition_directory,
    read_checkpoint,
    read_records,
    recovery_names,
    stage_round,
)


def test_all_sets_are_there(golden: Path) -> None:
    assert len(case_names(golden)) == 37
    assert len(recovery_names(golden)) == 17
    assert len(legacy_names(golden)) == 11


def test_file_times_and_sizes_are_the_listed_ones(golden: Path) -> None:
    for name in [*case_names(golden), *recovery_names(golden), *legacy_names(golden)]:
        for round_ in load_case(golden, name).rounds:
            for listed in round_.raw["listing_before"]:
                facts = (round_.before / listed["file"]).stat()
                assert facts.st_size == listed["size"], listed
                assert facts.st_mtime_ns // 1_000_000 == listed["mtime_ms"], listed


@pytest.mark.parametrize("name", ["delete_records_compact2", "legacy/v1_mixed", "recovery/us_3_swap"])
def test_a_staged_round_is_a_whole_log_directory(golden: Path, tmp_path: Path, name: str) -> None:
    case = load_case(golden, name)
    round_ = case.rounds[-1]
    staged = stage_round(case, round_, tmp_path / "data")
    partition = partition_directory(case, staged)
    assert {path.name: path.stat().st_mtime_ns for path in partition.iterdir()} == {
        path.name: path.stat().st_mtime_ns for path in round_.before.iterdir()
    }
    for checkpoint, offset in round_.checkpoints_before.items():
        expected = {} if offset is None else {(case.topic, case.partition): offset}
        assert read_checkpoint(staged / checkpoint) == expected
    assert (staged / ".kafka_cleanshutdown").exists() == round_.clean_shutdown
    assert "node.id=0" in (staged / "meta.properties").read_text().splitlines()
    assert (staged / ".lock").stat().st_size == 0


def test_records_can_be_read(golden: Path) -> None:
    round_ = load_case(golden, "basic").rounds[0]
    for path, count in [(round_.records_before, "records_before"), (round_.records_after, "records_after")]:
        assert sum(line["t"] == "rec" for line in read_records(path)) == round_.raw[count]


def test_files_of_the_stopped_broker_have_the_listed_sizes_and_times(
    stopped_broker: tuple[Path, Path], golden: Path
) -> None:
    listing = load_broker_listing(golden)
    for directory in stopped_broker:
        for listed in listing[directory.name]:
            facts = (directory / listed["file"]).stat()
            assert (facts.st_size, facts.st_mtime_ns // 1_000_000) == (listed["size"], listed["mtime_ms"])


def load_broker_listing(golden: Path) -> dict[str, list[dict[str, Any]]]:
    """listing_before of the whole broker, by log directory."""
    listing: dict[str, list[dict[str, Any]]] = json.loads(
        (golden / "whole_43" / "case.json").read_text(encoding="utf-8")
    )["listing_before"]
    return listing
