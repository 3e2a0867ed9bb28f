"""One bucket's keys counted: how many, how often each was written, what is superseded and since when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from siltstone.cleaner.explanation.observing import ENTRY_WORDS, Bins, Words
from siltstone.records.kernel import kernel
from siltstone.records.layout import Int64

TALLY_BYTES = 160
"""Memory that tallying takes for an entry at its peak."""
FREQUENCIES = 24
"""Keys are counted by the number of their records: 1, 2, 3 to 4, 5 to 8, … in that many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key that was written often: its records and their bytes, those that are superseded, the size of the
    key (bytes) and the offset of its last record."""

    records: int
    size: int
    superseded: int
    superseded_size: int
    key_size: int
    last_offset: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The hottest first; the same whatever the order in which keys came."""
        return (-self.records, -self.size, self.last_offset)


@dataclass(slots=True, kw_only=True)
class KeyTally:
    """Sums over keys. ``superseded_by_bin``: bytes by the time of the key's next record."""

    keys: int = 0
    dirty_keys: int = 0
    superseded: int = 0
    superseded_size: int = 0
    tombstones: int = 0
    tombstones_size: int = 0
    by_frequency: list[int] = field(default_factory=lambda: [0] * FREQUENCIES)
    superseded_by_bin: list[int] = field(default_factory=list)
    hottest: list[HotKey] = field(default_factory=list)

    def add(self, other: KeyTally, top: int) -> None:
        """Sum up; the ``top`` hottest keys stay."""
        for name in ("keys", "dirty_keys", "superseded", "superseded_size", "tombstones", "tombstones_size"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_frequency = _sums(self.by_frequency, other.by_frequency)
        self.superseded_by_bin = _sums(self.superseded_by_bin, other.superseded_by_bin)
        self.hottest = sorted([*self.hottest, *other.hottest], key=lambda each: each.rank)[:top]

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> KeyTally:
        """What ``dataclasses.asdict`` made of one."""
        return cls(**{**raw, "hottest": [HotKey(**each) for each in raw["hottest"]]})


def _sums(one: list[int], other: list[int]) -> list[int]:
    longer = max(len(one), len(other))
    padded = [each + [0] * (longer - len(each)) for each in (one, other)]
    return [a + b for a, b in zip(*padded, strict=True)]


@kernel
def _tally(entries: Words, first_dirty: int, groups: Int64, since: Int64, reasons: Int64) -> int:
    """Go through entries sorted by key, then offset; returns how many keys there are.

    ``groups`` (int64[n, 5]) is filled a key: first entry, records, bytes, superseded ones, their bytes.
    ``since`` (a row an entry): the time of the key's next record where the entry is superseded, else the
    smallest int64. ``reasons`` (7): dirty keys, superseded, bytes, tombstones, bytes.
    """
    keep = ~np.uint64(3)
    number, i = 0, 0
    while i < len(entries):
        j = i + 1
        while (
            j < len(entries)
            and entries[j, 0] == entries[i, 0]
            and (entries[j, 1] & keep) == (entries[i, 1] & keep)
        ):
            j += 1
        last = np.int64(entries[j - 1, 2])
        dirty = last >= first_dirty
        reasons[0] += 1 if dirty else 0
        groups[number, 0], groups[number, 1] = i, j - i
        groups[number, 2:] = 0
        for e in range(i, j):
            size = np.int64(entries[e, 4] >> np.uint64(32))
            groups[number, 2] += size
            since[e] = np.iinfo(np.int64).min
            if dirty and e < j - 1:
                since[e] = np.int64(entries[e + 1, 3])
                groups[number, 3] += 1
                groups[number, 4] += size
            elif entries[e, 1] & np.uint64(2) != 0:
                reasons[3] += 1
                reasons[4] += size
        reasons[1] += groups[number, 3]
        reasons[2] += groups[number, 4]
        number += 1
        i = j
    return number


def tally(blobs: list[Words], first_dirty: int, bins: Bins, top: int) -> KeyTally:
    """Count all entries of one bucket, in any order. Memory: about 160 bytes an entry."""
    entries = np.concatenate([*blobs, np.empty((0, ENTRY_WORDS), np.uint64)])
    entries = entries[np.lexsort((entries[:, 2], entries[:, 1] & ~np.uint64(3), entries[:, 0]))]
    groups, since = np.empty((len(entries), 5), np.int64), np.empty(len(entries), np.int64)
    reasons = np.zeros(5, np.int64)
    keys = _tally(entries, first_dirty, groups, since, reasons)
    groups = groups[:keys]
    dirty, superseded, superseded_size, tombstones, tombstones_size = reasons.tolist()
    gone = since != np.iinfo(np.int64).min
    sizes = (entries[:, 4] >> np.uint64(32)).astype(np.int64)
    steps = np.ceil(np.log2(np.maximum(groups[:, 1], 1))).astype(np.int64).clip(max=FREQUENCIES - 1)
    return KeyTally(
        keys=keys,
        dirty_keys=dirty,
        superseded=superseded,
        superseded_size=superseded_size,
        tombstones=tombstones,
        tombstones_size=tombstones_size,
        by_frequency=np.bincount(steps, minlength=FREQUENCIES).tolist(),
        superseded_by_bin=bins.weigh(since[gone], sizes[gone]),
        hottest=_hottest(entries, groups, top),
    )


def _hottest(entries: Words, groups: Int64, top: int) -> list[HotKey]:
    last = groups[:, 0] + groups[:, 1] - 1
    offsets = entries[last, 2].astype(np.int64) if len(groups) else np.empty(0, np.int64)
    order = np.lexsort((offsets, -groups[:, 2], -groups[:, 1]))[:top]
    return [
        HotKey(
            records=int(groups[number, 1]),
            size=int(groups[number, 2]),
            superseded=int(groups[number, 3]),
            superseded_size=int(groups[number, 4]),
            key_size=int(entries[last[number], 4] & np.uint64(0xFFFFFFFF)),
            last_offset=int(offsets[number]),
        )
        for number in order.tolist()
    ]
