"""A run of the cleaner: plan, engine, checks, swap, checkpoint, retention (Kafka's ``Cleaner``,
``CleanerThread``).

::

    tidy ─► plan ─► engine (small logs in one job · a large log over all workers · a very large one in waves)
              │         └─► checked groups ─► destination, ascending ─► checkpoint ─► retention
              └─► nothing to do, not eligible ───────────────────────────────────────────┘

What is wrong with one log ends in its ``LogResult``; the others are cleaned. After an interrupted run each
log is consistent, with some of its groups swapped. The checkpoint moves last, so the next run cleans the same
range again (``docs/decisions/0015-an-interrupted-run-starts-again.md``).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from siltstone.base.errors import (
    CheckFailedError,
    CorruptFileError,
    EngineError,
    InvalidConfigError,
    LedgerError,
    SiltstoneError,
)
from siltstone.base.interruption import Critical
from siltstone.compaction import report
from siltstone.compaction.engine import Engine, Progress, fits_one_task, offset_span
from siltstone.compaction.inplace.destination import Destination, Room
from siltstone.compaction.inplace.expiry import (
    after_cleaning,
    as_they_are,
    expired,
    fill_expired,
    retention_applies,
)
from siltstone.compaction.inplace.facts import (
    Choices,
    LogState,
    Planned,
    mismatched_topic_ids,
    open_result,
    plan_log,
)
from siltstone.compaction.inplace.plan import kafka_map_keys, kafka_passes
from siltstone.compaction.keys import ENTRY_BYTES
from siltstone.compaction.report import LogFailure, LogResult, failure_of
from siltstone.compaction.staging import RETAINED_BYTES, GroupReport, LogReport, RetainedFile
from siltstone.compaction.work import Group, LogWork
from siltstone.log.segments import count_records

# The checks of a wave before its swap, and the counts of a result.


def check_gathered(work: LogWork, gathered: LogReport) -> list[RetainedFile]:
    """The files of retained offsets in order of groups.

    Raises CheckFailedError unless each group has one file, with as many offsets as were merged.
    """
    files = sorted(gathered.files, key=lambda file: file.group)
    if [file.group for file in files] != [group.index for group in work.groups]:
        raise CheckFailedError(f"{work.name}: not every group's retained offsets were gathered once")
    for file in files:
        _check_retained(work.name, file.group, gathered.retained_counts.get(file.group, 0), file.count)
    return files


def check_counts(planned: Planned, done: LogReport, *, last: bool) -> None:
    """Raises CheckFailedError unless each group's task got as many retained offsets as were merged and, with
    the ``last`` wave, all groups came back with all records that were extracted."""
    work = planned.work
    for group in done.groups:
        _check_retained(
            work.name, group.group, done.retained_counts.get(group.group, 0), group.retained_count
        )
    groups = [*planned.accepted, *done.groups]
    if last and len(groups) != len(work.groups):
        raise CheckFailedError(f"{work.name}: {len(groups)} groups came back, not {len(work.groups)}")
    if last and sum(group.counts.records_read for group in groups) != done.extracted.records:
        raise CheckFailedError(
            f"{work.name}: the groups' records are not the {done.extracted.records} that were extracted"
        )


def _check_retained(name: str, group: int, merged: int, arrived: int) -> None:
    if merged != arrived:
        raise CheckFailedError(
            f"{name}: {merged} retained offsets of group {group} were merged, "
            f"but {arrived} arrived; nothing of it was swapped"
        )


def count_all(planned: Planned, done: LogReport) -> None:
    """Count the records of the whole log: extracted ones, and those above the cleaned range."""
    try:
        rest = [count_records(segment) for segment in planned.uncleaned]
    except CorruptFileError:
        rest = [None]
    if None not in rest:
        planned.result.records_before = done.extracted.records + sum(
            count for count in rest if count is not None
        )


def changes_something(work: LogWork, group: GroupReport) -> bool:
    """Has the group fewer records, bytes or segments than before?

    ``--stop-after`` stops a run only after such a change. Neither a hard link of the source nor a delete
    horizon counts, so that repeated short runs come to an end.
    """
    members = work.sources(work.groups[group.group])
    return len(members) > 1 or group.counts.discarded.total() > 0 or group.size < members[0].size


def fill_counts(planned: Planned) -> None:
    """Set sizes, segments and discarded records of the result from the groups that were accepted."""
    result, work = planned.result, planned.work
    for group in planned.accepted:
        result.counts.add(group.counts)
    if result.records_before is not None:
        result.records_after = result.records_before - result.discarded.total()
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in planned.accepted:
        members = work.sources(work.groups[group.group])
        result.bytes_after += group.size - sum(segment.size for segment in members)
        result.segments_after -= len(members) - 1


def fill(planned: Planned, done: LogReport) -> None:
    """Complete the result of a log that was cleaned, but for its seconds."""
    result, config = planned.result, planned.state.config
    assert config is not None
    fill_counts(planned)
    result.distinct_dirty_keys = done.dirty_keys
    map_keys = kafka_map_keys(
        config.integer("log.cleaner.dedupe.buffer.size"), config.number("log.cleaner.io.buffer.load.factor")
    )
    result.kafka_passes = kafka_passes(done.dirty_keys, map_keys)
    result.status, result.reason = report.CLEANED, ""


# The way of a log and the disk space that it needs.
#
# ::
#
#     one task    small: its bytes and keys fit one task, and all its new files fit the disk
#     one job     spread over all workers; all new files at once
#     in waves    the retained offsets are on disk; the new files of one wave at a time
#
# Waves need less space than one job only if a swap frees the sources (``Room.frees_sources``).

GROWTH = 1.1
"""The most that a group may grow: delete horizons, and worse compression."""
GROWTH_OF_MESSAGES = 2.7
"""The same if message sets (v0, v1) become batches of one small record each."""
FILES_PER_GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The way that a log goes (``in_one_task``, ``in_waves`` or, with neither, in one job), and what it may
    take: ``size`` bytes of new segments at one time. ``need`` is the least, and so many ``inodes``."""

    size: int
    need: int
    inodes: int
    in_one_task: bool = False
    in_waves: bool = False


