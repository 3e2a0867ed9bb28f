"""The range of offsets that a cleaning covers, and its segment groups: pure functions.

They answer to ``LogCleanerManager.cleanableOffsets``, ``LogToClean`` and ``Cleaner.groupSegmentsBySize``.

::

    log start      first dirty (checkpoint)      first uncleanable       end
        │ clean section│        dirty section        │    uncleanable    │
        └──────────────┴─────────────────────────────┴───────────────────┘

A record of the clean or the dirty section is superseded by a later record of its key in the dirty section. No
file is read here: ``compaction.inplace.planning`` reads files, and plans with these functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from siltstone.base.config import INT_MAX, LONG_MAX, Config, LogConfig
from siltstone.compaction.work import Group, groups_from

KAFKA_MAP_ENTRY_BYTES = 24
"""An entry of Kafka's map: 16 bytes of MD5 and an 8-byte offset."""


class PlanSegment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A segment as planning sees it: sizes in bytes, times in ms.

    ``first_timestamp``: the largest timestamp of its first batch, None without one or if it is not needed.
    ``largest_timestamp``: the modification time if the segment has no timestamps; 0 if it is not needed.
    """

    base_offset: int
    size: int
    offset_index_size: int = 0
    time_index_size: int = 0
    modified_ms: int = 0
    largest_timestamp: int = 0
    first_timestamp: int | None = None


class LogFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A log as planning sees it. ``segments`` ascend; the last one is active.

    ``checkpoint``: the log's entry in the cleaner checkpoint, None without one. ``clean_below``: nothing at
    or above it may be cleaned (``planning.clean_below``).
    """

    segments: Sequence[PlanSegment]
    log_start_offset: int
    log_end_offset: int
    clean_below: int
    checkpoint: int | None = None


class CleanableRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The range of offsets that may be cleaned, and the bytes of its sections.

    ``first_dirty``: the first dirty offset. ``end``: the first uncleanable offset, always a segment's base
    offset; if it is not above ``first_dirty``, the dirty section is empty. ``clean_end``: the end of the
    segments of the clean section, which may be cleaned once more for their tombstones. ``clean_bytes``,
    ``cleanable_bytes``: bytes of the clean and of the dirty section. ``is_checkpoint_reset``: the checkpoint
    is outside the log, and has to be written anew even if nothing is cleaned. ``is_overdue``: the oldest
    dirty record has waited longer than ``max.compaction.lag.ms``; ``overdue_ms``: by how much.
    """

    first_dirty: int
    end: int
    clean_end: int
    clean_bytes: int
    cleanable_bytes: int
    is_checkpoint_reset: bool
    is_overdue: bool
    overdue_ms: int = 0

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes over clean and dirty bytes; 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def first_dirty_offset(facts: LogFacts) -> tuple[int, bool]:
    """(The first dirty offset, whether the checkpoint is outside the log and is reset to the log's start)."""
    if facts.checkpoint is None:
        return facts.log_start_offset, False
    if facts.checkpoint < facts.log_start_offset or facts.checkpoint > facts.log_end_offset:
        return facts.log_start_offset, True
    return facts.checkpoint, False


def segments_between(segments: Sequence[PlanSegment], start: int, end: int) -> Sequence[PlanSegment]:
    """The segments that may hold offsets of [start, end); the first one holds ``start``."""
    first = max(
        (number for number, segment in enumerate(segments) if segment.base_offset <= start), default=0
    )
    return [segment for segment in segments[first:] if segment.base_offset < end] if start < end else []


def cleanable_range(facts: LogFacts, config: LogConfig, now_ms: int) -> CleanableRange:
    """The range that may be cleaned at ``now_ms`` (``LogCleanerManager.cleanableOffsets``, ``LogToClean``).

    Of ``config`` the minimum and the maximum compaction lag are used.
    """
    # 1. The segments from the checkpoint up to the active one. Some may be uncleanable: step 3 cuts them off.
    first_dirty, is_reset = first_dirty_offset(facts)
    active = facts.segments[-1].base_offset
    if len(facts.segments) == 1:
        return _range_of_active_only(facts, first_dirty, is_reset=is_reset)
    dirty = segments_between(facts.segments, first_dirty, active)
    # 2. Kafka's first uncleanable offset is the least of these: the last stable offset, the active segment's
    #    base, and the base of the first dirty segment with a record younger than min.compaction.lag.ms.
    bounds = [facts.clean_below, active]
    if config.min_compaction_lag_ms > 0:
        lag_start_ms = now_ms - config.min_compaction_lag_ms
        young_bases = (segment.base_offset for segment in dirty if segment.largest_timestamp > lag_start_ms)
        bounds += itertools.islice(young_bases, 1)
    # 3. Segments are cleaned as a whole, so the end goes down to the base of the segment that holds that
    #    offset (``calculateCleanableBytes``), but not below the segment of the first dirty offset.
    bases = [segment.base_offset for segment in facts.segments]
    end = max((base for base in bases if base <= max(first_dirty, min(bounds))), default=active)
    overdue_ms = _compaction_delay_ms(dirty, config.max_compaction_lag_ms, now_ms)
    return CleanableRange(
        first_dirty=first_dirty,
        end=end,
        clean_end=max((base for base in bases if base <= min(first_dirty, *bounds)), default=bases[0]),
        clean_bytes=sum(segment.size for segment in facts.segments if segment.base_offset < first_dirty),
        cleanable_bytes=sum(
            segment.size for segment in segments_between(facts.segments, min(first_dirty, end), end)
        ),
        is_checkpoint_reset=is_reset,
        is_overdue=overdue_ms > 0,
        overdue_ms=overdue_ms,
    )


def _range_of_active_only(facts: LogFacts, first_dirty: int, *, is_reset: bool) -> CleanableRange:
    """``cleanable_range`` of a log whose only segment is the active one, without the work that a broker with
    many such logs would repeat for each: nothing may be cleaned, and the segment counts as clean if the
    checkpoint is above its base offset."""
    active = facts.segments[0]
    return CleanableRange(
        first_dirty=first_dirty,
        end=active.base_offset,
        clean_end=active.base_offset,
        clean_bytes=active.size if active.base_offset < first_dirty else 0,
        cleanable_bytes=0,
        is_checkpoint_reset=is_reset,
        is_overdue=False,
    )


def oldest_dirty_ms(dirty: Sequence[PlanSegment]) -> int | None:
    """The time in ms from which ``max.compaction.lag.ms`` counts: the earliest timestamp of a dirty segment's
    first batch, or the first dirty segment's modification time if no batch has one. None if nothing is
    dirty."""
    if not dirty:
        return None
    first_timestamps = [segment.first_timestamp for segment in dirty if segment.first_timestamp is not None]
    return min(first_timestamps) if first_timestamps else dirty[0].modified_ms


def _compaction_delay_ms(dirty: Sequence[PlanSegment], max_lag_ms: int, now_ms: int) -> int:
    """By how many ms the oldest dirty record exceeds the maximum lag, 0 if it does not
    (``LogCleanerManager.maxCompactionDelay``)."""
    earliest_ms = oldest_dirty_ms(dirty)
    return 0 if earliest_ms is None else max(now_ms - max_lag_ms - earliest_ms, 0)


def missing_bytes(cleanable: CleanableRange, min_dirty_ratio: float) -> int | None:
    """How many more dirty bytes bring the dirty ratio over ``min_dirty_ratio``: 0 if it is over that already,
    None if no number does (the ratio is never over 1)."""
    if cleanable.dirty_ratio > min_dirty_ratio:
        return 0
    if min_dirty_ratio >= 1:
        return None
    # dirty / (clean + dirty) > ratio, if dirty > ratio * clean / (1 - ratio)
    needed = int(min_dirty_ratio * cleanable.clean_bytes / (1 - min_dirty_ratio)) + 1
    return max(needed - cleanable.cleanable_bytes, 1)


def is_eligible(cleanable: CleanableRange, min_dirty_ratio: float) -> bool:
    """Is the dirty ratio over ``min_dirty_ratio``, or is a record overdue?"""
    return cleanable.dirty_ratio > min_dirty_ratio or (cleanable.is_overdue and cleanable.cleanable_bytes > 0)


def group_segments(segments: Sequence[PlanSegment], end: int, config: LogConfig) -> tuple[Group, ...]:
    """The segment groups: neighbours that fit one segment by their sizes before the cleaning
    (``groupSegmentsBySize``).

    ``segments``: the log's segments below ``end``, the first uncleanable offset. ``config``: its
    ``segment.bytes`` and ``segment.index.bytes`` are the limits of a group.
    """
    bases = [*(segment.base_offset for segment in segments), end]
    first_segments: list[int] = []
    for number in range(len(segments)):
        last_offset = bases[number + 1] - 1
        if not first_segments or not _fit_one_segment(
            segments[first_segments[-1] : number + 1], last_offset, config
        ):
            first_segments.append(number)
    return groups_from(first_segments, bases)


def _fit_one_segment(group: Sequence[PlanSegment], last_offset: int, config: LogConfig) -> bool:
    """Do the segments of ``group`` fit one segment? ``last_offset``: the last offset that the last of them
    may hold."""
    return (
        sum(segment.size for segment in group) <= config.segment_bytes
        and sum(segment.offset_index_size for segment in group) <= config.segment_index_bytes
        and sum(segment.time_index_size for segment in group) <= config.segment_index_bytes
        # An index has offsets as int32 deltas to the base offset. An empty segment joins all the same, as in
        # Kafka: it has no offsets to index, and would stay for ever otherwise.
        and (group[-1].size == 0 or last_offset - group[0].base_offset <= INT_MAX)
    )


def legacy_delete_horizon(segments: Sequence[PlanSegment], first_dirty: int, delete_retention_ms: int) -> int:
    """For message sets (v0, v1): tombstones stay in segments that were modified after this time, in ms.

    The last clean segment's modification time less the retention; 0 when there is no clean segment
    (``legacyDeleteHorizonMs`` of Kafka's ``Cleaner.doClean``).
    """
    clean = [segment for segment in segments if segment.base_offset < first_dirty]
    return clean[-1].modified_ms - delete_retention_ms if clean else 0


def kafka_map_keys(config: Config) -> int:
    """How many keys Kafka's map holds with these settings (``log.cleaner.dedupe.buffer.size`` a thread)."""
    slots = config.integer("log.cleaner.dedupe.buffer.size") // KAFKA_MAP_ENTRY_BYTES
    return int(slots * config.number("log.cleaner.io.buffer.load.factor"))


def kafka_buffer_bytes_for_keys(keys: int, load_factor: float) -> int:
    """The smallest ``log.cleaner.dedupe.buffer.size`` with which Kafka's map holds ``keys`` keys: bytes, at
    most the largest value of a setting."""
    slots = keys / load_factor if load_factor else math.inf
    maximum = LONG_MAX // KAFKA_MAP_ENTRY_BYTES
    return (math.ceil(slots) if slots < maximum else maximum) * KAFKA_MAP_ENTRY_BYTES


def kafka_passes(keys: int, map_keys: int) -> int:
    """How many times Kafka's cleaner would have to clean a log with ``keys`` distinct dirty keys, if its map
    holds ``map_keys`` of them at the same time."""
    return max(1, math.ceil(keys / max(map_keys, 1)))
