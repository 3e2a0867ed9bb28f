"""What ``siltstone clean --watch`` sees: one log, and all of them at one moment; and both as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.cleaner.history import Cleaning
from siltstone.cleaner.outlook import Outlook
from siltstone.config import Setting
from siltstone.log.names import TopicPartition
from siltstone.log.service.uncleanable import Uncleanable

UNCLEANABLE, UNREADABLE, CLEANING, DUE, TOMBSTONES, DIRTY, CHANGING, UP_TO_DATE, SKIPPED = STATES = (
    "uncleanable",
    "unreadable",
    "cleaning",
    "due",
    "tombstones",
    "dirty",
    "changing",
    "up_to_date",
    "skipped",
)
"""What a log may be, the most urgent first.

uncleanable: the cleaner gave it up, with the reason; unreadable: it cannot be looked into; cleaning: a
cleaner has files of its own in it; due: dirty enough, waiting for too long, or with tombstones that may go;
tombstones: nothing new, but tombstones that go once their horizon has passed; dirty: not enough yet;
changing: its files changed faster than they were looked at; up_to_date: nothing to clean; skipped: not
compacted, or its settings are not known.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLog:
    """One log at one moment. ``outlook`` None: it was not looked into, ``reason`` says why.

    ``policy`` and ``min_ratio`` are settings with their sources, None where none are known;
    ``last_cleaning``: the last that succeeded; ``last_failure``: one that came after it.
    """

    where: TopicPartition
    directory: Path
    state: str
    reason: str = ""
    policy: Setting | None = None
    min_ratio: Setting | None = None
    checkpoint: int | None = None
    outlook: Outlook | None = None
    uncleanable: Uncleanable | None = None
    last_cleaning: Cleaning | None = None
    last_failure: Cleaning | None = None

    @property
    def policy_text(self) -> str:
        """``compact,delete``; empty where no policy is known."""
        value = () if self.policy is None else self.policy.value
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def to_json(self) -> dict[str, object]:
        """One object; offsets, bytes and times are null where nothing is known."""
        found, delay_ms, horizon_ms = self.outlook, None, None
        if found is not None:
            delay_ms = found.range.delay_ms
            horizon_ms = None if found.horizons is None else found.horizons.newest_ms
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "directory": str(self.directory),
            "state": self.state,
            "reason": self.reason,
            "cleanup_policy": self.policy_text or None,
            "cleanup_policy_source": None if self.policy is None else self.policy.source,
            "min_cleanable_dirty_ratio": None if self.min_ratio is None else self.min_ratio.value,
            "bytes": None if found is None else found.size,
            "segments": None if found is None else found.segments,
            "clean_bytes": None if found is None else found.range.clean_bytes,
            "dirty_bytes": None if found is None else found.range.cleanable_bytes,
            "dirty_ratio": None if found is None else round(found.range.dirty_ratio, 6),
            "cleaner_checkpoint": self.checkpoint,
            "first_dirty_offset": None if found is None else found.range.first_dirty,
            "first_uncleanable_offset": None if found is None else found.range.end,
            "overdue_ms": delay_ms,
            "delete_horizon_ms": horizon_ms,
            "uncleanable_since_ms": None if self.uncleanable is None else self.uncleanable.since_ms,
            "last_cleaning": _cleaning(self.last_cleaning),
            "last_failure": _cleaning(self.last_failure),
        }


def _cleaning(cleaning: Cleaning | None) -> dict[str, object] | None:
    if cleaning is None:
        return None
    found = cleaning.to_json()
    return {name: value for name, value in found.items() if name not in ("topic", "partition")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All logs that were looked into together; ``states`` counts every log."""

    logs: int
    bytes: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    states: dict[str, int]

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes over clean and dirty bytes; 0 where there are none."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look: ``at_ms``, the logs by name, directories with whether a process uses them, notes.

    ``error``: why nothing could be seen this time.
    """

    at_ms: int
    logs: tuple[WatchedLog, ...] = ()
    directories: dict[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None

    def total(self) -> Total:
        """All logs together."""
        found = [each.outlook for each in self.logs if each.outlook is not None]
        counts = Counter(each.state for each in self.logs)
        return Total(
            logs=len(self.logs),
            bytes=sum(each.size for each in found),
            clean_bytes=sum(each.range.clean_bytes for each in found),
            dirty_bytes=sum(each.range.cleanable_bytes for each in found),
            overdue_ms=max((each.range.delay_ms for each in found), default=0),
            states={state: counts[state] for state in STATES if counts[state]},
        )

    def to_json(self) -> dict[str, object]:
        """One object: a line of ``--watch --json``."""
        total = self.total()
        return {
            "at_ms": self.at_ms,
            "directories": [{"path": path, "in_use": used} for path, used in self.directories.items()],
            "logs": [each.to_json() for each in self.logs],
            "total": {
                "logs": total.logs,
                "bytes": total.bytes,
                "clean_bytes": total.clean_bytes,
                "dirty_bytes": total.dirty_bytes,
                "dirty_ratio": round(total.dirty_ratio, 6),
                "overdue_ms": total.overdue_ms,
                "states": total.states,
            },
            "notes": list(self.notes),
            "error": self.error,
        }
