"""The measured process of our side: an engine that runs already, told on its input which directory to clean.

::

    python -m bench.beside_kafka.session ENGINE SPILL MASTER
    ◄── {"ready": true}
    ──► {"directory": …, "config_file": …, "spread": false}
    ◄── {"seconds": …, "logs": [[topic, partition, status, reason], …]}

It cleans as ``siltstone clean DIR --in-place --config-file FILE`` does, with all its checks, but for the
start of the engine: ``spark`` (as the command sets Spark up), ``untuned`` (Spark's own settings), or
``in-process``. ``spread``: even a small log goes over all workers, so that a small one can warm a session up
for a large one.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from unittest import mock

from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine, InProcessEngine

ENGINES = ("spark", "untuned", "in-process")


def _engine(name: str, spill: str, master: str) -> Engine:
    if name == "in-process":
        return InProcessEngine()
    from siltstone.spark.clean import SparkEngine
    from siltstone.spark.session import start_session

    if name == "spark":
        return SparkEngine(start_session(master, spill_folder=spill))
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": spill,
    }
    session = SparkSession.builder.master(master).config(map=quiet).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return SparkEngine(session)


def _clean(engine: Engine, directory: str, config_file: str, spread: bool) -> dict[str, object]:
    request = app.CleanRequest(directories=[Path(directory)], in_place=True, config_file=Path(config_file))
    limits = functools.partial(app.RunLimits, whole_log_bytes=0) if spread else app.RunLimits
    with mock.patch.object(app, "RunLimits", limits):
        began = time.perf_counter()
        report = app.clean(request, engine=lambda request, progress: engine)
        seconds = time.perf_counter() - began
    logs = [[each.topic, each.partition, each.status, each.reason] for each in report.results]
    return {"seconds": seconds, "logs": logs}


def main(name: str, spill: str, master: str) -> None:
    """Answer line by line until the input ends."""
    engine = _engine(name, spill, master)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_clean(engine, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
