"""Runs uvicorn: where it listens, who may use it, and what is refused as unsafe."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from siltstone.base.config import Config
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands.policies import read_text
from siltstone.commands.served import LOOK_ADVICE, Served
from siltstone.web import limits
from siltstone.web.guards import Rules
from siltstone.web.identity import Identity, Users, networks_of, roles_of
from siltstone.web.limits import Tails
from siltstone.web.site import build_site

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
READ_ONLY = "nothing may be changed here: siltstone.http.read.only=true"
SHUTDOWN_SECONDS = 5
"""How long the requests that run when the server is stopped may take to end."""
SWITCH_SECONDS = 0.00005
"""After so long a thread that computes in Python gives Python's global lock (the GIL) to one that waits."""
KEEP_ALIVE_SECONDS = 30
"""A connection without a request is closed after so long, and so is one whose request has begun and whose
headers are not complete. (For bodies and responses: ``web.limits``.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where the server listens: port 0 is any free one."""

    host: str
    port: int
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> Listener:
        """``http://127.0.0.1:8082``. Raises UsageError."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or port is None
            or parts.path not in ("", "/")
            or parts.username is not None
            or parts.query
            or parts.fragment
        ):
            advice = "write http://ADDRESS:PORT or https://ADDRESS:PORT"
            raise UsageError(f"{text[:256]!r} is not an address to listen on", advice=advice)
        return cls(host=parts.hostname, port=port, is_tls=parts.scheme == "https")

    @property
    def is_loopback(self) -> bool:
        """Does it only reach this machine?"""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, port: int) -> str:
        """As a URL, with the port that it really has."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{port}"


def _words(config: Config, name: str) -> tuple[str, ...]:
    value = config[name]
    assert isinstance(value, tuple)
    return value


def identity_of(config: Config) -> Identity:
    """How users are known. Raises UsageError."""
    auth, users = str(config["siltstone.http.auth"]), None
    if auth == "basic":
        path = Path(str(config["siltstone.http.users"]))
        users = Users(read_text(path, "siltstone.http.users"), str(path))
    trusted = networks_of(_words(config, "siltstone.http.proxy.trusted"), "siltstone.http.proxy.trusted")
    if auth == "proxy" and not trusted:
        raise UsageError("no proxy is trusted", advice="set siltstone.http.proxy.trusted to its address")
    groups = roles_of(_words(config, "siltstone.http.proxy.roles"), "siltstone.http.proxy.roles")
    return Identity(auth=auth, users=users, trusted=trusted, role_of_group=groups)


def refuse_unsafe(listener: Listener, config: Config) -> None:
    """Raises UsageError for an address that other machines reach, unless users are known and TLS is used."""
    has_auth = config["siltstone.http.auth"] != "none"
    if listener.is_loopback or config.flag("siltstone.http.insecure"):
        return
    # A trusted proxy ends TLS itself.
    if not has_auth or not (listener.is_tls or config["siltstone.http.auth"] == "proxy"):
        raise UsageError(
            f"{listener.url(listener.port)} reaches other machines, without "
            f"{'authentication' if not has_auth else 'TLS'}",
            advice="set siltstone.http.auth and listen on https (docs/serve.md), listen on 127.0.0.1, or set "
            "siltstone.http.insecure=true",
        )


def rules_of(config: Config, listeners: Sequence[Listener], *, is_look: bool = False) -> Rules:
    """The guards' rules. ``is_look``: the directories are only looked at (``serve --look``). Raises
    UsageError."""
    names = {
        *LOOPBACK_NAMES,
        *(listener.host for listener in listeners),
        *_words(config, "siltstone.http.hosts"),
    }
    reason = READ_ONLY if config.flag("siltstone.http.read.only") else None
    if is_look:
        reason = f"look mode changes nothing: {LOOK_ADVICE}"
    return Rules(
        hosts=frozenset(name.lower() for name in names),
        identity=identity_of(config),
        read_only_reason=reason,
    )


def checked_listeners(config: Config, texts: Sequence[str] = ()) -> list[Listener]:
    """The listeners in ``texts``, else those of the setting. Raises UsageError for one that is malformed or
    unsafe, and for a certificate that cannot be used. ``siltstone serve`` calls it before it opens anything.
    """
    parsed = [Listener.parse(text) for text in texts or _words(config, "siltstone.http.listeners")]
    for listener in parsed:
        refuse_unsafe(listener, config)
    if len({listener.is_tls for listener in parsed}) > 1:
        raise UsageError("http and https listeners together", advice="write only one of them")
    if not parsed:
        raise UsageError("no address to listen on", advice="set siltstone.http.listeners, or pass --listen")
    if parsed[0].is_tls:
        _refuse_unusable_certificate(*_tls_files(config))
    return parsed


