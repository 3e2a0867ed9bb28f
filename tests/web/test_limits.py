"""Reads of records wait for a place and are refused when too many do; slow clients lose their turn."""

from __future__ import annotations

import asyncio
import base64
import gc
import http.client
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from siltstone.base.errors import BusyError
from siltstone.commands.served import Served
from siltstone.web import identity, limits
from siltstone.web.guards import Guards, Rules
from siltstone.web.identity import Identity, Users, scrypt_hash
from siltstone.web.limits import ReadSlots, Tails
from siltstone.web.running import WebServer, _Protocol
from siltstone.web.site import routes_with_roles
from tests.web.conftest import client_of

READS = [
    "/api/v1/topics/users/records",
    "/api/v1/topics/users/partitions/0/segments",
    "/api/v1/topics/users/partitions/0/records/0/why",
    "/api/v1/topics/users/partitions/0/records/0/value",
    "/api/v1/groups",
    "/ui/topics/users",
    "/ui/topics/users/records",
    "/ui/topics/users/configuration",
    "/ui/topics/users/consumers",
    "/ui/topics/users/empty",
    "/ui/topics/users/why/0/0",
    "/ui/selected?topic=users&name=retention.ms&value=7",
    "/ui/groups",
]


def test_a_place_is_waited_for_in_turn_and_too_many_are_refused() -> None:
    async def run() -> list[str]:
        slots, order, release = ReadSlots(1, waiting_max=2), list[str](), asyncio.Event()

        async def read(name: str) -> None:
            try:
                async with slots.slot():
                    order.append(name)
                    await release.wait()
            except BusyError:
                order.append(f"{name} refused")

        tasks = [asyncio.create_task(read(name)) for name in "abcd"]
        for _ in range(5):
            await asyncio.sleep(0)
        tasks[1].cancel()  # a client that waits and goes
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with slots.slot():
            order.append("free again")
        return order

    assert asyncio.run(run()) == ["a", "d refused", "c", "free again"]


def test_no_request_waits_for_ever() -> None:
    async def run() -> None:
        slots = ReadSlots(1, seconds=0.01)
        async with slots.slot():
            with pytest.raises(BusyError, match="no slot"):
                async with slots.slot():
                    raise AssertionError("there was a place")
        async with slots.slot():
            pass

    asyncio.run(run())


def test_every_route_that_reads_records_needs_a_place(served: Served) -> None:
    client = client_of(served)
    app = client.app._app  # type: ignore[attr-defined]
    for path in READS:
        assert client.get(path).status_code == 200, path
    (cluster,) = client.get("/v3/clusters").json()["data"]
    groups = [
        path.replace("{cluster_id}", cluster["cluster_id"])
        for path, _, _ in routes_with_roles(app)
        if "/consumer-groups" in path
    ]
    assert len(groups) == 2 * 9
    app.state.reads = ReadSlots(0, waiting_max=0)
    for path in [*READS, *groups]:
        answer = client.get(path)
        assert answer.status_code == 429, path
        assert path.startswith("/ui") or answer.json()["error_code"] == 42901
    for path in ("/ui/topics/users/empty", "/ui/topics/users/erase", "/ui/selected/settings"):
        assert client.post(path, data={"key": "a", "name": "retention.ms"}).status_code == 429, path
    assert client.get("/ui/topics").status_code == client.get("/metrics").status_code == 200


def _guarded(app: Any) -> Guards:
    return Guards(app, Rules(hosts=frozenset({"localhost"})), lambda *counted: None)


def _scope(method: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost")]
    return {"type": "http", "method": method, "path": "/", "headers": headers, "client": ("127.0.0.1", 1)}


def test_a_body_that_never_ends_is_408(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)
    app = client_of(served).app
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        **_scope("POST"),
        "path": "/ui/new-topic",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
    }
    scope["headers"].append((b"content-type", b"application/x-www-form-urlencoded"))
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 408


async def _status(guards: Guards, password: str, path: str = "/api/v1/topics") -> int:
    """The status of a request with a password."""
    scope, sent = _scope("GET") | {"path": path}, list[Message]()
    scope["headers"].append((b"authorization", b"Basic " + base64.b64encode(b"ada:" + password.encode())))

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    await guards(scope, receive, send)
    status: int = sent[0]["status"]
    return status


def test_other_requests_are_answered_while_passwords_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    users = Users(f"ada:viewer:{scrypt_hash('right')}\n", "users")
    users.with_password("ada", "right")
    rules = Rules(hosts=frozenset({"localhost"}), identity=Identity(auth="basic", users=users))
    guards, may_go_on = Guards(app, rules, lambda *counted: None), threading.Event()

    def waiting(*parameters: object) -> bytes:
        assert threading.current_thread() is not threading.main_thread(), "the loop stands still"
        assert may_go_on.wait(60)
        return b""

    monkeypatch.setattr(identity, "_scrypt", waiting)

    async def ask() -> None:
        checks = [asyncio.create_task(_status(guards, "wrong")) for _ in range(limits.CHECKS_MAX)]
        await asyncio.sleep(0.01)
        assert await _status(guards, "wrong", "/healthz") == 200
        assert await _status(guards, "right") == 200
        assert await _status(guards, "wrong") == 429
        may_go_on.set()
        assert await asyncio.gather(*checks) == [401] * limits.CHECKS_MAX
        assert await _status(guards, "wrong") == 401

    asyncio.run(ask())


