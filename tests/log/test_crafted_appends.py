"""Crafted batches: what is refused leaves no trace, what is accepted is recovered and can be cleaned."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, LogConfig, parse_topic_config
from siltstone.base.errors import LogError
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import DELETE_HORIZON_BIT
from siltstone.base.records.scan import scan_batches
from siltstone.commands import clean as app
from siltstone.compaction.engine import InProcessEngine
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.recovery.partition import recover_partition
from tests.support.golden_sets import write_checkpoint
from tests.support.in_memory import FOLDER
from tests.support.log.crafted import TOPICS, Row, table
from tests.support.thoroughness import share

NOW = 1_800_000_000_000
KEEP_ALL = {"retention.ms": "-1"}
CLEANING = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0", "max.message.bytes=2000000")


def config_of(row: Row) -> LogConfig:
    return LogConfig.of(Config(parse_topic_config({**TOPICS[row.topic], **KEEP_ALL}, row.topic)))


def append_all(log: PartitionLog, row: Row) -> int:
    """How many of a row's batches were accepted; the others have changed nothing."""
    accepted = 0
    for data in row.sent:
        buffer, before = bytearray(data), (log.size, log.log_end_offset)
        try:
            appended = log.append(buffer)
        except LogError:
            assert bytes(buffer) == data, row.name
            assert (log.size, log.log_end_offset) == before, row.name
            continue
        assert appended.trailing_bytes < len(data) - 61, row.name
        accepted += not appended.is_duplicate
        assert (log.size, log.log_end_offset) == before or not appended.is_duplicate, row.name
    return accepted


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FOLDER) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def accepted(folder: Path) -> dict[Path, Row]:
    """The partitions that anything was written to, as a crash leaves them: not closed, nothing synced."""
    rows = {}
    for number, row in enumerate(table(NOW - 60_000)):
        directory = folder / f"crafted-{number}"
        log = open_partition(directory, config_of(row), ManualClock(NOW))
        if append_all(log, row):
            log.roll()  # what is below the active segment can be cleaned
            rows[directory] = row
    assert len(rows) > 150
    return rows


def test_a_crash_costs_nothing_of_what_was_accepted(accepted: dict[Path, Row]) -> None:
    for directory, row in share(list(accepted.items()), 15):
        (segment,) = [path for path in directory.glob("*.log") if path.stat().st_size]
        before = segment.read_bytes()
        config = config_of(row)
        recovered = recover_partition(
            directory,
            had_clean_shutdown=False,
            recovery_point=0,
            log_start_offset=0,
            config=config,
            now_ms=NOW,
            check=True,
        )
        assert (recovered.truncated_bytes, recovered.damage, recovered.notes) == (0, (), ()), row.name
        assert segment.read_bytes() == before, row.name
        data = np.frombuffer(before, np.uint8)
        batches = scan_batches(data).batches
        columns = decode_records(data, batches)
        assert columns.offset.tolist() == list(range(recovered.log_end_offset)), row.name
        assert not (batches["attributes"] & DELETE_HORIZON_BIT).any(), row.name
        largest = [columns.timestamp[columns.batch == number].max() for number in range(len(batches))]
        assert batches["max_timestamp"].tolist() == [max(-1, time) for time in largest], row.name


def test_the_cleaner_takes_what_was_accepted(accepted: dict[Path, Row], folder: Path) -> None:
    for directory in set(folder.glob("crafted-*")) - set(accepted):
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
    (folder / "meta.properties").write_text("version=1\ncluster.id=tests\nnode.id=0\n")
    (folder / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    ends = {("crafted", int(directory.name.rpartition("-")[2])): 1 << 40 for directory in accepted}
    write_checkpoint(folder / "replication-offset-checkpoint", ends)
    request = app.CleanRequest(
        directories=[folder],
        in_place=True,
        topics=["crafted"],
        config=CLEANING,
        now_ms=NOW,
        drop_keyless=True,
    )
    results = app.clean(request, engine=lambda request, progress: InProcessEngine(1)).results
    assert len(results) == len(accepted)
    status = {accepted[Path(result.directory)].name: (result.status, result.reason) for result in results}
    assert status.pop("transactional of a producer without id")[0] == "nothing_to_do", "it stays open"
    assert {name: outcome for name, outcome in status.items() if outcome != ("cleaned", "")} == {}
