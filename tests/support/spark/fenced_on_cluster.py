"""A cleaning on a cluster to which something happens; a script.

::

    killed                   an executor is killed
    twice                    a task goes twice
    held                     the cleaning stands still
    executor decommissioned  the executor of the first merge gets SIGPWR
    worker decommissioned    the worker of that executor does
    idle within a job        an executor has nothing to do while the other one holds a task, and is removed
    idle between jobs        all executors are removed between two cleanings

Where an executor leaves, rewriting waits for that: the first attempt of task 0 goes on when an executor that
has worked for the job has ended, and leaves the mark ``left``.

Arguments: what happens, the master, log directories that are cleaned one after another, their request and
Spark's settings as JSON, a folder for marks. Prints one JSON document.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.sql import SparkSession

from siltstone.commands import clean as app
from siltstone.spark import clean as pipeline
from siltstone.spark import jobs
from siltstone.spark.clean import SparkEngine
from siltstone.spark.executors import task_slots
from siltstone.spark.jobs import EXCHANGE_STAGE_BYTES, SHUFFLES_ONLY
from siltstone.spark.session import start_session
from tests.support.spark.on_local_cluster import killing_its_executor

KILLED, TWICE, HELD = "killed", "twice", "held"
EXCHANGED, KILLED_IN_MERGE, KILLED_IN_REWRITE = "exchanged", "killed in merge", "killed in rewrite"
EXCHANGE_STAGE = (EXCHANGED, KILLED_IN_MERGE, KILLED_IN_REWRITE)
"""What happens in an exchange stage; all else happens to jobs with shuffles."""
GAVE_UP = "gave-up"
EXECUTOR_DECOMMISSIONED, WORKER_DECOMMISSIONED = "executor decommissioned", "worker decommissioned"
IDLE_WITHIN, IDLE_BETWEEN = "idle within a job", "idle between jobs"
LEFT = "left"
HELD_S, LONGER_S, LEAVES_WITHIN_S = 600, 20, 90


def marked(task: Callable[..., Any], marks: str, seconds: float) -> Callable[..., Any]:
    """A task of which each attempt leaves a mark when it has written; the first attempt of task 0 then takes
    so long."""

    def marking(*arguments: Any) -> Iterator[Any]:
        rows = list(task(*arguments))
        number = _task_number()
        is_first = not list(Path(marks).glob("0.*"))
        Path(marks, f"{number}.{secrets.token_hex(4)}").touch()
        if number == 0 and is_first:
            time.sleep(seconds)
        yield from rows

    return marking


def _task_number() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _javas() -> list[psutil.Process]:
    """In a task: the executor, and the worker of the cluster that has started it."""
    return [process for process in psutil.Process().parents() if "java" in process.name()]


def _is_first(marks: str, name: str) -> bool:
    """Is this the first time? Leaves the mark."""
    try:
        os.close(os.open(os.path.join(marks, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def holds_in_time(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds, for ``LEAVES_WITHIN_S`` at most. Does it?"""
    end = time.monotonic() + LEAVES_WITHIN_S
    while time.monotonic() < end and not condition():
        time.sleep(0.1)
    return condition()


def working(
    task: Callable[..., Any], marks: str, decommissioned: int | None = None, executors: int = 1
) -> Callable[..., Any]:
    """A task that leaves a mark with its executor's process id, and ends when so many executors have worked.
    The first one of all then decommissions: the executor (0) or its worker (1)."""

    def marking(*arguments: Any) -> Iterator[Any]:
        rows, javas = list(task(*arguments)), _javas()
        Path(marks, f"executor.{javas[0].pid}").touch()
        holds_in_time(lambda: len(list(Path(marks).glob("executor.*"))) >= executors)
        if decommissioned is not None and _is_first(marks, "decommissioned"):
            os.kill(javas[decommissioned].pid, signal.SIGPWR)
        yield from rows

    return marking


def waiting_for_an_executor_to_leave(task: Callable[..., Any], marks: str) -> Callable[..., Any]:
    """A task of which the first attempt of number 0 waits until an executor that has worked has ended."""

    def waiting(*arguments: Any) -> Iterator[Any]:
        if _task_number() == 0 and _is_first(marks, "waits"):
            others = [int(path.suffix[1:]) for path in Path(marks).glob("executor.*")]
            if holds_in_time(lambda: not all(map(psutil.pid_exists, others))):
                Path(marks, LEFT).touch()
        yield from task(*arguments)

    return waiting


def wait_until_all_executors_have_left(session: SparkSession, marks: str) -> None:
    """Wait until no executor is there any more."""
    if holds_in_time(lambda: not task_slots(session)):
        Path(marks, LEFT).touch()


def replace_tasks(what: str, marks: str) -> None:
    """Replace the tasks of the pipeline by those to which ``what`` happens."""
    killed = os.path.join(marks, "killed")
    if what in (KILLED, KILLED_IN_REWRITE):
        pipeline.rewrite_task = killing_its_executor(pipeline.rewrite_task, killed)
    elif what == KILLED_IN_MERGE:
        pipeline.merge_task = killing_its_executor(pipeline.merge_task, killed)
    elif what in (TWICE, HELD):
        pipeline.rewrite_task = marked(pipeline.rewrite_task, marks, LONGER_S if what == TWICE else HELD_S)
    elif what in (EXECUTOR_DECOMMISSIONED, WORKER_DECOMMISSIONED):
        pipeline.merge_task = working(pipeline.merge_task, marks, int(what == WORKER_DECOMMISSIONED))
        pipeline.rewrite_task = waiting_for_an_executor_to_leave(pipeline.rewrite_task, marks)
    elif what == IDLE_WITHIN:
        pipeline.merge_task = working(pipeline.merge_task, marks, executors=2)
        pipeline.rewrite_task = waiting_for_an_executor_to_leave(pipeline.rewrite_task, marks)


def marking_exchange_stages(marks: str) -> None:
    """Each exchange stage leaves a mark: it succeeded, or its workers gave up."""
    run = jobs.run_in_exchange_stage

    def marking(*arguments: Any) -> Any:
        reports = run(*arguments)
        Path(marks, EXCHANGED if reports is not None else GAVE_UP).touch()
        return reports

    jobs.run_in_exchange_stage = marking


def main(what: str, master: str, directories: str, request: str, settings: str, marks: str) -> None:
    """Clean logs one after another, each spread over all workers."""
    app.RunLimits = functools.partial(app.RunLimits, whole_log_bytes=0)  # type: ignore[misc,assignment]
    replace_tasks(what, marks)
    marking_exchange_stages(marks)
    largest = EXCHANGE_STAGE_BYTES if what in EXCHANGE_STAGE else SHUFFLES_ONLY
    session = start_session(master, settings=json.loads(settings))
    outcomes = []
    for number, directory in enumerate(json.loads(directories)):
        if number and what == IDLE_BETWEEN:
            wait_until_all_executors_have_left(session, marks)
        cleaning = app.CleanRequest(directories=[Path(directory)], in_place=True, **json.loads(request))
        engine = SparkEngine(session, buckets=3, exchange_stage_bytes=largest)
        (result,) = app.clean(cleaning, engine=lambda *arguments, engine=engine: engine).results  # type: ignore[misc]
        outcomes.append({"status": result.status, "reason": result.reason})
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
