"""Compression as Kafka's clients write and read it: gzip, snappy (xerial), lz4 frames, zstd.

Libraries do the work (decision 0011); what is Kafka's own goes around it. A codec is two functions here,
which ``compress`` and ``decompress`` find by its number (``base.codec_table``), and a kernel that reads how
much its streams hold (``declared_sizes``). Decompression allocates little more than the output, and stops at
``limit``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cramjam
import numpy as np
import xxhash
import zstandard
from zlib_ng import zlib_ng

from siltstone.base.codec_table import GZIP, LZ4, NONE, SNAPPY, ZSTD
from siltstone.base.records.kernel import call_c_function, kernel
from siltstone.base.records.layout import Bytes, Flags, Int64
from siltstone.base.records.varint import read_int32

MAX_RECORD_BUFFER_BYTES = (1 << 31) - 1
"""Most bytes of one buffer of records: spans are int32."""
DEFAULT_DECOMPRESSION_LIMIT = 256 << 20
"""Most bytes that one batch may decompress to: the setting's default."""
DECOMPRESSION_LIMIT_SETTING = "max.decompressed.message.bytes"
_GROWTH_MAX = 16 << 20


class DecompressionError(ValueError):
    """Compressed bytes that cannot be decompressed, or that exceed the limit."""


class DecompressedTooLargeError(DecompressionError):
    """Compressed bytes that decompress to more than the limit."""

    def __init__(self, codec: str, limit: int) -> None:
        super().__init__(f"{codec}: decompresses to more than {limit} bytes")


