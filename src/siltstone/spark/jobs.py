"""What every job of ours on Spark has: stages of Arrow rows, results brought back, progress told."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from siltstone.cleaner.engine import Progress
from siltstone.errors import EngineError
from siltstone.spark import rows
from siltstone.spark.rows import Row, rows_of
from siltstone.spark.tasks import in_worker, why_failed


def attempt_name() -> str:
    """A name that no other attempt of any task has."""
    return secrets.token_hex(8)


def stage(frame: DataFrame, function: Callable[..., Iterator[pa.RecordBatch]], *given: object) -> DataFrame:
    """Let every task of ``frame`` run ``function(*given, batches)``."""
    return frame.mapInArrow(functools.partial(in_worker, function, *given), rows.SCHEMA)


def collect(session: SparkSession, frame: DataFrame, title: str, progress: Progress | None) -> list[Row]:
    """Run a job; its rows are reports, small ones. Raises EngineError when Spark gives up."""
    try:
        with _Watcher(session, progress, title):
            table = frame.toArrow()
    except Exception as error:
        why = why_failed(error)
        if why is None:
            raise
        raise EngineError(f"{title}: the Spark job failed: {why}") from error
    return [row for batch in table.to_batches() for row in rows_of(batch)]


class _Watcher:
    """Tells the progress of a running job, by asking Spark now and then."""

    def __init__(self, session: SparkSession, progress: Progress | None, title: str) -> None:
        self._tracker = session.sparkContext.statusTracker() if progress is not None else None
        self._progress = progress
        self._title = title
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            try:
                self._tell()
            except Exception:
                return

    def _tell(self) -> None:
        assert self._tracker is not None and self._progress is not None
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._progress(self._title, f"stage {stage}", info.numCompletedTasks, info.numTasks)

    def __enter__(self) -> None:
        if self._tracker is not None:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._tracker is not None:
            self._thread.join(2.0)
