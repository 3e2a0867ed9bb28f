"""``explain`` and ``verify`` through a Spark Connect server; a script, since a process has one Spark session.

Arguments: a log directory before its cleaning, the cleaned one, a topic, the settings, the clock. The server
is started for it, on this machine. Prints one JSON document. The log is explained as it is, and as if it were
over the size up to which a log is one task's; the cleaned one as that only.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from siltstone.commands import review
from siltstone.compaction import explain as explaining
from siltstone.spark.executors import workers_of
from siltstone.spark.explain import SparkObserver
from siltstone.spark.verify import SparkChecker


def main(before: str, after: str, topic: str, config: str, now_ms: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    assert not hasattr(session, "_jsc"), "not a Connect session"
    workers = workers_of(session)
    settings = {"topics": [topic], "config": json.loads(config), "now_ms": int(now_ms)}
    observer = SparkObserver(session, workers)
    runner = review.Runner(engine=observer.engine(), observer=observer)
    asked = review.ExplainRequest(directories=[Path(before)], **settings)
    told = review.explain(asked, runner=lambda: runner)
    explaining.WHOLE_LOG_BYTES = 0
    spread = review.explain(asked, runner=lambda: runner)
    second = review.explain(replace(asked, directories=[Path(after)], force=True), runner=lambda: runner)
    request = review.VerifyRequest(before=Path(before), after=Path(after), **settings)
    verdict = review.verify(request, checker=SparkChecker(session, workers))
    explained = {"explain": told.to_json(), "spread": spread.to_json(), "second": second.to_json()}
    found = {**explained, "verify": verdict.to_json(), "workers": workers}
    sys.stdout.write(f"{json.dumps(found)}\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
