"""Transaction indexes built again from the log are Kafka's, byte for byte."""

from __future__ import annotations

from pathlib import Path

from siltstone.log.names import segment_file
from siltstone.log.producers import producer_state
from siltstone.log.segments import list_segments
from siltstone.log.snapshots import read_snapshot
from siltstone.log.transactions import OpenTransactions, rebuild_transaction_index


def kafkas(directory: Path, base_offset: int) -> bytes:
    path = directory / segment_file(base_offset, "txnindex")
    return path.read_bytes() if path.exists() else b""


def test_from_the_start_of_a_log(golden: Path) -> None:
    directory, opened, entries = golden / "txn" / "before", OpenTransactions(), 0
    for segment in list_segments(directory):
        rebuilt = rebuild_transaction_index(segment, opened)
        assert rebuilt == kafkas(directory, segment.base_offset)
        entries += len(rebuilt) // 34
    assert entries > 0


def test_from_the_snapshot_at_each_segment(golden: Path) -> None:
    directory = golden / "txn" / "before"
    for segment in list_segments(directory)[1:]:
        snapshot = (directory / segment_file(segment.base_offset, "snapshot")).read_bytes()
        opened = OpenTransactions.of(read_snapshot(snapshot))
        assert rebuild_transaction_index(segment, opened) == kafkas(directory, segment.base_offset)


def test_what_is_open_at_the_end_is_what_the_newest_snapshot_says(golden: Path) -> None:
    directory, opened = golden / "txn" / "before", OpenTransactions()
    segments = list_segments(directory)
    for segment in segments:
        rebuild_transaction_index(segment, opened)
    assert (
        min(opened.first_offsets.values(), default=None)
        == producer_state(directory, segments).first_open_transaction()
    )


def test_a_log_without_transactions_has_none(golden: Path) -> None:
    for segment in list_segments(golden / "basic" / "before"):
        assert rebuild_transaction_index(segment, OpenTransactions()) == b""
