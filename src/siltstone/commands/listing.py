"""Filters and sorts the rows of lists for display, and returns a page of them, CSV or JSON. (Topics have
columns of their own, see ``catalogue``: there may be 100,000 of them.)"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import UsageError
from siltstone.commands.catalogue import PAGE_MAX, PAGE_ROWS, UNKNOWN

Row = TypeVar("Row")
Cell = str | int | float | bool | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of texts that a spreadsheet takes for formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """A column: its name in URLs and files, its displayed title, its value in a row."""

    name: str
    title: str
    value: Callable[[Row], Cell]
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Which rows, in which order: those with a text that has ``contains``, whatever its case; by the column
    ``sort``, or as they come; ``count`` rows from ``start`` on."""

    sort: str = ""
    descending: bool = False
    contains: str = ""
    start: int = 0
    count: int = PAGE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[Row]):
    """Rows of a list, how many there are in all, and where the next page begins: None at the end."""

    rows: Sequence[Row]
    total: int
    next_start: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongList(Generic[Row]):
    """A list of which there may be 100,000 rows: only those of the page that is shown are made.

    ``count``: how many; ``make``: a row from its number; ``keys``: by column a function that
    returns the sort keys: a number for each row, ``UNKNOWN`` for none; ``rows_with``: the numbers of the
    rows that have a text, in order (``RowTexts``).
    """

    count: int
    make: Callable[[int], Row]
    rows_with: Callable[[str], npt.NDArray[np.int64]]
    keys: Mapping[str, Callable[[], npt.NDArray[Any]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Row]:
        return map(self.make, range(self.count))

    def chosen(self, query: ListQuery) -> Sequence[Row]:
        """The rows that match, in order, each made when it is accessed."""
        numbers = self.rows_with(query.contains) if query.contains else np.arange(self.count)
        if query.sort:
            keys = self.keys[query.sort]()[numbers]
            order = np.argsort(-keys if query.descending else keys, kind="stable")
            is_known = keys[order] != UNKNOWN
            numbers = numbers[np.concatenate([order[is_known], order[~is_known]])]
        elif query.descending:
            numbers = numbers[::-1]
        return _LazyRows(self.make, numbers)


class _LazyRows(Sequence[Row]):
    """Rows by their numbers, each made when it is accessed."""

    def __init__(self, make: Callable[[int], Row], numbers: npt.NDArray[Any]) -> None:
        self._make, self._numbers = make, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        numbers = self._numbers[index].tolist()
        return [self._make(number) for number in numbers] if isinstance(index, slice) else self._make(numbers)


def list_rows(rows: Iterable[Row], columns: Sequence[Column[Row]], query: ListQuery) -> ListPage[Row]:
    """A page of a list. Raises UsageError for a column or a page that does not exist."""
    if query.start < 0 or not 1 <= query.count <= PAGE_MAX:
        raise UsageError("the page is out of range", advice=f"pass 1 to {PAGE_MAX} rows, from 0 on")
    chosen = chosen_rows(rows, columns, query)
    end = query.start + query.count
    return ListPage(
        rows=chosen[query.start : end], total=len(chosen), next_start=end if end < len(chosen) else None
    )


def chosen_rows(rows: Iterable[Row], columns: Sequence[Column[Row]], query: ListQuery) -> Sequence[Row]:
    """All rows that match, in order; rows without a value in the column come last. Raises UsageError."""
    by_name = {column.name: column for column in columns}
    if query.sort and query.sort not in by_name:
        raise UsageError(
            f"sort={query.sort[:64]!r}: there is no such column", advice=f"pass {', '.join(by_name)}"
        )
    if isinstance(rows, LongList):
        return rows.chosen(query)
    needle = query.contains.casefold()
    chosen = [row for row in rows if not needle or _has_text(row, columns, needle)]
    if not query.sort:
        return chosen[::-1] if query.descending else chosen
    value = by_name[query.sort].value
    known = [(cell, row) for row in chosen if (cell := value(row)) is not None]
    # Stable, also in descending order: equal rows stay in the order in which they came.
    known.sort(key=lambda pair: pair[0], reverse=query.descending)
    return [row for _, row in known] + [row for row in chosen if value(row) is None]


def _has_text(row: Row, columns: Sequence[Column[Row]], needle: str) -> bool:
    cells = (column.value(row) for column in columns)
    return any(isinstance(cell, str) and needle in cell.casefold() for cell in cells)


def csv_text(rows: Iterable[Row], columns: Sequence[Column[Row]], *, with_head: bool = True) -> str:
    """The rows as CSV (RFC 4180), with a first line of column names (``with_head``), and texts as ``_inert``
    returns them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if with_head:
        writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_inert(column.value(row)) for column in columns])
    return text.getvalue()


def _inert(cell: Cell) -> Cell:
    """The cell, with ``'`` before a text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def json_rows(rows: Iterable[Row], columns: Sequence[Column[Row]]) -> list[dict[str, Cell]]:
    """The rows as objects; unknown values are null."""
    return [{column.name: column.value(row) for column in columns} for row in rows]
