"""docs/json.md has every key that a command prints with ``--json``, and no other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli import watch
from tests.support import coordinator_records as encoded
from tests.support.broker_twin.batches import numbered
from tests.support.cleaning.logs import Rec, batch
from tests.support.command_line import Command
from tests.support.fake_cluster import partition_of
from tests.support.operator.staged import Staged, stage
from tests.support.pages import named_in_rows, sections
from tests.support.tables.tables import log_directory

MAPS = {*"settings options sha256_before sha256_after found states configs config before after".split()}
MAPS |= {"entity", "quotas"}
"""Objects whose keys are names from the data."""
FAILED = tuple(f"logs[].failure{part}" for part in ("", ".code", ".path", ".position", ".advice"))
"""Only of a log that failed."""
COUNTS = ("logs[].records_read", "logs[].records_retained")
HISTORY = ("last_cleaning", "last_failure")
"""Described on another page, docs/monitoring.md."""


def printed_keys(value: Any, path: str = "") -> Iterator[str]:
    """The path of every value: ``logs[].removed.superseded``; names from the data are NAME."""
    name = path.rpartition(".")[2]
    if isinstance(value, dict) and name not in HISTORY:
        parent = path.rpartition(".")[0]
        has_free_names = name in MAPS or (parent.startswith("sha256_") and name == "NAME")
        for key, member in value.items():
            yield from printed_keys(member, f"{path}.{'NAME' if has_free_names else key}".lstrip("."))
    elif isinstance(value, list):
        for member in value:
            yield from printed_keys(member, f"{path}[]")
    else:
        yield path.removesuffix("[]")


def hold_to_page(section: str, documents: list[Any], rare: tuple[str, ...] = ()) -> None:
    """The page's section names the keys of the documents, and besides only the ``rare`` ones."""
    text = sections("json.md")[section]
    page = named_in_rows(text.partition("### A log of clean")[0])
    if section in ("clean", "clean --fleet", "clean --report"):
        log = sections("json.md", "###")["A log of clean"]
        page += [f"logs[].{key}" for key in named_in_rows(log)]
    described = {key.removesuffix("[]") for key in page if not key.endswith("…")} - {"logs"}
    open_ended = tuple(key.removesuffix("…") for key in page if key.endswith("…"))
    keys = {key for document in documents for key in printed_keys(document)}
    missing = {key for key in keys if not key.startswith(open_ended)} - described
    assert not missing, f"not on the page: {sorted(missing)}"
    surplus = described - keys - set(rare)
    assert not surplus, f"on the page, and not printed: {sorted(surplus)}"


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "tombstones", tmp_path / "logs", 1)


@pytest.fixture
def flags(staged: Staged) -> list[object]:
    config = [part for setting in staged.request.config for part in ("--config", setting)]
    return ["--topic", staged.case.topic, *config, "--now-ms", staged.request.now_ms, "--json"]


