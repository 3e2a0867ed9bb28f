"""The broker's settings, its directories, groups, the audit log, jobs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.base.config_table import ALL_KEYS
from siltstone.commands import console
from siltstone.commands.catalogue import PAGE_ROWS
from siltstone.commands.topics import settings_of_broker
from siltstone.web.guards import VIEWER
from siltstone.web.here import Here
from siltstone.web.limits import READING
from siltstone.web.pages.rendering import page

router = APIRouter(prefix="/ui")


@router.get("/broker", dependencies=[VIEWER])
def broker(request: Request, served: Here) -> Response:
    """The settings of the broker and of its log cleaner."""
    settings = settings_of_broker(served.broker_settings(), everything=True)
    groups = {"Main": [], "Log Cleaner": []}  # type: dict[str, list[object]]
    docs = {name: key for key in ALL_KEYS for name in key.names}
    for setting in settings:
        groups["Log Cleaner" if setting.name.startswith("log.cleaner") else "Main"].append(setting)
    return page(request, served, "broker.html", groups=groups, docs=docs)


@router.get("/directories", dependencies=[VIEWER])
def directories(request: Request, served: Here) -> Response:
    """The log directories."""
    return page(request, served, "directories.html", rows=console.directories(served))


@router.get("/groups", dependencies=[VIEWER, READING])
def groups(request: Request, served: Here) -> Response:
    """Consumer groups and their lags."""
    found, notes = console.groups(served)
    return page(request, served, "groups.html", groups=found, notes=notes)


@router.get("/changes", dependencies=[VIEWER])
def changes(request: Request, served: Here) -> Response:
    """The audit log."""
    return page(request, served, "changes.html", changes=console.changes(served, PAGE_ROWS))


@router.get("/jobs", dependencies=[VIEWER])
def jobs(request: Request, served: Here) -> Response:
    """Background jobs."""
    return page(request, served, "jobs.html", jobs=served.jobs.all())
