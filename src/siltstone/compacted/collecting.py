"""From records to entries: hashed, spread over partitions, and de-duplicated within a bound of memory.

::

    records ─► hash ─► partitions   │ p0 ▓▓▓▓░░ │ p1 ▓▓░░░░ │ p2 ▓▓▓▓▓▓ │ …     ─► blobs of entries, by bucket
                                                              ▲ full: one entry a key stays, in place

A partition that is full is de-duplicated where it lies; when that does not free a quarter of it, all of them
are handed on. So keys that come again and again cost no memory, whatever their number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from siltstone.cleaner.hashing import siphash128_each
from siltstone.cleaner.keys import table_for
from siltstone.compacted.keys import (
    BLOB_BYTES,
    PARTITIONS,
    WORDS,
    WORDS_BY_TIME,
    EntryBlob,
    Flags,
    Words,
    distinct,
)
from siltstone.records.columns import KeyColumns, RecordColumns
from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes, Int32, Int64
from siltstone.records.varint import next_varint

_LEAST_SLOTS = 8
_SIGN = np.uint64(1 << 63)


@kernel
def _find_deletions(data: Bytes, key_start: Int32, key_size: Int32, deleted: Flags) -> None:
    """Whose value is null or empty: its size lies behind the key of a record that was decoded."""
    origin = data.ctypes.data
    end = origin + len(data)
    for i in range(len(key_start)):
        size, _ = next_varint(origin + key_start[i] + max(key_size[i], 0), end)
        deleted[i] = size <= 0


@kernel
def _spread_in(
    start: int,
    low: Words,
    high: Words,
    offset: Int64,
    deleted: Flags,
    time: Words,
    entries: Words,
    counts: Int64,
    table: Int32,
) -> int:
    """Put the entries of records from ``start`` on into their partitions; how far it came.

    ``entries`` is [partition, slot, word], ``counts`` the slots in use. It ends early where a partition is
    full of keys of its own.
    """
    slots = entries.shape[1]
    by_time = entries.shape[2] == 4
    for i in range(np.uint64(start), np.uint64(len(low))):
        mine = low[i] >> np.uint64(54)
        used = counts[mine]
        if used == slots:
            used = distinct(entries[mine], table, entries[mine])
            counts[mine] = used
            if 4 * used > 3 * slots:
                return i
        slot = np.uint64(used)
        entries[mine, slot, np.uint64(0)] = low[i]
        entries[mine, slot, np.uint64(1)] = high[i]
        entries[mine, slot, np.uint64(2)] = (np.uint64(offset[i]) << np.uint64(1)) | np.uint64(deleted[i])
        if by_time:
            entries[mine, slot, np.uint64(3)] = time[i]
        counts[mine] = used + 1
    return len(low)


@kernel
def _gather(entries: Words, counts: Int64, out: Words) -> None:
    """The slots in use, partition by partition."""
    position = 0
    for p in range(len(counts)):
        out[position : position + counts[p]] = entries[p, : counts[p]]
        position += counts[p]


@kernel
def _distinct_in_each(entries: Words, counts: Int64, table: Int32) -> None:
    for p in range(len(counts)):
        counts[p] = distinct(entries[p, : counts[p]], table, entries[p])


class EntryCollector:
    """Collects entries of records in log order and hands them on as blobs, within a bound of memory.

    About ``capacity`` entries are kept (24 or 32 bytes each). ``collected`` counts the entries that came in,
    ``handed_on`` those that went out: one a key, unless there are more keys than the capacity.
    """

    def __init__(self, *, hash_key: tuple[int, int], by_time: bool, buckets: int, capacity: int) -> None:
        assert PARTITIONS % buckets == 0
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._words = WORDS_BY_TIME if by_time else WORDS
        self._buckets = buckets
        even = capacity // PARTITIONS
        slots = even + 8 * math.isqrt(even) + _LEAST_SLOTS  # some get more than their share
        self._entries: Words = np.empty((PARTITIONS, slots, self._words), np.uint64)
        self._counts: Int64 = np.zeros(PARTITIONS, np.int64)
        self._table = table_for(slots)
        self.collected = self.handed_on = 0

    def add(self, columns: KeyColumns, wanted: Flags | None) -> Iterator[EntryBlob]:
        """The ``wanted`` records (None: all), each with a key; yields what no longer fits.

        By time, ``columns`` are ``RecordColumns``.
        """
        count = len(columns) if wanted is None else int(np.count_nonzero(wanted))
        if not count:
            return
        rows = slice(None) if wanted is None or count == len(columns) else wanted
        key_start, key_size = columns.key_start[rows], columns.key_size[rows]
        low, high = np.empty((2, count), np.uint64)
        siphash128_each(columns.data, key_start, key_size, *self._key, low, high)
        deleted, time = np.empty(count, np.bool_), np.empty(0, np.uint64)
        if isinstance(columns, RecordColumns):
            deleted[:] = columns.value_size[rows] <= 0
        else:
            _find_deletions(columns.data, key_start, key_size, deleted)
        if self._words == WORDS_BY_TIME:
            assert isinstance(columns, RecordColumns)
            time = columns.timestamp[rows].view(np.uint64) ^ _SIGN
        given: list[Any] = [low, high, columns.offset[rows], deleted, time]
        given += [self._entries, self._counts, self._table]
        done = 0
        while (done := _spread_in(done, *given)) < count:
            yield from self.finish()
        self.collected += count

    def finish(self) -> Iterator[EntryBlob]:
        """Hand on what is left, one winner a key; the collector can be used again."""
        _distinct_in_each(self._entries, self._counts, self._table)
        each, step = PARTITIONS // self._buckets, BLOB_BYTES // (8 * self._words)
        for bucket in range(self._buckets):
            mine = slice(bucket * each, (bucket + 1) * each)
            out = np.empty((int(self._counts[mine].sum()), self._words), np.uint64)
            _gather(self._entries[mine], self._counts[mine], out)
            self.handed_on += len(out)
            for start in range(0, len(out), step):
                yield EntryBlob(bucket=bucket, entries=out[start : start + step])
        self._counts[:] = 0
