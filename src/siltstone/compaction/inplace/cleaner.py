"""Carrying a plan out: engine, checks, swap, checkpoint (Kafka's ``Cleaner`` and ``LogCleaner``).

::

    tidy ─► plan ─► engine (small logs in one job · a large log over all workers · a very large one in waves)
              │         └─► checked groups ─► destination, ascending ─► checkpoint ─► retention
              └─► nothing to do, not eligible ───────────────────────────────────────────┘

One bad log never stops the others: whatever is wrong with a log ends in its ``LogResult``. An interrupted run
leaves whole logs, some of their groups swapped; as the checkpoint moves last, the next run cleans the same
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
    is_asked,
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
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import RETAINED_BYTES, LogDone, RetainedFile, Rewritten
from siltstone.compaction.work import Group, LogFailure, LogWork, failure_of
from siltstone.log.segments import count_records

# A log on its way through the cleaner: what is checked of each wave, and what its result says in the end.


def check_gathered(work: LogWork, gathered: LogDone) -> list[RetainedFile]:
    """The files of retained offsets, one a group, in order.

    Raises CheckFailedError unless each group's retained offsets that were merged are in its one file.
    """
    files = sorted(gathered.files, key=lambda file: file.group)
    if [file.group for file in files] != [group.index for group in work.groups]:
        raise CheckFailedError(f"{work.name}: not every group's retained offsets were gathered once")
    for file in files:
        _check_winners(work.name, file.group, gathered.retained.get(file.group, 0), file.count)
    return files


def check_counts(planned: Planned, done: LogDone, *, last: bool) -> None:
    """Group by group, as many retained offsets were met as were merged; records add up, too.

    Raises CheckFailedError.
    """
    work = planned.work
    for group in done.groups:
        _check_winners(work.name, group.group, done.retained.get(group.group, 0), group.retained)
    groups = [*planned.accepted, *done.groups]
    if last and len(groups) != len(work.groups):
        raise CheckFailedError(f"{work.name}: {len(groups)} groups came back, not {len(work.groups)}")
    if last and sum(group.records for group in groups) != done.extracted.records:
        raise CheckFailedError(
            f"{work.name}: the groups' records are not the {done.extracted.records} that were extracted"
        )


def _check_winners(name: str, group: int, merged: int, arrived: int) -> None:
    if merged != arrived:
        raise CheckFailedError(
            f"{name}: {merged} retained offsets of group {group} were merged, "
            f"but {arrived} arrived; nothing of it was swapped"
        )


def count_all(planned: Planned, done: LogDone) -> None:
    """Records of the whole log before: those extracted, and those above the cleaned range."""
    try:
        rest = [count_records(segment) for segment in planned.uncleaned]
    except CorruptFileError:
        rest = [None]
    if None not in rest:
        planned.result.records_before = done.extracted.records + sum(
            count for count in rest if count is not None
        )


def changes_something(work: LogWork, group: Rewritten) -> bool:
    """Is the group's new segment less than its sources: in records, in bytes or in segments?

    One that is only a second name of its source, or written as it was, is not; nor is one that was only
    stamped. So a log that is cleaned again and again has ever less that changes.
    """
    members = work.sources(work.groups[group.group])
    return len(members) > 1 or group.records != group.kept or group.size < members[0].size


def fill_counts(planned: Planned) -> None:
    """Sizes after the groups that were taken over, and the records that went with them; all or some of the
    log's groups, whatever came of the rest."""
    result, work = planned.result, planned.work
    for group in planned.accepted:
        result.removed.add(group.removed)
    if result.records_before is not None:
        result.records_after = result.records_before - result.removed.total()
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in planned.accepted:
        members = work.sources(work.groups[group.group])
        result.bytes_after += group.size - sum(segment.size for segment in members)
        result.segments_after -= len(members) - 1


def fill(planned: Planned, done: LogDone) -> None:
    """The result of a log that was cleaned, but for the seconds that it took."""
    result, config = planned.result, planned.state.config
    assert config is not None
    fill_counts(planned)
    result.distinct_dirty_keys = done.dirty_keys
    map_keys = kafka_map_keys(
        config.integer("log.cleaner.dedupe.buffer.size"), config.number("log.cleaner.io.buffer.load.factor")
    )
    result.kafka_passes = kafka_passes(done.dirty_keys, map_keys)
    result.status, result.reason = report.CLEANED, ""