def test_a_client_that_takes_nothing_of_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESPONSE_SECONDS", 0.01)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    with pytest.raises(TimeoutError):
        asyncio.run(_guarded(app)(_scope("GET"), receive, send))


def test_the_end_of_a_long_answer_may_take_longer_than_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream waits for its client to go: that is no body that never ends."""
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.0)
    got: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append((await receive())["type"])
        got.append((await receive())["type"])

    messages = iter([{"type": "http.request", "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        if got:
            await asyncio.sleep(0.02)
        return next(messages)

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    monkeypatch.setattr(limits, "BODY_SECONDS", 0.01)
    asyncio.run(_guarded(app)(_scope("GET"), receive, send))
    assert got == ["http.request", "http.disconnect"]


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@pytest.mark.parametrize("headers", [{}, UPGRADE], ids=["plain", "upgrade"])
def test_nothing_holds_a_connection_that_is_closed(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    wait_for: Callable[[Callable[[], bool]], None],
    headers: dict[str, str],
) -> None:
    references, lost = list[weakref.ref[_Protocol]](), list[object]()

    class Watched(_Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            references.append(weakref.ref(self))
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.append(exc)

    monkeypatch.setattr("siltstone.web.running._Protocol", Watched)
    server = WebServer(served, ["http://127.0.0.1:0"])
    server.start()
    try:
        for _ in range(3):
            connection = http.client.HTTPConnection(server.urls[0].removeprefix("http://"))
            connection.request("GET", "/healthz", headers=headers)
            assert connection.getresponse().read() == b'{"status":"ok"}'
            connection.close()
        wait_for(lambda: len(lost) == len(references) == 3)
        gc.collect()
        wait_for(lambda: [reference() for reference in references] == [None] * 3)
    finally:
        server.stop()


@pytest.mark.parametrize("pieces", [1, 64])
def test_a_client_that_reads_nothing_gives_its_connection_back(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    wait_for: Callable[[Callable[[], bool]], None],
    pieces: int,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for remaining in reversed(range(pieces)):
            body = bytes((16 << 20) // pieces)  # more than any socket takes
            await send({"type": "http.response.body", "body": body, "more_body": remaining > 0})

    monkeypatch.setattr(
        "siltstone.web.running.build_site",
        lambda served, rules, tails: Guards(app, rules, lambda *counted: None),
    )
    monkeypatch.setattr("siltstone.web.running.KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(limits, "RESPONSE_SECONDS", 0.1)
    server = WebServer(served, ["http://127.0.0.1:0"])
    server.start()
    connections = server._server.server_state.connections
    try:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(server.urls[0].rpartition(":")[2])))
            client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1)
            wait_for(lambda: not connections)
    finally:
        server.stop()


def test_a_closed_connection_is_sent_to_as_long_as_its_client_reads() -> None:
    aborted, unsent = list[int](), iter([9, 8, 7, 7])

    class Transport(asyncio.Transport):
        def is_closing(self) -> bool:
            return True

        def get_write_buffer_size(self) -> int:
            return next(unsent)

        def abort(self) -> None:
            aborted.append(next(unsent, 0))

    protocol = _Protocol.__new__(_Protocol)
    protocol.transport, protocol.loop = Transport(), asyncio.new_event_loop()
    for checks in range(4):
        assert not aborted, checks
        protocol._abort_stalled()
    assert aborted == [0]
    protocol.loop.close()


def test_connections_beyond_the_limit_are_answered_with_503_until_one_is_closed(
    properties: Path, open_served: Callable[..., Served], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    properties.write_text("siltstone.http.connections.max=2\n")
    server = WebServer(open_served(), ["http://127.0.0.1:0"])
    server.start()
    address = server.urls[0].removeprefix("http://")

    def status(connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        return answer.status

    try:
        connections = [http.client.HTTPConnection(address) for _ in range(2)]
        assert [status(connection) for connection in connections] == [200, 200]
        assert status(http.client.HTTPConnection(address)) == 503
        connections[0].close()
        wait_for(lambda: status(http.client.HTTPConnection(address)) == 200)
    finally:
        for connection in connections:
            connection.close()
        server.stop()


def test_a_place_of_a_stream_is_given_back_once() -> None:
    async def run() -> int:
        tails = Tails()
        claimed = [tails.claim() for _ in range(limits.TAILS_MAX)]
        with pytest.raises(BusyError):
            tails.claim()
        tails.free(claimed[0])
        tails.end()
        await asyncio.sleep(0)
        assert all(stopped.is_set() for stopped in claimed[1:]) and not claimed[0].is_set()
        with pytest.raises(BusyError, match="being stopped"):
            tails.claim()
        return tails.count

    assert asyncio.run(run()) == limits.TAILS_MAX - 1
