"""A cache of pages that follow from the catalogue, the request and some facts: the overview, the topics, a
topic's segments, the queue. Such a page is rendered once for all browser tabs.

::

    50 tabs poll ─► same URL, user, theme, host, catalogue, facts? ─ yes ─► the cached page, or 304
                                                                   └ no ──► rendered, and cached

A refresh replaces the catalogue, so a cached page is at most as old as that. Only a weak reference to the
catalogue is held, which may have 300 MB.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from siltstone.commands.catalogue import Catalogue
from siltstone.commands.served import Served
from siltstone.web.guards import user_of
from siltstone.web.pages.rendering import THEME_COOKIE, page_etag, tagged_response

CACHED_PAGES_MAX = 32
"""Pages that are cached at one time: each has at most ``limits.PAGE_BYTES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedPage:
    """A page's HTML and its ETag (``tag``), and what it was made from."""

    catalogue: weakref.ref[Catalogue]
    facts: object
    html: str
    tag: str


class CachedPages:
    """The cached pages of one server. Thread-safe; two threads may render a page twice."""

    def __init__(self) -> None:
        self._lock, self._pages = threading.Lock(), OrderedDict[object, _CachedPage]()

    def response(
        self, request: Request, served: Served, render: Callable[[], str], *, facts: object = None
    ) -> Response:
        """The response with the page that ``render`` makes of the catalogue, the request and ``facts``, which
        are compared."""
        user, catalogue = user_of(request), served.catalogue
        key = str(request.url), user.name, user.role, request.cookies.get(THEME_COOKIE)
        with self._lock:
            cached = self._pages.get(key)
        if cached is None or cached.catalogue() is not catalogue or cached.facts != facts:
            html = render()
            reference = weakref.ref(catalogue)
            cached = _CachedPage(catalogue=reference, facts=facts, html=html, tag=page_etag(html))
            with self._lock:
                self._pages[key] = cached
                self._pages.move_to_end(key)
                while len(self._pages) > CACHED_PAGES_MAX:
                    self._pages.popitem(last=False)
        return tagged_response(request, cached.html, cached.tag)


def cached_response(
    request: Request, served: Served, render: Callable[[], str], *, facts: object = None
) -> Response:
    """``CachedPages.response`` of the server that the request has come to."""
    pages: CachedPages = request.app.state.cached_pages
    return pages.response(request, served, render, facts=facts)
