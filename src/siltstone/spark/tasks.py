"""Runs tasks and jobs for the cleaner, the compactor and ``verify``.

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
from pyspark import RDD, InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from siltstone.base import files, interruption
from siltstone.base.errors import EngineError, SiltstoneError
from siltstone.base.records import kernel
from siltstone.base.records.layout import Words
from siltstone.spark import internals
from siltstone.spark.internals import WORKER_EXITED, is_connect
from siltstone.spark.rows import ARROW_SCHEMA, REPORT, SCHEMA, Report, report_of, report_row, rows_of

Batches = Iterable[pa.RecordBatch]
"""The input of a task's function."""
Result = TypeVar("Result")
_ENTRY_BYTES_PER_BUCKET = 32 << 20
"""About the most bytes of key entries in a bucket, if ``smaller_buckets`` may choose."""
WORKER_DIED_ADVICE = (
    "let fewer tasks run at the same time (--master local[1]), lower log.cleaner.dedupe.buffer.size and "
    "log.cleaner.io.buffer.size, or give the machine more memory"
)
UNSHARED = "an executor does not share this folder with the driver"
"""Begins the message of a task's UnsharedFolderError (``spark.executors``)."""
UNSHARED_ADVICE = (
    "mount it on every executor for the same user, or clean with --master local[*], or with --out on storage "
    "that all executors share"
)
NOT_INSTALLED_ADVICE = (
    "install siltstone with its dependencies in the Python of the executors (PYSPARK_PYTHON); "
    "docs/cluster.md says how"
)
JAVA_DIED_ADVICE = "run again; if the system killed it, give the machine more memory"


def task_numbers(batches: Batches) -> Iterator[int]:
    """The numbers in the rows of ``spark.range`` that a task gets: each is the number of one of its
    inputs."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def freeze_imports() -> None:
    """Import numba, and exempt the objects of imported modules from garbage collection. PySpark collects
    garbage after each task, and going through the objects of numba and pandas takes longer than many
    tasks."""
    if not gc.get_freeze_count():
        kernel.load()  # else numba's objects would come later
        gc.freeze()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """In a Python process of Spark, report an error that Siltstone or the system raises within the block in
    one line, with its code in the next line, and without the traceback, which has only lines of Siltstone.

    Spark shows the text that the process sends: for a failed task below "An exception was thrown from the
    Python worker:". Errors that are not expected keep their traceback.
    """
    try:
        yield
    except (SiltstoneError, OSError) as error:
        if isinstance(error, SiltstoneError):
            error.add_note(f"code: {error.code}")
        internals.hide_traceback()
        raise


def in_worker(
    stores: files.StoreOptions, function: Callable[..., Iterator[pa.RecordBatch]], *arguments: object
) -> Iterator[pa.RecordBatch]:
    """Run a task's function in a Python worker, with the driver's options of object stores."""
    with one_line_errors():
        freeze_imports()
        files.configure(stores.values)
        yield from function(*arguments)


def task_name(function: Callable[..., object]) -> str:
    """The name of a task's function, also of a ``partial``."""
    return getattr(getattr(function, "func", function), "__name__", "task")


def worker_task(
    function: Callable[..., Iterator[pa.RecordBatch]], *arguments: object, name: str | None = None
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """``in_worker`` for ``mapInArrow``: it calls ``function(*arguments, batches)``.

    The plan of the query (``explain``, Spark's UI) has ``MapInArrow NAME(…)``; by default the function's own
    name."""
    task = functools.partial(in_worker, files.configured(), function, *arguments)
    task.__name__ = name or task_name(function)  # type: ignore[attr-defined]  # Spark asks for it
    return task


def numbered_rows(
    function: Callable[..., Iterator[pa.RecordBatch]], *arguments: object
) -> Callable[[Iterable[int]], Iterator[bytes]]:
    """``in_worker`` for an RDD of numbers: the numbers of a task come as one batch, and its rows are
    serialised."""
    return functools.partial(_numbered_rows, files.configured(), function, arguments)


def _numbered_rows(
    stores: files.StoreOptions,
    function: Callable[..., Iterator[pa.RecordBatch]],
    arguments: tuple[object, ...],
    numbers: Iterable[int],
) -> Iterator[bytes]:
    batch = pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64())})
    for rows in in_worker(stores, function, *arguments, [batch]):
        yield rows.serialize().to_pybytes()


