"""A generation's key index: the file that later compactions look up their keys in.

::

     0  magic "SILTKEYS"             8
     8  version 1                    4      12  words of an entry, 3 or 4   4
    16  partitions                   4      20  0                           4
    24  check of the hash key        8      a hash of no bytes, so that another key is noticed
    32  bounds of the partitions     8 each, one more than partitions, in entries
    …   CRC32C of each partition     4 each
    …   CRC32C of all before         4, then 4 bytes of 0
    …   entries, partition by partition, each ``words`` uint64

Little-endian. A bucket is a run of partitions, so it is one split of the file; each partition is checked
when it is read. ``compaction.keys`` says what the words are (plain entries). Where the order is by offset,
deleted keys have no entry; by time they have one for ever, so that an older event that arrives late does not
bring them back.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.hashing import siphash128
from siltstone.base.records.layout import Int64, Words
from siltstone.compaction.keys import PLAIN_WORDS, TIMED_WORDS
from siltstone.compaction.ledger.keys import PARTITIONS

MAGIC, VERSION = b"SILTKEYS", 1
NAME = "keys"
_HEAD = struct.Struct("<8sIIIIQ")
_READ_BYTES = 16 << 20
Checksums = npt.NDArray[np.uint32]


def check_of(hash_key: tuple[int, int]) -> int:
    """By what a file knows the hash key that its entries were made with; it does not give the key away."""
    low, _ = siphash128(np.zeros(1, np.uint8), 0, 0, np.uint64(hash_key[0]), np.uint64(hash_key[1]))
    return int(low)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPart:
    """Entries of a run of partitions, written to a file of their own until the index is put together.

    ``counts``: entries of each partition from ``first`` on; ``checksums``: their CRC32C. ``path`` is "" where
    there are none.
    """

    first: int
    path: str
    counts: tuple[int, ...]
    checksums: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Entries in all of them."""
        return sum(self.counts)


def write_part(path: Path, entries: Words, bounds: Int64, first: int) -> KeysPart:
    """Write entries in order of partition; ``bounds`` are those of the partitions from ``first`` on.

    The file is not made durable: what it becomes is. Raises OSError.
    """
    plain = np.ascontiguousarray(entries).astype("<u8", copy=False)
    edges = bounds.tolist()
    sums = tuple(
        crc32c(plain[start:end].reshape(-1).view(np.uint8).data) for start, end in itertools.pairwise(edges)
    )
    if len(plain):
        with files.Writer(path) as writer:
            writer.write(plain.reshape(-1).view(np.uint8).data)
            files.inherit_owner(path)
    counts = tuple(np.diff(bounds).tolist())
    return KeysPart(first=first, path=str(path) if len(plain) else "", counts=counts, checksums=sums)


def assemble(path: Path, parts: Sequence[KeysPart], words: int, hash_key: tuple[int, int]) -> tuple[int, int]:
    """Make the index ``path`` of parts that cover all partitions, durably; (its size, its CRC32C).

    Raises CorruptFileError when a part is not what was written, OSError.
    """
    ordered = sorted(parts, key=lambda part: part.first)
    counts = [count for part in ordered for count in part.counts]
    assert len(counts) == PARTITIONS and [part.first for part in ordered] == _firsts(ordered)
    head = _HEAD.pack(MAGIC, VERSION, words, PARTITIONS, 0, check_of(hash_key))
    head += np.concatenate(([0], np.cumsum(counts))).astype("<u8").tobytes()
    head += np.array([each for part in ordered for each in part.checksums], "<u4").tobytes()
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


