"""Input splits: all of a log, each byte once, about the same for each task, cut only where batches begin."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.records.control import end_transaction_marker
from siltstone.compaction import work as splits
from siltstone.compaction.engine import warm_up_work
from siltstone.compaction.work import (
    Extracted,
    Group,
    InputSplit,
    cut_near,
    extract,
    splits_by_task,
    transaction_state_by_range,
    whole_segments,
)
from siltstone.log.segments import Segment, list_segments, open_unchanged, windows
from siltstone.log.transactions import TransactionState
from tests.support.cleaning import logs

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of any size are worth a task."""
    monkeypatch.setattr(splits, "MIN_SPLIT_BYTES", 1)


def log(tmp_path: Path, sizes: Sequence[int], interval: int = 300) -> tuple[list[Segment], int]:
    """A log with so many batches of three offsets and about 130 bytes a segment, and its end."""
    offset, segments = 100, {}
    for size in sizes:
        batches = [
            logs.one(offset + 3 * number, f"key-{number}", "value" * 10, last_offset=offset + 3 * number + 2)
            for number in range(size)
        ]
        segments[offset] = batches
        offset += 3 * size
    partition = logs.write_log(tmp_path, segments, interval=interval)
    return list_segments(partition), offset


def assert_covers(runs: Sequence[Sequence[InputSplit]], segments: Sequence[Segment], end: int) -> None:
    """Every byte and every offset once, in order, and batches begin and end with their splits."""
    offset = segments[0].base_offset
    places = dict.fromkeys(range(len(segments)), 0)
    for split in (split for run in runs for split in run):
        assert (
            split.first_offset == offset
            and split.start_position == places[split.segment] < split.end_position
        )
        with open_unchanged(segments[split.segment]) as reader:
            headers = [
                window.batches
                for window in windows(reader, start=split.start_position, end=split.end_position)
            ]
        assert headers[0]["base_offset"][0] == offset
        offset, places[split.segment] = split.end_offset, split.end_position
        assert headers[-1]["last_offset"][-1] == offset - 1
    assert offset == end
    assert list(places.values()) == [segment.size for segment in segments]
    assert all(run for run in runs)


@pytest.mark.parametrize("sizes", [[50], [400], [90, 10], [10, 90], [30, 20, 50, 7, 1]])
@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_tasks_get_about_the_same_number_of_bytes(tmp_path: Path, sizes: list[int], tasks: int) -> None:
    segments, end = log(tmp_path, sizes)
    runs = splits_by_task(segments, end, tasks, may_cut=True)
    assert_covers(runs, segments, end)
    total = sum(segment.size for segment in segments)
    if total / tasks > 1000:
        assert len(runs) == tasks
        for run in runs:
            size = sum(split.end_position - split.start_position for split in run)
            assert abs(size - total / tasks) < total / tasks / 8 + 600


def test_one_task_or_none_to_spare_gets_whole_segments(tmp_path: Path) -> None:
    segments, end = log(tmp_path, [20, 30])
    assert splits_by_task(segments, end, 1, may_cut=True) == [whole_segments(segments, end)]
    first, second = whole_segments(segments, end)
    assert splits_by_task(segments, end, 2, may_cut=False) == [[first], [second]]
    assert splits_by_task(segments[:1], segments[1].base_offset, 9, may_cut=False) == [[first]]


def test_a_log_without_segments_has_no_splits() -> None:
    assert whole_segments([], 7) == [] == splits_by_task([], 7, 3, may_cut=True)


def test_small_parts_are_not_worth_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, end = log(tmp_path, [90, 10, 20])
    monkeypatch.setattr(splits, "MIN_SPLIT_BYTES", 32 * MIB)
    assert splits_by_task(segments, end, 3, may_cut=True) == [
        [whole_segments(segments, end)[0]],
        whole_segments(segments, end)[1:],
    ]
    big = [replace(segment, size=segment.size * 20_000) for segment in segments]  # indexes that name little
    assert [len(run) for run in splits_by_task(big, end, 2, may_cut=True)] in ([1, 2], [1, 3], [2, 2])


