"""Rows that match, against plain bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.records import matching
from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.matching import rows_containing, rows_with_key

SPANS = st.lists(st.none() | st.text("ab", max_size=6).map(str.encode), max_size=20)


def columns_of(spans: list[bytes | None]) -> KeyColumns:
    sizes = [-1 if span is None else len(span) for span in spans]
    starts = np.cumsum([0, *(max(size, 0) for size in sizes)])[:-1]
    return KeyColumns(
        data=np.frombuffer(b"".join(span or b"" for span in spans) + b"aab", np.uint8),
        batch=np.zeros(len(spans), np.int32),
        offset=np.arange(len(spans), dtype=np.int64),
        key_start=starts.astype(np.int32),
        key_size=np.array(sizes, np.int32),
    )


@given(SPANS, st.text("ab", max_size=4).map(str.encode))
def test_an_equal_key_is_found(spans: list[bytes | None], key: bytes) -> None:
    expected = [row for row, span in enumerate(spans) if span == key]
    assert rows_with_key(columns_of(spans), key).tolist() == expected


@given(SPANS, st.text("ab", min_size=1, max_size=6).map(str.encode))
def test_bytes_are_found_within_their_span_only(spans: list[bytes | None], needle: bytes) -> None:
    columns = columns_of(spans)
    expected = [row for row, span in enumerate(spans) if span is not None and needle in span]
    rows = rows_containing(columns.data, columns.key_start, columns.key_size, needle)
    assert rows.tolist() == expected


def test_no_byte_is_read_twice_for_a_needle_that_nearly_matches_everywhere() -> None:
    reads = 0

    class Counted:
        def __getitem__(self, at: int) -> int:
            nonlocal reads
            reads += 1
            return ord("a")

    needle, starts, sizes = np.frombuffer(b"a" * 99 + b"b", np.uint8), np.array([0]), np.array([1000])
    borders, out = np.empty(len(needle), np.int32), np.empty(1, np.int64)
    matching._longest_borders(needle, borders)
    search = getattr(matching._spans_with, "py_func", matching._spans_with)
    assert search(Counted(), starts, sizes, needle, borders, out) == 0
    assert reads == 1000
