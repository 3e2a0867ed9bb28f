"""Our sides: a session that runs already, told to clean a twin, and the command as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.beside_kafka.observing import Observed, observe
from bench.beside_kafka.workloads import MAIN, WARM_UP, Workload
from bench.session import NotCleanedError, RunningSession, refuse_uncleaned

ONE_SHOT, ONE_SHOT_PROCESS = "one-shot", "one-shot-process"


class Session:
    """A session for a workload's twins; ``spill``: Spark's local folder, ``master``: where it runs."""

    def __init__(self, engine: str, workload: Workload, spill: Path, master: str) -> None:
        self._workload, self._spill = workload, spill
        self._session = RunningSession(engine, spill, master)

    def close(self) -> None:
        """Let it end."""
        self._session.close()

    def warm_up(self, twin: Path) -> None:
        """Clean the twin's warm-up topic, in the way that the workload's own logs go."""
        self._clean(twin, [WARM_UP], spread=self._workload.partitions == 1)

    def clean(self, twin: Path) -> tuple[Observed, float]:
        """Clean the twin's ``bench``: what it took from outside, and its own seconds."""
        with observe(self._session.pid, [twin, self._spill]) as observed:
            began = time.perf_counter()
            seconds = self._clean(twin, [MAIN])
            observed.wall = time.perf_counter() - began
        return observed, seconds

    def _clean(self, twin: Path, topics: Sequence[str], *, spread: bool = False) -> float:
        config = config_file(twin, self._workload, topics)
        return self._session.clean(twin, config, topics, spread=spread)


def one_shot(side: str, twin: Path, workload: Workload, master: str) -> tuple[Observed, float]:
    """``siltstone clean`` from the start of its process to its end: ``ONE_SHOT``, with Java and Spark started
    for it, or ``ONE_SHOT_PROCESS``, without them."""
    command = [sys.executable, "-m", "siltstone", "clean", str(twin), "--in-place", "--json", "--all-topics"]
    command += ["--master", master] if side == ONE_SHOT else ["--engine", "process"]
    spill = twin.with_name(f"spill-{side}")
    spill.mkdir(exist_ok=True)
    command += ["--config-file", str(config_file(twin, workload, [MAIN])), "--spill-dir", str(spill)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())
    with observe(process.pid, [twin, spill]) as observed:
        output, _ = process.communicate()
        observed.wall = time.perf_counter() - began
    if process.returncode:
        raise NotCleanedError(f"siltstone clean ended with exit code {process.returncode}")
    logs = [log for log in json.loads(output)["logs"] if log["topic"] == MAIN]
    refuse_uncleaned([[log["topic"], log["partition"], log["status"], log["reason"]] for log in logs])
    return observed, observed.wall


def config_file(twin: Path, workload: Workload, topics: Sequence[str]) -> Path:
    """Every topic's settings as the broker has them, where ``topics`` may be cleaned."""
    lines = []
    for topic in workload.topics:
        ratio = "0.0" if topic in topics else "1.0"
        lines += [f"{topic}:cleanup.policy=compact", f"{topic}:min.cleanable.dirty.ratio={ratio}"]
        lines.append(f"{topic}:segment.bytes={workload.segment_bytes}")
    path = twin.with_name("topics.config")
    path.write_text("\n".join(lines) + "\n")
    return path


def _environment() -> dict[str, str]:
    """This process's, without what would put Spark's files elsewhere than on the disk of the logs."""
    return {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_DIRS"}
