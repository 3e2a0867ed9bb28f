"""Runs the cleaner's and the compactor's jobs: stages of Arrow rows, results collected, progress reported.

::

    with shuffles      a Spark stage for each of ours, shuffles between them: any master, repeated by task
    in a barrier       one Spark stage, whose tasks exchange rows through files (``spark.exchange``): local
                       masters, logs up to ``BARRIER_BYTES``, nothing else running
"""

from __future__ import annotations

import contextlib
import functools
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.compaction.engine import Progress
from siltstone.spark.exchange import KEPT_BYTES, Stage, barrier_task, has_failed, progress_of
from siltstone.spark.internals import is_connect, java_context, temporary_folder
from siltstone.spark.rows import SCHEMA, Row, rows_of
from siltstone.spark.session import is_local, workers_of
from siltstone.spark.tasks import Cancelling, by_number, in_worker, run_job, told_as_engine_error

BARRIER_BYTES = 16 << 30
"""Logs up to this size run in one barrier stage: a worker that dies costs all that was done."""


def attempt_name() -> str:
    """A name that no other attempt of any task has."""
    return secrets.token_hex(8)


def stage(
    frame: DataFrame,
    function: Callable[..., Iterator[pa.RecordBatch]],
    *given: object,
    barrier: bool = False,
) -> DataFrame:
    """Let every task of ``frame`` run ``function(*given, batches)``."""
    task = functools.partial(in_worker, function, *given)
    return frame.mapInArrow(task, SCHEMA, barrier=barrier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Several stages over one log: the last one's rows are reports, small ones.

    ``staging``: a folder in which nobody but its tasks makes files, None where they make none.
    """

    stages: Sequence[Stage]
    title: str
    staging: str | None


def run(session: SparkSession, job: Job, progress: Progress | None, *, barrier: bool) -> list[Row]:
    """Run a job, in a ``barrier`` stage where allowed. Raises EngineError when Spark gives up."""
    found = run_in_barrier(session, job, progress) if barrier else None
    return run_with_shuffles(session, job, progress) if found is None else found


class SparkWorkers:
    """The workers of a session, over which an engine spreads its work.

    ``tasks``: how many a job is cut into, by default Spark's parallelism (how many run at one time:
    ``slots``). ``buckets``: the least of a merge. Logs of up to ``barrier_bytes`` go through one barrier
    stage where that is possible.
    """

    def __init__(
        self,
        session: SparkSession,
        *,
        progress: Progress | None = None,
        buckets: int = 1,
        tasks: int | None = None,
        barrier_bytes: int = BARRIER_BYTES,
    ) -> None:
        self._session, self._progress = session, progress
        self._least_buckets, self._barrier_bytes = buckets, barrier_bytes
        self._parallelism = tasks or parallelism_of(session)

    @property
    def workers(self) -> int:
        """How many tasks a job is cut into."""
        return self._parallelism

    def _uses_barrier(self, size: int) -> bool:
        return can_use_barrier(self._session, size, self._barrier_bytes)

    def _run(self, stages: Sequence[Stage], title: str, staging: str | None, size: int) -> list[Row]:
        """The reports of a job over ``size`` bytes. Raises EngineError when Spark gives up."""
        job = Job(stages=stages, title=title, staging=staging)
        return run(self._session, job, self._progress, barrier=self._uses_barrier(size))

    def _collect(self, frame: Callable[[], DataFrame], title: str) -> list[Row]:
        """Run a job; its rows are reports, small ones. Raises EngineError when Spark gives up."""
        return collect(self._session, frame, title, self._progress)


def can_use_barrier(session: SparkSession, size: int, most: int = BARRIER_BYTES) -> bool:
    """All workers are on this machine and have nothing else to do, and logs of ``size`` bytes may be done
    again. Raises EngineError when Spark is gone."""
    if size > most or is_connect(session):
        return False
    with told_as_engine_error("asking Spark what it does"):
        context = session.sparkContext
        return is_local(context.master or "") and not context.statusTracker().getActiveJobsIds()


def parallelism_of(session: SparkSession) -> int:
    """How many tasks a job is cut into. Not how many run at one time: ``slots``."""
    return workers_of(session) if is_connect(session) else session.sparkContext.defaultParallelism


def slots(session: SparkSession) -> int:
    """How many tasks run at one time, 0 where Spark does not say.

    A barrier stage of more than these would wait for ever. ``spark.default.parallelism`` may be set to
    anything, ``spark.task.cpus`` and a task's other resources leave fewer tasks than there are cores.
    """
    try:
        context = java_context(session)
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))
    except Exception:
        return 0


def run_with_shuffles(session: SparkSession, job: Job, progress: Progress | None) -> list[Row]:
    """A stage of Spark's for each of ours. Raises EngineError."""
    first, *others = job.stages

    def frames() -> DataFrame:
        frame = stage(session.range(0, first.tasks, 1, first.tasks), first.function, *first.given)
        for each in others:
            frame = stage(by_number(frame, each.tasks), each.function, *each.given)
        return frame

    return collect(session, frames, job.title, progress)


