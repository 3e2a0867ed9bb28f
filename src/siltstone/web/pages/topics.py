"""The list of topics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from siltstone.commands.catalogue import PAGE_MAX, PAGE_ROWS, Catalogue, TopicQuery, TopicRow, list_topics
from siltstone.commands.listing import Column, csv_text, json_rows
from siltstone.commands.served import Served
from siltstone.commands.watch import STATES
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.pages.cached_pages import cached_response
from siltstone.web.pages.equivalents import curl, siltstone
from siltstone.web.pages.lists import MEDIA_TYPES, Format, attachment, first_rows
from siltstone.web.pages.rendering import query_text, render_page, within_bytes
from siltstone.web.queries import TopicParameters

router = APIRouter(prefix="/ui/topics")
TOPIC_COLUMNS: tuple[Column[TopicRow], ...] = (
    Column(name="name", title="topic", value=lambda row: row.name),
    Column(name="partitions", title="partitions", value=lambda row: row.partitions, is_number=True),
    Column(name="policy", title="policy", value=lambda row: row.policy),
    Column(name="retention_ms", title="kept for", value=lambda row: row.retention_ms, is_number=True),
    Column(name="retention_bytes", title="kept up to", value=lambda row: row.retention_bytes, is_number=True),
    Column(name="bytes", title="bytes", value=lambda row: row.bytes, is_number=True),
    Column(name="dirty_bytes", title="dirty", value=lambda row: row.dirty_bytes, is_number=True),
    Column(name="dirty_ratio", title="ratio / needed", value=lambda row: row.dirty_ratio, is_number=True),
    Column(name="records", title="records stored", value=lambda row: row.records, is_number=True),
    Column(name="saved_bytes_7d", title="saved in 7 d", value=lambda row: row.saved_bytes_7d, is_number=True),
    Column(name="last_cleaning_ms", title="last cleaning (UTC)", value=lambda row: row.last_cleaning_ms),
    Column(name="state", title="state", value=lambda row: row.state),
)


class ShownTopics(TopicParameters):
    """The query of the page, which shows internal topics only on request."""

    internal: bool = False
    format: Format = ""

    @property
    def values(self) -> dict[str, Any]:
        """The part of the query string that the links to the next page and to downloads keep."""
        return self.model_dump(exclude={"start", "format"}, exclude_defaults=True)


@router.get("", dependencies=[VIEWER])
def topics(request: Request, served: CurrentServed, parameters: Annotated[ShownTopics, Query()]) -> Response:
    """The page of topics, or with ``format`` the whole list as a file."""
    query = parameters.query()
    if parameters.format:
        list_topics(served.catalogue, query)  # refuses what is wrong before the file begins
        pages = _pages(served.catalogue, replace(query, start=0, count=PAGE_MAX))
        return StreamingResponse(
            _file(pages, as_json=parameters.format == "json"),
            media_type=MEDIA_TYPES[parameters.format],
            headers=attachment(f"topics.{parameters.format}"),
        )
    return cached_response(request, served, partial(_html, request, served, parameters, query))


def _html(request: Request, served: Served, parameters: ShownTopics, query: TopicQuery) -> str:
    page = list_topics(served.catalogue, query)

    def render(count: int) -> str:
        return render_page(
            request,
            served,
            "topics.html",
            query=query,
            page=first_rows(page, query.start, count),
            values=parameters.values,
            columns=TOPIC_COLUMNS,
            states=STATES,
            equivalents=[
                siltstone(served, "topics", "--describe"),
                curl(request, "GET", f"/api/v1/topics?{query_text(parameters.values)}"),
            ],
        )

    # As many rows as fit the bytes of a page, which is estimated from the first ones.
    return within_bytes(render, len(page.rows), sample=PAGE_ROWS)


def _pages(catalogue: Catalogue, query: TopicQuery) -> Iterator[Sequence[TopicRow]]:
    """All topics that match the filters, a page at a time, of one catalogue: there may be 100,000."""
    start: int | None = query.start
    while start is not None:
        page = list_topics(catalogue, replace(query, start=start))
        yield page.rows
        start = page.next_start


def _file(pages: Iterator[Sequence[TopicRow]], *, as_json: bool) -> Iterator[str]:
    """The rows of all pages as one text, a piece for each page: a JSON array, or CSV with one head."""
    for number, rows in enumerate(pages):
        if not as_json:
            yield csv_text(rows, TOPIC_COLUMNS, with_head=number == 0)
            continue
        texts = map(json.dumps, json_rows(rows, TOPIC_COLUMNS))
        yield ("[" if number == 0 else ",") + ",".join(texts)
    if as_json:
        yield "]"