# How a log's groups go: all in one task, all in one job, or wave by wave; and the room that each way needs.
#
# ::
#
#     one task    small: its keys and bytes fit, and so do all its new files
#     one job     larger, spread; all new files at once
#     in waves    retained offsets wait on disk; a wave's new files, then the next one's
#
# Only where a swapped group's originals go (``Room.frees_sources``) do waves need less room than one job.

GROWTH = 1.1
"""How much larger than its sources a group may turn out, at the worst: stamps and lost compression."""
GROWTH_OF_MESSAGES = 2.7
"""The same where message sets (v0, v1) become batches of one small record each."""
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
    """Most bytes of the new files that take the place of a group's segments, or of all."""
    segments = work.segments if group is None else work.sources(group)
    growth = GROWTH_OF_MESSAGES if work.message_sets else GROWTH
    return int(sum(segment.size for segment in segments) * growth)


def spill(work: LogWork) -> int:
    """Most bytes of entries that a shuffle may put on disk."""
    return ENTRY_BYTES * min(offset_span(work), work.size)


def waiting(work: LogWork) -> int:
    """Most bytes of retained offsets, which stay until the last wave is swapped in."""
    return RETAINED_BYTES * min(offset_span(work), work.size)


def budget(work: LogWork, room: Room, whole_log_bytes: int, wave_bytes: int) -> Budget:
    """The way that a log goes.

    ``whole_log_bytes``: most for one task; ``wave_bytes``: most for one job.
    """
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
    """Neighbouring groups that are rewritten together: their new files fit ``room`` bytes, and what an
    interrupt may cost is ``wave_bytes`` of sources, or a group for each worker, whichever is more."""
    wave: list[Group] = []
    for group in work.groups:
        taken = (*wave, group)
        size = sum(segment.size for each in taken for segment in work.sources(each))
        is_large = size > wave_bytes and len(wave) >= workers
        if wave and (is_large or sum(extra(work, each) for each in taken) > room):
            yield wave
            wave = []
        wave.append(group)
    if wave:
        yield wave


# Swaps of several logs at one time: each waits for the disk most of its time.


@contextlib.contextmanager
def side_by_side(at_once: int, critical: Critical) -> Iterator[Callable[[Callable[[], object]], object]]:
    """What the body hands over is called in one of ``at_once`` threads, in this one where that is 1. All is
    done when the block is left; ``critical`` guards the wait.

    Interrupted, it leaves out what is not begun. Raises what a call raised.
    """
    if at_once == 1:
        yield lambda call: call()
        return
    calls: list[Future[object]] = []
    pool, is_interrupted = ThreadPoolExecutor(at_once, "swap"), True
    try:
        yield lambda call: calls.append(pool.submit(call))
        is_interrupted = False
    except Exception:
        is_interrupted = False
        raise
    finally:
        with critical():
            pool.shutdown(wait=True, cancel_futures=is_interrupted)
    for each in calls:
        each.result()


