"""The cleaner's engine on Spark: runs the steps of ``compaction.work`` as stages of DataFrames.

::

    splits ─ extract ─► key entries ─ by bucket ─► merge ─► retained offsets ─ by range ─► rewrite ─► reports
                                                                                    or ─► gather  ─► files
    ranges of a wave, with their files of retained offsets ─► rewrite ─► reports
    reports of ranges that are parts of groups, after each rewrite ─ by group ─► assemble ─► reports

One task cleans a small log, or several; all small logs of a run are a few jobs. A large log takes the stages
above: in one job or, if its segment groups go in waves, in a job that gathers the retained offsets in files
and then a job for each wave. Where groups are large and few, they are cut into ranges, and their pieces are
joined in one more stage. A log with few dirty keys takes the broadcast join. ``jobs`` runs the stages of
a job, with shuffles or in an exchange stage.

The functions that run in tasks end in ``_task``. Their ``inputs`` are those of all tasks of the stage, as
plain data that Spark ships with the function; a row of ``batches`` has the number of an input. So tasks
exchange only key entries, retained offsets and reports. Each task checks that the segments are those that
were planned: a repeated task cannot mix them with segments that were swapped in meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError, SiltstoneError
from siltstone.base.files.backups import BackedUpFile
from siltstone.compaction import broadcast
from siltstone.compaction.assembling import assemble_pieces, remove_pieces
from siltstone.compaction.broadcast import (
    MIN_CLEAN_TO_DIRTY_RATIO,
    dirty_splits,
    merge_range_reports,
    should_broadcast,
)
from siltstone.compaction.engine import (
    bucket_count,
    clean_in_one_task,
    entry_bytes,
    entry_capacity,
    entry_count_max,
    with_ranges,
)
from siltstone.compaction.inplace.stored_copy import FileToPut
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.putting import ChunkStore, put_file
from siltstone.compaction.report import UNCLEANABLE, failure_of
from siltstone.compaction.rewrite import Buffers, Offsets
from siltstone.compaction.staging import (
    RETAINED_OFFSET_BYTES,
    GroupReport,
    LogReport,
    PieceReport,
    RetainedFile,
    remove_staged,
    rewrite_from_file,
    rewrite_range,
    write_retained,
)
from siltstone.compaction.work import (
    Extracted,
    Group,
    GroupRange,
    InputSplit,
    LogWork,
    are_cut,
    check_keyless,
    extract,
    merge_entries,
    retained_by_range,
    splits_by_task,
    transaction_state_by_range,
)
from siltstone.log.transactions import NO_TRANSACTIONS, TransactionState
from siltstone.spark import rows
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.internals import is_connect
from siltstone.spark.jobs import (
    EXCHANGE_STAGE_BYTES,
    SHUFFLES_ONLY,
    Job,
    SparkJobRunner,
    attempt_name,
    run_in_exchange_stage,
    run_jobs_overlapped,
    run_with_shuffles,
)
from siltstone.spark.rows import ALL, Row, array_row, array_rows, report_of, report_row, rows_of
from siltstone.spark.settings import is_local
from siltstone.spark.tasks import (
    Batches,
    engine_errors,
    is_alive,
    merge_shape,
    neighbours,
    smaller_buckets,
    task_numbers,
)

# The broadcast join on Spark: tasks look up the keys of clean records in an offset map of the dirty section.
#
# ::
#
#     exchange stage   dirty segments ─► entries, to every task ─► each builds the map, rewrites ranges
#     two jobs         dirty segments ─► entries ─► map on the driver, broadcast ─► ranges rewritten
#
# In an exchange stage each worker begins with its own ranges, and then takes ranges that no worker has
# claimed. ``compaction.broadcast`` does the work.

Ranges = Sequence[Sequence[int]]
"""Neighbouring ranges for each task, by their index in ``work.ranges``."""
Claim = Callable[[int], bool]
"""Called with the number of a range: claims it for this worker, or returns False if another one has it."""


def dirty_task(
    work: LogWork, inputs: Sequence[Sequence[InputSplit]], lookup_tasks: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Read neighbouring splits, and send their dirty entries to every task of the next stage.

    The task of input 0 also sends a row to each of the ``lookup_tasks``, which tells it its number."""
    for number in task_numbers(batches):
        extracted = Extracted()
        for blob in broadcast.dirty_entries(work, inputs[number], extracted):
            yield entries_row(blob, ALL).batch()
        extracted.summaries = []  # a log with transactions takes the shuffle join
        yield report_row(rows.EXTRACTED, extracted, ALL).batch()
        if number == 0:
            yield from (Row(target=task, kind=rows.TRIGGER).batch() for task in range(lookup_tasks))