class Scratch:
    """A buffer for decompressed records, which grows and is used for many windows (Kafka's
    ``BufferSupplier``).

    Its first ``used`` bytes hold records. The array may move when it grows: ``array()`` is valid until the
    next write.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self._array: Bytes = np.empty(capacity, np.uint8)
        self._view = self._array.data
        self.used = 0

    def clear(self) -> None:
        """Forget the contents, keep the memory."""
        self.used = 0

    def array(self) -> Bytes:
        """The used bytes: uint8, a view."""
        return self._array[: self.used]

    def reserve(self, size: int) -> Bytes:
        """At least ``size`` free bytes after the used ones: uint8, a view."""
        self._grow(size)
        return self._array[self.used :]

    def view(self, size: int) -> memoryview:
        """``size`` free bytes after the used ones; a caller that writes there adds to ``used``."""
        self._grow(size)
        return self._view[self.used : self.used + size]

    def allocate(self, size: int) -> None:
        """Make at least ``size`` bytes free at once; none may be used."""
        assert self.used == 0, "the used bytes would be lost"
        if len(self._view) < size:
            self._array, self._view = np.empty(0, np.uint8), memoryview(b"")  # frees the old memory first
            self._array = np.empty(size, np.uint8)
            self._view = self._array.data

    def append(self, data: memoryview | bytes) -> int:
        """Copy ``data`` after the used bytes; returns its size."""
        self.view(len(data))[:] = data
        self.used += len(data)
        return len(data)

    def _grow(self, size: int) -> None:
        if len(self._view) - self.used >= size:
            return
        more = min(len(self._array), _GROWTH_MAX)
        grown = np.empty(max(self.used + size, len(self._array) + more), np.uint8)
        grown[: len(self._array)] = self._array  # a frame's blocks may be after ``used``
        self._array, self._view = grown, grown.data


def _decompress_into(
    function: Callable[[memoryview, Any], int], codec: str, data: memoryview, scratch: Scratch, limit: int
) -> int:
    """Decompress with ``function(data, room)`` of ``cramjam``; returns the size. Raises DecompressionError.

    The room starts from a guess and grows while the output does not fit.
    """
    guess = min(max(4 * len(data), 4096), limit)
    while True:
        room = scratch.reserve(guess)[:limit]
        try:
            size = int(function(data, room))
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise DecompressionError(f"{codec}: {error}") from None
        else:
            scratch.used += size
            return size
        if len(room) >= limit:
            raise DecompressedTooLargeError(codec, limit)
        guess = min(4 * len(room), limit)


# gzip, by zlib-ng: one member is read after another, as ``java.util.zip.GZIPInputStream`` does.

_GZIP_WINDOW_BITS = 31
"""zlib's window bits: 32 KiB, with gzip's header and trailer."""
_GZIP_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # its stub calls it an instance


def _decompress_gzip(data: memoryview, scratch: Scratch, limit: int) -> int:
    parts: list[bytes] = []
    size = 0
    while not parts or len(data):
        member, room = zlib_ng.decompressobj(_GZIP_WINDOW_BITS), limit + 1 - size
        try:
            contents: bytes = member.decompress(data, room)
        except _GZIP_ERROR as error:
            raise DecompressionError(f"gzip: {error}") from None
        if not member.eof and len(contents) < room:
            raise DecompressionError("gzip: the stream is truncated")
        size += len(contents)
        if size > limit:
            raise DecompressedTooLargeError("gzip", limit)
        parts.append(contents)
        data = memoryview(member.unused_data)
    return scratch.append(parts[0] if len(parts) == 1 else b"".join(parts))


def _compress_gzip(data: memoryview, level: int | None) -> bytes:
    """One member; ``level`` is 1 to 9."""
    return zlib_ng.compress(data, -1 if level is None else level, wbits=_GZIP_WINDOW_BITS)


# snappy, by cramjam, framed as xerial's ``SnappyOutputStream`` does: 8 magic bytes, two int32 versions, then
# blocks of ``int32 size + raw snappy``. Raw snappy without a frame is read too.

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_SIZE = 32 * 1024
_SNAPPY_RATIO = 64


def _decompress_snappy(data: memoryview, scratch: Scratch, limit: int) -> int:
    blocks = _xerial_blocks(data) if data[:8] == _XERIAL_MAGIC else [data]
    used = 0
    try:
        for block in blocks:
            size = int(cramjam.snappy.decompress_raw_len(block))
            if used + size > limit:
                raise DecompressedTooLargeError("snappy", limit)
            if size > _SNAPPY_RATIO * (len(block) + 1):
                raise DecompressionError("snappy: impossible block size")
            room = scratch.view(used + size)[used:]
            if int(cramjam.snappy.decompress_raw_into(block, room)) != size:
                raise DecompressionError("snappy: a block is shorter than its size says")
            used += size
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}") from None
    scratch.used += used
    return used


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    """The raw blocks of a xerial frame."""
    if len(data) < len(_XERIAL_HEADER):
        raise DecompressionError("snappy: the frame's header is truncated")
    blocks, position = [], len(_XERIAL_HEADER)
    while position < len(data):
        start = position + 4
        position = start + int.from_bytes(data[position:start], "big")
        if position <= start or position > len(data):
            raise DecompressionError("snappy: a block ends beyond the batch")
        blocks.append(data[start:position])
    return blocks


def _compress_snappy(data: memoryview, level: int | None) -> bytes:
    """A xerial frame; snappy has no levels."""
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_SIZE]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


# lz4 frames, by cramjam.
#
# Blocks must be independent: Kafka's Java client refuses linked ones. A message set of magic 0 has a wrong
# header checksum, computed over the magic number as well (KAFKA-3160); it is corrected before reading.
#
# Of a frame with one block and without checksums, as Kafka's clients write a batch that fits, the library
# gets only the block: a context for the frame takes longer than the block. The library reads all other
# frames, and damaged ones, as frames.

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEAD = struct.Struct("<7sI")
"""A frame's shortest header, and the size of its first block."""
_LZ4_END = bytes(4)
_LZ4_INDEPENDENT, _LZ4_LINKED = 0x60, 0x40
_LZ4_BLOCK_MAX = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}


def _lz4_checksum(descriptor: bytes) -> int:
    """The last byte of a frame's header."""
    return (xxhash.xxh32_intdigest(descriptor) >> 8) & 0xFF


def _lz4_header(flags: int, block_max: int) -> bytes:
    descriptor = bytes((flags, block_max))
    return _LZ4_MAGIC + descriptor + bytes((_lz4_checksum(descriptor),))


