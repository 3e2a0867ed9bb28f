"""What every request passes before a route sees it: Host, identity, origin, read-only, sizes; and what every
response gets: CSP and other headers.

::

    request ─ Host known? ─ who? ─ origin? ─ may it change? ─ body small, quick? ─► route (its role)
               421        401, 429  403        403              413, 408               403

A browser sends ``Sec-Fetch-Site``; without it ``Origin`` decides (as in Go 1.25's CrossOriginProtection). A
program sends neither. GET changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fastapi import Depends, HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from siltstone.base.errors import BusyError, NotAllowedError
from siltstone.web import limits
from siltstone.web.errors import error_response, status_of, unexpected
from siltstone.web.identity import Identity, Role, User

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_KNOWN_METHODS = frozenset((*SAFE_METHODS, "POST", "PUT", "PATCH", "DELETE"))
BODY_MAX = 1 << 20
"""Bytes of a request's body; records have a bound of their own."""
RECORDS_BODY_MAX = 64 << 20
_OF_RECORDS = re.compile("(/kafka)?/v3/clusters/[^/]+/topics/[^/]+/records(:batch)?")
"""The paths whose requests append records."""
OPEN_PATHS = ("/healthz", "/readyz")
"""Answered without authentication, so that a probe needs no password."""
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    b"content-security-policy": CSP.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules that the guards apply. ``hosts``: names in lower case, without ports. ``read_only_reason``:
    why nothing may be changed, None if changes are allowed. If there is a reason, all jobs are dry runs, so
    cancelling one changes nothing."""

    hosts: frozenset[str]
    identity: Identity = field(default_factory=Identity)
    read_only_reason: str | None = None


def needs(role: Role) -> Any:
    """A route's dependency: the user, who has ``role``. Raises NotAllowedError."""

    async def user_with_role(request: Request) -> User:
        user = user_of(request)
        if user.role < role:
            raise NotAllowedError(
                f"this needs the role {role.name.lower()}, and {user.name} is {user.role.name.lower()}",
                advice="ask an administrator of this server",
            )
        return user

    user_with_role.role = role  # type: ignore[attr-defined]
    return Depends(user_with_role)


VIEWER, READER, EDITOR, ADMIN = map(needs, (Role.VIEWER, Role.READER, Role.EDITOR, Role.ADMIN))
"""For a route: ``dependencies=[EDITOR]``, or a parameter ``user: Annotated[User, EDITOR]``."""


def user_of(request: Request) -> User:
    """Who sends the request."""
    return cast(User, request.state.user)


def host_of(header: str) -> str:
    """The name in a Host header, without its port: ``[::1]:8082`` is ``::1``."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


def is_cross_origin(headers: Mapping[str, str]) -> bool:
    """Does a page of another site send this request?"""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    return origin.partition("://")[2] != headers.get("host", "")


Count = Callable[[str, str, int, float], None]
"""Called after each request with route, method, status, seconds."""


class Guards:
    """The outermost ASGI layer. ``count`` is called for each request."""

    def __init__(self, app: ASGIApp, rules: Rules, count: Count) -> None:
        self._app, self._rules, self._count = app, rules, count
        self._checks = limits.PasswordChecks()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500  # the status that is counted if no response begins
        has_begun = False

        async def guarded_send(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in _HEADERS.items() if name not in present),
                ]
            # A client that does not read its response loses its connection.
            async with asyncio.timeout(limits.RESPONSE_SECONDS):
                await send(message)

        path = scope["path"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            refused = await self._refusal(scope, headers)
            if refused is not None:
                await error_response(path, *refused)(scope, receive, guarded_send)
                return
            await self._app(scope, self._bounded(scope, receive), guarded_send)
        except Exception as error:
            if has_begun:
                raise
            await unexpected(path, error)(scope, receive, guarded_send)
        finally:
            self._count(_route_of(scope), _method_of(scope), status, time.perf_counter() - began)

    async def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, int, str] | None:
        """(status, Confluent's ``error_code``, message) of a request that is refused. Sets the user."""
        host = host_of(headers.get("host", ""))
        if host not in self._rules.hosts:
            return 421, 421, f"this server is not {host[:253]!r}; siltstone.http.hosts lists further names"
        address = (scope.get("client") or ("", 0))[0]
        user = User(name="-", role=Role.NONE, address=address)
        is_open = scope["path"] in OPEN_PATHS and scope["method"] in SAFE_METHODS
        if not is_open:
            try:
                user = await self._user_of(headers, address)
            except BusyError as error:
                return *status_of(error), str(error)
        scope.setdefault("state", {})["user"] = user
        if is_open:
            return None
        if user.role is Role.NONE:
            return 401, 40101, "log in"
        if scope["method"] in SAFE_METHODS:
            return None
        if is_cross_origin(headers):
            return 403, 40301, "a page of another site may not change anything here"
        reason, path = self._rules.read_only_reason, scope["path"]
        if reason is not None and not is_question(path) and not is_of_job(path):
            return 403, 40301, reason
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > body_max(scope):
            return 413, 413, _TOO_LARGE
        return None

    async def _user_of(self, headers: Mapping[str, str], address: str) -> User:
        """Who sends a request. Raises BusyError."""
        identity = self._rules.identity
        if identity.must_hash(headers):
            return await self._checks.run(lambda: identity.user_of(headers, address))
        return identity.user_of(headers, address)

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """``receive``, which raises HTTPException for a body that takes too long, or that gets too large: one
        in chunks has no Content-Length."""
        received, is_whole = 0, False
        until = time.monotonic() + limits.BODY_SECONDS

        async def bounded() -> Message:
            nonlocal received, is_whole
            try:
                # After the whole body ``receive`` waits for the client to disconnect: that has no time limit.
                async with asyncio.timeout(None if is_whole else until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body took over {limits.BODY_SECONDS:.0f} s") from None
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                is_whole = not message.get("more_body", False)
                if received > body_max(scope):
                    # FastAPI makes a 400 of any other error that is raised while it reads a body.
                    raise HTTPException(413, _TOO_LARGE)
            return message

        return bounded


def _route_of(scope: Scope) -> str:
    """The path of the route with its parameters' names, "other" if no route has matched."""
    context = scope.get("fastapi", {}).get("effective_route_context")
    return getattr(context or scope.get("route"), "path", None) or "other"


def _method_of(scope: Scope) -> str:
    """The method, "other" for a word that a client has made up: each would be a series of its own."""
    return scope["method"] if scope["method"] in _KNOWN_METHODS else "other"


_TOO_LARGE = "the body is too large"


def body_max(scope: Scope) -> int:
    """The most bytes of this request's body: it may be large only of a user who may append records. FastAPI
    reads a body, and parses its JSON, before the route checks the role."""
    may_append = scope["state"]["user"].role >= Role.ADMIN
    return RECORDS_BODY_MAX if may_append and _OF_RECORDS.fullmatch(scope["path"]) else BODY_MAX


def is_question(path: str) -> bool:
    """Does a POST to this path only ask? These work in look mode and where nothing may be changed."""
    return path.endswith((":preview", ":explain", ":check", ":find-latest"))


def is_of_job(path: str) -> bool:
    """Is this the path of one background job, which an unsafe method cancels?"""
    return path.startswith(("/api/v1/jobs/", "/ui/jobs/"))
