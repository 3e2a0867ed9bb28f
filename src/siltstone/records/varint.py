"""Zigzag varints (KIP-98, protobuf's): the leaf kernels that decoders and builders share.

Readers return ``(value, next position)``, with the next position -1 when the bytes end too early or
the varint is longer than its type allows (5 bytes for int32, 10 for int64). ``next_varint`` and
``next_varlong`` go by address (see ``kernel``), with the way for one or two bytes inline: nearly all of a log
are that short.
"""

from __future__ import annotations

import numpy as np

from siltstone.records.kernel import byte_at, inlined, kernel
from siltstone.records.layout import Bytes


@kernel
def _long_varint(at: int, end: int, last_shift: int, last_most: int) -> tuple[int, int]:
    """One of any length; the byte that is shifted by ``last_shift`` is at most ``last_most``."""
    raw = 0
    shift = 0
    while shift <= last_shift and at < end:
        byte = byte_at(at)
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == last_shift and byte > last_most:
                return 0, -1
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), at
        shift += 7
    return 0, -1


@inlined
def next_varint(at: int, end: int) -> tuple[int, int]:
    """Read an int32 at address ``at``, not beyond ``end``."""
    if at >= end:
        return 0, -1
    low = byte_at(at)
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    high = byte_at(at + 1) if at + 1 < end else 0x80
    if high < 0x80:
        raw = (low & 0x7F) | (high << 7)
        return (raw >> 1) ^ -(raw & 1), at + 2
    return _long_varint(at, end, 28, 0x0F)


@inlined
def next_varlong(at: int, end: int) -> tuple[int, int]:
    """Read an int64 at address ``at``, not beyond ``end``."""
    if at >= end:
        return 0, -1
    low = byte_at(at)
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    high = byte_at(at + 1) if at + 1 < end else 0x80
    if high < 0x80:
        raw = (low & 0x7F) | (high << 7)
        return (raw >> 1) ^ -(raw & 1), at + 2
    return _long_varint(at, end, 63, 1)


@kernel
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read an int32 at ``position``, not beyond ``end``."""
    base = data.ctypes.data
    value, at = next_varint(base + position, base + end)
    return value, at - base if at >= 0 else -1


@kernel
def read_varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read an int64 at ``position``, not beyond ``end``."""
    base = data.ctypes.data
    value, at = next_varlong(base + position, base + end)
    return value, at - base if at >= 0 else -1


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
