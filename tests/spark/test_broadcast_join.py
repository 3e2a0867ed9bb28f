"""A second pass on Spark, in one job whose tasks go together or in two: it leaves what the in-process engine
leaves the other way."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.spark import clean as second_pass
from siltstone.spark import rows
from siltstone.spark.clean import SparkEngine, dirty_task
from tests.support.cleaning import logs
from tests.support.cleaning.clean_and_dirty import write_clean_and_dirty
from tests.support.cleaning.logs import NOW, Rec, one
from tests.support.failures import assert_failed, assert_uncleanable
from tests.support.spark.ways import WAYS

pytestmark = pytest.mark.spark


def clean(path: Path, engine: Engine) -> LogResult:
    config = {"segment.bytes": 900}
    result = logs.run(path, config=config, limits=RunLimits(whole_log_bytes=0), engine=lambda: engine)
    result.seconds, result.directory = 0.0, ""
    return result


def write_idle(path: Path) -> Path:
    """Nothing is dirty; a tombstone's time has come."""
    tombstone = logs.batch([Rec(offset=1, key=b"gone", value=None)], delete_horizon_ms=NOW - 5)
    return logs.write_log(
        path,
        {0: [one(0, "a"), tombstone, one(2, "b")], 10: [one(10, "c")], 50: [one(50, "d")]},
        checkpoint=50,
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prepare", [write_clean_and_dirty, write_idle])
def test_a_broadcast_join_leaves_what_a_shuffle_join_leaves(
    tmp_path: Path, session: SparkSession, prepare: object, way: int
) -> None:
    ours, expected = (prepare(tmp_path / name) for name in ("ours", "expected"))  # type: ignore[operator]
    before = os.listdir(session.sparkContext._temp_dir)  # type: ignore[arg-type]
    result = clean(
        tmp_path / "ours", SparkEngine(session, tasks=2, min_clean_to_dirty_ratio=0, exchange_stage_bytes=way)
    )
    assert result.status == CLEANED, result.reason
    assert result == clean(tmp_path / "expected", InProcessEngine(min_clean_to_dirty_ratio=math.inf))
    assert logs.tree(ours) == logs.tree(expected)
    assert os.listdir(session.sparkContext._temp_dir) == before, "the map's file is gone"  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_dirty", [False, True])
def test_damage_in_a_segment_stops_a_broadcast_join(
    tmp_path: Path, session: SparkSession, is_dirty: bool, way: int
) -> None:
    """In a dirty segment: before anything is looked up in the offset map."""
    partition = write_clean_and_dirty(tmp_path)
    closed = sorted(
        path for path in partition.glob("*.log") if path.stem < f"{50:020d}" and path.stat().st_size
    )
    log = closed[-1] if is_dirty else partition / f"{10:020d}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    before = logs.tree(partition)
    result = clean(
        tmp_path, SparkEngine(session, tasks=2, min_clean_to_dirty_ratio=0, exchange_stage_bytes=way)
    )
    assert_uncleanable(result, log)
    assert logs.tree(partition) == before


def lost_dirty_task(*arguments: Any) -> Iterator[pa.RecordBatch]:
    """Reports, but no entries."""
    yield from (batch for batch in dirty_task(*arguments) if batch.column("kind")[0].as_py() != rows.DIRTY)


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_dirty_entry_stops_a_broadcast_join(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    partition = write_clean_and_dirty(tmp_path)
    before = logs.tree(partition)
    monkeypatch.setattr(second_pass, "dirty_task", lost_dirty_task)
    result = clean(
        tmp_path, SparkEngine(session, tasks=2, min_clean_to_dirty_ratio=0, exchange_stage_bytes=way)
    )
    assert_failed(result, "CHECK_FAILED", path="topic-0", about="offset map")
    assert logs.tree(partition) == before
