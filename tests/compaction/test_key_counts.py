"""Statistics of keys against a dict, whatever the order and the bins."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
import pytest

from siltstone.compaction.explain import Bins, LogStatistics, count_keys
from siltstone.compaction.report import SUPERSEDED, TOMBSTONES

Row = tuple[int, int, int, int, int]


def _entries(rows: list[Row]) -> np.ndarray:
    """(key, offset, time, size, reason) as entries; keys of 4 and 5 bytes."""
    spread = 0x9E3779B97F4A7C15
    return np.array(
        [
            [
                (key * spread) % (1 << 64),
                ((key * 31) << 3) | reason,
                offset,
                time % (1 << 64),
                (size << 32) | (4 + key % 2),
            ]
            for key, offset, time, size, reason in rows
        ],
        np.uint64,
    )


def _naive(rows: list[Row], first_dirty: int, bins: Bins) -> dict[str, object]:
    keys: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda each: each[1]):
        keys.setdefault(row[0], []).append(row)
    frequencies, by_bin = Counter[int](), Counter[int]()
    gone: list[Row] = []
    deleted: list[Row] = []
    for mine in keys.values():
        step = 0
        while 1 << step < len(mine):
            step += 1
        frequencies[step] += 1
        dirty = mine[-1][1] >= first_dirty
        for number, row in enumerate(mine):
            if dirty and number < len(mine) - 1:
                gone.append(row)
                place = (mine[number + 1][2] - bins.start_ms) // bins.width_ms
                by_bin[min(max(place, 0), bins.count - 1)] += row[3]
            elif row[4] == TOMBSTONES:
                deleted.append(row)
    counts = {
        "keys": len(keys),
        "dirty_keys": sum(mine[-1][1] >= first_dirty for mine in keys.values()),
    }
    others = {"aborted": 0, "keyless": 0, "markers": 0}
    discarded = {"superseded": len(gone), "tombstones": len(deleted), **others}
    sizes = {"superseded": sum(row[3] for row in gone), "tombstones": sum(row[3] for row in deleted)}
    return {
        "counts": counts,
        "discarded": discarded,
        "discarded_sizes": sizes | others,
        "frequencies": frequencies,
        "superseded": by_bin,
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_keys_are_counted_as_a_dict_counts_them(seed: int) -> None:
    rng = random.Random(seed)
    first_dirty = rng.choice([0, 40, 500])
    rows: list[Row] = []
    for offset in range(200):
        reason = rng.choice([SUPERSEDED, SUPERSEDED, SUPERSEDED, TOMBSTONES])
        rows.append((rng.randrange(25), offset, rng.randrange(-5, 900), rng.randrange(1, 99), reason))
    rng.shuffle(rows)
    bins = Bins(start_ms=0, width_ms=100, count=7)
    entries = _entries(rows)
    found = count_keys([entries[:50], entries[50:]], first_dirty, bins, 5)
    naive = _naive(rows, first_dirty, bins)
    assert {name: getattr(found, name) for name in naive} == naive
    counts: dict[int, int] = {}
    for key, *_ in rows:
        counts[key] = counts.get(key, 0) + 1
    assert [each.records for each in found.hottest] == sorted(counts.values(), reverse=True)[:5]


def test_parts_add_up() -> None:
    rng = random.Random(7)
    bins = Bins(start_ms=0, width_ms=10, count=3)
    rows = [(rng.randrange(40), offset, offset, 5, 0) for offset in range(300)]
    whole, parts = LogStatistics(), LogStatistics()
    whole.merge(count_keys([_entries(rows)], 0, bins, 6), 6)
    for half in (0, 1):
        parts.merge(count_keys([_entries([row for row in rows if row[0] % 2 == half])], 0, bins, 6), 6)
    assert parts == whole
    assert msgspec.json.decode(msgspec.json.encode(whole), type=LogStatistics) == whole


def test_no_entries_have_statistics_too() -> None:
    found = count_keys([], 0, Bins(start_ms=0, width_ms=1, count=2), 3)
    assert (found.counts["keys"], found.hottest, found.superseded) == (0, [], {})
