"""A session for what needs DataFrames only: a master of one's own, or a Spark Connect server.

``explain`` and ``verify`` run on either. A Connect server has no ``SparkContext``: how many tasks go at one
time is read from its settings.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from siltstone.errors import EngineError
from siltstone.spark.session import start_session

CONNECT = "sc://"
_UNKNOWN = 8
"""Tasks at one time where nothing says how many."""


def session_on(master: str, spill_folder: Path | None = None) -> SparkSession:
    """A session on ``master``, or on the Connect server ``sc://host:port``, which must see the same files and
    have Siltstone installed. Raises EngineError."""
    if not master.startswith(CONNECT):
        return start_session(master, spill_folder=None if spill_folder is None else str(spill_folder))
    try:
        session: SparkSession = SparkSession.builder.remote(master).getOrCreate()
        session.range(1).count()
    except (PySparkException, ImportError, OSError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(f"{master}: no Spark Connect server answers: {first}") from None
    return session


def workers_of(session: SparkSession) -> int:
    """About how many tasks go at one time, from the session's settings."""
    master = session.conf.get("spark.master", None) or ""
    local = re.fullmatch(r"local(?:-cluster)?(?:\[(\*|\d+)(?:,.*)?\])?", master)
    if local is not None:
        count = local[1] or "1"
        return max(os.cpu_count() or 1, 1) if count == "*" else int(count)
    given = session.conf.get("spark.default.parallelism", None)
    return int(given) if given else _UNKNOWN
