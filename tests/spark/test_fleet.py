"""Many brokers on one Spark session, their jobs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError
from siltstone.spark import clean
from siltstone.spark import session as sessions
from tests.support.operator.fleets import Root, by_name
from tests.support.operator.staged import log_bytes, no_leftovers

pytestmark = pytest.mark.spark
NAMES = [f"broker{number}" for number in range(5)]


def test_brokers_are_cleaned_on_one_session_as_in_this_process(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, start = [], sessions.start_session

    def counted(*arguments: Any, **settings: Any) -> SparkSession:
        starts.append(start(*arguments, **settings))
        return starts[-1]

    monkeypatch.setattr(sessions, "start_session", counted)
    root = Root(golden, tmp_path / "root", NAMES, "basic_zipf_ts")
    alone = Root(golden, tmp_path / "alone", NAMES[:1], "basic_zipf_ts")
    alone.clean()
    (root.staged["broker2"].directory / ".kafka_cleanshutdown").unlink()
    results = by_name(root.fleet(engine=None, at_once=3).clean())
    assert len(starts) == 1
    assert [results[name].status for name in NAMES] == ["cleaned", "cleaned", "failed", "cleaned", "cleaned"]
    expected = log_bytes(alone.staged["broker0"].partition)
    for name in ("broker0", "broker1", "broker3", "broker4"):
        assert results[name].engine == "spark local[2]"
        assert log_bytes(root.staged[name].partition) == expected
        no_leftovers(root.staged[name].directory)


def test_a_session_that_has_died_is_started_again_for_the_next_broker(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[SparkSession] = []
    alive = iter([False, True])
    monkeypatch.setattr(clean, "is_alive", lambda started: next(alive))

    def start() -> SparkSession:
        if len(starts) == 2:
            raise EngineError("a second death", advice="")
        starts.append(session)
        return session

    engines = clean.SharedEngines(start, is_alone=False)
    for count in (1, 2, 2):
        assert engines.engine().parallelism == 2 and len(starts) == count
    monkeypatch.setattr(clean, "is_alive", lambda started: False)
    with pytest.raises(EngineError):
        engines.engine()
    assert engines.start_error is None  # only the first start concerns all
