"""Sending to topics: Kafka's partitioner, serializers, batches; idempotent and transactional producers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import siltstone as st
from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    InvalidRecordError,
    OutOfOrderSequenceError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.build import NewBatchHeader
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.hashing import partition_for_key
from siltstone.log.names import TopicPartition
from siltstone.log.reading import LogReader
from siltstone.log.validation import Origin
from siltstone.runtime.producing import STICKY_BYTES, NewRecord, RecordProducer, batches_for
from tests.support.errors import raises_error
from tests.support.log.managed import NOW, opened

KEYS = [b"", b"a", b"ab", b"abc", b"123456789"]


def test_a_key_goes_to_the_partition_that_kafkas_clients_pick(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.topics.create("users", partitions=7)
        sent = [logs.send("users", b"1", key=key) for key in KEYS]
        sent += logs.send_many("users", [NewRecord(key=key) for key in KEYS])
        picked = [metadata.topic_partition.partition for metadata in sent]
        assert picked == [partition_for_key(key, 7) for key in KEYS] * 2


def test_records_without_a_key_stay_with_a_partition_for_a_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.topics.create("users", partitions=3)
        producer = RecordProducer(logs, choose=lambda numbers: numbers[0])
        value = bytes(STICKY_BYTES // 4)
        turns = [producer.send("users", value).topic_partition.partition for _ in range(12)]
        assert turns == [0] * 4 + [1] * 4 + [0] * 4
        fair = Counter(logs.send("users", value).topic_partition.partition for _ in range(400))
        assert set(fair) == {0, 1, 2}


def test_records_without_a_key_go_to_a_partition_whose_directory_is_in_service(tmp_path: Path) -> None:
    """As in Kafka, whose producer leaves partitions without a leader out."""
    with opened(tmp_path / "a", tmp_path / "b") as logs:
        logs.topics.create("users", partitions=4)
        producer = RecordProducer(logs, choose=lambda numbers: numbers[0])
        assert producer.send("users", b"1").topic_partition.partition == 0
        logs.directory_of(TopicPartition("users", 0)).go_offline("the disk is gone")
        value = bytes(STICKY_BYTES)
        turns = [producer.send("users", value).topic_partition.partition for _ in range(4)]
        assert set(turns) == {1, 3}
        with pytest.raises(StorageError):
            producer.send("users", b"1", key=next(key for key in KEYS if partition_for_key(key, 4) % 2 == 0))
        logs.directory_of(TopicPartition("users", 1)).go_offline("this one, too")
        with pytest.raises(StorageError):
            producer.send("users", b"1")


def test_many_records_become_few_batches_and_keep_their_order(tmp_path: Path) -> None:
    with opened(tmp_path, clock=ManualClock(NOW)) as logs:
        logs.topics.create("users", partitions=2)
        records = [NewRecord(key=b"%d" % (n % 5), value=b"%d" % n) for n in range(100)]
        sent = logs.send_many("users", records, sync=True)
        for metadata, record in zip(sent, records, strict=True):
            stored = next(iter(logs[metadata.topic_partition].records(metadata.offset)))
            assert (stored.key, stored.value, stored.timestamp) == (
                record.key,
                record.value,
                metadata.timestamp,
            )
        assert [log.recovery_point for log in logs["users"].logs()] == [
            log.log_end_offset for log in logs["users"].logs()
        ]
        batches = [sum(len(polled.batches) for polled in LogReader(log)) for log in logs["users"].logs()]
        assert batches == [1, 1]
        assert len(list(batches_for(logs["users", 0].config, [NewRecord(value=bytes(600_000))] * 3))) == 3
        logs.topics.alter("users", {"message.timestamp.type": "LogAppendTime"})
        assert logs.send("users", b"v", timestamp=NOW - 5).timestamp == NOW


def test_serializers_make_bytes_and_leave_null_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.topics.create("users", config={"cleanup.policy": "compact"})
        producer = logs.producer(
            key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode()
        )
        producer.send("users", {"age": 7}, key="anna", headers={"source": b"app"})
        producer.send("users", key="anna")
        producer.flush()
        assert [(record.key, record.value) for record in logs["users"]] == [
            (b"anna", b'{"age": 7}'),
            (b"anna", None),
        ]
        with raises_error(UsageError, about="value"):
            logs.producer(value_serializer=lambda value: value).send("users", "text", key=b"k")
        with pytest.raises(TypeError):
            producer.send("users", object(), key="anna")
        with pytest.raises(InvalidRecordError):
            logs.send("users", b"no key")
        assert logs["users", 0].log_end_offset == 2


def test_topics_and_partitions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        with pytest.raises(UnknownTopicError):
            logs.send("users", b"v")
        logs.topics.create("users", partitions=2)
        with raises_error(UnknownTopicError, about="2", advice="0, 1"):
            logs.send("users", b"v", partition=2)
        assert logs.send_many("users", []) == []
        logs.get_or_create(TopicPartition("part", 3))
        with raises_error(UsageError, about="3", advice="partition="):
            logs.send("part", b"v", key=b"k")
        assert logs.send("part", b"v", key=b"k", partition=3).offset == 0
    with pytest.raises((StorageError, UnknownTopicError)):
        logs.send("users", b"v")


def test_a_batch_that_an_idempotent_producer_sends_again_is_stored_once(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.topics.create("users")
        log, records = logs["users", 0], [NewRecord(value=b"1"), NewRecord(value=b"2")]
        shape = NewBatchHeader(producer_id=7, producer_epoch=0, base_sequence=0)
        assert not st.append(log, records, shape=shape, now_ms=NOW).is_duplicate
        assert st.append(log, records, shape=shape, now_ms=NOW).is_duplicate
        with pytest.raises(OutOfOrderSequenceError):
            st.append(log, records, shape=NewBatchHeader(producer_id=7, producer_epoch=0, base_sequence=9))
        assert log.log_end_offset == 2


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_once_its_marker_is_there(tmp_path: Path, commit: bool) -> None:
    with opened(tmp_path) as logs:
        logs.topics.create("users")
        log = logs["users", 0]
        shape = NewBatchHeader(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        st.append(log, [NewRecord(value=b"1")], shape=shape, now_ms=NOW)
        assert list(log.records(isolation="read_committed")) == [] and len(list(log)) == 1
        marker = end_transaction_marker(
            is_commit=commit, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW
        )
        log.append(marker, origin=Origin.COORDINATOR)
        assert len(list(log.records(isolation="read_committed"))) == int(commit)
