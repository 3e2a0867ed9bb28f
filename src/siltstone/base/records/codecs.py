"""Compression as Kafka's clients write and read it: gzip, snappy (xerial), lz4 frames, zstd.

Libraries compress and decompress (decision 0011); this module adds what Kafka's clients do differently. A
codec has two functions here, which ``compress`` and ``decompress`` find by its number (``base.codec_table``),
and a kernel that reads the size that its streams declare (``declared_sizes``). Decompression allocates little
more memory than the output takes, and stops at ``limit`` bytes.
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
from siltstone.base.records.metadata import unsigned_varint
from siltstone.base.records.varint import read_int32

MAX_RECORD_BUFFER_BYTES = (1 << 31) - 1
"""Most bytes of decompressed records in one buffer: columns have positions in it as int32."""
DEFAULT_DECOMPRESSION_LIMIT = 256 << 20
"""Most bytes that one batch may decompress to: the default of the setting."""
DECOMPRESSION_LIMIT_SETTING = "max.decompressed.message.bytes"
_MAX_GROWTH_BYTES = 16 << 20
"""A buffer doubles when it grows, or grows by this much if that is less."""


class DecompressionError(ValueError):
    """Compressed bytes that cannot be decompressed, or that exceed the limit."""


class DecompressedTooLargeError(DecompressionError):
    """Compressed bytes that decompress to more than the limit."""

    def __init__(self, codec: str, limit: int) -> None:
        super().__init__(f"{codec}: decompresses to more than {limit} bytes")


class Scratch:
    """A buffer for decompressed records, which grows and is used again and again (Kafka's
    ``BufferSupplier``).

    Its first ``used`` bytes hold records. It may get another array when it grows, so the result of
    ``array()`` is valid until the next write.
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
        """Make at least ``size`` bytes free in one step; the buffer must be empty."""
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
        more = min(len(self._array), _MAX_GROWTH_BYTES)
        grown = np.empty(max(self.used + size, len(self._array) + more), np.uint8)
        grown[: len(self._array)] = self._array  # above ``used``, too: snappy has blocks there until its last
        self._array, self._view = grown, grown.data


def _decompress_into(
    function: Callable[[memoryview, Any], int], codec: str, data: memoryview, scratch: Scratch, limit: int
) -> int:
    """Decompress with ``function(data, output)`` of ``cramjam``; returns the size. Raises DecompressionError.

    The output buffer has a guessed size first, and grows until the contents fit.
    """
    output_size = min(max(4 * len(data), 4096), limit)
    while True:
        output = scratch.reserve(output_size)[:limit]
        try:
            size = int(function(data, output))
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):  # cramjam's words for an output that is too small
                raise DecompressionError(f"{codec}: {error}") from None
        else:
            scratch.used += size
            return size
        if len(output) >= limit:
            raise DecompressedTooLargeError(codec, limit)
        output_size = min(4 * len(output), limit)


# gzip, by zlib-ng: one member is read after another, as ``java.util.zip.GZIPInputStream`` does.

_GZIP_WINDOW_BITS = 31
"""zlib's window bits: 32 KiB, with gzip's header and trailer."""
_GZIP_PIECE_BYTES = 512
"""The first piece of each gzip member after the first one."""
_GZIP_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # its stub calls it an instance


def _decompress_gzip(data: memoryview, scratch: Scratch, limit: int) -> int:
    parts: list[bytes] = []
    position = size = 0
    while not parts or position < len(data):
        # zlib copies the bytes that it was passed beyond a member's end. Nearly all streams have one member,
        # so the first one gets all bytes. The members after it get pieces that double in size; otherwise the
        # rest of a stream of tiny members would be copied once for each of them.
        piece_size = _GZIP_PIECE_BYTES if parts else len(data)
        member = zlib_ng.decompressobj(_GZIP_WINDOW_BITS)
        while not member.eof:
            if position == len(data):
                raise DecompressionError("gzip: the stream is truncated")
            piece = data[position : position + piece_size]
            try:
                # The limit and one byte more: the output ends early only if it is too large.
                contents: bytes = member.decompress(piece, limit + 1 - size)
            except _GZIP_ERROR as error:
                raise DecompressionError(f"gzip: {error}") from None
            size += len(contents)
            if size > limit:
                raise DecompressedTooLargeError("gzip", limit)
            parts.append(contents)
            position += len(piece)
            piece_size *= 2
        position -= len(member.unused_data)
    return scratch.append(parts[0] if len(parts) == 1 else b"".join(parts))


