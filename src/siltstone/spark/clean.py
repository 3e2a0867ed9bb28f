"""The cleaner's pipeline on Spark: DataFrames, three stages, the pieces of ``siltstone.compaction``.

::

    input splits ─ extract ─► entries ─ bucket ─► merge ─► retained offsets ─ group ─► rewrite ─► reports
                                                                            or    ─► gather  ─► files
    a wave's groups, with their files of retained offsets ─► rewrite ─► reports

A small log goes through one task, which may do several, all small logs of a run in a few jobs; a large one
through the stages above, in one job or, where its groups go in waves, in one that gathers the retained
offsets and one for each wave. A log with few dirty keys takes the broadcast join (``broadcast_join``).
``jobs`` decides how a job's stages run: with shuffles, or in a barrier. Inputs reach the tasks as plain data
in the function itself, so nothing is shuffled but entries and retained offsets. Reports travel as rows beside
them. Every task makes sure that the segments it reads are those that were planned with, so nothing computed
anew can mix with what was swapped already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from siltstone.base.errors import EngineError
from siltstone.compaction.broadcast import CLEAN_SHARE, dirty_splits, pays
from siltstone.compaction.engine import (
    RETAINED_BYTES,
    LogDone,
    RetainedFile,
    bucket_count,
    clean_in_one_go,
    entry_capacity,
    offset_span,
    rewrite_from,
    write_retained,
)
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, merge_bucket
from siltstone.compaction.report import UNCLEANABLE
from siltstone.compaction.rewrite import Buffers, Offsets
from siltstone.compaction.staging import Rewritten, remove_staged, rewrite_group
from siltstone.compaction.work import (
    Extracted,
    Group,
    InputSplit,
    LogWork,
    are_cut,
    carried_between,
    check_keyless,
    extract,
    failure_of,
    retained_by_group,
    shares,
)
from siltstone.log.transactions import NOTHING, Carried
from siltstone.spark import rows
from siltstone.spark.broadcast_join import clean_by_lookup
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.internals import is_connect
from siltstone.spark.jobs import (
    SparkWorkers,
    attempt_name,
    one_ahead,
    stage,
)
from siltstone.spark.rows import Row, array_row, array_rows, report_of, report_row, rows_of
from siltstone.spark.tasks import Batches, finer, is_alive, merging, task_numbers

_TASK_BYTES = 1 << 30
_WHOLE_TASK_BYTES = 256 << 20
_TASKS_PER_WORKER = 4
_JOBS, _LOGS_PER_JOB = 4, 16
"""Up to so many jobs of at least so many logs."""


def clean_whole_task(parts: Sequence[Sequence[LogWork]], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Each row names a few logs: extracted, merged and rewritten here, one after another."""
    buffers = Buffers()
    for number in task_numbers(batches):
        for work in parts[number]:
            done = clean_in_one_go(work, attempt_name(), buffers)
            yield report_row(rows.REWRITTEN, done).batch()


def dealt(works: Sequence[LogWork], workers: int) -> list[list[LogWork]]:
    """Logs for each task: dealt out, the largest first, so that no core waits long at the end.

    A few tasks for each worker, and more where one would do over 256 MiB: it may have to be done again.
    """
    ordered = sorted(works, key=lambda work: -work.size)
    size = sum(work.size for work in works)
    tasks = min(len(works), max(_TASKS_PER_WORKER * workers, math.ceil(size / _WHOLE_TASK_BYTES)))
    return [ordered[number::tasks] for number in range(tasks)]


