"""Reads and writes integers: zigzag varints (KIP-98, as in protobuf; Kafka's ``ByteUtils``) and big-endian
ones.

A varint has seven bits of the number in each byte, the lowest first; the highest bit of a byte says that
another byte follows. Zigzag maps small negative numbers to small unsigned ones: 0, -1, 1, -2 … become 0, 1,
2, 3 ….

Functions that read a varint return ``(value, next position)``. The next position is -1 if the bytes end too
early or the varint is longer than its type allows (5 bytes for int32, 10 for int64). ``next_varint`` and
``next_varlong`` take addresses (see ``kernel``). They decode varints of one or two bytes inline, since nearly
all varints of a log are that short.
"""

from __future__ import annotations

import numpy as np

from siltstone.base.records.kernel import byte_at, inline_kernel, kernel
from siltstone.base.records.layout import Bytes

# The shift of the last byte that a varint of a type may have, and the largest value of that byte: an int32
# has four bits left for its fifth byte, an int64 one bit for its tenth.
_INT32_LAST_SHIFT, _INT32_MAX_LAST_BYTE = 28, 0x0F
_INT64_LAST_SHIFT, _INT64_MAX_LAST_BYTE = 63, 0x01


@kernel
def _long_varint(at: int, end: int, last_shift: int, max_last_byte: int) -> tuple[int, int]:
    """Read a varint of any length; the byte shifted by ``last_shift`` is at most ``max_last_byte``."""
    raw = 0
    shift = 0
    while shift <= last_shift and at < end:
        byte = byte_at(at)
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == last_shift and byte > max_last_byte:
                return 0, -1
            # The inverse of zigzag. ``raw`` is signed here, so the mask makes its shift unsigned.
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), at
        shift += 7
    return 0, -1


@inline_kernel
def _next_of_type(at: int, end: int, last_shift: int, max_last_byte: int) -> tuple[int, int]:
    """Read the varint of an int32 or int64. One or two bytes are decoded here, a longer varint by
    ``_long_varint``."""
    if at >= end:
        return 0, -1
    low = byte_at(at)
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    high = byte_at(at + 1) if at + 1 < end else 0x80  # truncated: ``_long_varint`` returns -1
    if high < 0x80:
        raw = (low & 0x7F) | (high << 7)
        return (raw >> 1) ^ -(raw & 1), at + 2
    return _long_varint(at, end, last_shift, max_last_byte)


@inline_kernel
def next_varint(at: int, end: int) -> tuple[int, int]:
    """Read the varint of an int32 at address ``at``, not beyond the address ``end``."""
    return _next_of_type(at, end, _INT32_LAST_SHIFT, _INT32_MAX_LAST_BYTE)


@inline_kernel
def next_varlong(at: int, end: int) -> tuple[int, int]:
    """Read the varint of an int64 at address ``at``, not beyond the address ``end``."""
    return _next_of_type(at, end, _INT64_LAST_SHIFT, _INT64_MAX_LAST_BYTE)


@kernel
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read the varint of an int32 at ``data[position]``, not beyond ``end``."""
    base = data.ctypes.data
    value, at = next_varint(base + position, base + end)
    return value, at - base if at >= 0 else -1


@kernel
def read_varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read the varint of an int64 at ``data[position]``, not beyond ``end``."""
    base = data.ctypes.data
    value, at = next_varlong(base + position, base + end)
    return value, at - base if at >= 0 else -1


@kernel
def varint_size(value: int) -> int:
    """Bytes that ``value`` (int64) takes as a zigzag varint: 1 to 10."""
    raw = (value << 1) ^ (value >> 63)
    size = 1
    rest = (raw >> 7) & 0x01FFFFFFFFFFFFFF  # an unsigned shift of the signed ``raw``
    while rest != 0:
        size += 1
        rest >>= 7
    return size


@kernel
def write_varint(out: Bytes, position: int, value: int) -> int:
    """Write ``value`` (int64) as a zigzag varint at ``position``. Returns the next position."""
    raw = (value << 1) ^ (value >> 63)
    rest = (raw >> 7) & 0x01FFFFFFFFFFFFFF  # an unsigned shift of the signed ``raw``
    low = raw & 0x7F
    while rest != 0:
        out[np.uint64(position)] = low | 0x80
        position += 1
        low = rest & 0x7F
        rest >>= 7
    out[np.uint64(position)] = low
    return position + 1


# Fixed-size integers. The caller has checked that the bytes are within the array.


@kernel
def _big_endian(data: Bytes, position: int, size: int) -> int:
    """``size`` bytes as an unsigned number; eight bytes as an int64, since numba's integers wrap around.
    Unsigned indexes let LLVM turn the loop into one load."""
    value, at = 0, np.uint64(position)
    for i in range(size):
        value = (value << 8) | int(data[at + np.uint64(i)])
    return value


@kernel
def read_int64(data: Bytes, position: int) -> int:
    """The int64 at ``position``."""
    return _big_endian(data, position, 8)


@kernel
def read_int32(data: Bytes, position: int) -> int:
    """The int32 at ``position``."""
    value = _big_endian(data, position, 4)  # then the sign: two's complement
    return value - ((value & 0x80000000) << 1)


@kernel
def read_int16(data: Bytes, position: int) -> int:
    """The int16 at ``position``."""
    value = _big_endian(data, position, 2)
    return value - ((value & 0x8000) << 1)


@kernel
def byte_of_word(data: Bytes, position: np.uint64, index: int) -> np.uint64:
    """The byte at ``position + index``, shifted to its place in the little-endian word at ``position``."""
    return np.uint64(data[position + np.uint64(index)]) << np.uint64(8 * index)


@kernel
def load_word(data: Bytes, position: np.uint64) -> np.uint64:
    """Eight bytes as a little-endian word. Written out, and with unsigned indexes, LLVM turns it into one
    load."""
    low = (
        byte_of_word(data, position, 0)
        | byte_of_word(data, position, 1)
        | byte_of_word(data, position, 2)
        | byte_of_word(data, position, 3)
    )
    high = (
        byte_of_word(data, position, 4)
        | byte_of_word(data, position, 5)
        | byte_of_word(data, position, 6)
        | byte_of_word(data, position, 7)
    )
    return low | high
