"""Slices of batches whose records take about the same memory after decompression."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import (
    RECORD_MEMORY_BYTES,
    SLICE_BYTES,
    decompressed_size_bounds,
    slices_within,
)
from siltstone.base.records.layout import BATCH
from siltstone.base.records.scan import scan_batches
from tests.support.records import twin
from tests.support.records.arrays import array

MEBIBYTE = 1 << 20
ALL = (twin.GZIP, twin.SNAPPY, twin.LZ4, twin.ZSTD)


@functools.cache
def zeros_at_0(size: int, codec: int) -> bytes:
    return twin.batch([twin.record(0, 0, b"k", bytes(size))], base_offset=0, codec=codec)


def zeros(offset: int, size: int, codec: int) -> bytes:
    """The batch at another offset, which the checksum does not cover."""
    return offset.to_bytes(8, "big") + zeros_at_0(size, codec)[8:]


def cut(log: bytes, budget: int = SLICE_BYTES) -> list[list[int]]:
    data = array(log)
    batches = scan_batches(data).batches
    slices = [list(range(len(batches))[part]) for part in slices_within(data, batches, budget)]
    assert [row for part in slices for row in part] == list(range(len(batches)))
    return slices


def test_every_batch_is_in_exactly_one_slice() -> None:
    rows = np.zeros(50, BATCH)
    rows["size"], rows["magic"] = 10, 2
    window = np.zeros(500, np.uint8)
    for budget in (1, 9, 35, 100, 10**6):
        parts = [list(range(*part.indices(50))) for part in slices_within(window, rows, budget)]
        assert [row for part in parts for row in part] == list(range(50))
    assert list(slices_within(window, rows[:0])) == []


@pytest.mark.parametrize("codec", ALL)
def test_batches_that_decompress_to_much_are_sliced_one_by_one(codec: int) -> None:
    """An lz4 frame need not declare its size: a block of 64 KiB counts with what it may hold."""
    log = b"".join(zeros(offset, 5 * MEBIBYTE, codec) for offset in range(6))
    assert len(log) < 3 * MEBIBYTE
    assert all(len(part) <= 2 for part in cut(log))
    assert cut(log, budget=40 * MEBIBYTE) == [list(range(6))]


def test_a_batch_over_the_budget_is_a_slice_of_its_own() -> None:
    small = [zeros(offset, 100, twin.ZSTD) for offset in range(5)]
    log = b"".join(
        [small[0], zeros(1, 9 * MEBIBYTE, twin.ZSTD), zeros(2, 9 * MEBIBYTE, twin.ZSTD), *small[3:]]
    )
    assert [row for part in cut(log) for row in part if row in (1, 2)] == [1, 2]
    assert not any({1, 2} <= set(part) for part in cut(log))


def test_records_count_with_the_memory_of_their_rows() -> None:
    records = [twin.record(0, delta, b"", b"") for delta in range(2000)]
    log = b"".join(
        twin.batch(records, base_offset=offset, codec=twin.ZSTD) for offset in range(0, 20_000, 2000)
    )
    assert len(cut(log, budget=4000 * RECORD_MEMORY_BYTES)) >= 5


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [twin.GZIP, twin.SNAPPY, twin.LZ4])
def test_message_sets_count_with_their_decompressed_size(magic: int, codec: int) -> None:
    log = b"".join(
        twin.wrapper(offset, twin.message(offset, b"k", bytes(5 * MEBIBYTE), magic=magic), codec, magic=magic)
        for offset in range(4)
    )
    data = array(log)
    batches = scan_batches(data).batches
    assert (decompressed_size_bounds(data, batches) >= 5 * MEBIBYTE).all()
    assert all(len(part) <= 2 for part in cut(log))
    for part in slices_within(data, batches):
        assert len(decode_records(data, batches[part])) == len(batches[part])


def test_formats_are_not_mixed_and_a_damaged_batch_is_alone() -> None:
    old = [twin.message(offset, b"k", b"v", magic=1) for offset in range(3)]
    broken = twin.batch([b""], base_offset=4, codec=twin.ZSTD, body=b"no frame", count=1)
    log = b"".join([*old, zeros(3, 10, twin.NONE), broken, zeros(5, 10, twin.NONE)])
    slices = cut(log)
    assert slices[0] == [0, 1, 2]
    data = array(log)
    assert decompressed_size_bounds(data, scan_batches(data).batches)[4] == DEFAULT_DECOMPRESSION_LIMIT
    assert not any({3, 4} <= set(part) for part in slices)


def test_truncated_fields_of_a_message_set_raise_nothing() -> None:
    whole = twin.wrapper(0, twin.message(0, b"k", b"v", magic=1), twin.GZIP, magic=1)
    for position in range(12, len(whole)):
        for value in (0, 0x7F, 0xFF):
            log = bytearray(whole)
            log[position] = value
            data = array(bytes(log))
            batches = scan_batches(data).batches
            if len(batches):
                assert decompressed_size_bounds(data, batches)[0] >= 0
