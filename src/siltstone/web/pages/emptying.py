"""The pages on which a topic is emptied, and a key erased: what would go is shown at once, and typing the
topic's name confirms. A key is sent in a form, never in a URL."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import RedirectResponse, Response

from siltstone.base.errors import SiltstoneError
from siltstone.commands import administration, console, emptying, erasing
from siltstone.commands.erasing import ErasureRequest, parse_key
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.errors import status_of
from siltstone.web.guards import ADMIN, VIEWER
from siltstone.web.limits import READING
from siltstone.web.pages.confirmation import is_confirmed, refuse_unconfirmed
from siltstone.web.pages.equivalents import curl, shell
from siltstone.web.pages.rendering import page, page_response, path, render_page, within_bytes

router = APIRouter(prefix="/ui/topics")
Text = Annotated[str, Form()]


@router.get("/{topic}/empty", dependencies=[VIEWER, READING])
def empty_page(
    request: Request,
    served: CurrentServed,
    topic: str,
    mode: str = "",
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """What would go: from the row ``start`` on, as far as the page has room. Without a ``mode``: the one that
    fits the topic's policy."""
    return _empty_page(request, served, topic, mode, start=start)


def _empty_page(
    request: Request,
    served: CurrentServed,
    topic: str,
    mode: str,
    problem: str | None = None,
    status: int = 200,
    start: int = 0,
    wrong: str = "",
) -> Response:
    row, preview = served.catalogue.topic(topic), None
    mode = mode or emptying.mode_for(served.settings_of(topic).policies)
    try:
        preview = console.preview_emptying(served, topic, mode)
    except (SiltstoneError, OSError) as error:
        problem = problem or str(error)
    words = ("siltstone", "empty", *served.paths, "--topic", topic, "--mode", mode)
    body = {"mode": mode, "dry_run": True}
    values = {
        "topic": row,
        "tab": "empty",
        "preview": preview,
        "start": start,
        "mode": mode,
        "modes": emptying.MODES,
        "equivalents": [
            shell(*words, "--dry-run"),
            shell(*words),
            curl(request, "POST", f"/api/v1/topics/{path(topic)}:empty", body),
        ],
    }
    rows = () if preview is None else preview.partitions[start:]

    def render(count: int) -> str:
        end = start + count if count < len(rows) else None
        shown = {"rows": rows[:count], "next_start": end}
        return render_page(request, served, "empty.html", problem=problem, wrong=wrong, **shown, **values)

    response = page_response(request, within_bytes(render, len(rows)))
    response.status_code = status if status != 200 else response.status_code
    return response


@router.post("/{topic}/empty", dependencies=[ADMIN, READING])
def empty(
    request: Request,
    served: CurrentServed,
    by: CurrentActor,
    topic: str,
    mode: Text = emptying.TOMBSTONES,
    typed: Text = "",
) -> Response:
    """Empty the topic, as a job."""
    try:
        refuse_unconfirmed(typed, topic, "this deletes data")
        administration.empty_topic(served, by, topic, mode)
    except (SiltstoneError, OSError) as error:
        wrong = "" if is_confirmed(typed, topic) else "typed"
        return _empty_page(request, served, topic, mode, str(error), status_of(error)[0], wrong=wrong)
    return RedirectResponse("/ui/jobs", 303)


@router.get("/{topic}/erase", dependencies=[VIEWER])
def erase_page(request: Request, served: CurrentServed, topic: str) -> Response:
    """The form for a key."""
    return _erase_page(request, served, topic)


def _erase_page(
    request: Request,
    served: CurrentServed,
    topic: str,
    key: str = "",
    key_format: str = "utf8",
    erasure: erasing.Erasure | None = None,
    problem: str | None = None,
    wrong: str = "",
) -> Response:
    values = {
        "topic": served.catalogue.topic(topic),
        "tab": "erase",
        "erasure": erasure,
        "formats": erasing.KEY_FORMATS,
        # Never with the key: a command line is seen by other users, and kept by the shell.
        "equivalents": [
            shell("siltstone", "erase", *served.paths, "--topic", topic, "--key-file", "FILE"),
            curl(request, "POST", f"/api/v1/topics/{path(topic)}:erase-key", {"key": "KEY", "dry_run": True}),
        ],
    }
    values |= {"key": key, "key_format": key_format}
    response = page(request, served, "erase.html", problem=problem, wrong=wrong, **values)
    if erasure is not None or key:
        response.headers["Cache-Control"] = "no-store"
    return response


@router.post("/{topic}/erase", dependencies=[ADMIN, READING])
def erase(
    request: Request,
    served: CurrentServed,
    by: CurrentActor,
    topic: str,
    key: Text = "",
    key_format: Text = "utf8",
    typed: Text = "",
) -> Response:
    """Look for the key; with the topic's name, erase it as a job."""
    erasure, problem, wrong, status = None, None, "key", 200
    try:
        wanted = ErasureRequest(topic=topic, keys=(parse_key(key, key_format),))
        wrong = ""
        if not is_confirmed(typed, topic):  # the user confirms when the page has shown where the key is
            erasures = console.find_keys(served, wanted)
            erasure = None if erasures is None else erasures.keys[0]
            wrong = "typed" if typed else ""
        if typed:
            refuse_unconfirmed(typed, topic, "this deletes data")
        if typed or erasure is None:  # a large topic is searched by a job
            administration.erase_keys(served, by, wanted, dry_run=not typed)
            return RedirectResponse("/ui/jobs", 303)
    except (SiltstoneError, OSError) as error:
        problem, status = str(error), status_of(error)[0]
    response = _erase_page(request, served, topic, key, key_format, erasure, problem, wrong)
    response.status_code = status
    return response
