"""What planning wants to know of logs that are open: from memory where it is asked of all logs at every
round, from the disk only for those that are to be cleaned (Kafka's
``LogCleanerManager.grabFilthiestCompactedLog``).

Of an open log nothing may be cleaned that is not flushed: a crash must not take from a source what a cleaned
segment above it has superseded. So the recovery point bounds the range as well as the high watermark and the
last stable offset do.
"""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.cleaner import plan
from siltstone.cleaner.facts import LogState, OpenLog
from siltstone.config import LONG_MAX, Config, LogConfig
from siltstone.log.directory import Checkpoints
from siltstone.log.fetch import LogView
from siltstone.log.ledger.uncovered import uncovered
from siltstone.log.live_segment import LiveSegment
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.segments import Segment, find_segment
from siltstone.log.service.served_directory import ServedDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An open log that the cleaner may have a look at, and what of it may be cleaned now."""

    served: ServedDirectory
    log: PartitionLog
    range: plan.CleanableRange

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.where

    @property
    def is_eligible(self) -> bool:
        """Is it so dirty, or has it waited so long, that it is to be cleaned?"""
        dirty = self.range.end > self.range.first_dirty and self.range.cleanable_bytes > 0
        return dirty and plan.is_eligible(self.range, self.log.config.min_cleanable_dirty_ratio)

    @property
    def size(self) -> int:
        """Bytes that a cleaning reads."""
        return sum(each.size for each in self.log.view.segments if each.base_offset < self.range.end)

    @property
    def clean_end(self) -> int:
        """Below this offset lies what of the clean part may be cleaned again."""
        return self.range.clean_end


def candidate(
    served: ServedDirectory, log: PartitionLog, checkpoint: int | None, now_ms: int
) -> Candidate | None:
    """The log as a candidate, None where its settings keep the cleaner away. Raises OSError."""
    config, view = log.config, log.view
    if not config.compacts or config.remote_storage_enable:
        return None
    lag = plan.LagLimits(min_ms=config.min_compaction_lag_ms, max_ms=config.max_compaction_lag_ms)
    bound = min(log.recovery_point, uncovered(log.directory).clean_below)
    found = plan.cleanable_range(_facts(view, config, bound, checkpoint), lag, now_ms)
    return Candidate(served=served, log=log, range=found)


def _facts(view: LogView, config: LogConfig, durable: int, checkpoint: int | None) -> plan.LogFacts:
    """Timestamps only of what is dirty: they may have to be read from the files."""
    following = [segment.base_offset for segment in view.segments[1:]] + [view.log_end_offset]
    dirty_from = checkpoint if checkpoint is not None else view.log_start_offset
    return plan.LogFacts(
        segments=[
            _segment_facts(segment, view.size_of(number), config, is_dirty=following[number] > dirty_from)
            for number, segment in enumerate(view.segments)
        ],
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        stable_offset=min(view.last_stable_offset, view.high_watermark, durable),
        checkpoint=checkpoint,
    )


def _segment_facts(
    segment: LiveSegment, size: int, config: LogConfig, *, is_dirty: bool
) -> plan.SegmentFacts:
    hurried = is_dirty and config.max_compaction_lag_ms != LONG_MAX
    first = segment.first_timestamp() if hurried else -1
    return plan.SegmentFacts(
        base_offset=segment.base_offset,
        size=size,
        modified_ms=segment.modified_ms if hurried else 0,
        largest_timestamp=segment.largest_timestamp if is_dirty and config.min_compaction_lag_ms > 0 else 0,
        first_timestamp=first if first > 0 else None,
    )


def segments_below(log: PartitionLog, end: int) -> list[Segment]:
    """The closed segments below ``end`` as they lie on the disk. Raises OSError."""
    below = [each.base_offset for each in log.view.segments[:-1] if each.base_offset < end]
    return [find_segment(log.directory, base) for base in below]


def log_state(served: ServedDirectory, log: PartitionLog, config: Config, checkpoint: int | None) -> LogState:
    """A claimed log for the planner. Raises OSError."""
    view, producers = log.at_one_moment()
    durable = min(view.last_stable_offset, view.high_watermark, log.recovery_point)
    opened = OpenLog(
        segments=tuple(find_segment(log.directory, each.base_offset) for each in view.segments),
        producers=producers,
        checkpoints=Checkpoints(
            cleaner={} if checkpoint is None else {log.where: checkpoint},
            recovery_point={},
            log_start={log.where: view.log_start_offset},
            high_watermark={log.where: durable},
        ),
    )
    return LogState(
        where=log.where, path=log.directory, directory=served.directory, config=config, opened=opened
    )
