"""What compressed bytes say of their size once they are plain, before anything is decompressed.

::

    zstd    each frame's content size where it tells it, else block by block: raw and repeated ones tell
            theirs, a compressed one holds 128 KiB at most                    (RFC 8878, 3.1.1)
    lz4     each frame's content size where it tells it, else what a block may hold, or 255 times its bytes
    snappy  the number in front of each block
    gzip    the last four bytes, where nothing looks like a second member; 1032 times the bytes otherwise

So a size is either *exact*, which the codecs check when they decompress, or a bound that no sound stream
passes. A number that its stream cannot come to (deflate grows by 1032 at most, an lz4 block by 255, a zstd
block to 128 KiB) counts as what it can: nobody allocates by what a few forged bytes promise.
"""

from __future__ import annotations

import numpy as np

from siltstone.base.codec_table import GZIP, LZ4, SNAPPY, ZSTD
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Flags, Int64
from siltstone.base.records.varint import read_int32

UNTOLD = -1
"""Nothing can be said: not a stream of the codec, or cut."""
_ZSTD_MAGIC, _LZ4_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2204, 0x184D2A50
_XERIAL = int.from_bytes(b"\x82SNAPPY", "little")
_ZSTD_BLOCK_MAX, _LZ4_RATIO, _DEFLATE_RATIO, _SNAPPY_RATIO = 1 << 17, 255, 1032, 64


@kernel
def _little(data: Bytes, position: int, size: int) -> int:
    """The little-endian number of ``size`` bytes (7 at most count) at ``position``."""
    value = 0
    for i in range(min(size, 7)):
        value |= int(data[position + i]) << (8 * i)
    return value


@kernel
def _zstd_frame(data: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """One frame from its magic number on: (its end, -1 where it is none, most bytes in it, is that exact)."""
    if end - position < 6:
        return -1, 0, False
    descriptor = int(data[position + 4])
    single, told = (descriptor >> 5) & 1, descriptor >> 6
    at = position + 5 + (1 - single) + (1 << (descriptor & 3) >> 1)
    told_bytes = single if told == 0 else 1 << told
    if end - at < told_bytes:
        return -1, 0, False
    content = _little(data, at, told_bytes) + (256 if told == 1 else 0)
    exact, at, most, last = told_bytes > 0, at + told_bytes, 0, False
    while not last:
        if end - at < 3:
            return -1, 0, False
        head = _little(data, at, 3)
        last, kind, size = bool(head & 1), (head >> 1) & 3, head >> 3
        most += _ZSTD_BLOCK_MAX if kind == 2 else min(size, _ZSTD_BLOCK_MAX)
        at += 3 + (1 if kind == 1 else size)
    at += 4 if descriptor & 4 else 0
    if at > end:
        return -1, 0, False
    return at, min(content, most) if exact else most, exact


@kernel
def _lz4_frame(data: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """As ``_zstd_frame``."""
    if end - position < 7:
        return -1, 0, False
    flags, code = int(data[position + 4]), (int(data[position + 5]) >> 4) & 7
    exact, at, most = (flags & 8) != 0, position + 6, 0
    if code < 4 or end - at < (8 if exact else 0) + (4 if flags & 1 else 0) + 1:
        return -1, 0, False
    block_max, content = 1 << (8 + 2 * code), _little(data, at, 8) if exact else 0
    at += (8 if exact else 0) + (4 if flags & 1 else 0) + 1
    while True:
        if end - at < 4:
            return -1, 0, False
        size = _little(data, at, 4)
        at += 4
        if size == 0:
            break
        plain, size = size >> 31 != 0, size & 0x7FFFFFFF
        most += min(block_max, size if plain else _LZ4_RATIO * size)
        at += size + (4 if flags & 16 else 0)
    at += 4 if flags & 4 else 0
    if at > end:
        return -1, 0, False
    return at, min(content, most) if exact else most, exact


@kernel
def _frames(data: Bytes, start: int, end: int, is_zstd: bool) -> tuple[int, bool]:
    """One frame behind the other, with others to be skipped: (most bytes, is that exact)."""
    at, most, exact = start, 0, True
    while at < end:
        if end - at < 8:
            return UNTOLD, False
        magic = _little(data, at, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE:
            at += 8 + _little(data, at + 4, 4)
            continue
        if magic != (_ZSTD_MAGIC if is_zstd else _LZ4_MAGIC):
            return UNTOLD, False
        at, size, told = _zstd_frame(data, at, end) if is_zstd else _lz4_frame(data, at, end)
        if at < 0:
            return UNTOLD, False
        most += size
        exact = exact and told
    return most, exact


@kernel
def _snappy_block(data: Bytes, start: int, end: int) -> int:
    """The number in front of a raw block."""
    size = 0
    for i in range(min(end - start, 5)):
        size |= (int(data[start + i]) & 0x7F) << (7 * i)
        if data[start + i] < 0x80:
            return min(size, _SNAPPY_RATIO * (end - start))
    return UNTOLD


@kernel
def _snappy(data: Bytes, start: int, end: int) -> int:
    """All blocks of a xerial frame, or the one that is raw."""
    if end - start < 16 or _little(data, start, 7) != _XERIAL or data[start + 7] != 0:
        return _snappy_block(data, start, end)
    at, most = start + 16, 0
    while at < end:
        if end - at < 4:
            return UNTOLD
        size = read_int32(data, at)
        at += 4
        if size < 0 or size > end - at:
            return UNTOLD
        plain = _snappy_block(data, at, at + size)
        if plain < 0:
            return UNTOLD
        most += plain
        at += size
    return most


@kernel
def _gzip(data: Bytes, start: int, end: int) -> tuple[int, bool]:
    """What the trailer says, unless there may be a second member behind the first."""
    if end - start < 18:
        return UNTOLD, False
    for i in range(start + 18, end - 2):
        if data[i] == 0x1F and data[i + 1] == 0x8B and data[i + 2] == 8:
            return _DEFLATE_RATIO * (end - start), False
    return min(_little(data, end - 4, 4), _DEFLATE_RATIO * (end - start)), True


@kernel
def _told(data: Bytes, starts: Int64, ends: Int64, codecs: Int64, sizes: Int64, exact: Flags) -> None:
    for i in range(len(starts)):
        start, end, codec = starts[i], ends[i], codecs[i]
        exact[i], sizes[i] = True, max(end - start, 0)
        if start >= end:
            continue
        if codec == GZIP:
            sizes[i], exact[i] = _gzip(data, start, end)
        elif codec == SNAPPY:
            sizes[i] = _snappy(data, start, end)
            exact[i] = sizes[i] >= 0
        elif codec in (LZ4, ZSTD):
            sizes[i], exact[i] = _frames(data, start, end, codec == ZSTD)
        elif codec != 0:
            sizes[i], exact[i] = UNTOLD, False


def told_sizes(data: Bytes, starts: Int64, ends: Int64, codecs: Int64) -> tuple[Int64, Flags]:
    """(bytes that the spans ``data[starts[i]:ends[i]]`` hold at most once they are plain, is that exact).

    ``codecs``: int64, one a span, 0 for plain ones. ``UNTOLD`` where there is nothing to go by. Raises
    nothing: what is damaged is refused by who decompresses it.
    """
    sizes, exact = np.empty(len(starts), np.int64), np.empty(len(starts), np.bool_)
    _told(data, starts, ends, codecs, sizes, exact)
    return sizes, exact
