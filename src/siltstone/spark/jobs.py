"""Runs the jobs of the cleaner and of side-by-side compaction on Spark. A job has stages of tasks, which
exchange Arrow rows; the rows of its last stage are reports.

::

    with shuffles    a Spark stage for each stage, and shuffles between them: on any master; Spark repeats
                     single tasks
    exchange stage   one Spark stage for all, whose tasks exchange rows through files (``spark.exchange``):
                     where all executors are on the driver's machine, for logs up to
                     ``EXCHANGE_STAGE_BYTES``, if no other job runs
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.compaction.engine import Progress, report_progress
from siltstone.spark.exchange import MEMORY_BYTES, Stage, bytes_read_by, exchange_task
from siltstone.spark.executors import (
    SharedFolder,
    default_task_count,
    one_per_log_directory,
    shared_folders,
    task_slots,
    tasks_stay_on_this_machine,
)
from siltstone.spark.internals import is_connect, temporary_folder
from siltstone.spark.rows import FAILED, SCHEMA, Row, rows_of
from siltstone.spark.settings import is_local, without_retries
from siltstone.spark.tasks import (
    Result,
    engine_errors,
    numbered_rows,
    run_job,
    run_jobs_in_thread,
    task_name,
    worker_task,
)

EXCHANGE_STAGE_BYTES = 16 << 30
"""A larger log takes no exchange stage: if a worker dies, all of that stage is lost."""
SHUFFLES_ONLY = -1
"""In place of ``EXCHANGE_STAGE_BYTES``: no log takes an exchange stage."""


Shared = Sequence[SharedFolder]
"""The folders that the executor of a task must share with the driver; empty: there is nothing to check."""


def check_and_run(
    shared: Shared, function: Callable[..., Iterator[pa.RecordBatch]], *arguments: object
) -> Iterator[pa.RecordBatch]:
    """Check that the executor shares the folders, then call the task's function. Raises
    UnsharedFolderError."""
    for folder in shared:
        folder.check()
    yield from function(*arguments)


def attempt_name() -> str:
    """A random name for an attempt of a task, which is part of the names of its files."""
    return secrets.token_hex(8)


def stage_over(
    frame: DataFrame,
    function: Callable[..., Iterator[pa.RecordBatch]],
    *arguments: object,
    shared: Shared = (),
) -> DataFrame:
    """A DataFrame that calls ``function(*arguments, batches)`` with the rows of each partition of
    ``frame``, after its executor passed the checks of ``shared``."""
    if shared:
        name = task_name(function)
        task = worker_task(check_and_run, shared, function, *arguments, name=name)
    else:
        task = worker_task(function, *arguments)
    return frame.mapInArrow(task, SCHEMA)


def stage_over_numbers(
    session: SparkSession,
    count: int,
    function: Callable[..., Iterator[pa.RecordBatch]],
    *arguments: object,
    tasks: int | None = None,
    shared: Shared = (),
) -> DataFrame:
    """A DataFrame that calls ``function(*arguments, batches)`` with the numbers 0 to ``count`` - 1 as rows.

    ``tasks``: how many tasks the numbers are spread over; by default each number has its own."""
    numbers = session.range(0, count, 1, tasks or count)
    return stage_over(numbers, function, *arguments, shared=shared)


def only_stage(
    session: SparkSession,
    count: int,
    function: Callable[..., Iterator[pa.RecordBatch]],
    *arguments: object,
    tasks: int | None = None,
    barrier: bool = False,
    shared: Shared = (),
) -> DataFrame | RDD[bytes]:
    """As ``stage_over_numbers``, for a job without further stages. It needs no shuffle, so it is an RDD where
    that is possible: the start of Spark SQL would take most of a short job's time
    (``internals.LateSession``). ``barrier``: all tasks start at the same time (Spark's barrier mode)."""
    if is_connect(session):
        return stage_over_numbers(session, count, function, *arguments, tasks=tasks, shared=shared)
    numbers = session.sparkContext.parallelize(range(count), tasks or count)
    if shared:
        function, arguments = check_and_run, (shared, function, *arguments)
    task = numbered_rows(function, *arguments)
    return numbers.barrier().mapPartitions(task) if barrier else numbers.mapPartitions(task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The stages of the work on a log of ``size`` bytes; the rows of the last stage are reports.

    ``title``: its name in Spark's UI and in errors. ``staging``: the folder in which only the job's tasks
    create files; None if they create none.
    """

    stages: Sequence[Stage]
    title: str
    staging: str | None
    size: int


class SparkJobRunner:
    """Runs the jobs of an engine on a Spark session; the base class of the engines.

    ``tasks``: how many tasks each job has; by default as many as the session can run at once when the job is
    planned (``default_task_count``). ``buckets``: the least number of buckets of a merge.
    ``exchange_stage_bytes``: the size of the largest log that goes through one exchange stage.
    """

    def __init__(
        self,
        session: SparkSession,
        *,
        progress: Progress | None = None,
        buckets: int = 1,
        tasks: int | None = None,
        exchange_stage_bytes: int = EXCHANGE_STAGE_BYTES,
    ) -> None:
        self._session, self._progress = session, progress
        self._min_buckets, self._exchange_stage_bytes = buckets, exchange_stage_bytes
        self._tasks = tasks

    @property
    def parallelism(self) -> int:
        """How many tasks a job that is planned now gets (``default_task_count``). Raises EngineError if Spark
        has stopped."""
        with engine_errors("asking Spark how many tasks it runs"):
            return self._tasks or default_task_count(self._session)

    @property
    def master(self) -> str:
        """The session's master, as users name it."""
        return without_retries(self._session.sparkContext.master)

    def _uses_exchange_stage(self, size: int) -> bool:
        return can_exchange_files(self._session, size, self._exchange_stage_bytes)

    def _run(self, stages: Sequence[Stage], title: str, staging: str | None, size: int) -> list[Row]:
        """Run a job over ``size`` bytes in an exchange stage, or with shuffles if that is not possible or
        fails. Returns its reports. Raises EngineError if the job fails."""
        job = Job(stages=stages, title=title, staging=staging, size=size)
        reports = (
            run_in_exchange_stage(self._session, job, self._progress)
            if self._uses_exchange_stage(size)
            else None
        )
        return run_with_shuffles(self._session, job, self._progress) if reports is None else reports

    def _run_numbered(
        self,
        title: str,
        count: int,
        function: Callable[..., Iterator[pa.RecordBatch]],
        *arguments: object,
        tasks: int | None = None,
        size: int = 0,
        only_rewrites: bool = False,
        staging: Iterable[str] = (),
    ) -> list[Row]:
        """Run a job of one stage, whose tasks get the numbers 0 to ``count`` - 1 (``only_stage``). Returns
        its reports. ``size``, ``only_rewrites``: for the progress (``report_progress``). ``staging``: folders
        that its tasks write into. Raises EngineError if the job fails, OSError."""
        with shared_folders(self._session, one_per_log_directory(staging)) as shared:
            stage = functools.partial(
                only_stage, self._session, count, function, *arguments, tasks=tasks, shared=shared
            )
            done = bytes_by_tasks(self._session, tasks or count, size if only_rewrites else 2 * size)
            with report_progress(self._progress, title, size, done, only_rewrites=only_rewrites):
                return collect(self._session, stage, title)


def can_exchange_files(session: SparkSession, size: int, maximum: int = EXCHANGE_STAGE_BYTES) -> bool:
    """Are all executors on this machine, does no other job run, and is ``size`` at most ``maximum``?

    Raises EngineError if Spark has stopped."""
    if size > maximum or is_connect(session):
        return False
    with engine_errors("asking Spark which jobs run"):
        return (
            tasks_stay_on_this_machine(session)
            and not session.sparkContext.statusTracker().getActiveJobsIds()
        )


def run_with_shuffles(
    session: SparkSession, job: Job, progress: Progress | None, *, only_rewrites: bool = False
) -> list[Row]:
    """Run each stage as a Spark stage, with shuffles between them. Returns the reports. Raises EngineError.

    A row goes to the task ``target % tasks`` of the next stage, as in the exchange through files.
    ``only_rewrites``: for the progress (``report_progress``), as the job reads its bytes once, not twice.
    """
    first, *later_stages = job.stages

    def last_stage(shared: Shared) -> DataFrame | RDD[bytes]:
        if not later_stages:
            return only_stage(session, first.tasks, first.function, *first.arguments, shared=shared)
        frame = stage_over_numbers(session, first.tasks, first.function, *first.arguments, shared=shared)
        for stage in later_stages:
            task = F.pmod(F.col("target"), F.lit(stage.tasks)).cast("int")
            rows = frame.repartitionById(stage.tasks, task)
            frame = stage_over(rows, stage.function, *stage.arguments, shared=shared)
        return frame

    size = job.size if only_rewrites else 2 * job.size
    done = bytes_by_tasks(session, sum(stage.tasks for stage in job.stages), size)
    with (
        shared_folders(session, one_per_log_directory(filter(None, [job.staging]))) as shared,
        report_progress(progress, job.title, job.size, done, only_rewrites=only_rewrites),
    ):
        return collect(session, lambda: last_stage(shared), job.title)


def run_in_exchange_stage(
    session: SparkSession, job: Job, progress: Progress | None, memory_bytes: int = MEMORY_BYTES
) -> list[Row] | None:
    """Run all stages in one exchange stage (``exchange``), and return the reports. Each of its tasks, the
    workers, runs its share of every stage.

    Returns None if a worker aborted, died or did not start, after the staged files were removed; and if it is
    not known how many tasks can run at the same time. Raises OSError for the folder of the exchange."""
    # A worker for each task of the largest stage, but no more than can run at the same time.
    workers = min(task_slots(session), max(stage.tasks for stage in job.stages))
    if workers < 1:
        return None
    # The workers have to run at the same time. On a local master, Spark's barrier mode starts them so. On a
    # cluster it would run all of them again after a lost task, once there are cores for all: perhaps never,
    # if an executor was lost. There an ordinary stage runs them, and a worker that does not hear from another
    # gives up.
    barrier = is_local(session.sparkContext.master)
    with (
        files.temporary_directory("siltstone-rows-", temporary_folder(session)) as folder,
        shared_folders(
            session, [Path(folder), *one_per_log_directory(filter(None, [job.staging]))]
        ) as shared,
    ):
        arguments = (tuple(job.stages), workers, folder, memory_bytes)
        stage = functools.partial(
            only_stage, session, workers, exchange_task, *arguments, barrier=barrier, shared=shared
        )
        done = functools.partial(bytes_read_by, workers, Path(folder))
        reports = None
        with contextlib.suppress(EngineError), report_progress(progress, job.title, job.size, done):
            reports = collect(session, stage, job.title)
    # The folder of the exchange is removed now, so a worker that still waits stops, and creates no staged
    # file after those that are removed here.
    if reports is not None and all(row.kind != FAILED for row in reports):
        return reports
    if job.staging is not None:
        with contextlib.suppress(OSError):
            for name in files.list_files(job.staging):
                files.unlink(Path(job.staging) / name)
    return None


def run_jobs_overlapped(session: SparkSession, run: Callable[[int], Result], jobs: int) -> Iterator[Result]:
    """The results of jobs 0, 1, …: each job runs while the caller works on the result of the one before.

    A single job runs in the caller's thread."""
    if jobs == 1:
        yield run(0)
    else:
        yield from run_jobs_in_thread(session, run, jobs)


def collect(session: SparkSession, plan: Callable[[], DataFrame | RDD[bytes]], title: str) -> list[Row]:
    """Run the DataFrame or RDD that ``plan`` returns as a job, and return its rows: reports. Raises
    EngineError if the job fails."""
    return list(rows_of(run_job(session, title, plan).to_batches()))


def bytes_by_tasks(session: SparkSession, tasks: int, size: int) -> Callable[[], int]:
    """Returns a function that estimates how many of ``size`` bytes a job has read: in proportion to how many
    of its ``tasks`` have ended."""
    ended: dict[int, int] = {}

    def count() -> int:
        with contextlib.suppress(Exception):  # Spark Connect has no tracker, and Spark may have stopped
            tracker = session.sparkContext.statusTracker()
            for number in tracker.getActiveStageIds():
                info = tracker.getStageInfo(number)
                if info is not None:
                    ended[number] = info.numCompletedTasks
        return size * min(sum(ended.values()), tasks) // max(tasks, 1)

    return count
