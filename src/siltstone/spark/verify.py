"""The check of a cleaning on Spark: DataFrames only, so a session of Spark Connect will do as well.

::

    spark.range(spans) ─ span_task ─► entries, reports ─ by target ─► bucket_task ─► reports

A span is one segment of AFTER with what lay in its place. What rules it goes by is ``verifying``'s; nothing
of the cleaner is imported here either.
"""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from siltstone.errors import EngineError
from siltstone.verifying.findings import Findings
from siltstone.verifying.keys import Words, judge_bucket
from siltstone.verifying.pairs import LogPair, Span, spans_of
from siltstone.verifying.spans import SpanReport, check_span
from siltstone.verifying.transactions import SpanTransactions
from siltstone.verifying.verdict import bucket_count, key_terms

Batches = Iterable[pa.RecordBatch]
SCHEMA = "log int, target int, count long, blob binary, report string"
_ARROW = pa.schema(
    [
        pa.field("log", pa.int32()),
        pa.field("target", pa.int32()),
        pa.field("count", pa.int64()),
        pa.field("blob", pa.binary()),
        pa.field("report", pa.string()),
    ]
)
_SPANS_PER_TASK = 4
_BUCKETS_LEAST = 2


def _row(log: int, target: int, *, entries: Words | None = None, report: str = "") -> pa.RecordBatch:
    """One row: entries of a bucket, or a report; the blob is not copied."""
    blob = pa.py_buffer(b"" if entries is None else np.ascontiguousarray(entries).view(np.uint8).data)
    offsets = pa.py_buffer(np.array([0, blob.size], np.int32))
    arrays = [
        pa.array([log], pa.int32()),
        pa.array([target], pa.int32()),
        pa.array([0 if entries is None else len(entries)], pa.int64()),
        pa.Array.from_buffers(pa.binary(), 1, [None, offsets, blob]),
        pa.array([report], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def span_task(
    pairs: Sequence[LogPair], spans: Sequence[tuple[int, Span]], least: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a span: its entries by bucket, and its report."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            log, span = spans[number]
            report = SpanReport(number=span.number)
            for bucket, entries in check_span(pairs[log], span, bucket_count(pairs[log], least), report):
                yield _row(log, bucket, entries=entries)
            yield _row(log, span.number, report=_report(report))


def _report(report: SpanReport) -> str:
    found = {
        "number": report.number,
        "findings": report.findings.to_json(),
        "transactions": report.transactions.to_json(),
        "horizons": sorted(report.horizons),
    }
    return json.dumps(found)


def bucket_task(pairs: Sequence[LogPair], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Entries become findings, bucket by bucket; reports pass through.

    Raises ValueError when a blob lost or gained a byte on its way.
    """
    blobs: dict[tuple[int, int], list[Words]] = {}
    for batch in batches:
        for row in range(batch.num_rows):
            log, target, count, _, report = (column[row].as_py() for column in _without_blob(batch))
            if report:
                yield _row(log, target, report=report)
                continue
            entries = np.frombuffer(batch.column("blob")[row].as_buffer(), np.uint64).reshape(-1, 3)
            if len(entries) != count:
                raise ValueError(f"{count} entries were sent, {len(entries)} arrived")
            blobs.setdefault((log, target), []).append(entries.copy())
    for log, bucket in sorted(blobs):
        findings = judge_bucket(blobs.pop((log, bucket)), key_terms(pairs[log]))
        yield _row(log, bucket, report=json.dumps({"judged": findings.to_json()}))


def _without_blob(batch: pa.RecordBatch) -> list[pa.Array]:
    nothing = pa.nulls(batch.num_rows)
    return [nothing if name == "blob" else batch.column(name) for name in _ARROW.names]


def _in_worker(function: object, *given: object) -> Iterator[pa.RecordBatch]:
    """Run a task's function; what numba and pandas made is spared each task's garbage collection."""
    if not gc.get_freeze_count():
        gc.freeze()
    assert callable(function)
    found: Iterator[pa.RecordBatch] = function(*given)
    return found


class SparkChecker:
    """Runs the parts of checks over a session's workers; ``workers``: about how many there are."""

    def __init__(self, session: SparkSession, workers: int) -> None:
        self._session = session
        self._workers = workers

    def __call__(self, pairs: Sequence[LogPair]) -> dict[str, tuple[list[SpanReport], list[Findings]]]:
        """All spans and all buckets in one job. Raises EngineError when Spark gives up."""
        spans = [(log, span) for log, pair in enumerate(pairs) for span in spans_of(pair)]
        spans.sort(key=lambda each: -sum(pairs[each[0]].before[n].size for n in each[1].before))
        done: dict[str, tuple[list[SpanReport], list[Findings]]] = {pair.name: ([], []) for pair in pairs}
        if not spans:
            return done
        tasks = min(len(spans), max(self._workers, len(spans) // _SPANS_PER_TASK))
        large = any(sum(segment.size for segment in pair.before) > 1 << 26 for pair in pairs)
        least = max(self._workers, _BUCKETS_LEAST) if large else 1
        frame = self._session.range(0, len(spans), 1, tasks)
        task = functools.partial(_in_worker, span_task, list(pairs), spans, least)
        entries = frame.mapInArrow(task, SCHEMA).repartition(self._workers, "log", "target")
        judged = entries.mapInArrow(functools.partial(_in_worker, bucket_task, list(pairs)), SCHEMA)
        for row in self._collect(judged):
            reports, findings = done[pairs[int(row["log"])].name]
            raw = json.loads(str(row["report"]))
            if "judged" in raw:
                findings.append(Findings.of_json(raw["judged"]))
            else:
                reports.append(_report_of(raw))
        return done

    def _collect(self, frame: DataFrame) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
        except Exception as error:
            known = isinstance(error, (PySparkException, OSError, RuntimeError))
            if known or type(error).__module__.startswith(("py4j", "grpc")):
                lines = [line for line in str(error).splitlines() if "Error" in line or "Exception" in line]
                why = (lines[-1] if lines else str(error))[:300]
                raise EngineError(f"verify: the Spark job failed: {why.strip()}") from error
            raise
        return rows


def _report_of(raw: dict[str, Any]) -> SpanReport:
    return SpanReport(
        number=raw["number"],
        findings=Findings.of_json(raw["findings"]),
        transactions=SpanTransactions.of_json(raw["transactions"]),
        horizons=set(raw["horizons"]),
    )
