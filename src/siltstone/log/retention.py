"""Retention: which of a log's oldest segments are deleted (Kafka's ``UnifiedLog.deleteOldSegments``).

For a log with log start offset 25::

    base offset
     0   the next segment begins at 11, not above 25: deleted under any policy
    11   the next segment begins at 23, not above 25: deleted under any policy
    23   has offset 25: deleted if ``cleanup.policy`` has ``delete`` and the deletion policy deletes it
    31   the active segment: deleted on the same conditions as 23; a new active segment replaces it

The deleted segments are always the oldest of the log. No segment that ends above the high watermark is
deleted, and no empty active segment. If all segments are deleted, ``PartitionLog.delete_oldest_segments``
first begins a new active segment. If the log has a compacted ledger, the policy deletes only segments that
the ledger covers, as Pulsar retains the backlog of the subscription ``__compaction``. Segments below the log
start offset are always deleted: no reader can read their records.

A deletion policy is a plain function of the segments (oldest first), the time and the settings. It returns
how many of the oldest segments may be deleted, or a ``Deletion`` for each of them. ``register_policy`` gives
a policy a name, by which a topic chooses it with ``siltstone.retention.policy``; ``kafka`` is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from siltstone.base.config import LogConfig
from siltstone.base.errors import InvalidConfigError
from siltstone.log.fetch import LogView

KAFKA = "kafka"
"""The name of the default policy, which is Kafka's."""
NOT_READ = -1
"""In place of a segment's largest timestamp if ``segment_metadata`` is called without ``with_times``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """A segment as a deletion policy sees it: sizes in bytes, times in ms.

    ``end_offset`` is the next segment's base offset; for the active segment it is the log end offset.
    ``largest_timestamp`` is that of the time index's last entry if it is over 0, otherwise the modification
    time of the log file.
    """

    base_offset: int
    end_offset: int
    size: int
    largest_timestamp: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A segment that is to be deleted, and the reason."""

    base_offset: int
    reason: str


DeletionPolicy = Callable[[Sequence[SegmentMetadata], int, LogConfig], "int | Iterable[Deletion]"]
"""(segments, now in ms, settings) → how many of the oldest may be deleted, or a ``Deletion`` for each."""

_policies: dict[str, DeletionPolicy] = {}


def register_policy(name: str, policy: DeletionPolicy) -> None:
    """Let topics choose ``policy`` by ``name``; it replaces an earlier policy of that name."""
    _policies[name] = policy


def find_policy(name: str) -> DeletionPolicy:
    """The policy of that name. Raises InvalidConfigError with the names of all policies."""
    if name not in _policies:
        raise InvalidConfigError(
            f"siltstone.retention.policy={name} is not a registered deletion policy",
            advice=f"choose one of {', '.join(sorted(_policies))}, or register it with register_policy",
        )
    return _policies[name]


def segment_metadata(view: LogView, *, with_times: bool = True) -> tuple[SegmentMetadata, ...]:
    """The view's segments, oldest first. Without ``with_times`` no file is read. Raises OSError."""
    ends = [*(segment.base_offset for segment in view.segments[1:]), view.log_end_offset]
    last = len(view.segments) - 1
    return tuple(
        SegmentMetadata(
            base_offset=segment.base_offset,
            end_offset=end,
            size=view.size_of(number),
            largest_timestamp=segment.largest_timestamp if with_times else NOT_READ,
            is_active=number == last,
        )
        for number, (segment, end) in enumerate(zip(view.segments, ends, strict=True))
    )


