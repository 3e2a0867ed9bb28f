"""What a query's filters leave of a table, as far as it helps to read less.

Only an upper bound of what is needed: whoever gets the rows filters them again. None: no bound on that side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from siltstone.log.service.read_only import ReadOnlyLog
from siltstone.tables.bounds import OffsetRange
from siltstone.tables.opened import Logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """Rows whose topic and partition are among some, offsets ``[low, high)``, times from ``from_ms`` on."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int | None = None
    high: int | None = None
    from_ms: int | None = None

    def and_topics(self, topics: frozenset[str]) -> Predicate:
        """And one of these topics."""
        return replace(self, topics=topics if self.topics is None else self.topics & topics)

    def and_partitions(self, partitions: frozenset[int]) -> Predicate:
        """And one of these partitions."""
        both = partitions if self.partitions is None else self.partitions & partitions
        return replace(self, partitions=both)

    def and_offsets(self, low: int | None, high: int | None) -> Predicate:
        """And offsets ``[low, high)``."""
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))

    def and_from(self, from_ms: int) -> Predicate:
        """And times at or after ``from_ms``."""
        return replace(self, from_ms=from_ms if self.from_ms is None else max(self.from_ms, from_ms))

    def chosen(self, logs: Logs) -> Logs:
        """The logs that can have such rows."""
        return {
            where: log
            for where, log in logs.items()
            if (self.topics is None or where.topic in self.topics)
            and (self.partitions is None or where.partition in self.partitions)
        }

    def narrowed(self, wanted: OffsetRange, log: ReadOnlyLog) -> OffsetRange:
        """What of a log's range can have such rows: times by its time index."""
        start, end = wanted
        start = start if self.low is None else max(start, self.low)
        end = end if self.high is None else min(end, self.high)
        if self.from_ms is not None and self.from_ms >= 0 and start < end:
            place = log.offset_for_time(self.from_ms)
            start = end if place is None else max(start, place.offset)
        return OffsetRange(start, max(start, end))


EVERYTHING = Predicate()
