"""Tables through a Spark Connect server; a script, since a process has one Spark session.

Argument: a log directory. The server is started for it, on this machine. Prints one JSON document.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

import siltstone as st


def main(root: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    assert not hasattr(session, "_jsc"), "not a Connect session"
    log = st.read(session, root, "users", min_partitions=4)
    latest = session.read.format("siltstone").option("view", "latest").load(root)
    session.sql(f"CREATE TEMPORARY VIEW users USING siltstone OPTIONS (path '{root}')")
    found = {
        "log": [row.offset for row in log.where("partition = 0").orderBy("offset").collect()],
        "latest": sorted([row.partition, row.offset] for row in latest.collect()),
        "view": session.sql("SELECT count(*) AS rows FROM users").collect()[0].rows,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
