"""Carrying a plan out: engine, checks, swap, checkpoint (Kafka's ``Cleaner`` and ``LogCleaner``).

::

    tidy ─► plan ─► engine (small logs in one job · a large log over all workers, in waves)
                        └─► checked groups ─► destination, ascending ─► checkpoint

One bad log never stops the others: whatever is wrong with a log ends in its ``LogResult``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from siltstone.cleaner import report
from siltstone.cleaner.destination import Destination
from siltstone.cleaner.engine import Engine, LogDone, Progress, fits_one_task
from siltstone.cleaner.facts import Choices, LogState, Planned, mismatched_topic_ids, open_result, plan_log
from siltstone.cleaner.keys import ENTRY_BYTES
from siltstone.cleaner.plan import kafka_map_keys, kafka_passes
from siltstone.cleaner.report import LogResult
from siltstone.cleaner.staging import Rewritten
from siltstone.cleaner.work import Group, LogWork, Trouble, trouble_of
from siltstone.errors import CheckFailedError, CorruptFileError, EngineError, SiltstoneError
from siltstone.log.segments import count_records

WHOLE_LOG_BYTES = 64 << 20
"""A log up to this size goes through one task, if the memory for its keys allows it."""
GROWTH = 1.1
"""How much larger than its sources a group may turn out, at the worst: stamps and lost compression."""
FILES_PER_GROUP = 8

Critical = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What bounds a run: extra bytes on disk (None: a quarter of what is free) and seconds.

    ``whole_log_bytes``: up to this size a log is one task's.
    """

    max_extra_bytes: int | None = None
    stop_after_seconds: float | None = None
    whole_log_bytes: int = WHOLE_LOG_BYTES


@dataclass(slots=True, kw_only=True)
class _Progressing:
    """A planned log on its way: what its waves have said so far."""

    planned: Planned
    began: float = 0.0
    groups: list[Rewritten] = field(default_factory=list)
    winners: int = 0


