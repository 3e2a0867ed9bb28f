"""A standalone cluster of Spark: a master and workers of one core, each a process of its own.

A worker has its own address, work directory, home and temporary folder, and executors inherit them. (Spark
speculates only on another host.) ``hidden``: folders that workers see as empty ones of their own, as on other
machines. Its environment has no Siltstone: a driver names the executors' Python,
``INSTALLED`` or ``BARE``. A worker that gets SIGPWR is decommissioned. The benchmark uses it, too
(``bench/clusters.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siltstone.spark import class_archive
from siltstone.spark.java import java_command
from tests.support.golden_sets import REPOSITORY
from tests.support.spark.java import NO_VERIFIER
from tests.support.spark.python import write_python

START_S, COMMAND_S = 60, 240
SOURCE = REPOSITORY / "src"
INSTALLED, BARE = "installed", "bare"
JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {NO_VERIFIER}"
"""Java's optimising compiler would take half of the time of processes that live so shortly, and its verifier
a part of the rest."""
SMALL = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
"""What the tests ask of Spark: executors of a gigabyte would not fit beside other tests."""
QUICK = {f"spark.{part}.defaultJavaOptions": JAVA_OPTIONS for part in ("driver", "executor")}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running cluster: its address, and a folder that has a folder for each worker."""

    master: str
    folder: Path

    def python(self, kind: str) -> str:
        """A Python for executors: with Siltstone installed, or without."""
        return str(self.folder / f"python-{kind}")

    def packages(self) -> list[str]:
        """The fingerprints of the packages that executors have unpacked."""
        folders = self.folder.glob("worker-*/home/.cache/siltstone/packages")
        return [path.name for folder in folders for path in folder.iterdir()]

    def environment(self, kind: str) -> dict[str, str]:
        """The environment of a driver."""
        paths = [str(REPOSITORY), str(SOURCE), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYSPARK_PYTHON": self.python(kind)}
        return {**os.environ, **own, "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(self, command: Sequence[str], kind: str = INSTALLED, **environment: str) -> str:
        """Run a driver; its standard output."""
        completed = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment(kind) | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-4000:]
        return completed.stdout

    def siltstone(
        self,
        words: Sequence[str],
        kind: str = INSTALLED,
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> Any:
        """Run ``siltstone … --master M --spark-conf … --json``; its document."""
        command = [sys.executable, "-m", "siltstone", *words, "--master", self.master, "--json"]
        for name, value in {**SMALL, **QUICK, **settings}.items():
            command += ["--spark-conf", f"{name}={value}"]
        return json.loads(self.run(command, kind, **(environment or {})))


def submit(cluster: Cluster, settings: Mapping[str, str]) -> list[str]:
    """The beginning of a ``spark-submit`` on the cluster."""
    command = [str(class_archive.INSTALLED_SPARK / "bin" / "spark-submit"), "--master", cluster.master]
    for name, value in {**SMALL, **settings}.items():
        command += ["--conf", f"{name}={value}"]
    return command


def _java(
    kind: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    prefix: Sequence[str] = (),
) -> Any:
    """Start a master or worker, by the command of ``prefix``."""
    jars = class_archive.INSTALLED_SPARK / "jars"
    main = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
    options = ["-Xmx256m", *JAVA_OPTIONS.split(), "-Dspark.decommission.enabled=true"]
    command = [*prefix, java_command(), *options, "-cp", f"{jars}/*", main, *words]
    with (folder / f"{kind}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def _printed(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """Wait until a process has printed a line; the group of the pattern."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        match = re.search(pattern, log.read_text(errors="replace"))
        if match is not None:
            return match[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


def _write_pythons(folder: Path) -> None:
    """Pythons for executors. One has the package and its tests, and PySpark's byte code (as
    ``python_with_byte_code``); the other does not read the ``.pth`` files by which this repository is
    installed."""
    libraries = sysconfig.get_path("purelib")
    paths = f'{shlex.quote(libraries)}:"$PYTHONPATH:"{shlex.quote(f"{SOURCE}:{REPOSITORY}")}'
    write_python(folder / f"python-{INSTALLED}", paths)
    write_python(folder / f"python-{BARE}", f'"$PYTHONPATH:"{shlex.quote(libraries)}', "-S ")


def hiding(folders: Sequence[Path]) -> list[str]:
    """The beginning of a command that sees these folders as empty ones, which nobody else sees: a file system
    in memory is mounted over each, in a mount namespace of the command."""
    if not folders:
        return []
    script = (
        'for folder; do shift; [ "$folder" = -- ] && exec "$@"; mount -t tmpfs none "$folder" || exit; done'
    )
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *map(str, folders), "--"]


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 2, memory: str = "1g", hidden: Sequence[Path] = ()
) -> Iterator[Cluster]:
    """A cluster of so many workers, with a core and so much memory for executors each, for the block."""
    _write_pythons(folder)
    base = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XDG_CACHE_HOME")}
    (core,) = (class_archive.INSTALLED_SPARK / "jars").glob("spark-core_*.jar")
    scala = core.name.split("_")[1].split("-")[0]  # as load-spark-env.sh says to a worker
    base |= {"SPARK_HOME": str(class_archive.INSTALLED_SPARK), "SPARK_SCALA_VERSION": scala}
    with contextlib.ExitStack() as stack:
        master = _java("master", [*_PORTS, "127.0.0.1"], folder, base)
        stack.callback(_stop, master)
        url = _printed(master, folder / "master.log", r"Starting Spark master at (spark://\S+)")
        started = []
        for number in range(1, workers + 1):
            place, words = folder / f"worker-{number}", ["--cores", "1", "--memory", memory, url]
            started.append(_worker(place, f"127.0.0.{number}", words, base, hiding(hidden)))
            stack.callback(_stop, started[-1])
        for number, worker in enumerate(started, 1):
            _printed(
                worker, folder / f"worker-{number}" / "worker.log", "(Successfully registered with master)"
            )
        yield Cluster(master=url, folder=folder)


_PORTS = ("--port", "0", "--webui-port", "0", "--host")


def _worker(
    place: Path, host: str, words: Sequence[str], base: Mapping[str, str], prefix: Sequence[str]
) -> Any:
    """Start a worker in folders of its own."""
    for part in ("home", "tmp", "work"):
        (place / part).mkdir(parents=True)
    own = {"HOME": place / "home", "TMPDIR": place / "tmp", "SPARK_LOCAL_DIRS": place / "tmp"}
    environment = {**base, **{key: str(at) for key, at in own.items()}, "SPARK_LOCAL_IP": host}
    where = ["--work-dir", str(place / "work")]
    return _java("worker", [*_PORTS, host, *where, *words], place, environment, prefix)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process; a worker stops its executors."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