def _compress_gzip(data: memoryview, level: int | None) -> bytes:
    """One member; ``level`` is 1 to 9; -1 or None is the library's own choice."""
    return zlib_ng.compress(data, -1 if level is None else level, wbits=_GZIP_WINDOW_BITS)


# snappy, by cramjam, framed as xerial's ``SnappyOutputStream`` does: 8 magic bytes, two int32 versions, then
# blocks of ``int32 size + raw snappy``. Raw snappy without a frame is read too.
#
# A raw block is its contents' size, as a varint, and elements: bytes (literals), or copies of what the block
# has before. A call of the library takes longer than a small block, so the elements of many small blocks are
# joined to one block, which it decompresses in one call.

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_SIZE = 32 * 1024
_SNAPPY_SIZE_BYTES = 5
"""The most bytes of the varint at the start of a raw block."""
_MAX_SNAPPY_RATIO = 64
"""Most bytes of contents for a byte of raw snappy: a block that declares more is damaged."""


_SMALL_BLOCK_BYTES, _FEW_BLOCKS = 1 << 10, 64
"""The blocks of a xerial frame are joined if they have fewer bytes than this on average, and are not few."""
_BLOCK_END, _BLOCK_SIZE, _BLOCK_CONTENTS, _ALL_CONTENTS = -1, -2, -3, -4
"""Why blocks cannot be joined: one ends beyond the batch, declares an impossible size, has other contents
than it declares; all together have more contents than the limit."""
_JOINING_ERRORS = {
    _BLOCK_END: "a block ends beyond the batch",
    _BLOCK_SIZE: "impossible block size",
    _BLOCK_CONTENTS: "a block is damaged, or has another size than it declares",
}


def _decompress_snappy(data: memoryview, scratch: Scratch, limit: int) -> int:
    blocks = _xerial_blocks(data, limit) if data[:8] == _XERIAL_MAGIC else [data]
    # The blocks are written after the used bytes. ``scratch.used`` moves only after the last one, so an error
    # leaves it unchanged.
    used = 0
    try:
        for block in blocks:
            size = int(cramjam.snappy.decompress_raw_len(block))
            if used + size > limit:
                raise DecompressedTooLargeError("snappy", limit)
            if size > _MAX_SNAPPY_RATIO * (len(block) + 1):
                raise DecompressionError("snappy: impossible block size")
            output = scratch.view(used + size)[used:]
            if int(cramjam.snappy.decompress_raw_into(block, output)) != size:
                raise DecompressionError("snappy: a block is shorter than its size says")
            used += size
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}") from None
    scratch.used += used
    return used


def _xerial_blocks(data: memoryview, limit: int) -> list[memoryview]:
    """The raw blocks of a xerial frame; one block instead of many small ones."""
    if len(data) < len(_XERIAL_HEADER):
        raise DecompressionError("snappy: the frame's header is truncated")
    blocks, position = list[memoryview](), len(_XERIAL_HEADER)
    while position < len(data):
        start = position + 4
        position = start + int.from_bytes(data[position:start], "big")
        if position <= start or position > len(data):
            raise DecompressionError("snappy: a block ends beyond the batch")
        blocks.append(data[start:position])
        if len(blocks) > _FEW_BLOCKS + len(data) // _SMALL_BLOCK_BYTES:
            return [_joined_blocks(data, limit)]
    return blocks


