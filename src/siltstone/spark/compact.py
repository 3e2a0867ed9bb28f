"""Side-by-side compaction on Spark: runs the steps of ``siltstone.compaction.ledger`` in tasks.

::

    sources ─ extract ─► key entries ─ by bucket ─► merge ─► retained offsets ─ by group ─► rewrite ─► reports
    merge of runs: a task for each bucket of keys and for each group of segments, in one stage ─► reports

Few new records are compacted in one task. The task of a bucket reads its part of the key indexes of the
ledger's older runs. As rows of their own, it sends the driver the offsets in these runs that new records
supersede.

The functions that run in tasks end in ``_task``. A row of ``batches`` has the number of an input, or a
bucket's or group's data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.ledger.compactor import compact_in_process
from siltstone.compaction.ledger.keys import KEY_INDEX_PARTITIONS
from siltstone.compaction.ledger.staging import merge_group, merge_key_indexes, rewrite_group
from siltstone.compaction.ledger.work import (
    CompactionReport,
    CompactionWork,
    Source,
    bucket_count,
    entry_count_max,
    extract,
    merge_bucket,
    offsets_by_group,
)
from siltstone.spark import rows
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.jobs import SparkJobRunner, attempt_name
from siltstone.spark.rows import Row, array_row, array_rows, report_of, report_row, rows_of
from siltstone.spark.tasks import Batches, merge_shape, neighbours, task_numbers

_EXTRACT_TASK_BYTES = 1 << 30
"""The most bytes of new records for a task that extracts entries."""
_SMALL_MERGE_BYTES = 64 << 20
"""The most bytes of runs that are merged in one task."""
_WORD_BYTES = 8


def compact_whole_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Compact all new records in one task, whose only input row has the number 0."""
    for _ in task_numbers(batches):
        yield from _report_rows(compact_in_process(work, attempt_name()))


