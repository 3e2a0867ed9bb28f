"""Asks running brokers for their log directories: ``siltstone log-dirs --bootstrap-server``.

The client library of the other commands has no DescribeLogDirs, so this is a client of its own, without TLS::

    HOST:PORT ─ ApiVersions 0 ─► versions ─ Metadata ─► brokers
    each broker ─ ApiVersions 0 ─► versions ─ DescribeLogDirs ─► JSON

A broker is not trusted: an answer takes memory only as it comes, up to ``ANSWER_BYTES_MAX``, and a broker has
``SECONDS`` for one, however slowly it sends.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, UsageError
from siltstone.broker.errors import Code
from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import API_VERSIONS, APIS, DESCRIBE_LOG_DIRS, METADATA
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import response_header
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.broker.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from siltstone.broker.wire.messages.metadata import MetadataRequest
from siltstone.commands.offsets import STORAGE_ERROR
from siltstone.log.names import TopicPartition

SECONDS = 30.0
"""How long a connection and each answer may take."""
ANSWER_BYTES_MAX = 64 << 20
_PART_BYTES = 1 << 16
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


def describe_log_dirs(
    bootstrap_server: str,
    config: Mapping[str, str],
    topics: Collection[str] = (),
    broker_ids: Collection[int] = (),
) -> dict[str, Any]:
    """The log directories of running brokers, in the shape of ``commands.offsets.describe_log_dirs``.

    ``bootstrap_server``: one address or several, with commas between them; ``config``: the client's
    properties, of which only ``security.protocol`` is looked at. ``topics``, ``broker_ids`` empty: all of
    them. Raises UsageError, BrokerUnreachableError, BrokerRefusedError.
    """
    protocol = config.get(_PROTOCOL, "plaintext")
    if protocol.lower() != "plaintext":
        advice = "ask a PLAINTEXT listener, or kafka-log-dirs"
        raise UsageError(
            f"log-dirs speaks no {protocol}", path=f"--command-config {_PROTOCOL}", advice=advice
        )
    addresses = [Address.parse(text) for text in bootstrap_server.split(",")]
    brokers = _brokers(addresses)
    unknown = sorted(set(broker_ids) - set(brokers))
    if unknown:
        raise UsageError(
            f"there is no broker {', '.join(map(str, unknown))}",
            path="--broker-list",
            advice=f"pass some of {', '.join(map(str, sorted(brokers)))}",
        )
    described = []
    for number in sorted(broker_ids or brokers):
        with _Connection(brokers[number]) as connection:
            results = connection.log_dirs()
        log_dirs = [_log_dir(result, topics) for result in sorted(results, key=lambda result: result.log_dir)]
        described.append({"broker": number, "logDirs": log_dirs})
    return {"version": 1, "brokers": described}


def _brokers(addresses: Sequence[Address]) -> dict[int, Address]:
    """The addresses of a cluster's brokers by number, from the first of ``addresses`` that answers. Raises
    BrokerUnreachableError, BrokerRefusedError."""
    for address in addresses[:-1]:
        with contextlib.suppress(BrokerUnreachableError), _Connection(address) as connection:
            return connection.brokers()
    with _Connection(addresses[-1]) as connection:
        return connection.brokers()


def _log_dir(result: DescribeLogDirsResult, topics: Collection[str]) -> dict[str, Any]:
    partitions = {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in result.topics
        if not topics or topic.name in topics
        for partition in topic.partitions
    }
    return {
        "logDir": result.log_dir,
        "error": _error(result.error_code),
        "partitions": [
            {
                "partition": str(where),
                "size": partition.partition_size,
                "offsetLag": partition.offset_lag,
                "isFuture": partition.is_future_key,
            }
            for where, partition in sorted(partitions.items())
        ],
    }


def _error(code: int) -> str | None:
    if code == Code.KAFKA_STORAGE_ERROR:
        return STORAGE_ERROR
    return None if code == Code.NONE else _code_text(code)


def _code_text(code: int) -> str:
    return f"{Code(code).name} ({code})" if code in set(Code) else f"error {code}"


class _Connection:
    """A connection to a broker; a context that closes it. Raises BrokerUnreachableError."""

    def __init__(self, address: Address) -> None:
        self._address, self._correlation = address, 0
        self._deadline = time.monotonic() + SECONDS
        with self._failures():
            self._socket = socket.create_connection(address, timeout=SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def brokers(self) -> dict[int, Address]:
        """The cluster's brokers by their numbers. Raises BrokerUnreachableError, BrokerRefusedError."""
        answer = self._ask_in_best_version(METADATA, MetadataRequest(allow_auto_topic_creation=False), 1)
        return {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}

    def log_dirs(self) -> Sequence[DescribeLogDirsResult]:
        """The broker's log directories. Raises BrokerUnreachableError, BrokerRefusedError."""
        answer = self._ask_in_best_version(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None))
        if answer.error_code:
            raise BrokerRefusedError(_code_text(answer.error_code), path=str(self._address))
        results: Sequence[DescribeLogDirsResult] = answer.results
        return results

    def _ask_in_best_version(self, key: int, request: Message, min_version: int = 0) -> Any:
        """Ask in the newest version that both sides have."""
        known = self._ask(API_VERSIONS, 0, ApiVersionsRequest())
        api = APIS[key]
        theirs = next((one for one in known.api_keys if one.api_key == key), None)
        version = -1 if theirs is None else min(theirs.max_version, api.max_version)
        if theirs is None or version < max(theirs.min_version, api.min_version, min_version):
            raise BrokerRefusedError(
                f"the broker has no {api.name} that is known here",
                path=str(self._address),
                advice="ask a broker of Kafka 2.0 or later",
            )
        return self._ask(key, version, request)

    def _ask(self, key: int, version: int, request: Message) -> Any:
        api, self._correlation = APIS[key], self._correlation + 1
        tags = b"\0" if version >= api.first_flexible else b""
        head = struct.pack(">hhih", key, version, self._correlation, len(_CLIENT_ID)) + _CLIENT_ID + tags
        pieces = codec.write(request, version)
        frame = head + b"".join(piece for piece in pieces if isinstance(piece, bytes | bytearray))
        self._deadline = time.monotonic() + SECONDS
        with self._failures():
            self._wait_at_most()
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            answer = self._receive(self._answer_size())
        expected = response_header(key, version, self._correlation)
        if not answer.startswith(expected):
            raise self._unreadable("it is for another request")
        try:
            return codec.read(api.response, version, memoryview(answer), len(expected))
        except codec.MalformedRequestError as error:
            raise self._unreadable(f"of {api.name} cannot be read at byte {error.position}") from error

    def _answer_size(self) -> int:
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise self._unreadable(f"has {size} bytes")
        return int(size)

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._wait_at_most()
            part = self._socket.recv(min(size - len(found), _PART_BYTES))
            if not part:
                raise BrokerUnreachableError("the broker closed the connection", path=str(self._address))
            found += part
        return bytes(found)

    def _wait_at_most(self) -> None:
        """The next call of the socket may take what is left of the time."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _unreadable(self, reason: str) -> BrokerUnreachableError:
        return BrokerUnreachableError(f"an answer {reason}: is it a broker?", path=str(self._address))

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Errors of the socket as ours."""
        try:
            yield
        except TimeoutError as error:
            raise BrokerUnreachableError("the broker does not answer", path=str(self._address)) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host that is no name
            reason = getattr(error, "strerror", None) or str(error)
            raise BrokerUnreachableError(reason, path=str(self._address)) from error
