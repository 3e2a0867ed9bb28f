"""A proxy between a client and a broker that cuts a connection at a chosen byte of a chosen request.

::

    client ──► [length | api key …  request n bytes] ──► broker        cut after byte 1 … n of the request,
    client ◄── [length | answer m bytes]             ◄── broker        before byte 1 … m of its answer
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_LENGTH = struct.Struct("!i")


@dataclass(slots=True)
class Cut:
    """Where to cut: after ``after`` bytes, with the four of the length, of the next request of ``api_key``,
    or of its answer (0: the broker has answered, and the client gets nothing). ``met``: it has happened."""

    api_key: int
    after: int
    of_answer: bool = False
    met: threading.Event = field(default_factory=threading.Event)


class CuttingProxy:
    """A proxy on a free port, for one broker at ``target``; a context."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = ("127.0.0.1", 0)
        self.sizes: dict[int, tuple[int, int]] = {}
        """Bytes of the last request and answer of an API, with the lengths."""
        self._cuts: deque[Cut] = deque()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for connection in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def add(self, cut: Cut) -> Cut:
        """Cut there next."""
        with self._lock:
            self._cuts.append(cut)
        return cut

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _due(self, api_key: int, is_over: threading.Event) -> Cut | None:
        """The cut for a request, unless its connection is cut already and nobody will have its answer."""
        with self._lock:
            if self._cuts and self._cuts[0].api_key == api_key and not is_over.is_set():
                return self._cuts.popleft()
        return None

    def _serve(self, client: socket.socket) -> None:
        """Bring requests to the broker and answers back until one is cut or one side ends."""
        with contextlib.suppress(OSError), socket.create_connection(self.target) as broker, client:
            with self._lock:
                self._open |= {client, broker}
            pending: deque[tuple[int, int, Cut | None]] = deque()
            is_over = threading.Event()
            answers = threading.Thread(
                target=self._answer, args=(broker, client, pending, is_over), daemon=True
            )
            answers.start()
            try:
                while frame := _frame(client):
                    (api_key,) = struct.unpack_from("!h", frame, 4)
                    cut = self._due(api_key, is_over)
                    if cut is not None and not cut.of_answer:
                        broker.sendall(frame[: cut.after])
                        cut.met.set()
                        break
                    pending.append((api_key, len(frame), cut))
                    broker.sendall(frame)
            finally:
                for connection in (client, broker):
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                answers.join()
                with self._lock:
                    self._open -= {client, broker}
                    # One side has ended the connection before its time: the cut is for the next one.
                    self._cuts.extendleft(cut for _, _, cut in pending if cut and not cut.met.is_set())

    def _answer(
        self,
        broker: socket.socket,
        client: socket.socket,
        pending: deque[tuple[int, int, Cut | None]],
        is_over: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(broker):
                api_key, size, cut = pending[0]
                if cut is not None:
                    client.sendall(frame[: cut.after])
                    is_over.set()
                    cut.met.set()
                    break
                self.sizes[api_key] = size, len(frame)
                client.sendall(frame)
                pending.popleft()
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _frame(end: socket.socket) -> bytes:
    """The next frame with its length; empty at the end."""
    head = _bytes(end, 4)
    return head + _bytes(end, _LENGTH.unpack(head)[0]) if head else b""


def _bytes(end: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = end.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)
