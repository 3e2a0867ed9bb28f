"""The ASGI application of ``siltstone serve``: the routers of ``ROUTERS``, within the guards.

Each route of a router names the role that it needs (``guards.VIEWER`` …) as a dependency; ``build_site``
fails for a route without one. Routes are plain functions (``def``), which run in a pool of threads. Their
parameter ``served: CurrentServed`` (``web.dependencies``) has the log directories of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp

from siltstone.commands.latest_keys import LatestViews
from siltstone.commands.served import Served
from siltstone.web import errors
from siltstone.web.guards import OPEN_PATHS, Guards, Rules
from siltstone.web.identity import Role
from siltstone.web.limits import ReadSlots, Tails
from siltstone.web.metrics import RequestCounts
from siltstone.web.metrics import router as metrics
from siltstone.web.openapi import router as openapi
from siltstone.web.pages import router as pages
from siltstone.web.pages.cached_pages import CachedPages
from siltstone.web.pages.rendering import error_page
from siltstone.web.probes import router as probes
from siltstone.web.rest.confluent import router as confluent
from siltstone.web.rest.own import router as siltstone_api
from siltstone.web.rest.own_changes import router as siltstone_api_changes
from siltstone.web.rest.pulsar import router as pulsar
from siltstone.web.rest.tail import router as tail

ROUTERS: Sequence[APIRouter] = (
    probes,
    metrics,
    pages,
    siltstone_api,
    siltstone_api_changes,
    tail,
    confluent,
    pulsar,
    openapi,
)
"""Requests are compared with the routes in this order, 2 us each. Pages come early: the tabs that poll make
most requests."""


def build_site(served: Served, rules: Rules, tails: Tails | None = None) -> ASGIApp:
    """The application, for uvicorn or for Starlette's TestClient. ``served``: the server's log directories;
    ``tails``: the open streams of records, which the caller ends when it stops the server."""
    app = FastAPI(title="Siltstone", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.served, app.state.counts, app.state.latest = served, RequestCounts(), LatestViews()
    app.state.rules, app.state.cached_pages = rules, CachedPages()
    app.state.tails, app.state.reads = tails or Tails(), ReadSlots()
    errors.install(app, error_page)
    for router in ROUTERS:
        # `include_router` would create all routes again, which takes a second of processor time.
        app.router.routes.extend(router.routes)
    for path, _, role in routes_with_roles(app):
        assert role is not None or path in OPEN_PATHS, f"{path}: no role"
    return Guards(app, rules, app.state.counts.count)


def routes_with_roles(app: FastAPI) -> Iterator[tuple[str, frozenset[str], Role | None]]:
    """(Path, methods, needed role) of each route; None for a route that names no role. Mounted files are no
    routes."""
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        if dependant is not None:
            yield route.path or "", frozenset(route.methods or ()), _role_of(dependant)


def _role_of(dependant: Dependant) -> Role | None:
    """The highest role that a route's dependencies need; None if none needs a role."""
    roles = [
        role
        for dependency in dependant.dependencies
        if (role := getattr(dependency.call, "role", None)) is not None
    ]
    return max(roles, default=None)
