"""Runs whose Python daemon, or whose Java, is killed; a script, since its Spark does not outlive it.

Arguments: the golden sets, a folder to work in. Prints one JSON document.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from siltstone.base.errors import SiltstoneError
from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine, Progress
from siltstone.spark import clean as pipeline
from siltstone.spark.clean import SparkEngine
from siltstone.spark.session import start_session
from tests.support.operator.staged import stage
from tests.support.spark.java import quick_java_options

SET = "basic_zipf_ts"


def killing(task: Callable[..., Any], process: int | None, once: str) -> Callable[..., Any]:
    """A task that does its work and kills a process, its own parent for None, the first time, before it can
    say so."""

    def killed(*arguments: Any) -> Iterator[Any]:
        rows = list(task(*arguments))
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield from rows
            return
        os.kill(process or os.getppid(), signal.SIGKILL)
        yield from rows

    return killed


def main() -> None:
    """Clean with the daemon killed, then with Java killed: statuses and reasons."""
    golden, folder = Path(sys.argv[1]), Path(sys.argv[2])
    session = start_session("local[2]", java_options=quick_java_options())
    app.RunLimits = functools.partial(app.RunLimits, whole_log_bytes=0)  # type: ignore[misc,assignment]
    task, outcomes = pipeline.rewrite_task, {}

    def engine(request: app.CleanRequest, progress: Progress | None) -> Engine:
        return SparkEngine(session, buckets=3)

    gateway: Any = SparkContext._gateway
    for whom, process in (("daemon", None), ("java", gateway.proc.pid)):
        pipeline.rewrite_task = killing(task, process, str(folder / f"killed-{whom}"))
        try:
            (result,) = app.clean(stage(golden, SET, folder / whom).request, engine=engine).results
            outcomes[whom] = {"status": result.status, "reason": result.reason}
        except SiltstoneError as error:
            outcomes[whom] = {"status": "raised", "reason": str(error)}
    sys.stdout.write(json.dumps(outcomes) + "\n")
    sys.stdout.flush()
    os._exit(0)  # its Java is gone: there is nothing to stop


if __name__ == "__main__":
    main()
