"""What compressed bytes say of their size: never less than what comes out, and never far over what can."""

from __future__ import annotations

import ctypes
import gzip
import mmap
import os
import random
import zlib
from collections.abc import Iterator

import cramjam
import numpy as np
import pytest
import zstandard

from siltstone.base.records.codecs import (
    UNREADABLE_SIZE,
    DecompressionError,
    RecordSpans,
    Scratch,
    compress,
    declared_sizes,
    decompress,
)
from siltstone.base.records.layout import Bytes
from tests.support.records import twin
from tests.support.records.arrays import array

SKIPPED = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
RATIO = {twin.GZIP: 1032, twin.SNAPPY: 64, twin.LZ4: 255, twin.ZSTD: 1 << 17}
"""What a byte of each codec can become at most."""


def texts() -> list[bytes]:
    dice = random.Random(3)
    words = [dice.randbytes(dice.randrange(3, 12)) for _ in range(40)]
    mixed = b"".join(dice.choice(words) for _ in range(30_000))
    return [b"x", bytes(700_000), dice.randbytes(300_000), mixed, mixed + bytes(400_000)]


def declared(codec: int, packed: bytes, before: bytes = b"before") -> tuple[int, bool]:
    """The declared size of bytes in the middle of others, read-only as those of files are."""
    data = np.frombuffer(before + packed + b"\xff" * 9, np.uint8)
    spans = RecordSpans(np.array([len(before)]), np.array([len(before) + len(packed)]), np.array([codec]))
    sizes, exact = declared_sizes(data, spans)
    return int(sizes[0]), bool(exact[0])


def lz4_frames(text: bytes) -> Iterator[bytes]:
    for linked in (False, True):
        compressor = cramjam.lz4.Compressor(content_checksum=linked, block_linked=linked)
        compressor.compress(text)
        yield bytes(compressor.finish())
    yield twin.lz4_frame(text)
    yield bytes(compress(twin.LZ4, array(text)))


def streams() -> Iterator[tuple[int, bytes, bytes, bool]]:
    """(codec, packed, plain, is its size exact)."""
    for text in texts():
        yield twin.NONE, text, text, True
        for codec in (twin.GZIP, twin.SNAPPY, twin.ZSTD):
            yield codec, bytes(compress(codec, array(text))), text, True
        for frame in lz4_frames(text):
            yield twin.LZ4, frame, text, False
        yield twin.SNAPPY, twin.compress(twin.SNAPPY, text), text, True
        yield twin.SNAPPY, bytes(cramjam.snappy.compress_raw(text)), text, True
        unsized = zstandard.ZstdCompressor(write_content_size=False).compress(text)
        whole = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text)
        yield twin.ZSTD, unsized, text, False
        yield twin.ZSTD, SKIPPED + whole + SKIPPED + whole, 2 * text, True
        yield twin.ZSTD, whole + unsized, 2 * text, False
        yield twin.GZIP, gzip.compress(text, 1) + gzip.compress(b"more"), text + b"more", False


def test_a_declared_size_is_the_decompressed_size_or_a_bound() -> None:
    for codec, packed, text, exact in streams():
        size, is_exact = declared(codec, packed)
        assert is_exact is exact
        assert size == len(text) if exact else size >= len(text)


def lz4_frame_with_size(text: bytes) -> bytes:
    frame = twin.lz4_frame(text)
    return frame[:4] + bytes((frame[4] | 8, frame[5])) + len(text).to_bytes(8, "little") + b"\0" + frame[7:]


def test_an_lz4_frame_with_its_size_is_exact() -> None:
    text = texts()[3][:200_000]
    assert declared(twin.LZ4, lz4_frame_with_size(text)) == (len(text), True)


