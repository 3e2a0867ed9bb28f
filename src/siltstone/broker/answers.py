"""What the parts of the broker hand to each other: a request's circumstances, and its answer."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from siltstone.base.files import FileSlice

Piece: TypeAlias = bytes | bytearray | memoryview | FileSlice
"""A part of an answer. A ``FileSlice`` goes from the file to the socket within the kernel."""
Pieces: TypeAlias = Sequence[Piece]
"""An answer as it is sent, its length in front; empty: no answer."""


class Unanswered(enum.Enum):
    """What a handler returns instead of a message."""

    SILENT = "no answer is sent, and the next request is read"
    CLOSED = "no answer is sent, and the connection is closed"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """A connection: ``number`` is unique in this process, ``peer`` the address it comes from."""

    number: int
    listener: ListenerAddress
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request beside its message: what its header says, and where it came from."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionInfo
