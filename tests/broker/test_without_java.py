"""`siltstone serve --config server.properties` on a machine without Java.

Topics are made, records are produced and read, internal and other topics are cleaned; Java is never started.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess

kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

SECONDS = 120.0
KEYS, ROUNDS = 5, 24
SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.roll.jitter.ms": "0",
}
OF_TOPIC = {"cleanup.policy": "compact", "segment.bytes": "2000", "file.delete.delay.ms": "0"}
TOPICS = ("users", "__consumer_offsets")
INTERNAL_WRITER = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""


@pytest.fixture
def machine(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """The environment of a machine whose ``java`` fails, and the file that it leaves when it is started."""
    folder, started = tmp_path / "bin", tmp_path / "java-was-started"
    folder.mkdir()
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n: > {started}\necho 'there is no Java here' >&2\nexit 1\n")
    java.chmod(0o755)
    others = {name: os.environ[name] for name in os.environ if not {"JAVA", "SPARK"} & set(name.split("_"))}
    environment = {**others, "PATH": str(folder)}
    assert subprocess.run(["java"], env=environment, check=False, capture_output=True).returncode == 1
    started.unlink()  # it does say when it was started
    return environment, started


def produce(bootstrap: str, topic: str) -> dict[bytes, bytes]:
    """A batch a round, each with all keys; the last value of each key."""
    producer = kafka.Producer(
        {"bootstrap.servers": bootstrap, "client.id": INTERNAL_WRITER, "log_level": 0, "linger.ms": 0}
    )
    last = dict[bytes, bytes]()
    for number in range(ROUNDS):
        for key in range(KEYS):
            last[b"%d" % key] = value = b"%d of %d " % (key, number) + b"x" * 40
            producer.produce(topic, value, b"%d" % key, 0)
        assert producer.flush(SECONDS) == 0
    return last


def records(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    """All records of a topic."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0}
    consumer = kafka.Consumer(
        {**settings, "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    )
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    rows = list[tuple[bytes, bytes]]()
    try:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is not None and message.error():
                return rows
            if message is not None:
                rows.append((message.key(), message.value()))
        raise AssertionError("the end was not reached")
    finally:
        consumer.close()


def until_cleaned(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    """The records of a topic, once a cleaning has removed most of what it has been sent."""
    until = time.monotonic() + SECONDS
    while len(rows := records(bootstrap, topic)) > KEYS * ROUNDS // 2:
        assert time.monotonic() < until, f"{topic} was not cleaned: {len(rows)} records"
    return rows


def test_a_broker_needs_no_java(tmp_path: Path, machine: tuple[dict[str, str], Path]) -> None:
    environment, started = machine
    broker = BrokerProcess(tmp_path / "logs", SETTINGS, flags=("--create",), environment=environment)
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        creations = admin.create_topics([NewTopic(topic, 1, 1, config=OF_TOPIC) for topic in TOPICS])
        assert [future.result(SECONDS) for future in creations.values()] == [None, None]
        last = {topic: produce(broker.bootstrap, topic) for topic in TOPICS}
        for topic in TOPICS:
            rows = until_cleaned(broker.bootstrap, topic)
            assert dict(rows) == last[topic]
        broker.stop()
    assert not started.exists(), "Java was started"
    assert "Traceback" not in broker.errors, broker.errors
