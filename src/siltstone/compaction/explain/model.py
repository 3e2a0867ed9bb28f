"""What an explanation says, as data: the JSON of ``siltstone explain``, and what its page and tables draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from siltstone.base.config import Setting, format_value
from siltstone.compaction.explain.observing import HotKey

WOULD_CLEAN = "would_clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplained:
    """Segments that become one: offsets [base, end), how many, bytes and records before and after."""

    base_offset: int
    end_offset: int
    segments: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    removed: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Up to ``at_ms``: all bytes that were written, and those of them that could be done without by then."""

    at_ms: int
    written_bytes: int
    reclaimable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Tombstones that wait for a delete horizon (ms); -1: a cleaning has yet to give them one. Those that a
    later record supersedes are among them."""

    at_ms: int
    tombstones: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """``keys`` have between ``records_from`` and ``records_to`` records."""

    records_from: int
    records_to: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningBound:
    """Something that no cleaning goes beyond, and its offset; the least one holds."""

    name: str
    offset: int


@dataclass(slots=True, kw_only=True)
class KafkaExplained:
    """What Kafka's own cleaner would need: the keys that its map holds, and at least so many passes."""

    buffer_bytes: int
    load_factor: float
    map_keys: int
    passes: int
    buffer_bytes_for_one_pass: int


@dataclass(slots=True, kw_only=True)
class RangeExplained:
    """The range of a log that may be cleaned, what bounds it, and how dirty it is; None where nothing is
    known."""

    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    log_end_offset: int | None = None
    bounds: list[CleaningBound] = field(default_factory=list)
    dirty_ratio: float | None = None
    min_dirty_ratio: float | None = None
    overdue_ms: int = 0
    cleanable_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class OutcomeExplained:
    """What a cleaning would leave and remove. ``bytes_after`` is of ``.log`` files, None where the log was
    not looked into; ``removed_bytes`` are of records, uncompressed."""

    bytes_after: int | None = None
    records: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    removed_bytes: dict[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    groups: list[GroupExplained] = field(default_factory=list)
    tombstones_waiting: list[Waiting] = field(default_factory=list)
    reclaimable: list[Moment] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class KeysExplained:
    """A log's keys, and what Kafka would need for the dirty ones; None where it was not looked into."""

    distinct_keys: int | None = None
    distinct_dirty_keys: int | None = None
    keys_by_records: list[Frequency] = field(default_factory=list)
    hottest_keys: list[HotKey] = field(default_factory=list)
    kafka: KafkaExplained | None = None


@dataclass(slots=True, kw_only=True)
class LogExplanation:
    """One log; ``bytes_before`` is of ``.log`` files.

    ``status``: would_clean, or why not (nothing_to_do, not_eligible, skipped, uncleanable, failed), with the
    ``reason``; what would go is told for those that are not eligible, too.
    """

    topic: str
    partition: int
    directory: str
    status: str
    reason: str = ""
    segments: int = 0
    bytes_before: int = 0
    range: RangeExplained = field(default_factory=RangeExplained)
    outcome: OutcomeExplained = field(default_factory=OutcomeExplained)
    keys: KeysExplained = field(default_factory=KeysExplained)
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``topic-N``."""
        return f"{self.topic}-{self.partition}"

    @property
    def bytes_after(self) -> int | None:
        """Bytes of ``.log`` files after the cleaning, None where the log was not looked into."""
        return self.outcome.bytes_after

    @property
    def is_explained(self) -> bool:
        """Was it looked into?"""
        return self.bytes_after is not None

    def to_json(self) -> dict[str, Any]:
        """A plain, flat dictionary for ``json``, settings as {key: {value, source}}."""
        flat = {name: getattr(self, name) for name in ("topic", "partition", "directory", "status", "reason")}
        flat |= {"segments": self.segments, "bytes_before": self.bytes_before, "notes": self.notes}
        for part in (self.range, self.outcome, self.keys):
            flat |= asdict(part)
        flat["settings"] = {
            name: {"value": format_value(each.value), "source": each.source}
            for name, each in self.settings.items()
        }
        return flat


@dataclass(slots=True, kw_only=True)
class Explanation:
    """All logs as of ``now_ms``; what was passed over as (path, reason)."""

    now_ms: int
    logs: list[LogExplanation] = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {
            "now_ms": self.now_ms,
            "dry_run": True,
            "logs": [log.to_json() for log in self.logs],
            "passed_over": [{"path": path, "reason": reason} for path, reason in self.passed_over],
            "notes": self.notes,
        }