def merge_shape(buckets: int, parallelism: int, entry_bytes: int, memory_bytes: int) -> tuple[int, int]:
    """(buckets, tasks) of a merge, so that a task takes at most ``memory_bytes``.

    ``buckets``: a number with which a task that merges one bucket stays within that memory; ``entry_bytes``:
    the key entries of all buckets. A task costs Spark some 80 ms, so few tasks that merge several buckets,
    one after another, are faster than one task for each. Such a task holds the entries of all its buckets. So
    its entries may take half of the memory, and the merge of one bucket the other half: there are twice as
    many buckets.
    """
    if buckets <= parallelism:
        return buckets, buckets
    return 2 * buckets, min(2 * buckets, max(parallelism, math.ceil(2 * entry_bytes / memory_bytes)))


def smaller_buckets(buckets: int, tasks: int, entry_bytes: int) -> int:
    """How many buckets a merge has, at least ``buckets``, so that each has about 32 MiB of key entries.

    The merge of a bucket takes three and a half times the memory of its entries, and a task merges its
    buckets one after another, so smaller buckets take less memory. ``entry_bytes``: those of all buckets."""
    return max(buckets, tasks * math.ceil(entry_bytes / (tasks * _ENTRY_BYTES_PER_BUCKET)))


def neighbours(sizes: Sequence[int], tasks: int) -> list[list[int]]:
    """Distribute the indexes of ``sizes`` over up to ``tasks`` lists of neighbours of about the same size."""
    total, bytes_before = sum(sizes), 0
    lists: list[list[int]] = [[] for _ in range(tasks)]
    for index, size in enumerate(sizes):
        # The list in whose share of all bytes the middle of this one lies.
        lists[min(tasks - 1, (bytes_before + size // 2) * tasks // max(total, 1))].append(index)
        bytes_before += size
    return [members for members in lists if members]


@contextlib.contextmanager
def engine_errors(title: str) -> Iterator[None]:
    """Turn an error of Spark within the block into an EngineError, or into a KeyboardInterrupt if an
    interrupt was the cause (PySpark raises an error for the cancelled job)."""
    try:
        interruption.current().check()
        yield
    except Exception as error:
        if interruption.is_interrupt(error):
            interruption.current().wait_for_callbacks()
            raise KeyboardInterrupt from error
        if isinstance(error, EngineError):
            raise
        engine_error = job_error(title, error)
        if engine_error is None:
            raise
        if UNSHARED in str(error):  # the traceback of the cause tells nothing more
            raise engine_error from None
        raise engine_error from error


def job_error(title: str, error: Exception) -> EngineError | None:
    """The EngineError for an error of Spark, in one line; None for an error that is not Spark's.

    ``title``: the log that the job is for, or what the job does."""
    is_known = isinstance(error, (PySparkException, OSError, RuntimeError))
    if not is_known and not type(error).__module__.startswith(("py4j", "grpc")):
        return None
    lines = [line.strip() for line in str(error).strip().splitlines()]
    messages = [line for line in lines if not line.startswith(("at ", "... "))]
    causes = [line for line in messages if "Error" in line or "Exception" in line]
    cause = (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:300]
    reason, advice = f"the Spark job failed: {cause}", None
    if WORKER_EXITED in str(error):
        reason += "; the system has probably killed the worker for lack of memory"
        advice = WORKER_DIED_ADVICE
    elif UNSHARED in str(error):
        line = next(line for line in lines if UNSHARED in line)
        reason, advice = line[line.index(UNSHARED) :], UNSHARED_ADVICE
    elif "No module named" in str(error):
        advice = NOT_INSTALLED_ADVICE
    elif _is_java_gone(error):
        reason = f"the Spark job failed: Spark's Java process has ended or was killed ({cause})"
        advice = JAVA_DIED_ADVICE
    return EngineError(reason, path=title, advice=advice)


def _is_java_gone(error: Exception) -> bool:
    """Does the error mean that there is no Java process: an error of Py4J itself, or a lost connection?"""
    # Py4J also reports exceptions of a running Java as Py4JError, and then with Java's trace.
    name = type(error).__name__
    if name == "Py4JError":
        return "Trace:" not in str(error)
    return name == "Py4JNetworkError" or isinstance(error, ConnectionError)


# An interrupt ends the wait for a job at once, and cancels the job.
#
# PySpark waits for a job in a ``finally`` block. If the main thread ran the job, it would wait for its end
# even after an interrupt. So another thread runs the job, and the main thread only waits for its result.


def is_alive(session: SparkSession) -> bool:
    """Is the session running, and does its Java process or Connect server answer?"""
    try:
        if is_connect(session):
            return bool(session.range(1).count())
        return not internals.java_context(session).isStopped()
    except Exception:
        return False


_DESCRIPTION = "spark.job.description"


def run_job(session: SparkSession, title: str, job: Callable[[], DataFrame | RDD[bytes]]) -> pa.Table:
    """Run the DataFrame that ``job`` makes, or the RDD of rows (``numbered_rows``), and return its rows.

    Spark's UI shows ``title`` as the job's description. Raises EngineError if the job fails, and
    KeyboardInterrupt after an interrupt, which cancels the job."""
    with engine_errors(title), _described(session, title):
        rows = job()
        if is_connect(session) or threading.current_thread() is not threading.main_thread():
            return _collected(rows)
        (table,) = run_jobs_in_thread(session, lambda _: _collected(rows), 1)
        return table


def _collected(rows: DataFrame | RDD[bytes]) -> pa.Table:
    if isinstance(rows, RDD):
        batches = [pa.ipc.read_record_batch(pa.py_buffer(data), ARROW_SCHEMA) for data in rows.collect()]
        return pa.Table.from_batches(batches, ARROW_SCHEMA)
    return rows.toArrow()


@contextlib.contextmanager
def _described(session: SparkSession, title: str) -> Iterator[None]:
    """Within the block, Spark's UI describes jobs by ``title``; afterwards the program's own description is
    set again."""
    if is_connect(session):
        yield
        return
    context = session.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"siltstone: {title}")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # Spark may have ended.
            context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it


def run_jobs_in_thread(session: SparkSession, job: Callable[[int], Result], jobs: int) -> Iterator[Result]:
    """The results of jobs 0, 1, …, which run in another thread while the caller works on earlier results.

    Raises what a job raised; no further job begins then. If the caller stops iterating, the job that runs is
    cancelled by its tag, and no further job begins. Jobs of other threads go on.
    """
    context, tag = session.sparkContext, f"siltstone-{secrets.token_hex(8)}"
    results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    is_over = threading.Event()

    def run_jobs() -> None:
        try:
            context.addJobTag(tag)
            for number in range(jobs):
                if is_over.is_set():
                    return
                results.put(job(number))
        except BaseException as error:
            results.put(error)

    jobs_left = jobs
    try:
        InheritableThread(target=run_jobs, daemon=True).start()
        while jobs_left:
            result = results.get()
            jobs_left -= 1
            if isinstance(result, BaseException):
                jobs_left = 0  # the thread has ended: there is no job to cancel
                raise result
            yield result
    finally:
        is_over.set()
        if jobs_left:
            interruption.current().wait_for_callbacks()
            with contextlib.suppress(Exception):  # Spark may have ended.
                if not interruption.current().was_signalled:
                    context.cancelJobsWithTag(tag)


# The jobs of ``verify``: the first stage reads logs, the second one works on keys by bucket.
#
# ::
#
#     spark.range ─ first task ─► entries, reports ─ by log and target ─► second task ─► reports
#
# These jobs use only DataFrames, so they also run on Spark Connect.

Task = Callable[[Batches], Iterator[pa.RecordBatch]]
Log = TypeVar("Log")


def by_bucket(
    batches: Batches, words: int, report_on: Callable[[int, int, list[Words]], object]
) -> Iterator[pa.RecordBatch]:
    """The second stage's task: yields ``report_on(log, bucket, parts)`` for the entries of each bucket, and
    passes reports on.

    ``words``: 64-bit words of an entry; ``parts``: arrays of entries, [count, words]. Raises ValueError if an
    array lost or gained bytes on its way.
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


def run_by_bucket(
    session: SparkSession,
    title: str,
    numbers: int,
    tasks: int,
    second_tasks: int,
    first: Task,
    second: Task,
    report_type: type[Report],
) -> list[tuple[int, Report]]:
    """Run both stages; returns (log, report) for each report, in any order. Raises EngineError.

    ``numbers``: how many inputs the ``first`` stage has; ``tasks``: its tasks; ``second_tasks``: those of the
    ``second`` stage; ``report_type``: the type of their reports."""

    def job() -> DataFrame:
        frame = session.range(0, numbers, 1, tasks).mapInArrow(worker_task(first), SCHEMA)
        frame = frame.repartition(second_tasks, "log", "target")
        return frame.mapInArrow(worker_task(second), SCHEMA)

    table = run_job(session, title, job)
    return [(row.log, report_of(row, report_type)) for row in rows_of(table.to_batches())]


def all_or_each(
    session: SparkSession,
    logs: Sequence[Log],
    run: Callable[[Sequence[Log]], dict[str, Report]],
    failed: Callable[[Log, EngineError], dict[str, Report]],
) -> dict[str, Report]:
    """``run`` all logs in one job and, if that fails, each log in a job of its own. Returns results by name.

    ``failed`` makes the result of a log whose own job fails. Raises EngineError if Spark has ended."""
    try:
        return run(logs)
    except EngineError as error:
        if not is_alive(session):
            raise
        if len(logs) == 1:
            return failed(logs[0], error)
    return {name: done for log in logs for name, done in all_or_each(session, [log], run, failed).items()}
