"""`--out` leaves the source as it was, and a broker starts on the copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import siltstone_command, tools
from tests.support.kafka.broker import HostedBroker
from tests.support.kafka.logdir import copy_of, listing
from tests.support.kafka.scenario import BYSTANDER, COMPACTED_TOPICS, PARTITIONS, Written

pytestmark = pytest.mark.kafka

ALL = [*PARTITIONS, (BYSTANDER, 0)]


def test_broker_starts_on_the_cleaned_copy(written: Written, tmp_path: Path) -> None:
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    before, out = listing(log_dir), tmp_path / "out"
    completed = siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--out", out, engine="process")
    siltstone_command.report_of(completed)
    assert listing(log_dir) == before
    tools.assert_dump_clean(*(out / f"{topic}-{number}" for topic, number in PARTITIONS))
    with HostedBroker(out) as broker:
        served = broker.consume_many(ALL)
    assert served == {
        **{partition: written.expected(partition) for partition in PARTITIONS},
        (BYSTANDER, 0): written.records[BYSTANDER, 0],
    }
