"""A process that holds an engine which runs already, told on its input which directory to clean.

::

    python -m bench.session ENGINE SPILL MASTER SETTINGS
    ◄── {"ready": true}
    ──► {"directory": …, "config_file": …, "spread": false}
    ◄── {"seconds": …, "logs": [[topic, partition, status, reason], …]}

It cleans as ``siltstone clean DIR --in-place --config-file FILE`` does, with all its checks, but for the
start of the engine: ``spark`` (as the command sets Spark up, with ``SETTINGS``, a JSON object, over that),
``untuned`` (Spark's own settings), or ``in-process``. ``spread``: even a small log goes over all workers, so
that a small one can warm a session up for a large one. ``RunningSession`` is the other end of it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from bench.measure import WrongResultError
from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine, InProcessEngine

END_TIMEOUT_S = 60.0


class NotCleanedError(WrongResultError):
    """A cleaning did not do what it was asked for."""


class RunningSession:
    """The process, from outside. ``spill``: Spark's local folder, ``master``: where it runs, ``settings``:
    Spark's, ``environment``: the variables of the process, by default as here."""

    def __init__(
        self,
        engine: str,
        spill: Path,
        master: str,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        spill.mkdir(parents=True, exist_ok=True)
        words = [engine, str(spill), master, json.dumps(settings or {})]
        # Without what would put Spark's files elsewhere than on the disk of the logs.
        variables = dict(os.environ if environment is None else environment)
        variables.pop("SPARK_LOCAL_DIRS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self.pid = self._process.pid
        assert self._answer() == {"ready": True}

    def clean(
        self, directory: Path, config_file: Path, topics: Collection[str], *, spread: bool = False
    ) -> float:
        """Clean a directory in place; the seconds. Raises NotCleanedError unless all logs of ``topics`` were
        cleaned."""
        assert self._process.stdin is not None
        request = {"directory": str(directory), "config_file": str(config_file), "spread": spread}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        refuse_uncleaned([log for log in answer["logs"] if log[0] in topics])
        return float(answer["seconds"])

    def close(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=END_TIMEOUT_S)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise NotCleanedError(f"the session ended with exit code {self._process.wait()}")


def refuse_uncleaned(logs: Collection[Sequence[object]]) -> None:
    """Raises NotCleanedError unless each was cleaned: topic, partition, status, reason."""
    for topic, partition, status, reason in logs:
        if status != "cleaned":
            raise NotCleanedError(f"{topic}-{partition}: {status}: {reason}")
    if not logs:
        raise NotCleanedError("nothing was cleaned")


def _engine(name: str, spill: str, master: str, chosen: Mapping[str, str]) -> Engine:
    if name == "in-process":
        return InProcessEngine()
    from siltstone.spark.clean import SparkEngine
    from siltstone.spark.session import start_session

    if name == "spark":
        return SparkEngine(start_session(master, spill_folder=spill, settings=chosen))
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
    logs = [[result.topic, result.partition, result.status, result.reason] for result in report.results]
    return {"seconds": seconds, "logs": logs}


def main(name: str, spill: str, master: str, settings: str) -> None:
    """Answer line by line until the input ends."""
    engine = _engine(name, spill, master, json.loads(settings))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_clean(engine, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
