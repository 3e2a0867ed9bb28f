"""Batches whose codec is not the topic's are made anew, and say the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.base.codec_table import CODECS
from siltstone.base.config import LogConfig
from siltstone.base.errors import MessageTooLargeError
from siltstone.base.records.control import end_transaction_marker
from siltstone.log.validation import Origin
from tests.support.cleaning.logs import Rec, records_in
from tests.support.log.appending import LARGE, append, assert_in_order, assert_refused
from tests.support.log.batches import TIME, of_records, sent
from tests.support.records import twin


def test_each_codec_with_levels_has_a_setting_for_its_level() -> None:
    """Recompression reads it by name: without it, an append would fail."""
    settings = {f"compression_{codec.name}_level": codec.levels.default for codec in CODECS if codec.levels}
    assert {name: getattr(LogConfig(), name) for name in settings} == settings


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_batch_is_recompressed_with_the_topics_codec(count: int, compression: str, codec: int) -> None:
    records = [
        Rec(
            offset=i,
            key=None if i % 5 == 0 else b"k%d" % i,
            value=None if i % 3 == 0 else b"v" * i,
            timestamp=TIME + 7 * i,
            headers=((b"h", None), (b"", b"x")) if i % 2 else (),
        )
        for i in range(count)
    ]
    shape = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 5, "transactional": True}
    data = of_records(records, codec=codec, **shape)
    before = data.tobytes()
    validated = append(data, compression_type=compression)
    topics_codec = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[compression]
    row = validated.batches[0]
    assert row["attributes"] & 7 == topics_codec
    assert (row["producer_id"], row["producer_epoch"], row["base_sequence"]) == (9, 2, 5)
    assert (row["base_offset"], row["leader_epoch"], row["count"]) == (1000, 7, count)
    assert row["attributes"] & 16
    assert_in_order(validated)
    expected = [
        replace(record, size=0, offset=record.offset - 1000)
        for record in records_in(validated.data.tobytes())
    ]
    assert expected == [
        twin.Record(offset=r.offset, timestamp=r.timestamp, key=r.key, value=r.value, headers=r.headers)
        for r in records
    ]
    if topics_codec != codec:
        assert data.tobytes() == before
    else:
        assert validated.data is data


@pytest.mark.parametrize(
    ("compression", "fast", "small"), [("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -100, 19)]
)
def test_the_topics_compression_level_is_used(compression: str, fast: int, small: int) -> None:
    words = b"so many words that are almost the same, but not in this order: "
    value = b"".join(words[i % 40 :] + words[: i * 7 % 60] for i in range(900))
    data = of_records([Rec(offset=0, key=b"k", value=value, timestamp=TIME)])
    sizes = [
        len(
            append(
                data.copy(), compression_type=compression, **{f"compression_{compression}_level": level}
            ).data
        )
        for level in (fast, small)
    ]
    assert sizes[0] > sizes[1]


def test_a_recompressed_batch_has_the_log_append_time() -> None:
    validated = append(sent(3, first_time=5), compression_type="zstd", message_timestamp_type="LogAppendTime")
    assert {record.timestamp for record in records_in(validated.data.tobytes())} == {TIME}
    assert_in_order(validated)


def test_control_batches_are_never_compressed() -> None:
    marker = end_transaction_marker(
        is_commit=False, producer_id=3, producer_epoch=0, coordinator_epoch=1, timestamp_ms=TIME
    )
    validated = append(marker, origin=Origin.COORDINATOR, compression_type="gzip")
    assert validated.data is marker


def test_the_size_counts_after_recompression_too() -> None:
    data = of_records([Rec(offset=0, key=b"k", value=b"x" * 5000, timestamp=TIME)], codec=4)
    assert_refused(
        data,
        MessageTooLargeError,
        "max.message.bytes=500",
        max_message_bytes=500,
        compression_type="uncompressed",
    )
