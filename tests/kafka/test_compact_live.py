"""``siltstone compact`` on a running Kafka: compacted now, settings as before, nothing appended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.commands import live
from siltstone.commands.live_client import KafkaAdmin
from tests.support.kafka import siltstone_command
from tests.support.kafka.broker import Broker
from tests.support.kafka.records import Sent

pytestmark = pytest.mark.kafka

CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.99", "segment.bytes": "1048576"}


def test_a_running_kafka(tmp_path: Path) -> None:
    with Broker(tmp_path / "logs") as broker:
        for topic in ("by-files", "by-reading"):
            broker.create_topic(topic, configs=CONFIGS)
            records = [Sent(key=b"%d" % (number % 7), value=bytes(60_000)) for number in range(50)]
            broker.produce(topic, records)
        admin = KafkaAdmin(broker.bootstrap, {})
        before = {topic: admin.settings(topic) for topic in ("by-files", "by-reading")}
        server = ("--bootstrap-server", broker.bootstrap, "--journal", tmp_path / "journal", "--json")
        dry = siltstone_command.run_siltstone("compact", *server, "--topic", "by-files", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert admin.settings("by-files") == before["by-files"]

        by_files = ("--topic", "by-files", "--log-dir", broker.log_dirs[0])
        done = siltstone_command.run_siltstone("compact", *server, *by_files)
        assert done.returncode == 0, done.stderr
        (partition,) = json.loads(done.stdout)["partitions"]
        assert partition["cleaned_to"] == partition["active_from"] > 0
        kept = broker.consume_all("by-files")
        below = [record for record in kept if record.offset < partition["active_from"]]
        assert len(below) == len({record.key for record in below}) == 7
        assert broker.end_offset("by-files") == 50

        by_reading = ("--topic", "by-reading", "--timeout", "80")
        done = siltstone_command.run_siltstone("compact", *server, *by_reading)
        assert done.returncode == 0, done.stderr
        (partition,) = json.loads(done.stdout)["partitions"]
        assert partition["status"] in (live.CLEANED, live.SETTLED)
        assert partition["after"]["superseded"] < partition["before"]["superseded"] == 43
        assert {topic: admin.settings(topic) for topic in before} == before
        assert not (tmp_path / "journal").exists()
