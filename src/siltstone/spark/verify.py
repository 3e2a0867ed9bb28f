"""Runs the check of a cleaning on Spark: DataFrames only, so that a session of Spark Connect will do as well.

::

    spark.range(spans) ─ span_task ─► entries, reports ─ by target ─► bucket_task ─► reports

A span is one segment of AFTER with what BEFORE has of its offsets. The rules are those of ``verify``; nothing
of the cleaner is imported here either.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError
from siltstone.base.records.layout import Words
from siltstone.spark.rows import ENTRIES, REPORT, array_row, report_row
from siltstone.spark.tasks import Batches, all_or_each, by_bucket, run_bucketed, task_numbers
from siltstone.verify.checking import CheckedLogs, SpanReport, bucket_count, check_span
from siltstone.verify.findings import Findings
from siltstone.verify.keys import check_bucket
from siltstone.verify.pairs import LogPair, Span, spans_of

_SPANS_PER_TASK = 4
_MIN_BUCKETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """A task's report: of a span, or of the keys of a bucket."""

    span: SpanReport | None = None
    keys: Findings | None = None


def span_task(
    pairs: Sequence[LogPair], spans: Sequence[tuple[int, Span]], minimum: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a span: its entries by bucket, and its report."""
    for number in task_numbers(batches):
        log, span = spans[number]
        report = SpanReport(number=span.number)
        for bucket, entries in check_span(pairs[log], span, bucket_count(pairs[log], minimum), report):
            yield array_row(ENTRIES, bucket, entries, log=log).batch()
        yield report_row(REPORT, CheckReport(span=report), span.number, log=log).batch()


def bucket_task(pairs: Sequence[LogPair], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Checks the entries of each bucket; reports pass through.

    Raises ValueError when a blob lost or gained a byte on its way.
    """

    def check(log: int, bucket: int, parts: list[Words]) -> CheckReport:
        pair = pairs[log]
        findings = check_bucket(
            parts, first_dirty_offset=pair.first_dirty_offset, was_cleaned=pair.was_cleaned
        )
        return CheckReport(keys=findings)

    return by_bucket(batches, 3, check)


class SparkChecker:
    """Runs the parts of checks over a session's workers; ``workers``: about how many there are."""

    def __init__(self, session: SparkSession, workers: int) -> None:
        self._session = session
        self._workers = workers

    def __call__(self, pairs: Sequence[LogPair]) -> CheckedLogs:
        """All spans and all buckets in one job; where it fails, each log's in one of its own. Raises
        EngineError when Spark is gone."""
        return all_or_each(
            self._session,
            pairs,
            self._check,
            lambda pair, error: {pair.name: ([_unchecked(error)], Findings())},
        )

    def _check(self, pairs: Sequence[LogPair]) -> CheckedLogs:
        spans = [(log, span) for log, pair in enumerate(pairs) for span in spans_of(pair)]
        # The largest spans first: one that began last would run alone.
        spans.sort(key=lambda item: -sum(pairs[item[0]].before[n].size for n in item[1].before))
        checked: CheckedLogs = {pair.name: ([], Findings()) for pair in pairs}
        if not spans:
            return checked
        tasks = min(len(spans), max(self._workers, len(spans) // _SPANS_PER_TASK))
        large = any(sum(segment.size for segment in pair.before) > 1 << 26 for pair in pairs)
        minimum = max(self._workers, _MIN_BUCKETS) if large else 1
        first = functools.partial(span_task, list(pairs), spans, minimum)
        second = functools.partial(bucket_task, list(pairs))
        for log, report in run_bucketed(
            self._session, "verify", len(spans), tasks, self._workers, first, second, CheckReport
        ):
            reports, key_findings = checked[pairs[log].name]
            if report.keys is not None:
                key_findings.merge(report.keys)
            if report.span is not None:
                reports.append(report.span)
        return checked


def _unchecked(error: EngineError) -> SpanReport:
    findings = Findings(is_complete=False)
    findings.add("unchecked", str(error))
    return SpanReport(number=0, findings=findings)
