"""Runs the background jobs of a server: cleanings, dry runs, erasures of keys, the emptying of topics.

::

    queued ─► running ─┬─► done        ``result`` is what the work returned, as JSON
       │               ├─► failed      ``error`` says why
       └─► cancelled ◄─┘               the work notices ``Progress.check``

``CONCURRENT_JOBS`` jobs run at the same time; the others wait in order. The last ``REMEMBERED_JOBS`` jobs are
kept in memory while the process runs. A job for which the system starts no thread has failed at once.
"""

from __future__ import annotations

import concurrent.futures
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from siltstone.base.clock import Clock
from siltstone.base.closing import Closing
from siltstone.base.errors import BusyError, JobCancelledError, SiltstoneError, UnknownJobError
from siltstone.commands.explain_page import counted
from siltstone.log.names import TopicPartition

CONCURRENT_JOBS = 2
UNFINISHED_MAX = 100
"""Jobs that wait or run at most; another one is refused."""
REMEMBERED_JOBS = 200
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJob:
    """A job at one moment. ``kind``: clean, explain, erase-key …; ``target``: see ``job_target``;
    ``bytes_done`` of ``bytes_total``: of the log that is worked on. ``result`` and ``error``: None before its
    end."""

    id: str
    kind: str
    target: str
    user: str
    state: str
    created_ms: int
    began_ms: int | None = None
    ended_ms: int | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    result: object = None
    error: str | None = None

    @property
    def has_ended(self) -> bool:
        """Is it done, failed or cancelled?"""
        return self.state in (DONE, FAILED, CANCELLED)

    def to_json(self) -> dict[str, object]:
        """One object; unknown times are null."""
        return {name: getattr(self, name) for name in BackgroundJob.__slots__}


def job_target(topic: str, partitions: Sequence[int] = ()) -> str:
    """The target of a job on a topic, or on some of its partitions."""
    return ", ".join(str(TopicPartition(topic, number)) for number in partitions) or topic


class Progress:
    """The progress of a job, by which it also learns that it was cancelled. Call it as an engine's
    progress."""

    def __init__(self, jobs: Jobs, job_id: str) -> None:
        self._jobs, self._id = jobs, job_id

    def __call__(self, log: str, stage: str, done: int, total: int) -> None:
        """Set the job's ``bytes_done`` and ``bytes_total`` to those of the log that is worked on."""
        if stage != "done":
            self._jobs.change(self._id, bytes_done=done, bytes_total=total)

    def check(self) -> None:
        """Raises JobCancelledError if the job was cancelled."""
        if self._jobs.is_cancelled(self._id):
            raise JobCancelledError("the job was cancelled")


Work = Callable[[Progress], object]
"""What a job does; returns the job's ``result``, which becomes JSON. It calls ``Progress.check`` where it can
stop."""


