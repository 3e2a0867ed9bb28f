"""The in-place cleaner: plans the logs of a run, has an engine clean them, checks and commits the results.

It answers to Kafka's ``CleanerThread`` and ``Cleaner.doClean``. The steps for one log::

    recover ─► plan ─► execution ─► set up ─► engine ─► check ─► commit groups ─► commit log ─► retention
                 │                              └◄── next wave of a large log ◄──┘                ▲
                 └─► nothing to do, not eligible ─────────────────────────────────────────────────┘

    recover         finish what an interrupted run or a broker left    (``Destination.recover``)
    plan            the range to clean, its segment groups             (``planning.plan_log``)
    execution       one task, one job or waves; is there space?        (``execution_plan``)
    set up          make the staging folder                            (``Destination.setup_log``)
    engine          extract, merge, rewrite into staged segments       (``engine``, ``spark.clean``)
    check           compare the counts of its tasks                    (``check_counts``)
    commit groups   swap the staged segments in                        (``Destination.commit_groups``)
    commit log      move the cleaner checkpoint                        (``Destination.commit_log``)

If one log fails, its ``LogResult`` says why, and the other logs are still cleaned. After an
interrupted run each log is consistent, with some of its groups swapped. The checkpoint moves last, so the
next run cleans the same range again (``docs/decisions/0015-an-interrupted-run-starts-again.md``).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from siltstone.base.errors import (
    CheckFailedError,
    DirectoryRefusedError,
    EngineError,
    SiltstoneError,
)
from siltstone.base.interruption import CriticalSection
from siltstone.compaction import report
from siltstone.compaction.engine import Engine, Progress
from siltstone.compaction.inplace.destination import Destination, SpaceBudget
from siltstone.compaction.inplace.execution import (
    PIECES_FACTOR,
    ExecutionMode,
    ExecutionPlan,
    execution_plan,
    lack_of_space,
    new_file_bytes,
    plan_waves,
)
from siltstone.compaction.inplace.expiry import (
    count_records,
    fill_expiry,
    find_expiry_or_note,
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
from siltstone.compaction.report import LogFailure, LogResult, RecordCounts, failure_of
from siltstone.compaction.staging import GroupReport, LogReport, RetainedFile
from siltstone.compaction.work import LogWork

# The checks of an engine's report before the swap. Different tasks count the same things; if two counts
# differ, a record was lost on its way between tasks, and nothing is swapped.
#
#     extract      records read from the log  ─────────────────┐
#     merge        offsets retained in a group ────────────┐    =
#                                                          =    │
#     rewrite      retained offsets that the task got ─────┘    │
#                  records that the tasks of all groups read ───┘


def check_retained_files(work: LogWork, merged: LogReport) -> list[RetainedFile]:
    """The files of retained offsets, by offset. ``merged``: the engine's report on the merge.

    Raises CheckFailedError unless there is a file for each range of the log, and those of each group have as
    many offsets as the merge retained.
    """
    files = sorted(merged.files, key=lambda file: file.group_range.base_offset)
    starts = [file.group_range.base_offset for file in files]
    ends = [file.group_range.end_offset for file in files]
    if starts != [work.groups[0].base_offset, *ends[:-1]] or ends[-1] != work.groups[-1].end_offset:
        raise CheckFailedError("not each range has one file of retained offsets", path=work.name)
    arrived: Counter[int] = Counter()
    for file in files:
        arrived[file.group_range.group] += file.count
    for group in work.groups:
        merged_count = merged.retained_counts.get(group.index, 0)
        _check_retained(work.name, group.index, merged_count, arrived[group.index])
    return files


def check_counts(planned: PlannedLog, log_report: LogReport, *, is_last_wave: bool) -> None:
    """Raises CheckFailedError unless the tasks of each group got as many retained offsets as the merge
    retained.

    With the last wave the reports on all groups must be there, and their tasks must have read as many records
    as were extracted.
    """
    work = planned.work
    for group in log_report.groups:
        _check_retained(
            work.name,
            group.group_index,
            log_report.retained_counts.get(group.group_index, 0),
            group.retained_count,
        )
    groups = [*planned.committed, *log_report.groups]
    if is_last_wave and len(groups) != len(work.groups):
        reason = f"the log has {len(work.groups)} segment groups, but tasks reported on {len(groups)}"
        raise CheckFailedError(reason, path=work.name)
    records = sum(group.counts.records_read for group in groups)
    if is_last_wave and records != log_report.extracted.records:
        extracted = log_report.extracted.records
        reason = f"the tasks that rewrite read {records} records, but {extracted} were extracted"
        raise CheckFailedError(reason, path=work.name)


def _check_retained(name: str, group: int, merged: int, arrived: int) -> None:
    """Raises CheckFailedError unless as many offsets of a group of log ``name`` arrived as the merge
    retained."""
    if merged != arrived:
        raise CheckFailedError(
            f"the merge retained {merged} offsets of segment group {group}, but {arrived} of them arrived; "
            "the group was not swapped",
            path=name,
        )


# The counts of a log's result.


def fill_records_before(planned: PlannedLog, log_report: LogReport) -> None:
    """Set ``records_before``: the records that were extracted, and those above the cleaned range. Of an open
    log only the former: appends change the latter meanwhile."""
    uncleaned = () if planned.state.opened else planned.work.segments_above
    counts = [log_report.extracted.records, *map(count_records, uncleaned)]
    planned.result.records_before = total_or_none(counts)


def changes_something(work: LogWork, group: GroupReport) -> bool:
    """Does the rewritten group have fewer records, bytes or segments than before?

    ``--stop-after`` stops a run only after such a change, or after a log that is done (its checkpoint has
    moved). A hard link to the old log does not count, nor does
    a new delete horizon: otherwise a short run that is repeated might do only that every time.
    """
    sources = work.sources(work.groups[group.group_index])
    return len(sources) > 1 or group.counts.discarded.total() > 0 or group.size < sources[0].size


def fill_counts(planned: PlannedLog) -> None:
    """Set sizes, segments and discarded records of the result from the groups that were committed."""
    result, work = planned.result, planned.work
    result.counts = RecordCounts()
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in planned.committed:
        sources = work.sources(work.groups[group.group_index])
        result.counts.add(group.counts)
        result.bytes_after += group.size - sum(segment.size for segment in sources)
        result.segments_after -= len(sources) - 1
    if result.records_before is not None:
        result.records_after = result.records_before - result.discarded.total()


def fill_result(planned: PlannedLog, log_report: LogReport) -> None:
    """Complete the result of a log that was cleaned; the caller sets its ``seconds``."""
    result, config = planned.result, planned.state.config
    assert config is not None
    fill_counts(planned)
    result.distinct_dirty_keys = log_report.dirty_keys
    result.kafka_passes = kafka_passes(log_report.dirty_keys, kafka_map_keys(config))
    result.set_status(report.CLEANED, "")


# Several logs are swapped at the same time, since a swap mostly waits for the disk.


@contextlib.contextmanager
def swap_pool(threads: int, critical: CriticalSection) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Yields a function that calls its argument in one of ``threads`` threads, or in this one if ``threads``
    is 1. The end of the block waits for all calls; ``critical`` defers an interrupt meanwhile.

    After an interrupt, calls that have not begun are cancelled. Raises what a call raised.
    """
    if threads == 1:
        yield lambda call: call()
        return
    calls: list[Future[object]] = []
    pool, is_interrupted = ThreadPoolExecutor(threads, "swap"), True
    try:
        yield lambda call: calls.append(pool.submit(call))
        is_interrupted = False
    except Exception:  # not KeyboardInterrupt, after which ``is_interrupted`` stays True
        is_interrupted = False
        raise
    finally:
        with critical():
            pool.shutdown(wait=True, cancel_futures=is_interrupted)
    for future in calls:
        future.result()


