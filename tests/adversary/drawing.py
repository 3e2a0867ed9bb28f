"""Which cases there are: an endless stream from a seed, and one flip at every bit of every small file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.adversary.attacks import ATTACKS
from tests.adversary.bases import Bases
from tests.adversary.commands import COMMANDS
from tests.adversary.judging import Case

SLOW = {"clean_apart": 400, "clean_on_spark": 4000}
"""Commands that start a process: one case in so many."""
WEIGHTS = {"clean": 8, "clean_out": 2, "clean_killed": 2, "recover": 3, "open_and_clean": 3}
FORGERIES = (
    "forge_aborted",
    "forge_snapshot",
    "forge_checkpoint",
    "link_own_names",
    "clock_jump",
    "hard_link",
)


def random_cases(seed: int, names: Sequence[str], *, slow: bool = False) -> Iterator[Case]:
    """Cases without end. Attacks come in turn, so that each of them has its share; few combine three."""
    draw = Random(f"cases {seed}")
    quick = [name for name in sorted(COMMANDS) if name not in SLOW]
    weights = [WEIGHTS.get(name, 1) for name in quick]
    kinds = [*sorted(ATTACKS), *FORGERIES, ""]
    small = [name for name in names if name.startswith(("made/", "life/"))]
    number = 0
    while True:
        attacked = [kinds[number % len(kinds)]]
        attacked += draw.sample(sorted(ATTACKS), draw.choice([0, 0, 0, 1, 1, 2]))
        commands = draw.choices(quick, weights, k=draw.choice([1, 1, 1, 2, 3]))
        for name, share in SLOW.items():
            if slow and number % share == share // 2:
                commands = [name]
        base = draw.choice(small if draw.random() < 0.6 else names)
        yield Case(base, tuple(dict.fromkeys(filter(None, attacked))), tuple(commands), draw.randrange(10**9))
        number += 1


def flips(seed: int, bases: Bases, names: Sequence[str]) -> list[Case]:
    """A case for every bit of every small file of these bases, in an order that the seed says.

    Files that several bases have with the same bytes, such as ``meta.properties``, are taken once for each.
    """
    draw = Random(f"flips {seed}")
    flipped_bits = []
    for name in names:
        for path, size in bases.small_files(name):
            for bit in range(size * 8):
                flipped_bits.append((name, path, bit))
    draw.shuffle(flipped_bits)
    commands = ["clean", "clean", "clean", "clean", "clean_out", "recover,clean", "open_and_clean", "explain"]
    return [
        Case(name, (f"flip={path}:{bit}",), tuple(draw.choice(commands).split(",")), draw.randrange(10**6))
        for name, path, bit in flipped_bits
    ]


def interleaved(cases: Iterator[Case], inserted: Sequence[Case], share: int) -> Iterator[Case]:
    """``inserted`` in between: one of them before each ``share`` of ``cases``, until there are no more."""
    rest = iter(inserted)
    for number, case in enumerate(cases):
        if number % share == 0:
            yield from (insert for insert in [next(rest, None)] if insert is not None)
        yield case
