"""Remote calls from a program to its embedded broker in another process (``broker.separate``), over a socket
pair.

::

    frame     length: 8 bytes, big-endian, without itself; then a MessagePack map
    program   {method: "send_many", arguments: {topic: …, records: […]}}
    broker    {result: …, error: null}   or   {result: null, error: {kind: "UsageError", reason: …}}

Calls are answered one at a time, in order. An error of ``base.errors`` is raised in the program as it was in
the broker, an ``OSError`` with its errno, any other error as a RuntimeError. Received bytes are never run as
code (no pickle)."""

from __future__ import annotations

import contextlib
import operator
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from siltstone.base import errors
from siltstone.base.clock import ManualClock
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import SiltstoneError
from siltstone.broker.embedded import EmbeddedBroker
from siltstone.runtime.producing import NewRecord, RecordMetadata

Result = TypeVar("Result")
_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20
"""The most bytes of one ``recv``, which allocates as many before any have come."""


@decoded_in_threads
class CalledMethod(msgspec.Struct, frozen=True, kw_only=True):
    """A program's call: a method by its dotted name, and its keyword arguments."""

    method: str
    arguments: dict[str, Any] = {}


class RaisedError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it crosses the socket. ``kind``: the name of its class; ``number``: the errno of an
    OSError, None for other errors; the other fields: those of a SiltstoneError."""

    kind: str
    reason: str
    path: str | None = None
    position: int | None = None
    advice: str | None = None
    number: int | None = None

    @classmethod
    def of(cls, error: Exception) -> RaisedError:
        """The message for an error."""
        kind = type(error).__name__
        if isinstance(error, SiltstoneError):
            return cls(
                kind=kind,
                reason=error.reason,
                path=error.path,
                position=error.position,
                advice=error.advice,
            )
        if isinstance(error, OSError):
            name = None if error.filename is None else str(error.filename)
            return cls(kind=kind, reason=error.strerror or str(error), path=name, number=error.errno)
        return cls(kind=kind, reason=str(error))

    def to_exception(self) -> Exception:
        """The error to raise; a RuntimeError with its text if ``base.errors`` does not have its class."""
        if self.number is not None:
            return OSError(self.number, self.reason, self.path)
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, SiltstoneError)):
            return RuntimeError(f"in the broker's process: {self.kind}: {self.reason}")
        # Without the class's own __init__, whose parameters differ from class to class.
        error = kind.__new__(kind, self.reason)
        SiltstoneError.__init__(
            error, self.reason, path=self.path, position=self.position, advice=self.advice
        )
        return error


@decoded_in_threads
class CallResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a call. ``result``: the MessagePack of the value, which only the caller knows how to
    decode; nil if there is none."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: RaisedError | None = None


class Channel:
    """One end of the socket pair. Several threads may use ``call`` and ``ask``: a call waits until those of
    other threads are answered. A call that is interrupted closes the channel, and later ones raise EOFError:
    they would take its response for theirs."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._lock = threading.Lock()

    def call(self, kind: type[Result], method: str, /, **arguments: object) -> Result:
        """Call a method; its result, decoded as ``kind``. Raises what the method raises; EOFError if the
        other process has ended."""
        return msgspec.msgpack.decode(self.ask(method, arguments), type=kind)

    def ask(self, method: str, arguments: dict[str, Any], descriptors: Sequence[int] = ()) -> msgspec.Raw:
        """As ``call``, but the result is still MessagePack. ``descriptors``: file descriptors that the other
        process receives with the call, at most one (``receive``)."""
        with self._lock:
            try:
                self.send(CalledMethod(method=method, arguments=arguments), descriptors)
                response = self.receive(CallResponse)
            except BaseException:
                # Ends the connection even if a forked process has a copy of the socket, unlike close.
                with contextlib.suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)
                self.close()
                raise
        if response.error is not None:
            raise response.error.to_exception()
        return response.result

    def answer(self, result: object = None) -> None:
        """Send a result."""
        self.send(CallResponse(result=msgspec.Raw(_encoded(result))))

    def refuse(self, error: Exception) -> None:
        """Send an error."""
        self.send(CallResponse(error=RaisedError.of(error)))

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with file descriptors for the other process. Raises EOFError if that has ended."""
        data = _encoded(message)
        head = _LENGTH.pack(len(data))
        try:
            # Unlike ``sendall``, ``send_fds`` may send only a part of its bytes, so it gets few.
            socket.send_fds(self.socket, [head], descriptors)
            self.socket.sendall(data)
        except OSError as error:
            raise EOFError(str(error)) from error

    def receive(self, kind: type[Result], descriptors: list[int] | None = None) -> Result:
        """The next message, decoded as ``kind``. ``descriptors``: a file descriptor that came with it, at
        most one, is added to this list. Raises EOFError if the other process has ended."""
        try:
            head, sent, _, _ = socket.recv_fds(self.socket, _LENGTH.size, 1)
            if descriptors is not None:
                descriptors += sent
            if not head:
                raise EOFError("the other process has ended")
            head += self._receive_exactly(_LENGTH.size - len(head))
            return msgspec.msgpack.decode(self._receive_exactly(_LENGTH.unpack(head)[0]), type=kind)
        except OSError as error:
            raise EOFError(str(error)) from error

    def _receive_exactly(self, count: int) -> bytes:
        """The next ``count`` bytes. Raises EOFError if the other process ends before."""
        parts = []
        while count:
            part = self.socket.recv(min(count, _CHUNK_BYTES))
            if not part:
                raise EOFError("the other process has ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def _encoded(message: object) -> bytes:
    return msgspec.msgpack.encode(message, enc_hook=_plain)


def _plain(value: Any) -> object:
    """What is encoded in place of a value that msgspec cannot encode: of a NumPy number Python's, of anything
    else, such as a path, its text."""
    return value.item() if hasattr(value, "item") else str(value)


# The broker's side


def _answer_call(broker: EmbeddedBroker, channel: Channel, called: CalledMethod) -> bool:
    """Carry out a call, and answer it. Returns whether it succeeded. Raises EOFError if the program has
    ended."""
    try:
        result = _METHODS[called.method](broker, **called.arguments)
    except Exception as error:  # it is raised in the program
        channel.refuse(error)
        return False
    channel.answer(result)
    return True


def answer_calls(broker: EmbeddedBroker, channel: Channel) -> None:
    """Answer the program's calls until it closes the broker, or ends."""
    while True:
        try:
            called = channel.receive(CalledMethod)
            has_succeeded = _answer_call(broker, channel, called)
        except EOFError:
            return broker.close()
        # After a ``close`` that failed, the program may call again.
        if has_succeeded and called.method == "close":
            return None


