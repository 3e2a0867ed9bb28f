"""Leader epochs: what follows what, which offset ends an epoch, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.errors import CorruptFileError
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.names import LEADER_EPOCH_CHECKPOINT
from tests.support.errors import raises_error

FIVE = [(2, 0), (3, 10), (5, 20), (6, 35), (9, 40)]


def of(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    rows = "".join(f"{epoch} {start}\n" for epoch, start in entries)
    (path / LEADER_EPOCH_CHECKPOINT).write_text(f"0\n{len(entries)}\n{rows}")
    return LeaderEpochs(path)


def test_a_change_is_in_the_file_when_it_returns(tmp_path: Path) -> None:
    path = tmp_path / LEADER_EPOCH_CHECKPOINT
    epochs = LeaderEpochs(tmp_path)
    assert epochs.latest_epoch is None and epochs.entries == ()
    assert epochs.assign(0, 0)
    assert path.read_bytes() == b"0\n1\n0 0\n"
    assert epochs.assign(4, 17)
    assert path.read_bytes() == b"0\n2\n0 0\n4 17\n"
    assert LeaderEpochs(tmp_path).entries == ((0, 0), (4, 17))


def test_assigning_a_known_epoch_changes_nothing(tmp_path: Path) -> None:
    epochs = of(tmp_path, (3, 10))
    assert not epochs.assign(3, 10)
    assert not epochs.assign(3, 99)
    assert epochs.entries == ((3, 10),)
    assert epochs.assign(3, 4)
    assert epochs.entries == ((3, 4),)


@pytest.mark.parametrize(
    ("entry", "remaining"),
    [
        ((10, 50), [*FIVE, (10, 50)]),
        ((10, 40), [*FIVE[:4], (10, 40)]),
        ((10, 20), [*FIVE[:2], (10, 20)]),
        ((5, 50), [*FIVE[:2], (5, 50)]),
        ((1, 99), [(1, 99)]),
    ],
)
def test_a_new_epoch_removes_the_entries_that_it_cannot_follow(
    tmp_path: Path, entry: tuple[int, int], remaining: list[tuple[int, int]]
) -> None:
    epochs = of(tmp_path, *FIVE)
    assert epochs.assign(*entry)
    assert list(epochs.entries) == remaining


@pytest.mark.parametrize(("end", "count"), [(100, 5), (41, 5), (40, 4), (10, 1), (1, 1), (0, 0)])
def test_truncating_the_end_removes_later_epochs(tmp_path: Path, end: int, count: int) -> None:
    epochs = of(tmp_path, *FIVE)
    epochs.truncate_from_end(end)
    assert list(epochs.entries) == FIVE[:count]


@pytest.mark.parametrize(
    ("start", "remaining"),
    [
        (0, FIVE),
        (5, [(2, 5), *FIVE[1:]]),
        (10, FIVE[1:]),
        (12, [(3, 12), *FIVE[2:]]),
        (1000, [(9, 1000)]),
    ],
)
def test_the_epoch_that_covers_the_start_stays(
    tmp_path: Path, start: int, remaining: list[tuple[int, int]]
) -> None:
    epochs = of(tmp_path, *FIVE)
    epochs.truncate_from_start(start)
    assert list(epochs.entries) == remaining


def test_a_log_that_starts_before_the_first_epoch_retains_all_epochs(tmp_path: Path) -> None:
    epochs = of(tmp_path, *FIVE[1:])
    epochs.truncate_from_start(5)
    assert list(epochs.entries) == FIVE[1:]


DAMAGED = (
    b"",
    b"1\n0\n",
    b"0",
    b"0\n",
    b"0\n2\n0 0\n",
    b"0\n1\n0 0 0\n",
    b"0\n1\nx 0\n",
    b"0\n1\n-1 0\n",
    b"0\n1\n0 " + b"9" * 5000 + b"\n",
    b"0\n1\n9999999999 0\n",
    b"0\n2\n1 0\n1 5\n",
    b"0\n2\n1 5\n2 5\n",
    b"\xff\x00",
)


@pytest.mark.parametrize("raw", DAMAGED)
def test_a_damaged_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / LEADER_EPOCH_CHECKPOINT
    path.write_bytes(raw)
    with raises_error(CorruptFileError, path=path):
        LeaderEpochs(tmp_path)


def test_the_reason_names_an_epoch_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / LEADER_EPOCH_CHECKPOINT).write_text(f"0\n1\n{1 << 31} 0\n")
    with raises_error(CorruptFileError, about=f"epoch {1 << 31} is above {(1 << 31) - 1}"):
        LeaderEpochs(tmp_path)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_whatever_is_assigned_ascends_and_is_on_disk(
    tmp_path_factory: pytest.TempPathFactory, assigned: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("epochs")
    epochs = LeaderEpochs(path)
    for epoch, start in assigned:
        epochs.assign(epoch, start)
    entries = list(epochs.entries)
    assert entries == sorted(entries) == sorted(entries, key=lambda entry: entry[1])
    assert len({epoch for epoch, _ in entries}) == len({start for _, start in entries}) == len(entries)
    assert list(LeaderEpochs(path).entries) == entries


def test_kafkas_own_file_is_read(golden: Path) -> None:
    assert LeaderEpochs(golden / "txn" / "before").entries == ((0, 0),)
