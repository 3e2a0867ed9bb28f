"""``explain``, ``verify`` and tables need no ``SparkContext``: they work through Spark Connect too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.commands import review
from tests.support.cleaning.logs import Rec, batch
from tests.support.explaining import explain_request
from tests.support.golden_sets import REPOSITORY
from tests.support.operator.staged import stage
from tests.support.spark.python import python_with_byte_code
from tests.support.tables.tables import log_directory

pytestmark = pytest.mark.spark
SCRIPT = Path(__file__).parents[1] / "support" / "spark" / "on_connect.py"


def test_review_and_tables_are_as_without_a_server(golden: Path, tmp_path: Path, connect_server: str) -> None:
    check_with_server(connect_server, golden, tmp_path)


@pytest.mark.long  # the server in the Java of the tests' session takes half of the time
def test_a_server_that_the_client_starts(golden: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client needs grpcio and grpcio-status")
    check_with_server("local[2]", golden, tmp_path)


def check_with_server(server: str, golden: Path, tmp_path: Path) -> None:
    """Ask a server (its address, or the master of one that the client starts): as in this process."""
    staged = stage(golden, "txn", tmp_path / "logs")
    before = tmp_path / "before"
    shutil.copytree(staged.directory, before, copy_function=shutil.copy2)
    staged.clean_one()
    explanation = review.explain(explain_request(staged, directories=[before])).to_json()
    second = review.explain(explain_request(staged, directories=[staged.directory], force=True)).to_json()
    settings = {name: getattr(staged.request, name) for name in ("topics", "config", "now_ms")}
    request = review.VerifyRequest(before=before, after=staged.directory, no_spark=True, **settings)
    verdict = review.verify(request)
    batches = [batch([Rec(offset=at, key=b"k%d" % (at % 4))]) for at in range(20)]
    table = log_directory(
        tmp_path / "table", {"users-0": {0: batches[:10], 10: batches[10:]}, "users-1": {0: batches[:3]}}
    )
    arguments = {
        "before": str(before),
        "after": str(staged.directory),
        "settings": settings,
        "table": str(table),
    }
    arguments |= {"server": server}
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    completed = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": python_with_byte_code(tmp_path)},
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    answers = json.loads(completed.stdout.splitlines()[-1])
    assert answers["explain"] == answers["spread"] == explanation, (
        "as one task's log and as one over all workers"
    )
    assert answers["second"] == second
    assert answers["verify"] == verdict.to_json()
    assert answers["workers"] == 2 and verdict.is_sound
    assert answers["log"] == list(range(20))
    assert answers["latest"] == [*([0, at] for at in range(16, 20)), *([1, at] for at in range(3))]
    assert answers["read latest"] == [[16, 17, 18, 19]] * 2
    assert answers["view"] == 23
