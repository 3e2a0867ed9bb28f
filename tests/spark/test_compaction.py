"""Random lives of logs, compacted beside their originals on Spark, both ways: what the dict says."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from siltstone.compaction.ledger.keys import KEY_INDEX_PARTITIONS
from siltstone.log.checkpoints import write_checkpoint
from siltstone.log.ledger.store import LedgerStore
from siltstone.spark import compact
from siltstone.spark.compact import SparkCompactionEngine
from siltstone.spark.jobs import EXCHANGE_STAGE_BYTES
from siltstone.spark.rows import Row, rows_of
from tests.support.cleaning import logs
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
        way = EXCHANGE_STAGE_BYTES * (life.buckets // 2 % 2)
        for root, model, spread in ((living.root, models[0], False), (copy, models[1], True)):
            engine = SparkCompactionEngine(
                session, buckets=life.buckets, tasks=1 + life.buckets % 3, exchange_stage_bytes=way
            )
            compact_and_check(opened(root), model, How(spread=spread, engine=lambda _, one=engine: one))


class InThisProcess(SparkCompactionEngine):
    """The engine, with all tasks of a job run one after another in this process."""

    def __init__(self, parallelism: int) -> None:
        super().__init__(cast(SparkSession, None), tasks=parallelism)

    def _run_numbered(
        self,
        title: str,
        count: int,
        function: Callable[..., Iterator[pa.RecordBatch]],
        *arguments: object,
        **more: object,
    ) -> list[Row]:
        numbers = pa.RecordBatch.from_pydict({"id": list(range(count))})
        return list(rows_of(function(*arguments, [numbers])))


def test_runs_are_merged_by_more_workers_than_a_key_index_has_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "_SMALL_MERGE_BYTES", -1)
    model = Model(by_time=False, retain_null_key=False)
    how = How(engine=lambda _: InThisProcess(KEY_INDEX_PARTITIONS + 1))
    partition = logs.write_log(tmp_path, {})
    for base in (0, 10):
        batches = [logs.one(at, f"k{at % 7}") for at in range(base, base + 10)]
        logs.write_segment(partition, base, b"".join(batches))
        write_checkpoint(tmp_path / "replication-offset-checkpoint", {logs.WHERE: base + 10})
        compact_and_check(opened(tmp_path), model, how)
    ledger = LedgerStore(partition).current()
    assert ledger is not None and len(ledger.runs) == 1


@pytest.mark.long  # tests/compaction/ledger has random lives without Spark; test_runs_are_merged… is the job
def test_random_lives_are_compacted_on_spark_as_the_dict_says(session: SparkSession) -> None:
    @settings(
        max_examples=examples(6), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(lives(), st.booleans(), st.booleans())
    def run(life: Life, by_time: bool, retain_null_key: bool) -> None:
        live(life, by_time, retain_null_key, session)

    run()
