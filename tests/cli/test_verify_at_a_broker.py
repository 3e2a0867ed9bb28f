"""``siltstone verify --bootstrap-server``: sound topics, damage on the broker's disk, wrong brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.broker import plain_client
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.cli.main import USAGE
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from tests.support.broker_twin.batches import TIME_MS, batch
from tests.support.command_line import Command
from tests.support.fake_cluster import partition_of
from tests.support.records.arrays import array


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker's HOST:PORT and its log directory: the topic sound has two partitions, and damaged has one.
    The second of its three batches is damaged on the disk."""
    logs = tmp_path_factory.mktemp("broker") / "logs"
    with Served(ServeOptions(paths=(logs,), engine="process", creates=True)) as served:
        for topic, partitions in (("sound", 2), ("damaged", 1)):
            served.opened().topics.create(topic, partitions)
            log = served.opened().get(TopicPartition(topic, 0))
            for codec in (0, 1, 4):
                log.append(array(batch(2, codec=codec)))
        with (logs / "damaged-0" / "00000000000000000000.log").open("r+b") as file:
            file.seek(len(batch(2)) + 65)
            file.write(b"?")
        with BrokerServer(served, [BrokerListener(port=0)]) as server:
            server.start()
            yield f"127.0.0.1:{server.addresses[0].port}", logs


def test_a_sound_topic_passes(siltstone: Command, place: tuple[str, Path]) -> None:
    command = ("verify", "--bootstrap-server", place[0], "--topic", "sound")
    completed = siltstone(*command)
    assert completed.status == 0
    (row,) = (line.split() for line in completed.lines if line.startswith("sound-0"))
    size = sum(len(batch(2, codec=codec)) for codec in (0, 1, 4))
    assert row[:8] == ["sound-0", "ok", "0", "to", "6", "3", "6", str(size)]
    assert completed.lines[-1] == "2 logs checked, all ok"
    assert "does not show segments, indexes" in completed.err
    document = siltstone(*command, "--json").document
    assert (document["status"], [log["records"] for log in document["logs"]]) == ("ok", [6, 0])
    assert document["logs"][0] == {
        "status": "ok", "topic": "sound", "partition": 0, "log_start_offset": 0, "high_watermark": 6,
        "batches": 3, "records": 6, "bytes": size, "largest_timestamp": TIME_MS + 1, "problems": [],
        "found": {}, "notes": [],
    }  # fmt: skip
    assert document["logs"][1]["largest_timestamp"] is None


def test_damage_hides_no_other_log(siltstone: Command, place: tuple[str, Path]) -> None:
    completed = siltstone("verify", "--bootstrap-server", place[0])
    position = len(batch(2))
    assert completed.status == 1
    assert f"damaged-0: unreadable: byte {position}, offset 2: " in completed.out.decode()
    assert "1 problem" in next(line for line in completed.lines if line.startswith("damaged-0"))
    assert completed.lines[-1] == "3 logs checked; 1 with problems"


@pytest.mark.parametrize(("flags", "status", "message"), [
    ("--topic nope", 1, "(UNKNOWN_TOPIC_OR_PARTITION)"),
    ("BEFORE AFTER", USAGE, "what is for BEFORE and AFTER"),
    ("--before DIR", USAGE, "what is for BEFORE and AFTER"),
    ("--now-ms 5", USAGE, "what is for BEFORE and AFTER"),
    ("--remote DIR", USAGE, "what is for BEFORE and AFTER"),
])  # fmt: skip
def test_what_a_broker_cannot_answer_is_refused_in_one_line(
    siltstone: Command, place: tuple[str, Path], flags: str, status: int, message: str
) -> None:
    completed = siltstone("verify", *flags.split(), "--bootstrap-server", place[0])
    assert (completed.status, completed.out, completed.err.count("\n"), message in completed.err) == (
        status,
        b"",
        1,
        True,
    ), completed.err


def test_another_protocol_and_a_port_where_nothing_listens_are_refused(
    siltstone: Command, tmp_path: Path
) -> None:
    with partition_of(b"") as address:
        pass
    completed = siltstone("verify", "--bootstrap-server", address)
    assert (completed.status, completed.out, "(BROKER_UNREACHABLE)" in completed.err) == (1, b"", True)
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SSL\n")
    completed = siltstone("verify", "--bootstrap-server", address, "--command-config", config)
    assert (completed.status, "only asked for over a plain connection" in completed.err) == (USAGE, True)


@pytest.mark.parametrize(("parts", "kind"), [
    ([b"\0" * 61], "unreadable"),
    ([batch(1), batch(1)], "unreadable"),
    ([batch(1), 56], "refused"),
    ([3], "refused"),
    ([batch(1), batch(9, base_offset=1)], "bounds"),
    ([batch(1) + batch(1)], "order"),
    ([batch(1), batch(1, base_offset=5)], "bounds"),
], ids=["rubbish", "again", "disk", "deleted", "beyond", "order", "gap at the end"])  # fmt: skip
def test_what_a_broker_sends_wrongly_is_a_problem(
    siltstone: Command, parts: list[bytes | int | None], kind: str
) -> None:
    with partition_of(*parts, end=2) as address:
        completed = siltstone("verify", "--bootstrap-server", address, "--json")
    assert completed.status == 1, completed.err
    assert kind in completed.document["logs"][0]["found"]


def test_a_log_start_that_moves_meanwhile_is_a_note(siltstone: Command) -> None:
    """Retention, or DeleteRecords, while the log is read."""
    with partition_of(batch(1), 1, batch(1, base_offset=5), end=6, later_start=5) as address:
        completed = siltstone("verify", "--bootstrap-server", address, "--json")
    (log,) = completed.document["logs"]
    assert (completed.status, log["records"]) == (0, 2), log
    assert log["notes"] == ["the log start moved to offset 5 while the log was read"]


@pytest.mark.parametrize(("second", "message"), [
    (None, "the broker closed the connection"),
    (b"", "the broker sends no batch for offset 1"),
], ids=["closed", "nothing"])  # fmt: skip
def test_a_failure_in_the_middle_is_one_line(
    siltstone: Command, second: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if second == b"":
        monkeypatch.setattr(plain_client, "SECONDS", 0.3)
    with partition_of(batch(1), second, end=2) as address:
        completed = siltstone("verify", "--bootstrap-server", address)
    assert (completed.status, completed.out, message in completed.err, completed.err.count("\n")) == (
        1,
        b"",
        True,
        1,
    ), completed.err
