"""The log directory that a real broker wrote for these tests, and what cleaning it must give.

Compacted topics with `min.cleanable.dirty.ratio=1.0`, which no log exceeds, so that the broker's own cleaner
leaves them to us. librdkafka compresses `codecs` (a partition for each codec); the broker's Java code
compresses `recompressed-*` (topic-level `compression.type`); Kafka's console producer writes `java`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from tests.support.kafka import clients, siltstone_command
from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import active_base, segment_bases
from tests.support.kafka.records import Partition, Record, Sent, compacted, workload

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECOMPRESSED = tuple(f"recompressed-{codec}" for codec in CODECS[1:])
MD5_PAIR_TOPIC = "md5-pair"
COMPACTED_TOPICS = ("codecs", *RECOMPRESSED, "java", "idempotent", "log-append", MD5_PAIR_TOPIC)
PARTITIONS: tuple[Partition, ...] = (
    *(("codecs", number) for number in range(len(CODECS))),
    *((topic, 0) for topic in COMPACTED_TOPICS[1:]),
)
BYSTANDER = "bystander"
MD5_PAIR_FILE = Path(__file__).resolve().parents[2] / "data" / "md5-pair.txt"
TOPIC_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",
    "internal.segment.bytes": str(siltstone_command.SEGMENT_BYTES),
    "segment.index.bytes": str(siltstone_command.SEGMENT_INDEX_BYTES),
    "index.interval.bytes": str(siltstone_command.INDEX_INTERVAL_BYTES),
}
RECORD_COUNT = 3000
KEY_COUNT = 300
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A cleanly stopped log directory, the records that its broker served, the producers that it knew."""

    log_dir: Path
    records: Mapping[Partition, list[Record]]
    producers: list[clients.ProducerState]

    def active_base(self, partition: Partition) -> int:
        """Where cleaning must end: the active segment's base."""
        return active_base(self.log_dir, *partition)

    def expected(self, partition: Partition) -> list[Record]:
        """The records that a first cleaning leaves, by the naive model."""
        return compacted(self.records[partition], self.active_base(partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The stopped broker whose directory `written` copies, and its producer that is still open."""

    broker: Broker
    producer: Producer
    written: Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A broker restarted on the directory that we cleaned, and what it served at once."""

    broker: Broker
    producer: Producer
    records: dict[Partition, list[Record]]
    ends: dict[Partition, int]


def start_ms() -> int:
    """Timestamps begin an hour ago: producers count as alive, and no time limit is near."""
    return int(time.time() * 1000) - HOUR_MS


def md5_pair() -> list[bytes]:
    """Two keys with the same MD5."""
    return [bytes.fromhex(line) for line in MD5_PAIR_FILE.read_text().split()]


def write_topics(broker: Broker) -> None:
    """Create and fill every topic but `idempotent`'s records."""
    now = start_ms()
    broker.create_topic("codecs", len(CODECS), TOPIC_CONFIG)
    for number, codec in enumerate(CODECS):
        broker.produce("codecs", _workload(f"codecs-{codec}", number, now), number, codec=codec)
    for number, topic in enumerate(RECOMPRESSED):
        broker.create_topic(topic, 1, {**TOPIC_CONFIG, "compression.type": topic.rpartition("-")[2]})
        broker.produce(topic, _workload(topic, 10 + number, now))
    broker.create_topic("log-append", 1, {**TOPIC_CONFIG, "message.timestamp.type": "LogAppendTime"})
    broker.produce("log-append", _workload("log-append", 20, now), codec="lz4")
    broker.create_topic(BYSTANDER, 1, {**TOPIC_CONFIG, "cleanup.policy": "delete"})
    broker.produce(BYSTANDER, _workload(BYSTANDER, 21, now))
    broker.create_topic("java", 1, TOPIC_CONFIG)
    clients.produce_java(broker.bootstrap, "java", _console_workload("java", 22, now), codec="snappy")
    _write_md5_pair(broker, now)


def write_idempotent(broker: Broker, producer: Producer) -> None:
    """`producer` writes first; another supersedes all its keys, so that its last batch must stay, empty."""
    now = start_ms()
    broker.create_topic("idempotent", 1, TOPIC_CONFIG)
    clients.send(producer, "idempotent", _workload("idempotent", 30, now)[:400])
    broker.produce("idempotent", _every_key("idempotent", now), enable_idempotence=True)
    broker.produce("idempotent", _workload("idempotent", 31, now), enable_idempotence=True)


def read_and_stop(broker: Broker) -> Written:
    """Note what the broker serves, then stop it cleanly."""
    records = broker.consume_many([*PARTITIONS, (BYSTANDER, 0)])
    producers = clients.describe_producers(broker.bootstrap, "idempotent")
    broker.stop()
    log_dir = broker.log_dirs[0]
    for topic, number in PARTITIONS:
        assert len(segment_bases(log_dir, topic, number)) >= 3, (
            f"{topic}-{number} has too few segments to clean"
        )
    return Written(log_dir=log_dir, records=records, producers=producers)


def _workload(prefix: str, seed: int, now: int) -> list[Sent]:
    return workload(seed=seed, prefix=prefix, count=RECORD_COUNT, keys=KEY_COUNT, start_ms=now)


def _console_workload(prefix: str, seed: int, now: int) -> list[Sent]:
    """What the console producer can send: text, no headers, no timestamp of its own."""
    sent = _workload(prefix, seed, now)
    return [
        Sent(record.key, None if record.value is None else record.value.hex().encode()) for record in sent
    ]


def _every_key(prefix: str, now: int) -> list[Sent]:
    return [Sent(f"{prefix}-key-{key:05d}".encode(), b"again" * 20, (), now) for key in range(KEY_COUNT)]


def _write_md5_pair(broker: Broker, now: int) -> None:
    broker.create_topic(MD5_PAIR_TOPIC, 1, TOPIC_CONFIG)
    pair = [Sent(key, b"value %d" % number, (), now) for number, key in enumerate(md5_pair())]
    broker.produce(MD5_PAIR_TOPIC, [*pair, *_workload(MD5_PAIR_TOPIC, 40, now)])
