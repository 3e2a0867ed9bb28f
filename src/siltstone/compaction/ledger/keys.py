"""Keys of side-by-side compaction: entries of new records, the lookup of older runs' entries, key indexes.

Entries are plain (``compaction.keys``), under the ledger's own hash key::

     word  0   bits 0–63 of the key's hash; its top ten bits are the number of the partition
           1   bits 64–127
           2   offset · 2 + 1 if the key is deleted: its record's value is null or empty
           3   timestamp (ms) with the sign bit flipped, so that unsigned words have its order; only by time

They lie in ``PARTITIONS`` partitions, in a task as in a key index file; a bucket is a range of these, and
there is a power of two of them. (Pulsar's ``PublishingOrderCompactor`` and ``EventTimeOrderCompactor`` hold
a map of all keys in memory instead.)
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.hashing import siphash128
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Flags, Int32, Int64, Words
from siltstone.base.records.varint import next_varint
from siltstone.compaction.keys import (
    PLAIN_WORDS,
    TIMED_WORDS,
    EntryBlob,
    ShardedEntries,
    dedupe_shards,
    entry_blobs,
    fill_hash_table,
    gather_by_shard,
    hashes_of,
    new_hash_table,
    slot_mask,
    slot_of,
)

PARTITIONS = 1024
"""Partitions of a key index: of a million keys each fits a core's cache, of a billion a task's memory."""
_MIN_CAPACITY = 8
_SIGN = np.uint64(1 << 63)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def best_of_each_key(
    blobs: Sequence[EntryBlob], words: int, first: int = 0, partitions: int = PARTITIONS
) -> tuple[Words, Int64]:
    """The winning entry of each key, in order of partition, and the bounds (int64) of ``partitions`` from
    number ``first`` on. Memory: twice what the entries take."""
    return dedupe_shards(*gather_by_shard(blobs, PARTITIONS, first, partitions, words))


@kernel
def _look_up_older(
    entries: Words,
    bounds: Int64,
    table: Int32,
    older: Words,
    older_bounds: Int64,
    first: int,
    late: Flags,
    superseded: Int64,
) -> int:
    """The kernel of ``look_up_older``: fills ``superseded`` and returns how many offsets it has."""
    count = 0
    by_time = entries.shape[1] == TIMED_WORDS
    for p in range(len(older_bounds) - 1):
        low, high = bounds[first + p], bounds[first + p + 1]
        if low == high or older_bounds[p] == older_bounds[p + 1]:
            continue
        # 1. A hash table of this partition's new entries only, which stays in the core's cache for the
        #    lookups.
        mask = slot_mask(high - low)
        slots = table[: mask + np.uint64(1)]
        slots[:] = -1
        fill_hash_table(entries, low, high, slots)
        # 2. Each older entry, in it. A key without a new entry stays as it is.
        for i in range(older_bounds[p], older_bounds[p + 1]):
            row = slots[slot_of(slots, mask, entries, older[i, 0], older[i, 1], _ALL)]
            if row < 0:
                continue
            # By time the later event wins, of two at one time the one at the larger offset: the new one.
            if by_time and older[i, 3] > entries[row, 3]:
                late[row] = True
            elif older[i, 2] & np.uint64(1) == 0:  # a deleted key has no record to supersede
                superseded[count] = np.int64(older[i, 2] >> np.uint64(1))
                count += 1
    return count


def look_up_older(
    entries: Words, bounds: Int64, older: Words, older_bounds: Int64, first: int, late: Flags
) -> Int64:
    """Look up an older run's entries, in order of partition from number ``first`` on, among the new entries
    of ``best_of_each_key``. Returns the offsets of the older records that are superseded (int64, in any
    order).

    Marks in ``late`` (bool, one a new entry) the keys of which the older event is the later one.
    """
    superseded, table = np.empty(len(older), np.int64), new_hash_table(int(np.diff(bounds).max(initial=1)))
    count = _look_up_older(entries, bounds, table, older, older_bounds, first, late, superseded)
    return superseded[:count].copy()


# Extraction: from records to entries.


@kernel
def _find_deletions(data: Bytes, key_start: Int32, key_size: Int32, deleted: Flags) -> None:
    """Find the records whose value is null or empty: in a decoded record the value's size follows the key."""
    origin = data.ctypes.data
    end = origin + len(data)
    for i in range(len(key_start)):
        size, _ = next_varint(origin + key_start[i] + max(key_size[i], 0), end)
        deleted[i] = size <= 0


