"""Jobs of two stages, entries by log and bucket and then reports: ``explain``'s and ``verify``'s.

::

    spark.range ─ first task ─► entries, reports ─ by log and target ─► second task ─► reports

DataFrames only, so a session of Spark Connect will do as well. Nothing of the cleaner is imported here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from siltstone.base.records.layout import Words
from siltstone.spark import running
from siltstone.spark.tasks import Batches, in_worker

Task = Callable[[Batches], Iterator[pa.RecordBatch]]
_SCHEMA = "log int, target int, count long, blob binary, report string"
_ARROW = pa.schema(
    [
        pa.field("log", pa.int32()),
        pa.field("target", pa.int32()),
        pa.field("count", pa.int64()),
        pa.field("blob", pa.binary()),
        pa.field("report", pa.string()),
    ]
)


def entries_row(log: int, bucket: int, entries: Words) -> pa.RecordBatch:
    """Entries on their way to their bucket; they are not copied."""
    return _row(log, bucket, len(entries), np.ascontiguousarray(entries).view(np.uint8).data, "")


def report_row(log: int, target: int, report: dict[str, Any]) -> pa.RecordBatch:
    """A report on its way to the driver."""
    return _row(log, target, 0, b"", json.dumps(report))


def _row(log: int, target: int, count: int, data: bytes | memoryview, report: str) -> pa.RecordBatch:
    blob = pa.py_buffer(data)
    offsets = pa.py_buffer(np.array([0, blob.size], np.int32))
    arrays = [
        pa.array([log], pa.int32()),
        pa.array([target], pa.int32()),
        pa.array([count], pa.int64()),
        pa.Array.from_buffers(pa.binary(), 1, [None, offsets, blob]),
        pa.array([report], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def by_bucket(
    batches: Batches, words: int, judge: Callable[[int, int, list[Words]], dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """The second task: ``judge(log, bucket, parts)`` reports on a bucket's entries, of ``words`` words each.

    Reports pass through. Raises ValueError when a blob lost or gained a byte on its way.
    """
    parts: dict[tuple[int, int], list[Words]] = {}
    names = ("log", "target", "count", "report")
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        for row, (log, target, count, report) in enumerate(zip(*columns, strict=True)):
            if report:
                yield _row(log, target, 0, b"", report)
                continue
            entries = np.frombuffer(batch.column("blob")[row].as_buffer(), np.uint64).reshape(-1, words)
            if len(entries) != count:
                raise ValueError(f"{count} entries were sent, {len(entries)} arrived")
            parts.setdefault((log, target), []).append(entries.copy())
    for log, bucket in sorted(parts):
        yield report_row(log, bucket, judge(log, bucket, parts.pop((log, bucket))))


def run_job(
    session: SparkSession, title: str, numbers: int, tasks: int, workers: int, first: Task, second: Task
) -> list[tuple[int, dict[str, Any]]]:
    """Run it over ``range(numbers)`` in so many tasks; (log, report), in any order. Raises EngineError when
    Spark gives up."""

    def job() -> DataFrame:
        frame = session.range(0, numbers, 1, tasks).mapInArrow(functools.partial(in_worker, first), _SCHEMA)
        frame = frame.repartition(workers, "log", "target")
        return frame.mapInArrow(functools.partial(in_worker, second), _SCHEMA)

    table = running.run_job(session, title, job)
    return [(row["log"], json.loads(row["report"])) for row in table.select(["log", "report"]).to_pylist()]
