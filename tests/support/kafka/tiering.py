"""A real broker that tiers into a directory with Kafka's own `LocalTieredStorage`, and what it writes.

`python -m tests.support.kafka.tiering` makes `tests/data/tiered.tar.xz` anew.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.support.kafka import clients
from tests.support.kafka.broker import Broker, HostedBroker
from tests.support.kafka.jars import tiered_storage_libs
from tests.support.kafka.polling import poll_until
from tests.support.kafka.records import Record, Sent

TOPIC = "orders"
STORAGE = "kafka-tiered-storage"
"""The directory that LocalTieredStorage makes in its `dir`."""
UPLOAD_TIMEOUT_S = 60.0
TIME_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20
"""The smallest that Kafka 4 allows."""


def tiered_broker(root: Path) -> Broker:
    """A broker over `root/logs` that tiers into `root/tier`."""
    jars = tiered_storage_libs()
    return HostedBroker(
        root / "logs",
        **{
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": (
                "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
            ),
            "remote.log.storage.manager.class.path": f"{jars}/*",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "remote.log.manager.task.interval.ms": "500",
            "log.retention.check.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
            "rsm.config.dir": str(root / "tier"),
            "rsm.config.delete.on.close": "false",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        },
    )


def sent(first: int, count: int) -> list[Sent]:
    """Records that compress well; few keys."""
    return [
        Sent(
            key=b"key-%d" % (number % 50), value=(b"value %d " % number) * 100, timestamp_ms=1_700_000_000_000
        )
        for number in range(first, first + count)
    ]


def write_and_tier(broker: Broker) -> list[Record]:
    """Write a topic in two leader epochs, with transactions, until only its last segment is local, and stop.
    Returns what Kafka's broker gives a consumer of the whole topic, which reads committed records."""
    settings = {
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "segment.bytes": str(SEGMENT_BYTES),
        "retention.ms": "-1",
        "file.delete.delay.ms": "100",
    }
    broker.create_topic(TOPIC, 1, settings)
    broker.produce(TOPIC, sent(0, 1_500))
    producer = clients.new_producer(broker.bootstrap, idempotent=True, transactional_id="orders")
    producer.init_transactions(clients.CLIENT_TIMEOUT_S)
    for number, ends in enumerate((producer.abort_transaction, producer.commit_transaction)):
        producer.begin_transaction()
        clients.send(producer, TOPIC, sent(10_000 * (number + 1), 300))
        ends(clients.CLIENT_TIMEOUT_S)
    _wait(broker)
    broker.stop()
    broker.start()
    broker.produce(TOPIC, sent(30_000, 2_000))
    _wait(broker)
    records = clients.consume(broker.bootstrap, [(TOPIC, 0)], "read_committed")[TOPIC, 0]
    broker.stop()
    return records


def _wait(broker: Broker) -> None:
    """Until only the active segment is local."""
    partition = broker.log_dirs[0] / f"{TOPIC}-0"
    poll_until(
        lambda: len(list(partition.glob("*.log"))) == 1 or None,
        what=f"tiering of {TOPIC}",
        timeout_s=UPLOAD_TIMEOUT_S,
    )


def as_lines(records: Iterable[Record]) -> list[str]:
    """The records as JSON lines: offset, key, value."""
    return [
        json.dumps([record.offset, (record.key or b"").decode(), (record.value or b"").decode()])
        for record in records
    ]


def make_golden(target: Path) -> None:
    """Make the archive: the log directory, the storage, and what the broker gave a consumer."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        broker = tiered_broker(root).start()
        lines = as_lines(write_and_tier(broker))
        (root / "records.jsonl").write_text("\n".join(lines) + "\n")
        with tarfile.open(target, "w:xz", format=tarfile.PAX_FORMAT) as archive:
            for name in ("logs", "tier", "records.jsonl"):
                archive.add(root / name, f"tiered/{name}", filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without owners and locks."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if os.path.basename(member.name) == ".lock" else member


if __name__ == "__main__":
    make_golden(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("tests/data/tiered.tar.xz"))
