"""What a run says of each log: the JSON of ``siltstone clean`` and what the table is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from siltstone.config import Setting
from siltstone.log.names import TopicPartition

CLEANED = "cleaned"
NOTHING_TO_DO = "nothing_to_do"
NOT_ELIGIBLE = "not_eligible"
SKIPPED = "skipped"
UNCLEANABLE = "uncleanable"
FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Removed:
    """Records that went, by reason; superseded wins over tombstone. ``expired``: with whole segments, by
    retention, which comes after cleaning."""

    superseded: int = 0
    tombstones: int = 0
    aborted: int = 0
    keyless: int = 0
    markers: int = 0
    expired: int = 0

    def total(self) -> int:
        """All of them."""
        cleaned = self.superseded + self.tombstones + self.aborted + self.keyless + self.markers
        return cleaned + self.expired


@dataclass(slots=True, kw_only=True)
class LogResult:
    """One log's outcome. Bytes are of all its ``.log`` files, records of the whole log.

    Offsets and records are None where the log was not looked into. ``status`` is cleaned, nothing_to_do,
    not_eligible, skipped, uncleanable or failed; ``reason`` is empty only for cleaned.
    """

    topic: str
    partition: int
    directory: str
    status: str = SKIPPED
    reason: str = ""
    first_dirty_offset: int | None = None
    cleaned_end_offset: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int | None = None
    records_after: int | None = None
    removed: Removed = field(default_factory=Removed)
    segments_before: int = 0
    segments_after: int = 0
    groups: int = 0
    distinct_dirty_keys: int | None = None
    kafka_passes: int | None = None
    dirty_ratio: float | None = None
    checkpoint_reset: int | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    def stop(self, status: str, reason: str) -> LogResult:
        """The same log with this outcome."""
        self.status, self.reason = status, reason
        return self

    def to_json(self) -> dict[str, object]:
        """A plain dictionary for ``json``, settings as {key: {value, source}}."""
        found = asdict(self)
        found["seconds"] = round(self.seconds, 3)
        found["settings"] = {
            name: {"value": list(s.value) if isinstance(s.value, tuple) else s.value, "source": s.source}
            for name, s in self.settings.items()
        }
        return found


def failures(results: list[LogResult]) -> list[LogResult]:
    """Those that make the command's exit status 1."""
    return [result for result in results if result.status in (FAILED, UNCLEANABLE)]