def _joined_blocks(data: memoryview, limit: int) -> memoryview:
    """One raw block with the contents of all blocks of a xerial frame."""
    joined: Bytes = np.empty(_SNAPPY_SIZE_BYTES + len(data), np.uint8)
    frame: Bytes = np.frombuffer(data, np.uint8)
    end, size = _join_elements(frame, len(_XERIAL_HEADER), joined, _SNAPPY_SIZE_BYTES, limit)
    if size == _ALL_CONTENTS:
        raise DecompressedTooLargeError("snappy", limit)
    if size < 0:
        raise DecompressionError(f"snappy: {_JOINING_ERRORS[size]}")
    declared = unsigned_varint(size)
    start = _SNAPPY_SIZE_BYTES - len(declared)
    joined[start:_SNAPPY_SIZE_BYTES] = np.frombuffer(declared, np.uint8)
    return joined.data[start:end]


@kernel
def _join_elements(frame: Bytes, start: int, joined: Bytes, at: int, limit: int) -> tuple[int, int]:
    """Copy the elements of a xerial frame's blocks, from ``start`` on, to ``joined``: (the end there, the
    size of the contents, or a negative reason). Each block is checked alone: a copy in it may not reach back
    into the block before it, as it then could."""
    total, block = 0, start
    while block < len(frame):
        if len(frame) - block < 4:
            return at, _BLOCK_END
        position = block + 4
        block = position + read_int32(frame, block)
        if block <= position or block > len(frame):
            return at, _BLOCK_END
        room = _MAX_SNAPPY_RATIO * (block - position + 1)
        size, shift, byte = 0, 0, 0x80
        while byte >= 0x80:
            if position == block or shift == 7 * _SNAPPY_SIZE_BYTES:
                return at, _BLOCK_CONTENTS
            byte = int(frame[position]) & 0xFF
            size |= (byte & 0x7F) << shift
            position += 1
            shift += 7
        total += size
        if total > limit:
            return at, _ALL_CONTENTS
        if size > room:
            return at, _BLOCK_SIZE
        if _contents_size(frame, position, block) != size:
            return at, _BLOCK_CONTENTS
        for i in range(position, block):
            joined[at] = frame[i]
            at += 1
    return at, total


@kernel
def _contents_size(data: Bytes, position: int, end: int) -> int:
    """The size of the contents that the elements from ``position`` to ``end`` have, -1 if one is damaged.

    The lowest two bits of an element's first byte are its kind. 0: a literal, whose size less one is in the
    other bits or, from 60 on, in 1 to 4 bytes after it. Else a copy: its distance has 11 bits (kind 1), 16
    (2) or 32 (3).
    """
    contents = 0
    while position < end:
        tag = int(data[position]) & 0xFF
        kind, size = tag & 3, (tag >> 2) + 1
        extra = max(size - 60, 0) if kind == 0 else min(1 << (kind - 1), 4)
        position += 1
        if extra > end - position:
            return -1
        number = _read_little_endian(data, position, extra)
        position += extra
        if kind == 0:
            size = number + 1 if extra else size
            if size > end - position:
                return -1
            position += size
        else:
            if kind == 1:
                size, number = ((tag >> 2) & 7) + 4, (tag >> 5) << 8 | number
            if not 0 < number <= contents:
                return -1
        contents += size
    return contents


def _compress_snappy(data: memoryview, level: int | None) -> bytes:
    """A xerial frame; snappy has no levels."""
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_SIZE]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


# lz4 frames, by cramjam.
#
# Blocks are written independent of each other, since Kafka's Java client refuses linked ones; both are read.
# A message set of magic 0 has a wrong header checksum, computed over the magic number as well (KAFKA-3160);
# it is corrected before reading.
#
# Kafka's clients write a batch that fits into one block as a frame of one block, without checksums. Such a
# block is decompressed directly: the library's context for a frame would take longer than the block. The
# library reads all other frames, and damaged ones, as frames.

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_SINGLE_BLOCK_HEAD = struct.Struct("<7sI")
"""The header of a frame without sizes (seven bytes), and the size of its first block."""
_LZ4_END_MARK = bytes(4)
# A frame's flag byte (FLG): its version (01) and whether blocks are independent, then the other bits.
_LZ4_INDEPENDENT_BLOCKS, _LZ4_LINKED_BLOCKS = 0x60, 0x40
_LZ4_HAS_DICTIONARY_ID, _LZ4_HAS_CONTENT_CHECKSUM = 0x01, 0x04
_LZ4_HAS_CONTENT_SIZE, _LZ4_HAS_BLOCK_CHECKSUMS = 0x08, 0x10
_LZ4_MAX_BLOCK_SIZE = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}
"""The largest block in bytes, by the byte of the header that declares it (BD)."""


