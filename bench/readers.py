"""Browsers beside a server's appends, as cheap as they can be: tabs that poll and tails that follow, in one
process that throws away what it gets.

A load generator on the same cores must not be what is measured. This one has one thread and no HTTP library,
reads whatever has come into one buffer, runs ``NICENESS`` lower than the server, and says how much of a
processor it took (half a hundredth of a core for 50 tabs and 10 tails).
"""

from __future__ import annotations

import multiprocessing
import os
import selectors
import socket
import time
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

POLL_SECONDS = 5.0
NICENESS = 10
PAGES = ("/ui/", "/ui/topics", "/ui/cleaner", "/ui/topics/load", "/ui/jobs")
TAIL = "/api/v1/topics/load/records:tail"
Counts = dict[str, float]


class Readers:
    """A process of tabs and tails: ``start`` lets them ask, ``stop`` ends that and says what they got."""

    def __init__(self, url: str, tabs: int, tails: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, url, tabs, tails), daemon=True)
        self._process.start()

    def start(self) -> None:
        """Open all tails, and let the tabs ask, each after its part of ``POLL_SECONDS``."""
        self._pipe.send("start")

    def stop(self) -> Counts:
        """End all of them: bytes, answers, seconds and seconds of the processor since the start."""
        self._pipe.send("stop")
        counts: Counts = self._pipe.recv()
        return counts

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


class _Load:
    """The sockets of the readers. A tab has a connection while the server keeps it, as a browser has."""

    def __init__(self, commands: Connection, url: str) -> None:
        parts = urlsplit(url)
        self._address, self._host = (parts.hostname or "", parts.port or 0), parts.netloc
        self._selector, self._buffer = selectors.DefaultSelector(), bytearray(1 << 20)
        self._selector.register(commands, selectors.EVENT_READ)
        self._tabs: dict[int, socket.socket] = {}
        self._tails: list[socket.socket] = []
        self._tags: dict[int, str] = {}
        self.counts: Counts = {}

    def _ask(self, connection: socket.socket, path: str, more: str = "") -> None:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n{more}\r\n".encode())

    def _connect(self, number: int | None) -> socket.socket:
        connection = socket.create_connection(self._address)
        self._selector.register(connection, selectors.EVENT_READ, number)
        return connection

    def ask_tab(self, number: int) -> None:
        """Ask for a tab's page, with the tag of its last answer."""
        if number not in self._tabs:
            self._tabs[number] = self._connect(number)
        tag = self._tags.get(number)
        more = f"If-None-Match: {tag}\r\n" if tag else ""
        self._ask(self._tabs[number], PAGES[number % len(PAGES)], more)
        self.counts["answers"] += 1

    def open_tails(self, count: int) -> None:
        """Follow the topic."""
        self.counts = {"bytes": 0, "answers": 0, "seconds": time.monotonic(), "cpu": time.process_time()}
        for _ in range(count):
            self._tails.append(self._connect(None))
            self._ask(self._tails[-1], TAIL)

    def close_tails(self) -> Counts:
        """What was counted since the tails were opened."""
        for tail in self._tails:
            self._forget(tail)
        self._tails.clear()
        now = {"seconds": time.monotonic(), "cpu": time.process_time()}
        return {name: abs(now.get(name, 0) - value) for name, value in self.counts.items()}

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def wait(self, seconds: float | None) -> bool:
        """Throw away what comes for so long; is there a command?"""
        has_command = False
        for key, _ in self._selector.select(seconds):
            if isinstance(key.fileobj, socket.socket):
                self._take(key.fileobj, key.data)
            else:
                has_command = True
        return has_command

    def _take(self, connection: socket.socket, number: int | None) -> None:
        size = connection.recv_into(self._buffer)
        if number is None:
            self.counts["bytes"] += size
        elif not size:
            self._forget(self._tabs.pop(number))
        head = bytes(self._buffer[: min(size, 2000)]).partition(b"\r\n\r\n")[0].decode("latin-1")
        for name, _, value in (line.partition(": ") for line in head.split("\r\n")):
            if number is not None and name.lower() == "etag":
                self._tags[number] = value


def _serve(commands: Connection, url: str, tabs: int, tails: int) -> None:
    os.nice(NICENESS)
    load, due = _Load(commands, url), list[tuple[float, int]]()
    turn = 0
    while True:
        if load.wait(max(due[0][0] - time.monotonic(), 0) if due else None):
            try:
                command = commands.recv()
            except EOFError:
                return
            if command == "stop":
                due.clear()
                commands.send(load.close_tails())
                continue
            load.open_tails(tails)
            # Windows are shorter than the time of a round of all tabs: others begin each time.
            turn, now = turn + 1, time.monotonic()
            order = ((number + 17 * turn) % tabs for number in range(tabs))
            due = [(now + at * POLL_SECONDS / tabs, number) for at, number in enumerate(order)]
        while due and due[0][0] <= time.monotonic():
            at, number = due.pop(0)
            load.ask_tab(number)
            due.append((at + POLL_SECONDS, number))
