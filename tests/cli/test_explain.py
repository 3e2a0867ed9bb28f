"""``siltstone explain``: tables, JSON, a page; nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Command, tree
from tests.support.operator.staged import Staged, stage


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "tombstones", tmp_path / "logs", 1)


def _flags(staged: Staged) -> list[str]:
    config = [part for setting in staged.request.config for part in ("--config", setting)]
    return ["--topic", staged.case.topic, *config, "--now-ms", str(staged.request.now_ms), "--no-spark"]


def test_the_document_is_what_cleaning_then_reports(siltstone: Command, staged: Staged) -> None:
    before = tree(staged.directory)
    completed = siltstone("explain", staged.directory, *_flags(staged), "--json")
    assert completed.status == 0 and tree(staged.directory) == before
    (log,) = completed.document["logs"]
    result = staged.clean_one()
    assert log["removed"]["superseded"] == result.discarded.superseded
    assert (log["bytes_after"], log["status"]) == (result.bytes_after, "would_clean")
    assert log["settings"]["cleanup.policy"] == {"value": "compact", "source": "--config"}


def test_the_tables_mask_keys_unless_they_are_asked_for(siltstone: Command, staged: Staged) -> None:
    text = siltstone("explain", staged.directory, *_flags(staged)).out.decode()
    assert "hottest keys" not in text
    text = siltstone("explain", staged.directory, *_flags(staged), "--top", "3").out.decode()
    for words in (
        "would clean",
        "bounded by active segment 573",
        "Kafka would need 1 pass",
        "hottest keys",
        "••••",
    ):
        assert words in text
    assert "key-00" not in text
    assert "key-00" in siltstone("explain", staged.directory, *_flags(staged), "--show-keys").out.decode()


def test_a_page_never_replaces_a_file(siltstone: Command, staged: Staged, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert siltstone("explain", staged.directory, *_flags(staged), "--html", path).status == 0
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    completed = siltstone("explain", staged.directory, *_flags(staged), "--html", path)
    assert completed.status == 2 and "already exists" in completed.err


def test_the_whole_broker_by_its_own_settings(siltstone: Command, stopped_broker: tuple[Path, Path]) -> None:
    before = tree(*stopped_broker)
    completed = siltstone("explain", *stopped_broker, "--policy-from-metadata", "--no-spark", "--json")
    assert completed.status == 0 and tree(*stopped_broker) == before
    states = {log["status"] for log in completed.document["logs"]}
    assert "would_clean" in states and "skipped" in states


def test_keys_of_the_coordinators_topics_are_shown_decoded(
    siltstone: Command, stopped_broker: tuple[Path, Path]
) -> None:
    flags = ("--topic", "__consumer_offsets", "--topic", "__transaction_state", "--policy-from-metadata")
    flags = (*flags, "--force", "--no-spark", "--json")
    shown = siltstone("explain", *stopped_broker, *flags, "--show-keys").document
    keys = {log["topic"]: [key["key"] for key in log["hottest_keys"]] for log in shown["logs"]}
    assert "group=mailer topic=ledger partition=0" in keys["__consumer_offsets"]
    assert all(key.startswith("transactionalId=") for key in keys["__transaction_state"])
    masked = siltstone("explain", *stopped_broker, *flags).out
    assert b"billing" not in masked and b"transactionalId" not in masked
