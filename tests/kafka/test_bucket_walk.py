"""The walk of an operator: a broker's backup in a bucket is explained, cleaned into another bucket, verified
and restored, and a real Kafka serves it. Every step is a command, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.records import Sent
from tests.support.kafka.siltstone_command import run_siltstone
from tests.support.objects.store import s3_server

KEYS, RECORDS = 50, 600
SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",
    "internal.segment.bytes": "16384",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server() as url:
        for name, value in (
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        for bucket in ("backups", "cleaned"):
            httpx.put(f"{url}/{bucket}").raise_for_status()
        yield url


def siltstone(*arguments: str | Path) -> str:
    """What a command that must end well prints."""
    completed = run_siltstone(*arguments)
    assert completed.returncode == 0, (
        f"{arguments}: exit code {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
    )
    return completed.stdout


@pytest.mark.long  # test_backup.py and cleaning/test_out.py have its two halves
def test_a_backup_is_cleaned_in_buckets_and_a_kafka_serves_it(tmp_path: Path, server: str) -> None:
    logs, restored = tmp_path / "logs", tmp_path / "restored"
    before, after = "s3://backups/broker", "s3://cleaned/broker"
    with Broker(logs) as broker:
        broker.create_topic("users", 1, SETTINGS)
        broker.create_topic("events", 1, {})
        broker.produce(
            "users",
            [Sent(key=b"%d" % (number % KEYS), value=b"%0200d" % number) for number in range(RECORDS)],
        )
        broker.produce("events", [Sent(key=None, value=b"event")])
        users, events = broker.consume_all("users"), broker.consume_all("events")
    siltstone("backup", logs, before)
    explained = json.loads(siltstone("explain", before, "--engine", "process", "--force", "--json"))
    (log,) = [log for log in explained["logs"] if log["topic"] == "users"]
    cleaning = ("clean", before, "--out", after, "--engine", "process", "--force", "--json")
    report = json.loads(siltstone(*cleaning))
    (cleaned,) = [log for log in report["logs"] if log["topic"] == "users"]
    assert cleaned["status"] == "cleaned"
    assert cleaned["bytes_after"] < cleaned["bytes_before"] == log["bytes_before"]
    siltstone("verify", before, after, "--engine", "process")
    siltstone("restore", after, restored)
    with Broker(restored) as broker:
        served = broker.consume_all("users")
        assert broker.consume_all("events") == events
        assert broker.produce("users", [Sent(key=b"next", value=b"next")]) == [RECORDS]
    assert len(served) == cleaned["records_after"] < RECORDS
    assert [record for record in users if record in served] == served  # offsets, times, headers and order
    assert {record.key: record.value for record in served} == {record.key: record.value for record in users}
