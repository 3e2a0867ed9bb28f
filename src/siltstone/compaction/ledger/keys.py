"""Keys of side-by-side compaction: entries of new records, the lookup of older runs' entries, key indexes.

A run is the part of a compacted ledger that one compaction, or a merge of runs, wrote. Records' keys are
hashed with SipHash-128 under the hash key of the ledger, a secret. A key entry is an array of uint64 words
(``compaction.keys``)::

     word  0   bits 0–63 of the key's hash; the top ten of them are the number of the shard
           1   bits 64–127
           2   2 · offset, plus 1 if the record deletes the key (its value is null or empty)
           3   timestamp (ms) with the sign bit flipped: unsigned words then sort as timestamps. Only
               with order BY_TIME, where the record with the largest timestamp is retained

Entries are divided by hash into ``KEY_INDEX_PARTITIONS`` shards, in a task as in a key index file. (The key
index calls them partitions; they have nothing to do with a topic's.) A bucket is the range of shards that one
task merges; there are 2ⁿ buckets. (Pulsar's ``PublishingOrderCompactor`` and ``EventTimeOrderCompactor`` hold
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

KEY_INDEX_PARTITIONS = 1024
"""Shards of a key index: with a million keys each fits a core's cache, with a billion a task's memory."""
_MIN_SHARD_ROWS = 8
"""Rows of a shard of a collector, at least."""
_SIGN_BIT = np.uint64(1 << 63)
"""The sign bit of an int64. With it flipped, timestamps sort as unsigned words."""
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
"""All bits of word 1 belong to the hash, so ``slot_of`` compares all."""


def latest_entry_of_each_key(
    blobs: Sequence[EntryBlob], words: int, first: int = 0, shards: int = KEY_INDEX_PARTITIONS
) -> tuple[Words, Int64]:
    """The latest entry of each key, by offset or (with a timestamp) by time. ``words``: how many uint64
    words an entry has, 3, or 4 with a timestamp.

    The blobs have entries of ``shards`` shards, from number ``first`` on: those of new records, or of the
    runs' key indexes, which are merged into one. Returns the entries in order of shard, and the bounds
    (int64[shards + 1]) of the shards in them. Memory: twice what the entries take.
    """
    return dedupe_shards(*gather_by_shard(blobs, KEY_INDEX_PARTITIONS, first, shards, words))


@kernel
def _look_up_older_kernel(
    entries: Words,
    bounds: Int64,
    table: Int32,
    older: Words,
    older_bounds: Int64,
    first_in_new: int,
    late: Flags,
    superseded: Int64,
) -> int:
    """The kernel of ``look_up_older_entries``: fills ``superseded`` and returns how many offsets it has."""
    count = 0
    by_time = entries.shape[1] == TIMED_WORDS
    for shard in range(len(older_bounds) - 1):
        low, high = bounds[first_in_new + shard], bounds[first_in_new + shard + 1]
        if low == high or older_bounds[shard] == older_bounds[shard + 1]:
            continue
        # 1. Make a hash table of this shard's new entries. It is small, so it stays in the core's cache.
        mask = slot_mask(high - low)
        slots = table[: mask + np.uint64(1)]
        slots[:] = -1
        fill_hash_table(entries, low, high, slots)
        # 2. Look up each older entry. A key without a new entry is not changed.
        for i in range(older_bounds[shard], older_bounds[shard + 1]):
            row = slots[slot_of(slots, mask, entries, older[i, 0], older[i, 1], _ALL_BITS)]
            if row < 0:
                continue
            # By time the record with the larger timestamp is retained; of two equal ones that with the
            # larger offset, which is the new one.
            if by_time and older[i, 3] > entries[row, 3]:
                late[row] = True
            elif older[i, 2] & np.uint64(1) == 0:  # a deleted key has no record to supersede
                superseded[count] = np.int64(older[i, 2] >> np.uint64(1))
                count += 1
    return count


def look_up_older_entries(
    entries: Words, bounds: Int64, older: Words, older_bounds: Int64, first_in_new: int, late: Flags
) -> Int64:
    """Look up an older run's entries among the new entries, which ``latest_entry_of_each_key`` has returned.

    Both are in order of shard, with the ``bounds`` of each shard. ``first_in_new``: which shard of the new
    entries, counted from 0, is the first shard of the older ones. Returns the offsets of the older records
    that are superseded (int64, in any order). Sets ``late`` (bool, one for each new entry) where the older
    run has the larger timestamp: then the new record is not written.
    """
    superseded, table = np.empty(len(older), np.int64), new_hash_table(int(np.diff(bounds).max(initial=1)))
    count = _look_up_older_kernel(entries, bounds, table, older, older_bounds, first_in_new, late, superseded)
    return superseded[:count].copy()


# Extraction: from records to entries.


@kernel
def _find_deletions(data: Bytes, key_start: Int32, key_size: Int32, deleted: Flags) -> None:
    """Set ``deleted`` for records whose value is null or empty. In a record the value's size follows the
    key."""
    origin = data.ctypes.data  # ``next_varint`` reads from an address in memory
    end = origin + len(data)
    for i in range(len(key_start)):
        size, _ = next_varint(origin + key_start[i] + max(key_size[i], 0), end)
        deleted[i] = size <= 0


class EntryCollector:
    """Makes key entries of records, in log order, and yields them as blobs by bucket.

    A blob is a view of the collector's memory, valid only until the next one is taken; ``copied()`` stays
    valid. Memory is bounded: it holds about ``capacity`` entries (24 or 32 bytes each), the latest one of
    each key. When a shard is full, all entries are yielded, so a key may be yielded again. ``emitted``: how
    many entries were yielded.
    """

    def __init__(self, *, hash_key: tuple[int, int], by_time: bool, buckets: int, capacity: int) -> None:
        assert KEY_INDEX_PARTITIONS % buckets == 0
        self._key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self._words = TIMED_WORDS if by_time else PLAIN_WORDS
        self._buckets = buckets
        # Shards differ in size, since hashes are random. The entries of a shard have about the Poisson
        # distribution: 8 standard deviations (the root of the mean each) above the mean are enough.
        mean = capacity // KEY_INDEX_PARTITIONS
        rows_per_shard = mean + 8 * math.isqrt(mean) + _MIN_SHARD_ROWS
        # ``capacity=0``: no shard is made larger; when one is full, the entries are taken out.
        self._entries = ShardedEntries(
            KEY_INDEX_PARTITIONS, rows_per_shard, words=self._words, capacity=0, dedupes=True
        )
        self.emitted = 0

    def add(self, columns: KeyColumns, selected: Flags) -> Iterator[EntryBlob]:
        """Add the ``selected`` records (bool, one for each record), which must have keys. Yields all
        entries when a shard is full. With timestamps ``columns`` must be ``RecordColumns``.
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
            new[:, 3] = columns.timestamp[rows].view(np.uint64) ^ _SIGN_BIT
        for bounds in self._entries.put(new):  # the shards' bounds, each time that one is full
            yield from self._emit(bounds)

    def finish(self) -> Iterator[EntryBlob]:
        """Yield the remaining entries. The collector is empty then, and can be used again."""
        yield from self._emit(self._entries.drain(dedupes=True))

    def _emit(self, bounds: Int64) -> Iterator[EntryBlob]:
        self.emitted += int(bounds[-1])
        yield from entry_blobs(self._entries, bounds, self._buckets)


