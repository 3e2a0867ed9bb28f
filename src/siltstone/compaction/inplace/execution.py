"""Chooses how the cleaning of a log is executed, by its size and the disk space for new files.

::

    ONE_TASK    the whole log in one task: its bytes and its keys fit one task
    ONE_JOB     distributed over all workers; all new files are on disk before the swap
    WAVES       distributed; the retained offsets are written to files, then one wave of groups after
                another is rewritten and swapped in: only the new files of one wave are on disk

Waves need less space than one job only if a swap frees the old segments (``SpaceBudget.frees_sources``):
not if originals are kept, nor for a copy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from siltstone.compaction.engine import entry_count_max, fits_one_task
from siltstone.compaction.inplace.destination import SpaceBudget
from siltstone.compaction.keys import ENTRY_BYTES
from siltstone.compaction.staging import RETAINED_OFFSET_BYTES
from siltstone.compaction.work import Group, LogWork

MAX_GROWTH = 1.1
"""The most bytes of a group's new files, as a multiple of its old segments': a new delete horizon changes the
timestamp deltas of a batch, and Siltstone's implementation of a codec may compress worse than the
producer's."""
MAX_MESSAGE_SET_GROWTH = 2.7
"""The same for message sets (v0, v1), which may become batches of one small record each."""
PIECES_FACTOR = 2
"""A group that is cut into ranges needs this many times the bytes of its new files: for the pieces that tasks
write, and for the new segment that is made of them."""
FILES_PER_GROUP = 8
"""Inodes that must be free for each group: more than its log, its indexes and its retained offsets take."""


class ExecutionMode(enum.Enum):
    """How the cleaning of a log is executed."""

    ONE_TASK = enum.auto()
    ONE_JOB = enum.auto()
    WAVES = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan:
    """The mode of execution, the bytes that new segments may take at the same time (``new_bytes_max``), and
    the least bytes that the whole cleaning needs (``needed_bytes``)."""

    mode: ExecutionMode
    new_bytes_max: int
    needed_bytes: int


def new_file_bytes(work: LogWork, group: Group | None = None) -> int:
    """The most bytes of the new files of ``group``; of all groups if it is None."""
    segments = work.segments if group is None else work.sources(group)
    growth = MAX_MESSAGE_SET_GROWTH if work.has_message_sets else MAX_GROWTH
    return int(sum(segment.size for segment in segments) * growth)


def shuffle_spill_bytes(work: LogWork) -> int:
    """The most bytes of key entries that a shuffle may write to disk."""
    return ENTRY_BYTES * entry_count_max(work)


def retained_file_bytes(work: LogWork) -> int:
    """The most bytes of the files of retained offsets, which stay on disk until the last wave."""
    return RETAINED_OFFSET_BYTES * entry_count_max(work)


def execution_plan(work: LogWork, space: SpaceBudget, whole_log_bytes: int, wave_bytes: int) -> ExecutionPlan:
    """Choose how to execute the cleaning of a log. ``whole_log_bytes``: the largest log for one task;
    ``wave_bytes``: old segments of a wave for each worker; a log of up to this size is one job."""
    new_bytes, spilled = new_file_bytes(work), shuffle_spill_bytes(work)
    reserved = 0
    if new_bytes <= space.size and fits_one_task(work, whole_log_bytes):
        mode = ExecutionMode.ONE_TASK
    elif not space.frees_sources or (work.size <= wave_bytes and new_bytes + spilled <= space.size):
        mode, reserved = ExecutionMode.ONE_JOB, spilled
    else:
        mode, reserved = ExecutionMode.WAVES, spilled + retained_file_bytes(work)
    if mode is ExecutionMode.WAVES and work.staging is None:
        # A dry run has no files between its waves. What is reserved stays that of waves, so that it is
        # refused where the run itself would be.
        mode = ExecutionMode.ONE_JOB
    # The least that is needed. Where a swap frees the old segments, a wave may be one group, so the largest
    # group must fit. (There ONE_TASK and ONE_JOB were chosen only if all new files fit, or for the dry run of
    # a cleaning in waves, which is refused where that cleaning would be.)
    largest_group = max((new_file_bytes(work, group) for group in work.groups), default=0)
    return ExecutionPlan(
        mode=mode,
        new_bytes_max=space.size - reserved,
        needed_bytes=reserved + (largest_group if space.frees_sources else new_bytes),
    )


def waves(work: LogWork, new_bytes_max: int, wave_bytes: int, parallelism: int) -> Iterator[list[Group]]:
    """Divide a log's groups into waves of neighbours, each of at least one group.

    The new files of a wave fit ``new_bytes_max``, unless it is one group. A wave ends at ``wave_bytes`` of
    old segments for each worker, which bounds the work that an interrupt costs. But it does not end before
    it has a group for each worker.
    """
    wave: list[Group] = []
    source_bytes = new_bytes = 0
    for group in work.groups:
        source_bytes += sum(segment.size for segment in work.sources(group))
        new_bytes += new_file_bytes(work, group)
        is_large = source_bytes > wave_bytes * parallelism and len(wave) >= parallelism
        if wave and (is_large or new_bytes > new_bytes_max):
            yield wave
            wave = []
            source_bytes = sum(segment.size for segment in work.sources(group))
            new_bytes = new_file_bytes(work, group)
        wave.append(group)
    if wave:
        yield wave


def plan_waves(
    work: LogWork, new_bytes_max: int, wave_bytes: int, parallelism: int
) -> tuple[list[list[Group]], bool]:
    """(The waves of a log, whether there is space to cut their groups into ranges.)

    The pieces of a cut group need as much space as its new segment, so waves would have to be smaller. That
    pays only where whole groups would occupy at most half of the workers. Elsewhere groups are cut only if
    the waves stay as they are.
    """
    whole = list(waves(work, new_bytes_max, wave_bytes, parallelism))
    with_pieces = list(waves(work, new_bytes_max // PIECES_FACTOR, wave_bytes, parallelism))
    fits = all(
        PIECES_FACTOR * sum(new_file_bytes(work, group) for group in wave) <= new_bytes_max
        for wave in with_pieces
    )
    is_worth_it = with_pieces == whole or 2 * max(map(len, whole)) <= parallelism
    return (with_pieces, True) if fits and is_worth_it else (whole, False)


def lack_of_space(work: LogWork, execution: ExecutionPlan, space: SpaceBudget) -> tuple[str, str] | None:
    """(Why the space does not suffice, what to do); None if it does."""
    needed, inodes = execution.needed_bytes, FILES_PER_GROUP * len(work.groups)
    if needed > space.size:
        reason = f"needs up to {needed} bytes more on disk, but only {max(space.size, 0)} are allowed"
        return reason, "free some, or raise --max-extra-bytes"
    if space.inodes is not None and space.inodes < inodes:
        return f"needs up to {inodes} inodes, but only {space.inodes} are free", "free some"
    return None
