"""``siltstone produce`` and ``consume``: what goes in comes out, and a real broker's records too."""

from __future__ import annotations

import base64
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.base.records.hashing import partition_for_key
from siltstone.cli import records
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.records import ConsumeRange, TopicConsumer, parse_range
from siltstone.commands.sending import ProducerRecord
from siltstone.commands.served import Served
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, append
from siltstone.web.pages.equivalents import produce_command
from tests.support.command_line import Command, tree
from tests.support.golden_sets import read_checkpoint, write_checkpoint
from tests.support.operator.staged import stage

EVERYTHING = ("-e", "-q", "-f", "%t %p %o %k=%s\\n")


def read(siltstone: Command, logs: Path, topic: str, *arguments: object) -> list[str]:
    completed = siltstone("consume", "--dir", logs, "-t", topic, *(arguments or EVERYTHING))
    assert (completed.status, completed.err) == (0, "")
    return completed.lines


def test_lines_go_where_their_keys_belong(siltstone: Command, logs: Path) -> None:
    keys = [f"key-{number}" for number in range(50)]
    lines = "".join(f"{key}:{number}\n" for number, key in enumerate(keys)).encode()
    completed = siltstone("produce", "--dir", logs, "-t", "orders", "-K", ":", "--json", stdin=lines)
    by_partition: dict[int, list[str]] = {0: [], 1: []}
    for number, key in enumerate(keys):
        by_partition[partition_for_key(key.encode(), 2)].append(f"{key}={number}")
    assert completed.document == {
        "records": 50,
        "partitions": [
            {
                "topic": "orders",
                "partition": number,
                "first_offset": 0,
                "last_offset": len(pairs) - 1,
                "records": len(pairs),
            }
            for number, pairs in by_partition.items()
        ],
    }
    for number, pairs in by_partition.items():
        consumed = read(siltstone, logs, "orders", "-p", number, *EVERYTHING)
        assert consumed == [f"orders {number} {offset} {pair}" for offset, pair in enumerate(pairs)]
    assert (logs / ".kafka_cleanshutdown").exists()


EVERY_BYTE = bytes(range(256))


@pytest.mark.parametrize(
    "record",
    [
        ProducerRecord(value=b""),
        ProducerRecord(value=b"-n \\n $HOME 'x'", key=b""),
        ProducerRecord(value="wörter, two".encode(), key=b"--key -x", headers=(("ä", b"1=\n2"), ("c", b""))),
        ProducerRecord(value=b"two\nlines\n", key=b"k", partition=1),
        ProducerRecord(value=EVERY_BYTE[3:], key=b"\0\xff\n"),
        ProducerRecord(value=b"\xff" * 200_000),
        ProducerRecord(value=None, key=b"\x01:\xff"),
        ProducerRecord(value=None, key=b"deleted"),
    ],
    ids=["nothing", "shell", "text", "lines", "bytes", "long", "tombstone of bytes", "tombstone"],
)
def test_the_command_that_the_console_shows_appends_the_record(
    siltstone: Command, logs: Path, record: ProducerRecord
) -> None:
    served = cast(Served, SimpleNamespace(paths=[logs]))
    *before, command = (produce_command(served, "orders", record) or "").rsplit(" | ", 1)
    piped = subprocess.run(["sh"], input=" | ".join(before).encode(), capture_output=True, check=True).stdout
    name, *words = shlex.split(command)
    assert name == "siltstone" and siltstone(*words, stdin=piped).status == 0
    partitions = range(2) if record.partition is None else [record.partition]
    with ReadOnlyLogs([logs]) as opened:
        (stored,) = (stored for number in partitions for stored in opened["orders", number].records())
    headers = [(name.encode(), value) for name, value in record.headers]
    assert (stored.key, stored.value, list(stored.headers)) == (record.key, record.value, headers)


def test_the_console_shows_no_command_for_a_record_that_none_appends() -> None:
    served = cast(Served, SimpleNamespace(paths=["logs"]))
    for record in (
        ProducerRecord(value=b"", headers=(("a", b"\0"),)),
        ProducerRecord(value=b"", headers=(("a\0", b""),)),
        ProducerRecord(value=b"", headers=(("a", b"\xff"),)),
        ProducerRecord(value=b"", headers=(("a=b", b""),)),
        ProducerRecord(value=b"", headers=(("", b""),)),
        ProducerRecord(value=None, key=b""),
        ProducerRecord(value=EVERY_BYTE),
        ProducerRecord(value=EVERY_BYTE[2:], key=b"\x01"),
    ):
        assert produce_command(served, "orders", record) is None, record