@pytest.mark.parametrize(("size", "tasks"), [(32 * MIB, 2), (32 * MIB - 1, 1)])
def test_a_part_of_a_segment_has_16_mib_or_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, tasks: int
) -> None:
    monkeypatch.undo()
    (segment,), end = log(tmp_path, [20])
    os.truncate(segment.path, size)
    assert len(splits_by_task(list_segments(Path(segment.directory)), end, 9, may_cut=True)) == tasks


def test_a_border_that_is_near_is_no_cut(tmp_path: Path) -> None:
    segments, end = log(tmp_path, [101, 99])
    first, second = whole_segments(segments, end)
    assert splits_by_task(segments, end, 2, may_cut=True) == [[first], [second]]


def index_of(segment: Segment) -> Path:
    return Path(segment.path).with_suffix(".index")


@pytest.mark.parametrize(
    "entries",
    [
        b"",
        b"\0\0\0",
        struct.pack(">ii", 8, 1),
        struct.pack(">ii", 8, 1 << 30),
        struct.pack(">iiii", 9, 900, 5, 1000),
    ],
    ids=["empty", "cut off", "inside a batch", "behind the end", "out of order"],
)
def test_an_index_that_names_no_batch_costs_nothing_but_balance(tmp_path: Path, entries: bytes) -> None:
    segments, end = log(tmp_path, [90, 10])
    index_of(segments[0]).write_bytes(entries)
    assert cut_near(segments[0], segments[0].size // 2) is None
    assert splits_by_task(segments, end, 2, may_cut=True) == [
        [segment] for segment in whole_segments(segments, end)
    ]
    index_of(segments[0]).unlink()
    assert cut_near(segments[0], segments[0].size // 2) is None


def test_no_split_begins_at_a_batch_that_is_damaged_or_another_than_the_index_names(tmp_path: Path) -> None:
    segments, _ = log(tmp_path, [60])
    middle = segments[0].size // 2
    cut = cut_near(segments[0], middle)
    assert cut is not None
    position, first = cut
    assert abs(position - middle) < 600 and first > 100
    index_of(segments[0]).write_bytes(struct.pack(">ii", first - 101, position))  # before that batch
    assert cut_near(segments[0], middle) is None
    index_of(segments[0]).write_bytes(struct.pack(">ii", first - 100, position))
    assert cut_near(segments[0], middle) == cut
    data = np.fromfile(segments[0].path, np.uint8)
    data[position + 70] ^= 1
    data.tofile(segments[0].path)
    (changed,) = list_segments(Path(segments[0].directory))
    assert cut_near(changed, middle) is None
    assert cut_near(segments[0], middle) is None  # not the file that was found


def test_the_state_of_transactions_over_cuts_is_the_same_for_any_number_of_tasks(tmp_path: Path) -> None:
    """Producer 1's ends in the segment's second part, 2's in the next segment, 3's has no data."""
    batches, offset = [], 0

    def data(producer: int, count: int) -> None:
        nonlocal offset
        for _ in range(count):
            batches.append(logs.one(offset, f"{offset}", producer_id=producer, transactional=True))
            offset += 1

    def marker(producer: int) -> None:
        nonlocal offset
        encoded = end_transaction_marker(
            is_commit=True, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
        batches.append(offset.to_bytes(8, "big") + encoded.tobytes()[8:])
        offset += 1

    data(1, 30)
    data(2, 5)
    marker(1)
    data(2, 30)
    base = offset
    marker(3)
    marker(2)
    partition = logs.write_log(tmp_path, {0: batches[:base], base: batches[base:]}, interval=1)
    segments = list_segments(partition)
    groups = (
        Group(index=0, first_segment=0, end_segment=1, base_offset=0, end_offset=base),
        Group(index=1, first_segment=1, end_segment=2, base_offset=base, end_offset=offset),
    )
    work = replace(
        warm_up_work(partition, "small"), segments=tuple(segments), groups=groups, first_dirty=0, end=offset
    )
    for tasks in range(1, 20):
        extracted, runs = Extracted(), splits_by_task(segments, offset, tasks, may_cut=True)
        entries = 0
        for run in reversed(runs):
            entries += sum(len(blob.entries) for blob in extract(work, run, 1, 1000, extracted))
        assert extracted.failure is None and extracted.records == offset
        assert entries == offset - 3
        assert transaction_state_by_range(work, extracted) == {base: TransactionState(open_producers=(2,))}
    assert len(runs) == 19
