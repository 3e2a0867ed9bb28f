"""Compression: both directions against the twin, damage, and bombs against the limit."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cramjam
import numpy as np
import pytest
import xxhash
import zstandard

from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.records import codecs
from siltstone.base.records.codecs import (
    XERIAL_BLOCK_SIZE,
    DecompressionError,
    Scratch,
    compress,
    compress_all,
    decompress,
)
from tests.support.records import twin
from tests.support.records.arrays import array
from tests.support.thoroughness import THOROUGH

MEBIBYTE = 1 << 20
ALL = (twin.GZIP, twin.SNAPPY, twin.LZ4, twin.ZSTD)


def texts() -> dict[str, bytes]:
    """Data of several kinds; the long ones pass xerial's and lz4's block sizes."""
    dice = random.Random(11)
    words = [dice.randbytes(dice.randrange(3, 12)) for _ in range(40)]
    return {
        "one": b"x",
        "short": b"some records and some more records",
        "block": bytes(32 * 1024),
        "over a block": b"".join(dice.choice(words) for _ in range(20_000)),
        "random": dice.randbytes(100_000),
    }


def unpacked(
    codec: int, data: bytes, limit: int = MEBIBYTE, magic: int = 2, scratch: Scratch | None = None
) -> bytes:
    """What ``decompress`` appends."""
    scratch = scratch or Scratch(64)
    before = scratch.used
    size = decompress(codec, array(data), scratch, limit, magic)
    assert scratch.used == before + size
    return scratch.array()[before:].tobytes()


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("name", texts())
def test_the_twin_reads_what_is_written(codec: int, name: str) -> None:
    data = texts()[name]
    packed = bytes(compress(codec, array(data)))
    assert twin.decompress(codec, packed) == data
    assert unpacked(codec, packed) == data


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("name", texts())
def test_what_the_twin_writes_is_read(codec: int, name: str) -> None:
    assert unpacked(codec, twin.compress(codec, texts()[name])) == texts()[name]


@pytest.mark.parametrize("codec", ALL)
def test_empty_records_make_a_round_trip(codec: int) -> None:
    assert unpacked(codec, bytes(compress(codec, array(b"")))) == b""


@pytest.mark.parametrize("codec", [0, 5, 7])
def test_unknown_codec_numbers_are_refused(codec: int) -> None:
    with pytest.raises(DecompressionError, match=f"number {codec}"):
        unpacked(codec, b"data")
    with pytest.raises(ValueError, match=f"number {codec}"):
        compress(codec, array(b"data"))


def test_lz4_frames_have_independent_blocks() -> None:
    flags = bytes(compress(twin.LZ4, array(texts()["over a block"])))[4]
    assert flags & 0x20


def test_xerial_frames_are_kafkas() -> None:
    data = texts()["over a block"]
    packed = bytes(compress(twin.SNAPPY, array(data)))
    assert packed == twin.compress(twin.SNAPPY, data)
    assert len(data) > 2 * XERIAL_BLOCK_SIZE


def test_raw_snappy_without_a_frame() -> None:
    for data in texts().values():
        assert unpacked(twin.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_other_xerial_block_sizes() -> None:
    data = texts()["over a block"]
    for size in (1000, 65_536, 1 << 20):
        assert unpacked(twin.SNAPPY, twin.compress(twin.SNAPPY, data, block_size=size)) == data


@pytest.mark.parametrize("codec", ALL)
def test_a_scratch_that_grows_in_mid_stream_keeps_everything(codec: int) -> None:
    scratch, data = Scratch(16), texts()
    for name in data:
        unpacked(codec, twin.compress(codec, data[name]), scratch=scratch)
    scratch.append(b"plain")
    assert scratch.array().tobytes() == b"".join(data.values()) + b"plain"
    scratch.clear()
    assert len(scratch.array()) == 0


def test_lz4_with_a_content_size_and_checksums() -> None:
    data = texts()["over a block"]
    assert unpacked(twin.LZ4, bytes(cramjam.lz4.compress(data))) == data


@pytest.mark.parametrize("broken", [False, True])
def test_magic_0_takes_either_lz4_header_checksum(broken: bool) -> None:
    data = texts()["over a block"]
    assert unpacked(twin.LZ4, twin.lz4_frame(data, broken_checksum=broken), magic=0) == data


@pytest.mark.parametrize("magic", [1, 2])
def test_later_magics_take_only_the_right_one(magic: int) -> None:
    with pytest.raises(DecompressionError, match="lz4"):
        unpacked(twin.LZ4, twin.lz4_frame(b"data" * 9, broken_checksum=True), magic=magic)


@pytest.mark.parametrize("codec", ALL)
def test_every_truncation_is_refused_and_uses_no_bytes(codec: int) -> None:
    packed = twin.compress(codec, texts()["short"] * 3)
    scratch = Scratch(64)
    for cut in range(len(packed)):
        if codec == twin.SNAPPY and cut == len(twin.XERIAL):
            continue  # a frame without blocks is whole
        for magic in (0, 2):
            with pytest.raises(DecompressionError):
                decompress(codec, array(packed[:cut]), scratch, MEBIBYTE, magic)
    assert scratch.used == 0


@pytest.mark.parametrize("codec", ALL)
def test_garbage_is_refused(codec: int) -> None:
    dice = random.Random(3)
    for size in (0, 1, 3, 7, 15, 16, 19, 64, 5000):
        with pytest.raises(DecompressionError):
            unpacked(codec, dice.randbytes(size))


@pytest.mark.parametrize(
    "tail", [b"\0", bytes(3), struct.pack(">i", 0), struct.pack(">i", -1), struct.pack(">i", 99)]
)
def test_missing_xerial_blocks_are_refused(tail: bytes) -> None:
    with pytest.raises(DecompressionError, match="beyond the batch"):
        unpacked(twin.SNAPPY, twin.compress(twin.SNAPPY, b"data") + tail)


@pytest.mark.parametrize("framed", [False, True])
def test_snappy_that_declares_more_than_its_bytes_can_hold_is_refused(framed: bool) -> None:
    raw = b"\xff\xff\xff\x7f" + b"\x00a"
    data = twin.XERIAL + struct.pack(">i", len(raw)) + raw if framed else raw
    with pytest.raises(DecompressionError, match="impossible block size"):
        unpacked(twin.SNAPPY, data, limit=1 << 31)


def small_blocks(dice: random.Random, count: int = 200) -> list[bytes]:
    """Raw blocks of a few bytes: literals and copies."""
    contents = (dice.choice([b"", dice.randbytes(3), b"ab" * dice.randrange(40)]) for _ in range(count))
    return [bytes(cramjam.snappy.compress_raw(each)) for each in contents]


def frame(blocks: list[bytes]) -> bytes:
    return twin.XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def read_one_by_one(data: bytes) -> bytes | None:
    """The contents of a frame's blocks, each decompressed by itself; None if one is damaged."""
    contents, position = b"", len(twin.XERIAL)
    while position < len(data):
        (size,) = struct.unpack(">i", data[position : position + 4].ljust(4, b"\0"))
        block, position = data[position + 4 : position + 4 + size], position + 4 + size
        if size <= 0 or position > len(data):
            return None
        try:
            if int(cramjam.snappy.decompress_raw_len(block)) > 64 * (size + 1):
                return None
            contents += bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError:
            return None
    return contents


