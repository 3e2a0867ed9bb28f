"""Commands with --bootstrap-server: what they print is what they print for a directory."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.cli import main
from siltstone.commands.served import Served, ServeOptions
from tests.support.command_line import Command

LINES = b"a:1\nb:2\nc:3\na:4\n"
OFFSETS = (
    '{"partitions": [{"topic": "plain", "partition": 0, "offset": 1}, '
    '{"topic": "users", "partition": 0, "offset": 0}, {"topic": "nope", "partition": 0, "offset": 0}, '
    '{"topic": "plain", "partition": 0, "offset": 1}], "version": 1}'
)
SCRIPT = (
    "topics --create --topic users --partitions 3 --config cleanup.policy=compact",
    "topics --create --topic users",
    "topics --create --topic users --if-not-exists",
    "topics --create --topic a/b",
    "topics --create --topic dry --partitions 2 --dry-run",
    "topics --create --topic dry --partitions 2 --dry-run --json",
    "topics --create --topic plain --json",
    "topics --list",
    "topics --list --topic pl.* --json",
    "produce -t users -K :",
    "produce -t plain -z gzip -H h=1 --json",
    "produce -t plain -p 7",
    "produce -t nope",
    "consume -t users -e -K : -q",
    "consume -t plain -e",
    "consume -t plain -e -o -2 -q -f %o=%s,%h\\n",
    "consume -t plain -e -o 1 -c 2 -q",
    "consume -t plain -e -J -q",
    "consume -t plain -e -o 9",
    "consume -t plain -e -p 9",
    "get-offsets",
    "get-offsets --topic plain --time earliest --json",
    "get-offsets --topic-partitions users:1-3,plain",
    "get-offsets --topic plain --time 9000000000000",
    "get-offsets --topic nope",
    "topics --describe",
    "topics --describe --topic nope",
    "topics --alter --topic plain --partitions 3",
    "topics --alter --topic plain --partitions 3",
    "configs --describe --entity-type topics --entity-name users",
    "configs --alter --entity-type topics --entity-name users --add-config flush.ms=5",
    "configs --alter --entity-type topics --entity-name users --delete-config cleanup.policy",
    "configs --alter --entity-type topics --entity-name users --add-config flush.ms=6 --dry-run --json",
    "configs --alter --entity-type topics --entity-name users --add-config flush.ms=x",
    "configs --alter --entity-type topics --entity-name users --delete-config retention.ms",
    "configs --describe --entity-type topics --json",
    "configs --alter --entity-type topics --entity-name users --add-config cleanup.policy=[compact]",
    "delete-records --offset-json-file OFFSETS --dry-run",
    "delete-records --offset-json-file OFFSETS",
    "get-offsets --time -2",
    "topics --delete --topic us.*,plain --dry-run",
    "topics --delete --topic us.*,plain",
    "topics --delete --topic us.*",
    "topics --delete --topic us.* --if-exists",
)
ALONE_IN_A_DIRECTORY = ("directory", "size", "segments", "bytes")


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


def alike(out: bytes) -> str:
    """Output without ids, times, and what only one of the two can say."""
    text = out.decode()
    for name in ALONE_IN_A_DIRECTORY:
        text = re.sub(rf'"{name}": [^,}}\]]+(, )?', "", text)
    text = re.sub(r'"(leader|replicas|isr)": ([0-9]+|null|\[[^]]*\])(, )?', "", text)
    text = re.sub(r"error: .*\(", "error: (", text)
    text = re.sub(r'"topic_id": "[\w-]{22}"', '"topic_id": ID', text)
    text = re.sub(r"TopicId: [\w-]{22}", "TopicId: ID", text)
    return re.sub(r'"ts": \d{13}', '"ts": NOW', text)


def test_the_output_is_that_of_a_directory(run: Command, address: str, tmp_path: Path) -> None:
    (tmp_path / "offsets.json").write_text(OFFSETS.rsplit(", {", 1)[0] + '], "version": 1}', "utf-8")
    for line in SCRIPT:
        arguments = [str(tmp_path / "offsets.json") if word == "OFFSETS" else word for word in line.split()]
        at_broker = run(*arguments, "--bootstrap-server", address)
        in_directory = run(*arguments, "--dir", tmp_path / "logs")
        assert (line, at_broker.status) == (line, in_directory.status), at_broker.err + in_directory.err
        if "topics --describe" not in line:  # its table has other columns: below
            assert alike(at_broker.out) == alike(in_directory.out), line
        assert code_in(at_broker.err) == code_in(in_directory.err), line


def code_in(err: str) -> str | None:
    """The code of an error's line."""
    found = re.search(r"\(([A-Z_]+)\)$", err.strip())
    return found and found[1]


