"""Several large logs are cleaned at the same time on one Spark session: what one after another leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED
from siltstone.spark.clean import SparkEngine
from tests.support.cleaning import logs, waves


@pytest.mark.parametrize("limits", [waves.WAVES, RunLimits(whole_log_bytes=0)], ids=["waves", "one job"])
def test_logs_cleaned_together_are_as_those_cleaned_one_after_another(
    session: SparkSession, tmp_path: Path, limits: RunLimits
) -> None:
    waves.write_logs(tmp_path / "spark", 3)
    shutil.copytree(tmp_path / "spark", tmp_path / "process", copy_function=shutil.copy2)
    cleaned = waves.run_all(tmp_path / "spark", SparkEngine(session, tasks=2), limits=limits)
    assert [result.status for result in cleaned] == [CLEANED] * 3
    waves.run_all(tmp_path / "process", InProcessEngine(), limits=limits)
    assert logs.tree(tmp_path / "spark") == logs.tree(tmp_path / "process")
