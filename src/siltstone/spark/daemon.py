"""PySpark's daemon for Python workers, which has imported what our tasks need before it forks them.

Spark ends a Python worker that had nothing to do for a minute. The next one, forked by PySpark's own daemon,
imports everything anew, which takes longer than cleaning a gigabyte; one that is forked here has it already,
and all share that memory.

A fork copies one thread, and the locks of all others as they are: PySpark's daemon imports nothing for that
reason. So this one keeps libraries from starting threads and counts its threads. If there is more than one,
or the number is unknown, it executes PySpark's daemon instead. Local masters only: an executor elsewhere may
have another Siltstone, or none.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import re
import sys
import zipimport
from pathlib import Path

from pyspark import daemon

WORKER = "pyspark.worker"
"""The module that runs tasks. PySpark's other worker modules plan reads; they are forked without imports."""
THREADLESS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings that keep numpy's and Arrow's libraries from starting threads when they are loaded."""
PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "siltstone.spark.clean",
    "siltstone.spark.compact",
    "siltstone.spark.verify",
)
"""What tasks import; imported after ``THREADLESS`` is set, since the libraries read it."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` of glibc's ``mallopt``."""
_TRIM_BYTES = 128 << 20


def keep_memory() -> None:
    """Let this process, and those forked from it, keep up to 128 MiB that they have freed: the arrays of a
    window are allocated and freed hundreds of times, and the system would clear the memory each time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def forget_archives() -> None:
    """Forget the importers of archives. A worker of PySpark's invalidates each importer as it starts, and
    there is one for every package in ``pyspark.zip``, which then reads all 1,500 names again. A later import
    from there makes a new importer, from ``zipimport``'s own cache."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _rehearse() -> int:
    """Clean something small, so that kernels are loaded; then the number of this process's threads.

    Raises OSError without a temporary folder, or if the number is not known.
    """
    files = importlib.import_module("siltstone.base.files")
    engine = importlib.import_module("siltstone.compaction.engine")
    with files.temporary_directory("siltstone-rehearsal-") as folder:
        engine.clean_warm_up_log(Path(folder), engine.InProcessEngine(), engine.InProcessEngine())
    threads = re.search(rb"^Threads:\s*(\d+)$", files.read_bytes("/proc/self/status"), re.MULTILINE)
    if threads is None:
        raise OSError("/proc/self/status does not tell the number of threads")
    return int(threads[1])


def get_ready() -> bool:
    """Import and load what tasks need; False when this process must not be forked."""
    before = dict(os.environ)
    os.environ.update(THREADLESS)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the other one is Spark's
            for name in PRELOADED:
                importlib.import_module(name)
            return _rehearse() == 1
    except Exception:
        return False
    finally:
        for name in THREADLESS:
            os.environ.pop(name)
        os.environ.update(before)


def main() -> None:
    """Run PySpark's daemon with the arguments that Spark gives it."""
    if sys.argv[1:] == [WORKER]:
        if not get_ready():
            os.execv(sys.executable, [sys.executable, "-m", daemon.__name__, *sys.argv[1:]])
        keep_memory()
        forget_archives()
        gc.collect()
        gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