def test_keys_headers_nulls_and_codecs(siltstone: Command, logs: Path) -> None:
    produce = ("produce", "--dir", logs, "-t", "users")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        completed = siltstone(*produce, "-k", codec, "-z", codec, "-H", "a=1", "-H", "b", stdin=b"x" * 100)
        assert completed.status == 0 and completed.out == b""
        assert completed.err.startswith("siltstone: users-0: 1 record, offsets ")
    assert siltstone(*produce, "-K", ":", "-Z", stdin=b"gzip:\n").status == 0
    documents = siltstone("consume", "--dir", logs, "-t", "users", "-e", "-J", "-q").documents
    assert [document["key"] for document in documents] == ["none", "gzip", "snappy", "lz4", "zstd", "gzip"]
    assert documents[0]["headers"] == ["a", "1", "b", None] and documents[0]["payload"] == "x" * 100
    assert documents[5]["payload"] is None and "headers" not in documents[5]
    segment = logs / "users-0" / f"{0:020}.log"
    dumped = siltstone("dump", segment, "--json").documents
    codecs = [row["compresscodec"] for row in dumped if row.get("compresscodec")]
    assert [codec.lower() for codec in codecs] == ["none", "gzip", "snappy", "lz4", "zstd", "none"]


def test_files_and_delimiters(siltstone: Command, logs: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c\nd")
    assert siltstone("produce", one, two, "--dir", logs, "-t", "orders", "-p", 0).status == 0
    assert siltstone("produce", one, two, "--dir", logs, "-t", "orders", "-p", 0, "-l").status == 0
    assert (
        siltstone("produce", "--dir", logs, "-t", "orders", "-p", 0, "-D", "\\x00", stdin=b"e\0f").status == 0
    )
    completed = siltstone("consume", "--dir", logs, "-t", "orders", "-e", "-q", "-D", "|")
    assert completed.out == b"a\nb\n|c\nd|a|b|c|d|e|f|"


def test_a_large_file_is_appended_whole_or_refused(
    siltstone: Command, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was once cut off at 1 GiB (here at 10 bytes): half a line became a record, the rest was lost."""
    monkeypatch.setattr(files.read_input, "__defaults__", (10,))
    monkeypatch.setattr(records, "_FILE_RECORD_BYTES_MAX", 10, raising=False)
    large = tmp_path / "large"
    large.write_bytes(b"first\nsecond\nthird\n")
    appended = siltstone("produce", large, "--dir", logs, "-t", "orders", "-p", 0, "--lines")
    assert appended.status == 0, appended.err
    assert siltstone("consume", "--dir", logs, "-t", "orders", "-e", "-q").out == large.read_bytes()
    refused = siltstone("produce", large, "--dir", logs, "-t", "orders", "-p", 0)
    assert refused.status == 2 and "too large for one record" in refused.err
    assert siltstone("consume", "--dir", logs, "-t", "orders", "-e", "-q").out == large.read_bytes()


def test_tee_prints_what_is_appended_and_count_bounds_both(siltstone: Command, logs: Path) -> None:
    completed = siltstone("produce", "--dir", logs, "-t", "orders", "-T", "-c", 2, stdin=b"a\nb\nc\n")
    assert (completed.status, completed.out) == (0, b"a\nb\n")


def test_more_than_a_batch_and_small_segments(siltstone: Command, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    small = ("--config", "segment.bytes=4096", "--config", "max.message.bytes=3000")
    assert siltstone("topics", "--dir", logs, "--create", "--topic", "small", *small).status == 0
    lines = b"".join(b"%0100d\n" % number for number in range(500))
    assert siltstone("produce", "--dir", logs, "-t", "small", stdin=lines).status == 0
    completed = siltstone("consume", "--dir", logs, "-t", "small", "-e", "-q")
    assert completed.out == lines
    assert len(list((logs / "small-0").glob("*.log"))) > 5


def test_what_is_refused_leaves_what_came_before(siltstone: Command, logs: Path) -> None:
    keyless = siltstone("produce", "--dir", logs, "-t", "users", stdin=b"a\n")
    assert keyless.status == 1 and keyless.err.endswith("(INVALID_RECORD)\n")
    large = siltstone("produce", "--dir", logs, "-t", "orders", "-p", 0, stdin=b"a\nb\n" + b"c" * 2_000_000)
    assert large.status == 1 and large.err.splitlines()[0] == "siltstone: orders-0: 2 records, offsets 0 to 1"
    assert large.err.endswith("(MESSAGE_TOO_LARGE)\n")
    assert read(siltstone, logs, "orders") == ["orders 0 0 =a", "orders 0 1 =b"]


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("-t", "none"), 1, "siltstone topics --create"),
        (("-t", "orders", "-p", "2"), 1, "no partition 2"),
        (("-t", "orders", "-z", "brotli"), 2, "brotli"),
        (("-t", "orders", "-H", "=x"), 2, "name=value"),
        (("-t", "orders", "-D", ""), 2, "-D"),
        (("-t", "orders", "-K", "\\q"), 2, "-K"),
        (("-t", "orders", "-c", "-1"), 2, "-c"),
        (("-t", "orders", "-T", "--json"), 2, "--tee"),
        ((), 2, "-t"),
    ],
)
def test_produce_refuses_wrong_flags_in_one_line_and_changes_nothing(
    siltstone: Command, logs: Path, arguments: tuple[str, ...], status: int, word: str
) -> None:
    before = tree(logs)
    refused = siltstone("produce", "--dir", logs, *arguments, stdin=b"a\n")
    assert (refused.status, refused.out) == (status, b"") and refused.err.count("\n") == 1
    assert word in refused.err and tree(logs) == before


def test_a_real_brokers_records_are_those_of_kafkas_reader(
    siltstone: Command, stopped_broker: tuple[Path, Path], golden: Path
) -> None:
    """Every record of four topics as Kafka's reader listed it."""
    before = tree(*stopped_broker)
    for disk, topic, partition in ((0, "users", 0), (1, "audit", 0), (0, "events.cd", 0), (1, "ledger", 0)):
        listing = golden / "whole_43" / "records_before" / f"data{disk}" / f"{topic}-{partition}.jsonl"
        rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
        completed = siltstone(
            *("consume", "--dir", stopped_broker[0], "--dir", stopped_broker[1]),
            *("-t", topic, "-p", partition, "-e", "-q", "--json"),
        )
        start = 33 if topic == "events.cd" else 0
        listed = [row for row in rows if row["t"] == "rec" and row["offset"] >= start]
        assert len(completed.documents) == len(listed) > 100
        for document, kafkas in zip(completed.documents, listed, strict=True):
            assert (document["offset"], document["ts"], document["broker"]) == (
                kafkas["offset"],
                kafkas["ts"],
                1,
            )
            assert encoded(document, "key") == kafkas["k"] and encoded(document, "payload") == kafkas["v"]
    assert tree(*stopped_broker) == before


def encoded(row: dict[str, str | None], name: str) -> str | None:
    """A field as base64, None for null."""
    if f"{name}_base64" in row:
        return row[f"{name}_base64"]
    text = row[name]
    return None if text is None else base64.b64encode(text.encode()).decode()


def test_read_committed_ends_before_an_open_transaction_and_omits_aborted_records(
    siltstone: Command, stopped_broker: tuple[Path, Path]
) -> None:
    """orders-0 has aborted transactions and one that is open from offset 312 on."""
    place = ("--dir", stopped_broker[0], "--dir", stopped_broker[1])
    orders = ("consume", *place, "-t", "orders", "-p", 0, "-e", "-f", "%o\\n")
    committed, everything = siltstone(*orders), siltstone(*orders, "--isolation", "read_uncommitted")
    assert int(committed.lines[-1]) < 312 <= int(everything.lines[-1]) < 342
    assert set(committed.lines) < set(everything.lines)
    assert committed.err.endswith("reached the end of orders-0 at offset 312\n")


@pytest.fixture
def ten(siltstone: Command, logs: Path) -> Path:
    """``orders-0`` has the records 0 to 9, one a second from 1000 ms on."""
    with LogManager.open([logs]) as manager:
        for number in range(10):
            append(manager["orders", 0], [NewRecord(value=b"%d" % number, timestamp=1000 * (number + 1))])
    return logs


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("start", "0123456789"),
        ("beginning", "0123456789"),
        ("end", ""),
        ("7", "789"),
        ("10", ""),
        ("-3", "789"),
        ("-99", "0123456789"),
        ("s@8000", "789"),
        ("s@7001", "789"),
        ("s@99000", ""),
        ("s@3000,e@5000", "23"),
        ("e@2000", "0"),
    ],
)
def test_an_offset_bounds_what_is_read(siltstone: Command, ten: Path, start: str, offsets: str) -> None:
    completed = siltstone(
        "consume", "--dir", ten, "-t", "orders", "-p", 0, "-o", start, "-e", "-q", "-f", "%o"
    )
    assert (completed.status, completed.out.decode()) == (0, offsets)


