"""``siltstone.read``: a log as a DataFrame, with options as Python values.

::

    view=log, compacted   spark.range(splits) ─ read ─► records
    view=latest           spark.range(lists of file splits) ─ extract ─► key entries ─ by bucket ─► merge
                                                          ─► retained offsets ─ by split ─► read ─► records

The driver plans; a row of ``spark.range`` is the number of a split. The stages of ``view=latest`` are those
of a cleaning: no process has the entries of all keys, and the driver has none. ``mapInArrow`` costs Spark
less than a Python data source (``docs/benchmarks.md``); ``spark.source`` is one, for SQL, catalogs and
streams. The session may be one of Spark Connect: then a task plans, since the directories are the server's.

The functions that run in tasks end in ``_task``.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from siltstone.base.errors import EngineError, UsageError
from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob
from siltstone.log.names import TopicPartition
from siltstone.spark.exchange import entries_of, entries_row
from siltstone.spark.internals import is_connect
from siltstone.spark.jobs import SparkJobRunner, stage_over, stage_over_numbers
from siltstone.spark.rows import (
    REPORT,
    RETAINED,
    array_rows,
    report_of,
    report_row,
    rows_of,
)
from siltstone.spark.stores import use_options
from siltstone.spark.tasks import Batches, merge_shape, neighbours, run_job, task_numbers, worker_task
from siltstone.tables.arguments import Paths, RowKeywords, Time, read_options
from siltstone.tables.latest import (
    KeyPlan,
    collect_entries,
    find_retained,
    merge_entries,
    splits_by_log,
    with_retained,
)
from siltstone.tables.options import ReadOptions, plan_title
from siltstone.tables.splits import TaskSplit, offsets_in
from siltstone.tables.table import (
    ReadPlan,
    plan_stages,
    read_split,
    record_options,
    schema_of,
    with_inferred_types,
)

IN_PROCESS_BYTES = 256 << 20
"""Of logs up to this size, the process that plans also finds the last records of the keys: two shuffles of
Spark take longer. With records of ``_RECORD_BYTES_MIN`` the key entries of such logs take 64 MiB."""
_EXTRACT_TASK_BYTES = 1 << 30
"""The most bytes of logs that one task reads to collect key entries."""
_MERGE_TASK_BYTES = 512 << 20
"""About the most memory that a task takes to merge buckets."""
_RECORD_BYTES_MIN = 64
"""The size of a small record, in bytes: by it the number of key entries in a log is estimated."""


def read(
    spark: SparkSession,
    path: Paths,
    topic: str | Sequence[str] | None = None,
    *,
    as_of: int | str | datetime | None = None,
    offsets: tuple[int | None, int | None] | None = None,
    timestamps: tuple[Time | None, Time | None] | None = None,
    partitions: int | Sequence[int] | None = None,
    keys: bytes | str | Sequence[bytes | str] | None = None,
    decode: Any = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> DataFrame:
    """The table of a log directory, or of one partition's: ``st.read(spark, "/backup/kafka", "users")``.

    ``path``: one, or all log.dirs of one broker. ``topic``: one or several, in a list or separated by commas;
    all by default. ``as_of``: an offset (int), or a time (ISO text or datetime, UTC where it has no zone).
    ``offsets``, ``timestamps``, ``partitions`` and ``keys`` choose records: ranges are (start, end) without
    the end, with None for no bound; keys are bytes, or text for UTF-8, one or many. ``decode``: how the
    values become a typed column, ``st.Json``, ``st.Avro`` or ``st.Protobuf``, or {"key": …}.
    ``storage_options``: those of an object store; where there are none, the session's ``fs.s3a.*``. The other
    options are those of the data source, under their own names (``minPartitions``) or in snake case
    (``min_partitions``), and Python's values: ``True``, ``["key", "value"]``, ``{"users": {"0": 5}}``.

    The DataFrame is the log as it was at the call. Raises UsageError, and what ``tables.table.plan`` raises;
    EngineError where the session's Python has no Siltstone.
    """
    use_options(spark, storage_options)
    rows = RowKeywords(offsets=offsets, timestamps=timestamps, partitions=partitions, keys=keys)
    parsed = read_options(path, topic, as_of, rows, options).with_decoders(decode)
    if is_connect(spark) and any(
        getattr(decoder, "schema", "") is None for decoder in parsed.decoders.values()
    ):
        reason = "through Spark Connect the types of JSON cannot be inferred: the files are the server's"
        raise UsageError(reason, advice="pass st.Json(schema=pa.schema(…))")
    parsed = with_inferred_types(parsed)
    schema = from_arrow_schema(schema_of(parsed))
    frame, splits_of = planned(spark, parsed)
    task = worker_task(read_task, splits_of, parsed, name=plan_title(parsed))
    return frame.mapInArrow(task, schema)


SplitsOf = Callable[[Batches], Iterator[tuple[int, TaskSplit]]]
"""In a task: the splits that its rows stand for, with their numbers."""


def planned(spark: SparkSession, options: ReadOptions) -> tuple[DataFrame, SplitsOf]:
    """Plan a table. Returns a DataFrame whose rows stand for the splits, with the rows of each split in one
    partition; and a function that turns such rows into splits in a task. Raises as ``read``."""
    _require_siltstone(spark)
    parallelism = SparkJobRunner(spark).parallelism
    make_plan = functools.partial(_plan_on_server, spark) if is_connect(spark) else _plan
    read_plan = make_plan(options, parallelism, IN_PROCESS_BYTES)
    splits, key_plan = read_plan.splits, read_plan.key_plan
    if key_plan is None:
        numbers = spark.range(0, len(splits), 1, max(len(splits), 1))
        return numbers, functools.partial(numbered_splits, splits)
    retained = _retained_offsets(spark, splits, key_plan, record_options(options), parallelism)
    return retained, functools.partial(retained_splits, splits, key_plan.logs)


def numbered_splits(splits: Sequence[TaskSplit], batches: Batches) -> Iterator[tuple[int, TaskSplit]]:
    """The splits whose numbers are in the rows."""
    for number in task_numbers(batches):
        yield number, splits[number]


def retained_splits(
    splits: Sequence[TaskSplit], logs: Sequence[TopicPartition], batches: Batches
) -> Iterator[tuple[int, TaskSplit]]:
    """The splits for which there are rows of retained offsets, with these offsets."""
    retained: dict[int, dict[TopicPartition, list[Int64]]] = {}
    for row in rows_of(batches):
        by_log = retained.setdefault(row.target, {})
        by_log.setdefault(logs[row.log], []).append(row.array(np.int64).copy())
    for number in sorted(retained):
        offsets = {log: np.sort(np.concatenate(parts)) for log, parts in retained.pop(number).items()}
        yield number, with_retained(splits[number], offsets)


def read_task(splits_of: SplitsOf, options: ReadOptions, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Read splits into Arrow batches."""
    for _, split in splits_of(batches):
        yield from read_split(split, options)


