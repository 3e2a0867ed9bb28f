"""Siltstone's commands at a running Kafka: what they print is what they print for a directory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from tests.support.broker_commands import LINES, assert_alike
from tests.support.command_line import Command
from tests.support.kafka.broker import Broker
from tests.support.kafka.records import Sent

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An empty Kafka."""
    with Broker(tmp_path_factory.mktemp("kafka") / "logs") as broker:
        yield broker


@pytest.fixture
def run(siltstone: Command) -> Command:
    """Run a command line, with ``LINES`` as standard input."""
    return functools.partial(siltstone, stdin=LINES)


def test_the_output_at_a_kafka_is_that_of_its_directory(kafka: Broker, run: Command, tmp_path: Path) -> None:
    assert_alike(run, kafka.bootstrap, tmp_path)


def test_the_groups_of_a_kafka_are_listed(kafka: Broker, run: Command) -> None:
    kafka.create_topic("orders", 2)
    kafka.produce("orders", [Sent(key=b"k", value=b"v")] * 5)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "billing", "enable.auto.commit": False}
    )
    consumer.commit(offsets=[ClientPartition("orders", 0, 3)], asynchronous=False)
    consumer.close()
    result = run("groups", "--bootstrap-server", kafka.bootstrap)
    assert result.status == 0, result.err
    assert [line.split() for line in result.lines] == [
        "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID".split(),
        ["billing", "orders", "0", "3", "5", "2", "-", "-", "-"],
    ]
    assert run("groups", "--bootstrap-server", kafka.bootstrap, "--list").lines == ["billing"]
    (group,) = run("groups", "--bootstrap-server", kafka.bootstrap, "--json").document["groups"]
    assert (group["name"], group["type"], group["state"]) == ("billing", "Classic", "Empty")
    result = run("groups", "--bootstrap-server", kafka.bootstrap, "--group", "nope")
    assert (result.status, "(GROUP_ID_NOT_FOUND)" in result.err) == (1, True)
