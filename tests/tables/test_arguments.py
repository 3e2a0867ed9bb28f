"""The arguments of ``st.read``: what they mean for the records, and which are refused."""

from __future__ import annotations

import random
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.tables import splits
from siltstone.tables.arguments import RowKeywords, read_options
from siltstone.tables.table import plan, read_split, schema_of
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.log.views import random_segments, write_segments
from tests.support.tables.tables import log_directory, rows
from tests.support.thoroughness import examples


def read(path: Path, keywords: RowKeywords, **options: Any) -> list[dict[str, Any]]:
    parsed = read_options(path, None, None, keywords, options)
    batches = [batch for split in plan(parsed) for batch in read_split(split, parsed)]
    return rows(pa.Table.from_batches(batches, schema_of(parsed)))


@pytest.mark.parametrize("offset", [5, np.int64(5), np.uint16(5)])
def test_as_of_takes_an_offset_also_as_a_number_of_numpy(offset: Any, tmp_path: Path) -> None:
    limit = read_options(tmp_path, None, offset, {}, {}).as_of
    assert limit == read_options(tmp_path, None, None, {}, {"as_of_offset": 5}).as_of
    assert limit is not None and limit != read_options(tmp_path, None, "1970-01-01", {}, {}).as_of


bounds = st.tuples(st.none() | st.integers(0, 200), st.none() | st.integers(0, 200))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(["log", "latest"]), st.data())
def test_rows_are_those_that_a_filter_of_all_rows_leaves(
    seed: int, count: int, view: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "OPEN_COST_BYTES", 1)
        partition = write_segments(Path(folder) / "t-0", random_segments(random.Random(seed), count), 200)
        all_rows = read(partition, {}, view=view)
        times = [row["timestamp"] // 1000 for row in all_rows] or [0]
        keywords: RowKeywords = {
            "offsets": data.draw(st.none() | bounds),
            "timestamps": data.draw(
                st.none() | st.tuples(*2 * [st.none() | st.sampled_from(times).map(lambda time: time + 1)])
            ),
            "keys": data.draw(
                st.none() | st.lists(st.sampled_from([row["key"] or b"" for row in all_rows] or [b""]))
            ),
        }
        first, end = keywords["offsets"] or (None, None)
        earliest, latest = keywords["timestamps"] or (None, None)
        keys = keywords["keys"]
        expected = [
            row
            for row in all_rows
            if (first is None or row["offset"] >= first)
            and (end is None or row["offset"] < end)
            and (earliest is None or row["timestamp"] // 1000 >= earliest)
            and (latest is None or row["timestamp"] // 1000 < latest)
            and (keys is None or row["key"] in keys)
        ]
        assert read(partition, keywords, view=view, max_partition_bytes=data.draw(st.integers(1, 300))) == (
            expected
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two partitions of ten records, at 2026-01-01 and the nine seconds after it; keys k0 to k2 in turn."""
    begin = 1_767_225_600_000
    batches = [
        batch([Rec(offset=at, key=b"k%d" % (at % 3), timestamp=begin + 1000 * at) for at in range(10)])
    ]
    return log_directory(tmp_path, {"t-0": {0: batches}, "t-1": {0: batches}, "u-0": {0: batches}})


def places(root: Path, keywords: RowKeywords, **options: Any) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["partition"], row["offset"]) for row in read(root, keywords, **options)]


def test_times_are_text_or_datetimes_and_ends_are_excluded(root: Path) -> None:
    expected = [("u", 0, at) for at in range(3, 6)]
    begin = datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
    for times in ((begin, "2026-01-01T00:00:06"), ("2026-01-01T01:00:03+01:00", 1_767_225_606_000)):
        assert places(root, {"timestamps": times}, subscribe="u") == expected
    assert places(root, {"timestamps": (None, "2026-01-01")}) == []


def test_a_partition_is_that_of_every_topic(root: Path) -> None:
    assert {place[:2] for place in places(root, {"partitions": 0})} == {("t", 0), ("u", 0)}
    assert {place[:2] for place in places(root, {"partitions": [1]})} == {("t", 1)}
    limits = {"startingOffsets": '{"t":{"1":8}}'}
    assert places(root, {"partitions": 1}, subscribe="t", **limits) == [("t", 1, 8), ("t", 1, 9)]


def test_bounds_may_be_beyond_any_offset_and_time(root: Path) -> None:
    far, late = 1 << 80, 9_999_999_999_999_999_999
    assert len(read(root, {"offsets": (0, far), "timestamps": (-late, late)}, subscribe="u")) == 10
    assert read(root, {"offsets": (far, None)}) == read(root, {"timestamps": (late, None)}) == []
    assert read(root, {"offsets": (5, 2)}) == []
    chosen: RowKeywords = {"offsets": (np.int64(2), np.int64(4)), "partitions": np.int32(1)}  # type: ignore[typeddict-item]
    assert places(root, chosen) == [("t", 1, 2), ("t", 1, 3)]


def test_keys_are_found_without_the_column_of_keys(root: Path) -> None:
    options = read_options(root, "u", None, {"keys": ["k1", b"k2", "none"]}, {"columns": ["offset"]})
    batches = [batch for split in plan(options) for batch in read_split(split, options)]
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == [1, 2, 4, 5, 7, 8]
    assert places(root, {"keys": "k1"}, view="latest", subscribe="u") == [("u", 0, 7)]
    assert places(root, {"keys": []}) == []


def test_a_filter_never_changes_which_record_is_the_last(root: Path) -> None:
    assert places(root, {"offsets": (0, 8)}, view="latest", subscribe="u") == [("u", 0, 7)]
    assert places(root, {"timestamps": (None, "2026-01-01T00:00:08")}, view="latest", subscribe="u") == [
        ("u", 0, 7)
    ]


@pytest.mark.parametrize(
    ("keywords", "about"),
    [
        ({"offsets": 5}, "a start and an end"),
        ({"offsets": (0, 1, 2)}, "a start and an end"),
        ({"offsets": ("0", 5)}, "not offsets"),
        ({"offsets": (-1, 5)}, "not offsets"),
        ({"offsets": (True, 5)}, "not offsets"),
        ({"timestamps": "2026-01-01"}, "a start and an end"),
        ({"partitions": []}, "numbers"),
        ({"partitions": "0"}, "numbers"),
        ({"partitions": [-1]}, "numbers"),
        ({"keys": [5]}, "neither bytes nor text"),
        ({"keys": "\udcff"}, "cannot be encoded as UTF-8"),
    ],
)
def test_wrong_arguments_are_refused(root: Path, keywords: Any, about: str) -> None:
    with raises_error(UsageError, about=about, advice="pass"):
        places(root, keywords)


def test_what_is_no_time_is_refused(root: Path) -> None:
    with raises_error(UsageError, about="'yesterday': the value is no time", advice="milliseconds"):
        places(root, {"timestamps": ("yesterday", None)})


@pytest.mark.parametrize("options", [{"table": "batches"}, {"bad_batches": "quarantine"}])
def test_where_rows_are_no_records_none_are_chosen(root: Path, options: dict[str, str]) -> None:
    with raises_error(UsageError, about="not all rows are records", advice="filter the DataFrame"):
        read(root, {"offsets": (0, 5)}, **options)


def test_a_partition_that_does_not_exist_is_refused(root: Path) -> None:
    with raises_error(UnknownTopicError, path=root, about="partition 7", advice="topics --describe"):
        places(root, {"partitions": [0, 7]})
