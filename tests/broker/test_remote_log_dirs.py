"""``siltstone log-dirs --bootstrap-server``: a broker's answers, and what is no broker's answer."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, SiltstoneError, UsageError
from siltstone.broker import plain_client
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.plain_client import Address
from siltstone.broker.remote_log_dirs import describe_log_dirs
from siltstone.broker.server import BrokerServer
from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import API_VERSIONS, DESCRIBE_LOG_DIRS, METADATA
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import read_header, response_header
from siltstone.broker.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from siltstone.broker.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from siltstone.broker.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.offsets import describe_log_dirs as of_directories
from siltstone.commands.served import Served, ServeOptions
from tests.support.fake_cluster import peer


class Cluster:
    """Answers as brokers that have ``versions`` of each API; ``results`` are their log directories."""

    def __init__(self, **changes: object) -> None:
        self.versions = {METADATA: (0, 13), DESCRIBE_LOG_DIRS: (1, 5)}
        self.results: tuple[DescribeLogDirsResult, ...] = ()
        self.brokers: tuple[int, ...] = (7,)
        self.error_code = 0
        self.port = 0
        vars(self).update(changes)
        self.requests: list[tuple[int, int]] = []

    def __call__(self, frame: bytes) -> bytes:
        header = read_header(memoryview(frame))
        self.requests.append((header.api_key, header.api_version))
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        answer = self.answer(header.api_key)
        body = head + b"".join(map(bytes, codec.write(answer, header.api_version)))  # type: ignore[arg-type]
        return struct.pack(">i", len(body)) + body

    def answer(self, key: int) -> Message:
        if key == API_VERSIONS:
            listed = [ApiVersion(api_key=api, min_version=low, max_version=high)
                      for api, (low, high) in self.versions.items()]  # fmt: skip
            return ApiVersionsResponse(api_keys=tuple(listed))
        if key == METADATA:
            nodes = [MetadataResponseBroker(node_id=number, host="127.0.0.1", port=self.port)
                     for number in self.brokers]  # fmt: skip
            return MetadataResponse(brokers=tuple(nodes))
        return DescribeLogDirsResponse(error_code=self.error_code, results=self.results)


@contextmanager
def cluster(**changes: object) -> Iterator[tuple[str, Cluster]]:
    answers = Cluster(**changes)
    with peer(answers) as address:
        answers.port = Address.parse(address).port
        yield address, answers


def test_a_brokers_directories_are_shown_as_the_directories_themselves(tmp_path: Path) -> None:
    paths = (tmp_path / "a", tmp_path / "b")
    with Served(ServeOptions(paths=paths, engine="process", creates=True)) as served:
        served.opened().topics.create("users", 3)
        served.opened().topics.create("plain", 1)
        with BrokerServer(served, [BrokerListener(port=0)]) as server:
            server.start()
            address = f"127.0.0.1:{server.addresses[0].port}"
            description = describe_log_dirs(f"127.0.0.1:1,{address}", {"security.protocol": "plaintext"})
            some_topics = describe_log_dirs(address, {}, ["plain", "nope"], [0])
    directories = BrokerDirectories(paths=paths)
    assert description == of_directories(directories)
    assert some_topics == of_directories(directories, ["plain"])


def test_every_version_and_error_that_a_broker_may_answer_with() -> None:
    partitions = (
        DescribeLogDirsPartition(partition_index=1, partition_size=9, offset_lag=3, is_future_key=True),
    )
    topics = (DescribeLogDirsTopic(name="t", partitions=partitions),)
    results = (
        DescribeLogDirsResult(log_dir="/b", error_code=56),
        DescribeLogDirsResult(log_dir="/a", topics=topics),
        DescribeLogDirsResult(log_dir="/c", error_code=31),
        DescribeLogDirsResult(log_dir="/d", error_code=42),
    )
    for newest in range(1, 9):
        versions = {METADATA: (0, newest), DESCRIBE_LOG_DIRS: (0, newest)}
        with cluster(results=results, versions=versions) as (address, answers):
            (broker,) = describe_log_dirs(address, {})["brokers"]
            assert answers.requests[-1] == (DESCRIBE_LOG_DIRS, min(newest, 5))
        assert broker["broker"] == 7
        assert [(directory["logDir"], directory["error"]) for directory in broker["logDirs"]] == [
            ("/a", None),
            ("/b", "org.apache.kafka.common.errors.KafkaStorageException"),
            ("/c", "error 31"),
            ("/d", "INVALID_REQUEST (42)"),
        ]
        assert broker["logDirs"][0]["partitions"] == [
            {"partition": "t-1", "size": 9, "offsetLag": 3, "isFuture": True}
        ]


def test_all_brokers_of_a_cluster_are_asked_or_some() -> None:
    with cluster(brokers=(3, 1, 2)) as (address, _):
        assert [row["broker"] for row in describe_log_dirs(address, {})["brokers"]] == [1, 2, 3]
        assert [row["broker"] for row in describe_log_dirs(address, {}, (), [3, 1])["brokers"]] == [1, 3]
        with pytest.raises(UsageError, match=r"no broker 4, 5; pass some of 1, 2, 3"):
            describe_log_dirs(address, {}, (), [5, 1, 4])


@pytest.mark.parametrize("versions", [
    {METADATA: (0, 13)},
    {METADATA: (0, 13), DESCRIBE_LOG_DIRS: (0, 0)},
    {METADATA: (0, 13), DESCRIBE_LOG_DIRS: (6, 9)},
    {METADATA: (0, 0), DESCRIBE_LOG_DIRS: (1, 5)},
    {METADATA: (5, 2), DESCRIBE_LOG_DIRS: (1, 5)},
    {},
])  # fmt: skip
def test_a_broker_without_a_common_version_is_refused(versions: dict[int, tuple[int, int]]) -> None:
    with (
        cluster(versions=versions) as (address, _),
        pytest.raises(BrokerRefusedError, match="the broker supports no version of"),
    ):
        describe_log_dirs(address, {})


def test_a_refusal_of_the_whole_request_is_an_error() -> None:
    with cluster(error_code=31) as (address, _), pytest.raises(BrokerRefusedError, match="error 31"):
        describe_log_dirs(address, {})


@pytest.mark.parametrize(
    "text", ["", "there", "there:", ":9092", "there:0", "there:65536", "there:-1", "[]:1", "a:1,"]
)
def test_texts_that_are_no_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address; pass HOST:PORT"):
        describe_log_dirs(text, {})


def test_addresses_of_ipv6_have_brackets() -> None:
    assert Address.parse("[::1]:9") == Address("::1", 9)
    assert str(Address("::1", 9)) == "[::1]:9"


def test_other_protocols_are_refused() -> None:
    with pytest.raises(UsageError, match="SASL_SSL"):
        describe_log_dirs("there:1", {"security.protocol": "SASL_SSL"})


def test_brokers_that_cannot_be_reached_are_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "no.such.host.invalid:9092", f"{'a' * 300}.invalid:9092", "a..b:1"):
        with pytest.raises(BrokerUnreachableError):
            describe_log_dirs(address, {})


def test_a_listed_broker_that_cannot_be_reached_is_an_error() -> None:
    with cluster(port=1) as (address, answers):
        answers.port = 1
        with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1: "):
            describe_log_dirs(address, {})
        answers.port = 0
        with pytest.raises(BrokerUnreachableError):
            describe_log_dirs(address, {})


def test_a_peer_that_is_silent_or_stops_amid_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_client, "SECONDS", 0.2)
    with peer(lambda frame: b"") as address, pytest.raises(BrokerUnreachableError, match="does not answer"):
        describe_log_dirs(address, {})
    with (
        peer(lambda frame: struct.pack(">i", 1 << 20) + bytes(9)) as address,
        pytest.raises(BrokerUnreachableError, match="does not answer"),
    ):
        describe_log_dirs(address, {})


@pytest.mark.parametrize(("answer", "reason"), [
    (None, "closed the connection"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a response has 1213486160 bytes: is it a broker?"),
    (struct.pack(">i", -1), "a response has -1 bytes"),
    (struct.pack(">i", 3) + b"abc", "a response has 3 bytes"),
    (struct.pack(">ii", 4, 99), "for another request"),
    (struct.pack(">ii", 4, 1), "cannot be read at byte"),
    (struct.pack(">iihi", 10, 1, 0, 0x7FFFFFFF), "cannot be read at byte"),
])  # fmt: skip
def test_bytes_that_are_no_answer_are_an_unreachable_broker(answer: bytes | None, reason: str) -> None:
    with peer(lambda frame: answer) as address, pytest.raises(BrokerUnreachableError, match=reason):
        describe_log_dirs(address, {})


def test_answers_with_bytes_changed_are_read_or_refused() -> None:
    partitions = tuple(DescribeLogDirsPartition(partition_index=number) for number in range(3))
    results = (
        DescribeLogDirsResult(log_dir="/a", topics=(DescribeLogDirsTopic(name="t", partitions=partitions),)),
    )
    chance, refused = random.Random(26), 0
    answers = Cluster(results=results)

    def changed(frame: bytes) -> bytes:
        answer = bytearray(answers(frame))
        if answers.requests[-1][0] == DESCRIBE_LOG_DIRS:
            answer[chance.randrange(4, len(answer))] = chance.randrange(256)
        return bytes(answer)

    with peer(changed) as address:
        answers.port = Address.parse(address).port
        for _ in range(200):
            try:
                assert describe_log_dirs(address, {})["version"] == 1
            except SiltstoneError:
                refused += 1
    assert 20 < refused < 190
