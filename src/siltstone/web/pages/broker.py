"""The broker's settings, as a form for one of them at a time, the switch of the log cleaner, and the restart
that static settings wait for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import RedirectResponse, Response

from siltstone.base.config import find_broker_key
from siltstone.base.errors import ChangedMeanwhileError, SiltstoneError
from siltstone.commands import broker_settings
from siltstone.commands.broker_settings import CLEANER_SWITCH, LOG_CLEANER, MAIN, BrokerRow
from siltstone.commands.cluster import broker_tag
from siltstone.commands.listing import Column
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.errors import status_of, with_status_of
from siltstone.web.guards import ADMIN, VIEWER
from siltstone.web.pages.equivalents import cluster_url, curl
from siltstone.web.pages.lists import ListParameters, list_page
from siltstone.web.pages.rendering import page

router = APIRouter(prefix="/ui/broker")
COLUMNS: tuple[Column[BrokerRow], ...] = (
    Column(name="name", title="name", value=lambda row: row.name),
    Column(name="value", title="value", value=lambda row: row.value),
    Column(name="source", title="source", value=lambda row: row.source),
    Column(name="default", title="default", value=lambda row: row.default),
    Column(
        name="applies",
        title="applies",
        value=lambda row: "at once" if row.applies_at_once else "after a restart",
    ),
    Column(name="pending", title="pending", value=lambda row: row.pending),
    Column(name="what", title="what it does", value=lambda row: row.key.doc),
)


class BrokerParameters(ListParameters):
    """The query of the page. ``name``: the setting whose form is shown, with ``value`` in it; ``changed``:
    list only settings that are set."""

    count: int = 500
    name: str = ""
    value: str = ""
    changed: bool = False


@router.get("", dependencies=[VIEWER])
def broker(
    request: Request, served: CurrentServed, parameters: Annotated[BrokerParameters, Query()]
) -> Response:
    """The settings of the broker and of its log cleaner."""
    return _settings(request, served, parameters)


def _settings(
    request: Request,
    served: CurrentServed,
    parameters: BrokerParameters,
    *,
    problem: str | None = None,
    is_conflict: bool = False,
    wrong: str = "",
) -> Response:
    """The page. ``problem``, ``wrong``: as for ``render_page``; ``is_conflict``: the problem is that another
    user has changed the settings since the form was made."""
    rows, unreadable = broker_settings.broker_rows(served)
    edited = None
    if parameters.name:
        key = find_broker_key(parameters.name)
        edited = next((row for row in rows if row.key is key), None)
    switch = next(row for row in rows if row.name == CLEANER_SWITCH)
    # The value that a click on the switch sets.
    switched = "false" if (switch.pending or switch.value) == "true" else "true"
    shown = [
        row for row in rows if not parameters.changed or row.value != row.default or row.pending is not None
    ]
    return list_page(
        request,
        served,
        "broker.html",
        "settings",
        COLUMNS,
        shown,
        parameters,
        problem=problem or unreadable,
        wrong=wrong,
        groups=(LOG_CLEANER, MAIN),
        edited=edited,
        is_conflict=is_conflict,
        switch=switch,
        waiting=[row for row in rows if row.pending is not None],
        has_file=served.options.properties is not None,
        tag=broker_tag(served),
        equivalents=[]
        if edited is None
        else [_equivalents(request, served, edited.name, parameters.value or edited.value)],
        switch_equivalents=[_equivalents(request, served, CLEANER_SWITCH, switched)],
        restart_equivalents=[curl(request, "POST", "/api/v1/broker:restart")],
    )


def _equivalents(request: Request, served: CurrentServed, name: str, value: str) -> str:
    return curl(request, "PUT", cluster_url(served, "broker-configs", name), {"value": value})


@router.post("", dependencies=[ADMIN])
def save(
    request: Request,
    served: CurrentServed,
    by: CurrentActor,
    name: Annotated[str, Form()],
    value: Annotated[str, Form()] = "",
    default: Annotated[bool, Form()] = False,
    tag: Annotated[str, Form()] = "",
) -> Response:
    """Set a setting in the broker's file, or remove it there: it applies at once, or is pending."""
    try:
        set_to, removed = ({}, [name]) if default else ({name: value}, [])
        broker_settings.alter_static(served, by, set_to, removed, if_match=tag or None)
    except (SiltstoneError, OSError) as error:
        form = BrokerParameters(name=name, value=value)
        is_conflict = isinstance(error, ChangedMeanwhileError)
        wrong = "value" if status_of(error)[0] == 400 and not default else ""
        response = _settings(request, served, form, problem=str(error), is_conflict=is_conflict, wrong=wrong)
        return with_status_of(error, response)
    return RedirectResponse("/ui/broker", 303)


@router.post("/restart", dependencies=[ADMIN])
def restart(request: Request, served: CurrentServed, by: CurrentActor) -> Response:
    """Shut the directories down cleanly, read the file and open them again. The page waits for that."""
    try:
        broker_settings.restart(served, by)
    except (SiltstoneError, OSError) as error:
        return with_status_of(error, _settings(request, served, BrokerParameters(), problem=str(error)))
    return page(request, served, "restarting.html")


@router.get("/restart", dependencies=[VIEWER])
def restarted() -> Response:
    """The browser asks for this if the user reloads the page that waits for the restart."""
    return RedirectResponse("/ui/broker", 303)
