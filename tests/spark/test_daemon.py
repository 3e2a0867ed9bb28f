"""The process that Python workers are forked from: imports first, one thread, or PySpark's own instead."""

import importlib
import os
import struct
import subprocess
import sys
import threading
import zipfile
import zipimport
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from siltstone.spark import daemon

STARTS_A_THREAD = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=[99], daemon=True).start()"
)
NO_PLACE = "import tempfile\ntempfile.tempdir = '/proc/no/such/place'"
TIMEOUT_S = 60


def start(worker: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start the daemon as Spark does."""
    command = [sys.executable, "-m", daemon.__name__, worker]
    environment = {**os.environ, **environment}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def module_that_serves(process: subprocess.Popen[bytes]) -> str:
    """Which module waits for Spark; it ends when Spark closes its input."""
    assert process.stdout is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    assert 0 < port < 1 << 16
    words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    process.communicate(timeout=TIMEOUT_S)
    return words[words.index(b"-m") + 1].decode()


@pytest.mark.long  # the daemon of the tests' session does, too: test_workers_have_all_modules_from_the_daemon
def test_the_daemon_serves() -> None:
    assert module_that_serves(start(daemon.WORKER)) == "siltstone.spark.daemon"


def test_planners_are_forked_from_a_process_that_has_imported_nothing() -> None:
    process = start("pyspark.sql.worker.plan_data_source_read")
    assert process.stdout is not None
    process.stdout.read(4)
    libraries = Path(f"/proc/{process.pid}/maps").read_text()
    process.communicate(timeout=TIMEOUT_S)
    assert "numpy" not in libraries
    assert "pyarrow" not in libraries


def test_a_process_with_another_thread_becomes_pysparks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    monkeypatch.setattr(daemon, "_END_CHECK_SECONDS", 0)
    monkeypatch.setattr(sys, "argv", ["daemon", daemon.WORKER])
    monkeypatch.setattr(os, "execv", lambda path, words: executed.append([path, *words]))
    monkeypatch.setattr(daemon, "serve", lambda: executed.append(["serves"]))
    assert daemon.import_all()
    other.start()
    try:
        daemon.main()
    finally:
        ended.set()
        other.join()
    assert executed == [[sys.executable, sys.executable, "-m", "pyspark.daemon", daemon.WORKER]]


@pytest.mark.long  # the process of its own of the test above
@pytest.mark.parametrize("hindrance", [STARTS_A_THREAD, NO_PLACE])
def test_pysparks_own_daemon_serves_where_ours_cannot(tmp_path: Path, hindrance: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(hindrance + "\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert module_that_serves(start(daemon.WORKER, PYTHONPATH=path)) == "pyspark.daemon"


def test_threads_that_are_ending_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts a thread until a moment after it was joined."""
    counts = [3, 2, 1]
    monkeypatch.setattr(daemon, "thread_count", lambda: counts.pop(0))
    assert daemon.has_one_thread() and counts == []
    monkeypatch.setattr(daemon, "_END_CHECK_SECONDS", 0)
    monkeypatch.setattr(daemon, "thread_count", lambda: 2)
    assert not daemon.has_one_thread()


@pytest.mark.long
def test_freed_memory_is_kept_for_the_next_window() -> None:
    """Arrays of a window's size that come and go cost page faults once."""
    code = (
        "import resource, sys, numpy as np\n"
        "from siltstone.spark import daemon\n"
        "sys.argv[1] == 'keep' and daemon.keep_memory()\n"
        "def go(): [np.ones(1 << 20, np.uint8) for _ in range(20)]\n"
        "go()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): go()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    faults = [
        int(subprocess.run([sys.executable, "-c", code, options], capture_output=True, check=True).stdout)
        for options in ("keep", "not")
    ]
    assert faults[0] < faults[1] / 10


@pytest.mark.long
def test_libraries_are_told_to_start_no_thread_only_while_they_are_loaded() -> None:
    code = (
        "import os, sys\n"
        "os.environ['OPENBLAS_NUM_THREADS'] = '3'\n"
        "from siltstone.spark import daemon\n"
        "assert 'numpy' not in sys.modules and 'pyarrow' not in sys.modules\n"
        "assert daemon.preload()\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "assert os.environ['OPENBLAS_NUM_THREADS'] == '3'\n"
        "assert 'JE_ARROW_MALLOC_CONF' not in os.environ\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_archives_are_not_read_anew_by_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "packages.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "outer/__init__.py",
            "outer/inner/__init__.py",
            "outer/inner/module.py",
            "outer/later.py",
        ):
            archive.writestr(name, f"name = {name!r}")
    monkeypatch.syspath_prepend(str(path))
    importlib.import_module("outer.inner.module")
    assert archives_known() >= 2
    daemon.forget_zip_importers()
    assert archives_known() == 0
    assert importlib.import_module("outer.later").name == "outer/later.py"
    assert all(sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "outer")


def archives_known() -> int:
    return sum(isinstance(importer, zipimport.zipimporter) for importer in sys.path_importer_cache.values())


def test_workers_have_all_modules_from_the_daemon(session: SparkSession) -> None:
    frame = session.range(0, 2, 1, 2).mapInArrow(what_a_worker_has, "modules string")
    for row in frame.collect():
        assert row.modules == "siltstone.spark.forked_daemon: siltstone.compaction.rewrite, pandas"


def what_a_worker_has(batches: object) -> object:
    """Its daemon's name, and which of two modules it has."""
    words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    parent = words[words.index(b"-m") + 1].decode()
    names = ", ".join(name for name in ("siltstone.compaction.rewrite", "pandas") if name in sys.modules)
    for batch in batches:  # type: ignore[attr-defined]
        yield pa.RecordBatch.from_pydict({"modules": [f"{parent}: {names}"] * batch.num_rows})
