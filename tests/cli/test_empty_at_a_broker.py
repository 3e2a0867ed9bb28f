"""``siltstone empty --bootstrap-server``: both modes, and what a broker refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from siltstone.base.errors import BrokerUnreachableError
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.cli.main import USAGE
from siltstone.commands import remote, remote_emptying
from siltstone.commands.forced_cleaning import RUN_AGAIN
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from siltstone.runtime.producing import NewRecord
from tests.support.command_line import Command
from tests.support.fake_cluster import partition_of

LINES = b"a:1\nb:2\nc:3\na:4\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Served]]:
    """A broker's HOST:PORT, and its directories."""
    logs = tmp_path_factory.mktemp("broker") / "logs"
    with (
        Served(ServeOptions(paths=(logs,), engine="process", creates=True)) as served,
        BrokerServer(served, [BrokerListener(port=0)]) as server,
    ):
        server.start()
        yield f"127.0.0.1:{server.addresses[0].port}", served


@pytest.fixture
def topic(
    broker: tuple[str, Served], siltstone: Command, request: pytest.FixtureRequest
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A topic of two partitions with four records of three keys, and the flags that name it at the broker."""
    policy = getattr(request, "param", "compact,delete")
    at = ("--bootstrap-server", broker[0])
    create = ("topics", "--create", "--topic", "t", "--partitions", 2, "--config", f"cleanup.policy={policy}")
    assert siltstone(*create, *at).status == 0
    assert siltstone("produce", "-t", "t", "-K", ":", *at, stdin=LINES).status == 0
    yield "t", ("--topic", "t", *at)
    assert siltstone("topics", "--delete", "--topic", "t", *at).status == 0


def test_a_dry_run_counts_records_and_keys_and_changes_nothing(
    siltstone: Command, topic: tuple[str, tuple[str, ...]]
) -> None:
    for mode in ("tombstones", "truncate"):
        completed = siltstone("empty", *topic[1], "--mode", mode, "--dry-run")
        assert (completed.status, completed.lines[-1]) == (
            0, f"topic t would be emptied ({mode}; it had 4 records)",
        )  # fmt: skip
        document = siltstone("empty", *topic[1], "--mode", mode, "--dry-run", "--json").document
        assert sum(row["records"] for row in document["partitions"]) == 4
        assert sum(row["keys"] for row in document["partitions"]) == 3
        assert {row["bytes"] for row in document["partitions"]} == {None}
    read = siltstone("consume", "-t", "t", "-e", "-q", *topic[1][2:])
    assert len(read.lines) == 4  # nothing was changed


def test_tombstones_and_a_cleaning_empty_a_topic(
    siltstone: Command, topic: tuple[str, tuple[str, ...]], broker: tuple[str, Served]
) -> None:
    completed = siltstone("empty", *topic[1], "--mode", "tombstones", "--yes", "--json")
    held = remote_emptying._NOT_CLEANED_YET
    assert completed.status == 1
    rows = completed.document["partitions"]
    assert [row["keys_after"] for row in rows] == [0, 0]
    assert {row["held"] for row in rows if row["records"]} == {held.reason}
    read = siltstone("consume", "-t", "t", "-e", "-q", "-f", "%k %S\\n", *topic[1][2:])
    assert sorted(line for line in read.lines if line.endswith(" -1")) == ["a -1", "b -1", "c -1"]
    # A second run writes no tombstones; once the values are cleaned away the topic is empty.
    assert siltstone("empty", *topic[1], "--mode", "tombstones", "--yes").status == 1
    logs = {TopicPartition("t", number) for number in range(2)}
    broker[1].opened_cleaner().clean_now(logs, force=True)
    completed = siltstone("empty", *topic[1], "--mode", "tombstones", "--yes")
    assert (completed.status, completed.lines[-1]) == (0, "topic t is empty (tombstones; it had 3 records)")


def test_a_header_whose_name_is_not_utf8_is_named_and_keeps_no_topic_from_being_emptied(
    siltstone: Command, topic: tuple[str, tuple[str, ...]], broker: tuple[str, Served]
) -> None:
    name, flags = topic
    record = NewRecord(key=b"d", value=b"5", headers=[(b"\xff", b"x")])
    (stored,) = broker[1].opened().send_many(name, [record])
    completed = siltstone("consume", "-e", "-q", *flags)
    where, message = stored.topic_partition, f"offset {stored.offset} has a header whose name is not UTF-8"
    assert (completed.status, completed.err.count("\n")) == (1, 1), completed.err
    assert str(where) in completed.err and message in completed.err
    rows = siltstone("empty", *flags, "--mode", "tombstones", "--yes", "--json").document["partitions"]
    assert sum(row["keys"] for row in rows) == 4 and {row["keys_after"] for row in rows} == {0}


def test_truncate_moves_the_log_starts_to_the_ends(
    siltstone: Command, topic: tuple[str, tuple[str, ...]]
) -> None:
    completed = siltstone("empty", *topic[1], "--mode", "truncate", "--yes")
    assert (completed.status, completed.lines[-1]) == (0, "topic t is empty (truncate)")
    assert "no reader learns of it" in completed.err
    starts, ends = (
        siltstone("get-offsets", "--topic", "t", "--time", time, *topic[1][2:]).lines for time in (-2, -1)
    )
    assert starts == ends and sum(int(line.rpartition(":")[2]) for line in ends) == 4


@pytest.mark.parametrize("topic", ["compact"], indirect=True)
def test_a_broker_truncates_no_compacted_topic(
    siltstone: Command, topic: tuple[str, tuple[str, ...]]
) -> None:
    for flag in ("--yes", "--dry-run"):
        completed = siltstone("empty", *topic[1], "--mode", "truncate", flag)
        assert (completed.status, completed.out, "(POLICY_VIOLATION)" in completed.err) == (1, b"", True), (
            completed.err
        )


@pytest.mark.parametrize("topic", ["delete"], indirect=True)
def test_tombstones_are_for_compacted_topics(siltstone: Command, topic: tuple[str, tuple[str, ...]]) -> None:
    completed = siltstone("empty", *topic[1], "--mode", "tombstones", "--yes")
    assert (completed.status, completed.out, "a tombstone removes nothing" in completed.err) == (
        1,
        b"",
        True,
    ), completed.err


def test_keys_that_take_too_much_memory_are_refused(
    siltstone: Command, topic: tuple[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_emptying, "KEY_BYTES_MAX", 99)
    completed = siltstone("empty", *topic[1], "--mode", "tombstones", "--yes")
    assert (completed.status, completed.out, "keys with a value" in completed.err) == (USAGE, b"", True), (
        completed.err
    )
    assert len(siltstone("consume", "-t", "t", "-e", "-q", *topic[1][2:]).lines) == 4


@pytest.mark.parametrize(("flags", "status", "message"), [
    ("--topic nope --mode truncate --yes", 1, "(UNKNOWN_TOPIC_OR_PARTITION)"),
    ("--topic __consumer_offsets --mode truncate --yes", 1, "an internal topic"),
    ("--topic t --yes", USAGE, "no mode"),
    ("--mode truncate --yes", USAGE, "no topic"),
    ("--topic t --mode x --yes", USAGE, "no mode 'x'"),
    ("--topic t --mode truncate", USAGE, "no terminal to ask on"),
    ("--topic t --mode truncate --yes --engine spark", USAGE, "has its own cleaner"),
    ("--topic t --mode truncate --yes --server-properties F", USAGE, "is for log directories"),
    ("--topic t --mode truncate --yes --dir D", USAGE, "a directory and --bootstrap-server"),
])  # fmt: skip
def test_unknown_topics_and_wrong_flags_are_refused(
    siltstone: Command, broker: tuple[str, Served], flags: str, status: int, message: str
) -> None:
    completed = siltstone("empty", *flags.split(), "--bootstrap-server", broker[0])
    assert (completed.status, completed.out, completed.err.count("\n"), message in completed.err) == (
        status,
        b"",
        1,
        True,
    ), completed.err


def test_a_port_where_nothing_listens_is_an_unreachable_broker(
    siltstone: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 1.0)
    with partition_of(b"") as address:
        pass
    completed = siltstone(
        "empty", "--topic", "t", "--mode", "truncate", "--yes", "--bootstrap-server", address
    )
    assert (completed.status, completed.out, "(BROKER_UNREACHABLE)" in completed.err) == (1, b"", True), (
        completed.err
    )


def test_a_key_that_is_written_again_meanwhile_is_reported(
    siltstone: Command, topic: tuple[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes while the tombstones are written."""
    real = remote_emptying._write_tombstones

    def then_others(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        siltstone("produce", "-t", "t", "-K", ":", *topic[1][2:], stdin=LINES)

    monkeypatch.setattr(remote_emptying, "_write_tombstones", then_others)
    completed = siltstone("empty", *topic[1], "--mode", "tombstones", "--yes")
    assert (completed.status, "written again; stop what writes" in completed.out.decode()) == (1, True)


def test_a_broker_that_goes_away_is_the_reason_of_each_partition(
    siltstone: Command, topic: tuple[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def fail_later(*arguments: object) -> None:
        calls.append(arguments)
        raise BrokerUnreachableError("the broker does not answer")

    monkeypatch.setattr(remote_emptying, "_write_tombstones", fail_later)
    completed = siltstone("empty", *topic[1], "--mode", "tombstones", "--yes", "--json")
    assert completed.status == 1 and len(calls) == 2
    held = {(row["held"], row["advice"]) for row in completed.document["partitions"]}
    assert {advice for _, advice in held} == {RUN_AGAIN}
    assert all("the broker does not answer" in str(reason) for reason, _ in held)
