"""Clients that talk to the test broker: librdkafka through confluent-kafka, and Kafka's own console tools.

librdkafka checks CRCs and tells the end of a partition; the Java tools stand for Kafka's own decoder and
producer. Every wait has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.kafka.records import Headers, Partition, Record, Sent
from tests.support.kafka.toolbox import run_tool

CLIENT_TIMEOUT_S = 60.0
FIELD = "\x1ffield\x1f"
LINE = "\x1fline\x1f"
HEADER = "\x1fheader\x1f"
NULL = "\x1fnull\x1f"


class ProducerState(NamedTuple):
    """What a broker remembers of an idempotent producer."""

    producer_id: int
    epoch: int
    last_sequence: int


def new_producer(
    bootstrap: str, *, codec: str = "none", idempotent: bool = False, **settings: object
) -> Producer:
    """A librdkafka producer; `settings` are its property names with underscores for dots."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "enable.idempotence": idempotent,
        "linger.ms": 5,
        "batch.num.messages": 20,
        "broker.address.family": "v4",
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    return Producer(config | {name.replace("_", "."): value for name, value in settings.items()})


def send(producer: Producer, topic: str, records: Iterable[Sent], partition: int = 0) -> list[int]:
    """Produce, wait for every acknowledgement, return the offsets in the order sent."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            errors.append(error or KafkaError(KafkaError.UNKNOWN))
        else:
            offsets.append(offset)

    pending = list(records)
    for record in pending:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            partition=partition,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            on_delivery=delivered,
        )
        producer.poll(0)
    producer.flush(CLIENT_TIMEOUT_S)
    if errors:
        raise KafkaException(errors[0])
    assert len(offsets) == len(pending), f"{topic}: {len(offsets)} of {len(pending)} records acknowledged"
    return offsets


def new_consumer(bootstrap: str, isolation: str = "read_uncommitted") -> Consumer:
    """A consumer that joins no group, checks CRCs and reports the end of a partition."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "broker.address.family": "v4",
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )


def consume(
    bootstrap: str, partitions: Iterable[Partition], isolation: str = "read_uncommitted"
) -> dict[Partition, list[Record]]:
    """Every record of each partition from its log start to its end, CRCs checked."""
    records: dict[Partition, list[Record]] = {partition: [] for partition in partitions}
    unfinished = set(records)
    consumer = new_consumer(bootstrap, isolation)
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in records])
        while unfinished:
            assert time.monotonic() < deadline, f"no end of {sorted(unfinished)} in {CLIENT_TIMEOUT_S:g} s"
            for message in consumer.consume(500, timeout=0.2):
                _take(message, records, unfinished)
    finally:
        consumer.close()
    return records


def watermarks(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """Log start offset and high watermark."""
    consumer = new_consumer(bootstrap)
    try:
        marks = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CLIENT_TIMEOUT_S)
    finally:
        consumer.close()
    assert marks is not None, f"{topic}-{partition}: no watermarks"
    low, high = marks
    return low, high


def consume_java(
    bootstrap: str, topics: Sequence[str], count: int, isolation: str = "read_uncommitted"
) -> list[tuple[int, Record]]:
    """`count` records of `topics` as Kafka's console consumer reads them: (partition, record).

    Each partition is in order. Stops after `count` records, or when 20 s bring none. One too many shows as
    another one missing at the end.
    """
    shown = ("timestamp", "partition", "offset", "headers", "key", "value")
    properties = {f"print.{name}": "true" for name in shown}
    properties |= {
        "key.separator": FIELD,
        "line.separator": LINE,
        "headers.separator": HEADER,
        "null.literal": NULL,
    }
    arguments = ["--bootstrap-server", bootstrap, "--from-beginning", "--include", "|".join(topics)]
    arguments += ["--max-messages", str(count), "--timeout-ms", "20000", "--isolation-level", isolation]
    arguments += ["--command-property", "check.crcs=true"]
    for name, value in properties.items():
        arguments += ["--formatter-property", f"{name}={value}"]
    completed = run_tool("kafka-console-consumer", *arguments)
    assert completed.code == 0, f"console consumer: exit code {completed.code}: {completed.err[-2000:]}"
    return [_console_record(line) for line in completed.stdout.split(LINE.encode())[:-1]]


def produce_java(bootstrap: str, topic: str, records: Iterable[Sent], *, codec: str) -> None:
    """Send keys and values (text, no tab or newline) with Kafka's own producer, idempotent; time is now."""
    null = NULL.encode()
    lines = [
        b"%b\t%b" % (record.key or b"", null if record.value is None else record.value) for record in records
    ]
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec]
    arguments += ["--batch-size", "2000", "--timeout", "5", "--request-timeout-ms", "30000"]
    for setting in ("parse.key=true", f"null.marker={NULL}"):
        arguments += ["--reader-property", setting]
    completed = run_tool("kafka-console-producer", *arguments, stdin=b"\n".join(lines) + b"\n")
    assert completed.code == 0, f"console producer: {completed.err[-2000:]}"


def describe_producers(bootstrap: str, topic: str, partition: int = 0) -> list[ProducerState]:
    """The idempotent producers that the broker remembers for a partition."""
    arguments = [
        "--bootstrap-server",
        bootstrap,
        "describe-producers",
        "--topic",
        topic,
        "--partition",
        str(partition),
    ]
    completed = run_tool("kafka-transactions", *arguments)
    assert completed.code == 0, f"describe-producers: {completed.err[-2000:]}"
    names, *rows = [line.split() for line in completed.out.splitlines() if line.strip()]
    columns = [names.index(name) for name in ("ProducerId", "ProducerEpoch", "LastSequence")]
    return sorted(ProducerState(*(int(row[column]) for column in columns)) for row in rows)


def _take(message: Message, records: dict[Partition, list[Record]], unfinished: set[Partition]) -> None:
    topic, number, error = message.topic(), message.partition(), message.error()
    assert topic is not None and number is not None
    if error is None:
        records[topic, number].append(_record(message))
    elif error.code() == KafkaError._PARTITION_EOF:
        unfinished.discard((topic, number))
    else:
        raise KafkaException(error)


def _record(message: Message) -> Record:
    kind, timestamp_ms = message.timestamp()
    headers = tuple(cast(list[tuple[str, bytes | None]], message.headers() or []))
    offset = message.offset()
    assert offset is not None and kind != TIMESTAMP_NOT_AVAILABLE
    return Record(offset, timestamp_ms, _bytes(message.key()), _bytes(message.value()), headers)


def _bytes(value: str | bytes | None) -> bytes | None:
    assert not isinstance(value, str)
    return value


def _console_record(line: bytes) -> tuple[int, Record]:
    timestamp, partition, offset, headers, key, value = line.split(FIELD.encode())
    record = Record(
        int(offset.removeprefix(b"Offset:")),
        int(timestamp.partition(b":")[2]),
        _null(key),
        _null(value),
        _console_headers(headers),
    )
    return int(partition.removeprefix(b"Partition:")), record


def _console_headers(text: bytes) -> Headers:
    if text == b"NO_HEADERS":
        return ()
    pairs = (pair.partition(b":") for pair in text.split(HEADER.encode()))
    return tuple((name.decode(), _null(value)) for name, _, value in pairs)


def _null(field: bytes) -> bytes | None:
    return None if field == NULL.encode() else field
