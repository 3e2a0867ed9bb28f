"""``explain``, ``verify`` and tables through a Spark Connect server; a script, since a process has one Spark
session, and one script, since a server takes half a minute to start.

Argument: a JSON document with ``before`` (a log directory before its cleaning), ``after`` (the cleaned one),
``settings`` (topics, config, now_ms), ``table`` (a log directory with the topic users) and ``server``: its
address, or a master, on which the client starts one. Prints one JSON document. The log is explained as it
is, and as if it were over the size up to which a log is one task's; the cleaned one as that only.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import siltstone as st
from siltstone.commands import review
from siltstone.compaction import explain as explaining
from siltstone.spark import read as reading
from siltstone.spark.clean import SparkEngine
from siltstone.spark.executors import default_task_count
from siltstone.spark.verify import SparkChecker


def reviewed(session: SparkSession, before: Path, after: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What ``explain`` and ``verify`` say."""
    workers = default_task_count(session)
    engine = SparkEngine(session, tasks=workers)
    explain_request = review.ExplainRequest(directories=[before], **settings)
    in_one_task = review.explain(explain_request, engine=lambda: engine)
    explaining.WHOLE_LOG_BYTES = 0
    spread = review.explain(explain_request, engine=lambda: engine)
    second = review.explain(replace(explain_request, directories=[after], force=True), engine=lambda: engine)
    request = review.VerifyRequest(before=before, after=after, **settings)
    verdict = review.verify(request, checker=SparkChecker(session, workers))
    explained = {"explain": in_one_task.to_json(), "spread": spread.to_json(), "second": second.to_json()}
    return {**explained, "verify": verdict.to_json(), "workers": workers}


def tables(session: SparkSession, root: str) -> dict[str, Any]:
    """The rows of a table, of its latest view (planned on the server, and in tasks), and of an SQL view."""
    log = st.read(session, root, "users", min_partitions=4)
    latest = session.read.format("siltstone").option("view", "latest").load(root)
    session.sql(f"CREATE TEMPORARY VIEW users USING siltstone OPTIONS (path '{root}')")
    small = st.read(session, root, "users", view="latest", partitions=0)
    reading.IN_PROCESS_BYTES = 0
    spread = st.read(session, root, "users", view="latest", partitions=0)
    return {
        "read latest": [sorted(row.offset for row in frame.collect()) for frame in (small, spread)],
        "log": [row.offset for row in log.where("partition = 0").orderBy("offset").collect()],
        "latest": sorted([row.partition, row.offset] for row in latest.collect()),
        "view": session.sql("SELECT count(*) AS rows FROM users").collect()[0].rows,
    }


def main(arguments: dict[str, Any]) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.remote(arguments["server"]).getOrCreate()
    assert not hasattr(session, "_jsc"), "not a Connect session"
    results = reviewed(session, Path(arguments["before"]), Path(arguments["after"]), arguments["settings"])
    results |= tables(session, arguments["table"])
    sys.stdout.write(f"{json.dumps(results)}\n")
    session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
