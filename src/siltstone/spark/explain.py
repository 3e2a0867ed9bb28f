"""Observing logs for ``explain`` on Spark, with DataFrames only, so that Spark Connect works as well.

::

    spark.range ─ observe_task ─► entries, reports ─ by log and bucket ─► count_keys_task ─► reports
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.base.records.layout import Words
from siltstone.compaction.engine import Engine, Progress, report_progress
from siltstone.compaction.explain import ENTRY_WORDS, Bins, LogStatistics, buckets_of, count_keys, observe
from siltstone.compaction.report import failure_of
from siltstone.compaction.work import LogWork
from siltstone.spark.clean import SparkEngine
from siltstone.spark.jobs import bytes_by_tasks
from siltstone.spark.rows import ENTRIES, REPORT, array_row, report_row
from siltstone.spark.tasks import Batches, all_or_each, by_bucket, run_bucketed, runs_of, task_numbers

Works = Sequence[tuple[LogWork, Bins]]
_BUCKET_BYTES = 512 << 20
_SMALL_BYTES = 64 << 20


def observe_task(
    works: Works, runs: Sequence[tuple[int, Sequence[int]]], buckets: Sequence[int], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names some neighbouring segments of a log: yields entries by bucket, and a report."""
    for number in task_numbers(batches):
        log, segments = runs[number]
        work, bins = works[log]
        statistics = LogStatistics()
        try:
            for bucket, entries in observe(work, segments, buckets[log], bins, statistics):
                yield array_row(ENTRIES, bucket, entries, log=log).batch()
        except Exception as error:
            statistics.failure = failure_of(error)
        yield report_row(REPORT, statistics, number, log=log).batch()


def count_keys_task(works: Works, top: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Count the keys of buckets; reports pass through.

    Raises ValueError when a blob lost or gained a byte on its way.
    """

    def count(log: int, bucket: int, parts: list[Words]) -> LogStatistics:
        work, bins = works[log]
        return count_keys(parts, work.first_dirty, bins, top)

    return by_bucket(batches, ENTRY_WORDS, count)


class SparkObserver:
    """Observes logs on the workers of a session; ``workers``: about how many there are."""

    def __init__(self, session: SparkSession, workers: int, progress: Progress | None = None) -> None:
        self._session = session
        self._workers = workers
        self._progress = progress

    def engine(self) -> Engine:
        """The cleaner's engine on the same session, for the dry run."""
        return SparkEngine(self._session, tasks=self._workers, progress=self._progress)

    def __call__(self, works: Works, top: int) -> dict[str, LogStatistics]:
        """All logs in one job; where it fails, each in one of its own. Raises EngineError when Spark is
        gone."""
        return all_or_each(
            self._session,
            works,
            lambda logs: self._observe(logs, top),
            lambda log, error: {log[0].name: LogStatistics(failure=failure_of(error))},
        )

    def _observe(self, works: Works, top: int) -> dict[str, LogStatistics]:
        runs = [(log, run) for log, (work, _) in enumerate(works) for run in self._runs(work)]
        buckets = [self._buckets(work) for work, _ in works]
        statistics = {work.name: LogStatistics() for work, _ in works}
        if not runs:
            return statistics
        first = functools.partial(observe_task, list(works), runs, buckets)
        second = functools.partial(count_keys_task, list(works), top)
        shape = (len(runs), len(runs), self._workers)
        size = sum(work.size for work, _ in works)
        read = bytes_by_tasks(self._session, len(runs) + self._workers, size)
        with report_progress(self._progress, "statistics", size, read):
            for log, part in run_bucketed(self._session, "explain", *shape, first, second, LogStatistics):
                statistics[works[log][0].name].merge(part, top)
        return statistics

    def _buckets(self, work: LogWork) -> int:
        small = work.size <= _SMALL_BYTES
        return buckets_of(work, _BUCKET_BYTES, 1 if small else self._workers)

    def _runs(self, work: LogWork) -> list[list[int]]:
        """Neighbouring segments, about 64 MiB in each list."""
        return runs_of([segment.size for segment in work.segments], math.ceil(work.size / _SMALL_BYTES))
