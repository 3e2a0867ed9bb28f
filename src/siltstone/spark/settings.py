"""Spark's settings for a session that Siltstone starts.

::

    REQUIRED            on every master, also on a program's own session: they bound a task's memory
    local_settings      on this machine (local[N], local-cluster): loopback, authentication, a quick start
    cluster_settings    on any other master: only where neither the cluster, nor spark-submit, nor
                        --spark-conf has a value

On a cluster, Siltstone sets nothing of authentication, encryption, memory, the UI, adaptive execution and
speculation: the settings of the cluster hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from siltstone.base.errors import EngineError

DEFAULT_MASTER = "local[*]"
TASK_ATTEMPTS = 3
"""How many times Spark tries a task on a local master."""
REQUIRED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}
"""A row between tasks has up to 32 MiB (``rows.BLOB_BYTES_MAX``). Spark would put 10,000 of them into one
Arrow batch, which must stay below 2 GiB."""
PYTHON_SETTING = "spark.pyspark.python"
DAEMON_SETTING = "spark.python.daemon.module"
"""Spark's undocumented setting for the module that forks Python workers."""
DRIVER_MEMORY = "2g"
"""The heap of the driver's Java, which on a local master also runs the tasks' side in Java."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"
"""Java only moves rows from task to task. Its optimising compiler (C2) takes far more time from the tasks
than it saves. Every blob would be a humongous object for its default garbage collector (G1)."""
_EXECUTOR_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""Without a garbage collector: Java does not start if a cluster's options name another one."""
_JAVA_OPTION_SETTINGS = ("spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions")


def is_local(master: str | None) -> bool:
    """Do tasks run in processes of this machine that Spark's one Java starts?"""
    return master is not None and (master.startswith("local[") or master == "local")


def is_this_machine(master: str) -> bool:
    """Is the master local, or ``local-cluster``, whose executors are processes of this machine?"""
    return is_local(master) or master.startswith("local-cluster")


def with_retries(master: str) -> str:
    """A local master with retries of tasks, in case a worker is killed; by default Spark has none there."""
    local = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]" if local else master


def without_retries(master: str | None) -> str:
    """The master as a user names it."""
    return re.sub(r"^local\[([^,\]]+),\d+\]$", r"local[\1]", master or "")


def refuse_changed_required(settings: Mapping[str, str]) -> None:
    """Raises EngineError if a user's setting is another one than Siltstone requires."""
    for name, value in settings.items():
        if REQUIRED.get(name, value) != value:
            reason = f"{name}={value}: Siltstone needs {REQUIRED[name]}, which bounds the memory of a task"
            raise EngineError(reason, path="--spark-conf", advice="leave this setting out")


def local_settings(master: str, spill_folder: str | None, java_options: str, daemon: str) -> dict[str, str]:
    """The settings on this machine. ``java_options``: further options of the driver's Java; ``daemon``: the
    module that forks Python workers on a local master."""
    settings = {
        **REQUIRED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": driver_java_options(java_options),
        "spark.sql.adaptive.enabled": "false",
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        "spark.broadcast.compress": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.speculation": "false",
        "spark.authenticate": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        DAEMON_SETTING: daemon,
    }
    return settings | _environment(spill_folder)


def driver_java_options(further: str) -> str:
    """The options of the driver's Java on this machine. ``further``: more of them, as text that begins with a
    space; or empty."""
    quiet = (Path(__file__).parent / "log4j2.properties").as_uri()
    return f"-Dlog4j2.configurationFile={quiet} {_JAVA_OPTIONS}{further}"


def cluster_settings(spill_folder: str | None, daemon: str, present: Mapping[str, str]) -> dict[str, str]:
    """The settings on a cluster, without those that are ``present``: from ``spark-defaults.conf``,
    ``spark-submit`` or the user."""
    settings = {"spark.app.name": "siltstone", DAEMON_SETTING: daemon}
    settings["spark.ui.showConsoleProgress"] = "false"
    if not any(name in present for name in _JAVA_OPTION_SETTINGS):
        settings[_JAVA_OPTION_SETTINGS[0]] = _EXECUTOR_JAVA_OPTIONS
    settings |= _environment(spill_folder)
    return {name: value for name, value in settings.items() if name not in present} | REQUIRED


def _environment(spill_folder: str | None) -> dict[str, str]:
    """Settings by this process's environment and options: numba's cache for executors, the folder for
    spills."""
    settings = {}
    if "NUMBA_CACHE_DIR" in os.environ:
        settings["spark.executorEnv.NUMBA_CACHE_DIR"] = os.environ["NUMBA_CACHE_DIR"]
    if spill_folder is not None:
        settings["spark.local.dir"] = spill_folder
    return settings
