"""Jobs of two stages, entries by log and bucket and then reports: ``explain``'s and ``verify``'s.

::

    spark.range ─ first task ─► entries, reports ─ by log and target ─► second task ─► reports

DataFrames only, so a session of Spark Connect will do as well. Nothing of the cleaner is imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from siltstone.base.records.layout import Words
from siltstone.spark import rows, running
from siltstone.spark.rows import SCHEMA, array_row, report_of, rows_of
from siltstone.spark.tasks import Batches, in_worker

Task = Callable[[Batches], Iterator[pa.RecordBatch]]


def entries_row(log: int, bucket: int, entries: Words) -> pa.RecordBatch:
    """Entries on their way to their bucket; they are not copied."""
    return array_row("", bucket, entries, log=log).batch()


def report_row(log: int, target: int, report: dict[str, Any]) -> pa.RecordBatch:
    """A report on its way to the driver."""
    return rows.report_row("", report, target, log=log).batch()


def by_bucket(
    batches: Batches, words: int, judge: Callable[[int, int, list[Words]], dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """The second task: ``judge(log, bucket, parts)`` reports on a bucket's entries, of ``words`` words each.

    Reports pass through. Raises ValueError when a blob lost or gained a byte on its way.
    """
    parts: dict[tuple[int, int], list[Words]] = {}
    for batch in batches:
        for row in rows_of(batch):
            if row.report:
                yield row.batch()
            else:
                parts.setdefault((row.log, row.target), []).append(row.array(np.uint64, words).copy())
    for log, bucket in sorted(parts):
        yield report_row(log, bucket, judge(log, bucket, parts.pop((log, bucket))))


def run_job(
    session: SparkSession, title: str, numbers: int, tasks: int, workers: int, first: Task, second: Task
) -> list[tuple[int, dict[str, Any]]]:
    """Run it over ``range(numbers)`` in so many tasks; (log, report), in any order. Raises EngineError when
    Spark gives up."""

    def job() -> DataFrame:
        frame = session.range(0, numbers, 1, tasks).mapInArrow(functools.partial(in_worker, first), SCHEMA)
        frame = frame.repartition(workers, "log", "target")
        return frame.mapInArrow(functools.partial(in_worker, second), SCHEMA)

    table = running.run_job(session, title, job)
    return [(row.log, report_of(row, dict)) for batch in table.to_batches() for row in rows_of(batch)]