def test_clean_its_audit_and_undo(
    siltstone: Command, staged: Staged, flags: list[object], tmp_path: Path
) -> None:
    (staged.directory / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    outputs = ("--keep-originals", tmp_path / "keep", "--report", tmp_path / "audit.json")
    cleaned = siltstone("clean", staged.directory, "--in-place", "--no-spark", *flags, *outputs).document
    hold_to_page("clean", [cleaned], rare=("notes", "logs[].notes", *FAILED, *COUNTS))
    audit = json.loads((tmp_path / "audit.json").read_bytes())
    unread = ("sha256_before.NAME.NAME.error", "sha256_after.NAME.NAME.error")
    hold_to_page("clean --report", [audit], rare=("logs[].notes", *unread, *FAILED, *COUNTS))
    undone = siltstone("undo", cleaned["kept_originals"], "--json").document
    of_fleet = siltstone("undo", "--fleet", cleaned["kept_originals"], "--json").documents
    hold_to_page("undo", [undone, *of_fleet])


def test_clean_of_a_fleet(siltstone: Command, staged: Staged, flags: list[object], tmp_path: Path) -> None:
    (staged.directory / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    shutil.copytree(staged.directory, tmp_path / "logs2")
    (tmp_path / "logs2" / ".kafka_cleanshutdown").unlink()
    documents = siltstone(
        "clean", "--fleet", f"{tmp_path}/log*", "--in-place", "--no-spark", *flags
    ).documents
    assert len(documents) == 3
    hold_to_page("clean --fleet", documents, rare=("notes", "logs[].notes", *FAILED, *COUNTS))


def test_explain(siltstone: Command, staged: Staged, flags: list[object]) -> None:
    (staged.directory / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    explained = siltstone("explain", staged.directory, "--no-spark", *flags).document
    hold_to_page("explain", [explained], rare=("notes", "logs[].notes", "logs[].kafka"))


def test_verify(siltstone: Command, staged: Staged, flags: list[object], tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(staged.directory, before)
    staged.clean_one()
    segment = next(path for path in sorted(staged.partition.glob("*.log")) if path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    verdict = siltstone("verify", before, staged.directory, "--no-spark", *flags).document
    with partition_of(numbered(0, producer_id=1)) as address:
        at_broker = siltstone("verify", "--bootstrap-server", address, "--json").document
    hold_to_page("verify", [verdict, at_broker], rare=("notes", "logs[].notes"))


def test_recover(siltstone: Command, staged: Staged) -> None:
    """One flipped bit below the recovery point, one index that is missing, one torn batch."""
    first, *_, last = sorted(staged.partition.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    with last.open("ab") as file:
        file.write(b"torn")
    last.with_suffix(".index").unlink()
    (staged.directory / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    (staged.partition / "00000000000000000007.log.deleted").write_bytes(b"")
    recovered = siltstone("recover", staged.directory, "--check", "--dry-run", "--json").document
    rare = ("logs[].finished_swaps", "directories[].notes")
    hold_to_page("recover", [recovered], rare)


def test_watch(
    siltstone: Command, staged: Staged, flags: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "pause", interrupt)
    (snapshot,) = siltstone("clean", staged.directory, "--watch", *flags).documents
    hold_to_page("clean --watch", [snapshot], rare=("notes",))


def test_compaction_and_topics(siltstone: Command, tmp_path: Path) -> None:
    named = ("--dir", tmp_path / "logs", "--topic", "orders")
    created = siltstone("topics", *named, "--create", "--config", "retention.ms=1000", "--json").document
    produced = siltstone("produce", *named, "--json", "-K", ":", stdin=b"a:1\nb:1\na:2\n").document
    hold_to_page("produce", [produced])
    before = siltstone("topics", "compaction-status", *named, "--json").document
    compacted = siltstone("compact-topic", *named, "--json").document
    cursor = tmp_path / "logs" / "orders-0" / ".compacted" / "cursor.json"
    valid = cursor.read_bytes()
    cursor.write_bytes(b"{")
    damaged = siltstone("topics", "compaction-status", *named, "--json").document
    cursor.write_bytes(valid)
    hold_to_page("compact-topic", [before, compacted, damaged])
    described = siltstone("topics", *named, "--describe", "--json").document
    listed = siltstone("topics", "--dir", tmp_path / "logs", "--list", "--json").document
    assert listed == {"topics": ["orders"]}
    altered = siltstone("topics", *named, "--alter", "--partitions", 2, "--json").document
    hold_to_page("topics", [created, described, altered])


def test_settings_and_offsets(siltstone: Command, logs: Path, tmp_path: Path) -> None:
    users = ("--dir", logs, "--entity-type", "topics", "--entity-name", "users", "--json")
    namespace = ("--dir", logs, "--entity-type", "namespaces", "--entity-name", "acme/shop", "--json")
    settings = [
        siltstone("configs", *users, "--describe").document,
        siltstone("configs", *users, "--alter", "--add-config", "retention.ms=1000").document,
        siltstone("configs", *namespace, "--alter", "--add-config", "compactionThreshold=9").document,
    ]
    of_ada = ("--dir", logs, "--user", "ada", "--json")
    settings += [
        siltstone("configs", *of_ada, "--alter", "--add-config", "producer_byte_rate=1000").document,
        siltstone("configs", *of_ada, "--describe").document,
    ]
    hold_to_page("configs", settings)
    hold_to_page("get-offsets", [siltstone("get-offsets", "--dir", logs, "--json").document])
    hold_to_page("log-dirs", [siltstone("log-dirs", "--dir", logs, "--describe").document])
    offsets_file = tmp_path / "offsets.json"
    offsets_file.write_text(
        '{"partitions": [{"topic": "orders", "partition": 0, "offset": 0}], "version": 1}'
    )
    deleted = siltstone(
        "delete-records", "--dir", logs, "--offset-json-file", offsets_file, "--json"
    ).document
    hold_to_page("delete-records", [deleted])


def test_erase_and_empty(siltstone: Command, logs: Path) -> None:
    users = (logs, "--topic", "users", "--json")
    siltstone("produce", "--dir", logs, "-t", "users", "-K", ":", stdin=b"a:1\nb:1\n")
    erased = [
        siltstone("erase", *users, "--key", "a", "--dry-run").document,
        siltstone("erase", *users, "--key", "a", "--yes").document,
    ]
    hold_to_page("erase", erased, rare=("keys[].notes", "keys[].receipts[].kept_originals"))
    emptied = [
        siltstone("empty", *users, "--mode", "truncate", "--dry-run").document,
        siltstone("empty", *users, "--mode", "truncate", "--yes").document,
    ]
    hold_to_page("empty", emptied)


def test_groups(siltstone: Command, tmp_path: Path) -> None:
    """One member, one partition of the two that it has is committed."""
    key, group = encoded.key(2, "g"), encoded.group({"m1": encoded.assignment({"orders": [0, 1]})})
    records = [
        Rec(offset=0, key=key, value=group),
        Rec(offset=1, key=encoded.commit_key("g", "orders", 0), value=encoded.commit(3)),
        Rec(offset=2, key=key, value=b"?"),
    ]
    directory = log_directory(tmp_path / "logs", {"__consumer_offsets-0": {0: [batch(records[:2])]}})
    broken = log_directory(tmp_path / "broken", {"__consumer_offsets-0": {0: [batch(records[1:])]}})
    hold_to_page("groups", [siltstone("groups", path, "--json").document for path in (directory, broken)])
