"""What every task of ours is, and why a job failed; nothing of the cleaner is imported here."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from siltstone.base import interruption
from siltstone.base.errors import EngineError
from siltstone.spark.internals import WORKER_EXITED

Batches = Iterable[pa.RecordBatch]
_BUCKET_BYTES = 32 << 20
WORKER_DIED = (
    "a worker that dies was mostly killed for want of memory: let fewer tasks run at one time "
    "(--master local[1]), lower log.cleaner.dedupe.buffer.size and log.cleaner.io.buffer.size, "
    "or give the machine more memory"
)
JAVA_DIED = "Spark's Java process is gone, killed for want of memory or ended by somebody"


def task_numbers(batches: Batches) -> Iterator[int]:
    """The numbers of ``spark.range`` that a task got."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def pass_over_imports() -> None:
    """For a task's beginning. PySpark collects garbage after every task, which looks at each object that
    numba and pandas ever made and takes longer than many a task: once frozen, they are passed over."""
    if not gc.get_freeze_count():
        gc.freeze()


def in_worker(function: Callable[..., Iterator[pa.RecordBatch]], *given: object) -> Iterator[pa.RecordBatch]:
    """Run a task's function."""
    pass_over_imports()
    return function(*given)


def merging(buckets: int, workers: int, entry_bytes: int, memory_bytes: int) -> tuple[int, int]:
    """(buckets, tasks) of a merge for which ``buckets`` are enough: those of a task take ``memory_bytes``.

    A task costs Spark some 80 ms, so one that is given several buckets, which it merges one after another,
    beats several tasks. It holds the entries of all of them (of ``entry_bytes`` in all), so both it and the
    merge of each may take half of the memory.
    """
    if buckets <= workers:
        return buckets, buckets
    return 2 * buckets, min(2 * buckets, max(workers, math.ceil(2 * entry_bytes / memory_bytes)))


def finer(buckets: int, tasks: int, entry_bytes: int) -> int:
    """More buckets, so that each has about 32 MiB of entries: a merge takes three and a half times as much,
    and a task that has several merges them one after another. A multiple of ``tasks``."""
    return max(buckets, tasks * math.ceil(entry_bytes / (tasks * _BUCKET_BYTES)))


def by_number(frame: DataFrame, tasks: int) -> DataFrame:
    """Bring rows of one ``target`` together, targets dealt to so many tasks."""
    return frame.repartitionById(tasks, F.pmod(F.col("target"), F.lit(tasks)).cast("int"))


def runs_of(sizes: Sequence[int], tasks: int) -> list[list[int]]:
    """The numbers of ``sizes`` in up to ``tasks`` runs of neighbours, of about the same size each."""
    total, passed = sum(sizes), 0
    runs: list[list[int]] = [[] for _ in range(tasks)]
    for number, size in enumerate(sizes):
        runs[min(tasks - 1, (passed + size // 2) * tasks // max(total, 1))].append(number)
        passed += size
    return [run for run in runs if run]


@contextlib.contextmanager
def told_as_engine_error(title: str) -> Iterator[None]:
    """A job runs within: what makes Spark give up becomes an EngineError, and whatever comes of an interrupt
    (PySpark puts an error of the cancelled job in its place) a KeyboardInterrupt."""
    try:
        interruption.current().check()
        yield
    except Exception as error:
        if interruption.is_interrupt(error):
            interruption.current().settle()
            raise KeyboardInterrupt from error
        if isinstance(error, EngineError):
            raise
        why = why_failed(error)
        if why is None:
            raise
        raise EngineError(f"{title}: the Spark job failed: {why}") from error


def why_failed(error: Exception) -> str | None:
    """What made Spark give up, in a line; None for an error that is not Spark's."""
    known = isinstance(error, (PySparkException, OSError, RuntimeError))
    if not known and not type(error).__module__.startswith(("py4j", "grpc")):
        return None
    lines = [line.strip() for line in str(error).strip().splitlines()]
    said = [line for line in lines if not line.startswith(("at ", "... "))]
    causes = [line for line in said if "Error" in line or "Exception" in line]
    found = (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:300]
    if WORKER_EXITED in str(error):
        return f"{found}; {WORKER_DIED}"
    return f"{JAVA_DIED} ({found})" if _is_without_java(error) else found


def _is_without_java(error: Exception) -> bool:
    """Py4J finds nobody at the other end: what it raises, and the connection that is refused then."""
    name = type(error).__name__
    if name == "Py4JError":
        return "Trace:" not in str(error)
    return name == "Py4JNetworkError" or isinstance(error, ConnectionError)