def _lz4_checksum(descriptor: bytes) -> int:
    """The header checksum of a frame with this descriptor."""
    return (xxhash.xxh32_intdigest(descriptor) >> 8) & 0xFF


def _lz4_header(frame_flags: int, max_block_size: int) -> bytes:
    descriptor = bytes((frame_flags, max_block_size))
    return _LZ4_MAGIC + descriptor + bytes((_lz4_checksum(descriptor),))


_LZ4_HEADER = _lz4_header(_LZ4_INDEPENDENT_BLOCKS, 0x40)
_LZ4_HEADERS = {
    _lz4_header(frame_flags, block_size_code): size
    for frame_flags in (_LZ4_INDEPENDENT_BLOCKS, _LZ4_LINKED_BLOCKS)
    for block_size_code, size in _LZ4_MAX_BLOCK_SIZE.items()
}
"""The possible headers of frames without sizes and checksums, and the largest block of each."""


def _decompress_lz4(data: memoryview, scratch: Scratch, limit: int) -> int:
    if len(data) >= _LZ4_SINGLE_BLOCK_HEAD.size + len(_LZ4_END_MARK):
        header, block_size = _LZ4_SINGLE_BLOCK_HEAD.unpack_from(data)
        max_size, end = min(_LZ4_HEADERS.get(header, 0), limit), _LZ4_SINGLE_BLOCK_HEAD.size + block_size
        if max_size and len(data) == end + len(_LZ4_END_MARK) and data[end:] == _LZ4_END_MARK:
            block, output = data[_LZ4_SINGLE_BLOCK_HEAD.size : end], scratch.view(max_size)
            try:
                size = int(cramjam.lz4.decompress_block_into(block, output, output_len=max_size))
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
    end = 6 + (8 if raw[4] & _LZ4_HAS_CONTENT_SIZE else 0)
    if len(raw) > end:
        raw[end] = _lz4_checksum(bytes(raw[4:end]))
    return np.frombuffer(raw, np.uint8)


def _compress_lz4(data: memoryview, level: int | None) -> Any:
    """A frame of independent blocks, without checksums of the contents. ``level`` None: lz4's fast
    compressor, which is cramjam's level 1."""
    if level is None and len(data) <= _LZ4_MAX_BLOCK_SIZE[0x40]:
        block = cramjam.lz4.compress_block(data, store_size=False)
        if 0 < len(block) < len(data):
            return b"".join((_LZ4_HEADER, len(block).to_bytes(4, "little"), block, _LZ4_END_MARK))
    level = 1 if level is None else level
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # cramjam takes only bytes
    return compressor.finish()


# zstd, by ``zstandard``: it uses a context again, which takes a third of the time for a batch of 16 KB. It
# gets single frames that are not too large, as clients write them. ``cramjam`` reads all others, and its
# errors say what is damaged.
#
# Where the system has libzstd, a kernel calls it for many consecutive batches. Through a Python library a
# batch takes half as long again: the library allocates and copies the output, and takes the interpreter's
# lock twice. libzstd's interface is stable, and nearly every Linux has it.

_DEFAULT_ZSTD_LEVEL = 3
# ``zstandard`` may allocate 16 times the compressed bytes, or 64 KiB; ``cramjam`` reads larger frames.
_MIN_ZSTD_OUTPUT, _MAX_ZSTD_GROWTH_GUESS = 1 << 16, 16


