"""One broker writes a directory, we clean it once, copies of both states serve the tests of this folder.

When its last test has ended, the broker is stopped: one that idles takes 4 % of a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import clients, siltstone_command
from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import copy_of
from tests.support.kafka.records import Partition, Record
from tests.support.kafka.scenario import (
    BYSTANDER,
    COMPACTED_TOPICS,
    MD5_PAIR_TOPIC,
    PARTITIONS,
    Served,
    Writer,
    Written,
    read_and_stop,
    write_idempotent,
    write_topics,
)


@pytest.fixture(scope="package")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    """A real broker in a process of its own writes every topic and is stopped by a signal."""
    root = tmp_path_factory.mktemp("writer")
    with Broker(root / "live") as broker:
        write_topics(broker)
        producer = clients.new_producer(broker.bootstrap, idempotent=True)
        write_idempotent(broker, producer)
        served = read_and_stop(broker)
        copied = copy_of(served.log_dir, root / "written")
        written = Written(log_dir=copied, records=served.records, producers=served.producers)
        yield Writer(broker=broker, producer=producer, written=written)


@pytest.fixture(scope="package")
def written(writer: Writer) -> Written:
    """The directory as the broker left it; copy it before use."""
    return writer.written


@pytest.fixture(scope="package")
def report(writer: Writer) -> dict[Partition, dict[str, Any]]:
    """`siltstone clean --in-place` on the writer's own directory: its report."""
    completed = siltstone_command.clean(writer.broker.log_dirs[0], COMPACTED_TOPICS, "--in-place")
    return siltstone_command.report_of(completed)


@pytest.fixture(scope="package")
def cleaned(writer: Writer, report: dict[Partition, dict[str, Any]]) -> Path:
    """The directory as our cleaning left it; copy it before use."""
    assert report, "nothing was cleaned"
    return copy_of(writer.broker.log_dirs[0], writer.written.log_dir.with_name("cleaned"))


@pytest.fixture(scope="package")
def served(writer: Writer, cleaned: Path) -> Served:
    """The writer's broker, started again on what we cleaned, same ports; `writer` stops it."""
    assert cleaned.exists()
    broker = writer.broker.start()
    partitions = [*PARTITIONS, (BYSTANDER, 0)]
    records = broker.consume_many(partitions)
    ends = {partition: broker.end_offset(*partition) for partition in partitions}
    return Served(broker=broker, producer=writer.producer, records=records, ends=ends)


@pytest.fixture(scope="package")
def served_by_java(served: Served, written: Written) -> dict[Partition, list[Record]]:
    """What Kafka's console consumer reads of every compacted topic; each key begins with its topic's name."""
    topics = [topic for topic in COMPACTED_TOPICS if topic != MD5_PAIR_TOPIC]
    partitions = [partition for partition in PARTITIONS if partition[0] in topics]
    count = sum(len(written.expected(partition)) for partition in partitions)
    records: dict[Partition, list[Record]] = {partition: [] for partition in partitions}
    for number, record in served.broker.consume_all_java(topics, count):
        topic = next(topic for topic in topics if (record.key or b"").startswith(topic.encode()))
        records[topic, number].append(record)
    return records
