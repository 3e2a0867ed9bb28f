"""Every cleaned round of the golden sets, run through the whole cleaner in place: the files are Kafka's.

Logs with transactions and old formats are left alone, which is tested here too.
"""

from __future__ import annotations

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
from tests.cleaner.logs import tree
from tests.golden.comparing import assert_same_log, is_compressed

DELETED_TOO = "compact,delete"
NAMES = """
    basic basic_zipf_ts codec_gzip codec_lz4 codec_mixed codec_snappy codec_zstd compact_delete_bytes
    compact_delete_ms compact_then_delete_ms compact_then_delete_ms2 delete_records_compact
    delete_records_compact2 grouping grouping_index_limit grouping_resize idempotent idempotent_gzip
    jcodec_gzip jcodec_lz4 jcodec_none jcodec_snappy jcodec_zstd keyless min_lag mixed mixed_logappend
    tombstones tombstones_long tombstones_zero tombstones_zstd topic_recompress
""".split()
TRANSACTIONS = ["txn"]
ONLY_RETENTION = {"delete_records_delete", "retention_bytes", "retention_ms", "retention_ms_all"}
RATIO_LISTED_LATER = {"compact_then_delete_ms", "compact_then_delete_ms2"}
"""Their case.json lists the ratio that was set after the cleaning."""
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
        (result,) = cleaner.run(
            [state], Choices(now_ms=now_ms, drop_keyless=True, force=name.topic in RATIO_LISTED_LATER)
        )
    return result


def _listing(round_: golden_sets.Round) -> dict[str, int]:
    return {item["file"]: item["mtime_ms"] for item in round_.raw["listing_after"]}


def test_no_set_is_forgotten(golden: Path) -> None:
    assert {*NAMES, *TRANSACTIONS, *ONLY_RETENTION} == set(golden_sets.case_names(golden))


def _rounds(golden: Path, name: str) -> list[golden_sets.Round]:
    case = golden_sets.load_case(golden, name)
    return [r for r in case.rounds if r.cleaned]


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


def _compare(
    case: golden_sets.Case, round_: golden_sets.Round, where: Path, before: dict[str, bytes]
) -> None:
    partition = golden_sets.partition_directory(case, where)
    ours, kafkas, times = tree(partition), tree(round_.after), _listing(round_)
    end = round_.checkpoints_after["cleaner-offset-checkpoint"]
    assert end is not None
    deleted = DELETED_TOO in round_.config["cleanup.policy"]
    names = {name for name in kafkas if name[:20].isdigit() and int(name[:20]) < end}
    start = round_.checkpoints_before["log-start-offset-checkpoint"] or 0
    snapshots = {name for name in before if name.endswith(".snapshot")}
    stray = {name for name in snapshots if f"{name[:20]}.log" not in before or int(name[:20]) <= start}
    mine = {name for name in ours if name[:20].isdigit() and int(name[:20]) < end} - stray
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
    leftovers = [
        name for name in ours if name.endswith((".cleaned", ".swap", ".deleted")) or ".siltstone" in name
    ]
    assert leftovers == []
    for name, data in before.items():
        if not name[:20].isdigit() or int(name[:20]) >= end:
            assert ours[name] == data, name


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
            where = golden_sets.stage_round(
                case, round_, tmp_path / name.replace("/", "-") / str(round_.number)
            )
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
