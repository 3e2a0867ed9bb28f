"""``explain`` and ``verify`` need no ``SparkContext``: they run through a Spark Connect server as well."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.commands import review
from tests.support import golden_sets
from tests.support.explaining import explain_request
from tests.support.operator.staged import stage

pytestmark = pytest.mark.spark
SCRIPT = Path(__file__).parents[1] / "support" / "spark" / "on_connect.py"


@pytest.mark.usefixtures("connect_port")
def test_both_say_what_they_say_in_process(golden: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client needs grpcio and grpcio-status")
    staged = stage(golden, "txn", tmp_path / "logs")
    before = tmp_path / "before"
    shutil.copytree(staged.directory, before, copy_function=shutil.copy2)
    staged.clean_one()
    told = review.explain(explain_request(staged, directories=[before])).to_json()
    second = review.explain(explain_request(staged, directories=[staged.directory], force=True)).to_json()
    settings = {name: getattr(staged.request, name) for name in ("topics", "config", "now_ms")}
    request = review.VerifyRequest(before=before, after=staged.directory, no_spark=True, **settings)
    verdict = review.verify(request)
    command = [sys.executable, str(SCRIPT), str(before), str(staged.directory), staged.case.topic]
    command += [json.dumps(list(staged.request.config)), str(staged.request.now_ms)]
    path = os.pathsep.join([str(golden_sets.REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["explain"] == found["spread"] == told, "as one task's log and as one over all workers"
    assert found["second"] == second
    assert found["verify"] == verdict.to_json()
    assert found["workers"] == 2 and verdict.is_sound