def extract_task(
    work: CompactionWork, source_lists: Sequence[Sequence[int]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Read neighbouring sources; yields key entries, the offsets of keyless records, and a report.

    A row has the number of a list in ``source_lists``, which has indexes in ``work.sources``."""
    for number in task_numbers(batches):
        report = CompactionReport()
        for output in extract(work, source_lists[number], buckets, report.extracted):
            if isinstance(output, EntryBlob):
                yield entries_row(output).batch()
            else:
                yield from _to_groups(work, output, report)
        yield from _report_rows(report)
        if number == 0:
            yield from (Row(target=bucket, kind=rows.TRIGGER).batch() for bucket in range(buckets))


def merge_task(work: CompactionWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge the key entries of buckets into retained offsets by group; pass other rows on.

    A bucket without entries has a part of the key index all the same, so ``extract_task`` sends an empty row
    (``TRIGGER``) to each.
    """
    blobs: dict[int, list[EntryBlob]] = {}
    for row in rows_of(batches):
        if row.kind == rows.DIRTY:
            blobs.setdefault(row.target, []).append(entries_of(row, buckets, work.words))
        elif row.kind == rows.TRIGGER:
            blobs.setdefault(row.target, [])
        else:
            yield row.batch()
    for bucket in sorted(blobs):
        report, retained = merge_bucket(work, blobs.pop(bucket), bucket, buckets, attempt_name())
        yield from _to_groups(work, retained, report)
        yield from _report_rows(report)


def _to_groups(work: CompactionWork, retained: Int64, report: CompactionReport) -> Iterator[pa.RecordBatch]:
    """Send retained offsets to their groups' tasks, and count them in ``report``."""
    for group, offsets in offsets_by_group(work.groups, retained):
        report.retained[group] = report.retained.get(group, 0) + len(offsets)
        yield from (row.batch() for row in array_rows(rows.RETAINED, group, offsets))


def rewrite_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write a staged segment for each group from its retained offsets; pass other rows on."""
    retained: dict[int, list[Int64]] = {}
    for row in rows_of(batches):
        if row.kind == rows.RETAINED:
            retained.setdefault(row.target, []).append(row.array(np.int64).copy())
        else:
            yield row.batch()
    for group, arrays in sorted(retained.items()):
        offsets = np.concatenate(arrays)
        yield from _report_rows(rewrite_group(work, work.groups[group], offsets, attempt_name()))


def merge_runs_task(work: CompactionWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge runs of a ledger: a row's number is a bucket of keys, or ``buckets`` + a group of segments."""
    for number in task_numbers(batches):
        if number < buckets:
            yield from _report_rows(merge_key_indexes(work, number, buckets, attempt_name()))
        else:
            yield from _report_rows(merge_group(work, work.groups[number - buckets], attempt_name()))


def _report_rows(report: CompactionReport) -> Iterator[pa.RecordBatch]:
    """Send a report to the driver: its arrays in rows of their own, the rest as JSON."""
    for summary in report.extracted.summaries:
        yield array_row(rows.TRANSACTION_SUMMARY, 0, summary).batch()
    for run, arrays in report.superseded.items():
        for offsets in arrays:
            yield from (row.batch() for row in array_rows(rows.SUPERSEDED, run, offsets))
    without_arrays = replace(report, extracted=replace(report.extracted, summaries=[]), superseded={})
    yield report_row(rows.REPORT, without_arrays).batch()


class SparkCompactionEngine(SparkJobRunner):
    """The engine of side-by-side compaction on the workers of a session."""

    def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
        """Compact new records in one job: ``in_one_task``, otherwise on all workers."""
        if in_one_task:
            staging = [work.settings.staging]
            return _sum_of_reports(
                self._run_numbered(work.name, 1, compact_whole_task, work, staging=staging)
            )
        parallelism = self.parallelism
        min_buckets = bucket_count(work, max(self._min_buckets, parallelism))
        entry_bytes = _WORD_BYTES * work.words * entry_count_max(work)
        buckets, tasks = merge_shape(min_buckets, parallelism, entry_bytes, work.settings.memory_bytes)
        buckets = min(buckets, KEY_INDEX_PARTITIONS)  # a bucket is at least one partition of the key index
        source_lists = _source_lists(work.sources, parallelism)
        rewrite_tasks = max(1, min(len(work.groups), parallelism))
        stages = (
            Stage(function=extract_task, arguments=(work, source_lists, buckets), tasks=len(source_lists)),
            Stage(function=merge_task, arguments=(work, buckets), tasks=min(tasks, buckets)),
            Stage(function=rewrite_task, arguments=(work,), tasks=rewrite_tasks),
        )
        return _sum_of_reports(self._run(stages, work.name, work.settings.staging, work.size))

    def merge_runs(self, work: CompactionWork) -> CompactionReport:
        """Merge runs of a ledger into one, in one job; small runs in one task."""
        parallelism = 1 if work.size <= _SMALL_MERGE_BYTES else self.parallelism
        # If possible at least ``parallelism``; a power of two, so that each bucket has as many partitions of
        # the key index.
        buckets = min(1 << (parallelism - 1).bit_length(), KEY_INDEX_PARTITIONS)
        inputs = buckets + len(work.groups)
        tasks = 1 if parallelism == 1 else inputs
        reports = self._run_numbered(
            work.name, inputs, merge_runs_task, work, buckets, tasks=tasks, staging=[work.settings.staging]
        )
        return _sum_of_reports(reports)


def _source_lists(sources: Sequence[Source], parallelism: int) -> list[list[int]]:
    """For each task that extracts entries, the indexes of neighbouring sources of about the same size."""
    sizes = [source.length for source in sources]
    tasks = min(len(sources), max(parallelism, math.ceil(sum(sizes) / _EXTRACT_TASK_BYTES)))
    return neighbours(sizes, tasks) or [[]]


def _sum_of_reports(reports: Iterable[Row]) -> CompactionReport:
    """The sum of the reports of a job's tasks."""
    report = CompactionReport()
    for row in reports:
        if row.kind == rows.SUPERSEDED:
            report.superseded.setdefault(row.target, []).append(row.array(np.int64).copy())
        elif row.kind == rows.TRANSACTION_SUMMARY:
            report.extracted.summaries.append(row.array(np.int64, 3).copy())
        else:
            report.add(report_of(row, CompactionReport))
    return report
