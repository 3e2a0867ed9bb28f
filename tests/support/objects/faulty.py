"""A proxy in front of a store's server that fails as it is told: networks and stores do all of this."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.golden_sets import REPOSITORY

BUSY = "busy"
"""Answers 503, as a store that has too many requests."""
MANY = "many"
"""Answers 429, as Google's does to more than one change of an object in a second."""
CUT = "cut"
"""Sends half of the body, and closes the connection."""
SHORT = "short"
"""Sends half of the body, and says that this is all."""
SILENT = "silent"
"""Sends nothing, until the proxy ends."""
LOST = "lost"
"""Does what it is asked, and closes the connection without an answer."""
CHANGED = "changed"
"""Changes a byte of what is sent, as a network card with bad memory does."""
DEAD = "dead"
"""Closes the connection, and does nothing."""
KEY, DENIED = "InvalidAccessKeyId", "AccessDenied"
"""Answers 403, of this code."""


class FaultyProxy(ThreadingHTTPServer):
    """``faults``: what becomes of the next requests whose method and path have these words, in order; the
    last one stays if it is ``forever``."""

    daemon_threads = True

    def __init__(self, url: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.server = urlsplit(url).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: list[str] = []
        self.words: tuple[str, ...] = ()
        self.forever = False
        self.met = 0
        self.recorded: list[tuple[str, dict[str, str]]] | None = None
        self.lives: int | None = None
        self.end = threading.Event()
        self._lock = threading.Lock()

    def fail(self, *faults: str, words: tuple[str, ...] = ("GET",), forever: bool = False) -> None:
        """Fail the next requests."""
        with self._lock:
            self.faults, self.words, self.forever, self.met = list(faults), words, forever, 0

    def die_after(self, requests: int) -> None:
        """Do nothing any more after so many requests, as if the client's process had been killed."""
        with self._lock:
            self.lives = requests

    def live(self) -> None:
        """Do again what is asked."""
        with self._lock:
            self.lives = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple[str, dict[str, str]]]]:
        """The requests of the block: (method with path, headers by lower-case names)."""
        self.recorded = requests = list[tuple[str, dict[str, str]]]()
        try:
            yield requests
        finally:
            self.recorded = None

    def next_fault(self, request: str) -> str | None:
        """What becomes of this request."""
        with self._lock:
            if self.lives is not None:
                self.lives -= 1
                if self.lives < 0:
                    return DEAD
            if not self.faults or not all(word in request for word in self.words):
                return None
            self.met += 1
            is_last = len(self.faults) == 1
            return self.faults[0] if is_last and self.forever else self.faults.pop(0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what the tests want."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits for the acknowledgement of its headers
    server: FaultyProxy

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == _ORDERS:
            for name, arguments, options in json.loads(body):
                getattr(self.server, name)(*arguments, **options)
            return self._send(200, str(self.server.met).encode(), {})
        request = f"{self.command} {self.path}"
        if self.server.recorded is not None:
            self.server.recorded.append(
                (request, {name.lower(): text for name, text in self.headers.items()})
            )
        fault = self.server.next_fault(request)
        if fault == DEAD:
            return self._close()
        if fault == CHANGED:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == BUSY:
            return self._send(503, b"<Error><Code>SlowDown</Code></Error>", {})
        if fault == MANY:
            return self._send(429, b"<Error><Code>TooManyRequests</Code></Error>", {})
        if fault in (KEY, DENIED):
            return self._send(403, f"<Error><Code>{fault}</Code></Error>".encode(), {})
        if fault == SILENT:
            self.server.end.wait()
            return self._close()
        connection = http.client.HTTPConnection(self.server.server)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data, headers = answer.read(), dict(answer.headers)
        connection.close()
        if fault == LOST:
            return self._close()
        if fault == SHORT:
            data = data[: len(data) // 2]
        if fault == CUT:
            self._send(answer.status, data[: len(data) // 2], headers, size=len(data))
            return self._close()
        return self._send(answer.status, data, headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str], size: int | None = None) -> None:
        dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        if self.command == "HEAD":
            lengths = (text for name, text in headers.items() if name.lower() == "content-length")
            size = int(next(lengths, 0))
        self.send_header("Content-Length", str(len(data) if size is None else size))
        self.end_headers()
        self.wfile.write(data)

    def _close(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


_ORDERS = "/faulty/orders"
"""The path that a proxy of another process takes orders at: (method, arguments, keywords), each."""


class OrderedProxy:
    """A ``FaultyProxy`` in a process of its own, for clients that keep all threads of theirs waiting."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def _order(self, *orders: tuple[str, tuple[Any, ...], dict[str, Any]]) -> int:
        request = urllib.request.Request(f"{self.url}{_ORDERS}", json.dumps(orders).encode())
        with urllib.request.urlopen(request) as answer:
            return int(answer.read())

    @property
    def met(self) -> int:
        """How many requests have failed since the last order to fail."""
        return self._order()

    def fail(self, *faults: str, **options: Any) -> None:
        """``FaultyProxy.fail``."""
        self._order(("fail", faults, options))

    def die_after(self, requests: int) -> None:
        """``FaultyProxy.die_after``."""
        self._order(("die_after", (requests,), {}))

    def live(self) -> None:
        """``FaultyProxy.live``."""
        self._order(("live", (), {}))


@contextlib.contextmanager
def ordered_proxy(url: str) -> Iterator[OrderedProxy]:
    """A proxy in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    words = [sys.executable, "-m", "tests.support.objects.faulty", url, str(port)]
    process, end = subprocess.Popen(words, cwd=REPOSITORY), time.monotonic() + 60
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert process.poll() is None and time.monotonic() < end, "the proxy does not start"
            time.sleep(0.02)
        yield OrderedProxy(port)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def faulty_proxy(url: str) -> Iterator[FaultyProxy]:
    """A proxy in threads of this process."""
    with FaultyProxy(url) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.end.set()
            proxy.shutdown()


if __name__ == "__main__":
    FaultyProxy(sys.argv[1], int(sys.argv[2])).serve_forever()
