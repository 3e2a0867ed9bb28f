"""Commands with --bootstrap-server: what they print is what they print for a directory."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.cli import main
from siltstone.commands.records import ConsumeRange
from siltstone.commands.remote import RemoteBroker
from siltstone.commands.remote_records import RemoteConsumer, RemoteProducer
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from siltstone.runtime.producing import NewRecord
from tests.support.broker_commands import LINES, assert_alike
from tests.support.command_line import Command


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's HOST:PORT."""
    logs = tmp_path_factory.mktemp("broker") / "logs"
    with Served(ServeOptions(paths=(logs,), engine="process", creates=True)) as served:
        server = BrokerServer(served, [BrokerListener(port=0)])
        server.start()
        try:
            yield f"127.0.0.1:{server.addresses[0].port}"
        finally:
            server.stop()


@pytest.fixture
def run(siltstone: Command) -> Command:
    """Runs a command line with ``LINES`` as standard input."""
    return functools.partial(siltstone, stdin=LINES)


def test_the_output_is_that_of_a_directory(run: Command, address: str, tmp_path: Path) -> None:
    assert_alike(run, address, tmp_path)


def test_a_topic_is_described(run: Command, address: str) -> None:
    server = ("--bootstrap-server", address)
    assert run("topics", "--create", "--topic", "t", "--config", "flush.ms=7", *server).status == 0
    run("produce", "-t", "t", *server)
    completed = run("topics", "--describe", "--topic", "t", *server)
    head, columns, row = completed.lines
    assert completed.status == 0
    assert re.fullmatch(
        r"Topic: t\tTopicId: [\w-]{22}\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: flush.ms=7", head
    )
    assert columns.split() == ("partition log start log end high watermark leader replicas isr".split())
    assert row.split() == ["0", "0", "4", "4", "0", "0", "0"]


def test_a_brokers_settings_change_at_run_time(run: Command, address: str) -> None:
    server = ("--bootstrap-server", address)
    broker = ("--entity-type", "brokers", "--entity-name", "0", *server)
    completed = run("configs", "--alter", "--add-config", "log.flush.interval.ms=77", *broker)
    assert (completed.status, completed.lines) == (
        0, ["updating config for broker 0 completed", "  log.flush.interval.ms: (default) → 77"],
    )  # fmt: skip
    shown = run("configs", "--describe", *broker).out.decode()
    own = "DYNAMIC_BROKER_CONFIG:log.flush.interval.ms=77"
    assert f"  log.flush.interval.ms=77 sensitive=false synonyms={{{own}" in shown
    completed = run("configs", "--alter", "--add-config", "num.partitions=7", *broker)
    assert (completed.status, "cannot change at run time" in completed.err) == (1, True)
    assert run("configs", "--alter", "--delete-config", "log.flush.interval.ms", *broker).status == 0
    completed = run("configs", "--describe", "--entity-type", "brokers", "--entity-default", *server)
    assert completed.lines[0] == "Default configs for brokers in the cluster are:"


def test_log_dirs_shows_only_the_brokers_of_a_list_and_refuses_unknown_ones(
    run: Command, address: str
) -> None:
    flags = ("--describe", "--bootstrap-server", address)
    (broker,) = run("log-dirs", *flags, "--broker-list", "0").document["brokers"]
    assert broker["broker"] == 0
    for numbers, message in (
        ("0,9", "there is no broker 9; pass some of 0"),
        ("0,x", "a word that is no number"),
    ):
        completed = run("log-dirs", *flags, "--broker-list", numbers)
        assert (completed.status, completed.out, message in completed.err) == (main.USAGE, b"", True)


def test_each_command_asks_a_broker_or_says_what_to_do_instead() -> None:
    assert main.BROKER_COMMANDS | set(main.ADVICE_FOR_BOOTSTRAP_SERVER) == set(main.COMMANDS)
    assert not main.BROKER_COMMANDS & set(main.ADVICE_FOR_BOOTSTRAP_SERVER)


@pytest.mark.parametrize("command", sorted(main.ADVICE_FOR_BOOTSTRAP_SERVER))
def test_a_command_that_works_on_files_says_so_in_one_line(run: Command, command: str) -> None:
    for arguments in (["--bootstrap-server", "there:1"], ["--bootstrap-server=there:1", "DIR"]):
        completed = run(command, *arguments)
        assert (completed.status, completed.out, completed.err.count("\n")) == (main.USAGE, b"", 1)
        reason = f"{command} works on files, and does not ask a running broker"
        assert f"{reason}; {main.ADVICE_FOR_BOOTSTRAP_SERVER[command]}" in completed.err


