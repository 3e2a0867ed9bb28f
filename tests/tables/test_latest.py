"""The last record of each key, found by threads, against a dictionary; and filters of it."""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base import files
from siltstone.base.errors import SourceChangedError
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.tables.arrow import schema, to_batches
from siltstone.tables.latest import find_last_offsets, plan_keys
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import (
    FileSplit,
    PushedFilters,
    TaskSplit,
    decode_offsets,
    encode_offsets,
    offset_ranges,
    open_logs,
)
from siltstone.tables.table import plan, plan_stages, read_split
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.log.views import entries_of, random_segments, write_segments
from tests.support.records import twin
from tests.support.tables.tables import log_directory, offsets, rows, table_of
from tests.support.thoroughness import examples


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 25),
    st.sampled_from([0, 100, 1 << 30]),
    st.sampled_from([1, 1 << 26]),
)
def test_the_last_record_of_each_key_is_found_whatever_the_memory(
    seed: int, count: int, memory: int, part: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = write_segments(Path(folder) / "t-0", random_segments(random.Random(seed), count), 200)
        last = {r.key: r.offset for _, e in entries_of(partition) for r in e.records if r.key is not None}
        options = ReadOptions.of({"path": str(partition)})
        logs = open_logs(options)
        keys = plan_keys(logs, offset_ranges(logs, options), options, parallelism=3, part_bytes=part)
        (found,) = find_last_offsets(keys, options, memory_bytes=memory).values()
        assert found.tolist() == sorted(last.values())


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from([1, 90, 1 << 20]), st.booleans())
def test_the_rows_are_those_of_the_reader_in_one_process(
    seed: int, count: int, size: int, keep: bool
) -> None:
    tombstones = "keep" if keep else "drop"
    with tempfile.TemporaryDirectory() as folder:
        partition = write_segments(Path(folder) / "t-0", random_segments(random.Random(seed), count), 200)
        options = {"tombstones": tombstones, "maxPartitionBytes": str(size), "includeHeaders": "true"}
        found = table_of(partition, view="latest", **options)
        with ReadOnlyLogs([partition]) as logs:
            parts = to_batches(logs["t", 0], view="latest", tombstones=tombstones, include_headers=True)
            plain = pa.Table.from_batches(parts, schema(include_headers=True))
        assert rows(found) == rows(plain)


def test_last_records_in_message_sets_before_batches_are_read(tmp_path: Path) -> None:
    old = [twin.message(at, b"k%d" % (at % 4), b"old", magic=at % 2) for at in range(8)]
    new = [batch([Rec(offset=at, key=b"k%d" % (at % 3), value=b"new")]) for at in range(8, 14)]
    root = log_directory(tmp_path, {"t-0": {0: [*old, *new]}})
    found = rows(table_of(root, view="latest"))
    assert [(row["offset"], row["value"]) for row in found] == [
        (7, b"old"),
        (11, b"new"),
        (12, b"new"),
        (13, b"new"),
    ]


def test_last_records_more_than_32_bits_of_offsets_apart_are_read(tmp_path: Path) -> None:
    far = [0, 1, 1 << 31, (1 << 32) + 5, 1 << 33]
    each = [batch([Rec(offset=at, key=b"k%d" % at)]) for at in far]
    partition = write_segments(tmp_path / "t-0", {0: each}, 100)
    with files.Reader(partition / f"{0:020}.log") as reader:
        mark = files.FileIdentity.of(reader.stat, may_grow=False)
    file_split = FileSplit(
        topic_partition=TopicPartition("t", 0),
        directory=str(partition),
        base_offset=0,
        identity=mark,
        start=0,
        end=far[-1] + 1,
        position=0,
        end_position=mark.size,
        size=mark.size,
        retained=encode_offsets(np.array(far)),
    )
    options = ReadOptions.of({"path": str(partition), "view": "latest", "columns": "offset"})
    found = read_split(TaskSplit(file_splits=(file_split,)), options)
    assert [at for batch in found for at in batch["offset"].to_pylist()] == far


