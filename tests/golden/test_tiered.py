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
from siltstone.log.names import TopicPartition
from siltstone.log.tiered import joining
from siltstone.log.tiered.joining import RemotePart, remote_part, with_remotes
from tests.support.golden_sets import DATA
from tests.support.kafka.tiering import STORAGE, TOPIC, as_lines


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    unpack(DATA / "tiered.tar.xz", tmp_path)
    return tmp_path / "tiered"


def part_of(broker: Path, *more_directories: Path) -> RemotePart:
    (path, *_) = with_remotes([broker / "logs", *more_directories], str(broker / "tier" / STORAGE))
    part = remote_part(place_of_joined(path / f"{TOPIC}-0"))
    assert part is not None
    return part


def lines_of(broker: Path) -> list[str]:
    with st.open(broker / "logs", remote=str(broker / "tier" / STORAGE)) as logs:
        log = logs[TOPIC, 0]
        assert log.damage == ()
        return as_lines(log.records(isolation="read_committed"))  # type: ignore[arg-type]


def expected(broker: Path) -> list[str]:
    lines = (broker / "records.jsonl").read_text().splitlines()
    assert len(lines) == 1_500 + 300 + 2_000
    return lines


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
    shutil.rmtree(broker / "logs" / "__cluster_metadata-0")  # which says that the broker has the topic
    by_storage = part_of(broker)
    assert by_storage.decided_by == "the files of LocalTieredStorage"
    assert [(choice.first, choice.last) for choice, _ in by_storage.chosen] == offsets
    assert lines_of(broker) == expected(broker)


def second_directory(broker: Path, node_id: int = 1) -> Path:
    """Another log directory of the broker, with the topic that the first one had."""
    path = broker / "logs2"
    path.mkdir()
    properties = (broker / "logs" / "meta.properties").read_text().replace("node.id=1", f"node.id={node_id}")
    (path / "meta.properties").write_text(properties.replace("directory.id=", "directory.id=A"))
    shutil.move(broker / "logs" / "__remote_log_metadata-0", path)
    return path


def test_kafkas_own_topic_is_found_in_another_log_directory_of_the_broker(
    broker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other_directory, remote = second_directory(broker), str(broker / "tier" / STORAGE)
    assert part_of(broker, other_directory).decided_by == "the topic __remote_log_metadata"
    with st.open([broker / "logs", other_directory], remote=remote) as logs:
        records = logs[TOPIC, 0].records(isolation="read_committed")
        assert as_lines(records) == expected(broker)  # type: ignore[arg-type]
    words = ["--topic", TOPIC, "--engine", "process", "--json", "--remote", remote]
    assert run(["explain", str(broker / "logs"), str(other_directory), *words]) == 0
    assert "by the topic __remote_log_metadata" in capfd.readouterr().out


def test_kafkas_own_topic_is_asked_for_if_another_log_directory_has_it(
    broker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    remote = str(broker / "tier" / STORAGE)
    other_directory = second_directory(broker, node_id=2)
    words = ["--topic", TOPIC, "--engine", "process", "--remote", remote]
    for directories in ([broker / "logs"], [broker / "logs" / f"{TOPIC}-0"]):
        assert run(["explain", *map(str, directories), *words]) == 1
        error = " ".join(capfd.readouterr().err.split())
        assert f"which remote segments of {TOPIC}-0 count may be recorded in __remote_log_metadata-0" in error
        assert "name all log.dirs of the broker together" in error
        assert "joined" not in error
    with pytest.raises(SiltstoneError, match="in another log directory"):  # that is another broker's
        part_of(broker, other_directory)
    with pytest.raises(SiltstoneError, match="in another log directory"):
        lines_of(broker)


def test_a_run_lists_the_log_directory_and_reads_its_checkpoint_once(
    broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, storage = broker / "logs", broker / "tier" / STORAGE
    (folder,) = storage.glob(f"{TOPIC}-0-*")
    for number in range(1, 6):
        shutil.copytree(logs / f"{TOPIC}-0", logs / f"{TOPIC}-{number}")
        shutil.copytree(folder, storage / folder.name.replace("-0-", f"-{number}-"))
    reads, read = list[Path](), joining.read_checkpoint

    def counted(path: Path) -> dict[TopicPartition, int]:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(joining, "read_checkpoint", counted)
    looks, look = list[object](), joining._Broker.__init__

    def counted_look(broker: joining._Broker, directories: list[Path]) -> None:
        looks.append(directories)
        look(broker, directories)

    monkeypatch.setattr(joining._Broker, "__init__", counted_look)
    options = {"topic": TOPIC, "engine": "process", "remote": str(storage)}
    assert len(st.explain(logs, **options).logs) == 6
    assert (len(looks), len(reads)) == (1, 1)
    assert len(st.explain(logs, **options).logs) == 6
    assert (len(looks), len(reads)) == (2, 2)  # another run sees what has changed


def test_what_changes_while_a_directory_is_open_is_seen(broker: Path) -> None:
    with st.open(broker / "logs", remote=str(broker / "tier" / STORAGE)) as logs:
        log = logs[TOPIC, 0]
        assert log.log_start_offset == 0
        (broker / "logs" / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 1900\n")
        log.refresh()
        assert log.log_start_offset == 1_900
        shutil.rmtree(broker / "logs" / "__remote_log_metadata-0")
        with pytest.raises(SiltstoneError, match="in another log directory"):
            log.refresh()


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


def test_a_segment_that_begins_elsewhere_than_the_topic_says_is_refused(broker: Path) -> None:
    first = min((broker / "tier").rglob("*.log"))
    for path in list(first.parent.glob(f"{first.stem}.*")):
        path.rename(path.with_name(f"{1:020d}{path.name[20:]}"))
    with pytest.raises(
        SiltstoneError, match=r"it has the offsets 1 to .* but __remote_log_metadata says 0 to"
    ):
        lines_of(broker)


@pytest.mark.parametrize(("count", "more"), [(5, 0), (6, 1)])
def test_five_segments_that_are_not_read_are_named(
    broker: Path, monkeypatch: pytest.MonkeyPatch, count: int, more: int
) -> None:
    (path, *_) = with_remotes([broker / "logs"], str(broker / "tier" / STORAGE))
    part = part_of(broker)
    part.left_out += [joining.LeftOut(name=f"segment {number}", reason="a reason") for number in range(count)]
    monkeypatch.setitem(joining._listed, place_of_joined(path / f"{TOPIC}-0"), part)
    _, *lines = joining.remote_lines(path / f"{TOPIC}-0")
    assert lines == [
        *(f"{TOPIC}-0: segment {number} is not read: a reason" for number in range(5)),
        *[f"{TOPIC}-0: {more} more are not read"][:more],
    ]


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
