"""The server: who is accepted, what a full process does, and how it stops."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable

import pytest

from siltstone.base.errors import UsageError
from siltstone.broker import server
from siltstone.broker.limits import Limits
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BoundListener, BrokerServer
from siltstone.broker.sessions import FetchSessionCache
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.commands.served import Served
from tests.broker.test_connection import echo, frame
from tests.support.turned_loop import LISTENER, TurnedLoop
from tests.support.wire_client import ClosedByBrokerError, WireClient

VERSIONS = ApiVersionsRequest()
WAITING_FETCH = FetchRequest(
    max_wait_ms=600_000,
    min_bytes=1,
    max_bytes=1 << 20,
    topics=(FetchTopic(topic="t", partitions=(FetchPartition(partition_max_bytes=1 << 20),)),),
)


class FakeListener:
    """Accepts what the test has put into ``arriving``: sockets, or errors."""

    def __init__(self) -> None:
        self.arriving: list[socket.socket | OSError] = []
        self._pair = socket.socketpair()
        self._pair[0].send(b"x")  # always readable, as a listener with a queue is

    def fileno(self) -> int:
        return self._pair[1].fileno()

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if not self.arriving:
            raise BlockingIOError
        arriving = self.arriving.pop(0)
        if isinstance(arriving, OSError):
            raise arriving
        return arriving, ("::ffff:192.0.2.1", 1)

    def close(self) -> None:
        for end in self._pair:
            end.close()


def arrive(listener: FakeListener) -> socket.socket:
    ours, theirs = socket.socketpair()
    listener.arriving.append(theirs)
    return ours


def is_served(turned: TurnedLoop, peer: socket.socket) -> bool:
    peer.setblocking(False)
    peer.send(frame(b"a"))
    turned.turn()
    try:
        return bool(peer.recv(100))
    except BlockingIOError:
        return False


def test_without_descriptors_the_server_accepts_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, timers = FakeListener(), list[Callable[[], None]]()
    with TurnedLoop(echo) as turned:
        turned.sockets.open([BoundListener(listener, LISTENER)])  # type: ignore[arg-type]
        monkeypatch.setattr(turned.loop, "call_later", lambda seconds, call: timers.append(call))
        listener.arriving += [OSError(number, "full") for number in (errno.ECONNABORTED, errno.EMFILE)]
        peer = arrive(listener)
        turned.turn()
        assert [record.getMessage() for record in caplog.records] == ["cannot accept a connection: full"]
        assert not is_served(turned, peer)
        (again,) = timers
        again()
        turned.turn()
        assert peer.recv(100) == frame(b"a")
        peer.close()
        turned.loop.run_until_complete(turned.sockets.finish())


def test_more_connections_than_allowed_wait_until_one_is_closed() -> None:
    listener = FakeListener()
    with TurnedLoop(echo, connections_max=2) as turned:
        turned.sockets.open([BoundListener(listener, LISTENER)])  # type: ignore[arg-type]
        first, second, third = (arrive(listener) for _ in range(3))
        turned.turn()
        assert [is_served(turned, peer) for peer in (first, second, third)] == [True, True, False]
        first.close()
        turned.turn()
        turned.turn()
        assert third.recv(100) == frame(b"a")
        for peer in (second, third):
            peer.close()
        turned.loop.run_until_complete(turned.sockets.finish())


def test_an_address_has_its_own_limit() -> None:
    limits = {"connections_per_address_max": 1, "connections_of": {"192.0.2.9": 2}}
    with TurnedLoop(echo, **limits) as turned:
        one, more, other = turned.connect(), turned.connect(), turned.connect("192.0.2.2")
        assert [peer.is_closed for peer in (one, more, other)] == [False, True, False]
        favoured = [turned.connect("192.0.2.9") for _ in range(3)]
        assert [peer.is_closed for peer in favoured] == [False, False, True]
        assert turned.sockets.refused == 2
        one.socket.close()
        turned.turn()
        assert not turned.connect().is_closed


def test_stopping_answers_parked_fetches_and_refuses_new_connections(
    start_broker: Callable[..., BrokerServer], broker_served: Served
) -> None:
    broker_served.opened().topics.create("t", 1)
    server = start_broker()
    parked, idle = (WireClient(server.addresses[0]) for _ in range(2))
    parked.send(WAITING_FETCH, 12)
    assert idle.ask(VERSIONS, 0).error_code == 0
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    answer = parked.receive(WAITING_FETCH, 12)
    assert [row.error_code for topic in answer.responses for row in topic.partitions] == [0]
    assert parked.is_closed()
    assert idle.is_closed()
    stopping.join()
    with pytest.raises(ConnectionRefusedError):
        WireClient(server.addresses[0])
    for client in (parked, idle):
        client.close()


def test_a_peer_that_goes_while_its_fetch_is_parked_takes_the_fetch_along(
    broker_server: BrokerServer, broker_served: Served, connect: Callable[[], WireClient]
) -> None:
    broker_served.opened().topics.create("t", 1)
    parked, other = connect(), connect()
    parked.send(WAITING_FETCH, 12)
    parked.send_bytes(frame(b"read ahead"))
    parked.close()
    assert other.ask(VERSIONS, 0).error_code == 0


def test_idle_fetch_sessions_are_released_again_and_again(
    start_broker: Callable[..., BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = threading.Semaphore(0)
    monkeypatch.setattr(server, "_RELEASE_SECONDS", 0.01)
    monkeypatch.setattr(FetchSessionCache, "release_idle", lambda cache, now: calls.release())
    start_broker()
    for _ in range(3):
        assert calls.acquire(timeout=30)


def test_a_port_that_is_taken_is_a_clear_error(broker_server: BrokerServer, broker_served: Served) -> None:
    taken = BrokerListener(port=broker_server.addresses[0].port)
    with pytest.raises(UsageError, match=f"cannot listen on {taken.text}: Address already in use"):
        BrokerServer(broker_served, [taken])


def test_what_is_no_request_of_kafka_closes_its_connection_only(connect: Callable[[], WireClient]) -> None:
    other = connect()
    for garbage in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        bytes(100),
        b"\xff" * 100,
        frame(b"", b"\x27\x0f"),  # an API that no Kafka has
        bytes.fromhex("0000000a 0000 0002 00000000 ffff"),  # Produce 2
        bytes.fromhex("0000000a 0003 0009 00000000 ffff"),  # Metadata without tags and body
    ):
        client = connect()
        client.send_bytes(garbage)
        assert client.is_closed()
        assert other.ask(VERSIONS, 4, client_id=None).error_code == 42  # no software's name


def test_limits_of_the_settings_count(start_broker: Callable[..., BrokerServer]) -> None:
    server = start_broker(Limits(request_bytes_max=100))
    client = WireClient(server.addresses[0])
    assert client.ask(VERSIONS, 0).error_code == 0
    client.send(ApiVersionsRequest(client_software_name="a" * 100), 3)
    with pytest.raises(ClosedByBrokerError):
        client.receive(VERSIONS, 3)
    client.close()