WHOLE_LOG_BYTES = 64 << 20
"""A log up to this size goes through one task, if the memory for its keys allows it."""
_TIMES_AS_LARGE = 4
"""So much larger may such a log be where all workers have one."""
WAVE_BYTES = 1 << 30
"""Sources that a wave takes: so much may have to be done again. A larger log goes in several."""
UNFINISHED = (
    "its segments are cleaned, but the run could not be finished: {reason}; "
    "where the cleaner checkpoint did not move, the next run cleans the log once more"
)
PARTLY = "stopped by --stop-after with {done} of {total} groups done; run again to go on"
NOT_BEGUN = "stopped by --stop-after before its turn; run again to go on"
INTERRUPTED = "interrupted; what was swapped in stays, run again to clean the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What bounds a run: extra bytes on disk (None: a quarter of what is free) and seconds.

    ``stop_after_seconds``: nothing new is begun after that, once the run has changed something at all.
    ``whole_log_bytes``: up to this size a log is one task's, up to four times as much where all workers have
    such a log. ``wave_bytes``: up to this size it goes in one job, and so much of a larger one in one wave.
    """

    max_extra_bytes: int | None = None
    stop_after_seconds: float | None = None
    whole_log_bytes: int = WHOLE_LOG_BYTES
    wave_bytes: int = WAVE_BYTES


class Cleaner:
    """One run over some logs. ``critical`` guards what an interrupt should not tear apart.

    ``results``: one a log, in the order given, as far as the run got; of an interrupted run, too.
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
        self._telling = threading.Lock()
        self._whole_log_bytes: int
        self._has_changed_something = False
        self._deadline = (
            None if limits.stop_after_seconds is None else time.monotonic() + limits.stop_after_seconds
        )

    def run(self, states: Sequence[LogState], choices: Choices) -> list[LogResult]:
        """Clean what is to be cleaned; one result a log, in the order given. Raises EngineError only when
        no log could be worked on at all."""
        self._choices = choices
        planned: list[Planned] = []
        strangers = mismatched_topic_ids(states)
        for state in states:
            plan = self._plan(state, strangers.get(state.where))
            self.results.append(plan.result if isinstance(plan, Planned) else plan)
            if isinstance(plan, Planned):
                planned.append(plan)
            elif is_asked(plan):
                self._retain(state, plan)
        planned.sort(key=lambda each: -(each.result.dirty_ratio or 0.0))
        try:
            self._clean_all(planned)
        except BaseException:
            self._leave(planned)
            raise
        return self.results

    def _leave(self, planned: Sequence[Planned]) -> None:
        """Interrupted: clear away what is only staged. What was swapped stays; each log is whole."""
        with self._critical():
            for each in planned:
                with contextlib.suppress(SiltstoneError, OSError):
                    self._destination.give_up(each)

    def _plan(self, state: LogState, stranger: str | None) -> Planned | LogResult:
        try:
            if stranger is not None:
                return open_result(state).stop(report.SKIPPED, stranger)
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
            return _blank(state).stop(failure.status, failure.reason)

    def _clean_all(self, planned: Sequence[Planned]) -> None:
        self._total, self._done = len(planned), 0
        self._whole_log_bytes = self._most_for_one_task(planned)
        small: list[Planned] = []
        large: list[Planned] = []
        for each in planned:
            budgeted = self._budget(each)
            if budgeted is not None:
                (small if budgeted.in_one_task else large).append(each)
        for batch in self._batches(small):
            self._clean_small(batch)
        for each in large:
            self._clean_large(each)

    def _most_for_one_task(self, planned: Sequence[Planned]) -> int:
        """Larger logs are spread one after another, unless there are enough of them for all workers."""
        most = self._limits.whole_log_bytes
        larger = sum(most < each.work.size <= _TIMES_AS_LARGE * most for each in planned)
        return _TIMES_AS_LARGE * most if larger and larger >= self._engine().workers else most

    def _budget(self, planned: Planned) -> Budget | None:
        """The way that the log goes, and its room; None when there is not enough, and said so."""
        where, result = planned.state.path, planned.result
        try:
            room = self._destination.room(planned.state, self._limits.max_extra_bytes)
        except OSError as error:
            result.stop(report.FAILED, failure_of(error).reason)
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
        """Small logs in jobs whose new files together stay within the room there is."""
        batch: list[Planned] = []
        used = 0
        for each in small:
            need, budgeted = extra(each.work), self._budget(each)
            if budgeted is None:
                continue
            if batch and used + need > budgeted.size:
                yield batch
                batch, used = [], 0
            batch.append(each)
            used += need
        if batch:
            yield batch

    def _is_time_up(self) -> bool:
        """Not before the run has changed something: else a short window would never get anywhere."""
        is_over = self._deadline is not None and time.monotonic() >= self._deadline
        return is_over and self._has_changed_something

    def _stopped(self, planned: Sequence[Planned]) -> bool:
        if not self._is_time_up():
            return False
        for each in planned:
            each.result.stop(report.SKIPPED, NOT_BEGUN)
        return True

    def _clean_small(self, batch: Sequence[Planned]) -> None:
        if self._stopped(batch):
            return
        left = {each.work.name: each for each in batch if self._prepared(each)}
        if not left:
            return
        try:
            works = [each.work for each in left.values()]
            with side_by_side(self._destination.at_once, self._critical) as go:
                for done in self._engine().clean_whole(works):
                    left[done.name].began = time.perf_counter() - done.seconds
                    go(functools.partial(self._settle, left.pop(done.name), done, last=True))
        except (SiltstoneError, OSError) as error:
            for each in left.values():
                self._fail(each, failure_of(error))
            self._raise_if_no_engine(error)

    def _prepared(self, planned: Planned) -> bool:
        """Make the log's staging folder; where it cannot be made, only that log fails."""
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
            self._tell_what_was_done(planned, LogFailure(report.SKIPPED, INTERRUPTED))
            raise

    def _clean_in_waves(self, planned: Planned, budgeted: Budget, engine: Engine) -> None:
        """The retained offsets of the whole log are put into files, once; then its groups go by them."""
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
                self._fail(planned, LogFailure(report.SKIPPED, PARTLY.format(done=done, total=total)))
                return
            self._destination.check(planned)
            rewritten = replace(gathered, groups=engine.rewrite(work, wave, retained))
            done += len(wave)
            if not self._settle(planned, rewritten, last=done == total):
                return

    def _raise_if_no_engine(self, error: Exception) -> None:
        if isinstance(error, EngineError) and error.__cause__ is None:
            raise error

    def _settle(self, planned: Planned, done: LogDone, *, last: bool) -> bool:
        """Check and take over what an engine hands back; False when the log is not to be gone on with."""
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
            self._tell()
        return True

    def _accept(self, planned: Planned, done: LogDone) -> None:
        """Take over the groups at hand, in one go or one after another. Raises SiltstoneError, OSError."""
        together = [done.groups] if done.groups else []
        if not self._destination.takes_together:
            together = [[each] for each in done.groups]
        for groups in together:
            with self._critical():
                self._destination.accept(planned, groups)
                planned.accepted.extend(groups)
            if any(changes_something(planned.work, each) for each in groups):
                self._has_changed_something = True

    def _finish(self, planned: Planned) -> None:
        """Raises SiltstoneError, OSError with what is left to do where the new segments are all in place."""
        try:
            with self._critical():
                self._destination.finish(planned)
            self._has_changed_something = True
        except OSError as error:
            if not self._destination.keeps_accepted:
                raise
            raise OSError(error.errno, UNFINISHED.format(reason=failure_of(error).reason)) from error

    def _retain(self, state: LogState, result: LogResult, planned: Planned | None = None) -> None:
        """Let go of what has expired of a log that is done with; an open log's manager sees to its own."""
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
            result.stop(report.FAILED, f"old segments could not be deleted: {failure_of(error).reason}")

    def _fail(self, planned: Planned, failure: LogFailure) -> None:
        """The log is not gone on with: say why, and clear away."""
        self._tell_what_was_done(planned, failure)
        with contextlib.suppress(SiltstoneError, OSError):
            self._destination.give_up(planned)
        self._tell()

    def _tell_what_was_done(self, planned: Planned, failure: LogFailure) -> None:
        """The result of a log that is not cleaned, whatever was taken over of it."""
        planned.result.stop(failure.status, failure.reason)
        planned.result.cleaned_end_offset = planned.result.first_dirty_offset
        if not self._destination.keeps_accepted:
            planned.accepted = []
        fill_counts(planned)
        if planned.began:
            planned.result.seconds = time.perf_counter() - planned.began

    def _tell(self) -> None:
        with self._telling:
            self._done += 1
            self._progress("logs", "done", self._done, self._total)


def _blank(state: LogState) -> LogResult:
    """A result for a log whose size could not be found out either."""
    try:
        return open_result(state)
    except (SiltstoneError, OSError):
        return LogResult(topic=state.where.topic, partition=state.where.partition, directory=str(state.path))
