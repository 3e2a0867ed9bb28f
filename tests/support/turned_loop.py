"""The broker's connections on an event loop that the test turns itself: no threads, no waiting."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import termios
from typing import Any, Self

from siltstone.broker.limits import Limits
from siltstone.broker.quotas import QuotaManager
from siltstone.broker.request_context import ListenerAddress
from siltstone.broker.server import AnswerFrame, Sockets
from siltstone.runtime.quotas import Quotas

LISTENER = ListenerAddress(name="PLAINTEXT", host="localhost", port=9092)
_ROUNDS = 4
"""Rounds of the loop until what has been received is answered."""


class Peer:
    """The client's end of a connection; it never blocks."""

    def __init__(self, end: socket.socket, turned: TurnedLoop) -> None:
        self.socket, self._turned = end, turned
        end.setblocking(False)

    def send(self, data: bytes) -> int:
        """Send as much as the broker takes: returns how many bytes."""
        view, sent = memoryview(data), 0
        while sent < len(view):
            try:
                sent += self.socket.send(view[sent : sent + (1 << 16)])
            except BlockingIOError:
                before = self.unread_by_broker
                self._turned.turn()
                if self.unread_by_broker == before:
                    break
            except ConnectionError:
                break
        self._turned.turn()
        return sent

    @property
    def unread_by_broker(self) -> int:
        """A number that changes when the broker reads."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.socket, termios.TIOCOUTQ, waiting)
        return waiting[0]

    def receive(self) -> bytes:
        """All that the broker sends now."""
        received = bytearray()
        while True:
            self._turned.turn()
            try:
                part = self.socket.recv(1 << 20)
            except BlockingIOError:
                return bytes(received)
            except ConnectionError:
                part = b""
            if not part:
                return bytes(received)
            received += part

    @property
    def is_closed(self) -> bool:
        """Has the broker closed the connection, and was all read that it sent?"""
        self._turned.turn()
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


class StoppedTime:
    """The time of a loop, which only ``pass_time`` moves."""

    def __init__(self, turned: TurnedLoop) -> None:
        self._turned, self._now = turned, turned.loop.time()
        turned.loop.time = lambda: self._now  # type: ignore[method-assign]

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, and the loop do what is due then."""
        self._now += seconds
        self._turned.turn()


class TurnedLoop:
    """``sockets`` with the limits and quotas that are passed; ``connect`` makes a connection."""

    def __init__(self, answer: AnswerFrame, quotas: Quotas | None = None, **limits: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.quotas = QuotaManager(self._now)
        self.quotas.replace(quotas or {})
        self.sockets = Sockets(self.loop, Limits(**limits), answer, quotas=self.quotas)
        self._ends: list[socket.socket] = []

    def _now(self) -> float:
        return self.loop.time()

    def stop_time(self) -> StoppedTime:
        """Let the loop's time stand still from now on."""
        return StoppedTime(self)

    def connect(self, address: str = "192.0.2.1") -> Peer:
        """A connection from an address."""
        ours, theirs = socket.socketpair()
        # Without those that are closed: a test that measures memory makes millions.
        self._ends = [*(end for end in self._ends if end.fileno() >= 0), ours]
        self.sockets.welcome(theirs, address, LISTENER)
        return Peer(ours, self)

    def turn(self, rounds: int = _ROUNDS) -> None:
        """Let the loop do what it can do now."""
        for _ in range(rounds):
            self.loop.run_until_complete(asyncio.sleep(0))

    def sweep(self, seconds: float) -> None:
        """The sweep of a time so many seconds from now."""
        self.sockets.sweep(self.loop.time() + seconds)
        self.turn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in list(self.sockets.connections):
            connection.close()
        self.turn()
        for end in self._ends:
            end.close()
        self.loop.close()
