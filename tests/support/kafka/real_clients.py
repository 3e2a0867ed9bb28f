"""Idempotent and transactional producers as people have them, and what a broker says of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from siltstone.log.fetch import MAX_TIMESTAMP
from tests.support.kafka import clients
from tests.support.kafka.broker import Broker
from tests.support.kafka.records import Partition, Sent, workload
from tests.support.kafka.scenario import start_ms
from tests.support.kafka.toolbox import run_tool


def write_topic(broker: Broker, topic: str) -> None:
    """Interleaved transactions of two librdkafka producers and idempotent batches; then a Java producer's.

    1160 records, 880 of them committed.
    """
    sent = iter(workload(seed=60, prefix=topic, count=1200, keys=100, start_ms=start_ms()))

    def some(producer: Producer) -> None:
        clients.send(producer, topic, [next(sent) for _ in range(20)])

    idempotent = clients.new_producer(broker.bootstrap, idempotent=True, codec="zstd")
    first, second = transactional(broker, "one"), transactional(broker, "other")
    for turn in range(8):
        first.begin_transaction()
        some(first)
        second.begin_transaction()
        some(second)
        some(idempotent)
        some(first)
        first.abort_transaction() if turn % 3 == 0 else first.commit_transaction()
        some(idempotent)
        some(second)
        second.commit_transaction() if turn % 2 == 0 else second.abort_transaction()
    arguments = ["--topic", topic, "--num-records", "200", "--record-size", "50", "--throughput", "2000"]
    arguments += ["--bootstrap-server", broker.bootstrap]
    arguments += ["--transactional-id", "java", "--transaction-duration-ms", "20"]
    completed = run_tool("kafka-producer-perf-test", *arguments)
    assert completed.code == 0, completed.err[-2000:]


def transactional(broker: Broker, name: str) -> Producer:
    producer = clients.new_producer(broker.bootstrap, idempotent=True, codec="lz4", transactional_id=name)
    producer.init_transactions(clients.CLIENT_TIMEOUT_S)
    return producer


def times(
    broker: Broker, partition: Partition, timestamps: Mapping[int, object]
) -> dict[int, tuple[int, int] | None]:
    """Offset and timestamp of the first record at or after each time, None where none is."""
    admin, places = broker.admin(), {}
    for time in timestamps:
        spec = OffsetSpec.max_timestamp() if time == MAX_TIMESTAMP else OffsetSpec.for_timestamp(time)
        topic_partition = TopicPartition(*partition)
        place = admin.list_offsets({topic_partition: spec})[topic_partition].result(clients.CLIENT_TIMEOUT_S)
        places[time] = None if place.offset < 0 else (place.offset, place.timestamp)
    return places


def ends(broker: Broker, partition: Partition) -> tuple[int, int, int]:
    """Log start, last stable offset, high watermark."""
    admin, topic_partition = broker.admin(), TopicPartition(*partition)
    listed = admin.list_offsets(
        {topic_partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
    )
    low, high = clients.watermarks(broker.bootstrap, *partition)
    return low, listed[topic_partition].result(clients.CLIENT_TIMEOUT_S).offset, high


def add_more(broker: Broker, topics: Iterable[str]) -> tuple[list[Sent], list[Sent]]:
    """To partition 0 of each topic, without transaction, committed, aborted: all of it, the not aborted."""
    sent = workload(seed=64, prefix="added", count=60, keys=10, start_ms=start_ms())
    producer = transactional(broker, "one")
    for topic in topics:
        broker.produce(topic, sent[:20], enable_idempotence=True)
        for commit, some in ((True, sent[20:40]), (False, sent[40:])):
            producer.begin_transaction()
            clients.send(producer, topic, some)
            producer.commit_transaction() if commit else producer.abort_transaction()
    return sent, sent[:40]
