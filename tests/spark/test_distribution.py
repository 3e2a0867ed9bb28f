"""Work is distributed over tasks: each log once, evenly, not too much for one. The error of a failed job."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.compaction.engine import bucket_count, entry_bytes, entry_count_max, warm_up_work
from siltstone.compaction.work import LogWork
from siltstone.spark.clean import distribute_logs, job_count
from siltstone.spark.internals import WORKER_EXITED
from siltstone.spark.tasks import job_error, merge_shape, smaller_buckets

MIB = 1 << 20


@pytest.fixture
def work(tmp_path: Path) -> LogWork:
    (tmp_path / f"{0:020}.log").write_bytes(b"")
    return warm_up_work(tmp_path, "log")


def sized(work: LogWork, sizes: list[int]) -> list[LogWork]:
    (segment,) = work.segments
    return [
        replace(work, name=f"log-{number}", segments=(replace(segment, size=size),))
        for number, size in enumerate(sizes)
    ]


def size_of(part: list[LogWork]) -> int:
    return sum(segment.size for work in part for segment in work.segments)


@pytest.mark.parametrize(
    ("count", "size", "tasks"), [(1, 4 * MIB, 1), (7, 4 * MIB, 7), (200, 4 * MIB, 8), (200, 60 * MIB, 47)]
)
def test_as_many_tasks_as_keep_the_workers_busy_and_a_task_small(
    work: LogWork, count: int, size: int, tasks: int
) -> None:
    works = sized(work, [size] * count)
    parts = distribute_logs(works, parallelism=2)
    assert len(parts) == tasks
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in works)
    assert max(map(size_of, parts)) <= max(300 * MIB, size)


def test_the_largest_first_and_evenly(work: LogWork) -> None:
    parts = distribute_logs(sized(work, [number * MIB for number in range(1, 33)]), parallelism=1)
    sizes = [size_of(part) for part in parts]
    assert [size_of([part[0]]) for part in parts] == [32 * MIB, 31 * MIB, 30 * MIB, 29 * MIB]
    assert max(sizes) - min(sizes) <= 32 * MIB


@pytest.mark.parametrize(
    ("logs", "tasks", "parallelism", "jobs"),
    [(1, 1, 2, 1), (15, 8, 2, 1), (32, 8, 2, 2), (400, 8, 2, 4), (400, 400, 100, 4), (250, 250, 200, 1)],
)
def test_a_job_of_many_logs_keeps_all_workers_busy(
    logs: int, tasks: int, parallelism: int, jobs: int
) -> None:
    assert job_count(logs, tasks, parallelism) == jobs


def test_a_small_log_that_claims_many_offsets_takes_few_tasks(work: LogWork) -> None:
    """Each 4 million offsets took a task, whatever the log holds: a batch of 100 bytes may claim 2³¹. Then
    64 records were expected in a byte, and 10¹⁰ offsets in 100 MB took 1,526 tasks."""
    claiming, small = sized(replace(work, end=1 << 41), [100_000, 100_000_000])
    dense, old = replace(claiming, end=10_000), replace(small, end=10**10)
    for log, entries, tasks in ((claiming, 100_000, 2), (dense, 10_000, 1), (old, 100_000_000, 24)):
        assert entry_count_max(log) == entries
        assert merge_shape(bucket_count(log), 2, entries * entry_bytes(log), 128 * MIB)[1] == tasks


@pytest.mark.parametrize("parallelism", [1, 2, 7])
@pytest.mark.parametrize("entries_mib", [0, 1, 100, 511, 513, 5000])
def test_merging_tasks_are_few_and_hold_what_they_may(parallelism: int, entries_mib: int) -> None:
    """A merge takes three and a half times its entries; ``enough`` buckets let each take all memory."""
    memory, entries = 512 * MIB, entries_mib * MIB
    enough = max(parallelism, math.ceil(3.5 * entries / memory))
    buckets, tasks = merge_shape(enough, parallelism, entries, memory)
    assert tasks <= buckets and tasks >= parallelism
    assert tasks == parallelism or entries / (tasks - 1) > memory / 2
    held = entries / tasks if buckets > tasks else 0
    assert held + 3.5 * entries / buckets <= memory


@pytest.mark.parametrize("parallelism", [1, 2, 7])
@pytest.mark.parametrize("entries_mib", [0, 1, 31, 32, 100, 511, 5000])
def test_buckets_are_small_and_dealt_evenly(parallelism: int, entries_mib: int) -> None:
    memory, entries = 512 * MIB, entries_mib * MIB
    enough = max(parallelism, math.ceil(3.5 * entries / memory))
    buckets, tasks = merge_shape(enough, parallelism, entries, memory)
    more = smaller_buckets(buckets, tasks, entries)
    assert more == buckets or more % tasks == 0
    assert more >= buckets and entries <= more * 32 * MIB
    assert entries / tasks + 3.5 * entries / more <= memory


def test_a_failed_job_is_reported_by_its_cause_not_by_a_line_of_its_trace() -> None:
    text = """An error occurred while calling o42.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
\tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally(SparkErrorUtils.scala:80)
Caused by: java.io.IOException: No space left on device
\tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally$(SparkErrorUtils.scala:83)
\t... 12 more"""
    for raised, cause in (
        (text, "Caused by: java.io.IOException: No space left on device"),
        ("\tat some.Error.line(x)", "at some.Error.line(x)"),
        ("", "RuntimeError"),
    ):
        error = job_error("users-0", RuntimeError(raised))
        assert error is not None
        assert (error.path, error.reason) == ("users-0", f"the Spark job failed: {cause}")
    assert job_error("users-0", KeyError("not Spark's")) is None


def test_a_killed_worker_is_an_error_that_says_what_to_set() -> None:
    error = job_error("users-0", RuntimeError(f"SparkException: {WORKER_EXITED} (crashed)"))
    assert error is not None and "lack of memory" in error.reason
    assert "--master local[1]" in (error.advice or "") and "dedupe.buffer.size" in (error.advice or "")


def test_a_lost_java_is_an_error_that_says_to_run_again() -> None:
    error = job_error("users-0", ConnectionRefusedError(111, "Connection refused"))
    assert error is not None and "Java process" in error.reason and "run again" in (error.advice or "")
