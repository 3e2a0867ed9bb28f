"""A stopped Kafka's directory with its remote segments: Siltstone reads what the broker gave a consumer."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

import siltstone as st
from demo.archive import unpack
from siltstone.base import files
from siltstone.base.errors import SiltstoneError
from siltstone.base.files.joined import place_of_joined
from siltstone.cli.main import run
from siltstone.log.tiered.joining import RemotePart, remote_part, with_remote
from tests.support.golden_sets import DATA
from tests.support.kafka.tiering import STORAGE, TOPIC, as_lines


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    unpack(DATA / "tiered.tar.xz", tmp_path)
    return tmp_path / "tiered"


def part_of(broker: Path) -> RemotePart:
    path = with_remote(broker / "logs", str(broker / "tier" / STORAGE)) / f"{TOPIC}-0"
    found = remote_part(place_of_joined(path))
    assert found is not None
    return found


def lines_of(broker: Path) -> list[str]:
    with st.open(broker / "logs", remote=str(broker / "tier" / STORAGE)) as logs:
        log = logs[TOPIC, 0]
        assert log.damage == ()
        return as_lines(log.records(isolation="read_committed"))  # type: ignore[arg-type]


def expected(broker: Path) -> list[str]:
    found = (broker / "records.jsonl").read_text().splitlines()
    assert len(found) == 1_500 + 300 + 2_000
    return found


def test_records_are_those_that_the_broker_gave(broker: Path) -> None:
    with st.open(broker / "logs") as logs:
        assert logs[TOPIC, 0].log_start_offset > 1_800
    assert lines_of(broker) == expected(broker)


def test_kafkas_own_topic_decides_and_without_it_the_storage(broker: Path) -> None:
    part = part_of(broker)
    assert part.decided_by == "the topic __remote_log_metadata"
    assert part.left_out == []
    offsets = [(choice.first, choice.last) for choice, _ in part.chosen]
    assert offsets[0][0] == 0
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(offsets))
    shutil.rmtree(broker / "logs" / "__remote_log_metadata-0")
    by_storage = part_of(broker)
    assert by_storage.decided_by == "the files of LocalTieredStorage"
    assert [(choice.first, choice.last) for choice, _ in by_storage.chosen] == offsets
    assert lines_of(broker) == expected(broker)


def test_a_segment_that_was_copied_must_be_there(broker: Path) -> None:
    first = min((broker / "tier").rglob("*.log"))
    first.unlink()
    with pytest.raises(SiltstoneError, match="was copied by the topic __remote_log_metadata") as caught:
        lines_of(broker)
    assert first.stem in str(caught.value)
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    with pytest.raises(SiltstoneError, match="is missing, which was copied"):
        lines_of(broker)


def test_a_segment_that_the_topic_does_not_have_does_not_count(broker: Path) -> None:
    first = min((broker / "tier").rglob("*.log"))
    for path in list(first.parent.glob(f"{first.stem}.*")):
        shutil.copy2(path, path.with_name(path.name.replace(first.stem[21:], "A" * 22)))
    (left_out,) = part_of(broker).left_out
    assert (left_out.name, left_out.reason) == (
        f"{0:020d}-{'A' * 22}",
        "__remote_log_metadata does not have it",
    )
    assert lines_of(broker) == expected(broker)


def test_explain_and_dump_say_what_is_there(broker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    remote = str(broker / "tier" / STORAGE)
    explain = ["explain", str(broker / "logs"), "--topic", TOPIC, "--engine", "process", "--json"]
    assert run([*explain, "--remote", remote]) == 0
    printed = capfd.readouterr()
    assert "joined" not in printed.out + printed.err
    document = json.loads(printed.out)
    (log,) = document["logs"]
    assert (log["log_start_offset"], log["status"]) == (0, "would_clean")
    assert log["records_after"] < log["records_before"] / 5
    notes = "\n".join(document["notes"])
    assert f"{TOPIC} has tiered storage, which Kafka does not compact: shown as if it did" in notes
    assert f"4 remote segments read from {remote}/{TOPIC}-0-" in notes
    assert "by the topic __remote_log_metadata" in notes
    words = ["clean", str(broker / "logs"), "--dry-run", "--topic", TOPIC, "--engine", "process", "--remote"]
    assert run([*words, remote]) == 0
    printed = capfd.readouterr()
    assert "as if it did" in " ".join((printed.out + printed.err).split())
    assert "joined" not in printed.out + printed.err
    assert "1 log would be cleaned" in printed.out
    words = [
        "clean",
        str(broker / "logs"),
        "--out",
        str(broker / "copy"),
        "--topic",
        TOPIC,
        "--remote",
        remote,
    ]
    assert run(words) == 0  # only what a broker would do
    assert "cleanup.policy=delete" in capfd.readouterr().out
    assert run(["dump", str(broker / "logs" / f"{TOPIC}-0"), "--remote", remote]) == 0
    printed = capfd.readouterr()
    assert printed.out.count(f"Dumping {remote}/{TOPIC}-0-") >= 12
    assert "joined" not in printed.out + printed.err


def test_nothing_is_written(broker: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in broker.rglob("*")
            if path.is_file()
        }

    before = state()
    lines_of(broker)
    assert files.is_directory(broker / "tier")
    assert state() == before
