"""Planning: collects what ``ranges`` needs, from a partition directory or an open log, and plans a cleaning.

``plan_log`` returns the work for an engine, or a result with the reason why the log is not cleaned
(``LogCleanerManager.grabFilthiestCompactedLog``, ``cleanableOffsets``). A log's bounds are decided here for
the planner, for ``clean --watch`` and for the embedded cleaner: ``clean_below`` and ``find_horizons``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, Config, LogConfig
from siltstone.base.errors import CorruptFileError, UnsafeFileError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, Flags, have_delete_horizons
from siltstone.compaction import report
from siltstone.compaction.inplace import ranges
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import GroupReport
from siltstone.compaction.work import IO_LIMIT, LogWork, RetentionRules, TaskLimits, batch_slices, share_of_io
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import Checkpoints, LogDirectory
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import cleaning_bounds
from siltstone.log.lookup import batch_headers
from siltstone.log.names import CLUSTER_METADATA, LOG_START_CHECKPOINT, STAGING, TopicPartition
from siltstone.log.overflow import overflowed_segments
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.replacement import swap_leftovers
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import (
    Segment,
    first_batch_timestamp,
    has_message_sets,
    largest_timestamp,
    list_segments,
    open_unchanged,
    windows,
)
from siltstone.log.transactions import read_transaction_indexes

# The bounds of a log: the offset from which on nothing is cleaned, and the offset from which on tombstones
# stay even when their delete horizon has passed, since the log's compacted ledger has not read them yet
# (``CleaningBounds``).
#
# A log with a compacted ledger (side-by-side compaction) is cleaned only as far as the compacted view stays
# the same: ``log.ledger.store.cleaning_bounds`` says how far. ``verify`` has code of its own for these rules,
# so that it does not repeat a mistake made here.


def clean_below(partition: Path, *bounds: int | None, may_have_ledger: bool = True) -> int:
    """The offset at and above which nothing may be cleaned: the least of ``bounds`` (None: no bound) and of
    the bound by the log's compacted ledger. ``may_have_ledger``: False if a listing of the directory has just
    shown that it has no folder of ledgers, so that no ledger has to be read. Raises OSError."""
    below = cleaning_bounds(partition).clean_below if may_have_ledger else LONG_MAX
    return min([bound for bound in (*bounds, below) if bound is not None])


# Delete horizons (KIP-534): tombstones that a cleaning can remove although nothing new was written.
#
# A cleaning writes a delete horizon into a batch with tombstones or a marker: attribute bit 6, and the time
# as its base timestamp. Kafka never cleans an idle log again, so that its tombstones stay. Here a log is also
# cleaned when all its horizons have passed, and there is a tombstone or a marker to remove:
#
#   1. Read the batch headers of the clean section for the newest horizon. Most logs have none, or it has not
#      passed: nothing is due.
#   2. If a batch with a horizon is a marker, a cleaning removes it: the log is due.
#   3. Else decode the batches with a horizon and look for a tombstone. The horizon stays in a batch whose
#      tombstones were removed, so without this step such a log would be cleaned again and again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizons:
    """Delete horizons of a log's clean section. ``newest_ms``: the latest one, None if no batch has one.

    ``is_due``: all have passed, and there is a tombstone or a marker that a cleaning removes.
    """

    newest_ms: int | None = None
    is_due: bool = False


NO_HORIZONS = Horizons()


def find_horizons(
    segments: Sequence[Segment], end: int, now_ms: int, batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT
) -> Horizons:
    """Find the delete horizons in a log's ``segments`` below offset ``end``, as of ``now_ms``.

    ``batch_limit``: the most bytes that one batch may decompress to. Raises CorruptFileError, OSError.
    """
    if not segments:
        return NO_HORIZONS
    newest_or_none = {segment: _newest_horizon(segment) for segment in segments if segment.base_offset < end}
    newest_by_segment = {segment: newest for segment, newest in newest_or_none.items() if newest is not None}
    newest = max(newest_by_segment.values(), default=None)
    if newest is None or newest > now_ms:
        return Horizons(newest_ms=newest)
    tombstones_from = cleaning_bounds(Path(segments[0].directory)).tombstones_from
    due = (_has_something_to_remove(segment, tombstones_from, batch_limit) for segment in newest_by_segment)
    return Horizons(newest_ms=newest, is_due=any(due))


def _has_horizon(batches: BatchHeaders) -> Flags:
    """Which batches have a delete horizon and records (bool)."""
    return np.asarray(have_delete_horizons(batches) & (batches["count"] > 0))


def _newest_horizon(segment: Segment) -> int | None:
    """The newest delete horizon of a segment in ms, None without one."""
    with files.Reader(segment.path) as reader:
        horizons = [
            batches["base_timestamp"][_has_horizon(batches)]
            for batches in batch_headers(reader, end=segment.size)
        ]
    return max((int(part.max()) for part in horizons if len(part)), default=None)


def _has_something_to_remove(segment: Segment, tombstones_from: int, batch_limit: int) -> bool:
    """Is there a marker, or a tombstone below offset ``tombstones_from``, with a delete horizon?"""
    scratch = Scratch()
    with open_unchanged(segment) as reader:
        for window in windows(reader):
            batches = window.batches[np.flatnonzero(_has_horizon(window.batches))]
            if not len(batches):
                continue
            if (batches["attributes"] & CONTROL_BIT).any():
                return True
            batches = batches[batches["last_offset"] < tombstones_from]
            for data, rows, path, origin in batch_slices(segment.path, replace(window, batches=batches)):
                columns = decode_records(data, rows, scratch, limit=batch_limit, path=path, origin=origin)
                if ((columns.value_size < 0) & (columns.key_size >= 0)).any():
                    return True
    return False


TASK_MEMORY_FACTOR = 4
"""The memory of a task for keys, as a multiple of ``log.cleaner.dedupe.buffer.size``. With more memory there
are fewer buckets, and fewer tasks."""
NOTHING_DIRTY = "nothing that may be cleaned lies above the cleaner checkpoint"
ONLY_ACTIVE = (
    "all records are in the active segment, which is never cleaned; a broker rolls it by segment.bytes or "
    "segment.ms, clean --in-place with --roll"
)
POLICY_UNKNOWN = (
    "policy unknown: name all log.dirs of the broker together, since one of them has the metadata log, or "
    "pass --broker-config, or --config cleanup.policy=POLICY"
)
"""Why a log is skipped whose ``cleanup.policy`` no source names."""
OVERFLOWED = (
    "offsets are more than 2147483647 above the segment's base offset; clean --in-place splits it (without "
    "--keep-originals), and so does recover --check"
)
UNKNOWN_COMMITTED = (
    "the log has no entry in replication-offset-checkpoint, so its committed records are not known"
)
HIGH_WATERMARK_ADVICE = "pass --high-watermark end if the log has no other replica"
NO_HIGH_WATERMARK = f"{UNKNOWN_COMMITTED}; {HIGH_WATERMARK_ADVICE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of a run that planning needs.

    ``force``: clean a log even if its dirty ratio is too low. ``drop_keyless``: discard records without a
    key; else a log with such records is not cleaned. ``high_watermark_is_end``: logs without an entry in
    ``replication-offset-checkpoint`` have no other replica, so all their records are committed.
    ``map_end``: see ``RetentionRules``; only tests set it. ``tasks_at_once``: how many tasks share
    ``log.cleaner.io.max.bytes.per.second``, by default the number of cores.
    """

    now_ms: int
    force: bool = False
    drop_keyless: bool = False
    high_watermark_is_end: bool = False
    map_end: int = LONG_MAX
    tasks_at_once: int = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenLog:
    """A snapshot of an open log, which planning uses instead of the log's files.

    ``segments``: the active one last. ``checkpoints``: only with the log's own entries. The high watermark in
    them is at most the end of the records that are on disk and in no open transaction.
    """

    segments: tuple[Segment, ...]
    producers: ProducerStates
    checkpoints: Checkpoints


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """One log of a run, with its settings. ``config`` is None if the topic's policy is not known.

    ``path``: the partition's directory, in the log directory ``directory``. ``opened``: the log's snapshot if
    the log is open in this process. ``refused``: why the log is not cleaned, None if it may be.
    ``drop_keyless``: the broker's policy for the topic compacts, so keyless records are discarded as the
    broker does. ``has_brokers_defaults``: the broker's settings are known, so a key that they do not set has
    Kafka's default. If they are not known, no segment is deleted because of a default.
    """

    topic_partition: TopicPartition
    path: Path
    directory: LogDirectory
    config: Config | None
    opened: OpenLog | None = None
    refused: str | None = None
    drop_keyless: bool = False
    has_brokers_defaults: bool = False

    @property
    def is_compacted(self) -> bool:
        """Is the topic's ``cleanup.policy`` known, and does it compact?"""
        return self.config is not None and "compact" in self.config.policies

    @property
    def may_be_cleaned(self) -> bool:
        """Does its topic compact, and is nothing known that refuses its cleaning?"""
        return self.is_compacted and self.refused is None

    def checkpoints(self) -> Checkpoints:
        """The log's checkpoints. Raises CorruptFileError, OSError."""
        return self.directory.checkpoints() if self.opened is None else self.opened.checkpoints

    def segments(self) -> Sequence[Segment]:
        """Its segments, the active one last. Raises UnsafeFileError, OSError."""
        return list_segments(self.path, require_owner=True) if self.opened is None else self.opened.segments


