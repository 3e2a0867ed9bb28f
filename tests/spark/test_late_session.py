"""A session that starts Spark's SQL when it is first used: of a script, since the tests' has used it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.golden_sets import REPOSITORY

SCRIPT = """
from pyspark.sql import SparkSession
from siltstone.spark import internals
from siltstone.spark.clean import SparkEngine
from siltstone.spark.session import start_session, stop_session
from siltstone.base import files
from siltstone.compaction.engine import clean_warm_up_log
from pathlib import Path

def has_sql(session):
    sessions = getattr(session.sparkContext._jvm, "org.apache.spark.sql.classic.SparkSession")
    return sessions.getDefaultSession().isDefined()

session = start_session("local[2]")
assert internals.running_session() is session
with files.temporary_directory("late-") as folder:
    clean_warm_up_log(Path(folder), SparkEngine(session), SparkEngine(session))
assert type(session) is internals.LateSession and not has_sql(session)
try:
    session.no_such_thing
except AttributeError as error:
    print(error)
other = start_session("local[2]")  # beside it, as in a program with a session
assert type(session) is type(other) is SparkSession and has_sql(session)
assert session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "16"
assert SparkSession.builder.getOrCreate() is session is SparkSession.getActiveSession()
assert session.range(5).count() == other.range(5).count() == 5
stop_session(session)
again = start_session("local[1]")
assert again.range(3).count() == 3 and SparkSession.getActiveSession() is again
stop_session(again)
"""


@pytest.mark.long  # embedded_compaction.py uses one, too, and its SQL late
def test_sql_starts_when_it_is_first_used() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert completed.stdout == "'LateSession' object has no attribute 'no_such_thing'\n"
