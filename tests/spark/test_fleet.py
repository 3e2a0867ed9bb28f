"""Many brokers on one Spark session, their jobs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.commands import clean as cleaning
from siltstone.commands.clean import CleanRequest
from siltstone.compaction.engine import Progress
from siltstone.spark import tasks
from tests.support.operator.fleets import Root, by_name
from tests.support.operator.staged import log_bytes, no_leftovers

pytestmark = pytest.mark.spark
NAMES = [f"broker{number}" for number in range(5)]


def test_brokers_are_cleaned_on_one_session_as_in_this_process(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, start = [], cleaning.spark_session

    def counted(request: CleanRequest, progress: Progress | None) -> SparkSession:
        starts.append(start(request, progress))
        return starts[-1]

    monkeypatch.setattr(cleaning, "spark_session", counted)
    root = Root(golden, tmp_path / "root", NAMES, "basic_zipf_ts")
    alone = Root(golden, tmp_path / "alone", NAMES[:1], "basic_zipf_ts")
    alone.clean()
    (root.staged["broker2"].directory / ".kafka_cleanshutdown").unlink()
    results = by_name(root.fleet(engine=None, at_once=3).clean())
    assert len(starts) == 1
    assert [results[name].status for name in NAMES] == ["cleaned", "cleaned", "failed", "cleaned", "cleaned"]
    wanted = log_bytes(alone.staged["broker0"].partition)
    for name in ("broker0", "broker1", "broker3", "broker4"):
        assert results[name].engine == "spark local[2]"
        assert log_bytes(root.staged[name].partition) == wanted
        no_leftovers(root.staged[name].directory)


def test_a_session_that_has_died_is_started_again_for_the_next_broker(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def counted(request: CleanRequest, progress: Progress | None) -> SparkSession:
        starts.append(request)
        return session

    alive = iter([False, True])
    monkeypatch.setattr(cleaning, "spark_session", counted)
    monkeypatch.setattr(tasks, "is_alive", lambda asked: next(alive))
    root = Root(golden, tmp_path / "root", NAMES[:3])
    results = root.clean(engine=None, at_once=1)
    assert {result.status for result in results.values()} == {"cleaned"}
    assert len(starts) == 2
