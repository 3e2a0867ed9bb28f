"""How the groups of a large log are divided into waves, and when there is space to cut them into ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.compaction.engine import warm_up_work
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.inplace.destination import SpaceBudget
from siltstone.compaction.inplace.execution import ExecutionMode, execution_plan, plan_waves
from siltstone.compaction.work import Group, LogWork
from siltstone.log.segments import Segment
from tests.support.cleaning import logs

SIZE, NEW = 1000, 1100
"""Bytes of a group, and the most of its new files."""
PLENTY = 1 << 40


def work_of(tmp_path: Path, groups: int) -> LogWork:
    """So many groups of one segment, which need not exist."""
    logs.write_log(tmp_path, {0: [logs.one(0, "a")], 1: [logs.one(1, "b")]})
    segments = tuple(
        Segment(directory="/logs/topic-0", base_offset=number, size=SIZE, modified_ns=1)
        for number in range(groups)
    )
    return replace(
        warm_up_work(tmp_path / "topic-0", "staged"),
        segments=segments,
        groups=tuple(
            Group(index=n, first_segment=n, end_segment=n + 1, base_offset=n, end_offset=n + 1)
            for n in range(groups)
        ),
        end=groups,
    )


@pytest.mark.parametrize(
    ("groups", "space", "parallelism", "expected", "may_cut"),
    [
        # With space for everything, groups may always be cut; only ``cut_groups`` decides.
        (3, PLENTY, 8, [3], True),
        (5, PLENTY, 2, [2, 2, 1], True),
        # Space for six groups: waves of three with their pieces, if there is a worker for each half.
        (6, 6 * NEW, 12, [3, 3], True),
        (6, 6 * NEW, 11, [6], False),
        # Space for one group, or for one and its piece.
        (2, NEW, 8, [1, 1], False),
        (2, 2 * NEW - 1, 8, [1, 1], False),
        (2, 2 * NEW, 8, [1, 1], True),
    ],
)
def test_waves_hold_what_the_space_allows(
    tmp_path: Path, groups: int, space: int, parallelism: int, expected: list[int], may_cut: bool
) -> None:
    waves, cuts = plan_waves(work_of(tmp_path, groups), space, SIZE, parallelism)
    assert ([len(wave) for wave in waves], cuts) == (expected, may_cut)
    assert [group.index for wave in waves for group in wave] == list(range(groups))


@pytest.mark.parametrize(
    ("frees_sources", "wave_bytes", "mode"),
    [
        (True, 2 * SIZE, ExecutionMode.ONE_JOB),
        (True, 2 * SIZE - 1, ExecutionMode.WAVES),
        # A copy frees nothing, so waves would not need less space than one job.
        (False, 2 * SIZE - 1, ExecutionMode.ONE_JOB),
    ],
)
def test_waves_are_for_logs_whose_swaps_free_space(
    tmp_path: Path, frees_sources: bool, wave_bytes: int, mode: ExecutionMode
) -> None:
    space = SpaceBudget(size=PLENTY, inodes=None, frees_sources=frees_sources)
    work = replace(work_of(tmp_path, 2), staging=str(tmp_path))
    assert execution_plan(work, space, 0, wave_bytes).mode is mode


def test_a_wave_has_two_gibibytes_a_worker_by_default() -> None:
    assert RunLimits().wave_bytes == 2 << 30
