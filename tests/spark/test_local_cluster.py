"""On executors that are processes of their own: the same bytes come out, also after one was lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone
from tests.support.golden_sets import REPOSITORY
from tests.support.operator.staged import logs_in, no_leftovers, stage

pytestmark = [pytest.mark.spark, pytest.mark.long]
PATIENCE_S = 240


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_cluster_of_processes_cleans_as_one_process(golden: Path, tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.support.spark.on_local_cluster", str(golden), str(tmp_path)]
    completed = subprocess.run(
        script, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    results = json.loads(completed.stdout)
    assert results["imported_from"] == [siltstone.__file__], "they have it installed: nothing was unpacked"
    assert (
        results["secret"]["there"] and results["secret"]["javas"] >= 2 and not results["secret"]["shown"]
    ), results
    here = stage(golden, "basic_zipf_ts", tmp_path / "here")
    assert here.clean_one().status == "cleaned"
    expected = logs_in(here.directory)
    assert (tmp_path / "marker").exists()
    assert results["exchanges"], "its executors are on this machine"
    for way in ("whole", "spread", "exchanged", "killed"):
        assert results[way]["status"] == "cleaned", results
        assert logs_in(tmp_path / way) == expected, way
        no_leftovers(tmp_path / way)
