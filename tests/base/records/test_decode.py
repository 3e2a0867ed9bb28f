"""The one entry point: windows of one age and of both."""

from __future__ import annotations

import itertools

import pytest

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import DECOMPRESSION_LIMIT_SETTING, Scratch
from siltstone.base.records.decode import decode_records
from tests.support.errors import raises_error
from tests.support.records import twin
from tests.support.records.arrays import complete_headers, records_of, scanned

HEADERS = [(b"name", b"content"), (b"none", None)]


def modern(codec: int, base_offset: int) -> bytes:
    records = [twin.record(0, 1, b"m", b"modern"), twin.record(2, 2, None, None, HEADERS)]
    return twin.batch(records, base_offset=base_offset, last_delta=3, codec=codec)


def legacy(codec: int, base_offset: int) -> bytes:
    entry = twin.message(base_offset if not codec else 0, b"l", b"legacy", magic=1)
    return twin.wrapper(base_offset, entry, codec, magic=1) if codec else entry


def expected_records(log: bytes) -> list[twin.Record]:
    return [record for entry in twin.decode_log(log) for record in entry.records]


def test_an_empty_window() -> None:
    assert len(decode_records(*scanned(b""))) == 0


@pytest.mark.parametrize(("old", "new"), [*itertools.product((twin.NONE, twin.GZIP), (twin.NONE, twin.ZSTD))])
def test_both_ages_in_every_order(old: int, new: int) -> None:
    for order in itertools.product((0, 1), repeat=4):
        parts = [(modern(new, 10 * at), legacy(old, 10 * at))[kind] for at, kind in enumerate(order)]
        log = b"".join(parts)
        window, batches = scanned(log)
        columns = decode_records(window, batches, Scratch(8))
        assert records_of(columns) == expected_records(log)
        assert columns.batch.tolist() == [row for row, kind in enumerate(order) for _ in range(2 - kind)]
        if old == new == twin.NONE:
            assert columns.data is window


def test_spans_of_a_mixed_window_are_those_of_the_record() -> None:
    log = legacy(twin.SNAPPY, 0) + modern(twin.LZ4, 1) + legacy(twin.NONE, 9)
    columns = decode_records(*scanned(log))
    for row, inner in ((0, legacy(twin.NONE, 0)), (3, legacy(twin.NONE, 9))):
        start, size = int(columns.start[row]), int(columns.size[row])
        assert columns.data[start : start + size].tobytes() == inner
    assert columns.headers(2) == HEADERS


def test_batch_headers_of_a_mixed_window() -> None:
    log = legacy(twin.GZIP, 0) + modern(twin.NONE, 1)
    window, batches = scanned(log)
    complete = complete_headers(batches, decode_records(window, batches))
    assert complete["count"].tolist() == [1, 2]
    assert complete["last_offset"].tolist() == [0, 4]


@pytest.mark.parametrize("bad", [0, 1])
def test_errors_keep_their_place_in_a_mixed_window(bad: int) -> None:
    parts = [
        twin.message(5, None, b"no set", magic=1, attributes=twin.GZIP),
        twin.batch([], body=b"no records", count=1, last_delta=0, base_offset=6),
    ]
    good = [legacy(twin.NONE, 5), modern(twin.NONE, 6)]
    good[bad] = parts[bad]
    window, batches = scanned(b"".join(good))
    with raises_error(CorruptRecordError, path="p", position=1000 + bad * len(good[0])):
        decode_records(window, batches, path="p", origin=1000)


@pytest.mark.parametrize(
    "parts", [(legacy(1, 0), legacy(1, 9)), (modern(4, 0),), (legacy(1, 0), modern(4, 1))]
)
def test_the_limit_holds_for_every_age(parts: tuple[bytes, ...]) -> None:
    with raises_error(CorruptRecordError, about="20 bytes", advice=DECOMPRESSION_LIMIT_SETTING):
        decode_records(*scanned(b"".join(parts)), limit=20)
