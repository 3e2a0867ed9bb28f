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


def config_of(given: Mapping[str, str]) -> Config:
    """The round's settings, policy and all."""
    return Config(parse_assignments([f"{name}={value}" for name, value in given.items()], "case.json"))


@pytest.fixture(autouse=True)
def own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean rounds by the policy that they really had."""
    monkeypatch.setattr(rounds, "config_of", config_of)


def clean(
    case: golden_sets.Case, round_: golden_sets.Round, directory: Path, way: str, **given: str
) -> tuple[LogResult, dict[str, bytes]]:
    """The round cleaned in place; its result, and the partition's files."""
    golden_sets.stage_round(case, round_, directory)
    assert round_.now_ms is not None
    result = clean_round(directory, {**round_.command_config, **given}, round_.now_ms, way, force=True)
    assert result.status == CLEANED, result.reason
    return result, tree(golden_sets.partition_directory(case, directory))


def check_result(result: LogResult, before: Path, partition: Path) -> None:
    """Counts and sizes are those of the directories."""
    old, new = list_segments(before), list_segments(partition)
    assert (result.segments_before, result.segments_after) == (len(old), len(new))
    assert result.bytes_before == sum(each.size for each in old)
    assert result.bytes_after == sum(each.size for each in new)
    assert result.records_before == sum(count_records(each) or 0 for each in old)
    assert result.records_after == sum(count_records(each) or 0 for each in new)
    assert result.records_before - result.records_after == result.discarded.total()


def segment_files(found: Mapping[str, bytes]) -> set[str]:
    """Names of logs and their indexes. Snapshots are compared where a segment of theirs is there."""
    logs = {name[:20] for name in found if name.endswith(".log")}
    return {name for name in found if name[:20] in logs}


@pytest.mark.parametrize(("name", "way"), in_turn(AFTER_DELETION, WAYS, "compact_delete_ms"))
def test_what_is_left_is_kafkas(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    for round_ in case.rounds:
        directory = tmp_path / str(round_.number)
        result, ours = clean(case, round_, directory, way)
        kafkas, partition = tree(round_.after), golden_sets.partition_directory(case, directory)
        check_result(result, round_.before, partition)
        assert {name for name in ours if name.endswith(".log")} == {n for n in kafkas if n.endswith(".log")}
        for file in segment_files(kafkas):
            compare_file(file, ours, kafkas, int(round_.config["index.interval.bytes"]))
            if file.endswith(".log"):
                assert (partition / file).stat().st_mtime_ns // 1_000_000 == mtimes_after(round_)[file]
        assert not [file for file in ours if file.endswith(".deleted")]
        assert not [file for file in ours if file.endswith(".snapshot") and file < min(segment_files(ours))]


@pytest.mark.parametrize("way", WAYS)
def test_an_emptied_segment_holds_nothing_back(golden: Path, tmp_path: Path, way: str) -> None:
    case = golden_sets.load_case(golden, EMPTIED_SEGMENT)
    (round_,) = case.rounds
    result, ours = clean(case, round_, tmp_path / "log", way)
    kafkas = tree(round_.after)
    assert kafkas[f"{0:020d}.log"] == b"" and len(kafkas[f"{173:020d}.log"]) == 141
    assert {int(name[:20]) for name in ours if name.endswith(".log")} == {336, 514, 665}
    for name in segment_files(ours):
        compare_file(name, ours, kafkas, int(round_.config["index.interval.bytes"]))
    check_result(result, round_.before, golden_sets.partition_directory(case, tmp_path / "log"))
    assert result.discarded.expired == 1
    assert (
        result.notes[-1]
        == "retention: 2 segments from offset 0 (141 bytes): older than retention.ms=86400000"
    )


@pytest.mark.parametrize("name", SETS)
def test_a_dry_run_says_the_same(golden: Path, tmp_path: Path, name: str) -> None:
    staged = stage(golden, name, tmp_path / "data")
    before = listing(staged.directory)
    said = staged.clean_one(dry_run=True, in_place=False, force=True)
    assert listing(staged.directory) == before
    done = staged.clean_one(force=True)
    for each in (said, done):
        each.seconds = 0.0
    assert said.to_json() == done.to_json()


@pytest.mark.parametrize("name", SETS)
def test_a_copy_is_what_it_is_in_place(golden: Path, tmp_path: Path, name: str) -> None:
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
    kept = staged.clean(force=True, keep_originals=tmp_path / "keep").kept
    assert kept is not None
    restored = app.undo(kept)[str(staged.partition)]
    assert len(restored) == len(list_segments(staged.partition)) - 1
    assert listing(staged.partition) == listing_of(before, staged.partition)
    assert staged.checkpoint() is None
    assert app.undo(kept) == {str(staged.partition): []}


def listing_of(found: Listing, partition: Path) -> Listing:
    """The part of a directory's listing that is the partition's."""
    ahead = f"{partition.name}/"
    return {name.removeprefix(ahead): facts for name, facts in found.items() if name.startswith(ahead)}
