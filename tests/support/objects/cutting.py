"""A proxy of bytes before a server, which cuts a connection at a chosen byte: of HDFS, whose client is told
by the NameNode where the DataNodes are, one stands before each of the two.

::

    client ──► request bytes ──► server        cut after so many bytes from now on, in one direction,
    client ◄── answer bytes  ◄── server        on whichever connection they are
"""

from __future__ import annotations

import contextlib
import socket
import threading

from siltstone.base.closing import Closing

REQUEST, ANSWER = "request", "answer"


class CuttingTcpProxy(Closing):
    """Listens at ``(host, port)``, port 0 for any, and passes bytes on to ``target``. ``met``: how many
    connections it has cut, or refused while it ``is_dead``."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        self._target, self._lock = target, threading.Lock()
        self._remaining: dict[str, int | None] = {REQUEST: None, ANSWER: None}
        self._open: list[socket.socket] = []
        self.is_dead, self.met = False, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, direction: str, after: int) -> None:
        """Cut the connection that gets byte number ``after``, counted over all from now on."""
        with self._lock:
            self._remaining, self.met = {REQUEST: None, ANSWER: None, direction: after}, 0

    def heal(self) -> None:
        """Cut nothing any more."""
        with self._lock:
            self._remaining, self.is_dead = {REQUEST: None, ANSWER: None}, False

    def close(self) -> None:
        """Close all."""
        for connection in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                if self.is_dead:
                    self.met += 1
                    client.close()
                    continue
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [client, server]
            for ends in ((client, server, REQUEST), (server, client, ANSWER)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _allowed(self, direction: str, size: int) -> int:
        """How many of ``size`` bytes may pass; fewer: the connection is cut after them."""
        with self._lock:
            remaining = self._remaining[direction]
            if remaining is None:
                return size
            if size < remaining:
                self._remaining[direction] = remaining - size
                return size
            self._remaining[direction] = None
            self.met += 1
            return remaining - 1

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                allowed = self._allowed(direction, len(data))
                target.sendall(data[:allowed])
                if allowed < len(data):
                    source.shutdown(socket.SHUT_RDWR)
                    target.shutdown(socket.SHUT_RDWR)
                    return
            target.shutdown(socket.SHUT_WR)  # a side that has sent all may still wait for the other