@dataclass(slots=True, kw_only=True, eq=False)
class PlannedLog:
    """A log that will be cleaned: its work for an engine, and its result so far.

    ``began``: when the work began, by ``time.perf_counter``; 0 before. ``committed``: the reports on the
    groups that are in the destination.
    """

    state: LogState
    work: LogWork
    result: LogResult
    began: float = 0.0
    committed: list[GroupReport] = field(default_factory=list)


def initial_result(state: LogState, segments: Sequence[Segment]) -> LogResult:
    """A result with the sizes of the log's segments before the cleaning."""
    size = sum(segment.size for segment in segments)
    return LogResult(
        topic=state.topic_partition.topic,
        partition=state.topic_partition.partition,
        directory=str(state.path),
        bytes_before=size,
        bytes_after=size,
        segments_before=len(segments),
        segments_after=len(segments),
        settings=state.config.settings() if state.config is not None else {},
    )


def _skipped(state: LogState, reason: str) -> LogResult:
    """The result of a log whose settings exclude it. Unsafe files in its directory are no failure then."""
    try:
        segments = state.segments()
    except UnsafeFileError:
        segments = ()
    return initial_result(state, segments).set_status(report.SKIPPED, reason)


def refusal(
    state: LogState, segments: Sequence[Segment] | None = None, listed: Iterable[str] | None = None
) -> str | None:
    """Why the log is skipped, by its settings or by files in its directory, before records are read; None if
    it is not. ``segments``: of the log, ``listed``: the names of its files; the directory is listed for those
    that are None.

    Raises UnsafeFileError, OSError.
    """
    reason = refusal_by_settings(state.topic_partition.topic, state.config, state.refused)
    if reason is not None:
        return reason
    if state.opened is None:
        too_wide = overflowed_segments(state.segments() if segments is None else segments)
        if too_wide:
            return f"{too_wide[0].path}: {OVERFLOWED}"
    leftovers = swap_leftovers(state.path, listed)
    if leftovers:
        return f"{leftovers[0]} is left of an interrupted swap; start the broker, or run clean --in-place"
    return None