def _load_libzstd() -> ctypes.CDLL | None:
    """The system's libzstd, None without one."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:  # the kernel passes sizes and addresses as int64
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
    """A ``ZSTD_DCtx`` of libzstd, freed with this object. ``address`` is None if there was no memory for
    it. ``function``: the address of ``ZSTD_decompressDCtx``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free = library.ZSTD_freeDCtx
        self.function = ctypes.cast(library.ZSTD_decompressDCtx, ctypes.c_void_p).value
        self.address: int | None = library.ZSTD_createDCtx()

    def __del__(self) -> None:
        self._free(self.address)


class _Contexts(threading.local):
    """The zstd contexts of one thread, since threads must not share them."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressor = functools.cache(zstandard.ZstdCompressor)
        self.libzstd = _LibzstdContext(_libzstd) if _libzstd is not None else None


_contexts = _Contexts()


def _decompress_zstd(data: memoryview, scratch: Scratch, limit: int) -> int:
    max_size = min(max(_MAX_ZSTD_GROWTH_GUESS * len(data), _MIN_ZSTD_OUTPUT), limit)
    try:
        declared = zstandard.frame_content_size(data)  # -1 if the frame does not declare it
        # The library checks that nothing follows the frame only if the frame declares its size.
        frame = np.frombuffer(data, np.uint8)
        is_one_frame = declared >= 0 or _zstd_frame_size(frame, 0, len(data))[0] == len(data)
        if declared <= max_size and is_one_frame:
            raw = _contexts.decompressor.decompress(data, max_output_size=max_size, allow_extra_data=False)
            if raw:  # the library checks nothing of a frame whose size is 0
                return scratch.append(raw)
    except zstandard.ZstdError:
        pass  # cramjam names the damage
    return _decompress_into(cramjam.zstd.decompress_into, "zstd", data, scratch, limit)


def _compress_zstd(data: memoryview, level: int | None) -> bytes:
    """One frame, with its content size."""
    return _contexts.compressor(_DEFAULT_ZSTD_LEVEL if level is None else level).compress(data)


class RecordSpans(NamedTuple):
    """The stored records of batches: ``data[start[i]:end[i]]``, compressed with ``codec[i]`` (0: not
    compressed); int64, one a batch."""

    start: Int64
    end: Int64
    codec: Int64


@kernel
def _decompress_with_libzstd(
    zstd: tuple[int, int], data: Bytes, spans: RecordSpans, first: int, out: Bytes, limit: int, sizes: Int64
) -> tuple[int, int]:
    """Decompress the zstd spans of ``data`` into ``out``, and copy those of codec 0, from index ``first`` up
    to a span that it cannot read. Fills ``sizes``; returns (index of that span, bytes in ``out``). ``zstd``:
    (address of ``ZSTD_decompressDCtx``, address of a context)."""
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
            # Not a copy of slices: numba compiles the text of its error message, which takes seconds.
            for byte in range(np.uint64(size)):
                out[np.uint64(used) + byte] = data[np.uint64(start) + byte]
        else:
            return i, used
        sizes[i] = size
        used += size
    return len(spans.start), used


def decompress_spans(
    data: Bytes, spans: RecordSpans, first: int, scratch: Scratch, limit: int, sizes: Int64
) -> int:
    """Decompress spans of ``data`` into ``scratch``, from index ``first`` up to a span that libzstd cannot
    read; returns that span's index.

    Fills ``sizes`` (int64, one a span). Spans that are not compressed are copied. libzstd reads a valid frame
    that holds 1 to ``limit`` bytes and fits into ``scratch`` without growing it.
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
"""(data, level or None for the default) → the compressed bytes."""
_Decompress = Callable[[memoryview, Scratch, int], int]
"""(data, scratch, limit) → how many bytes were appended to ``scratch``. Raises DecompressionError."""
_FUNCTIONS: dict[int, tuple[_Compress, _Decompress]] = {
    GZIP: (_compress_gzip, _decompress_gzip),
    SNAPPY: (_compress_snappy, _decompress_snappy),
    LZ4: (_compress_lz4, _decompress_lz4),
    ZSTD: (_compress_zstd, _decompress_zstd),
}
"""The functions of each codec by its number: (compress, decompress)."""


