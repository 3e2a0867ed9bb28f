"""Logs explained one by one: planned as a cleaning would be, run dry, observed, and put together.

Nothing is locked, written or changed. Beside a live broker files may go between two steps: that log is then
``failed`` with the reason, and asking again may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, Config
from siltstone.base.errors import EngineError, SiltstoneError
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import Words
from siltstone.base.records.scan import scan_batches
from siltstone.compaction import report
from siltstone.compaction.discards import CLEANING_REASONS
from siltstone.compaction.engine import Engine, LogDone, fits_one_task
from siltstone.compaction.explain.model import (
    WOULD_CLEAN,
    CleaningBound,
    Frequency,
    GroupExplained,
    KafkaExplained,
    KeysExplained,
    LogExplanation,
    Moment,
    OutcomeExplained,
    RangeExplained,
    Waiting,
)
from siltstone.compaction.explain.observing import TALLY_BYTES, Bins, KeyTally, Observed, observe, tally
from siltstone.compaction.extraction import Extracted, LogFailure, failure_of
from siltstone.compaction.inplace import plan
from siltstone.compaction.inplace.cleaner import WHOLE_LOG_BYTES
from siltstone.compaction.inplace.facts import (
    Choices,
    LogState,
    Planned,
    log_facts,
    mismatched_topic_ids,
    open_result,
    plan_log,
)
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import KEYLESS, LogWork
from siltstone.log.directory import Checkpoints
from siltstone.log.lookup import position_of_offset
from siltstone.log.producers import load_producers
from siltstone.log.segments import first_batch_timestamp, largest_timestamp, segment_holding

# The parts of an explanation: bounds, groups, times, keys.

BINS = 60
KEY_BYTES_SHOWN = 64


def bins_of(work: LogWork) -> Bins:
    """Equal steps from the first batch's time to the largest one below the first uncleanable offset."""
    full = [segment for segment in work.segments if segment.size]
    first = first_batch_timestamp(full[0]) if full else None
    last = max((largest_timestamp(segment) for segment in full), default=work.now_ms)
    start = last if first is None else min(first, last)
    return Bins(start_ms=start, width_ms=max(1, -(-(last - start + 1) // BINS)), count=BINS)


def range_of(state: LogState, checkpoints: Checkpoints, choices: Choices) -> RangeExplained:
    """The range that may be cleaned, and the offsets that bound it, each with its name."""
    assert state.config is not None
    segments = state.segments()
    if not segments:
        return RangeExplained()
    producers = load_producers(state.path, segments)
    mark = checkpoints.high_watermark.get(state.where)
    facts = log_facts(state, checkpoints, segments, producers, LONG_MAX if mark is None else mark)
    lag = plan.LagLimits(
        min_ms=state.config.integer("min.compaction.lag.ms"),
        max_ms=state.config.integer("max.compaction.lag.ms"),
    )
    found = plan.cleanable_range(facts, lag, choices.now_ms)
    bounds = [CleaningBound(name="active segment", offset=segments[-1].base_offset)]
    if mark is not None:
        bounds.append(CleaningBound(name="high watermark", offset=mark))
    opened = producers.first_open_transaction()
    if opened is not None:
        bounds.append(CleaningBound(name="open transaction", offset=opened))
    if found.end < min(bound.offset for bound in bounds) and lag.min_ms > 0:
        bounds.append(CleaningBound(name="min.compaction.lag.ms", offset=found.end))
    return RangeExplained(
        log_start_offset=facts.log_start_offset,
        first_dirty_offset=found.first_dirty,
        first_uncleanable_offset=found.end,
        log_end_offset=facts.log_end_offset,
        bounds=sorted(bounds, key=lambda bound: bound.offset),
        dirty_ratio=found.dirty_ratio,
        min_dirty_ratio=state.config.number("min.cleanable.dirty.ratio"),
        overdue_ms=found.delay_ms,
        cleanable_bytes=found.cleanable_bytes,
    )


def groups_of(work: LogWork, done: Sequence[Rewritten]) -> list[GroupExplained]:
    """The groups, each with what becomes of it."""
    found = []
    for each in sorted(done, key=lambda group: group.group):
        group = work.groups[each.group]
        members = work.segments[group.first : group.last]
        found.append(
            GroupExplained(
                base_offset=group.base_offset,
                end_offset=group.end_offset,
                segments=len(members),
                bytes_before=sum(segment.size for segment in members),
                bytes_after=each.size,
                records_before=each.records,
                records_after=each.kept,
                removed={name: each.removed.counts[name] for name in CLEANING_REASONS},
            )
        )
    return found


def moments(bins: Bins, observed: Observed, tally: KeyTally) -> list[Moment]:
    """Sums up to the end of each bin; tombstones whose window has passed count at the end."""
    superseded = tally.superseded_by_bin or [0] * bins.count
    free = np.cumsum([a + b for a, b in zip(superseded, observed.lost, strict=True)])
    written = np.cumsum(observed.written)
    if len(free):
        free[-1] += tally.tombstones_size
    return [
        Moment(
            at_ms=bins.start_ms + (number + 1) * bins.width_ms - 1,
            written_bytes=int(written[number]),
            reclaimable_bytes=int(free[number]),
        )
        for number in range(bins.count)
    ]


def waiting(observed: Observed) -> list[Waiting]:
    """Tombstones by the horizon that they wait for."""
    return [
        Waiting(at_ms=horizon, tombstones=count, bytes=size)
        for horizon, (count, size) in sorted(observed.waiting.items())
    ]


def frequencies(tally: KeyTally) -> list[Frequency]:
    """How many keys have 1, 2, 3–4, 5–8, … records."""
    found = []
    for step, keys in enumerate(tally.by_frequency):
        least = 1 if step == 0 else (1 << (step - 1)) + 1
        if keys:
            found.append(Frequency(records_from=least, records_to=1 << step, keys=keys))
    return found


def key_text(work: LogWork, offset: int) -> str:
    """The key of one record for people: its text, or hexadecimal digits; long ones are cut.

    Raises CorruptFileError, OSError.
    """
    segment = work.segments[segment_holding(list(work.segments), offset)]
    with files.Reader(segment.path) as reader:
        place = position_of_offset(reader, offset, end=segment.size)
        if place is None:
            return ""
        window = np.empty(place.size, np.uint8)
        reader.read_into(window, place.position)
    columns = decode_records(
        window,
        scan_batches(window).batches,
        limit=work.batch_limit,
        path=segment.path,
        origin=place.position,
    )
    rows = np.flatnonzero(columns.offset == offset)
    key = columns.key(int(rows[0])) if len(rows) else None
    if key is None:
        return ""
    cut = "…" if len(key) > KEY_BYTES_SHOWN else ""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text:
        return text[:KEY_BYTES_SHOWN] + ("…" if len(text) > KEY_BYTES_SHOWN else "")
    return f"0x{key[:KEY_BYTES_SHOWN].hex()}{cut}" if key else '""'


TOP = 10
"""Hottest keys that are told."""


@dataclass(slots=True, kw_only=True)
class Sight:
    """What an observer saw of one log, or why it could not."""

    observed: Observed
    tally: KeyTally = field(default_factory=KeyTally)
    failure: LogFailure | None = None


class Observer(Protocol):
    """Goes through logs as ``observe`` and ``tally`` do; one answer a log, by its name."""

    def __call__(self, works: Sequence[tuple[LogWork, Bins]], top: int) -> dict[str, Sight]:
        """All logs at once. Raises EngineError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be told: as of which choices, with keys or masked, how many of the hottest."""

    choices: Choices
    show_keys: bool = False
    top: int = TOP


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A log on its way; ``planned``: what a cleaning would do with it, whether it is eligible or not."""

    state: LogState
    log: LogExplanation
    planned: Planned | None = None


def explain_logs(
    states: Sequence[LogState], wish: Wish, engine: Callable[[], Engine], observer: Callable[[], Observer]
) -> list[LogExplanation]:
    """One explanation a log, in order. ``engine`` and ``observer`` are asked for when a log needs them.

    Raises EngineError when Spark gives up; what is wrong with a log is in its explanation.
    """
    strangers = mismatched_topic_ids(states)
    asked = [_begin(state, wish, strangers.get(state.where)) for state in states]
    left = {each.planned.work.name: each for each in asked if each.planned is not None}
    if left:
        works = [each.planned.work for each in left.values() if each.planned is not None]
        done = _run_dry(works, engine())
        sights = observer()([(work, bins_of(work)) for work in works], wish.top)
        for name, each in left.items():
            _finish(each, done[name], sights[name], wish)
    return [each.log for each in asked]


def _run_dry(works: Sequence[LogWork], engine: Engine) -> dict[str, LogDone]:
    small = [work for work in works if fits_one_task(work, WHOLE_LOG_BYTES)]
    done = {each.name: each for each in engine.clean_whole(small)} if small else {}
    for work in works:
        if work.name not in done:
            done[work.name] = _spread(work, engine)
    return done


def _spread(work: LogWork, engine: Engine) -> LogDone:
    """A job that fails is its log's failure, unless there is no engine at all."""
    try:
        return engine.clean_spread(work)
    except EngineError as error:
        if error.__cause__ is None:
            raise
        return LogDone(name=work.name, found=Extracted(failure=failure_of(error)))


def _begin(state: LogState, wish: Wish, stranger: str | None) -> _Asked:
    """Plan twice: as it would be done now, and as if it were eligible, which tells what would go."""
    log = LogExplanation(
        topic=state.where.topic,
        partition=state.where.partition,
        directory=str(state.path),
        status=report.SKIPPED,
        settings={} if state.config is None else state.config.settings(),
    )
    asked = _Asked(state=state, log=log)
    try:
        if stranger is not None:
            _stop(log, open_result(state), report.SKIPPED, stranger)
            return asked
        checkpoints = state.checkpoints()
        now = plan_log(state, checkpoints, wish.choices, None)
        result = now.result if isinstance(now, Planned) else now
        _stop(log, result, WOULD_CLEAN if isinstance(now, Planned) else result.status, result.reason)
        if log.status == report.SKIPPED:
            return asked
        forced = plan_log(state, checkpoints, replace(wish.choices, force=True, drop_keyless=True), None)
        log.range = range_of(state, checkpoints, wish.choices)
        asked.planned = forced if isinstance(forced, Planned) else None
    except (SiltstoneError, OSError) as error:
        failure = failure_of(error)
        log.status, log.reason = failure.status, failure.reason
    return asked


def _stop(log: LogExplanation, result: LogResult, status: str, reason: str) -> None:
    log.status, log.reason = status, "" if status == WOULD_CLEAN else reason
    log.segments, log.bytes_before = result.segments_before, result.bytes_before
    log.notes = list(result.notes)


def _finish(asked: _Asked, done: LogDone, sight: Sight, wish: Wish) -> None:
    log, planned = asked.log, asked.planned
    assert planned is not None and asked.state.config is not None
    failure = done.found.failure or next((g.failure for g in done.groups if g.failure is not None), None)
    failure = failure or sight.failure
    if failure is not None:
        log.status, log.reason = failure.status, failure.reason
        return
    log.outcome = _outcome(log.bytes_before, planned.work, done, sight)
    log.keys = KeysExplained(
        distinct_keys=sight.tally.keys,
        distinct_dirty_keys=sight.tally.dirty_keys,
        keys_by_records=frequencies(sight.tally),
    )
    different = _different(log, sight)
    if different is not None:
        log.status, log.reason = report.FAILED, different
        return
    keyless = log.outcome.records["keyless"]
    if keyless and not (wish.choices.drop_keyless or asked.state.drop_keyless):
        log.status, log.reason = report.SKIPPED, KEYLESS.format(count=keyless)
    log.keys.kafka = kafka_needs(asked.state.config, sight.tally.dirty_keys)
    log.outcome.tombstones_waiting = waiting(sight.observed)
    log.outcome.reclaimable = moments(bins_of(planned.work), sight.observed, sight.tally)
    try:
        log.keys.hottest_keys = [
            replace(each, key=key_text(planned.work, each.last_offset)) if wish.show_keys else each
            for each in sight.tally.hottest
        ]
    except (SiltstoneError, OSError) as error:
        log.notes.append(f"the hottest keys could not be read: {failure_of(error).reason}")


def _outcome(bytes_before: int, work: LogWork, done: LogDone, sight: Sight) -> OutcomeExplained:
    seen, tally = sight.observed, sight.tally
    removed = {name: sum(group.removed.counts[name] for group in done.groups) for name in CLEANING_REASONS}
    marker_bytes = seen.sizes["control"] // max(seen.counts["control"], 1)
    removed_bytes = {
        "superseded": tally.superseded_size,
        "tombstones": tally.tombstones_size,
        "aborted": seen.sizes["aborted"],
        "keyless": seen.sizes["keyless"],
        "markers": removed["markers"] * marker_bytes,
    }
    total, apart = seen.counts["records"], seen.counts["keyless"] + seen.counts["aborted"]
    return OutcomeExplained(
        bytes_after=bytes_before - work.size + sum(group.size for group in done.groups),
        records={
            "total": total,
            "keyed": total - apart - seen.counts["control"],
            **{name: seen.counts[name] for name in ("keyless", "aborted", "control", "tombstones")},
            "after": total - sum(removed.values()),
        },
        removed=removed,
        removed_bytes=removed_bytes,
        kept_bytes=seen.sizes["records"] - sum(removed_bytes.values()),
        groups=groups_of(work, done.groups),
    )


def _different(log: LogExplanation, sight: Sight) -> str | None:
    """The two passes must have seen the same log."""
    seen = {
        "superseded": sight.tally.superseded,
        "tombstones": sight.tally.tombstones,
        "aborted": sight.observed.counts["aborted"],
        "keyless": sight.observed.counts["keyless"],
    }
    for name, count in seen.items():
        removed = log.outcome.removed[name]
        if removed != count:
            return (
                f"{log.directory}: the dry run removes {removed} {name} records, not {count}; "
                "the log changed meanwhile, ask again"
            )
    return None


def kafka_needs(config: Config, dirty_keys: int) -> KafkaExplained:
    """Kafka's map for these settings, and at least how many passes it would need for so many keys."""
    buffer = config.integer("log.cleaner.dedupe.buffer.size")
    load = config.number("log.cleaner.io.buffer.load.factor")
    map_keys = plan.kafka_map_keys(buffer, load)
    return KafkaExplained(
        buffer_bytes=buffer,
        load_factor=load,
        map_keys=map_keys,
        passes=plan.kafka_passes(dirty_keys, map_keys),
        buffer_bytes_for_one_pass=plan.kafka_buffer_bytes(dirty_keys, load),
    )


# Observing in this process, bucket after bucket: memory is bounded, a large log is read several times.

MEMORY_BYTES = 1 << 30


def buckets_of(work: LogWork, memory_bytes: int = MEMORY_BYTES, at_least: int = 1) -> int:
    """Buckets so that one is tallied within that memory; a log's span of offsets bounds its records."""
    span = work.end - work.segments[0].base_offset
    return max(at_least, -(-span * TALLY_BYTES // memory_bytes))


def observe_here(
    works: Sequence[tuple[LogWork, Bins]], top: int, memory_bytes: int = MEMORY_BYTES
) -> dict[str, Sight]:
    """One log after another."""
    return {work.name: _sight(work, bins, top, memory_bytes) for work, bins in works}


def _sight(work: LogWork, bins: Bins, top: int, memory_bytes: int) -> Sight:
    sight = Sight(observed=Observed(bins=bins.count))
    buckets = buckets_of(work, memory_bytes)
    try:
        for bucket in range(buckets):
            seen, blobs = Observed(bins=bins.count), list[Words]()
            for _, entries in observe(work, range(len(work.segments)), buckets, bins, seen, bucket):
                blobs.append(entries)
            sight.tally.add(tally(blobs, work.first_dirty, bins, top), top)
            sight.observed = seen
    except (SiltstoneError, OSError) as error:
        sight.failure = failure_of(error)
    return sight
