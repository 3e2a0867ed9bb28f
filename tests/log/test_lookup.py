"""Lookups by offset and time: against what Kafka's reader listed, for every record format, from any hint."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.layout import Bytes, Int64
from siltstone.log.indexes import read_entries
from siltstone.log.lookup import (
    BatchPosition,
    TimestampAndOffset,
    batch_headers,
    first_offset_at_or_after,
    position_of_offset,
)
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.golden_sets import case_names, legacy_names
from tests.support.records import twin
from tests.support.records.twin import LOG_APPEND
from tests.support.thoroughness import THOROUGH

READS = [61, 100, 1000, 16 << 10]
STEPS, TIMES = (40, 12) if THOROUGH else (13, 4)
"""How many steps through a golden log, and how many of its times, are tried."""


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "some.log"
    path.write_bytes(data)
    return path


def naive_offset(batches: list[twin.Batch], offset: int, start: int) -> int | None:
    return next(
        (entry.position for entry in batches if entry.position >= start and entry.last >= offset), None
    )


def naive_time(
    batches: list[twin.Batch], time: int, start: int, from_offset: int = 0
) -> tuple[int, int] | None:
    records = (record for entry in batches if entry.position >= start for record in entry.records)
    late = (r for r in records if r.timestamp >= time and r.offset >= from_offset and r.timestamp >= 0)
    return next(((r.offset, r.timestamp) for r in late), None)


@functools.cache
def golden_logs(golden: Path) -> list[tuple[Path, list[twin.Batch]]]:
    """Logs of every format with the twin's reading of them: all legacy ones, some of today's."""
    names = [*legacy_names(golden), *case_names(golden)[::6]]
    paths = itertools.chain.from_iterable(sorted((golden / n / "before").glob("*.log")) for n in names)
    return [(path, list(twin.decode_log(path.read_bytes()))) for path in paths]


@pytest.mark.random
def test_every_offset_is_found_from_every_hint(golden: Path) -> None:
    """The naive scan is the twin's; hints are batch boundaries at or before the answer, and behind it."""
    magics = set()
    for path, batches in golden_logs(golden):
        if not batches:
            continue
        with files.Reader(path) as reader:
            starts = [batches[0].position, batches[len(batches) // 2].position, batches[-1].position]
            steps = range(batches[0].first - 1, batches[-1].last + 3, max(1, len(batches) // STEPS))
            for start, offset in itertools.product(starts, steps):
                place = position_of_offset(reader, offset, start=start)
                assert (place and place.position) == naive_offset(batches, offset, start), (path, offset)
        magics |= {entry.magic for entry in batches}
    assert magics == {0, 1, 2}


@pytest.mark.random
def test_every_time_is_found(golden: Path) -> None:
    for path, batches in golden_logs(golden):
        times = sorted({record.timestamp for entry in batches for record in entry.records})
        with files.Reader(path) as reader:
            for time in itertools.chain.from_iterable(
                (t - 1, t, t + 1) for t in times[:: len(times) // TIMES + 1]
            ):
                for start in {0, batches[len(batches) // 2].position}:
                    first = first_offset_at_or_after(reader, time, start=start)
                    got = (first.offset, first.timestamp) if first else None
                    assert got == naive_time(batches, time, start), (path, time)


def hints(log: Path) -> tuple[Int64, Int64]:
    """Kafka's own offset index (offset, position) and time index (timestamp, offset) of a segment."""
    base = int(log.stem)
    offsets = read_entries(log.with_suffix(".index").read_bytes(), "index")
    times = read_entries(log.with_suffix(".timeindex").read_bytes(), "timeindex")
    return (
        np.array([(base + int(o), int(p)) for o, p in offsets.tolist()], np.int64).reshape(-1, 2),
        np.array([(int(t), base + int(o)) for t, o in times.tolist()], np.int64).reshape(-1, 2),
    )


def at_or_before(entries: Int64, key: int) -> int:
    """What the last entry with a key at or below the given one says, 0 without one."""
    row = int(np.searchsorted(entries[:, 0], key, side="right")) - 1
    return int(entries[row, 1]) if row >= 0 else 0


def test_searches_from_kafkas_own_index_entries_find_every_record(golden: Path) -> None:
    skipped = 0
    for path, batches in golden_logs(golden):
        records = [record for entry in batches for record in entry.records][::7]
        offsets, times = hints(path)
        with files.Reader(path) as reader:
            for record in records:
                start = at_or_before(offsets, record.offset)
                place = position_of_offset(reader, record.offset, start=start)
                assert (place and place.position) == naive_offset(batches, record.offset, 0)
                if record.timestamp < 0:
                    continue
                start = at_or_before(offsets, at_or_before(times, record.timestamp))
                skipped += start > 0
                first = first_offset_at_or_after(reader, record.timestamp, start=start)
                assert first, path
                assert (first.offset, first.timestamp) == naive_time(batches, record.timestamp, 0), path
    assert skipped > 50


def test_records_without_a_time_are_never_found(golden: Path) -> None:
    log = golden / "legacy" / "v0_basic" / "before" / "00000000000000000000.log"
    with files.Reader(log) as reader:
        assert first_offset_at_or_after(reader, -1) is None
        assert first_offset_at_or_after(reader, 0) is None


def of_all_formats() -> bytes:
    """Times go up and down; offset 4 and 12-19 are missing; 20-21 are a wrapper of the log's time."""
    inner = b"".join(twin.message(i, b"k", b"v", magic=1, timestamp=100 * i + 50) for i in (0, 1, 3))
    appended = b"".join(twin.message(i, b"k", b"v", magic=1, timestamp=1) for i in (0, 1))
    return b"".join(
        [
            twin.message(0, b"a", b"0" * 30, magic=0),
            twin.wrapper(3, twin.message(2, b"b", b"", magic=0) * 1, twin.GZIP, magic=0),
            twin.wrapper(8, inner, twin.SNAPPY, magic=1, timestamp=350),
            twin.message(9, b"c", b"9" * 3000, magic=1, timestamp=90),
            twin.wrapper(21, appended, twin.LZ4, magic=1, timestamp=500, attributes=LOG_APPEND),
            batch(
                [
                    Rec(offset=25 + i, key=b"d", value=b"v" * 700, timestamp=t)
                    for i, t in enumerate((90, 600, 550))
                ],
                leader_epoch=7,
                codec=4,
            ),
            batch([], base_offset=30, last_offset=31),
            batch([Rec(offset=32, key=b"e", timestamp=600)], leader_epoch=8),
        ]
    )


@pytest.mark.parametrize("first_read", READS)
@pytest.mark.parametrize(
    ("time", "from_offset", "want"),
    [
        (0, 0, (5, 50, -1)),
        (50, 0, (5, 50, -1)),
        (51, 0, (6, 150, -1)),
        (151, 0, (8, 350, -1)),
        (351, 0, (20, 500, -1)),
        (351, 21, (21, 500, -1)),
        (501, 0, (26, 600, 7)),
        (501, 27, (27, 550, 7)),
        (551, 27, (32, 600, 8)),
        (0, 9, (9, 90, -1)),
        (601, 0, None),
        (0, 33, None),
    ],
)
def test_times_in_all_formats(
    tmp_path: Path, first_read: int, time: int, from_offset: int, want: tuple[int, int, int] | None
) -> None:
    with files.Reader(write(tmp_path, of_all_formats())) as reader:
        first = first_offset_at_or_after(reader, time, from_offset=from_offset, first_read=first_read)
    expected = TimestampAndOffset(offset=want[0], timestamp=want[1], leader_epoch=want[2]) if want else None
    assert first == expected


@pytest.mark.parametrize("first_read", READS)
def test_the_same_headers_whatever_is_read_at_once(tmp_path: Path, first_read: int) -> None:
    data = of_all_formats()
    with files.Reader(write(tmp_path, data)) as reader:
        headers = np.concatenate(list(batch_headers(reader, first_read=first_read)))
    entries = list(twin.decode_log(data))
    assert headers["position"].tolist() == [entry.position for entry in entries]
    assert headers["size"].tolist() == [entry.size for entry in entries]
    assert headers["last_offset"].tolist() == [entry.last for entry in entries]


def test_a_gap_gives_the_next_higher_batch(tmp_path: Path) -> None:
    with files.Reader(write(tmp_path, of_all_formats())) as reader:
        places = [position_of_offset(reader, offset) for offset in (1, 12, 21, 22, 31, 33)]
    entries = list(twin.decode_log(of_all_formats()))
    assert [place and place.position for place in places] == [
        *(entries[i].position for i in (1, 4, 4, 5, 6)),
        None,
    ]
    assert places[3] == BatchPosition(
        position=entries[5].position, size=entries[5].size, base_offset=25, last_offset=27
    )


def test_nothing_at_or_above_the_end_is_found(tmp_path: Path) -> None:
    data = of_all_formats()
    last = list(twin.decode_log(data))[-1].position
    with files.Reader(write(tmp_path, data + b"being written")) as reader:
        assert position_of_offset(reader, 32, end=last) is None
        assert first_offset_at_or_after(reader, 600, start=last, end=last) is None
        assert position_of_offset(reader, 32, end=len(data)) is not None


class CountingReader(files.Reader):
    """Counts the bytes that are asked for."""

    bytes_asked_for = 0

    def read_into(self, buffer: Bytes, position: int) -> int:
        self.bytes_asked_for += len(buffer)
        return super().read_into(buffer, position)


def test_the_bodies_of_large_batches_are_not_read(tmp_path: Path) -> None:
    large = [Rec(offset=i, key=None, value=bytes(1 << 20), timestamp=i) for i in range(8)]
    path = write(tmp_path, b"".join(batch([record]) for record in large))
    with CountingReader(path) as reader:
        assert position_of_offset(reader, 7) is not None
        assert reader.bytes_asked_for <= 9 * (16 << 10)
        reader.bytes_asked_for = 0
        assert first_offset_at_or_after(reader, 7) is not None
        assert reader.bytes_asked_for <= (1 << 20) + 100 + 9 * (16 << 10)


def test_small_batches_are_read_in_growing_steps(tmp_path: Path) -> None:
    data = b"".join(batch([Rec(offset=i, key=b"k", value=bytes(100))]) for i in range(4_000))
    with CountingReader(write(tmp_path, data)) as reader:
        sizes = [int(headers["size"].sum()) for headers in batch_headers(reader)]
        assert reader.bytes_asked_for <= len(data) + 200 * len(sizes)
    assert len(sizes) < 10
    assert sum(sizes) == len(data)


@pytest.mark.parametrize("first_read", READS)
def test_every_cut_and_wrong_length_is_refused(tmp_path: Path, first_read: int) -> None:
    data = of_all_formats()
    positions = [entry.position for entry in twin.decode_log(data)]
    for cut in range(1, len(data), 7):
        whole = max(position for position in positions if position <= cut)
        with files.Reader(write(tmp_path, data[:cut])) as reader:
            if whole == cut:
                assert position_of_offset(reader, 99, first_read=first_read) is None
                continue
            with pytest.raises(CorruptRecordError) as error:
                position_of_offset(reader, 99, first_read=first_read)
        assert error.value.position == whole


def test_a_file_that_ends_before_the_given_end_is_refused(tmp_path: Path) -> None:
    data = of_all_formats()
    with files.Reader(write(tmp_path, data)) as reader:
        for more in (1, 10, 100, 1 << 20):
            with pytest.raises(CorruptRecordError) as error:
                position_of_offset(reader, 99, end=len(data) + more)
            assert error.value.position == len(data)


def test_a_search_by_time_checks_the_checksum_of_the_batch(tmp_path: Path) -> None:
    data = bytearray(of_all_formats())
    data[-1] ^= 1
    last = list(twin.decode_log(of_all_formats()))[-1].position
    with files.Reader(write(tmp_path, bytes(data))) as reader:
        assert position_of_offset(reader, 32) is not None
        with raises_error(CorruptRecordError, position=last, about="checksum"):
            first_offset_at_or_after(reader, 600, start=last)
