"""``compact-topic``, ``topics compact`` and ``topics compaction-status``, and who reads what they wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.commands import clean as cleaning
from siltstone.commands.clean import CleanRequest, clean
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine
from siltstone.log.names import TopicPartition
from siltstone.runtime.compactions import lock_compaction
from siltstone.runtime.manager import LogManager
from tests.support.cleaning.logs import one, write_log
from tests.support.command_line import Command, tree
from tests.support.examples import printed, printed_here, steps

EVENTS = TopicPartition("acme.shop.events", 0)
NAME = "persistent://acme/shop/events"


@pytest.fixture
def shop(siltstone: Command, tmp_path: Path) -> Path:
    """A directory with one topic, in which keys were written again and one was deleted."""
    path = tmp_path / "logs"
    assert siltstone("topics", "--dir", path, "--create", "--topic", EVENTS.topic).status == 0
    produce(siltstone, path, b"a:1\nb:1\na:2\nc:1\nb:\n")
    return path


def produce(siltstone: Command, path: Path, lines: bytes) -> None:
    completed = siltstone("produce", "--dir", path, "-t", EVENTS.topic, "-K", ":", "-Z", stdin=lines)
    assert completed.status == 0, completed.err


def consumed(siltstone: Command, path: Path, *flags: str) -> list[str]:
    completed = siltstone(
        "consume", "--dir", path, "-t", EVENTS.topic, "-e", "-q", "-f", r"%o %k=%s\n", *flags
    )
    assert completed.status == 0, completed.err
    return completed.lines


def test_compact_read_append_and_read_again(siltstone: Command, shop: Path) -> None:
    completed = siltstone("compact-topic", "--dir", shop, "--topic", NAME)
    assert (completed.status, completed.err) == (0, "")
    assert completed.lines == [
        "acme.shop.events-0: SUCCESS: 5 records up to offset 4: 2 superseded, 1 deleted; "
        "ledger 0: 2 entries, 79 B"
    ]
    assert consumed(siltstone, shop, "--read-compacted") == ["2 a=2", "3 c=1"]
    assert consumed(siltstone, shop) == ["0 a=1", "1 b=1", "2 a=2", "3 c=1", "4 b="]
    produce(siltstone, shop, b"d:1\na:3\n")
    assert consumed(siltstone, shop, "--read-compacted") == ["2 a=2", "3 c=1", "5 d=1", "6 a=3"]
    assert consumed(siltstone, shop, "--read-compacted", "-o", "3") == ["3 c=1", "5 d=1", "6 a=3"]
    assert consumed(siltstone, shop, "--read-compacted", "-c", "1") == ["2 a=2"]
    again = siltstone("topics", "compact", NAME, "--dir", shop)
    assert again.status == 0 and "1 earlier entries replaced" in again.lines[0]
    assert consumed(siltstone, shop, "--read-compacted") == ["3 c=1", "5 d=1", "6 a=3"]
    nothing = siltstone("compact-topic", "--dir", shop, "--topic", EVENTS.topic)
    assert nothing.lines == ["acme.shop.events-0: SUCCESS: nothing new below offset 7"]


def test_the_documents_have_pulsars_names(siltstone: Command, shop: Path) -> None:
    completed = siltstone("compact-topic", "--dir", shop, "--topic", NAME, "--json")
    assert completed.status == 0
    document = completed.document
    assert (document["status"], document["lastError"]) == ("SUCCESS", "")
    assert (document["topic"], document["persistentName"]) == (EVENTS.topic, NAME)
    (partition,) = document["partitions"]
    assert partition["cursors"] == {
        "__compaction": {"markDeletePosition": 4, "properties": {"CompactedTopicLedger": 0}}
    }
    ledger = partition["compactedLedger"]
    assert ledger == {"ledgerId": 0, "entries": 2, "size": ledger["size"]} and ledger["size"] > 0
    assert partition["compaction"] == {
        "changed": True,
        "readRecords": 5,
        "written": 2,
        "removed": {"superseded": 2, "deleted": 1, "keyless": 0, "aborted": 0},
        "replaced": 0,
    }
    produce(siltstone, shop, b"d:1\n")
    before = tree(shop)
    status = siltstone("topics", "compaction-status", "--dir", shop, "--topic", NAME, "--json")
    assert status.document["status"] == "SUCCESS"
    partition_status = status.document["partitions"][0]
    assert (
        partition_status["compactedLedger"] == ledger
        and partition_status["backlogSize"] > 0
        and partition_status["succeeded"] == 1
    )
    described = siltstone("topics", "--dir", shop, "--describe", "--json").document["topics"][0]
    assert described["partitions"][0]["compactedLedger"] == ledger
    assert described["partitions"][0]["cursors"] == partition["cursors"]
    assert tree(shop) == before, "looking changes nothing"


def test_the_tables_show_status_and_ledger(siltstone: Command, shop: Path) -> None:
    before = siltstone("topics", "compaction-status", NAME, "--dir", shop)
    assert before.lines[:2] == ["acme.shop.events: NOT_RUN", "compactionThreshold: 0 (default)"]
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    after = siltstone("topics", "compaction-status", NAME, "--dir", shop, "--wait-complete")
    assert after.status == 0 and after.lines[0] == "acme.shop.events: SUCCESS"
    described = siltstone("topics", "--dir", shop, "--describe")
    assert any("compacted up to offset 4: ledger 0, 2 entries" in line for line in described.lines)


def test_a_dry_run_shows_the_backlog_and_changes_nothing(siltstone: Command, shop: Path) -> None:
    before = tree(shop)
    for command in (("compact-topic", "--topic", NAME), ("topics", "compact", NAME)):
        completed = siltstone(*command, "--dir", shop, "--dry-run")
        assert completed.status == 0 and "would be compacted from offset 0 on" in completed.lines[0]
    assert tree(shop) == before


def test_a_topic_name_with_a_partition_compacts_only_that_partition(siltstone: Command, logs: Path) -> None:
    for number in (0, 1):
        siltstone("produce", "--dir", logs, "-t", "orders", "-p", number, "-K", ":", stdin=b"a:1\na:2\n")
    completed = siltstone("compact-topic", "--dir", logs, "--topic", "orders-partition-1", "--json")
    assert [partition["partition"] for partition in completed.document["partitions"]] == [1]
    both = siltstone("topics", "compaction-status", "orders", "--dir", logs, "--json").document
    assert [partition["status"] for partition in both["partitions"]] == ["NOT_RUN", "SUCCESS"]
    assert both["status"] == "SUCCESS"


def test_a_partition_that_cannot_be_opened_does_not_keep_the_others_from_being_compacted(
    siltstone: Command, logs: Path
) -> None:
    for number in (0, 1):
        siltstone("produce", "--dir", logs, "-t", "orders", "-p", number, "-K", ":", stdin=b"a:1\na:2\n")
    segment = logs / "orders-0" / "00000000000000000000.log"
    segment.with_name(f"{segment.name}.swap").write_bytes(segment.read_bytes())
    status = siltstone("topics", "compaction-status", "orders", "--dir", logs)
    assert status.status == 1 and "orders-0" in status.err and "siltstone recover" in status.err
    completed = siltstone("compact-topic", "--dir", logs, "--topic", "orders", "--json")
    assert completed.status == 1 and "siltstone recover" in completed.err
    broken, compacted = completed.document["partitions"]
    assert "siltstone recover" in broken["failure"] and "compaction" not in broken
    assert compacted["compaction"]["changed"] and "failure" not in compacted


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("compact-topic",), 2, "--dir"),
        (("compact-topic", "--topic", "non-persistent://a/b/c"), 2, "persistent topic"),
        (("compact-topic", "--topic", "persistent://a/b"), 1, "persistent://a/b"),
        (("compact-topic", "--topic", "nobody"), 1, "UNKNOWN_TOPIC"),
        (("compact-topic", "--topic", NAME, "--high-watermark", "3"), 2, "only 'end'"),
        (("compact-topic", "--topic", NAME, "--reset", "--dry-run"), 2, "--reset and --dry-run exclude"),
        (("topics", "compact"), 2, "pass --topic"),
        (("topics", "compress", NAME), 2, "siltstone topics compact"),
        (("topics", "squeeze", "--topic", NAME), 2, "pass one of"),
        (("topics", "compact", NAME, "--topic", NAME), 2, "leave out --topic"),
        (("topics", "--list", "compact"), 2, "pass one of"),
        (("topics", "compact", NAME, "--wait-complete"), 2, "is only for compaction-status"),
        (("topics", "compaction-status", "nobody"), 1, "UNKNOWN_TOPIC"),
    ],
)
def test_contradictory_flags_and_unknown_topics_are_refused(
    siltstone: Command, shop: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    directory = () if message == "--dir" else ("--dir", shop)
    topic = ("--topic", NAME) if message == "--dir" else ()
    completed = siltstone(*arguments, *topic, *directory)
    assert completed.status == status and message in completed.err and not completed.out


def test_a_directory_that_is_held_or_was_not_stopped_cleanly_is_refused(
    siltstone: Command, shop: Path
) -> None:
    with LogManager.open([shop]):
        completed = siltstone("compact-topic", "--dir", shop, "--topic", NAME)
        assert completed.status == 1 and "holds .lock" in completed.err
    (shop / ".kafka_cleanshutdown").unlink()
    before = {name: content for name, (content, _) in tree(shop).items()}
    completed = siltstone("compact-topic", "--dir", shop, "--topic", NAME)
    assert completed.status == 1 and "siltstone recover" in completed.err
    assert {name: content for name, (content, _) in tree(shop).items()} == before
    assert siltstone("recover", shop).status == 0
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0


def test_only_the_compacted_folder_changes(siltstone: Command, shop: Path) -> None:
    def others() -> dict[str, str]:
        return {name: sha for name, (sha, _) in tree(shop).items() if ".compacted" not in name}

    before = others()
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    assert others() == before
    assert (shop / str(EVENTS) / ".compacted" / "cursor.json").exists()


def test_a_compaction_whose_process_died_is_shown_as_interrupted(siltstone: Command, shop: Path) -> None:
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    path = shop / str(EVENTS) / ".compacted" / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "RUNNING"}))
    claim = lock_compaction(shop / str(EVENTS))
    assert claim is not None
    running = siltstone("topics", "compaction-status", NAME, "--dir", shop, "--json")
    assert (running.status, running.document["status"]) == (0, "RUNNING")
    refused = siltstone("compact-topic", "--dir", shop, "--topic", NAME)
    assert refused.status == 1 and "Compaction already in progress" in refused.err
    claim.release()
    died = siltstone("topics", "compaction-status", NAME, "--dir", shop, "--json")
    assert (died.status, died.document["status"]) == (1, "ERROR")
    assert "interrupted" in died.document["lastError"] and "interrupted" in died.err
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0


def test_a_damaged_ledger_is_named_until_it_is_reset(siltstone: Command, shop: Path) -> None:
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    produce(siltstone, shop, b"d:1\n")
    (shop / str(EVENTS) / ".compacted" / "ledger-0.json").unlink()
    for command in (
        ("compact-topic", "--topic", NAME),
        ("topics", "compaction-status", NAME),
        ("topics", "--describe"),
        ("consume", "-t", EVENTS.topic, "-e", "--read-compacted"),
    ):
        completed = siltstone(*command, "--dir", shop)
        assert (
            completed.status == 1
            and "ledger-0.json: the file is missing" in completed.err
            and "--reset" in completed.err
        ), command
    dry = siltstone("compact-topic", "--topic", NAME, "--dir", shop, "--dry-run")
    assert dry.status == 1 and dry.lines == [f"{EVENTS}: would not be compacted"]
    assert len(consumed(siltstone, shop)) == 6, "the originals can be read"
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME, "--reset").status == 0
    assert consumed(siltstone, shop, "--read-compacted") == ["2 a=2", "3 c=1", "5 d=1"]


def test_another_order_needs_a_reset(siltstone: Command, shop: Path) -> None:
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    setting = ("--entity-type", "topics", "--entity-name", EVENTS.topic, "--add-config")
    siltstone("configs", "--dir", shop, "--alter", *setting, "siltstone.compaction.order=time")
    produce(siltstone, shop, b"d:1\n")
    completed = siltstone("compact-topic", "--dir", shop, "--topic", NAME)
    assert completed.status == 1 and "--reset" in completed.err
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME, "--reset").status == 0


def test_a_namespaces_threshold_is_used(siltstone: Command, shop: Path) -> None:
    """The topic's own goes first, then the broker's, then the namespace's."""
    entity = ("configs", "--dir", shop, "--entity-type", "namespaces")
    setting = ("--entity-name", "acme/shop", "--add-config", "compactionThreshold=100")
    dry = siltstone(*entity, "--alter", *setting, "--dry-run")
    assert dry.status == 0 and siltstone(*entity, "--describe").lines == []
    assert siltstone(*entity, "--alter", *setting).lines == [
        "updating config for namespace acme/shop completed",
        "  compactionThreshold: (default) → 100",
    ]
    assert siltstone(*entity, "--describe", "--json").document["entities"][0]["entity_name"] == "acme/shop"

    def source(*flags: object) -> tuple[int, str]:
        compaction_status = siltstone(
            "topics", "compaction-status", NAME, "--dir", shop, "--json", *flags
        ).document
        return compaction_status["compactionThreshold"], compaction_status["compactionThresholdSource"]

    assert source() == (100, "namespace")
    properties = shop.parent / "server.properties"
    properties.write_text("brokerServiceCompactionThresholdInBytes=50\n")
    assert source("--server-properties", properties) == (50, "broker")
    topic = ("--entity-type", "topics", "--entity-name", EVENTS.topic)
    siltstone("configs", "--dir", shop, "--alter", *topic, "--add-config", "compactionThreshold=10")
    assert source("--server-properties", properties) == (10, "topic")
    for wrong, status, message in (
        (("acme", "compactionThreshold=1"), 2, "tenant/namespace"),
        (("acme/shop", "retention.ms=1"), 1, "namespace acme/shop: retention.ms"),
    ):
        completed = siltstone(*entity, "--alter", "--entity-name", wrong[0], "--add-config", wrong[1])
        assert completed.status == status and message in completed.err


