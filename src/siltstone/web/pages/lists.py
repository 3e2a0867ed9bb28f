"""Pages with a list: its state is the query string, and the same query with ``format=csv`` or ``json`` is a
download of all rows that fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from siltstone.commands.catalogue import PAGE_MAX, PAGE_ROWS, TopicPage
from siltstone.commands.listing import (
    Column,
    ListPage,
    ListQuery,
    chosen_rows,
    csv_text,
    json_rows,
    list_rows,
)
from siltstone.commands.served import Served
from siltstone.web.pages.equivalents import curl
from siltstone.web.pages.rendering import page_response, query_text, render_page, within_bytes

Row = TypeVar("Row")
Page = TypeVar("Page", ListPage[Any], TopicPage)
Format = Literal["", "csv", "json"]
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


class ListParameters(BaseModel):
    """Which rows of a list, in which order, and in which format."""

    sort: str = ""
    descending: bool = False
    contains: str = ""
    start: int = Field(default=0, ge=0)
    count: int = Field(default=PAGE_ROWS, ge=1, le=PAGE_MAX)
    format: Format = ""

    def query(self) -> ListQuery:
        """The query that ``commands.listing`` takes."""
        return ListQuery(
            sort=self.sort,
            descending=self.descending,
            contains=self.contains,
            start=self.start,
            count=self.count,
        )

    @property
    def values(self) -> dict[str, Any]:
        """The part of the query string that links to other pages and to downloads keep: all but ``start`` and
        ``format``."""
        return self.model_dump(exclude={"start", "format"}, exclude_defaults=True)


Parameters = Annotated[ListParameters, Query()]
"""The query of a list, as a parameter of a route."""


class ShownList:
    """A list as a template shows it: a page of rows, the columns, the query, and the request that returns the
    same rows."""

    def __init__(
        self, columns: Sequence[Column[Any]], parameters: ListParameters, rows: ListPage[Any], equivalent: str
    ) -> None:
        self.columns, self.parameters, self.values = columns, parameters, parameters.values
        self.equivalents = [equivalent]
        self.rows, self.total, self.next_start = rows.rows, rows.total, rows.next_start


def first_rows(page: Page, start: int, count: int) -> Page:
    """The first ``count`` rows of a page that begins at row ``start``."""
    if count >= len(page.rows):
        return page
    return replace(page, rows=page.rows[:count], next_start=start + count)


def attachment(name: str) -> dict[str, str]:
    """The headers of a file to be saved."""
    return {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}


def list_page(
    request: Request,
    served: Served,
    template: str,
    name: str,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    parameters: ListParameters,
    **values: Any,
) -> Response:
    """A page with one list, ``shown`` in its template, or its download, a file ``name``. Rows that would make
    the page too large are on the next one. ``values``: further variables of the template. Raises UsageError
    for a column that does not exist."""
    if parameters.format:
        chosen = chosen_rows(rows, columns, parameters.query())
        as_json = parameters.format == "json"
        text = json.dumps(json_rows(chosen, columns)) if as_json else csv_text(chosen, columns)
        headers = attachment(f"{name}.{parameters.format}")
        return Response(text, media_type=MEDIA_TYPES[parameters.format], headers=headers)
    return page_response(request, list_html(request, served, template, columns, rows, parameters, **values))


def list_html(
    request: Request,
    served: Served,
    template: str,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    parameters: ListParameters,
    **values: Any,
) -> str:
    """The HTML of a page with one list, as for ``list_page``."""
    page = list_rows(rows, columns, parameters.query())
    equivalent = curl(
        request, "GET", f"{request.url.path}?{query_text({**parameters.values, 'format': 'json'})}"
    )

    def render(count: int) -> str:
        shown = ShownList(columns, parameters, first_rows(page, parameters.start, count), equivalent)
        return render_page(request, served, template, shown=shown, **values)

    return within_bytes(render, len(page.rows), sample=PAGE_ROWS)
