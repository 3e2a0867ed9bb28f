"""Runs the checks of ``siltstone verify`` on Spark, with DataFrames only, so that they also run on Spark
Connect.

::

    spans ─ span_task ─► key entries, reports ─ by log and bucket ─► check_bucket_task ─► reports

``verify`` compares a log before a cleaning (BEFORE) with the log after it (AFTER). A span is one segment of
AFTER and the segments of BEFORE with the same offsets. The rules are in ``siltstone.verify``. As there,
nothing of the cleaner is imported here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError
from siltstone.base.records.layout import Words
from siltstone.spark.rows import ENTRIES, REPORT, array_row, report_row
from siltstone.spark.tasks import Batches, all_or_each, by_bucket, run_by_bucket, task_numbers
from siltstone.verify.checking import CheckedLogs, SpanReport, bucket_count, check_span, entry_count_max
from siltstone.verify.findings import Findings
from siltstone.verify.keys import ENTRY_BYTES, check_bucket
from siltstone.verify.pairs import LogPair, Span, spans_of

_SPANS_PER_TASK = 4
"""About how many spans a task checks, if there are many: a task costs Spark some 80 ms."""
_BUCKETS_MIN = 2
"""The least number of buckets of a large log, also with one worker."""
_LARGE_LOG_BYTES = 64 << 20
"""A larger log has at least a bucket of keys for each worker."""
_ENTRY_WORDS = ENTRY_BYTES // 8
"""64-bit words of a key entry of ``verify.keys``."""
_TASK_ENTRY_BYTES = 256 << 20
"""About the most bytes of key entries for a task that checks buckets: it holds those of all its buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """A task's report on a span, or on the keys of a bucket."""

    span: SpanReport | None = None
    keys: Findings | None = None


def span_task(
    pairs: Sequence[LogPair], spans: Sequence[tuple[int, Span]], min_buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Check spans; yields the key entries of each by bucket, and a report.

    A row of ``batches`` has the index of a (log, span) in ``spans``; ``log`` is an index into ``pairs``."""
    for number in task_numbers(batches):
        log, span = spans[number]
        report = SpanReport(number=span.number)
        for bucket, entries in check_span(pairs[log], span, bucket_count(pairs[log], min_buckets), report):
            yield array_row(ENTRIES, bucket, entries, log=log).batch()
        yield report_row(REPORT, CheckReport(span=report), span.number, log=log).batch()


def check_bucket_task(pairs: Sequence[LogPair], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Check the last value of each key, bucket by bucket; yields a report on each bucket, and passes the
    reports on spans on.

    Raises ValueError if a blob lost or gained bytes on its way.
    """

    def check(log: int, bucket: int, parts: list[Words]) -> CheckReport:
        pair = pairs[log]
        findings = check_bucket(
            parts, first_dirty_offset=pair.first_dirty_offset, was_cleaned=pair.was_cleaned
        )
        return CheckReport(keys=findings)

    return by_bucket(batches, _ENTRY_WORDS, check)


class SparkChecker:
    """Runs checks on the workers of a session; ``parallelism``: about how many tasks they run at the same
    time."""

    def __init__(self, session: SparkSession, parallelism: int) -> None:
        self._session = session
        self._parallelism = parallelism

    def __call__(self, pairs: Sequence[LogPair]) -> CheckedLogs:
        """Check all logs in one job and, if that fails, each log in a job of its own.

        Raises EngineError if Spark is gone."""
        return all_or_each(
            self._session,
            pairs,
            self._check,
            lambda pair, error: {pair.name: ([_unchecked_report(error)], Findings())},
        )

    def _check(self, pairs: Sequence[LogPair]) -> CheckedLogs:
        """Check these logs in one job. Raises EngineError if it fails."""
        spans = [(log, span) for log, pair in enumerate(pairs) for span in spans_of(pair)]
        # The largest spans first: one that began last would run alone.
        spans.sort(key=lambda item: -sum(pairs[item[0]].before[segment].size for segment in item[1].before))
        checked: CheckedLogs = {pair.name: ([], Findings()) for pair in pairs}
        if not spans:
            return checked
        tasks = min(len(spans), max(self._parallelism, len(spans) // _SPANS_PER_TASK))
        has_large_log = any(sum(segment.size for segment in pair.before) > _LARGE_LOG_BYTES for pair in pairs)
        min_buckets = max(self._parallelism, _BUCKETS_MIN) if has_large_log else 1
        read_spans = functools.partial(span_task, list(pairs), spans, min_buckets)
        check_buckets = functools.partial(check_bucket_task, list(pairs))
        for log, report in run_by_bucket(
            self._session,
            "verify",
            len(spans),
            tasks,
            bucket_tasks(pairs, self._parallelism),
            read_spans,
            check_buckets,
            CheckReport,
        ):
            reports, key_findings = checked[pairs[log].name]
            if report.keys is not None:
                key_findings.merge(report.keys)
            if report.span is not None:
                reports.append(report.span)
        return checked


def bucket_tasks(pairs: Sequence[LogPair], parallelism: int) -> int:
    """How many tasks check the buckets of the logs: ``parallelism``, or more for large logs
    (``_TASK_ENTRY_BYTES``)."""
    entry_bytes = ENTRY_BYTES * sum(map(entry_count_max, pairs))
    return max(parallelism, math.ceil(entry_bytes / _TASK_ENTRY_BYTES))


def _unchecked_report(error: EngineError) -> SpanReport:
    """The report on a log whose job failed."""
    findings = Findings(is_complete=False)
    findings.add("unchecked", str(error))
    return SpanReport(number=0, findings=findings)
