"""What was written is held against the retained offsets in one walk: it says what plain sets say."""

from __future__ import annotations

import random

import numpy as np
import pytest

from siltstone.compaction.rewrite import check_offsets

BASE = 1 << 40


def first_trouble(
    offsets: list[int], batch: list[int], control: list[bool], map_end: int, retained: set[int], last: int
) -> int:
    """What is wrong with the first offset with which anything is."""
    for offset, number in zip(offsets, batch, strict=True):
        if offset <= last:
            return 1
        last = offset
        if not control[number] and offset < map_end and offset - BASE not in retained:
            return 2
    return 0


def walked(
    offsets: list[int], batch: list[int], control: list[bool], map_end: int, retained: set[int], parts: int
) -> int:
    """The same by the kernel, in so many calls."""
    last, met, wrong = BASE - 1, 0, 0
    sorted_winners = np.array(sorted(retained), np.uint32)
    for some in np.array_split(np.arange(len(offsets)), parts):
        rows = np.array(offsets, np.int64)[some], np.array(batch, np.int32)[some], np.array(control)
        last, met, wrong = check_offsets(*rows, BASE, map_end, sorted_winners, last, met)
        if wrong:
            return wrong
    return wrong


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_agrees_with_python_sets(seed: int) -> None:
    chance = random.Random(seed)
    relative = sorted(chance.sample(range(400), chance.randrange(1, 120)))
    batch = sorted(chance.randrange(6) for _ in relative)
    control = [chance.random() < 0.3 for _ in range(6)]
    map_end = BASE + chance.choice([1 << 30, 300])
    contested = [offset for offset, number in zip(relative, batch, strict=True) if not control[number]]
    retained = {offset for offset in contested if BASE + offset < map_end} | set(
        chance.sample(range(400), 40)
    )
    offsets = [BASE + offset for offset in relative]
    arguments = (batch, control, map_end)
    assert walked(offsets, *arguments, retained, 1 + seed % 3) == 0
    spoilt = list(offsets)
    place = chance.randrange(len(spoilt))
    spoilt[place] += chance.choice([-7, -1, 1, 7])
    missing = retained - {chance.choice(relative)}
    for changed, winners in ((spoilt, retained), (offsets, missing), (spoilt, missing)):
        expected = first_trouble(changed, *arguments, winners, BASE - 1)
        assert walked(changed, *arguments, winners, 1 + seed % 3) == expected


def test_each_kind_of_trouble_has_its_number() -> None:
    one_batch = ([0], [False], 1 << 62)
    assert walked([BASE + 5], *one_batch, {5}, 1) == 0
    assert walked([BASE + 5], *one_batch, {4, 6}, 1) == 2
    assert walked([BASE + 5], *one_batch, set(), 1) == 2
    assert walked([BASE - 1], *one_batch, {5}, 1) == 1
    assert walked([BASE + 5, BASE + 5], [0, 0], [False], 1 << 62, {5}, 2) == 1
    assert walked([BASE + 5], [0], [True], 1 << 62, set(), 1) == 0
    assert walked([BASE + 5], [0], [False], BASE + 5, set(), 1) == 0
