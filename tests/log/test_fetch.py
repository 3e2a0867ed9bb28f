"""Reads and time lookups against plain lists: logs of all formats, with gaps, limits and small indexes."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError, OffsetOutOfRangeError
from siltstone.base.records.fetch_results import decode_message_set_send, encode_message_set_send
from siltstone.log.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    FetchResult,
    LogView,
    fetch_response,
    offset_for_time,
    read,
)
from tests.support.cleaning.logs import one
from tests.support.errors import raises_error
from tests.support.golden_sets import case_names, legacy_names
from tests.support.log.views import entries_of, random_segments, view_of, write_aborted, write_segments
from tests.support.records import twin
from tests.support.thoroughness import examples

Listed = list[tuple[int, twin.Batch]]
logs = st.tuples(st.integers(0, 2**32), st.integers(0, 25), st.sampled_from([0, 200, 4096]))


def model(listed: Listed, offset: int, limit: int, size: int, whole: bool) -> tuple[int, int, int] | None:
    """(segment base, position, bytes) of what a read gives: plain loops over all batches."""
    readable = list(itertools.takewhile(lambda item: item[1].last < limit, listed))
    first_item = next((item for item in readable if item[1].last >= offset), None)
    if first_item is None:
        return None
    base, first = first_item
    end = max(entry.position + entry.size for at, entry in readable if at == base)
    length = max(size, first.size) if whole else size
    return base, first.position, min(length, end - first.position)


def got(fetched: FetchResult) -> tuple[int, int, int] | None:
    if fetched.slice is None:
        return None
    assert fetched.segment is not None
    return fetched.segment.base_offset, fetched.slice.position, fetched.slice.size


@settings(max_examples=examples(150), deadline=None)
@given(logs, st.data())
def test_reads_are_those_of_a_plain_list(log: tuple[int, int, int], data: st.DataObject) -> None:
    seed, count, interval = log
    with tempfile.TemporaryDirectory() as folder:
        directory = write_segments(Path(folder), random_segments(random.Random(seed), count), interval)
        listed = list(entries_of(directory))
        view = view_of(directory)
        mark = data.draw(st.integers(view.log_start_offset, view.log_end_offset), label="high watermark")
        stable = data.draw(st.integers(view.log_start_offset, mark), label="last stable offset")
        view = view._replace(high_watermark=mark, last_stable_offset=stable)
        size = data.draw(st.sampled_from([1, 61, 300, 1000, 1 << 20]), label="bytes")
        for offset in range(view.log_start_offset, view.log_end_offset + 1):
            for whole, (isolation, limit) in itertools.product(
                (True, False), (("read_uncommitted", mark), (READ_COMMITTED, stable))
            ):
                fetched = read(view, offset, size, isolation=isolation, min_one_batch=whole)
                assert got(fetched) == model(listed, offset, limit, size, whole), offset
                assert fetched.offset_limit == limit


@settings(max_examples=examples(100), deadline=None)
@given(logs, st.sampled_from([1, 200, 700, 5000]))
def test_a_read_from_a_fetch_position_returns_what_a_search_returns(
    log: tuple[int, int, int], size: int
) -> None:
    seed, count, interval = log
    with tempfile.TemporaryDirectory() as folder:
        directory = write_segments(Path(folder), random_segments(random.Random(seed), count), interval)
        view = view_of(directory)
        offset, place, passed = view.log_start_offset, None, []
        while True:
            fetched = read(view, offset, size, resume_at=place)
            assert got(fetched) == got(read(view, offset, size))
            assert fetched.first_offset == read(view, offset, size).first_offset
            if fetched.slice is None:
                break
            data, batches, rest = fetched.batches()
            assert len(data) + rest == fetched.size
            passed += batches["last_offset"].tolist()
            place = fetched.position_after(batches)
            assert place is not None
            offset = place.offset
        assert passed == [entry.last for _, entry in entries_of(directory)]


@settings(max_examples=examples(150), deadline=None)
@given(logs, st.data())
def test_times_are_those_of_a_plain_list(log: tuple[int, int, int], data: st.DataObject) -> None:
    seed, count, interval = log
    with tempfile.TemporaryDirectory() as folder:
        directory = write_segments(Path(folder), random_segments(random.Random(seed), count), interval)
        view = view_of(directory)
        start = data.draw(st.integers(view.log_start_offset, view.log_end_offset), label="log start")
        mark = data.draw(st.integers(start, view.log_end_offset), label="high watermark")
        view = view._replace(log_start_offset=start, high_watermark=mark)
        records = [record for _, entry in entries_of(directory) for record in entry.records]
        for time in range(62):
            place = offset_for_time(view, time)
            late = (r for r in records if r.timestamp >= time and r.timestamp >= 0 and r.offset >= start)
            first = next(late, None)
            want = (first.offset, first.timestamp) if first and first.offset < mark else None
            assert (place and (place.offset, place.timestamp)) == want, time


def test_special_times(tmp_path: Path) -> None:
    view = view_of(write_segments(tmp_path, {3: [one(3, "a"), one(4, "b")]}), log_start=4, high_watermark=4)
    earliest, latest = offset_for_time(view, EARLIEST_TIMESTAMP), offset_for_time(view, LATEST_TIMESTAMP)
    assert earliest and latest
    assert (earliest.offset, earliest.timestamp, latest.offset, latest.timestamp) == (4, -1, 4, -1)
    place = offset_for_time(view._replace(high_watermark=5), MAX_TIMESTAMP)
    assert place and place.offset == 3  # as in Kafka, the log start offset is not looked at
    empty = view_of(write_segments(tmp_path / "empty", {0: []}))
    assert offset_for_time(empty, MAX_TIMESTAMP) is None
    assert offset_for_time(empty, 0) is None


def test_the_largest_timestamp_is_found_while_another_thread_renames_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a swap does: the segment's files are opened, and renamed just before this reader opens one."""
    view = view_of(write_segments(tmp_path, {3: [one(3, "a")], 4: [one(4, "b")]}))
    real, renamed = files.Reader.__init__, list[str]()

    def rename_first(reader: files.Reader, path: str | Path) -> None:
        if str(path).endswith(".timeindex") and not renamed:
            renamed.append(str(path))
            view.segments[0].keep_open()
            Path(path).rename(f"{path}.deleted")
        real(reader, path)

    monkeypatch.setattr(files.Reader, "__init__", rename_first)
    place = offset_for_time(view, MAX_TIMESTAMP)
    assert place and place.offset == 3 and renamed