def refusal_by_settings(topic: str, config: Config | None, refused: str | None = None) -> str | None:
    """Why the logs of a topic are skipped by its settings, None if they are not. ``refused``: as in
    ``LogState``. Reads no file."""
    if topic == CLUSTER_METADATA:
        return "the cluster's metadata log is never cleaned"
    if refused is not None:
        return refused
    if config is None:
        return POLICY_UNKNOWN
    if "compact" not in config.policies:
        return sys.intern(f"cleanup.policy={','.join(config.policies)}")  # one string for many logs
    if config.flag("remote.storage.enable"):
        return "remote.storage.enable=true: logs with tiered storage are not cleaned"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogInput:
    """A log as planning has read it. ``config``: the settings of ``state`` that a log uses, as
    attributes."""

    state: LogState
    config: LogConfig
    segments: Sequence[Segment]
    producers: ProducerStates
    facts: ranges.LogFacts


def plan_log(
    state: LogState, checkpoints: Checkpoints, options: PlanOptions, staging: Path | None
) -> PlannedLog | LogResult:
    """Plan one log's cleaning. ``staging``: folder for new files, None for a dry run.

    Raises CorruptFileError, UnsafeFileError, OSError.
    """
    # 1. Is the log skipped, whatever its records are?
    reason = refusal_by_settings(state.topic_partition.topic, state.config, state.refused)
    if reason is not None:
        return _skipped(state, reason)
    segments = state.segments()
    result = initial_result(state, segments)
    reason = refusal(state, segments)
    if reason is not None:
        return result.set_status(report.SKIPPED, reason)
    read_topic_id(state.path)  # raises if ``partition.metadata`` is damaged, as a broker's start does
    committed_below = checkpoints.committed_below(
        state.topic_partition, no_other_replica=options.high_watermark_is_end
    )
    if committed_below is None:
        return result.set_status(report.SKIPPED, NO_HIGH_WATERMARK)
    if not segments:
        return result.set_status(report.NOTHING_TO_DO, "the directory holds no segments")
    # 2. The range to clean.
    assert state.config is not None
    config = LogConfig.of(state.config)
    producers = state.opened.producers if state.opened else load_producers(state.path, segments)
    _refuse_start_beyond(state, checkpoints, segments, producers.end_offset)
    facts = log_facts(state, config, checkpoints, segments, producers, committed_below)
    log = _LogInput(state=state, config=config, segments=segments, producers=producers, facts=facts)
    cleanable = _range_to_clean(log, options, result)
    if cleanable is None:
        return result
    # 3. The work for an engine.
    work = _log_work(log, options, cleanable, staging)
    assert result.first_dirty_offset is not None
    result.cleaned_end_offset = max(min(cleanable.end, options.map_end), result.first_dirty_offset)
    result.groups = len(work.groups)
    return PlannedLog(state=state, work=work, result=result)


