"""The ASGI application of a ``Served``: guards around the routers of ``ROUTERS``.

A router is an ``APIRouter``. Each of its routes names the role that it needs (``guards.VIEWER`` …) as a
dependency, else the site is not built: no route can be forgotten. Routes are plain functions (``def``), which
run in a pool of threads; they get what is served by ``here.Here``.
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
from siltstone.web.limits import Places, Tails
from siltstone.web.metrics import RequestCounts
from siltstone.web.metrics import router as metrics
from siltstone.web.openapi import router as openapi
from siltstone.web.pages import router as pages
from siltstone.web.pages.rendering import error_page
from siltstone.web.probes import router as probes
from siltstone.web.rest.confluent import router as confluent
from siltstone.web.rest.own import router as own
from siltstone.web.rest.own_changes import router as own_changes
from siltstone.web.rest.pulsar import router as pulsar
from siltstone.web.rest.tail import router as tail

ROUTERS: Sequence[APIRouter] = (
    probes,
    metrics,
    pages,
    own,
    own_changes,
    tail,
    confluent,
    pulsar,
    openapi,
    # Add the routers of ``rest`` here, a line each. Routes are tried one after the other, which takes 2 us
    # each; pages come early, since nothing is asked for as often as they are by tabs that poll.
)


def build_site(served: Served, rules: Rules, tails: Tails | None = None) -> ASGIApp:
    """The application: give it to uvicorn, or to Starlette's TestClient. ``tails``: to end the streams of
    records with the server."""
    app = FastAPI(title="Siltstone", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.served, app.state.counts, app.state.latest = served, RequestCounts(), LatestViews()
    app.state.rules = rules
    app.state.tails, app.state.reads = tails or Tails(), Places()
    errors.install(app, error_page)
    for router in ROUTERS:
        # Not `include_router`: it would make each of the routes again, which takes a second of processor.
        app.router.routes.extend(router.routes)
    for path, _, role in routes_with_roles(app):
        assert role is not None or path in OPEN_PATHS, f"{path}: no role"
    return Guards(app, rules, app.state.counts.count)


def routes_with_roles(app: FastAPI) -> Iterator[tuple[str, frozenset[str], Role | None]]:
    """(Path, methods, the role that is needed) of each route; files that are mounted need none."""
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        if dependant is not None:
            yield route.path or "", frozenset(route.methods or ()), _role_of(dependant)


def _role_of(dependant: Dependant) -> Role | None:
    """The role that a route's dependencies ask for; None if none does."""
    roles = [
        role
        for dependency in dependant.dependencies
        if (role := getattr(dependency.call, "role", None)) is not None
    ]
    return max(roles, default=None)
