"""The broker's clients: who is connected, and the requests so far, by API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.commands import clients
from siltstone.commands.clients import NO_BROKER, ApiRequests, ClientConnection
from siltstone.commands.listing import Column
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.pages.lists import Parameters, list_page

router = APIRouter(prefix="/ui/clients")


def error_words(row: ApiRequests) -> str:
    """The errors of an API, the most frequent first."""
    errors = sorted(row.errors.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name}: {count:,}" for name, count in errors)


CONNECTIONS: tuple[Column[ClientConnection], ...] = (
    Column(name="number", title="number", value=lambda row: row.number, is_number=True),
    Column(name="client_id", title="client", value=lambda row: row.client_id),
    Column(name="address", title="from", value=lambda row: row.address),
    Column(name="listener", title="listener", value=lambda row: row.listener),
    Column(name="since_ms", title="since (UTC)", value=lambda row: row.since_ms),
    Column(name="requests", title="requests", value=lambda row: row.requests, is_number=True),
    Column(name="bytes_in", title="bytes in", value=lambda row: row.bytes_in, is_number=True),
    Column(name="bytes_out", title="bytes out", value=lambda row: row.bytes_out, is_number=True),
    Column(name="api", title="last request", value=lambda row: row.api),
    Column(name="state", title="state", value=lambda row: row.state),
    Column(name="for_ms", title="for ms", value=lambda row: row.for_ms, is_number=True),
)
REQUESTS: tuple[Column[ApiRequests], ...] = (
    Column(name="api", title="API", value=lambda row: row.api),
    Column(name="requests", title="requests", value=lambda row: row.requests, is_number=True),
    Column(name="errors", title="errors", value=lambda row: row.error_count, is_number=True),
    Column(name="request_bytes", title="bytes in", value=lambda row: row.request_bytes, is_number=True),
    Column(name="response_bytes", title="bytes out", value=lambda row: row.response_bytes, is_number=True),
    Column(name="p50_ms", title="p50 ms", value=lambda row: row.p50_ms, is_number=True),
    Column(name="p95_ms", title="p95 ms", value=lambda row: row.p95_ms, is_number=True),
    Column(name="p99_ms", title="p99 ms", value=lambda row: row.p99_ms, is_number=True),
    Column(name="codes", title="which errors", value=error_words),
)


@router.get("", dependencies=[VIEWER])
def connections(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """The broker's open connections, the oldest first."""
    rows, tab = clients.connections(served), "connections"
    return list_page(
        request,
        served,
        "client_connections.html",
        tab,
        CONNECTIONS,
        rows,
        parameters,
        tab=tab,
        note=_note(served),
    )


@router.get("/requests", dependencies=[VIEWER])
def requests(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """The requests that the broker has received since its start, by API."""
    rows, tab = clients.requests(served), "requests"
    return list_page(
        request,
        served,
        "client_requests.html",
        tab,
        REQUESTS,
        rows,
        parameters,
        tab=tab,
        note=_note(served),
        error_words=error_words,
    )


def _note(served: CurrentServed) -> str | None:
    return NO_BROKER if served.clients is None else None
