"""How a log's groups go: all in one task, all in one job, or wave by wave; and the room that each way needs.

::

    one task    small: its keys and bytes fit, and so do all its new files
    one job     larger, spread; all new files at once, and not too much work to do again
    in waves    winners and journal wait on disk; a wave's new files, then the next one's

Only where a swapped group's originals go (``Room.frees_sources``) do waves need less room than one job.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siltstone.cleaner.destination import Room
from siltstone.cleaner.engine import fits_one_task
from siltstone.cleaner.facts import Planned
from siltstone.cleaner.journal import size_at_most
from siltstone.cleaner.keys import ENTRY_BYTES
from siltstone.cleaner.winners import WINNER_BYTES
from siltstone.cleaner.work import Group, LogWork

GROWTH = 1.1
"""How much larger than its sources a group may turn out, at the worst: stamps and lost compression."""
GROWTH_OF_MESSAGES = 2.7
"""The same where message sets (v0, v1) become batches of one small record each."""
FILES_PER_GROUP = 8


class Way(enum.Enum):
    """How a log's groups go."""

    ONE_TASK = "one task"
    ONE_JOB = "one job"
    IN_WAVES = "in waves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A way, and what it may take: ``size`` bytes of new segments at one time. ``need`` is the least."""

    way: Way
    size: int
    need: int
    inodes: int


def extra(work: LogWork, group: Group | None = None) -> int:
    """Most bytes of the new files that take the place of a group's segments, or of all."""
    segments = work.segments if group is None else work.segments[group.first : group.last]
    growth = GROWTH_OF_MESSAGES if work.message_sets else GROWTH
    return int(sum(segment.size for segment in segments) * growth)


def spill(work: LogWork) -> int:
    """Most bytes of entries that a shuffle may put on disk."""
    return ENTRY_BYTES * _records_at_most(work)


def waiting(planned: Planned) -> int:
    """Most bytes of winners and journal, which stay until the last wave is swapped in."""
    return WINNER_BYTES * _records_at_most(planned.work) + size_at_most(planned.work, len(planned.uncleaned))


def _records_at_most(work: LogWork) -> int:
    span = work.end - work.segments[0].base_offset
    return min(span, work.size)


def groups_left(planned: Planned) -> tuple[Group, ...]:
    """The groups that are still to be done."""
    return planned.work.groups[len(planned.journal.checked) if planned.journal is not None else 0 :]


def budget(planned: Planned, room: Room, whole_log_bytes: int, wave_bytes: int) -> Budget:
    """The way that a log goes.

    ``whole_log_bytes``: most for one task; ``wave_bytes``: most without a journal.
    """
    work, left = planned.work, groups_left(planned)
    way, standing = Way.IN_WAVES, waiting(planned) + (0 if planned.journal else spill(work))
    if planned.journal is None:
        at_once = extra(work)
        if at_once <= room.size and fits_one_task(work, whole_log_bytes):
            way, standing = Way.ONE_TASK, 0
        elif not room.frees_sources or (work.size <= wave_bytes and at_once + spill(work) <= room.size):
            way, standing = Way.ONE_JOB, spill(work)
    need = max((extra(work, each) for each in left), default=0) if room.frees_sources else extra(work)
    return Budget(
        way=way,
        size=room.size - standing,
        need=need + standing,
        inodes=FILES_PER_GROUP * len(left),
    )


def waves(
    work: LogWork, groups: Sequence[Group], room: int, wave_bytes: int, workers: int
) -> Iterator[list[Group]]:
    """Neighbouring groups that are rewritten together: their new files fit ``room`` bytes, and what an
    interrupt may cost is ``wave_bytes`` of sources, or a group for each worker, whichever is more."""
    wave: list[Group] = []
    for group in groups:
        taken = (*wave, group)
        members = [segment for each in taken for segment in work.segments[each.first : each.last]]
        size = sum(segment.size for segment in members)
        if wave and (
            sum(extra(work, each) for each in taken) > room or (size > wave_bytes and len(wave) >= workers)
        ):
            yield wave
            wave = []
        wave.append(group)
    if wave:
        yield wave
