"""A directory that a live broker holds is refused and left alone; once it has stopped, we clean it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import siltstone_command
from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import CLEAN_MARKER, FileState, closed_segments, copy_of
from tests.support.kafka.records import Partition
from tests.support.kafka.scenario import COMPACTED_TOPICS, PARTITIONS, Written

pytestmark = pytest.mark.kafka


def test_refused_while_the_broker_lives(written: Written, tmp_path: Path) -> None:
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    with Broker(log_dir) as broker:
        before = _closed(log_dir)
        refused = siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--in-place")
        assert _closed(log_dir) == before
        assert broker.consume_many(PARTITIONS) == {each: written.records[each] for each in PARTITIONS}
    assert refused.returncode not in (0, 2)
    lines = refused.stderr.strip().splitlines()
    assert len(lines) == 1, refused.stderr
    assert str(log_dir) in lines[0]
    assert "lock" in lines[0]
    assert (log_dir / CLEAN_MARKER).exists()
    report = siltstone_command.report_of(siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--in-place"))
    assert sorted(report) == sorted(PARTITIONS)


def _closed(log_dir: Path) -> dict[Partition, dict[str, FileState]]:
    return {(topic, number): closed_segments(log_dir, topic, number) for topic, number in PARTITIONS}
