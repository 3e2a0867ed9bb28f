"""``siltstone configs``: sources and synonyms as Kafka writes them, changes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.runtime.manager import LogManager
from tests.support.command_line import Command, tree

USERS = ("--entity-type", "topics", "--entity-name", "users")


def test_own_settings_with_their_synonyms(siltstone: Command, logs: Path) -> None:
    shown = siltstone("configs", "--dir", logs, "--describe", *USERS)
    assert shown.lines == [
        "Dynamic configs for topic users are:",
        "  cleanup.policy=compact sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, DEFAULT_CONFIG:log.cleanup.policy=delete}",
    ]


def test_all_shows_every_setting_and_its_source(siltstone: Command, logs: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.hours=24\nlog.segment.bytes=1048576\n")
    more = ("--all", "--server-properties", properties)
    lines = siltstone("configs", "--dir", logs, "--describe", *USERS, *more).lines
    assert lines[0] == "All configs for topic users are:"
    # As Kafka 4 prints them: nothing has a default under log.flush.interval.ms.
    assert "  flush.ms=9223372036854775807 sensitive=false synonyms={}" in lines
    assert (
        "  retention.ms=86400000 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.retention.hours=24}"
        in lines
    )
    assert (
        "  segment.bytes=1048576 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.segment.bytes=1048576, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    ) in lines
    described = siltstone("configs", "--dir", logs, "--describe", *USERS, *more, "--json").document
    by_name = {config["name"]: config for config in described["entities"][0]["configs"]}
    assert by_name["retention.ms"]["source"] == "STATIC_BROKER_CONFIG"
    assert by_name["max.message.bytes"]["source"] == "DEFAULT_CONFIG"
    assert by_name["cleanup.policy"]["synonyms"][0] == {
        "source": "DYNAMIC_TOPIC_CONFIG",
        "name": "cleanup.policy",
        "value": "compact",
    }


def test_a_brokers_settings_are_described(siltstone: Command, logs: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.threads=2\n")
    place = ("--dir", logs, "--server-properties", properties, "--entity-type", "brokers")
    described = siltstone("configs", *place, "--describe", "--entity-name", 0).lines
    assert described == [
        "Non-default configs for broker 0 are:",
        "  log.cleaner.threads=2 sensitive=false "
        "synonyms={STATIC_BROKER_CONFIG:log.cleaner.threads=2, DEFAULT_CONFIG:log.cleaner.threads=1}",
    ]
    everything = siltstone("configs", *place, "--describe", "--all").lines
    assert len(everything) > 50 and any(
        line.startswith("  log.retention.ms=604800000") for line in everything
    )
    assert len(siltstone("configs", *place, "--describe", "--entity-default").lines) == 1
    assert siltstone("configs", *place, "--describe", "--entity-name", 7).status == 2


def test_alter_sets_and_removes_settings(siltstone: Command, logs: Path) -> None:
    completed = siltstone(
        *("configs", "--dir", logs, "--alter", *USERS),
        *("--add-config", "cleanup.policy=[compact,delete],retention.ms=5000", "--json"),
    )
    assert completed.document == {
        "action": "alter",
        "dry_run": False,
        "topic": "users",
        "before": {"cleanup.policy": "compact"},
        "after": {"cleanup.policy": "compact,delete", "retention.ms": "5000"},
    }
    with LogManager.open([logs]) as manager:
        config = manager["users", 0].config
        assert (config.policies, config.retention_ms) == (("compact", "delete"), 5000)
    completed = siltstone(
        *("configs", "--dir", logs, "--alter", *USERS),
        *("--add-config", "retention.bytes=7", "--delete-config", "retention.ms,cleanup.policy"),
    )
    assert completed.lines[0] == "updating config for topic users completed"
    assert "  retention.ms: 5000 → (default)" in completed.lines
    own = siltstone("configs", "--dir", logs, "--describe", *USERS, "--json").document["entities"][0][
        "configs"
    ]
    assert [(setting["name"], setting["value"]) for setting in own] == [("retention.bytes", "7")]


def test_settings_may_be_altered_from_a_file(siltstone: Command, logs: Path, tmp_path: Path) -> None:
    additions = tmp_path / "additions.properties"
    additions.write_text("# ours\nretention.ms = 1000\ncleanup.policy=compact,delete\n")
    completed = siltstone(
        "configs", "--dir", logs, "--alter", *USERS, "--add-config-file", additions, "--json"
    )
    assert completed.document["after"] == {"cleanup.policy": "compact,delete", "retention.ms": "1000"}


def test_a_file_with_an_invalid_escape_is_refused(siltstone: Command, logs: Path, tmp_path: Path) -> None:
    additions = tmp_path / "additions.properties"
    additions.write_text("retention.ms=1000\ncleanup.policy=\\u12\n")
    refused = siltstone("configs", "--dir", logs, "--alter", *USERS, "--add-config-file", additions)
    assert (refused.status, refused.out) == (2, b"") and refused.err.count("\n") == 1
    assert f"{additions}:2" in refused.err and "hexadecimal" in refused.err


def test_a_dry_run_changes_nothing(siltstone: Command, logs: Path) -> None:
    before = tree(logs)
    completed = siltstone(
        "configs", "--dir", logs, "--alter", *USERS, "--add-config", "retention.ms=1", "--dry-run"
    )
    assert completed.lines == [
        "updating config for topic users would be completed",
        "  retention.ms: (default) → 1",
    ]
    assert tree(logs) == before


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("entity", "change", "status", "words"),
    [
        ("none", ("--add-config", "retention.ms=1"), 1, ["UNKNOWN_TOPIC_OR_PARTITION"]),
        ("users", ("--delete-config", "retention.ms"), 1, ["retention.ms", "INVALID_CONFIG"]),
        (
            "users",
            ("--add-config", "min.compaction.lag.ms=9,max.compaction.lag.ms=8"),
            1,
            ["INVALID_CONFIG"],
        ),
        ("users", ("--add-config", "retentoin.ms=1"), 2, ["'retention.ms'"]),
        ("users", ("--add-config", "log.retention.ms=1"), 2, ["set 'retention.ms' instead"]),
        ("users", ("--add-config", "retention.ms"), 2, ["key=value"]),
        ("users", ("--delete-config", "retentoin.ms"), 2, ["'retention.ms'"]),
        ("users", ("--add-config", "siltstone.retention.policy=mine"), 1, ["mine", "INVALID_CONFIG"]),
    ],
)
def test_an_invalid_change_is_refused_and_nothing_is_changed(
    siltstone: Command,
    logs: Path,
    entity: str,
    change: tuple[str, ...],
    status: int,
    words: list[str],
    dry: tuple[str, ...],
) -> None:
    before = tree(logs)
    entity_flags = ("--entity-type", "topics", "--entity-name", entity)
    refused = siltstone("configs", "--dir", logs, "--alter", *entity_flags, *change, *dry)
    assert (refused.status, refused.out) == (status, b"") and refused.err.count("\n") == 1
    for word in words:
        assert word in refused.err
    assert tree(logs) == before, "refused before anything was opened for a change"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--describe", "--alter"),
        ("--describe",),
        ("--describe", "--entity-type", "groups"),
        ("--describe", "--entity-type", "topics", "--entity-default"),
        ("--describe", "--entity-type", "topics", "--add-config", "retention.ms=1"),
        ("--alter", "--entity-type", "topics", "--entity-name", "users"),
        ("--alter", "--entity-type", "topics", "--add-config", "retention.ms=1"),
        (
            "--alter",
            "--entity-type",
            "brokers",
            "--entity-name",
            "0",
            "--add-config",
            "log.cleaner.threads=2",
        ),
    ],
)
def test_contradictory_flags_are_refused(siltstone: Command, logs: Path, arguments: tuple[str, ...]) -> None:
    refused = siltstone("configs", "--dir", logs, *arguments)
    assert (refused.status, refused.out) == (2, b"") and refused.err.count("\n") == 1


def test_a_real_brokers_topics_have_the_settings_that_it_gave_them(
    siltstone: Command, stopped_broker: tuple[Path, Path], golden: Path, tmp_path: Path
) -> None:
    case = json.loads((golden / "whole_43" / "case.json").read_text(encoding="utf-8"))
    properties = tmp_path / "server.properties"
    properties.write_text("log.index.size.max.bytes=16384\n")
    place = ("--dir", stopped_broker[0], "--dir", stopped_broker[1], "--server-properties", properties)
    shown = siltstone("configs", *place, "--describe", "--all", "--entity-type", "topics", "--json").document
    assert len(shown["entities"]) == 14
    for entity in shown["entities"]:
        kafkas = case["state_before"]["topics"][entity["entity_name"]]["configs"]
        small = kafkas["internal.segment.bytes"]
        for setting in entity["configs"]:
            if setting["name"] in kafkas:
                won = setting["name"] == "segment.bytes" and small["source"] != "DEFAULT_CONFIG"
                expected = small if won else kafkas[setting["name"]]
                assert (setting["value"], setting["source"]) == (expected["value"], expected["source"]), (
                    setting["name"]
                )
    defaults = siltstone("configs", *place, "--describe", "--entity-type", "brokers", "--entity-default")
    assert "  log.cleaner.delete.retention.ms=43200000" in defaults.out.decode()
    described = siltstone("topics", *place[:4], "--describe", "--topic", "altered")
    assert "Configs: cleanup.policy=compact,delete.retention.ms=7000," in described.lines[0]


def test_damaged_metadata_is_reported_and_the_topics_are_shown_without_their_settings(
    siltstone: Command, stopped_broker: tuple[Path, Path]
) -> None:
    partition = stopped_broker[0] / "__cluster_metadata-0"
    for path in partition.glob("*.checkpoint"):
        path.unlink()
    log = partition / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    described = siltstone("topics", "--dir", stopped_broker[0], "--describe", "--topic", "users")
    assert described.status == 0
    assert described.lines[0].endswith("Configs: ") and str(log) in described.err
