"""Retention: which of a log's oldest segments are deleted (Kafka's ``UnifiedLog.deleteOldSegments``).

For a log with log start offset 25::

    base offset
     0   the next segment begins at 11, not above 25: deleted under any policy
    11   the next segment begins at 23, not above 25: deleted under any policy
    23   has offset 25: deleted if ``cleanup.policy`` has ``delete`` and the deletion policy deletes it
    31   the active segment: the same, and then a new active segment begins

The result is always a prefix of the segments. It has no segment that ends above the high watermark, and no
empty active segment. If all segments are deleted, ``PartitionLog.delete_oldest_segments`` begins a new active
segment first. If the log has a compacted ledger, the policy deletes only segments that the ledger covers: its
cursor is a subscription, and its backlog is retained (Pulsar). Segments below the log start offset are always
deleted: their records were deleted when it was raised.

A deletion policy is a plain function of segments (oldest first), the time and the settings. It returns how
many of the oldest may be deleted, or a ``Decision`` for each of them. ``register_policy`` gives it a name,
and a topic chooses it by ``siltstone.retention.policy``; ``kafka`` is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from siltstone.base.config import LogConfig
from siltstone.base.errors import InvalidConfigError
from siltstone.log.fetch import LogView

KAFKA = "kafka"
NOT_READ = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """A segment as a deletion policy sees it: sizes in bytes, times in ms.

    ``end_offset`` is the next segment's base offset, or the log end offset for the active one.
    ``largest_timestamp`` is the time index's last entry if that is over 0, else the file's modification time.
    """

    base_offset: int
    end_offset: int
    size: int
    largest_timestamp: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A segment that is deleted, and the reason."""

    base_offset: int
    reason: str


DeletionPolicy = Callable[[Sequence[SegmentMetadata], int, LogConfig], "int | Iterable[Decision]"]
"""(segments, now in ms, settings) → how many of the oldest may be deleted, or a decision for each."""

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


def decide(
    segments: Sequence[SegmentMetadata],
    *,
    now_ms: int,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    retain_from: int | None = None,
    retain_active: bool = False,
) -> tuple[Decision, ...]:
    """A decision for each segment that is to be deleted now, oldest first.

    Segments below the log start offset come first; in a log that is only compacted no others are deleted.
    ``retain_from``: the offset from which on the policy deletes nothing (``LedgerStore.held_horizon``).
    ``retain_active``: the caller cannot begin a new active segment, so the active one stays, and with it the
    log end offset.
    """
    decisions = below_log_start(segments, log_start_offset)
    below_start = len(decisions)
    if config.deletes:
        rest = segments[len(decisions) :]
        decisions += _oldest_of(find_policy(config.retention_policy), rest, now_ms, config)
    count = 0
    for number, segment in enumerate(segments[: len(decisions)]):
        # Only replicated records are deleted (``UnifiedLog.deletableSegments``).
        if segment.end_offset > high_watermark:
            break
        if segment.is_active and (retain_active or not segment.size):
            break
        if retain_from is not None and number >= below_start and segment.end_offset > retain_from:
            break
        count += 1
    return tuple(decisions[:count])


def below_log_start(segments: Sequence[SegmentMetadata], log_start_offset: int) -> list[Decision]:
    """Segments that end at or below the log start."""
    below = takewhile(
        lambda segment: not segment.is_active and segment.end_offset <= log_start_offset, segments
    )
    return _decisions(below, f"below the log start offset {log_start_offset}")


def by_size(segments: Sequence[SegmentMetadata], retention_bytes: int) -> list[Decision]:
    """The oldest segments, as long as the others have at least ``retention_bytes``; none if negative.

    (Kafka's ``deleteRetentionSizeBreachedSegments``.)
    """
    sizes = [segment.size for segment in segments]
    excess = sum(sizes) - retention_bytes if retention_bytes >= 0 else -1
    count = sum(removed <= excess for removed in accumulate(sizes)) if excess >= 0 else 0
    return _decisions(segments[:count], f"the log is over retention.bytes={retention_bytes}")


def by_age(segments: Sequence[SegmentMetadata], now_ms: int, retention_ms: int) -> list[Decision]:
    """Segments whose largest timestamp is older than ``retention_ms``; none if negative.

    (Kafka's ``deleteRetentionMsBreachedSegments``.) A closed segment without records, which a cleaning can
    leave, is deleted with the next one. (In Kafka it is judged by the modification time of its file, which is
    that of the cleaning's source, and may retain the segments after it.)
    """
    count = 0
    for number, segment in enumerate(segments if retention_ms >= 0 else ()):
        if now_ms - segment.largest_timestamp > retention_ms:
            count = number + 1
        elif segment.size or segment.is_active:
            break
    return _decisions(segments[:count], f"older than retention.ms={retention_ms}")


def _decisions(segments: Iterable[SegmentMetadata], reason: str) -> list[Decision]:
    return [Decision(base_offset=segment.base_offset, reason=reason) for segment in segments]


def kafka_policy(segments: Sequence[SegmentMetadata], now_ms: int, config: LogConfig) -> list[Decision]:
    """By size first, then the remaining ones by age."""
    decisions = by_size(segments, config.retention_bytes)
    return decisions + by_age(segments[len(decisions) :], now_ms, config.retention_ms)


def _oldest_of(
    policy: DeletionPolicy, segments: Sequence[SegmentMetadata], now_ms: int, config: LogConfig
) -> list[Decision]:
    """A policy's decisions about the oldest segments, up to the first that it does not delete."""
    deleted = policy(segments, now_ms, config)
    if isinstance(deleted, int):
        return _decisions(segments[: max(deleted, 0)], f"policy {config.retention_policy}")
    decisions = {decision.base_offset: decision for decision in deleted}
    oldest = takewhile(lambda segment: segment.base_offset in decisions, segments)
    return [decisions[segment.base_offset] for segment in oldest]


register_policy(KAFKA, kafka_policy)
