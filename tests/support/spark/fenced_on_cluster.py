"""A cleaning on a cluster that loses an executor, has a task go twice, or stands still; a script.

Arguments: what happens, the master, a log directory, its request and Spark's settings as JSON, a folder for
marks. Prints one JSON document.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from siltstone.commands import clean as app
from siltstone.spark import clean as pipeline
from siltstone.spark.clean import SparkEngine
from siltstone.spark.session import start_session
from tests.support.spark.on_local_cluster import killing_its_executor

KILLED, TWICE, HELD = "killed", "twice", "held"
HELD_S, LONGER_S = 600, 20


def marked(task: Callable[..., Any], marks: str, seconds: float) -> Callable[..., Any]:
    """A task of which each attempt leaves a mark when it has written; the first attempt of task 0 then takes
    so long."""

    def marking(*given: Any) -> Iterator[Any]:
        rows = list(task(*given))
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        is_first = not list(Path(marks).glob("0.*"))
        Path(marks, f"{number}.{secrets.token_hex(4)}").touch()
        if number == 0 and is_first:
            time.sleep(seconds)
        yield from rows

    return marking


def main(what: str, master: str, request: str, settings: str, marks: str) -> None:
    """Clean one log, spread over all workers."""
    app.RunLimits = functools.partial(app.RunLimits, whole_log_bytes=0)  # type: ignore[misc,assignment]
    task = pipeline.rewrite_task
    if what == KILLED:
        pipeline.rewrite_task = killing_its_executor(task, os.path.join(marks, "killed"))
    else:
        pipeline.rewrite_task = marked(task, marks, LONGER_S if what == TWICE else HELD_S)
    given = json.loads(request)
    directories = [Path(path) for path in given.pop("directories")]
    session = start_session(master, settings=json.loads(settings))
    asked = app.CleanRequest(directories=directories, in_place=True, **given)
    (result,) = app.clean(asked, engine=lambda *given: SparkEngine(session, buckets=3)).results
    sys.stdout.write(json.dumps({"status": result.status, "reason": result.reason}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
