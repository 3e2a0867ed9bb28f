"""A client of Kafka's protocol over a plain socket, for what confluent-kafka, which other commands use, does
not ask for or does not show: log directories, quotas, and batches as they are stored.

::

    HOST:PORT ─ ApiVersions 0 ─► versions ─ a request in the newest version that both have ─► its response

It sends one request at a time, on one connection. A broker is not trusted: a response takes memory only as
its bytes arrive, up to ``RESPONSE_BYTES_MAX``, and must be complete within ``SECONDS``.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from siltstone.base.closing import Closing
from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, UsageError
from siltstone.broker.errors import Code
from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import API_VERSIONS, APIS
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import response_header
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

SECONDS = 30.0
"""How long it may take to connect, and from a request to the end of its response."""
RESPONSE_BYTES_MAX = 64 << 20
_PART_BYTES = 1 << 16
"""The most bytes of one ``recv``."""
_CLIENT_ID = b"siltstone"
_PROTOCOL = "security.protocol"


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``HOST:PORT`` or ``[ADDRESS]:PORT``. Raises UsageError."""
        host, _, port = text.strip().rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
        if not host.strip("[]") or not is_port:
            raise UsageError(
                f"{text[:256]!r} is no address", path="--bootstrap-server", advice="pass HOST:PORT"
            )
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def plain_addresses(
    bootstrap_server: str, config: Mapping[str, str], what: str, *, port: int | None = None
) -> list[Address]:
    """The addresses in ``bootstrap_server``, with commas between them. ``config``: the client's properties,
    of which only ``security.protocol`` is read; ``what``: what the command asks for, such as ``quotas``, for
    the error; ``port``: the port of an address that has none, None if every address must have one. Raises
    UsageError for a bad address, and for another protocol than PLAINTEXT."""
    protocol = config.get(_PROTOCOL, "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise UsageError(
            f"{what} are only asked for over a plain connection, not by {protocol}",
            path=f"--command-config {_PROTOCOL}",
            advice="ask a PLAINTEXT listener, or use Kafka's own tool",
        )
    texts = [text.strip() for text in bootstrap_server.split(",")]
    return [Address.parse(text if port is None or ":" in text else f"{text}:{port}") for text in texts]


def code_text(code: int) -> str:
    """An error code for people: ``NAME (code)``, or ``error CODE`` for a code that ``Code`` does not have."""
    return f"{Code(code).name} ({code})" if code in set(Code) else f"error {code}"


class PlainClient(Closing):
    """A client with a connection to one broker. Raises BrokerUnreachableError."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._correlation_id = 0
        self._versions: ApiVersionsResponse | None = None
        self._deadline = time.monotonic() + SECONDS
        with self._failures():
            self._socket = socket.create_connection(address, timeout=SECONDS)

    @classmethod
    def first_of(cls, addresses: list[Address]) -> PlainClient:
        """A connection to the first broker that accepts one. Raises BrokerUnreachableError."""
        for address in addresses[:-1]:
            with contextlib.suppress(BrokerUnreachableError):
                return cls(address)
        return cls(addresses[-1])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, key: int, request: Message, min_version: int = 0) -> Any:
        """The response to a request, which is sent in the newest version that both sides have. Raises
        BrokerUnreachableError, BrokerRefusedError if both have no version in common from ``min_version``
        on."""
        if self._versions is None:
            self._versions = self._ask(API_VERSIONS, 0, ApiVersionsRequest())
        api = APIS[key]
        theirs = next((known for known in self._versions.api_keys if known.api_key == key), None)
        version = -1 if theirs is None else min(theirs.max_version, api.max_version)
        if theirs is None or version < max(theirs.min_version, api.min_version, min_version):
            raise BrokerRefusedError(
                f"the broker supports no version of {api.name} that Siltstone supports",
                path=str(self.address),
                advice="connect to a newer broker",
            )
        return self._ask(key, version, request)

    def _ask(self, key: int, version: int, request: Message) -> Any:
        """The response to a request that is sent in this version. Raises BrokerUnreachableError."""
        api, self._correlation_id = APIS[key], self._correlation_id + 1
        tags = b"\0" if version >= api.first_flexible else b""
        head = struct.pack(">hhih", key, version, self._correlation_id, len(_CLIENT_ID)) + _CLIENT_ID + tags
        parts = codec.write(request, version)
        # Requests of this client carry no records, so no part is a slice of a file.
        frame = head + b"".join(part for part in parts if isinstance(part, bytes | bytearray))
        self._deadline = time.monotonic() + SECONDS
        with self._failures():
            self._set_timeout()
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            response = self._receive(self._receive_size())
        expected = response_header(key, version, self._correlation_id)
        if not response.startswith(expected):
            raise self._unreadable("is for another request")
        try:
            return codec.read(api.response, version, memoryview(response), len(expected))
        except codec.MalformedRequestError as error:
            raise self._unreadable(f"of {api.name} cannot be read at byte {error.position}") from error

    def _receive_size(self) -> int:
        """Receive the length of a response, in bytes."""
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise self._unreadable(f"has {size} bytes")
        return int(size)

    def _receive(self, size: int) -> bytes:
        """Receive ``size`` bytes. Raises BrokerUnreachableError if the broker sends fewer, OSError."""
        received = bytearray()
        while len(received) < size:
            self._set_timeout()
            part = self._socket.recv(min(size - len(received), _PART_BYTES))
            if not part:
                raise BrokerUnreachableError("the broker closed the connection", path=str(self.address))
            received += part
        return bytes(received)

    def _set_timeout(self) -> None:
        """Let the next call of the socket take at most the time that is left until the deadline. Raises
        TimeoutError if none is."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _unreadable(self, reason: str) -> BrokerUnreachableError:
        """The error for a response that is not as Kafka's protocol has it. ``reason``: what follows the words
        "a response"."""
        return BrokerUnreachableError(f"a response {reason}: is it a broker?", path=str(self.address))

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise errors of the socket as BrokerUnreachableError."""
        try:
            yield
        except TimeoutError as error:
            raise BrokerUnreachableError("the broker does not answer", path=str(self.address)) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host that is no name
            reason = getattr(error, "strerror", None) or str(error)
            raise BrokerUnreachableError(reason, path=str(self.address)) from error
