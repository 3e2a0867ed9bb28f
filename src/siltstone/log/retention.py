"""Which of a log's oldest segments may go (Kafka's ``UnifiedLog.deleteOldSegments``). Decisions only.

    segments   0      11      23      31 (active)        log start 25
               └ next base 11 ≤ 25    │
                       └ next base 23 ≤ 25: the first two go whatever the policy; the third holds 25
                              └──────────── then, under ``cleanup.policy=delete``, the deletion policy

It is always a prefix. Nothing at or above the high watermark goes, and no empty active segment; when all of
them may go, ``PartitionLog.delete_prefix`` begins a new active segment first. Where the log has a compacted
ledger, the policy takes nothing that the ledger does not cover: its cursor is a subscription, whose backlog
stays (Pulsar). What lies below the log start was given up by whoever raised it, and goes.

A deletion policy is a plain function of segments (oldest first), the time and the settings. It returns how
many of the oldest may go, or a ``Decision`` for each of them. ``register_policy`` gives it a name, and a
topic chooses it by ``siltstone.retention.policy``; ``kafka`` is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from siltstone.base.config import LogConfig
from siltstone.base.errors import InvalidConfigError
from siltstone.log.fetch import LogView

KAFKA = "kafka"
NOT_ASKED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What a policy may know of a segment: sizes in bytes, times in ms.

    ``end_offset`` is the next segment's base, the log's end for the active one. ``largest_timestamp`` is the
    time index's last entry if that is over 0, else the file's modification time.
    """

    base_offset: int
    end_offset: int
    size: int
    largest_timestamp: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A segment goes, and why."""

    base_offset: int
    reason: str


DeletionPolicy = Callable[[Sequence[SegmentFacts], int, LogConfig], "int | Iterable[Decision]"]
"""(segments, now in ms, settings) → how many of the oldest may go, or why each of them goes."""

_policies: dict[str, DeletionPolicy] = {}


def register_policy(name: str, policy: DeletionPolicy) -> None:
    """Let topics choose ``policy`` by ``name``; a name that is taken is given to the new one."""
    _policies[name] = policy


def find_policy(name: str) -> DeletionPolicy:
    """The policy of that name. Raises InvalidConfigError with the names that there are."""
    if name not in _policies:
        raise InvalidConfigError(
            f"siltstone.retention.policy={name}: no such deletion policy; there are "
            f"{', '.join(sorted(_policies))} (register_policy adds others)"
        )
    return _policies[name]


def segment_facts(view: LogView, *, with_times: bool = True) -> tuple[SegmentFacts, ...]:
    """The view's segments, oldest first. Without ``with_times`` no file is looked at. Raises OSError."""
    ends = [*(segment.base_offset for segment in view.segments[1:]), view.log_end_offset]
    last = len(view.segments) - 1
    return tuple(
        SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=end,
            size=view.size_of(number),
            largest_timestamp=segment.largest_timestamp if with_times else NOT_ASKED,
            is_active=number == last,
        )
        for number, (segment, end) in enumerate(zip(view.segments, ends, strict=True))
    )


def decide(
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    held_from: int | None = None,
    keeps_active: bool = False,
) -> tuple[Decision, ...]:
    """A decision for each of the oldest segments that goes now, oldest first.

    What lies below the log start goes first, and on logs that are only compacted it is all that goes.
    ``held_from``: the offset from which on the policy takes nothing (``LedgerStore.held_horizon``).
    ``keeps_active``: nobody can begin a new active segment here, so the one there is stays, and with it the
    log's end.
    """
    decisions = below_log_start(segments, log_start_offset)
    given_up = len(decisions)
    if config.deletes:
        left = segments[len(decisions) :]
        decisions += _oldest_of(find_policy(config.retention_policy), left, now_ms, config)
    may_go = 0
    for number, segment in enumerate(segments[: len(decisions)]):
        if segment.end_offset > high_watermark:
            break
        if segment.is_active and (keeps_active or not segment.size):
            break
        if held_from is not None and number >= given_up and segment.end_offset > held_from:
            break
        may_go += 1
    return tuple(decisions[:may_go])


def below_log_start(segments: Sequence[SegmentFacts], log_start_offset: int) -> list[Decision]:
    """Segments that are followed by one whose base is at or below the log start."""
    below = takewhile(lambda each: not each.is_active and each.end_offset <= log_start_offset, segments)
    return _decisions(below, f"below the log start offset {log_start_offset}")


def by_size(segments: Sequence[SegmentFacts], retention_bytes: int) -> list[Decision]:
    """Segments without which the log is still no smaller than ``retention_bytes``; none when negative."""
    sizes = [segment.size for segment in segments]
    over = sum(sizes) - retention_bytes if retention_bytes >= 0 else -1
    count = sum(removed <= over for removed in accumulate(sizes)) if over >= 0 else 0
    return _decisions(segments[:count], f"the log is over retention.bytes={retention_bytes}")


def by_age(segments: Sequence[SegmentFacts], now_ms: int, retention_ms: int) -> list[Decision]:
    """Segments whose largest timestamp is older than ``retention_ms``; none when negative.

    A closed segment that cleaning has left empty goes with what lies behind it: in Kafka its file's time,
    which is that of the cleaning's source, holds all of that back.
    """
    going = 0
    for number, segment in enumerate(segments if retention_ms >= 0 else ()):
        if now_ms - segment.largest_timestamp > retention_ms:
            going = number + 1
        elif segment.size or segment.is_active:
            break
    return _decisions(segments[:going], f"older than retention.ms={retention_ms}")


def _decisions(segments: Iterable[SegmentFacts], reason: str) -> list[Decision]:
    return [Decision(base_offset=segment.base_offset, reason=reason) for segment in segments]


def kafka_policy(segments: Sequence[SegmentFacts], now_ms: int, config: LogConfig) -> list[Decision]:
    """By size first, then what is left by age."""
    decisions = by_size(segments, config.retention_bytes)
    return decisions + by_age(segments[len(decisions) :], now_ms, config.retention_ms)


def _oldest_of(
    policy: DeletionPolicy, segments: Sequence[SegmentFacts], now_ms: int, config: LogConfig
) -> list[Decision]:
    """A policy's decisions about the oldest segments, up to the first that it does not name."""
    answer = policy(segments, now_ms, config)
    if isinstance(answer, int):
        return _decisions(segments[: max(answer, 0)], f"policy {config.retention_policy}")
    decisions = {decision.base_offset: decision for decision in answer}
    named = takewhile(lambda segment: segment.base_offset in decisions, segments)
    return [decisions[segment.base_offset] for segment in named]


register_policy(KAFKA, kafka_policy)
