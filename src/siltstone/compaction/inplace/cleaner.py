"""The in-place cleaner: plans the logs of a run, has an engine clean them, checks and commits the result.

Kafka's ``CleanerThread`` and ``Cleaner.doClean``. What happens to one log::

    recover ─► plan ─► space ─► set up ─► engine ─► counts ─► commit groups ─► checkpoint ─► retention
                 │                          └◄─ next wave of a very large log ◄─┘                │
                 └─► nothing to do, not eligible ───────────────────────────────────────────────►┘

What is wrong with one log ends in its ``LogResult``; the others are cleaned. After an interrupted run each
log is consistent, with some of its groups swapped. The checkpoint moves last, so the next run cleans the same
range again (``docs/decisions/0015-an-interrupted-run-starts-again.md``).
"""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from siltstone.base.errors import (
    CheckFailedError,
    EngineError,
    InvalidConfigError,
    LedgerError,
    SiltstoneError,
)
from siltstone.base.interruption import Critical
from siltstone.compaction import report
from siltstone.compaction.engine import Engine, Progress, fits_one_task, offset_span
from siltstone.compaction.inplace.destination import Destination, SpaceBudget
from siltstone.compaction.inplace.expiry import (
    count_records,
    fill_expiry,
    find_expiry,
    retention_applies,
    total_or_none,
)
from siltstone.compaction.inplace.planning import (
    LogState,
    PlannedLog,
    PlanOptions,
    initial_result,
    mismatched_topic_ids,
    plan_log,
)
from siltstone.compaction.inplace.ranges import kafka_map_keys, kafka_passes
from siltstone.compaction.keys import ENTRY_BYTES
from siltstone.compaction.report import LogFailure, LogResult, RecordCounts, failure_of
from siltstone.compaction.staging import RETAINED_OFFSET_BYTES, GroupReport, LogReport, RetainedFile
from siltstone.compaction.work import Group, LogWork

# The checks of an engine's report before the swap. No record is lost on its way between tasks: these counts
# are made by different tasks.
#
#     extract      records read from the log  ─────────────┐
#     merge        offsets retained in a group ─────┐      │
#     rewrite      offsets that the group's task got┘      │
#                  records that the groups' tasks read ────┘


def check_retained_files(work: LogWork, gathered: LogReport) -> list[RetainedFile]:
    """The files of retained offsets in order of groups.

    Raises CheckFailedError unless each group has one file, with as many offsets as were merged.
    """
    files = sorted(gathered.files, key=lambda file: file.group_index)
    if [file.group_index for file in files] != [group.index for group in work.groups]:
        raise CheckFailedError("not each group has one file of retained offsets", path=work.name)
    for file in files:
        _check_retained(
            work.name, file.group_index, gathered.retained_counts.get(file.group_index, 0), file.count
        )
    return files


def check_counts(planned: PlannedLog, done: LogReport, *, last: bool) -> None:
    """Raises CheckFailedError unless each group's task got as many retained offsets as were merged and, with
    the ``last`` wave, all groups came back with all records that were extracted."""
    work = planned.work
    for group in done.groups:
        _check_retained(
            work.name, group.group_index, done.retained_counts.get(group.group_index, 0), group.retained_count
        )
    groups = [*planned.committed, *done.groups]
    if last and len(groups) != len(work.groups):
        raise CheckFailedError(f"{len(groups)} groups came back, not {len(work.groups)}", path=work.name)
    records = sum(group.counts.records_read for group in groups)
    if last and records != done.extracted.records:
        raise CheckFailedError(
            f"the groups have {records} records, but {done.extracted.records} were extracted", path=work.name
        )


def _check_retained(name: str, group: int, merged: int, arrived: int) -> None:
    if merged != arrived:
        raise CheckFailedError(
            f"{merged} retained offsets of group {group} were merged, but {arrived} arrived; "
            "nothing of it was swapped",
            path=name,
        )


# The counts of a result.


