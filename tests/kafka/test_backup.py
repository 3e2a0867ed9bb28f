"""A real Kafka's directory goes to a bucket, live and stopped, and a Kafka starts on what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from siltstone.base import files
from siltstone.commands.backup import BackupRequest, backup, restore
from tests.support.kafka.broker import HostedBroker
from tests.support.kafka.records import Sent
from tests.support.objects.store import BUCKET, s3_server


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with s3_server() as url:
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        for name, value in (
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        files.configure({})
        yield Path(f"s3://{BUCKET}/broker")


def contents(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_a_kafka_starts_on_a_restored_directory(tmp_path: Path, target: Path) -> None:
    logs = tmp_path / "logs"
    with HostedBroker(logs) as broker:
        broker.create_topic("users", 2, {"cleanup.policy": "compact"})
        sent = [Sent(key=b"%d" % number, value=b"value %d" % number) for number in range(500)]
        assert broker.produce("users", sent)[-1] == 499
        live = backup(BackupRequest(directories=(logs,), target=target, is_live=True))
        broker.produce("users", [Sent(key=b"late", value=b"late")])
        records = broker.consume_all("users")
    stopped = backup(BackupRequest(directories=(logs,), target=target))
    assert stopped.new_bytes < live.bytes
    assert not restore(target, tmp_path / "whole").needs_recovery
    assert contents(tmp_path / "whole") == contents(logs)  # byte for byte what the broker stopped with
    assert restore(target, tmp_path / "live", at=live.backup_id).needs_recovery
    with HostedBroker(tmp_path / "live") as restored:
        assert restored.consume_all("users") == records[:-1]
        assert restored.end_offset("users", 1) == 0
        assert restored.produce("users", [Sent(key=b"next", value=b"next")]) == [500]
