"""Entries of keys in a compaction beside the originals: packed, de-duplicated, and met with older ones.

An *entry* is a row of three uint64, or of four where the winner is chosen by event time::

    word 0, 1   SipHash-128 of the key, under the ledger's own hash key
    word 2      offset << 1 | deleted        deleted: the value is null or empty
    word 3      timestamp (ms) with its sign bit turned, so that it compares as unsigned

Among the entries of one key the one with the largest (word 3, word 2) wins: the latest event, and of
several the latest offset. Entries lie in ``PARTITIONS`` partitions by the top bits of word 0, in a task as
in a key index file; a *bucket* is a run of partitions, and there is a power of two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from siltstone.cleaner.keys import table_for
from siltstone.records.kernel import kernel
from siltstone.records.layout import Int32, Int64

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
PARTITIONS = 1024
"""Partitions of a key index: one of a million keys fits a core's cache, of a billion its memory."""
PARTITION_SHIFT = 54
WORDS, WORDS_BY_TIME = 3, 4
BLOB_BYTES = 32 << 20
"""The largest blob of entries or offsets that is handed on in one row."""


@kernel
def _spread(entries: Words, first: int, out: Words, bounds: Int64) -> None:
    """Entries in order of partition, stable; ``bounds[p]:bounds[p + 1]`` is partition ``first`` + p."""
    shift = np.uint64(54)
    bounds[:] = 0
    for i in range(len(entries)):
        bounds[np.int64(entries[i, 0] >> shift) - first + 1] += 1
    for p in range(len(bounds) - 1):
        bounds[p + 1] += bounds[p]
    cursor = bounds[:-1].copy()
    by_time = entries.shape[1] == 4
    for i in range(len(entries)):
        mine = np.int64(entries[i, 0] >> shift) - first
        where = cursor[mine]
        cursor[mine] += 1
        out[where, 0] = entries[i, 0]
        out[where, 1] = entries[i, 1]
        out[where, 2] = entries[i, 2]
        if by_time:
            out[where, 3] = entries[i, 3]


@kernel
def distinct(entries: Words, table: Int32, out: Words) -> int:
    """Keep the winning entry of each key, in order of first meeting, in ``out``; returns how many.

    ``out`` may be ``entries`` itself. ``table`` holds at least twice the entries, a power of two.
    """
    used, first, second, third, time = np.uint64(0), np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
    by_time = entries.shape[1] == 4
    size = 8
    while size < 2 * len(entries):
        size *= 2
    table[:size] = -1
    mask = np.uint64(size - 1)
    for i in range(np.uint64(len(entries))):
        low, high, order = entries[i, first], entries[i, second], entries[i, third]
        slot = low & mask
        while True:
            if table[slot] < 0:
                table[slot] = used
                out[used, first] = low
                out[used, second] = high
                out[used, third] = order
                if by_time:
                    out[used, time] = entries[i, time]
                used += second
                break
            found = np.uint64(table[slot])
            if out[found, first] == low and out[found, second] == high:
                if by_time and out[found, time] != entries[i, time]:
                    if out[found, time] < entries[i, time]:
                        out[found, third] = order
                        out[found, time] = entries[i, time]
                else:
                    out[found, third] = max(out[found, third], order)
                break
            slot = (slot + second) & mask
    return int(used)


@kernel
def _best_of_each(entries: Words, bounds: Int64, table: Int32, out: Words, kept: Int64) -> None:
    """``distinct`` in each partition: ``kept[p]:kept[p + 1]`` of ``out`` is partition p then.

    ``table`` holds at least twice the largest partition, a power of two.
    """
    kept[0] = 0
    for p in range(len(bounds) - 1):
        mine = entries[bounds[p] : bounds[p + 1]]
        kept[p + 1] = kept[p] + distinct(mine, table, out[kept[p] :])


@kernel
def _fill_tables(entries: Words, bounds: Int64, tables: Int32, places: Int64) -> None:
    """A hash table for each partition of distinct keys: partition p's is ``tables[places[p]:places[p + 1]]``,
    a power of two long; it holds rows of ``entries``."""
    tables[:] = -1
    for p in range(len(bounds) - 1):
        mask = np.uint64(places[p + 1] - places[p] - 1)
        for i in range(bounds[p], bounds[p + 1]):
            slot = np.int64(entries[i, 0] & mask)
            while tables[places[p] + slot] >= 0:
                slot = np.int64(np.uint64(slot + 1) & mask)
            tables[places[p] + slot] = i