def _refuse_start_beyond(
    state: LogState, checkpoints: Checkpoints, segments: Sequence[Segment], end_offset: int
) -> None:
    """Refuse a log start above the log's end, with which retention would delete the whole log.

    No broker writes one, though its start accepts one (``LogLoader``), so the operator has to decide. An
    empty log has nothing to delete. An open log is not refused: a truncation inside a batch may leave its end
    below its start.
    """
    start = checkpoints.log_start.get(state.topic_partition, 0)
    if start > end_offset and state.opened is None and any(segment.size for segment in segments):
        raise CorruptFileError(
            str(state.directory.path / LOG_START_CHECKPOINT),
            0,
            f"the log start of {state.topic_partition}, {start}, is above the log's end, {end_offset}",
            advice="correct the entry, or let siltstone recover (or the broker) empty the log",
        )


def log_facts(
    state: LogState,
    config: LogConfig,
    checkpoints: Checkpoints,
    segments: Sequence[Segment],
    producers: ProducerStates,
    committed_below: int,
    *,
    may_have_ledger: bool = True,
) -> ranges.LogFacts:
    """A log as ``ranges`` needs it. ``committed_below``: records below this offset are committed
    (``Checkpoints.committed_below``). ``may_have_ledger``: see ``clean_below``.

    Raises CorruptFileError, OSError.
    """
    # Segments are opened for their times only where a lag is set.
    has_min_lag = config.min_compaction_lag_ms > 0
    has_max_lag = config.max_compaction_lag_ms != LONG_MAX
    return ranges.LogFacts(
        segments=[
            ranges.PlanSegment(
                base_offset=segment.base_offset,
                size=segment.size,
                offset_index_size=segment.offset_index_size,
                time_index_size=segment.time_index_size,
                modified_ms=segment.modified_ms,
                largest_timestamp=largest_timestamp(segment) if has_min_lag else 0,
                first_timestamp=first_batch_timestamp(segment) if has_max_lag else None,
            )
            for segment in segments
        ],
        log_start_offset=max(checkpoints.log_start.get(state.topic_partition, 0), segments[0].base_offset),
        log_end_offset=producers.end_offset,
        clean_below=clean_below(
            state.path,
            committed_below,
            producers.first_open_transaction(),
            producers.end_offset,
            may_have_ledger=may_have_ledger,
        ),
        checkpoint=checkpoints.cleaner.get(state.topic_partition),
    )


