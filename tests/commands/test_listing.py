"""Lists for people: filtered, sorted, a page at a time, as files."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from siltstone.base.errors import UsageError
from siltstone.commands.catalogue import UNKNOWN
from siltstone.commands.listing import (
    Column,
    ListQuery,
    LongList,
    chosen_rows,
    csv_text,
    json_rows,
    list_rows,
)
from siltstone.commands.row_texts import RowTexts

Row = tuple[str, int | None]
COLUMNS: tuple[Column[Row], ...] = (
    Column(name="name", title="name", value=lambda row: row[0]),
    Column(name="size", title="size", value=lambda row: row[1], is_number=True),
)
ROWS: list[Row] = [("beta", 2), ("Alpha", None), ("gamma", 1), ("delta", 2)]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (ListQuery(), ["beta", "Alpha", "gamma", "delta"]),
        (ListQuery(descending=True), ["delta", "gamma", "Alpha", "beta"]),
        (ListQuery(sort="name"), ["Alpha", "beta", "delta", "gamma"]),
        (ListQuery(sort="size"), ["gamma", "beta", "delta", "Alpha"]),
        (ListQuery(sort="size", descending=True), ["beta", "delta", "gamma", "Alpha"]),
        (ListQuery(contains="ALPHA"), ["Alpha"]),
        (ListQuery(contains="a", sort="name", start=1, count=2), ["beta", "delta"]),
        (ListQuery(contains="nothing"), []),
        (ListQuery(start=9), []),
    ],
    ids=str,
)
def test_rows_are_filtered_sorted_and_cut(query: ListQuery, names: list[str]) -> None:
    page = list_rows(ROWS, COLUMNS, query)
    assert [row[0] for row in page.rows] == names
    assert page.total == len(chosen_rows(ROWS, COLUMNS, query))


RANKS = {"Alpha": 0, "beta": 1, "delta": 2, "gamma": 3}


@pytest.mark.parametrize("sort", ["", "name", "size"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("contains", ["", "ALPHA", "a", "nothing"])
@pytest.mark.parametrize("start", [0, 2])
def test_a_long_list_says_the_same_and_makes_only_the_rows_that_are_shown(
    sort: str, descending: bool, contains: str, start: int
) -> None:
    made_rows = list[int]()

    def make(number: int) -> Row:
        made_rows.append(number)
        return ROWS[number]

    rows = LongList(
        count=len(ROWS),
        make=make,
        rows_with=RowTexts(name for name, _ in ROWS).rows_with,
        keys={
            "name": lambda: np.array([RANKS[name] for name, _ in ROWS]),
            "size": lambda: np.array([UNKNOWN if size is None else size for _, size in ROWS]),
        },
    )
    query = ListQuery(sort=sort, descending=descending, contains=contains, start=start, count=2)
    page = list_rows(rows, COLUMNS, query)
    assert page == list_rows(ROWS, COLUMNS, query)
    assert len(made_rows) == len(page.rows)
    assert list(chosen_rows(rows, COLUMNS, query)) == list(chosen_rows(ROWS, COLUMNS, query))
    with pytest.raises(UsageError):
        list_rows(rows, COLUMNS, ListQuery(sort="shape"))


def test_pages_follow_each_other_to_the_end() -> None:
    names, start = list[str](), 0
    while start is not None:
        page = list_rows(ROWS, COLUMNS, ListQuery(sort="name", start=start, count=3))
        names += [row[0] for row in page.rows]
        start = page.next_start  # type: ignore[assignment]
    assert names == ["Alpha", "beta", "delta", "gamma"]


@pytest.mark.parametrize(
    "query", [ListQuery(sort="shape"), ListQuery(start=-1), ListQuery(count=0), ListQuery(count=501)], ids=str
)
def test_a_wrong_question_is_refused(query: ListQuery) -> None:
    with pytest.raises(UsageError):
        list_rows(ROWS, COLUMNS, query)


def test_files_have_the_rows_and_no_formula() -> None:
    rows: list[Row] = [("=1+1", -5), ('a,"b"\r\nc', None), ("@x", 0)]
    table = list(csv.reader(io.StringIO(csv_text(rows, COLUMNS))))
    assert table == [["name", "size"], ["'=1+1", "-5"], ['a,"b"\r\nc', ""], ["'@x", "0"]]
    assert csv_text(rows, COLUMNS, with_head=False).startswith("'=1+1")
    assert json_rows(rows[:1], COLUMNS) == [{"name": "=1+1", "size": -5}]
