"""Groups that are cut into ranges on Spark: the files are those of one task, and no piece stays."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED
from siltstone.compaction.work import LogWork
from siltstone.spark import clean as pipeline
from siltstone.spark.clean import SparkEngine
from tests.support.cleaning import logs
from tests.support.cleaning.lives import cut_at_every_batch
from tests.support.cleaning.logs import one
from tests.support.spark.ways import WAYS
from tests.support.thoroughness import few

pytestmark = pytest.mark.spark

GROUPS, BATCHES = 2, 9
CONFIG = {"segment.bytes": 900}


def write(path: Path, *, checkpoint: int | None = None) -> Path:
    """Two groups of one segment, of nine batches each, and an active segment."""
    segments = {
        base: [one(base + i, f"key-{(base + i) % 11}", "value" * 9) for i in range(BATCHES)]
        for base in range(0, GROUPS * BATCHES, BATCHES)
    }
    segments[GROUPS * BATCHES] = [one(GROUPS * BATCHES, "z")]
    return logs.write_log(path, segments, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("plan", "way"), few(itertools.product(("first pass", "second pass", "in waves"), WAYS), 0, 3, 4)
)
def test_the_files_are_those_of_one_task(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, plan: str, way: int
) -> None:
    checkpoint = BATCHES if plan == "second pass" else None
    partition = write(tmp_path / "cut", checkpoint=checkpoint)
    shutil.copytree(tmp_path / "cut", tmp_path / "whole")
    cut_at_every_batch(monkeypatch)
    ranges, stages = list[int](), pipeline._with_assembly

    def counted(work: LogWork, *more: object) -> object:
        ranges.append(len(work.cut_ranges))
        return stages(work, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "_with_assembly", counted)
    limits = RunLimits(whole_log_bytes=0)
    if plan == "in waves":
        limits = logs.one_group_a_wave(tmp_path / "cut", CONFIG, times=2)
    engine = SparkEngine(
        session, tasks=4, min_clean_to_dirty_ratio=0 if checkpoint else 4, exchange_stage_bytes=way
    )
    result = logs.run(tmp_path / "cut", config=CONFIG, limits=limits, engine=lambda: engine)
    assert result.status == CLEANED, result.reason
    assert ranges == ([BATCHES] * GROUPS if plan == "in waves" else [GROUPS * BATCHES])
    expected = logs.run(tmp_path / "whole", config=CONFIG, engine=InProcessEngine)
    assert expected.status == CLEANED and expected.counts == result.counts
    assert logs.tree(tmp_path / "cut") == logs.tree(tmp_path / "whole")
    assert not (partition / ".siltstone").exists()
