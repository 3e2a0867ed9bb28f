"""``siltstone dump --bootstrap-server``: the rows of a partition are those of its log file; brokers that send
what they should not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.broker import plain_client
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.cli.main import USAGE
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from tests.support.broker_twin.batches import batch
from tests.support.command_line import Command
from tests.support.fake_cluster import partition_of, peer
from tests.support.records.arrays import array

LOG = "t-0/00000000000000000000.log"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker's HOST:PORT and its log directory; the topic t has three batches of two records."""
    logs = tmp_path_factory.mktemp("broker") / "logs"
    with Served(ServeOptions(paths=(logs,), engine="process", creates=True)) as served:
        served.opened().topics.create("t", 1)
        log = served.opened().get(TopicPartition("t", 0))
        for codec in (0, 1, 4):
            log.append(array(batch(2, codec=codec)))
        with BrokerServer(served, [BrokerListener(port=0)]) as server:
            server.start()
            yield f"127.0.0.1:{server.addresses[0].port}", logs


@pytest.mark.parametrize("flags", ["", "--print-data-log", "--deep-iteration --json", "--max-bytes 200"])
def test_the_rows_are_those_of_the_file(siltstone: Command, place: tuple[str, Path], flags: str) -> None:
    address, logs = place
    of_file = siltstone("dump", logs / LOG, *flags.split())
    of_broker = siltstone("dump", "--bootstrap-server", address, "-t", "t", *flags.split())
    assert (of_broker.status, of_broker.err) == (of_file.status, of_file.err) == (0, "")
    assert "t-0" in of_broker.lines[0]
    assert of_broker.lines[1:] == of_file.lines[1:] and len(of_broker.lines) > 2


def test_flags_choose_a_part_of_a_partition(siltstone: Command, place: tuple[str, Path]) -> None:
    address, logs = place
    whole = siltstone("dump", logs / LOG, "--json").documents[1:]

    def offsets(*flags: str) -> list[int]:
        arguments = ("--bootstrap-server", address, "-t", "t", "--json", *flags)
        rows = siltstone("dump", *arguments).documents[1:]
        first, *_ = (row for row in whole if row["baseOffset"] == rows[0]["baseOffset"])
        for row in rows:  # positions count from the first batch
            row["position"] += first["position"]
        assert all(row in whole for row in rows)
        return [row["baseOffset"] for row in rows]

    assert offsets("-o", "3") == offsets("-o", "2", "-p", "0") == [2, 4]
    assert offsets("-o", "2", "--max-batches", "1") == [2]
    assert offsets("--max-batches", "9") == [0, 2, 4]
    assert offsets("--max-bytes", str(whole[0]["size"])) == [0]


@pytest.mark.parametrize(("flags", "status", "message"), [
    ("-t nope", 1, "(UNKNOWN_TOPIC_OR_PARTITION)"),
    ("-t t -p 3", 1, "has no partition 3"),
    ("-t t -o 7", 1, "offset 7 is outside 0 to 6"),
    ("-t t -o -1", 1, "offset -1 is outside"),
    ("", USAGE, "no topic"),
    ("-t t --max-batches 0", USAGE, "is below 1"),
    ("-t t --verify-index-only", USAGE, "a broker shows no indexes"),
    ("-t t FILE", USAGE, "files and --bootstrap-server"),
])  # fmt: skip
def test_what_a_broker_cannot_answer_is_refused_in_one_line(
    siltstone: Command, place: tuple[str, Path], flags: str, status: int, message: str
) -> None:
    completed = siltstone("dump", *flags.split(), "--bootstrap-server", place[0])
    assert (completed.status, completed.out, completed.err.count("\n"), message in completed.err) == (
        status,
        b"",
        1,
        True,
    ), completed.err


def test_flags_of_a_broker_are_refused_without_one(siltstone: Command) -> None:
    for flag in ("--topic t", "--partition 1", "--offset 0", "--max-batches 1"):
        completed = siltstone("dump", "FILE", *flag.split())
        assert (completed.status, "is only for --bootstrap-server" in completed.err) == (USAGE, True)


def at(base_offset: int, **header: int) -> bytes:
    return batch(base_offset=base_offset, **header)


def test_a_port_where_nothing_listens_is_an_unreachable_broker(siltstone: Command) -> None:
    with partition_of(b"") as address:
        pass
    completed = siltstone("dump", "--bootstrap-server", address, "-t", "t")
    assert (completed.status, completed.out, "(BROKER_UNREACHABLE)" in completed.err) == (1, b"", True)


@pytest.mark.parametrize(("second", "end", "message"), [
    (at(1, checksum=5), 2, "checksum"),
    (b"\0" * 61, 2, "impossible batch size"),
    (at(1)[:16] + b"\7" + at(1)[17:], 2, "unknown magic byte"),
    (at(1)[:40], 2, "goes on beyond the end"),
    (at(0), 2, "batches up to offset 0 for offset 1"),
], ids=["checksum", "size", "magic", "cut", "again"])  # fmt: skip
def test_batches_that_are_wrong_are_findings(
    siltstone: Command, second: bytes, end: int, message: str
) -> None:
    with partition_of(at(0), second, end=end) as address:
        completed = siltstone("dump", "--bootstrap-server", address, "-t", "t")
    assert (completed.status, message in completed.err) == (1, True), completed.err
    assert "baseOffset: 0 lastOffset: 0 count: 1" in completed.lines[2]


@pytest.mark.parametrize(("second", "message"), [
    (None, "the broker closed the connection"),
    (1, "is outside"),
    (3, "there is no such topic or partition"),
    (56, "KAFKA_STORAGE_ERROR (56)"),
    (b"", "the broker sends no batch for offset 1"),
], ids=["closed", "retention", "deleted", "disk", "nothing"])  # fmt: skip
def test_a_failure_in_the_middle_shows_what_came_before(
    siltstone: Command, second: bytes | int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if second == b"":
        monkeypatch.setattr(plain_client, "SECONDS", 0.3)
    with partition_of(at(0), second, end=2) as address:
        completed = siltstone("dump", "--bootstrap-server", address, "-t", "t")
    assert (completed.status, message in completed.err, completed.err.count("\n")) == (1, True, 1), (
        completed.err
    )
    assert len(completed.lines) == 3  # what came before is shown


def test_a_peer_that_is_no_broker_is_an_unreachable_broker(siltstone: Command) -> None:
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack(">i", 1 << 30), b""):
        with peer(lambda _, answer=answer: answer or None) as address:  # type: ignore[misc]
            completed = siltstone("dump", "--bootstrap-server", address, "-t", "t")
        assert (completed.status, completed.out, "(BROKER_UNREACHABLE)" in completed.err) == (1, b"", True)
