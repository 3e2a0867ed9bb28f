"""Reading a segment in windows: any window size gives the same batches, damage is placed to the byte."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptRecordError, SourceChangedError
from siltstone.log.segment import LiveSegment, SegmentDirectory
from siltstone.log.segments import (
    Segment,
    first_batch_timestamp,
    floor_segment_index,
    largest_timestamp,
    list_segments,
    open_unchanged,
    windows,
)
from siltstone.log.validation import Origin
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.errors import raises_error
from tests.support.log.appending import append
from tests.support.log.batches import TIME, sent


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "some.log"
    path.write_bytes(data)
    return path


def batches_of(path: Path, window_size: int, size: int | None = None) -> list[bytes]:
    """Every batch's bytes, copied out of its window."""
    batches = []
    with files.Reader(path) as reader:
        for window in windows(reader, window_size=window_size, end=size):
            at = window.origin
            for row in window.batches:
                start = int(row["position"])
                assert at == window.origin + start
                batches.append(window.data[start : start + int(row["size"])].tobytes())
                at += int(row["size"])
    return batches


SAMPLE = [
    one(0, "a"),
    batch([Rec(offset=1 + i, key=b"k", value=b"v" * 300) for i in range(9)]),
    one(10, "b"),
    batch([Rec(offset=11, key=b"k", value=b"v" * 5000)]),
    one(12, "c"),
]


@pytest.mark.parametrize("window_size", [1, 2, 16, 17, 61, 70, 75, 100, 300, 5000, 6000, 1 << 20])
def test_any_window_gives_the_same_batches(tmp_path: Path, window_size: int) -> None:
    path = write(tmp_path, b"".join(SAMPLE))
    assert batches_of(path, window_size) == SAMPLE


def test_an_empty_segment_has_no_windows(tmp_path: Path) -> None:
    assert batches_of(write(tmp_path, b""), 100) == []


def test_windows_end_at_the_given_end(tmp_path: Path) -> None:
    path = write(tmp_path, b"".join(SAMPLE))
    assert batches_of(path, 50, size=len(SAMPLE[0]) + len(SAMPLE[1])) == SAMPLE[:2]


@pytest.mark.parametrize("window_size", [80, 4096])
def test_every_truncation_is_reported_with_its_position(tmp_path: Path, window_size: int) -> None:
    data = b"".join(SAMPLE[:3])
    ends = [0, len(SAMPLE[0]), len(SAMPLE[0]) + len(SAMPLE[1]), len(data)]
    for cut in [*range(1, 150), *range(len(data) - 90, len(data))]:
        path = write(tmp_path, data[:cut])
        whole = max(end for end in ends if end <= cut)
        if whole == cut:
            assert len(batches_of(path, window_size)) == ends.index(cut)
            continue
        with pytest.raises(CorruptRecordError) as error:
            batches_of(path, window_size)
        assert (error.value.path, error.value.position) == (str(path), whole)
        assert "beyond the end" in error.value.reason


@pytest.mark.parametrize("window_size", [80, 4096])
def test_every_flipped_byte_of_a_batch_is_reported(tmp_path: Path, window_size: int) -> None:
    """The base offset and the leader epoch are left out, which no checksum covers."""
    start, size = len(SAMPLE[0]), len(SAMPLE[1])
    for at in [*range(8, 12), *range(16, 61), *range(61, size, 9)]:
        data = bytearray(b"".join(SAMPLE[:3]))
        data[start + at] ^= 0x80 if at == 16 else 0x01
        with pytest.raises(CorruptRecordError) as error:
            batches_of(write(tmp_path, bytes(data)), window_size)
        assert error.value.position in (start, start + size), at


def test_a_claimed_size_does_not_allocate_beyond_the_file(tmp_path: Path) -> None:
    data = bytearray(SAMPLE[0])
    data[8:12] = (0x7FFFFF00).to_bytes(4, "big")
    with raises_error(CorruptRecordError, position=0, about="beyond the end"):
        batches_of(write(tmp_path, bytes(data)), 64)


def test_a_zeroed_tail_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError) as error:
        batches_of(write(tmp_path, SAMPLE[0] + bytes(500)), 4096)
    assert error.value.position == len(SAMPLE[0])


def only_segment(partition: Path) -> Segment:
    (segment,) = list_segments(partition)
    return segment


@pytest.mark.parametrize("change", ["size", "time", "inode"])
def test_a_changed_segment_is_refused(tmp_path: Path, change: str) -> None:
    partition = logs.write_log(tmp_path / "log", {0: [one(0, "a")]})
    segment = only_segment(partition)
    path = Path(segment.path)
    with open_unchanged(segment):
        pass
    data, stamp = path.read_bytes(), (segment.modified_ns, segment.modified_ns)
    if change == "size":
        path.write_bytes(data + b"x")
        os.utime(path, ns=stamp)
    elif change == "time":
        os.utime(path, ns=(1, 1))
    else:
        other = partition / "other"
        other.write_bytes(data)
        os.utime(other, ns=stamp)
        other.rename(path)
    with raises_error(SourceChangedError, path=path, advice="again"):
        open_unchanged(segment)