def facts_of_view(
    directory: Path, view: LogView, config: LogConfig, checkpoint: int | None, stable: int
) -> ranges.LogFacts:
    """``log_facts`` of a log that is open, or open for reading only: what its view has in memory is not read
    from files again.

    ``checkpoint``: the log's entry in the cleaner checkpoint, None without one; ``stable``: its last stable
    offset or a lower one, from which on nothing may be cleaned (a compacted ledger may set a lower bound).
    Raises OSError.
    """
    ends = [*(segment.base_offset for segment in view.segments[1:]), view.log_end_offset]
    first_dirty = checkpoint if checkpoint is not None else view.log_start_offset
    return ranges.LogFacts(
        segments=[
            _live_segment_facts(segment, view.size_of(number), config, is_dirty=end > first_dirty)
            for number, (segment, end) in enumerate(zip(view.segments, ends, strict=True))
        ],
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        clean_below=clean_below(directory, stable),
        checkpoint=checkpoint,
    )


def _live_segment_facts(
    segment: LiveSegment, size: int, config: LogConfig, *, is_dirty: bool
) -> ranges.PlanSegment:
    """The facts of one segment. Timestamps only if it is dirty and a compaction lag is set: they may have to
    be read from the files."""
    has_max_lag = is_dirty and config.max_compaction_lag_ms != LONG_MAX
    first = segment.first_timestamp() if has_max_lag else -1
    return ranges.PlanSegment(
        base_offset=segment.base_offset,
        size=size,
        modified_ms=segment.modified_ms if has_max_lag else 0,
        largest_timestamp=segment.largest_timestamp if is_dirty and config.min_compaction_lag_ms > 0 else 0,
        first_timestamp=first if first > 0 else None,  # Kafka, too, ignores times of 0 and below
    )


def _range_to_clean(log: _LogInput, options: PlanOptions, result: LogResult) -> ranges.CleanableRange | None:
    """The range to clean; None if the log is not cleaned, with the reason in ``result``."""
    config, facts = log.config, log.facts
    cleanable = ranges.cleanable_range(facts, config, options.now_ms)
    if options.map_end < cleanable.end:
        end = min(segment.base_offset for segment in log.segments if segment.base_offset >= options.map_end)
        cleanable = msgspec.structs.replace(cleanable, end=end)
    result.first_dirty_offset = result.cleaned_end_offset = cleanable.first_dirty
    result.dirty_ratio = cleanable.dirty_ratio
    if cleanable.is_checkpoint_reset:
        result.checkpoint_reset = cleanable.first_dirty
        result.notes.append(
            f"the cleaner checkpoint {facts.checkpoint} is outside the log: reset to {cleanable.first_dirty}"
        )
    # Kafka's rules first: is something dirty, and is it enough of the log, or has it waited too long?
    status_and_reason = _ineligible(config, options, cleanable, is_one_segment=len(facts.segments) == 1)
    if status_and_reason is None:
        return cleanable
    # A log that these rules leave alone is cleaned for its tombstones, if all delete horizons have passed.
    batch_limit = config.max_decompressed_message_bytes
    horizons = find_horizons(log.segments, cleanable.clean_end, options.now_ms, batch_limit)
    if not horizons.is_due:
        result.set_status(*status_and_reason)
        return None
    result.notes.append("the delete horizons of all its tombstones have passed")
    if cleanable.end <= cleanable.first_dirty:  # nothing is dirty: only the clean section is cleaned again
        end = cleanable.clean_end
        cleanable = msgspec.structs.replace(cleanable, first_dirty=end, end=end)
    return cleanable


