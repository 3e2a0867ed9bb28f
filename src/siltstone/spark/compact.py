"""Side-by-side compaction on Spark: spreads the pieces of ``siltstone.compaction.ledger`` over tasks.

::

    sources ─ extract ─► entries ─ by bucket ─► merge ─► retained offsets ─ by group ─► rewrite ─► reports
    merge of runs: buckets of keys, and groups of segments, each a task of one stage ─► reports

A small tail is compacted in one task. A bucket's task reads the older runs' key indexes; the offsets that
they lose travel to the driver as rows of their own.
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
from siltstone.compaction.ledger.keys import PARTITIONS
from siltstone.compaction.ledger.staging import merge_group, merge_key_indexes, rewrite_group
from siltstone.compaction.ledger.work import (
    CompactionReport,
    CompactionWork,
    Source,
    bucket_count,
    extract,
    merge_bucket,
    offsets_by_group,
)
from siltstone.spark import rows
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.jobs import SparkWorkers, attempt_name
from siltstone.spark.rows import Row, array_row, array_rows, report_of, report_row, rows_of
from siltstone.spark.tasks import Batches, merge_shape, runs_of, task_numbers

_TASK_BYTES = 1 << 30
_SMALL_MERGE_BYTES = 64 << 20


def compact_whole_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Compact the whole tail in the task of the only row."""
    for _ in task_numbers(batches):
        yield from _report(compact_in_process(work, attempt_name()))


def extract_task(
    work: CompactionWork, parts: Sequence[Sequence[int]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Extract neighbouring sources, named by each row: their entries and keyless offsets, and a report."""
    for number in task_numbers(batches):
        done = CompactionReport()
        for output in extract(work, parts[number], buckets, done.extracted):
            if isinstance(output, EntryBlob):
                yield entries_row(output).batch()
            else:
                yield from _to_groups(work, output, done)
        yield from _report(done)
        if number == 0:
            yield from (Row(target=bucket, kind=rows.TRIGGER).batch() for bucket in range(buckets))


def merge_task(work: CompactionWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge buckets: their entries become retained offsets by group; all other rows pass through.

    A bucket without entries has a part of the key index, too: a ``TRIGGER`` row makes each reach a task.
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
        done, retained = merge_bucket(work, blobs.pop(bucket), bucket, buckets, attempt_name())
        yield from _to_groups(work, retained, done)
        yield from _report(done)


def _to_groups(work: CompactionWork, retained: Int64, done: CompactionReport) -> Iterator[pa.RecordBatch]:
    """Send retained offsets to their groups' tasks, and count them in ``done``."""
    for group, offsets in offsets_by_group(work.groups, retained):
        done.retained[group] = done.retained.get(group, 0) + len(offsets)
        yield from (row.batch() for row in array_rows(rows.RETAINED, group, offsets))


def rewrite_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rewrite groups: their retained offsets become staged segments; all other rows pass through."""
    retained: dict[int, list[Int64]] = {}
    for row in rows_of(batches):
        if row.kind == rows.RETAINED:
            retained.setdefault(row.target, []).append(row.array(np.int64).copy())
        else:
            yield row.batch()
    for group, parts in sorted(retained.items()):
        offsets = np.concatenate(parts)
        yield from _report(rewrite_group(work, work.groups[group], offsets, attempt_name()))


def merge_runs_task(work: CompactionWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge runs: each row names a bucket of keys, or with a larger number a group of segments."""
    for number in task_numbers(batches):
        if number < buckets:
            yield from _report(merge_key_indexes(work, number, buckets, attempt_name()))
        else:
            yield from _report(merge_group(work, work.groups[number - buckets], attempt_name()))


def _report(done: CompactionReport) -> Iterator[pa.RecordBatch]:
    """Send a report to the driver: its arrays in rows of their own, the rest as JSON."""
    for summary in done.extracted.summaries:
        yield array_row(rows.SUMMARY, 0, summary).batch()
    for run, parts in done.superseded.items():
        for offsets in parts:
            yield from (row.batch() for row in array_rows(rows.SUPERSEDED, run, offsets))
    report = replace(done, extracted=replace(done.extracted, summaries=[]), superseded={})
    yield report_row(rows.MERGED, report).batch()


class SparkCompactionEngine(SparkWorkers):
    """Spreads a compaction over a session's workers."""

    def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
        """Compact a tail: ``in_one_task``, or over all workers in one job."""
        if in_one_task:
            return _compacted(self._run_numbered(work.name, 1, compact_whole_task, work))
        min_buckets = bucket_count(work, max(self._min_buckets, self._parallelism))
        entry_bytes = 8 * work.words * (work.end_offset - work.first_offset)
        buckets, tasks = merge_shape(min_buckets, self._parallelism, entry_bytes, work.settings.memory_bytes)
        buckets = min(buckets, PARTITIONS)
        parts = self._parts(work.sources)
        groups = max(1, min(len(work.groups), self._parallelism))
        stages = (
            Stage(function=extract_task, arguments=(work, parts, buckets), tasks=len(parts)),
            Stage(function=merge_task, arguments=(work, buckets), tasks=min(tasks, buckets)),
            Stage(function=rewrite_task, arguments=(work,), tasks=groups),
        )
        return _compacted(self._run(stages, work.name, work.settings.staging, work.size))

    def merge_runs(self, work: CompactionWork) -> CompactionReport:
        """Merge runs into one, in one job, and in one task where they are small."""
        workers = 1 if work.size <= _SMALL_MERGE_BYTES else self._parallelism
        buckets = 1 << (workers - 1).bit_length()
        numbers = buckets + len(work.groups)
        tasks = 1 if workers == 1 else numbers
        return _compacted(self._run_numbered(work.name, numbers, merge_runs_task, work, buckets, tasks=tasks))

    def _parts(self, sources: Sequence[Source]) -> list[list[int]]:
        """Neighbouring sources of about the same size in all, a list for each extracting task."""
        sizes = [source.length for source in sources]
        tasks = min(len(sources), max(self._parallelism, math.ceil(sum(sizes) / _TASK_BYTES)))
        return runs_of(sizes, tasks) or [[]]


def _compacted(reports: Iterable[Row]) -> CompactionReport:
    """Add up the reports of a job."""
    done = CompactionReport()
    for row in reports:
        if row.kind == rows.SUPERSEDED:
            done.superseded.setdefault(row.target, []).append(row.array(np.int64).copy())
        elif row.kind == rows.SUMMARY:
            done.extracted.summaries.append(row.array(np.int64, 3).copy())
        else:
            done.add(report_of(row, CompactionReport))
    return done
