"""Segments whose offsets are too far apart for an index: found, split and cleaned, or left and named."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.config import INT_MAX, LogConfig
from siltstone.base.errors import CorruptRecordError
from siltstone.compaction.inplace.destination import DryRun
from siltstone.compaction.report import CLEANED, SKIPPED, UNCLEANABLE
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.overflow import overflowed_segments, split_overflowed_segment
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from siltstone.log.segments import list_segments
from tests.support.cleaning.logs import NOW, WHERE, logs_of, offsets, one, run, tree, write_log
from tests.support.errors import raises_error
from tests.support.log.index_checks import check_indexes
from tests.support.log.overflowed import FAR, WIDE, wide_log
from tests.support.records import twin


def test_only_closed_segments_are_found_to_be_overflowed(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    assert [segment.base_offset for segment in overflowed_segments(list_segments(partition))] == [0]
    near = wide_log(tmp_path / "near", [0, INT_MAX])
    assert overflowed_segments(list_segments(near)) == []


@pytest.mark.parametrize(
    ("at", "bases"), [(WIDE, [0, FAR, 2 * FAR + INT_MAX]), ([FAR, FAR + 1], [FAR]), ([0, FAR], [0, FAR])]
)
def test_a_split_keeps_every_byte(tmp_path: Path, at: list[int], bases: list[int]) -> None:
    partition = wide_log(tmp_path, at)
    entries = np.array([(0, 1, at[0], offset, offset + 1) for offset in at], TRANSACTION_ENTRY)
    (partition / f"{0:020d}.txnindex").write_bytes(entries.tobytes())
    (source, active), before = list_segments(partition), logs_of(partition)
    assert split_overflowed_segment(partition, source, index_interval=4096, index_bytes=1 << 20) == bases
    after = logs_of(partition)
    assert b"".join(after[base] for base in bases) == before[0]
    assert sorted(after) == [*bases, active.base_offset]
    segments = list_segments(partition)
    assert overflowed_segments(segments) == []
    assert {segment.modified_ns for segment in segments[:-1]} == {source.modified_ns}
    indexes = [(partition / f"{base:020d}.txnindex").read_bytes() for base in bases]
    assert b"".join(indexes) == entries.tobytes()
    check_indexes(partition)
    assert not [name for name in tree(partition) if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert not (partition / ".siltstone").exists()


def wrapped(offsets: list[int], magic: int) -> bytes:
    """A compressed message set with messages at these offsets."""
    first = offsets[0] if magic else 0  # inner offsets are relative in v1
    inner = b"".join(twin.message(offset - first, b"k%d" % offset, b"v", magic=magic) for offset in offsets)
    return twin.wrapper(offsets[-1], inner, 1, magic=magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_new_segment_that_begins_with_a_message_set_is_named_after_its_first_message(
    tmp_path: Path, magic: int
) -> None:
    entries = [wrapped([1, 3], magic), wrapped([FAR - 20, FAR, FAR + 4], magic), wrapped([FAR + 5], magic)]
    partition = write_log(tmp_path, {0: entries, 4 * FAR: [one(4 * FAR, "z")]})
    expected = offsets(partition)
    source, before = list_segments(partition)[0], logs_of(partition)
    bases = split_overflowed_segment(partition, source, index_interval=1, index_bytes=1 << 20)
    assert bases == [0, FAR - 20]
    after = logs_of(partition)
    assert b"".join(after[base] for base in bases) == before[0]
    assert run(tmp_path).status == CLEANED
    assert offsets(partition) == expected


def test_a_message_set_that_no_segment_can_hold_is_refused(tmp_path: Path) -> None:
    for name, entries in (
        ("wide", [wrapped([1, FAR], 1)]),
        ("back", [wrapped([1, 9], 1), wrapped([5, FAR], 1)]),
    ):
        partition = write_log(tmp_path / name, {0: entries, 4 * FAR: [one(4 * FAR, "z")]})
        before = tree(partition)
        with raises_error(CorruptRecordError, path=partition / f"{0:020d}.log", about="2147483647"):
            split_overflowed_segment(
                partition, list_segments(partition)[0], index_interval=4096, index_bytes=1 << 20
            )
        assert tree(partition) == before


def test_a_cleaning_in_place_splits_an_overflowed_segment_first(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    result = run(tmp_path)
    assert result.status == CLEANED
    assert any(note.startswith("split ") for note in result.notes)
    assert offsets(partition) == [INT_MAX, FAR, FAR + 5, 2 * FAR + INT_MAX, 4 * FAR]
    assert overflowed_segments(list_segments(partition)) == []
    check_indexes(partition)


def test_a_dry_run_reports_that_a_segment_is_to_be_split(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    before = tree(partition)
    result = run(tmp_path, destination=DryRun())
    assert result.status == SKIPPED and "--in-place splits it" in result.reason
    assert tree(partition) == before


def recover(partition: Path, *, clean: bool = False, dry_run: bool = False) -> RecoveredPartition:
    return recover_partition(
        partition,
        had_clean_shutdown=clean,
        recovery_point=0,
        log_start_offset=0,
        config=LogConfig(),
        now_ms=NOW,
        dry_run=dry_run,
    )


def test_recovery_splits_an_overflowed_segment_as_kafka_does(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    before, expected = logs_of(partition), [0, FAR, 2 * FAR + INT_MAX, 4 * FAR]
    recovered = recover(partition)
    assert [segment.base_offset for segment in recovered.segments] == expected
    assert [segment.base_offset for segment in list_segments(partition)] == expected
    assert recovered.changed and recovered.log_end_offset == 4 * FAR + 1 and not recovered.truncated_bytes
    assert any("was split: 0, " in note for note in recovered.notes)
    after = logs_of(partition)
    assert b"".join(after[base] for base in expected[:-1]) == before[0]
    check_indexes(partition)
    assert not (partition / ".siltstone").exists()
    again = recover(partition)
    assert not any("split" in note for note in again.notes)


def test_after_a_clean_shutdown_an_overflowed_segment_is_split_only_if_an_index_is_invalid(
    tmp_path: Path,
) -> None:
    partition = wide_log(tmp_path)
    assert [segment.base_offset for segment in recover(partition, clean=True).segments] == [0, 4 * FAR]
    (partition / f"{0:020d}.index").unlink()
    recovered = recover(partition, clean=True)
    assert [segment.base_offset for segment in recovered.segments] == [0, FAR, 2 * FAR + INT_MAX, 4 * FAR]


def test_after_a_clean_shutdown_an_index_is_judged_by_its_last_entry(tmp_path: Path) -> None:
    """The sanity checks of Kafka's ``OffsetIndex`` and ``TimeIndex``."""
    partition = wide_log(tmp_path)
    (partition / f"{0:020d}.index").write_bytes(struct.pack(">iiii", 9, 80, 7, 80))
    assert [segment.base_offset for segment in recover(partition, clean=True).segments] == [0, 4 * FAR]


