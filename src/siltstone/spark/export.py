"""``siltstone.export`` on a Spark session: tasks read splits and write their files (``tables.export``)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.base.errors import UsageError
from siltstone.spark.executors import shared_folders
from siltstone.spark.internals import is_connect
from siltstone.spark.jobs import collect, stage_over
from siltstone.spark.read import SplitsOf, planned
from siltstone.spark.rows import REPORT, report_of, report_row
from siltstone.spark.tasks import Batches
from siltstone.tables.export import Export, ExportedFile, ExportPlan, abandon, commit, write_split


def export_task(splits_of: SplitsOf, export: ExportPlan, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write a file for each split; a file is a report."""
    for number, split in splits_of(batches):
        written = write_split(export, number, split)
        if written is not None:
            yield report_row(REPORT, written, number).batch()


def export_on(spark: SparkSession, export: ExportPlan) -> Export:
    """Plan, run the job and commit. Raises what planning raises, EngineError; nothing is left then."""
    try:
        if is_connect(spark):
            reason = "a session of Spark Connect cannot export: its files are elsewhere"
            raise UsageError(reason, advice="pass a session of this program's own, or none")
        frame, splits_of = planned(spark, export.options)
        with shared_folders(spark, [Path(export.staging)]) as shared:
            job = functools.partial(stage_over, frame, export_task, splits_of, export, shared=shared)
            reports = collect(spark, job, f"export to {export.target}")
        return commit(export, [report_of(row, ExportedFile) for row in reports])
    except BaseException:
        abandon(export)
        raise