def test_a_topic_is_described(run: Command, address: str) -> None:
    server = ("--bootstrap-server", address)
    assert run("topics", "--create", "--topic", "t", "--config", "flush.ms=7", *server).status == 0
    run("produce", "-t", "t", *server)
    done = run("topics", "--describe", "--topic", "t", *server)
    head, columns, row = done.lines
    assert done.status == 0
    assert re.fullmatch(
        r"Topic: t\tTopicId: [\w-]{22}\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: flush.ms=7", head
    )
    assert columns.split() == ("partition log start log end high watermark leader replicas isr".split())
    assert row.split() == ["0", "0", "4", "4", "0", "0", "0"]


def test_a_brokers_settings_change_at_run_time(run: Command, address: str) -> None:
    server = ("--bootstrap-server", address)
    broker = ("--entity-type", "brokers", "--entity-name", "0", *server)
    done = run("configs", "--alter", "--add-config", "log.flush.interval.ms=77", *broker)
    assert (done.status, done.lines) == (
        0, ["updating config for broker 0 completed", "  log.flush.interval.ms: (default) → 77"],
    )  # fmt: skip
    shown = run("configs", "--describe", *broker).out.decode()
    own = "DYNAMIC_BROKER_CONFIG:log.flush.interval.ms=77"
    assert f"  log.flush.interval.ms=77 sensitive=false synonyms={{{own}" in shown
    done = run("configs", "--alter", "--add-config", "num.partitions=7", *broker)
    assert (done.status, "cannot change at run time" in done.err) == (1, True)
    assert run("configs", "--alter", "--delete-config", "log.flush.interval.ms", *broker).status == 0
    done = run("configs", "--describe", "--entity-type", "brokers", "--entity-default", *server)
    assert done.lines[0] == "Default configs for brokers in the cluster are:"


@pytest.mark.parametrize("command", sorted(set(main.COMMANDS) - main.AT_A_BROKER))
def test_what_works_on_files_says_so_in_one_line(run: Command, command: str) -> None:
    for arguments in (["--bootstrap-server", "there:1"], ["--bootstrap-server=there:1", "DIR"]):
        done = run(command, *arguments)
        assert (done.status, done.out, done.err.count("\n")) == (main.USAGE, b"", 1)
        assert f"{command} works on the files of log directories, not on a running broker" in done.err


@pytest.mark.parametrize("line", [
    "topics compact t",
    "topics --list --server-properties FILE",
    "configs --describe --entity-type namespaces",
    "configs --alter --entity-type brokers --entity-default --add-config flush.ms=1",
    "consume -t t --read-compacted",
    "consume -t t --high-watermark end",
    "produce -t t --server-properties FILE",
    "topics --list --dir DIR",
])  # fmt: skip
def test_what_only_directories_have_is_refused(run: Command, address: str, line: str) -> None:
    done = run(*line.split(), "--bootstrap-server", address)
    assert (done.status, done.out, done.err.count("\n")) == (main.USAGE, b"", 1)


def test_the_clients_properties_are_only_for_a_broker(run: Command, tmp_path: Path) -> None:
    done = run("topics", "--list", "--dir", tmp_path, "--command-config", "FILE")
    assert (done.status, "only for --bootstrap-server" in done.err) == (main.USAGE, True)
