"""Pages from templates: HTML by Jinja with autoescape, and the words for numbers and times.

A page polls by htmx: the script asks for the same URL again and takes the part ``#live`` from the answer. The
answer has an ``ETag``, so that nothing new is a 304. Without script the page is the same, and does not poll.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse, Response

import siltstone
from siltstone.base.clock import duration_text
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.served import LOOK_ADVICE, Served
from siltstone.web import limits
from siltstone.web.guards import user_of
from siltstone.web.here import served_by
from siltstone.web.identity import Role
from siltstone.web.words import STATES, WORDS

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "siltstone-theme"
NAVIGATION = (
    ("overview", "Overview", "/ui/"),
    ("topics", "Topics", "/ui/topics"),
    ("cleaner", "Cleaner", "/ui/cleaner"),
    ("broker", "Broker", "/ui/broker"),
    ("clients", "Clients", "/ui/clients"),
    ("directories", "Directories", "/ui/directories"),
    ("groups", "Groups", "/ui/groups"),
    ("transactions", "Transactions", "/ui/transactions"),
    ("changes", "Changes", "/ui/changes"),
    ("jobs", "Jobs", "/ui/jobs"),
    ("api", "API", "/ui/api"),
    ("help", "Help", "/ui/help"),
)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("siltstone.web"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        counted=counted,
        size=_size,
        number=_number,
        time=_time,
        duration=_duration,
        path=path,
        query=_query,
        percent=_percent,
        meaning=_meaning,
        source=_source,
    )
    environment.globals.update(words=WORDS, states_in_words=STATES)
    return environment


def _size(value: int | None) -> str:
    return "" if value is None else size_text(value)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _time(value: int | None) -> str:
    """A time in UTC; empty for none and for one outside of the calendar."""
    if value is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{value} ms"


def _duration(value: int | None) -> str:
    """A duration in ms, in words; −1 stands for no limit."""
    if value is None:
        return ""
    return "unlimited" if value < 0 else duration_text(value / 1000)


_SOURCES = {
    "DEFAULT_CONFIG": "default",
    "STATIC_BROKER_CONFIG": "the broker's file",
    "DYNAMIC_BROKER_CONFIG": "the broker, at run time",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers, at run time",
    "DYNAMIC_TOPIC_CONFIG": "the topic",
}


def _source(name: str) -> str:
    """Who has set a setting, by Kafka's name of the source."""
    return _SOURCES.get(name, name)


def _meaning(text: str, name: str) -> str:
    """What the number of a setting in ms or bytes comes to, in words; empty for others."""
    if not text.lstrip("-").isdigit() or len(text) > 20:
        return ""
    if int(text) >= 1 << 62:
        return "never"
    if name.endswith(".ms"):
        return duration_text(int(text) / 1000) if int(text) >= 1000 else ""
    return size_text(int(text)) if name.endswith(".bytes") and int(text) >= 1000 else ""


def path(value: object) -> str:
    """A part of a URL's path."""
    return quote(str(value), safe="")


def query_text(values: Mapping[str, object]) -> str:
    """A query string; empty values are left out, and a tick is ``true``."""
    return urlencode(
        {
            name: "true" if value is True else value
            for name, value in values.items()
            if value not in ("", None) and value is not False
        },
        errors="surrogatepass",
    )


def _query(values: Mapping[str, object], **changed: object) -> str:
    """A query string with some values changed."""
    return query_text({**values, **changed})


def fragment(template: str, **values: Any) -> str:
    """A part of a page."""
    return _environment().get_template(template).render(**values)


def _role_refusal(request: Request, role: Role) -> str:
    return "" if user_of(request).role >= role else f"this needs the role {role.name.lower()}"


def _refusal(request: Request, served: Served, role: Role) -> str:
    """Why the user may not do what needs ``role`` here; empty if they may. (A reader only asks.)"""
    if role <= Role.READER:
        return _role_refusal(request, role)
    if served.is_look:
        return f"look mode changes nothing: {LOOK_ADVICE}"
    reason = request.app.state.rules.read_only_reason
    return _role_refusal(request, role) if reason is None else str(reason)


def refusal_to_cancel(request: Request) -> str:
    """Why the user may not cancel a job; empty if they may. (Where nothing may be changed, all jobs are dry
    runs.)"""
    return _role_refusal(request, Role.EDITOR)


def rendered(
    request: Request, served: Served, template: str, *, problem: str | None = None, **values: Any
) -> str:
    """A page's text. ``problem``: why what was asked for was refused."""
    theme = request.cookies.get(THEME_COOKIE, THEMES[0])
    return (
        _environment()
        .get_template(template)
        .render(
            navigation=NAVIGATION,
            version=siltstone.__version__,
            served=served,
            catalogue=served.catalogue,
            read_at=_time(served.catalogue.at_ms),
            user=user_of(request),
            problem=problem,
            refusals={
                role: _refusal(request, served, role) for role in (Role.READER, Role.EDITOR, Role.ADMIN)
            },
            READER=Role.READER,
            EDITOR=Role.EDITOR,
            ADMIN=Role.ADMIN,
            theme=theme if theme in THEMES else THEMES[0],
            themes=THEMES,
            here=request.url.path,
            url=f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path,
            **values,
        )
    )


_READ_AT = re.compile("directories read [^<]* UTC")  # in the footer of base.html


def page_etag(html: str) -> str:
    """The ETag of a page: a page on which only the time of the last look differs is the same page."""
    contents, tag, footer = html.rpartition("<footer>")
    same = contents + tag + _READ_AT.sub("", footer)
    return f'"{hashlib.sha256(same.encode()).hexdigest()[:32]}"'


def answered(request: Request, html: str) -> Response:
    """A page as the answer, or 304 if the browser has this very page."""
    headers = {"ETag": (tag := page_etag(html)), "Cache-Control": "no-cache", "Vary": "Cookie"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(html, headers=headers)


def page(request: Request, served: Served, template: str, **values: Any) -> Response:
    """A page; see ``rendered`` and ``answered``."""
    return answered(request, rendered(request, served, template, **values))


def within_bytes(render: Callable[[int], str], rows: int, *, sample: int | None = None) -> str:
    """A page with as many of its ``rows`` rows, or characters of a text, as fit: ``render`` makes one of so
    many. ``sample``: so many of the first rows say how many may fit, which is quicker than to make
    all of them where these are many."""
    if sample is not None and rows > 4 * sample:
        rows = min(rows, max(sample * limits.PAGE_BYTES // len(render(sample).encode()), sample))
    html = render(rows)
    while rows > 1 and (size := len(html.encode())) > limits.PAGE_BYTES:
        rows = max(rows * limits.PAGE_BYTES // size, 1)
        html = render(rows)
    return html


_ERRORS = {
    400: "Not understood",
    403: "Not allowed",
    404: "Not found",
    409: "Not now",
    412: "Changed meanwhile",
    429: "Too much at once",
    503: "Not now",
}


def error_page(request: Request, status: int, message: str) -> Response:
    """What went wrong, in the frame of the console. A page that polls shows it in the place of its contents,
    until it is over."""
    title = _ERRORS.get(status, "It failed")
    html = rendered(
        request,
        served_by(request),
        "error.html",
        heading=title,
        message=message,
        status=status,
        is_read=request.method == "GET",
    )
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store", "Vary": "Cookie"})
