"""Help: what compaction does, where an answer is found, and what the words mean."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.pages.rendering import page

router = APIRouter()


@router.get("/ui/help", dependencies=[VIEWER])
def show_help(request: Request, served: CurrentServed) -> Response:
    """The words of the console, and where to look for what."""
    return page(request, served, "help.html")
