"""A client of Kafka's protocol that sends what it is told, also what no client would."""

from __future__ import annotations

import socket
import struct
from typing import Any

from siltstone.broker.request_context import ListenerAddress
from siltstone.broker.wire import codec
from siltstone.broker.wire.api import Api
from siltstone.broker.wire.apis import API_VERSIONS, APIS
from siltstone.broker.wire.fields import Message

_BY_NAME = {api.name: api for api in APIS.values()}
SECONDS = 20
"""How long it waits for an answer."""


class ClosedByBrokerError(Exception):
    """The broker has closed the connection."""


def api_of(request: Message) -> Api:
    """The API that a request is for."""
    return _BY_NAME[type(request).__name__.removesuffix("Request")]


def request_frame(
    request: Message, version: int, *, correlation_id: int = 0, client_id: str | None = "test"
) -> bytes:
    """The frame of a request, its length in front."""
    api = api_of(request)
    name = None if client_id is None else client_id.encode()
    head = struct.pack(">hhih", api.key, version, correlation_id, -1 if name is None else len(name))
    tags = b"\0" if version >= api.first_flexible else b""
    body = head + (name or b"") + tags + b"".join(map(bytes, codec.write(request, version)))  # type: ignore[arg-type]
    return struct.pack(">i", len(body)) + body


class WireClient:
    """One connection."""

    def __init__(self, address: ListenerAddress) -> None:
        self.socket = socket.create_connection(("127.0.0.1", address.port), timeout=SECONDS)
        self._number = 0

    def ask(self, request: Message, version: int, **header: Any) -> Any:
        """Send a request, and read its answer. Raises ClosedByBrokerError."""
        self.send(request, version, **header)
        return self.receive(request, version)

    def send(self, request: Message, version: int, **header: Any) -> None:
        """Send a request."""
        self._number += 1
        self.send_bytes(request_frame(request, version, **{"correlation_id": self._number, **header}))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes."""
        self.socket.sendall(data)

    def receive(self, request: Message, version: int) -> Any:
        """Read the next answer, as one to ``request``. Raises ClosedByBrokerError."""
        return read_response(request, version, self.receive_frame())

    def receive_frame(self) -> bytes:
        """Read an answer's frame without its length. Raises ClosedByBrokerError."""
        return self._receive(struct.unpack(">i", self._receive(4))[0])

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self.socket.recv(size - len(received))
            except ConnectionError:
                part = b""
            if not part:
                raise ClosedByBrokerError(f"after {len(received)} bytes")
            received += part
        return bytes(received)

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; False if it sends something instead."""
        try:
            return not self._receive(1)
        except ClosedByBrokerError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def read_response(request: Message, version: int, frame: bytes) -> Any:
    """The message in an answer's frame."""
    api = api_of(request)
    is_flexible = version >= api.first_flexible and api.key != API_VERSIONS
    return codec.read(api.response, version, memoryview(frame), 5 if is_flexible else 4)