def extract_task(
    work: LogWork, parts: Sequence[Sequence[InputSplit]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a run of splits: their entries, and a report of what was in them."""
    for number in task_numbers(batches):
        found = Extracted()
        for blob in extract(work, parts[number], buckets, entry_capacity(work), found):
            yield entries_row(blob).batch()
        for summary in found.summaries:
            yield array_row(rows.SUMMARY, 0, summary).batch()
        found.summaries = []
        yield report_row(rows.FOUND, found, number % buckets).batch()
        if number == 0:
            yield Row(target=0, kind=rows.HEADS).batch()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """What a bucket's merge tells the driver: distinct dirty keys, and how many retained offsets each group
    has."""

    dirty_keys: int
    retained: dict[int, int]


def merge_task(work: LogWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """A bucket's entries become retained offsets by group; reports pass through.

    The first bucket puts together as well what each group starts with, of transactions.
    """
    blobs: dict[int, list[EntryBlob]] = {}
    transactions = Extracted()
    for batch in batches:
        for row in rows_of(batch):
            if row.kind == rows.HEADS:
                yield from (Row(target=group.index, kind=rows.RETAINED).batch() for group in work.groups)
                continue
            if row.kind == rows.FOUND:
                yield Row(target=0, kind=rows.FOUND, report=row.report).batch()
                continue
            if row.kind == rows.SUMMARY:
                transactions.summaries.append(row.array(np.int64, 3).copy())
                continue
            blob = entries_of(row, buckets)
            blobs.setdefault(blob.bucket, []).append(blob)
    for group, carried in carried_between(work, transactions).items():
        yield report_row(rows.CARRIED, carried, group).batch()
    if transactions.failure is not None:
        yield report_row(rows.FOUND, transactions).batch()
    for bucket in sorted(blobs):
        retained = merge_bucket(blobs.pop(bucket), bucket, buckets)
        counts: dict[int, int] = {}
        for group, offsets in retained_by_group(work, retained):
            counts[group] = len(offsets)
            for row in array_rows(rows.RETAINED, group, offsets):
                yield row.batch()
        merged = _Merged(dirty_keys=retained.dirty_keys, retained=counts)
        yield report_row(rows.MERGED, merged).batch()


def rewrite_task(work: LogWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The retained offsets of one group, or of several, become staged segments; reports pass through.

    A group without any retained offset still has to be rewritten: ``rows.HEADS`` sees to it that it has a
    row.
    """
    retained: dict[int, list[Offsets]] = {}
    carried: dict[int, Carried] = {}
    yield from _apart(batches, retained, carried)
    buffers = Buffers()
    for group, parts in sorted(retained.items()):
        mine, over = np.concatenate(parts), carried.get(group, NOTHING)
        report = rewrite_group(work, work.groups[group], mine, attempt_name(), over, buffers)
        yield report_row(rows.REWRITTEN, report).batch()


def gather_task(work: LogWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The retained offsets of one group, or of several, go into a file each; reports pass through."""
    retained: dict[int, list[Offsets]] = {}
    carried: dict[int, Carried] = {}
    yield from _apart(batches, retained, carried)
    for group in sorted(retained):
        mine, over = np.concatenate(retained.pop(group)), carried.get(group, NOTHING)
        file = write_retained(work, work.groups[group], mine, attempt_name(), over)
        yield report_row(rows.GATHERED, file).batch()


def _apart(
    batches: Batches, retained: dict[int, list[Offsets]], carried: dict[int, Carried]
) -> Iterator[pa.RecordBatch]:
    """Put aside by group retained offsets, and what is carried into it; hand on all other rows."""
    for batch in batches:
        for row in rows_of(batch):
            if row.kind == rows.RETAINED:
                retained.setdefault(row.target, []).append(row.array(np.uint32).copy())
            elif row.kind == rows.CARRIED:
                carried[row.target] = report_of(row, Carried)
            else:
                yield row.batch()


def rewrite_from_files_task(
    work: LogWork, wave: Sequence[tuple[Group, RetainedFile]], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a group of a wave, which becomes a staged segment."""
    buffers = Buffers()
    for number in task_numbers(batches):
        group, file = wave[number]
        report = rewrite_from(work, group, file, attempt_name(), buffers)
        yield report_row(rows.REWRITTEN, report).batch()


class SparkEngine(SparkWorkers):
    """Spreads the cleaner's pieces over a session's workers.

    ``clean_share``: how many times the bytes of the dirty segments the clean ones must have for a broadcast
    join.
    """

    def __init__(self, session: SparkSession, *, clean_share: float = CLEAN_SHARE, **how: Any) -> None:
        super().__init__(session, **how)
        self._clean_share = clean_share

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogDone]:
        """A few logs in each task, as a task costs Spark some 80 ms. Many go in several jobs: while one runs
        the caller takes over what came of the one before. Those of a job that failed are done again, by
        halves. Raises EngineError where a log's job fails that is the only one, or Spark is gone."""
        parts = dealt(works, self._parallelism)
        jobs = max(1, min(_JOBS, len(works) // _LOGS_PER_JOB, len(parts)))
        again: list[LogWork] = []

        def clean(number: int) -> list[Row]:
            mine = parts[number::jobs]
            try:
                return self._clean_parts(mine)
            except EngineError:
                if len(works) == 1 or not is_alive(self._session):
                    raise
                again.extend(work for part in mine for work in part)
                return []

        for found in one_ahead(self._session, clean, jobs):
            for row in found:
                yield report_of(row, LogDone)
        yield from self._clean_apart(again)

    def _clean_parts(self, parts: Sequence[Sequence[LogWork]]) -> list[Row]:
        names = [work.name for part in parts for work in part]

        def cleaning() -> DataFrame:
            return stage(self._session.range(0, len(parts), 1, len(parts)), clean_whole_task, parts)

        return self._collect(cleaning, f"{len(names)} logs" if len(names) > 1 else names[0])

    def _clean_apart(self, works: Sequence[LogWork]) -> Iterator[LogDone]:
        """The logs of a job that failed, by halves, until one that fails is alone: that is its failure."""
        for half in (works[: len(works) // 2], works[len(works) // 2 :]):
            if not half:
                continue
            try:
                found = self._clean_parts(dealt(half, self._parallelism))
            except EngineError as error:
                if not is_alive(self._session):
                    raise
                if len(half) > 1:
                    yield from self._clean_apart(half)
                else:
                    yield _failed(half[0], error)
            else:
                yield from (report_of(row, LogDone) for row in found)

    def clean_spread(self, work: LogWork) -> LogDone:
        """One log over all workers."""
        done = self._clean_spread(work)
        if self._was_cut_amiss(work, done.found):
            for group in done.groups:
                remove_staged(group)
            done = self._clean_spread(replace(work, may_cut=False))
        return done

    def _was_cut_amiss(self, work: LogWork, found: Extracted) -> bool:
        """May it be that a segment was cut where no batch begins, and nothing else is wrong with the log?"""
        if found.failure is None or found.failure.status != UNCLEANABLE:
            return False
        return are_cut(self._parts(work)) or are_cut(dirty_splits(work, self._parallelism))

    def _clean_spread(self, work: LogWork) -> LogDone:
        barrier = self._uses_barrier(work.size)
        # The map of a second pass goes to the tasks by way of a SparkContext.
        if pays(work, self._clean_share) and not is_connect(self._session):
            found = clean_by_lookup(self._session, work, self._parallelism, self._progress, barrier=barrier)
            if found is not None:
                return found
        done = _summed_up(work, self._by_group(work, rewrite_task))
        done.groups.sort(key=lambda group: group.group)
        return done

    def gather(self, work: LogWork) -> LogDone:
        """One log over all workers, up to a file of retained offsets for each group."""
        done = self._gather(work)
        if self._was_cut_amiss(work, done.found):
            done = self._gather(replace(work, may_cut=False))
        return done

    def _gather(self, work: LogWork) -> LogDone:
        return _summed_up(work, self._by_group(work, gather_task))

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], retained: Sequence[RetainedFile]
    ) -> list[Rewritten]:
        """Some groups, each by one task out of its file of retained offsets."""
        wave = [(group, retained[group.index]) for group in groups]
        tasks = self._rewriting_tasks(work, groups)

        def rewriting() -> DataFrame:
            return stage(self._session.range(0, len(wave), 1, tasks), rewrite_from_files_task, work, wave)

        reports = self._collect(rewriting, work.name)
        found = [report_of(row, Rewritten) for row in reports]
        return sorted(found, key=lambda group: group.group)

    def _by_group(self, work: LogWork, task: Callable[..., Iterator[pa.RecordBatch]]) -> list[Row]:
        """Let ``task`` have the retained offsets, brought together by group, and reports."""
        enough = bucket_count(work, max(self._least_buckets, self._parallelism))
        held = offset_span(work) * ENTRY_BYTES
        buckets, tasks = merging(enough, self._parallelism, held, work.limits.memory_bytes)
        buckets = finer(buckets, tasks, held)
        parts = self._parts(work)
        stages = (
            Stage(function=extract_task, given=(work, parts, buckets), tasks=len(parts)),
            Stage(function=merge_task, given=(work, buckets), tasks=tasks),
            Stage(function=task, given=(work,), tasks=self._rewriting_tasks(work, work.groups)),
        )
        return self._run(stages, work.name, work.staging, work.size)

    def _parts(self, work: LogWork) -> list[list[InputSplit]]:
        """What each extracting task reads."""
        tasks = max(self._parallelism, math.ceil(work.size / _TASK_BYTES))
        return shares(work.segments, work.end, tasks, may_cut=work.may_cut and not work.message_sets)

    def _rewriting_tasks(self, work: LogWork, groups: Sequence[Group]) -> int:
        """A task costs Spark some 80 ms: as many as there are cores, unless the retained offsets that each
        holds would take more than half of its memory."""
        span = sum(group.end_offset - group.base_offset for group in groups)
        least = math.ceil(2 * span * RETAINED_BYTES / work.limits.memory_bytes)
        return min(len(groups), max(self._parallelism, least))


def _summed_up(work: LogWork, reports: Iterable[Row]) -> LogDone:
    """What a job's tasks say of a log."""
    done = LogDone(name=work.name)
    for row in reports:
        if row.kind == rows.FOUND:
            done.found.add(report_of(row, Extracted))
        elif row.kind == rows.MERGED:
            merged = report_of(row, _Merged)
            done.dirty_keys += merged.dirty_keys
            for group, count in merged.retained.items():
                done.retained[group] = done.retained.get(group, 0) + count
        elif row.kind == rows.GATHERED:
            done.files.append(report_of(row, RetainedFile))
        else:
            done.groups.append(report_of(row, Rewritten))
    done.found.failure = done.found.failure or check_keyless(work, done.found)
    return done


def _failed(work: LogWork, error: Exception) -> LogDone:
    """A log whose job failed while no other was in it."""
    return LogDone(name=work.name, found=Extracted(failure=failure_of(error)))
