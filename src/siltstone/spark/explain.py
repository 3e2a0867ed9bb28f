"""Observes logs for ``siltstone explain`` on Spark, with DataFrames only, so that it also runs on Spark
Connect.

::

    segments ─ observe_task ─► key entries, reports ─ by log and bucket ─► count_keys_task ─► reports
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
from siltstone.spark.tasks import Batches, all_or_each, by_bucket, neighbours, run_by_bucket, task_numbers

Works = Sequence[tuple[LogWork, Bins]]
"""Each log, and the bins of its histograms."""
_BUCKET_BYTES = 512 << 20
_TASK_BYTES = 64 << 20
"""About so many bytes of segments for a task; a log of up to so many has one bucket."""


def observe_task(
    works: Works, segment_lists: Sequence[tuple[int, Sequence[int]]], buckets: Sequence[int], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Read neighbouring segments of a log; yields key entries by bucket, and a report.

    A row of ``batches`` has the index of a (log, segments) in ``segment_lists``; ``log`` is an index into
    ``works`` and ``buckets``, the number of buckets of each log."""
    for number in task_numbers(batches):
        log, segments = segment_lists[number]
        work, bins = works[log]
        statistics = LogStatistics()
        try:
            for bucket, entries in observe(work, segments, buckets[log], bins, statistics):
                yield array_row(ENTRIES, bucket, entries, log=log).batch()
        except Exception as error:
            statistics.failure = failure_of(error)
        yield report_row(REPORT, statistics, number, log=log).batch()


def count_keys_task(works: Works, top: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Count the keys of buckets, and find the ``top`` most frequent; passes reports on.

    Raises ValueError if a blob lost or gained bytes on its way.
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
        """Observe all logs in one job and, if that fails, each log in a job of its own.

        Raises EngineError if Spark is gone."""
        return all_or_each(
            self._session,
            works,
            lambda logs: self._observe(logs, top),
            lambda log, error: {log[0].name: LogStatistics(failure=failure_of(error))},
        )

    def _observe(self, works: Works, top: int) -> dict[str, LogStatistics]:
        segment_lists = [
            (log, part) for log, (work, _) in enumerate(works) for part in self._segment_lists(work)
        ]
        buckets = [self._buckets(work) for work, _ in works]
        statistics = {work.name: LogStatistics() for work, _ in works}
        if not segment_lists:
            return statistics
        first = functools.partial(observe_task, list(works), segment_lists, buckets)
        second = functools.partial(count_keys_task, list(works), top)
        inputs = len(segment_lists)
        shape = (inputs, inputs, self._workers)  # inputs, tasks of the first stage, tasks of the second
        size = sum(work.size for work, _ in works)
        read = bytes_by_tasks(self._session, inputs + self._workers, size)
        with report_progress(self._progress, "statistics", size, read):
            for log, part in run_by_bucket(self._session, "explain", *shape, first, second, LogStatistics):
                statistics[works[log][0].name].merge(part, top)
        return statistics

    def _buckets(self, work: LogWork) -> int:
        is_small = work.size <= _TASK_BYTES
        return buckets_of(work, _BUCKET_BYTES, 1 if is_small else self._workers)

    def _segment_lists(self, work: LogWork) -> list[list[int]]:
        """The indexes of neighbouring segments, about 64 MiB in each list."""
        return neighbours([segment.size for segment in work.segments], math.ceil(work.size / _TASK_BYTES))