def extra(work: LogWork, group: Group | None = None) -> int:
    """The most bytes of the new files of a group, or of all groups."""
    segments = work.segments if group is None else work.sources(group)
    growth = GROWTH_OF_MESSAGES if work.message_sets else GROWTH
    return int(sum(segment.size for segment in segments) * growth)


def spill(work: LogWork) -> int:
    """The most bytes of entries that a shuffle may write to disk."""
    return ENTRY_BYTES * min(offset_span(work), work.size)


def waiting(work: LogWork) -> int:
    """The most bytes of retained offsets, which stay on disk until the last wave."""
    return RETAINED_BYTES * min(offset_span(work), work.size)


def budget(work: LogWork, room: Room, whole_log_bytes: int, wave_bytes: int) -> Budget:
    """Choose the way of a log. ``whole_log_bytes``: the most for one task; ``wave_bytes``: the most for one
    job."""
    at_once = extra(work)
    in_one_task = at_once <= room.size and fits_one_task(work, whole_log_bytes)
    in_one_job = work.size <= wave_bytes and at_once + spill(work) <= room.size
    in_waves = room.frees_sources and not in_one_task and not in_one_job
    standing = (0 if in_one_task else spill(work)) + (waiting(work) if in_waves else 0)
    group_at_once = max((extra(work, group) for group in work.groups), default=0)
    return Budget(
        size=room.size - standing,
        need=standing + (group_at_once if room.frees_sources else at_once),
        inodes=FILES_PER_GROUP * len(work.groups),
        in_one_task=in_one_task,
        in_waves=in_waves,
    )