def decompress(
    codec: int,
    data: Bytes | memoryview,
    scratch: Scratch,
    limit: int = DEFAULT_DECOMPRESSION_LIMIT,
    magic: int = 2,
) -> int:
    """Decompress one batch's records (uint8) and append them to ``scratch``; returns their decompressed size.

    ``codec`` is the number in the attributes of a batch or message of this ``magic``. Raises
    DecompressionError for bytes that are not a stream of the codec, and for more than ``limit`` bytes of
    output. Then ``scratch.used`` is unchanged.
    """
    if codec not in _FUNCTIONS:
        raise DecompressionError(f"no codec has the number {codec}")
    if magic == 0 and codec == LZ4:
        data = _correct_lz4(data)
    return _FUNCTIONS[codec][1](data if isinstance(data, memoryview) else data.data, scratch, limit)


def compress(codec: int, data: Bytes | memoryview, level: int | None = None) -> Any:
    """Compress one batch's records; returns a bytes-like object that Kafka's Java client can read.

    ``codec`` is the number in the batch's attributes. ``level`` is a compression level of the codec (snappy
    has none), or None for its default.
    """
    if codec not in _FUNCTIONS:
        raise ValueError(f"no codec has the number {codec}")
    return _FUNCTIONS[codec][0](data if isinstance(data, memoryview) else data.data, level)


def compress_all(codec: int, parts: Sequence[memoryview]) -> Sequence[Any]:
    """``compress`` the records of many batches, one part a batch, at the codec's default level."""
    if codec != ZSTD or not parts or not all(parts):  # zstandard refuses empty parts
        return [compress(codec, part) for part in parts]
    # The library compresses all of them in one call, without the GIL.
    frames = _contexts.compressor(_DEFAULT_ZSTD_LEVEL).multi_compress_to_buffer(list(parts))
    return [frames[number] for number in range(len(frames))]


# The size that compressed bytes declare for their contents, read before anything is decompressed:
#
#     zstd    each frame's content size where it has one, else block by block: raw and repeated blocks have
#             their size, a compressed one holds 128 KiB at most                (RFC 8878, 3.1.1)
#     lz4     each frame's content size where it has one, else what a block may hold, or 255 times its bytes
#     snappy  the number before each block
#     gzip    the last four bytes if no bytes look like a second member's header, else 1032 times the bytes
#
# A declared size is either *exact*, which the codecs verify when they decompress, or an upper bound for every
# valid stream. A size that the stream cannot reach (deflate grows by 1032 at most, an lz4 block by 255, a
# zstd block to 128 KiB) is replaced by the largest one that it can reach, so a few forged bytes cannot cause
# a large allocation.

UNREADABLE_SIZE = -1
"""The bytes are not a stream of the codec, or they are truncated."""
_ZSTD_MAGIC_NUMBER, _LZ4_MAGIC_NUMBER, _SKIPPABLE_MAGIC_NUMBER = 0xFD2FB528, 0x184D2204, 0x184D2A50
_XERIAL_MAGIC_NUMBER = int.from_bytes(_XERIAL_MAGIC[:7], "little")
_ZSTD_MAX_BLOCK_SIZE, _MAX_LZ4_RATIO, _MAX_DEFLATE_RATIO = 1 << 17, 255, 1032
# Bits of a zstd frame's descriptor byte, and two of its block types: RLE (one byte, repeated) and compressed.
_ZSTD_DICTIONARY_ID_MASK, _ZSTD_HAS_CHECKSUM = 0x03, 0x04
_ZSTD_RLE_BLOCK, _ZSTD_COMPRESSED_BLOCK = 1, 2
_MIN_GZIP_MEMBER_SIZE = 18
"""Bytes of a gzip member's header and trailer."""


@kernel
def _read_little_endian(data: Bytes, position: int, size: int) -> int:
    """The little-endian number at ``position``, of ``size`` bytes, of which at most the first 7 count: so the
    number is never negative."""
    value = 0
    for i in range(min(size, 7)):
        value |= int(data[position + i]) << (8 * i)
    return value


