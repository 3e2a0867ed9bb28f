"""What a log is opened from, and what it answers: the small types around ``PartitionLog``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from siltstone.log.names import TopicPartition
from siltstone.log.producers import ProducerStates
from siltstone.log.segments import Segment

Background = Callable[[Callable[[], None]], object]
"""Runs a task now or later, such as the flush after a roll."""


def run_now(task: Callable[[], None]) -> None:
    """A ``Background`` that does not wait."""
    task()


class Appended(NamedTuple):
    """Where an append went. ``duplicate``: it was there already, these are its offsets then.

    ``log_append_ms`` is the time that was given under log-append time, else -1; of a duplicate it is the
    largest timestamp of the batch that is in the log, whatever the topic's timestamp type: Kafka answers
    that. ``left_out``: so many bytes behind the batch were not appended; a producer sends one batch.
    """

    first_offset: int
    last_offset: int
    log_append_ms: int = -1
    duplicate: bool = False
    left_out: int = 0


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
