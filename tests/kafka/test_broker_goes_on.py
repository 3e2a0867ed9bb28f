"""After our cleaning Kafka's cleaner goes on from our checkpoint, and its recovery agrees with us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import clients, tools
from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import CLEAN_MARKER, active_base, cleaner_checkpoint, copy_of
from tests.support.kafka.records import compacted, workload
from tests.support.kafka.scenario import CODECS, PARTITIONS, RECORD_COUNT, Written, start_ms

pytestmark = pytest.mark.kafka


def test_own_cleaner_begins_at_our_checkpoint(cleaned: Path, written: Written, tmp_path: Path) -> None:
    log_dir = copy_of(cleaned, tmp_path / "logs")
    ours = {number: cleaner_checkpoint(log_dir, "codecs", number) for number in range(len(CODECS))}
    with Broker(log_dir) as broker:
        for number, codec in enumerate(CODECS):
            more = workload(
                seed=50 + number, prefix=f"codecs-{codec}", count=RECORD_COUNT, keys=200, start_ms=start_ms()
            )
            broker.produce("codecs", more, number, codec=codec)
        before = broker.consume_many([("codecs", number) for number in ours])
        ends = {number: active_base(log_dir, "codecs", number) for number in ours}
        broker.alter_config("codecs", min_cleanable_dirty_ratio="0.0")
        for number, end in ends.items():
            broker.wait_for_cleaner("codecs", number, offset=end)
            assert broker.cleaner_ranges("codecs", number) == [(ours[number], end)]
        after = broker.consume_many(before)
    for partition, records in after.items():
        assert records == compacted(before[partition], ends[partition[1]])


def test_recovery_rebuilds_the_same(cleaned: Path, written: Written, tmp_path: Path) -> None:
    """As after a crash, with no recovery point: Kafka scans our batches, rebuilds every index and snapshot.

    The idempotent producers' sequences then come from the batches alone, the empty ones of cleaning included.
    """
    log_dir = copy_of(cleaned, tmp_path / "logs")
    (log_dir / CLEAN_MARKER).unlink()
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    for snapshot in log_dir.glob("[!_]*/*.snapshot"):
        snapshot.unlink()
    with Broker(log_dir) as broker:
        records = broker.consume_many(PARTITIONS)
        ends = {partition: broker.end_offset(*partition) for partition in PARTITIONS}
        producers = clients.describe_producers(broker.bootstrap, "idempotent")
    assert records == {partition: written.expected(partition) for partition in PARTITIONS}
    assert ends == {partition: written.records[partition][-1].offset + 1 for partition in PARTITIONS}
    assert producers == written.producers
    tools.assert_dump_clean(*(log_dir / f"{topic}-{number}" for topic, number in PARTITIONS))
