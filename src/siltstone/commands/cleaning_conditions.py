"""Finds the conditions that decide whether a log is cleaned now: its cleanable range, and what holds records
back from it.

::

    log start     first dirty        first uncleanable         high watermark       end
        │  clean  │      dirty       │  held back              │         …          │
                                     └ the lowest of: active segment · high watermark ·
                                       open transaction · min lag · ledger

``Blocker`` says why a record is not in the range yet, and until when; ``ratio_sentence`` says why a log with
dirty records is not due. The rules are those of ``compaction.inplace.ranges``. An open log is bounded as the
embedded cleaner bounds it, a log that is only read by its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from siltstone.base.clock import time_text
from siltstone.base.config import LONG_MAX, Config, LogConfig
from siltstone.commands.explain_page import counted
from siltstone.commands.watch import CLEANING, WatchedLog
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.planning import Horizons, facts_of_view, find_horizons
from siltstone.log.ledger.store import CleaningBounds, cleaning_bounds
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadableLog, ReadOnlyLog
from siltstone.log.segments import find_segment
from siltstone.runtime.log_cleaner import durable_stable_offset
from siltstone.runtime.served_directory import Uncleanable

ACTIVE_SEGMENT, ABOVE_WATERMARK = "active_segment", "above_watermark"
OPEN_TRANSACTION, WITHIN_MIN_LAG = "open_transaction", "within_min_lag"
HELD_BY_LEDGER, NOT_FLUSHED = "held_by_ledger", "not_flushed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why the records from ``offset`` on (a segment's base) cannot be cleaned yet: a code, a sentence, and
    until when in ms, None if it does not end by itself."""

    code: str
    offset: int
    sentence: str
    until_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class CleaningConditions:
    """A log, and what decides whether it is cleaned at ``now_ms``.

    ``checkpoint``: its entry in the cleaner checkpoint, None without one; ``uncleanable``: why the cleaner
    skips it; ``is_paused``: the cleaner leaves it alone until it is resumed; ``is_being_cleaned``; ``place``:
    its place in the queue of logs that are due, from 1 on, None if it is not due, or not known; ``skipped``:
    another reason why it is not cleaned, such as tiered storage, "" without one.
    """

    log: ReadableLog
    config: Config
    now_ms: int
    checkpoint: int | None = None
    uncleanable: Uncleanable | None = None
    is_paused: bool = False
    is_being_cleaned: bool = False
    place: int | None = None
    skipped: str = ""

    @cached_property
    def log_config(self) -> LogConfig:
        """The settings that a log uses."""
        return LogConfig.of(self.config)

    @cached_property
    def facts(self) -> ranges.LogFacts:
        """The log's state, for the rules. Raises OSError."""
        view = self.log.view
        stable = (
            durable_stable_offset(self.log, view)
            if isinstance(self.log, PartitionLog)
            else min(view.last_stable_offset, view.high_watermark)
        )
        return facts_of_view(self.log.directory, view, self.log_config, self.checkpoint, stable)

    @cached_property
    def range(self) -> ranges.CleanableRange:
        """The range that may be cleaned now. Raises OSError."""
        return ranges.cleanable_range(self.facts, self.log_config, self.now_ms)

    @cached_property
    def bounds(self) -> CleaningBounds:
        """The bounds that a compacted ledger sets. Raises OSError."""
        return cleaning_bounds(self.log.directory)

    @cached_property
    def horizons(self) -> Horizons:
        """The delete horizons of the clean section. Raises CorruptFileError, OSError."""
        end = self.range.clean_end
        segments = [
            find_segment(self.log.directory, segment.base_offset)
            for segment in self.log.view.segments[:-1]
            if segment.base_offset < end
        ]
        return find_horizons(segments, end, self.now_ms, self.log_config.max_decompressed_message_bytes)

    @cached_property
    def is_eligible(self) -> bool:
        """Is the log dirty enough, or overdue?"""
        return ranges.is_eligible(self.range, self.log_config.min_cleanable_dirty_ratio)

    @cached_property
    def forced_ms(self) -> int | None:
        """The time in ms at which ``max.compaction.lag.ms`` makes the log due whatever its dirty ratio; None
        without that setting, or if nothing is dirty."""
        lag_ms = self.log_config.max_compaction_lag_ms
        first_dirty, active = self.range.first_dirty, self.facts.segments[-1].base_offset
        oldest_ms = ranges.oldest_dirty_ms(ranges.segments_between(self.facts.segments, first_dirty, active))
        return None if lag_ms == LONG_MAX or oldest_ms is None else oldest_ms + lag_ms

    @cached_property
    def blockers(self) -> list[Blocker]:
        """Why records cannot be cleaned yet, each reason from a segment's base on. Of a record's reasons the
        first in this order is shown: the active segment comes first."""
        return [*self._active(), *self._uncommitted(), *self._within_min_lag(), *self._other_bounds()]

    def blocker_of(self, offset: int) -> Blocker | None:
        """Why the record at ``offset`` cannot be cleaned yet; None if it is in the cleanable range."""
        if offset < self.range.end:
            return None
        return next((blocker for blocker in self.blockers if blocker.offset <= offset), None)

    def _base_of(self, offset: int) -> int:
        """The base of the segment with ``offset``: segments are cleaned as a whole."""
        bases = [segment.base_offset for segment in self.facts.segments]
        return max((base for base in bases if base <= offset), default=bases[0])

    def _active(self) -> list[Blocker]:
        view, config = self.log.view, self.log_config
        active = view.segments[-1]
        at_ms = active.rolls_at_ms(config) if view.active_size else None
        when = "" if at_ms is None or at_ms >= LONG_MAX else f"after {time_text(at_ms)} or "
        sentence = (
            f"it is in the active segment, which is never cleaned; an append rolls it {when}when it has "
            f"{config.segment_bytes:,} bytes (it has {view.active_size:,})"
        )
        return [Blocker(code=ACTIVE_SEGMENT, offset=active.base_offset, sentence=sentence, until_ms=at_ms)]

    def _uncommitted(self) -> list[Blocker]:
        view, blockers = self.log.view, list[Blocker]()
        if view.high_watermark < view.log_end_offset:
            sentence = f"records from offset {view.high_watermark}, the high watermark, on are not replicated"
            blockers.append(
                Blocker(code=ABOVE_WATERMARK, offset=self._base_of(view.high_watermark), sentence=sentence)
            )
        if view.last_stable_offset < view.high_watermark:
            first = view.last_stable_offset
            producer = next(
                (number for number, offset in open_transactions(self.log).items() if offset == first), None
            )
            whose = "a transaction" if producer is None else f"a transaction of producer {producer}"
            sentence = f"{whose} has been open since offset {first}"
            blockers.append(Blocker(code=OPEN_TRANSACTION, offset=self._base_of(first), sentence=sentence))
        return blockers

    def _within_min_lag(self) -> list[Blocker]:
        """A blocker for each segment that is younger than ``min.compaction.lag.ms``, or follows one: the last
        first, since it waits for all before it."""
        lag_ms, blockers, until_ms = self.log_config.min_compaction_lag_ms, list[Blocker](), None
        if lag_ms <= 0:
            return []
        first_dirty, active = self.range.first_dirty, self.facts.segments[-1].base_offset
        for segment in ranges.segments_between(self.facts.segments, first_dirty, active):
            if segment.largest_timestamp > self.now_ms - lag_ms:
                until_ms = max(until_ms or 0, segment.largest_timestamp + lag_ms)
            if until_ms is not None:
                sentence = f"it is kept until {time_text(until_ms)} (min.compaction.lag.ms)"
                blockers.append(
                    Blocker(
                        code=WITHIN_MIN_LAG,
                        offset=segment.base_offset,
                        sentence=sentence,
                        until_ms=until_ms,
                    )
                )
        return blockers[::-1]

    def _other_bounds(self) -> list[Blocker]:
        blockers, log = list[Blocker](), self.log
        if self.bounds.clean_below != LONG_MAX:
            sentence = (
                f"side-by-side compaction by time has reached offset {self.bounds.clean_below} only: what "
                "lies above stays until it has passed it"
            )
            offset = self._base_of(self.bounds.clean_below)
            blockers.append(Blocker(code=HELD_BY_LEDGER, offset=offset, sentence=sentence))
        if isinstance(log, PartitionLog) and log.recovery_point < log.view.log_end_offset:
            sentence = f"records from offset {log.recovery_point} on are not flushed to the disk yet"
            offset = self._base_of(log.recovery_point)
            blockers.append(Blocker(code=NOT_FLUSHED, offset=offset, sentence=sentence))
        return blockers


