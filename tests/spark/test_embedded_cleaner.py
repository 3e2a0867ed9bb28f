"""The embedded cleaner on Spark: started lazily, kept, started anew when its Java process is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import siltstone as st
from siltstone.base.config import Config, parse_assignments
from siltstone.compaction.report import CLEANED
from siltstone.spark.internals import running_session
from tests.support.cleaning.serving import TOPIC, table, write

pytestmark = pytest.mark.spark


@pytest.mark.long  # test_embedded_compaction kills it below both ways
@pytest.mark.timeout(280)
def test_a_killed_java_process_is_survived(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.spark.embedded_cleaner", str(tmp_path / "logs")]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert completed.stdout.splitlines()[-1] == "cleaned, killed, cleaned"


def test_a_session_that_the_program_has_is_used_and_left_running(
    session: SparkSession, tmp_path: Path
) -> None:
    config = Config(parse_assignments(["log.cleaner.threads=0"], "test"))
    with st.open(tmp_path, mode="a", config=config) as logs:
        logs.topics.create("users", 1, TOPIC)
        write(logs["users", 0], 60, timestamp=1_700_000_000_000)
        before = table(logs["users", 0])
        cleaner = st.start_cleaner(logs)
        logs["users", 0].flush()  # segments are cleaned once they are durable; a thread flushes rolled ones
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
        assert table(logs["users", 0]) == before
    assert running_session() is session
    assert session.range(3).count() == 3
