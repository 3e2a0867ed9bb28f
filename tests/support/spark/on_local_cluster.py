"""A run on executors that are processes of their own; a script, since a process has one Spark session.

Arguments: the golden sets, a folder to work in. Prints one JSON document.
"""

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import siltstone
from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine, Progress
from siltstone.spark import clean as pipeline
from siltstone.spark.clean import SparkEngine
from siltstone.spark.jobs import SHUFFLES_ONLY, can_exchange_files
from siltstone.spark.session import start_session
from tests.support.operator.staged import stage

MASTER = "local-cluster[2,1,1024]"
OTHERS_TAKE_S = 5.0


def where_imported(batches: Any) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [siltstone.__file__]})


def killing_its_executor(task: Callable[..., Any], once: str) -> Callable[..., Any]:
    """A task that kills the executor it runs in, the first time, when the others have given their results."""

    def killed(*arguments: Any) -> Iterator[Any]:
        for batch in task(*arguments):
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
                time.sleep(OTHERS_TAKE_S)
                java = [parent for parent in psutil.Process().parents() if "java" in parent.name()]
                os.kill(java[0].pid, signal.SIGKILL)
            except FileExistsError:
                pass
            yield batch

    return killed


def in_another_order(task: Callable[..., Any], once: str) -> Callable[..., Any]:
    """A task whose rows come the other way round when it is done again, as they well may."""

    def turned(*arguments: Any) -> Iterator[Any]:
        *others, batches = arguments
        rows = list(batches)
        yield from task(*others, rows[::-1] if os.path.exists(once) else rows)

    return turned


def where_the_secret_shows(session: SparkSession) -> dict[str, Any]:
    """Is there a secret, how many Java processes, and whose command line has it?"""
    secret = session.sparkContext.getConf().get("spark.authenticate.secret")
    javas, shown = 0, []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        javas += "java" in process.name()
        shown += [process.name()] if secret and any(secret in word for word in words) else []
    return {"there": secret is not None, "javas": javas, "shown": shown}


def clean(golden: Path, folder: Path, name: str, engine: app.EngineFactory, outcomes: dict[str, Any]) -> None:
    """One cleaning in a log directory of its own; its outcome goes to ``outcomes``."""
    (result,) = app.clean(stage(golden, "basic_zipf_ts", folder / name).request, engine=engine).results
    outcomes[name] = {"status": result.status, "reason": result.reason}


def main() -> None:
    """Import, clean whole and spread, lose an executor."""
    golden, folder = Path(sys.argv[1]), Path(sys.argv[2])
    session = start_session(MASTER)
    outcomes: dict[str, Any] = {}

    imported = session.range(0, 4, 1, 4).mapInArrow(where_imported, "path string")
    outcomes["imported_from"] = sorted({row.path for row in imported.collect()})
    outcomes["secret"] = where_the_secret_shows(session)

    def engine(request: app.CleanRequest, progress: Progress | None) -> Engine:
        return SparkEngine(session, buckets=3, exchange_stage_bytes=SHUFFLES_ONLY)

    def exchanging(request: app.CleanRequest, progress: Progress | None) -> Engine:
        return SparkEngine(session, buckets=3)

    clean(golden, folder, "whole", engine, outcomes)
    app.RunLimits = functools.partial(app.RunLimits, whole_log_bytes=0)  # type: ignore[misc,assignment]
    clean(golden, folder, "spread", engine, outcomes)
    outcomes["exchanges"] = can_exchange_files(session, 1)
    clean(golden, folder, "exchanged", exchanging, outcomes)
    marker = str(folder / "marker")
    pipeline.merge_task = in_another_order(pipeline.merge_task, marker)
    pipeline.rewrite_task = killing_its_executor(pipeline.rewrite_task, marker)
    clean(golden, folder, "killed", engine, outcomes)
    session.stop()
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
