"""Snapshots that hide an open transaction: no committed value goes for one that may yet be aborted."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, UNCLEANABLE, LogResult
from siltstone.log.names import segment_file
from siltstone.log.producers import ProducerEntry, write_snapshot
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one
from tests.support.cleaning.transactional import data, marker, write_index

OPEN = {0: [one(0, "a", "committed")], 1: [data(1, 7, "a", "open")], 2: [one(2, "z")], 3: [one(3, "z")]}


def forge(partition: Path, offset: int) -> None:
    """A sound snapshot of a log in which producer 7 has nothing open."""
    nothing_open = ProducerEntry(
        producer_id=7,
        producer_epoch=0,
        last_sequence=0,
        last_offset=1,
        offset_delta=0,
        timestamp_ms=logs.RECORD_TIME,
        coordinator_epoch=0,
        open_transaction_offset=-1,
    )
    (partition / segment_file(offset, "snapshot")).write_bytes(write_snapshot([nothing_open]))


def values_of(partition: Path, key: bytes) -> list[bytes | None]:
    records = [record for data in logs.logs_of(partition).values() for record in logs.records_in(data)]
    return [record.value for record in records if record.key == key]


def clean(partition: Path, *, spread: bool = False) -> LogResult:
    limits, buckets = (RunLimits(whole_log_bytes=0), 3) if spread else (RunLimits(), 1)
    return logs.run(
        partition.parent,
        config={"segment.bytes": 100},
        engine=lambda: InProcessEngine(buckets),
        limits=limits,
    )


def test_a_snapshot_beyond_the_end_does_not_count(tmp_path: Path) -> None:
    partition = logs.write_log(tmp_path / "log", OPEN)
    for offset in (5, 100):
        forge(partition, offset)
        assert clean(partition).status in (CLEANED, NOTHING_TO_DO)
        assert values_of(partition, b"a") == [b"committed", b"open"]


@pytest.mark.parametrize("spread", [False, True])
def test_a_snapshot_that_leaves_a_transaction_out_does_not_hide_the_transaction(
    tmp_path: Path, spread: bool
) -> None:
    """Its data is read in any case, and there is no marker, below the cleaned range's end or above."""
    partition = logs.write_log(tmp_path / "log", OPEN)
    forge(partition, 3)
    before = logs.logs_of(partition)
    result = clean(partition, spread=spread)
    assert result.status == UNCLEANABLE
    assert result.reason is not None
    assert "producer 7 has transactional data below offset 3 and no marker" in result.reason
    assert logs.logs_of(partition) == before


@pytest.mark.parametrize("spread", [False, True])
def test_a_marker_above_the_cleaned_range_decides_the_transaction(tmp_path: Path, spread: bool) -> None:
    """Begun below, ended above: committed counts, aborted without an index does not."""
    for name, commit in (("committed", True), ("aborted", False)):
        log = {**OPEN, 3: [one(3, "z"), marker(4, 8, commit=False), marker(5, 7, commit=commit)]}
        partition = logs.write_log(tmp_path / name, {**log, 6: [one(6, "y")], 7: [one(7, "x")]})
        logs.write_checkpoint(partition.parent / "replication-offset-checkpoint", {("topic", 0): 3})
        result = clean(partition, spread=spread)
        if commit:
            assert result.status == CLEANED
            assert values_of(partition, b"a") == [b"open"]
        else:
            assert result.status == UNCLEANABLE and "aborted" in str(result.reason)
            assert values_of(partition, b"a") == [b"committed", b"open"]


@pytest.mark.parametrize("marker_at", [4, 5])
def test_an_abort_listed_above_the_cleaned_range_needs_its_marker(tmp_path: Path, marker_at: int) -> None:
    log = {**OPEN, 3: [one(3, "z"), marker(4, 7, commit=False), one(5, "z")], 6: [one(6, "z")]}
    partition = logs.write_log(tmp_path / "log", log, high_watermark=3)
    write_index(partition, 3, (7, 1, marker_at, marker_at + 1))
    result = clean(partition)
    assert result.status == (CLEANED if marker_at == 4 else UNCLEANABLE)
    assert values_of(partition, b"a") == ([b"committed"] if marker_at == 4 else [b"committed", b"open"])
