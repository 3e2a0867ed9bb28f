"""Jobs run two at a time, wait in their order, are refused when too many wait, and are forgotten when old."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from siltstone.base.clock import SystemClock
from siltstone.base.errors import BusyError, UnknownJobError, UsageError
from siltstone.commands import jobs as jobs_module
from siltstone.commands.jobs import CANCELLED, CONCURRENT_JOBS, DONE, FAILED, QUEUED, RUNNING, Jobs, Progress
from tests.support.thread_starts import no_thread_starts

SECONDS = 30


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with Jobs(SystemClock()) as opened:
        yield opened


def test_two_run_at_a_time_and_the_others_wait(jobs: Jobs) -> None:
    assert CONCURRENT_JOBS == 2
    begun, release = threading.Semaphore(0), threading.Event()

    def work(progress: Progress) -> str:
        begun.release()
        assert release.wait(SECONDS)
        return "done"

    submitted = [jobs.submit("clean", f"topic-{number}", "ada", work).id for number in range(4)]
    for _ in range(2):
        assert begun.acquire(timeout=SECONDS)
    assert [jobs.get(job).state for job in submitted] == [RUNNING, RUNNING, QUEUED, QUEUED]
    with pytest.raises(BusyError, match="waits or runs already"):
        jobs.submit("clean", "topic-3", "ada", work)
    assert jobs.cancel(submitted[3]).state == CANCELLED
    release.set()
    assert [jobs.wait(job, SECONDS).state for job in submitted] == [DONE, DONE, DONE, CANCELLED]
    assert jobs.get(submitted[0]).result == "done"


def test_too_many_are_refused_and_old_ones_forgotten(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "UNFINISHED_MAX", 3)
    monkeypatch.setattr(jobs_module, "REMEMBERED_JOBS", 3)
    release = threading.Event()
    first = [
        jobs.submit("clean", f"topic-{number}", "-", lambda _: release.wait(SECONDS)).id
        for number in range(3)
    ]
    with pytest.raises(BusyError, match="3 jobs wait or run already"):
        jobs.submit("clean", "another", "-", lambda _: None)
    release.set()
    for job in first:
        jobs.wait(job, SECONDS)
    later = [jobs.wait(jobs.submit("clean", "again", "-", lambda _: None).id, SECONDS).id for _ in range(2)]
    assert [job.id for job in jobs.all()] == [*reversed(later), first[2]]
    with pytest.raises(UnknownJobError):
        jobs.get(first[0])


def test_a_failure_is_the_jobs_error_and_stops_no_other(jobs: Jobs) -> None:
    def refuse(progress: Progress) -> None:
        raise UsageError("it is not possible", advice="do it otherwise")

    def break_down(progress: Progress) -> None:
        raise RuntimeError("a bug")

    failed = [jobs.wait(jobs.submit("x", str(work), "-", work).id, SECONDS) for work in (refuse, break_down)]
    assert [job.state for job in failed] == [FAILED, FAILED]
    assert "it is not possible" in (failed[0].error or "") and failed[1].error == "RuntimeError: a bug"
    assert all(job.ended_ms is not None for job in failed)
    assert jobs.wait(jobs.submit("x", "y", "-", lambda _: 1).id, SECONDS).state == DONE


@pytest.mark.parametrize("error", [None, UsageError("wrong"), ZeroDivisionError()])
def test_a_job_that_has_ended_has_the_time_of_its_end(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    seen, change = list[tuple[bool, bool]](), jobs.change

    def changed(job_id: str, **values: object) -> None:
        change(job_id, **values)
        job = jobs.get(job_id)
        seen.append((job.has_ended, job.ended_ms is not None))

    def work(_: Progress) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(jobs, "change", changed)
    jobs.wait(jobs.submit("clean", "users", "-", work).id, SECONDS)
    assert seen == [(False, False), (True, True)]


def test_no_job_is_taken_once_the_server_is_stopping(jobs: Jobs) -> None:
    """It would stay queued for ever, or begin without being cancelled, so that the stop would wait for it."""
    jobs.close()
    with pytest.raises(BusyError, match="the server is stopping"):
        jobs.submit("clean", "users", "-", lambda _: None)
    assert jobs.all() == []


def test_a_job_for_which_no_thread_can_be_started_has_failed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    with no_thread_starts(monkeypatch):
        failed = jobs.submit("clean", "users", "ada", lambda _: ran.append("failed"))
    assert failed.state == FAILED and "can't start new thread" in str(failed.error) and failed.ended_ms
    assert jobs.get(failed.id) == jobs.cancel(failed.id) == jobs.wait(failed.id, SECONDS) == failed
    # The same job may be submitted again; the pool still has the first one, and drops it.
    again = jobs.submit("clean", "users", "ada", lambda _: ran.append("again"))
    assert jobs.wait(again.id, SECONDS).state == DONE and ran == ["again"]
    monkeypatch.setattr(jobs_module, "REMEMBERED_JOBS", 1)
    jobs.wait(jobs.submit("clean", "later", "ada", lambda _: None).id, SECONDS)
    assert failed.id not in [job.id for job in jobs.all()]