def test_a_dry_run_of_recovery_reports_that_a_segment_is_to_be_split(tmp_path: Path) -> None:
    partition = wide_log(tmp_path)
    before = tree(partition)
    recovered = recover(partition, dry_run=True)
    assert tree(partition) == before
    assert any("is to be split" in note for note in recovered.notes) and recovered.changed
    assert recovered.log_end_offset == 4 * FAR + 1
    assert {f"{0:020d}.index", f"{0:020d}.timeindex"} <= set(recovered.rebuilt_indexes)


def test_a_read_only_log_reads_an_overflowed_segment(tmp_path: Path) -> None:
    wide_log(tmp_path)
    log = ReadOnlyLogs([tmp_path])[WHERE]
    for offset in WIDE:
        assert int(log.read(offset).batches()[1]["base_offset"][0]) == offset


@pytest.mark.parametrize("at", [[0, 9, 5, FAR], [0, FAR, 4 * FAR + 3]])
def test_offsets_out_of_order_are_refused_and_nothing_is_split(tmp_path: Path, at: list[int]) -> None:
    partition = wide_log(tmp_path, at)
    before = tree(partition)
    with raises_error(CorruptRecordError, path=partition / f"{0:020d}.log", about="offset"):
        recover(partition)
    after = {name: data for name, data in tree(partition).items() if name in before}
    assert after == before and not (partition / ".siltstone").exists()
    result = run(tmp_path)
    assert result.status == UNCLEANABLE
    assert logs_of(partition)[0] == before[f"{0:020d}.log"]


def test_a_torn_tail_of_an_unflushed_overflowed_segment_is_truncated(tmp_path: Path) -> None:
    partition = wide_log(tmp_path, [0, 7, FAR])
    log = partition / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-10])
    recovered = recover(partition)
    assert recovered.log_end_offset == 8 and recovered.truncated_bytes