def test_many_small_snappy_blocks_are_read_as_each_by_itself() -> None:
    dice, outcomes = random.Random(5), set()
    for number in range(400 if THOROUGH else 40):
        data = bytearray(frame(small_blocks(dice)))
        for _ in range(number % 3):
            data[dice.randrange(len(twin.XERIAL), len(data))] = dice.randrange(256)
        expected = read_one_by_one(bytes(data))
        outcomes.add(expected is None)
        if expected is not None:
            assert unpacked(twin.SNAPPY, bytes(data)) == expected
            continue
        scratch = Scratch(64)
        with pytest.raises(DecompressionError, match="snappy"):
            unpacked(twin.SNAPPY, bytes(data), scratch=scratch)
        assert scratch.used == 0
    assert outcomes == {True, False}


def test_a_copy_of_what_an_earlier_snappy_block_has_is_refused() -> None:
    reaching_back = bytes([4, 0b001, 1])  # four bytes, copied from one byte before the block
    with pytest.raises(DecompressionError, match="damaged"):
        unpacked(twin.SNAPPY, frame([*small_blocks(random.Random(5)), reaching_back]))


def test_small_snappy_blocks_are_bounded_by_the_limit() -> None:
    assert unpacked(twin.SNAPPY, frame([b"\1\0a"] * 500), limit=500) == b"a" * 500
    with pytest.raises(codecs.DecompressedTooLargeError):
        unpacked(twin.SNAPPY, frame([b"\1\0a"] * 500), limit=499)