def before_a_closed_page(data: bytes) -> Bytes:
    """The bytes in memory, and after them a page that ends a process that reads it."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    end = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    place = np.frombuffer(pages, np.uint8)[mmap.PAGESIZE - len(data) : mmap.PAGESIZE]
    place[:] = np.frombuffer(data, np.uint8)
    place.flags.writeable = False
    return place


@pytest.mark.parametrize("codec", RATIO)
def test_nothing_beyond_a_cut_stream_is_read(codec: int) -> None:
    """The stream may end where the memory of the process ends."""
    text = b"some records and some more " * 100
    whole = lz4_frame_with_size(text) if codec == twin.LZ4 else bytes(compress(codec, array(text)))
    cuts = [before_a_closed_page(whole[:size]) for size in range(1, 40)]
    declared(codec, whole)  # compiles the kernel
    child = os.fork()
    if child == 0:
        try:
            for cut in cuts:
                declared_sizes(cut, RecordSpans(np.array([0]), np.array([len(cut)]), np.array([codec])))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("codec", RATIO)
def test_forged_bytes_declare_no_more_than_they_can_hold(codec: int) -> None:
    """Cut, flipped, or nothing but noise: no size beyond what the codec can make of so many bytes."""
    dice = random.Random(codec)
    whole = bytes(compress(codec, array(texts()[3][:3000])))
    forged = [whole[:end] for end in range(0, len(whole), 7)]
    for place in range(min(len(whole), 400)):
        flipped = bytearray(whole)
        flipped[place] ^= dice.choice([1, 0x80, 0xFF])
        forged.append(bytes(flipped))
    forged += [whole[:16] + dice.randbytes(dice.randrange(200)) for _ in range(300)]
    for data in forged:
        size, exact = declared(codec, data)
        assert UNREADABLE_SIZE <= size <= RATIO[codec] * len(data)
        assert size != UNREADABLE_SIZE or not exact
        try:
            decompressed_size = decompress(codec, array(data), Scratch(), 1 << 22)
        except DecompressionError:
            continue
        assert decompressed_size <= size and (decompressed_size == size or not exact)


def test_a_zstd_frame_declares_no_more_than_its_blocks_hold() -> None:
    small = zstandard.ZstdCompressor().compress(b"some records " * 30)
    assert small[4] >> 6 == 1  # its size is in two bytes
    forged = small[:4] + bytes((small[4] & 0x3F | 0x80,)) + (200 << 20).to_bytes(4, "little") + small[7:]
    assert declared(twin.ZSTD, forged) == (1 << 17, True)
    with pytest.raises(DecompressionError):
        decompress(twin.ZSTD, array(forged), Scratch(), 1 << 30)


@pytest.mark.parametrize("declared_size", [0, 1, 2999, 3001, 1 << 20])
def test_a_gzip_trailer_that_lies_is_refused(declared_size: int) -> None:
    packed = gzip.compress(bytes(3000))
    forged = packed[:-4] + declared_size.to_bytes(4, "little")
    assert declared(twin.GZIP, forged) == (min(declared_size, 1032 * len(packed)), True)
    with pytest.raises(DecompressionError):
        decompress(twin.GZIP, array(forged), Scratch(), 1 << 30)


def test_a_wrong_size_before_a_snappy_block_is_refused() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(60_000)))
    for varint in (b"\x01", b"\xff\xff\xff\x7f"):
        forged = twin.XERIAL + len(varint + block[3:]).to_bytes(4, "big") + varint + block[3:]
        assert declared(twin.SNAPPY, forged)[0] <= 64 * len(forged)
        with pytest.raises(DecompressionError):
            decompress(twin.SNAPPY, array(forged), Scratch(), 1 << 30)


def test_a_snappy_size_that_does_not_end_within_its_block_is_unreadable() -> None:
    data = np.frombuffer(b"before\x80\x80\x01\x01", np.uint8)
    spans = RecordSpans(np.array([6]), np.array([8]), np.array([twin.SNAPPY]))
    assert declared_sizes(data, spans)[0].tolist() == [UNREADABLE_SIZE]


def test_unknown_codecs_and_empty_spans() -> None:
    assert declared(5, b"anything") == (UNREADABLE_SIZE, False)
    assert declared(twin.ZSTD, b"") == (0, True)
    assert declared(twin.ZSTD, zlib.compress(b"no zstd at all")) == (UNREADABLE_SIZE, False)


@pytest.mark.parametrize(("flag", "size"), [(1, 1), (2, 2), (3, 4)])
def test_a_zstd_frame_with_a_dictionary_id_declares_its_size(flag: int, size: int) -> None:
    packed = zstandard.ZstdCompressor().compress(b"text" * 1000)
    # The id follows the descriptor and, unless the frame is a single segment, its window.
    at = 5 + (1 - (packed[4] >> 5 & 1))
    with_id = packed[:4] + bytes([packed[4] | flag]) + packed[5:at] + bytes(size) + packed[at:]
    assert declared(twin.ZSTD, with_id) == declared(twin.ZSTD, packed) == (4000, True)
