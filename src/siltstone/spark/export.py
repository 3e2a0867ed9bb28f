"""``siltstone.export`` on a Spark session: tasks read splits and write files.

::

    Parquet files, or tables with view=log    splits ─ read ─► a file each
    tables with view=latest                   splits ─ read ─► rows ─ by key bucket ─► merge ─► a file each
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.spark.executors import shared_folders
from siltstone.spark.internals import is_connect
from siltstone.spark.jobs import SparkJobRunner, collect, stage_over
from siltstone.spark.read import SplitsOf, by_target, planned
from siltstone.spark.rows import REPORT, ROWS, Row, report_of, report_row, rows_of
from siltstone.spark.tasks import Batches
from siltstone.tables.export import Export, ExportedFile, ExportPlan, abandon, commit, write_split
from siltstone.tables.lakes import export as lakes
from siltstone.tables.lakes.buckets import Spill, WrittenBucket, encode_rows, merge_bucket, new_rows
from siltstone.tables.lakes.plan import LakePlan
from siltstone.tables.lakes.table import DATA, LakeTable


def export_task(splits_of: SplitsOf, export_plan: ExportPlan, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write a file for each split; yields a report on each file."""
    for number, split in splits_of(batches):
        written = write_split(export_plan, number, split)
        if written is not None:
            yield report_row(REPORT, written, number).batch()


def export_on(spark: SparkSession, export_plan: ExportPlan) -> Export:
    """Plan, run the job and commit. Raises what planning raises, and EngineError; after an error nothing of
    the export is left."""
    try:
        _refuse_connect(spark)
        frame, splits_of = planned(spark, export_plan.options)
        folders = [] if files.is_object(export_plan.target) else [Path(export_plan.staging)]
        with shared_folders(spark, folders) as shared:
            job = functools.partial(stage_over, frame, export_task, splits_of, export_plan, shared=shared)
            reports = collect(spark, job, f"export to {export_plan.target}")
        return commit(export_plan, [report_of(row, ExportedFile) for row in reports])
    except BaseException:
        abandon(export_plan)
        raise


def _refuse_connect(spark: SparkSession) -> None:
    if is_connect(spark):
        reason = "a session of Spark Connect cannot export: its files are elsewhere"
        raise UsageError(reason, advice="pass a session of this program's own, or none")


# Delta and Iceberg tables.


def append_task(splits_of: SplitsOf, lake_plan: LakePlan, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write a file of the table for each split; yields a report on each file."""
    for number, split in splits_of(batches):
        written = lakes.append_split(lake_plan, number, split)
        if written is not None:
            yield report_row(REPORT, written, number).batch()


def new_rows_task(splits_of: SplitsOf, lake_plan: LakePlan, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Send the rows of splits to their key buckets."""
    splits = (split for _, split in splits_of(batches))
    for target, rows in new_rows(lake_plan, splits):
        yield Row(target=target, kind=ROWS, blob=memoryview(encode_rows(rows))).batch()


def merge_rows_task(lake_plan: LakePlan, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge the rows of key buckets into files; yields a report on each bucket."""
    with contextlib.closing(Spill()) as spill:
        for row in rows_of(batches):
            spill.add(row.target, pa.py_buffer(bytes(row.blob)))
        for target in spill.targets():
            yield report_row(REPORT, merge_bucket(lake_plan, target, spill.take(target)), target).batch()


_MERGE_TASK_BYTES = 256 << 20
"""About the bytes of new records that one task merges."""


def export_lake_on(spark: SparkSession, table: LakeTable, lake_plan: LakePlan) -> Export:
    """Plan, run the job and commit. Raises what planning, the job and the commit raise; after an error the
    table is unchanged."""
    lakes.begin(lake_plan)
    try:
        _refuse_connect(spark)
        rows = [] if lake_plan.options is None else _run_job(spark, lake_plan)
        written: list[ExportedFile] | list[WrittenBucket]
        if lake_plan.shape.buckets:
            written = [report_of(row, WrittenBucket) for row in rows]
        else:
            written = [report_of(row, ExportedFile) for row in rows]
    except BaseException:
        lakes.abandon(lake_plan)
        raise
    return lakes.finish(table, lake_plan, written)


def _run_job(spark: SparkSession, lake_plan: LakePlan) -> list[Row]:
    """Plan and run the job of an export that has new records; returns the reports on its files or buckets."""
    assert lake_plan.options is not None
    frame, splits_of = planned(spark, lake_plan.options)
    folders = [] if files.is_object(lake_plan.root) else [Path(lake_plan.root) / DATA]
    with shared_folders(spark, folders) as shared:
        if lake_plan.shape.buckets:
            rows = stage_over(frame, new_rows_task, splits_of, lake_plan)
            tasks = min(
                lake_plan.targets,
                max(SparkJobRunner(spark).parallelism, math.ceil(lake_plan.size / _MERGE_TASK_BYTES)),
            )
            by_bucket = by_target(rows, max(tasks, 1))
            job = functools.partial(stage_over, by_bucket, merge_rows_task, lake_plan, shared=shared)
        else:
            job = functools.partial(stage_over, frame, append_task, splits_of, lake_plan, shared=shared)
        return list(collect(spark, job, f"export to {lake_plan.root}"))