_LZ4_HEADER = _lz4_header(_LZ4_INDEPENDENT, 0x40)
_LZ4_HEADERS = {
    _lz4_header(flags, code): size
    for flags in (_LZ4_INDEPENDENT, _LZ4_LINKED)
    for code, size in _LZ4_BLOCK_MAX.items()
}
"""Headers of frames without sizes and checksums → the most bytes that a block of the frame holds."""


def _decompress_lz4(data: memoryview, scratch: Scratch, limit: int) -> int:
    if len(data) >= _LZ4_HEAD.size + len(_LZ4_END):
        header, block_size = _LZ4_HEAD.unpack_from(data)
        size_max, end = min(_LZ4_HEADERS.get(header, 0), limit), _LZ4_HEAD.size + block_size
        if size_max and len(data) == end + len(_LZ4_END) and data[end:] == _LZ4_END:
            block, room = data[_LZ4_HEAD.size : end], scratch.view(size_max)
            try:
                size = int(cramjam.lz4.decompress_block_into(block, room, output_len=size_max))
                scratch.used += size
                return size
            except cramjam.DecompressionError:
                pass  # an uncompressed block, or damage: the library reads the frame
    return _decompress_into(cramjam.lz4.decompress_into, "lz4", data, scratch, limit)


def _correct_lz4(data: Bytes | memoryview) -> Bytes | memoryview:
    """Correct the frame's header checksum (magic 0 message sets, KAFKA-3160)."""
    raw = bytearray(data)
    if len(raw) < 7 or raw[:4] != _LZ4_MAGIC:
        return data
    end = 6 + (8 if raw[4] & 0x08 else 0)
    if len(raw) > end:
        raw[end] = _lz4_checksum(bytes(raw[4:end]))
    return np.frombuffer(raw, np.uint8)


def _compress_lz4(data: memoryview, level: int | None) -> Any:
    """A frame of independent blocks, without checksums of the contents."""
    if level is None and len(data) <= _LZ4_BLOCK_MAX[0x40]:
        block = cramjam.lz4.compress_block(data, store_size=False)
        if 0 < len(block) < len(data):
            return b"".join((_LZ4_HEADER, len(block).to_bytes(4, "little"), block, _LZ4_END))
    level = 1 if level is None else level
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # cramjam takes only bytes
    return compressor.finish()


# zstd, by ``zstandard``, whose contexts are used again: for a batch of 16 KB a third of the time. It takes
# one frame whose size it can guess, as clients write it; ``cramjam`` reads all others and names the damage.
#
# Where the system has libzstd, a kernel calls it for all zstd frames of a run of batches. A Python library's
# call takes half as long again for a batch: it allocates what it cannot know the size of, copies it, and
# takes the interpreter from other threads twice. libzstd's interface is stable, and nearly every Linux has
# it.

_ZSTD_LEVEL = 3
_ROOM_MIN, _TIMES_MAX = 1 << 16, 16


