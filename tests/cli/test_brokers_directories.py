"""Commands that change a KRaft broker's own directories go by the settings that it gave its topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Command


@pytest.fixture
def places(stopped_broker: tuple[Path, Path]) -> list[str]:
    return [part for each in stopped_broker for part in ("--dir", str(each))]


def alter(siltstone: Command, places: list[str], *flags: str) -> dict[str, str]:
    entity = ("--alter", "--entity-type", "topics", "--entity-name", "users")
    done = siltstone("configs", *places, *entity, *flags, "--json")
    assert done.status == 0, done.err
    after: dict[str, str] = done.document["after"]
    return after


def test_alter_keeps_the_brokers_settings_and_a_dry_run_says_so(
    siltstone: Command, places: list[str]
) -> None:
    wanted = ("--add-config", "min.cleanable.dirty.ratio=0.3")
    said = alter(siltstone, places, *wanted, "--dry-run")
    assert alter(siltstone, places, *wanted) == said
    assert said["cleanup.policy"] == "compact" and said["delete.retention.ms"] == "1000"
    assert "delete.retention.ms" not in alter(siltstone, places, "--delete-config", "delete.retention.ms")


def test_a_compacted_topic_takes_no_record_without_a_key(siltstone: Command, places: list[str]) -> None:
    produced = siltstone("produce", *places, "--topic", "users", "--partition", 0, stdin=b"no key\n")
    assert produced.status == 1 and "INVALID_RECORD" in produced.err


def test_records_of_a_compacted_topic_are_not_deleted(
    siltstone: Command, places: list[str], tmp_path: Path
) -> None:
    wanted = tmp_path / "wanted.json"
    wanted.write_text('{"version": 1, "partitions": [{"topic": "users", "partition": 0, "offset": -1}]}')
    assert (
        "POLICY_VIOLATION" in siltstone("delete-records", *places, "--offset-json-file", wanted).out.decode()
    )