def _dirty_entries(arrived: Sequence[Row]) -> tuple[Extracted, list[EntryBlob]]:
    """The sum of the reports, and the entries, of the tasks that read dirty segments."""
    extracted = Extracted()
    for row in arrived:
        if row.kind == rows.EXTRACTED:
            extracted.add(report_of(row, Extracted))
    # The entries are not divided into buckets: there is one map for all.
    return extracted, [entries_of(row, 1) for row in arrived if row.kind == rows.DIRTY]


def shared_lookup_task(
    work: LogWork, shared: Broadcast[broadcast.OffsetMap], inputs: Ranges, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Rewrite neighbouring ranges by the offset map that the driver has broadcast."""
    for number in task_numbers(batches):
        yield from _clean_ranges_by_map(work, shared.value, inputs[number])


def lookup_task(work: LogWork, inputs: Ranges, claim: Claim, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Build the offset map from the dirty entries that arrive, and rewrite the ranges that ``claim`` grants.

    The task begins with its own ranges. Then it tries the ranges of other tasks, the last ones first: each
    task cleans its own ranges in order, so it reaches those last. If reading failed or met transactions, the
    task only reports that."""
    arrived = list(rows_of(batches))
    (index,) = (row.target for row in arrived if row.kind == rows.TRIGGER)
    extracted, entries = _dirty_entries(arrived)
    if extracted.failure is not None or extracted.has_transactions:
        yield report_row(rows.EXTRACTED, extracted).batch()
        return
    offset_map = broadcast.OffsetMap.of(entries)
    yield report_row(rows.MERGED, LogReport(name=work.name, dirty_keys=len(offset_map))).batch()
    others = [number for ranges in inputs if ranges is not inputs[index] for number in ranges]
    yield from _clean_ranges_by_map(work, offset_map, filter(claim, [*inputs[index], *reversed(others)]))


def _clean_ranges_by_map(
    work: LogWork, offset_map: broadcast.OffsetMap, numbers: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Rewrite ranges by the offset map; yields a report for each."""
    buffers, ranges = Buffers(), work.ranges
    for number in numbers:
        report = broadcast.clean_range(work, ranges[number], offset_map, attempt_name(), buffers)
        yield report_row(rows.REWRITTEN, report, ranges[number].group).batch()


def _broadcast_join_report(work: LogWork, reports: Sequence[Row]) -> LogReport | None:
    """The log's report from the tasks of an exchange stage; None if the log has transactions."""
    stopped = next((report_of(row, Extracted) for row in reports if row.kind == rows.EXTRACTED), None)
    if stopped is not None:
        return LogReport(name=work.name, extracted=stopped) if stopped.failure is not None else None
    # Every task has built the same map, so their numbers of keys are equal.
    keys = max(report_of(row, LogReport).dirty_keys for row in reports if row.kind == rows.MERGED)
    parts = (report_of(row, LogReport) for row in reports if row.kind == rows.REWRITTEN)
    return merge_range_reports(work, keys, parts)


_EXTRACT_TASK_BYTES = 1 << 30
"""The most bytes of a log for a task that extracts entries."""
_WHOLE_TASK_BYTES = 256 << 20
"""About the most bytes of logs for a task that cleans whole logs."""
_TASKS_PER_WORKER = 4
"""How many tasks that clean whole logs, or put files, each worker gets, so that all workers end at about the
same time."""
_JOBS, _LOGS_PER_JOB = 4, 16
"""Small logs go in up to ``_JOBS`` jobs, of at least ``_LOGS_PER_JOB`` logs each."""


def clean_whole_task(inputs: Sequence[Sequence[LogWork]], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Clean a few whole logs, one after another."""
    buffers = Buffers()
    for number in task_numbers(batches):
        for work in inputs[number]:
            report = clean_in_one_task(work, attempt_name(), buffers)
            yield report_row(rows.REPORT, report).batch()


def put_files_task(
    store: ChunkStore, inputs: Sequence[Sequence[FileToPut]], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Put files of a copy in a store; yields a report on each file, its entry in the restore point.

    Chunks are named by their bytes, so an attempt that is repeated, or runs beside another one, puts the same
    chunks."""
    writer = store.writer()
    for number in task_numbers(batches):
        for file in inputs[number]:
            put = put_file(Path(file.source), file.name, writer)
            yield report_row(rows.REPORT, put).batch()


def distribute_logs(works: Sequence[LogWork], parallelism: int) -> list[list[LogWork]]:
    """Distribute logs over tasks, the largest first, so that no core waits long at the end.

    Each worker gets a few tasks. It gets more if a task would have over 256 MiB: a task that fails is
    repeated as a whole.
    """
    ordered = sorted(works, key=lambda work: -work.size)
    size = sum(work.size for work in works)
    tasks = min(len(works), max(_TASKS_PER_WORKER * parallelism, math.ceil(size / _WHOLE_TASK_BYTES)))
    return [ordered[number::tasks] for number in range(tasks)]


def job_count(logs: int, tasks: int, parallelism: int) -> int:
    """How many jobs clean ``logs`` small logs in ``tasks`` tasks; each job has a task for each worker."""
    return max(1, min(_JOBS, logs // _LOGS_PER_JOB, tasks // parallelism))


def extract_task(
    work: LogWork, inputs: Sequence[Sequence[InputSplit]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Read splits; yields their key entries by bucket, summaries of their transactions, and a report."""
    for number in task_numbers(batches):
        extracted = Extracted()
        for blob in extract(work, inputs[number], buckets, entry_capacity(work), extracted):
            yield entries_row(blob).batch()
        for summary in extracted.summaries:
            yield array_row(rows.TRANSACTION_SUMMARY, 0, summary).batch()
        extracted.summaries = []
        # The report goes to the task of bucket 0, as the summaries do. That task tells the ranges whether the
        # log has records without a key.
        yield report_row(rows.REPORT, LogReport(name=work.name, extracted=extracted), 0).batch()
        if number == 0:
            yield Row(target=0, kind=rows.TRIGGER).batch()


def merge_task(work: LogWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge the key entries of buckets into retained offsets by range; pass reports on.

    The task of bucket 0 also computes the state of transactions in which each range starts, and tells each
    range if the log has records without a key. A row for a range goes to the range's task, and has the
    range's base offset.
    """
    blobs: dict[int, list[EntryBlob]] = {}
    report, has_keyless = LogReport(name=work.name), False
    for row in rows_of(batches):
        if row.kind == rows.TRIGGER:
            for group_range in work.ranges:
                base = group_range.base_offset
                yield Row(target=group_range.task, kind=rows.RETAINED, base_offset=base).batch()
        elif row.kind == rows.REPORT:
            has_keyless |= report_of(row, LogReport).extracted.keyless > 0
            yield row.batch()
        elif row.kind == rows.TRANSACTION_SUMMARY:
            report.extracted.summaries.append(row.array(np.int64, 3).copy())
        else:
            blob = entries_of(row, buckets, work.entry_words)
            blobs.setdefault(blob.bucket, []).append(blob)
    states = transaction_state_by_range(work, report.extracted)
    for group_range in work.ranges if states else ():
        base = group_range.base_offset
        if base in states:
            row = report_row(rows.TRANSACTION_STATE, states[base], group_range.task)
            yield replace(row, base_offset=base).batch()
    if has_keyless:
        tasks = {group_range.task for group_range in work.ranges}
        yield from (Row(target=task, kind=rows.KEYLESS).batch() for task in sorted(tasks))
    for bucket in sorted(blobs):
        retained = merge_entries(work, blobs.pop(bucket), bucket, buckets, report.extracted)
        report.dirty_keys += retained.dirty_keys
        for group_range, offsets in retained_by_range(work, retained):
            group = group_range.group
            report.retained_counts[group] = report.retained_counts.get(group, 0) + len(offsets)
            for row in array_rows(rows.RETAINED, group_range.task, offsets):
                yield replace(row, base_offset=group_range.base_offset).batch()
    yield report_row(rows.REPORT, report).batch()


def rewrite_task(work: LogWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rewrite ranges by the retained offsets that arrive; pass reports on.

    A range without retained offsets has to be rewritten, too, so ``merge_task`` sends each range an empty
    row.
    """
    buffers = Buffers()

    def rewrite(
        group_range: GroupRange, retained: Offsets, transaction_state: TransactionState, has_keyless: bool
    ) -> LogReport:
        inputs = (retained, attempt_name(), transaction_state, buffers)
        return rewrite_range(work, group_range, *inputs, has_keyless=has_keyless)

    return _by_range(work, batches, rewrite)


def gather_task(work: LogWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write the retained offsets that arrive to a file for each range; pass reports on."""

    def gather(
        group_range: GroupRange, retained: Offsets, transaction_state: TransactionState, has_keyless: bool
    ) -> LogReport:
        inputs = (retained, attempt_name(), transaction_state)
        file = write_retained(work, group_range, *inputs, has_keyless=has_keyless)
        return LogReport(name=work.name, files=[file])

    return _by_range(work, batches, gather)


def _by_range(
    work: LogWork,
    batches: Batches,
    clean: Callable[[GroupRange, Offsets, TransactionState, bool], LogReport],
) -> Iterator[pa.RecordBatch]:
    """Call ``clean`` with each range's retained offsets, the state of transactions in which it starts, and
    whether the log has records without a key.

    Yields the reports of ``clean``, for the task of the range's group, and passes other rows on.
    """
    # By base offset of a range.
    retained: dict[int, list[Offsets]] = {}
    transaction_state: dict[int, TransactionState] = {}
    has_keyless = False
    for row in rows_of(batches):
        if row.kind == rows.RETAINED:
            retained.setdefault(row.base_offset, []).append(row.array(np.uint32).copy())
        elif row.kind == rows.KEYLESS:
            has_keyless = True
        elif row.kind == rows.TRANSACTION_STATE:
            transaction_state[row.base_offset] = report_of(row, TransactionState)
        else:
            yield row.batch()
    for group_range in work.ranges:
        base = group_range.base_offset
        if base in retained:
            offsets, state = np.concatenate(retained.pop(base)), transaction_state.get(base, NO_TRANSACTIONS)
            report = clean(group_range, offsets, state, has_keyless)
            yield report_row(rows.REPORT, report, group_range.group).batch()


def rewrite_from_files_task(
    work: LogWork, inputs: Sequence[Sequence[RetainedFile]], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Rewrite ranges of a wave from their files of retained offsets."""
    buffers = Buffers()
    for number in task_numbers(batches):
        for file in inputs[number]:
            report = rewrite_from_file(work, file, attempt_name(), buffers)
            yield report_row(rows.REPORT, report, file.group_range.group).batch()


def assemble_task(work: LogWork, kind: str, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Assemble segments from the pieces of groups; pass other reports on. ``kind``: the kind of the rows with
    reports on pieces."""
    pieces: dict[int, list[PieceReport]] = {}
    for row in rows_of(batches):
        report = report_of(row, LogReport) if row.kind == kind else None
        if report is None or not report.pieces:
            yield row.batch()
            continue
        for piece in report.pieces:
            pieces.setdefault(piece.group.group_index, []).append(piece)
        report.pieces = []
        yield report_row(kind, report).batch()
    for group in sorted(pieces):
        assembled = assemble_pieces(work, work.groups[group], pieces[group], attempt_name())
        yield report_row(kind, LogReport(name=work.name, groups=[assembled])).batch()


def _with_assembly(work: LogWork, stages: Sequence[Stage], kind: str = rows.REPORT) -> list[Stage]:
    """The stages, and one that assembles segments from pieces if groups were cut."""
    if not work.cut_ranges:
        return list(stages)
    ranges_by_group = Counter(group_range.group for group_range in work.cut_ranges)
    tasks = min(sum(count > 1 for count in ranges_by_group.values()), stages[-1].tasks)
    return [*stages, Stage(function=assemble_task, arguments=(work, kind), tasks=tasks)]


class SparkEngine(SparkJobRunner):
    """The cleaner's engine (``compaction.engine.Engine``) on the workers of a session.

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
        self._min_clean_to_dirty_ratio = min_clean_to_dirty_ratio

    @property
    def has_executors(self) -> bool:
        """May tasks run on other machines? All but a local master's may; of a Connect server it is not
        known."""
        return is_connect(self._session) or not is_local(self._session.sparkContext.master)

    def put_files(self, store: ChunkStore, to_put: Sequence[FileToPut]) -> list[BackedUpFile]:
        """Put those files of a copy that a cleaning does not change, and that are themselves in a store, into
        the copy's store, a few in each task (``stored_copy.FilePutter``). Raises EngineError."""
        sizes = [file.size for file in to_put]
        tasks = min(len(to_put), _TASKS_PER_WORKER * self.parallelism)
        inputs = [[to_put[index] for index in part] for part in neighbours(sizes, tasks)]
        reports = self._run_numbered(
            "putting files of the copy",
            len(inputs),
            put_files_task,
            store,
            inputs,
            size=sum(sizes),
            only_rewrites=True,
        )
        return [report_of(row, BackedUpFile) for row in reports]

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean logs, a few in each task, since a task costs Spark some 80 ms.

        Many logs are several jobs: while one runs, the caller swaps the logs of the one before. The logs of a
        failed job are cleaned again in halves. Raises EngineError if there is only one log and its job fails,
        if the failure concerns all logs, or if Spark is gone."""
        parallelism = self.parallelism
        inputs = distribute_logs(works, parallelism)
        jobs = job_count(len(works), len(inputs), parallelism)
        logs_to_repeat: list[LogWork] = []

        def clean(number: int) -> list[LogReport]:
            tasks = inputs[number::jobs]
            try:
                return self._clean_in_one_job(tasks)
            except EngineError as error:
                if len(works) == 1 or _concerns_all_logs(error) or not is_alive(self._session):
                    raise
                logs_to_repeat.extend(work for part in tasks for work in part)
                return []

        for reports in run_jobs_overlapped(self._session, clean, jobs):
            yield from reports
        yield from self._clean_by_halves(logs_to_repeat)

    def _clean_in_one_job(self, inputs: Sequence[Sequence[LogWork]]) -> list[LogReport]:
        names = [work.name for part in inputs for work in part]
        title = f"{len(names)} logs" if len(names) > 1 else names[0]
        size = sum(work.size for part in inputs for work in part)
        staging = [work.shared_staging for part in inputs for work in part if work.shared_staging is not None]
        reports = self._run_numbered(title, len(inputs), clean_whole_task, inputs, size=size, staging=staging)
        return [report_of(row, LogReport) for row in reports]

    def _clean_by_halves(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean the logs of a failed job in halves, and so on; a job with one log that fails is that log's
        failure."""
        for half in (works[: len(works) // 2], works[len(works) // 2 :]):
            if not half:
                continue
            try:
                reports = self._clean_in_one_job(distribute_logs(half, self.parallelism))
            except EngineError as error:
                if _concerns_all_logs(error) or not is_alive(self._session):
                    raise
                if len(half) > 1:
                    yield from self._clean_by_halves(half)
                else:
                    yield LogReport(name=half[0].name, extracted=Extracted(failure=failure_of(error)))
            else:
                yield from reports

    def clean_distributed(self, work: LogWork) -> LogReport:
        """Clean one log on all workers."""
        parallelism = self.parallelism
        work_in_ranges = with_ranges(work, [work.groups], parallelism)
        report = self._clean_on_all_workers(work_in_ranges, parallelism)
        if self._may_be_miscut(work_in_ranges, report.extracted, parallelism):
            for group in report.groups:
                remove_staged(group)
            report = self._clean_on_all_workers(replace(work, may_cut_segments=False), parallelism)
        return report

    def _may_be_miscut(self, work: LogWork, extracted: Extracted, parallelism: int) -> bool:
        """May a cut inside a segment have caused the failure? A wrong index leads to cuts within a batch."""
        if extracted.failure is None or extracted.failure.status != UNCLEANABLE:
            return False
        return are_cut(self._splits_of_tasks(work, parallelism)) or are_cut(dirty_splits(work, parallelism))

    def _clean_on_all_workers(self, work: LogWork, parallelism: int) -> LogReport:
        """Clean one log on all workers, by the broadcast join where that is faster and possible, else by the
        shuffle join."""
        # The broadcast join may need a SparkContext, which Spark Connect does not have.
        is_join_possible = not is_connect(self._session)
        try:
            if should_broadcast(work, self._min_clean_to_dirty_ratio) and is_join_possible:
                joined = self._broadcast_join(work, parallelism)
                if joined is not None:
                    return joined
            report = _summed_report(work, self._run_by_range(work, rewrite_task, parallelism))
        finally:
            remove_pieces(work)
        report.groups.sort(key=lambda group: group.group_index)
        return report

    def _broadcast_join(self, work: LogWork, parallelism: int) -> LogReport | None:
        """Clean one log on all workers; None if it has transactions. Raises EngineError."""
        # Without a dirty split there is still one task, since the task of input 0 triggers the lookup tasks.
        dirty = dirty_splits(work, parallelism) or [[]]
        sizes = [group_range.size for group_range in work.ranges]
        inputs = neighbours(sizes, min(len(sizes), parallelism))
        if self._uses_exchange_stage(work.size):
            stages = (
                Stage(function=dirty_task, arguments=(work, dirty, len(inputs)), tasks=len(dirty)),
                Stage(function=lookup_task, arguments=(work, inputs), tasks=len(inputs), needs_claim=True),
            )
            all_stages = _with_assembly(work, stages, rows.REWRITTEN)
            job = Job(stages=all_stages, title=work.name, staging=work.shared_staging, size=work.size)
            reports = run_in_exchange_stage(self._session, job, self._progress)
            if reports is not None:
                return _broadcast_join_report(work, reports)
        return self._join_in_two_jobs(work, dirty, inputs)

    def _join_in_two_jobs(
        self, work: LogWork, dirty: Sequence[Sequence[InputSplit]], inputs: Ranges
    ) -> LogReport | None:
        """The broadcast join in two jobs: the driver builds the map from the first one's entries, and
        broadcasts it for the second. None if the log has transactions."""
        no_lookup_tasks = 0  # in this job: its rows go to the driver
        extracted, entries = _dirty_entries(
            self._run_numbered(work.name, len(dirty), dirty_task, work, dirty, no_lookup_tasks)
        )
        if extracted.failure is not None:
            return LogReport(name=work.name, extracted=extracted)
        if extracted.has_transactions:
            return None
        offset_map = broadcast.OffsetMap.of(entries)
        with engine_errors(work.name):
            shared = self._session.sparkContext.broadcast(offset_map)
        stage = Stage(function=shared_lookup_task, arguments=(work, shared, inputs), tasks=len(inputs))
        try:
            reports = self._rewrite(work, stage, work.size, rows.REWRITTEN)
        finally:
            with contextlib.suppress(Exception):  # Spark may be gone, and the broadcast with it.
                shared.destroy()
        return merge_range_reports(work, len(offset_map), (report_of(row, LogReport) for row in reports))

    def write_retained_offsets(self, work: LogWork, waves: Sequence[Sequence[Group]]) -> LogReport:
        """Extract and merge the keys of one log on all workers, and write the retained offsets to a file for
        each range."""
        parallelism = self.parallelism
        work_in_ranges = with_ranges(work, waves, parallelism)
        report = _summed_report(work, self._run_by_range(work_in_ranges, gather_task, parallelism))
        if self._may_be_miscut(work_in_ranges, report.extracted, parallelism):
            uncut = replace(work, may_cut_segments=False)
            report = _summed_report(work, self._run_by_range(uncut, gather_task, parallelism))
        return report

    def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
        """Rewrite some groups from the files of retained offsets of their ranges."""
        ranges = [file.group_range for file in retained]
        if any(not group_range.is_whole(work.groups[group_range.group]) for group_range in ranges):
            work = replace(work, cut_ranges=tuple(ranges))
        tasks = _rewrite_task_count(work, ranges, self.parallelism)
        inputs = [
            [file for file in retained if file.group_range.task % tasks == task] for task in range(tasks)
        ]
        stage = Stage(function=rewrite_from_files_task, arguments=(work, inputs), tasks=tasks)
        try:
            reports = self._rewrite(work, stage, sum(group_range.size for group_range in ranges))
        finally:
            remove_pieces(work)
        groups = [group for row in reports for group in report_of(row, LogReport).groups]
        return sorted(groups, key=lambda group: group.group_index)

    def _rewrite(self, work: LogWork, stage: Stage, size: int, kind: str = rows.REPORT) -> list[Row]:
        """Run a stage that rewrites ``size`` bytes, and assemble pieces; returns reports of this ``kind``."""
        job = Job(
            stages=_with_assembly(work, [stage], kind),
            title=work.name,
            staging=work.shared_staging,
            size=size,
        )
        return run_with_shuffles(self._session, job, self._progress, only_rewrites=True)

    def _run_by_range(
        self, work: LogWork, task: Callable[..., Iterator[pa.RecordBatch]], parallelism: int
    ) -> list[Row]:
        """Run the stages extract, merge and ``task``, which gets retained offsets by range; returns
        reports."""
        min_buckets = bucket_count(work, max(self._min_buckets, parallelism))
        all_entries = entry_count_max(work) * entry_bytes(work)
        buckets, tasks = merge_shape(min_buckets, parallelism, all_entries, work.limits.memory_bytes)
        buckets = smaller_buckets(buckets, tasks, all_entries)
        inputs, is_rewriting = self._splits_of_tasks(work, parallelism), task is not gather_task
        rewrite_tasks = _rewrite_task_count(work, work.ranges, parallelism, is_rewriting=is_rewriting)
        stages = [
            Stage(function=extract_task, arguments=(work, inputs, buckets), tasks=len(inputs)),
            Stage(function=merge_task, arguments=(work, buckets), tasks=tasks),
            Stage(function=task, arguments=(work,), tasks=rewrite_tasks),
        ]
        all_stages = _with_assembly(work, stages) if is_rewriting else stages
        return self._run(all_stages, work.name, work.shared_staging, work.size)

    def _splits_of_tasks(self, work: LogWork, parallelism: int) -> list[list[InputSplit]]:
        """The input splits of each task that extracts entries; no split extends over a cut of a group."""
        tasks = max(parallelism, math.ceil(work.size / _EXTRACT_TASK_BYTES))
        if work.cut_ranges:
            splits = work.splits
            sizes = [split.end_position - split.start_position for split in splits]
            return [[splits[number] for number in members] for members in neighbours(sizes, tasks)]
        return splits_by_task(
            work.segments, work.end, tasks, may_cut=work.may_cut_segments and not work.has_message_sets
        )


class SharedEngines:
    """Makes engines for cleanings that run side by side, in threads, on one session.

    ``start`` starts the session: for the first engine, and again if the session's Java has died. The logs
    that were being cleaned then have failed; those of later engines are cleaned. ``is_alone``: the cleanings
    run one after another. ``start_error``: why the first start failed, which concerns all cleanings; else
    None.
    """

    def __init__(self, start: Callable[[], SparkSession], *, is_alone: bool) -> None:
        self._start, self._lock = start, threading.Lock()
        # An exchange stage needs all workers at one time, which it does not have beside other jobs.
        self._exchange_stage_bytes = EXCHANGE_STAGE_BYTES if is_alone else SHUFFLES_ONLY
        self._session: SparkSession | None = None
        self.start_error: SiltstoneError | None = None

    def engine(self) -> SparkEngine:
        """An engine for one cleaning. Raises EngineError, UsageError."""
        with self._lock:
            if self.start_error is not None:
                raise self.start_error
            try:
                if self._session is None or not is_alive(self._session):
                    self._session = self._start()
            except SiltstoneError as error:
                self.start_error = error if self._session is None else None
                raise
            return SparkEngine(self._session, exchange_stage_bytes=self._exchange_stage_bytes)


def _rewrite_task_count(
    work: LogWork, ranges: Sequence[GroupRange], parallelism: int, *, is_rewriting: bool = True
) -> int:
    """How many tasks rewrite the ranges. A task costs Spark some 80 ms, so there are as many as workers, or
    more if the retained offsets of a task would take more than half of its memory, or if groups are cut.
    ``is_rewriting``: False if the tasks only write retained offsets into files."""
    if work.cut_ranges and is_rewriting:
        return len({group_range.task for group_range in ranges})
    span = sum(group_range.end_offset - group_range.base_offset for group_range in ranges)
    minimum = math.ceil(2 * span * RETAINED_OFFSET_BYTES / work.limits.memory_bytes)
    return min(len({group_range.task for group_range in ranges}), max(parallelism, minimum))


def _concerns_all_logs(error: EngineError) -> bool:
    """Has the job failed for a reason that is not in one of its logs? ``tasks.engine_errors`` raises that
    without a cause; an error that concerns one log must have one."""
    return error.__cause__ is None


def _summed_report(work: LogWork, reports: Iterable[Row]) -> LogReport:
    """The report of a log: the sum of its tasks' reports."""
    report = LogReport(name=work.name)
    for row in reports:
        report.add(report_of(row, LogReport))
    report.extracted.failure = report.extracted.failure or check_keyless(work, report.extracted)
    return report
