"""Many offsets in few bytes, to travel with a piece: the winners of a view, or what a ledger hides.

::

    base int64 | kind 1 byte | payload       little-endian
    kind 0: the offsets less the base as uint32; kind 1: as int64; kind 2: a bit for each from the base on
"""

from __future__ import annotations

import struct

import numpy as np

from siltstone.records.layout import Int64

_HEAD = struct.Struct("<qB")
_U32, _I64, _BITS = 0, 1, 2


def pack_offsets(offsets: Int64) -> bytes:
    """Ascending offsets (int64) in whichever form is smallest."""
    if not len(offsets):
        return _HEAD.pack(0, _U32)
    base = int(offsets[0])
    relative = offsets - base
    span = int(relative[-1]) + 1
    if span <= 32 * len(offsets):
        bits = np.zeros(span, np.bool_)
        bits[relative] = True
        return _HEAD.pack(base, _BITS) + np.packbits(bits, bitorder="little").tobytes()
    if span <= 1 << 32:
        return _HEAD.pack(base, _U32) + relative.astype("<u4").tobytes()
    return _HEAD.pack(base, _I64) + relative.astype("<i8").tobytes()


def unpack_offsets(packed: bytes) -> Int64:
    """What ``pack_offsets`` packed, ascending int64."""
    base, kind = _HEAD.unpack_from(packed)
    if kind == _BITS:
        bits = np.unpackbits(np.frombuffer(packed, np.uint8, offset=_HEAD.size), bitorder="little")
        return np.asarray(np.flatnonzero(bits) + base, np.int64)
    payload = np.frombuffer(packed, "<u4" if kind == _U32 else "<i8", offset=_HEAD.size)
    return np.asarray(payload.astype(np.int64) + base)


def between(offsets: Int64, start: int, end: int) -> Int64:
    """Those of some ascending offsets in ``[start, end)``."""
    low, high = np.searchsorted(offsets, [start, end]).tolist()
    return offsets[low:high]