def test_small_snappy_blocks_cost_no_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, decompress_into = [], cramjam.snappy.decompress_raw_into

    def counted(block: Any, output: Any) -> int:
        calls.append(len(block))
        return int(decompress_into(block, output))

    monkeypatch.setattr(cramjam.snappy, "decompress_raw_into", counted)
    assert unpacked(twin.SNAPPY, frame([b"\1\0a"] * 20_000)) == b"a" * 20_000
    assert len(calls) == 1


def bomb(codec: int) -> bytes:
    """64 MiB of zeros."""
    if codec == twin.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(bytes(MEBIBYTE)))
        return twin.XERIAL + (struct.pack(">i", len(block)) + block) * 64
    if codec == twin.GZIP:
        return gzip.compress(bytes(64 * MEBIBYTE), 9)
    return bytes(compress(codec, np.zeros(64 * MEBIBYTE, np.uint8)))


@pytest.mark.parametrize("codec", ALL)
def test_a_bomb_stops_at_the_limit(codec: int) -> None:
    packed = array(bomb(codec))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="more than 1048576 bytes"):
            decompress(codec, packed, Scratch(64), MEBIBYTE)
        assert tracemalloc.get_traced_memory()[1] < 6 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ALL)
def test_the_limit_itself_is_allowed(codec: int) -> None:
    data = bytes(10_000)
    packed = twin.compress(codec, data)
    assert unpacked(codec, packed, limit=10_000) == data
    with pytest.raises(DecompressionError, match="more than 9999 bytes"):
        unpacked(codec, packed, limit=9_999)


@pytest.mark.parametrize("codec", ALL)
def test_used_bytes_of_the_scratch_do_not_count_for_the_limit(codec: int) -> None:
    scratch = Scratch(64)
    for _ in range(3):
        unpacked(codec, twin.compress(codec, bytes(1000)), limit=1000, scratch=scratch)
    assert scratch.used == 3000


def test_many_gzip_members_are_not_copied_anew_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_bytes, new_member = 0, codecs.zlib_ng.decompressobj

    class Counting:
        def __init__(self, window_bits: int) -> None:
            self.member = new_member(window_bits)

        def decompress(self, data: memoryview, size: int) -> bytes:
            nonlocal passed_bytes
            passed_bytes += len(data)
            return self.member.decompress(data, size)

        def __getattr__(self, name: str) -> object:
            return getattr(self.member, name)

    monkeypatch.setattr(codecs.zlib_ng, "decompressobj", Counting)
    members = [bytes(dice % 2000) for dice in range(0, 400_000, 97)]
    data = b"".join(gzip.compress(member, 1) for member in members)
    assert unpacked(twin.GZIP, data, limit=8 * MEBIBYTE) == b"".join(members)
    assert passed_bytes < 64 * len(data)


@pytest.mark.parametrize("cut", [1, 9, 12])
def test_a_truncated_last_gzip_member_is_refused(cut: int) -> None:
    data = gzip.compress(b"first") + gzip.compress(bytes(5_000))
    with pytest.raises(DecompressionError, match="truncated"):
        unpacked(twin.GZIP, data[:-cut])


@pytest.mark.parametrize("codec", [twin.GZIP, twin.ZSTD])
def test_streams_of_several_parts(codec: int) -> None:
    parts = [texts()["short"], b"", bytes(200_000), b"x"]
    packed = b"".join(twin.compress(codec, part) for part in parts)
    assert unpacked(codec, packed) == b"".join(parts)
    with pytest.raises(DecompressionError, match="more than 200000 bytes"):
        unpacked(codec, packed, limit=200_000)
    for damaged in (packed[:-1], packed + b"\1", packed + packed[:7]):
        with pytest.raises(DecompressionError):
            unpacked(codec, damaged)


