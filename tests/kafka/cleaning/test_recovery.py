"""Kafka's recovery of what our cleaning left, as after a crash, agrees with us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import clients, tools
from tests.support.kafka.broker import HostedBroker
from tests.support.kafka.logdir import CLEAN_MARKER, copy_of
from tests.support.kafka.scenario import PARTITIONS, Written

pytestmark = pytest.mark.kafka


def test_recovery_by_kafka_rebuilds_the_same_state(cleaned: Path, written: Written, tmp_path: Path) -> None:
    """As after a crash, with no recovery point: Kafka scans our batches, rebuilds every index and snapshot.

    The idempotent producers' sequences then come from the batches alone, the empty ones of cleaning included.
    """
    log_dir = copy_of(cleaned, tmp_path / "logs")
    (log_dir / CLEAN_MARKER).unlink()
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    for snapshot in log_dir.glob("[!_]*/*.snapshot"):
        snapshot.unlink()
    with HostedBroker(log_dir) as broker:
        records = broker.consume_many(PARTITIONS)
        ends = {partition: broker.end_offset(*partition) for partition in PARTITIONS}
        producers = clients.describe_producers(broker.bootstrap, "idempotent")
    assert records == {partition: written.expected(partition) for partition in PARTITIONS}
    assert ends == {partition: written.records[partition][-1].offset + 1 for partition in PARTITIONS}
    assert producers == written.producers
    tools.assert_dump_clean(*(log_dir / f"{topic}-{number}" for topic, number in PARTITIONS))