def test_kafkas_own_directories_are_read_batch_by_batch(golden: Path) -> None:
    for name in [*legacy_names(golden), *case_names(golden)[::5]]:
        directory = golden / name / "before"
        view, listed = view_of(directory), list(entries_of(directory))
        for offset in range(view.log_start_offset, view.log_end_offset, 7):
            want = model(listed, offset, view.log_end_offset, 2000, True)
            assert got(read(view, offset, 2000)) == want, (name, offset)


def three(tmp_path: Path) -> LogView:
    """Offsets 14, 17 and 18; worked example 3."""
    return view_of(write_segments(tmp_path, {14: [one(14, "a")], 17: [one(17, "b"), one(18, "c")]}))


def test_worked_example_3_a_read_in_a_gap_starts_at_the_next_batch(tmp_path: Path) -> None:
    view = three(tmp_path)
    assert [read(view, offset, 1).first_offset for offset in (14, 15, 16, 17, 18)] == [14, 17, 17, 17, 18]
    at_end = read(view, 19, 1)
    assert at_end.slice is None and at_end.size == 0 and len(at_end.batches()[1]) == 0
    assert at_end.position_after(at_end.batches()[1]) is None


@pytest.mark.parametrize("offset", [13, 20, -1, 1 << 62, -(1 << 63)])
def test_an_offset_outside_is_refused(tmp_path: Path, offset: int) -> None:
    with raises_error(OffsetOutOfRangeError, path=tmp_path.name, about=f"offset {offset} ") as raised:
        read(three(tmp_path), offset, 1)
    assert " 14," in raised.value.reason and " 19," in raised.value.reason


def test_worked_example_18_a_partial_message_differs_from_a_whole_one(tmp_path: Path) -> None:
    messages = [one(0, "a"), one(1, "bbb")]
    view = view_of(write_segments(tmp_path, {0: messages}))
    first, both = len(messages[0]), len(messages[0]) + len(messages[1])
    for size in range(1, both + 5):
        fetched = read(view, 0, size, min_one_batch=False)
        data, batches, rest = fetched.batches()
        whole = 2 if size >= both else 1 if size >= first else 0
        assert len(batches) == whole
        assert rest == (0 if size in (first, both) or size > both else size - len(data))
        assert (size < first) == (fetched.first_batch_size > fetched.size)


