"""A broker of this process over a fresh log directory, and clients that speak to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone.broker.limits import Limits
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.commands.served import Served, ServeOptions
from tests.support.broker import ServedBroker, served
from tests.support.wire_client import WireClient

ANY_PORT = BrokerListener(port=0)


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    """The broker's server.properties; a test may add lines before it asks for ``broker_server``."""
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.enable=false\n", "utf-8")
    return path


@pytest.fixture
def broker_served(tmp_path: Path, properties: Path) -> Iterator[Served]:
    """The open directory ``logs``."""
    with Served(ServeOptions(paths=(tmp_path / "logs",), properties=properties)) as served:
        yield served


@pytest.fixture
def start_broker(broker_served: Served) -> Iterator[Callable[..., BrokerServer]]:
    """Starts a broker, with limits of its own if they are passed."""
    started: list[BrokerServer] = []

    def start(limits: Limits | None = None) -> BrokerServer:
        server = BrokerServer(broker_served, [ANY_PORT], limits=limits)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def broker_server(start_broker: Callable[..., BrokerServer]) -> BrokerServer:
    """A broker on a free port of 127.0.0.1; its ``broker`` is the handlers'."""
    return start_broker()


@pytest.fixture
def connect(broker_server: BrokerServer) -> Iterator[Callable[[], WireClient]]:
    """Makes connections to ``broker_server``."""
    clients: list[WireClient] = []

    def new() -> WireClient:
        clients.append(WireClient(broker_server.addresses[0]))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[[], WireClient]) -> WireClient:
    """A connection to ``broker_server``: ``client.ask(MetadataRequest(), 13)`` is a MetadataResponse."""
    return connect()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker's handlers over an empty directory, without a socket."""
    with served(tmp_path) as broker:
        yield broker
