"""Which remote segments make up a log: overlaps, leaders that changed, gaps."""

from __future__ import annotations

import random

import pytest

from siltstone.log.tiered.copies import ChosenRange, OffsetGap, RemoteCopy, choose


def copy(name: str, start: int, end: int, *epochs: tuple[int, int], event_ms: int = 0) -> RemoteCopy:
    return RemoteCopy(
        segment_id=name, start_offset=start, end_offset=end, epochs=epochs or ((0, 0),), event_ms=event_ms
    )


def chosen(
    copies: list[RemoteCopy],
    *leader_epochs: tuple[int, int],
    log_start: int = 0,
    local_start: int | None = None,
) -> list[tuple[str, int, int]]:
    parts = choose(copies, leader_epochs, log_start=log_start, local_start=local_start)
    return [
        (part.copy.segment_id, part.first, part.last)
        if isinstance(part, ChosenRange)
        else ("gap", part.first, part.last)
        for part in parts
    ]


A, B, C = copy("a", 0, 99), copy("b", 100, 199), copy("c", 200, 299)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [("a", 0, 99), ("b", 100, 199), ("c", 200, 299)]),
        ({"local_start": 200}, [("a", 0, 99), ("b", 100, 199)]),
        ({"local_start": 150}, [("a", 0, 99), ("b", 100, 149)]),
        ({"local_start": 0}, []),
        ({"log_start": 130}, [("b", 100, 199), ("c", 200, 299)]),
        ({"log_start": 100, "local_start": 200}, [("b", 100, 199)]),
        ({"local_start": 400}, [("a", 0, 99), ("b", 100, 199), ("c", 200, 299), ("gap", 300, 399)]),
        ({"log_start": 500, "local_start": 500}, []),
    ],
)
def test_segments_in_a_row_are_read_up_to_the_local_ones(
    arguments: dict[str, int], expected: list[tuple[str, int, int]]
) -> None:
    assert chosen([C, A, B], (0, 0), **arguments) == expected


def test_a_missing_segment_is_a_gap_and_a_missing_first_one_a_later_start() -> None:
    assert chosen([A, C], local_start=300) == [("a", 0, 99), ("gap", 100, 199), ("c", 200, 299)]
    assert chosen([B, C], local_start=300) == [("b", 100, 199), ("c", 200, 299)]
    assert chosen([], local_start=300) == []
    assert chosen([copy("z", 500, 600)], local_start=300) == []


def test_copies_of_another_leader_take_over_where_their_epoch_begins() -> None:
    first, second = copy("first", 0, 99, (0, 0)), copy("second", 60, 180, (0, 0), (2, 100))
    foreign = copy("foreign", 0, 130, (0, 0), (1, 100))
    expected = [("foreign", 0, 99), ("second", 100, 180)]
    assert chosen([foreign, first, second], (0, 0), (2, 100), local_start=181) == expected
    assert chosen([first, second], (0, 0), (2, 100), local_start=181) == [("first", 0, 99), expected[1]]


def test_without_leader_epochs_a_newer_leaders_copy_counts() -> None:
    older, newer = copy("older", 0, 150, (0, 0)), copy("newer", 100, 149, (0, 0), (1, 120))
    assert chosen([older, newer], log_start=100, local_start=150) == [("newer", 100, 149)]
    assert chosen([older, newer], (0, 0), log_start=100, local_start=150) == [("older", 0, 149)]


def test_records_of_an_unclean_election_are_not_the_logs() -> None:
    lost = copy("lost", 50, 149, (1, 50))
    assert chosen([copy("kept", 0, 199, (0, 0), (2, 120)), lost], (0, 0), (2, 120), local_start=200) == [
        ("kept", 0, 199)
    ]
    assert chosen([copy("kept", 0, 49), lost], (0, 0), (2, 50), local_start=150) == [
        ("kept", 0, 49),
        ("gap", 50, 149),
    ]


def test_epochs_before_the_copy_do_not_count() -> None:
    """LocalTieredStorage has all epochs of the log in each segment."""
    whole = copy("whole", 200, 299, (0, 0), (3, 150), (4, 250))
    assert chosen([whole], (3, 150), (4, 250), log_start=200, local_start=300) == [("whole", 200, 299)]


def test_random_storages_give_each_offset_of_a_copy_that_has_the_logs_epoch() -> None:
    seed = random.randrange(1 << 32)
    numbers = random.Random(seed)
    for _ in range(200):
        leader_epochs = [(0, 0), (2, numbers.randrange(1, 30)), (5, numbers.randrange(30, 60))]

        def epoch_at(offset: int, leader_epochs: list[tuple[int, int]] = leader_epochs) -> int:
            return max(epoch for epoch, start in leader_epochs if start <= offset)

        copies, has = [], dict[int, set[str]]()
        for number in range(numbers.randrange(12)):
            start = numbers.randrange(70)
            end = start + numbers.randrange(20)
            epochs, before = [], -1
            for offset in range(start, end + 1):
                own = epoch_at(offset) if numbers.random() < 0.95 else before
                if own > before:
                    epochs.append((own, offset))
                    before = own
            if not epochs:
                continue
            copies.append(copy(str(number), start, end, *epochs))
            for offset in range(start, end + 1):
                its = [epoch for epoch, first in epochs if first <= offset]
                if its and its[-1] == epoch_at(offset):
                    has.setdefault(offset, set()).add(str(number))
        local_start = numbers.randrange(80)
        parts = choose(copies, leader_epochs, log_start=0, local_start=local_start)
        offsets = [offset for part in parts for offset in range(part.first, part.last + 1)]
        assert offsets == sorted(set(offsets)), seed
        for part in parts:
            for offset in range(part.first, part.last + 1):
                if isinstance(part, OffsetGap):
                    assert offset not in has, seed
                else:
                    assert part.copy.segment_id in has[offset], seed
        missed = {offset for offset in has if offset < local_start} - set(offsets)
        assert not missed, seed
