"""``siltstone compact`` on a running Kafka: compacted now, settings as before, nothing appended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.commands import live
from siltstone.commands.live_client import KafkaAdmin
from tests.support.command_line import Command
from tests.support.kafka.broker import Broker, HostedBroker
from tests.support.kafka.polling import poll_until
from tests.support.kafka.records import Sent

pytestmark = pytest.mark.kafka

CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0", "segment.bytes": "1048576"}
"""With a ratio of 1.0 Kafka never cleans: it would have to be exceeded."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An empty Kafka."""
    with HostedBroker(tmp_path_factory.mktemp("live") / "logs") as broker:
        yield broker


def test_a_running_kafka_is_compacted_and_keeps_its_settings(
    broker: Broker, siltstone: Command, tmp_path: Path
) -> None:
    for topic in ("by-files", "by-reading"):
        broker.create_topic(topic, configs=CONFIGS)
        # 44 superseded records in closed segments; after them keys that do not repeat.
        keys = [b"%d" % (number if number > 50 else number % 7) for number in range(80)]
        broker.produce(topic, [Sent(key=key, value=bytes(60_000)) for key in keys])
    admin = KafkaAdmin(broker.bootstrap, {})
    before = {topic: admin.settings(topic) for topic in ("by-files", "by-reading")}
    server = ("--bootstrap-server", broker.bootstrap, "--journal", tmp_path / "journal", "--json")
    dry = siltstone("compact", *server, "--topic", "by-files", "--dry-run")
    assert dry.status == 0, dry.err
    (partition,) = dry.document["partitions"]
    assert (partition["status"], partition["after"]["superseded"]) == (live.TIMED_OUT, 44)
    assert admin.settings("by-files") == before["by-files"]

    by_files = ("--topic", "by-files", "--log-dir", broker.log_dirs[0])
    result = siltstone("compact", *server, *by_files)
    assert result.status == 0, result.err
    (partition,) = result.document["partitions"]
    assert partition["cleaned_to"] == partition["active_from"] > 0
    retained = broker.consume_all("by-files")
    assert len(retained) == len({record.key for record in retained}) == 36
    assert broker.end_offset("by-files") == 80

    by_reading = ("--topic", "by-reading", "--timeout", "80")
    result = siltstone("compact", *server, *by_reading)
    assert result.status == 0, result.err
    (partition,) = result.document["partitions"]
    assert partition["status"] == live.CLEANED
    assert (partition["before"]["superseded"], partition["after"]["superseded"]) == (44, 0)
    assert {topic: admin.settings(topic) for topic in before} == before
    assert not (tmp_path / "journal").exists()


def test_settings_are_restored_after_a_run_that_a_signal_ends(
    broker: Broker, siltstone: Command, tmp_path: Path
) -> None:
    """All records are in the active segment, so that the run waits until it is ended."""
    journal = tmp_path / "journal"
    broker.create_topic("active", configs=CONFIGS | {"segment.ms": "500000"})
    broker.produce("active", [Sent(key=b"key", value=b"value") for _ in range(9)])
    admin = KafkaAdmin(broker.bootstrap, {})
    before = admin.settings("active")
    flags = ["--bootstrap-server", broker.bootstrap, "--journal", str(journal)]
    command = [str(Path(sys.executable).parent / "siltstone"), "compact"]
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        with subprocess.Popen([*command, *flags, "--topic", "active"], stderr=subprocess.PIPE) as process:
            poll_until(
                lambda: admin.settings("active")["segment.ms"].value == "1000" or None,
                what="our settings",
                timeout_s=60,
            )
            process.send_signal(number)
            assert process.wait(60) == status
        assert journal.exists() == (number == signal.SIGKILL)
        if number == signal.SIGKILL:
            assert admin.settings("active") != before
            result = siltstone("compact", *flags, "--restore")
            assert result.status == 0, result.err
        poll_until(lambda: admin.settings("active") == before or None, what="the old settings", timeout_s=10)
    assert not journal.exists()
    assert broker.end_offset("active") == 9
