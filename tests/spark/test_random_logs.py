"""Random lives of logs whose last cleaning is Spark's, both ways of spreading: what the oracle says.

The earlier rounds are cleaned in this process, where ``tests/property/test_cleaned_logs.py`` tries many more.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from pyspark.sql import SparkSession

from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import LogResult
from siltstone.spark.clean import SparkEngine
from siltstone.spark.jobs import EXCHANGE_STAGE_BYTES
from tests.support import in_memory
from tests.support.cleaning import judging, logs, oracle
from tests.support.cleaning.lives import Life, Living, Round, lives, splits_of_any_size
from tests.support.thoroughness import examples

pytestmark = [pytest.mark.spark, pytest.mark.random]


def clean(living: Living, root: Path, round_: Round, engine: Engine, limits: RunLimits) -> LogResult:
    """Clean one of the copies of a life's log."""
    config, now_ms = living.settings(round_), living.clock.now_ms()
    return logs.run(root, config=config, now_ms=now_ms, engine=lambda: engine, limits=limits)


def check(life: Life, root: Path, session: SparkSession) -> None:
    """The last round in one task and spread; both as the oracle has it, in the same files."""
    living = Living(root / "log", life)
    for round_ in life.rounds[:-1]:
        living.write(round_)
        clean(living, living.root, round_, InProcessEngine(), RunLimits())
    last = life.rounds[-1]
    living.write(last)
    expected = oracle.clean(living.partition, living.rules(last))
    assume(expected.segments)
    start = living.rules(last).log_start
    copy = shutil.copytree(living.root, root / "copy")
    limits = RunLimits(whole_log_bytes=0)
    if life.in_waves:
        # With twice the room, groups may be cut into ranges.
        times = 1 + life.buckets % 2
        limits = logs.one_group_a_wave(copy, living.settings(last), living.clock.now_ms(), times=times)
    result = clean(living, living.root, last, SparkEngine(session), RunLimits())
    judging.assert_cleaned(expected, living.partition, result, start)
    engine = SparkEngine(
        session,
        buckets=life.buckets,
        tasks=1 if life.in_waves and life.buckets % 2 == 0 else 3,
        min_clean_to_dirty_ratio=4 * (life.buckets % 2),
        exchange_stage_bytes=EXCHANGE_STAGE_BYTES * (life.buckets // 2 % 2),
    )
    with pytest.MonkeyPatch.context() as patch:
        splits_of_any_size(patch)
        spread = clean(living, copy, last, engine, limits)
    judging.assert_cleaned(expected, copy / living.partition.name, spread, start)
    assert logs.tree(copy) == logs.tree(living.root)


def test_random_lives_of_logs(session: SparkSession) -> None:
    @settings(
        max_examples=examples(20), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(lives())
    def run(life: Life) -> None:
        with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
            check(life, Path(folder), session)

    run()