# The key index of a run: a file in which later compactions look up the keys of the run's records.
#
# ::
#
#      0  magic "SILTKEYS"             8
#      8  version 1                    4      12  words of an entry, 3 or 4   4
#     16  partitions: shards           4      20  unused, 0                   4
#     24  check of the hash key        8      the hash of no bytes; shows that a file has another hash key
#     32  bounds of the partitions     8 each, one more than partitions, in entries
#     …   CRC32C of each partition     4 each
#     …   CRC32C of all before         4, then 4 bytes of 0
#     …   entries, partition by partition, each ``words`` uint64
#
# Little-endian. The partitions of the file are the shards. A bucket is a range of them, so it is one range of
# bytes. The checksum of a partition is checked when it is read. By offset, deleted keys have no entry
# (``work.merge_bucket`` leaves them out). By time they keep one for ever: a record with a smaller timestamp
# may come later, and must not bring the key back.

MAGIC, VERSION = b"SILTKEYS", 1
_FIXED_HEADER = struct.Struct("<8sIIIIQ")
_HEADER_BYTES = _FIXED_HEADER.size + 8 * (KEY_INDEX_PARTITIONS + 1) + 4 * KEY_INDEX_PARTITIONS + 8
_WORDS_POSITION, _CHECK_POSITION = 12, 24
_READ_BYTES = 16 << 20
"""How much of an index is read at a time."""


