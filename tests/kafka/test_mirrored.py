"""Topics go from a real Kafka to Siltstone's broker and back, by a loop of a consumer with ``assign`` and an
idempotent producer: keys, values, headers and timestamps stay byte for byte, and each record its place.

MirrorMaker does the same with consumer groups and internal topics of Connect, which this broker lacks yet.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from siltstone.broker.separate import BrokerProcess
from tests.support.kafka.broker import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.long]
SECONDS = 60.0
TOPIC, PARTITIONS, RECORDS = "mirrored", 3, 600
Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Offset, key, value, headers, timestamp in ms."""


def consumer_at(address: str) -> Consumer:
    """A consumer of all partitions from their starts; it needs no group."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    return consumer


def read(address: str) -> dict[int, list[Row]]:
    """All records of the topic, by partition."""
    rows: dict[int, list[Row]] = {number: [] for number in range(PARTITIONS)}
    consumer, ends = consumer_at(address), set[int]()
    while len(ends) < PARTITIONS:
        (message,) = consumer.consume(1, SECONDS)
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ends.add(message.partition())
            continue
        kind, timestamp = message.timestamp()
        assert kind == 1  # the producer's, not the broker's
        row = message.offset(), message.key(), message.value(), message.headers() or [], timestamp
        rows[message.partition()].append(row)
    consumer.close()
    return rows


def send(address: str, rows: dict[int, list[Row]], codec: str) -> None:
    """Send records to the partitions that they have, with their timestamps."""
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "compression.type": codec, "linger.ms": 5}
    )
    for number, partition in rows.items():
        for _, key, value, headers, timestamp in partition:
            producer.produce(
                TOPIC,
                value,
                key,
                number,
                on_delivery=lambda error, _: failed.append(error) if error else None,
                timestamp=timestamp,
                headers=headers,
            )
            producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failed


def some_rows(rng: random.Random, now_ms: int) -> dict[int, list[Row]]:
    """Records of every shape: without key, value or both, empty ones, bytes that are no text, headers that
    repeat a name or have no value, and timestamps in no order."""
    parts = (None, b"", b"\x00\xff\xfe", "käse".encode(), rng.randbytes(3_000))
    headers: tuple[list[tuple[str, bytes | None]], ...] = (
        [],
        [("a", b"1"), ("a", b"2"), ("b", None)],
        [("", b""), ("ü", rng.randbytes(200))],
    )
    return {
        number: [
            (
                offset,
                rng.choice(parts),
                rng.choice(parts),
                rng.choice(headers),
                now_ms - rng.randrange(10**9),
            )
            for offset in range(RECORDS)
        ]
        for number in range(PARTITIONS)
    }


def test_records_that_are_mirrored_to_siltstone_and_back_are_the_same(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "from") as theirs,
        Broker(tmp_path / "back") as again,
        BrokerProcess() as ours,
    ):
        for kafka in (theirs, again):
            kafka.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
        ours.topics.create(TOPIC, PARTITIONS, {"retention.ms": "-1"})
        written = some_rows(random.Random(27), ours.clock.now_ms())
        send(theirs.bootstrap, written, "zstd")
        assert read(theirs.bootstrap) == written
        send(ours.address, read(theirs.bootstrap), "lz4")
        assert read(ours.address) == written
        send(again.bootstrap, read(ours.address), "none")
        assert read(again.bootstrap) == written
