"""Metadata records: what Kafka writes is read, and damage is refused, never taken for another record."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    Replicas,
    TopicRecord,
    UndecodableMessageError,
    decode_metadata,
    encode_config,
    encode_feature,
    encode_partition,
    encode_producer_ids,
    encode_quota,
    encode_topic,
)
from tests.support.records import frames
from tests.support.thoroughness import examples

SETTING = frames.topic_config("users", "cleanup.policy", "compact")


def test_each_record_is_read() -> None:
    assert decode_metadata(frames.topic("a.b", 7)) == TopicRecord("a.b", frames.topic_id(7))
    for version in (0, 2, 9):  # later fields do not matter
        partition = frames.frame(3, (5).to_bytes(4, "big") + bytes(15) + b"\x07more", version=version)
        assert decode_metadata(partition) == PartitionRecord(5, frames.topic_id(7))
    assert decode_metadata(frames.remove_topic(7)) == RemoveTopicRecord(frames.topic_id(7))
    assert decode_metadata(SETTING) == ConfigRecord(2, "users", "cleanup.policy", "compact")
    assert decode_metadata(frames.BEGIN) == BeginTransactionRecord()
    assert decode_metadata(frames.END) == EndTransactionRecord()
    assert decode_metadata(frames.ABORT) == AbortTransactionRecord()


def test_a_partitions_replicas_are_read() -> None:
    described = decode_metadata(frames.partition(5, 7, [3, -1, 2], [1], -1))
    assert described == PartitionRecord(5, frames.topic_id(7), Replicas((3, -1, 2), (1,), -1))
    leader = (-1).to_bytes(4, "big", signed=True)
    change = frames.partition_change(5, 7, {0: frames.int32s([]), 1: leader, 6: b"not known"})
    assert decode_metadata(change) == PartitionChangeRecord(
        5, frames.topic_id(7), Replicas(replicas=None, isr=(), leader=-1)
    )


@pytest.mark.parametrize("count", [1 << 31, 0xFFFFFFFF])
def test_an_array_longer_than_its_record_is_not_read(count: int) -> None:
    head = (5).to_bytes(4, "big") + bytes(15) + b"\x07"
    assert decode_metadata(frames.frame(3, head + frames.varint(count))) == PartitionRecord(
        5, frames.topic_id(7)
    )
    assert decode_metadata(frames.partition_change(5, 7, {2: frames.varint(count)})) is None


def test_null_and_the_empty_text_are_different_values() -> None:
    removed = decode_metadata(frames.topic_config("t", "retention.ms", None))
    empty = decode_metadata(frames.topic_config("t", "cleanup.policy", ""))
    assert isinstance(removed, ConfigRecord) and removed.value is None
    assert isinstance(empty, ConfigRecord) and empty.value == ""


def test_a_topic_and_a_setting_are_written_as_kafka_writes_them() -> None:
    assert encode_topic(TopicRecord("users", frames.topic_id(7))) == frames.topic("users", 7)
    assert encode_config(ConfigRecord(2, "users", "cleanup.policy", "compact")) == SETTING
    removed = frames.topic_config("users", "cleanup.policy", None)
    assert encode_config(ConfigRecord(2, "users", "cleanup.policy", None)) == removed


def test_other_records_are_written_as_kafka_writes_them() -> None:
    level = (25).to_bytes(2, "big")
    assert encode_feature("metadata.version", 25) == frames.frame(12, frames.text("metadata.version") + level)
    ids = (1).to_bytes(4, "big") + b"\xff" * 8 + (7000).to_bytes(8, "big")
    assert encode_producer_ids(ProducerIdsRecord(7000), broker=1) == frames.frame(15, ids)
    user, default = frames.text("user") + frames.text("ada"), frames.text("client-id") + frames.text(None)
    for value, written in ((5.0, struct.pack(">d", 5.0) + b"\0"), (None, bytes(8) + b"\1")):
        quota = ClientQuotaRecord((("user", "ada"), ("client-id", None)), "producer_byte_rate", value)
        parts = b"\x03" + user + b"\0" + default + b"\0" + frames.text("producer_byte_rate") + written
        assert encode_quota(quota) == frames.frame(14, parts)


def test_a_partition_is_written_as_kafka_writes_it_with_its_directory_since_version_1() -> None:
    start = (5).to_bytes(4, "big") + (7).to_bytes(16, "big")
    lists = frames.int32s([1]) + frames.int32s([1]) + frames.int32s([]) + frames.int32s([])
    body = start + lists + b"".join(number.to_bytes(4, "big") for number in (1, 3, 0))
    arguments: dict[str, Any] = {"broker": 1, "leader_epoch": 3}
    without = encode_partition(5, frames.topic_id(7), directory_id=None, **arguments)
    assert without == frames.frame(3, body)
    directories = b"\x02" + (9).to_bytes(16, "big")
    in_one = encode_partition(5, frames.topic_id(7), directory_id=frames.topic_id(9), **arguments)
    assert in_one == frames.frame(3, body + directories, version=1)


def test_an_id_is_written_as_in_partition_metadata() -> None:
    record = decode_metadata(frames.frame(2, frames.text("t") + b"\xff" * 16))
    assert record == TopicRecord("t", "_" * 21 + "w")


@pytest.mark.parametrize("api_key", [0, 3, 5, 12, 17, 20, 27, 28, 300])
def test_other_kinds_are_passed_over_whatever_they_hold(api_key: int) -> None:
    assert decode_metadata(frames.frame(api_key, b"\xff\x00garbage", version=3)) is None


def test_tagged_fields_are_passed_over() -> None:
    tags = (
        frames.varint(2) + frames.varint(0) + b"\x01x" + frames.varint(9000) + frames.varint(200) + b"y" * 200
    )
    assert decode_metadata(SETTING[:-1] + tags) == decode_metadata(SETTING)


@pytest.mark.parametrize(
    ("data", "position", "word"),
    [
        (b"", 0, "beyond"),
        (b"\x02" + SETTING[1:], 0, "frame version 2"),
        (frames.frame(4, SETTING[3:-1], version=1), 2, "ConfigRecord version 1"),
        (SETTING[:-3], 26, "beyond"),
        (SETTING + b"!", len(SETTING), "1 bytes"),
        (frames.frame(2, frames.text(None) + bytes(16)), 3, "null"),
        (frames.frame(2, b"\x03\xc3\x28" + bytes(16)), 4, "UTF-8"),
        (frames.frame(2, b"\xff" * 6), 3, "varint"),
        (frames.frame(2, b"\xff\xff\xff\xff\x0f" + bytes(20)), 8, "beyond"),
        (SETTING[:-1] + frames.varint(1 << 31), len(SETTING) + 4, "beyond"),
    ],
)
def test_damage_has_its_position_and_its_reason(data: bytes, position: int, word: str) -> None:
    with pytest.raises(UndecodableMessageError, match=word) as caught:
        decode_metadata(data)
    assert caught.value.position == position


@pytest.mark.parametrize("data", [SETTING, frames.topic("users", 1), frames.remove_topic(1), frames.BEGIN])
def test_every_cut_is_noticed(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(UndecodableMessageError):
            decode_metadata(data[:size])


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(st.binary(max_size=60))
def test_garbage_is_a_record_or_damage(data: bytes) -> None:
    for start in (b"", b"\x01\x02\x00", b"\x01\x04\x00", b"\x01\x17\x00"):
        try:
            decode_metadata(start + data)
        except UndecodableMessageError as error:
            assert 0 <= error.position <= len(start + data)
