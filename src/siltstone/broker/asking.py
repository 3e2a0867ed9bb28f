"""A client that asks a broker a few things by Kafka's protocol, over a plain socket: what the usual client's
library has no functions for, such as quotas.

One request at a time, on one connection. An answer may not be larger than ``ANSWER_BYTES_MAX``, and takes no
more memory than has come of it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from siltstone.base.closing import Closing
from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, UsageError
from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import API_VERSIONS, APIS
from siltstone.broker.wire.codec import MalformedRequestError
from siltstone.broker.wire.fields import Message

ANSWER_BYTES_MAX = 64 << 20
SECONDS = 30.0
"""How long an answer may take."""
CLIENT_ID = b"siltstone"
_PORT = 9092
_RECEIVED_AT_ONCE = 1 << 16
_BY_NAME = {api.name: api for api in APIS.values()}


class AskedBroker(Closing):
    """A connection to the first of some brokers that answers."""

    def __init__(self, bootstrap_server: str, config: Mapping[str, str]) -> None:
        """``bootstrap_server``: ``HOST:PORT``, with commas between several. ``config``: the client's
        settings. Raises UsageError for a connection that is not plain, BrokerUnreachableError."""
        protocol = config.get("security.protocol", "PLAINTEXT")
        if protocol.upper() != "PLAINTEXT":
            raise UsageError(
                f"security.protocol={protocol}: quotas are only asked for over a plain connection",
                path="--command-config",
                advice="use kafka-configs, or a listener of the broker that is PLAINTEXT",
            )
        self._number = 0
        self._socket = _connected(bootstrap_server)

    def ask(self, request: Message, version: int) -> Message:
        """Send a request, and wait for its answer. Raises BrokerUnreachableError, BrokerRefusedError if the
        broker ends the connection: it does not know the request."""
        api = _BY_NAME[type(request).__name__.removesuffix("Request")]
        self._number += 1
        is_flexible = version >= api.first_flexible
        head = struct.pack(">hhih", api.key, version, self._number, len(CLIENT_ID)) + CLIENT_ID
        body = b"".join(bytes(piece) for piece in codec.write(request, version))  # type: ignore[arg-type]
        frame = head + (b"\0" if is_flexible else b"") + body
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            answer = self._receive()
        except OSError as error:
            raise BrokerUnreachableError(f"the broker does not answer: {error}") from None
        start = 5 if is_flexible and api.key != API_VERSIONS else 4
        try:
            found: Message = codec.read(api.response, version, memoryview(answer), start)
        except MalformedRequestError as error:
            raise BrokerRefusedError(f"the broker's answer cannot be read: {error}") from None
        return found

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._take(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise BrokerRefusedError(f"the broker answers with {size} bytes")
        return self._take(size)

    def _take(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(min(size - len(found), _RECEIVED_AT_ONCE))
            if not part:
                raise BrokerRefusedError("the broker has closed the connection: it does not know the request")
            found += part
        return bytes(found)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _connected(bootstrap_server: str) -> socket.socket:
    failure = "no address"
    for address in bootstrap_server.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host:
            host, port = address.strip(), str(_PORT)
        try:
            return socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)
        except ValueError:
            raise UsageError(
                f"{address!r:.256} is no address", path="--bootstrap-server", advice="pass HOST:PORT"
            ) from None
        except OSError as error:
            failure = f"{address}: {error}"
    raise BrokerUnreachableError(failure)
