"""Big-endian integers out of bytes: the leaf kernels that the scanner and the message set decoder share.

The caller has seen to it that the bytes are there.
"""

from __future__ import annotations

from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes


@kernel
def read_int64(data: Bytes, position: int) -> int:
    """The int64 at ``position``."""
    value = 0
    for i in range(8):
        value = (value << 8) | int(data[position + i])
    return value


@kernel
def read_int32(data: Bytes, position: int) -> int:
    """The int32 at ``position``."""
    value = 0
    for i in range(4):
        value = (value << 8) | int(data[position + i])
    return value - ((value & 0x80000000) << 1)


@kernel
def read_int16(data: Bytes, position: int) -> int:
    """The int16 at ``position``."""
    value = (int(data[position]) << 8) | int(data[position + 1])
    return value - ((value & 0x8000) << 1)
