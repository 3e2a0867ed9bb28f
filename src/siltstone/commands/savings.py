"""What cleanings have saved, by day and by topic, in all log directories of a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from siltstone.compaction.report import CLEANED, Cleaning, read_cleanings
from siltstone.compaction.savings import Saving, added_up, day_of, read_savings

DAY_MS = 86_400_000


def cleanings_of(paths: Iterable[Path]) -> list[Cleaning]:
    """The cleanings in the histories of log directories, the newest first. Raises OSError."""
    found = [cleaning for path in paths for cleaning in read_cleanings(path)]
    return sorted(found, key=lambda cleaning: -cleaning.began_ms)


def savings_by_day(paths: Iterable[Path]) -> list[Saving]:
    """The savings in log directories, the newest day first, on a day the largest first. Raises OSError."""
    savings = added_up(saving for path in paths for saving in read_savings(path))
    savings.sort(key=lambda saving: -saving.saved_bytes)
    return sorted(savings, key=lambda saving: saving.day, reverse=True)


def saved_by_topic(savings: Iterable[Saving], now_ms: int, days: int = 7) -> Mapping[str, int]:
    """Bytes saved by topic on the last ``days`` days (UTC), today among them."""
    first, saved = day_of(now_ms - (days - 1) * DAY_MS), dict[str, int]()
    for saving in savings:
        if saving.day >= first:
            saved[saving.topic] = saved.get(saving.topic, 0) + saving.saved_bytes
    return saved


def saved_bytes(cleanings: Sequence[Cleaning], since_ms: int) -> int:
    """Bytes that the cleanings since a time have freed."""
    return sum(
        cleaning.result.bytes_before - cleaning.result.bytes_after
        for cleaning in cleanings
        if cleaning.began_ms >= since_ms and cleaning.result.status == CLEANED
    )
