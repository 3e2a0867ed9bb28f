"""The cleaner's engine on Spark: the steps of ``compaction.work`` as stages of DataFrames.

::

    input splits ─ extract ─► entries ─ bucket ─► merge ─► retained offsets ─ group ─► rewrite ─► reports
                                                                            or    ─► gather  ─► files
    a wave's groups, with their files of retained offsets ─► rewrite ─► reports

One task cleans a small log, or several; all small logs of a run are a few jobs. A large log takes the stages
above: in one job or, if its groups go in waves, in a job that gathers the retained offsets and a job for each
wave. A log with few dirty keys takes the broadcast join. ``jobs`` runs a job's stages, with shuffles or in a
barrier stage. Tasks get their input as plain data in the function, so only entries, retained offsets and
reports are exchanged. Each task verifies that the segments are those that were planned with, so that a
repeated task cannot mix them with segments that were swapped in meanwhile.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError
from siltstone.compaction import broadcast
from siltstone.compaction.broadcast import (
    MIN_CLEAN_TO_DIRTY_RATIO,
    dirty_splits,
    merge_group_reports,
    should_broadcast,
)
from siltstone.compaction.engine import bucket_count, clean_in_one_task, entry_capacity, offset_span
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, merge_bucket
from siltstone.compaction.report import UNCLEANABLE, failure_of
from siltstone.compaction.rewrite import Buffers, Offsets
from siltstone.compaction.staging import (
    RETAINED_OFFSET_BYTES,
    GroupReport,
    LogReport,
    RetainedFile,
    remove_staged,
    rewrite_from_file,
    rewrite_group,
    write_retained,
)
from siltstone.compaction.work import (
    Extracted,
    Group,
    InputSplit,
    LogWork,
    are_cut,
    check_keyless,
    extract,
    retained_by_group,
    splits_by_task,
    transaction_state_by_group,
)
from siltstone.log.transactions import NOTHING, Carried
from siltstone.spark import rows
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.internals import is_connect
from siltstone.spark.jobs import Job, SparkWorkers, attempt_name, one_ahead, run_in_barrier
from siltstone.spark.rows import ALL, Row, array_row, array_rows, report_of, report_row, rows_of
from siltstone.spark.tasks import (
    Batches,
    engine_errors,
    finer_buckets,
    is_alive,
    merge_shape,
    runs_of,
    task_numbers,
)

# The broadcast join on Spark: clean records' keys are looked up in an offset map of the dirty section.
#
# ::
#
#     in a barrier     dirty segments ─► entries, to every task ─► a map each ─► groups rewritten ─► reports
#     with shuffles    dirty segments ─► entries ─► driver: a map, broadcast ─► groups rewritten ─► reports
#
# In a barrier stage each worker begins with groups of its own, and goes on with those that are not claimed.
# The pieces are ``compaction.broadcast``'s.

Runs = Sequence[Sequence[int]]
Claim = Callable[[int], bool]
"""Claims a group for this worker; False if another worker has it."""


def dirty_task(
    work: LogWork, parts: Sequence[Sequence[InputSplit]], lookups: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names some neighbouring splits: yields their dirty entries for all tasks of the next stage.
    The first row's task also sends a row to each of the ``lookups`` tasks."""
    for number in task_numbers(batches):
        extracted = Extracted()
        for blob in broadcast.dirty_entries(work, parts[number], extracted):
            yield entries_row(blob, ALL).batch()
        extracted.summaries = []
        yield report_row(rows.EXTRACTED, extracted, ALL).batch()
        if number == 0:
            yield from (Row(target=run, kind=rows.TRIGGER).batch() for run in range(lookups))


def _dirty(arrived: Sequence[Row]) -> tuple[Extracted, list[EntryBlob]]:
    """The reports and the entries of the tasks that read dirty segments."""
    extracted = Extracted()
    for row in arrived:
        if row.kind == rows.EXTRACTED:
            extracted.add(report_of(row, Extracted))
    return extracted, [entries_of(row, 1) for row in arrived if row.kind == rows.DIRTY]


