"""Pages from templates: HTML by Jinja with autoescape, and the words for numbers and times.

A page polls by htmx: the script requests the same URL again and takes the part ``#live`` from the response.
The response has an ``ETag``: if nothing has changed, the next one is a 304. Without the script the page is
the same, and does not poll.
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
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

import siltstone
from siltstone.base.clock import duration_text
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.served import Served
from siltstone.web import limits
from siltstone.web.dependencies import served_by
from siltstone.web.guards import user_of
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
"""The pages in the head of each page: name, title, path."""

_TIME = Markup("<time>{}</time>")


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


def _time(value: int | None, zone: str = "") -> str:
    """A time in UTC, empty for None. The script of the pages adds how long ago it was: in the HTML, the age
    would change the ETag at every poll. ``zone``: a text to add. A time past the calendar is in ms."""
    if value is None:
        return ""
    try:
        return _TIME.format(f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S}{zone}")
    except (ValueError, OverflowError, OSError):
        return f"{value} ms"


def _duration(value: int | None) -> str:
    """A duration in ms, in words; −1 stands for no limit."""
    if value is None:
        return ""
    return "unlimited" if value < 0 else duration_text(value / 1000)


_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_SOURCES = {
    "DEFAULT_CONFIG": "default",
    "STATIC_BROKER_CONFIG": "the broker's file",
    "DYNAMIC_BROKER_CONFIG": "the broker, at run time",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers, at run time",
    "DYNAMIC_TOPIC_CONFIG": "the topic",
}


_LARGEST = "1.7976931348623157E308"
"""The largest double, as Kafka writes it."""
_SIZES = (".bytes", ".buffer.size", "InBytes")
"""How names of settings in bytes end."""


def _source(name: str) -> str:
    """Who has set a setting, by Kafka's name of the source."""
    return _SOURCES.get(name, name)


def _meaning(text: str, name: str) -> str:
    """The value of a setting in ms or bytes in readable units, such as ``7 d``; empty below 1000, where the
    number itself is readable, for a negative number, and for any other setting."""
    if text == _LARGEST:
        return "unlimited"
    if _NUMBER.fullmatch(text) is None:
        return ""
    number, is_duration, is_size = int(text), name.endswith(".ms"), name.endswith(_SIZES)
    if number >= 1 << 62:
        return "unlimited" if is_size else "never"
    if number < 1000:
        return ""
    return duration_text(number / 1000) if is_duration else size_text(number) if is_size else ""


def path(value: object) -> str:
    """A value as one segment of a URL's path, quoted."""
    return quote(str(value), safe="")


def query_text(values: Mapping[str, object]) -> str:
    """A query string. Empty and false values are left out; ``True`` becomes ``true``, as of a checkbox."""
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


def render_fragment(template: str, **values: Any) -> str:
    """The HTML of a part of a page."""
    return _environment().get_template(template).render(**values)


def _role_refusal(request: Request, role: Role) -> str:
    return "" if user_of(request).role >= role else f"this needs the role {role.name.lower()}"


def _refusal(request: Request, role: Role) -> str:
    """Why the user may not do what needs ``role`` here; empty if they may."""
    if role <= Role.READER:  # what a reader may do changes nothing: look mode and read-only servers allow it
        return _role_refusal(request, role)
    reason = request.app.state.rules.read_only_reason
    return _role_refusal(request, role) if reason is None else str(reason)


def refusal_to_cancel(request: Request) -> str:
    """Why the user may not cancel a job; empty if they may. (Also on a read-only server: all of its jobs are
    dry runs, so to cancel one changes nothing.)"""
    return _role_refusal(request, Role.EDITOR)


def render_page(
    request: Request,
    served: Served,
    template: str,
    *,
    problem: str | None = None,
    wrong: str = "",
    **values: Any,
) -> str:
    """The HTML of a page. ``problem``: the error of the action that the user has just tried; ``wrong``: the
    field that it is about, "" if it is about none alone; ``values``: further variables of the template."""
    theme = request.cookies.get(THEME_COOKIE, THEMES[0])
    return (
        _environment()
        .get_template(template)
        .render(
            navigation=NAVIGATION,
            version=siltstone.__version__,
            served=served,
            catalogue=served.catalogue,
            read_at=_time(served.catalogue.at_ms, " UTC"),
            user=user_of(request),
            problem=problem,
            wrong=wrong,
            refusals={role: _refusal(request, role) for role in (Role.READER, Role.EDITOR, Role.ADMIN)},
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


_READ_AT = re.compile("directories read <time>[^<]*</time>")  # in the footer of base.html


def page_etag(html: str) -> str:
    """The ETag of a page. Two pages are the same if only the time differs at which the directories were
    read."""
    contents, footer_tag, footer = html.rpartition("<footer>")
    compared = contents + footer_tag + _READ_AT.sub("", footer)
    return f'"{hashlib.sha256(compared.encode()).hexdigest()[:32]}"'


def page_response(request: Request, html: str) -> Response:
    """The response with a page; 304 without it if the browser has this very page."""
    return tagged_response(request, html, page_etag(html))


def tagged_response(request: Request, html: str, tag: str) -> Response:
    """``page_response`` of a page whose ETag is known."""
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Cookie"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(html, headers=headers)


def page(request: Request, served: Served, template: str, **values: Any) -> Response:
    """The response with the page of a template (``render_page``, ``page_response``)."""
    return page_response(request, render_page(request, served, template, **values))


def within_bytes(render: Callable[[int], str], rows: int, *, sample: int | None = None) -> str:
    """The HTML of a page of at most ``limits.PAGE_BYTES`` with as many of its ``rows`` rows as fit, at least
    one.

    ``render(n)`` returns the page with its first ``n`` rows (or characters of a text). ``sample``: if there
    are many more rows, a page with the first ``sample`` of them is rendered first, to estimate how many fit:
    that takes less time than to render all.
    """
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
    """An error as a page of the console. A page that polls shows it in place of its contents, until a later
    request succeeds."""
    title = _ERRORS.get(status, "It failed")
    html = render_page(
        request,
        served_by(request),
        "error.html",
        heading=title,
        message=message,
        status=status,
        changes_nothing=request.method == "GET",
    )
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store", "Vary": "Cookie"})