# Planning: by the driver, or by a task on a server of Spark Connect.


def _plan(options: ReadOptions, parallelism: int, in_process_bytes: int) -> ReadPlan:
    """The plan of a table. For ``view=latest`` of small logs, its splits already have the offsets of the last
    records."""
    read_plan = plan_stages(options, parallelism=parallelism)
    if read_plan.key_plan is None or read_plan.key_plan.size > in_process_bytes:
        return read_plan
    return ReadPlan(splits=find_retained(read_plan.splits, read_plan.key_plan, record_options(options)))


def plan_task(
    options: ReadOptions, parallelism: int, in_process_bytes: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Plan, on the machine of the server or of an executor; yields the plan as a report."""
    for _ in task_numbers(batches):
        yield report_row(REPORT, _plan(options, parallelism, in_process_bytes)).batch()


def _plan_on_server(spark: SparkSession, options: ReadOptions, *bounds: int) -> ReadPlan:
    frame = functools.partial(stage_over_numbers, spark, 1, plan_task, options, *bounds)
    (row,) = rows_of(run_job(spark, "planning a read", frame).to_batches())
    return report_of(row, ReadPlan)


_PROBED: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""The sessions whose Python workers are known to have Siltstone."""


def _require_siltstone(spark: SparkSession) -> None:
    """Raises EngineError if a worker cannot import this package. Only the first call for a session asks a
    worker."""
    if spark in _PROBED:
        return
    try:
        spark.range(0, 1, 1, 1).mapInArrow(_probe_task, "id long").count()
    except PySparkException as error:
        if not re.search("No module named 'siltstone|Can't get attribute .*module 'siltstone", str(error)):
            raise
        reason = "the Python of the session's workers has no Siltstone, or another version of it"
        advice = f"set PYSPARK_PYTHON={sys.executable} before the session starts, or install siltstone there"
        raise EngineError(reason, advice=advice) from None
    _PROBED.add(spark)


def _probe_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Return the rows as they are. Spark pickles this function by name, so a worker that runs it has imported
    this module."""
    yield from batches


# view=latest: rows of retained offsets for each split, by the stages of a cleaning.


def _retained_offsets(
    spark: SparkSession,
    splits: Sequence[TaskSplit],
    key_plan: KeyPlan,
    options: ReadOptions,
    parallelism: int,
) -> DataFrame:
    """Rows of retained offsets, those of each split in a partition of their own."""
    sizes = [file_split.size for file_split in key_plan.file_splits]
    extract_tasks = min(len(sizes), max(parallelism, math.ceil(sum(sizes) / _EXTRACT_TASK_BYTES)))
    file_split_lists = neighbours(sizes, max(extract_tasks, 1)) or [[]]
    entry_bytes = ENTRY_BYTES * sum(sizes) // _RECORD_BYTES_MIN
    _, merge_tasks = merge_shape(max(key_plan.buckets, 1), parallelism, entry_bytes, _MERGE_TASK_BYTES)
    merge_tasks = max(1, min(merge_tasks, key_plan.buckets))
    entries = stage_over_numbers(
        spark, len(file_split_lists), extract_task, key_plan, file_split_lists, options
    )
    merged = stage_over(by_target(entries, merge_tasks), merge_task, key_plan, splits)
    return by_target(merged, max(len(splits), 1))


def by_target(frame: DataFrame, tasks: int) -> DataFrame:
    """The rows, each in the partition ``target % tasks``."""
    return frame.repartitionById(tasks, F.pmod(F.col("target"), F.lit(tasks)).cast("int"))


def extract_task(
    key_plan: KeyPlan, file_split_lists: Sequence[Sequence[int]], options: ReadOptions, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Collect the key entries of neighbouring file splits; a row has the number of a list of them."""
    for number in task_numbers(batches):
        file_splits = [key_plan.file_splits[index] for index in file_split_lists[number]]
        for blob in collect_entries(key_plan, file_splits, options):
            yield entries_row(blob).batch()


def merge_task(key_plan: KeyPlan, splits: Sequence[TaskSplit], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge the key entries of buckets, and send the retained offsets to the splits that read them."""
    blobs: dict[int, list[EntryBlob]] = {}
    for row in rows_of(batches):
        blob = entries_of(row, key_plan.buckets)
        blobs.setdefault(blob.bucket, []).append(blob)
    receivers = splits_by_log(splits) if blobs else {}
    for log, buckets in itertools.groupby(sorted(blobs), key_plan.log_of):
        merged = [merge_entries(key_plan, bucket, blobs.pop(bucket)) for bucket in buckets]
        offsets = np.sort(np.concatenate(merged))
        for split, offset_range in receivers.get(key_plan.logs[log], ()):
            offsets_of_split = offsets_in(offsets, *offset_range)
            yield from (row.batch() for row in array_rows(RETAINED, split, offsets_of_split, log=log))
