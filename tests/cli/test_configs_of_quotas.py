"""``siltstone configs`` of users, clients and addresses: of directories and of a broker, as
kafka-configs shows them."""

from __future__ import annotations

import functools
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.config import format_value
from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, UsageError
from siltstone.broker import remote_quotas
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.plain_client import RESPONSE_BYTES_MAX, Address, PlainClient, plain_addresses
from siltstone.broker.server import BrokerServer
from siltstone.commands.quotas import entity_text
from siltstone.commands.served import Served, ServeOptions
from tests.support.command_line import Command

OF_ADA = "Completed updating config for user ada."


@pytest.fixture(params=["directory", "broker"])
def run(request: pytest.FixtureRequest, siltstone: Command, tmp_path: Path) -> Iterator[Command]:
    """``siltstone configs`` at a directory, or at a broker."""
    logs = tmp_path / "logs"
    with Served(ServeOptions(paths=(logs,), engine="process", creates=True)) as served:
        if request.param == "broker":
            with BrokerServer(served, [BrokerListener(port=0)]) as server:
                server.start()
                address = f"127.0.0.1:{server.addresses[0].port}"
                yield functools.partial(siltstone, "configs", "--bootstrap-server", address)
            return
    yield functools.partial(siltstone, "configs", "--dir", logs)


def test_quotas_are_set_shown_and_removed(run: Command) -> None:
    for words, quotas, message in (
        (
            ("--entity-type", "users", "--entity-name", "ada"),
            "producer_byte_rate=1024,request_percentage=12.5",
            OF_ADA,
        ),
        (
            ("--user", "ada", "--client", "report"),
            "producer_byte_rate=98000000",
            "Completed updating config for user ada.",
        ),
        (
            ("--user", "ada", "--client-defaults"),
            "producer_byte_rate=5",
            "Completed updating config for user ada.",
        ),
        (
            ("--entity-type", "clients", "--entity-default"),
            "consumer_byte_rate=20000000000",
            "Completed updating default config for clients in the cluster.",
        ),
        (("--ip", "192.0.2.1"), "connection_creation_rate=7", "Completed updating config for ip 192.0.2.1."),
    ):
        completed = run(*words, "--alter", "--add-config", quotas)
        assert (completed.status, completed.lines) == (0, [message])
    shown = {
        ("--entity-type", "users"): [
            "Quota configs for user-principal 'ada' are request_percentage=12.5, producer_byte_rate=1024.0"
        ],
        ("--user", "ada", "--entity-type", "clients"): [
            "Quota configs for user-principal 'ada', the default client-id are producer_byte_rate=5.0",
            "Quota configs for user-principal 'ada', client-id 'report' are producer_byte_rate=9.8E7",
        ],
        ("--client-defaults",): ["Quota configs for the default client-id are consumer_byte_rate=2.0E10"],
        ("--entity-type", "ips"): ["Quota configs for ip '192.0.2.1' are connection_creation_rate=7.0"],
        ("--user", "bob"): [],
    }
    for words, lines in shown.items():
        completed = run("--describe", *words)
        assert (completed.status, completed.lines) == (0, lines)
    described = run("--describe", "--user", "ada", "--client", "report", "--json").document
    assert described == {
        "entities": [
            {"entity": {"client-id": "report", "user": "ada"}, "quotas": {"producer_byte_rate": 98000000.0}}
        ]
    }
    changed = run(
        "--user", "ada", "--alter", "--delete-config", "producer_byte_rate", "--json", "--dry-run"
    ).document
    assert changed == {
        "action": "alter",
        "dry_run": True,
        "entity": {"user": "ada"},
        "before": {"request_percentage": 12.5, "producer_byte_rate": 1024.0},
        "after": {"request_percentage": 12.5},
    }
    assert len(run("--describe", "--user", "ada").lines[0].split(",")) == 2
    run("--user", "ada", "--alter", "--delete-config", "producer_byte_rate,request_percentage")
    assert run("--describe", "--user", "ada").lines == []


@pytest.mark.parametrize(
    "words",
    [
        "--alter --user ada --add-config producer_byte_rate=-1",
        "--alter --user ada --add-config producer_byte_rate=soon",
        "--alter --user ada --add-config producer_byte_rate",
        "--alter --user ada --add-config no.such=1",
        "--alter --user ada --add-config connection_creation_rate=1",
        "--alter --user ada --delete-config producer_byte_rate",
        "--alter --ip localhost --add-config connection_creation_rate=1",
        "--alter --entity-type users --add-config producer_byte_rate=1",
        "--alter --user ada",
        "--describe --user ada --dry-run",
        "--describe --user ada --all",
        "--describe --user ada --user-defaults",
        "--describe --user ada --entity-type users",
        "--describe --user ada --entity-type topics",
        "--describe --user ada --entity-name x",
        "--describe --ip 192.0.2.1 --user ada",
        "--describe --entity-type users --entity-name ada --entity-default",
        "--alter --user ada --add-config-file x --add-config producer_byte_rate=1",
    ],
)
def test_wrong_quotas_and_flags_are_refused(run: Command, words: str) -> None:
    completed = run(*words.split())
    assert completed.status != 0 and completed.out == b"" and completed.err.count("\n") == 1
    assert run("--describe", "--entity-type", "users").lines == []


def test_numbers_are_written_as_java_writes_them() -> None:
    written = {
        1024.0: "1024.0", 1e7: "1.0E7", 9_999_999.0: "9999999.0", 12345678.9: "1.23456789E7", 1e22: "1.0E22",
        0.001: "0.001", 0.0005: "5.0E-4", 0.1: "0.1",
    }  # fmt: skip
    assert {value: format_value(value) for value in written} == written
    assert entity_text((("client-id", None), ("user", "a"))) == "user-principal 'a', the default client-id"


# A broker that is none


class Answering:
    """A port where each connection gets these bytes, and is closed then."""

    def __init__(self, data: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._data = data
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(self._data)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        struct.pack(">i", -1),
        struct.pack(">i", RESPONSE_BYTES_MAX + 1),
        struct.pack(">i", 1 << 20) + b"x" * 100,
        struct.pack(">i", 8) + b"\xff" * 8,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_what_is_no_answer_of_a_broker_is_an_error(data: bytes) -> None:
    peer = Answering(data)
    with (
        PlainClient(Address.parse(peer.address)) as broker,
        pytest.raises((BrokerRefusedError, BrokerUnreachableError)),
    ):
        remote_quotas.describe(broker, [])
    peer.close()


def test_a_broker_that_cannot_be_asked_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(BrokerUnreachableError):
        PlainClient.first_of(plain_addresses(f"127.0.0.1:{port}", {}, "quotas"))
    for address, config in ((f"127.0.0.1:{port}", {"security.protocol": "ssl"}), ("127.0.0.1:port", {})):
        with pytest.raises(UsageError):
            plain_addresses(address, config, "quotas")