def test_count_ends_the_reading_and_ends_are_reported(siltstone: Command, ten: Path) -> None:
    completed = siltstone("consume", "--dir", ten, "-t", "orders", "-c", 3, "-o", "2")
    assert completed.status == 1 and "orders-1: offset 2 is outside 0 to 0" in completed.err
    completed = siltstone("consume", "--dir", ten, "-t", "orders", "-p", 0, "-c", 3, "-o", "2")
    assert (completed.lines, completed.err) == (["2", "3", "4"], "")
    completed = siltstone("consume", "--dir", ten, "-t", "orders", "-e", "-J")
    assert len(completed.documents) == 10
    assert sorted(completed.err.splitlines()) == [
        "siltstone: reached the end of orders-0 at offset 10",
        "siltstone: reached the end of orders-1 at offset 0",
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("-t", "none"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("-t", "orders", "-p", "5"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("-t", "orders", "-o", "11"), 1, "OFFSET_OUT_OF_RANGE"),
        (("-t", "orders", "-o", "soon"), 2, "-o soon"),
        (("-t", "orders", "-f", "%z"), 2, "%z"),
        (("-t", "orders", "-K", ""), 2, "-K"),
        (("-t", "orders", "-f", "%s", "-K", ":"), 2, "-f"),
        (("-t", "orders", "--isolation", "some"), 2, "read_committed"),
        (("-t", "orders", "--high-watermark", "start"), 2, "end"),
        (("-t", "orders", "-c", "-3"), 2, "-c"),
        ((), 2, "-t"),
    ],
)
def test_consume_refuses_wrong_flags_in_one_line(
    siltstone: Command, ten: Path, arguments: tuple[str, ...], status: int, word: str
) -> None:
    refused = siltstone("consume", "--dir", ten, "-e", *arguments)
    assert (refused.status, refused.out) == (status, b"") and refused.err.count("\n") == 1
    assert word in refused.err


