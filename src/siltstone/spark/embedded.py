"""The embedded cleaner and side-by-side compaction on Spark, for programs that open logs.

Side-by-side compaction is Pulsar's: the log stays, and the last record of each key goes into a ledger beside
it. ``st`` is the package; its functions with ``engine="spark"`` call those below.

::

    with st.open("/data/logs", mode="a", config=config) as logs:
        cleaner = st.start_cleaner(logs, engine="spark")    # closed with the logs
        compactions = st.start_compaction(logs)             # closed with the logs, too
        …
        print(cleaner.metrics(), logs.uncleanable, compactions.status("users"))

The first cleaning or compaction starts a Spark session on ``cleaner.spark.master``, which both use from then
on. Whichever of the two started the session stops it when it closes, which ends a running job of the other. A
session that the program has already is used as it is, and is not stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from pyspark.sql import SparkSession

from siltstone.runtime.compactions import Compactions
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from siltstone.spark.clean import SparkEngine
from siltstone.spark.compact import SparkCompactionEngine
from siltstone.spark.internals import running_session
from siltstone.spark.session import start_session, stop_session
from siltstone.spark.tasks import is_alive

StartedEngine = TypeVar("StartedEngine", SparkEngine, SparkCompactionEngine)
_session_start_lock = threading.Lock()
"""A process has one session: two threads must not start one at the same time."""


class _Sessions:
    """Finds or starts the session for engines of a cleaner or of compactions, and stops what it started."""

    def __init__(self, manager: LogManager, settings: Mapping[str, str] | None) -> None:
        self._manager, self._settings = manager, settings
        self._lock = threading.Lock()
        # The engines whose session was started here, by ``id``. An engine is kept with its session, so that
        # no other engine can get its id.
        self._own_sessions: dict[int, tuple[object, SparkSession]] = {}

    def start(self, create_engine: Callable[[SparkSession], StartedEngine]) -> StartedEngine:
        """An engine on the session of the process, which is started if there is none. Raises EngineError."""
        session, was_started_here = self._session()
        try:
            engine = create_engine(session)
        except BaseException:
            if was_started_here:
                stop_session(session)
            raise
        if was_started_here:
            with self._lock:
                self._own_sessions[id(engine)] = engine, session
        return engine

    def _session(self) -> tuple[SparkSession, bool]:
        """(A session, whether its application was started here.) A dead session is replaced."""
        master = str(self._manager.config["cleaner.spark.master"])
        with _session_start_lock:
            existing = running_session()
            has_session = existing is not None and is_alive(existing)
            return start_session(master, settings=self._settings), not has_session

    def stop(self, engine: object) -> None:
        """Stop the session of an engine that is lost or no longer used, if it was started for this engine."""
        with self._lock:
            _, session = self._own_sessions.pop(id(engine), (None, None))
        # None: the session is lost, but its Java process may still have to be ended.
        if session is not None and running_session() in (session, None):
            stop_session(session)


def start_cleaner(manager: LogManager, *, spark_conf: Mapping[str, str] | None = None) -> LogCleaner:
    """Start the embedded cleaner: it cleans the logs of ``manager`` as they grow, until ``manager`` is
    closed.

    ``spark_conf``: settings of Spark. If ``log.cleaner.enable`` is false, nothing is started. Without Java,
    or if Spark is lost, the logs stay as they are, and the next round tries again.
    """
    cleaner = cleaner_on_spark(manager, spark_conf=spark_conf)
    cleaner.start()
    return cleaner


def cleaner_on_spark(manager: LogManager, *, spark_conf: Mapping[str, str] | None = None) -> LogCleaner:
    """The cleaner of ``start_cleaner``, not started: it cleans only when ``clean_now`` is called."""
    sessions = _Sessions(manager, spark_conf)
    return LogCleaner(manager, lambda: sessions.start(SparkEngine), stop_engine=sessions.stop)


def start_compaction(manager: LogManager, *, spark_conf: Mapping[str, str] | None = None) -> Compactions:
    """Start side-by-side compaction: it compacts each log of ``manager`` whose backlog is over its threshold,
    until ``manager`` is closed. ``Compactions.trigger`` compacts a log at once.

    ``spark_conf``: settings of Spark. Without Java a compaction fails, its status says why, and the logs stay
    as they are.
    """
    sessions = _Sessions(manager, spark_conf)
    compactions = Compactions(
        manager, lambda: sessions.start(SparkCompactionEngine), stop_engine=sessions.stop
    )
    compactions.start()
    return compactions
