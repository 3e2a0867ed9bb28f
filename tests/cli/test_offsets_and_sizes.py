"""``get-offsets``, ``log-dirs`` and ``delete-records``."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from siltstone.base.errors import UsageError
from siltstone.commands import offsets as commands
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.offsets import parse_partitions, parse_time
from siltstone.log.segments import Segment, list_segments
from tests.support.command_line import Command, tree


def directory_flags(broker: tuple[Path, Path]) -> tuple[object, ...]:
    return "--dir", broker[0], "--dir", broker[1]


def offsets(lines: list[str]) -> dict[str, int]:
    """``topic:partition:offset`` lines by partition."""
    fields = (line.rsplit(":", 2) for line in lines)
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in fields}


@pytest.fixture
def reported(golden: Path) -> dict[str, dict[str, int]]:
    """What the broker itself said of its partitions."""
    case = json.loads((golden / "whole_43" / "case.json").read_text(encoding="utf-8"))
    partitions: dict[str, dict[str, int]] = case["state_before"]["partitions"]
    return partitions


def test_a_real_brokers_offsets_are_those_that_it_reported(
    siltstone: Command, stopped_broker: tuple[Path, Path], reported: dict[str, dict[str, int]]
) -> None:
    before = tree(*stopped_broker)
    latest = siltstone("get-offsets", *directory_flags(stopped_broker))
    assert offsets(latest.lines) == {
        name: partition["high_watermark"] for name, partition in reported.items()
    }
    assert (latest.status, latest.err) == (0, "")
    for time in ("-2", "earliest"):
        earliest = siltstone("get-offsets", *directory_flags(stopped_broker), "--time", time)
        assert offsets(earliest.lines) == {
            name: partition["log_start_offset"] for name, partition in reported.items()
        }
    public = offsets(
        siltstone("get-offsets", *directory_flags(stopped_broker), "--exclude-internal-topics").lines
    )
    assert public.keys() == {name for name in reported if not name.startswith("__")}
    assert tree(*stopped_broker) == before


def test_an_offset_is_found_by_its_time(
    siltstone: Command, stopped_broker: tuple[Path, Path], golden: Path
) -> None:
    """Every hundredth record of a log as Kafka's reader listed it, found by its time."""
    listing = golden / "whole_43" / "records_before" / "data0" / "users-0.jsonl"
    records = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
    times = {record["offset"]: record["ts"] for record in records if record["t"] == "rec"}
    assert len(times) == 758
    for offset in list(times)[::100]:
        first = min(candidate for candidate, time in times.items() if time >= times[offset])
        completed = siltstone(
            "get-offsets", *directory_flags(stopped_broker), "-t", "users", "--time", times[offset]
        )
        assert completed.lines == [f"users:0:{first}"]
    largest = siltstone("get-offsets", *directory_flags(stopped_broker), "-t", "users", "--time", "-3").lines
    assert times[int(largest[0].rsplit(":", 1)[1])] == max(times.values())
    late = ("-t", "users", "--time", max(times.values()) + 1)
    assert siltstone("get-offsets", *directory_flags(stopped_broker), *late).lines == []
    shown = siltstone("get-offsets", *directory_flags(stopped_broker), *late, "--json").document
    assert shown["partitions"] == [{"topic": "users", "partition": 0, "offset": None, "error": None}]


@pytest.mark.parametrize(
    ("arguments", "partitions"),
    [
        (("--topic", "orders"), ["orders-0", "orders-1"]),
        (("--topic", "orders", "--partitions", "1"), ["orders-1"]),
        (("--topic", "o.*|users", "--partitions", "0-1"), ["orders-0", "users-0"]),
        (("--topic-partitions", "orders:1-,users"), ["orders-1", "users-0"]),
        (("--topic-partitions", "users:0"), ["users-0"]),
    ],
)
def test_flags_select_partitions_as_in_kafka(
    siltstone: Command, logs: Path, arguments: tuple[str, ...], partitions: list[str]
) -> None:
    assert list(offsets(siltstone("get-offsets", "--dir", logs, *arguments).lines)) == partitions


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--topic", "none"), 1),
        (("--topic", "orders", "--partitions", "7"), 1),
        (("--topic", "orders", "--topic-partitions", "users"), 2),
        (("--partitions", "x"), 2),
        (("--time", "soon"), 2),
        (("--time", "-5"), 2),
    ],
)
def test_offsets_of_unknown_partitions_and_wrong_flags_are_refused(
    siltstone: Command, logs: Path, arguments: tuple[str, ...], status: int
) -> None:
    refused = siltstone("get-offsets", "--dir", logs, *arguments)
    assert (refused.status, refused.out) == (status, b"") and refused.err.count("\n") == 1


