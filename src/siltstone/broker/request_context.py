"""The values that connections, dispatch and handlers pass to each other: where a request comes from (Kafka's
``RequestContext``), and the parts of its response (``Send``)."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from siltstone.base.files import FileSlice

if TYPE_CHECKING:
    from siltstone.broker.counts import PhaseCounts

ResponsePart: TypeAlias = bytes | bytearray | memoryview | FileSlice
"""A part of a response: bytes, or a range of a file that the kernel sends (``sendfile``)."""
ResponseParts: TypeAlias = Sequence[ResponsePart]
"""A response as it is sent: its length, header and body in parts. Empty: no response is sent."""


class NoResponse(enum.Enum):
    """What a handler returns instead of a response that must not be sent: ``SILENT`` after a Produce with
    acks 0, ``CLOSED`` after an error that no response can report."""

    SILENT = "no response is sent, and the next request is read"
    CLOSED = "no response is sent, and the connection is closed"


CLIENT_ID_MAX = 256
"""The characters of a client id that are kept; the protocol allows 32,767."""
NO_RESPONSE: Final[Literal[NoResponse.SILENT]] = NoResponse.SILENT
CLOSE: Final[Literal[NoResponse.CLOSED]] = NoResponse.CLOSED


class RefusedFrameError(Exception):
    """Raised to close the connection without a response, as Kafka does: the peer does not speak the protocol.
    ``str()`` is the reason, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """A listener: ``name`` as in the settings, such as ``PLAINTEXT``; ``host`` and ``port`` as it advertises
    them."""

    name: str
    host: str
    port: int


@dataclass(slots=True, eq=False)
class Activity:
    """The activity of a connection, for the list of connections, metrics and throttling. Only the loop's
    thread writes it. The times ``…_at`` are by ``time.perf_counter``, in seconds; 0 before the first one.

    ``client_id``: of the last request, at most ``CLIENT_ID_MAX`` characters. ``api_key``: of the last
    request; -1 before the first one. ``received_at``: the time of the last receive. ``begun_at``: the time at
    which the last request was begun. ``parked_seconds``: how long that request was parked. ``throttle_ms``:
    for how long the connection is not to be read (muted) after that request's response.

    ``requests``: how many were begun. ``bytes_in``, ``bytes_out``: of frames, with their lengths.
    ``unsent``: the number of responses that were made and are not sent yet; ``answered_at``: the time at
    which the last of them was made; ``sent_phase``: counts the time until they are sent.
    """

    client_id: str | None = None
    api_key: int = -1
    begun_at: float = 0.0
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    parked_seconds: float = 0.0
    received_at: float = 0.0
    answered_at: float = 0.0
    unsent: int = 0
    sent_phase: PhaseCounts | None = None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """A connection: ``number`` is unique in this broker, ``peer`` the client's IP address, ``since_ms`` the
    time at which the connection was accepted."""

    number: int
    listener: ListenerAddress
    peer: str
    since_ms: int = 0
    activity: Activity = field(default_factory=Activity, compare=False, repr=False)


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a request, and the connection that it came from (Kafka's ``RequestContext``).

    It is a msgspec struct because one is made for each request: a frozen dataclass takes half a microsecond
    longer.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionInfo

    @property
    def seconds(self) -> float:
        """The seconds since the request was begun, without those in which it was parked."""
        activity = self.connection.activity
        return time.perf_counter() - activity.begun_at - activity.parked_seconds
