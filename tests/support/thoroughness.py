"""How often a run of the tests repeats what is random or the same step again.

``make test`` tries a share, ``make test-long`` (``SILTSTONE_TESTS=thorough``) all examples and images, and
``make crash`` (``SILTSTONE_CRASH=all``) every crash point with many more images. ``make test`` tries one
image of what a crash may leave on the disk: all, nothing or a random part of what was not synced, in turns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

ALL = os.environ.get("SILTSTONE_CRASH") == "all"
THOROUGH = ALL or os.environ.get("SILTSTONE_TESTS") == "thorough"

SEEDS = range(3 if ALL else 2 if THOROUGH else 1)
"""Of the random images of a disk after a crash, beside those that keep or drop all that was not synced."""


def boundaries(total: int, stride: int = 1) -> range:
    """The operations, of ``total``, before which to crash: all, each ``stride``-th, or an eleventh of those.

    Eleven has no factor in common with the three images, and with what a test does after every second one.
    """
    return range(0, total, 1 if ALL else stride if THOROUGH else 11 * stride)


def share(things: Sequence[T], of: int) -> Sequence[T]:
    """One in ``of`` things, and the last one; all when thorough. An odd ``of`` meets each bit of a byte."""
    if THOROUGH:
        return things
    return [*things[: len(things) - 1 : of], *things[-1:]]


def turn(number: int, things: Sequence[T]) -> Sequence[T]:
    """The one of ``things`` whose turn it is at ``number``; all when thorough."""
    return things if THOROUGH else [things[number % len(things)]]


def few(cases: Iterable[tuple[Any, ...]], *always: int) -> list[Any]:
    """Parameters of a test: the cases of these numbers in every run, the others in ``make test-long``.

    A value of a case may be a ``pytest.param`` itself.
    """
    parameter = type(pytest.param(0))
    return [
        pytest.param(
            *(value.values[0] if isinstance(value, parameter) else value for value in case),
            marks=() if number in always else pytest.mark.long,
        )
        for number, case in enumerate(cases)
    ]


def in_turn(names: Sequence[Any], ways: Iterable[Any], *always: Any) -> list[Any]:
    """Parameters of a test, a name and a way: each name has one way, in turn, and those ``always`` have all
    ways in every run; the others have the rest of them in ``make test-long``. A name may be a tuple of
    several parameters."""
    all_ways = list(ways)
    product = [(*(name if isinstance(name, tuple) else (name,)), way) for name in names for way in all_ways]
    always_run = [
        row * len(all_ways) + column
        for row, name in enumerate(names)
        for column in range(len(all_ways))
        if name in always or row % len(all_ways) == column
    ]
    return few(product, *always_run)


def examples(count: int, of: int = 16) -> int:
    """How many examples a random test tries, one ``of`` so many of those that a thorough one tries."""
    return count if THOROUGH else max(count // of, 2)