class EntryCollector:
    """Collects the entries of records, in log order, and yields them as blobs, within a bound of memory.

    Holds about ``capacity`` entries (24 or 32 bytes each), the last one of each key. ``emitted``: how many
    entries were yielded: one for each key, unless there are more keys than ``capacity``.
    """

    def __init__(self, *, hash_key: tuple[int, int], by_time: bool, buckets: int, capacity: int) -> None:
        assert PARTITIONS % buckets == 0
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._words = TIMED_WORDS if by_time else PLAIN_WORDS
        self._buckets = buckets
        # Hashes do not spread evenly: 8 standard deviations more than the mean.
        mean = capacity // PARTITIONS
        per_partition = mean + 8 * math.isqrt(mean) + _MIN_CAPACITY
        self._entries = ShardedEntries(PARTITIONS, per_partition, words=self._words, capacity=0, dedupes=True)
        self.emitted = 0

    def add(self, columns: KeyColumns, selected: Flags) -> Iterator[EntryBlob]:
        """Add the ``selected`` records, which have keys; yields the entries of a partition that is full.

        By time, ``columns`` are ``RecordColumns``.
        """
        count = int(np.count_nonzero(selected))
        if not count:
            return
        rows = slice(None) if count == len(columns) else selected
        new = np.empty((count, self._words), np.uint64)
        new[:, 0], new[:, 1] = hashes_of(columns, rows, self._key)
        deleted = np.empty(count, np.bool_)
        if isinstance(columns, RecordColumns):
            deleted[:] = columns.value_size[rows] <= 0
        else:
            _find_deletions(columns.data, columns.key_start[rows], columns.key_size[rows], deleted)
        new[:, 2] = columns.offset[rows].view(np.uint64) << np.uint64(1) | deleted
        if self._words == TIMED_WORDS:
            assert isinstance(columns, RecordColumns)
            new[:, 3] = columns.timestamp[rows].view(np.uint64) ^ _SIGN
        for bounds in self._entries.put(new):
            yield from self._emit(bounds)

    def finish(self) -> Iterator[EntryBlob]:
        """Yield the entries that are left; the collector can be used again."""
        yield from self._emit(self._entries.drain(dedupes=True))

    def _emit(self, bounds: Int64) -> Iterator[EntryBlob]:
        self.emitted += int(bounds[-1])
        yield from entry_blobs(self._entries, bounds, self._buckets)


# The key index of a run: the file in which later compactions find the keys that they supersede.
#
# ::
#
#      0  magic "SILTKEYS"             8
#      8  version 1                    4      12  words of an entry, 3 or 4   4
#     16  partitions                   4      20  0                           4
#     24  check of the hash key        8      a hash of no bytes, so that another key is noticed
#     32  bounds of the partitions     8 each, one more than partitions, in entries
#     …   CRC32C of each partition     4 each
#     …   CRC32C of all before         4, then 4 bytes of 0
#     …   entries, partition by partition, each ``words`` uint64
#
# Little-endian. A bucket is a range of partitions, so it is one range of the file; each partition is checked
# when it is read. Where the order is by offset, deleted keys have no entry; by time they have one for ever,
# so that an older event that arrives late does not bring them back.

MAGIC, VERSION = b"SILTKEYS", 1
_HEAD = struct.Struct("<8sIIIIQ")
_HEADER_BYTES = _HEAD.size + 8 * (PARTITIONS + 1) + 4 * PARTITIONS + 8
_READ_BYTES = 16 << 20


def check_of(hash_key: tuple[int, int]) -> int:
    """A check value of a hash key: tells whether a file was made with it, without giving the key away."""
    low, _ = siphash128(np.zeros(1, np.uint8), 0, 0, np.uint64(hash_key[0]), np.uint64(hash_key[1]))
    return int(low)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPart:
    """A part of a key index: the entries of a range of partitions, in a file of their own until ``assemble``.

    ``counts``: entries of each partition from ``first`` on; ``checksums``: their CRC32C. ``path`` is "" where
    there are none.
    """

    first: int
    path: str
    counts: tuple[int, ...]
    checksums: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Entries in all partitions."""
        return sum(self.counts)


def write_part(folder: Path, entries: Words, bounds: Int64, first: int, attempt: str) -> KeysPart:
    """Write entries in order of partition; ``bounds`` are those of the partitions from ``first`` on.

    All attempts write the same bytes, and each renames its file to the same path: so a report does not depend
    on the attempt, and Spark may combine the reports of any. The file is not made durable, the assembled
    index is. Raises OSError.
    """
    plain = np.ascontiguousarray(entries).astype("<u8", copy=False)
    edges = itertools.pairwise(bounds.tolist())
    checksums = tuple(crc32c(plain[start:end].reshape(-1).view(np.uint8).data) for start, end in edges)
    path = folder / f"{first:04d}.keys"
    if len(plain):
        own = folder / f"{first:04d}.{attempt}.keys"
        with files.Writer(own) as writer:
            writer.write(plain.reshape(-1).view(np.uint8).data)
            files.inherit_owner(own)
        files.rename(own, path)
    counts = tuple(np.diff(bounds).tolist())
    return KeysPart(first=first, path=str(path) if len(plain) else "", counts=counts, checksums=checksums)


def assemble(path: Path, parts: Sequence[KeysPart], words: int, hash_key: tuple[int, int]) -> tuple[int, int]:
    """Write the index ``path`` of parts that cover all partitions, durably: (its size, its CRC32C).

    Raises CorruptFileError for a part that was damaged since, OSError.
    """
    ordered = sorted(parts, key=lambda part: part.first)
    counts = [count for part in ordered for count in part.counts]
    firsts = itertools.accumulate((len(part.counts) for part in ordered), initial=0)
    assert [*(part.first for part in ordered), PARTITIONS] == list(firsts), "a part is missing or there twice"
    head = _HEAD.pack(MAGIC, VERSION, words, PARTITIONS, 0, check_of(hash_key))
    head += np.concatenate(([0], np.cumsum(counts))).astype("<u8").tobytes()
    head += np.array([checksum for part in ordered for checksum in part.checksums], "<u4").tobytes()
    head += struct.pack("<II", crc32c(head), 0)
    checksum = crc32c(head)
    with files.Writer(path) as writer:
        writer.write(head)
        for part in ordered:
            for chunk in _chunks(part, 8 * words):
                checksum = crc32c(chunk.data, checksum)
                writer.write(chunk.data)
        files.inherit_owner(path)
        writer.sync()
        return writer.size, checksum


def _chunks(part: KeysPart, width: int) -> Iterator[Bytes]:
    """A part's bytes, verified partition by partition."""
    if not part.path:
        return
    bounds = np.concatenate(([0], np.cumsum(part.counts))).astype(np.int64)
    with files.Reader(part.path) as reader:
        if reader.stat.size != part.entries * width:
            raise CorruptFileError(part.path, reader.stat.size, "the file has not the size that was written")
        for _, _, chunk in _checked(reader, bounds, part.checksums, width):
            yield chunk


