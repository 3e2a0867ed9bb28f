"""A program's own session: with fewer slots than ``spark.default.parallelism``, interrupted, without Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden_sets
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one

SCRIPT = Path(__file__).parents[1] / "support" / "spark" / "own_session.py"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "slots"), [({"spark.default.parallelism": "4"}, 2), ({"spark.task.cpus": "2"}, 1)]
)
def test_a_programs_own_session_is_used_as_it_is(
    tmp_path: Path, settings: dict[str, str], slots: int
) -> None:
    segments = {
        base: [one(base + number, f"k{number % 3}") for number in range(10)] for base in range(0, 60, 10)
    }
    logs.write_log(tmp_path / "before", segments)
    (tmp_path / "before" / ".kafka_cleanshutdown").touch()
    path = os.pathsep.join([str(golden_sets.REPOSITORY), os.environ.get("PYTHONPATH", "")])
    completed = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "before"), str(tmp_path), json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    outcomes: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    assert outcomes["slots"] == slots and outcomes["first"] == [["cleaned", ""]]
    assert outcomes["same handler"]
    for handler in ("by PySpark's handler", "by Python's handler"):
        stopped = outcomes[handler]
        assert stopped["raised"] == "KeyboardInterrupt" and stopped["seconds"] < 30, outcomes
        assert stopped["jobs"] == 0, "the job is cancelled, and none comes in its place"
    ((status, reason),) = outcomes["without Java"]
    assert status == "failed" and "Java process has ended" in reason