@pytest.mark.parametrize("codec", ALL)
def test_any_changed_byte_is_refused_or_gives_other_records_of_a_bounded_size(codec: int) -> None:
    data = texts()["over a block"][:3000]
    packed = bytes(compress(codec, array(data)))
    for place in range(len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 0x55
        try:
            assert len(unpacked(codec, bytes(damaged), limit=10_000)) <= 10_000
        except DecompressionError as error:
            assert CODEC_NAMES[codec] in str(error)


def by_the_library(packed: bytes, limit: int) -> bytes | None:
    """An lz4 frame by the library's own reader of frames; None where it refuses."""
    room = np.empty(limit, np.uint8)
    try:
        return room[: cramjam.lz4.decompress_into(packed, room)].tobytes()
    except cramjam.DecompressionError:
        return None


@pytest.mark.parametrize("name", ["one", "short", "block", "random"])
def test_lz4_frames_of_one_block_are_read_as_the_library_reads_frames(name: str) -> None:
    data = texts()[name][:40_000]
    packed = bytes(compress(twin.LZ4, array(data)))
    frames = [packed, packed + b"\0", packed[:-4] + packed[7:], packed[:-1]]
    for place in {*range(len(packed))[:100], *range(len(packed))[-100:]}:
        damaged = bytearray(packed)
        damaged[place] ^= 0x81
        frames.append(bytes(damaged))
    for frame in frames:
        try:
            read = unpacked(twin.LZ4, frame, limit=100_000)
        except DecompressionError:
            read = None
        assert read == by_the_library(frame, 100_000)
    assert by_the_library(frames[2], 100_000) == 2 * data


@pytest.mark.parametrize("block_size_code", [0x40, 0x50, 0x60, 0x70])
def test_an_lz4_frame_with_a_reserved_bit_is_refused(block_size_code: int) -> None:
    """As in Kafka (``Lz4BlockInputStream``). The header's checksum is right."""
    data = b"a frame of one block " * 20
    frame = bytearray(compress(twin.LZ4, array(data)))
    for reserved in (0, *(1 << bit for bit in (0, 1, 2, 3, 7))):
        frame[5] = block_size_code | reserved
        frame[6] = xxhash.xxh32_intdigest(bytes(frame[4:6])) // 256 % 256
        if reserved:
            with pytest.raises(DecompressionError, match="lz4"):
                unpacked(twin.LZ4, bytes(frame))
        else:
            assert unpacked(twin.LZ4, bytes(frame)) == data


def test_lz4_frames_are_headed_as_kafkas_own() -> None:
    data = texts()["over a block"]
    for size in (1000, 65_536):
        packed = bytes(compress(twin.LZ4, array(data[:size])))
        assert packed[:7] == twin.lz4_frame(data[:size])[:7]
        assert packed[7:11] == struct.pack("<I", len(packed) - 15)
        assert packed[-4:] == bytes(4)


@pytest.mark.parametrize("with_size", [False, True])
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 500_000])
def test_zstd_frames_with_and_without_their_size(with_size: bool, size: int) -> None:
    packed = zstandard.ZstdCompressor(write_content_size=with_size).compress(bytes(size))
    assert unpacked(twin.ZSTD, packed) == bytes(size)
    if size:
        with pytest.raises(DecompressionError, match=f"more than {size - 1} bytes"):
            unpacked(twin.ZSTD, packed, limit=size - 1)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("first", [b"x", bytes(300_000), random.Random(1).randbytes(200_000)])
def test_bytes_after_a_zstd_frame_without_its_size_are_read(first: bytes, checksum: bool) -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=checksum).compress(first)
    assert unpacked(twin.ZSTD, packed) == first
    assert unpacked(twin.ZSTD, packed + packed) == 2 * first
    for damaged in (packed + b"\0", packed + packed[:-1], packed[:-1]):
        with pytest.raises(DecompressionError, match="zstd"):
            unpacked(twin.ZSTD, damaged)


def test_zstd_frames_that_lie_about_their_size() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(b"some records " * 30))
    assert zstandard.frame_content_size(bytes(packed)) == 390
    for size in (0, 1, 133, 135, 65_535):  # two bytes, of which 256 are taken off
        packed[5:7] = struct.pack("<H", size)
        with pytest.raises(DecompressionError, match="zstd"):
            unpacked(twin.ZSTD, bytes(packed))


@pytest.mark.random
def test_threads_have_contexts_of_their_own() -> None:
    data = [texts()["over a block"][start : start + 20_000] for start in range(0, 40_000, 500)]

    def there_and_back(part: bytes) -> bool:
        packed = bytes(compress(twin.ZSTD, array(part)))
        return all(unpacked(twin.ZSTD, packed) == part for _ in range(20 if THOROUGH else 5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, data))


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("count", [0, 1, 700])
def test_batches_compressed_together_equal_those_compressed_one_by_one(codec: int, count: int) -> None:
    data = texts()["over a block"]
    parts = [data[start : start + start % 3000] for start in range(1, count + 1)]
    packed = [bytes(each) for each in compress_all(codec, [memoryview(part) for part in parts])]
    assert packed == [bytes(compress(codec, memoryview(part))) for part in parts]
    assert [bytes(each) for each in compress_all(codec, [memoryview(b"")])] == [
        bytes(compress(codec, memoryview(b"")))
    ]


def test_a_scratch_doubles_when_it_grows() -> None:
    scratch = Scratch(100)
    scratch.append(bytes(101))
    assert scratch.used + len(scratch.reserve(0)) == 200
