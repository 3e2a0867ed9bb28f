"""The last record of each key, found on threads, against a dictionary; and what filters leave of it."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.tables import latest
from siltstone.tables.bounds import find_ranges
from siltstone.tables.offsets import pack_offsets, unpack_offsets
from siltstone.tables.opened import open_logs
from siltstone.tables.options import ReadOptions
from siltstone.tables.predicate import EVERYTHING
from tests.cleaner.logs import Rec, batch
from tests.log.views import entries_of, random_segments, write_segments
from tests.tables.tables import log_directory, offsets, table_of


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 25),
    st.sampled_from([0, 100, 1 << 30]),
    st.sampled_from([1, 1 << 26]),
)
def test_it_is_the_last_of_each_key_whatever_the_memory(
    seed: int, count: int, memory: int, part: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = write_segments(Path(folder) / "t-0", random_segments(random.Random(seed), count), 200)
        last = {r.key: r.offset for _, e in entries_of(partition) for r in e.records if r.key is not None}
        options = ReadOptions.of({"path": str(partition)})
        logs = open_logs(options)
        found = latest.find_winners(
            logs, find_ranges(logs, options), options, memory_bytes=memory, part_bytes=part
        )
        assert [each.tolist() for each in found.values()] == [sorted(last.values())]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """a at 0 and 3, b at 1 and deleted at 4, no key at 2, c deleted at 5 and back at 6; a in t-1 too."""
    values = [(b"a", b"0"), (b"b", b"1"), (None, b"2"), (b"a", b"3"), (b"b", None), (b"c", None), (b"c", b"")]
    records = [Rec(offset=at, key=key, value=value) for at, (key, value) in enumerate(values)]
    other = batch([Rec(offset=0, key=b"a", value=b"x")])
    return log_directory(
        tmp_path, {"t-0": {0: [batch(records[:4])], 4: [batch(records[4:])]}, "t-1": {0: [other]}}
    )


def test_deleted_keys_are_left_out_unless_told(root: Path) -> None:
    assert offsets(root, view="latest") == [3, 6, 0]
    assert offsets(root, view="latest", tombstones="keep") == [3, 4, 6, 0]
    assert table_of(root, view="latest")["value"].to_pylist() == [b"3", b"", b"x"]


def test_filters_never_change_which_record_is_the_last(root: Path) -> None:
    assert offsets(root, EVERYTHING.and_offsets(0, 4), view="latest") == [3, 0]
    assert offsets(root, EVERYTHING.and_offsets(0, 3), view="latest") == [0]
    assert offsets(root, EVERYTHING.and_partitions(frozenset([0])), view="latest") == [3, 6]
    assert offsets(root, EVERYTHING.and_topics(frozenset(["u"])), view="latest") == []


def test_filters_read_less_of_a_log(root: Path) -> None:
    assert offsets(root, EVERYTHING.and_offsets(2, 5).and_offsets(None, 4)) == [2, 3]
    assert offsets(root, EVERYTHING.and_partitions(frozenset([1])).and_offsets(0, None)) == [0]
    assert offsets(root, EVERYTHING.and_from(1 << 60)) == []
    assert offsets(root, EVERYTHING.and_from(0)) == [0, 1, 2, 3, 4, 5, 6, 0]


@given(st.lists(st.integers(0, 2**62), unique=True), st.sampled_from([1, 40, 1 << 20, 1 << 40]))
def test_offsets_travel_packed(numbers: list[int], scale: int) -> None:
    ascending = np.array(sorted({number % (len(numbers) * scale) for number in numbers}), np.int64)
    assert unpack_offsets(pack_offsets(ascending)).tolist() == ascending.tolist()


def test_dense_offsets_take_a_bit_each() -> None:
    assert len(pack_offsets(np.arange(10**15, 10**15 + 8000, dtype=np.int64))) < 1100
