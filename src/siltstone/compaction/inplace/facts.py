"""Planning a log's cleaning: reads from a partition directory, or an open log, what ``plan`` needs.

``plan_log`` returns the log's work for an engine, or a result with the reason why there is none
(``LogCleanerManager.grabFilthiestCompactedLog``, ``cleanableOffsets``).
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, Config
from siltstone.base.errors import CorruptFileError, UnsafeFileError
from siltstone.base.records.codecs import DEFAULT_LIMIT, LIMIT_SETTING, Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, Flags, delete_horizons
from siltstone.compaction import report
from siltstone.compaction.inplace import plan
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import GroupReport
from siltstone.compaction.work import (
    IO_LIMIT,
    Group,
    LogWork,
    RetentionRules,
    TaskLimits,
    batch_slices,
    share_of_io,
)
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import Checkpoints, LogDirectory
from siltstone.log.ledger.store import uncovered
from siltstone.log.lookup import batch_headers
from siltstone.log.names import CLUSTER_METADATA, LOG_START_CHECKPOINT, STAGING, TopicPartition
from siltstone.log.overflow import overflowed
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.replacement import swap_leftovers
from siltstone.log.segments import (
    Segment,
    first_batch_timestamp,
    has_message_sets,
    largest_timestamp,
    list_segments,
    unchanged,
    windows,
)
from siltstone.log.transactions import transaction_indexes

# Delete horizons (KIP-534): tombstones that a cleaning can remove although nothing new was written.
#
# A cleaning writes a delete horizon into a batch with tombstones or a marker: attribute bit 6, and the time
# as its base timestamp. Kafka cleans an idle log never again, so that its tombstones stay. Here a log is
# eligible as well when all its horizons have passed and a tombstone or marker is there to be removed.
#
# This reads the headers of the clean section. The horizon stays in a batch whose tombstones were removed, so
# batches with a passed horizon are decoded too: else such a log would be cleaned again and again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizons:
    """Delete horizons of a log's clean section: ``newest_ms`` is the latest, None without any.

    ``is_due``: all have passed, and there is a tombstone or a marker that a cleaning removes.
    """

    newest_ms: int | None = None
    is_due: bool = False


def find_horizons(
    segments: Sequence[Segment],
    end: int,
    now_ms: int,
    tombstones_from: int = LONG_MAX,
    batch_limit: int = DEFAULT_LIMIT,
) -> Horizons:
    """Find the delete horizons below offset ``end``, as of ``now_ms``; tombstones from ``tombstones_from`` on
    stay.

    ``batch_limit``: the most bytes that one batch may decompress to. Raises CorruptFileError, OSError.
    """
    newest_in = {segment: _newest_in(segment) for segment in segments if segment.base_offset < end}
    stamped = {segment: newest for segment, newest in newest_in.items() if newest is not None}
    newest = max(stamped.values(), default=None)
    if newest is None or newest > now_ms:
        return Horizons(newest_ms=newest)
    due = (_has_something_to_remove(segment, tombstones_from, batch_limit) for segment in stamped)
    return Horizons(newest_ms=newest, is_due=any(due))


def _has_horizon(batches: BatchHeaders) -> Flags:
    """Batches with a delete horizon (bool); not those that were emptied."""
    return np.asarray(delete_horizons(batches) & (batches["count"] > 0))


def _newest_in(segment: Segment) -> int | None:
    with files.Reader(segment.path) as reader:
        parts = [
            batches["base_timestamp"][_has_horizon(batches)]
            for batches in batch_headers(reader, end=segment.size)
        ]
    return max((int(part.max()) for part in parts if len(part)), default=None)


def _has_something_to_remove(segment: Segment, tombstones_from: int, limit: int) -> bool:
    scratch = Scratch()
    with unchanged(segment) as reader:
        for window in windows(reader):
            batches = window.batches[np.flatnonzero(_has_horizon(window.batches))]
            if not len(batches):
                continue
            if (batches["attributes"] & CONTROL_BIT).any():
                return True
            batches = batches[batches["last_offset"] < tombstones_from]
            for data, rows, path, origin in batch_slices(segment.path, replace(window, batches=batches)):
                columns = decode_records(data, rows, scratch, limit=limit, path=path, origin=origin)
                if ((columns.value_size < 0) & (columns.key_size >= 0)).any():
                    return True
    return False


TASK_MEMORY_FACTOR = 4
"""A task has so many times ``log.cleaner.dedupe.buffer.size`` for keys, since each bucket costs a task."""
OVERFLOWED = (
    "has offsets more than 2147483647 above its base; clean --in-place splits it, without --keep-originals, "
    "and recover --check does"
)
NO_HIGH_WATERMARK = (
    "no entry in replication-offset-checkpoint, so nothing says what is committed; "
    "say --high-watermark end if the log has no other replica"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The operator's choices that planning needs. ``map_end``: see ``RetentionRules``; only tests set it.

    ``high_watermark_is_end``: logs without an entry in ``replication-offset-checkpoint`` have no other
    replica. ``tasks_at_once``: how many tasks share ``log.cleaner.io.max.bytes.per.second``, by default the
    number of cores.
    """

    now_ms: int
    force: bool = False
    drop_keyless: bool = False
    high_watermark_is_end: bool = False
    map_end: int = LONG_MAX
    tasks_at_once: int = os.cpu_count() or 1

    def committed_below(self, where: TopicPartition, checkpoints: Checkpoints) -> int | None:
        """See ``Checkpoints.committed_below``."""
        return checkpoints.committed_below(where, no_other_replica=self.high_watermark_is_end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenLog:
    """A snapshot of an open log, used instead of its files: ``segments``, the active one last.

    ``checkpoints``: its own entries; the high watermark is low enough that all below it is stable and
    durable.
    """

    segments: tuple[Segment, ...]
    producers: ProducerStates
    checkpoints: Checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """One log of a run, with its settings. ``config`` is None if no policy is known.

    ``opened``: its snapshot if the log is open. ``refused``: why the log is not cleaned. ``drop_keyless``:
    the broker's policy for the topic compacts, so keyless records are discarded as the broker does.
    ``defaults_hold``: settings without a value have Kafka's defaults at the broker, too.
    """

    where: TopicPartition
    path: Path
    directory: LogDirectory
    config: Config | None
    opened: OpenLog | None = None
    refused: str | None = None
    drop_keyless: bool = False
    defaults_hold: bool = False

    def checkpoints(self) -> Checkpoints:
        """The log's checkpoints. Raises CorruptFileError, OSError."""
        return self.directory.checkpoints() if self.opened is None else self.opened.checkpoints

    def segments(self) -> Sequence[Segment]:
        """Its segments, the active one last. Raises UnsafeFileError, OSError."""
        return list_segments(self.path, owned=True) if self.opened is None else self.opened.segments


@dataclass(slots=True, kw_only=True, eq=False)
class Planned:
    """A log that will be cleaned: its work, and its result so far.

    ``uncleaned``: the segments above the cleaned range, empty for an open log. ``began``: when the work
    began, by ``time.perf_counter``; 0 before. ``accepted``: the groups that are in the destination.
    """

    state: LogState
    work: LogWork
    result: LogResult
    uncleaned: tuple[Segment, ...]
    began: float = 0.0
    accepted: list[GroupReport] = field(default_factory=list)


def open_result(state: LogState, segments: Sequence[Segment] | None = None) -> LogResult:
    """A result with the size of ``segments``, by default of those on disk. Raises UnsafeFileError,
    OSError."""
    segments = state.segments() if segments is None else segments
    size = sum(segment.size for segment in segments)
    return LogResult(
        topic=state.where.topic,
        partition=state.where.partition,
        directory=str(state.path),
        bytes_before=size,
        bytes_after=size,
        segments_before=len(segments),
        segments_after=len(segments),
        settings=state.config.settings() if state.config is not None else {},
    )


def _skipped(state: LogState, reason: str) -> LogResult:
    """The result of a log whose settings exclude it: unsafe files are no failure of the run then."""
    try:
        segments = state.segments()
    except UnsafeFileError:
        segments = ()
    return open_result(state, segments).stop(report.SKIPPED, reason)


def refusal(state: LogState, segments: Sequence[Segment] | None = None) -> str | None:
    """Why the log is skipped whatever is in it, or None. ``segments``: listed if not given.

    Raises UnsafeFileError, OSError.
    """
    reason = _refusal_by_settings(state)
    if reason is not None:
        return reason
    wide = [] if state.opened else overflowed(state.segments() if segments is None else segments)
    if wide:
        return f"{wide[0].path}: {OVERFLOWED}"
    left = swap_leftovers(state.path)
    if left:
        return f"an interrupted swap is unfinished ({left[0]}): start the broker, or clean --in-place"
    return None


def _refusal_by_settings(state: LogState) -> str | None:
    """Why the log is skipped by its settings, or None; reads no file."""
    if state.where.topic == CLUSTER_METADATA:
        return "the cluster's own metadata log is never touched"
    if state.refused is not None:
        return state.refused
    if state.config is None or "compact" not in state.config.policies:
        return "cleanup.policy=" + (",".join(state.config.policies) if state.config else "delete")
    if state.config.flag("remote.storage.enable"):
        return "remote.storage.enable=true: tiered logs are left alone"
    return None


def plan_log(
    state: LogState, checkpoints: Checkpoints, choices: Choices, staging: Path | None
) -> Planned | LogResult:
    """Plan one log's cleaning. ``staging``: folder for new files, None for a dry run.

    Raises CorruptFileError, UnsafeFileError, OSError.
    """
    reason = _refusal_by_settings(state)
    if reason is not None:
        return _skipped(state, reason)
    segments = state.segments()
    result = open_result(state, segments)
    reason = refusal(state, segments)
    if reason is not None:
        return result.stop(report.SKIPPED, reason)
    read_topic_id(state.path)
    committed_below = choices.committed_below(state.where, checkpoints)
    if committed_below is None:
        return result.stop(report.SKIPPED, NO_HIGH_WATERMARK)
    if not segments:
        return result.stop(report.NOTHING_TO_DO, "the directory holds no segments")
    producers = state.opened.producers if state.opened else load_producers(state.path, segments)
    _refuse_start_beyond(state, checkpoints, segments, producers.end_offset)
    facts = log_facts(state, checkpoints, segments, producers, committed_below)
    return _decide(state, choices, staging, result, segments, producers, facts)


def _refuse_start_beyond(
    state: LogState, checkpoints: Checkpoints, segments: Sequence[Segment], end_offset: int
) -> None:
    """Refuse a log start above the log's end, with which retention would delete the whole log.

    No broker writes one, though its start accepts one (``LogLoader``), so the operator has to decide. An
    empty log has nothing to delete. (The end may be below the start after a truncation inside a batch.)
    """
    start = checkpoints.log_start.get(state.where, 0)
    if start > end_offset and state.opened is None and any(segment.size for segment in segments):
        raise CorruptFileError(
            str(state.directory.path / LOG_START_CHECKPOINT),
            0,
            f"the log start of {state.where}, {start}, is above the log's end, {end_offset}; mend the entry, "
            "or let siltstone recover (or the broker) empty the log",
        )


def log_facts(
    state: LogState,
    checkpoints: Checkpoints,
    segments: Sequence[Segment],
    producers: ProducerStates,
    committed_below: int,
) -> plan.LogFacts:
    """The facts of a log with settings, for ``plan``. ``committed_below``: an offset, see ``Checkpoints``.

    Raises CorruptFileError, OSError.
    """
    bounds = [committed_below, producers.first_open_transaction(), producers.end_offset]
    bounds.append(uncovered(state.path).clean_below)
    assert state.config is not None
    lagging = state.config.integer("min.compaction.lag.ms") > 0
    hurried = state.config.setting("max.compaction.lag.ms").value != LONG_MAX
    return plan.LogFacts(
        segments=[_segment_facts(segment, lagging, hurried) for segment in segments],
        log_start_offset=max(checkpoints.log_start.get(state.where, 0), segments[0].base_offset),
        log_end_offset=producers.end_offset,
        stable_offset=min(bound for bound in bounds if bound is not None),
        checkpoint=checkpoints.cleaner.get(state.where),
    )


def _segment_facts(segment: Segment, lagging: bool, hurried: bool) -> plan.PlanSegment:
    return plan.PlanSegment(
        base_offset=segment.base_offset,
        size=segment.size,
        offset_index_size=segment.offset_index_size,
        time_index_size=segment.time_index_size,
        modified_ms=segment.modified_ms,
        largest_timestamp=largest_timestamp(segment) if lagging else 0,
        first_timestamp=first_batch_timestamp(segment) if hurried else None,
    )


def lag_limits(config: Config) -> plan.LagLimits:
    """The compaction lags of a log with these settings."""
    return plan.LagLimits(
        min_ms=config.integer("min.compaction.lag.ms"), max_ms=config.integer("max.compaction.lag.ms")
    )


def _decide(
    state: LogState,
    choices: Choices,
    staging: Path | None,
    result: LogResult,
    segments: Sequence[Segment],
    producers: ProducerStates,
    facts: plan.LogFacts,
) -> Planned | LogResult:
    assert state.config is not None
    cleanable = plan.cleanable_range(facts, lag_limits(state.config), choices.now_ms)
    if choices.map_end < cleanable.end:
        cleanable = replace(
            cleanable, end=min(s.base_offset for s in segments if s.base_offset >= choices.map_end)
        )
    result.first_dirty_offset, result.cleaned_end_offset = cleanable.first_dirty, cleanable.first_dirty
    result.dirty_ratio = cleanable.dirty_ratio
    if cleanable.reset:
        result.checkpoint_reset = cleanable.first_dirty
        result.notes.append(
            f"the cleaner checkpoint {facts.checkpoint} is outside the log: reset to {cleanable.first_dirty}"
        )
    why_not_now = _ineligible(state.config, choices, cleanable)
    if why_not_now is not None:
        tombstones_from, limit = uncovered(state.path).tombstones_from, state.config.integer(LIMIT_SETTING)
        if not find_horizons(segments, cleanable.clean_end, choices.now_ms, tombstones_from, limit).is_due:
            return result.stop(*why_not_now)
        result.notes.append("the delete horizons of all its tombstones have passed")
        if cleanable.end <= cleanable.first_dirty:
            cleanable = replace(cleanable, first_dirty=cleanable.clean_end, end=cleanable.clean_end)
    work = _work(state, choices, staging, segments, facts, cleanable, producers)
    result.cleaned_end_offset = max(min(cleanable.end, choices.map_end), result.first_dirty_offset)
    result.groups = len(work.groups)
    rest = () if state.opened else work.uncleanable_segments
    return Planned(state=state, work=work, result=result, uncleaned=rest)


def _ineligible(config: Config, choices: Choices, cleanable: plan.CleanableRange) -> tuple[str, str] | None:
    """Status and reason of a log whose dirty section is not eligible now, else None."""
    if cleanable.end <= cleanable.first_dirty or not cleanable.cleanable_bytes:
        return report.NOTHING_TO_DO, "nothing that may be cleaned lies above the cleaner checkpoint"
    ratio = config.number("min.cleanable.dirty.ratio")
    if choices.force or plan.is_eligible(cleanable, ratio):
        return None
    reason = f"dirty ratio {cleanable.dirty_ratio:.3f} is not over min.cleanable.dirty.ratio={ratio:g}"
    return report.NOT_ELIGIBLE, f"{reason}; --force cleans it"


def _work(
    state: LogState,
    choices: Choices,
    staging: Path | None,
    segments: Sequence[Segment],
    facts: plan.LogFacts,
    cleanable: plan.CleanableRange,
    producers: ProducerStates,
) -> LogWork:
    config = state.config
    assert config is not None
    limits = plan.GroupLimits(
        segment_bytes=config.integer("segment.bytes"), index_bytes=config.integer("segment.index.bytes")
    )
    below = tuple(segment for segment in segments if segment.base_offset < cleanable.end)
    cleaned = [segment for segment in facts.segments if segment.base_offset < cleanable.end]
    alive = [
        (entry.producer_id, entry.last_offset, entry.producer_epoch)
        for entry in producers.active(choices.now_ms, config.integer("producer.id.expiration.ms"))
    ]
    retention_ms = config.integer("delete.retention.ms")
    return LogWork(
        name=str(state.where),
        segments=below,
        groups=_groups(plan.group_segments(cleaned, cleanable.end, limits), cleanable.end),
        first_dirty=cleanable.first_dirty,
        end=cleanable.end,
        rules=RetentionRules(
            now_ms=choices.now_ms,
            delete_retention_ms=retention_ms,
            last_offset=min(cleanable.end, choices.map_end) - 1,
            producers=np.array(alive, np.int64).reshape(-1, 3),
            map_end=choices.map_end,
            tombstones_from=uncovered(state.path).tombstones_from,
            legacy_horizon_ms=plan.legacy_delete_horizon(facts.segments, cleanable.first_dirty, retention_ms),
            drop_keyless=choices.drop_keyless or state.drop_keyless,
        ),
        limits=_limits(config, choices.tasks_at_once),
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
        staging=None if staging is None else str(staging),
        aborted=transaction_indexes(segments, None if state.opened else producers.end_offset),
        uncleanable_segments=tuple(segment for segment in segments if segment.base_offset >= cleanable.end),
        message_sets=any(has_message_sets(segment) for segment in below if segment.size),
    )


def _limits(config: Config, tasks_at_once: int) -> TaskLimits:
    return TaskLimits(
        index_interval=config.integer("index.interval.bytes"),
        index_bytes=config.integer("segment.index.bytes"),
        window_size=config.integer("log.cleaner.io.buffer.size"),
        memory_bytes=TASK_MEMORY_FACTOR * config.integer("log.cleaner.dedupe.buffer.size"),
        batch_limit=config.integer(LIMIT_SETTING),
        io_bytes_per_second=share_of_io(config.number(IO_LIMIT), tasks_at_once),
    )


def _groups(grouped: Sequence[Sequence[plan.PlanSegment]], end: int) -> tuple[Group, ...]:
    firsts = [0, *itertools.accumulate(map(len, grouped))]
    bases = [*(members[0].base_offset for members in grouped), end]
    return tuple(
        Group(
            index=index,
            first_segment=firsts[index],
            end_segment=firsts[index + 1],
            base_offset=bases[index],
            end_offset=bases[index + 1],
        )
        for index in range(len(grouped))
    )


def mismatched_topic_ids(states: Sequence[LogState]) -> dict[TopicPartition, str]:
    """Partitions whose topic has several topic ids in its ``partition.metadata`` files, with the reason.

    Some of them are left from a deleted topic of the same name; the files do not say which.
    """
    ids: dict[str, dict[str, list[TopicPartition]]] = {}
    for state in states:
        if state.refused is not None:
            continue
        try:
            topic_id = read_topic_id(state.path)
        except (CorruptFileError, OSError):
            continue
        if topic_id is not None:
            ids.setdefault(state.where.topic, {}).setdefault(topic_id, []).append(state.where)
    return {
        where: f"its topic id is {topic_id}, but other partitions of the topic have another"
        for by_id in ids.values()
        if len(by_id) > 1
        for topic_id, partitions in by_id.items()
        for where in partitions
    }


def staging_folder(partition: Path, run: str) -> Path:
    """The folder in a partition directory where a run's tasks write."""
    return partition / STAGING / run