@kernel
def _zstd_frame_size(data: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """Read one frame, which starts with its magic number: (end of the frame or -1, most bytes of its
    contents, whether that size is exact)."""
    if end - position < 6:
        return -1, 0, False
    descriptor = int(data[position + 4])
    is_single_segment, size_flag = (descriptor >> 5) & 1, descriptor >> 6
    # The window descriptor takes a byte, unless the frame is a single segment; the dictionary id 0, 1, 2 or
    # 4.
    at = position + 5 + (1 - is_single_segment) + (1 << (descriptor & _ZSTD_DICTIONARY_ID_MASK) >> 1)
    # The content size takes 0 (1 in a single segment), 2, 4 or 8 bytes; 256 is added to one of two bytes.
    size_bytes = is_single_segment if size_flag == 0 else 1 << size_flag
    if end - at < size_bytes:
        return -1, 0, False
    content_size = _read_little_endian(data, at, size_bytes) + (256 if size_flag == 1 else 0)
    is_exact, at, maximum, is_last_block = size_bytes > 0, at + size_bytes, 0, False
    # All blocks are read, even if the frame declares its size, to find where the next frame begins.
    while not is_last_block:
        if end - at < 3:
            return -1, 0, False
        block_header = _read_little_endian(data, at, 3)
        is_last_block, block_type, size = bool(block_header & 1), (block_header >> 1) & 3, block_header >> 3
        is_compressed = block_type == _ZSTD_COMPRESSED_BLOCK
        maximum += _ZSTD_MAX_BLOCK_SIZE if is_compressed else min(size, _ZSTD_MAX_BLOCK_SIZE)
        at += 3 + (1 if block_type == _ZSTD_RLE_BLOCK else size)
    at += 4 if descriptor & _ZSTD_HAS_CHECKSUM else 0
    if at > end:
        return -1, 0, False
    return at, min(content_size, maximum) if is_exact else maximum, is_exact


@kernel
def _lz4_frame_size(data: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """As ``_zstd_frame_size``."""
    if end - position < 7:
        return -1, 0, False
    frame_flags, block_size_code = int(data[position + 4]), (int(data[position + 5]) >> 4) & 7
    is_exact, at, maximum = (frame_flags & _LZ4_HAS_CONTENT_SIZE) != 0, position + 6, 0
    # Content size, dictionary id and the header's checksum.
    rest_of_header = (8 if is_exact else 0) + (4 if frame_flags & _LZ4_HAS_DICTIONARY_ID else 0) + 1
    if block_size_code < 4 or end - at < rest_of_header:
        return -1, 0, False
    max_block_size = 1 << (8 + 2 * block_size_code)
    content_size = _read_little_endian(data, at, 8) if is_exact else 0
    at += rest_of_header
    while True:
        if end - at < 4:
            return -1, 0, False
        size = _read_little_endian(data, at, 4)
        at += 4
        if size == 0:
            break
        # The highest bit marks an uncompressed block.
        is_uncompressed, size = size >> 31 != 0, size & 0x7FFFFFFF
        maximum += min(max_block_size, size if is_uncompressed else _MAX_LZ4_RATIO * size)
        at += size + (4 if frame_flags & _LZ4_HAS_BLOCK_CHECKSUMS else 0)
    at += 4 if frame_flags & _LZ4_HAS_CONTENT_CHECKSUM else 0
    if at > end:
        return -1, 0, False
    return at, min(content_size, maximum) if is_exact else maximum, is_exact


@kernel
def _frames_size(data: Bytes, start: int, end: int, is_zstd: bool) -> tuple[int, bool]:
    """Read consecutive frames, skippable ones too: (most bytes of their contents, whether that is exact)."""
    at, maximum, is_exact = start, 0, True
    while at < end:
        if end - at < 8:
            return UNREADABLE_SIZE, False
        magic = _read_little_endian(data, at, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC_NUMBER:
            at += 8 + _read_little_endian(data, at + 4, 4)
            continue
        if magic != (_ZSTD_MAGIC_NUMBER if is_zstd else _LZ4_MAGIC_NUMBER):
            return UNREADABLE_SIZE, False
        at, size, is_frame_exact = (
            _zstd_frame_size(data, at, end) if is_zstd else _lz4_frame_size(data, at, end)
        )
        if at < 0:
            return UNREADABLE_SIZE, False
        maximum += size
        is_exact = is_exact and is_frame_exact
    return maximum, is_exact


@kernel
def _snappy_block_size(data: Bytes, start: int, end: int) -> int:
    """The size that a raw snappy block declares: the unsigned varint at its start."""
    size = 0
    for i in range(min(end - start, 5)):
        size |= (int(data[start + i]) & 0x7F) << (7 * i)
        if data[start + i] < 0x80:
            return min(size, _MAX_SNAPPY_RATIO * (end - start))
    return UNREADABLE_SIZE


@kernel
def _snappy_size(data: Bytes, start: int, end: int) -> int:
    """The sum of a xerial frame's blocks, or the size of one raw block."""
    # A xerial frame's header has 16 bytes: eight magic bytes, the last one 0, and two versions.
    is_raw = end - start < 16 or _read_little_endian(data, start, 7) != _XERIAL_MAGIC_NUMBER
    if is_raw or data[start + 7] != 0:
        return _snappy_block_size(data, start, end)
    at, maximum = start + 16, 0
    while at < end:
        if end - at < 4:
            return UNREADABLE_SIZE
        size = read_int32(data, at)
        at += 4
        if size < 0 or size > end - at:
            return UNREADABLE_SIZE
        max_block_size = _snappy_block_size(data, at, at + size)
        if max_block_size < 0:
            return UNREADABLE_SIZE
        maximum += max_block_size
        at += size
    return maximum


@kernel
def _gzip_size(data: Bytes, start: int, end: int) -> tuple[int, bool]:
    """The size in the trailer, unless there may be a second member: (most bytes, whether that is exact)."""
    if end - start < _MIN_GZIP_MEMBER_SIZE:
        return UNREADABLE_SIZE, False
    # After the smallest possible member, a gzip header (1F 8B 08) may begin another member.
    for i in range(start + _MIN_GZIP_MEMBER_SIZE, end - 2):
        if data[i] == 0x1F and data[i + 1] == 0x8B and data[i + 2] == 8:
            return _MAX_DEFLATE_RATIO * (end - start), False
    return min(_read_little_endian(data, end - 4, 4), _MAX_DEFLATE_RATIO * (end - start)), True


@kernel
def _fill_declared_sizes(data: Bytes, spans: RecordSpans, sizes: Int64, is_exact: Flags) -> None:
    for i in range(len(spans.start)):
        start, end, codec = spans.start[i], spans.end[i], spans.codec[i]
        is_exact[i], sizes[i] = True, max(end - start, 0)
        if start >= end:
            continue
        if codec == GZIP:
            sizes[i], is_exact[i] = _gzip_size(data, start, end)
        elif codec == SNAPPY:
            sizes[i] = _snappy_size(data, start, end)
            is_exact[i] = sizes[i] >= 0
        elif codec in (LZ4, ZSTD):
            sizes[i], is_exact[i] = _frames_size(data, start, end, codec == ZSTD)
        elif codec != NONE:
            sizes[i], is_exact[i] = UNREADABLE_SIZE, False


def declared_sizes(data: Bytes, spans: RecordSpans) -> tuple[Int64, Flags]:
    """The most bytes that each span of ``data`` decompresses to: (sizes int64, whether each is exact).

    ``UNREADABLE_SIZE`` for bytes that are not a stream of the codec. Raises no error: decompression refuses
    damaged bytes.
    """
    sizes, is_exact = np.empty(len(spans.start), np.int64), np.empty(len(spans.start), np.bool_)
    _fill_declared_sizes(data, spans, sizes, is_exact)
    return sizes, is_exact
