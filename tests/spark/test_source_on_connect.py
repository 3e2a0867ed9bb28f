"""Tables need nothing that only a classic session has: they work through a Spark Connect server as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cleaning.logs import Rec, batch
from tests.support.golden_sets import REPOSITORY
from tests.support.tables.tables import log_directory

pytestmark = pytest.mark.spark
SCRIPT = Path(__file__).parents[1] / "support" / "spark" / "source_on_connect.py"


@pytest.mark.usefixtures("connect_port")
def test_tables_views_and_sql(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client needs grpcio and grpcio-status")
    each = [batch([Rec(offset=at, key=b"k%d" % (at % 4))]) for at in range(20)]
    root = log_directory(
        tmp_path / "logs", {"users-0": {0: each[:10], 10: each[10:]}, "users-1": {0: each[:3]}}
    )
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["log"] == list(range(20))
    assert found["latest"] == [*([0, at] for at in range(16, 20)), *([1, at] for at in range(3))]
    assert found["view"] == 23
