"""Produce requests as bytes on a socket: what no client library would send, and a broker's whole answer.

Versions 3 to 8, whose fields have fixed sizes (``ProduceRequest.json``, ``ProduceResponse.json``)::

    request   size 4 | key 0: 2 | version 2 | correlation 4 | client id: string
              transactional id: string or null | acks 2 | timeout ms 4
              1 topic: name | 1 partition: index 4 | records: size 4, bytes
    answer    size 4 | correlation 4 | 1 topic: name | 1 partition: index 4
              error 2 | base offset 8 | log append time 8 | from 5 on: log start offset 8
              from 8 on: record errors, each index 4 and message; message | throttle ms 4
"""

from __future__ import annotations

import itertools
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

PRODUCE = 0
TIMEOUT_S = 30.0
_CLIENT = b"crafted"


class RecordError(NamedTuple):
    """A record that the broker names, and why."""

    index: int
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a broker answers for the one partition that was sent to."""

    code: int
    base_offset: int
    log_append_ms: int
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    message: str | None = None


class ProduceConnection:
    """One connection to a broker; a context that closes it."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._correlations = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        version: int = 8,
        transactional_id: str | None = None,
    ) -> Answer:
        """Send ``base.records`` as they are, with acks of all replicas, and wait for the answer."""
        correlation = next(self._correlations)
        name = topic.encode()
        transactional = b"\xff\xff" if transactional_id is None else _string(transactional_id.encode())
        request = b"".join(
            (
                struct.pack(">hhi", PRODUCE, version, correlation),
                _string(_CLIENT),
                transactional,
                struct.pack(">hi", -1, int(TIMEOUT_S * 1000)),
                struct.pack(">i", 1) + _string(name),
                struct.pack(">iii", 1, partition, len(records)),
                records,
            )
        )
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        answer = _Fields(self._receive(size))
        assert answer.number("i") == correlation
        assert answer.number("i") == 1 and answer.text() == topic
        assert answer.number("i") == 1 and answer.number("i") == partition
        return answer.partition(version)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            more = self._socket.recv(size - len(received))
            assert more, "the broker closed the connection"
            received += more
        return bytes(received)


class _Fields:
    """An answer's fields, one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(">" + kind, self._data, self._at)
        self._at += struct.calcsize(">" + kind)
        return int(value)

    def text(self) -> str | None:
        size = self.number("h")
        if size < 0:
            return None
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def partition(self, version: int) -> Answer:
        code, base, time = self.number("h"), self.number("q"), self.number("q")
        start = self.number("q") if version >= 5 else -1
        count = self.number("i") if version >= 8 else 0
        errors = tuple(RecordError(self.number("i"), self.text()) for _ in range(count))
        return Answer(
            code=code,
            base_offset=base,
            log_append_ms=time,
            log_start_offset=start,
            record_errors=errors,
            message=self.text() if version >= 8 else None,
        )


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text
