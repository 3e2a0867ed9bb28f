"""A second pass on Spark: two jobs and one map; it leaves what the in-process engine leaves the other way."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.cleaner import lookup
from siltstone.cleaner.cleaner import RunLimits
from siltstone.cleaner.engine import Engine, InProcessEngine
from siltstone.cleaner.report import CLEANED, FAILED, UNCLEANABLE, LogResult
from siltstone.spark.clean import SparkEngine
from tests.cleaner import logs
from tests.cleaner.logs import NOW, Rec, one
from tests.cleaner.test_lookup import write

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


@pytest.mark.parametrize("prepare", [write, write_idle])
def test_it_leaves_what_the_other_way_leaves(tmp_path: Path, session: SparkSession, prepare: object) -> None:
    ours, wanted = (prepare(tmp_path / name) for name in ("ours", "wanted"))  # type: ignore[operator]
    before = os.listdir(session.sparkContext._temp_dir)  # type: ignore[arg-type]
    found = clean(tmp_path / "ours", SparkEngine(session, tasks=2, clean_share=0))
    assert found.status == CLEANED, found.reason
    assert found == clean(tmp_path / "wanted", InProcessEngine(clean_share=math.inf))
    assert logs.tree(ours) == logs.tree(wanted)
    assert os.listdir(session.sparkContext._temp_dir) == before, "the map's file is gone"  # type: ignore[arg-type]


def test_damage_in_a_clean_segment_stops_it(tmp_path: Path, session: SparkSession) -> None:
    partition = write(tmp_path)
    log = partition / f"{10:020d}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    before = logs.tree(partition)
    result = clean(tmp_path, SparkEngine(session, tasks=2, clean_share=0))
    assert result.status == UNCLEANABLE and str(log) in result.reason
    assert logs.tree(partition) == before


def test_a_lost_dirty_entry_stops_it(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write(tmp_path)
    before = logs.tree(partition)
    real = lookup.OffsetMap.of
    monkeypatch.setattr(lookup.OffsetMap, "of", lambda blobs: real(blobs[:0]))
    result = clean(tmp_path, SparkEngine(session, tasks=2, clean_share=0))
    assert result.status == FAILED and "after their keys had been collected" in result.reason
    assert logs.tree(partition) == before