def _send_many(
    broker: EmbeddedBroker, topic: str, records: list[list[Any]], partition: int | None
) -> list[RecordMetadata]:
    """``records``: for each record [key, value, [[header name, data], …], timestamp in ms or None]."""
    rows = (
        NewRecord(key=key, value=value, headers=[(name, data) for name, data in headers], timestamp=timestamp)
        for key, value, headers, timestamp in records
    )
    return broker.send_many(topic, rows, partition=partition)


def _set_time(broker: EmbeddedBroker, time_ms: int) -> None:
    assert isinstance(broker.clock, ManualClock)
    broker.clock.time_ms = time_ms


def _write_positions(broker: EmbeddedBroker) -> None:
    """Write the checkpoints, so that readers of the directory see the present high watermarks and log start
    offsets."""
    upkeep = broker.logs.upkeep
    upkeep.write_recovery_points()
    upkeep.write_log_starts()


def _method_of_broker(method: str) -> Callable[..., object]:
    return lambda broker, **arguments: operator.attrgetter(method)(broker)(**arguments)


_METHODS: Mapping[str, Callable[..., object]] = {
    "send_many": _send_many,
    "set_time": _set_time,
    "write_positions": _write_positions,
    "due": lambda broker: broker.due,
    **{
        name: _method_of_broker(name) for name in ("compact", "tick", "fail", "delay", "cut", "heal", "close")
    },
    **{
        f"topics.{name}": _method_of_broker(f"topics.{name}")
        for name in (
            "names",
            "describe",
            "partitions_of",
            "partition_count",
            "create",
            "add_partitions",
            "alter",
            "delete",
        )
    },
}
"""What a program may call, by name: a received name is never looked up in the broker's objects as it is."""
