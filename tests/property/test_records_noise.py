"""Bytes that were never a log, and logs that nobody thought of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import DecompressionError, Scratch, decompress
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import BATCH, BatchHeaders
from siltstone.base.records.scan import ScanEnd, scan_batches
from siltstone.base.records.varint import read_varint, read_varlong, varint_size, write_varint
from tests.support.records import twin
from tests.support.records.arrays import array, decoded
from tests.support.thoroughness import examples

LIMIT = 1 << 16
NOISE = st.binary(max_size=400)
INT64 = st.integers(-(2**63), 2**63 - 1)
OPTIONAL = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.binary(max_size=5), OPTIONAL), max_size=3)

bounded = settings(max_examples=examples(200), deadline=None, print_blob=True)


@bounded
@given(value=INT64)
def test_varints_make_round_trips(value: int) -> None:
    out = np.empty(10, np.uint8)
    end = write_varint(out, 0, value)
    assert out[:end].tobytes() == twin.varint(value)
    assert varint_size(value) == end
    assert read_varlong(out, 0, end) == (value, end)


@bounded
@given(data=st.binary(max_size=12), start=st.integers(0, 3))
def test_varints_of_noise_agree_with_the_twin(data: bytes, start: int) -> None:
    for kernel, bits in ((read_varint, 32), (read_varlong, 64)):
        try:
            want = twin.read_varint(data, start, bits)
        except twin.TwinError:
            assert kernel(array(data), start, len(data))[1] == -1
        else:
            assert kernel(array(data), start, len(data)) == want


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Noise with a size and a magic byte that let the scanner in."""
    data = bytearray(draw(st.binary(min_size=17, max_size=300)))
    size = draw(st.sampled_from([len(data) - 12, len(data) - 12, 14, 22, 49, -1, 2**31 - 1]))
    data[8:12] = size.to_bytes(4, "big", signed=True)
    data[16] = draw(st.integers(0, 3))
    if data[16] == 2 and len(data) >= 61 and draw(st.booleans()):
        data[21:27] = draw(st.sampled_from([b"\0\0", b"\0\1", b"\0\2", b"\0\3", b"\0\4"])) + bytes(4)
        data[57:61] = draw(st.integers(0, 40)).to_bytes(4, "big")
    return bytes(data)


@bounded
@given(data=st.lists(NOISE | headers(), max_size=4).map(b"".join), start=st.integers(0, 20))
def test_noise_is_scanned_and_decoded_or_refused(data: bytes, start: int) -> None:
    window = array(data)[start:]
    scan = scan_batches(window)
    assert scan.outcome in set(ScanEnd) - {ScanEnd.ROWS_FULL}
    assert 0 <= scan.end <= len(window)
    assert (scan.outcome == ScanEnd.CLEAN) == (scan.end == len(window))
    check_rows(scan.batches, scan.end)
    try:
        columns = decode_records(window, scan.batches, Scratch(16), limit=LIMIT)
    except CorruptRecordError as error:
        assert error.position in scan.batches["position"].tolist()
        return
    for starts, sizes in (("key_start", "key_size"), ("value_start", "value_size"), ("start", "size")):
        ends = getattr(columns, starts).astype(np.int64) + np.maximum(getattr(columns, sizes), 0)
        assert (getattr(columns, starts) >= 0).all()
        assert (ends <= len(columns.data)).all()
    for row in range(len(columns)):
        columns.headers(row)


def check_rows(batches: BatchHeaders, end: int) -> None:
    """Rows lie behind each other, inside what was scanned."""
    assert batches.dtype == BATCH
    sizes = batches["size"].astype(np.int64)
    if len(batches):
        assert (batches["position"][1:] == (batches["position"] + sizes)[:-1]).all()
        assert batches["position"][-1] + sizes[-1] == end


@bounded
@given(codec=st.integers(0, 7), magic=st.integers(0, 2), data=NOISE)
def test_noise_is_never_decompressed_by_accident(codec: int, magic: int, data: bytes) -> None:
    scratch = Scratch(16)
    try:
        size = decompress(codec, array(data), scratch, LIMIT, magic)
    except DecompressionError:
        size = 0
    assert scratch.used == size <= LIMIT


@bounded
@given(
    codec=st.integers(1, 4),
    magic=st.integers(0, 2),
    data=NOISE,
    change=st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=4)),
)
def test_damaged_compressed_data_is_refused_or_bounded(
    codec: int, magic: int, data: bytes, change: tuple[int, bytes]
) -> None:
    packed = bytearray(twin.compress(codec, data * 5, magic))
    position = change[0] % (len(packed) + 1)
    packed[position : position + len(change[1])] = change[1]
    scratch = Scratch(16)
    try:
        size = decompress(codec, array(bytes(packed)), scratch, LIMIT, magic)
    except DecompressionError:
        size = 0
    assert scratch.used == size <= LIMIT


RECORDS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(-(2**40), 2**40), OPTIONAL, OPTIONAL, HEADERS), max_size=6
)


@bounded
@given(
    records=RECORDS,
    codec=st.integers(0, 4),
    base=st.integers(0, 2**62),
    attributes=st.sampled_from([0, 8, 0x40]),
)
def test_any_batch_is_what_the_twin_reads(
    records: list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
    codec: int,
    base: int,
    attributes: int,
) -> None:
    delta, encoded = -1, []
    for gap, *rest in records:
        delta += gap
        encoded.append(twin.record(delta, *rest))
    log = twin.batch(encoded, base_offset=base, last_delta=max(delta, 0), codec=codec, attributes=attributes)
    (entry,) = twin.decode_log(log)
    assert decoded(log) == list(entry.records)


@bounded
@given(
    messages=st.lists(st.tuples(st.integers(1, 50), INT64, OPTIONAL, OPTIONAL), min_size=1, max_size=6),
    codec=st.integers(0, 3),
    magic=st.integers(0, 1),
    base=st.integers(0, 2**40),
    attributes=st.sampled_from([0, 8]),
)
def test_any_message_set_is_what_the_twin_reads(
    messages: list[tuple[int, int, bytes | None, bytes | None]],
    codec: int,
    magic: int,
    base: int,
    attributes: int,
) -> None:
    stored, parts = (base if codec == 0 or magic == 0 else 0) - 1, []
    for gap, timestamp, key, value in messages:
        stored += gap
        parts.append(twin.message(stored, key, value, magic=magic, timestamp=timestamp))
    log = b"".join(parts)
    if codec:
        offset = stored if magic == 0 else base + stored
        log = twin.wrapper(offset, log, codec, magic=magic, attributes=attributes)
    assert decoded(log) == [record for entry in twin.decode_log(log) for record in entry.records]


@pytest.mark.parametrize("fill", [0, 0x55, 0xFF])
def test_a_long_run_of_one_byte_is_refused_in_time(fill: int) -> None:
    scan = scan_batches(np.full(1 << 20, fill, np.uint8))
    assert (len(scan.batches), scan.end) == (0, 0)
    assert scan.outcome in (ScanEnd.BAD_SIZE, ScanEnd.BAD_MAGIC)
