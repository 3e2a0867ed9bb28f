"""Why cleaning discards a record: the one table of reasons.

The kernels' numbers, the counts of a report and their order, the JSON, the tables of ``clean`` and
``explain``, the history and the log lines follow it. A new reason takes a number and a field here, at the
same place, before ``expired``; ``rewrite`` counts it; ``explain/observing`` and ``explain/explaining`` say
its bytes. ``verify`` says on purpose by itself what a sound cleaning is: ``verify/findings``, ``comparing``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from siltstone.base.records.layout import Int64

SUPERSEDED, TOMBSTONES, ABORTED, KEYLESS, MARKERS, EXPIRED = range(6)
"""The reasons as indexes into the kernels' counts: in the order of the fields below."""
BY_CLEANING = EXPIRED
"""Reasons below this one are cleaning's; those from it on are retention's, which removes whole segments."""


@dataclass(slots=True, kw_only=True)
class Discarded:
    """How many records were discarded, by reason; a superseded tombstone counts as superseded."""

    superseded: int = 0
    """A later record has the same key."""
    tombstones: int = 0
    """The key was deleted, and the delete horizon has passed."""
    aborted: int = 0
    """The record's transaction was aborted."""
    keyless: int = 0
    """The record has no key (Kafka's cleaner discards these always, ours where ``LogWork.drop_keyless``
    allows it)."""
    markers: int = 0
    """The end of a transaction of which nothing is left, and the delete horizon has passed."""
    expired: int = 0
    """Retention removed the segment, by time, size or the log start offset."""

    @classmethod
    def of(cls, counts: Iterable[int]) -> Discarded:
        """Of counts in order of the reasons, as ``rewrite`` sums them up."""
        return cls(**dict(zip(REASONS, map(int, counts), strict=False)))

    @property
    def counts(self) -> dict[str, int]:
        """Reason → count, in order."""
        return {name: getattr(self, name) for name in REASONS}

    def add(self, other: Discarded) -> None:
        """Sum up."""
        for name, count in other.counts.items():
            setattr(self, name, getattr(self, name) + count)

    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())


REASONS: tuple[str, ...] = tuple(field.name for field in fields(Discarded))
CLEANING_REASONS = REASONS[:BY_CLEANING]


def no_counts() -> Int64:
    """Zeros for the reasons of cleaning."""
    return np.zeros(BY_CLEANING, np.int64)
