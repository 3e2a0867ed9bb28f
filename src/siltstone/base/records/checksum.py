"""Checksums of batches: CRC32C for record batches, CRC32 for message sets (Kafka's ``Crc32C``, ``Crc32``).

A library computes the checksums of large batches, one by one. For small batches its call would take longer
than the computation, so a kernel computes all of them. It uses the processor's CRC32C instruction, if there
is one, for three batches side by side: the instruction takes three cycles, but a new one can start in every
cycle. Else it uses slicing-by-8, with tables that are made from the polynomial, for CRC32C and CRC32.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records import layout
from siltstone.base.records.kernel import (
    chosen_kernel,
    crc_of_byte_at,
    crc_of_word_at,
    has_crc32c,
    kernel,
)
from siltstone.base.records.layout import BatchHeaders, Bytes, Flags, Int64
from siltstone.base.records.varint import load_word

Checksums = npt.NDArray[np.uint32]
# Average sizes of batches, in bytes, from which a library is faster: than slicing-by-8, and than the
# instruction.
_SMALL_BATCH_SIZE, _LARGE_BATCH_SIZE = 1024, 128 << 10


def _slicing_tables(polynomial: int) -> Checksums:
    """The eight tables of slicing-by-8 for a polynomial with its bits reversed: uint32[8, 256]."""
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


# The two polynomials, with their bits reversed.
CRC32C_TABLES = _slicing_tables(0x82F63B78)
CRC32_TABLES = _slicing_tables(0xEDB88320)


@kernel
def crc_of(data: Bytes, start: int, end: int, tables: Checksums) -> np.uint32:
    """The CRC of ``data[start:end]`` with the polynomial of ``tables``. A library is faster for more than a
    kilobyte."""
    crc, low = np.uint32(0xFFFFFFFF), np.uint64(0xFF)
    at = np.uint64(start)
    size = end - start
    for _ in range(size >> 3):
        # Slicing-by-8: the CRC so far is combined with the first four of eight bytes, and each byte has its
        # own table.
        word = load_word(data, at) ^ np.uint64(crc)
        crc = np.uint32(0)
        for byte in range(8):
            crc ^= tables[7 - byte, (word >> np.uint64(8 * byte)) & low]
        at += np.uint64(8)
    for _ in range(size & 7):
        crc = tables[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += np.uint64(1)
    return crc ^ np.uint32(0xFFFFFFFF)


@kernel
def crc_of_ranges(data: Bytes, starts: Int64, ends: Int64, tables: Checksums, out: Checksums) -> None:
    """Write ``crc_of`` of every ``data[starts[i]:ends[i]]`` into ``out`` (uint32)."""
    for i in range(len(starts)):
        out[i] = crc_of(data, starts[i], ends[i], tables)


@kernel
def _finish_crc32c(crc: np.uint64, at: int, end: int) -> np.uint32:
    """Continue a CRC32C from address ``at`` to the address ``end``, and invert it, which ends it."""
    while at + 8 <= end:
        crc = crc_of_word_at(crc, at)
        at += 8
    while at < end:
        crc = crc_of_byte_at(crc, at)
        at += 1
    return np.uint32(crc ^ np.uint64(0xFFFFFFFF))


@kernel
def crc32c_of_ranges(data: Bytes, starts: Int64, ends: Int64, out: Checksums) -> None:
    """Write the CRC32C of every ``data[starts[i]:ends[i]]`` into ``out`` (uint32), by the processor's
    instruction."""
    # ``origin`` is an address. The caller holds ``data``, so it is not freed before the end.
    origin, initial = data.ctypes.data, np.uint64(0xFFFFFFFF)
    in_threes = len(starts) // 3 * 3
    for i in range(0, in_threes, 3):
        at_a, at_b, at_c = origin + starts[i], origin + starts[i + 1], origin + starts[i + 2]
        crc_a, crc_b, crc_c = initial, initial, initial
        shortest = min(ends[i] - starts[i], ends[i + 1] - starts[i + 1], ends[i + 2] - starts[i + 2])
        for at in range(0, shortest - 7, 8):
            crc_a, crc_b, crc_c = (
                crc_of_word_at(crc_a, at_a + at),
                crc_of_word_at(crc_b, at_b + at),
                crc_of_word_at(crc_c, at_c + at),
            )
        # The three ranges are computed up to the last whole word of the shortest one.
        done = max(shortest, 0) & -8
        out[i] = _finish_crc32c(crc_a, at_a + done, origin + ends[i])
        out[i + 1] = _finish_crc32c(crc_b, at_b + done, origin + ends[i + 1])
        out[i + 2] = _finish_crc32c(crc_c, at_c + done, origin + ends[i + 2])
    for i in range(in_threes, len(starts)):
        out[i] = _finish_crc32c(initial, origin + starts[i], origin + ends[i])


@kernel
def _crc32c_by_tables(data: Bytes, start: int, end: int) -> np.uint32:
    return crc_of(data, start, end, CRC32C_TABLES)


@kernel
def _crc32c_by_instruction(data: Bytes, start: int, end: int) -> np.uint32:
    origin = data.ctypes.data
    return _finish_crc32c(np.uint64(0xFFFFFFFF), origin + start, origin + end)


crc32c_of = chosen_kernel(lambda: _crc32c_by_instruction if has_crc32c() else _crc32c_by_tables)
"""CRC32C of ``data[start:end]``: for kernels, and for small batches."""


def batch_checksums(data: Bytes, starts: Int64, sizes: Int64) -> Checksums:
    """CRC32C of whole v2 batches, each from its attributes on: uint32, one a batch.

    ``starts`` and ``sizes`` (int64) are the batches' positions in ``data`` and their whole sizes.
    """
    checked_from, ends = starts + layout.CHECKSUM_START, starts + sizes
    if int(sizes.sum()) < _LARGE_BATCH_SIZE * len(starts) and has_crc32c():
        out = np.empty(len(starts), np.uint32)
        crc32c_of_ranges(data, checked_from, ends, out)
        return out
    return _checksums(data, checked_from, ends, CRC32C_TABLES, crc32c)


def message_checksums(data: Bytes, starts: Int64, sizes: Int64) -> Checksums:
    """CRC32 of whole message set entries (magic 0 and 1), each from its magic byte on: uint32, one an entry.

    ``starts`` and ``sizes`` (int64) are the entries' positions in ``data`` and their whole sizes.
    """
    return _checksums(data, starts + layout.MAGIC_POSITION, starts + sizes, CRC32_TABLES, zlib.crc32)


def _checksums(
    data: Bytes, starts: Int64, ends: Int64, tables: Checksums, library: Callable[..., int]
) -> Checksums:
    """The checksums of ranges of ``data``: by a kernel with ``tables`` if they are short on average, else by
    ``library``."""
    out = np.empty(len(starts), np.uint32)
    if len(starts) and int((ends - starts).sum()) < _SMALL_BATCH_SIZE * len(starts):
        crc_of_ranges(data, starts, ends, tables, out)
        return out
    view = data.data
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        out[i] = library(view[start:end])
    return out


def patch_checksums(data: Bytes, starts: Int64, sizes: Int64) -> None:
    """Write each v2 batch's CRC32C into its header, in place."""
    big_endian = batch_checksums(data, starts, sizes).astype(">u4").view(np.uint8).reshape(-1, 4)
    data[starts[:, None] + layout.CRC_POSITION + np.arange(4)] = big_endian