def segments_to_delete(
    segments: Sequence[SegmentMetadata],
    *,
    now_ms: int,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    retain_from: int | None = None,
    retain_active_segment: bool = False,
) -> tuple[Deletion, ...]:
    """The segments that are to be deleted now, oldest first (Kafka's ``deletableSegments``).

    They begin with those below the log start offset; the deletion policy chooses further segments if
    ``cleanup.policy`` has ``delete``. ``retain_from``: the policy deletes no record at or above this offset
    (``LedgerStore.first_needed_offset``). ``retain_active_segment``: the caller cannot begin a new active
    segment, so the active segment stays, and with it the log end offset.
    """
    deletions = deletions_below_log_start(segments, log_start_offset)
    count_below_start = len(deletions)
    if config.deletes:
        remaining = segments[count_below_start:]
        deletions += _apply_policy(find_policy(config.retention_policy), remaining, now_ms, config)
    count = 0
    for number, segment in enumerate(segments[: len(deletions)]):
        # Only replicated records are deleted (``UnifiedLog.deletableSegments``).
        if segment.end_offset > high_watermark:
            break
        if segment.is_active and (retain_active_segment or not segment.size):
            break
        if retain_from is not None and number >= count_below_start and segment.end_offset > retain_from:
            break
        count += 1
    return tuple(deletions[:count])


def deletions_of(
    view: LogView, config: LogConfig, now_ms: int, retain_from: int | None
) -> tuple[Deletion, ...]:
    """The segments of an open log that retention deletes now; see ``segments_to_delete``. Raises
    InvalidConfigError, OSError."""
    return segments_to_delete(
        segment_metadata(view, with_times=config.deletes),
        now_ms=now_ms,
        config=config,
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        retain_from=retain_from,
    )


def deletions_below_log_start(segments: Sequence[SegmentMetadata], log_start_offset: int) -> list[Deletion]:
    """The closed segments that end at or below the log start offset."""
    below = takewhile(
        lambda segment: not segment.is_active and segment.end_offset <= log_start_offset, segments
    )
    return _deletions(below, f"below the log start offset {log_start_offset}")


def deletions_by_size(segments: Sequence[SegmentMetadata], retention_bytes: int) -> list[Deletion]:
    """As many of the oldest segments as can go while at least ``retention_bytes`` remain; none if that number
    is negative (Kafka's ``deleteRetentionSizeBreachedSegments``)."""
    sizes = [segment.size for segment in segments]
    excess = sum(sizes) - retention_bytes if retention_bytes >= 0 else -1
    count = sum(deleted <= excess for deleted in accumulate(sizes)) if excess >= 0 else 0
    return _deletions(segments[:count], f"the log is over retention.bytes={retention_bytes}")


def deletions_by_age(segments: Sequence[SegmentMetadata], now_ms: int, retention_ms: int) -> list[Deletion]:
    """The oldest segments, as long as their largest timestamp is older than ``retention_ms``; none if that is
    negative (Kafka's ``deleteRetentionMsBreachedSegments``).

    A closed segment without records, which a cleaning can leave, is deleted with the segment after it. (Kafka
    uses the modification time of its file, which a cleaning copies from the old segment. If that is not old
    enough, Kafka retains the segments after it, too.)
    """
    count = 0
    for number, segment in enumerate(segments if retention_ms >= 0 else ()):
        if now_ms - segment.largest_timestamp > retention_ms:
            count = number + 1
        elif segment.size or segment.is_active:
            break
    return _deletions(segments[:count], f"older than retention.ms={retention_ms}")


def _deletions(segments: Iterable[SegmentMetadata], reason: str) -> list[Deletion]:
    return [Deletion(base_offset=segment.base_offset, reason=reason) for segment in segments]


def kafka_policy(segments: Sequence[SegmentMetadata], now_ms: int, config: LogConfig) -> list[Deletion]:
    """The policy ``kafka``: deletes by size first, and of the remaining segments by age."""
    deletions = deletions_by_size(segments, config.retention_bytes)
    return deletions + deletions_by_age(segments[len(deletions) :], now_ms, config.retention_ms)


def _apply_policy(
    policy: DeletionPolicy, segments: Sequence[SegmentMetadata], now_ms: int, config: LogConfig
) -> list[Deletion]:
    """Deletions of the oldest segments, up to the first segment that the policy does not delete: a log has no
    gaps at its beginning."""
    chosen = policy(segments, now_ms, config)
    if isinstance(chosen, int):
        return _deletions(segments[: max(chosen, 0)], f"policy {config.retention_policy}")
    deletions = {deletion.base_offset: deletion for deletion in chosen}
    oldest = takewhile(lambda segment: segment.base_offset in deletions, segments)
    return [deletions[segment.base_offset] for segment in oldest]


register_policy(KAFKA, kafka_policy)
