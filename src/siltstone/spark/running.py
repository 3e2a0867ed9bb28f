"""One job of Spark: run, waited for so that an interrupt ends the wait, cancelled when nobody waits any more.

PySpark's own way of bringing rows back waits for the job in a ``finally``: in the main thread it would wait
for the end of a job that was just interrupted, and tell of that job's error. So the main thread only waits,
and another one speaks to Java. Nothing of the cleaner is imported here.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
from collections.abc import Callable

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from siltstone.base import interruption
from siltstone.spark import internals
from siltstone.spark.internals import is_connect
from siltstone.spark.tasks import told_as_engine_error


def is_alive(session: SparkSession) -> bool:
    """Does its Java process answer, and was it not stopped?"""
    try:
        if is_connect(session):
            return bool(session.range(1).count())
        return not internals.java_context(session).isStopped()
    except Exception:
        return False


class Cancelling:
    """Jobs of one thread that another one may cancel."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._tag = f"siltstone-{secrets.token_hex(8)}"

    def begin(self) -> None:
        """In the thread whose jobs they are, before the first of them."""
        self._context.addJobTag(self._tag)

    def cancel(self) -> None:
        """Let Spark give these jobs up; those of others go on. Nothing is raised where Spark is gone."""
        interruption.current().settle()
        with contextlib.suppress(Exception):
            if not interruption.current().has_come:
                self._context.cancelJobsWithTag(self._tag)


def run_job(session: SparkSession, title: str, job: Callable[[], DataFrame]) -> pa.Table:
    """The rows of a job, which ``job`` puts together. Raises EngineError when Spark gives up, and passes a
    KeyboardInterrupt on when the job is cancelled."""
    with told_as_engine_error(title):
        frame = job()
        if is_connect(session) or threading.current_thread() is not threading.main_thread():
            return frame.toArrow()
        return _waited_for(session, frame)


def _waited_for(session: SparkSession, frame: DataFrame) -> pa.Table:
    cancelling = Cancelling(session)
    done: queue.SimpleQueue[pa.Table | BaseException] = queue.SimpleQueue()

    def go() -> None:
        try:
            cancelling.begin()
            done.put(frame.toArrow())
        except BaseException as error:
            done.put(error)

    try:
        InheritableThread(target=go, daemon=True).start()
        found = done.get()
    except BaseException:
        cancelling.cancel()
        raise
    if isinstance(found, BaseException):
        raise found
    return found