def _tls_files(config: Config) -> tuple[str, str]:
    """(Certificate, key): their files, empty if they are not set."""
    return str(config["siltstone.http.tls.certificate"]), str(config["siltstone.http.tls.key"])


def _refuse_unusable_certificate(certificate: str, key: str) -> None:
    """Raises UsageError. uvicorn would load the files only in its thread, with the sockets open."""
    advice = (
        "set siltstone.http.tls.certificate and siltstone.http.tls.key to PEM files, the key without password"
    )
    if not (certificate and key):
        raise UsageError("an https listener needs a certificate", advice=advice)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        reason = f"the certificate and its key cannot be loaded: {error.strerror or error}"
        raise UsageError(reason, path=error.filename or f"{certificate}, {key}", advice=advice) from error


class _Protocol(H11Protocol):
    """HTTP/1.1 with two time limits that uvicorn does not have. ``_timer``: for the headers of a request,
    since a client that sends half of one would hold one of the connections for ever. ``_stall_timer``: for a
    connection that was closed, since ``transport.close`` waits until the client has read all that was sent to
    it, which it may never do.

    ``_unsent``: the bytes of a closed connection that were not sent at the last check; 0 while it is open."""

    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its first request has to come in time."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._close_waiting)
        self._start_stall_timer()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come. The time begins with its first byte, and ends with its headers."""
        super().data_received(data)
        if not self._waits_for_headers:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._close_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended. Without its timers the event loop does not hold this object any more,
        which the garbage collector would look through again and again."""
        self._stop_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().connection_lost(exc)

    @property
    def _waits_for_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_waiting(self) -> None:
        """The time is over: close the connection, unless a request is being answered."""
        self._timer = None
        if self._waits_for_headers:
            self.transport.close()

    def _start_stall_timer(self) -> None:
        self._stall_timer = self.loop.call_later(limits.RESPONSE_SECONDS, self._abort_stalled)

    def _abort_stalled(self) -> None:
        """Give up a closed connection whose client has read nothing since the last check."""
        unsent = self.transport.get_write_buffer_size() if self.transport.is_closing() else 0
        if 0 < self._unsent <= unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._start_stall_timer()


class WebServer:
    """Listens, in a thread of its own, until ``stop``. ``urls``: where. ``_tails``: the open streams of new
    records (``web.limits``)."""

    def __init__(self, served: Served, listeners: Sequence[str] = ()) -> None:
        """``listeners`` override the setting. Raises UsageError, OSError."""
        config = served.config
        parsed = checked_listeners(config, listeners)
        self._tails = Tails()
        site = build_site(served, rules_of(config, parsed, is_look=served.is_look), self._tails)
        certificate, key = _tls_files(config)
        options = {"ssl_certfile": certificate, "ssl_keyfile": key} if parsed[0].is_tls else {}
        self._server = uvicorn.Server(
            uvicorn.Config(
                site,
                http=_Protocol,
                # With a WebSocket library installed, uvicorn would take a connection that asks for an upgrade
                # away from _Protocol, whose stall timer would then hold it for ever.
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                # uvicorn counts the connection that asks, and refuses it from this number on.
                limit_concurrency=config.integer("siltstone.http.connections.max") + 1,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                **options,  # type: ignore[arg-type]
            )
        )
        self._sockets = _bind_all(parsed)
        ports = [bound.getsockname()[1] for bound in self._sockets]
        self.urls = [listener.url(port) for listener, port in zip(parsed, ports, strict=True)]
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer requests from now on. Threads of this process take turns more often than by default: an
        append must not wait 5 ms, several times, for a request that is being answered. Raises
        SiltstoneError if the server ends at once."""
        sys.setswitchinterval(SWITCH_SECONDS)
        run = lambda: self._server.run(sockets=self._sockets)  # noqa: E731
        self._thread = threading.Thread(target=run, name="siltstone-http", daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise SiltstoneError("the web server has ended at its start", advice="see the log above")
            time.sleep(0.001)

    def stop(self) -> None:
        """Finish the requests that run, end the streams, and end."""
        self._server.should_exit = True
        self._tails.end()
        if self._thread is not None:
            self._thread.join()
        self._tails.executor.shutdown()
        for bound in self._sockets:
            bound.close()


def _bind_all(listeners: Sequence[Listener]) -> list[socket.socket]:
    """A listening socket for each. Raises UsageError for an address that is in use or not of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_bind(listener)) for listener in listeners]
        stack.pop_all()
    return sockets


def _bind(listener: Listener) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address, family=family, backlog=256)
    except (OSError, UnicodeError) as error:
        reason = (
            f"cannot listen on {listener.url(listener.port)}: {getattr(error, 'strerror', None) or error}"
        )
        raise UsageError(reason, advice="choose another address with --listen") from error
