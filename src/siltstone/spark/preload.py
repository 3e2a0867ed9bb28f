"""Everything that a task imports, for the process that workers are forked from (``spark.daemon``)."""

from __future__ import annotations

import re
from pathlib import Path

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.pandas_compat  # noqa: F401
import pyspark.worker  # noqa: F401

import siltstone.spark.clean
import siltstone.spark.compact
import siltstone.spark.verify  # noqa: F401
from siltstone.base import files
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.warm_up import clean_small_log


def rehearse() -> int:
    """Clean something small, so that kernels are loaded; then the number of this process's threads.

    Raises OSError where there is no place for it, or nobody can tell.
    """
    with files.temporary_directory("siltstone-rehearsal-") as folder:
        clean_small_log(Path(folder), InProcessEngine(), InProcessEngine())
    found = re.search(rb"^Threads:\s*(\d+)$", files.read_bytes("/proc/self/status"), re.MULTILINE)
    if found is None:
        raise OSError("the number of threads is not known")
    return int(found[1])
