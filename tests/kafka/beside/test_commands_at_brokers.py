"""``dump --bootstrap-server`` at a real Kafka and at our broker: it prints what is in the log's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_twin.batches import batch, numbered
from tests.support.broker_twin.pair import BOTH, Pair, Which
from tests.support.broker_twin.side import Side
from tests.support.command_line import Command, in_this_process

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


@pytest.fixture
def siltstone(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    return in_this_process(capsysbinary, monkeypatch)


def segments(place: tuple[Which, str, Path]) -> list[Path]:
    found = sorted((place[2] / "commands-0").glob("*.log"))
    assert len(found) == 2
    return found


def test_dump_prints_what_is_in_the_files(place: tuple[Which, str, Path], siltstone: Command) -> None:
    asked = ("dump", "--bootstrap-server", place[1], "-t", "commands")
    for flags in (("--json",), ("--print-data-log", "--json")):
        of_files, position = [], 0
        for path in segments(place):
            rows = siltstone("dump", path, *flags).documents[1:]
            for row in rows:  # positions at a broker go on across segments
                if row["type"] == "batch":
                    row["position"] += position
            of_files += rows
            position += path.stat().st_size
        done = siltstone(*asked, "-p", "0", *flags)
        assert (done.status, done.err) == (0, "")
        assert done.documents[0] == {"type": "file", "file": "commands-0", "kind": "log", "startOffset": 0}
        assert done.documents[1:] == of_files
    assert siltstone(*asked).lines[-2:] == ["Dumping commands-1", "Log starting offset: 0"]
    assert siltstone(*asked, "-o", "1", "-p", "1").err.endswith("(OFFSET_OUT_OF_RANGE)\n")