class Cleaner:
    """One run over some logs. ``critical`` guards what an interrupt should not tear apart."""

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
        self._total, self._done = 0, 0
        self._deadline = (
            None if limits.stop_after_seconds is None else time.monotonic() + limits.stop_after_seconds
        )

    def run(self, states: Sequence[LogState], choices: Choices) -> list[LogResult]:
        """Clean what is to be cleaned; one result a log, in the order given. Raises EngineError only when
        no log could be worked on at all."""
        results: dict[LogState, LogResult] = {}
        planned: list[Planned] = []
        strangers = mismatched_topic_ids(states)
        for state in states:
            found = self._plan(state, choices, strangers.get(state.where))
            results[state] = found.result if isinstance(found, Planned) else found
            if isinstance(found, Planned):
                planned.append(found)
        planned.sort(key=lambda each: -(each.result.dirty_ratio or 0.0))
        try:
            self._clean_all(planned)
        except BaseException:
            self._leave(planned)
            raise
        return [results[state] for state in states]

    def _leave(self, planned: Sequence[Planned]) -> None:
        """Interrupted: clear away what is only staged. What was swapped stays; each log is whole."""
        with self._critical():
            for each in planned:
                with contextlib.suppress(OSError):
                    self._destination.give_up(each)

    def _plan(self, state: LogState, choices: Choices, stranger: str | None) -> Planned | LogResult:
        try:
            wanted = state.config is not None and "compact" in state.config.policies
            if stranger is not None:
                return open_result(state).stop(report.SKIPPED, stranger)
            with self._critical():
                notes = self._destination.tidy(state) if wanted else []
            found = plan_log(state, state.directory.checkpoints(), choices, self._destination.staging(state))
            (found.result if isinstance(found, Planned) else found).notes += notes
            if isinstance(found, LogResult) and found.checkpoint_reset is not None:
                self._destination.reset_checkpoint(state, found.checkpoint_reset)
            return found
        except (SiltstoneError, OSError) as error:
            trouble = trouble_of(error)
            return _blank(state).stop(trouble.status, trouble.reason)

    def _clean_all(self, planned: Sequence[Planned]) -> None:
        self._total, self._done = len(planned), 0
        small: list[Planned] = []
        large: list[Planned] = []
        for each in planned:
            room = self._room(each)
            if room is None:
                continue
            fits = (
                fits_one_task(each.work, self._limits.whole_log_bytes) and _extra(each.work.segments) <= room
            )
            (small if fits else large).append(each)
        for batch in self._batches(small):
            self._clean_small(batch)
        for each in large:
            self._clean_large(each)

    def _room(self, planned: Planned) -> int | None:
        """Bytes that the log's new files may take at one time; None when there is no room, and said so."""
        work, where = planned.work, planned.state.path
        try:
            room = self._destination.room(planned.state, self._limits.max_extra_bytes)
        except OSError as error:
            planned.result.stop(report.FAILED, trouble_of(error).reason)
            return None
        whole = fits_one_task(work, self._limits.whole_log_bytes) and _extra(work.segments) <= room.size
        spill = 0 if whole else _spill(work)
        at_once = (
            [work.segments[g.first : g.last] for g in work.groups] if room.frees_sources else [work.segments]
        )
        need = max(_extra(segments) for segments in at_once) + spill
        if need > room.size:
            reason = (
                f"{where}: needs up to {need} bytes more on disk, but only {max(room.size, 0)} are allowed"
            )
            planned.result.stop(report.FAILED, f"{reason}; free some, or raise --max-extra-bytes")
            return None
        if room.inodes is not None and room.inodes < FILES_PER_GROUP * len(work.groups):
            planned.result.stop(report.FAILED, f"{where}: too few free inodes ({room.inodes})")
            return None
        return room.size - spill

    def _batches(self, small: Sequence[Planned]) -> Iterator[list[Planned]]:
        """Small logs in jobs whose new files together stay within the room there is."""
        batch: list[Planned] = []
        used = 0
        for each in small:
            need, room = _extra(each.work.segments), self._room(each)
            if room is None:
                continue
            if batch and used + need > room:
                yield batch
                batch, used = [], 0
            batch.append(each)
            used += need
        if batch:
            yield batch

    def _stopped(self, planned: Sequence[Planned]) -> bool:
        if self._deadline is None or time.monotonic() < self._deadline:
            return False
        for each in planned:
            each.result.stop(report.SKIPPED, "stopped by --stop-after before its turn; run again to go on")
        return True

    def _clean_small(self, batch: Sequence[Planned]) -> None:
        if self._stopped(batch):
            return
        left = {each.work.name: _Progressing(planned=each) for each in batch if self._prepared(each)}
        if not left:
            return
        try:
            works = [progressing.planned.work for progressing in left.values()]
            for done in self._engine().clean_whole(works):
                left[done.name].began = time.perf_counter() - done.seconds
                self._settle(left.pop(done.name), done, last=True)
        except (SiltstoneError, OSError) as error:
            for progressing in left.values():
                self._fail(progressing, trouble_of(error))
            self._raise_if_no_engine(error)

    def _prepared(self, planned: Planned) -> bool:
        """Make the log's staging folder; one that cannot be made is that log's trouble only."""
        try:
            self._destination.prepare(planned)
            return True
        except (SiltstoneError, OSError) as error:
            self._fail(_Progressing(planned=planned), trouble_of(error))
            return False

    def _clean_large(self, planned: Planned) -> None:
        if self._stopped([planned]):
            return
        progressing = _Progressing(planned=planned)
        room = self._room(planned)
        if room is None or not self._prepared(planned):
            return
        waves = list(_waves(planned.work, room))
        try:
            engine = self._engine()
            progressing.began = time.perf_counter()
            for number, done in enumerate(engine.clean_spread(planned.work, waves)):
                if not self._settle(progressing, done, last=number + 1 == len(waves)):
                    return
                if number + 1 < len(waves) and self._stopped([planned]):
                    self._fail(
                        progressing, Trouble(status=report.SKIPPED, reason=_partly(number + 1, len(waves)))
                    )
                    return
        except (SiltstoneError, OSError) as error:
            self._fail(progressing, trouble_of(error))
            self._raise_if_no_engine(error)

    def _raise_if_no_engine(self, error: Exception) -> None:
        if isinstance(error, EngineError) and error.__cause__ is None:
            raise error

    def _settle(self, progressing: _Progressing, done: LogDone, *, last: bool) -> bool:
        """Check and take over what an engine hands back; False when the log is not to be gone on with."""
        planned = progressing.planned
        try:
            trouble = done.found.trouble or next(
                (g.trouble for g in done.groups if g.trouble is not None), None
            )
            if trouble is None:
                _check_counts(progressing, done, last=last)
                if last and planned.result.records_before is None:
                    _count_all(planned, done)
                for group in done.groups:
                    with self._critical():
                        self._destination.accept(planned, group)
                        progressing.groups.append(group)
                if last:
                    with self._critical():
                        self._destination.finish(planned)
        except (SiltstoneError, OSError) as error:
            trouble = trouble_of(error)
        if trouble is not None:
            self._fail(progressing, trouble)
            return False
        if last:
            _fill(progressing, done)
            self._tell()
        return True

    def _fail(self, progressing: _Progressing, trouble: Trouble) -> None:
        planned = progressing.planned
        planned.result.stop(trouble.status, trouble.reason)
        planned.result.cleaned_end_offset = planned.result.first_dirty_offset
        _fill_sizes(progressing)
        if progressing.began:
            planned.result.seconds = time.perf_counter() - progressing.began
        with contextlib.suppress(OSError):
            self._destination.give_up(planned)
        self._tell()

    def _tell(self) -> None:
        self._done += 1
        self._progress("logs", "done", self._done, self._total)


