"""librdkafka against the broker: what it produces, and what consumers with assigned partitions read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.validation import Origin
from tests.support.cleaning.transactional import marker
from tests.support.log.batches import TIME, array, sent

kafka = pytest.importorskip("confluent_kafka")
live_client = pytest.importorskip("siltstone.commands.live_client")
SECONDS = 30.0
"""How long a client may take."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    """One broker for all tests here."""
    path: Path = tmp_path_factory.mktemp("broker")
    with (
        Served(ServeOptions(paths=(path / "logs",), creates=True, engine="process")) as served,
        BrokerServer(served, [BrokerListener(port=0)]) as server,
    ):
        server.start()
        yield server


@pytest.fixture
def topic(server: BrokerServer, request: pytest.FixtureRequest) -> str:
    """A new topic with two partitions."""
    name = f"t{abs(hash(request.node.name))}"
    server.broker.manager.topics.create(name, 2)
    return name


def log_of(server: BrokerServer, topic: str, partition: int = 0) -> PartitionLog:
    return server.broker.manager[topic, partition]


def settings(server: BrokerServer, **more: Any) -> dict[str, Any]:
    address = server.addresses[0]
    return {
        "bootstrap.servers": f"{address.host}:{address.port}",
        "log_level": 0,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def consumer_of(server: BrokerServer, **more: Any) -> Any:
    """A consumer that commits nothing: this broker has no groups yet."""
    return kafka.Consumer(
        settings(server, group_id="g", enable_auto_commit=False, auto_offset_reset="earliest", **more)
    )


def consumed(server: BrokerServer, topic: str, count: int, **more: Any) -> list[Any]:
    """So many messages of both partitions from their starts on, and one poll more, which finds none."""
    consumer = consumer_of(server, fetch_wait_max_ms=20, **more)
    consumer.assign([kafka.TopicPartition(topic, number, 0) for number in range(2)])
    try:
        messages: list[Any] = []
        until = time.monotonic() + SECONDS
        while len(messages) < count and time.monotonic() < until:
            messages += consumer.consume(count - len(messages), 1.0)
        assert [message.error() for message in messages if message.error()] == []
        return messages + [message for message in consumer.consume(1, 0.05) if not message.error()]
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_an_idempotent_producer_sends_is_read_in_order(
    server: BrokerServer, topic: str, codec: str
) -> None:
    producer = kafka.Producer(
        settings(server, enable_idempotence=True, compression_type=codec, linger_ms=1, batch_num_messages=50)
    )
    delivered = list[tuple[int, int, bytes]]()

    def note(error: object, message: Any) -> None:
        assert error is None
        delivered.append((message.partition(), message.offset(), message.value()))

    for number in range(300):
        producer.produce(topic, b"value %d" % number, b"key %d" % number, number % 2, on_delivery=note)
    assert producer.flush(SECONDS) == 0
    messages = consumed(server, topic, 300)
    rows = [(message.partition(), message.offset(), message.value()) for message in messages]
    assert sorted(rows) == sorted(delivered)
    for partition in range(2):
        values = [value for where, _, value in rows if where == partition]
        assert values == [b"value %d" % number for number in range(partition, 300, 2)]
        assert log_of(server, topic, partition).log_end_offset == 150


def test_a_consumer_at_the_end_gets_what_comes(server: BrokerServer, topic: str) -> None:
    log = log_of(server, topic)
    log.append(sent())
    consumer = consumer_of(server, fetch_wait_max_ms=20_000)
    consumer.assign([kafka.TopicPartition(topic, 0, 1)])
    purgatory, until = server.broker.purgatory, time.monotonic() + SECONDS
    while not purgatory.parked and time.monotonic() < until:
        assert consumer.consume(1, 0.02) == []
    log.append(sent(2))
    messages = consumer.consume(2, SECONDS)
    assert [message.offset() for message in messages] == [1, 2]
    consumer.close()


def test_read_committed(server: BrokerServer, topic: str) -> None:
    log = log_of(server, topic)
    for producer_id, is_commit in ((7, False), (8, True)):
        log.append(sent(2, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True))
        log.append(array(marker(0, producer_id, commit=is_commit)), origin=Origin.COORDINATOR)
    log.append(sent(producer_id=7, producer_epoch=0, base_sequence=2, transactional=True))
    committed = consumed(server, topic, 2, isolation_level="read_committed")
    assert [message.offset() for message in committed] == [3, 4]
    everything = consumed(server, topic, 5, isolation_level="read_uncommitted")
    assert [message.offset() for message in everything] == [0, 1, 3, 4, 6]


def test_offsets_by_time_and_watermarks(server: BrokerServer, topic: str) -> None:
    log = log_of(server, topic)
    log.append(sent(5))
    log.append(sent(5, first_time=TIME + 1000))
    log.delete_records(2)
    consumer = consumer_of(server)
    assert consumer.get_watermark_offsets(kafka.TopicPartition(topic, 0), SECONDS) == (2, 10)
    times = [kafka.TopicPartition(topic, 0, TIME + 3), kafka.TopicPartition(topic, 1, TIME)]
    offsets = consumer.offsets_for_times(times, SECONDS)
    assert [(row.partition, row.offset, row.error) for row in offsets] == [(0, 3, None), (1, -1, None)]
    consumer.close()


def test_an_offset_out_of_range_is_reset(server: BrokerServer, topic: str) -> None:
    log = log_of(server, topic)
    log.append(sent(5))
    log.delete_records(3)
    consumer = consumer_of(server)
    consumer.assign([kafka.TopicPartition(topic, 0, 1)])
    (message,) = consumer.consume(1, SECONDS)
    assert (message.error(), message.offset()) == (None, 3)
    consumer.close()


def test_a_batch_that_is_too_large_fails_alone(server: BrokerServer) -> None:
    server.broker.manager.topics.create("small", config={"max.message.bytes": "1000"})
    producer = kafka.Producer(settings(server, linger_ms=0))
    errors = list[tuple[int, object]]()

    def note(error: Any, message: Any) -> None:
        errors.append((len(message.value()), None if error is None else error.name()))

    for size in (100, 5000, 100):
        producer.produce("small", bytes(size), on_delivery=note)
        producer.flush(SECONDS)
    assert errors == [(100, None), (5000, "MSG_SIZE_TOO_LARGE"), (100, None)]


def test_a_read_back_of_a_log_whose_first_records_are_deleted_meanwhile_reads_the_others(
    server: BrokerServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's default is to go on at the end, where nothing is superseded: it would be "cleaned"."""
    for number in range(12):
        server.broker.manager.send(topic, b"%d" % number, key=b"k", partition=0)

    class Delayed(kafka.Consumer):  # type: ignore[misc, name-defined]
        def get_watermark_offsets(self, *arguments: Any, **more: Any) -> tuple[int, int]:
            start, end = super().get_watermark_offsets(*arguments, **more)
            server.broker.manager.delete_records(TopicPartition(topic, 0), 4)
            return start, end

    monkeypatch.setattr(live_client, "Consumer", Delayed)
    admin = live_client.KafkaAdmin(settings(server)["bootstrap.servers"], {})
    counted = admin.read_back(topic, 0)
    assert (counted.start, counted.end, counted.records, counted.superseded) == (0, 12, 8, 7)