def _checked(
    reader: files.Reader,
    bounds: Int64,
    checksums: Sequence[int],
    width: int,
    *,
    origin: int = 0,
    first: int = 0,
    end: int | None = None,
) -> Iterator[tuple[int, int, Bytes]]:
    """Read and verify partitions [``first``, ``end``), about ``_READ_BYTES`` at a time: yields (the first
    partition, the one after the last, their bytes). Entries have ``width`` bytes and begin at ``origin``."""
    end = len(bounds) - 1 if end is None else end
    while first < end:
        last_entry = bounds[first] + max(1, _READ_BYTES // width)
        until = min(end, max(first + 1, int(np.searchsorted(bounds, last_entry, side="right")) - 1))
        edges = ((bounds[first : until + 1] - bounds[first]) * width).tolist()
        start, chunk = origin + int(bounds[first]) * width, np.empty(edges[-1], np.uint8)
        reader.read_into(chunk, start)
        for partition, (low, high) in enumerate(itertools.pairwise(edges), first):
            if crc32c(chunk[low:high].data) != checksums[partition]:
                reason = f"the keys of partition {partition} are damaged"
                raise CorruptFileError(reader.path, start + low, reason)
        yield first, until, chunk
        first = until


def read_keys(
    path: str | Path, hash_key: tuple[int, int], words: int, first: int = 0, end: int = PARTITIONS
) -> Iterator[tuple[int, Words, Int64]]:
    """Read partitions [``first``, ``end``) of a key index, some at a time: yields (the first partition,
    entries, bounds from 0 on).

    Raises CorruptFileError for damage, and for a file made with another hash key or number of ``words``;
    OSError.
    """
    with files.Reader(path) as reader:
        bounds, checksums = _read_header(reader, hash_key, words)
        span = {"origin": _HEADER_BYTES, "first": first, "end": end}
        for start, until, chunk in _checked(reader, bounds, checksums, 8 * words, **span):
            entries = chunk.view("<u8").astype(np.uint64, copy=False).reshape(-1, words)
            yield start, entries, bounds[start : until + 1] - bounds[start]


def _read_header(
    reader: files.Reader, hash_key: tuple[int, int], expected_words: int
) -> tuple[Int64, list[int]]:
    """A key index's bounds and checksums of its partitions. Raises CorruptFileError, OSError."""
    path, head = reader.path, reader.read(0, _HEADER_BYTES)
    if len(head) < _HEADER_BYTES or crc32c(head[:-8]) != struct.unpack_from("<I", head, _HEADER_BYTES - 8)[0]:
        raise CorruptFileError(path, 0, "the key index's header is damaged")
    magic, version, words, partitions, _, check = _HEAD.unpack_from(head)
    if magic != MAGIC or version != VERSION or partitions != PARTITIONS:
        raise CorruptFileError(path, 0, f"the file is not a key index of version {VERSION}")
    if words != expected_words:
        reason = f"entries have {words} words, not {expected_words}, so the index is of another order"
        raise CorruptFileError(path, 12, reason)
    if check != check_of(hash_key):
        raise CorruptFileError(path, 24, "the index was made with another hash key than its ledger's")
    bounds = np.frombuffer(head, "<u8", PARTITIONS + 1, _HEAD.size).astype(np.int64)
    checksums = np.frombuffer(head, "<u4", PARTITIONS, _HEAD.size + 8 * (PARTITIONS + 1))
    if bounds[0] or (np.diff(bounds) < 0).any():
        raise CorruptFileError(path, _HEAD.size, "the bounds of the partitions do not ascend")
    if reader.stat.size != _HEADER_BYTES + int(bounds[-1]) * 8 * words:
        raise CorruptFileError(path, reader.stat.size, "the file has not the size that its header says")
    return bounds, checksums.tolist()