class Jobs(Closing):
    """Runs jobs in ``CONCURRENT_JOBS`` threads. Safe in several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, BackgroundJob] = {}
        self._futures: dict[str, Future[None]] = {}
        self._cancelled: set[str] = set()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(CONCURRENT_JOBS, thread_name_prefix="siltstone-job")

    def submit(self, kind: str, target: str, user: str, work: Work) -> BackgroundJob:
        """Queue a job. Raises BusyError if too many wait or run, if the same job waits or runs, or after
        ``close`` has begun."""
        job = BackgroundJob(
            id=secrets.token_hex(8),
            kind=kind,
            target=target,
            user=user,
            state=QUEUED,
            created_ms=self._clock.now_ms(),
        )
        with self._lock:
            if self._is_closed:
                raise BusyError("the server is stopping", advice="submit the job when it runs again")
            unfinished = [other for other in self._jobs.values() if not other.has_ended]
            if any((other.kind, other.target) == (kind, target) for other in unfinished):
                raise BusyError(f"a job {kind} {target} waits or runs already", advice="wait for its end")
            if len(unfinished) >= UNFINISHED_MAX:
                raise BusyError(
                    f"{counted(len(unfinished), 'job waits or runs', 'jobs wait or run')} already",
                    advice="wait for some of them",
                )
            self._jobs[job.id] = job
            self._forget_old()
            self._jobs[job.id] = job = self._queued(job, work)
        return job

    def _queued(self, job: BackgroundJob, work: Work) -> BackgroundJob:
        """The job, which waits for a thread now, or has failed. The caller holds the lock."""
        try:
            self._futures[job.id] = self._pool.submit(self._run, job.id, work)
        except RuntimeError as error:
            reason = f"no thread could be started for the job: {error}"
            refused = BusyError(
                reason, advice="raise the limit of threads or processes, then submit it again"
            )
            return replace(job, state=FAILED, ended_ms=self._clock.now_ms(), error=str(refused))
        return job

    def _forget_old(self) -> None:
        """Forget the oldest ended jobs beyond ``REMEMBERED_JOBS``. The caller holds the lock."""
        ended = [job.id for job in self._jobs.values() if job.has_ended]
        for job_id in ended[: max(len(self._jobs) - REMEMBERED_JOBS, 0)]:
            del self._jobs[job_id]
            self._futures.pop(job_id, None)  # a job for which no thread could be started has none
            self._cancelled.discard(job_id)

    def _run(self, job_id: str, work: Work) -> None:
        progress = Progress(self, job_id)
        with self._lock:  # ``submit`` may still be about to say that the job has failed
            job = self._jobs.get(job_id)
        if job is None or job.has_ended:
            return
        self.change(job_id, state=RUNNING, began_ms=self._clock.now_ms())
        try:
            progress.check()
            end: dict[str, object] = {"state": DONE, "result": work(progress)}
        except JobCancelledError as error:
            end = {"state": CANCELLED, "error": str(error)}
        except (SiltstoneError, OSError) as error:
            end = {"state": FAILED, "error": str(error)}
        except Exception as error:
            _logger.exception("Job %s failed", job_id)
            end = {"state": FAILED, "error": f"{type(error).__name__}: {error}"}
        self.change(job_id, ended_ms=self._clock.now_ms(), **end)  # in one step with the state

    def change(self, job_id: str, **values: object) -> None:
        """Set fields of a job."""
        with self._lock:
            if job_id in self._jobs:
                self._jobs[job_id] = replace(self._jobs[job_id], **values)  # type: ignore[arg-type]

    def is_cancelled(self, job_id: str) -> bool:
        """Was it cancelled?"""
        return job_id in self._cancelled

    def get(self, job_id: str) -> BackgroundJob:
        """A job. Raises UnknownJobError."""
        with self._lock:
            if job_id not in self._jobs:
                raise UnknownJobError(f"there is no job {job_id[:64]!r}")
            return self._jobs[job_id]

    def wait(self, job_id: str, timeout: float | None = None) -> BackgroundJob:
        """The job when it has ended, or after ``timeout`` seconds. Raises UnknownJobError."""
        with self._lock:
            future = self._futures.get(job_id)
        if future is not None:  # else the job is unknown, or was forgotten
            concurrent.futures.wait([future], timeout)
        return self.get(job_id)

    def all(self) -> list[BackgroundJob]:
        """All jobs in memory, the newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def cancel(self, job_id: str) -> BackgroundJob:
        """Cancel a job: at once if it waits, at its next check if it runs. Raises UnknownJobError."""
        job = self.get(job_id)
        if not job.has_ended:
            self._cancelled.add(job_id)
            if self._futures[job_id].cancel():
                self.change(job_id, state=CANCELLED, ended_ms=self._clock.now_ms())
        return self.get(job_id)

    def close(self) -> None:
        """Cancel all jobs, and wait for those that run."""
        with self._lock:  # a job that is submitted later would not be cancelled, and would be waited for
            self._is_closed = True
        for job in self.all():
            self.cancel(job.id)
        self._pool.shutdown(wait=True, cancel_futures=True)
