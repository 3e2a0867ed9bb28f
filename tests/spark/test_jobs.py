"""Jobs that run while the caller is busy with what the one before brought."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import DataFrame, SparkSession

from siltstone.base.errors import EngineError
from siltstone.spark.jobs import run_jobs_overlapped
from siltstone.spark.rows import Row
from siltstone.spark.tasks import run_job

pytestmark = pytest.mark.spark


class Jobs:
    """Numbered jobs: each says that it began, and brings a row with its number."""

    def __init__(self, session: SparkSession, failing: int = -1) -> None:
        self.session, self.failing = session, failing
        self.begun = [threading.Event() for _ in range(4)]

    def __call__(self, number: int) -> list[Row]:
        self.begun[number].set()
        if number == self.failing:
            raise EngineError("this one fails")
        return [Row(target=number, kind="done", count=self.session.range(number).count())]


def test_the_next_job_runs_while_the_caller_is_busy(session: SparkSession) -> None:
    jobs, counts = Jobs(session), []
    for number, rows in enumerate(run_jobs_overlapped(session, jobs, 4)):
        assert number == 3 or jobs.begun[number + 1].wait(30)
        counts += [(row.target, row.count) for row in rows]
    assert counts == [(number, number) for number in range(4)]


def test_the_error_of_a_job_comes_in_its_place_and_no_job_follows(session: SparkSession) -> None:
    jobs = Jobs(session, failing=1)
    ahead = run_jobs_overlapped(session, jobs, 4)
    assert [row.target for row in next(ahead)] == [0]
    with pytest.raises(EngineError, match="this one fails"):
        next(ahead)
    assert not jobs.begun[2].is_set() and not jobs.begun[3].is_set()


def test_no_other_job_begins_when_the_caller_stops(session: SparkSession) -> None:
    jobs, held, let_go = Jobs(session), threading.Event(), threading.Event()

    def waiting(number: int) -> list[Row]:
        if number == 1:
            held.set()
            assert let_go.wait(30)
        return jobs(number)

    ahead = run_jobs_overlapped(session, waiting, 4)
    next(ahead)
    assert held.wait(30)
    ahead.close()
    let_go.set()
    assert jobs.begun[1].wait(30) and not jobs.begun[2].wait(0.5)


def test_a_single_job_needs_no_thread(session: SparkSession) -> None:
    threads: list[threading.Thread] = []

    def job(number: int) -> list[Row]:
        threads.append(threading.current_thread())
        return []

    assert list(run_jobs_overlapped(session, job, 1)) == [[]] and threads == [threading.current_thread()]


def test_a_job_is_described_and_the_programs_own_description_comes_back(session: SparkSession) -> None:
    context, descriptions = session.sparkContext, list[str | None]()
    context.setJobDescription("a report of the program")

    def frame() -> DataFrame:
        descriptions.append(context.getLocalProperty("spark.job.description"))
        return session.range(2)

    try:
        assert run_job(session, "users-0", frame).num_rows == 2
        assert descriptions == ["siltstone: users-0"]
        assert context.getLocalProperty("spark.job.description") == "a report of the program"
    finally:
        context.setLocalProperty("spark.job.description", None)
