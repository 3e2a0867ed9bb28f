"""A program with a Spark session of its own, which has fewer slots than its settings let one think; a script,
since a process has one session.

Arguments: a log directory, a folder, settings of Spark as JSON. Cleans copies of the directory with it, is
interrupted, goes on, and has its Java killed in the end. Prints one JSON document.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine
from siltstone.spark import clean as pipeline
from siltstone.spark import jobs
from siltstone.spark.clean import SparkEngine
from tests.support.cleaning.logs import NOW

TRIED = []


def cleaned(engine: Engine, before: Path, folder: Path) -> list[tuple[str, str]]:
    """Clean a copy; each log's status and reason."""
    shutil.copytree(before, folder)
    request = app.CleanRequest(
        directories=[folder],
        in_place=True,
        topics=["topic"],
        config=["cleanup.policy=compact"],
        force=True,
        now_ms=NOW,
        master="own",
    )
    report = app.clean(request, engine=lambda *arguments: engine)
    return [(result.status, result.reason) for result in report.results]


def held(task: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """A task that lasts."""
    yield from task(*arguments)
    time.sleep(60)


@contextlib.contextmanager
def at_the_first_job(session: SparkSession, do: Callable[[], object]) -> Iterator[None]:
    """Tasks last within, and something is done as soon as a job runs."""
    extract = pipeline.extract_task
    pipeline.extract_task = functools.partial(held, extract)  # type: ignore[assignment]
    pipeline.extract_task.__name__ = extract.__name__

    def watch() -> None:
        while not session.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.02)
        TRIED.append(len(session.sparkContext.statusTracker().getActiveJobsIds()))
        do()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        pipeline.extract_task = extract


def interrupted(session: SparkSession, engine: Engine, before: Path, folder: Path) -> dict[str, object]:
    """Ctrl-C while a job runs: KeyboardInterrupt comes out, at once, and the job does not go on."""
    began = time.monotonic()
    with at_the_first_job(session, lambda: os.kill(os.getpid(), signal.SIGINT)):
        try:
            raised = str(cleaned(engine, before, folder))
        except KeyboardInterrupt:
            raised = "KeyboardInterrupt"
    seconds, tracker = time.monotonic() - began, session.sparkContext.statusTracker()
    for _ in range(200):
        if not tracker.getActiveJobsIds():
            break
        time.sleep(0.05)
    return {"raised": raised, "seconds": seconds, "jobs": len(tracker.getActiveJobsIds())}


def main(before: str, folder: str, settings: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    pysparks = signal.getsignal(signal.SIGINT)
    app.RunLimits = functools.partial(app.RunLimits, whole_log_bytes=0)  # type: ignore[assignment, misc]
    engine = SparkEngine(session)
    outcomes: dict[str, object] = {"slots": jobs.task_slots(session), "parallelism": engine.parallelism}
    outcomes["first"] = cleaned(engine, Path(before), Path(folder, "first"))
    outcomes["by PySpark's handler"] = interrupted(session, engine, Path(before), Path(folder, "second"))
    outcomes["same handler"] = signal.getsignal(signal.SIGINT) is pysparks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes["by Python's handler"] = interrupted(session, engine, Path(before), Path(folder, "third"))
    java: Any = session.sparkContext._gateway
    with at_the_first_job(session, java.proc.kill):
        outcomes["without Java"] = cleaned(engine, Path(before), Path(folder, "fourth"))
    sys.stdout.write(f"{json.dumps(outcomes)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
