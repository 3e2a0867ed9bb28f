"""The varint kernels against the twin, at every boundary and beyond the types' ends."""

from __future__ import annotations

import random

import numpy as np
import pytest

from siltstone.base.records.varint import read_varint, read_varlong, varint_size, write_varint
from tests.support.records import twin
from tests.support.records.arrays import array

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)


def boundaries(bits: int) -> list[int]:
    """Where a zigzag varint grows by a byte, with the neighbours, and the type's ends."""
    edges = {0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))}
    for power in range(6, bits - 1, 7):
        edges.update((2**power - 1, 2**power, -(2**power), -(2**power) - 1))
    return sorted(edges)


@pytest.mark.parametrize("value", boundaries(32))
def test_int32_boundaries(value: int) -> None:
    encoded = twin.varint(value)
    assert twin.read_varint(encoded, 0) == (value, len(encoded))
    assert read_varint(array(encoded), 0, len(encoded)) == (value, len(encoded))


@pytest.mark.parametrize("value", boundaries(64))
def test_int64_boundaries_written_sized_and_read(value: int) -> None:
    encoded = twin.varint(value)
    out = np.full(12, 0xEE, np.uint8)
    assert write_varint(out, 1, value) == 1 + len(encoded)
    assert out[1 : 1 + len(encoded)].tobytes() == encoded
    assert (out[0], out[1 + len(encoded)]) == (0xEE, 0xEE)
    assert varint_size(value) == len(encoded)
    assert read_varlong(out, 1, len(out)) == (value, 1 + len(encoded))


def test_many_values_agree_with_the_twin() -> None:
    dice = random.Random(5)
    out = np.empty(10, np.uint8)
    for _ in range(3000):
        value = dice.randrange(2 ** dice.randrange(1, 64)) * dice.choice((1, -1))
        end = write_varint(out, 0, value)
        assert out[:end].tobytes() == twin.varint(value)
        assert read_varlong(out, 0, end) == (value, end)
        if INT32[0] <= value <= INT32[1]:
            assert read_varint(out, 0, end) == (value, end)


@pytest.mark.parametrize("value", [0, 63, 64, 2**20, -(2**31), 2**31 - 1])
def test_a_cut_varint_has_no_next_position(value: int) -> None:
    encoded = twin.varint(value)
    for end in range(len(encoded)):
        assert read_varint(array(encoded), 0, end)[1] == -1
        assert read_varlong(array(encoded), 0, end)[1] == -1


def test_nothing_is_read_from_behind_the_end() -> None:
    assert read_varint(array(b"\x02\x02"), 2, 2)[1] == -1
    assert read_varlong(array(b"\x02\x02"), 2, 2)[1] == -1


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x80\x80\x80\x80\x10",
        b"\xff\xff\xff\xff\x1f",
        b"\x80\x80\x80\x80\x80\x00",
        b"\xff" * 10,
    ],
)
def test_over_long_int32_is_refused(encoded: bytes) -> None:
    with pytest.raises(twin.TwinError):
        twin.read_varint(encoded, 0)
    assert read_varint(array(encoded), 0, len(encoded))[1] == -1


@pytest.mark.parametrize("encoded", [b"\x80" * 9 + b"\x02", b"\xff" * 9 + b"\x7f", b"\x80" * 10 + b"\x00"])
def test_over_long_int64_is_refused(encoded: bytes) -> None:
    with pytest.raises(twin.TwinError):
        twin.read_varint(encoded, 0, 64)
    assert read_varlong(array(encoded), 0, len(encoded))[1] == -1


def test_padding_zeros_are_read_as_kafka_reads_them() -> None:
    assert read_varint(array(b"\x84\x80\x00"), 0, 3) == (2, 3)
    assert read_varlong(array(b"\x83\x80\x80\x00"), 0, 4) == (-2, 4)
