"""A Spark job that is killed for good at each stage: the log stays whole, and the next run cleans it.

``test_engine`` has workers that die once, whose tasks go again. Here each attempt dies or raises, so that the
whole job fails. The log has transactions over several groups, with ``.txnindex`` files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.cleaner.cleaner import RunLimits
from siltstone.cleaner.engine import Engine, InProcessEngine
from siltstone.cleaner.report import CLEANED, FAILED, LogResult
from siltstone.spark import clean as pipeline
from siltstone.spark.clean import SparkEngine
from tests.cleaner import judging, logs, oracle
from tests.cleaner.lives import Living
from tests.crash.test_transaction_crashes import ROUND, committed, write

pytestmark = pytest.mark.spark

WHOLE, SPREAD, WAVES = "whole", "spread", "waves"
STAGES = [
    (WHOLE, "clean_whole_task", "killed"),
    (SPREAD, "extract_task", "killed"),
    (SPREAD, "merge_task", "killed"),
    (SPREAD, "rewrite_task", "raised"),
    (WAVES, "gather_task", "killed"),
    (WAVES, "rewrite_from_files_task", "killed"),
]


def killed(task: Callable[..., Any], how: str) -> Callable[..., Any]:
    """A task that does its work and is gone before it can say so, in each attempt."""

    def dying(*given: Any) -> Iterator[Any]:
        rows = list(task(*given))
        if how == "killed" and rows:
            os.kill(os.getpid(), signal.SIGKILL)
        if rows:
            raise MemoryError("no memory for this task")
        yield from rows

    return dying


def limits_of(way: str, living: Living) -> RunLimits:
    if way == WAVES:
        return logs.one_group_a_wave(living.root, living.settings(ROUND), living.clock.now_ms())
    return RunLimits(whole_log_bytes=0) if way == SPREAD else RunLimits()


def clean(living: Living, engine: Engine, limits: RunLimits) -> LogResult:
    given, now_ms = living.settings(ROUND), living.clock.now_ms()
    return logs.run(living.root, config=given, now_ms=now_ms, engine=lambda: engine, limits=limits)


def files_of(living: Living) -> dict[str, bytes]:
    """All files but what a run in waves keeps to be gone on with."""
    found = logs.tree(living.root)
    return {name: data for name, data in found.items() if ".siltstone" not in name}


def left_in_staging(living: Living) -> set[str]:
    return {path.suffix for path in living.partition.glob(".siltstone/*/*")}


@pytest.mark.parametrize(("way", "stage", "how"), STAGES)
def test_the_log_stays_whole_and_the_next_run_cleans_it(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, stage: str, how: str
) -> None:
    living, whole = write(tmp_path / "log"), write(tmp_path / "whole")
    expected = oracle.clean(living.partition, living.rules(ROUND))
    limits, before = limits_of(way, living), files_of(living)
    seen = committed(living.partition)
    engine = SparkEngine(session, buckets=3, tasks=1 if way == WAVES else 3)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, stage, killed(getattr(pipeline, stage), how))
        result = clean(living, engine, limits)
    assert result.status == FAILED and "Spark" in result.reason, result
    assert files_of(living) == before
    assert committed(living.partition) == seen
    assert left_in_staging(living) <= ({".winners", ".json"} if stage == "rewrite_from_files_task" else set())
    result = clean(living, engine, limits)
    assert result.status == CLEANED, result
    judging.assert_cleaned(expected, living.partition, result)
    assert left_in_staging(living) == set()
    clean(whole, InProcessEngine(), RunLimits())
    assert logs.tree(living.partition) == logs.tree(whole.partition)
