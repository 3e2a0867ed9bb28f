"""The cleaner: its queue, runs, uncleanable logs, savings."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.commands import console
from siltstone.commands.catalogue import PAGE_ROWS, dirtiest
from siltstone.web.guards import VIEWER
from siltstone.web.here import Here
from siltstone.web.pages.rendering import page
from siltstone.web.pages.topics import Problem

router = APIRouter(prefix="/ui/cleaner")


@router.get("", dependencies=[VIEWER])
def cleaner(request: Request, served: Here, *, problem: Problem = None) -> Response:
    """All of it on one page."""
    return page(
        request,
        served,
        "cleaner.html",
        problem=problem,
        queue=dirtiest(served.catalogue, PAGE_ROWS),
        cleanings=console.cleanings(served)[:PAGE_ROWS],
        uncleanable=console.uncleanable_rows(served, PAGE_ROWS),
        savings=console.savings(served)[:PAGE_ROWS],
    )
