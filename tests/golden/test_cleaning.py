"""Every cleaned round of the golden sets, run through the whole cleaner in place: the files are Kafka's.

Left out: transactions (left alone, tested here), and the rounds in which Kafka's key map filled up, where
ours goes on (+).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from siltstone.cleaner.cleaner import Cleaner, RunLimits
from siltstone.cleaner.destination import InPlace
from siltstone.cleaner.engine import InProcessEngine
from siltstone.cleaner.facts import Choices, LogState
from siltstone.cleaner.report import CLEANED, SKIPPED, LogResult
from siltstone.config import Config, parse_assignments
from siltstone.log.directory import LogDirectory
from tests import golden_sets
from tests.cleaner.logs import records_in, tree
from tests.golden.comparing import assert_same_log, is_compressed

KAFKA_STOPPED_EARLY = {
    ("map_full", 1),
    ("map_full", 2),
    ("map_full_default", 1),
    ("map_full_lz4", 1),
    ("map_full_lz4", 2),
}
"""Rounds whose checkpoint is below the first uncleanable offset: Kafka's map was full."""
DELETED_TOO = "compact,delete"
NAMES = """
    basic basic_zipf_ts codec_gzip codec_lz4 codec_mixed codec_snappy codec_zstd compact_delete_bytes
    compact_delete_ms compact_then_delete_ms compact_then_delete_ms2 delete_records_compact
    delete_records_compact2 grouping grouping_index_limit grouping_resize idempotent idempotent_gzip
    jcodec_gzip jcodec_lz4 jcodec_none jcodec_snappy jcodec_zstd keyless map_full map_full_default
    map_full_lz4 min_lag mixed mixed_logappend tombstones tombstones_long tombstones_zero tombstones_zstd
    topic_recompress
""".split()
TRANSACTIONS = ["txn", "txn_java", "txn_long_retention", "txn_lz4", "txn_open"]
ONLY_RETENTION = {"delete_records_delete", "retention_bytes", "retention_ms", "retention_ms_all"}
WAYS = {"whole": RunLimits(), "spread": RunLimits(whole_log_bytes=0)}


def _config(given: Mapping[str, str]) -> Config:
    """The round's settings with retention, which is not the cleaner's, left out of the policy."""
    text = {**given, "cleanup.policy": "compact"}
    return Config(parse_assignments([f"{name}={value}" for name, value in text.items()], "case.json"))


def _clean(where: Path, given: Mapping[str, str], now_ms: int, way: str) -> LogResult:
    with LogDirectory.open(where) as directory:
        ((name, partition),) = directory.partitions.items()
        state = LogState(where=name, path=partition, directory=directory, config=_config(given))
        cleaner = Cleaner(lambda: InProcessEngine(3), InPlace("run"), WAYS[way])
        (result,) = cleaner.run([state], Choices(now_ms=now_ms, drop_keyless=True))
    return result


def _listing(round_: golden_sets.Round) -> dict[str, int]:
    return {item["file"]: item["mtime_ms"] for item in round_.raw["listing_after"]}


def test_no_set_is_forgotten(golden: Path) -> None:
    assert {*NAMES, *TRANSACTIONS, *ONLY_RETENTION} == set(golden_sets.case_names(golden))


