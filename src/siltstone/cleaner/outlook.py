"""What a cleaner would find in a log now, asked again and again while somebody else writes and cleans it.

The rules are ``plan``'s, the facts ``facts``'. What takes long is asked once and kept: where the transactions
that were open when the active segment was begun have ended, and the delete horizons of the clean part.
Nothing is locked or changed, so segments may go between two steps: FileNotFoundError, SourceChangedError and
a torn tail (CorruptRecordError) then only mean that the log has to be looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.cleaner import plan
from siltstone.cleaner.facts import LogState, log_facts
from siltstone.cleaner.horizons import Horizons, find_horizons
from siltstone.log.directory import Checkpoints
from siltstone.log.ledger.uncovered import uncovered
from siltstone.log.producers import ProducerState, load_producers, producer_state
from siltstone.log.segments import Segment, list_segments
from siltstone.records.codecs import LIMIT_SETTING

HORIZON_BYTES = 4 << 30
"""Clean parts whose headers are read in one round; the others have their turn in the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A log's size in bytes, its segments, what of it may be cleaned now, and is that enough?

    ``horizons``: those of the clean part, None where they were not looked for yet. ``is_dirty``: something
    may be cleaned. ``is_due``: and it is dirty enough, or has waited for too long.
    """

    size: int
    segments: int
    range: plan.CleanableRange
    is_dirty: bool
    is_due: bool
    horizons: Horizons | None


@dataclass(slots=True)
class _Known:
    """The horizons of some segments, as they were found at ``looked_ms``."""

    segments: tuple[Segment, ...]
    looked_ms: int
    horizons: Horizons

    def holds(self, segments: tuple[Segment, ...], now_ms: int) -> bool:
        """Have neither the segments changed, nor the newest horizon passed since?"""
        newest_ms = self.horizons.newest_ms
        passed = newest_ms is not None and self.looked_ms < newest_ms <= now_ms
        return segments == self.segments and not passed


@dataclass(slots=True)
class Outlooks:
    """Looks at logs, round by round. ``begin_round`` before each."""

    _settled: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _known: dict[Path, _Known] = field(default_factory=dict)
    _room: int = HORIZON_BYTES

    def begin_round(self, logs: Sequence[Path]) -> None:
        """Another round over these logs; what is known of others is forgotten."""
        self._room = HORIZON_BYTES
        for kept in (self._settled, self._known):
            for path in kept.keys() - set(logs):
                del kept[path]

    def look(
        self, state: LogState, checkpoints: Checkpoints, now_ms: int, *, committed_below: int
    ) -> Outlook | None:
        """One log that has settings, None where it has no segments.

        ``committed_below``: an offset, see ``Checkpoints``. Raises SiltstoneError, OSError; see above.
        """
        assert state.config is not None
        segments = list_segments(state.path)
        if not segments:
            return None
        producers = self._producers(state, segments, checkpoints)
        facts = log_facts(state, checkpoints, segments, producers, committed_below)
        lag = plan.LagLimits(
            min_ms=state.config.integer("min.compaction.lag.ms"),
            max_ms=state.config.integer("max.compaction.lag.ms"),
        )
        found = plan.cleanable_range(facts, lag, now_ms)
        is_dirty = found.end > found.first_dirty and found.cleanable_bytes > 0
        is_due = is_dirty and plan.is_eligible(found, state.config.number("min.cleanable.dirty.ratio"))
        clean = tuple(each for each in segments if each.base_offset < found.clean_end)
        limit = state.config.integer(LIMIT_SETTING)
        return Outlook(
            size=sum(each.size for each in segments),
            segments=len(segments),
            range=found,
            is_dirty=is_dirty,
            is_due=is_due,
            horizons=None if is_due else self._horizons(state.path, clean, found.clean_end, now_ms, limit),
        )

    def _producers(self, state: LogState, segments: list[Segment], checkpoints: Checkpoints) -> ProducerState:
        """The log's end and open transactions, as far as these bound what may be cleaned.

        Only transactions that were open when the active segment was begun do; once these have ended, the
        active segment need not be read, and its base stands for the log's end.
        """
        active, path = segments[-1], state.path
        base, identity = active.base_offset, (active.base_offset, active.inode)
        at_base = ProducerState(producers={}, end_offset=base)
        if checkpoints.cleaner.get(state.where, 0) <= base:
            if self._settled.get(path) == identity:
                return at_base
            if load_producers(path, segments, base).first_open_transaction() is None:
                self._settled[path] = identity
                return at_base
        found = producer_state(path, segments)
        first = found.first_open_transaction()
        if first is None or first >= base:
            self._settled[path] = identity
        return found

    def _horizons(
        self, path: Path, segments: tuple[Segment, ...], end: int, now_ms: int, batch_limit: int
    ) -> Horizons | None:
        known = self._known.get(path)
        if known is not None and known.holds(segments, now_ms):
            return known.horizons
        if self._room <= 0:
            return None
        self._room -= sum(each.size for each in segments)
        found = find_horizons(segments, end, now_ms, uncovered(path).tombstones_from, batch_limit)
        self._known[path] = _Known(segments, now_ms, found)
        return found
