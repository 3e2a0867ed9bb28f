"""The reader: records against plain lists and Kafka's own, resets, growing buffers, damage."""

from __future__ import annotations

import base64
import random
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    UsageError,
)
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import HEADER
from siltstone.log.reading import AtTime, LogReader
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.cleaning.transactional import a_log
from tests.support.errors import raises_error
from tests.support.golden_sets import case_names, legacy_names, read_records
from tests.support.log.views import (
    FixedLog,
    entries_of,
    random_segments,
    view_of,
    write_aborted,
    write_segments,
)
from tests.support.records.arrays import records_of
from tests.support.thoroughness import THOROUGH, examples, few, share

COMMITTED = "read_committed"


def offsets(reader: LogReader) -> list[int]:
    return [int(offset) for polled in reader for offset in polled.columns.offset]


def log_of(tmp_path: Path, *batches: bytes) -> FixedLog:
    return FixedLog(view_of(write_segments(tmp_path / "topic-0", {0: batches})))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 25),
    st.sampled_from([1, 100, 1000, 1 << 20]),
    st.data(),
)
def test_records_are_those_of_a_plain_list(seed: int, count: int, size: int, data: st.DataObject) -> None:
    """From any offset to any end, with windows of any size; records before the offset are cut off."""
    with tempfile.TemporaryDirectory() as folder:
        directory = write_segments(Path(folder), random_segments(random.Random(seed), count), 200)
        view = view_of(directory)
        start = data.draw(st.integers(view.log_start_offset, view.log_end_offset))
        end = data.draw(st.none() | st.integers(start, view.log_end_offset + 3))
        records = [record for _, entry in entries_of(directory) for record in entry.records]
        want = [r for r in records if start <= r.offset and (end is None or r.offset < end)]
        reader = LogReader(FixedLog(view), start, end=end, buffer_bytes=size)
        returned = [record for polled in reader for record in records_of(polled.columns)]
        assert returned == want
        assert reader.poll() is None
        assert reader.offset >= start


@pytest.mark.parametrize("size", few([(1,), (500,), (1 << 20,)], 1))
def test_golden_logs_are_read_whole_and_windows_can_be_kept(golden: Path, size: int) -> None:
    for name in [*legacy_names(golden), *case_names(golden)[::4]]:
        directory = golden / name / "before"
        windows = list(LogReader(FixedLog(view_of(directory)), buffer_bytes=size))
        records = [record for window in windows for record in records_of(window.columns)]
        control = control_offsets(golden / name / "records_before.jsonl")
        want = [r for _, entry in entries_of(directory) for r in entry.records if r.offset not in control]
        assert records == want, name


def control_offsets(listing: Path) -> set[int]:
    """Offsets in control batches by Kafka's own listing."""
    control, inside = set(), False
    for line in read_records(listing):
        if line["t"] == "batch":
            inside = line.get("isControl", False)
        elif line["t"] == "rec" and inside:
            control.add(line["offset"])
    return control


def kafkas_outcome(listing: Path) -> tuple[list[int], list[int], int | None]:
    """By Kafka's listing and nothing else: (data offsets, committed ones, first offset still open).

    A producer's next marker decides about its records.
    """
    producers: dict[int, list[int]] = {}
    every, aborted, here = [], set(), {}
    for line in read_records(listing):
        if line["t"] == "batch":
            here = line
        elif line["t"] == "rec" and here["isControl"]:
            going = producers.pop(here["producerId"], [])
            if twin_is_abort(line["k"]):
                aborted |= set(going)
        elif line["t"] == "rec":
            every.append(line["offset"])
            if here["isTransactional"]:
                producers.setdefault(here["producerId"], []).append(line["offset"])
    still = min((min(producer) for producer in producers.values()), default=None)
    return every, [at for at in every if at not in aborted and (still is None or at < still)], still


def twin_is_abort(key: str) -> bool:
    return base64.b64decode(key)[2:4] == b"\0\0"


