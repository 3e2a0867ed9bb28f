"""``explain`` and ``verify`` through a Spark Connect server; a script, since a process has one Spark session.

Arguments: a log directory before its cleaning, the cleaned one, a topic, the settings, the clock. The server
is started for it, on this machine. Prints one JSON document.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from siltstone import review
from siltstone.spark.explain import SparkObserver
from siltstone.spark.sessions import workers_of
from siltstone.spark.verify import SparkChecker


def main(before: str, after: str, topic: str, config: str, now_ms: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    assert not hasattr(session, "_jsc"), "not a Connect session"
    workers = workers_of(session)
    settings = {"topics": [topic], "config": json.loads(config), "now_ms": int(now_ms)}
    observer = SparkObserver(session, workers)
    runner = review.Runner(engine=observer.engine(), observer=observer)
    told = review.explain(
        review.ExplainRequest(directories=[Path(before)], **settings), runner=lambda: runner
    )
    request = review.VerifyRequest(before=Path(before), after=Path(after), **settings)
    verdict = review.verify(request, checker=SparkChecker(session, workers))
    found = {"explain": told.to_json(), "verify": verdict.to_json(), "workers": workers}
    sys.stdout.write(f"{json.dumps(found)}\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
