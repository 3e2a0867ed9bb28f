"""Segments whose offsets are too far apart for an index: found, split and cleaned, or left and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from siltstone.cleaner.destination import Nowhere
from siltstone.cleaner.report import CLEANED, SKIPPED
from siltstone.config import INT_MAX
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.overflow import overflowed, split_overflowed
from siltstone.log.segments import list_segments
from tests.cleaner.logs import logs_of, offsets, one, run, tree, write_log
from tests.log.index_checks import check_indexes

FAR = INT_MAX + 10
WIDE = [3, 7, INT_MAX, FAR, FAR + 5, 2 * FAR + INT_MAX]


def wide_log(path: Path, at: list[int] = WIDE) -> Path:
    """A closed segment with base 0 and batches at these offsets, and an active one far above."""
    first = [one(offset, f"k{number % 4}") for number, offset in enumerate(at)]
    return write_log(path, {0: first, 4 * FAR: [one(4 * FAR, "z")]})


def test_only_closed_segments_that_reach_too_far_are_found(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    assert [each.base_offset for each in overflowed(list_segments(partition))] == [0]
    near = wide_log(tmp_path / "near", [0, INT_MAX])
    assert overflowed(list_segments(near)) == []


@pytest.mark.parametrize(
    ("at", "bases"), [(WIDE, [0, FAR, 2 * FAR + INT_MAX]), ([FAR, FAR + 1], [FAR]), ([0, FAR], [0, FAR])]
)
def test_a_split_keeps_every_byte(tmp_path: Path, at: list[int], bases: list[int]) -> None:
    partition = wide_log(tmp_path, at)
    entries = np.array([(0, 1, at[0], offset, offset + 1) for offset in at], TRANSACTION_ENTRY)
    (partition / f"{0:020d}.txnindex").write_bytes(entries.tobytes())
    (source, active), before = list_segments(partition), logs_of(partition)
    assert split_overflowed(partition, source, interval=4096, index_bytes=1 << 20) == bases
    after = logs_of(partition)
    assert b"".join(after[base] for base in bases) == before[0]
    assert sorted(after) == [*bases, active.base_offset]
    found = list_segments(partition)
    assert overflowed(found) == []
    assert {each.modified_ns for each in found[:-1]} == {source.modified_ns}
    indexes = [(partition / f"{base:020d}.txnindex").read_bytes() for base in bases]
    assert b"".join(indexes) == entries.tobytes()
    check_indexes(partition)
    assert not [name for name in tree(partition) if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert not (partition / ".siltstone").exists()


def test_a_clean_in_place_splits_it_first(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    result = run(tmp_path)
    assert result.status == CLEANED
    assert any(note.startswith("split ") for note in result.notes)
    assert offsets(partition) == [INT_MAX, FAR, FAR + 5, 2 * FAR + INT_MAX, 4 * FAR]
    assert overflowed(list_segments(partition)) == []
    check_indexes(partition)


def test_a_dry_run_says_what_is_to_be_done(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    before = tree(partition)
    result = run(tmp_path, destination=Nowhere())
    assert result.status == SKIPPED and "--in-place splits it" in result.reason
    assert tree(partition) == before