def checksums_hold(data: Bytes, batches: BatchHeaders) -> Flags:
    """Is each batch's stored checksum that of its bytes? bool, one a batch."""
    computed = np.empty(len(batches), np.uint32)
    is_v2 = batches["magic"] == 2
    for rows, checksums_of in ((is_v2, batch_checksums), (~is_v2, message_checksums)):
        starts = batches["position"][rows]
        computed[rows] = checksums_of(data, starts, batches["size"][rows].astype(np.int64))
    return np.asarray(computed == batches["crc"])


def first_bad_checksum(data: Bytes, batches: BatchHeaders) -> int | None:
    """Row of the first batch whose stored checksum is not that of its bytes, or None."""
    bad = np.flatnonzero(~checksums_hold(data, batches))
    return int(bad[0]) if len(bad) else None


BAD_CHECKSUM = "checksum does not match"
"""The reason of every error about a batch with a wrong checksum."""


def refuse_bad_checksum(data: Bytes, batches: BatchHeaders, *, path: str, origin: int) -> None:
    """Raise CorruptRecordError for the first batch with a wrong checksum, if there is one. ``data`` begins at
    byte ``origin`` of the file ``path``."""
    bad = first_bad_checksum(data, batches)
    if bad is not None:
        raise CorruptRecordError(path, origin + int(batches["position"][bad]), BAD_CHECKSUM)
