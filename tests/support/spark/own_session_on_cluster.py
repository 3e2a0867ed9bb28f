"""A program that has a session of its own on a cluster, and uses the library; a script.

Arguments: the master, a log directory, a folder for its cleaned copy, keywords of the library as JSON, the
program's settings of Spark as JSON. Prints one JSON document.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import siltstone as st
from siltstone.base.errors import EngineError

SETTINGS = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.adaptive.enabled", "spark.app.name")


def main(master: str, directory: str, out: str, keywords: str, settings: str) -> None:
    builder = SparkSession.builder.master(master).appName("a program")
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    before, answers, arguments = {name: session.conf.get(name) for name in SETTINGS}, {}, json.loads(keywords)
    answers["explained"] = [log.status for log in st.explain(directory, engine="spark", **arguments).logs]
    outcome = st.clean(directory, out=out, spark_conf={"spark.sql.shuffle.partitions": 7}, **arguments)
    answers["cleaned"] = [result.status for result in outcome.results]
    answers["engine"] = outcome.engine
    answers["verified"] = st.verify(directory, out, engine="spark", **arguments).is_sound
    try:
        st.clean(directory, dry_run=True, force=True, spark_conf={"spark.executor.memory": "9g"}, **arguments)
    except EngineError as error:
        answers["too late"] = str(error)
    answers["unchanged"] = before == {name: session.conf.get(name) for name in SETTINGS}
    answers["own"] = session.range(3).count()
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
