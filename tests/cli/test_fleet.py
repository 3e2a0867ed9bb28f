"""`siltstone clean --fleet` and `siltstone undo --fleet`: the table, the objects, the exit status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from siltstone.cli import fleet as shown
from siltstone.commands.clean import CleanOutcome
from siltstone.commands.fleet import BrokerResult, Fleet
from tests.support.command_line import Command, Done
from tests.support.operator.fleets import NAMES, Root
from tests.support.operator.staged import listing


@pytest.fixture
def root(golden: Path, tmp_path: Path) -> Root:
    return Root(golden, tmp_path / "root")


def clean(siltstone: Command, root: Root, *flags: object) -> Done:
    request = root.request()
    settings = [part for setting in request.config for part in ("--config", setting)]
    fixed = ["clean", "--fleet", root.pattern, "--now-ms", request.now_ms, "--no-spark", *settings]
    return siltstone(*fixed, "--topic", *request.topics, *flags)


def unclean(root: Root, name: str) -> None:
    (root.staged[name].directory / ".kafka_cleanshutdown").unlink()


def test_the_table_has_a_row_for_each_broker_and_the_sums(siltstone: Command, root: Root) -> None:
    unclean(root, "broker2")
    completed = clean(siltstone, root, "--in-place")
    assert completed.status == 1 and completed.err == ""
    heading, *rows = completed.lines
    assert heading.split() == ["broker", "status", "logs", "cleaned", "bytes", "removed", "seconds"]
    assert [row.split()[:2] for row in rows[:3]] == [
        ["broker1", "cleaned"],
        ["broker2", "failed"],
        ["broker3", "cleaned"],
    ]
    text = " ".join(" ".join(rows[3:]).split())
    assert (
        f"failed: broker2: {root.staged['broker2'].directory}: the directory was not stopped cleanly" in text
    )
    assert "siltstone recover" in text
    assert re.search(
        r"2 of 2 logs of 3 brokers cleaned: .* → .*, [\d,]+ records removed; 1 broker with", text
    )


def test_a_restart_says_why_there_is_nothing_to_do(siltstone: Command, root: Root) -> None:
    assert clean(siltstone, root, "--in-place").status == 0
    before = listing(root.folder)
    completed = clean(siltstone, root, "--in-place", "--force")
    assert completed.status == 0 and listing(root.folder) == before
    text = " ".join(" ".join(completed.lines).split())
    assert "nothing_to_do: broker1, broker2, broker3: nothing that may be cleaned lies above" in text
    assert "none of 3 logs of 3 brokers cleaned, " in text


def test_a_dry_run_changes_nothing(siltstone: Command, root: Root) -> None:
    before = listing(root.folder)
    completed = clean(siltstone, root, "--dry-run")
    assert completed.status == 0 and listing(root.folder) == before
    assert "dry run" in completed.lines[0] and "broker1  would clean" in completed.lines[2]
    assert "3 of 3 logs of 3 brokers would be cleaned" in completed.lines[-1]


def test_json_is_an_object_for_each_broker_and_one_with_the_sums(siltstone: Command, root: Root) -> None:
    unclean(root, "broker3")
    completed = clean(siltstone, root, "--in-place", "--json", "--brokers-at-once", 1)
    assert completed.status == 1
    *brokers, last = completed.documents
    assert [document["broker"] for document in brokers] == list(NAMES)
    assert [document["status"] for document in brokers] == ["cleaned", "cleaned", "failed"]
    assert [log["topic"] for document in brokers for log in document["logs"]] == ["basic", "basic"]
    assert brokers[2]["failure"]["code"] == "DIRECTORY_REFUSED" and brokers[2]["logs"] == []
    assert {document["run"] for document in completed.documents} == {last["run"]}
    total = last["total"]
    assert (total["brokers"], total["ended"], total["brokers_failed"]) == (3, 3, 1)
    assert (total["logs"], total["cleaned"], total["failed"]) == (2, 2, 0)
    logs = [document["logs"][0] for document in brokers[:2]]
    assert total["records_removed"] == sum(sum(log["removed"].values()) for log in logs)
    assert total["bytes_after"] == sum(log["bytes_after"] for log in logs) < total["bytes_before"]


def test_verbose_shows_the_logs_of_each_broker_and_quiet_only_failures(
    siltstone: Command, root: Root
) -> None:
    unclean(root, "broker2")
    completed = clean(siltstone, root, "--dry-run", "-v", "--brokers-at-once", 1)
    assert completed.lines[0] == "broker1:" and completed.lines[3].startswith("basic-0  would clean")
    assert "3 brokers would be cleaned" in completed.lines[-1]
    completed = clean(siltstone, root, "--dry-run", "-q")
    assert completed.lines == [] and completed.status == 1
    assert completed.err.startswith("siltstone: failed: broker2: ") and completed.err.count("\n") == 1


def test_originals_are_put_back_by_the_command_that_is_shown(
    siltstone: Command, root: Root, tmp_path: Path
) -> None:
    before = {name: listing(staged.partition) for name, staged in root.staged.items()}
    completed = clean(siltstone, root, "--in-place", "--keep-originals", tmp_path / "kept [all]")
    (line,) = (line for line in completed.lines if line.startswith("originals kept"))
    match = re.search(r"siltstone undo --fleet '(.*)'$", line)
    assert match is not None
    dry = siltstone("undo", "--fleet", match[1], "--dry-run")
    assert dry.lines == [f"{name}: 3 segments of 1 log would be restored" for name in NAMES]
    with next(iter(root.staged["broker3"].partition.glob("*.log"))).open("ab") as file:
        file.write(b"more")
    undone = siltstone("undo", "--fleet", match[1])
    assert undone.status == 1
    assert undone.lines[:2] == [f"{name}: 3 segments of 1 log restored" for name in NAMES[:2]]
    assert undone.lines[2].split()[:2] == ["broker3:", "failed:"]  # a long path begins the next line
    for name in NAMES[:2]:
        assert listing(root.staged[name].partition) == before[name]
    again = siltstone("undo", "--fleet", match[1], "--json").documents
    assert [document["logs"][0]["restored"] for document in again[:2]] == [[], []]
    assert again[2]["failure"]["code"] == "DIRECTORY_REFUSED" and again[2]["logs"] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fleet", "ROOT/*/", "--in-place"], ["all compacted topics of all brokers", "--all-topics"]),
        (["--fleet", "ROOT/broker1", "ROOT/broker2", "--dry-run"], ["log directories", "quotes"]),
        (["--fleet", "ROOT/*/", "--dir", "ROOT/broker1", "--dry-run"], ["log directories", "quotes"]),
        (["--fleet", "ROOT/*/", "--watch"], ["--watch", "one broker"]),
        (["--fleet", "ROOT/no*/", "--dry-run"], ["no*", "quotes"]),
        (["ROOT/broker1", "--brokers-at-once", "2", "--dry-run"], ["--brokers-at-once", "--fleet"]),
    ],
)
def test_wrong_usage_is_refused(siltstone: Command, root: Root, flags: list[str], words: list[str]) -> None:
    completed = siltstone("clean", *(flag.replace("ROOT", str(root.folder)) for flag in flags))
    assert completed.status == 2 and not completed.lines
    assert all(word in completed.err for word in words), completed.err


def test_undo_wants_one_run_or_a_pattern(siltstone: Command, tmp_path: Path) -> None:
    for arguments, word in ((["undo"], "--fleet"), (["undo", "RUN", "--fleet", f"{tmp_path}/*"], "quotes")):
        completed = siltstone(*arguments)
        assert completed.status == 2 and word in completed.err


def test_an_interrupt_still_shows_the_brokers_that_are_done(
    siltstone: Command, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Fleet._add

    def interrupted(fleet: Fleet, result: BrokerResult, outcome: CleanOutcome, on_broker: object) -> None:
        add(fleet, result, outcome, on_broker)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "_add", interrupted)
    completed = clean(siltstone, root, "--in-place", "--brokers-at-once", 1)
    assert completed.status == 130 and "interrupted" in completed.err
    assert completed.lines[1].split()[:2] == ["broker1", "cleaned"]
    assert "2 not begun or interrupted" in completed.lines[-1]


def test_brokers_are_sorted_by_their_numbers() -> None:
    names = ["broker10", "broker2", "rack1/b", "rack1/a10", "rack1/a9"]
    assert sorted(names, key=shown._by_number) == ["broker2", "broker10", "rack1/a9", "rack1/a10", "rack1/b"]
