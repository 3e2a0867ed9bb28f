"""Rounds with their own policy: `clean` deletes after cleaning what Kafka's cleaner deleted after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from siltstone.base.config import Config, parse_assignments
from siltstone.commands import clean as app
from siltstone.compaction.inplace.expiry import count_records
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.log.segments import list_segments
from tests.support import golden_sets
from tests.support.cleaning.logs import tree
from tests.support.golden import rounds
from tests.support.golden.rounds import WAYS, clean_round, compare_file, mtimes_after
from tests.support.operator.staged import Listing, listing, stage
from tests.support.thoroughness import few, in_turn

AFTER_DELETION = """
    compact_delete_bytes compact_delete_ms compact_then_delete_ms2
    delete_records_compact delete_records_compact2
""".split()
EMPTIED_SEGMENT = "compact_then_delete_ms"
"""Kafka's retention stops before its first segment, which cleaning had emptied."""
# In every run: what goes by its size, by the log's start, and by its time.
SETS = few([(name,) for name in (*AFTER_DELETION, EMPTIED_SEGMENT)], 0, 3, 5)


def config_of(assignments: Mapping[str, str]) -> Config:
    """The round's settings, policy and all."""
    return Config(parse_assignments([f"{name}={value}" for name, value in assignments.items()], "case.json"))


@pytest.fixture(autouse=True)
def own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean rounds by the policy that they really had."""
    monkeypatch.setattr(rounds, "config_of", config_of)


def clean(
    case: golden_sets.Case, round_: golden_sets.Round, directory: Path, way: str, **settings: str
) -> tuple[LogResult, dict[str, bytes]]:
    """The round cleaned in place; its result, and the partition's files."""
    golden_sets.stage_round(case, round_, directory)
    assert round_.now_ms is not None
    result = clean_round(directory, {**round_.command_config, **settings}, round_.now_ms, way, force=True)
    assert result.status == CLEANED, result.reason
    return result, tree(golden_sets.partition_directory(case, directory))


def check_result(result: LogResult, before: Path, partition: Path) -> None:
    """Counts and sizes are those of the directories."""
    old, new = list_segments(before), list_segments(partition)
    assert (result.segments_before, result.segments_after) == (len(old), len(new))
    assert result.bytes_before == sum(segment.size for segment in old)
    assert result.bytes_after == sum(segment.size for segment in new)
    assert result.records_before == sum(count_records(segment) or 0 for segment in old)
    assert result.records_after == sum(count_records(segment) or 0 for segment in new)
    assert result.records_before - result.records_after == result.discarded.total()


def segment_files(directory: Mapping[str, bytes]) -> set[str]:
    """Names of logs and their indexes. Snapshots are compared where a segment of theirs is there."""
    logs = {name[:20] for name in directory if name.endswith(".log")}
    return {name for name in directory if name[:20] in logs}


@pytest.mark.parametrize(("name", "way"), in_turn(AFTER_DELETION, WAYS, "compact_delete_ms"))
def test_remaining_segments_are_kafkas(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    for round_ in case.rounds:
        directory = tmp_path / str(round_.number)
        result, our_files = clean(case, round_, directory, way)
        kafkas_files, partition = tree(round_.after), golden_sets.partition_directory(case, directory)
        check_result(result, round_.before, partition)
        assert {name for name in our_files if name.endswith(".log")} == {
            n for n in kafkas_files if n.endswith(".log")
        }
        for file in segment_files(kafkas_files):
            compare_file(file, our_files, kafkas_files, int(round_.config["index.interval.bytes"]))
            if file.endswith(".log"):
                assert (partition / file).stat().st_mtime_ns // 1_000_000 == mtimes_after(round_)[file]
        assert not [file for file in our_files if file.endswith(".deleted")]
        assert not [
            file for file in our_files if file.endswith(".snapshot") and file < min(segment_files(our_files))
        ]


@pytest.mark.parametrize("way", WAYS)
def test_an_emptied_segment_holds_nothing_back(golden: Path, tmp_path: Path, way: str) -> None:
    case = golden_sets.load_case(golden, EMPTIED_SEGMENT)
    (round_,) = case.rounds
    result, our_files = clean(case, round_, tmp_path / "log", way)
    kafkas_files = tree(round_.after)
    assert kafkas_files[f"{0:020d}.log"] == b"" and len(kafkas_files[f"{173:020d}.log"]) == 141
    assert {int(name[:20]) for name in our_files if name.endswith(".log")} == {336, 514, 665}
    for name in segment_files(our_files):
        compare_file(name, our_files, kafkas_files, int(round_.config["index.interval.bytes"]))
    check_result(result, round_.before, golden_sets.partition_directory(case, tmp_path / "log"))
    assert result.discarded.expired == 1
    assert (
        result.notes[-1]
        == "retention: 2 segments from offset 0 (141 bytes): older than retention.ms=86400000"
    )


@pytest.mark.parametrize("name", SETS)
def test_a_dry_run_reports_what_a_run_does(golden: Path, tmp_path: Path, name: str) -> None:
    staged = stage(golden, name, tmp_path / "data")
    before = listing(staged.directory)
    predicted = staged.clean_one(dry_run=True, in_place=False, force=True)
    assert listing(staged.directory) == before
    actual = staged.clean_one(force=True)
    for result in (predicted, actual):
        result.seconds = 0.0
    assert predicted.to_json() == actual.to_json()


@pytest.mark.parametrize("name", SETS)
def test_a_copy_has_the_files_of_a_run_in_place(golden: Path, tmp_path: Path, name: str) -> None:
    staged = stage(golden, name, tmp_path / "data")
    before = listing(staged.directory)
    staged.clean(in_place=False, out=tmp_path / "copy", force=True)
    assert listing(staged.directory) == before
    staged.clean(force=True)
    assert tree(tmp_path / "copy" / staged.partition.name) == tree(staged.partition)


@pytest.mark.parametrize("name", SETS)
def test_undo_brings_back_what_was_there_before_the_run(golden: Path, tmp_path: Path, name: str) -> None:
    staged = stage(golden, name, tmp_path / "data")
    before = listing(staged.directory)
    originals = staged.clean(force=True, keep_originals=tmp_path / "keep").kept
    assert originals is not None
    restored = app.undo(originals)[str(staged.partition)]
    assert len(restored) == len(list_segments(staged.partition)) - 1
    assert listing(staged.partition) == listing_of(before, staged.partition)
    assert staged.checkpoint() is None
    assert app.undo(originals) == {str(staged.partition): []}


def listing_of(directory: Listing, partition: Path) -> Listing:
    """The part of a directory's listing that is the partition's."""
    ahead = f"{partition.name}/"
    return {name.removeprefix(ahead): facts for name, facts in directory.items() if name.startswith(ahead)}
