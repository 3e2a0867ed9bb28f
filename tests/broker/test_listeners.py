"""Where the broker listens, from Kafka's settings."""

from __future__ import annotations

import socket

import pytest

from siltstone.base.config import Config, parse_server_properties
from siltstone.base.errors import UsageError
from siltstone.broker.limits import Limits
from siltstone.broker.listeners import BrokerListener, listeners_of

COMBINED = """
process.roles=broker,controller
listeners=PLAINTEXT://:9092,CONTROLLER://:9093,inside://[::1]:19092
advertised.listeners=PLAINTEXT://broker.example:29092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:SSL, PLAINTEXT:PLAINTEXT ,Inside:plaintext
"""


def listeners(text: str) -> list[BrokerListener]:
    return listeners_of(Config(static=parse_server_properties(text, "server.properties")))


def test_the_default_reaches_this_machine_only() -> None:
    assert [listener.text for listener in listeners("")] == ["PLAINTEXT://127.0.0.1:9092"]
    assert listeners("listeners=") == []


def test_a_file_of_a_real_broker_has_controllers_and_names() -> None:
    assert listeners(COMBINED) == [
        BrokerListener(name="PLAINTEXT", host="", port=9092, advertised=("broker.example", 29092)),
        BrokerListener(name="INSIDE", host="::1", port=19092),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("listeners=9092", "no listener"),
        ("listeners=PLAINTEXT://localhost", "no listener"),
        ("listeners=PLAINTEXT://localhost:99999", "no listener"),
        ("listeners=PLAINTEXT://a/b:1", "no listener"),
        ("advertised.listeners=x", "advertised.listeners: 'x' is no listener"),
        (
            "advertised.listeners=INSIDE://a:1,PLAINTEXT://a:2",
            "advertised.listeners: there is no listener INSIDE",
        ),
        (
            "advertised.listeners=PLAINTEXT://0.0.0.0:1",
            r"advertised.listeners: PLAINTEXT://0.0.0.0:1 is every",
        ),
        ("listeners=SSL://:9093", "SSL://:9093 speaks SSL, and this broker only PLAINTEXT"),
        ("listeners=OUTSIDE://:9093", "speaks OUTSIDE"),
        ("listeners=A://:1\nlistener.security.protocol.map=A:SASL_PLAINTEXT", "speaks SASL_PLAINTEXT"),
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "has no ACLs"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://a:2", "one name"),
        ("listeners=PLAINTEXT://a:1,B://a:1\nlistener.security.protocol.map=B:PLAINTEXT", "one address"),
    ],
)
def test_what_cannot_be_served_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        listeners(text)


def test_a_flag_may_have_other_names_than_the_advertised_ones() -> None:
    text = "advertised.listeners=INSIDE://a:1\nlistener.security.protocol.map=B:PLAINTEXT"
    config = Config(static=parse_server_properties(text, "server.properties"))
    assert listeners_of(config, ["B://:9"]) == [BrokerListener(name="B", host="", port=9)]
    with pytest.raises(UsageError, match=r"--kafka-listen: SSL://:9 speaks SSL"):
        listeners_of(config, ["SSL://:9"])


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "no such host"])
def test_a_text_that_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        BrokerListener(host=host, port=0).bind(Limits())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
def test_a_bound_listener_takes_connections_and_says_where(host: str) -> None:
    listener = BrokerListener(host=host, port=0)
    with listener.bind(Limits(send_buffer_bytes=50_000)) as bound:
        address = listener.address(bound)
        assert address.port == bound.getsockname()[1]
        assert address.host == (host or socket.getfqdn())
        with socket.create_connection(("127.0.0.1", address.port)):
            peer, _ = bound.accept()
            with peer:
                assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000  # Linux doubles it


def test_what_is_advertised_goes_before_what_is_bound() -> None:
    listener = BrokerListener(port=0, advertised=("broker.example", 29092))
    with listener.bind(Limits()) as bound:
        address = listener.address(bound)
    assert (address.name, address.host, address.port) == ("PLAINTEXT", "broker.example", 29092)
