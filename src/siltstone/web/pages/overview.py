"""The overview, the search field in the head of each page, the files of the console (scripts, styles, icon),
and the switch between its light and its dark theme."""

from __future__ import annotations

import hashlib
import pkgutil
from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from siltstone.base.config import BROKER_SETTING_NAMES
from siltstone.commands import console
from siltstone.commands.catalogue import dirtiest
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.pages.cached_pages import cached_response
from siltstone.web.pages.rendering import THEME_COOKIE, THEMES, path, query_text, render_page

router = APIRouter()
_CONTENT_TYPES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "uplot.min.css": "text/css",
    "plot.js": "text/javascript",
    "uplot.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@router.get("/", dependencies=[VIEWER])
def root() -> Response:
    """Redirects to the console."""
    return RedirectResponse("/ui/")


@router.get("/ui/", dependencies=[VIEWER])
def overview(request: Request, served: CurrentServed) -> Response:
    """Bytes by section, what needs attention, the dirtiest logs, the last cleanings."""
    # What the page has besides the catalogue: with one of these another page is rendered.
    facts: dict[str, Any] = {
        "cleanings": console.cleanings(served)[:10],
        "offline": console.offline_directories(served),
        "cleaner": console.cleaner_health(served),
        "saved": console.saved_bytes(served),
    }

    def html() -> str:
        return render_page(request, served, "overview.html", dirtiest=dirtiest(served.catalogue, 10), **facts)

    return cached_response(request, served, html, facts=facts)


@router.get("/ui/jump", dependencies=[VIEWER])
def jump(served: CurrentServed, to: str = "") -> Response:
    """The search field. Redirects to a topic (``users``), to the records of a key (``users anna``), to a
    record (``users 0 756``: topic, partition, offset) or to a setting of the broker; for any other text to
    the list of the topics whose names contain it."""
    words = to.split()
    if words and words[0] in served.catalogue.topics:
        topic, rest = f"/ui/topics/{path(words[0])}", words[1:]
        if len(rest) == 2 and all(word.isascii() and word.isdigit() for word in rest):
            where = {"partition": rest[0], "position": "offset", "offset": rest[1]}
            return RedirectResponse(f"{topic}/records?{query_text(where)}", 303)
        if len(rest) == 1:
            return RedirectResponse(f"{topic}/records?{query_text({'key': rest[0]})}", 303)
        return RedirectResponse(topic, 303)
    if len(words) == 1 and words[0] in BROKER_SETTING_NAMES:
        return RedirectResponse(f"/ui/broker?{query_text({'name': words[0]})}#change", 303)
    return RedirectResponse(f"/ui/topics?{query_text({'contains': to.strip()})}", 303)


@router.get("/ui/theme/{theme}", dependencies=[VIEWER])
def switch_theme(theme: str, back: str = "/ui/") -> Response:
    """Set the theme (light, dark, or the browser's own), which a cookie keeps, and redirect to ``back``."""
    # Only to a page of the console: a link from elsewhere must not lead to another site.
    page_path = back if back.startswith("/ui/") and not back.startswith("/ui//") else "/ui/"
    response = RedirectResponse(page_path, 303)
    response.set_cookie(THEME_COOKIE, theme if theme in THEMES else THEMES[0], samesite="strict", path="/ui")
    return response


@cache
def _static(name: str) -> tuple[bytes, str]:
    """A file's bytes and its ETag."""
    data = pkgutil.get_data("siltstone.web", f"static/{name}")
    assert data is not None
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


@router.get("/ui/static/{name}", dependencies=[VIEWER])
def static(request: Request, name: str) -> Response:
    """A static file of the console; 304 if the browser has this version of it."""
    if name not in _CONTENT_TYPES:
        return Response(status_code=404)
    data, tag = _static(name)
    headers = {"ETag": tag, "Cache-Control": "max-age=3600"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=_CONTENT_TYPES[name], headers=headers)
