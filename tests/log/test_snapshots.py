"""Producer snapshots: Kafka's files decode and encode to the same bytes, damaged ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptFileError
from siltstone.log.producers import ProducerEntry, read_snapshot, write_snapshot

longs, ints = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
entries = st.lists(
    st.builds(
        ProducerEntry,
        producer_id=longs,
        producer_epoch=st.integers(-(1 << 15), (1 << 15) - 1),
        last_sequence=ints,
        last_offset=longs,
        offset_delta=ints,
        timestamp_ms=longs,
        coordinator_epoch=ints,
        open_transaction_offset=longs,
    ),
    max_size=5,
)


@settings(derandomize=True)
@given(entries)
def test_a_written_snapshot_is_read_back(producers: list[ProducerEntry]) -> None:
    assert read_snapshot(write_snapshot(producers)) == producers


def test_kafkas_own_snapshots_are_written_again_byte_for_byte(golden: Path) -> None:
    count = 0
    for path in sorted(golden.glob("*/*/*.snapshot")):
        data = path.read_bytes()
        producers = read_snapshot(data, str(path))
        assert write_snapshot(producers) == data
        count += len(producers)
    assert count > 20


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    entry = ProducerEntry(
        producer_id=1,
        producer_epoch=2,
        last_sequence=3,
        last_offset=4,
        offset_delta=5,
        timestamp_ms=6,
        coordinator_epoch=7,
        open_transaction_offset=-1,
    )
    data = write_snapshot([entry, entry])
    damaged = [data[:size] for size in range(len(data))] + [data + b"\0"]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for variant in damaged:
        with pytest.raises(CorruptFileError):
            read_snapshot(variant, "x.snapshot")


def test_a_wrong_checksum_is_placed() -> None:
    data = bytearray(write_snapshot([]))
    data[-1] ^= 1
    with pytest.raises(CorruptFileError, match="checksum") as error:
        read_snapshot(bytes(data[:2] + b"\x00\x00\x00\x01" + data[6:]))
    assert error.value.position == 2
