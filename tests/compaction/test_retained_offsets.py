"""The files of retained offsets: what is written comes back, and what was changed never does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.errors import CheckFailedError
from siltstone.compaction.report import ErrorDetails
from siltstone.compaction.staging import read_retained, rewrite_from_file, write_retained
from siltstone.compaction.work import Group, LogWork, RetentionRules, TaskLimits
from siltstone.log.segments import Segment
from tests.support.errors import raises_error


@pytest.fixture
def staged(tmp_path: Path) -> LogWork:
    """The work of a log with three groups; nothing but its folder is there."""
    segments = [
        Segment(
            directory="/data/topic-0",
            base_offset=10 * i,
            size=100,
            modified_ns=1,
            inode=7,
            offset_index_size=8,
            time_index_size=12,
            transaction_index_size=0,
        )
        for i in range(3)
    ]
    groups = [
        Group(index=i, first_segment=i, end_segment=i + 1, base_offset=10 * i, end_offset=10 * i + 10)
        for i in range(3)
    ]
    return LogWork(
        name="topic-0",
        segments=tuple(segments),
        groups=tuple(groups),
        first_dirty=5,
        end=30,
        rules=RetentionRules(
            now_ms=1_800_000_000_000,
            delete_retention_ms=86_400_000,
            last_offset=29,
            producers=np.empty((0, 3), np.int64),
            drop_keyless=True,
        ),
        limits=TaskLimits(
            index_interval_bytes=4096, index_bytes=10 << 20, window_size=1 << 20, memory_bytes=1 << 29
        ),
        staging=str(tmp_path),
        hash_key=(0, 0),
    )


RETAINED = np.array([7, 1, 4, 0xFFFFFFF0], np.uint32)


def test_retained_offsets_come_back_in_order(staged: LogWork, tmp_path: Path) -> None:
    file = write_retained(staged, staged.ranges[1], RETAINED, "a")
    assert (file.group_range.group, file.count, file.failure) == (1, 4, None)
    assert read_retained(tmp_path, file).tolist() == sorted(RETAINED.tolist())
    none = write_retained(staged, staged.ranges[2], RETAINED[:0], "a")
    assert (none.name, none.count) == ("", 0)
    assert len(read_retained(tmp_path, none)) == 0
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_every_flipped_bit_and_every_cut_of_retained_offsets_is_noticed(
    staged: LogWork, tmp_path: Path
) -> None:
    file = write_retained(staged, staged.ranges[0], RETAINED, "a")
    path = tmp_path / file.name
    data = path.read_bytes()
    changed = [data[:cut] for cut in range(len(data))] + [data + b"\0", data * 2]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            changed.append(bytes(flipped))
    for damaged in changed:
        path.write_bytes(damaged)
        with raises_error(CheckFailedError, path=path):
            read_retained(tmp_path, file)
    report = rewrite_from_file(staged, file, "b").groups[0]
    assert report.failure is not None and report.failure.status == "failed"
    assert report.failure.details == ErrorDetails(
        code="CHECK_FAILED", path=str(path), advice=CheckFailedError.usual_advice
    )


def test_an_attempt_never_touches_another_attempts_retained_offsets(staged: LogWork, tmp_path: Path) -> None:
    file = write_retained(staged, staged.ranges[0], RETAINED, "a")
    again = write_retained(staged, staged.ranges[0], RETAINED[:2], "a")
    assert again.failure is not None and again.failure.status == "failed"
    assert read_retained(tmp_path, file).tolist() == sorted(RETAINED.tolist())
    removed = replace(staged, staging=str(tmp_path / "gone"))
    late = write_retained(removed, removed.ranges[0], RETAINED, "late")
    assert late.failure is not None
    assert not (tmp_path / "gone").exists()
