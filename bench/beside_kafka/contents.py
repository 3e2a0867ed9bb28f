"""Do two cleaned directories hold the same records? A digest of each, by this project's reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from siltstone.base import files
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_records
from siltstone.log.segments import list_segments, windows

_PRIME = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A partition's records: how many, and FNV-1a over offset, timestamp, key and value of all, in order."""

    records: int
    digest: int


def contents_of(directory: Path, topic: str, partitions: int) -> list[Contents]:
    """What each partition of a topic holds; the checksums of all batches are checked on the way."""
    return [_contents(directory / f"{topic}-{number}") for number in range(partitions)]


def _contents(partition: Path) -> Contents:
    records, digest, scratch = 0, _BASIS, Scratch()
    for segment in list_segments(partition):
        with files.Reader(segment.path) as reader:
            for window in windows(reader):
                columns = decode_records(window.data, window.batches, scratch)
                records += len(columns)
                digest = _digest(
                    np.uint64(digest),
                    columns.data,
                    columns.offset,
                    columns.timestamp,
                    columns.key_start,
                    columns.key_size,
                    columns.value_start,
                    columns.value_size,
                )
    return Contents(records=records, digest=int(digest))


@njit(cache=True)
def _digest(digest, data, offset, timestamp, key_start, key_size, value_start, value_size):
    for row in range(len(offset)):
        digest = (digest ^ np.uint64(offset[row])) * _PRIME
        digest = (digest ^ np.uint64(timestamp[row])) * _PRIME
        digest = _text(digest, data, key_start[row], key_size[row])
        digest = _text(digest, data, value_start[row], value_size[row])
    return digest


@njit(cache=True)
def _text(digest, data, start, size):
    """The size first, which is -1 for null: no two lists of texts go through the same bytes."""
    digest = (digest ^ np.uint64(size + 1)) * _PRIME
    for position in range(start, start + max(size, 0)):
        digest = (digest ^ np.uint64(data[position])) * _PRIME
    return digest