def test_a_log_that_cannot_be_read_does_not_hide_the_others(siltstone: Command, logs: Path) -> None:
    broken = logs / "orders-0" / f"{0:020}.log.swap"
    broken.write_bytes(b"")
    completed = siltstone("get-offsets", "--dir", logs, "--topic", "orders")
    assert (completed.status, completed.lines) == (1, ["orders:1:0"]) and "orders-0" in completed.err


def test_times_and_partitions_are_parsed_as_in_kafka() -> None:
    assert [parse_time(text) for text in ("latest", "earliest", "max-timestamp", "-1", "5")] == [
        -1,
        -2,
        -3,
        -1,
        5,
    ]
    assert parse_partitions("0,2-4,7-")[:2] == [range(0, 1), range(2, 4)]
    for text in ("", "-", "a", "1--2", "٣"):
        with pytest.raises(UsageError):
            parse_partitions(text) if text != "-" else parse_time(text)


def test_log_dirs_of_a_real_broker(
    siltstone: Command, stopped_broker: tuple[Path, Path], reported: dict[str, dict[str, int]], golden: Path
) -> None:
    before = tree(*stopped_broker)
    case = json.loads((golden / "whole_43" / "case.json").read_text(encoding="utf-8"))
    completed = siltstone("log-dirs", *directory_flags(stopped_broker), "--describe")
    assert completed.status == 0 and completed.document["version"] == 1
    (broker,) = completed.document["brokers"]
    assert broker["broker"] == 1
    assert [log_dir["logDir"] for log_dir in broker["logDirs"]] == [str(path) for path in stopped_broker]
    for log_dir in broker["logDirs"]:
        assert log_dir["error"] is None
        expected = {
            name for name, facts in reported.items() if facts["log_dir"] == Path(log_dir["logDir"]).name
        }
        assert {partition["partition"] for partition in log_dir["partitions"]} == expected
        listing = case["listing_before"][Path(log_dir["logDir"]).name]
        for partition in log_dir["partitions"]:
            sizes = [
                entry["size"]
                for entry in listing
                if entry["file"].startswith(f"{partition['partition']}/") and entry["file"].endswith(".log")
            ]
            assert partition == {
                "partition": partition["partition"],
                "size": sum(sizes),
                "offsetLag": 0,
                "isFuture": False,
            }
    some = siltstone(
        "log-dirs", *directory_flags(stopped_broker), "--describe", "--topic-list", "ledger,users", "--json"
    )
    names = [p["partition"] for d in some.document["brokers"][0]["logDirs"] for p in d["partitions"]]
    assert sorted(names) == ["ledger-0", "ledger-1", "users-0"]
    assert tree(*stopped_broker) == before


def test_log_dirs_shows_the_error_of_a_path_that_is_no_log_directory(
    siltstone: Command, logs: Path, tmp_path: Path
) -> None:
    completed = siltstone("log-dirs", "--dir", logs, "--dir", tmp_path / "gone", "--describe")
    good, bad = completed.document["brokers"][0]["logDirs"]
    assert completed.status == 1 and good["error"] is None and bad["partitions"] == []
    assert bad["error"].startswith("org.apache.kafka.common.errors.KafkaStorageException: ")
    assert siltstone("log-dirs", "--dir", logs).status == 2
    assert siltstone("log-dirs", "--dir", logs, "--describe", "--broker-list", "1").status == 2


