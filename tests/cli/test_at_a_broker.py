"""Commands with --bootstrap-server: what they print is what they print for a directory."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.cli import main
from siltstone.commands.served import Served, ServeOptions

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
    "get-offsets --topic plain --time max-timestamp",
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


class Runner:
    """Runs commands in this process, with ``LINES`` as standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        self._monkeypatch, self._captured = monkeypatch, capsysbinary

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """(status, standard output, standard error)."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES)))
        status = main.run(list(arguments))
        sys.stdout.flush()
        out, err = self._captured.readouterr()
        return status, out.decode(), err.decode()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Runner:
    """A function that runs a command."""
    return Runner(monkeypatch, capsysbinary)


def alike(text: str) -> str:
    """Output without ids, times, and what only one of the two can say."""
    for name in ALONE_IN_A_DIRECTORY:
        text = re.sub(rf'"{name}": [^,}}\]]+(, )?', "", text)
    text = re.sub(r'"(leader|replicas|isr)": ([0-9]+|null|\[[^]]*\])(, )?', "", text)
    text = re.sub(r"error: .*\(", "error: (", text)
    text = re.sub(r'"topic_id": "[\w-]{22}"', '"topic_id": ID', text)
    text = re.sub(r"TopicId: [\w-]{22}", "TopicId: ID", text)
    return re.sub(r'"ts": \d{13}', '"ts": NOW', text)


def test_the_output_is_that_of_a_directory(run: Runner, address: str, tmp_path: Path) -> None:
    (tmp_path / "offsets.json").write_text(OFFSETS.rsplit(", {", 1)[0] + '], "version": 1}', "utf-8")
    for line in SCRIPT:
        arguments = [str(tmp_path / "offsets.json") if word == "OFFSETS" else word for word in line.split()]
        at_broker = run(*arguments, "--bootstrap-server", address)
        in_directory = run(*arguments, "--dir", str(tmp_path / "logs"))
        assert (line, at_broker[0]) == (line, in_directory[0]), at_broker[2] + in_directory[2]
        if "topics --describe" not in line:  # its table has other columns: below
            assert alike(at_broker[1]) == alike(in_directory[1]), line
        assert code_in(at_broker[2]) == code_in(in_directory[2]), line


def code_in(err: str) -> str | None:
    """The code of an error's line."""
    found = re.search(r"\(([A-Z_]+)\)$", err.strip())
    return found and found[1]


def test_a_topic_is_described(run: Runner, address: str) -> None:
    server = ("--bootstrap-server", address)
    assert run("topics", "--create", "--topic", "t", "--config", "flush.ms=7", *server)[0] == 0
    run("produce", "-t", "t", *server)
    status, out, _ = run("topics", "--describe", "--topic", "t", *server)
    head, columns, row = out.splitlines()
    assert status == 0
    assert re.fullmatch(
        r"Topic: t\tTopicId: [\w-]{22}\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: flush.ms=7", head
    )
    assert columns.split("  ") and columns.split() == (
        "partition log start log end high watermark leader replicas isr".split()
    )
    assert row.split() == ["0", "0", "4", "4", "0", "0", "0"]


def test_a_brokers_settings_change_at_run_time(run: Runner, address: str) -> None:
    server = ("--bootstrap-server", address)
    broker = ("--entity-type", "brokers", "--entity-name", "0", *server)
    status, out, _ = run("configs", "--alter", "--add-config", "log.flush.interval.ms=77", *broker)
    assert (status, out.splitlines()) == (
        0, ["updating config for broker 0 completed", "  log.flush.interval.ms: (default) → 77"],
    )  # fmt: skip
    status, out, _ = run("configs", "--describe", *broker)
    assert (
        "  log.flush.interval.ms=77 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.flush.interval.ms=77"
        in out
    )
    status, _, err = run("configs", "--alter", "--add-config", "num.partitions=7", *broker)
    assert (status, "cannot change at run time" in err) == (1, True)
    assert run("configs", "--alter", "--delete-config", "log.flush.interval.ms", *broker)[0] == 0
    status, out, _ = run("configs", "--describe", "--entity-type", "brokers", "--entity-default", *server)
    assert out.splitlines()[0] == "Default configs for brokers in the cluster are:"


@pytest.mark.parametrize("command", sorted(set(main.COMMANDS) - main.AT_A_BROKER))
def test_what_works_on_files_says_so_in_one_line(run: Runner, command: str) -> None:
    for arguments in (["--bootstrap-server", "there:1"], ["--bootstrap-server=there:1", "DIR"]):
        status, out, err = run(command, *arguments)
        assert (status, out, err.count("\n")) == (main.USAGE, "", 1)
        assert f"{command} works on the files of log directories, not on a running broker" in err


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
def test_what_only_directories_have_is_refused(run: Runner, address: str, line: str) -> None:
    status, out, err = run(*line.split(), "--bootstrap-server", address)
    assert (status, out, err.count("\n")) == (main.USAGE, "", 1)


def test_the_clients_properties_are_only_for_a_broker(run: Runner, tmp_path: Path) -> None:
    status, _, err = run("topics", "--list", "--dir", str(tmp_path), "--command-config", "FILE")
    assert (status, "only for --bootstrap-server" in err) == (main.USAGE, True)
