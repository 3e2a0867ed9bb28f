"""Logs explained one by one: planned as a cleaning would be, run dry, observed, and put together.

Nothing is locked, written or changed. Beside a live broker files may go between two steps: that log is then
``failed`` with the reason, and asking again may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from siltstone.cleaner import plan, report
from siltstone.cleaner.cleaner import WHOLE_LOG_BYTES
from siltstone.cleaner.engine import Engine, LogDone, fits_one_task
from siltstone.cleaner.explanation.details import (
    bins_of,
    bounds_of,
    frequencies,
    groups_of,
    key_text,
    moments,
    waiting,
)
from siltstone.cleaner.explanation.model import (
    MASK,
    WOULD_CLEAN,
    KafkaExplained,
    KeyExplained,
    LogExplanation,
)
from siltstone.cleaner.explanation.observing import Bins, Observed
from siltstone.cleaner.explanation.tallying import KeyTally
from siltstone.cleaner.facts import Choices, LogState, Planned, mismatched_topic_ids, open_result, plan_log
from siltstone.cleaner.report import LogResult
from siltstone.cleaner.work import KEYLESS, Extracted, LogWork, Trouble, trouble_of
from siltstone.config import Config
from siltstone.errors import EngineError, SiltstoneError

TOP = 10
"""Hottest keys that are told."""


@dataclass(slots=True, kw_only=True)
class Sight:
    """What an observer saw of one log, or why it could not."""

    observed: Observed
    tally: KeyTally
    trouble: Trouble | None = None


class Observer(Protocol):
    """Goes through logs as ``observing`` and ``tallying`` say; one answer a log, by its name."""

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
    """A job that fails is its log's trouble, unless there is no engine at all."""
    try:
        return engine.clean_spread(work)
    except EngineError as error:
        if error.__cause__ is None:
            raise
        return LogDone(name=work.name, found=Extracted(trouble=trouble_of(error)))


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
        bounds_of(state, checkpoints, wish.choices, log)
        asked.planned = forced if isinstance(forced, Planned) else None
    except (SiltstoneError, OSError) as error:
        trouble = trouble_of(error)
        log.status, log.reason = trouble.status, trouble.reason
    return asked


def _stop(log: LogExplanation, result: LogResult, status: str, reason: str) -> None:
    log.status, log.reason = status, "" if status == WOULD_CLEAN else reason
    log.segments, log.bytes_before = result.segments_before, result.bytes_before
    log.dirty_ratio, log.first_dirty_offset = result.dirty_ratio, result.first_dirty_offset
    log.notes = list(result.notes)


def _finish(asked: _Asked, done: LogDone, sight: Sight, wish: Wish) -> None:
    log, planned = asked.log, asked.planned
    assert planned is not None and asked.state.config is not None
    trouble = done.found.trouble or next((g.trouble for g in done.groups if g.trouble is not None), None)
    trouble = trouble or sight.trouble
    if trouble is not None:
        log.status, log.reason = trouble.status, trouble.reason
        return
    _fill_counts(log, planned, done, sight)
    different = _different(log, sight)
    if different is not None:
        log.status, log.reason = report.FAILED, different
        return
    keyless = log.records["keyless"]
    if keyless and not (wish.choices.drop_keyless or asked.state.drop_keyless):
        log.status, log.reason = report.SKIPPED, KEYLESS.format(count=keyless)
    log.kafka = kafka_needs(asked.state.config, sight.tally.dirty_keys)
    log.tombstones_waiting = waiting(sight.observed)
    log.reclaimable = moments(bins_of(planned.work), sight.observed, sight.tally)
    try:
        log.hottest_keys = [
            KeyExplained(
                key=key_text(planned.work, each.last_offset) if wish.show_keys else MASK,
                key_size=each.key_size,
                records=each.records,
                bytes=each.size,
                superseded=each.superseded,
                superseded_bytes=each.superseded_size,
                last_offset=each.last_offset,
            )
            for each in sight.tally.hottest
        ]
    except (SiltstoneError, OSError) as error:
        log.notes.append(f"the hottest keys could not be read: {trouble_of(error).reason}")


def _fill_counts(log: LogExplanation, planned: Planned, done: LogDone, sight: Sight) -> None:
    seen, tally = sight.observed, sight.tally
    log.groups = groups_of(planned.work, done.groups)
    members = planned.work.size
    log.bytes_after = log.bytes_before - members + sum(group.size for group in done.groups)
    reasons = ("superseded", "tombstones", "aborted", "keyless", "markers")
    log.removed = {name: sum(getattr(group, name) for group in done.groups) for name in reasons}
    control = seen.sizes["control"] // max(seen.counts["control"], 1)
    log.removed_bytes = {
        "superseded": tally.superseded_size,
        "tombstones": tally.tombstones_size,
        "aborted": seen.sizes["aborted"],
        "keyless": seen.sizes["keyless"],
        "markers": log.removed["markers"] * control,
    }
    log.kept_bytes = seen.sizes["records"] - sum(log.removed_bytes.values())
    total, apart = seen.counts["records"], seen.counts["keyless"] + seen.counts["aborted"]
    log.records = {
        "total": total,
        "keyed": total - apart - seen.counts["control"],
        **{name: seen.counts[name] for name in ("keyless", "aborted", "control", "tombstones")},
        "after": total - sum(log.removed.values()),
    }
    log.distinct_keys, log.distinct_dirty_keys = tally.keys, tally.dirty_keys
    log.keys_by_records = frequencies(tally)


def _different(log: LogExplanation, sight: Sight) -> str | None:
    """The two passes must have seen the same log."""
    seen = {
        "superseded": sight.tally.superseded,
        "tombstones": sight.tally.tombstones,
        "aborted": sight.observed.counts["aborted"],
        "keyless": sight.observed.counts["keyless"],
    }
    for name, count in seen.items():
        if log.removed[name] != count:
            return (
                f"{log.directory}: the dry run removes {log.removed[name]} {name} records, not {count}; "
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
        buffer_bytes_for_one_pass=-int(-dirty_keys // load) * plan.KAFKA_MAP_ENTRY_BYTES,
    )
