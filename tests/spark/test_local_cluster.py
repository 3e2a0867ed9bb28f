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
def test_a_cluster_of_processes(golden: Path, tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.support.spark.on_local_cluster", str(golden), str(tmp_path)]
    done = subprocess.run(
        script, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["imported_from"] == [siltstone.__file__], "they have it installed: nothing was unpacked"
    assert said["secret"]["there"] and said["secret"]["javas"] >= 2 and not said["secret"]["shown"], said
    here = stage(golden, "basic_zipf_ts", tmp_path / "here")
    assert here.clean_one().status == "cleaned"
    wanted = logs_in(here.directory)
    assert (tmp_path / "marker").exists()
    assert said["exchanges"], "its executors are on this machine"
    for way in ("whole", "spread", "exchanged", "killed"):
        assert said[way]["status"] == "cleaned", said
        assert logs_in(tmp_path / way) == wanted, way
        no_leftovers(tmp_path / way)
