"""Commands that change a KRaft broker's own directories go by the settings that it gave its topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Command


@pytest.fixture
def places(stopped_broker: tuple[Path, Path]) -> list[str]:
    return [part for path in stopped_broker for part in ("--dir", str(path))]


def alter(siltstone: Command, places: list[str], *flags: str) -> dict[str, str]:
    entity = ("--alter", "--entity-type", "topics", "--entity-name", "users")
    completed = siltstone("configs", *places, *entity, *flags, "--json")
    assert completed.status == 0, completed.err
    after: dict[str, str] = completed.document["after"]
    return after


def test_alter_keeps_the_brokers_settings_and_a_dry_run_says_so(
    siltstone: Command, places: list[str]
) -> None:
    setting = ("--add-config", "min.cleanable.dirty.ratio=0.3")
    planned = alter(siltstone, places, *setting, "--dry-run")
    assert alter(siltstone, places, *setting) == planned
    assert planned["cleanup.policy"] == "compact" and planned["delete.retention.ms"] == "1000"
    assert "delete.retention.ms" not in alter(siltstone, places, "--delete-config", "delete.retention.ms")


def test_a_compacted_topic_takes_no_record_without_a_key(siltstone: Command, places: list[str]) -> None:
    produced = siltstone("produce", *places, "--topic", "users", "--partition", 0, stdin=b"no key\n")
    assert produced.status == 1 and "INVALID_RECORD" in produced.err


def test_records_of_a_compacted_topic_are_not_deleted(
    siltstone: Command, places: list[str], tmp_path: Path
) -> None:
    offsets_file = tmp_path / "offsets.json"
    offsets_file.write_text(
        '{"version": 1, "partitions": [{"topic": "users", "partition": 0, "offset": -1}]}'
    )
    assert (
        "POLICY_VIOLATION"
        in siltstone("delete-records", *places, "--offset-json-file", offsets_file).out.decode()
    )
