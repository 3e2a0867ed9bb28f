"""Zigzag varints (KIP-98, protobuf's): the leaf kernels that decoders and builders share.

Readers return ``(value, next position)``, with the next position -1 when the bytes end too early or
the varint is longer than its type allows (5 bytes for int32, 10 for int64).

Bytes are indexed by uint64: numba then leaves out the turn-around of negative indexes, and LLVM does the
rest. Positions are never negative, and callers check their ends.
"""

from __future__ import annotations

import numpy as np

from siltstone.records.kernel import inlined, kernel
from siltstone.records.layout import Bytes


@kernel
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read an int32 at ``position``, not beyond ``end``."""
    if position >= end:
        return 0, -1
    byte = int(data[np.uint64(position)])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    raw = byte & 0x7F
    shift = 7
    position += 1
    while shift <= 28 and position < end:
        byte = int(data[np.uint64(position)])
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 28 and byte > 0x0F:
                return 0, -1
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    return 0, -1


@kernel
def read_varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read an int64 at ``position``, not beyond ``end``."""
    if position >= end:
        return 0, -1
    byte = int(data[np.uint64(position)])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    raw = byte & 0x7F
    shift = 7
    position += 1
    while shift <= 63 and position < end:
        byte = int(data[np.uint64(position)])
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:
                return 0, -1
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position
        shift += 7
    return 0, -1


@inlined
def next_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """``read_varint`` with the way for one or two bytes inline: nearly all of a log are that short.

    Written out, as ``next_varlong`` is: by way of a function for both, decoding takes three times as long.
    """
    if position >= end:
        return 0, -1
    low = int(data[np.uint64(position)])
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), position + 1
    high = int(data[np.uint64(position + 1)]) if position + 1 < end else 0x80
    if high < 0x80:
        raw = (low & 0x7F) | (high << 7)
        return (raw >> 1) ^ -(raw & 1), position + 2
    return read_varint(data, position, end)


@inlined
def next_varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """``read_varlong``, in the same way."""
    if position >= end:
        return 0, -1
    low = int(data[np.uint64(position)])
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), position + 1
    high = int(data[np.uint64(position + 1)]) if position + 1 < end else 0x80
    if high < 0x80:
        raw = (low & 0x7F) | (high << 7)
        return (raw >> 1) ^ -(raw & 1), position + 2
    return read_varlong(data, position, end)


@kernel
def varint_size(value: int) -> int:
    """Bytes that ``value`` (int64) takes as a zigzag varint: 1 to 10."""
    raw = (value << 1) ^ (value >> 63)
    size = 1
    raw_high = (raw >> 7) & 0x01FFFFFFFFFFFFFF
    while raw_high != 0:
        size += 1
        raw_high >>= 7
    return size


@kernel
def write_varint(out: Bytes, position: int, value: int) -> int:
    """Write ``value`` (int64) at ``position``; returns the next position."""
    raw = (value << 1) ^ (value >> 63)
    high = (raw >> 7) & 0x01FFFFFFFFFFFFFF
    low = raw & 0x7F
    while high != 0:
        out[np.uint64(position)] = low | 0x80
        position += 1
        low = high & 0x7F
        high >>= 7
    out[np.uint64(position)] = low
    return position + 1
