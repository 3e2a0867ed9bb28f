"""Defines what a server shows of its broker's clients: their connections, their requests by API, and the
broker's metrics.

The broker implements ``Clients``; the console, REST and ``/metrics`` read it as ``Served.clients``, which is
None in a server without a broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from siltstone.commands.metrics import MetricFamily, Sample
from siltstone.commands.served import Served

NO_BROKER = "this server has no broker: it is in look mode, or was started with --kafka-listen none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """A connection. ``number``: unique since the start; ``since_ms``: when it was opened; ``requests``: how
    many have come; ``client_id``: the last request's, shortened; ``api``: of the last request.

    ``state``: ``idle`` once the response to the last request has been sent, ``receiving`` when a part of the
    next request has come, ``waiting`` (for its turn, or for memory), ``running``, ``parked`` (a fetch that
    waits for records), ``sending``, ``throttled`` (its client has exceeded a quota). ``for_ms``: milliseconds
    since the last request had arrived, whatever the state; 0 if ``idle`` or ``receiving``. ``bytes_in`` and
    ``bytes_out``: of frames, with the 4 bytes of their sizes."""

    number: int
    client_id: str | None
    address: str
    listener: str
    since_ms: int
    requests: int
    bytes_in: int
    bytes_out: int
    api: str | None
    state: str
    for_ms: int

    def to_json(self) -> dict[str, Any]:
        """The object in the REST API."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequests:
    """The requests of one API since the start. ``errors``: codes other than 0 in responses, of whole requests
    and of their parts, by Kafka's name; ``p50_ms`` …: percentiles of the times of answered requests,
    interpolated within the buckets of a histogram; None if none was answered."""

    api: str
    requests: int
    errors: dict[str, int]
    request_bytes: int
    response_bytes: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @property
    def error_count(self) -> int:
        """How many errors there were."""
        return sum(self.errors.values())

    def to_json(self) -> dict[str, Any]:
        """The object in the REST API."""
        return {name: getattr(self, name) for name in self.__slots__}


class Clients(Protocol):
    """What the server's broker tells of its clients (``Served.clients``); ``broker`` implements it. All
    methods may be called from any thread."""

    def connections(self) -> list[ClientConnection]:
        """The open connections, the oldest first."""
        ...

    def requests(self) -> list[ApiRequests]:
        """The APIs that had requests, by name."""
        ...

    def samples(self) -> list[Sample]:
        """The broker's metrics, except those of topics."""
        ...

    def topic_metrics(self) -> list[MetricFamily]:
        """The counters of all topics together, and of each topic."""
        ...


def connections(served: Served) -> Sequence[ClientConnection]:
    """The open connections of a server's broker; none without one."""
    return [] if served.clients is None else served.clients.connections()


def requests(served: Served) -> Sequence[ApiRequests]:
    """The requests to a server's broker, by API; none without one."""
    return [] if served.clients is None else served.clients.requests()
