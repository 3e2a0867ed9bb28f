"""A PySpark daemon that imports what tasks need before it forks Python workers.

Spark ends a Python worker that has had nothing to do for a minute. If PySpark's own daemon forks the next
worker, that worker imports everything again, which takes longer than cleaning a gigabyte. A worker that is
forked here has the modules already, and all workers share their memory.

A fork copies only the thread that calls it, but also locks that other threads hold, which no thread then
releases. For that reason PySpark's daemon imports nothing. This daemon keeps libraries from starting threads,
and counts its threads. If there is more than one, or the number is unknown, it executes PySpark's daemon
instead.

``spark.session`` sets Spark's ``spark.python.daemon.module`` to this module on local masters. On clusters it
is ``siltstone_daemon``, which starts this module of the package that it finds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import re
import sys
import time
import zipimport
from pathlib import Path

from pyspark import daemon

from siltstone.spark.forked_daemon import WORKER

SINGLE_THREAD_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings that keep numpy's and Arrow's libraries from starting threads when they are loaded."""
PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "siltstone.base.records.compiling",
    "siltstone.spark.clean",
    "siltstone.spark.compact",
    "siltstone.spark.verify",
)
"""The modules that tasks import; imported after ``SINGLE_THREAD_SETTINGS`` are set, since the libraries read
them."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` of glibc's ``mallopt``."""
_TRIM_BYTES, _MMAP_BYTES = 128 << 20, 32 << 20
"""glibc returns freed memory to the system if more than ``_TRIM_BYTES`` are free at the top of the heap, or
if it was one allocation of ``_MMAP_BYTES`` or more. glibc documents 32 MiB as the largest value of the
latter."""

_END_CHECKS, _END_CHECK_SECONDS = 200, 0.005
"""How many times, and how often, ``has_one_thread`` counts threads: for one second, since on a busy machine a
thread that was joined may take so long to end."""


def keep_memory() -> None:
    """Let this process, and those forked from it, keep up to 128 MiB of freed memory for later allocations.

    A task reads a log in windows (parts that fit its memory), and allocates and frees arrays of the same
    sizes for each. Memory that is returned to the system must be cleared before it is allocated again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def forget_zip_importers() -> None:
    """Remove the importers of zip archives from Python's cache.

    A worker of PySpark invalidates each importer as it starts. Each package in ``pyspark.zip`` has an
    importer, which would then read all 1,500 names of the archive again. A later import from the archive
    makes a new importer, from the cache of ``zipimport``."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def import_all() -> bool:
    """Import what tasks need, so that no library starts a thread; False if that fails."""
    before = dict(os.environ)
    os.environ.update(SINGLE_THREAD_SETTINGS)
    gc.disable()  # imports make many objects, and hardly any garbage
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Spark reads this process's standard output.
            for name in PRELOADED:
                importlib.import_module(name)
        return True
    except Exception:
        return False
    finally:
        gc.enable()
        for name in SINGLE_THREAD_SETTINGS:
            os.environ.pop(name)
        os.environ.update(before)


def warm_up() -> bool:
    """Clean a small log, so that numba's compiled functions are loaded; False if this process must not be
    forked after that."""
    files = importlib.import_module("siltstone.base.files")
    engine = importlib.import_module("siltstone.compaction.engine")
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            files.temporary_directory("siltstone-warm-up-") as folder,
        ):
            # No Spark session here: the in-process engine also takes the steps of a distributed log.
            engine.clean_warm_up_log(
                Path(folder), whole=engine.InProcessEngine(), distributed=engine.InProcessEngine()
            )
        return has_one_thread()
    except Exception:
        return False


def has_one_thread() -> bool:
    """Has this process one thread? Waits up to a second for threads that were joined, since the kernel counts
    a thread until a moment after ``join``. Raises OSError if the number is unknown."""
    for _ in range(_END_CHECKS):
        if thread_count() == 1:
            return True
        time.sleep(_END_CHECK_SECONDS)
    return False


def thread_count() -> int:
    """The number of threads of this process. Raises OSError if it is unknown."""
    files = importlib.import_module("siltstone.base.files")
    threads = re.search(rb"^Threads:\s*(\d+)$", files.read_bytes("/proc/self/status"), re.MULTILINE)
    if threads is None:
        raise OSError("/proc/self/status does not tell the number of threads")
    return int(threads[1])


def preload() -> bool:
    """Import and load what tasks need; False if this process must not be forked then."""
    return import_all() and warm_up()


def serve() -> None:
    """Be PySpark's daemon; the workers that it forks have all modules already."""
    keep_memory()
    forget_zip_importers()
    # A collection in a worker must not write to the objects that it shares with this process.
    gc.collect()
    gc.freeze()
    daemon.manager()


def main() -> None:
    """Run PySpark's daemon with the arguments that Spark gives it."""
    if sys.argv[1:] != [WORKER]:
        daemon.manager()
    elif preload():
        serve()
    else:
        os.execv(sys.executable, [sys.executable, "-m", daemon.__name__, *sys.argv[1:]])


if __name__ == "__main__":
    main()
