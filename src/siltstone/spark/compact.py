"""Compaction beside the originals on Spark: the pieces of ``siltstone.compaction.ledger``, spread.

::

    sources ─ extract ─► entries ─ bucket ─► merge ─► retained offsets ─ group ─► rewrite ─► reports
    buckets' keys and groups' segments of generations that become one ─► reports

A small tail goes through one task. Older generations' key indexes are read where a bucket is merged; what
they lose travels to the driver as packed offsets. ``jobs`` and ``rows`` are the cleaner's, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.ledger.engine import Compacted, Folded, compact_in_one_go
from siltstone.compaction.ledger.key_index import KeysPart
from siltstone.compaction.ledger.keys import PARTITIONS
from siltstone.compaction.ledger.staging import (
    FoldedKeys,
    FoldWork,
    WrittenGroup,
    fold_group,
    fold_keys,
    rewrite_group,
)
from siltstone.compaction.ledger.work import (
    CompactionWork,
    Merged,
    Source,
    bucket_count,
    by_group,
    extract,
    merge_bucket,
)
from siltstone.compaction.work import Extracted, LogFailure
from siltstone.spark import rows
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.jobs import (
    SparkWorkers,
    attempt_name,
    stage,
)
from siltstone.spark.rows import Row, array_row, array_rows, report_of, report_row, rows_of
from siltstone.spark.tasks import Batches, merging, runs_of, task_numbers

KEPT, KEYS = "kept", "keys"
_TASK_BYTES = 1 << 30
_SMALL_FOLD_BYTES = 64 << 20


def compact_whole_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The one row's task does it all; what older generations lose goes as rows of its own."""
    for _ in task_numbers(batches):
        done = compact_in_one_go(work, attempt_name())
        yield from _found_rows(done.found)
        for generation, parts in done.hidden.items():
            for offsets in parts:
                yield from _offset_rows(rows.HIDDEN, generation, offsets)
        merged = Merged(bucket=0, arrived=done.arrived, deleted=done.deleted, beaten=done.beaten)
        merged.keys, merged.failure = done.keys[0] if done.keys else None, done.failure
        yield _merged_row(merged, done.retained).batch()
        for group in done.groups:
            yield report_row(rows.REWRITTEN, group).batch()


