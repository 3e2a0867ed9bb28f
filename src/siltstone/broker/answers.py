"""What the parts of the broker hand to each other: a request's circumstances, and its answer."""

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

Piece: TypeAlias = bytes | bytearray | memoryview | FileSlice
"""A part of an answer. A ``FileSlice`` goes from the file to the socket within the kernel."""
Pieces: TypeAlias = Sequence[Piece]
"""An answer as it is sent, its length in front; empty: no answer."""


class Unanswered(enum.Enum):
    """What a handler returns instead of a message."""

    SILENT = "no answer is sent, and the next request is read"
    CLOSED = "no answer is sent, and the connection is closed"


CLIENT_ID_MAX = 256
"""Characters of a client's id that are kept; it may have 32,767."""
NO_ANSWER: Final[Literal[Unanswered.SILENT]] = Unanswered.SILENT
CLOSE: Final[Literal[Unanswered.CLOSED]] = Unanswered.CLOSED


class RefusedFrameError(Exception):
    """The connection is closed without an answer: its peer does not speak the protocol. ``str()``: why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """A listener: ``name`` as in the settings, such as ``PLAINTEXT``; ``host`` and ``port`` as advertised to
    those who connect to it."""

    name: str
    host: str
    port: int


@dataclass(slots=True, eq=False)
class Activity:
    """What a connection has asked so far, for those who look at it. Written in the loop's thread alone.

    ``client_id``: the last request's, at most ``CLIENT_ID_MAX`` characters; ``api_key``: the last request's,
    -1 before the first one; ``asked_at``: when that one was complete, by ``time.perf_counter``. Bytes are
    those of frames with their lengths, in and out. ``parked_seconds``: how long the last request has waited
    for records; ``throttle_ms``: for how long the connection is not read once that one is answered.
    ``received_at``: when bytes were received last; ``answered_at``: when the last of ``unsent`` answers was
    made, whose time until they are sent is counted in ``sent_phase``.
    """

    client_id: str | None = None
    api_key: int = -1
    asked_at: float = 0.0
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
    """A connection: ``number`` is unique in this process, ``peer`` the address it comes from, ``since_ms``
    when it was accepted."""

    number: int
    listener: ListenerAddress
    peer: str
    since_ms: int = 0
    activity: Activity = field(default_factory=Activity, compare=False, repr=False)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request beside its message: what its header says, and where it came from.

    One is made for each request, which takes a frozen dataclass half a microsecond longer.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionInfo

    @property
    def seconds(self) -> float:
        """How long the request has been worked on so far, without its wait for records."""
        activity = self.connection.activity
        return time.perf_counter() - activity.asked_at - activity.parked_seconds
