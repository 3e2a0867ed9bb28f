"""One round of a golden set: cleaned by our cleaner in each of its ways, and compared with Kafka's files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from siltstone.base.config import LONG_MAX, Config, parse_assignments
from siltstone.base.records.scan import scan_batches
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import InPlace
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.log.directory import LogDirectory
from siltstone.log.indexes import IndexBuilder
from tests.support import golden_sets
from tests.support.cleaning.logs import tree
from tests.support.golden.comparing import assert_same_log, is_compressed

DELETED_TOO = "compact,delete"
LASTING = (".snapshot", ".txnindex")
WAYS = {
    "whole": RunLimits(),
    "spread": RunLimits(whole_log_bytes=0),
    "looked up": RunLimits(whole_log_bytes=0),
    "waves": RunLimits(whole_log_bytes=0, wave_bytes=1),
}


def clean_and_compare(
    case: golden_sets.Case,
    round_: golden_sets.Round,
    root: Path,
    way: str,
    *,
    force: bool = False,
    map_end: int = LONG_MAX,
) -> LogResult:
    """Stage a round in ``root``, clean it, and hold it to what Kafka made of it."""
    golden_sets.stage_round(case, round_, root)
    before = tree(golden_sets.partition_directory(case, root))
    assert round_.now_ms is not None
    result = clean_round(root, round_.command_config, round_.now_ms, way, force=force, map_end=map_end)
    assert result.status == CLEANED, result.reason
    after = golden_sets.read_checkpoint(root / "cleaner-offset-checkpoint")
    assert after[(case.topic, case.partition)] == round_.checkpoints_after["cleaner-offset-checkpoint"]
    compare_round(case, round_, root, before)
    return result


def config_of(settings: Mapping[str, str]) -> Config:
    """The round's settings with retention, which is not the cleaner's, left out of the policy."""
    text = {**settings, "cleanup.policy": "compact"}
    return Config(parse_assignments([f"{name}={value}" for name, value in text.items()], "case.json"))


def clean_round(
    root: Path,
    settings: Mapping[str, str],
    now_ms: int,
    way: str,
    *,
    force: bool = False,
    map_end: int = LONG_MAX,
) -> LogResult:
    """Clean the log directory's one partition in place, in one of ``WAYS``."""
    with LogDirectory.open(root) as directory:
        ((name, partition),) = directory.partitions.items()
        state = LogState(
            topic_partition=name, path=partition, directory=directory, config=config_of(settings)
        )
        engine = InProcessEngine(3, min_clean_to_dirty_ratio=0 if way == "looked up" else math.inf)
        cleaner = Cleaner(lambda: engine, InPlace("run"), WAYS[way])
        (result,) = cleaner.run(
            [state], PlanOptions(now_ms=now_ms, drop_keyless=True, force=force, map_end=map_end)
        )
    return result


def mtimes_after(round_: golden_sets.Round) -> dict[str, int]:
    """The times that Kafka left the files with, in ms."""
    return {item["file"]: item["mtime_ms"] for item in round_.raw["listing_after"]}


def compare_round(
    case: golden_sets.Case, round_: golden_sets.Round, root: Path, before: dict[str, bytes]
) -> None:
    """The partition in ``root`` is what Kafka made of it, and nothing else in it has moved."""
    partition = golden_sets.partition_directory(case, root)
    ours, kafkas, times = tree(partition), tree(round_.after), mtimes_after(round_)
    end = round_.checkpoints_after["cleaner-offset-checkpoint"]
    assert end is not None
    deleted = DELETED_TOO in round_.config["cleanup.policy"]
    names = {name for name in kafkas if name[:20].isdigit() and int(name[:20]) < end}
    start = round_.checkpoints_before["log-start-offset-checkpoint"] or 0
    snapshots = {name for name in before if name.endswith(".snapshot")}
    stray = {name for name in snapshots if f"{name[:20]}.log" not in before or int(name[:20]) <= start}
    our_names = {name for name in ours if name[:20].isdigit() and int(name[:20]) < end} - stray
    assert names - our_names == set(), "Kafka has files that we have not"
    if deleted:
        lowest = min((int(name[:20]) for name in kafkas if name.endswith(".log")), default=end)
        our_names = {name for name in our_names if int(name[:20]) >= lowest}
    assert our_names == names
    for name in sorted(names):
        compare_file(name, ours, kafkas, int(round_.config["index.interval.bytes"]))
        if name.endswith((".log", ".snapshot")):
            assert (partition / name).stat().st_mtime_ns // 1_000_000 == times[name], name
    nothing_else_moved(ours, before, end)


def compare_file(name: str, ours: dict[str, bytes], kafkas: dict[str, bytes], interval: int) -> None:
    """Equal, but for what depends on the size of compressed batches: that is the index of our own log."""
    log = f"{name[:20]}.log"
    if name.endswith(".log"):
        assert_same_log(ours[name], kafkas[name], name)
    elif ours[log] == kafkas[log] or not is_compressed(kafkas[log]) or name.endswith(LASTING):
        assert ours[name] == kafkas[name], name
    else:
        assert ours[name] == _index_of(ours[log], name, interval), name


def _index_of(log: bytes, name: str, interval: int) -> bytes:
    builder = IndexBuilder(int(name[:20]), interval, 1 << 20)
    builder.add_batches(scan_batches(np.frombuffer(log, np.uint8)).batches)
    indexes = builder.finish()
    return indexes["index"] if name.endswith(".index") else indexes["timeindex"]


def nothing_else_moved(ours: dict[str, bytes], before: dict[str, bytes], end: int) -> None:
    """Nothing is left over, and files outside the cleaned range are as they were."""
    leftovers = [
        name for name in ours if name.endswith((".cleaned", ".swap", ".deleted")) or ".siltstone" in name
    ]
    assert leftovers == []
    for name, data in before.items():
        if not name[:20].isdigit() or int(name[:20]) >= end:
            assert ours[name] == data, name