def hash_key_check(hash_key: tuple[int, int]) -> int:
    """A check value (uint64): the hash of no bytes. It shows whether a file has this hash key, and does not
    reveal the key."""
    low, _ = siphash128(np.zeros(1, np.uint8), 0, 0, np.uint64(hash_key[0]), np.uint64(hash_key[1]))
    return int(low)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndexPart:
    """A part of a key index: the entries of a range of shards, in a file of their own until
    ``assemble_key_index``.

    ``counts``: the number of entries of each shard from number ``first`` on; ``checksums``: CRC32C of each
    shard's entries. ``path`` is "" if there are no entries.
    """

    first: int
    path: str
    counts: tuple[int, ...]
    checksums: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Entries in all its shards."""
        return sum(self.counts)


def write_key_index_part(
    folder: Path, entries: Words, bounds: Int64, first: int, attempt: str
) -> KeyIndexPart:
    """Write a part of a key index: ``entries`` in order of shard, with the ``bounds`` (int64) of the
    shards from number ``first`` on.

    All attempts of a task write the same bytes, and rename their files to the same path. So a
    ``CompactionReport`` of a task, which contains this part, is the same for each attempt, and Spark may
    combine reports of any attempts. The part is not synced; the assembled index is. Raises OSError.
    """
    stored = np.ascontiguousarray(entries).astype("<u8", copy=False)
    edges = itertools.pairwise(bounds.tolist())
    checksums = tuple(crc32c(stored[start:end].reshape(-1).view(np.uint8).data) for start, end in edges)
    path = folder / f"{first:04d}.keys"
    if len(stored):
        attempt_path = folder / f"{first:04d}.{attempt}.keys"
        with files.Writer(attempt_path) as writer:
            writer.write(stored.reshape(-1).view(np.uint8).data)
            files.inherit_owner(attempt_path)  # the broker's, also if root runs the compaction
        files.rename(attempt_path, path)
    counts = tuple(np.diff(bounds).tolist())
    return KeyIndexPart(
        first=first, path=str(path) if len(stored) else "", counts=counts, checksums=checksums
    )


def assemble_key_index(
    path: Path, parts: Sequence[KeyIndexPart], words: int, hash_key: tuple[int, int]
) -> tuple[int, int]:
    """Write a key index of parts that cover all shards, durably. Returns its size and its CRC32C.

    Raises CorruptFileError for a part that was damaged since, OSError.
    """
    ordered = sorted(parts, key=lambda part: part.first)
    counts = [count for part in ordered for count in part.counts]
    firsts = itertools.accumulate((len(part.counts) for part in ordered), initial=0)
    assert [*(part.first for part in ordered), KEY_INDEX_PARTITIONS] == list(firsts), (
        "a part is missing or there twice"
    )
    header = _FIXED_HEADER.pack(MAGIC, VERSION, words, KEY_INDEX_PARTITIONS, 0, hash_key_check(hash_key))
    header += np.concatenate(([0], np.cumsum(counts))).astype("<u8").tobytes()
    header += np.array([checksum for part in ordered for checksum in part.checksums], "<u4").tobytes()
    header += struct.pack("<II", crc32c(header), 0)
    checksum = crc32c(header)
    with files.Writer(path) as writer:
        writer.write(header)
        for part in ordered:
            for chunk in _chunks(part, 8 * words):
                checksum = crc32c(chunk.data, checksum)
                writer.write(chunk.data)
        files.inherit_owner(path)
        writer.sync()
        return writer.size, checksum


def _chunks(part: KeyIndexPart, entry_bytes: int) -> Iterator[Bytes]:
    """Read a part, verified shard by shard. Yields its bytes."""
    if not part.path:
        return
    bounds = np.concatenate(([0], np.cumsum(part.counts))).astype(np.int64)
    with files.Reader(part.path) as reader:
        if reader.stat.size != part.entries * entry_bytes:
            raise CorruptFileError(part.path, reader.stat.size, "the file has not the size that was written")
        for _, _, chunk in _read_verified(reader, bounds, part.checksums, entry_bytes):
            yield chunk


def _read_verified(
    reader: files.Reader,
    bounds: Int64,
    checksums: Sequence[int],
    entry_bytes: int,
    *,
    origin: int = 0,
    first: int = 0,
    end: int | None = None,
) -> Iterator[tuple[int, int, Bytes]]:
    """Read and verify shards [``first``, ``end``), about ``_READ_BYTES`` at a time. Yields (the first
    shard read, the one after the last, their bytes). The entries begin at position ``origin``."""
    end = len(bounds) - 1 if end is None else end
    while first < end:
        last_entry = bounds[first] + max(1, _READ_BYTES // entry_bytes)
        next_first = min(end, max(first + 1, int(np.searchsorted(bounds, last_entry, side="right")) - 1))
        edges = ((bounds[first : next_first + 1] - bounds[first]) * entry_bytes).tolist()
        start, chunk = origin + int(bounds[first]) * entry_bytes, np.empty(edges[-1], np.uint8)
        reader.read_into(chunk, start)
        for shard, (low, high) in enumerate(itertools.pairwise(edges), first):
            if crc32c(chunk[low:high].data) != checksums[shard]:
                reason = f"the keys of partition {shard} are damaged"
                raise CorruptFileError(reader.path, start + low, reason)
        yield first, next_first, chunk
        first = next_first


def read_key_index(
    path: str | Path, hash_key: tuple[int, int], words: int, first: int = 0, end: int = KEY_INDEX_PARTITIONS
) -> Iterator[tuple[int, Words, Int64]]:
    """Read shards [``first``, ``end``) of a key index, some at a time. Yields (the first shard read, the
    entries, the bounds of the shards in these entries).

    Raises CorruptFileError for damage, and for a file made with another hash key or number of ``words``;
    OSError.
    """
    with files.Reader(path) as reader:
        bounds, checksums = _read_header(reader, hash_key, words)
        span = {"origin": _HEADER_BYTES, "first": first, "end": end}
        for start, stop, chunk in _read_verified(reader, bounds, checksums, 8 * words, **span):
            entries = chunk.view("<u8").astype(np.uint64, copy=False).reshape(-1, words)
            yield start, entries, bounds[start : stop + 1] - bounds[start]


def _read_header(
    reader: files.Reader, hash_key: tuple[int, int], expected_words: int
) -> tuple[Int64, list[int]]:
    """The bounds (in entries) and the checksums of a key index's shards. Raises CorruptFileError,
    OSError."""
    path, header = reader.path, reader.read(0, _HEADER_BYTES)
    # The last eight bytes are the checksum of all before, and four bytes of 0.
    if (
        len(header) < _HEADER_BYTES
        or crc32c(header[:-8]) != struct.unpack_from("<I", header, _HEADER_BYTES - 8)[0]
    ):
        raise CorruptFileError(path, 0, "the key index's header is damaged")
    magic, version, words, partitions, _, check = _FIXED_HEADER.unpack_from(header)
    if magic != MAGIC or version != VERSION or partitions != KEY_INDEX_PARTITIONS:
        raise CorruptFileError(path, 0, f"the file is not a key index of version {VERSION}")
    if words != expected_words:
        reason = f"entries have {words} words, not {expected_words}: it is of a compaction in another order"
        raise CorruptFileError(path, _WORDS_POSITION, reason)
    if check != hash_key_check(hash_key):
        raise CorruptFileError(
            path, _CHECK_POSITION, "the index was made with another hash key than its ledger's"
        )
    bounds = np.frombuffer(header, "<u8", KEY_INDEX_PARTITIONS + 1, _FIXED_HEADER.size).astype(np.int64)
    checksums = np.frombuffer(
        header, "<u4", KEY_INDEX_PARTITIONS, _FIXED_HEADER.size + 8 * (KEY_INDEX_PARTITIONS + 1)
    )
    if bounds[0] or (np.diff(bounds) < 0).any():
        raise CorruptFileError(path, _FIXED_HEADER.size, "the bounds of the partitions do not ascend")
    if reader.stat.size != _HEADER_BYTES + int(bounds[-1]) * 8 * words:
        raise CorruptFileError(path, reader.stat.size, "the file has not the size that its header says")
    return bounds, checksums.tolist()
