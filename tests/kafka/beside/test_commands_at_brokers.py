"""``dump``, ``verify`` and ``empty`` with ``--bootstrap-server``, at a real Kafka and at our broker: what is
printed is what is in the log's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_twin.batches import batch, numbered
from tests.support.broker_twin.pair import BOTH, Pair, Which
from tests.support.broker_twin.side import Side
from tests.support.command_line import Command

pytestmark = pytest.mark.kafka

LATER_MS = 1_650_000_000_000
"""So much later that the log rolls."""


@pytest.fixture(scope="module", params=BOTH)
def place(request: pytest.FixtureRequest, pair: Pair) -> tuple[Which, str, Path]:
    """Which broker, its HOST:PORT, its log directory; the topic commands has two partitions, of which one has
    two segments and records of every codec."""
    which: Which = request.param
    side = Side(pair.bootstrap[which])
    side.create("commands", 2)
    side.produce("commands", *(batch(3, codec=codec) for codec in range(5)))
    side.produce("commands", numbered(0, 2, producer_id=7_001_000), batch(2, time_ms=LATER_MS))
    side.close()
    return which, pair.bootstrap[which], pair.log_dir[which]


def segments(place: tuple[Which, str, Path]) -> list[Path]:
    paths = sorted((place[2] / "commands-0").glob("*.log"))
    assert len(paths) == 2
    return paths


def test_dump_prints_what_is_in_the_files(place: tuple[Which, str, Path], siltstone: Command) -> None:
    arguments = ("dump", "--bootstrap-server", place[1], "-t", "commands")
    for flags in (("--json",), ("--print-data-log", "--json")):
        of_files, position = [], 0
        for path in segments(place):
            rows = siltstone("dump", path, *flags).documents[1:]
            for row in rows:  # positions at a broker go on across segments
                if row["type"] == "batch":
                    row["position"] += position
            of_files += rows
            position += path.stat().st_size
        result = siltstone(*arguments, "-p", "0", *flags)
        assert (result.status, result.err) == (0, "")
        assert result.documents[0] == {"type": "file", "file": "commands-0", "kind": "log", "startOffset": 0}
        assert result.documents[1:] == of_files
    assert siltstone(*arguments).lines[-2:] == ["Dumping commands-1", "Log starting offset: 0"]
    assert siltstone(*arguments, "-o", "1", "-p", "1").err.endswith("(OFFSET_OUT_OF_RANGE)\n")


def test_verify_counts_what_is_in_the_files(place: tuple[Which, str, Path], siltstone: Command) -> None:
    result = siltstone("verify", "--bootstrap-server", place[1], "--topic", "commands", "--json")
    assert result.status == 0, result.out
    log, empty = result.document["logs"]
    rows = [row for path in segments(place) for row in siltstone("dump", path, "--json").documents[1:]]
    assert {name: log[name] for name in ("log_start_offset", "batches", "records", "bytes")} == {
        "log_start_offset": 0,
        "batches": len(rows),
        "records": sum(row["count"] for row in rows),
        "bytes": sum(path.stat().st_size for path in segments(place)),
    }
    assert log["high_watermark"] == rows[-1]["lastOffset"] + 1
    assert log["largest_timestamp"] == LATER_MS + 1
    assert (empty["records"], empty["high_watermark"]) == (0, 0)
    assert siltstone("verify", "--bootstrap-server", place[1], "--topic", "commands-none").status == 1


def test_verify_finds_damage_on_the_disk(place: tuple[Which, str, Path], siltstone: Command) -> None:
    path = segments(place)[0]
    with path.open("r+b") as file:
        file.seek(70)
        original = file.read(1)
        file.seek(70)
        file.write(bytes([original[0] ^ 1]))
        file.flush()
        result = siltstone("verify", "--bootstrap-server", place[1], "--topic", "commands", "--json")
        file.seek(70)
        file.write(original)
    assert (result.status, result.document["logs"][0]["found"]) == (1, {"unreadable": 1})
    problem = result.document["logs"][0]["problems"][0]
    assert (problem["offset"], problem["position"]) == (0, 0)


def test_empty_writes_tombstones_and_truncates(place: tuple[Which, str, Path], siltstone: Command) -> None:
    at = ("--bootstrap-server", place[1])
    create = ("topics", "--create", "--topic", "commands-emptied", "--partitions", 1, *at)
    assert siltstone(*create, "--config", "cleanup.policy=compact,delete").status == 0
    lines = b"a:1\nb:2\na:3\n"
    assert siltstone("produce", "-t", "commands-emptied", "-K", ":", *at, stdin=lines).status == 0
    empty = ("empty", "--topic", "commands-emptied", *at, "--json")
    (row,) = siltstone(*empty, "--mode", "tombstones", "--dry-run").document["partitions"]
    assert (row["records"], row["keys"], row["bytes"]) == (3, 2, None)
    result = siltstone(*empty, "--mode", "tombstones", "--yes")
    (row,) = result.document["partitions"]
    assert (result.status, row["keys_after"]) == (1, 0)  # values are there until the broker has cleaned
    read = siltstone("consume", "-t", "commands-emptied", "-e", "-q", "-f", "%k %S\\n", *at)
    assert read.lines == ["a 1", "b 1", "a 1", "a -1", "b -1"] or read.lines[3:] == ["b -1", "a -1"]
    result = siltstone(*empty, "--mode", "truncate", "--yes")
    (row,) = result.document["partitions"]
    assert (result.status, row["log_start_offset"], row["held"]) == (0, 5, None)
    assert siltstone("topics", "--delete", "--topic", "commands-emptied", *at).status == 0
    result = siltstone("empty", "--topic", "commands", *at, "--mode", "tombstones", "--yes")
    assert (result.status, "(POLICY_VIOLATION)" in result.err) == (1, True)
