"""Who won the keys' contests: what a rewrite asks of a group's batches.

``ByWinners`` was told the offsets of those that did, so it reads nothing else; ``lookup.ByLookup`` looks each
key up in a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from siltstone.cleaner.judging import BY_KEY, MARKER_STAYS, Fates, Flags, Offsets
from siltstone.config import LONG_MAX
from siltstone.errors import CheckFailedError
from siltstone.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_chosen_records
from siltstone.records.layout import CONTROL_BIT, Bytes, Directory
from siltstone.records.modern import Choice

_SPARSE = 16
"""Where no more than one offset in so many is a winner's, winners are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contested:
    """Records of some batches: ``columns``, and which of them ``won`` or needed not (bool, one a record).

    ``met``: how many records there were, also those that are not among the columns; ``lost``: how many of
    them did not win; ``keyless``: how many of the lost ones have no key.
    """

    columns: RecordColumns
    won: Flags
    met: int
    lost: int
    keyless: int


class Contest(Protocol):
    """The contest of one group, gone through in log order."""

    @property
    def winners(self) -> Offsets:
        """The offsets that won up to now, less the group's base, ascending."""
        ...

    def beaten(self, batches: Directory) -> Flags:
        """Which batches of magic 2 have nothing that won, nor anything that no key decides on."""
        ...

    def of(
        self, window: Bytes, batches: Directory, fates: Fates, scratch: Scratch, path: str, origin: int
    ) -> Contested:
        """The records of the batches that go by key and of the markers that stay. Raises what is wrong."""
        ...

    def refuse_unmet(self, name: str) -> None:
        """The group is through. Raises CheckFailedError when not every winner of log ``name`` was met."""
        ...


def in_order(winners: Offsets, span: int) -> Offsets:
    """Offsets (uint32, less their base) ascending; ``span`` is what they are to be below.

    Where they are many they are marked and read off, which takes a fifth of the time of sorting them. What
    ought not to be, offsets beyond or twice, stays, to be found by those who check.
    """
    if len(winners) and span <= _SPARSE * len(winners) and int(winners.max()) < span:
        is_winner = np.zeros(span, np.bool_)
        is_winner[winners] = True
        found = np.flatnonzero(is_winner)
        if len(found) == len(winners):
            return found.astype(np.uint32)
    return np.sort(winners)


class ByWinners:
    """``winners``: offsets less ``base_offset``, ascending; ``map_end``: records from it on all stay.

    ``batch_limit``: what one batch may decompress to. Without ``counts_keyless`` a batch in which there is no
    winner is not looked into: all of it is beaten.
    """

    def __init__(
        self,
        winners: Offsets,
        base_offset: int,
        *,
        map_end: int = LONG_MAX,
        counts_keyless: bool = True,
        batch_limit: int = DEFAULT_LIMIT,
    ) -> None:
        self.winners = winners
        self._base_offset = base_offset
        self._map_end = map_end
        self._counts_keyless = counts_keyless
        self._limit = batch_limit
        self._met = 0

    def beaten(self, batches: Directory) -> Flags:
        """By their offsets alone."""
        if self._counts_keyless:
            return np.zeros(len(batches), np.bool_)
        base, last = batches["base_offset"], batches["last_offset"]
        first = np.searchsorted(self.winners, (base - self._base_offset).astype(np.uint32))
        behind = np.searchsorted(self.winners, (last - self._base_offset).astype(np.uint32), side="right")
        is_data = (batches["attributes"] & CONTROL_BIT) == 0
        return np.asarray((first == behind) & is_data & (last < self._map_end))

    def of(
        self, window: Bytes, batches: Directory, fates: Fates, scratch: Scratch, path: str, origin: int
    ) -> Contested:
        """The winners, and what no key decides on; all others are only counted. Raises CorruptRecordError,
        and CheckFailedError for a winner that is no record."""
        rows = np.flatnonzero((fates == BY_KEY) | (fates == MARKER_STAYS))
        choice = Choice(
            offsets=self.winners,
            base=self._base_offset,
            met=self._met,
            all_from=np.where(fates[rows] == BY_KEY, self._map_end, 0),
        )
        found = decode_chosen_records(
            window, batches, rows, choice, scratch, limit=self._limit, path=path, origin=origin
        )
        self._met = found.met
        won = np.ones(len(found.columns), np.bool_)
        met = len(won) + found.left_out
        return Contested(columns=found.columns, won=won, met=met, lost=found.left_out, keyless=found.keyless)

    def refuse_unmet(self, name: str) -> None:
        """Raises CheckFailedError."""
        if self._met != len(self.winners):
            raise CheckFailedError(f"{name}: {len(self.winners)} winners, but {self._met} of them were met")
