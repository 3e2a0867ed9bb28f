"""The listeners of a broker: parses Kafka's settings, and binds sockets (Kafka's ``Endpoint``, ``Acceptor``).

::

    listeners=PLAINTEXT://127.0.0.1:9092,INSIDE://:19092        NAME://HOST:PORT; no host: every address
    advertised.listeners=PLAINTEXT://broker.example:9092        the addresses that Metadata tells clients
    listener.security.protocol.map=INSIDE:PLAINTEXT             the protocol of a listener named INSIDE

A listener whose name is not in the map has a protocol's name. Listeners in ``controller.listener.names`` are
left out: this broker has no controller. Without any listener there is no broker.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from siltstone.base.config import Config
from siltstone.base.errors import UsageError
from siltstone.broker.limits import Limits
from siltstone.broker.request_context import ListenerAddress

PLAINTEXT = "PLAINTEXT"
NO_BROKER = "none"
"""The value of ``--kafka-listen`` for no broker."""
_FORM = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})"
)
_PORT_MAX = 65_535
_ADVERTISED = "advertised.listeners"
_EVERY_ADDRESS = ("", "0.0.0.0", "::")
ADVICE = "choose another address with --kafka-listen, or with the setting listeners"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerListener:
    """A listener. ``host``: "" is every address of the machine; ``port``: 0 is any free one; ``advertised``:
    the host and port in the response to Metadata, None for the listener's own."""

    name: str = PLAINTEXT
    host: str = "127.0.0.1"
    port: int = 9092
    advertised: tuple[str, int] | None = None

    @classmethod
    def parse(cls, text: str, setting: str) -> BrokerListener:
        """``PLAINTEXT://127.0.0.1:9092``. Raises UsageError."""
        form = _FORM.fullmatch(text.strip())
        if form is None or int(form["port"]) > _PORT_MAX:
            advice = "write PLAINTEXT://HOST:PORT"
            raise UsageError(f"{text[:256]!r} is no listener", path=setting, advice=advice)
        return cls(name=form["name"].upper(), host=form["ipv6"] or form["host"] or "", port=int(form["port"]))

    @property
    def text(self) -> str:
        """The listener as in the setting."""
        return f"{self.name}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def bind(self, limits: Limits) -> socket.socket:
        """Bind a non-blocking listening socket. Raises UsageError for an address that is in use, or that this
        machine does not have."""
        try:
            is_dual = not self.host and socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if is_dual else socket.AF_INET
            address: tuple[Any, ...] = ("", self.port)
            if self.host:
                resolved = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
                family, address = resolved[0][0], resolved[0][4]
            bound = socket.create_server(
                address, family=family, backlog=limits.backlog, dualstack_ipv6=is_dual
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host such as a..b
            reason = f"cannot listen on {self.text}: {getattr(error, 'strerror', None) or error}"
            raise UsageError(reason, advice=ADVICE) from error
        bound.setblocking(False)
        # Connections that are accepted have the listener's options.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        return bound

    def address(self, bound: socket.socket) -> ListenerAddress:
        """The address that Metadata tells clients. A port that is not set is the bound socket's, and for
        every address of the machine stands its name."""
        host, port = self.advertised or (self.host, 0)
        if host in _EVERY_ADDRESS:
            host = socket.getfqdn()
        return ListenerAddress(name=self.name, host=host, port=port or bound.getsockname()[1])


def listeners_of(config: Config, texts: Sequence[str] = ()) -> list[BrokerListener]:
    """The listeners in ``texts`` (``NO_BROKER``: none), else those of ``server.properties``. Raises
    UsageError for one that is malformed, whose protocol is not PLAINTEXT, or whose name or address another
    one has; for an advertised one that does not exist or that clients cannot connect to; and for an
    authorizer, which this broker does not have."""
    if list(texts) == [NO_BROKER]:
        return []
    if config["authorizer.class.name"]:
        raise UsageError(
            "this broker has no ACLs: every client that connects may do everything",
            path="authorizer.class.name",
            advice="remove the setting, and listen only on an address that only trusted clients reach",
        )
    setting = "--kafka-listen" if texts else "listeners"
    parsed = [BrokerListener.parse(text, setting) for text in texts or _words(config, "listeners")]
    controllers = {name.upper() for name in _words(config, "controller.listener.names")}
    advertised = _advertised(config)
    unknown = advertised.keys() - {one.name for one in parsed} - controllers
    if unknown and not texts:  # as in Kafka; with --kafka-listen the setting is that of other listeners
        reason = f"there is no listener {', '.join(sorted(unknown))}"
        raise UsageError(reason, path=_ADVERTISED, advice="advertise listeners of the setting listeners")
    listeners = [
        BrokerListener(name=one.name, host=one.host, port=one.port, advertised=advertised.get(one.name))
        for one in parsed
        if one.name not in controllers
    ]
    _refuse_other_protocols(config, listeners, setting)
    for others in ([one.name for one in listeners], [(one.host, one.port) for one in listeners if one.port]):
        if len(set(others)) < len(others):
            raise UsageError("two listeners have one name or one address", path=setting, advice=ADVICE)
    return listeners


def _advertised(config: Config) -> dict[str, tuple[str, int]]:
    """By name of a listener the host and port that clients are told. Raises UsageError."""
    parsed = [BrokerListener.parse(text, _ADVERTISED) for text in _words(config, _ADVERTISED)]
    for one in parsed:
        if one.host in ("0.0.0.0", "::"):  # as in Kafka
            advice = "advertise an address that clients can connect to"
            raise UsageError(f"{one.text} is every address", path=_ADVERTISED, advice=advice)
    return {one.name: (one.host, one.port) for one in parsed}


def refuse_taken(listeners: Sequence[BrokerListener]) -> None:
    """Raises UsageError for an address that is in use, before anything is opened or made."""
    for listener in listeners:
        listener.bind(Limits()).close()


def _refuse_other_protocols(config: Config, listeners: Sequence[BrokerListener], setting: str) -> None:
    """Raises UsageError for a listener that speaks another protocol than PLAINTEXT. ``setting``: where they
    are set."""
    protocols = dict[str, str]()
    for text in _words(config, "listener.security.protocol.map"):
        name, _, protocol = text.partition(":")
        protocols[name.strip().upper()] = protocol.strip().upper()
    for one in listeners:
        protocol = protocols.get(one.name, one.name)
        if protocol != PLAINTEXT:
            raise UsageError(
                f"{one.text} speaks {protocol}, and this broker only {PLAINTEXT}",
                path=setting,
                advice="make it a PLAINTEXT listener on an address that only trusted clients reach",
            )


def _words(config: Config, name: str) -> tuple[str, ...]:
    value = config[name]
    assert isinstance(value, tuple)
    return value
