"""Random lives of logs, compacted beside their originals on Spark, both ways: what the dict says."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from siltstone.spark.compact import SparkCompactionEngine
from siltstone.spark.jobs import BARRIER_BYTES
from tests.support.cleaning.lives import Life, Living, lives
from tests.support.ledger.driving import How, compact_and_check, opened
from tests.support.ledger.oracle import Model
from tests.support.thoroughness import examples

pytestmark = [pytest.mark.spark, pytest.mark.random]


def live(life: Life, by_time: bool, retain_null_key: bool, session: SparkSession) -> None:
    """The rounds before the last are compacted in this process, the last one on Spark, both ways."""
    with tempfile.TemporaryDirectory() as folder:
        living = Living(Path(folder) / "log", life)
        models = [Model(by_time=by_time, retain_null_key=retain_null_key) for _ in range(2)]
        for round_ in life.rounds[:-1]:
            living.write(round_)
            compact_and_check(opened(living.root), models[0])
        living.write(life.rounds[-1])
        copy = shutil.copytree(living.root, Path(folder) / "copy")
        models[1] = Model(
            by_time=by_time,
            retain_null_key=retain_null_key,
            best=dict(models[0].best),
            keyless=list(models[0].keyless),
            horizon=models[0].horizon,
        )
        way = BARRIER_BYTES * (life.buckets // 2 % 2)
        for root, model, spread in ((living.root, models[0], False), (copy, models[1], True)):
            engine = SparkCompactionEngine(
                session, buckets=life.buckets, tasks=1 + life.buckets % 3, barrier_bytes=way
            )
            compact_and_check(opened(root), model, How(spread=spread, engine=lambda _, one=engine: one))


def test_random_lives_are_compacted_on_spark_as_the_dict_says(session: SparkSession) -> None:
    @settings(
        max_examples=examples(6), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(lives(), st.booleans(), st.booleans())
    def run(life: Life, by_time: bool, retain_null_key: bool) -> None:
        live(life, by_time, retain_null_key, session)

    run()
