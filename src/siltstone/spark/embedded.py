"""The embedded cleaner and compactions beside the originals on Spark, for programs.

::

    with st.open("/data/logs", mode="a", config=config) as logs:
        cleaner = st.start_cleaner(logs, engine="spark")    # closed with the logs
        compactions = st.start_compaction(logs)             # too
        …
        print(cleaner.metrics(), logs.uncleanable, compactions.status("users"))

The session is started at the first cleaning or compaction, on ``cleaner.spark.master``, kept, and used by
both; closing the one that has started it ends the other's job. One that the program has already is used as it
is, and is not stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pyspark.sql import SparkSession

from siltstone.runtime.compactions import Compactions
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from siltstone.spark.clean import SparkEngine
from siltstone.spark.compact import SparkCompactionEngine
from siltstone.spark.internals import running_session
from siltstone.spark.session import is_local, refuse_strange_executors, start_session, stop_session
from siltstone.spark.tasks import is_alive

StartedEngine = TypeVar("StartedEngine", SparkEngine, SparkCompactionEngine)
_starting = threading.Lock()
"""A process has one session."""


class _Sessions:
    """Starts sessions for the engines of a cleaner or of compactions, and stops those that it started."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._started: dict[int, SparkSession] = {}

    def start(self, engine_on: Callable[[SparkSession], StartedEngine]) -> StartedEngine:
        """An engine on the process's session. Raises EngineError."""
        session, is_ours = self._session()
        engine = engine_on(session)
        if is_ours:
            with self._lock:
                self._started[id(engine)] = session
        return engine

    def _session(self) -> tuple[SparkSession, bool]:
        """The process's session, and whether it was started here. A dead session is replaced."""
        master = str(self._manager.config["cleaner.spark.master"])
        with _starting:
            others = running_session()
            if others is not None and not is_alive(others):
                stop_session(others)
                others = None
            session = others if others is not None else start_session(master)
        if not is_local(session.sparkContext.master or master):
            for served in self._manager.serving():
                refuse_strange_executors(session, served.path)
        return session, others is None

    def stop(self, engine: object) -> None:
        """Stop the session of an engine that is lost or not used any more, if it was started for it."""
        with self._lock:
            session = self._started.pop(id(engine), None)
        if session is not None and running_session() in (session, None):
            stop_session(session)


def start_cleaner(manager: LogManager) -> LogCleaner:
    """Clean the logs of ``manager`` as they grow, until it is closed.

    Nothing is started where ``log.cleaner.enable`` is false; without Java, and whenever
    Spark is lost, the logs stay as they are and the next round tries again.
    """
    sessions = _Sessions(manager)
    cleaner = LogCleaner(manager, lambda: sessions.start(SparkEngine), stop_engine=sessions.stop)
    cleaner.start()
    return cleaner


def start_compaction(manager: LogManager) -> Compactions:
    """Compact the logs of ``manager`` beside their originals whenever they are over their threshold, until it
    is closed; ``trigger`` does it at once.

    Without Java a compaction fails, its status says why, and the logs stay as they are.
    """
    sessions = _Sessions(manager)
    compactions = Compactions(
        manager, lambda: sessions.start(SparkCompactionEngine), stop_engine=sessions.stop
    )
    compactions.start()
    return compactions
