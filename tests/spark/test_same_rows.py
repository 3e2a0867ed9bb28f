"""A stage that Spark does again, since a worker was lost, says what it said, in whatever order its rows come.

Spark takes a sum of each shuffle's rows and gives a job up where a task says something else the second time
and others have gone on with the first (``spark.sql.shuffle.orderIndependentChecksum``).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from siltstone.commands import clean as app
from siltstone.spark.clean import SparkEngine
from siltstone.spark.exchange import Stage
from siltstone.spark.jobs import SparkJobRunner
from siltstone.spark.rows import Row, rows_of
from tests.spark.test_compaction import live
from tests.support.cleaning.lives import Life, lives
from tests.support.operator.staged import stage
from tests.support.thoroughness import examples

pytestmark = [pytest.mark.spark, pytest.mark.random]
Batches = list[pa.RecordBatch]


def again_and_again(stages: list[Stage], rng: random.Random) -> list[Row]:
    """Run each task of each stage three times, its rows shuffled, and go on with the last time's."""
    first = pa.RecordBatch.from_pydict({"id": list(range(stages[0].tasks))})
    inputs: list[Batches] = [[first.slice(number, 1)] for number in range(stages[0].tasks)]
    for at, spark_stage in enumerate(stages):
        is_last, results = at + 1 == len(stages), []
        for batches in inputs:
            tries = [list(rows_of(run(spark_stage, batches, rng))) for _ in range(3)]
            if not is_last:
                texts = [sorted(map(as_text, rows)) for rows in tries]
                assert texts[0] == texts[1] == texts[2], spark_stage.function.__name__
            results += tries[-1]
        if is_last:
            return results
        tasks = stages[at + 1].tasks
        inputs = [[row.batch() for row in results if row.target % tasks == number] for number in range(tasks)]
    raise AssertionError("a job without stages")


def run(spark_stage: Stage, batches: Batches, rng: random.Random) -> Batches:
    shuffled = rng.sample(batches, len(batches))
    return list(spark_stage.function(*spark_stage.arguments, shuffled))


def as_text(row: Row) -> str:
    return f"{row.target} {row.kind} {row.base_offset} {row.count} {bytes(row.blob).hex()} {row.report}"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of jobs that were run so; Spark runs none of them."""
    titles: list[str] = []

    def instead(self: SparkJobRunner, stages: Sequence[Stage], title: str, *others: object) -> list[Row]:
        titles.append(title)
        return again_and_again(list(stages), random.Random(len(titles)))

    monkeypatch.setattr(SparkJobRunner, "_run", instead)
    return titles


@pytest.mark.parametrize("wave_bytes", [1 << 30, 0], ids=["one job", "waves"])
@pytest.mark.parametrize("name", ["basic_zipf_ts", "codec_lz4", "txn", "tombstones_long"])
def test_a_stage_of_a_cleaning_says_the_same_again(
    golden: Path,
    tmp_path: Path,
    session: SparkSession,
    jobs: list[str],
    name: str,
    wave_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: Callable[..., Any] = functools.partial(app.RunLimits, whole_log_bytes=0, wave_bytes=wave_bytes)
    monkeypatch.setattr(app, "RunLimits", limits)
    engine = SparkEngine(session, buckets=3, tasks=3)
    (result,) = app.clean(stage(golden, name, tmp_path).request, engine=lambda *_: engine).results
    assert result.status == "cleaned", result.reason
    assert jobs


def test_a_stage_of_a_compaction_says_the_same_again(session: SparkSession, jobs: list[str]) -> None:
    @settings(
        max_examples=examples(8), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(lives(), st.booleans(), st.booleans())
    def run(life: Life, by_time: bool, retain_null_key: bool) -> None:
        live(life, by_time, retain_null_key, session)

    run()
    assert jobs
