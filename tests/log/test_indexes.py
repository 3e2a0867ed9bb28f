"""Indexes: built again from Kafka's cleaned logs they are Kafka's bytes; a twin agrees; damage is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptFileError
from siltstone.base.records.scan import scan_batches
from siltstone.log.indexes import IndexBuilder, NamedFile, read_entries, sanity_check
from siltstone.log.names import parse_segment_file
from tests.support import golden_sets
from tests.support.records.arrays import array


def test_the_indexes_of_every_cleaned_segment_are_kafkas(golden: Path) -> None:
    compared = 0
    for name in golden_sets.case_names(golden):
        case = golden_sets.load_case(golden, name)
        for round_ in case.rounds:
            end = round_.checkpoints_after.get("cleaner-offset-checkpoint")
            if not round_.cleaned or end is None or round_.after is None:
                continue
            for path in sorted(round_.after.glob("*.log")):
                if int(path.stem) < end:
                    compared += _same_indexes(path, round_.config)
    assert compared > 100


def _same_indexes(path: Path, config) -> int:
    builder = IndexBuilder(
        int(path.stem), int(config["index.interval.bytes"]), int(config["segment.index.bytes"])
    )
    batches = scan_batches(array(path.read_bytes())).batches
    for start in range(0, len(batches), 7):
        builder.add_batches(batches[start : start + 7])
    built = builder.finish()
    assert built["index"] == path.with_suffix(".index").read_bytes(), path
    assert built["timeindex"] == path.with_suffix(".timeindex").read_bytes(), path
    return 1


def test_kafkas_own_indexes_are_read(golden: Path) -> None:
    for path in sorted(golden.glob("*/after*/*index")):
        name = parse_segment_file(path.name)
        assert name is not None
        entries = read_entries(path.read_bytes(), name.kind, str(path))
        assert entries.dtype.itemsize * len(entries) <= path.stat().st_size


def twin(base: int, interval: int, room: int, rows: list[tuple[int, int, int]]) -> tuple[bytes, bytes]:
    """One batch at a time: (last offset, largest timestamp, size)."""
    offsets, times = b"", b""
    since, position, largest, largest_offset, written = 0, 0, -1, -1, -1
    for last, timestamp, size in rows:
        if timestamp > largest:
            largest, largest_offset = timestamp, last
        if since > interval and len(offsets) // 8 < room:
            offsets += struct.pack(">ii", last - base, position)
            if largest > written and len(times) // 12 < max((8 * room + 3) // 12 - 1, 0):
                times += struct.pack(">qi", largest, largest_offset - base)
                written = largest
            since = 0
        position += size
        since += size
    if largest > written:
        times += struct.pack(">qi", largest, largest_offset - base)
    return offsets, times


@settings(derandomize=True, deadline=None)
@given(
    st.integers(0, 1 << 40),
    st.integers(0, 300),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 50), st.integers(-1, 90), st.integers(61, 200)), max_size=25),
    st.integers(1, 9),
)
def test_the_builder_writes_what_its_plain_twin_writes(
    base: int, interval: int, room: int, steps: list[tuple[int, int, int]], part: int
) -> None:
    last, rows = base - 1, []
    for step, timestamp, size in steps:
        last += step
        rows.append((last, timestamp, size))
    builder = IndexBuilder(base, interval, 8 * room + 3)
    for start in range(0, len(rows), part):
        columns = np.array(rows[start : start + part], np.int64).reshape(-1, 3)
        builder.add(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))
    built = builder.finish()
    assert (built["index"], built["timeindex"]) == twin(base, interval, room, rows)
    assert builder.largest_timestamp == max((row[1] for row in rows), default=-1)
    assert len(built["timeindex"]) <= max(8 * room + 3, 12)


def test_preallocated_zeros_are_ignored() -> None:
    data = struct.pack(">iiii", 5, 100, 9, 200)
    assert len(read_entries(data + bytes(80), "index")) == 2
    assert len(read_entries(bytes(24), "timeindex")) == 0


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("index", b"1234567"),
        ("timeindex", bytes(13)),
        ("txnindex", bytes(33)),
        ("index", struct.pack(">iiii", 5, 100, 5, 200)),
        ("index", struct.pack(">iiii", 5, 100, 6, 100)),
        ("index", struct.pack(">ii", -5, 100)),
        ("timeindex", struct.pack(">qiqi", 9, 1, 8, 2)),
        ("timeindex", struct.pack(">qiqi", 9, 2, 10, 1)),
        ("txnindex", struct.pack(">hqqqq", 1, 0, 0, 0, 0)),
    ],
)
def test_entries_that_do_not_ascend_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises(CorruptFileError) as error:
        read_entries(data, kind, "some.index")
    assert error.value.path == "some.index" and 0 <= error.value.position <= len(data)


def test_an_entry_that_does_not_ascend_is_placed() -> None:
    for kind, data, position in (
        ("index", struct.pack(">iiiiii", 5, 100, 6, 200, 6, 300), 16),
        ("timeindex", struct.pack(">qiqi", 9, 1, 8, 2), 12),
    ):
        with pytest.raises(CorruptFileError) as error:
            read_entries(data, kind, "some.index")
        assert error.value.position == position


def test_the_reason_is_that_of_the_entry() -> None:
    with pytest.raises(CorruptFileError, match="relative_offset is negative") as error:
        read_entries(struct.pack(">iiii", -5, 100, -5, 200), "index")
    assert error.value.position == 0
    rows = [(0, 7, 5, 6, 7), (0, 7, 9, 8, 9), (0, 7, 1, 2, 9)]
    entries = read_entries(b"".join(struct.pack(">hqqqq", *row) for row in rows), "txnindex")
    (ends_early,) = sanity_check(NamedFile(path="a", kind="txnindex", base_offset=4), entries)
    assert (ends_early.position, ends_early.reason) == (
        34,
        "the transaction's first offset is above its last offset",
    )
    (below,) = sanity_check(NamedFile(path="a", kind="txnindex", base_offset=4), entries[2:])
    assert "below the base offset" in below.reason


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(["index", "timeindex", "txnindex"]), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(kind: str, data: bytes) -> None:
    try:
        read_entries(data, kind)
    except CorruptFileError:
        return