def _firsts(parts: Sequence[KeysPart]) -> list[int]:
    """Where each part must begin so that none overlaps and none is missing."""
    sizes = [len(part.counts) for part in parts]
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _chunks(part: KeysPart, entry_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
    """A part's bytes, checked partition by partition."""
    if not part.path:
        return
    edges = np.concatenate(([0], np.cumsum(part.counts))).astype(np.int64)
    with files.Reader(part.path) as reader:
        if reader.stat.size != part.entries * entry_bytes:
            raise CorruptFileError(part.path, reader.stat.size, "not as many keys as were written")
        for first, behind in _runs(edges, entry_bytes):
            start, end = (int(edges[each]) * entry_bytes for each in (first, behind))
            chunk = np.empty(end - start, np.uint8)
            reader.read_into(chunk, start)
            _refuse_damage(part.path, chunk, edges, part.checksums, first, behind, entry_bytes, start)
            yield chunk


def _runs(edges: Int64, entry_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of partitions of about ``_READ_BYTES`` each, at least one partition a run."""
    first, last = 0, len(edges) - 1
    while first < last:
        most = edges[first] + max(1, _READ_BYTES // entry_bytes)
        behind = max(first + 1, int(np.searchsorted(edges, most, side="right")) - 1)
        yield first, behind
        first = behind


def _refuse_damage(
    path: str,
    chunk: npt.NDArray[np.uint8],
    edges: Int64,
    checksums: Sequence[int],
    first: int,
    behind: int,
    entry_bytes: int,
    origin: int,
) -> None:
    """Partitions ``first`` up to ``behind`` lie in ``chunk``, which was read at ``origin``."""
    places = ((edges[first : behind + 1] - edges[first]) * entry_bytes).tolist()
    for number, (start, end) in enumerate(itertools.pairwise(places)):
        if crc32c(chunk[start:end].data) != checksums[first + number]:
            reason = f"the keys of partition {first + number} are damaged"
            raise CorruptFileError(path, origin + start, reason)


class KeyIndex:
    """An open key index. Use it as a context. Raises CorruptFileError, OSError.

    ``words`` of an entry; ``count`` of entries. ``hash_key`` must be the one that it was made with.
    """

    def __init__(self, path: str | Path, hash_key: tuple[int, int]) -> None:
        self._reader = files.Reader(path)
        self.path = self._reader.path
        try:
            self._load(hash_key)
        except BaseException:
            self._reader.close()
            raise

    def _load(self, hash_key: tuple[int, int]) -> None:
        size = _HEAD.size + 8 * (PARTITIONS + 1) + 4 * PARTITIONS + 8
        head = self._reader.read(0, size)
        if len(head) < size or crc32c(head[:-8]) != struct.unpack_from("<I", head, size - 8)[0]:
            raise CorruptFileError(self.path, 0, "the key index's header is damaged")
        magic, version, words, partitions, _, check = _HEAD.unpack_from(head)
        if magic != MAGIC or version != VERSION or partitions != PARTITIONS:
            raise CorruptFileError(self.path, 0, f"no key index of version {VERSION}")
        if words not in (PLAIN_WORDS, TIMED_WORDS):
            raise CorruptFileError(self.path, 12, f"entries of {words} words")
        if check != check_of(hash_key):
            raise CorruptFileError(self.path, 24, "made with another hash key than its ledger's")
        self.words = int(words)
        bounds = np.frombuffer(head, "<u8", PARTITIONS + 1, _HEAD.size).astype(np.int64)
        self._sums = np.frombuffer(head, "<u4", PARTITIONS, _HEAD.size + 8 * (PARTITIONS + 1))
        self.count = int(bounds[-1])
        if bounds[0] or (np.diff(bounds) < 0).any():
            raise CorruptFileError(self.path, _HEAD.size, "the partitions do not ascend")
        if self._reader.stat.size != size + self.count * 8 * self.words:
            raise CorruptFileError(self.path, self._reader.stat.size, "not as many keys as its header says")
        self._bounds, self._origin = bounds, size

    def ranges(self, first: int, behind: int) -> Iterator[tuple[int, Words, Int64]]:
        """Partitions ``first`` up to ``behind``, some at a time: (the first of them, entries, bounds from 0
        on). Raises CorruptFileError for damaged keys."""
        width = 8 * self.words
        sums = self._sums.tolist()
        for start, end in _runs(self._bounds[first : behind + 1], width):
            edges = self._bounds[first + start : first + end + 1]
            origin = self._origin + int(edges[0]) * width
            data = np.empty(int(edges[-1] - edges[0]) * width, np.uint8)
            self._reader.read_into(data, origin)
            _refuse_damage(self.path, data, self._bounds, sums, first + start, first + end, width, origin)
            entries = data.view("<u8").astype(np.uint64, copy=False).reshape(-1, self.words)
            yield first + start, entries, edges - edges[0]

    def __enter__(self) -> KeyIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