def _load_libzstd() -> ctypes.CDLL | None:
    if ctypes.sizeof(ctypes.c_void_p) != 8:  # the kernel's integers are its sizes
        return None
    for name in ("libzstd.so.1", "libzstd.1.dylib"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            library.ZSTD_createDCtx.restype = ctypes.c_void_p
            library.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
            return library
    return None


_libzstd = _load_libzstd()


class _LibzstdContext:
    """A ``ZSTD_DCtx``, freed with its owner. ``address`` is None when there was no memory for it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free = library.ZSTD_freeDCtx
        self.function = ctypes.cast(library.ZSTD_decompressDCtx, ctypes.c_void_p).value
        self.address: int | None = library.ZSTD_createDCtx()

    def __del__(self) -> None:
        self._free(self.address)


class _Contexts(threading.local):
    """The contexts of one thread: two threads must not use one."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressor = functools.cache(zstandard.ZstdCompressor)
        self.libzstd = _LibzstdContext(_libzstd) if _libzstd is not None else None


_contexts = _Contexts()


def _decompress_zstd(data: memoryview, scratch: Scratch, limit: int) -> int:
    size_max = min(max(_TIMES_MAX * len(data), _ROOM_MIN), limit)
    try:
        declared = zstandard.frame_content_size(data)
        # The library checks that nothing follows the frame only where the frame has its size.
        is_one = declared >= 0 or _zstd_frame(np.frombuffer(data, np.uint8), 0, len(data))[0] == len(data)
        if declared <= size_max and is_one:
            raw = _contexts.decompressor.decompress(data, max_output_size=size_max, allow_extra_data=False)
            if raw:  # the library checks nothing of a frame whose size is 0
                return scratch.append(raw)
    except zstandard.ZstdError:
        pass  # cramjam names the damage
    return _decompress_into(cramjam.zstd.decompress_into, "zstd", data, scratch, limit)


def _compress_zstd(data: memoryview, level: int | None) -> bytes:
    """One frame, with its content size."""
    return _contexts.compressor(_ZSTD_LEVEL if level is None else level).compress(data)


class RecordSpans(NamedTuple):
    """Where the records of some batches are stored: ``data[start[i]:end[i]]``, in ``codec[i]`` (0: none);
    int64, one a batch."""

    start: Int64
    end: Int64
    codec: Int64


@kernel
def _decompress_with_libzstd(
    zstd: tuple[int, int], data: Bytes, spans: RecordSpans, first: int, out: Bytes, limit: int, sizes: Int64
) -> tuple[int, int]:
    """Decompress spans of ``data`` from number ``first`` on into ``out`` and copy those of codec 0; fills
    ``sizes`` and returns (the first span that was not taken, the bytes in ``out``). ``zstd``: addresses of
    ``ZSTD_decompressDCtx`` and of a context."""
    function, context = zstd
    source, target, used = data.ctypes.data, out.ctypes.data, 0
    for i in range(first, len(spans.start)):
        start, free, size = spans.start[i], len(out) - used, spans.end[i] - spans.start[i]
        if spans.codec[i] == ZSTD:
            # ZSTD_decompressDCtx(context, target, its capacity, source, its size)
            size = call_c_function(function, context, target + used, min(free, limit), source + start, size)
            if size <= 0:  # libzstd's error codes are negative as int64
                return i, used
        elif spans.codec[i] == NONE and size <= free:
            out[used : used + size] = data[start : start + size]
        else:
            return i, used
        sizes[i] = size
        used += size
    return len(spans.start), used


def decompress_spans(
    data: Bytes, spans: RecordSpans, first: int, scratch: Scratch, limit: int, sizes: Int64
) -> int:
    """Decompress spans of ``data`` into ``scratch``, from number ``first`` up to a span that is not taken;
    returns that span's number.

    Fills ``sizes`` (int64, one a span). Spans that are not compressed are copied. A zstd frame is taken when
    it is valid, holds 1 to ``limit`` bytes, and fits into ``scratch`` without growing it.
    """
    libzstd = _contexts.libzstd
    if _libzstd is None or libzstd is None or libzstd.function is None or libzstd.address is None:
        return first
    out = scratch.reserve(0)[: max(MAX_RECORD_BUFFER_BYTES - scratch.used, 0)]
    addresses = libzstd.function, libzstd.address
    next_span, used = _decompress_with_libzstd(addresses, data, spans, first, out, limit, sizes)
    scratch.used += used
    return int(next_span)


_Compress = Callable[[memoryview, int | None], Any]
_Decompress = Callable[[memoryview, Scratch, int], int]
_FUNCTIONS: dict[int, tuple[_Compress, _Decompress]] = {
    GZIP: (_compress_gzip, _decompress_gzip),
    SNAPPY: (_compress_snappy, _decompress_snappy),
    LZ4: (_compress_lz4, _decompress_lz4),
    ZSTD: (_compress_zstd, _decompress_zstd),
}
"""Each codec's functions, by its number: compress(data, level), decompress(data, scratch, limit)."""


def decompress(
    codec: int,
    data: Bytes | memoryview,
    scratch: Scratch,
    limit: int = DEFAULT_DECOMPRESSION_LIMIT,
    magic: int = 2,
) -> int:
    """Decompress one batch's records (uint8) after the used bytes of ``scratch``; returns their size.

    ``codec`` is the number in the attributes of a batch or message of this ``magic``. Raises
    DecompressionError for bytes that are no such stream and for output over ``limit`` bytes; ``scratch.used``
    is unchanged then.
    """
    if codec not in _FUNCTIONS:
        raise DecompressionError(f"no codec has the number {codec}")
    if magic == 0 and codec == LZ4:
        data = _correct_lz4(data)
    return _FUNCTIONS[codec][1](data if isinstance(data, memoryview) else data.data, scratch, limit)


def compress(codec: int, data: Bytes | memoryview, level: int | None = None) -> Any:
    """Compress one batch's records; returns a bytes-like object that Kafka's Java client reads.

    ``codec`` is the number in the batch's attributes; ``level`` the codec's own, snappy has none.
    """
    if codec not in _FUNCTIONS:
        raise ValueError(f"no codec has the number {codec}")
    return _FUNCTIONS[codec][0](data if isinstance(data, memoryview) else data.data, level)


def compress_all(codec: int, parts: Sequence[memoryview]) -> Sequence[Any]:
    """``compress`` for each of many batches' records, at the codec's own level."""
    if codec != ZSTD or not parts or not all(parts):  # zstandard refuses empty parts
        return [compress(codec, part) for part in parts]
    frames = _contexts.compressor(_ZSTD_LEVEL).multi_compress_to_buffer(list(parts))  # without the GIL
    return [frames[number] for number in range(len(frames))]


# The size that compressed bytes declare for their contents, read before anything is decompressed:
#
#     zstd    each frame's content size where it has one, else block by block: raw and repeated blocks have
#             their size, a compressed one holds 128 KiB at most                (RFC 8878, 3.1.1)
#     lz4     each frame's content size where it has one, else what a block may hold, or 255 times its bytes
#     snappy  the number before each block
#     gzip    the last four bytes, where nothing looks like a second member; 1032 times the bytes otherwise
#
# A declared size is either *exact*, which the codecs verify when they decompress, or an upper bound for every
# valid stream. A size that the stream cannot reach (deflate grows by 1032 at most, an lz4 block by 255, a
# zstd block to 128 KiB) is replaced by the one that it can, so a few forged bytes cannot make us allocate.

UNREADABLE_SIZE = -1
"""The bytes are not a stream of the codec, or they are truncated."""
_ZSTD_MAGIC_NUMBER, _LZ4_MAGIC_NUMBER, _SKIPPABLE = 0xFD2FB528, 0x184D2204, 0x184D2A50
_XERIAL_MAGIC_NUMBER = int.from_bytes(_XERIAL_MAGIC[:7], "little")
_ZSTD_BLOCK_MAX, _LZ4_RATIO, _DEFLATE_RATIO = 1 << 17, 255, 1032


@kernel
def _little(data: Bytes, position: int, size: int) -> int:
    """The little-endian number of ``size`` bytes (7 at most count) at ``position``."""
    value = 0
    for i in range(min(size, 7)):
        value |= int(data[position + i]) << (8 * i)
    return value


@kernel
def _zstd_frame(data: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """Read one frame from its magic number on: (its end or -1, most bytes in it, is that exact)."""
    if end - position < 6:
        return -1, 0, False
    descriptor = int(data[position + 4])
    single, size_flag = (descriptor >> 5) & 1, descriptor >> 6
    at = position + 5 + (1 - single) + (1 << (descriptor & 3) >> 1)  # window descriptor, dictionary id
    size_bytes = single if size_flag == 0 else 1 << size_flag
    if end - at < size_bytes:
        return -1, 0, False
    content = _little(data, at, size_bytes) + (256 if size_flag == 1 else 0)
    exact, at, maximum, last = size_bytes > 0, at + size_bytes, 0, False
    # Every block's header is followed, also where the frame has its size: the next frame begins after them.
    while not last:
        if end - at < 3:
            return -1, 0, False
        head = _little(data, at, 3)
        last, kind, size = bool(head & 1), (head >> 1) & 3, head >> 3
        maximum += _ZSTD_BLOCK_MAX if kind == 2 else min(size, _ZSTD_BLOCK_MAX)
        at += 3 + (1 if kind == 1 else size)
    at += 4 if descriptor & 4 else 0
    if at > end:
        return -1, 0, False
    return at, min(content, maximum) if exact else maximum, exact


@kernel
def _lz4_frame(data: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """As ``_zstd_frame``."""
    if end - position < 7:
        return -1, 0, False
    flags, code = int(data[position + 4]), (int(data[position + 5]) >> 4) & 7
    exact, at, maximum = (flags & 8) != 0, position + 6, 0
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
        # The highest bit marks an uncompressed block.
        uncompressed, size = size >> 31 != 0, size & 0x7FFFFFFF
        maximum += min(block_max, size if uncompressed else _LZ4_RATIO * size)
        at += size + (4 if flags & 16 else 0)
    at += 4 if flags & 4 else 0
    if at > end:
        return -1, 0, False
    return at, min(content, maximum) if exact else maximum, exact


@kernel
def _frames(data: Bytes, start: int, end: int, is_zstd: bool) -> tuple[int, bool]:
    """Read frames, and skippable ones between them: (most bytes, is that exact)."""
    at, maximum, exact = start, 0, True
    while at < end:
        if end - at < 8:
            return UNREADABLE_SIZE, False
        magic = _little(data, at, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE:
            at += 8 + _little(data, at + 4, 4)
            continue
        if magic != (_ZSTD_MAGIC_NUMBER if is_zstd else _LZ4_MAGIC_NUMBER):
            return UNREADABLE_SIZE, False
        at, size, is_exact = _zstd_frame(data, at, end) if is_zstd else _lz4_frame(data, at, end)
        if at < 0:
            return UNREADABLE_SIZE, False
        maximum += size
        exact = exact and is_exact
    return maximum, exact


@kernel
def _snappy_block(data: Bytes, start: int, end: int) -> int:
    """The size before a raw block (a varint, as in protobuf)."""
    size = 0
    for i in range(min(end - start, 5)):
        size |= (int(data[start + i]) & 0x7F) << (7 * i)
        if data[start + i] < 0x80:
            return min(size, _SNAPPY_RATIO * (end - start))
    return UNREADABLE_SIZE


@kernel
def _snappy(data: Bytes, start: int, end: int) -> int:
    """The sum of a xerial frame's blocks, or the size of one raw block."""
    if end - start < 16 or _little(data, start, 7) != _XERIAL_MAGIC_NUMBER or data[start + 7] != 0:
        return _snappy_block(data, start, end)
    at, maximum = start + 16, 0
    while at < end:
        if end - at < 4:
            return UNREADABLE_SIZE
        size = read_int32(data, at)
        at += 4
        if size < 0 or size > end - at:
            return UNREADABLE_SIZE
        block_max = _snappy_block(data, at, at + size)
        if block_max < 0:
            return UNREADABLE_SIZE
        maximum += block_max
        at += size
    return maximum


@kernel
def _gzip(data: Bytes, start: int, end: int) -> tuple[int, bool]:
    """The trailer's size, unless there may be a second member: (most bytes, is that exact)."""
    if end - start < 18:
        return UNREADABLE_SIZE, False
    # A member's header and trailer take 18 bytes; after them, a gzip header (1F 8B 08) may begin another
    # member.
    for i in range(start + 18, end - 2):
        if data[i] == 0x1F and data[i + 1] == 0x8B and data[i + 2] == 8:
            return _DEFLATE_RATIO * (end - start), False
    return min(_little(data, end - 4, 4), _DEFLATE_RATIO * (end - start)), True


@kernel
def _declared(data: Bytes, spans: RecordSpans, sizes: Int64, exact: Flags) -> None:
    for i in range(len(spans.start)):
        start, end, codec = spans.start[i], spans.end[i], spans.codec[i]
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
        elif codec != NONE:
            sizes[i], exact[i] = UNREADABLE_SIZE, False


def declared_sizes(data: Bytes, spans: RecordSpans) -> tuple[Int64, Flags]:
    """Most bytes that the spans of ``data`` decompress to: (int64, is that exact), one a span.

    ``UNREADABLE_SIZE`` for bytes that are no stream of the codec. Raises nothing: decompression refuses what
    is damaged.
    """
    sizes, exact = np.empty(len(spans.start), np.int64), np.empty(len(spans.start), np.bool_)
    _declared(data, spans, sizes, exact)
    return sizes, exact