def _blank(state: LogState) -> LogResult:
    """A result for a log whose size could not be found out either."""
    try:
        return open_result(state)
    except (SiltstoneError, OSError):
        return LogResult(topic=state.where.topic, partition=state.where.partition, directory=str(state.path))


def _extra(segments: Sequence[object]) -> int:
    return int(sum(segment.size for segment in segments) * GROWTH)  # type: ignore[attr-defined]


def _spill(work: LogWork) -> int:
    """Most bytes of entries that a shuffle may put on disk."""
    span = work.end - work.segments[0].base_offset
    return ENTRY_BYTES * min(span, sum(segment.size for segment in work.segments))


def _waves(work: LogWork, room: int) -> Iterator[list[Group]]:
    wave: list[Group] = []
    for group in work.groups:
        members = [segment for each in (*wave, group) for segment in work.segments[each.first : each.last]]
        if wave and _extra(members) > room:
            yield wave
            wave = []
        wave.append(group)
    yield wave


def _partly(waves: int, total: int) -> str:
    return f"stopped by --stop-after with {waves} of {total} waves of groups done; run again to go on"


def _check_counts(progressing: _Progressing, done: LogDone, *, last: bool) -> None:
    """The winners that were merged are the winners that were met, group by group; so are the records.

    Raises CheckFailedError.
    """
    name = progressing.planned.work.name
    for group in done.groups:
        if group.winners != done.winners.get(group.group, 0):
            raise CheckFailedError(
                f"{name}: {done.winners.get(group.group, 0)} winners of group {group.group} were merged, "
                f"but {group.winners} arrived; nothing of it was swapped"
            )
    groups = [*progressing.groups, *done.groups]
    if last and len(groups) != len(progressing.planned.work.groups):
        raise CheckFailedError(
            f"{name}: {len(groups)} groups came back, not {len(progressing.planned.work.groups)}"
        )
    if last and sum(group.records for group in groups) != done.found.records:
        raise CheckFailedError(
            f"{name}: the groups' records are not the {done.found.records} that were extracted"
        )


def _count_all(planned: Planned, done: LogDone) -> None:
    """Records of the whole log before: those extracted, and those above the cleaned range."""
    try:
        rest = [count_records(segment) for segment in planned.uncleaned]
    except CorruptFileError:
        rest = [None]
    if None not in rest:
        planned.result.records_before = done.found.records + sum(count for count in rest if count is not None)


def _fill_sizes(progressing: _Progressing) -> None:
    """Sizes after the groups that were taken over."""
    result, work = progressing.planned.result, progressing.planned.work
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in progressing.groups:
        members = work.segments[work.groups[group.group].first : work.groups[group.group].last]
        result.bytes_after += group.size - sum(segment.size for segment in members)
        result.segments_after -= len(members) - 1


def _fill(progressing: _Progressing, done: LogDone) -> None:
    result, config = progressing.planned.result, progressing.planned.state.config
    assert config is not None
    for group in progressing.groups:
        result.removed.superseded += group.superseded
        result.removed.tombstones += group.tombstones
        result.removed.keyless += group.keyless
    _fill_sizes(progressing)
    if result.records_before is not None:
        result.records_after = result.records_before - result.removed.total()
    result.distinct_dirty_keys = done.dirty_keys
    map_keys = kafka_map_keys(
        config.integer("log.cleaner.dedupe.buffer.size"), config.number("log.cleaner.io.buffer.load.factor")
    )
    result.kafka_passes = kafka_passes(done.dirty_keys, map_keys)
    result.status, result.reason = report.CLEANED, ""
    result.seconds = time.perf_counter() - progressing.began