def brokers_log(path: Path, high_watermark: int | None) -> Path:
    """A stopped broker's topic, of which Siltstone knows no more than its files."""
    segments = {0: [one(0, "a", "committed"), one(1, "b")], 2: [one(2, "a", "not replicated")]}
    write_log(path, segments, high_watermark=high_watermark)
    (path / ".kafka_cleanshutdown").touch()
    return path


@pytest.mark.parametrize("flags", [(), ("--high-watermark", "end")])
def test_an_entry_for_the_high_watermark_bounds_a_brokers_topic(
    siltstone: Command, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A record above it may be truncated: it must not supersede a value in the ledger."""
    path = brokers_log(tmp_path / "logs", 2)
    completed = siltstone("compact-topic", "--dir", path, "--topic", "topic", "--json", *flags)
    assert completed.status == 0, completed.err
    (partition,) = completed.document["partitions"]
    assert partition["cursors"]["__compaction"]["markDeletePosition"] == 1
    assert partition["compaction"]["written"] == 2


def test_a_brokers_topic_without_an_entry_is_refused_unless_it_has_no_other_replica(
    siltstone: Command, tmp_path: Path
) -> None:
    path = brokers_log(tmp_path / "logs", None)
    command = ("compact-topic", "--dir", path, "--topic", "topic")
    for flags in (("--dry-run",), ()):
        completed = siltstone(*command, *flags)
        assert completed.status == 1 and "--high-watermark end" in completed.err
    assert not (path / "topic-0" / ".compacted" / "cursor.json").exists()
    completed = siltstone(*command, "--high-watermark", "end", "--json")
    assert completed.status == 0, completed.err
    (partition,) = completed.document["partitions"]
    assert partition["cursors"]["__compaction"]["markDeletePosition"] == 2


# Beside the other commands


def test_clean_leaves_the_ledger_and_a_cleaned_copy_has_none(siltstone: Command, shop: Path) -> None:
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    shared_options = {"config": ("cleanup.policy=compact",), "topics": (EVENTS.topic,), "force": True}
    shared_options |= {"high_watermark": "end"}

    def run(**options: object) -> None:
        request = CleanRequest(directories=[shop], **shared_options, **options)  # type: ignore[arg-type]
        report = clean(request, engine=lambda *_: InProcessEngine())
        assert [result.status for result in report.results] in (["cleaned"], ["nothing_to_do"])

    run(out=shop.parent / "copy")
    assert not (shop.parent / "copy" / str(EVENTS) / ".compacted").exists()
    assert consumed(siltstone, shop.parent / "copy", "--read-compacted") == consumed(
        siltstone, shop.parent / "copy"
    )
    before = consumed(siltstone, shop, "--read-compacted")
    run(in_place=True)
    assert consumed(siltstone, shop, "--read-compacted") == before == ["2 a=2", "3 c=1"]


def test_the_ledger_survives_recover_and_goes_with_its_topic(siltstone: Command, shop: Path) -> None:
    assert siltstone("compact-topic", "--dir", shop, "--topic", NAME).status == 0
    (shop / ".kafka_cleanshutdown").unlink()
    assert siltstone("recover", shop).status == 0
    assert consumed(siltstone, shop, "--read-compacted") == ["2 a=2", "3 c=1"]
    assert siltstone("topics", "--dir", shop, "--delete", "--topic", EVENTS.topic).status == 0
    assert not (shop / str(EVENTS)).exists()


def pages_example() -> list[tuple[str, str]]:
    """The commands of the page, each with what it prints; that may end with an ellipsis."""
    page = Path(__file__).resolve().parents[2] / "docs" / "compacted.md"
    commands = steps(page.read_text(encoding="utf-8"))
    assert len(commands) == 6
    return commands


def assert_printed(output: str, expected: str) -> None:
    before, elided, _ = expected.partition(" …\n")
    assert output.startswith(before) if elided else output == expected


def test_the_pages_example_is_what_happens(
    siltstone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, expected in pages_example():
        assert_printed(printed_here(command, siltstone), expected)


@pytest.mark.long  # the same in processes of their own
def test_the_pages_example_is_what_happens_in_a_shell(tmp_path: Path) -> None:
    for command, expected in pages_example():
        assert_printed(printed(command, tmp_path), expected)


def test_spark_gets_the_master_and_the_settings(
    siltstone: Command, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_arguments = []

    def engine(*arguments: object) -> InProcessCompactionEngine:
        engine_arguments.append(arguments)
        return InProcessCompactionEngine()

    monkeypatch.setattr(cleaning, "compaction_engine", engine)
    words = ["compact-topic", "--dir", shop, "--topic", NAME, "--master", "spark://host:7077"]
    conf = ["--spark-conf", "spark.executor.memory=2g", "--spark-conf", "spark.speculation=true"]
    assert siltstone(*words, *conf).status == 0
    settings = {"spark.executor.memory": "2g", "spark.speculation": "true"}
    assert engine_arguments == [(True, "spark://host:7077", settings)]
    assert siltstone(*words, "--spark-conf", "executor.memory=2g").status == 2 and len(engine_arguments) == 1
