"""What a start makes of an interrupted swap beside files that wait to be unlinked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siltstone.log.replacement import finish_replacement, swap_in
from tests.support.cleaning.logs import logs_of, one, tree, write_log


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments; the first is about to be swapped in once more."""
    directory = write_log(tmp_path, {0: [one(0, "a"), one(1, "b")], 2: [one(2, "c")], 3: [one(3, "d")]})
    copy(directory, 0, ".swap")
    return directory


def copy(partition: Path, base: int, suffix: str) -> None:
    for path in list(partition.glob(f"{base:020}.*")):
        shutil.copy2(path, f"{path}{suffix}")


def test_a_segment_stays_beside_the_deleted_files_of_an_earlier_one(partition: Path) -> None:
    before = logs_of(partition)
    copy(partition, 2, ".deleted")
    finish_replacement(partition)
    assert logs_of(partition) == before
    assert not list(partition.glob("*.deleted"))


def test_a_segment_that_was_being_retired_goes(partition: Path) -> None:
    index = partition / f"{2:020}.index"
    index.rename(f"{index}.deleted")
    finish_replacement(partition)
    assert sorted(logs_of(partition)) == [0, 3]


def test_a_swap_without_the_log_of_a_new_segment_changes_nothing(partition: Path) -> None:
    """Its other new segments would replace the old ones, and its records would be gone."""
    for path in list(partition.glob("*.swap")):
        path.rename(path.with_suffix(".cleaned"))
    before = tree(partition)
    with pytest.raises(FileNotFoundError):
        swap_in(partition, [0, 1], [0, 2])
    assert tree(partition) == before