def fill_records_before(planned: PlannedLog, done: LogReport) -> None:
    """Set the records of the whole log: extracted ones, and those above the cleaned range; of an open log,
    extracted ones only."""
    uncleaned = () if planned.state.opened else planned.work.segments_above
    counts = [done.extracted.records, *map(count_records, uncleaned)]
    planned.result.records_before = total_or_none(counts)


def changes_something(work: LogWork, group: GroupReport) -> bool:
    """Has the group fewer records, bytes or segments than before?

    ``--stop-after`` stops a run only after such a change. Neither a hard link of the source nor a delete
    horizon counts, so that repeated short runs come to an end.
    """
    members = work.sources(work.groups[group.group_index])
    return len(members) > 1 or group.counts.discarded.total() > 0 or group.size < members[0].size


def fill_counts(planned: PlannedLog) -> None:
    """Set sizes, segments and discarded records of the result from the groups that were committed."""
    result, work = planned.result, planned.work
    result.counts = RecordCounts()
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in planned.committed:
        members = work.sources(work.groups[group.group_index])
        result.counts.add(group.counts)
        result.bytes_after += group.size - sum(segment.size for segment in members)
        result.segments_after -= len(members) - 1
    if result.records_before is not None:
        result.records_after = result.records_before - result.discarded.total()


def fill_result(planned: PlannedLog, done: LogReport) -> None:
    """Complete the result of a log that was cleaned, but for its seconds."""
    result, config = planned.result, planned.state.config
    assert config is not None
    fill_counts(planned)
    result.distinct_dirty_keys = done.dirty_keys
    result.kafka_passes = kafka_passes(done.dirty_keys, kafka_map_keys(config))
    result.set_status(report.CLEANED, "")


# How a log is executed, and the disk space that it needs.
#
# ::
#
#     ONE_TASK    small: its bytes and keys fit one task, and all its new files fit the disk
#     ONE_JOB     spread over all workers; all new files at one time
#     WAVES       the retained offsets are on disk; the new files of one wave at a time
#
# Waves need less space than one job only if a swap frees the sources (``SpaceBudget.frees_sources``).

MAX_GROWTH = 1.1
"""The most that a group may grow: delete horizons, and worse compression."""
MAX_MESSAGE_SET_GROWTH = 2.7
"""The same if message sets (v0, v1) become batches of one small record each."""
FILES_PER_GROUP = 8


class Mode(enum.Enum):
    """How a log is executed."""

    ONE_TASK = enum.auto()
    ONE_JOB = enum.auto()
    WAVES = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan:
    """The mode of a log, and the space for it: ``size`` bytes of new segments at one time, of the ``need``
    bytes that it takes at least."""

    mode: Mode
    size: int
    need: int


def new_file_bytes(work: LogWork, group: Group | None = None) -> int:
    """The most bytes of the new files of a group, or of all groups."""
    segments = work.segments if group is None else work.sources(group)
    growth = MAX_MESSAGE_SET_GROWTH if work.has_message_sets else MAX_GROWTH
    return int(sum(segment.size for segment in segments) * growth)


def shuffle_spill_bytes(work: LogWork) -> int:
    """The most bytes of entries that a shuffle may write to disk."""
    return ENTRY_BYTES * min(offset_span(work), work.size)


def retained_file_bytes(work: LogWork) -> int:
    """The most bytes of retained offsets, which stay on disk until the last wave."""
    return RETAINED_OFFSET_BYTES * min(offset_span(work), work.size)


def execution_plan(work: LogWork, space: SpaceBudget, whole_log_bytes: int, wave_bytes: int) -> ExecutionPlan:
    """Choose how to execute a log. ``whole_log_bytes``: the most for one task; ``wave_bytes``: the most for
    one job."""
    new_bytes, spilled = new_file_bytes(work), shuffle_spill_bytes(work)
    reserved = 0
    if new_bytes <= space.size and fits_one_task(work, whole_log_bytes):
        mode = Mode.ONE_TASK
    elif not space.frees_sources or (work.size <= wave_bytes and new_bytes + spilled <= space.size):
        mode, reserved = Mode.ONE_JOB, spilled
    else:
        mode, reserved = Mode.WAVES, spilled + retained_file_bytes(work)
    # Where a swap frees the sources, the groups can be swapped in one by one.
    minimum = max((new_file_bytes(work, group) for group in work.groups), default=0)
    return ExecutionPlan(
        mode=mode,
        size=space.size - reserved,
        need=reserved + (minimum if space.frees_sources else new_bytes),
    )


