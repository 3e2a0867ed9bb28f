"""Running tasks and jobs, for the cleaner, the compactor, ``explain`` and ``verify``.

``verify`` shares no code with the cleaner, so this module imports nothing of ``compaction``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from siltstone.base import interruption
from siltstone.base.errors import EngineError
from siltstone.base.records.layout import Words
from siltstone.spark import internals
from siltstone.spark.internals import WORKER_EXITED, is_connect
from siltstone.spark.rows import REPORT, SCHEMA, Report, report_of, report_row, rows_of

Batches = Iterable[pa.RecordBatch]
Result = TypeVar("Result")
_BUCKET_BYTES = 32 << 20
WORKER_DIED_ADVICE = (
    "let fewer tasks run at one time (--master local[1]), lower log.cleaner.dedupe.buffer.size and "
    "log.cleaner.io.buffer.size, or give the machine more memory"
)
JAVA_DIED_ADVICE = "run again; if the system killed it, give the machine more memory"


def task_numbers(batches: Batches) -> Iterator[int]:
    """The numbers of ``spark.range`` in a task's rows."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def freeze_imports() -> None:
    """Freeze the objects of imported modules. PySpark collects garbage after each task, and going through the
    objects of numba and pandas takes longer than many tasks."""
    if not gc.get_freeze_count():
        gc.freeze()


def in_worker(
    function: Callable[..., Iterator[pa.RecordBatch]], *arguments: object
) -> Iterator[pa.RecordBatch]:
    """Run a task's function."""
    freeze_imports()
    return function(*arguments)


def merge_shape(buckets: int, workers: int, entry_bytes: int, memory_bytes: int) -> tuple[int, int]:
    """(buckets, tasks) of a merge for which ``buckets`` are enough: those of a task take ``memory_bytes``.

    A task costs Spark some 80 ms, so one that is given several buckets, which it merges one after another,
    beats several tasks. It holds the entries of all of them (of ``entry_bytes`` in all), so both it and the
    merge of each may take half of the memory.
    """
    if buckets <= workers:
        return buckets, buckets
    return 2 * buckets, min(2 * buckets, max(workers, math.ceil(2 * entry_bytes / memory_bytes)))


def finer_buckets(buckets: int, tasks: int, entry_bytes: int) -> int:
    """A larger number of buckets, a multiple of ``tasks``, so that each has about 32 MiB of entries: a merge
    takes three and a half times as much memory, and a task merges its buckets one after another."""
    return max(buckets, tasks * math.ceil(entry_bytes / (tasks * _BUCKET_BYTES)))