def waves(work: LogWork, room: int, wave_bytes: int, workers: int) -> Iterator[list[Group]]:
    """Waves of neighbouring groups: their new files fit ``room`` bytes, and an interrupt costs the work on at
    most ``wave_bytes`` of sources, or on a group for each worker if that is more."""
    wave: list[Group] = []
    for group in work.groups:
        taken = (*wave, group)
        size = sum(segment.size for member in taken for segment in work.sources(member))
        is_large = size > wave_bytes and len(wave) >= workers
        if wave and (is_large or sum(extra(work, member) for member in taken) > room):
            yield wave
            wave = []
        wave.append(group)
    if wave:
        yield wave


# Swaps of several logs at one time, since each waits mostly for the disk.


@contextlib.contextmanager
def side_by_side(threads: int, critical: Critical) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Yields a function that calls its argument in one of ``threads`` threads, or here if that is 1. The
    block waits for all calls at its end; ``critical`` defers an interrupt meanwhile.

    After an interrupt calls that did not begin are left out. Raises what a call raised.
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
UNFINISHED = (
    "its segments are cleaned, but the run could not be finished: {reason}; "
    "where the cleaner checkpoint did not move, the next run cleans the log once more"
)
PARTLY = "stopped by --stop-after with {done} of {total} groups done; run again to go on"
NOT_BEGUN = "stopped by --stop-after before its turn; run again to go on"
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
        self._choices: Choices
        self._total, self._done = 0, 0
        self._progress_lock = threading.Lock()
        self._whole_log_bytes: int
        self._has_changed_something = False
        self._deadline = (
            None if limits.stop_after_seconds is None else time.monotonic() + limits.stop_after_seconds
        )

    def run(self, states: Sequence[LogState], choices: Choices) -> list[LogResult]:
        """Plan and clean the logs; a result for each, in order. Raises EngineError if the engine is lost."""
        self._choices = choices
        planned: list[Planned] = []
        mismatched = mismatched_topic_ids(states)
        for state in states:
            plan = self._plan(state, mismatched.get(state.where))
            self.results.append(plan.result if isinstance(plan, Planned) else plan)
            if isinstance(plan, Planned):
                planned.append(plan)
            elif retention_applies(plan):
                self._retain(state, plan)
        planned.sort(key=lambda log: -(log.result.dirty_ratio or 0.0))
        try:
            self._clean_all(planned)
        except BaseException:
            self._leave(planned)
            raise
        return self.results

    def _leave(self, planned: Sequence[Planned]) -> None:
        """After an interrupt: remove staged files. Each log is consistent, with what was swapped."""
        with self._critical():
            for log in planned:
                with contextlib.suppress(SiltstoneError, OSError):
                    self._destination.give_up(log)

    def _plan(self, state: LogState, mismatch: str | None) -> Planned | LogResult:
        try:
            if mismatch is not None:
                return open_result(state).stop(report.SKIPPED, mismatch)
            notes: list[str] = []
            if state.config is not None and "compact" in state.config.policies:
                with self._critical():
                    notes = self._destination.tidy(state)
            staging = self._destination.staging(state)
            plan = plan_log(state, state.checkpoints(), self._choices, staging)
            result = plan.result if isinstance(plan, Planned) else plan
            result.notes[:0] = notes
            if isinstance(plan, LogResult) and plan.checkpoint_reset is not None:
                self._destination.reset_checkpoint(state, plan.checkpoint_reset)
            return plan
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
            return _blank(state).fail(failure)

    def _clean_all(self, planned: Sequence[Planned]) -> None:
        self._total, self._done = len(planned), 0
        self._whole_log_bytes = self._most_for_one_task(planned)
        small: list[Planned] = []
        large: list[Planned] = []
        for log in planned:
            budgeted = self._budget(log)
            if budgeted is not None:
                (small if budgeted.in_one_task else large).append(log)
        for batch in self._batches(small):
            self._clean_small(batch)
        for log in large:
            self._clean_large(log)

    def _most_for_one_task(self, planned: Sequence[Planned]) -> int:
        """The limit for one task: larger logs are spread one after another, unless each worker has one."""
        most = self._limits.whole_log_bytes
        larger = sum(most < log.work.size <= _TIMES_AS_LARGE * most for log in planned)
        return _TIMES_AS_LARGE * most if larger and larger >= self._engine().workers else most

    def _budget(self, planned: Planned) -> Budget | None:
        """The way of the log and its space; None if there is too little, which its result says then."""
        where, result = planned.state.path, planned.result
        try:
            room = self._destination.room(planned.state, self._limits.max_extra_bytes)
        except OSError as error:
            result.fail(failure_of(error))
            return None
        budgeted = budget(planned.work, room, self._whole_log_bytes, self._limits.wave_bytes)
        if budgeted.need > room.size:
            needs = (
                f"{where}: needs up to {budgeted.need} bytes more on disk, but only {max(room.size, 0)} are"
            )
            result.stop(report.FAILED, f"{needs} allowed; free some, or raise --max-extra-bytes")
            return None
        if room.inodes is not None and room.inodes < budgeted.inodes:
            result.stop(report.FAILED, f"{where}: too few free inodes ({room.inodes})")
            return None
        return budgeted

    def _batches(self, small: Sequence[Planned]) -> Iterator[list[Planned]]:
        """Jobs of small logs whose new files fit the space together."""
        batch: list[Planned] = []
        used = 0
        for log in small:
            need, budgeted = extra(log.work), self._budget(log)
            if budgeted is None:
                continue
            if batch and used + need > budgeted.size:
                yield batch
                batch, used = [], 0
            batch.append(log)
            used += need
        if batch:
            yield batch

    def _is_time_up(self) -> bool:
        """Has the run both changed something and used its time? Else a short window would never get
        further."""
        is_over = self._deadline is not None and time.monotonic() >= self._deadline
        return is_over and self._has_changed_something

    def _stopped(self, planned: Sequence[Planned]) -> bool:
        if not self._is_time_up():
            return False
        for log in planned:
            log.result.stop(report.SKIPPED, NOT_BEGUN)
        return True

    def _clean_small(self, batch: Sequence[Planned]) -> None:
        if self._stopped(batch):
            return
        left = {log.work.name: log for log in batch if self._prepared(log)}
        if not left:
            return
        try:
            works = [log.work for log in left.values()]
            with side_by_side(self._destination.swap_threads, self._critical) as go:
                for done in self._engine().clean_whole(works):
                    left[done.name].began = time.perf_counter() - done.seconds
                    go(functools.partial(self._settle, left.pop(done.name), done, last=True))
        except (SiltstoneError, OSError) as error:
            for log in left.values():
                self._fail(log, failure_of(error))
            self._raise_if_no_engine(error)

    def _prepared(self, planned: Planned) -> bool:
        """Make the log's staging folder; False if that fails, which is the log's failure."""
        try:
            self._destination.check(planned)
            self._destination.prepare(planned)
            return True
        except (SiltstoneError, OSError) as error:
            self._fail(planned, failure_of(error))
            return False

    def _clean_large(self, planned: Planned) -> None:
        if self._stopped([planned]):
            return
        budgeted = self._budget(planned)
        if budgeted is None or not self._prepared(planned):
            return
        try:
            engine = self._engine()
            planned.began = time.perf_counter()
            if budgeted.in_waves:
                self._clean_in_waves(planned, budgeted, engine)
            else:
                self._settle(planned, engine.clean_spread(planned.work), last=True)
        except (SiltstoneError, OSError) as error:
            self._fail(planned, failure_of(error))
            self._raise_if_no_engine(error)
        except KeyboardInterrupt:
            self._set_failure(planned, LogFailure(status=report.SKIPPED, reason=INTERRUPTED))
            raise

    def _clean_in_waves(self, planned: Planned, budgeted: Budget, engine: Engine) -> None:
        """Write the retained offsets of the whole log to files, then rewrite and swap wave by wave."""
        work = planned.work
        gathered = engine.gather(work)
        failure = gathered.failure
        if failure is not None:
            self._fail(planned, failure)
            return
        retained = check_gathered(work, gathered)
        done, total = 0, len(work.groups)
        for wave in waves(work, budgeted.size, self._limits.wave_bytes, engine.workers):
            if self._is_time_up():
                reason = PARTLY.format(done=done, total=total)
                self._fail(planned, LogFailure(status=report.SKIPPED, reason=reason))
                return
            self._destination.check(planned)
            rewritten = replace(gathered, groups=engine.rewrite(work, wave, retained))
            done += len(wave)
            if not self._settle(planned, rewritten, last=done == total):
                return

    def _raise_if_no_engine(self, error: Exception) -> None:
        if isinstance(error, EngineError) and error.__cause__ is None:
            raise error

    def _settle(self, planned: Planned, done: LogReport, *, last: bool) -> bool:
        """Check and accept a report of the engine; False if the log failed. May run in a swap's thread."""
        try:
            failure = done.failure
            if failure is None:
                check_counts(planned, done, last=last)
                if planned.result.records_before is None:
                    count_all(planned, done)
                self._accept(planned, done)
                if last:
                    self._finish(planned)
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
        if failure is not None:
            self._fail(planned, failure)
            return False
        if last:
            fill(planned, done)
            self._retain(planned.state, planned.result, planned)
            planned.result.seconds = time.perf_counter() - planned.began
            self._report_progress()
        return True

    def _accept(self, planned: Planned, done: LogReport) -> None:
        """Swap the groups of a report in, together or one by one. Raises SiltstoneError, OSError."""
        together = [done.groups] if done.groups else []
        if not self._destination.swaps_groups_together:
            together = [[group] for group in done.groups]
        for groups in together:
            # An interrupt waits: what is swapped in must be counted, and no swap may be half done.
            with self._critical():
                self._destination.accept(planned, groups)
                planned.accepted.extend(groups)
            if any(changes_something(planned.work, group) for group in groups):
                self._has_changed_something = True

    def _finish(self, planned: Planned) -> None:
        """Move the checkpoint. Raises SiltstoneError, OSError; its message says if all segments are swapped
        in."""
        try:
            with self._critical():
                self._destination.finish(planned)
            self._has_changed_something = True
        except OSError as error:
            if not self._destination.keeps_accepted:
                raise
            raise OSError(error.errno, UNFINISHED.format(reason=failure_of(error).reason)) from error

    def _retain(self, state: LogState, result: LogResult, planned: Planned | None = None) -> None:
        """Delete expired segments after a cleaning. An open log's manager does that itself."""
        try:
            if state.opened is not None:
                return
            left = as_they_are(state.segments()) if planned is None else after_cleaning(planned)
            expiry = expired(state, result, self._choices, left)
            if expiry is not None:
                with self._critical():
                    self._destination.expire(state, expiry)
                fill_expired(result, expiry)
        except (InvalidConfigError, LedgerError) as error:
            result.notes.append(f"retention was left out: {error}")
        except (SiltstoneError, OSError) as error:
            failure = failure_of(error)
            reason = f"old segments could not be deleted: {failure.reason}"
            result.fail(replace(failure, status=report.FAILED, reason=reason))

    def _fail(self, planned: Planned, failure: LogFailure) -> None:
        """The log failed: set its result, and remove its staged files."""
        self._set_failure(planned, failure)
        with contextlib.suppress(SiltstoneError, OSError):
            self._destination.give_up(planned)
        self._report_progress()

    def _set_failure(self, planned: Planned, failure: LogFailure) -> None:
        """Set the result of a log that failed or was stopped, with the groups that were accepted."""
        planned.result.fail(failure)
        planned.result.cleaned_end_offset = planned.result.first_dirty_offset
        if not self._destination.keeps_accepted:
            planned.accepted = []
        fill_counts(planned)
        if planned.began:
            planned.result.seconds = time.perf_counter() - planned.began

    def _report_progress(self) -> None:
        with self._progress_lock:
            self._done += 1
            self._progress("logs", "done", self._done, self._total)


def _blank(state: LogState) -> LogResult:
    """A result for a log that cannot be planned, with its size if that can be read."""
    try:
        return open_result(state)
    except (SiltstoneError, OSError):
        return LogResult(topic=state.where.topic, partition=state.where.partition, directory=str(state.path))