@kernel
def _meet(
    entries: Words,
    tables: Int32,
    places: Int64,
    older: Words,
    older_bounds: Int64,
    first: int,
    beaten: Flags,
    hidden: Int64,
) -> int:
    """Let older entries, in order of partition from number ``first`` of the tables on, meet the new ones.

    Marks the new ones that an older one beats, and puts the offsets of older records that lose into
    ``hidden``; returns how many. A deleted older entry has no record that could be hidden.
    """
    lost = 0
    by_time = entries.shape[1] == 4
    for p in range(len(older_bounds) - 1):
        start = places[first + p]
        mask = np.uint64(places[first + p + 1] - start - 1)
        for i in range(older_bounds[p], older_bounds[p + 1]):
            slot = np.int64(older[i, 0] & mask)
            while True:
                found = tables[start + slot]
                if found < 0:
                    break
                if entries[found, 0] == older[i, 0] and entries[found, 1] == older[i, 1]:
                    if by_time and older[i, 3] > entries[found, 3]:
                        beaten[found] = True
                    elif older[i, 2] & np.uint64(1) == 0:
                        hidden[lost] = np.int64(older[i, 2] >> np.uint64(1))
                        lost += 1
                    break
                slot = np.int64(np.uint64(slot + 1) & mask)
    return lost


def spread_entries(entries: Words, first: int = 0, partitions: int = PARTITIONS) -> tuple[Words, Int64]:
    """Entries in order of partition, and the bounds (int64) of ``partitions`` from number ``first`` on."""
    out, bounds = np.empty_like(entries), np.empty(partitions + 1, np.int64)
    _spread(entries, first, out, bounds)
    return out, bounds


def best_of_each_key(entries: Words, first: int = 0, partitions: int = PARTITIONS) -> tuple[Words, Int64]:
    """The winning entry of each key, in order of partition, and the bounds as ``spread_entries`` has them.

    Memory: as many bytes again as ``entries`` takes, twice.
    """
    spread, bounds = spread_entries(entries, first, partitions)
    out, kept = np.empty_like(spread), np.empty_like(bounds)
    _best_of_each(spread, bounds, table_for(int(np.diff(bounds).max(initial=1))), out, kept)
    return out[: kept[-1]], kept


class Contest:
    """Distinct new entries that older generations' entries are met with, one run of partitions at a time.

    ``entries`` and ``bounds`` are as ``best_of_each_key`` gives them. ``beaten``: bool, one an entry.
    """

    def __init__(self, entries: Words, bounds: Int64) -> None:
        self._entries, self._bounds = entries, bounds
        self.beaten: Flags = np.zeros(len(entries), np.bool_)
        counts = np.diff(bounds)
        sizes = 1 << np.ceil(np.log2(np.maximum(2 * counts, 8))).astype(np.int64)
        self._places = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        self._tables = np.empty(int(self._places[-1]), np.int32)
        _fill_tables(entries, bounds, self._tables, self._places)

    def meet(self, older: Words, older_bounds: Int64, first: int) -> Int64:
        """Meet older entries whose bounds begin at partition ``first`` of ours: the offsets that are hidden
        by it (int64, in any order)."""
        hidden = np.empty(len(older), np.int64)
        lost = _meet(
            self._entries, self._tables, self._places, older, older_bounds, first, self.beaten, hidden
        )
        return hidden[:lost].copy()


def offsets_of(entries: Words) -> Int64:
    """The entries' offsets: int64."""
    return (entries[:, 2] >> np.uint64(1)).astype(np.int64)


def deleted_of(entries: Words) -> Flags:
    """Which entries stand for a deleted key: bool."""
    return np.asarray((entries[:, 2] & np.uint64(1)) != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBlob:
    """Entries of one bucket on their way: ``entries`` is uint64[n, 3] or [n, 4]."""

    bucket: int
    entries: Words

    def place(self) -> list[int]:
        """Orders blobs that are not empty: no two have the same first entry."""
        return [*self.entries[0].tolist()]
