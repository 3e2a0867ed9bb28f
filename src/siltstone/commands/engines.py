"""Chooses the engine of a command: Spark, or this process.

Spark's start takes some seconds, in which one process cleans a gigabyte: small work is done in this process,
without Java.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from siltstone.base import files
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.compaction.inplace.planning import LogState

ENGINES = ("auto", "spark", "process")
SPARK_BYTES = 256 << 20
"""``auto`` uses Spark if the logs have so many bytes together, or more.

On two cores Spark, with its start, is slower up to about a gigabyte. With more cores it is faster from a
smaller size on: the number is a compromise for machines of all sizes."""


def uses_spark(engine: str, master: str | None, size: Callable[[], int], *, no_spark: bool = False) -> bool:
    """Does Spark do the work? With ``auto`` it does if a master is named, if this program has a session or
    was started by spark-submit, or if the logs have ``SPARK_BYTES`` or more. ``size`` returns their bytes,
    and is called at most once. Raises UsageError for flags that exclude each other."""
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: there is no such engine", advice=f"pass {', '.join(ENGINES)}")
    if no_spark or engine == "process":
        if engine == "spark" or master is not None:
            raise UsageError(
                "the flags choose both Spark and this process",
                advice="pass --engine process or --no-spark, or --master, not both",
            )
        return False
    return engine == "spark" or master is not None or has_session() or size() >= SPARK_BYTES


def has_session() -> bool:
    """Does this program have a Spark session, or was it started by spark-submit? Imports nothing of Spark
    unless the program has imported it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # as ``spark.internals.was_submitted``
        return True
    if "pyspark.sql" not in sys.modules:
        return False
    from siltstone.spark.internals import running_session

    return running_session() is not None


def use_stores(options: Mapping[str, str] | None = None) -> None:
    """Use ``options`` for object stores from now on. An option of S3 that neither ``options`` nor the
    environment sets is taken from the program's Spark session, if it has one. Raises UsageError, whose
    message never has the value of an option, since that may be a secret."""
    files.configure(options or {})
    if "pyspark.sql" in sys.modules and has_session():
        from siltstone.spark.stores import use_session_options

        use_session_options()


def start_java(master: str | None, settings: Mapping[str, str]) -> None:
    """Start Java before a session on ``master`` needs it, so that Java and Python load at the same time. Does
    nothing if PySpark is imported already, or if Spark's own launcher must start Java (``java.can_start``).
    Errors are ignored: the session's start reports them."""
    if "pyspark" in sys.modules:
        return
    with contextlib.suppress(SiltstoneError, OSError, ImportError):
        from siltstone.spark import java

        java.prepare(master, settings)


def log_bytes(states: Iterable[LogState]) -> int:
    """The bytes of some logs; a log that cannot be read has none."""
    size = 0
    for state in states:
        with contextlib.suppress(SiltstoneError, OSError):  # its result will say why
            size += sum(segment.size for segment in state.segments())
    return size


def cleanable_bytes(states: Iterable[LogState]) -> int:
    """The bytes of the logs that a cleaning may change."""
    return log_bytes(state for state in states if state.may_be_cleaned)


_SECRET = re.compile(r"secret|password|token|credential|(access|account|storage)[._-]?key", re.IGNORECASE)
"""Names of Spark's settings whose values are not shown: those of ``spark.redaction.regex``, and keys of Azure
and Google."""


def without_secrets(assignments: Sequence[str]) -> list[str]:
    """Spark's settings, ``key=value`` each, with ``***`` for a value that may be a secret."""
    parts = (assignment.partition("=") for assignment in assignments)
    return [f"{name}={'***' if _SECRET.search(name) else value}" for name, _, value in parts]


def parse_spark_conf(assignments: Sequence[str]) -> dict[str, str]:
    """Spark's settings of ``--spark-conf``, ``key=value`` each. Raises UsageError, whose message never has a
    value, since that may be a secret."""
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.startswith("spark.") or name != name.strip():
            reason = f"{name!r} is not a setting of Spark"
            raise UsageError(reason, path="--spark-conf", advice="pass spark.NAME=VALUE, as to spark-submit")
        if settings.setdefault(name, value) != value:
            reason = f"{name} is passed twice, with different values"
            raise UsageError(reason, path="--spark-conf", advice="leave one of them out")
    if "spark.master" in settings:
        raise UsageError("spark.master has a flag of its own", path="--spark-conf", advice="pass --master")
    return settings
