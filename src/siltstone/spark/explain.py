"""Observing logs on Spark: DataFrames only, so a session of Spark Connect will do as well.

::

    spark.range(runs of segments) ─ observe_task ─► entries, reports ─ by log, bucket ─► tally_task ─► reports
"""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from siltstone.cleaner.engine import Engine
from siltstone.cleaner.explanation.explaining import Sight
from siltstone.cleaner.explanation.here import buckets_of
from siltstone.cleaner.explanation.observing import ENTRY_WORDS, Bins, Observed, Words, observe
from siltstone.cleaner.explanation.tallying import KeyTally, tally
from siltstone.cleaner.work import LogWork, Trouble, trouble_of
from siltstone.errors import EngineError
from siltstone.spark.clean import SparkEngine

Batches = Iterable[pa.RecordBatch]
Works = Sequence[tuple[LogWork, Bins]]
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
_BUCKET_BYTES = 512 << 20
_SMALL_BYTES = 64 << 20


def _row(log: int, target: int, *, entries: Words | None = None, report: str = "") -> pa.RecordBatch:
    blob = pa.py_buffer(b"" if entries is None else np.ascontiguousarray(entries).view(np.uint8).data)
    arrays = [
        pa.array([log], pa.int32()),
        pa.array([target], pa.int32()),
        pa.array([0 if entries is None else len(entries)], pa.int64()),
        pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, blob.size], np.int32)), blob]),
        pa.array([report], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def observe_task(
    works: Works, runs: Sequence[tuple[int, Sequence[int]]], buckets: Sequence[int], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a run of a log's segments: entries by bucket, and a report."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            log, segments = runs[number]
            work, bins = works[log]
            seen, trouble = Observed(bins=bins.count), None
            try:
                for bucket, entries in observe(work, segments, buckets[log], bins, seen):
                    yield _row(log, bucket, entries=entries)
            except Exception as error:
                trouble = asdict(trouble_of(error))
            yield _row(log, number, report=json.dumps({"observed": seen.to_json(), "trouble": trouble}))


def tally_task(works: Works, top: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Entries become tallies, bucket by bucket; reports pass through.

    Raises ValueError when a blob lost or gained a byte on its way.
    """
    blobs: dict[tuple[int, int], list[Words]] = {}
    for batch in batches:
        logs, targets, counts, reports = (
            batch.column(name).to_pylist() for name in ("log", "target", "count", "report")
        )
        for row, (log, target, count, report) in enumerate(zip(logs, targets, counts, reports, strict=True)):
            if report:
                yield _row(log, target, report=report)
                continue
            entries = np.frombuffer(batch.column("blob")[row].as_buffer(), np.uint64).reshape(-1, ENTRY_WORDS)
            if len(entries) != count:
                raise ValueError(f"{count} entries were sent, {len(entries)} arrived")
            blobs.setdefault((log, target), []).append(entries.copy())
    for log, bucket in sorted(blobs):
        work, bins = works[log]
        found = tally(blobs.pop((log, bucket)), work.first_dirty, bins, top)
        yield _row(log, bucket, report=json.dumps({"tally": asdict(found)}))


def _in_worker(function: Any, *given: object) -> Iterator[pa.RecordBatch]:
    """Run a task's function; what numba and pandas made is spared each task's garbage collection."""
    if not gc.get_freeze_count():
        gc.freeze()
    found: Iterator[pa.RecordBatch] = function(*given)
    return found


class SparkObserver:
    """Observes logs over a session's workers, in one job; ``workers``: about how many there are."""

    def __init__(self, session: SparkSession, workers: int) -> None:
        self._session = session
        self._workers = workers

    def engine(self) -> Engine:
        """The cleaner's engine on the same session, for the dry run."""
        return SparkEngine(self._session, tasks=self._workers)

    def __call__(self, works: Works, top: int) -> dict[str, Sight]:
        """All logs in one job. Raises EngineError when Spark gives up."""
        runs = [(log, run) for log, (work, _) in enumerate(works) for run in self._runs(work)]
        buckets = [self._buckets(work) for work, _ in works]
        sights = {
            work.name: Sight(observed=Observed(bins=bins.count), tally=KeyTally()) for work, bins in works
        }
        if not runs:
            return sights
        frame = self._session.range(0, len(runs), 1, len(runs))
        task = functools.partial(_in_worker, observe_task, list(works), runs, buckets)
        entries = frame.mapInArrow(task, SCHEMA).repartition(self._workers, "log", "target")
        tallied = entries.mapInArrow(functools.partial(_in_worker, tally_task, list(works), top), SCHEMA)
        for row in _collect(tallied):
            sight, raw = sights[works[int(row["log"])][0].name], json.loads(row["report"])
            if "tally" in raw:
                sight.tally.add(KeyTally.of_json(raw["tally"]), top)
                continue
            sight.observed.add(Observed.of_json(raw["observed"]))
            if raw["trouble"] is not None:
                sight.trouble = sight.trouble or Trouble(**raw["trouble"])
        return sights

    def _buckets(self, work: LogWork) -> int:
        small = sum(segment.size for segment in work.segments) <= _SMALL_BYTES
        return buckets_of(work, _BUCKET_BYTES, 1 if small else self._workers)

    def _runs(self, work: LogWork) -> list[list[int]]:
        """Runs of neighbouring segments, about 64 MiB each."""
        runs: list[list[int]] = []
        room = 0
        for number, segment in enumerate(work.segments):
            if not runs or room + segment.size > _SMALL_BYTES:
                runs.append([])
                room = 0
            runs[-1].append(number)
            room += segment.size
        return runs


def _collect(frame: DataFrame) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    except Exception as error:
        known = isinstance(error, (PySparkException, OSError, RuntimeError))
        if known or type(error).__module__.startswith(("py4j", "grpc")):
            lines = [line for line in str(error).splitlines() if "Error" in line or "Exception" in line]
            why = (lines[-1] if lines else str(error))[:300]
            raise EngineError(f"explain: the Spark job failed: {why.strip()}") from error
        raise
    return rows