def waves(work: LogWork, size: int, wave_bytes: int, workers: int) -> Iterator[list[Group]]:
    """Waves of neighbouring groups: their new files fit ``size`` bytes, and an interrupt costs the work on at
    most ``wave_bytes`` of sources, or on a group for each worker if that is more."""
    wave: list[Group] = []
    source_bytes = new_bytes = 0
    for group in work.groups:
        source_bytes += sum(segment.size for segment in work.sources(group))
        new_bytes += new_file_bytes(work, group)
        is_large = source_bytes > wave_bytes and len(wave) >= workers
        if wave and (is_large or new_bytes > size):
            yield wave
            wave = []
            source_bytes = sum(segment.size for segment in work.sources(group))
            new_bytes = new_file_bytes(work, group)
        wave.append(group)
    if wave:
        yield wave


# Swaps of several logs at one time, since each waits mostly for the disk.


@contextlib.contextmanager
def swap_pool(threads: int, critical: Critical) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Yields a function that calls its argument in one of ``threads`` threads, or here if that is 1. The
    block waits for all calls at its end; ``critical`` defers an interrupt meanwhile.

    After an interrupt calls that did not begin are cancelled. Raises what a call raised.
    """
    if threads == 1:
        yield lambda call: call()
        return
    calls: list[Future[object]] = []
    pool, is_interrupted = ThreadPoolExecutor(threads, "swap"), True
    try:
        yield lambda call: calls.append(pool.submit(call))
        is_interrupted = False
    except Exception:
        is_interrupted = False
        raise
    finally:
        with critical():
            pool.shutdown(wait=True, cancel_futures=is_interrupted)
    for future in calls:
        future.result()


WHOLE_LOG_BYTES = 64 << 20
"""The most bytes of a log that one task cleans, if its keys fit the memory."""
_TIMES_AS_LARGE = 4
"""The limit is so many times larger if there is such a log for each worker."""
WAVE_BYTES = 1 << 30
"""The most bytes of sources in a wave: the work that an interrupt may cost."""
CHECKPOINT_NOT_MOVED = (
    "its segments are cleaned, but the run could not be finished: {reason}; "
    "where the cleaner checkpoint did not move, the next run cleans the log once more"
)
STOPPED_PARTLY = "stopped by --stop-after with {done} of {total} groups done; run again to go on"
STOPPED_BEFORE_LOG = "stopped by --stop-after before its turn; run again to go on"
INTERRUPTED = "interrupted; what was swapped in stays, run again to clean the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits of a run: extra bytes on disk (None: a quarter of the free space), and seconds.

    ``stop_after_seconds``: after that no log and no wave begins, if the run has changed anything.
    ``whole_log_bytes``: up to this size one task cleans a log, up to four times as much if there is such a
    log for each worker. ``wave_bytes``: up to this size a log is one job; a larger log has waves of this
    size.
    """

    max_extra_bytes: int | None = None
    stop_after_seconds: float | None = None
    whole_log_bytes: int = WHOLE_LOG_BYTES
    wave_bytes: int = WAVE_BYTES


