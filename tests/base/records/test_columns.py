"""Records of magic 2: the decoder against the twin, and a crafted batch for each thing it refuses."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import DECOMPRESSION_LIMIT_SETTING, Scratch
from siltstone.base.records.columns import DECODE_REASON, RecordColumns
from siltstone.base.records.decode import decode_records
from tests.support.errors import raises_error
from tests.support.records import twin
from tests.support.records.arrays import array, decoded, records_of, scanned

CODECS = (twin.NONE, twin.GZIP, twin.SNAPPY, twin.LZ4, twin.ZSTD)
ONE = twin.record(0, 0, b"k", b"v")

VARIED = [
    twin.record(0, 0, b"key", b"value"),
    twin.record(1, -5, None, b""),
    twin.record(2, 2**40, b"", None),
    twin.record(5, -(2**40), b"k" * 300, bytes(70_000)),
    twin.record(9, 3, None, None, [(b"h", b""), (b"", None), (b"name" * 40, b"x" * 200)]),
]


def sized(body: bytes) -> bytes:
    return twin.varint(len(body)) + body


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("attributes", [0, twin.LOG_APPEND, 0x40])
def test_every_kind_of_record_in_every_codec(codec: int, attributes: int) -> None:
    log = twin.batch(VARIED, base_offset=2**40, last_delta=12, codec=codec, attributes=attributes)
    (entry,) = twin.decode_log(log)
    assert len(entry.records) == 5
    assert decoded(log) == list(entry.records)


def test_a_window_of_all_codecs_and_empty_batches() -> None:
    log = b"".join(twin.batch(VARIED, base_offset=20 * codec, last_delta=9, codec=codec) for codec in CODECS)
    empty = twin.batch([], base_offset=300, last_delta=4, base_timestamp=-1)
    log = empty + log + empty + twin.batch([ONE], base_offset=400)
    window, batches = scanned(log)
    columns = decode_records(window, batches)
    assert records_of(columns) == [record for entry in twin.decode_log(log) for record in entry.records]
    assert columns.batch.tolist() == [row for row in range(1, 6) for _ in range(5)] + [7]
    for row in range(len(columns)):
        start, size = int(columns.start[row]), int(columns.size[row])
        assert columns.data[start : start + size].tobytes() in (*VARIED, ONE)


def test_types_and_the_window_itself_where_nothing_is_compressed() -> None:
    window, batches = scanned(twin.batch(VARIED, last_delta=9))
    columns = decode_records(window, batches)
    assert columns.data is window
    for name in RecordColumns.__dataclass_fields__:
        want = np.uint8 if name == "data" else np.int64 if name in ("offset", "timestamp") else np.int32
        assert getattr(columns, name).dtype == want, name


def test_no_batches() -> None:
    assert len(decode_records(*scanned(b""))) == 0


def test_a_scratch_is_used_again() -> None:
    scratch = Scratch(8)
    for value in (b"a" * 1000, b"b" * 10):
        log = twin.batch([twin.record(0, 0, None, value)], codec=twin.LZ4)
        assert decode_records(*scanned(log), scratch).value(0) == value


def test_batches_may_be_chosen_by_their_headers() -> None:
    window, batches = scanned(b"".join(twin.batch([ONE], base_offset=offset) for offset in range(4)))
    assert decode_records(window, batches[[3, 1]]).offset.tolist() == [3, 1]


OVERLONG = b"\xff\xff\xff\xff\xff\x7f"
BODY = ONE[1:]
REFUSED: dict[str, tuple[int, bytes]] = {
    "size 0": (1, b"\x00" + bytes(20)),
    "size below the smallest record": (1, twin.varint(5) + bytes(20)),
    "negative size": (1, twin.varint(-1) + bytes(20)),
    "size beyond the batch": (1, twin.varint(len(BODY) + 1) + BODY),
    "huge size": (1, twin.varint(2**31 - 1) + BODY),
    "key beyond the record": (2, sized(b"\0\0\0" + twin.varint(100) + b"key" * 9)),
    "value beyond the record": (
        2,
        sized(b"\0\0\0" + twin.varint(1) + b"k" + twin.varint(2**31 - 1) + bytes(9)),
    ),
    "header key beyond": (2, sized(b"\0\0\0\1\1" + twin.varint(1) + twin.varint(50) + b"h\1")),
    "header value beyond": (2, sized(b"\0\0\0\1\1" + twin.varint(1) + b"\2h" + twin.varint(50))),
    "bytes behind the headers": (2, sized(BODY + b"\0")),
    "over-long size": (3, OVERLONG + bytes(20)),
    "over-long timestamp delta": (3, sized(b"\0" + b"\xff" * 11 + bytes(9))),
    "over-long offset delta": (3, sized(b"\0\0" + OVERLONG + bytes(9))),
    "over-long key size": (3, sized(b"\0\0\0" + OVERLONG + bytes(9))),
    "cut value size": (3, sized(b"\0\0\0" + twin.varint(2) + b"kk")),
    "cut header count": (3, sized(b"\0\0\0\1" + twin.varint(1) + b"v")),
    "fewer headers than counted": (3, sized(b"\0\0\0\1\1" + twin.varint(2) + b"\2h\1")),
    "huge header count": (3, sized(b"\0\0\0\1\1" + twin.varint(2**31 - 1))),
    "negative key size": (4, sized(b"\0\0\0" + twin.varint(-2) + bytes(9))),
    "negative value size": (4, sized(b"\0\0\0\1" + twin.varint(-9) + bytes(9))),
    "negative header count": (4, sized(b"\0\0\0\1\1" + twin.varint(-1))),
    "null header key": (4, sized(b"\0\0\0\1\1" + twin.varint(1) + b"\1\1")),
    "negative header value size": (4, sized(b"\0\0\0\1\1" + twin.varint(1) + b"\2h" + twin.varint(-2))),
    "negative offset delta": (5, twin.record(-1, 0, b"k", b"v")),
    "offset beyond the last": (5, twin.record(1, 0, b"k", b"v")),
    "bytes behind the last record": (6, ONE + b"\0"),
}


@pytest.mark.parametrize("codec", [twin.NONE, twin.LZ4])
@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_record_is_refused_with_its_reason(name: str, codec: int) -> None:
    reason, body = REFUSED[name]
    good = twin.batch([ONE])
    bad = twin.batch([], body=twin.compress(codec, body), count=1, last_delta=0, base_offset=1, codec=codec)
    window, batches = scanned(good + bad)
    position = 5000 + len(good)
    with raises_error(CorruptRecordError, path="00.log", position=position, about=DECODE_REASON[reason]):
        decode_records(window, batches, path="00.log", origin=5000)


def test_every_reason_is_reached() -> None:
    assert {reason for reason, _ in REFUSED.values()} == set(range(1, len(DECODE_REASON)))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (3, 2)])
def test_offsets_that_do_not_ascend_are_refused(deltas: tuple[int, int]) -> None:
    log = twin.batch([twin.record(delta, 0, b"k", b"v") for delta in deltas], last_delta=9)
    with raises_error(CorruptRecordError, about=DECODE_REASON[5]):
        decode_records(*scanned(log))


def test_the_least_offset_of_an_int64_is_no_records() -> None:
    """The largest one is refused by the scan."""
    log = twin.batch([ONE, twin.record(1, 0, b"k", b"v")], base_offset=-(2**63))
    with raises_error(CorruptRecordError, about=DECODE_REASON[5]):
        decode_records(*scanned(log))


@pytest.mark.parametrize("codec", CODECS)
def test_a_count_that_the_bytes_cannot_hold_allocates_nothing(codec: int) -> None:
    body = twin.compress(codec, ONE)
    log = twin.batch([], body=body, count=len(body) + 1, last_delta=2**31 - 1, codec=codec)
    with raises_error(CorruptRecordError, position=77, about="more records"):
        decode_records(*scanned(bytes(log)), origin=77)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_batches_of_unknown_codecs_are_refused(codec: int) -> None:
    log = twin.batch([ONE]) + twin.batch([ONE], attributes=codec, base_offset=1)
    position = 100 + len(twin.batch([ONE]))
    with raises_error(CorruptRecordError, position=position, about=f"number {codec}"):
        decode_records(*scanned(log), origin=100)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_bytes_that_were_never_compressed_are_refused(codec: int) -> None:
    log = twin.batch([], body=b"these bytes were never compressed", count=1, last_delta=0, codec=codec)
    with pytest.raises(CorruptRecordError):
        decode_records(*scanned(log))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_limit_is_each_batchs(codec: int) -> None:
    big = twin.batch([twin.record(0, 0, b"k", bytes(900))], codec=codec)
    window, batches = scanned(big + big)
    assert len(decode_records(window, batches, limit=1000)) == 2
    with raises_error(CorruptRecordError, about="800 bytes", advice=DECOMPRESSION_LIMIT_SETTING):
        decode_records(window, batches, limit=800)


def test_the_headers_of_a_record_without_any() -> None:
    columns = decode_records(*scanned(twin.batch([ONE])))
    assert columns.headers(0) == []
    assert columns.data[int(columns.headers_start[0]) - 1] == 0


def test_a_truncated_header_count_cannot_read_into_the_next_batch() -> None:
    body = sized(b"\0\0\0\1\1" + b"\x80")
    log = twin.batch([], body=body, count=1, last_delta=0) + struct.pack(">q", 1) * 20
    window = array(log)
    batches = scanned(log[: 61 + len(body)])[1]
    with raises_error(CorruptRecordError, about="varint"):
        decode_records(window, batches)
