"""The listeners of a broker, from Kafka's settings to bound sockets (Kafka's ``Endpoint``, ``Acceptor``).

::

    listeners=PLAINTEXT://127.0.0.1:9092,INSIDE://:19092        NAME://HOST:PORT; no host: every address
    advertised.listeners=PLAINTEXT://broker.example:9092        the addresses that Metadata tells clients
    listener.security.protocol.map=INSIDE:PLAINTEXT             the protocol of a listener named INSIDE

If the name of a listener is not in the map, it is the name of the listener's protocol. Listeners in
``controller.listener.names`` are left out: this broker has no controller. Without any listener, ``siltstone
serve`` starts no broker.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from siltstone.base.config import Config
from siltstone.base.errors import UsageError
from siltstone.broker.limits import Limits
from siltstone.broker.request_context import ListenerAddress

PLAINTEXT = "PLAINTEXT"
NO_BROKER = "none"
"""The value of ``--kafka-listen`` that starts no broker."""
_FORM = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})"
)
_PORT_MAX = 65_535
_ADVERTISED = "advertised.listeners"
_EVERY_ADDRESS = ("", "0.0.0.0", "::")
ADVICE = "choose another address with --kafka-listen, or with the setting listeners"
"""What an error advises whose cause is the address of a listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerListener:
    """A listener. ``host``: "" is every address of the machine; ``port``: 0 is any free one; ``advertised``:
    the host and port that Metadata tells clients, None for ``host`` and ``port``."""

    name: str = PLAINTEXT
    host: str = "127.0.0.1"
    port: int = 9092
    advertised: tuple[str, int] | None = None

    @classmethod
    def parse(cls, text: str, setting: str) -> BrokerListener:
        """Parse ``PLAINTEXT://127.0.0.1:9092``. ``setting``: where the text comes from, for the error. Raises
        UsageError."""
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
            # Every address: one IPv6 socket, which accepts IPv4, too, where the system can do that.
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
        # Accepted sockets inherit these options.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        return bound

    def address(self, bound: socket.socket) -> ListenerAddress:
        """The address that Metadata tells clients: with the port of the ``bound`` socket if the listener has
        port 0, and with the machine's name if its host is every address."""
        host, port = self.advertised or (self.host, 0)
        if host in _EVERY_ADDRESS:
            host = socket.getfqdn()
        return ListenerAddress(name=self.name, host=host, port=port or bound.getsockname()[1])


def listeners_of(config: Config, texts: Sequence[str] = ()) -> list[BrokerListener]:
    """The listeners in ``texts``, the values of ``--kafka-listen`` (``NO_BROKER``: none), else those of
    ``server.properties``.

    Raises UsageError if a listener is malformed or its protocol is not PLAINTEXT; if two have one name or one
    address; if an advertised listener does not exist, or has an address to which clients cannot connect; and
    if an authorizer is set, which this broker does not have.
    """
    if list(texts) == [NO_BROKER]:
        return []
    if config["authorizer.class.name"]:
        raise UsageError(
            "this broker has no ACLs: every client that connects may do everything",
            path="authorizer.class.name",
            advice="remove the setting, and listen only on an address that only trusted clients reach",
        )
    setting = "--kafka-listen" if texts else "listeners"
    parsed = [BrokerListener.parse(text, setting) for text in texts or _entries(config, "listeners")]
    controllers = {name.upper() for name in _entries(config, "controller.listener.names")}
    advertised = _advertised(config)
    unknown = advertised.keys() - {listener.name for listener in parsed} - controllers
    # As in Kafka. With --kafka-listen the setting is about the listeners of server.properties, not these.
    if unknown and not texts:
        reason = f"there is no listener {', '.join(sorted(unknown))}"
        raise UsageError(reason, path=_ADVERTISED, advice="advertise listeners of the setting listeners")
    listeners = [
        replace(listener, advertised=advertised.get(listener.name))
        for listener in parsed
        if listener.name not in controllers
    ]
    _refuse_other_protocols(config, listeners, setting)
    names = [listener.name for listener in listeners]
    addresses = [(listener.host, listener.port) for listener in listeners if listener.port]
    if len(set(names)) < len(names) or len(set(addresses)) < len(addresses):
        raise UsageError("two listeners have one name or one address", path=setting, advice=ADVICE)
    return listeners


def _advertised(config: Config) -> dict[str, tuple[str, int]]:
    """The advertised hosts and ports, by name of the listener. Raises UsageError."""
    parsed = [BrokerListener.parse(text, _ADVERTISED) for text in _entries(config, _ADVERTISED)]
    for listener in parsed:
        if listener.host in ("0.0.0.0", "::"):  # as in Kafka
            advice = "advertise an address that clients can connect to"
            raise UsageError(f"{listener.text} is every address", path=_ADVERTISED, advice=advice)
    return {listener.name: (listener.host, listener.port) for listener in parsed}


def refuse_taken(listeners: Sequence[BrokerListener]) -> None:
    """Raises UsageError for an address that is in use: for a check before directories are opened."""
    for listener in listeners:
        listener.bind(Limits()).close()


def _refuse_other_protocols(config: Config, listeners: Sequence[BrokerListener], setting: str) -> None:
    """Raises UsageError for a listener with another protocol than PLAINTEXT. ``setting``: where the listeners
    come from, for the error."""
    protocols = dict[str, str]()
    for text in _entries(config, "listener.security.protocol.map"):
        name, _, protocol = text.partition(":")
        protocols[name.strip().upper()] = protocol.strip().upper()
    for listener in listeners:
        protocol = protocols.get(listener.name, listener.name)
        if protocol != PLAINTEXT:
            raise UsageError(
                f"{listener.text} speaks {protocol}, and this broker only {PLAINTEXT}",
                path=setting,
                advice="make it a PLAINTEXT listener on an address that only trusted clients reach",
            )


def _entries(config: Config, name: str) -> tuple[str, ...]:
    """The entries of a setting that is a list."""
    value = config[name]
    assert isinstance(value, tuple)
    return value