def test_a_damaged_record_is_refused_after_those_before_it(siltstone: Command, ten: Path) -> None:
    segment = ten / "orders-0" / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2 + 66] ^= 1  # in the sixth of ten batches, behind its header
    segment.write_bytes(content)
    completed = siltstone("consume", "--dir", ten, "-t", "orders", "-p", 0, "-e", "-f", "%o")
    assert completed.status == 1 and completed.out == b"01234"
    assert str(segment) in completed.err and "not all of it can be read" in completed.err
    completed = siltstone("get-offsets", "--dir", ten, "-t", "orders", "--partitions", 0)
    assert (completed.status, completed.lines) == (1, ["orders:0:5"]) and str(segment) in completed.err
    completed = siltstone("topics", "--dir", ten, "--describe", "--topic", "orders")
    assert completed.status == 1 and str(segment) in completed.err


def test_an_invalid_range_is_refused() -> None:
    assert parse_range("s@5,e@6") == ConsumeRange(from_ms=5, until_ms=6)
    for text in ("", "s", "s@", "@5", "s@5,s@6", "x@5", "5,6", "--5"):
        with pytest.raises(UsageError):
            parse_range(text)


def test_following_sees_appends_rolls_and_new_partitions(logs: Path) -> None:
    """Beside a manager that goes on appending; nothing waits, the writer is asked in between."""
    place = BrokerDirectories(paths=(logs,))
    with LogManager.open([logs]) as manager:
        append(manager["orders", 0], [NewRecord(value=b"first")])
        consuming = TopicConsumer(place, "orders")
        assert "in use" in consuming.notes[0]
        steps = iter(range(8))

        def wait() -> None:
            step = next(steps)
            if step == 2:
                manager.topics.add_partitions("orders", 3)
            if step == 4:
                manager["orders", 0].roll()
            if step in (1, 4, 5):
                append(manager["orders", 0], [NewRecord(value=b"%d" % step)])
            if step == 3:
                append(manager["orders", 2], [NewRecord(value=b"new partition")])

        consumed = []
        with pytest.raises(RuntimeError, match="StopIteration"):
            for arrived in consuming.follow(wait):
                if arrived.polled is not None:
                    columns = arrived.polled.columns
                    consumed += [
                        (arrived.topic_partition.partition, columns.value(row)) for row in range(len(columns))
                    ]
    assert consumed == [(0, b"first"), (0, b"1"), (2, b"new partition"), (0, b"4"), (0, b"5")]