class Cleaner:
    """One run over some logs. ``critical`` defers an interrupt where it would leave things half done.

    ``results``: one a log, in order; after an interrupt those of the logs that were planned.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        destination: Destination,
        limits: RunLimits,
        *,
        critical: Critical = contextlib.nullcontext,
        progress: Progress | None = None,
    ) -> None:
        self._engine = engine
        self._destination = destination
        self._limits = limits
        self._critical = critical
        self._progress = progress or (lambda log, stage, done, total: None)
        self.results: list[LogResult] = []
        self._options: PlanOptions
        self._logs_total, self._logs_done = 0, 0
        self._progress_lock = threading.Lock()
        self._whole_log_bytes: int
        self._has_changed_something = False
        self._deadline = (
            None if limits.stop_after_seconds is None else time.monotonic() + limits.stop_after_seconds
        )

    def run(self, states: Sequence[LogState], options: PlanOptions) -> list[LogResult]:
        """Plan and clean the logs; a result for each, in order. Raises EngineError if there is no engine."""
        self._options = options
        planned: list[PlannedLog] = []
        mismatched = mismatched_topic_ids(states)
        for state in states:
            plan = self._plan(state, mismatched.get(state.topic_partition))
            self.results.append(plan.result if isinstance(plan, PlannedLog) else plan)
            if isinstance(plan, PlannedLog):
                planned.append(plan)
            elif retention_applies(plan):
                self._apply_retention(state, plan)
        planned.sort(key=lambda log: -(log.result.dirty_ratio or 0.0))
        try:
            self._clean_all(planned)
        except BaseException:
            # Remove staged files. Each log is consistent, with what was swapped.
            with self._critical():
                for log in planned:
                    with contextlib.suppress(SiltstoneError, OSError):
                        self._destination.abort_log(log)
            raise
        return self.results

    def _plan(self, state: LogState, mismatch: str | None) -> PlannedLog | LogResult:
        try:
            if mismatch is not None:
                return initial_result(state, state.segments()).set_status(report.SKIPPED, mismatch)
            notes: list[str] = []
            if state.config is not None and "compact" in state.config.policies:
                with self._critical():
                    notes = self._destination.recover(state)
            staging = self._destination.staging(state)
            plan = plan_log(state, state.checkpoints(), self._options, staging)
            result = plan.result if isinstance(plan, PlannedLog) else plan
            result.notes[:0] = notes
            if isinstance(plan, LogResult) and plan.checkpoint_reset is not None:
                self._destination.reset_checkpoint(state, plan.checkpoint_reset)
            return plan
        except (SiltstoneError, OSError) as error:
            return _unplanned(state).set_failure(failure_of(error))

    def _clean_all(self, planned: Sequence[PlannedLog]) -> None:
        self._logs_total, self._logs_done = len(planned), 0
        self._whole_log_bytes = self._max_for_one_task(planned)
        small: list[PlannedLog] = []
        large: list[PlannedLog] = []
        for log in planned:
            execution = self._execution_plan(log)
            if execution is not None:
                (small if execution.mode is Mode.ONE_TASK else large).append(log)
        for logs in self._jobs(small):
            self._clean_small(logs)
        for log in large:
            self._clean_large(log)

    def _max_for_one_task(self, planned: Sequence[PlannedLog]) -> int:
        """The limit for one task: larger logs are spread one after another, unless each worker has one."""
        maximum = self._limits.whole_log_bytes
        larger = sum(maximum < log.work.size <= _TIMES_AS_LARGE * maximum for log in planned)
        return _TIMES_AS_LARGE * maximum if larger and larger >= self._engine().workers else maximum

    def _execution_plan(self, planned: PlannedLog) -> ExecutionPlan | None:
        """How to execute the log with the space that is free now; None if there is too little, which its
        result says then."""
        try:
            space = self._destination.space_budget(planned.state, self._limits.max_extra_bytes)
        except OSError as error:
            planned.result.set_failure(failure_of(error))
            return None
        execution = execution_plan(planned.work, space, self._whole_log_bytes, self._limits.wave_bytes)
        lacking, inodes = None, FILES_PER_GROUP * len(planned.work.groups)
        if execution.need > space.size:
            lacking = (
                f"needs up to {execution.need} bytes more on disk, but only {max(space.size, 0)} are allowed"
                "; free some, or raise --max-extra-bytes"
            )
        elif space.inodes is not None and space.inodes < inodes:
            lacking = f"needs up to {inodes} inodes, but only {space.inodes} are free; free some"
        if lacking is not None:
            planned.result.set_status(report.FAILED, f"{planned.state.path}: {lacking}")
            return None
        return execution

    def _jobs(self, small: Sequence[PlannedLog]) -> Iterator[list[PlannedLog]]:
        """Small logs for one job each: their new files fit the space together."""
        job: list[PlannedLog] = []
        used = 0
        for log in small:
            need, execution = new_file_bytes(log.work), self._execution_plan(log)
            if execution is None:
                continue
            if job and used + need > execution.size:
                yield job
                job, used = [], 0
            job.append(log)
            used += need
        if job:
            yield job

    def _is_time_up(self) -> bool:
        """Has the run both changed something and used its time? Else a short window would never get
        further."""
        is_over = self._deadline is not None and time.monotonic() >= self._deadline
        return is_over and self._has_changed_something

    def _is_stopped(self, planned: Sequence[PlannedLog]) -> bool:
        """Is the time up, so that these logs do not begin? Their results say so then."""
        if not self._is_time_up():
            return False
        for log in planned:
            log.result.set_status(report.SKIPPED, STOPPED_BEFORE_LOG)
        return True

    def _clean_small(self, job: Sequence[PlannedLog]) -> None:
        if self._is_stopped(job):
            return
        pending = {log.work.name: log for log in job if self._is_set_up(log)}
        if not pending:
            return
        try:
            works = [log.work for log in pending.values()]
            with swap_pool(self._destination.swap_threads, self._critical) as submit:
                for done in self._engine().clean_whole(works):
                    pending[done.name].began = time.perf_counter() - done.seconds
                    submit(functools.partial(self._commit, pending.pop(done.name), done, last=True))
        except (SiltstoneError, OSError) as error:
            for log in pending.values():
                self._fail(log, failure_of(error))
            _raise_without_engine(error)

    def _is_set_up(self, planned: PlannedLog) -> bool:
        """Make the log's staging folder; False if that fails, which is the log's failure."""
        try:
            self._destination.check_not_aborted(planned)
            self._destination.setup_log(planned)
            return True
        except (SiltstoneError, OSError) as error:
            self._fail(planned, failure_of(error))
            return False

    def _clean_large(self, planned: PlannedLog) -> None:
        if self._is_stopped([planned]):
            return
        execution = self._execution_plan(planned)
        if execution is None or not self._is_set_up(planned):
            return
        try:
            engine = self._engine()
            planned.began = time.perf_counter()
            if execution.mode is Mode.WAVES:
                self._clean_in_waves(planned, execution.size, engine)
            else:
                self._commit(planned, engine.clean_distributed(planned.work), last=True)
        except (SiltstoneError, OSError) as error:
            self._fail(planned, failure_of(error))
            _raise_without_engine(error)
        except KeyboardInterrupt:
            if planned.result.status != report.CLEANED:  # else only its retention was interrupted
                self._set_failure(planned, LogFailure(status=report.SKIPPED, reason=INTERRUPTED))
            raise

    def _clean_in_waves(self, planned: PlannedLog, size: int, engine: Engine) -> None:
        """Clean a log with new files of up to ``size`` bytes at one time.

        Kafka rewrites and swaps group by group, too (``Cleaner.doClean``), with one offset map for all.
        """
        # 1. One merge for the whole log: a group's retained offsets depend on all dirty records. They go into
        #    a file for each group, so that the sources of a wave can be replaced before the next one reads.
        work = planned.work
        gathered = engine.write_retained_offsets(work)
        if gathered.failure is not None:
            self._fail(planned, gathered.failure)
            return
        # 2. No wave is swapped in before the files of all groups are complete.
        retained = check_retained_files(work, gathered)
        groups_done, total = 0, len(work.groups)
        for wave in waves(work, size, self._limits.wave_bytes, engine.workers):
            if self._is_time_up():
                partly = STOPPED_PARTLY.format(done=groups_done, total=total)
                self._fail(planned, LogFailure(status=report.SKIPPED, reason=partly))
                return
            # 3. Rewrite a wave, and swap it in. Waves ascend, so a tombstone is not removed before the value
            #    that it deletes. Only the last one moves the checkpoint.
            self._destination.check_not_aborted(planned)
            done = replace(gathered, groups=engine.rewrite(work, wave, retained))
            groups_done += len(wave)
            if not self._commit(planned, done, last=groups_done == total):
                return

    def _commit(self, planned: PlannedLog, done: LogReport, *, last: bool) -> bool:
        """Check and commit a report of the engine; False if the log failed. May run in a swap's thread."""
        try:
            failure = done.failure
            if failure is None:
                check_counts(planned, done, last=last)
                if planned.result.records_before is None:
                    fill_records_before(planned, done)
                self._commit_groups(planned, done)
                if last:
                    self._commit_log(planned)
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
        if failure is not None:
            self._fail(planned, failure)
            return False
        if last:
            fill_result(planned, done)
            self._apply_retention(planned.state, planned.result, planned)
            planned.result.seconds = time.perf_counter() - planned.began
            self._report_progress()
        return True

    def _commit_groups(self, planned: PlannedLog, done: LogReport) -> None:
        """Swap the groups of a report in, together or one by one. Raises SiltstoneError, OSError."""
        calls = [done.groups] if done.groups else []
        if not self._destination.commits_groups_together:
            calls = [[group] for group in done.groups]
        for groups in calls:
            # An interrupt waits: what is swapped in must be counted, and no swap may be half done.
            with self._critical():
                self._destination.commit_groups(planned, groups)
                planned.committed.extend(groups)
            if any(changes_something(planned.work, group) for group in groups):
                self._has_changed_something = True

    def _commit_log(self, planned: PlannedLog) -> None:
        """Move the checkpoint. Raises SiltstoneError, OSError; its message says if all segments are swapped
        in."""
        try:
            with self._critical():
                self._destination.commit_log(planned)
            self._has_changed_something = True
        except OSError as error:
            if not self._destination.survives_abort:
                raise
            raise OSError(
                error.errno, CHECKPOINT_NOT_MOVED.format(reason=failure_of(error).reason)
            ) from error

    def _apply_retention(self, state: LogState, result: LogResult, planned: PlannedLog | None = None) -> None:
        """Delete the segments that expired, after a cleaning (``planned``) or where none is due. For an open
        log the destination does it (``commit_log``), or its manager."""
        try:
            if state.opened is not None:
                return
            expiry = find_expiry(state, result, self._options, planned)
            if expiry is not None:
                with self._critical():
                    self._destination.delete_old_segments(state, expiry)
                fill_expiry(result, expiry)
        except (InvalidConfigError, LedgerError) as error:
            result.notes.append(f"retention was left out: {error}")
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
            reason = f"old segments could not be deleted: {failure.reason}"
            result.set_failure(replace(failure, status=report.FAILED, reason=reason))

    def _fail(self, planned: PlannedLog, failure: LogFailure) -> None:
        """The log failed: set its result, and remove its staged files."""
        self._set_failure(planned, failure)
        with contextlib.suppress(SiltstoneError, OSError):
            self._destination.abort_log(planned)
        self._report_progress()

    def _set_failure(self, planned: PlannedLog, failure: LogFailure) -> None:
        """Set the result of a log that failed or was stopped, with the groups that were committed."""
        planned.result.set_failure(failure)
        planned.result.cleaned_end_offset = planned.result.first_dirty_offset
        if not self._destination.survives_abort:
            planned.committed = []
        fill_counts(planned)
        if planned.began:
            planned.result.seconds = time.perf_counter() - planned.began

    def _report_progress(self) -> None:
        with self._progress_lock:
            self._logs_done += 1
            self._progress("logs", "done", self._logs_done, self._logs_total)


def _raise_without_engine(error: Exception) -> None:
    """Raise an EngineError that concerns all logs: the engine could not be started. Where a job failed, which
    concerns its logs only, the error has a cause."""
    if isinstance(error, EngineError) and error.__cause__ is None:
        raise error


def _unplanned(state: LogState) -> LogResult:
    """A result for a log that cannot be planned, with its size if that can be read."""
    try:
        return initial_result(state, state.segments())
    except (SiltstoneError, OSError):
        return initial_result(state, ())