def runs_of(sizes: Sequence[int], tasks: int) -> list[list[int]]:
    """Split the numbers of ``sizes`` into up to ``tasks`` lists of neighbours of about the same size."""
    total, passed = sum(sizes), 0
    runs: list[list[int]] = [[] for _ in range(tasks)]
    for number, size in enumerate(sizes):
        runs[min(tasks - 1, (passed + size // 2) * tasks // max(total, 1))].append(number)
        passed += size
    return [run for run in runs if run]


@contextlib.contextmanager
def engine_errors(title: str) -> Iterator[None]:
    """Turn the failure of a job within the block into an EngineError, and an error that an interrupt caused
    (PySpark raises one for the cancelled job) into a KeyboardInterrupt."""
    try:
        interruption.current().check()
        yield
    except Exception as error:
        if interruption.is_interrupt(error):
            interruption.current().wait_for_callbacks()
            raise KeyboardInterrupt from error
        if isinstance(error, EngineError):
            raise
        failed = job_error(title, error)
        if failed is None:
            raise
        raise failed from error


def job_error(title: str, error: Exception) -> EngineError | None:
    """The error of a failed job, in a line; None for an error that is not Spark's. ``title``: the log that
    the job is for, or what it does."""
    known = isinstance(error, (PySparkException, OSError, RuntimeError))
    if not known and not type(error).__module__.startswith(("py4j", "grpc")):
        return None
    lines = [line.strip() for line in str(error).strip().splitlines()]
    messages = [line for line in lines if not line.startswith(("at ", "... "))]
    causes = [line for line in messages if "Error" in line or "Exception" in line]
    cause = (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:300]
    reason, advice = f"the Spark job failed: {cause}", None
    if WORKER_EXITED in str(error):
        reason += "; the system has probably killed the worker for lack of memory"
        advice = WORKER_DIED_ADVICE
    elif _is_without_java(error):
        reason = f"the Spark job failed: Spark's Java process has ended or was killed ({cause})"
        advice = JAVA_DIED_ADVICE
    return EngineError(reason, path=title, advice=advice)


def _is_without_java(error: Exception) -> bool:
    """Is it an error of Py4J without a Java process: its own, or a refused connection?"""
    name = type(error).__name__
    if name == "Py4JError":
        return "Trace:" not in str(error)
    return name == "Py4JNetworkError" or isinstance(error, ConnectionError)


# Running a job so that an interrupt ends the wait, and the job is cancelled.
#
# PySpark waits for a job in a ``finally``: the main thread would wait for the end of a job that was
# interrupted, and raise its error. So another thread calls Java, and the main thread only waits.


def is_alive(session: SparkSession) -> bool:
    """Is the session not stopped, and does its Java process answer?"""
    try:
        if is_connect(session):
            return bool(session.range(1).count())
        return not internals.java_context(session).isStopped()
    except Exception:
        return False


def run_job(session: SparkSession, title: str, job: Callable[[], DataFrame]) -> pa.Table:
    """Run the DataFrame that ``job`` makes, and return its rows. Raises EngineError when the job fails, and
    KeyboardInterrupt after an interrupt, when the job is cancelled."""
    with engine_errors(title):
        frame = job()
        if is_connect(session) or threading.current_thread() is not threading.main_thread():
            return frame.toArrow()
        (table,) = one_after_another(session, lambda _: frame.toArrow(), 1)
        return table


def one_after_another(session: SparkSession, job: Callable[[int], Result], jobs: int) -> Iterator[Result]:
    """The results of jobs 0, 1, …, which run in another thread while the caller works on earlier results.

    Raises what a job raised; no further job begins then. Nor does one when the caller stops iterating: the
    job that runs is cancelled by its tag, and jobs of other threads go on.
    """
    context, tag = session.sparkContext, f"siltstone-{secrets.token_hex(8)}"
    results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    is_over = threading.Event()

    def go() -> None:
        try:
            context.addJobTag(tag)
            for number in range(jobs):
                if is_over.is_set():
                    return
                results.put(job(number))
        except BaseException as error:
            results.put(error)

    left = jobs
    try:
        InheritableThread(target=go, daemon=True).start()
        while left:
            result = results.get()
            left -= 1
            if isinstance(result, BaseException):
                left = 0
                raise result
            yield result
    finally:
        is_over.set()
        if left:
            interruption.current().wait_for_callbacks()
            with contextlib.suppress(Exception):  # Spark may be gone
                if not interruption.current().has_come:
                    context.cancelJobsWithTag(tag)


# Jobs of two stages, entries by log and bucket and then reports: ``explain``'s and ``verify``'s.
#
# ::
#
#     spark.range ─ first task ─► entries, reports ─ by log and target ─► second task ─► reports
#
# DataFrames only, so a session of Spark Connect will do as well. Nothing of the cleaner is imported here.

Task = Callable[[Batches], Iterator[pa.RecordBatch]]
Log = TypeVar("Log")


def by_bucket(
    batches: Batches, words: int, report_on: Callable[[int, int, list[Words]], object]
) -> Iterator[pa.RecordBatch]:
    """The second task: ``report_on(log, bucket, parts)`` makes the report on a bucket's entries, of ``words``
    words each.

    Reports pass through. Raises ValueError when a blob lost or gained a byte on its way.
    """
    parts: dict[tuple[int, int], list[Words]] = {}
    for row in rows_of(batches):
        if row.kind == REPORT:
            yield row.batch()
        else:
            parts.setdefault((row.log, row.target), []).append(row.array(np.uint64, words).copy())
    for log, bucket in sorted(parts):
        report = report_on(log, bucket, parts.pop((log, bucket)))
        yield report_row(REPORT, report, bucket, log=log).batch()


def run_bucketed(
    session: SparkSession,
    title: str,
    numbers: int,
    tasks: int,
    workers: int,
    first: Task,
    second: Task,
    kind: type[Report],
) -> list[tuple[int, Report]]:
    """Run both stages over ``range(numbers)``: (log, report of type ``kind``), in any order. Raises
    EngineError."""

    def job() -> DataFrame:
        frame = session.range(0, numbers, 1, tasks).mapInArrow(functools.partial(in_worker, first), SCHEMA)
        frame = frame.repartition(workers, "log", "target")
        return frame.mapInArrow(functools.partial(in_worker, second), SCHEMA)

    table = run_job(session, title, job)
    return [(row.log, report_of(row, kind)) for row in rows_of(table.to_batches())]


def all_or_each(
    session: SparkSession,
    logs: Sequence[Log],
    run: Callable[[Sequence[Log]], dict[str, Report]],
    failed: Callable[[Log, EngineError], dict[str, Report]],
) -> dict[str, Report]:
    """``run`` all logs in one job and, if that fails, each log in a job of its own; ``failed`` makes the
    result of a log whose own job fails. Raises EngineError when Spark is gone."""
    try:
        return run(logs)
    except EngineError as error:
        if not is_alive(session):
            raise
        if len(logs) == 1:
            return failed(logs[0], error)
    return {name: done for log in logs for name, done in all_or_each(session, [log], run, failed).items()}