def shared_lookup_task(
    work: LogWork, shared: Broadcast[broadcast.OffsetMap], parts: Runs, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names some neighbouring groups, which are rewritten by the shared map."""
    for number in task_numbers(batches):
        yield from _looked_up(work, shared.value, parts[number])


def lookup_task(work: LogWork, parts: Runs, claim: Claim, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Build the map of the dirty entries that arrive, rewrite its own groups, and then those of other
    workers that are not claimed, from the end. If reading failed or found transactions, only report that."""
    arrived = list(rows_of(batches))
    (own,) = (row.target for row in arrived if row.kind == rows.TRIGGER)
    extracted, entries = _dirty(arrived)
    if extracted.failure is not None or extracted.has_transactions:
        yield report_row(rows.EXTRACTED, extracted).batch()
        return
    offset_map = broadcast.OffsetMap.of(entries)
    yield report_row(rows.MERGED, LogReport(name=work.name, dirty_keys=len(offset_map))).batch()
    others = [group for run in parts if run is not parts[own] for group in run]
    yield from _looked_up(work, offset_map, filter(claim, [*parts[own], *reversed(others)]))


def _looked_up(
    work: LogWork, offset_map: broadcast.OffsetMap, groups: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    buffers = Buffers()
    for group in groups:
        done = broadcast.clean_group(work, work.groups[group], offset_map, attempt_name(), buffers)
        yield report_row(rows.JOINED, done, group).batch()


def _joined(work: LogWork, reports: Sequence[Row]) -> LogReport | None:
    """The log's report from the tasks of a barrier stage; None if the log has transactions."""
    stopped = next((report_of(row, Extracted) for row in reports if row.kind == rows.EXTRACTED), None)
    if stopped is not None:
        return LogReport(name=work.name, extracted=stopped) if stopped.failure is not None else None
    keys = max(report_of(row, LogReport).dirty_keys for row in reports if row.kind == rows.MERGED)
    groups = (report_of(row, LogReport) for row in reports if row.kind == rows.JOINED)
    return merge_group_reports(work, keys, groups)


_TASK_BYTES = 1 << 30
_WHOLE_TASK_BYTES = 256 << 20
_TASKS_PER_WORKER = 4
_JOBS, _LOGS_PER_JOB = 4, 16
"""Up to so many jobs of at least so many logs."""


def clean_whole_task(parts: Sequence[Sequence[LogWork]], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Each row names a few logs, which this task cleans one after another."""
    buffers = Buffers()
    for number in task_numbers(batches):
        for work in parts[number]:
            done = clean_in_one_task(work, attempt_name(), buffers)
            yield report_row(rows.REPORT, done).batch()


def distribute_logs(works: Sequence[LogWork], workers: int) -> list[list[LogWork]]:
    """Distribute logs over tasks, the largest first, so that no core waits long at the end.

    There are a few tasks for each worker, more if a task would have over 256 MiB, which it may have to
    repeat.
    """
    ordered = sorted(works, key=lambda work: -work.size)
    size = sum(work.size for work in works)
    tasks = min(len(works), max(_TASKS_PER_WORKER * workers, math.ceil(size / _WHOLE_TASK_BYTES)))
    return [ordered[number::tasks] for number in range(tasks)]


def extract_task(
    work: LogWork, parts: Sequence[Sequence[InputSplit]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names some splits: yields their entries, summaries of transactions, and a report."""
    for number in task_numbers(batches):
        extracted = Extracted()
        for blob in extract(work, parts[number], buckets, entry_capacity(work), extracted):
            yield entries_row(blob).batch()
        for summary in extracted.summaries:
            yield array_row(rows.SUMMARY, 0, summary).batch()
        extracted.summaries = []
        yield report_row(
            rows.REPORT, LogReport(name=work.name, extracted=extracted), number % buckets
        ).batch()
        if number == 0:
            yield Row(target=0, kind=rows.TRIGGER).batch()


def merge_task(work: LogWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge the entries of buckets into retained offsets by group; reports pass through.

    The first bucket's task also computes the state of transactions where each group starts.
    """
    blobs: dict[int, list[EntryBlob]] = {}
    done = LogReport(name=work.name)
    for row in rows_of(batches):
        if row.kind == rows.TRIGGER:
            yield from (Row(target=group.index, kind=rows.RETAINED).batch() for group in work.groups)
        elif row.kind == rows.REPORT:
            yield row.batch()
        elif row.kind == rows.SUMMARY:
            done.extracted.summaries.append(row.array(np.int64, 3).copy())
        else:
            blob = entries_of(row, buckets)
            blobs.setdefault(blob.bucket, []).append(blob)
    for group, carried in transaction_state_by_group(work, done.extracted).items():
        yield report_row(rows.CARRIED, carried, group).batch()
    for bucket in sorted(blobs):
        retained = merge_bucket(blobs.pop(bucket), bucket, buckets)
        done.dirty_keys += retained.dirty_keys
        for group, offsets in retained_by_group(work, retained):
            done.retained_counts[group] = done.retained_counts.get(group, 0) + len(offsets)
            for row in array_rows(rows.RETAINED, group, offsets):
                yield row.batch()
    yield report_row(rows.REPORT, done).batch()


def rewrite_task(work: LogWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rewrite groups by the retained offsets that arrive; reports pass through.

    A group without retained offsets has to be rewritten, too: ``rows.TRIGGER`` makes sure that it has a row.
    """
    buffers = Buffers()

    def rewrite(group: Group, retained: Offsets, carried: Carried) -> LogReport:
        rewritten = rewrite_group(work, group, retained, attempt_name(), carried, buffers)
        return LogReport(name=work.name, groups=[rewritten])

    return _by_group(work, batches, rewrite)


def gather_task(work: LogWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write the retained offsets that arrive to a file for each group; reports pass through."""

    def gather(group: Group, retained: Offsets, carried: Carried) -> LogReport:
        return LogReport(
            name=work.name, files=[write_retained(work, group, retained, attempt_name(), carried)]
        )

    return _by_group(work, batches, gather)


def _by_group(
    work: LogWork, batches: Batches, clean: Callable[[Group, Offsets, Carried], LogReport]
) -> Iterator[pa.RecordBatch]:
    """Call ``clean`` with each group's retained offsets and initial state of transactions; yields its report.

    Other rows pass through.
    """
    retained: dict[int, list[Offsets]] = {}
    carried: dict[int, Carried] = {}
    for row in rows_of(batches):
        if row.kind == rows.RETAINED:
            retained.setdefault(row.target, []).append(row.array(np.uint32).copy())
        elif row.kind == rows.CARRIED:
            carried[row.target] = report_of(row, Carried)
        else:
            yield row.batch()
    for group in sorted(retained):
        offsets, over = np.concatenate(retained.pop(group)), carried.get(group, NOTHING)
        yield report_row(rows.REPORT, clean(work.groups[group], offsets, over)).batch()


def rewrite_from_files_task(
    work: LogWork, wave: Sequence[tuple[Group, RetainedFile]], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a group of a wave, which is rewritten from its file of retained offsets."""
    buffers = Buffers()
    for number in task_numbers(batches):
        group, file = wave[number]
        report = rewrite_from_file(work, group, file, attempt_name(), buffers)
        yield report_row(rows.REPORT, report).batch()


class SparkEngine(SparkWorkers):
    """Spreads cleanings over the workers of a session.

    ``min_clean_to_dirty_ratio``: the least bytes of clean segments for a byte of dirty ones, for a broadcast
    join.
    """

    def __init__(
        self,
        session: SparkSession,
        *,
        min_clean_to_dirty_ratio: float = MIN_CLEAN_TO_DIRTY_RATIO,
        **options: Any,
    ) -> None:
        super().__init__(session, **options)
        self._clean_share = min_clean_to_dirty_ratio

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean a few logs in each task, since a task costs Spark some 80 ms. Many logs are several jobs:
        while one runs the caller swaps the logs of the one before. The logs of a failed job are done again by
        halves. Raises EngineError if there is only one log and its job fails, or Spark is gone."""
        parts = distribute_logs(works, self._parallelism)
        jobs = max(1, min(_JOBS, len(works) // _LOGS_PER_JOB, len(parts)))
        again: list[LogWork] = []

        def clean(number: int) -> list[LogReport]:
            tasks = parts[number::jobs]
            try:
                return self._clean_parts(tasks)
            except EngineError:
                if len(works) == 1 or not is_alive(self._session):
                    raise
                again.extend(work for part in tasks for work in part)
                return []

        for reports in one_ahead(self._session, clean, jobs):
            yield from reports
        yield from self._clean_apart(again)

    def _clean_parts(self, parts: Sequence[Sequence[LogWork]]) -> list[LogReport]:
        names = [work.name for part in parts for work in part]
        title = f"{len(names)} logs" if len(names) > 1 else names[0]
        reports = self._run_numbered(title, len(parts), clean_whole_task, parts)
        return [report_of(row, LogReport) for row in reports]

    def _clean_apart(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean the logs of a failed job by halves, until a job with one log fails: that is its failure."""
        for half in (works[: len(works) // 2], works[len(works) // 2 :]):
            if not half:
                continue
            try:
                reports = self._clean_parts(distribute_logs(half, self._parallelism))
            except EngineError as error:
                if not is_alive(self._session):
                    raise
                if len(half) > 1:
                    yield from self._clean_apart(half)
                else:
                    yield LogReport(name=half[0].name, extracted=Extracted(failure=failure_of(error)))
            else:
                yield from reports

    def clean_distributed(self, work: LogWork) -> LogReport:
        """Clean one log on all workers."""
        done = self._clean_spread(work)
        if self._may_be_miscut(work, done.extracted):
            for group in done.groups:
                remove_staged(group)
            done = self._clean_spread(replace(work, may_cut=False))
        return done

    def _may_be_miscut(self, work: LogWork, extracted: Extracted) -> bool:
        """May a cut inside a segment be the reason for the failure, since no batch begins there?"""
        if extracted.failure is None or extracted.failure.status != UNCLEANABLE:
            return False
        return are_cut(self._parts(work)) or are_cut(dirty_splits(work, self._parallelism))

    def _clean_spread(self, work: LogWork) -> LogReport:
        # Without a barrier stage a SparkContext broadcasts the map.
        if should_broadcast(work, self._clean_share) and not is_connect(self._session):
            joined = self._broadcast_join(work)
            if joined is not None:
                return joined
        done = _summed_up(work, self._by_group(work, rewrite_task))
        done.groups.sort(key=lambda group: group.group_index)
        return done

    def _broadcast_join(self, work: LogWork) -> LogReport | None:
        """Clean one log on all workers; None if it has transactions. Raises EngineError."""
        dirty = dirty_splits(work, self._parallelism) or [[]]
        sizes = [sum(segment.size for segment in work.sources(group)) for group in work.groups]
        parts = runs_of(sizes, min(len(sizes), self._parallelism))
        if self._uses_barrier(work.size):
            stages = (
                Stage(function=dirty_task, arguments=(work, dirty, len(parts)), tasks=len(dirty)),
                Stage(function=lookup_task, arguments=(work, parts), tasks=len(parts), claims=True),
            )
            job = Job(stages=stages, title=work.name, staging=work.staging)
            reports = run_in_barrier(self._session, job, self._progress)
            if reports is not None:
                return _joined(work, reports)
        return self._join_in_two_jobs(work, dirty, parts)

    def _join_in_two_jobs(
        self, work: LogWork, dirty: Sequence[Sequence[InputSplit]], parts: Runs
    ) -> LogReport | None:
        """The driver builds the map in one job, and broadcasts it for the next."""
        extracted, entries = _dirty(self._run_numbered(work.name, len(dirty), dirty_task, work, dirty, 0))
        if extracted.failure is not None:
            return LogReport(name=work.name, extracted=extracted)
        if extracted.has_transactions:
            return None
        offset_map = broadcast.OffsetMap.of(entries)
        with engine_errors(work.name):
            shared = self._session.sparkContext.broadcast(offset_map)
        try:
            reports = self._run_numbered(work.name, len(parts), shared_lookup_task, work, shared, parts)
        finally:
            with contextlib.suppress(Exception):  # it goes with Spark, too
                shared.destroy()
        return merge_group_reports(work, len(offset_map), (report_of(row, LogReport) for row in reports))

    def write_retained_offsets(self, work: LogWork) -> LogReport:
        """Merge one log on all workers; its retained offsets go into files, one a group."""
        done = _summed_up(work, self._by_group(work, gather_task))
        if self._may_be_miscut(work, done.extracted):
            done = _summed_up(work, self._by_group(replace(work, may_cut=False), gather_task))
        return done

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], retained: Sequence[RetainedFile]
    ) -> list[GroupReport]:
        """Rewrite some groups from their files of retained offsets."""
        wave = [(group, retained[group.index]) for group in groups]
        tasks = self._rewriting_tasks(work, groups)
        reports = self._run_numbered(work.name, len(wave), rewrite_from_files_task, work, wave, tasks=tasks)
        return sorted((report_of(row, GroupReport) for row in reports), key=lambda group: group.group_index)

    def _by_group(self, work: LogWork, task: Callable[..., Iterator[pa.RecordBatch]]) -> list[Row]:
        """Run the three stages; ``task`` is the last one, which gets retained offsets by group."""
        min_buckets = bucket_count(work, max(self._min_buckets, self._parallelism))
        entry_bytes = offset_span(work) * ENTRY_BYTES
        buckets, tasks = merge_shape(min_buckets, self._parallelism, entry_bytes, work.limits.memory_bytes)
        buckets = finer_buckets(buckets, tasks, entry_bytes)
        parts = self._parts(work)
        stages = (
            Stage(function=extract_task, arguments=(work, parts, buckets), tasks=len(parts)),
            Stage(function=merge_task, arguments=(work, buckets), tasks=tasks),
            Stage(function=task, arguments=(work,), tasks=self._rewriting_tasks(work, work.groups)),
        )
        return self._run(stages, work.name, work.staging, work.size)

    def _parts(self, work: LogWork) -> list[list[InputSplit]]:
        """The input splits of each extracting task."""
        tasks = max(self._parallelism, math.ceil(work.size / _TASK_BYTES))
        return splits_by_task(
            work.segments, work.end, tasks, may_cut=work.may_cut and not work.has_message_sets
        )

    def _rewriting_tasks(self, work: LogWork, groups: Sequence[Group]) -> int:
        """A task costs Spark some 80 ms: as many as there are cores, unless the retained offsets that each
        holds would take more than half of its memory."""
        span = sum(group.end_offset - group.base_offset for group in groups)
        minimum = math.ceil(2 * span * RETAINED_OFFSET_BYTES / work.limits.memory_bytes)
        return min(len(groups), max(self._parallelism, minimum))


def _summed_up(work: LogWork, reports: Iterable[Row]) -> LogReport:
    """A log's report from the reports of its job's tasks."""
    done = LogReport(name=work.name)
    for row in reports:
        done.add(report_of(row, LogReport))
    done.extracted.failure = done.extracted.failure or check_keyless(work, done.extracted)
    return done