def _rounds(golden: Path, name: str) -> list[golden_sets.Round]:
    case = golden_sets.load_case(golden, name)
    return [r for r in case.rounds if r.cleaned and (name, r.number) not in KAFKA_STOPPED_EARLY]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_cleaned_files_are_kafkas(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    rounds = _rounds(golden, name)
    assert rounds
    for round_ in rounds:
        where = golden_sets.stage_round(case, round_, tmp_path / str(round_.number))
        before = tree(golden_sets.partition_directory(case, where))
        assert round_.now_ms is not None
        result = _clean(where, round_.command_config, round_.now_ms, way)
        assert result.status == CLEANED, result.reason
        after = golden_sets.read_checkpoint(where / "cleaner-offset-checkpoint")
        assert after[(case.topic, case.partition)] == round_.checkpoints_after["cleaner-offset-checkpoint"]
        _compare(case, round_, where, before)


def _compare(case: golden_sets.Case, round_: golden_sets.Round, where: Path, before: dict[str, bytes]) -> None:
    partition = golden_sets.partition_directory(case, where)
    ours, kafkas, times = tree(partition), tree(round_.after), _listing(round_)
    end = round_.checkpoints_after["cleaner-offset-checkpoint"]
    assert end is not None
    deleted = DELETED_TOO in round_.config["cleanup.policy"]
    names = {name for name in kafkas if name[:20].isdigit() and int(name[:20]) < end}
    mine = {name for name in ours if name[:20].isdigit() and int(name[:20]) < end}
    assert names - mine == set(), "Kafka has files that we have not"
    if deleted:
        lowest = min((int(name[:20]) for name in kafkas if name.endswith(".log")), default=end)
        mine = {name for name in mine if int(name[:20]) >= lowest}
    assert mine == names
    for name in sorted(names):
        _compare_file(name, ours, kafkas)
        if name.endswith((".log", ".snapshot")):
            assert (partition / name).stat().st_mtime_ns // 1_000_000 == times[name], name
    _nothing_else_moved(ours, before, end)


def _compare_file(name: str, ours: dict[str, bytes], kafkas: dict[str, bytes]) -> None:
    if name.endswith(".log"):
        assert_same_log(ours[name], kafkas[name], name)
    elif not is_compressed(kafkas[f"{name[:20]}.log"]) or name.endswith((".timeindex", ".snapshot")):
        assert ours[name] == kafkas[name], name


def _nothing_else_moved(ours: dict[str, bytes], before: dict[str, bytes], end: int) -> None:
    leftovers = [name for name in ours if name.endswith((".cleaned", ".swap", ".deleted")) or ".siltstone" in name]
    assert leftovers == []
    for name, data in before.items():
        if not name[:20].isdigit() or int(name[:20]) >= end:
            assert ours[name] == data, name


@pytest.mark.parametrize("name", sorted({name for name, _ in KAFKA_STOPPED_EARLY}))
@pytest.mark.parametrize("way", WAYS)
def test_where_kafkas_map_was_full_one_pass_is_enough(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    round_ = case.rounds[0]
    where = golden_sets.stage_round(case, round_, tmp_path / "log")
    assert round_.now_ms is not None
    result = _clean(where, round_.command_config, round_.now_ms, way)
    assert result.status == CLEANED, result.reason
    kafkas_end = round_.checkpoints_after["cleaner-offset-checkpoint"]
    assert kafkas_end is not None and result.cleaned_end_offset is not None
    assert result.cleaned_end_offset > kafkas_end
    partition = golden_sets.partition_directory(case, where)
    cleaned = [path for path in sorted(partition.glob("*.log")) if int(path.stem) < result.cleaned_end_offset]
    keys = [record.key for path in cleaned for record in records_in(path.read_bytes())]
    assert len(keys) == len(set(keys))
    first, last = result.first_dirty_offset, result.cleaned_end_offset
    dirty = {r["k"] for r in _raw_records(round_.records_before) if first <= r["offset"] < last}
    assert len(dirty) == result.distinct_dirty_keys


def _raw_records(path: Path) -> list[dict[str, object]]:
    with path.open(encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row["t"] == "rec"]


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_logs_with_transactions_are_left_alone(golden: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(golden, name)
    round_ = case.rounds[0]
    where = golden_sets.stage_round(case, round_, tmp_path / "log")
    _left_alone(where, round_.command_config, round_.now_ms or 0, "transactions")


def test_logs_of_the_old_formats_are_left_alone(golden: Path, tmp_path: Path) -> None:
    names = golden_sets.legacy_names(golden)
    assert names
    for name in names:
        case = golden_sets.load_case(golden, name)
        for round_ in case.rounds:
            where = golden_sets.stage_round(case, round_, tmp_path / name.replace("/", "-") / str(round_.number))
            _left_alone(where, {}, round_.now_ms or 1 << 41, "message sets")


def _left_alone(where: Path, given: Mapping[str, str], now_ms: int, reason: str) -> None:
    before = tree(where)
    with LogDirectory.open(where) as directory:
        ((name, partition),) = directory.partitions.items()
        state = LogState(where=name, path=partition, directory=directory, config=_config(given))
        choices = Choices(now_ms=now_ms, force=True, drop_keyless=True, high_watermark_is_end=True)
        (result,) = Cleaner(InProcessEngine, InPlace("run"), RunLimits()).run([state], choices)
    assert result.status == SKIPPED and reason in result.reason, result
    assert tree(where) == before
