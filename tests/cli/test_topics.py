"""``siltstone topics`` on directories of ours and on those of a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import LogManager
from tests.support.command_line import Command, tree

BROKERS_TOPICS = (
    "__consumer_offsets __transaction_state altered audit by_bytes events.cd held_back lagged ledger maxlag "
    "orders reborn turned users"
).split()

CONTRADICTION = ("--config", "min.compaction.lag.ms=9", "--config", "max.compaction.lag.ms=8")


def directory_flags(broker: tuple[Path, Path]) -> tuple[object, ...]:
    return "--dir", broker[0], "--dir", broker[1]


def test_worked_example_21(siltstone: Command, tmp_path: Path) -> None:
    """kafka-topics --create with three settings, a directory instead of a broker."""
    completed = siltstone(
        *("topics", "--dir", tmp_path / "new", "--create", "--topic", "new-topic1"),
        *("--config", "cleanup.policy=delete", "--config", "retention.ms=10000"),
        *("--config", "retention.bytes=128000"),
    )
    assert (completed.status, completed.lines, completed.err) == (
        0,
        ["topic new-topic1 created with 1 partition"],
        "",
    )
    with LogManager.open([tmp_path / "new"]) as manager:
        config = manager["new-topic1", 0].config
        assert (config.policies, config.retention_ms, config.retention_bytes) == (("delete",), 10000, 128000)
    shown = siltstone("topics", "--dir", tmp_path / "new", "--describe", "--topic", "new-topic1")
    topic_id = shown.lines[0].split("TopicId: ")[1].split("\t")[0]
    assert len(topic_id) == 22
    assert shown.lines[0] == (
        f"Topic: new-topic1\tTopicId: {topic_id}\tPartitionCount: 1\tReplicationFactor: 1\t"
        "Configs: cleanup.policy=delete,retention.bytes=128000,retention.ms=10000"
    )
    metadata = (tmp_path / "new" / "new-topic1-0" / "partition.metadata").read_text()
    assert metadata == f"version: 0\ntopic_id: {topic_id}"


def test_a_real_brokers_topics_are_described_as_the_broker_described_them(
    siltstone: Command, stopped_broker: tuple[Path, Path], golden: Path
) -> None:
    case = json.loads((golden / "whole_43" / "case.json").read_text(encoding="utf-8"))["state_before"]
    before = tree(*stopped_broker)
    assert siltstone("topics", *directory_flags(stopped_broker), "--list").lines == BROKERS_TOPICS
    described = siltstone("topics", *directory_flags(stopped_broker), "--describe", "--json")
    assert described.status == 0 and "metadata log" in described.err
    topics = {topic["topic"]: topic for topic in described.document["topics"]}
    assert {name: topic["topic_id"] for name, topic in topics.items()} == {
        name: topic["topic_id"] for name, topic in case["topics"].items()
    }
    partitions = {
        f"{name}-{partition['partition']}": partition
        for name, topic in topics.items()
        for partition in topic["partitions"]
    }
    assert partitions.keys() == case["partitions"].keys()
    for topic in topics.values():
        assert topic["partition_count_in_metadata"] == topic["partition_count"] == len(topic["partitions"])
    for name, expected in case["partitions"].items():
        partition = partitions[name]
        assert Path(partition["directory"]).name == expected["log_dir"]
        for field in ("log_start_offset", "log_end_offset", "high_watermark"):
            assert partition[field] == expected[field], name
        # The only broker was stopped: then Kafka 4.3 leaves no leader, and no replica in sync.
        assert (partition["leader"], partition["replicas"], partition["isr"]) == (-1, [1], []), name
    one = siltstone("topics", "--dir", stopped_broker[0], "--describe", "--topic", "ledger").lines[0]
    assert "\tPartitionCount: 1 (of 2 in the metadata)\t" in one
    whole = siltstone("topics", *directory_flags(stopped_broker), "--describe", "--topic", "ledger").lines[0]
    assert "\tPartitionCount: 2\t" in whole
    assert tree(*stopped_broker) == before, "looking changes nothing"


def test_a_brokers_topic_that_was_altered_still_has_its_count_in_the_metadata(
    siltstone: Command, stopped_broker: tuple[Path, Path]
) -> None:
    """Siltstone's registry lists it then, but only the broker's metadata knows its other partitions."""
    with LogManager.open(stopped_broker) as manager:
        manager.topics.alter("ledger", {"min.cleanable.dirty.ratio": "0.25"})
    one = siltstone(
        "topics", "--dir", stopped_broker[0], "--describe", "--topic", "ledger", "--json"
    ).document
    assert one["topics"][0]["partition_count_in_metadata"] == 2


def test_a_topic_may_be_a_regular_expression(siltstone: Command, stopped_broker: tuple[Path, Path]) -> None:
    listed = siltstone("topics", *directory_flags(stopped_broker), "--list", "--topic", "l.*", "--json")
    assert listed.document == {"topics": ["lagged", "ledger"]}
    exact = siltstone("topics", *directory_flags(stopped_broker), "--list", "--topic", "events.cd")
    assert exact.lines == ["events.cd"]
    wrong = siltstone("topics", *directory_flags(stopped_broker), "--list", "--topic", "(")
    assert (wrong.status, wrong.out) == (2, b"") and "regular expression" in wrong.err


def test_describe_shows_a_table_and_what_is_missing(siltstone: Command, logs: Path) -> None:
    shown = siltstone("topics", "--dir", logs, "--describe", "--topic", "users")
    assert "high watermark" in shown.out.decode() and str(logs)[:20] in shown.out.decode().replace("\n", "")
    for path in (logs / "orders-1").iterdir():
        path.unlink()
    (logs / "orders-1").rmdir()
    lost = siltstone("topics", "--dir", logs, "--describe", "--topic", "orders", "--json")
    assert lost.status == 1 and "orders-1: is in none" in lost.err
    assert lost.document["topics"][0]["partitions"][1]["failure"] == "is in none of these directories"


def test_the_number_of_partitions_only_grows(siltstone: Command, logs: Path) -> None:
    completed = siltstone(
        "topics", "--dir", logs, "--alter", "--topic", "orders", "--partitions", 5, "--json"
    )
    assert completed.document == {
        "action": "alter",
        "dry_run": False,
        "topics": [{"topic": "orders", "status": "altered", "partitions": 5}],
    }
    assert (logs / "orders-4").is_dir()
    fewer = siltstone("topics", "--dir", logs, "--alter", "--topic", "orders", "--partitions", 2)
    assert fewer.status == 1 and fewer.err.endswith("(INVALID_PARTITIONS)\n")


def test_delete_frees_the_disk_space_at_once(siltstone: Command, logs: Path) -> None:
    completed = siltstone("topics", "--dir", logs, "--delete", "--topic", "orders")
    assert (completed.status, completed.lines) == (0, ["topic orders deleted"])
    assert sorted(path.name for path in logs.iterdir() if path.is_dir()) == ["users-0"]
    again = siltstone("topics", "--dir", logs, "--delete", "--topic", "orders")
    assert again.status == 1 and again.err.endswith("(UNKNOWN_TOPIC_OR_PARTITION)\n")
    fine = siltstone("topics", "--dir", logs, "--delete", "--topic", "orders", "--if-exists", "--json")
    assert fine.status == 0 and fine.document["topics"] == []


def test_if_exists_and_if_not_exists_suppress_the_error(siltstone: Command, logs: Path) -> None:
    create = ("topics", "--dir", logs, "--create", "--topic", "users")
    for more in ((), ("--dry-run",)):
        refused = siltstone(*create, *more)
        assert (
            refused.status == 1
            and refused.err == "siltstone: topic 'users' already exists (TOPIC_ALREADY_EXISTS)\n"
        )
        fine = siltstone(*create, *more, "--if-not-exists")
        assert (fine.status, fine.lines) == (0, ["topic users exists already"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--create", "--topic", "new", "--partitions", "3", "--config", "retention.ms=5"),
        ("--alter", "--topic", "orders", "--partitions", "9"),
        ("--delete", "--topic", ".*"),
    ],
)
def test_a_dry_run_changes_nothing(siltstone: Command, logs: Path, arguments: tuple[str, ...]) -> None:
    before = tree(logs)
    completed = siltstone("topics", "--dir", logs, *arguments, "--dry-run")
    assert completed.status == 0 and "would be" in completed.lines[0]
    assert tree(logs) == before


def test_a_dry_run_makes_no_directory(siltstone: Command, tmp_path: Path) -> None:
    completed = siltstone("topics", "--dir", tmp_path / "new", "--create", "--topic", "a", "--dry-run")
    assert completed.status == 0 and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "kafka_name"),
    [
        (("--create", "--topic", "a b"), "INVALID_TOPIC_EXCEPTION"),
        (("--create", "--topic", "x" * 250), "INVALID_TOPIC_EXCEPTION"),
        (("--create", "--topic", "new", "--partitions", "0"), "INVALID_PARTITIONS"),
        (
            ("--create", "--topic", "n", *CONTRADICTION),
            "INVALID_CONFIG",
        ),
        (("--alter", "--topic", "orders", "--partitions", "1"), "INVALID_PARTITIONS"),
        (("--describe", "--topic", "none"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_refusals_have_kafkas_names(
    siltstone: Command, logs: Path, arguments: tuple[str, ...], kafka_name: str, dry: tuple[str, ...]
) -> None:
    if "--describe" in arguments and dry:
        return
    before = sorted(path.name for path in logs.iterdir() if path.is_dir())
    refused = siltstone("topics", "--dir", logs, *arguments, *dry)
    assert (refused.status, refused.out) == (1, b"")
    assert refused.err.count("\n") == 1 and refused.err.endswith(f"({kafka_name})\n")
    assert sorted(path.name for path in logs.iterdir() if path.is_dir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--list",), ["--dir"]),
        (("--dir", "x"), ["--create", "--list"]),
        (("--dir", "x", "--list", "--delete"), ["no action", "--create"]),
        (("--dir", "x", "--create"), ["--topic"]),
        (("--dir", "x", "--alter", "--topic", "a"), ["--partitions", "configs"]),
        (("--dir", "x", "--list", "--partitions", "2"), ["--partitions", "--create"]),
        (("--dir", "x", "--list", "--dry-run"), ["--dry-run"]),
        (("--dir", "x", "--create", "--topic", "a", "--replication-factor", "3"), ["one replica"]),
        (("--dir", "x", "--create", "--topic", "a", "--config", "retention"), ["key=value"]),
        (
            ("--dir", "x", "--create", "--topic", "a", "--config", "retentoin.ms=1"),
            ["retentoin.ms", "'retention.ms'"],
        ),
        (("--dir", "x", "--create", "--topic", "a", "--config", "retention.ms=soon"), ["whole number"]),
        (("--dir", "x", "--create", "--topic", "a", "--partitions", "two"), ["two"]),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    siltstone: Command,
    arguments: tuple[str, ...],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = siltstone("topics", *arguments)
    assert (refused.status, refused.out) == (2, b"") and refused.err.count("\n") == 1
    for word in words:
        assert word in refused.err
    assert not list(tmp_path.iterdir())


def test_what_is_no_log_directory_is_refused(siltstone: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for action in (("--list",), ("--create", "--topic", "a")):
        refused = siltstone("topics", "--dir", tmp_path, *action)
        assert (refused.status, refused.out) == (1, b"") and refused.err.count("\n") == 1
    assert siltstone("topics", "--dir", tmp_path / "none", "--list").status == 1


def test_a_directory_in_use_is_shown_and_not_changed(siltstone: Command, logs: Path) -> None:
    with LogManager.open([logs]) as manager:
        assert TopicPartition("orders", 1) in manager
        shown = siltstone("topics", "--dir", logs, "--describe", "--topic", "orders", "--json")
        assert shown.status == 0 and "in use by another process" in shown.err
        assert shown.document["topics"][0]["partition_count"] == 2
        swapped = logs / "orders-0" / f"{0:020}.log.swap"
        swapped.touch()
        shown = siltstone("topics", "--dir", logs, "--describe", "--topic", "orders")
        assert shown.status == 1 and "try again in a moment" in shown.err
        swapped.unlink()
        for action in (("--create", "--topic", "a"), ("--delete", "--topic", "orders")):
            refused = siltstone("topics", "--dir", logs, *action)
            assert refused.status == 1 and refused.err.count("\n") == 1 and str(logs) in refused.err
    assert siltstone("topics", "--dir", logs, "--list").err == ""


def test_a_directory_that_was_not_stopped_says_so(siltstone: Command, logs: Path) -> None:
    (logs / ".kafka_cleanshutdown").unlink()
    shown = siltstone("topics", "--dir", logs, "--describe", "--topic", "users")
    assert shown.status == 0 and "was not stopped cleanly" in shown.err and "siltstone recover" in shown.err


def test_server_properties_are_the_defaults_of_a_new_topic(siltstone: Command, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("num.partitions=4\n")
    for dry in (("--dry-run",), ()):
        completed = siltstone(
            *("topics", "--dir", tmp_path / "d", "--create", "--topic", "a"),
            *("--server-properties", properties, *dry),
        )
        assert completed.status == 0 and "4 partitions" in completed.lines[0]
    assert (tmp_path / "d" / "a-3").is_dir()
