"""Compactions beside the originals on Spark, in a manager: on one session with the cleaner, also anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import siltstone as st
from siltstone.base.config import Config, parse_assignments
from siltstone.runtime.compactions import SUCCESS
from siltstone.spark.internals import running_session
from tests.support.cleaning.serving import TOPIC, write
from tests.support.ledger.serving import seen

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.timeout(280)
def test_cleaner_and_compactions_survive_a_killed_java_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.spark.embedded_compaction", str(tmp_path / "logs")]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert completed.stdout.splitlines()[-1] == "compacted, killed, compacted"


def test_a_session_that_the_program_has_is_used_and_left_running(
    session: SparkSession, tmp_path: Path
) -> None:
    config = Config(parse_assignments(["compactionThreshold=100"], "test"))
    with st.open(tmp_path, mode="a", config=config) as logs:
        logs.topics.create("users", 2, TOPIC)
        for number in range(2):
            write(logs["users", number], 60, timestamp=1_700_000_000_000)
        compactions = st.start_compaction(logs)
        assert len(compactions.check()) == 2
        assert compactions.wait(200)
        assert compactions.status("users").status == SUCCESS
        assert [len(seen(logs["users", number])) for number in range(2)] == [5, 5]
    assert running_session() is session
    assert session.range(3).count() == 3
