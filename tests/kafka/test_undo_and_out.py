"""`--keep-originals` with `undo` gives the broker its records back; `--out` leaves the source as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import siltstone_command, tools
from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import cleaner_checkpoint, copy_of, listing, stray_files
from tests.support.kafka.scenario import BYSTANDER, COMPACTED_TOPICS, PARTITIONS, Written

pytestmark = pytest.mark.kafka

ALL = [*PARTITIONS, (BYSTANDER, 0)]


def test_undo_gives_the_originals_back(written: Written, tmp_path: Path) -> None:
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    keep = tmp_path / "keep"
    report = siltstone_command.report_of(
        siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--in-place", "--keep-originals", keep)
    )
    assert any(log["removed"]["superseded"] for log in report.values())
    (run,) = keep.iterdir()
    undone = siltstone_command.run_siltstone("undo", run)
    assert undone.returncode == 0, undone.stderr
    for topic, number in PARTITIONS:
        folder = f"{topic}-{number}"
        assert listing(log_dir / folder) == listing(written.log_dir / folder)
        assert cleaner_checkpoint(log_dir, topic, number) == cleaner_checkpoint(
            written.log_dir, topic, number
        )
    assert stray_files(log_dir) == []
    with Broker(log_dir) as broker:
        assert broker.consume_many(ALL) == {partition: written.records[partition] for partition in ALL}


def test_broker_starts_on_the_cleaned_copy(written: Written, tmp_path: Path) -> None:
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    before, out = listing(log_dir), tmp_path / "out"
    siltstone_command.report_of(siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--out", out))
    assert listing(log_dir) == before
    tools.assert_dump_clean(*(out / f"{topic}-{number}" for topic, number in PARTITIONS))
    with Broker(out) as broker:
        served = broker.consume_many(ALL)
    assert served == {
        **{partition: written.expected(partition) for partition in PARTITIONS},
        (BYSTANDER, 0): written.records[BYSTANDER, 0],
    }