def _ineligible(
    config: LogConfig, options: PlanOptions, cleanable: ranges.CleanableRange, *, is_one_segment: bool
) -> tuple[str, str] | None:
    """Status and reason of a log whose dirty section is not eligible now; None if it is."""
    if cleanable.end <= cleanable.first_dirty or not cleanable.cleanable_bytes:
        return report.NOTHING_TO_DO, ONLY_ACTIVE if is_one_segment else NOTHING_DIRTY
    ratio = config.min_cleanable_dirty_ratio
    if options.force or ranges.is_eligible(cleanable, ratio):
        return None
    reason = f"dirty ratio {cleanable.dirty_ratio:.3f}, not over min.cleanable.dirty.ratio={ratio:g}"
    return report.NOT_ELIGIBLE, f"{reason}; pass --force"


def _log_work(
    log: _LogInput, options: PlanOptions, cleanable: ranges.CleanableRange, staging: Path | None
) -> LogWork:
    """All that the tasks of a cleaning need to know of the log."""
    state, config, segments, facts = log.state, log.config, log.segments, log.facts
    segments_to_clean = tuple(segment for segment in segments if segment.base_offset < cleanable.end)
    active_producers = [
        (entry.producer_id, entry.last_offset, entry.producer_epoch)
        for entry in log.producers.active(options.now_ms, config.producer_id_expiration_ms)
    ]
    legacy_delete_horizon_ms = ranges.legacy_delete_horizon(
        facts.segments, cleanable.first_dirty, config.delete_retention_ms
    )
    assert state.config is not None
    return LogWork(
        name=str(state.topic_partition),
        segments=segments_to_clean,
        groups=ranges.group_segments(facts.segments[: len(segments_to_clean)], cleanable.end, config),
        first_dirty=cleanable.first_dirty,
        end=cleanable.end,
        rules=RetentionRules(
            now_ms=options.now_ms,
            delete_retention_ms=config.delete_retention_ms,
            last_offset=min(cleanable.end, options.map_end) - 1,
            producers=np.array(active_producers, np.int64).reshape(-1, 3),
            map_end=options.map_end,
            tombstones_from=cleaning_bounds(state.path).tombstones_from,
            legacy_delete_horizon_ms=legacy_delete_horizon_ms,
            drop_keyless=options.drop_keyless or state.drop_keyless,
        ),
        limits=TaskLimits(
            index_interval_bytes=config.index_interval_bytes,
            index_bytes=config.segment_index_bytes,
            window_size=state.config.integer("log.cleaner.io.buffer.size"),
            memory_bytes=TASK_MEMORY_FACTOR * state.config.integer("log.cleaner.dedupe.buffer.size"),
            batch_limit=config.max_decompressed_message_bytes,
            io_bytes_per_second=share_of_io(state.config.number(IO_LIMIT), options.tasks_at_once),
        ),
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
        staging=None if staging is None else str(staging),
        txnindex_entries=read_transaction_indexes(
            segments, None if state.opened else log.producers.end_offset
        ),
        segments_above=tuple(segments[len(segments_to_clean) :]),
        has_message_sets=any(has_message_sets(segment) for segment in segments_to_clean if segment.size),
    )


def mismatched_topic_ids(states: Sequence[LogState]) -> dict[TopicPartition, str]:
    """The partitions of topics whose ``partition.metadata`` files have several topic ids, and why these are
    not cleaned.

    Some of these partitions are left of a deleted topic of the same name; the files do not say which.
    """
    ids: dict[TopicPartition, str] = {}
    for state in states:
        with contextlib.suppress(CorruptFileError, OSError):
            topic_id = read_topic_id(state.path) if state.refused is None else None
            if topic_id is not None:
                ids[state.topic_partition] = topic_id
    topics_with_ids = {(topic_partition.topic, topic_id) for topic_partition, topic_id in ids.items()}
    ids_of_topic = Counter(topic for topic, _ in topics_with_ids)  # how many different ids a topic has
    return {
        topic_partition: f"its topic id is {topic_id}, but other partitions of the topic have another one; "
        "remove the partitions that are left of a deleted topic"
        for topic_partition, topic_id in ids.items()
        if ids_of_topic[topic_partition.topic] > 1
    }


def staging_folder(partition: Path, run: str) -> Path:
    """The folder in a partition directory where a run's tasks write."""
    return partition / STAGING / run
