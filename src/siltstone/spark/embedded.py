"""The embedded cleaner on Spark, for programs: ``st.start_cleaner(logs)``.

::

    with st.open("/data/logs", mode="a", config=config) as logs:
        cleaner = st.start_cleaner(logs)            # closed with the logs
        …
        print(cleaner.metrics(), logs.uncleanable)

The session is started at the first cleaning, on ``cleaner.spark.master``, and kept. One that the program has
already is used as it is, and is not stopped.
"""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from siltstone.cleaner.engine import Engine
from siltstone.cleaner.service.log_cleaner import LogCleaner
from siltstone.log.service.manager import LogManager
from siltstone.spark.clean import SparkEngine
from siltstone.spark.probe import refuse_strange_executors
from siltstone.spark.session import is_local, running_session, start_session, stop_session


class _Sessions:
    """Starts engines for one cleaner, and stops the sessions that it has started."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._started: dict[int, SparkSession] = {}

    def start(self) -> Engine:
        """An engine on a session. Raises EngineError."""
        master = str(self._manager.config["cleaner.spark.master"])
        others = running_session()
        session = others if others is not None else start_session(master)
        if not is_local(session.sparkContext.master or master):
            for served in self._manager.serving():
                refuse_strange_executors(session, served.path)
        engine = SparkEngine(session)
        if others is None:
            with self._lock:
                self._started[id(engine)] = session
        return engine

    def stop(self, engine: Engine) -> None:
        """The engine is lost, or of no use any more; a program's own session goes on."""
        with self._lock:
            session = self._started.pop(id(engine), None)
        if session is not None:
            stop_session(session)


def start_cleaner(manager: LogManager) -> LogCleaner:
    """Clean the logs of ``manager`` as they grow, until it is closed.

    Nothing is started where ``log.cleaner.enable`` is false; without Java, and whenever
    Spark is lost, the logs stay as they are and the next round tries again.
    """
    sessions = _Sessions(manager)
    cleaner = LogCleaner(manager, sessions.start, stop_engine=sessions.stop)
    cleaner.start()
    return cleaner