@pytest.mark.random
@pytest.mark.parametrize(
    ("part", "size"),
    few(
        [
            (part, size)
            for part in ("before", "before2", "after", "after2")
            for size in (1, 300, 5000, 1 << 20)
        ],
        *(0, 1, 6, 11, 13),
    ),
)
def test_read_committed_returns_what_kafkas_markers_committed(golden: Path, part: str, size: int) -> None:
    directory = golden / "txn" / part
    every, committed, still = kafkas_outcome(golden / "txn" / f"records_{part}.jsonl")
    assert part != "before" or (len(committed) < len(every) and list(directory.glob("*.txnindex")))
    view = view_of(directory, last_stable_offset=still)
    assert offsets(LogReader(FixedLog(view), buffer_bytes=size)) == every
    step = 29 if size != 300 else 1 if part == "before" else 7
    for start in share(range(view.log_start_offset, view.log_end_offset, step), 17):
        reader = LogReader(FixedLog(view), start, isolation=COMMITTED, buffer_bytes=size)
        assert offsets(reader) == [at for at in committed if at >= start], start


def transactions(tmp_path: Path) -> FixedLog:
    """Producer 7 aborts 0-1, commits 3; producer 8 aborts 4, 6 around a plain record; 9 is open from 8 on."""

    def data(at: int, producer: int, keys: int = 1) -> bytes:
        records = [Rec(offset=at + n, key=b"k%d" % producer) for n in range(keys)]
        return batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)

    def marker(at: int, producer: int, commit: bool) -> bytes:
        marker_batch = end_transaction_marker(
            is_commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
        )
        marker_batch[:8] = np.frombuffer(at.to_bytes(8, "big"), np.uint8)
        return marker_batch.tobytes()

    batches = [
        *(data(0, 7, 2), marker(2, 7, False), data(3, 7), data(4, 8), one(5, "plain"), data(6, 8)),
        *(marker(7, 8, False), data(8, 9), marker(9, 7, True), one(10, "behind")),
    ]
    directory = write_segments(tmp_path / "topic-0", {0: batches}, interval=0)
    write_aborted(directory, 0, [(7, 0, 2, 3), (8, 4, 7, 3)])
    return FixedLog(view_of(directory, last_stable_offset=8))


@pytest.mark.parametrize("size", [1, 150, 1 << 20])
def test_records_of_aborted_transactions_are_skipped(tmp_path: Path, size: int) -> None:
    log = transactions(tmp_path)
    assert offsets(LogReader(log, buffer_bytes=size)) == [0, 1, 3, 4, 5, 6, 8, 10]
    for start in range(9):
        reader = LogReader(log, start, isolation=COMMITTED, buffer_bytes=size)
        assert offsets(reader) == [at for at in (3, 5) if at >= start]
        assert reader.offset == 8
    log.view = log.view._replace(last_stable_offset=11)
    assert offsets(LogReader(log, isolation=COMMITTED, buffer_bytes=size)) == [3, 5, 8, 10]


def test_worked_example_17_the_buffer_doubles_until_the_message_fits(tmp_path: Path) -> None:
    large = "v" * 5000
    log = log_of(tmp_path, one(0, "a"), one(1, "b", large), one(2, "c"))
    reader = LogReader(log, buffer_bytes=100)
    assert [polled.columns.offset.tolist() for polled in reader] == [[0], [1], [2]]
    assert reader.buffer_bytes == 100 * 2**6
    refusing = LogReader(log, buffer_bytes=100, largest_batch_bytes=5000)
    first = refusing.poll()
    assert first is not None and len(first) == 1
    with raises_error(
        MessageTooLargeError, path="topic-0", about="offset 1 ", advice="largest_batch_bytes"
    ) as raised:
        refusing.poll()
    assert re.search(r"507. bytes, .* 5000", raised.value.reason)
    assert refusing.offset == 1
    refusing.seek(2)
    assert offsets(refusing) == [2]