def test_damage_is_distinguished_from_a_partial_message(tmp_path: Path) -> None:
    good, bad = one(0, "a"), bytearray(one(1, "b"))
    directory = write_segments(tmp_path, {0: [good, bytes(bad)]})
    log = directory / "00000000000000000000.log"
    bad[16] = 7
    log.write_bytes(good + bad)
    view = view_of(directory, end=2)
    fetched = read(view, 0, 1000)
    _, batches, rest = fetched.batches()
    assert (len(batches), rest) == (1, len(bad))
    with raises_error(CorruptRecordError, path=log, position=len(good), about="magic byte"):
        read(view, 1, 1000, resume_at=fetched.position_after(batches))


def test_a_read_at_the_end_has_no_bytes(tmp_path: Path) -> None:
    view = view_of(write_segments(tmp_path, {0: [one(0, "a")]}))
    data, batches, rest = read(view, 1, 1000).batches()
    assert (len(data), len(batches), rest) == (0, 0, 0)


def test_a_fetch_position_that_was_truncated_is_searched_again(tmp_path: Path) -> None:
    directory = write_segments(tmp_path, {0: [one(0, "a"), one(1, "b"), one(2, "c")]})
    view = view_of(directory)
    fetched = read(view, 0, 1)
    place = fetched.position_after(fetched.batches()[1])
    (directory / "00000000000000000000.log").write_bytes(one(0, "a" * 30) + one(1, "b") + one(2, "c"))
    segment = view.segments[0]
    segment.size = (directory / "00000000000000000000.log").stat().st_size
    view = view._replace(active_size=segment.size)
    assert got(read(view, 1, 1, resume_at=place)) == got(read(view, 1, 1)) != got(fetched)


def test_a_read_names_the_aborted_transactions_in_its_slice(tmp_path: Path) -> None:
    """Markers lie in later segments; what ended before the offset, or began behind the bytes, is left out."""
    directory = write_segments(
        tmp_path, {0: [one(at, "k") for at in range(5)], 5: [one(at, "k") for at in range(5, 10)]}, interval=0
    )
    write_aborted(directory, 0, [(7, 0, 1, 2)])
    write_aborted(directory, 5, [(7, 2, 6, 4), (8, 4, 7, 8), (9, 8, 9, 10)])
    view = view_of(directory)
    for offset, size, want in (
        (0, 1 << 20, [(7, 0, 1), (7, 2, 6), (8, 4, 7)]),
        (0, 1, [(7, 0, 1)]),
        (2, 1 << 20, [(7, 2, 6), (8, 4, 7)]),
        (7, 1 << 20, [(8, 4, 7), (9, 8, 9)]),
        (8, 1 << 20, [(9, 8, 9)]),
    ):
        aborted = read(view, offset, size, isolation=READ_COMMITTED).aborted
        assert [transaction[:3] for transaction in aborted] == want, (offset, size)
        assert read(view, offset, size).aborted == ()


def test_one_fetch_is_answered_by_a_message_set_send(tmp_path: Path) -> None:
    """Worked example 19: 4-byte total length, 2-byte error code, messages as they lie in the log."""
    stored = (one(0, "a"), one(1, "b"), one(2, "c"))
    view = view_of(write_segments(tmp_path, {0: stored[:2], 2: stored[2:]}, 0))
    frame = b"".join(encode_message_set_send(fetch_response(view, 0, 1 << 20)))
    assert frame == (2 + len(stored[0] + stored[1])).to_bytes(4, "big") + bytes(2) + stored[0] + stored[1]
    assert decode_message_set_send(frame).scan().batches["base_offset"].tolist() == [0, 1]
    cut = fetch_response(view, 1, len(stored[1]) - 1)
    assert (cut.error_code, cut.messages.tobytes()) == (0, stored[1][:-1])
    assert cut.scan().needed == len(stored[1])
    at_the_end, beyond = fetch_response(view, 3, 100), fetch_response(view, 4, 100)
    assert [(response.error_code, len(response.messages)) for response in (at_the_end, beyond)] == [
        (0, 0),
        (1, 0),
    ]
