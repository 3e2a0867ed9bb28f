"""Adds up the bytes that cleanings have saved, by day and by topic, over all log directories of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from siltstone.base import files
from siltstone.compaction.report import CLEANED, CLEANINGS_FILE, Cleaning, read_cleanings
from siltstone.compaction.savings import SAVINGS_FILE, Saving, added_up, day_of, read_savings

DAY_MS = 86_400_000
Row = TypeVar("Row")


class Histories:
    """The histories and the savings of log directories, parsed again only when a file has changed.

    Memory is bounded, since the files are (1 MiB and 4 MiB a directory). Safe in several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[tuple[Path, str], tuple[object, Sequence[object]]] = {}
        """By log directory and ``kept_as``: the state of the file, and its parsed rows."""
        self._merged_parts: dict[str, tuple[object, Sequence[object]]] = {}
        """By name: the rows of each directory, and all together."""

    def of(self, directory: Path) -> Sequence[Cleaning]:
        """The history of a log directory (``read_cleanings``). Raises OSError."""
        return self._parsed(directory, CLEANINGS_FILE, read_cleanings)

    def cleanings(self, directories: Iterable[Path]) -> Sequence[Cleaning]:
        """The cleanings in the histories of log directories, the newest first. Raises OSError."""
        parts = [self.of(directory) for directory in directories]

        def merged() -> list[Cleaning]:
            return sorted((row for part in parts for row in part), key=lambda row: -row.began_ms)

        return self._merged("cleanings", parts, merged)

    def savings(self, directories: Iterable[Path]) -> Sequence[Saving]:
        """The savings in log directories, the newest day first; those of a day by size, the largest first.
        Raises OSError."""
        parts = [self._savings_of(directory) for directory in directories]

        def merged() -> list[Saving]:
            # Several directories may have partitions of one topic, and so savings of one day and topic.
            savings = parts[0] if len(parts) == 1 else added_up(row for part in parts for row in part)
            savings = sorted(savings, key=lambda saving: -saving.saved_bytes)
            return sorted(savings, key=lambda saving: saving.day, reverse=True)

        return self._merged("savings", parts, merged)

    def _savings_of(self, directory: Path) -> Sequence[Saving]:
        # A directory without the file has the savings of its history.
        name = SAVINGS_FILE if files.exists(directory / SAVINGS_FILE) else CLEANINGS_FILE
        return self._parsed(directory, name, read_savings, kept_as="savings")

    def _parsed(
        self, directory: Path, name: str, read: Callable[[Path], Sequence[Row]], kept_as: str = ""
    ) -> Sequence[Row]:
        """The result of ``read`` for a directory, kept while its file ``name`` is the same. ``kept_as``: the
        name under which it is kept, where ``name`` is not always the same."""
        try:
            # Before it is read: a change in between is noticed the next time.
            state: object = name, files.stat(directory / name).identity
        except FileNotFoundError:
            state = None
        file_key = directory, kept_as or name
        with self._lock:
            kept = self._files.get(file_key)
        if kept is None or kept[0] != state:
            kept = state, tuple(read(directory))
            with self._lock:
                self._files[file_key] = kept
        return kept[1]  # type: ignore[return-value]

    def _merged(
        self, name: str, parts: Sequence[Sequence[Row]], merge: Callable[[], Sequence[Row]]
    ) -> Sequence[Row]:
        """The result of ``merge`` for ``parts``, kept while these are the same objects."""
        with self._lock:
            kept = self._merged_parts.get(name)
        if kept is None or not _are_same(kept[0], parts):
            kept = parts, tuple(merge())
            with self._lock:
                self._merged_parts[name] = kept
        return kept[1]  # type: ignore[return-value]


def _are_same(before: object, parts: Sequence[object]) -> bool:
    """Are the elements of two sequences the same objects?"""
    assert isinstance(before, Sequence)
    return len(before) == len(parts) and all(map(lambda one, other: one is other, before, parts))


def saved_by_topic(savings: Iterable[Saving], now_ms: int, days: int = 7) -> Mapping[str, int]:
    """Bytes saved by topic on the last ``days`` days (UTC), today among them."""
    first, saved = day_of(now_ms - (days - 1) * DAY_MS), dict[str, int]()
    for saving in savings:
        if saving.day >= first:
            saved[saving.topic] = saved.get(saving.topic, 0) + saving.saved_bytes
    return saved


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes that cleanings have freed in the last 24 hours, and on the last seven days (UTC), today among
    them."""

    last_24_hours: int
    last_7_days: int


def saved_lately(savings: Sequence[Saving], cleanings: Sequence[Cleaning], now_ms: int) -> SavedBytes:
    """Recent savings. Seven days: today and the six before, by ``savings``. 24 hours: today, by ``savings``,
    and yesterday's ``cleanings`` that began in the last 24 hours."""
    today = day_of(now_ms)
    yesterdays = (
        cleaning.result.bytes_before - cleaning.result.bytes_after
        for cleaning in cleanings
        if cleaning.result.status == CLEANED
        and now_ms - DAY_MS <= cleaning.began_ms
        and day_of(cleaning.began_ms) < today
    )
    todays = (saving.saved_bytes for saving in savings if saving.day == today)
    return SavedBytes(
        last_24_hours=sum(todays) + sum(yesterdays),
        last_7_days=sum(saved_by_topic(savings, now_ms).values()),
    )
