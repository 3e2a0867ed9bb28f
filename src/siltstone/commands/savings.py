"""What cleanings have saved, by day and by topic, from the histories of the log directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from siltstone.compaction.report import CLEANED, Cleaning, read_cleanings

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The cleanings of one topic on one day (UTC): how many, bytes before and after, records removed."""

    day: str
    topic: str
    cleanings: int
    bytes_before: int
    bytes_after: int
    records_removed: int

    @property
    def saved_bytes(self) -> int:
        """Bytes that the cleanings have freed."""
        return self.bytes_before - self.bytes_after

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {**{name: getattr(self, name) for name in Saving.__slots__}, "saved_bytes": self.saved_bytes}


def cleanings_of(paths: Iterable[Path]) -> list[Cleaning]:
    """The cleanings in the histories of log directories, the newest first. Raises OSError."""
    found = [cleaning for path in paths for cleaning in read_cleanings(path)]
    return sorted(found, key=lambda cleaning: -cleaning.began_ms)


def savings_by_day(cleanings: Iterable[Cleaning]) -> list[Saving]:
    """The savings, the newest day first, on a day the largest first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for cleaning in cleanings:
        result = cleaning.result
        if result.status != CLEANED:
            continue
        day = datetime.fromtimestamp(cleaning.began_ms / 1000, UTC).date().isoformat()
        row = sums.setdefault((day, result.topic), [0, 0, 0, 0])
        figures = (1, result.bytes_before, result.bytes_after, result.discarded.total())
        for place, value in enumerate(figures):
            row[place] += value
    savings = [
        Saving(
            day=day,
            topic=topic,
            cleanings=row[0],
            bytes_before=row[1],
            bytes_after=row[2],
            records_removed=row[3],
        )
        for (day, topic), row in sums.items()
    ]
    savings.sort(key=lambda saving: -saving.saved_bytes)
    return sorted(savings, key=lambda saving: saving.day, reverse=True)


def saved_bytes(cleanings: Sequence[Cleaning], since_ms: int) -> int:
    """Bytes that the cleanings since a time have freed."""
    return sum(
        cleaning.result.bytes_before - cleaning.result.bytes_after
        for cleaning in cleanings
        if cleaning.began_ms >= since_ms and cleaning.result.status == CLEANED
    )