def test_log_dirs_of_a_broker_that_renames_and_deletes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll, retention or a swap renames files while a partition is listed; a topic is deleted."""
    for name in ("t-0", "t-1", "t-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020}.log").write_bytes(b"12345")
    listed: list[str] = []

    def listing(partition: Path) -> list[Segment]:
        listed.append(partition.name)
        if partition.name == "t-1":
            shutil.rmtree(partition)
        elif listed == ["t-0"]:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", f"{0:020}.log")
        return list_segments(partition)

    monkeypatch.setattr(commands, "list_segments", listing)
    (directory,) = commands.describe_log_dirs(BrokerDirectories(paths=(tmp_path,)))["brokers"][0]["logDirs"]
    assert directory["error"] is None
    sizes = {partition["partition"]: partition["size"] for partition in directory["partitions"]}
    assert sizes == {"t-0": 5, "t-2": 5} and listed == ["t-0", "t-0", "t-1", "t-2"]


def write_offsets(path: Path, *entries: tuple[str, int, int]) -> Path:
    document = {
        "partitions": [{"topic": topic, "partition": number, "offset": at} for topic, number, at in entries],
        "version": 1,
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def filled(siltstone: Command, logs: Path) -> Path:
    """``orders-0`` has ten records, ``users-0`` one."""
    lines = b"".join(b"%d\n" % number for number in range(10))
    assert siltstone("produce", "--dir", logs, "-t", "orders", "-p", 0, stdin=lines).status == 0
    assert siltstone("produce", "--dir", logs, "-t", "users", "-k", "a", stdin=b"1").status == 0
    return logs


def test_delete_records_moves_the_log_start(siltstone: Command, filled: Path, tmp_path: Path) -> None:
    offsets_file = write_offsets(tmp_path / "offsets.json", ("orders", 0, 4), ("orders", 1, -1))
    before = tree(filled)
    dry = siltstone("delete-records", "--dir", filled, "--offset-json-file", offsets_file, "--dry-run")
    assert dry.lines[1:] == ["partition: orders-0\tlow_watermark: 4", "partition: orders-1\tlow_watermark: 0"]
    assert tree(filled) == before
    completed = siltstone("delete-records", "--dir", filled, "--offset-json-file", offsets_file)
    assert (completed.status, completed.lines[1:]) == (0, dry.lines[1:])
    start = siltstone("get-offsets", "--dir", filled, "-t", "orders", "--time", "-2").lines
    assert start == ["orders:0:4", "orders:1:0"]
    remaining = siltstone("consume", "--dir", filled, "-t", "orders", "-p", 0, "-e", "-q", "-f", "%o ")
    assert remaining.out == b"4 5 6 7 8 9 "
    everything = write_offsets(tmp_path / "all.json", ("orders", 0, -1))
    completed = siltstone("delete-records", "--dir", filled, "--offset-json-file", everything, "--json")
    assert completed.document["partitions"] == [
        {"topic": "orders", "partition": 0, "low_watermark": 10, "error": None}
    ]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_one_refused_partition_does_not_stop_the_others(
    siltstone: Command, filled: Path, tmp_path: Path, dry: tuple[str, ...]
) -> None:
    entries = [("orders", 0, 11), ("none", 0, 1), ("users", 0, 1), ("orders", 1, 0)]
    offsets_file = write_offsets(tmp_path / "offsets.json", *entries)
    completed = siltstone(
        "delete-records", "--dir", filled, "--offset-json-file", offsets_file, "--json", *dry
    )
    errors = [partition["error"] for partition in completed.document["partitions"]]
    assert completed.status == 1 and errors[3] is None
    for error, name in zip(
        errors, ("OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PARTITION", "POLICY_VIOLATION"), strict=False
    ):
        assert error.endswith(f"({name})")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"partitions": 5}',
        '{"partitions": [{"topic": "orders"}]}',
        '{"partitions": [{"topic": "orders", "partition": 0, "offset": "5"}]}',
        '{"partitions": [{"topic": "orders", "partition": true, "offset": 5}]}',
        '{"partitions": [], "version": 2}',
        '{"partitions": [{"topic": "a", "partition": 0, "offset": 5}, '
        '{"topic": "a", "partition": 0, "offset": 6}]}',
    ],
)
def test_an_invalid_offsets_file_is_refused_before_anything_is_opened(
    siltstone: Command, logs: Path, tmp_path: Path, content: str
) -> None:
    offsets_file = tmp_path / "offsets.json"
    offsets_file.write_text(content)
    before = tree(logs)
    refused = siltstone("delete-records", "--dir", logs, "--offset-json-file", offsets_file)
    assert (refused.status, refused.out) == (2, b"") and refused.err.count("\n") == 1
    assert str(offsets_file) in refused.err and tree(logs) == before