def run_in_barrier(
    session: SparkSession, job: Job, progress: Progress | None, kept_bytes: int = KEPT_BYTES
) -> list[Row] | None:
    """All of it in one stage of Spark's; None when a worker gave up or died, and what was staged is gone, or
    where it is not known how many tasks run at one time."""
    workers = min(slots(session), max(each.tasks for each in job.stages))
    if workers < 1:
        return None
    with files.temporary_directory("siltstone-rows-", temporary_folder(session)) as folder:
        given = (tuple(job.stages), workers, folder, kept_bytes)

        def frame() -> DataFrame:
            return stage(session.range(0, workers, 1, workers), barrier_task, *given, barrier=True)

        watcher = _Watcher(job.title, progress, lambda: progress_of(Path(folder), job.stages, workers))
        found = None
        with contextlib.suppress(EngineError):
            found = _collected(session, frame, job.title, watcher)
    if found is not None and not has_failed(found):
        return found
    if job.staging is not None:
        with contextlib.suppress(OSError):
            for name in files.list_files(job.staging):
                files.unlink(Path(job.staging) / name)
    return None


def one_ahead(session: SparkSession, job: Callable[[int], list[Row]], jobs: int) -> Iterator[list[Row]]:
    """The rows of jobs 0, 1, …, which run one after another while the caller is busy with those before.

    Raises what a job raised; no other is begun then, nor when the caller takes no more, and one that runs is
    cancelled.
    """
    if jobs == 1:
        yield job(0)
        return
    results: queue.SimpleQueue[list[Row] | BaseException] = queue.SimpleQueue()
    over, cancelling = threading.Event(), Cancelling(session)

    def go() -> None:
        try:
            cancelling.begin()
            for number in range(jobs):
                if over.is_set():
                    return
                results.put(job(number))
        except BaseException as error:
            results.put(error)

    taken = 0
    try:
        InheritableThread(target=go, daemon=True).start()
        while taken < jobs:
            found = results.get()
            if isinstance(found, BaseException):
                raise found
            taken += 1
            yield found
    finally:
        over.set()
        if taken < jobs:
            cancelling.cancel()


def collect(
    session: SparkSession, frame: Callable[[], DataFrame], title: str, progress: Progress | None
) -> list[Row]:
    """Run a job; its rows are reports, small ones. Raises EngineError when Spark gives up."""
    return _collected(session, frame, title, _Watcher(title, progress, lambda: _active_stages(session)))


def _collected(
    session: SparkSession, frame: Callable[[], DataFrame], title: str, watcher: _Watcher
) -> list[Row]:
    with watcher:
        table = run_job(session, title, frame)
    return [row for batch in table.to_batches() for row in rows_of(batch)]


def _active_stages(session: SparkSession) -> Iterator[tuple[str, int, int]]:
    tracker = session.sparkContext.statusTracker()
    for number in tracker.getActiveStageIds():
        info = tracker.getStageInfo(number)
        if info is not None:
            yield f"stage {number}", info.numCompletedTasks, info.numTasks


class _Watcher:
    """Tells the progress of a running job: ``look`` finds (stage, tasks done, tasks) now and then."""

    def __init__(
        self, title: str, progress: Progress | None, look: Callable[[], Iterable[tuple[str, int, int]]]
    ) -> None:
        self._progress = progress
        self._title = title
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        assert self._progress is not None
        with contextlib.suppress(Exception):
            while not self._over.wait(0.2):
                for name, done, total in self._look():
                    self._progress(self._title, name, done, total)

    def __enter__(self) -> None:
        if self._progress is not None:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._progress is not None:
            self._thread.join(2.0)
