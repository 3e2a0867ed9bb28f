"""The scanner: what it lists, and each way in which it ends."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from siltstone.base.records.layout import BATCH, HEADER, MIN_ENTRY_SIZE, codec_of
from siltstone.base.records.scan import SCAN_REASON, Scan, ScanEnd, scan_batches, scan_headers
from tests.support.records import twin
from tests.support.records.arrays import array

RECORD = twin.record(0, 0, b"k", b"v")


def small_batch(offset: int = 0) -> bytes:
    return twin.batch([RECORD], base_offset=offset)


def patched(data: bytes, position: int, form: str, value: int) -> bytes:
    """``data`` with one big-endian field replaced."""
    out = bytearray(data)
    struct.pack_into(">" + form, out, position, value)
    return bytes(out)


def scan(data: bytes) -> Scan:
    return scan_batches(array(data))


def test_nothing_is_a_clean_end() -> None:
    result = scan(b"")
    assert (len(result.batches), result.end, result.outcome, result.needed) == (0, 0, ScanEnd.CLEAN, 0)
    assert result.batches.dtype == BATCH


@pytest.mark.parametrize("sizes", [(1, 900), (900, 1), (7, 7)], ids=["larger", "smaller", "alike"])
def test_more_batches_than_estimated_are_scanned(sizes: tuple[int, int]) -> None:
    """Room is reckoned from the first batches; those behind them may be larger, or smaller."""
    kinds = [twin.batch([twin.record(0, 0, b"k", b"v" * size)]) for size in sizes]
    parts = [kind for kind in kinds for _ in range(3000)]
    result = scan(b"".join(parts))
    assert result.outcome == ScanEnd.CLEAN and len(result.batches) == len(parts)
    assert result.batches["size"].tolist() == [len(part) for part in parts]
    assert result.batches["position"].tolist() == np.cumsum([0, *map(len, parts)])[:-1].tolist()


def test_every_field_of_a_v2_header() -> None:
    header = HEADER.pack(2**40, 49 + 7, 9, 2, 0xDEADBEEF, 0x7A, 11, -5, 2**41, 2**50, -3, 2**30, 4)
    result = scan(small_batch() + header + bytes(7))
    assert (result.outcome, result.end) == (ScanEnd.CLEAN, len(small_batch()) + 68)
    row = result.batches[1]
    got = {name: row[name].item() for name in BATCH.names or ()}
    assert got == {
        "position": len(small_batch()),
        "base_offset": 2**40,
        "last_offset": 2**40 + 11,
        "base_timestamp": -5,
        "max_timestamp": 2**41,
        "producer_id": 2**50,
        "size": 68,
        "count": 4,
        "leader_epoch": 9,
        "base_sequence": 2**30,
        "crc": 0xDEADBEEF,
        "attributes": 0x7A,
        "producer_epoch": -3,
        "magic": 2,
    }


@pytest.mark.parametrize(("magic", "timestamp"), [(0, -1), (1, 77)])
def test_every_field_of_a_message_set_entry(magic: int, timestamp: int) -> None:
    entry = twin.message(42, b"key", b"value", magic=magic, timestamp=77, attributes=3)
    result = scan(entry)
    assert (result.outcome, result.end) == (ScanEnd.CLEAN, len(entry))
    row = result.batches[0]
    assert (row["base_offset"], row["last_offset"], row["count"]) == (42, 42, -1)
    assert (row["base_timestamp"], row["max_timestamp"]) == (timestamp, timestamp)
    assert (row["leader_epoch"], row["producer_id"], row["producer_epoch"], row["base_sequence"]) == (-1,) * 4
    assert (row["size"], row["attributes"], row["magic"]) == (len(entry), 3, magic)
    assert codec_of(result.batches).tolist() == [3]


def test_all_versions_in_one_log_agree_with_the_twin() -> None:
    log = twin.message(0, None, b"", magic=0) + twin.message(1, b"", None, magic=1) + small_batch(2)
    rows = scan(log).batches
    want = [(entry.position, entry.size, entry.magic, entry.first) for entry in twin.decode_log(log)]
    fields = ("position", "size", "magic", "base_offset")
    assert list(zip(*(rows[name].tolist() for name in fields), strict=True)) == want


@pytest.mark.parametrize(
    "entry", [small_batch(7), twin.message(7, b"k", b"v", magic=0), twin.message(7, b"k", b"v", magic=1)]
)
def test_every_cut_is_a_truncated_tail(entry: bytes) -> None:
    whole = small_batch()
    for cut in range(1, len(entry)):
        result = scan(whole + entry[:cut])
        assert (len(result.batches), result.outcome) == (1, ScanEnd.TRUNCATED)
        assert result.end == len(whole)
        assert result.needed == (len(entry) if cut >= 17 else 0)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 13, 48])
def test_an_impossible_size_ends_the_scan(size: int) -> None:
    result = scan(small_batch() + patched(small_batch(1), 8, "i", size))
    assert (len(result.batches), result.end) == (1, len(small_batch()))
    assert result.outcome == ScanEnd.BAD_SIZE


@pytest.mark.parametrize(("magic", "smallest"), [(0, 14), (1, 22), (2, 49)])
def test_the_smallest_possible_size_of_each_magic(magic: int, smallest: int) -> None:
    for size, outcome in ((smallest, ScanEnd.CLEAN), (smallest - 1, ScanEnd.BAD_SIZE)):
        entry = patched(bytes(12 + size), 8, "i", size)
        entry = entry[:16] + bytes([magic]) + entry[17:]
        assert scan(entry).outcome == outcome


def test_a_large_size_says_how_much_is_needed() -> None:
    result = scan(patched(small_batch(), 8, "i", 2**31 - 1))
    assert (result.outcome, result.end, result.needed) == (ScanEnd.TRUNCATED, 0, 2**31 + 11)


@pytest.mark.parametrize("magic", [3, 9, 0x7F, 0x80, 0xFF])
def test_an_unknown_magic_ends_the_scan(magic: int) -> None:
    result = scan(small_batch() + patched(small_batch(1), 16, "B", magic))
    assert (len(result.batches), result.end, result.outcome) == (1, len(small_batch()), ScanEnd.BAD_MAGIC)


def test_zeros_are_an_impossible_size() -> None:
    result = scan(small_batch() + bytes(4096))
    assert (len(result.batches), result.end, result.outcome) == (1, len(small_batch()), ScanEnd.BAD_SIZE)


@pytest.mark.parametrize(
    ("position", "value"),
    [(57, -1), (57, -(2**31)), (57, 2**31 - 1), (57, 10_000), (23, -1), (23, -(2**31))],
    ids=str,
)
def test_an_impossible_count_or_offset_delta_ends_the_scan(position: int, value: int) -> None:
    result = scan(small_batch() + patched(small_batch(1), position, "i", value))
    assert (len(result.batches), result.end, result.outcome) == (1, len(small_batch()), ScanEnd.BAD_COUNT)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_compressed_batch_may_count_more_records_than_bytes(codec: int) -> None:
    """100,000 small records take 45 KB in zstd: only what is plain takes seven bytes a record."""
    many = patched(patched(small_batch(1), 57, "i", 1 << 20), 23, "i", (1 << 20) - 1)
    assert scan(many).outcome == ScanEnd.BAD_COUNT
    result = scan(patched(many, 21, "h", codec))
    assert (result.outcome, result.batches["count"].tolist()) == (ScanEnd.CLEAN, [1 << 20])
    assert scan(patched(patched(many, 21, "h", codec), 57, "i", -1)).outcome == ScanEnd.BAD_COUNT


@pytest.mark.parametrize("count", [1023, 1024, 1025, 1024 + 8192, 1024 + 8192 + 1])
def test_the_array_of_batch_headers_grows(count: int) -> None:
    one = small_batch()
    data = np.tile(array(one), count)
    data.reshape(count, -1)[:, :8] = np.arange(count, dtype=">i8").view(np.uint8).reshape(count, 8)
    result = scan_batches(data)
    assert (result.outcome, result.end) == (ScanEnd.CLEAN, len(data))
    assert result.batches["base_offset"].tolist() == list(range(count))
    assert result.batches["position"].tolist() == list(range(0, len(data), len(one)))


def test_headers_take_memory_for_as_many_batches_as_the_bytes_may_hold() -> None:
    window = np.zeros(1 << 20, np.uint8)
    tracemalloc.start()
    scan_headers(window, len(window))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < (len(window) // MIN_ENTRY_SIZE + 9) * BATCH.itemsize + (1 << 20)


def test_positions_count_from_the_window_inside_a_buffer() -> None:
    one = small_batch()
    data = array(one * 4)
    result = scan_batches(data[len(one) : 3 * len(one)])
    assert result.batches["position"].tolist() == [0, len(one)]
    assert (result.outcome, result.end) == (ScanEnd.CLEAN, 2 * len(one))
    assert scan_batches(data[len(one) : 3 * len(one) - 1]).outcome == ScanEnd.TRUNCATED
    assert len(scan_batches(data[len(data) :]).batches) == 0


def test_every_bad_outcome_has_a_reason() -> None:
    assert set(SCAN_REASON) == set(ScanEnd) - {ScanEnd.CLEAN, ScanEnd.ROWS_FULL}


@pytest.mark.parametrize("base", [2**63 - 1, 2**63 - 2])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_an_offset_without_a_successor_is_refused(magic: int, base: int) -> None:
    """A log's end is one above its last offset: an int64, too."""
    records = [twin.record(0, 0, b"k", b"v"), twin.record(1, 0, b"l", b"v")]
    entry = (
        twin.batch(records, base_offset=base) if magic == 2 else twin.message(base, b"k", b"v", magic=magic)
    )
    result = scan(entry)
    refused = base + (1 if magic == 2 else 0) > 2**63 - 2
    assert (result.outcome, len(result.batches)) == (
        (ScanEnd.BAD_COUNT, 0) if refused else (ScanEnd.CLEAN, 1)
    )
