"""A partition directory in order: what recovery hands to whoever opens the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.log.names import TopicPartition
from siltstone.log.producers import ProducerStates
from siltstone.log.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A partition directory in order, as recovery leaves it: what ``PartitionLog`` starts from."""

    where: TopicPartition
    directory: Path
    segments: Sequence[Segment]
    producers: ProducerStates
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