def test_worked_example_20_from_now_on_and_an_offset_that_expired(tmp_path: Path) -> None:
    log = log_of(tmp_path, one(0, "a"), one(1, "b"))
    now = LogReader(log, "latest")
    assert now.offset == 2 and now.poll() is None
    failing, earliest, latest = (LogReader(log, 0, reset=reset) for reset in ("none", "earliest", "latest"))
    longer = write_segments(
        tmp_path / "longer", {0: [one(0, "a")], 1: [one(1, "b"), one(2, "c"), one(3, "d")]}
    )
    log.view = view_of(longer, log_start=2)
    assert offsets(now) == [2, 3]
    with raises_error(OffsetOutOfRangeError, path="longer", about="offset 0 ") as raised:
        failing.poll()
    assert " 2," in raised.value.reason and " 4," in raised.value.reason
    assert (offsets(earliest), earliest.resets) == ([2, 3], 1)
    assert (offsets(latest), latest.resets, latest.offset) == ([], 1, 4)
    beyond = LogReader(log, 9, reset="latest")
    assert beyond.poll() is None and beyond.offset == 4


def test_latest_is_the_last_stable_offset_under_read_committed(tmp_path: Path) -> None:
    log = transactions(tmp_path)
    assert LogReader(log, "latest").offset == 11
    assert LogReader(log, "latest", isolation=COMMITTED).offset == 8


def test_a_reader_starts_at_a_time(tmp_path: Path) -> None:
    times = [50, 20, 70, 60]
    log = log_of(tmp_path, batch([Rec(offset=at, key=b"k", timestamp=time) for at, time in enumerate(times)]))
    for time, want in ((0, [0, 1, 2, 3]), (51, [2, 3]), (70, [2, 3]), (71, [])):
        assert offsets(LogReader(log, AtTime(time))) == want
    reader = LogReader(log)
    reader.seek(AtTime(60))
    assert offsets(reader) == [2, 3]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    log = log_of(tmp_path, one(0, "a"))
    for wrong in ({"isolation": "dirty"}, {"reset": "soon"}, {"start": "now"}, {"buffer_bytes": 0}):
        with raises_error(UsageError, about="{}={!r}".format(*next(iter(wrong.items()))), advice="pass"):
            LogReader(log, **wrong)  # type: ignore[arg-type]


def test_records_are_objects_with_key_value_and_headers(tmp_path: Path) -> None:
    headers = ((b"h", b"1"), (b"g", None))
    log = log_of(
        tmp_path, batch([Rec(offset=0, key=None, value=None, timestamp=9, headers=headers)], leader_epoch=3)
    )
    (record,) = LogReader(log).records()
    assert (record.offset, record.timestamp, record.leader_epoch) == (0, 9, 3)
    assert (record.key, record.value, record.headers) == (None, None, headers)


@pytest.mark.parametrize("at", [HEADER.size + 3, 21])
def test_batches_before_damage_are_returned_first(tmp_path: Path, at: int) -> None:
    good, bad = one(0, "a"), bytearray(one(1, "b"))
    bad[at] ^= 1
    log = log_of(tmp_path, good, bytes(bad), one(2, "c"))
    reader = LogReader(log)
    first = reader.poll()
    assert first is not None and first.columns.offset.tolist() == [0]
    read = reader.bytes_read
    for reads in (2, 3):  # once more after the first poll, whose end may be at other bytes by now
        with raises_error(CorruptRecordError, position=len(good), about="checksum"):
            reader.poll()
        assert reader.bytes_read - read == reads * 2 * len(good)
    reader.seek(2)
    assert offsets(reader) == [2]


def test_malformed_records_are_refused_without_checksums_too(tmp_path: Path) -> None:
    good, bad = one(0, "a"), bytearray(one(1, "b"))
    bad[HEADER.size] = 1
    log = log_of(tmp_path, good, bytes(bad), one(2, "c"))
    reader = LogReader(log, verify=False)
    first = reader.poll()
    assert first is not None and len(first) == 1
    with raises_error(CorruptRecordError, position=len(good)):
        reader.poll()