def extract_task(
    work: CompactionWork, parts: Sequence[Sequence[int]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a run of sources: their entries, and a report of what was in them."""
    for number in task_numbers(batches):
        found = Extracted()
        for blob in extract(work, parts[number], buckets, found):
            if isinstance(blob, EntryBlob):
                yield entries_row(blob).batch()
            else:
                yield from _offset_rows(KEPT, number % buckets, blob)
        yield from _found_rows(found, number % buckets)
        if number == 0:
            yield from (Row(target=bucket, kind=KEYS).batch() for bucket in range(buckets))


def merge_task(work: CompactionWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """A bucket's entries become retained offsets by group; reports and summaries pass through.

    A task may be given several buckets. One without any entry still owes its part of the key index: ``KEYS``
    rows tell of all of them.
    """
    blobs: dict[int, list[EntryBlob]] = {}
    for batch in batches:
        for row in rows_of(batch):
            if row.kind == rows.DIRTY:
                blobs.setdefault(row.target, []).append(entries_of(row, buckets, work.words))
            elif row.kind == KEPT:
                yield from _to_groups(work, Merged(bucket=-1, retained=np.sort(row.array(np.int64))))
            elif row.kind == KEYS:
                blobs.setdefault(row.target, [])
            else:
                yield row.batch()
    for bucket in sorted(blobs):
        merged = merge_bucket(work, blobs.pop(bucket), bucket, buckets, attempt_name())
        for generation, offsets in merged.hidden.items():
            yield from _offset_rows(rows.HIDDEN, generation, offsets)
        yield from _to_groups(work, merged)


def _to_groups(work: CompactionWork, merged: Merged) -> Iterator[pa.RecordBatch]:
    """What was merged: the retained offsets on their way to their groups, the counts to the driver."""
    counts = {}
    for group, offsets in by_group(work.groups, merged.retained):
        counts[group] = len(offsets)
        yield from _offset_rows(rows.RETAINED, group, offsets)
    yield _merged_row(merged, counts).batch()


def rewrite_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The retained offsets of one group, or of several, become staged segments; all else passes through."""
    retained: dict[int, list[Int64]] = {}
    for batch in batches:
        for row in rows_of(batch):
            if row.kind == rows.RETAINED:
                retained.setdefault(row.target, []).append(row.array(np.int64).copy())
            else:
                yield row.batch()
    for group, parts in sorted(retained.items()):
        report = rewrite_group(work, work.groups[group], np.concatenate(parts), attempt_name())
        yield report_row(rows.REWRITTEN, report).batch()


def fold_task(work: FoldWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Each row names a bucket of keys, or behind those a group of segments."""
    for number in task_numbers(batches):
        if number < buckets:
            folded = fold_keys(work, number, buckets, attempt_name())
            yield report_row(KEYS, folded).batch()
        else:
            group = fold_group(work, work.groups[number - buckets], attempt_name())
            yield report_row(rows.REWRITTEN, group).batch()


def _found_rows(found: Extracted, target: int = 0) -> Iterator[pa.RecordBatch]:
    """What was seen, and how each source left transactions, on their way to the driver."""
    for summary in found.summaries:
        yield array_row(rows.SUMMARY, 0, summary).batch()
    yield report_row(rows.FOUND, replace(found, summaries=[]), target).batch()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """What a bucket's merge tells the driver: counts of keys, the new key index's part, and how many retained
    offsets each group has."""

    arrived: int
    deleted: int
    beaten: int
    keys: KeysPart | None
    failure: LogFailure | None
    retained: dict[int, int]


def _merged_row(merged: Merged, retained: dict[int, int]) -> Row:
    told = ("arrived", "deleted", "beaten", "keys", "failure")
    counts = {name: getattr(merged, name) for name in told}
    return report_row(rows.MERGED, _Merged(retained=retained, **counts))


def _offset_rows(kind: str, target: int, offsets: Int64) -> Iterator[pa.RecordBatch]:
    """Offsets on their way to a group, or as those that generation ``target`` loses to the driver."""
    return (row.batch() for row in array_rows(kind, target, offsets))


class SparkCompactionEngine(SparkWorkers):
    """Spreads a compaction's pieces over a session's workers."""

    def compact_whole(self, work: CompactionWork) -> Compacted:
        """A tail in one task."""
        found = self._collect(
            lambda: stage(self._session.range(0, 1, 1, 1), compact_whole_task, work), work.name
        )
        return _compacted(found)

    def compact_spread(self, work: CompactionWork) -> Compacted:
        """A tail over all workers, in one job."""
        enough = bucket_count(work, max(self._least_buckets, self._parallelism))
        held = 8 * work.words * (work.end - work.first)
        buckets, tasks = merging(enough, self._parallelism, held, work.output.memory_bytes)
        buckets = min(buckets, PARTITIONS)
        parts = self._parts(work.sources)
        groups = max(1, min(len(work.groups), self._parallelism))
        stages = (
            Stage(function=extract_task, given=(work, parts, buckets), tasks=len(parts)),
            Stage(function=merge_task, given=(work, buckets), tasks=min(tasks, buckets)),
            Stage(function=rewrite_task, given=(work,), tasks=groups),
        )
        size = sum(source.size - source.start for source in work.sources)
        return _compacted(self._run(stages, work.name, work.output.staging, size))

    def fold(self, work: FoldWork) -> Folded:
        """Generations into one, in one job: in one task where they are small."""
        size = sum(source.size for source in work.sources)
        tasks = 1 if size <= _SMALL_FOLD_BYTES else self._parallelism
        buckets = 1 << (tasks - 1).bit_length()
        pieces = buckets + len(work.groups)

        def folding() -> DataFrame:
            frame = self._session.range(0, pieces, 1, pieces)
            return stage(frame.coalesce(tasks) if tasks == 1 else frame, fold_task, work, buckets)

        done = Folded()
        for row in self._collect(folding, work.name):
            if row.kind == KEYS:
                done.keys.append(report_of(row, FoldedKeys))
            else:
                done.groups.append(report_of(row, WrittenGroup))
        done.groups.sort(key=lambda group: group.group)
        return done

    def _parts(self, sources: Sequence[Source]) -> list[list[int]]:
        """Runs of neighbouring sources of about the same size, one for each extracting task."""
        sizes = [source.size - source.start for source in sources]
        tasks = min(len(sources), max(self._parallelism, math.ceil(sum(sizes) / _TASK_BYTES)))
        return runs_of(sizes, tasks) or [[]]


def _compacted(found: Iterable[Row]) -> Compacted:
    """The reports of a job, summed up."""
    done = Compacted()
    for row in found:
        if row.kind == rows.HIDDEN:
            done.hidden.setdefault(row.target, []).append(row.array(np.int64).copy())
        elif row.kind == rows.SUMMARY:
            done.found.summaries.append(row.array(np.int64, 3).copy())
        elif row.kind == rows.FOUND:
            done.found.add(report_of(row, Extracted))
        elif row.kind == rows.MERGED:
            _add_merged(done, report_of(row, _Merged))
        else:
            done.groups.append(report_of(row, WrittenGroup))
    done.groups.sort(key=lambda group: group.group)
    return done


def _add_merged(done: Compacted, told: _Merged) -> None:
    merged = Merged(bucket=0, arrived=told.arrived, deleted=told.deleted, beaten=told.beaten)
    merged.keys, merged.failure = told.keys, told.failure
    done.add_merged(merged)
    for group, count in told.retained.items():
        done.expect(group, count)
