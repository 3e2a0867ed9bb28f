"""Are the batches the bytes that were written? CRC32C for batches, CRC32 for message sets.

Large ones go through a library each; for small ones a call would cost more than the sum itself, so one
kernel (slicing by eight) does them all. Its tables are made from the polynomial, so it does both sums.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from siltstone.records.kernel import kernel
from siltstone.records.layout import (
    CHECKED_FROM,
    CRC_POSITION,
    MAGIC_POSITION,
    Bytes,
    Directory,
    Int64,
)

Sums = npt.NDArray[np.uint32]
_SMALL_BATCH_SIZE = 1024


def _tables(polynomial: int) -> Sums:
    """The eight tables of slicing-by-8 for a polynomial, its lowest power first: uint32[8, 256]."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        tables[0, byte] = value
    for step in range(1, 8):
        previous = tables[step - 1]
        tables[step] = (previous >> 8) ^ tables[0][previous & 0xFF]
    return tables


CRC32C_TABLES = _tables(0x82F63B78)
CRC32_TABLES = _tables(0xEDB88320)


@kernel
def crc_of(data: Bytes, start: int, end: int, tables: Sums) -> np.uint32:
    """The CRC that ``tables`` stand for of ``data[start:end]``. Over a kilobyte the libraries are faster."""
    eight = np.uint64(8)
    crc = np.uint32(0xFFFFFFFF)
    at = np.uint64(start)
    size = end - start
    for _ in range(size >> 3):
        a = crc ^ (
            np.uint32(data[at])
            | (np.uint32(data[at + np.uint64(1)]) << np.uint32(8))
            | (np.uint32(data[at + np.uint64(2)]) << np.uint32(16))
            | (np.uint32(data[at + np.uint64(3)]) << np.uint32(24))
        )
        crc = (
            tables[7, a & np.uint32(0xFF)]
            ^ tables[6, (a >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (a >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, a >> np.uint32(24)]
            ^ tables[3, data[at + np.uint64(4)]]
            ^ tables[2, data[at + np.uint64(5)]]
            ^ tables[1, data[at + np.uint64(6)]]
            ^ tables[0, data[at + np.uint64(7)]]
        )
        at += eight
    for _ in range(size & 7):
        crc = tables[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += np.uint64(1)
    return crc ^ np.uint32(0xFFFFFFFF)


@kernel
def crc_each(data: Bytes, starts: Int64, ends: Int64, tables: Sums, out: Sums) -> None:
    """``crc_of`` each ``data[starts[i]:ends[i]]`` into ``out`` (uint32)."""
    for i in range(len(starts)):
        out[i] = crc_of(data, starts[i], ends[i], tables)


def batch_checksums(data: Bytes, starts: Int64, sizes: Int64) -> Sums:
    """CRC32C of whole v2 batches, each from its attributes on: uint32, one a batch.

    ``starts`` and ``sizes`` (int64) are the batches' positions in ``data`` and their whole sizes.
    """
    return _sums(data, starts + CHECKED_FROM, starts + sizes, CRC32C_TABLES, crc32c)


def message_checksums(data: Bytes, starts: Int64, sizes: Int64) -> Sums:
    """CRC32 of whole message set entries (magic 0 and 1), each from its magic byte on: uint32, one an entry.

    ``starts`` and ``sizes`` (int64) are the entries' positions in ``data`` and their whole sizes.
    """
    return _sums(data, starts + MAGIC_POSITION, starts + sizes, CRC32_TABLES, zlib.crc32)


def _sums(data: Bytes, starts: Int64, ends: Int64, tables: Sums, library: Callable[..., int]) -> Sums:
    out = np.empty(len(starts), np.uint32)
    if len(starts) and int((ends - starts).sum()) < _SMALL_BATCH_SIZE * len(starts):
        crc_each(data, starts, ends, tables, out)
        return out
    view = data.data
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        out[i] = library(view[start:end])
    return out


def patch_checksums(data: Bytes, starts: Int64, sizes: Int64) -> None:
    """Write each v2 batch's CRC32C into its header, in place."""
    big_endian = batch_checksums(data, starts, sizes).astype(">u4").view(np.uint8).reshape(-1, 4)
    for byte in range(4):
        data[starts + (CRC_POSITION + byte)] = big_endian[:, byte]


def first_bad_checksum(data: Bytes, batches: Directory) -> int | None:
    """Row of the first batch in ``batches`` whose stored checksum is not its bytes', or None."""
    computed = np.empty(len(batches), np.uint32)
    modern = batches["magic"] == 2
    for rows, checksums in ((modern, batch_checksums), (~modern, message_checksums)):
        starts = batches["position"][rows]
        computed[rows] = checksums(data, starts, batches["size"][rows].astype(np.int64))
    bad = np.flatnonzero(computed != batches["crc"])
    return int(bad[0]) if len(bad) else None
