"""``python -m bench.fleet``: many brokers with many small logs, cleaned as one fleet.

Siltstone writes the directory of one broker, and each other one gets hard links to copies of its files, so
that 40,000 logs are there within minutes. Four runs of ``siltstone clean --fleet --in-place``, each a process
of its own::

    whole      all brokers
    again      the same command once more: what it takes to find nothing to do
    killed     on another fleet of the same size: kill -9 after half of the brokers
    restarted  the same command again

The whole run must clean each log, the killed one and its restart together: each log once, but for the logs
that the kill cut off between their swap and the report. Processor time and memory are those of the process
with Java and Python workers, sampled; memory counts pages that they share once for each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

import siltstone as st
from bench.measure import WrongResultError
from siltstone.log.names import parse_partition

VALUE_BYTES, RECORDS_PER_KEY = 98, 8
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: seconds, processor seconds, the most bytes of memory (of the driver, and of all processes),
    and the logs that were cleaned, by what it printed."""

    name: str
    seconds: float
    cpu_seconds: float
    driver_bytes: int
    all_bytes: int
    brokers: int
    cleaned: int


def make_broker(folder: Path, logs: int, records: int) -> Path:
    """One stopped broker's directory, and a file of its topics' settings, which is returned. The last record
    of a log is in its active segment, all others are in closed ones."""
    keys = max(records // RECORDS_PER_KEY, 1)
    names = [f"topic{number:03}" for number in range(logs)]
    with st.open(folder, mode="a") as manager:
        for name in names:
            manager.topics.create(name, 1, {"cleanup.policy": "compact"})
            rows = (
                st.NewRecord(key=b"key-%012d" % (row * 7919 % keys), value=os.urandom(VALUE_BYTES))
                for row in range(records)
            )
            manager.send_many(name, rows)
            manager[name, 0].roll()
            manager.send(name, b"", key=b"last")
    for path in folder.glob("siltstone-*"):  # a broker's directory has none
        path.unlink()
    settings = folder.with_suffix(".config")
    settings.write_text("".join(f"{name}:cleanup.policy=compact\n" for name in names))
    return settings


def make_fleet(folder: Path, template: Path, brokers: int) -> None:
    """Directories of so many brokers: each has hard links to a copy of the template's segments."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(brokers):
        broker = folder / f"broker{number:04}"
        broker.mkdir()
        for entry in template.iterdir():
            if parse_partition(entry.name) is None:
                shutil.copy2(entry, broker / entry.name)
                continue
            (broker / entry.name).mkdir()
            for file in entry.iterdir():
                if file.is_file():
                    os.link(file, broker / entry.name / file.name)


class Sampler:
    """Samples a process and all that it has started, until they end."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._is_over = process, threading.Event()
        self._cpu: dict[int, float] = {}
        self.driver_bytes = self.all_bytes = 0
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        sizes = {}
        try:
            for process in [self._process, *self._process.children(recursive=True)]:
                with process.oneshot():
                    times = process.cpu_times()
                    self._cpu[process.pid] = times.user + times.system
                    sizes[process.pid] = process.memory_info().rss
        except psutil.NoSuchProcess:
            return
        self.driver_bytes = max(self.driver_bytes, sizes.get(self._process.pid, 0))
        self.all_bytes = max(self.all_bytes, sum(sizes.values()))

    def end(self) -> float:
        """The processor seconds of all processes, up to the last sample."""
        self._is_over.set()
        self._thread.join()
        return sum(self._cpu.values())


def run(name: str, command: list[str], stop: Callable[[int], bool] = lambda brokers: False) -> Run:
    """Run a fleet's cleaning with ``--json``; ``stop``: kill it after so many brokers?"""
    began, brokers, cleaned = perf_counter(), 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        sampler = Sampler(psutil.Process(process.pid))
        assert process.stdout is not None
        for line in process.stdout:
            result: dict[str, Any] = json.loads(line)
            if "broker" not in result:
                continue
            brokers += 1
            cleaned += sum(log["status"] == "cleaned" for log in result["logs"])
            if result["status"] == "failed":
                raise WrongResultError(f"{result['broker']}: {result['reason']}")
            if stop(brokers):
                process.kill()
                break
    seconds = perf_counter() - began
    return Run(
        name=name,
        seconds=round(seconds, 1),
        cpu_seconds=round(sampler.end(), 1),
        driver_bytes=sampler.driver_bytes,
        all_bytes=sampler.all_bytes,
        brokers=brokers,
        cleaned=cleaned,
    )


def measure(folder: Path, template: Path, settings: Path, arguments: argparse.Namespace) -> list[Run]:
    """The four runs. Raises WrongResultError."""
    root, logs = folder / "root", arguments.brokers * arguments.logs
    command = [sys.executable, "-m", "siltstone", "clean", "--fleet", f"{root}/*/", "--in-place", "--json"]
    command += ["--all-topics", "--config-file", str(settings), "--high-watermark", "end"]
    command += ["--engine", arguments.engine, *(["--master", "local[2]"] * (arguments.engine == "spark"))]
    if arguments.brokers_at_once:
        command += ["--brokers-at-once", str(arguments.brokers_at_once)]
    make_fleet(root, template, arguments.brokers)
    runs = [run("whole", command), run("again", command)]
    if (runs[0].cleaned, runs[1].cleaned) != (logs, 0):
        raise WrongResultError(f"{runs[0].cleaned} and {runs[1].cleaned} of {logs} logs were cleaned")
    if arguments.kill:
        make_fleet(root, template, arguments.brokers)
        runs.append(run("killed", command, lambda brokers: brokers >= arguments.brokers // 2))
        runs.append(run("restarted", command))
        if not logs // 4 < runs[-1].cleaned <= logs - runs[-2].cleaned:
            raise WrongResultError(f"{runs[-2].cleaned} logs, and then {runs[-1].cleaned} of {logs}")
        if list(root.glob("*/*/.siltstone")) or run("checked", command).cleaned:
            raise WrongResultError("something was left after the restart")
    shutil.rmtree(root)
    return runs


def main() -> None:
    """Print a JSON object a run."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description="Clean a generated fleet.")
    parser.add_argument("--brokers", type=int, default=400, help="brokers (400)")
    parser.add_argument("--logs", type=int, default=100, help="logs of each broker (100)")
    parser.add_argument("--records", type=int, default=500, help="records of each log (500: 63 kB)")
    parser.add_argument("--engine", choices=("process", "spark"), default="process")
    parser.add_argument("--brokers-at-once", type=int, help="default: that of the command")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="only the first two runs")
    parser.add_argument("--folder", type=Path, help="default: the system's temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siltstone-fleet-", dir=arguments.folder) as folder:
        template = Path(folder) / "template"
        settings = make_broker(template, arguments.logs, arguments.records)
        for measured in measure(Path(folder), template, settings, arguments):
            print(json.dumps(asdict(measured)), flush=True)


if __name__ == "__main__":
    main()