@pytest.mark.parametrize("line", [
    "topics compact t",
    "topics --list --server-properties FILE",
    "configs --describe --entity-type namespaces",
    "configs --alter --entity-type brokers --entity-default --add-config flush.ms=1",
    "consume -t t --read-compacted",
    "consume -t t --high-watermark end",
    "produce -t t --server-properties FILE",
    "topics --list --dir DIR",
    "log-dirs --describe --dir DIR",
])  # fmt: skip
def test_flags_that_only_directories_have_are_refused(run: Command, address: str, line: str) -> None:
    completed = run(*line.split(), "--bootstrap-server", address)
    assert (completed.status, completed.out, completed.err.count("\n")) == (main.USAGE, b"", 1)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("consume -e -t {empty}", 1),
        ("consume -e -t {no_text}", 1),
        ("empty --mode truncate --yes --topic {no_text}", 1),
        ("topics --create --topic {no_text}", main.USAGE),
        ("topics --create --topic x --partitions -5", main.USAGE),
        ("topics --create --topic x --partitions 99999999999", main.USAGE),
        ("configs --describe --entity-type topics --entity-name {empty}", main.USAGE),
        ("configs --describe --entity-type topics --entity-name {no_text}", main.USAGE),
        ("consume -e -t odd -o s@9999999999999999999", main.USAGE),
        ("consume -e -t odd -o s@1234567890", main.USAGE),
    ],
)
def test_names_and_numbers_that_the_client_cannot_send_are_refused(
    run: Command, address: str, line: str, status: int
) -> None:
    server = ("--bootstrap-server", address)
    run("topics", "--create", "--topic", "odd", "--if-not-exists", *server)
    words = (word.format(empty="", no_text="t\udcff") for word in line.split())
    completed = run(*words, *server)
    assert (completed.status, completed.out, completed.err.count("\n")) == (status, b"", 1), completed.err


def test_the_clients_properties_are_only_for_a_broker(run: Command, tmp_path: Path) -> None:
    completed = run("topics", "--list", "--dir", tmp_path, "--command-config", "FILE")
    assert (completed.status, "only for --bootstrap-server" in completed.err) == (main.USAGE, True)


def test_groups_are_refused_at_a_broker_without_that_api(run: Command, address: str) -> None:
    completed = run("groups", "--list", "--bootstrap-server", address)
    assert (completed.status, completed.out, "the broker has no such API" in completed.err) == (1, b"", True)


def test_a_reader_continues_and_says_what_ends_it_has_reached(run: Command, address: str) -> None:
    server = ("--bootstrap-server", address)
    assert run("topics", "--create", "--topic", "followed", *server).status == 0
    run("produce", "-t", "followed", *server)
    broker = RemoteBroker(address, {})
    waits = 0

    def wait() -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            run("produce", "-t", "followed", *server)

    with RemoteConsumer(broker, "followed", offset_range=ConsumeRange(offset=1)) as consumer:
        counts_and_offsets = list[tuple[int, int]]()
        for consumed in consumer.follow(wait):
            counts_and_offsets.append((len(consumed), consumed.offset))
            if consumed.is_end and consumed.offset == 8:
                break
    assert sum(count for count, _ in counts_and_offsets) == 7
    assert [offset for count, offset in counts_and_offsets if not count] == [4, 8]


class BusyTopic(RemoteConsumer):
    """A reader of a topic that is appended to faster than it is read: it never reaches the end."""

    def _poll(self) -> tuple[list[Message], set[TopicPartition]]:
        return super()._poll()[0], set()


def test_a_reader_to_the_end_stops_at_the_end_that_there_was_or_at_that_of_its_range(
    run: Command, address: str
) -> None:
    server = ("--bootstrap-server", address)
    run("topics", "--create", "--topic", "busy", *server)
    times = [1_000_000_000_000, 1_000_000_000_001]
    with RemoteProducer(RemoteBroker(address, {}), "busy") as producer:
        for time in times:
            producer.append([NewRecord(value=b"v", timestamp=time)] * 3)
    for offset_range, count in (
        (ConsumeRange(), 6),
        (ConsumeRange(offset=2), 4),
        (ConsumeRange(from_ms=times[0], until_ms=times[1]), 3),
        (ConsumeRange(offset=5, until_ms=times[1]), 0),
    ):
        with BusyTopic(RemoteBroker(address, {}), "busy", offset_range=offset_range) as consumer:
            *records, end = consumer.read_to_end()
        assert sum(map(len, records)) == count and end.is_end
        assert end.offset == (6 if offset_range.until_ms is None else 5 if offset_range.offset else 3)


def test_the_page_says_of_each_command_whether_it_asks_a_broker() -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text("utf-8")
    section = page.partition("## Commands at a running broker")[2].partition("\n## ")[0]
    documented = {
        command: answer.startswith("yes")
        for names, answer in re.findall(r"^\| (`.*?) \| (yes|no)", section, flags=re.MULTILINE)
        for command in re.findall(r"`([\w-]+)`", names)
    }
    assert documented == {command: command in main.BROKER_COMMANDS for command in main.COMMANDS}