WHOLE_LOG_BYTES = 64 << 20
"""The most bytes of a log that one task cleans, if its keys fit the memory."""
_MANY_LARGE_LOGS_FACTOR = 4
"""If there is a log of more than ``WHOLE_LOG_BYTES`` for each worker, one task cleans logs of up to 4 times
as many bytes."""
_MANY_WORKERS, _MANY_WORKERS_FACTOR = 16, 16
"""With at least 16 workers, and such a log for each, one task cleans logs of up to 16 times as many bytes. A
log of 1 GiB has one segment group: unless there is space to cut it, one task rewrites it, and most workers
would wait if such logs were cleaned one after another."""
_LOGS_PER_WORKER = 4
"""How many logs of the largest size (16 times) a job may have for each worker: an interrupt loses the work
of a job."""
LARGE_LOG_BYTES_PER_WORKER = 128 << 20
"""A worker that gets less of a large log than this mostly waits. Then several large logs are cleaned at the
same time."""
LARGE_LOGS_MAX = 16
"""The most large logs at the same time: each has a thread of the driver, and an interrupt stops all."""
WAVE_BYTES = 2 << 30
"""The most bytes of old segments in a wave for each worker: the work that an interrupt may cost, half a
minute with zstd. Each wave is a job, which takes 0.1 s to start: in waves of 1 GiB, 8 GB on two workers took
1.2 times as long."""
CHECKPOINT_NOT_MOVED = (
    "its segments are cleaned, but the run could not be finished: {reason}; "
    "where the cleaner checkpoint did not move, the next run cleans the log once more"
)
STOPPED_PARTLY = "stopped by --stop-after with {groups_done} of {total} groups done; run again to go on"
STOPPED_BEFORE_LOG = "stopped by --stop-after before its turn; run again to go on"
INTERRUPTED = "interrupted; what was swapped in stays, run again to clean the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The limits of a run.

    ``max_extra_bytes``: the most bytes of new files on disk at the same time (None: a quarter of the free
    space). ``stop_after_seconds``: after this time no log and no wave begins, if the run has changed
    anything. ``whole_log_bytes``: one task cleans a log of up to this size; of up to four times this size
    (with many workers, 16 times), if there is such a large log for each worker. ``wave_bytes``: a log of up
    to this size is one job; a larger one is divided into waves of this size for each worker.
    """

    max_extra_bytes: int | None = None
    stop_after_seconds: float | None = None
    whole_log_bytes: int = WHOLE_LOG_BYTES
    wave_bytes: int = WAVE_BYTES


class Cleaner:
    """One run over some logs. Each instance runs once.

    ``engine``: returns the engine, the same one at each call; the first call, when a log is to be cleaned,
    may start it. ``critical``: a context manager that defers an interrupt, used where it would leave things
    half done. ``results``: one for each log, in order; after an interrupt those of the planned logs.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        destination: Destination,
        limits: RunLimits,
        *,
        critical: CriticalSection = contextlib.nullcontext,
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
        self._job_bytes: int | None = None  # of a job of small logs; None: no limit
        self._has_changed_something = False
        self._is_interrupted = False
        # How many commits run at the same time, whichever large logs they are of.
        self._commit_slots = threading.Semaphore(destination.swap_threads)
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
        # The dirtiest log first, like Kafka's ``grabFilthiestCompactedLog``.
        planned.sort(key=lambda log: -(log.result.dirty_ratio or 0.0))
        try:
            self._clean_all(planned)
        except BaseException:
            # Remove staged files. Each log is consistent, with the groups that were swapped in.
            with self._critical():
                for log in planned:
                    with contextlib.suppress(SiltstoneError, OSError):
                        self._destination.abort_log(log)
            raise
        return self.results

    def _plan(self, state: LogState, mismatch: str | None) -> PlannedLog | LogResult:
        """Plan one log, or return the result of a log that is not cleaned. ``mismatch``: why its topic id
        excludes it, None if it does not."""
        try:
            if mismatch is not None:
                return initial_result(state, state.segments()).set_status(report.SKIPPED, mismatch)
            notes: list[str] = []
            if state.is_compacted:
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
        """Clean small logs first, many in one job; then the large ones."""
        self._logs_total, self._logs_done = len(planned), 0
        self._whole_log_bytes = self._max_for_one_task(planned)
        small: list[PlannedLog] = []
        large: list[PlannedLog] = []
        for log in planned:
            execution = self._choose_execution(log)
            if execution is not None:
                (small if execution.mode is ExecutionMode.ONE_TASK else large).append(log)
        for logs in self._jobs(small):
            self._clean_small_logs(logs)
        self._clean_large_logs(large)

    def _clean_large_logs(self, large: Sequence[PlannedLog]) -> None:
        """Clean the large logs one after another or, where one of them cannot keep the workers busy, several
        at the same time. Each of these gets an equal share of the space; logs that need more come last,
        alone."""
        at_once = self._large_logs_at_once(large)
        together = [log for log in large if at_once > 1 and self._fits_share(log, at_once)]
        if len(together) > 1:
            self._clean_together(together, at_once)
        for log in large:
            if len(together) < 2 or log not in together:
                self._clean_large_log(log)

    def _large_logs_at_once(self, large: Sequence[PlannedLog]) -> int:
        """How many large logs are cleaned at the same time: as many of mean size as give each worker
        ``LARGE_LOG_BYTES_PER_WORKER``, at least one. One also where the destination swaps one log at a time
        (open logs, or kept originals), or if the engine cannot be asked: then each log reports that. Raises
        EngineError if there is no engine."""
        if len(large) < 2 or self._destination.swap_threads == 1:
            return 1
        mean_size = sum(log.work.size for log in large) // len(large)
        try:
            parallelism = self._engine().parallelism
        except EngineError as error:
            _raise_if_no_engine(error)
            return 1
        at_once = parallelism * LARGE_LOG_BYTES_PER_WORKER // max(mean_size, 1)
        return max(1, min(at_once, len(large), LARGE_LOGS_MAX))

    def _fits_share(self, planned: PlannedLog, shares: int) -> bool:
        """Can the log be cleaned with one of ``shares`` equal shares of the disk space for new files?"""
        try:
            execution, space = self._execution(planned, shares)
        except OSError:
            return False  # the log's own turn reports it
        return lack_of_space(planned.work, execution, space) is None

    def _clean_together(self, logs: Sequence[PlannedLog], at_once: int) -> None:
        """Clean large logs in threads. After an interrupt, or without an engine, none begins another wave:
        their results say that the run was interrupted."""
        pool = ThreadPoolExecutor(at_once, "large-log")
        try:
            calls = [pool.submit(self._clean_large_log, log, at_once) for log in logs]
            for call in as_completed(calls):
                call.result()
        except BaseException:
            self._is_interrupted = True
            raise
        finally:
            with self._critical():
                pool.shutdown(wait=True, cancel_futures=True)

    def _max_for_one_task(self, planned: Sequence[PlannedLog]) -> int:
        """The largest log for one task, in bytes. Larger logs are distributed over all workers. If there is a
        larger log for each worker, cleaning each in one task keeps all workers busy, too. With many workers
        such a job may be long, so this also sets ``_job_bytes``, the most bytes of a job."""
        base_limit = self._limits.whole_log_bytes
        raised_limit = _MANY_LARGE_LOGS_FACTOR * base_limit
        many_workers_limit = _MANY_WORKERS_FACTOR * base_limit
        sizes = [log.work.size for log in planned if base_limit < log.work.size <= many_workers_limit]
        parallelism = self._engine().parallelism if sizes else 0
        if parallelism >= _MANY_WORKERS and max(sizes) > raised_limit and len(sizes) >= parallelism:
            self._job_bytes = _LOGS_PER_WORKER * parallelism * many_workers_limit
            return many_workers_limit
        within_raised_limit = sum(size <= raised_limit for size in sizes)
        return raised_limit if within_raised_limit and within_raised_limit >= parallelism else base_limit

    def _execution(self, planned: PlannedLog, shares: int) -> tuple[ExecutionPlan, SpaceBudget]:
        """How to execute the log's cleaning with one of ``shares`` equal shares of the space that is free
        now, and that share. Raises OSError."""
        budget = self._destination.space_budget(planned.state, self._limits.max_extra_bytes)
        inodes = None if budget.inodes is None else budget.inodes // shares
        space = replace(budget, size=budget.size // shares, inodes=inodes)
        limits = self._limits
        return execution_plan(planned.work, space, self._whole_log_bytes, limits.wave_bytes), space

    def _choose_execution(self, planned: PlannedLog, shares: int = 1) -> ExecutionPlan | None:
        """Choose how to execute the log's cleaning (``_execution``). None if there is too little space: that
        is the log's failure. This is called to sort the logs, and again when a log begins: others have taken
        and freed space meanwhile."""
        try:
            execution, space = self._execution(planned, shares)
        except OSError as error:
            planned.result.set_failure(failure_of(error))
            self._report_progress()
            return None
        lack = lack_of_space(planned.work, execution, space)
        if lack is None:
            return execution
        reason, advice = lack
        if planned.work.staging is None:  # a dry run
            reason = f"the run would be refused: {reason}"
        refusal = DirectoryRefusedError(reason, path=planned.state.path, advice=advice)
        planned.result.set_failure(failure_of(refusal))
        self._report_progress()
        return None

    def _jobs(self, small: Sequence[PlannedLog]) -> Iterator[list[PlannedLog]]:
        """Divide small logs into jobs. The new files of all logs of one job fit the free space, and the logs
        themselves have at most ``_job_bytes``."""
        job: list[PlannedLog] = []
        new_bytes_of_job = size_of_job = 0
        for log in small:
            # Only the space counts here: each of these logs is cleaned in one task.
            new_bytes, execution = new_file_bytes(log.work), self._choose_execution(log)
            if execution is None:
                continue
            is_large = self._job_bytes is not None and size_of_job + log.work.size > self._job_bytes
            if job and (is_large or new_bytes_of_job + new_bytes > execution.new_bytes_max):
                yield job
                job, new_bytes_of_job, size_of_job = [], 0, 0
            job.append(log)
            new_bytes_of_job += new_bytes
            size_of_job += log.work.size
        if job:
            yield job

    def _is_time_up(self) -> bool:
        """Has the run used its time (``--stop-after``) and changed something? A run that stops without a
        change would stop at the same place every time."""
        is_past_deadline = self._deadline is not None and time.monotonic() >= self._deadline
        return is_past_deadline and self._has_changed_something

    def _stop_if_time_is_up(self, planned: Sequence[PlannedLog]) -> bool:
        """Is the time up? Then these logs do not begin, and their results say so."""
        if not self._is_time_up():
            return False
        for log in planned:
            log.result.set_status(report.SKIPPED, STOPPED_BEFORE_LOG)
            self._report_progress()
        return True

    def _stop_if_interrupted(self, planned: PlannedLog) -> bool:
        """Was the run interrupted while several logs were cleaned in threads? Then this log's result says
        so."""
        if self._is_interrupted:
            self._fail(planned, LogFailure(status=report.SKIPPED, reason=INTERRUPTED))
        return self._is_interrupted

    def _clean_small_logs(self, job: Sequence[PlannedLog]) -> None:
        """Clean the logs of one job, each in one task, and commit each when its report comes."""
        if self._stop_if_time_is_up(job):
            return
        pending = {log.work.name: log for log in job if self._set_up_log(log)}
        if not pending:
            return
        try:
            works = [log.work for log in pending.values()]
            with swap_pool(self._destination.swap_threads, self._critical) as submit:
                for log_report in self._engine().clean_whole(works):
                    pending[log_report.name].began = time.perf_counter() - log_report.seconds
                    submit(
                        functools.partial(
                            self._commit, pending.pop(log_report.name), log_report, is_last_wave=True
                        )
                    )
        except (SiltstoneError, OSError) as error:
            for log in pending.values():
                self._fail(log, failure_of(error))
            _raise_if_no_engine(error)

    def _set_up_log(self, planned: PlannedLog) -> bool:
        """Make the log's staging folder. Returns False if that fails: that is the log's failure."""
        try:
            self._destination.check_not_aborted(planned)
            self._destination.setup_log(planned)
            return True
        except (SiltstoneError, OSError) as error:
            self._fail(planned, failure_of(error))
            return False

    def _clean_large_log(self, planned: PlannedLog, shares: int = 1) -> None:
        """Clean one log on all workers, in one job or in waves, with one of ``shares`` equal shares of the
        disk space for new files."""
        if self._stop_if_interrupted(planned) or self._stop_if_time_is_up([planned]):
            return
        execution = self._choose_execution(planned, shares)
        if execution is None or not self._set_up_log(planned):
            return
        try:
            engine = self._engine()
            planned.began = time.perf_counter()
            if execution.mode is ExecutionMode.WAVES:
                self._clean_in_waves(planned, execution.new_bytes_max, engine)
            else:
                work = planned.work
                has_space = PIECES_FACTOR * new_file_bytes(work) <= execution.new_bytes_max
                log_report = engine.clean_distributed(replace(work, has_space_for_pieces=has_space))
                self._commit(planned, log_report, is_last_wave=True)
        except (SiltstoneError, OSError) as error:
            self._fail(planned, failure_of(error))
            _raise_if_no_engine(error)
        except KeyboardInterrupt:
            if planned.result.status != report.CLEANED:  # else only its retention was interrupted
                self._set_failure(planned, LogFailure(status=report.SKIPPED, reason=INTERRUPTED))
            raise

    def _clean_in_waves(self, planned: PlannedLog, new_bytes_max: int, engine: Engine) -> None:
        """Clean a log with new files of up to ``new_bytes_max`` at the same time.

        Kafka rewrites and swaps group by group, too (``Cleaner.doClean``), with one offset map for all.
        """
        # 1. Merge the keys of the whole log: which offsets a group retains depends on all dirty records. They
        #    are written to a file for each range: after that, the old segments of a wave can be replaced
        #    before the next wave is read.
        waves, has_space = plan_waves(
            planned.work, new_bytes_max, self._limits.wave_bytes, engine.parallelism
        )
        work = replace(planned.work, has_space_for_pieces=has_space)
        merged = engine.write_retained_offsets(work, waves)
        if merged.failure is not None:
            self._fail(planned, merged.failure)
            return
        # 2. Check that the files of all groups are complete before a wave is swapped in.
        retained = check_retained_files(work, merged)
        groups_done, total = 0, len(work.groups)
        for wave in waves:
            if self._is_time_up():
                reason = STOPPED_PARTLY.format(groups_done=groups_done, total=total)
                self._fail(planned, LogFailure(status=report.SKIPPED, reason=reason))
                return
            if self._stop_if_interrupted(planned):
                return
            # 3. Rewrite a wave, and swap it in. Waves ascend by offset, so a tombstone is not removed before
            #    the value that it deletes. Only the last wave moves the checkpoint.
            self._destination.check_not_aborted(planned)
            of_wave = {group.index for group in wave}
            files = [file for file in retained if file.group_range.group in of_wave]
            log_report = replace(merged, groups=engine.rewrite(work, files))
            groups_done += len(wave)
            if not self._commit(planned, log_report, is_last_wave=groups_done == total):
                return

    def _commit(self, planned: PlannedLog, log_report: LogReport, *, is_last_wave: bool) -> bool:
        """Check and commit a report of the engine, on a whole log or on a wave of it. Returns False if the
        log failed. May run in a thread of ``swap_pool``."""
        try:
            failure = log_report.failure
            if failure is None:
                check_counts(planned, log_report, is_last_wave=is_last_wave)
                if planned.result.records_before is None:
                    fill_records_before(planned, log_report)
                self._commit_groups(planned, log_report)
                if is_last_wave:
                    self._commit_log(planned)
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
        except KeyboardInterrupt:
            self._set_failure(planned, LogFailure(status=report.SKIPPED, reason=INTERRUPTED))
            raise
        if failure is not None:
            self._fail(planned, failure)
            return False
        if is_last_wave:
            fill_result(planned, log_report)
            self._apply_retention(planned.state, planned.result, planned)
            planned.result.seconds = time.perf_counter() - planned.began
            self._report_progress()
        return True

    def _commit_groups(self, planned: PlannedLog, log_report: LogReport) -> None:
        """Swap the groups of a report in, together or one by one. Raises SiltstoneError, OSError."""
        swaps = [log_report.groups] if log_report.groups else []
        if not self._destination.commits_groups_together:
            swaps = [[group] for group in log_report.groups]
        for groups in swaps:
            # An interrupt waits: what is swapped in must be counted, and no swap may be half done.
            with self._commit_slots, self._critical():
                self._destination.commit_groups(planned, groups)
                planned.committed.extend(groups)
            if any(changes_something(planned.work, group) for group in groups):
                self._has_changed_something = True

    def _commit_log(self, planned: PlannedLog) -> None:
        """Move the checkpoint. Raises SiltstoneError, OSError; if the committed groups stay nevertheless
        (``survives_abort``), the OSError says so."""
        try:
            with self._commit_slots, self._critical():
                self._destination.commit_log(planned)
            self._has_changed_something = True
        except OSError as error:
            if not self._destination.survives_abort:
                raise
            raise OSError(
                error.errno, CHECKPOINT_NOT_MOVED.format(reason=failure_of(error).reason)
            ) from error

    def _apply_retention(self, state: LogState, result: LogResult, planned: PlannedLog | None = None) -> None:
        """Delete the segments that expired: after a cleaning (``planned``), or of a log that needs none. For
        an open log the destination (``commit_log``) or the log's manager does that."""
        try:
            if state.opened is not None:
                return
            expiry = find_expiry_or_note(state, result, self._options, planned)
            if expiry is not None:
                with self._commit_slots, self._critical():
                    self._destination.delete_old_segments(state, expiry)
                fill_expiry(result, expiry)
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
            reason = f"old segments could not be deleted: {failure.reason}"
            result.set_failure(replace(failure, status=report.FAILED, reason=reason))

    def _fail(self, planned: PlannedLog, failure: LogFailure) -> None:
        """Set the result of a log that failed or was stopped, and remove its staged files."""
        self._set_failure(planned, failure)
        with contextlib.suppress(SiltstoneError, OSError):
            self._destination.abort_log(planned)
        self._report_progress()

    def _set_failure(self, planned: PlannedLog, failure: LogFailure) -> None:
        """Set the result of a log that failed or was stopped; its counts are of the groups that were
        committed and stay."""
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
            # ``Progress`` takes bytes of one log. Under the name "logs" it gets numbers of logs instead.
            self._progress("logs", "done", self._logs_done, self._logs_total)


def _raise_if_no_engine(error: Exception) -> None:
    """Raise ``error`` if it concerns all logs: the engine could not be started, or is lost. (An EngineError
    with a cause is of a failed job, and concerns only the logs of that job.)"""
    if isinstance(error, EngineError) and error.__cause__ is None:
        raise error


def _unplanned(state: LogState) -> LogResult:
    """The result of a log that could not be planned, with its size if that can be read."""
    try:
        return initial_result(state, state.segments())
    except (SiltstoneError, OSError):
        return initial_result(state, ())
