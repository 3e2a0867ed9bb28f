"""Runs of batches that are decoded at one time, by what they take once they are plain.

Stored bytes say little: 84 KB of zstd may be 2.4 GB of zeros. So a window's batches are cut into slices by
what they say of themselves (``codecs.told``) and by their records' columns::

    window ─ plain_sizes ─► bytes of each batch's records ─ pieces ─► slices of about ``PIECE_BYTES``

A slice has at least one batch. Memory is bounded by a slice's bytes and the largest batch, which
``max.decompressed.message.bytes`` bounds (see ``inflate``), whatever the segments hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from siltstone.base.records.codecs import DEFAULT_LIMIT, told_sizes
from siltstone.base.records.inflate import RECORD_BYTES
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    ENTRY_MIN,
    MESSAGE_OVERHEAD_V0,
    MESSAGE_OVERHEAD_V1,
    Bytes,
    Directory,
    Int64,
    codec_of,
)
from siltstone.base.records.varint import read_int32

PIECE_BYTES = 8 << 20


@kernel
def _wrapped(data: Bytes, batches: Directory, starts: Int64, ends: Int64) -> None:
    """Where the value of each message (v0, v1) begins and ends; nothing where that makes no sense."""
    for i in range(len(batches)):
        position, end = batches[i].position, batches[i].position + batches[i].size
        key = position + (MESSAGE_OVERHEAD_V0 if batches[i].magic == 0 else MESSAGE_OVERHEAD_V1)
        value = key + 4 + max(read_int32(data, key), 0) if key + 4 <= end else end
        starts[i] = ends[i] = end
        if value + 4 <= end:
            starts[i] = value + 4
            ends[i] = min(value + 4 + max(read_int32(data, value), 0), end)


def plain_sizes(window: Bytes, batches: Directory) -> Int64:
    """Bytes that each batch's records take at most once they are plain: int64; any magic.

    Exact where the batch tells it. Where nothing is told, as for damage, so many that nothing else is decoded
    with it. Raises nothing.
    """
    sizes = batches["size"].astype(np.int64)
    rows = np.flatnonzero((codec_of(batches) > 0) & (batches["count"] != 0))
    if not len(rows):
        return sizes
    packed = batches[rows] if len(rows) < len(batches) else batches
    starts, ends = packed["position"] + BATCH_OVERHEAD, packed["position"] + packed["size"]
    old = np.flatnonzero(packed["magic"] < 2)
    if len(old):
        spans = np.empty((2, len(old)), np.int64)
        _wrapped(window, packed[old], *spans)
        starts[old], ends[old] = spans
    told, _ = told_sizes(window, starts, ends, codec_of(packed).astype(np.int64))
    sizes[rows] = np.where(told < 0, DEFAULT_LIMIT, told)
    return sizes


def pieces(window: Bytes, batches: Directory, budget: int = PIECE_BYTES) -> Iterator[slice]:
    """Slices of a directory whose records take about ``budget`` bytes of memory at most a slice.

    Message sets (v0, v1) and v2 batches are never in the same one. ``batches`` are rows of a scan over
    ``window``.
    """
    if not len(batches):
        return
    sizes, old = plain_sizes(window, batches), batches["magic"] < 2
    records = np.where(old & (codec_of(batches) > 0), sizes // ENTRY_MIN, np.maximum(batches["count"], 1))
    behind = np.cumsum(sizes + RECORD_BYTES * records)
    if behind[-1] <= budget and not old.any():
        yield slice(0, len(batches))
        return
    edges = np.flatnonzero((np.diff((behind - 1) // budget) != 0) | np.diff(old)) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(batches)]):
        yield slice(start, end)
