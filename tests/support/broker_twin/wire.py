"""One connection to a broker, and what it answers: a message, nothing, or the end of the connection."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from tests.support.broker_twin import schemas
from tests.support.broker_twin.schemas import Message

API_VERSIONS: Final = 18
TIMEOUT_S: Final = 60.0
QUIET_S: Final = 0.05
CLOSED: Final[Message] = {"closed": True}
NO_ANSWER: Final[Message] = {"no answer": True}
CLIENT: Final = "twin"


class Connection:
    """A socket; a context that closes it."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlations = itertools.count(1)
        self._pending: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def send(self, key: int, version: int, message: Mapping[str, Any], *, client: str | None = CLIENT) -> int:
        """Send one request; its correlation id."""
        layout = schemas.schema(key, version, "request")
        number = next(self._correlations)
        self._pending[number] = (key, version)
        body = schemas.encode(layout, message)
        self.send_frame(header(key, version, number, client, flexible=layout.flexible) + body)
        return number

    def send_frame(self, frame: bytes) -> None:
        """Send bytes with their length before them."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> tuple[int, Message] | None:
        """The next answer with its correlation id, None when the connection ends."""
        frame = self.receive_frame()
        if frame is None:
            return None
        (number,) = struct.unpack_from(">i", frame)
        key, version = self._pending.pop(number)
        return number, answer_of(key, version, frame)

    def ask(
        self, key: int, version: int, message: Mapping[str, Any], *, client: str | None = CLIENT
    ) -> Message:
        """Send one request and wait for its answer."""
        number = self.send(key, version, message, client=client)
        received = self.receive()
        if received is None:
            return CLOSED
        assert received[0] == number, f"answer {received[0]} to request {number}"
        return received[1]

    def receive_frame(self) -> bytes | None:
        """The bytes of an answer without their length; None when the connection ends before them."""
        size = self._receive(4)
        return None if size is None else self._receive(struct.unpack(">i", size)[0])

    def is_quiet(self) -> Message:
        """What comes within a short time: nothing, the end, or an answer's raw bytes."""
        self.socket.settimeout(QUIET_S)
        try:
            return {"bytes": data} if (data := self.socket.recv(4096)) else CLOSED
        except TimeoutError:
            return NO_ANSWER
        except ConnectionError:
            return CLOSED
        finally:
            self.socket.settimeout(TIMEOUT_S)

    def _receive(self, size: int) -> bytes | None:
        received = bytearray()
        while len(received) < size:
            try:
                more = self.socket.recv(size - len(received))
            except ConnectionError:
                return None
            if not more:
                return None
            received += more
        return bytes(received)


def header(key: int, version: int, number: int, client: str | None, *, flexible: bool) -> bytes:
    """A request's header, version 2 with tags where the body is flexible, else 1."""
    name = None if client is None else client.encode()
    text = struct.pack(">h", -1) if name is None else struct.pack(">h", len(name)) + name
    return struct.pack(">hhi", key, version, number) + text + (b"\0" if flexible else b"")


def answer_of(key: int, version: int, frame: bytes) -> Message:
    """The message of an answer's frame; ApiVersions' header has no tags in any version."""
    layout = schemas.schema(key, version, "response")
    at = 4
    if layout.flexible and key != API_VERSIONS:
        assert frame[4] == 0, "the header has tags"
        at = 5
    return schemas.decode(layout, frame[at:])
