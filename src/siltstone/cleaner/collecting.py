"""Collecting the keys of records in log order, within a bound of memory, on their way to the merge.

::

    records ─ hash ─► partition p: [ entries … room ]     full: the last of each of its keys stays, in place
                                                          still more than half full: all are handed on

Partitions are filled side by side, so that each is de-duplicated while it is in the processor's cache, and
nothing has to be spread first. Offsets in entries are relative to the first one that was collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.cleaner.hashing import siphash128_each
from siltstone.cleaner.keys import BLOB_BYTES, ENTRY_BYTES, EntryBlob, Words, partition_of, table_for
from siltstone.records.columns import KeyColumns
from siltstone.records.kernel import kernel
from siltstone.records.layout import Int32, Int64

RELATIVE_LIMIT = 1 << 32
_PARTITIONS = 512
_PARTITION_ENTRIES = 4096
"""Room that a partition has at first: entries and hash table fit a core's cache."""
_SOME_SPARED = 3 / 4
"""Where no more of a full partition are keys of their own, a collector grows rather than hand on."""


@kernel
def last_of_run(entries: Words, first: int, count: int, table: Int32) -> int:
    """Of ``count`` entries from ``first`` on keep the largest offset of each key, in order of first meeting,
    in place; how many. ``table`` has room for twice as many, a power of two."""
    size = 8
    while size < 2 * count:
        size *= 2
    table[:size] = -1
    mask, low, used = np.uint64(size - 1), np.uint64(0xFFFFFFFF), 0
    mine = entries[first : first + count]
    for i in range(count):
        word = mine[i, 0]
        rest = mine[i, 1]
        slot = word & mask
        while True:
            found = table[slot]
            if found < 0:
                table[slot] = used
                mine[used, 0] = word
                mine[used, 1] = rest
                used += 1
                break
            at = np.uint64(found)
            if mine[at, np.uint64(0)] == word and (mine[at, np.uint64(1)] ^ rest) <= low:
                mine[at, np.uint64(1)] = max(mine[at, np.uint64(1)], rest)
                break
            slot = (slot + np.uint64(1)) & mask
    return used


@kernel
def put(
    low: Words,
    high: Words,
    relative: Int64,
    start: int,
    room: int,
    spares: bool,
    entries: Words,
    counts: Int64,
    table: Int32,
) -> int:
    """Put entries from number ``start`` on into their partitions, each of ``room`` rows of ``entries``.

    A full one is de-duplicated where that ``spares``. The number of the first entry whose partition stays
    more than half full, of all when there is none.
    """
    for i in range(start, len(low)):
        p = partition_of(low[i], len(counts))
        if counts[p] == room:
            if spares:
                counts[p] = last_of_run(entries, p * room, room, table)
            if counts[p] > room // 2:
                return i
        where = np.uint64(p * room + counts[p])
        entries[where, np.uint64(0)] = low[i]
        entries[where, np.uint64(1)] = (high[i] << np.uint64(32)) | np.uint64(relative[i])
        counts[p] += 1
    return len(low)


@kernel
def pack(entries: Words, room: int, spares: bool, counts: Int64, table: Int32, bounds: Int64) -> None:
    """Bring what the partitions hold to the front, de-duplicated where that ``spares``:
    ``bounds[p]:bounds[p + 1]`` is partition p then."""
    used = 0
    for p in range(len(counts)):
        bounds[p] = used
        count = counts[p]
        if spares:
            count = last_of_run(entries, p * room, count, table)
        for i in range(p * room, p * room + count):
            entries[used, 0] = entries[i, 0]
            entries[used, 1] = entries[i, 1]
            used += 1
    bounds[len(counts)] = used


@dataclass(slots=True)
class _Partitions:
    """Entries of one kind: ``counts[p]`` of the ``room`` rows of each partition are used."""

    room: int
    counts: Int64
    entries: Words
    table: Int32

    @classmethod
    def of(cls, count: int, room: int) -> _Partitions:
        entries = np.empty((count * room, 2), np.uint64)
        return cls(room=room, counts=np.zeros(count, np.int64), entries=entries, table=table_for(room))

    def grown(self) -> _Partitions:
        """The same with twice the room."""
        found = _Partitions.of(len(self.counts), 2 * self.room)
        shape = (len(self.counts), -1, 2)
        found.entries.reshape(shape)[:, : self.room] = self.entries.reshape(shape)
        found.counts[:] = self.counts
        return found


class KeyCollector:
    """Collects entries of records in log order and hands them on as blobs, within a bound of memory.

    Up to ``capacity`` entries of each kind are kept, in less room where fewer are ``expected`` or it suffices
    for the last ones of all keys. All are handed on when a partition stays more than half full and a larger
    one would not spare more, or may not be. Merging sees to keys that come in several blobs, or again.
    """

    def __init__(
        self,
        *,
        hash_key: tuple[int, int],
        first_dirty: int,
        buckets: int,
        capacity: int,
        expected: int | None = None,
    ) -> None:
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._first_dirty = first_dirty
        self._buckets = buckets
        self._capacity = capacity
        likely = capacity if expected is None else min(capacity, expected + expected // 4)
        wanted = min(_PARTITIONS, -(-likely // _PARTITION_ENTRIES))
        self._count = buckets * max(1, wanted // buckets)
        self._room = max(1, min(_PARTITION_ENTRIES, likely // self._count))
        self._kinds: dict[bool, _Partitions] = {}
        self._base: int | None = None

    def add(self, columns: KeyColumns, wanted: npt.NDArray[np.bool_]) -> Iterator[EntryBlob]:
        """The ``wanted`` records (all with a key); yields what no longer fits."""
        if not len(columns):
            return
        if self._base is not None and int(columns.offset[-1]) - self._base >= RELATIVE_LIMIT:
            yield from self.finish()
        if self._base is None:
            self._base = int(columns.offset[0])
        dirty = columns.offset >= self._first_dirty
        for kind, mask in ((True, wanted & dirty), (False, wanted & ~dirty)):
            count = int(np.count_nonzero(mask))
            if count:
                yield from self._put(columns, slice(None) if count == len(columns) else mask, kind, count)

    def _put(self, columns: KeyColumns, rows: Any, dirty: bool, count: int) -> Iterator[EntryBlob]:
        low, high = np.empty((2, count), np.uint64)
        siphash128_each(columns.data, columns.key_start[rows], columns.key_size[rows], *self._key, low, high)
        relative = columns.offset[rows] - self._base
        if dirty not in self._kinds:
            self._kinds[dirty] = _Partitions.of(self._count, self._room)
        done = 0
        while True:
            kept = self._kinds[dirty]
            spans = (kept.entries, kept.counts, kept.table)
            done = put(low, high, relative, done, kept.room, dirty, *spans)
            if done == count:
                return
            left = int(kept.counts[partition_of(low[done], len(kept.counts))])
            spares = left <= _SOME_SPARED * kept.room
            if spares and 2 * len(kept.entries) <= self._capacity:
                self._kinds[dirty] = kept.grown()
            else:
                yield from self._hand_on(dirty, spares)

    def _hand_on(self, dirty: bool, spares: bool) -> Iterator[EntryBlob]:
        kept = self._kinds[dirty]
        bounds, each = np.empty(len(kept.counts) + 1, np.int64), len(kept.counts) // self._buckets
        pack(kept.entries, kept.room, spares, kept.counts, kept.table, bounds)
        kept.counts[:] = 0
        assert self._base is not None
        for bucket in range(self._buckets):
            mine = kept.entries[bounds[bucket * each] : bounds[(bucket + 1) * each]]
            for start in range(0, len(mine), BLOB_BYTES // ENTRY_BYTES):
                part = mine[start : start + BLOB_BYTES // ENTRY_BYTES]
                yield EntryBlob(bucket=bucket, dirty=dirty, base_offset=self._base, entries=part)

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left; the collector can be used again for later offsets."""
        for dirty in (True, False):
            if dirty in self._kinds and self._kinds[dirty].counts.any():
                yield from self._hand_on(dirty, spares=dirty)
        self._base = None