def conditions_of(
    log: ReadableLog,
    watched: WatchedLog,
    config: Config,
    now_ms: int,
    *,
    is_paused: bool = False,
    place: int | None = None,
) -> CleaningConditions:
    """The conditions of a log, whose row in the catalogue is ``watched``."""
    is_skipped = watched.snapshot is None and watched.state != CLEANING
    return CleaningConditions(
        log=log,
        config=config,
        now_ms=now_ms,
        checkpoint=watched.checkpoint if watched.checkpoint is not None else _checkpoint_of(log),
        uncleanable=watched.uncleanable,
        is_paused=is_paused,
        is_being_cleaned=watched.state == CLEANING,
        place=place,
        skipped=watched.reason if is_skipped and "compact" in config.policies else "",
    )


def _checkpoint_of(log: ReadableLog) -> int | None:
    """The checkpoint with which a read-only log was opened; None for 0, which stands for none."""
    return (log.first_dirty_offset or None) if isinstance(log, ReadOnlyLog) else None


def open_transactions(log: ReadableLog) -> Mapping[int, int]:
    """The first offset of each open transaction, by producer id."""
    if isinstance(log, ReadOnlyLog):
        return log.open_transactions
    assert isinstance(log, PartitionLog)
    return {
        entry.producer_id: entry.open_transaction_offset
        for entry in log.view_and_producers()[1].entries()
        if entry.open_transaction_offset >= 0
    }


def ratio_sentence(conditions: CleaningConditions) -> str:
    """Why a log with dirty records is not due: how many dirty bytes are missing, and the time at which
    ``max.compaction.lag.ms`` makes it due."""
    cleanable, ratio = conditions.range, conditions.log_config.min_cleanable_dirty_ratio
    text = f"{cleanable.dirty_ratio:.2f} of the bytes are dirty, more than {ratio:.2f} are needed"
    missing = ranges.missing_bytes(cleanable, ratio)
    ways = [] if missing is None else [f"{counted(missing, 'byte')} more"]
    if conditions.forced_ms is not None:
        ways.append(f"{time_text(conditions.forced_ms)}, when max.compaction.lag.ms has passed")
    return f"{text}: {', or '.join(ways)}" if ways else text
