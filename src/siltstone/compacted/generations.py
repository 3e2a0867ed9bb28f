"""Which generations of a ledger are put together anew, so that there are few and little in them is hidden.

Each run adds a generation of what was new. A generation is written again only when about as much as it holds
came after it, so that a record is written a few times in its life, whatever the ledger's size: the cost of a
run follows the new data. Pure: sizes in, ranges out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_GENERATIONS = 8
"""Each is one more key index to look in, and one more directory to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A generation's bytes, records, and how many of these are hidden."""

    size: int
    records: int
    hidden: int

    @property
    def live(self) -> int:
        """Bytes that readers see, taken all records as equal."""
        return self.size * (self.records - self.hidden) // self.records if self.records else 0

    @property
    def is_mostly_hidden(self) -> bool:
        """Is more than half of it of no use?"""
        return 2 * self.hidden > self.records


def folds(weights: Sequence[Weight], most: int = MOST_GENERATIONS) -> list[tuple[int, int]]:
    """Ranges [first, last) of generations that each become one, ascending; a range of one is written anew.

    ``weights`` are the generations in order, the newest last. The newest and those before it go together
    while what came after a generation is at least half of its live size, and as long as there would be more
    than ``most``. Of the others, neighbours that are mostly hidden go together.
    """
    first, after = len(weights) - 1, weights[-1].live if weights else 0
    while first > 0 and (2 * after >= weights[first - 1].live or first + 1 > most):
        first -= 1
        after += weights[first].live
    found: list[tuple[int, int]] = []
    for number in range(max(first, 0)):
        if not weights[number].is_mostly_hidden:
            continue
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    newest_alone = len(weights) - first == 1 and not (weights and weights[-1].is_mostly_hidden)
    return found if newest_alone or not weights else [*found, (first, len(weights))]
