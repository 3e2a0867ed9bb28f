"""The savings of a log directory: what cleanings have removed, a line for each topic and day.

The history of cleanings (``report``) has every result, and so reaches back a short time only. Here the
results of a topic and a day (UTC) are added up. A cleaning appends a line of its own; when the file is over
``SAVINGS_BYTES_MAX``, lines of one topic and day become one, and the oldest days are removed::

    {"day": "2026-11-24", "topic": "users", "cleanings": 3, "bytes_before": 5242880, "bytes_after": 1048576,
     "removed": {"superseded": 4096}}

Like the history it is only shown to people: not synced, an incomplete last line is skipped, and an error in
writing it is only logged.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.compaction.report import CLEANED, REASONS, Cleaning, ends_within_line, read_cleanings

SAVINGS_FILE = "siltstone-savings.jsonl"
SAVINGS_BYTES_MAX = 4 << 20
"""About 30,000 lines: 300 topics for 100 days."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TOPIC_LENGTH_MAX = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The cleanings of one topic on one day (UTC): how many, bytes before and after, records removed by
    reason."""

    day: str
    topic: str
    cleanings: int
    bytes_before: int
    bytes_after: int
    removed: dict[str, int] = field(default_factory=dict)

    @property
    def saved_bytes(self) -> int:
        """Bytes that the cleanings have freed."""
        return self.bytes_before - self.bytes_after

    @property
    def records_removed(self) -> int:
        """Records that the cleanings have removed."""
        return sum(self.removed.values())

    def plus(self, other: Saving) -> Saving:
        """The sum of this saving and another one of the same topic and day."""
        names = [name for name in REASONS if name in self.removed or name in other.removed]
        return replace(
            self,
            cleanings=self.cleanings + other.cleanings,
            bytes_before=self.bytes_before + other.bytes_before,
            bytes_after=self.bytes_after + other.bytes_after,
            removed={name: self.removed.get(name, 0) + other.removed.get(name, 0) for name in names},
        )

    def to_json(self) -> dict[str, object]:
        """The object of an HTTP response: that of a line of the file, and the figures that follow from it."""
        return {**_written(self), "saved_bytes": self.saved_bytes, "records_removed": self.records_removed}


def day_of(at_ms: int) -> str:
    """The day of a time (ms since the epoch), in UTC: ``2026-11-24``. For a time that Python's calendar does
    not have, its first or last day."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
    return "0001-01-01" if at_ms < 0 else "9999-12-31"


def added_up(savings: Iterable[Saving]) -> list[Saving]:
    """The sums of savings, one for each topic and day: the oldest day first, on a day by topic."""
    sums: dict[tuple[str, str], Saving] = {}
    for saving in savings:
        key = saving.day, saving.topic
        sums[key] = sums[key].plus(saving) if key in sums else saving
    return [sums[key] for key in sorted(sums)]


def savings_of_cleanings(cleanings: Iterable[Cleaning]) -> list[Saving]:
    """The savings of cleanings, by topic and day. A cleaning counts even if it removed nothing; a result with
    another status than cleaned does not."""
    return added_up(
        Saving(
            day=day_of(cleaning.began_ms),
            topic=cleaning.result.topic,
            cleanings=1,
            bytes_before=cleaning.result.bytes_before,
            bytes_after=cleaning.result.bytes_after,
            removed={name: count for name, count in cleaning.result.discarded.counts.items() if count},
        )
        for cleaning in cleanings
        if cleaning.result.status == CLEANED
    )


def read_savings(directory: Path) -> list[Saving]:
    """The savings of a log directory, added up; without a file, those of its history. Skips lines that are
    not the JSON of a saving. Raises OSError."""
    if not files.exists(directory / SAVINGS_FILE):
        return savings_of_cleanings(read_cleanings(directory))
    return added_up(saving for saving in map(_parse, _lines(directory)) if saving is not None)


def append_savings(directory: Path, cleanings: Iterable[Cleaning]) -> None:
    """Add cleanings, which were written to the history before, to the savings of a log directory. If the file
    does not exist, it begins with all cleanings of the history. Raises OSError."""
    path = directory / SAVINGS_FILE
    if not files.exists(path):
        cleanings = read_cleanings(directory) or cleanings
    savings = savings_of_cleanings(cleanings)
    if not savings:
        return
    added = b"".join(map(_line, savings))
    appender = files.Appender(path)
    with contextlib.closing(appender):
        if appender.size + len(added) <= SAVINGS_BYTES_MAX:
            appender.write((b"\n" if ends_within_line(path, appender.size) else b"") + added)
            return
    _replace_by_newest(path, added_up([*read_savings(directory), *savings]))


def _written(saving: Saving) -> dict[str, object]:
    return {name: getattr(saving, name) for name in Saving.__slots__}


def _line(saving: Saving) -> bytes:
    return json.dumps(_written(saving)).encode() + b"\n"


def _lines(directory: Path) -> Sequence[bytes]:
    """The complete lines of the file's last 2 * ``SAVINGS_BYTES_MAX`` bytes; the first may be cut off."""
    path = directory / SAVINGS_FILE
    try:
        with files.Reader(path) as reader:
            size = reader.stat.size
            raw = reader.read(max(size - 2 * SAVINGS_BYTES_MAX, 0), 2 * SAVINGS_BYTES_MAX)
    except FileNotFoundError:
        return []
    return raw.split(b"\n")[:-1]


def _parse(line: bytes) -> Saving | None:
    """The saving of a line; None if the line has none. Its numbers must fit a Java long, and its topic must
    be no longer than a topic's name: whoever may write to the directory must not make a reader fail."""
    try:
        row: dict[str, Any] = json.loads(line)
        saving = Saving(
            day=row["day"],
            topic=row["topic"],
            cleanings=row["cleanings"],
            bytes_before=row["bytes_before"],
            bytes_after=row["bytes_after"],
            removed={name: row["removed"][name] for name in REASONS if name in row["removed"]},
        )
        numbers = saving.cleanings, saving.bytes_before, saving.bytes_after, *saving.removed.values()
        is_saving = (
            isinstance(saving.day, str)
            and _DAY.fullmatch(saving.day) is not None
            and isinstance(saving.topic, str)
            and 0 < len(saving.topic) <= _TOPIC_LENGTH_MAX
            and all(type(number) is int and 0 <= number <= LONG_MAX for number in numbers)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return saving if is_saving else None


def _replace_by_newest(path: Path, savings: Sequence[Saving]) -> None:
    """Replace the file by the newest days of ``savings``, up to half of ``SAVINGS_BYTES_MAX``. Of a day that
    does not fit, the topics that saved least are left out."""
    newest, free = list[bytes](), SAVINGS_BYTES_MAX // 2
    for saving in sorted(savings, key=lambda saving: (saving.day, saving.saved_bytes), reverse=True):
        line = _line(saving)
        free -= len(line)
        if free < 0:
            break
        newest.append(line)
    files.replace(path, b"".join(reversed(newest)))