@pytest.mark.parametrize("missing", [1, 5, 9])
def test_a_missing_last_record_fails_the_query(tmp_path: Path, missing: int) -> None:
    present = [at for at in range(10) if at != missing]
    for name, batches in {
        "one-0": [batch([Rec(offset=at, key=b"k") for at in present])],
        "each-0": [batch([Rec(offset=at, key=b"k")]) for at in present],
    }.items():
        root = log_directory(tmp_path / name, {name: {0: batches}})
        options = ReadOptions.of({"path": str(root), "view": "latest", "tombstones": "keep"})
        (split,) = plan(options)
        retained = encode_offsets(np.array([0, missing], np.int64))
        stale = TaskSplit(file_splits=(dataclasses.replace(split.file_splits[0], retained=retained),))
        with raises_error(SourceChangedError, path=root / name, about="of 2", advice="run the query again"):
            list(read_split(stale, options))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """a at 0 and 3, b at 1 and deleted at 4, no key at 2, c deleted at 5 and back at 6; a in t-1 too."""
    values = [(b"a", b"0"), (b"b", b"1"), (None, b"2"), (b"a", b"3"), (b"b", None), (b"c", None), (b"c", b"")]
    records = [Rec(offset=at, key=key, value=value) for at, (key, value) in enumerate(values)]
    other = batch([Rec(offset=0, key=b"a", value=b"x")])
    return log_directory(
        tmp_path, {"t-0": {0: [batch(records[:4])], 4: [batch(records[4:])]}, "t-1": {0: [other]}}
    )


def test_deleted_keys_are_excluded_unless_tombstones_are_kept(root: Path) -> None:
    assert offsets(root, view="latest") == [3, 6, 0]
    assert offsets(root, view="latest", tombstones="keep") == [3, 4, 6, 0]
    assert table_of(root, view="latest")["value"].to_pylist() == [b"3", b"", b"x"]


def test_filters_never_change_which_record_is_the_last(root: Path) -> None:
    assert offsets(root, PushedFilters(start_offset=0, end_offset=4), view="latest") == [3, 0]
    assert offsets(root, PushedFilters(start_offset=0, end_offset=3), view="latest") == [0]
    assert offsets(root, PushedFilters(partitions=frozenset([0])), view="latest") == [3, 6]
    assert offsets(root, PushedFilters(topics=frozenset(["u"])), view="latest") == []


def test_filters_read_less_of_a_log(root: Path) -> None:
    assert offsets(root, PushedFilters(start_offset=2, end_offset=5) & PushedFilters(end_offset=4)) == [2, 3]
    assert offsets(root, PushedFilters(partitions=frozenset([1])) & PushedFilters(start_offset=0)) == [0]
    assert offsets(root, PushedFilters(from_timestamp_ms=1 << 60)) == []
    assert offsets(root, PushedFilters(from_timestamp_ms=0)) == [0, 1, 2, 3, 4, 5, 6, 0]


@given(st.lists(st.integers(0, 2**62), unique=True), st.sampled_from([1, 40, 1 << 20, 1 << 40]))
def test_offsets_survive_encoding(numbers: list[int], scale: int) -> None:
    ascending = np.array(sorted({number % (len(numbers) * scale) for number in numbers}), np.int64)
    assert decode_offsets(encode_offsets(ascending)).tolist() == ascending.tolist()


def test_dense_offsets_take_a_bit_each() -> None:
    assert len(encode_offsets(np.arange(10**15, 10**15 + 8000, dtype=np.int64))) < 1100


def test_a_log_that_was_cleaned_before_its_keys_are_read_is_refused(root: Path) -> None:
    options = ReadOptions.of({"path": str(root), "view": "latest"})
    planned = plan_stages(options)
    assert planned.key_plan is not None
    path = root / "t-0" / f"{0:020}.log"
    os.utime(path, ns=(5, 5))
    with raises_error(SourceChangedError, path=root / "t-0", advice="run the query again"):
        find_last_offsets(planned.key_plan, options)
