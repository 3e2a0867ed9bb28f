"""kill -9 of Spark's Python daemon and of its Java: the log stays whole, the bytes come out the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.golden_sets import REPOSITORY
from tests.support.operator.staged import Staged, last_values, logs_in, no_leftovers, stage
from tests.support.spark.killed_processes import SET
from tests.support.spark.python import python_with_byte_code

pytestmark = [pytest.mark.spark, pytest.mark.long]  # two starts of Java; killed workers: test_killed_jobs.py


@pytest.mark.timeout(240)
def test_the_log_stays_whole_and_the_next_run_cleans_it(golden: Path, tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.support.spark.killed_processes", str(golden), str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": python_with_byte_code(tmp_path)}
    completed = subprocess.run(
        script, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    results = json.loads(completed.stdout)
    whole = stage(golden, SET, tmp_path / "whole")
    values = last_values(whole.partition)
    assert whole.clean_one().status == "cleaned"
    for whom in ("daemon", "java"):
        assert (tmp_path / f"killed-{whom}").exists()
        killed = Staged(
            case=whole.case,
            directory=tmp_path / whom,
            request=whole.asking(directories=[tmp_path / whom]),
        )
        assert last_values(killed.partition) == values
        if results[whom]["status"] != "cleaned":
            assert results[whom]["reason"] and "\n" not in results[whom]["reason"], results
            assert killed.checkpoint() is None
            assert killed.clean_one().status == "cleaned"
        assert logs_in(killed.directory) == logs_in(whole.directory), whom
        no_leftovers(killed.directory)
    assert results["daemon"]["status"] == "cleaned", results
    assert results["java"]["status"] != "cleaned", results