def test_segments_are_listed_by_base_offset_without_files_of_a_swap(tmp_path: Path) -> None:
    partition = logs.write_log(tmp_path / "log", {0: [one(0, "a")], 30: [one(30, "b")], 4: [one(4, "c")]})
    for stray in ("x.log", f"{9:020d}.log.swap", f"{9:020d}.log.cleaned", f"{0:020d}.index.deleted"):
        (partition / stray).write_bytes(b"x")
    (partition / "notes").mkdir()
    (partition / "more").symlink_to("notes")
    (partition / f"{30:020d}.index").unlink()
    segments = list_segments(partition)
    assert [segment.base_offset for segment in segments] == [0, 4, 30]
    assert [segment.time_index_size for segment in segments] == [12, 12, 12]
    assert segments[0].size == len(one(0, "a"))
    assert [floor_segment_index(segments, offset) for offset in (0, 3, 4, 29, 30, 99)] == [0, 0, 1, 1, 2, 2]
    assert floor_segment_index(segments[1:], 3) == -1


def test_the_largest_timestamp_is_that_of_the_time_index_or_the_file(tmp_path: Path) -> None:
    rows = [Rec(offset=0, key=b"a", timestamp=500), Rec(offset=1, key=b"b", timestamp=300)]
    partition = logs.write_log(tmp_path / "log", {0: [batch(rows)]}, modified_ms={0: 7_000})
    index = partition / f"{0:020d}.timeindex"
    assert largest_timestamp(only_segment(partition)) == 500
    index.write_bytes(b"123")
    assert largest_timestamp(only_segment(partition)) == 500
    index.unlink()
    assert largest_timestamp(only_segment(partition)) == 500
    index.touch()
    assert largest_timestamp(only_segment(partition)) == 7_000


def test_the_first_batchs_timestamp_and_the_number_of_records(tmp_path: Path) -> None:
    rows = [Rec(offset=i, key=b"a", value=b"v" * 900, timestamp=100 + i) for i in range(9)]
    partition = logs.write_log(tmp_path / "log", {0: [batch(rows), one(9, "b")]})
    assert first_batch_timestamp(only_segment(partition)) == 108
    empty = logs.write_log(tmp_path / "empty", {0: []})
    assert first_batch_timestamp(only_segment(empty)) is None


def live_segment(path: Path, first_time: int, **options: int) -> LiveSegment:
    """The active segment of a log, with one record."""
    segment = LiveSegment.create(SegmentDirectory(path), 0, LogConfig(), now_ms=TIME, **options)
    segment.append(append(sent(1, first_time=first_time), next_offset=0))
    return segment


def test_a_segment_rolls_earlier_by_its_jitter(tmp_path: Path) -> None:
    """``LogSegment.shouldRoll``: segments of many logs that began together do not roll together."""
    segment, config = live_segment(tmp_path, TIME, jitter_ms=300), LogConfig(segment_ms=1000)
    assert not segment.must_roll(config, append(sent(1, first_time=TIME + 700)), TIME)
    assert segment.must_roll(config, append(sent(1, first_time=TIME + 701)), TIME)


def test_a_segment_without_a_batch_never_rolls(tmp_path: Path) -> None:
    """Indexes without room for one entry would make an empty segment roll to its own offset."""
    config = LogConfig(segment_index_bytes=4)
    segment = LiveSegment.create(SegmentDirectory(tmp_path), 0, config, now_ms=TIME)
    assert not segment.must_roll(config, append(sent(1), next_offset=0), TIME)
    segment.append(append(sent(1), next_offset=0))
    assert segment.must_roll(config, append(sent(1), next_offset=1), TIME)


def test_a_new_segment_was_modified_when_it_was_made(tmp_path: Path) -> None:
    segment = LiveSegment.create(SegmentDirectory(tmp_path), 0, LogConfig(), now_ms=TIME)
    assert segment.modified_ms == TIME


@pytest.mark.parametrize(("time", "largest"), [(1, 1), (0, None), (-1, None)])
def test_the_largest_timestamp_counts_from_one_ms_on(tmp_path: Path, time: int, largest: int | None) -> None:
    segment = live_segment(tmp_path, time)
    assert segment.largest_timestamp == (segment.modified_ms if largest is None else largest)


def test_each_batch_of_an_append_gets_its_own_index_entry(tmp_path: Path) -> None:
    segment = LiveSegment.create(
        SegmentDirectory(tmp_path), 0, LogConfig(index_interval_bytes=0), now_ms=TIME
    )
    batches = [one(0, "a"), one(1, "b"), one(2, "c")]
    replicated = np.frombuffer(bytearray(b"".join(batches)), np.uint8)
    segment.append(append(replicated, next_offset=0, origin=Origin.REPLICATION))
    second, third = len(batches[0]), len(batches[0]) + len(batches[1])
    assert [segment.offset_index.floor(offset) for offset in range(3)] == [None, (1, second), (2, third)]


def test_the_age_of_a_segment_counts_from_its_first_batch_after_it_was_opened_again(tmp_path: Path) -> None:
    live_segment(tmp_path, TIME)
    segment = LiveSegment(only_segment(tmp_path), LogConfig(), created_ms=TIME)
    segment.append(append(sent(1, first_time=TIME + 900), next_offset=1))
    config = LogConfig(segment_ms=1000)
    assert not segment.must_roll(config, append(sent(1, first_time=TIME + 1000)), TIME)
    assert segment.must_roll(config, append(sent(1, first_time=TIME + 1001)), TIME)