def test_a_file_that_is_shorter_than_its_log_is_refused(tmp_path: Path) -> None:
    log = log_of(tmp_path, one(0, "a"), one(1, "b"))
    path = tmp_path / "topic-0" / "00000000000000000000.log"
    reader = LogReader(log, 1)
    path.write_bytes(path.read_bytes()[:-3])
    with raises_error(CorruptRecordError, path=path):
        reader.poll()


def test_a_batch_that_decompresses_past_the_limit_is_refused(tmp_path: Path) -> None:
    bomb = batch([Rec(offset=1, key=b"k", value=bytes(1 << 20))], codec=4)
    reader = LogReader(log_of(tmp_path, one(0, "a"), bomb), limit=1 << 16)
    first = reader.poll()
    assert first is not None and len(first) == 1
    with pytest.raises(CorruptRecordError, match=f"more than {1 << 16}"):
        reader.poll()


def test_a_log_that_was_truncated_and_grew_again_is_searched_again(tmp_path: Path) -> None:
    """The position that the reader remembers is amid another batch then, in bytes that look like a header."""
    log = log_of(tmp_path, one(0, "a"), one(1, "b"), one(2, "c"))
    reader = LogReader(log, buffer_bytes=1)
    first = reader.poll()
    assert first is not None and len(first) == 1
    lure = one(1, "lure")[:17] + bytes(60)
    head = one(0, "a")
    offset_of_value = len(batch([Rec(offset=0, key=b"a", value=b"")])) - 1
    filler = bytes(len(head) - offset_of_value - 2)
    regrown = batch([Rec(offset=0, key=b"a", value=filler + lure)]) + one(1, "d")
    path = tmp_path / "topic-0" / "00000000000000000000.log"
    path.write_bytes(regrown)
    assert regrown[len(head) - 3 : len(head) + 40].find(lure[:17]) >= 0
    log.view.segments[0].size = len(regrown)
    log.view = log.view._replace(active_size=len(regrown), log_end_offset=2, high_watermark=2)
    second = reader.poll()
    assert second is not None and second.columns.key(0) == b"d"


@pytest.mark.random
def test_a_flipped_bit_in_an_offset_index_changes_no_read(tmp_path: Path) -> None:
    """An entry is used only where a batch that it can stand for begins and the search moves forward."""
    batches = [
        batch([Rec(offset=at, key=b"k%d" % at, value=bytes(at % 90)) for at in range(first, first + 3)])
        for first in range(40, 100, 3)
    ]
    directory = write_segments(tmp_path / "topic-0", {40: batches}, 300)
    index = directory / f"{40:020}.index"
    data, view = index.read_bytes(), view_of(directory)
    assert len(data) >= 8 * 8
    read_from = range(40, 100, 9)
    for bit in share(range(8 * len(data)), 13):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        index.write_bytes(flipped)
        reader = LogReader(FixedLog(view_of(directory, end=view.log_end_offset)), "earliest")
        for offset in read_from:
            reader.seek(offset)
            polled = reader.poll(1)
            assert polled is not None and polled.columns.offset[0] == offset, (bit, offset)


@pytest.mark.random
@pytest.mark.parametrize(("size", "step"), [(1, 7), (1 << 20, 3)])
def test_a_flipped_bit_in_a_transaction_index_is_refused_or_nothing(
    tmp_path: Path, size: int, step: int
) -> None:
    """What is read before the contradiction shows may be wrong; reading on raises an error."""
    directory, refused = a_log(tmp_path / "log"), 0
    want = offsets(LogReader(FixedLog(view_of(directory)), isolation=COMMITTED))
    assert want == [0, 6, 10, 12, 20]
    for index in sorted(directory.glob("*.txnindex")):
        data = index.read_bytes()
        for bit in share(range(0, 8 * len(data), step), 13):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            index.write_bytes(flipped)
            try:
                reader = LogReader(FixedLog(view_of(directory)), isolation=COMMITTED, buffer_bytes=size)
                assert offsets(reader) == want, (index.name, bit)
            except CorruptFileError as error:
                refused += 1
                assert "txnindex" in str(error)
        index.write_bytes(data)
    assert refused > 3 * 5 * 64 // (step if THOROUGH else 13 * step)