def test_following_a_brokers_topic_continues_when_its_high_watermark_moves(
    golden: Path, tmp_path: Path
) -> None:
    """A broker appends first, and writes the checkpoint of the high watermark up to 5 s later."""
    staged = stage(golden, "basic_zipf_ts", tmp_path / "data")
    topic, partition = staged.case.topic, staged.topic_partition.partition
    checkpoint = staged.directory / "replication-offset-checkpoint"
    end = read_checkpoint(checkpoint)[topic, partition]
    write_checkpoint(checkpoint, {(topic, partition): 24})  # where the second batch begins
    consuming = TopicConsumer(BrokerDirectories(paths=(staged.directory,)), topic)
    high_watermarks = iter((24, end))

    def wait() -> None:
        write_checkpoint(checkpoint, {(topic, partition): next(high_watermarks)})

    ends = []
    with pytest.raises(RuntimeError, match="StopIteration"):
        for arrived in consuming.follow(wait):
            if arrived.polled is None:
                ends.append(arrived.offset)
    assert ends == [24, end]


def test_new_records_are_looked_for_soon_after_a_long_reading() -> None:
    """It waited four times as long as the old records had taken: four hours after one."""
    times, waits = iter([0.0, 0.1, 10.0, 10.5, 20.0, 3620.0, 4000.0]), []
    pause = records.Pause(clock=times.__next__, sleep=waits.append)
    for _ in range(3):
        pause()
    assert waits == pytest.approx([0.4, 2.0, 5.0])


def test_following_in_a_process_of_its_own(logs: Path) -> None:
    """``consume`` without -e shows what another process appends, and Ctrl-C ends it without a word."""
    command = [
        str(Path(sys.executable).parent / "siltstone"),
        "consume",
        "--dir",
        str(logs),
        "-t",
        "orders",
        "-q",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            with LogManager.open([logs]) as manager:
                for text in (b"one", b"two"):
                    append(manager["orders", 1], [NewRecord(value=text)])
                    assert process.stdout.readline() == text + b"\n"
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, rest) == (130, b"") and errors.count(b"\n") == 1, "what is noted at the start"


def test_interrupted_producing_keeps_what_arrived(siltstone: Command, logs: Path) -> None:
    """The input arrives bit by bit, as from ``tail -f``, and is appended as it arrives."""
    command = [str(Path(sys.executable).parent / "siltstone"), "produce", "--dir", str(logs), "-t", "orders"]
    with subprocess.Popen(
        [*command, "-p", "1", "-T"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            for text in (b"one\n", b"two\nthr"):
                process.stdin.write(text)
                process.stdin.flush()
                assert process.stdout.readline() == text[:4]
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
            errors = process.stderr.read().decode() if process.stderr is not None else ""
        finally:
            process.kill()
    assert process.returncode == 130 and "orders-1: 2 records, offsets 0 to 1" in errors
    assert "Traceback" not in errors and (logs / ".kafka_cleanshutdown").exists()
    assert read(siltstone, logs, "orders") == ["orders 1 0 =one", "orders 1 1 =two"]


def test_a_directory_in_use_is_not_appended_to(siltstone: Command, logs: Path) -> None:
    marker = logs / ".kafka_cleanshutdown"  # which whoever opens the logs deletes, and writes at its end
    program = (
        f"import fcntl, sys\nlock = open({str(logs / '.lock')!r}, 'w')\n"
        "fcntl.lockf(lock, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    marker.unlink()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        refused = siltstone("produce", "--dir", logs, "-t", "orders", stdin=b"a\n")
        assert refused.status == 1 and refused.err.count("\n") == 1 and str(logs) in refused.err
        completed = siltstone("consume", "--dir", logs, "-t", "orders", "-e", "-q")
        assert (completed.status, completed.out) == (0, b"") and "in use by another process" in completed.err
        holder.communicate("")
    marker.touch()
    assert siltstone("produce", "--dir", logs, "-t", "orders", stdin=b"a\n").status == 0
