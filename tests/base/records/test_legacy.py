"""Message sets of magic 0 and 1: plain, wrapped and damaged, against the twin."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import BatchHeaders
from siltstone.base.records.legacy import LEGACY_REASON
from tests.support.records import twin
from tests.support.records.arrays import complete_headers, records_of, scanned

MAGICS = (0, 1)
CODECS = (twin.GZIP, twin.SNAPPY, twin.LZ4)


def expected_records(log: bytes) -> list[twin.Record]:
    return [record for entry in twin.decode_log(log) for record in entry.records]


def plain_entries(magic: int, first: int = 0) -> bytes:
    """Five plain entries with nulls and empties; offsets with gaps."""
    parts = [(b"key", b"value"), (None, b"v"), (b"k", None), (b"", b""), (None, None)]
    return b"".join(
        twin.message(first + 3 * index, key, value, magic=magic, timestamp=100 - index)
        for index, (key, value) in enumerate(parts)
    )


def wrapped(magic: int, codec: int, relative: Sequence[int] = (0, 1, 2), last: int = 2, **more: int) -> bytes:
    """A wrapper whose inner offsets are given as they are stored."""
    inner = b"".join(
        twin.message(offset, b"k%d" % offset, bytes(50), magic=magic, timestamp=1000 + offset)
        for offset in relative
    )
    return twin.wrapper(last, inner, codec, magic=magic, **more)


@pytest.mark.parametrize("magic", MAGICS)
def test_plain_entries_stay_where_they_are(magic: int) -> None:
    log = plain_entries(magic)
    window, batches = scanned(log)
    columns = decode_records(window, batches)
    assert columns.data is window
    assert records_of(columns) == expected_records(log)
    assert columns.batch.tolist() == [0, 1, 2, 3, 4]
    assert columns.start.tolist() == batches["position"].tolist()
    assert columns.size.tolist() == batches["size"].tolist()
    assert columns.timestamp.tolist() == ([100, 99, 98, 97, 96] if magic else [-1] * 5)


def test_types_are_those_of_the_modern_columns() -> None:
    for log in (plain_entries(1), wrapped(1, twin.GZIP)):
        columns = decode_records(*scanned(log))
        for name in RecordColumns.__dataclass_fields__:
            want = np.uint8 if name == "data" else np.int64 if name in ("offset", "timestamp") else np.int32
            assert getattr(columns, name).dtype == want, name
        assert not columns.headers_start.any()
        assert not columns.header_count.any()


def test_an_empty_window_has_no_entries() -> None:
    assert len(decode_records(*scanned(b""))) == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", MAGICS)
def test_wrapped_messages_span_their_own_entries(magic: int, codec: int) -> None:
    log = wrapped(magic, codec)
    columns = decode_records(*scanned(log))
    assert records_of(columns) == expected_records(log)
    assert columns.offset.tolist() == [0, 1, 2]
    for row in range(3):
        start, size = int(columns.start[row]), int(columns.size[row])
        entry = twin.message(row, b"k%d" % row, bytes(50), magic=magic, timestamp=1000 + row)
        assert columns.data[start : start + size].tobytes() == entry


@pytest.mark.parametrize(
    ("relative", "last", "absolute"),
    [
        ((0, 1, 2), 1002, [1000, 1001, 1002]),
        ((0, 2, 9), 1009, [1000, 1002, 1009]),
        ((4, 6), 1006, [1004, 1006]),
        ((7,), 7, [7]),
        ((0,), 2**62, [2**62]),
    ],
)
def test_relative_offsets_of_magic_1(relative: tuple[int, ...], last: int, absolute: list[int]) -> None:
    log = wrapped(1, twin.SNAPPY, relative, last)
    columns = decode_records(*scanned(log))
    assert columns.offset.tolist() == absolute
    assert records_of(columns) == expected_records(log)


def test_absolute_offsets_of_magic_0() -> None:
    columns = decode_records(*scanned(wrapped(0, twin.LZ4, (1000, 1003, 1007), 1007)))
    assert columns.offset.tolist() == [1000, 1003, 1007]
    assert columns.timestamp.tolist() == [-1] * 3


def test_create_time_is_the_messages_and_log_append_time_the_wrappers() -> None:
    create = decode_records(*scanned(wrapped(1, twin.GZIP, timestamp=5555)))
    append = decode_records(*scanned(wrapped(1, twin.GZIP, timestamp=5555, attributes=twin.LOG_APPEND)))
    assert create.timestamp.tolist() == [1000, 1001, 1002]
    assert append.timestamp.tolist() == [5555] * 3


def test_messages_of_the_other_magic_inside_a_wrapper() -> None:
    inner = twin.message(0, b"a", b"1", magic=0) + twin.message(1, b"b", b"2", magic=1, timestamp=9)
    for magic in MAGICS:
        log = twin.wrapper(1, inner, twin.GZIP, magic=magic)
        columns = decode_records(*scanned(log))
        assert columns.timestamp.tolist() == [-1, 9]
        assert records_of(columns) == expected_records(log)


def test_the_smallest_message_ends_a_set() -> None:
    smallest = twin.message(1, None, None, magic=0)
    assert len(smallest) == 26
    log = twin.wrapper(1, twin.message(0, b"a", b"1", magic=0) + smallest, twin.GZIP, magic=0)
    columns = decode_records(*scanned(log))
    assert records_of(columns) == expected_records(log)
    assert [columns.key(row) for row in range(len(columns))] == [b"a", None]


def test_magic_0_knows_no_log_append_time() -> None:
    inner = twin.message(0, b"a", b"1", magic=1, timestamp=9)
    log = twin.wrapper(0, inner, twin.GZIP, magic=0, attributes=twin.LOG_APPEND)
    columns = decode_records(*scanned(log))
    assert columns.timestamp.tolist() == [9]
    assert records_of(columns) == expected_records(log)


@pytest.mark.parametrize("codec", [*CODECS, 4, 7])
def test_any_codec_inside_a_wrapper_is_nested(codec: int) -> None:
    inner = twin.message(0, None, b"data", magic=1, attributes=codec)
    check_refused(twin.wrapper(0, inner, twin.LZ4, magic=1), plain_entries(1), LEGACY_REASON[5])


def long_log() -> bytes:
    """Plain entries and wrappers of both magics and all codecs in turn."""
    parts, offset = [], 0
    for magic in MAGICS:
        for codec in CODECS:
            parts += [plain_entries(magic, offset), twin.message(offset + 13, b"p", b"q", magic=magic)]
            stored = (0, 1, 5) if magic else (offset + 14, offset + 15, offset + 19)
            parts += [wrapped(magic, codec, stored, offset + 19)]
            offset += 20
    return b"".join([*parts, wrapped(1, twin.GZIP, (0, 1), offset + 1)])


def test_plain_and_wrapped_in_one_window_in_log_order() -> None:
    log = b"\xee" * 40 + long_log()
    window, batches = scanned(log[40:])
    shifted = np.concatenate((np.full(40, 0xEE, np.uint8), window))
    batches["position"] += 40
    columns = decode_records(shifted, batches, Scratch(8))
    assert records_of(columns) == expected_records(log[40:])
    assert (np.diff(columns.offset) > 0).all()
    assert (np.diff(columns.batch) >= 0).all()


def test_a_scratch_is_used_again() -> None:
    scratch = Scratch(8)
    for log in (long_log(), wrapped(0, twin.LZ4), plain_entries(1), wrapped(1, twin.SNAPPY)):
        assert records_of(decode_records(*scanned(log), scratch)) == expected_records(log)


def test_headers_of_message_sets_can_be_completed() -> None:
    log = long_log()
    window, batches = scanned(log)
    complete = complete_headers(batches, decode_records(window, batches))
    want = [(len(entry.records), entry.first, entry.last) for entry in twin.decode_log(log)]
    rows = (complete[name].tolist() for name in ("count", "base_offset", "last_offset"))
    assert list(zip(*rows, strict=True)) == want
    assert batches["count"].tolist() == [-1] * len(want)


def fields(key_size: int, value_size: int, tail: bytes = b"") -> bytes:
    """A magic 0 entry with wrong sizes."""
    entry = bytearray(twin.message(0, b"key", b"value", magic=0, tail=tail))
    struct.pack_into(">i", entry, 18, key_size)
    struct.pack_into(">i", entry, 25, value_size)
    return bytes(entry)


BAD_FIELDS = {
    "key beyond": (1, fields(100, 5)),
    "huge key": (1, fields(2**31 - 1, 5)),
    "value beyond": (1, fields(3, 6)),
    "huge value": (1, fields(3, 2**31 - 1)),
    "value too short": (1, fields(3, 4)),
    "null value with bytes": (1, fields(3, -1)),
    "bytes behind": (1, fields(3, 5, b"\0")),
    "no room for a value size": (1, fields(8, 5)),
    "negative key size": (2, fields(-2, 5)),
    "negative value size": (2, fields(3, -2)),
    "smallest negative": (2, fields(3, -(2**31))),
}


def check_refused(log: bytes, good: bytes, reason: str, **more: int) -> None:
    window, batches = scanned(good + log)
    with pytest.raises(CorruptRecordError) as caught:
        decode_records(window, batches, path="00.log", origin=9000, **more)
    assert (caught.value.path, caught.value.position) == ("00.log", 9000 + len(good))
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_bad_fields_are_refused_in_entries_and_inside_wrappers(name: str) -> None:
    reason, entry = BAD_FIELDS[name]
    check_refused(entry, plain_entries(0), LEGACY_REASON[reason])
    check_refused(twin.wrapper(0, entry, twin.LZ4, magic=0), plain_entries(0), LEGACY_REASON[reason])


def inner_size(size: int, magic: int = 0) -> bytes:
    """A message with a wrong size field."""
    entry = bytearray(twin.message(0, b"key", b"value", magic=magic))
    struct.pack_into(">i", entry, 8, size)
    return bytes(entry)


GOOD = twin.message(0, b"k", b"v", magic=1)
BAD_SETS: dict[str, tuple[int, bytes]] = {
    "cut inner message": (3, GOOD + twin.message(1, b"k", b"v", magic=1)[:-1]),
    "cut inner header": (3, GOOD + GOOD[:11]),
    "too short for a message, whatever its magic byte": (3, GOOD + GOOD[:16] + b"\x07" + GOOD[17:20]),
    "inner size 0": (3, inner_size(0)),
    "negative inner size": (3, inner_size(-1)),
    "inner size below the smallest": (3, inner_size(21, magic=1)),
    "huge inner size": (3, inner_size(2**31 - 1)),
    "zeros": (3, bytes(4096)),
    "inner magic 2": (4, GOOD + GOOD[:16] + b"\x02" + GOOD[17:]),
    "inner magic 255": (4, GOOD[:16] + b"\xff" + GOOD[17:]),
    "nested": (5, wrapped(1, twin.GZIP)),
    "empty": (6, b""),
    "equal offsets": (7, GOOD + GOOD),
    "offsets that go back": (7, twin.message(3, b"k", b"v", magic=1) + GOOD),
    "negative offset": (7, twin.message(-1, b"k", b"v", magic=1)),
    "offset beyond the wrapper's": (7, twin.message(51, b"k", b"v", magic=1)),
    "largest offset": (7, twin.message(2**63 - 1, b"k", b"v", magic=1)),
}


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("name", BAD_SETS)
def test_bad_inner_sets_are_refused(name: str, magic: int) -> None:
    reason, inner = BAD_SETS[name]
    check_refused(twin.wrapper(50, inner, twin.GZIP, magic=magic), plain_entries(0), LEGACY_REASON[reason])


def test_every_reason_is_reached() -> None:
    reached = {reason for reason, _ in (*BAD_FIELDS.values(), *BAD_SETS.values())}
    assert reached | {8, 9} == set(range(1, len(LEGACY_REASON)))  # 8 and 9 have tests of their own


def test_an_offset_0_wrapper_with_several_messages_is_no_log_entry() -> None:
    check_refused(wrapped(1, twin.GZIP, (0, 1), 0), plain_entries(0), LEGACY_REASON[7])


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrapper_with_a_null_set_is_refused(codec: int) -> None:
    check_refused(twin.message(0, None, None, magic=1, attributes=codec), plain_entries(1), LEGACY_REASON[8])


@pytest.mark.parametrize("codec", [4, 5, 6, 7])
def test_codecs_that_message_sets_never_had_are_refused(codec: int) -> None:
    check_refused(
        twin.message(0, None, b"data", magic=1, attributes=codec), plain_entries(1), f"number {codec}"
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [b"", b"never compressed, this", b"\x82SNAPPY\0"])
def test_values_that_are_not_compressed_sets_are_refused(codec: int, value: bytes) -> None:
    window, batches = scanned(twin.message(0, None, value, magic=0, attributes=codec))
    with pytest.raises(CorruptRecordError):
        decode_records(window, batches)


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_each_sets(codec: int) -> None:
    log = wrapped(1, codec) + wrapped(1, codec, last=9)
    assert len(decode_records(*scanned(log), limit=400)) == 6
    check_refused(log, b"", "more than 200 bytes", limit=200)


def test_inner_checksums_are_not_verified() -> None:
    inner = bytearray(twin.message(0, b"k", b"v", magic=1) + twin.message(1, b"k", b"v", magic=1))
    inner[-1] ^= 1
    log = twin.wrapper(1, bytes(inner), twin.GZIP, magic=1)
    assert decode_records(*scanned(log)).value(1) == b"w"


def test_a_million_entries_create_no_object_for_each() -> None:
    one = np.frombuffer(twin.message(0, b"key", b"value", magic=1), np.uint8)
    window = np.tile(one, 1_000_000)
    batches = many(scanned(one.tobytes())[1], 1_000_000)
    columns = decode_records(window, batches)
    assert len(columns) == 1_000_000
    assert columns.value(999_999) == b"value"


def many(batches: BatchHeaders, count: int) -> BatchHeaders:
    """The one row repeated, each at its position."""
    rows = np.repeat(batches, count)
    rows["position"] = np.arange(count) * int(batches["size"][0])
    rows["base_offset"] = np.arange(count)
    return rows


def test_a_magic_0_wrapper_whose_offset_is_not_its_last_messages_is_refused() -> None:
    flipped = wrapped(0, twin.GZIP, (48, 49), 50)
    check_refused(flipped, plain_entries(0), LEGACY_REASON[7])
    relative = wrapped(1, twin.GZIP, (0, 1), 50)
    assert decode_records(*scanned(relative)).offset.tolist() == [49, 50]
