"""Other clients than librdkafka and Java's against the broker: kafka-python, aiokafka.

Each makes a topic, produces with every codec that it knows, reads with assigned partitions. One that is not
installed is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.commands.served import Served, ServeOptions

pytestmark = [
    pytest.mark.long,
    # Clients leave sockets to the garbage collector, and call what newer Pythons warn of.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

COUNT = 30
TIME_MS = 1_600_000_000_000
SECONDS = 60
Row = tuple[int, int, bytes, bytes | None]
"""Offset, time, key, value."""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for all clients."""
    path: Path = tmp_path_factory.mktemp("broker")
    with (
        Served(ServeOptions(paths=(path / "logs",), creates=True, engine="process")) as served,
        BrokerServer(served, [BrokerListener(port=0)]) as server,
    ):
        server.start()
        yield f"{server.addresses[0].host}:{server.addresses[0].port}"


def sent(codec: str) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of one producer, a tombstone among them."""
    name = codec.encode()
    return [(b"%s %d" % (name, n), None if n % 7 == 3 else name * n) for n in range(COUNT)]


def rows_of(codecs: list[str]) -> list[Row]:
    """What is read of a partition to which one producer after another has sent its records."""
    records = [record for codec in codecs for record in sent(codec)]
    return [(place, TIME_MS + place, key, value) for place, (key, value) in enumerate(records)]


def test_kafka_python(bootstrap: str) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    admin_of: Any = pytest.importorskip("kafka.admin")
    admin = admin_of.KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([admin_of.NewTopic("kafka-python", 2, 1)])
    from kafka import codec as libraries

    codecs = [
        "",
        *(name for name in ("gzip", "snappy", "lz4", "zstd") if getattr(libraries, f"has_{name}")()),
    ]
    place = 0
    for idempotent in (True, False):
        for codec in codecs:
            producer = kafka.KafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=codec or None,
                acks="all",
                enable_idempotence=idempotent,
                linger_ms=5,
            )
            answers = []
            for key, value in sent(codec):
                answers.append(producer.send("kafka-python", value, key, None, 1, TIME_MS + place))
                place += 1
            producer.flush(SECONDS)
            assert [answer.get(SECONDS).offset for answer in answers] == list(range(place - COUNT, place))
            producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, consumer_timeout_ms=2000, auto_offset_reset="earliest"
    )
    partition = kafka.TopicPartition("kafka-python", 1)
    consumer.assign([partition])
    rows = [(record.offset, record.timestamp, record.key, record.value) for record in consumer]
    assert rows == rows_of([*codecs, *codecs])
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: place}
    assert consumer.offsets_for_times({partition: TIME_MS + 7})[partition].offset == 7
    consumer.close()
    admin.delete_topics(["kafka-python"])
    assert "kafka-python" not in admin.list_topics()
    admin.close()


def test_aiokafka(bootstrap: str) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")
    admin_of: Any = pytest.importorskip("aiokafka.admin")

    async def use() -> None:
        admin = admin_of.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([admin_of.NewTopic("aiokafka", 2, 1)])
        codecs = ["", "gzip", "snappy", "lz4", "zstd"]
        place = 0
        for idempotent in (True, False):
            for codec in codecs:
                producer = aiokafka.AIOKafkaProducer(
                    bootstrap_servers=bootstrap, compression_type=codec or None, enable_idempotence=idempotent
                )
                async with producer:
                    for key, value in sent(codec):
                        answer = await producer.send_and_wait(
                            "aiokafka", value, key, partition=1, timestamp_ms=TIME_MS + place
                        )
                        assert answer.offset == place
                        place += 1
        for isolation in ("read_uncommitted", "read_committed"):
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
            )
            async with consumer:
                partition = aiokafka.TopicPartition("aiokafka", 1)
                consumer.assign([partition])
                records = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(place)]
                rows = [(record.offset, record.timestamp, record.key, record.value) for record in records]
                assert rows == rows_of([*codecs, *codecs])
                assert await consumer.end_offsets([partition]) == {partition: place}
                times = await consumer.offsets_for_times({partition: TIME_MS + 7})
                assert times[partition].offset == 7
        await admin.delete_topics(["aiokafka"])
        assert "aiokafka" not in await admin.list_topics()
        await admin.close()

    asyncio.run(use())


OLD_CONFLUENT = os.environ.get("SILTSTONE_OLD_CONFLUENT")
"""The Python of an environment with confluent-kafka 1.x, which has no wheel for Python 3.11 and later."""
_OLD_PROGRAM = """
import json, sys
from confluent_kafka import Consumer, Producer, TopicPartition, version
from confluent_kafka.admin import AdminClient, NewTopic

server, count, time_ms, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
admin = AdminClient({"bootstrap.servers": server})
admin.create_topics([NewTopic("old", 2, 1)])["old"].result(seconds)
places, failures = [], []
def delivered(error, message):
    failures.append(str(error)) if error else places.append(message.offset())
for idempotent in (True, False):
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": server, "compression.codec": codec,
                             "enable.idempotence": idempotent, "linger.ms": 5})
        for number in range(count):
            at = len(places) + number
            producer.produce("old", b"%d" % at, b"k", 1, delivered, timestamp=time_ms + at)
        assert producer.flush(seconds) == 0
consumer = Consumer({"bootstrap.servers": server, "group.id": "none", "enable.auto.commit": False,
                     "isolation.level": "read_committed"})
consumer.assign([TopicPartition("old", 1, 0)])
rows = []
while len(rows) < len(places):
    message = consumer.poll(seconds)
    assert message is not None and message.error() is None, message and message.error()
    rows.append([message.offset(), message.timestamp()[1] - time_ms, message.value().decode()])
ends = consumer.get_watermark_offsets(TopicPartition("old", 1), timeout=seconds)
(at_time,) = consumer.offsets_for_times([TopicPartition("old", 1, time_ms + 7)], timeout=seconds)
consumer.close()
admin.delete_topics(["old"])["old"].result(seconds)
print(json.dumps([version()[0], places, failures, rows, ends, at_time.offset]))
"""


def test_confluent_kafka_1(bootstrap: str) -> None:
    if OLD_CONFLUENT is None:
        pytest.skip("SILTSTONE_OLD_CONFLUENT names no Python with confluent-kafka 1.x")
    command = [OLD_CONFLUENT, "-c", _OLD_PROGRAM, bootstrap, str(COUNT), str(TIME_MS), str(SECONDS)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    completed = subprocess.run(
        command, capture_output=True, timeout=5 * SECONDS, check=False, env=environment
    )
    assert completed.returncode == 0, completed.stderr.decode()
    version, places, failures, rows, ends, offset_at_time = json.loads(completed.stdout)
    total = 10 * COUNT
    assert version.startswith("1.")
    assert (places, failures) == (list(range(total)), [])
    assert rows == [[place, place, str(place)] for place in range(total)]
    assert (ends, offset_at_time) == ([0, total], 7)
