"""Checksums: library, kernel and twin are one function; every damaged byte is noticed."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from crc32c import crc32c

from siltstone.base.records import checksum
from siltstone.base.records.checksum import (
    CRC32_TABLES,
    CRC32C_TABLES,
    batch_checksums,
    crc32c_of,
    crc32c_of_ranges,
    crc_of_ranges,
    first_bad_checksum,
    message_checksums,
    patch_checksums,
)
from siltstone.base.records.kernel import has_crc32c
from tests.support.records import twin
from tests.support.records.arrays import array, scanned

INT64 = np.int64


def kernel_checksums(data: bytes, spans: list[tuple[int, int]], tables: checksum.Checksums) -> list[int]:
    """The kernel's checksums of ``data[start:end]``."""
    starts, ends = (np.array(side, INT64) for side in zip(*spans, strict=True))
    out = np.empty(len(spans), np.uint32)
    crc_of_ranges(array(data), starts, ends, tables, out)
    sums: list[int] = out.tolist()
    return sums


def test_the_check_values() -> None:
    assert twin.crc32c(b"123456789") == 0xE3069283
    assert twin.crc32(b"123456789") == 0xCBF43926
    assert kernel_checksums(b"123456789", [(0, 9)], CRC32C_TABLES) == [0xE3069283]
    assert kernel_checksums(b"123456789", [(0, 9)], CRC32_TABLES) == [0xCBF43926]


@pytest.mark.parametrize(
    ("tables", "library", "reference"),
    [(CRC32C_TABLES, crc32c, twin.crc32c), (CRC32_TABLES, zlib.crc32, twin.crc32)],
    ids=["crc32c", "crc32"],
)
def test_kernel_library_and_twin_agree_at_every_length_and_start(
    tables: checksum.Checksums, library: Callable[[bytes], int], reference: Callable[[bytes], int]
) -> None:
    data = random.Random(7).randbytes(80)
    spans = [(start, start + length) for start in range(9) for length in range(66)]
    expected = [reference(data[start:end]) for start, end in spans]
    assert kernel_checksums(data, spans, tables) == expected
    assert [library(data[start:end]) for start, end in spans] == expected


@pytest.mark.skipif(not has_crc32c(), reason="this processor has no instruction for it")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 594])
def test_the_instruction_agrees_at_every_length_and_start(count: int) -> None:
    data = random.Random(7).randbytes(80)
    spans = [(start, start + length) for start in range(9) for length in range(66)]
    random.Random(count).shuffle(spans)
    starts, ends = (np.array(side[:count], INT64) for side in zip(*spans, strict=True))
    out = np.empty(count, np.uint32)
    crc32c_of_ranges(array(data), starts, ends, out)
    want = [twin.crc32c(data[start:end]) for start, end in spans[:count]]
    assert out.tolist() == want
    assert [crc32c_of(array(data), start, end) for start, end in spans[:count]] == want


@pytest.mark.skipif(not has_crc32c(), reason="this processor has no instruction for it")
@pytest.mark.parametrize("shortest", [0, 1, 2])
def test_three_side_by_side_stop_at_the_end_of_the_shortest(shortest: int) -> None:
    """Whatever the arrays hold behind the three ranges."""
    data = random.Random(9).randbytes(200)
    ends = np.array([100, 100, 100, 200], INT64)
    ends[shortest] = 9
    out = np.empty(3, np.uint32)
    crc32c_of_ranges(array(data), np.zeros(4, INT64)[:3], ends[:3], out)
    assert out.tolist() == [twin.crc32c(data[:end]) for end in ends[:3].tolist()]


@pytest.mark.parametrize("has_instruction", sorted({False, has_crc32c()}))
def test_small_and_large_batches_have_the_same_checksums(
    monkeypatch: pytest.MonkeyPatch, has_instruction: bool
) -> None:
    monkeypatch.setattr(checksum, "has_crc32c", lambda: has_instruction)
    data = random.Random(8).randbytes(9000)
    starts, sizes = np.array([0, 100, 4000], INT64), np.array([61, 3000, 5000], INT64)
    want = [crc32c(data[start + 21 : start + size]) for start, size in zip(starts, sizes, strict=True)]
    for threshold in (0, 1 << 20):
        monkeypatch.setattr(checksum, "_SMALL_BATCH_SIZE", threshold)
        monkeypatch.setattr(checksum, "_LARGE_BATCH_SIZE", threshold)
        assert batch_checksums(array(data), starts, sizes).tolist() == want
        old = [zlib.crc32(data[start + 16 : start + size]) for start, size in zip(starts, sizes, strict=True)]
        assert message_checksums(array(data), starts, sizes).tolist() == old


def test_no_batches() -> None:
    none = np.empty(0, INT64)
    assert batch_checksums(array(b""), none, none).tolist() == []
    assert message_checksums(array(b""), none, none).tolist() == []
    assert first_bad_checksum(*scanned(b"")) is None


@pytest.mark.parametrize("value_size", [1, 5000])
def test_patched_checksums_are_right(value_size: int) -> None:
    one = twin.batch([twin.record(0, 0, b"k", bytes(value_size))])
    window, batches = scanned(one * 3)
    window[len(one) - 1] ^= 1
    assert first_bad_checksum(window, batches) == 0
    sizes = batches["size"].astype(INT64)
    patch_checksums(window, batches["position"], sizes)
    again = scanned(window.tobytes())
    assert first_bad_checksum(*again) is None
    changed = again[1]["crc"]
    assert changed[0] != batches["crc"][0]
    assert changed[1:].tolist() == batches["crc"][1:].tolist()


def mixed_log() -> bytes:
    """Magic 0, 1 and 2, twice each."""
    entries = (
        twin.message(0, b"a", b"1", magic=0),
        twin.message(1, b"b", b"2", magic=1),
        twin.batch([twin.record(0, 0, b"c", b"3")], base_offset=2),
    )
    return b"".join(entries * 2)


def test_a_sound_log_of_all_versions_has_no_bad_checksum() -> None:
    assert first_bad_checksum(*scanned(mixed_log())) is None


@pytest.mark.parametrize("row", range(6))
def test_the_first_bad_row_is_found_in_every_version(row: int) -> None:
    window, batches = scanned(mixed_log())
    for damaged in {row, 5}:
        window[batches["position"][damaged] + batches["size"][damaged] - 1] ^= 0x10
    assert first_bad_checksum(window, batches) == row


@pytest.mark.parametrize("row", range(3))
def test_every_byte_after_the_checksum_is_covered(row: int) -> None:
    window, batches = scanned(mixed_log())
    start, size = int(batches["position"][row]), int(batches["size"][row])
    for position in range(start + (21 if batches["magic"][row] == 2 else 17), start + size):
        window[position] ^= 0x04
        assert first_bad_checksum(window, batches) == row
        window[position] ^= 0x04
