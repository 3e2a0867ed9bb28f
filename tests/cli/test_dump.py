"""``siltstone dump`` against Kafka's own reader (the golden listings), and against damage of every kind."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest

from siltstone.base.errors import CorruptFileError
from siltstone.base.records.checksum import patch_checksums
from siltstone.base.records.layout import HEADER
from siltstone.cli.main import run
from siltstone.log.coordinator_records import decode_record
from siltstone.log.dump import MAX_FINDINGS, DumpOptions, dump_file, identify, printable
from siltstone.log.metadata_log import read_cluster_metadata
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec
from tests.support.golden.sets import of_each_kind
from tests.support.golden_sets import case_names, legacy_names, read_records
from tests.support.thoroughness import THOROUGH, share

Line = dict[str, Any]
Result = tuple[int, str, str]
BASE = f"{0:020d}"


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command; (exit status, standard output, standard error)."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        status = run(["dump", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def rows_of(path: Path, **options: Any) -> list[Line]:
    """A file's rows in JSON's values, its own row left out; no finding."""
    rows = list(dump_file(identify(str(path)), DumpOptions(**options)))
    assert not [row for row in rows if isinstance(row, CorruptFileError)], path
    text = json.dumps(rows[1:], default=lambda content: base64.b64encode(content).decode())
    decoded: list[Line] = json.loads(text)
    return decoded


def listed_by_file(listing: Path) -> dict[str, list[Line]]:
    """The lines of Kafka's reader by file name: a segment's batches and records, a producer, …"""
    by_file: dict[str, list[Line]] = {}
    for line in read_records(listing):
        if line["t"] == "segment":
            current = by_file[line["file"]] = []
        elif "file" in line:
            by_file.setdefault(line["file"], []).append(line)
        else:
            current.append(line)
    return by_file


BATCH_NAMES = set(
    (
        "position baseOffset lastOffset offset count baseSequence lastSequence producerId producerEpoch "
        "partitionLeaderEpoch isTransactional isControl deleteHorizonMs attributes timestampType "
        "baseTimestamp maxTimestamp compresscodec size magic crc"
    ).split()
)


def check_batch(row: Line, line: Line) -> None:
    """Every field that the row and Kafka's line both have, and whether the checksum matches."""
    for name in BATCH_NAMES & set(line):
        assert row[name] == line[name], (name, row, line)
    assert row["isvalid"] is line["valid"]


def check_record(row: Line, line: Line) -> None:
    """Offset, time, key, value, and what only v2, message sets or control records have."""
    assert (row["offset"], row["timestamp"]) == (line["offset"], line["ts"])
    assert (row["key"], row["value"]) == (line["k"], line["v"])
    assert row["keySize"] == (-1 if line["k"] is None else len(base64.b64decode(line["k"])))
    if "seq" in line:
        assert row["sequence"] == line["seq"]
        assert [[header["key"], header["value"]] for header in row["headers"]] == line["h"]
    elif "crc" in line:
        assert (row["crc"], row["isValid"]) == (line["crc"], line["valid"])
    if "control" in line:
        assert (row["controlType"], row["coordinatorEpoch"]) == (line["control"], line["coordinatorEpoch"])


def check_log(path: Path, lines: list[Line]) -> int:
    """A log's rows are Kafka's; returns how many."""
    rows = rows_of(path, print_data_log=True)
    assert len(rows) == len(lines), path
    for row, line in zip(rows, lines, strict=True):
        assert row["type"] == {"batch": "batch", "rec": "record"}[line["t"]]
        (check_batch if line["t"] == "batch" else check_record)(row, line)
    return len(rows)


def listings(golden: Path, names: list[str]) -> Iterator[tuple[Path, str, list[Line]]]:
    """(directory, file name, lines) of every first ``before`` of the cases."""
    for name in names:
        listing = golden / name / "records_before.jsonl"
        yield from ((golden / name / "before", *item) for item in listed_by_file(listing).items())


@pytest.mark.random
def test_batches_and_records_are_those_of_kafkas_reader(golden: Path) -> None:
    """Every codec of v2, every kind of message set."""
    checked, sets = 0, case_names(golden) + legacy_names(golden)
    for directory, name, lines in listings(golden, of_each_kind(sets)):
        if name.endswith(".log"):
            checked += check_log(directory / name, lines)
    assert checked > (20_000 if THOROUGH else 5_000)


def test_snapshots_and_aborted_transactions_are_those_of_kafkas_reader(golden: Path) -> None:
    counts = {"producer": 0, "abortedTxn": 0}
    for directory, name, lines in listings(golden, case_names(golden)):
        if name.endswith(".log"):
            continue
        rows = rows_of(directory / name)
        assert [row["type"] for row in rows] == [line["t"] for line in lines], name
        for row, line in zip(rows, lines, strict=True):
            counts[row["type"]] += 1
            if row["type"] == "abortedTxn":
                assert {key: row[key] for key in set(line) & set(row)} == {
                    key: line[key] for key in line if key not in ("t", "file")
                }
                continue
            names = ("producerId", "producerEpoch", "coordinatorEpoch", "lastTimestamp")
            assert [row[key] for key in names] == [line[key] for key in names]
            assert row["currentTxnFirstOffset"] == (
                None if line["currentTxnFirstOffset"] < 0 else line["currentTxnFirstOffset"]
            )
            names = ("lastSequence", "lastOffset", "offsetDelta", "timestamp")
            assert line["batches"] == ([[row[key] for key in names]] if "lastOffset" in row else [])
    assert min(counts.values()) > 5, counts


def test_text_is_that_of_kafkas_tool(golden: Path, dump: Any) -> None:
    before = golden / "txn" / "before"
    status, out, err = dump(
        before / f"{BASE}.log", before / "00000000000000000075.snapshot", "--deep-iteration"
    )
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [f"Dumping {before / f'{BASE}.log'}", "Log starting offset: 0"]
    batch = (
        "baseOffset: 51 lastOffset: 51 count: 1 baseSequence: -1 lastSequence: -1 producerId: 8 "
        "producerEpoch: 0 partitionLeaderEpoch: 0 isTransactional: true isControl: true "
        "deleteHorizonMs: OptionalLong.empty position: 7489 CreateTime: 1795227265154 size: 78 magic: 2 "
        "compresscodec: none crc: 459032191 isvalid: true"
    )
    record = (
        "| offset: 51 CreateTime: 1795227265154 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: ABORT coordinatorEpoch: 0"
    )
    assert lines[lines.index(batch) + 1] == record
    assert lines[-2] == (
        "producerId: 10 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[30] "
        "lastTimestamp: 1795223655228 firstSequence: 16 lastSequence: 16 lastOffset: 64 offsetDelta: 0 "
        "timestamp: 1795223655228"
    )
    assert "key: " not in out


def test_text_of_message_sets_and_of_data(golden: Path, dump: Any) -> None:
    path = golden / "legacy" / "v1_gzip" / "before" / f"{BASE}.log"
    _, out, _ = dump(path, "--print-data-log")
    lines = out.splitlines()
    assert lines[2] == (
        "offset: 29 position: 0 CreateTime: 1795227383968 size: 1051 magic: 1 compresscodec: gzip "
        "crc: 1953146594 isvalid: true"
    )
    assert lines[3].startswith(
        "| offset: 0 CreateTime: 1795227383440 keySize: 9 valueSize: 47 isValid: true crc: 4070408265 "
        "key: key-00117 payload: itemitem"
    )
    _, shallow, _ = dump(path)
    assert shallow.splitlines()[2] == lines[2] and "| " not in shallow


def test_nothing_speaks_to_the_terminal(golden: Path, dump: Any) -> None:
    assert printable(b"a\x1b[2Jb\nc\xff\xc3\xa9") == "a\\x1b[2Jb\\nc\\xff\u00e9"
    assert printable("\u202eabc\x9b") == "\\u202eabc\\x9b"
    for name in ("basic", "txn"):
        _, out, _ = dump(golden / name / "before" / f"{BASE}.log", "--print-data-log")
        assert all(line.isprintable() for line in out.split("\n"))


def test_json_is_one_object_a_line(golden: Path, dump: Any) -> None:
    before = golden / "txn" / "before"
    paths = [before / f"{BASE}.{kind}" for kind in ("log", "index", "timeindex", "txnindex")]
    status, out, err = dump(*paths, "--print-data-log", "--json")
    assert (status, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    kinds = {"file", "batch", "record", "offsetIndex", "timeIndex", "abortedTxn"}
    assert {row["type"] for row in rows} == kinds
    first = next(row for row in rows if row["type"] == "record")
    assert base64.b64decode(first["key"]) == b"key-00004" and first["value"] is None


def test_max_bytes_ends_at_a_whole_batch(golden: Path, dump: Any) -> None:
    path = golden / "txn" / "before" / f"{BASE}.log"
    status, out, err = dump(path, "--max-bytes", "1000")
    assert (status, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines()[2:]] == ["0", "4"]
    assert dump(path, "--max-bytes", "10")[0] == 0


@pytest.mark.random
def test_every_golden_index_agrees_with_its_log(golden: Path) -> None:
    """Of Kafka 4.3 and of 2.8, whose entries are for whole appends and for records inside batches."""
    indexes = [
        path
        for path in sorted(golden.rglob("*index"))
        if path.parent.name.startswith(("before", "after")) and "recovery" not in path.parts
    ]
    assert len(indexes) > 300
    for path in share(indexes, 5):
        assert rows_of(path, verify_index_only=True) == [], path
        assert rows_of(path, index_sanity_check=True)[0]["passed"], path


@pytest.fixture
def segment(golden: Path, tmp_path: Path) -> Path:
    """A copy of a segment's files; returns its log."""
    for path in (golden / "txn" / "before").glob(f"{BASE}.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / f"{BASE}.log"


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "position", "reason"),
    [
        ("index", 15, "offset 24 position 2653: no batch of the log starts at that position"),
        ("index", 11, "offset 25 position 2652: the batch at that position ends at offset 24"),
        (
            "timeindex",
            7,
            "timestamp 1795223655392 offset 7: its batch has largest timestamp 1795223655393",
        ),
        ("timeindex", 34, "timestamp 1795227265165 offset 330: no batch of the log has that offset"),
    ],
)
def test_a_damaged_index_is_found(segment: Path, dump: Any, kind: str, position: int, reason: str) -> None:
    index = segment.with_suffix(f".{kind}")
    assert dump(index, "--verify-index-only") == (0, f"Dumping {index}\n", "")
    flip(index, position)
    width = {"index": 8, "timeindex": 12}[kind]
    topic_partition = position // width * width
    status, out, err = dump(index, "--verify-index-only")
    assert (status, out, err) == (
        1,
        f"Dumping {index}\n",
        f"siltstone: {index}: byte {topic_partition}: {reason}\n",
    )
    status, out, err = dump(index)
    assert status == 1 and len(out.splitlines()) > 3 and reason in err


def test_the_sanity_check_sees_structure_only(segment: Path, dump: Any) -> None:
    index = segment.with_suffix(".index")
    flip(index, 15)
    status, out, _ = dump(index, "--index-sanity-check")
    assert (status, out.splitlines()[-1]) == (0, f"{index} passed sanity check.")
    flip(index, 8, 0x7F)
    status, _, err = dump(index, "--index-sanity-check")
    assert (status, "relative_offset" in err) == (1, True)
    index.write_bytes(index.read_bytes()[:13])
    status, out, err = dump(index)
    assert status == 1 and "offset: 16 position: 1572" in out and "multiple of 8" in err
    segment.with_suffix(".index.deleted").write_bytes(b"\xff" * 8)
    assert dump(segment.with_suffix(".index.deleted"), "--index-sanity-check")[0] == 1


def test_an_index_without_its_log_cannot_be_verified(segment: Path, dump: Any) -> None:
    segment.unlink()
    index = segment.with_suffix(".index")
    assert dump(index)[0] == 0
    status, _, err = dump(index, "--verify-index-only")
    assert status == 1 and f"{segment.name} is missing" in err


def test_an_index_is_verified_against_a_log_that_a_swap_has_renamed(segment: Path) -> None:
    segment.rename(f"{segment}.swap")
    assert rows_of(segment.with_suffix(".index"), verify_index_only=True) == []
    assert len(rows_of(Path(f"{segment}.swap"))) > 10


def test_a_garbage_index_does_not_flood(segment: Path) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(np.stack([np.arange(1000, 3000), np.arange(2000)], 1).astype(">i4").tobytes())
    findings = [
        row for row in dump_file(identify(str(index)), DumpOptions()) if isinstance(row, CorruptFileError)
    ]
    assert len(findings) == MAX_FINDINGS + 1
    assert "more entries" in findings[-1].reason and findings[-1].position == 0


def test_a_bad_checksum_is_shown_and_reading_continues(segment: Path, dump: Any) -> None:
    sound = rows_of(segment, print_data_log=True)
    flip(segment, 470 + 17)
    status, out, err = dump(segment, "--print-data-log", "--json")
    rows = [row for row in map(json.loads, out.splitlines()) if row["type"] not in ("file", "finding")]
    assert status == 1 and len(rows) == len(sound)
    assert [row["position"] for row in rows if row.get("isvalid") is False] == [470]
    assert err == f"siltstone: {segment}: byte 470: checksum does not match\n"
    assert json.loads(out.splitlines()[7])["type"] == "finding"
    assert "isvalid: false" in dump(segment)[1]


def test_a_truncated_tail_is_reported_after_the_whole_batches(segment: Path, dump: Any) -> None:
    sound = len(rows_of(segment))
    segment.write_bytes(segment.read_bytes()[:-5])
    status, out, err = dump(segment)
    assert (status, len(out.splitlines())) == (1, sound + 1)
    assert err == f"siltstone: {segment}: byte 12007: the last batch goes on beyond the end of the data\n"
    assert dump(segment, "--max-bytes", "12010")[0] == 0
    assert dump(segment.with_suffix(".index"), "--verify-index-only")[0] == 1


def test_records_that_cannot_be_read_cost_only_their_batch(segment: Path, dump: Any) -> None:
    data = np.frombuffer(bytearray(segment.read_bytes()), np.uint8)
    data[61] = 3  # the first record's size
    patch_checksums(data, np.array([0]), np.array([470]))
    segment.write_bytes(data.tobytes())
    status, out, err = dump(segment, "--deep-iteration")
    assert status == 1 and "byte 0: a record's" in err and "| offset: 4 " in out and "| offset: 0 " not in out


def test_a_batch_over_the_limit_is_not_shown(tmp_path: Path, dump: Any) -> None:
    body = bytes(cramjam.zstd.compress(bytes(20 << 20)))
    header = HEADER.pack(0, 49 + len(body), 0, 2, 0, 4, 0, 0, 0, -1, -1, -1, 1)
    data = np.frombuffer(bytearray(header + body), np.uint8)
    patch_checksums(data, np.array([0]), np.array([len(data)]))
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(data.tobytes())
    status, out, err = dump(path, "--deep-iteration", "--max-decompressed-message-bytes", "20000000")
    assert status == 1 and "isvalid: true" in out and "decompresses to more than 20000000" in err
    assert "decompresses" not in dump(path, "--deep-iteration")[2]
    assert dump(path, "--max-decompressed-message-bytes", "0")[0] == 2


@pytest.mark.parametrize(
    "name",
    [f"{BASE}.{kind}" for kind in ("log", "index", "timeindex", "txnindex", "snapshot", "log.cleaned")]
    + ["cleaner-offset-checkpoint", "leader-epoch-checkpoint", "partition.metadata", "meta.properties"],
)
@pytest.mark.parametrize("seed", range(6))
def test_garbage_is_a_finding_and_never_a_traceback(tmp_path: Path, dump: Any, name: str, seed: int) -> None:
    noise = random.Random(seed)
    content = noise.randbytes(noise.choice((1, 7, 61, 5000)))
    (tmp_path / name).write_bytes(content if seed else b"\x00" * 16 + content)
    flags = noise.choice(
        ((), ("--print-data-log", "--json"), ("--offsets-decoder",), ("--index-sanity-check",))
    )
    status, _, err = dump(tmp_path / name, *flags)
    assert status in (0, 1), (name, content)
    assert err.startswith(f"siltstone: {tmp_path / name}: byte ") or status == 0, seed


def test_contradictory_flags_and_unknown_files_are_refused(segment: Path, dump: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for arguments in (
        [tmp_path / "notes.txt"],
        [tmp_path / "some.index"],
        [segment, "--verify-index-only", "--index-sanity-check"],
        [segment, "--offsets-decoder", "--transaction-log-decoder"],
        [segment, "--max-bytes", "0"],
        [segment, "--max-bytes", "many"],
        [segment, "--what"],
        [],
    ):
        status, out, err = dump(*arguments)
        assert (status, out) == (2, ""), arguments
        assert err.startswith("siltstone: ") and err.count("\n") == 1, err


def test_a_missing_file_does_not_stop_the_others(segment: Path, dump: Any) -> None:
    missing = segment.with_name(f"{9:020d}.log")
    status, out, err = dump(missing, segment)
    assert status == 1 and f"{missing}: No such file or directory" in err and "baseOffset: 0" in out


def test_checkpoints_and_properties_are_shown(
    stopped_broker: tuple[Path, Path], tmp_path: Path, dump: Any
) -> None:
    data0, _ = stopped_broker
    metadata = data0 / "orders-1"
    status, out, _ = dump(
        data0 / "meta.properties", metadata / "partition.metadata", data0 / "log-start-offset-checkpoint"
    )
    assert status == 0
    assert "node.id: 1" in out and "version: 0" in out and "topic: events.cd partition: 0 offset: 33" in out
    status, out, _ = dump(metadata / "leader-epoch-checkpoint")
    assert (status, out.splitlines()[1:]) == (0, ["epoch: 0 startOffset: 0"])
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_text("0\n3\na 0 5\nb 1 x\n")
    status, out, err = dump(path)
    assert (status, "topic: a partition: 0 offset: 5" in out) == (1, True)
    assert (
        err
        == f"siltstone: {path}: byte 10: the line 'b 1 x' is no checkpoint entry (topic, partition, offset)\n"
    )
    path.write_text("0\n3\na 0 5\n")
    assert "byte 2: its number of entries is '3', but there are 1" in dump(path)[2]


def test_the_offsets_of_consumer_groups(stopped_broker: tuple[Path, Path], dump: Any) -> None:
    logs = sorted((stopped_broker[0] / "__consumer_offsets-0").glob("*.log"))
    status, out, _ = dump(*logs, "--offsets-decoder")
    assert status == 0
    assert (
        'key: {"type":"1","data":{"group":"grüße-✓","topic":"ledger","partition":0}} '
        'payload: {"version":"4","data":{"offset":5,"leaderEpoch":-1,"metadata":"",'
        '"commitTimestamp":1795230715517,"topicId":"FvX_0uW9QJ2WKTgL7cWb0g"}}'
    ) in out
    assert (
        'key: {"type":"2","data":{"group":"joined"}} payload: {"version":"3","data":{"protocolType":'
        '"consumer","generation":1,"protocol":"range","leader":"rdkafka-'
    ) in out
    assert (
        '"clientId":"rdkafka","clientHost":"/127.0.0.1","rebalanceTimeout":300000,"sessionTimeout":45000'
        in out
    )
    assert 'key: {"type":"2","data":{"group":"warmup"}} payload: <DELETE>' in out


def test_the_state_of_transactions(stopped_broker: tuple[Path, Path], dump: Any) -> None:
    log = stopped_broker[1] / "__transaction_state-0" / f"{BASE}.log"
    status, out, _ = dump(log, "--transaction-log-decoder", "--json")
    decoded = [
        row["decodedValue"]["data"] for row in map(json.loads, out.splitlines()) if row["type"] == "record"
    ]
    assert status == 0
    assert decoded[3] == {
        "producerId": 2,
        "previousProducerId": 2,
        "producerEpoch": 0,
        "transactionTimeoutMs": 840000,
        "transactionStatus": 1,
        "transactionPartitions": [{"topic": "orders", "partitionIds": [1]}],
        "transactionLastUpdateTimestampMs": 1795230717535,
        "transactionStartTimestampMs": 1795230717535,
        "transactionState": "Ongoing",
    }
    assert (decoded[0]["transactionPartitions"], decoded[0]["transactionState"]) == (None, "Empty")


@pytest.mark.parametrize(("number", "shown"), [(0, "ABORT(0)"), (1, "COMMIT(1)"), (256, "UNKNOWN(256)")])
def test_a_marker_without_its_epoch_is_shown_by_name_and_number(
    tmp_path: Path, number: int, shown: str
) -> None:
    marker = Rec(offset=0, key=struct.pack(">hh", 0, number), value=b"")
    partition = logs.write_log(tmp_path, {0: [logs.batch([marker], control=True)]})
    rows = rows_of(partition / f"{BASE}.log", print_data_log=True)
    (row,) = (row for row in rows if row["type"] == "record")
    assert (row["controlType"], "coordinatorEpoch" in row) == (shown, False)


def text(content: str) -> bytes:
    """A string of an inflexible version."""
    return struct.pack(">h", len(content)) + content.encode()


COMMIT_KEY = struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 7)


@pytest.mark.parametrize(
    ("version", "value", "data"),
    [
        (0, struct.pack(">q", 5) + text("m") + struct.pack(">q", 9), {}),
        (1, struct.pack(">q", 5) + text("m") + struct.pack(">qq", 9, 11), {"expireTimestamp": 11}),
        (2, struct.pack(">q", 5) + text("m") + struct.pack(">q", 9), {}),
        (3, struct.pack(">qi", 5, 4) + text("m") + struct.pack(">q", 9), {"leaderEpoch": 4}),
        (4, struct.pack(">qi", 5, 4) + b"\x02m" + struct.pack(">q", 9) + b"\x00", {"leaderEpoch": 4}),
    ],
)
def test_every_version_of_an_offset_commit_is_decoded(version: int, value: bytes, data: Line) -> None:
    row = decode_record("offsets", COMMIT_KEY, struct.pack(">h", version) + value)
    assert row["decodedKey"] == {"type": "1", "data": {"group": "g", "topic": "t", "partition": 7}}
    common = {"offset": 5, "metadata": "m", "commitTimestamp": 9}
    assert row["decodedValue"] == {"version": str(version), "data": common | data}


def test_a_transaction_of_version_0_is_decoded() -> None:
    partitions = struct.pack(">i", 1) + text("t") + struct.pack(">ii", 1, 3)
    value = struct.pack(">hqhib", 0, 8, 2, 60000, 4) + partitions + struct.pack(">qq", 20, 10)
    data = decode_record("transactions", struct.pack(">h", 0) + text("tx"), value)["decodedValue"]["data"]
    assert data["transactionPartitions"] == [{"topic": "t", "partitionIds": [3]}]
    assert (data["producerId"], data["transactionState"]) == (8, "CompleteCommit")


@pytest.mark.parametrize("decoder", ["offsets", "transactions"])
def test_a_record_that_cannot_be_decoded_is_marked(decoder: Any) -> None:
    noise = random.Random(3)
    keys = [None, b"", b"\x00", b"\x00\x09abc", b"\x00\x00\x7f\xff", COMMIT_KEY, b"\x00\x00" + text("x")]
    values = [struct.pack(">h", 9)] + [
        struct.pack(">h", noise.randrange(5)) + noise.randbytes(40) for _ in range(200)
    ]
    for key in keys:
        for value in values:
            row = decode_record(decoder, key, value)
            assert ("undecodable" in row) or ("decodedValue" in row)
    assert "type 9 is unknown" in decode_record(decoder, b"\x00\x09abc", None)["undecodable"]


def test_a_directory_is_all_files_in_it_and_in_its_partitions(
    stopped_broker: tuple[Path, Path], dump: Any, tmp_path: Path
) -> None:
    root, partition = stopped_broker[0], stopped_broker[0] / "users-0"
    named = sorted(path for path in partition.iterdir() if path.is_file())
    assert dump(partition) == dump(*named)
    outside = tmp_path / f"{BASE}.log"
    outside.write_bytes(b"")
    (partition / f"{9:020d}.log").symlink_to(outside)
    (partition / "notes.txt").write_text("no file of a log")
    assert dump(partition) == dump(*named)
    status, out, _ = dump(root, "--verify-index-only")
    shown = [line.removeprefix("Dumping ") for line in out.splitlines() if line.startswith("Dumping ")]
    parts = [path for path in root.iterdir() if path.is_dir() and not path.name.endswith("-delete")]
    assert {Path(line).parent for line in shown} <= {*parts} and len(shown) > 10 and status == 0
    assert {Path(line).suffix for line in shown} <= {".index", ".timeindex", ".txnindex"}
    empty = tmp_path / "empty"
    empty.mkdir()
    assert dump(empty)[0] == 2


def test_files_may_be_separated_by_commas_as_in_kafka(
    stopped_broker: tuple[Path, Path], dump: Any, tmp_path: Path
) -> None:
    first, second, *_ = sorted((stopped_broker[0] / "users-0").glob("*.log"))
    assert dump("--files", f"{first},{second}") == dump(first, second) == dump(first, "--files", second)
    comma = tmp_path / "a,b" / "meta.properties"
    comma.parent.mkdir()
    comma.write_text("version=1\n")
    assert dump("--files", comma)[1].splitlines()[1] == "version: 1"


def test_the_records_of_a_brokers_metadata(stopped_broker: tuple[Path, Path], dump: Any) -> None:
    """Every record of a real KRaft broker is decoded; so are the ids of its topics."""
    metadata = stopped_broker[0] / "__cluster_metadata-0"
    status, out, _ = dump(*sorted(metadata.glob("*.log")), "--cluster-metadata-decoder", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    records = [row for row in rows if row["type"] == "record" and "controlType" not in row]
    assert status == 0 and not [row for row in records if "data" not in row["decodedValue"]]
    data = [(row["decodedValue"]["type"], row["decodedValue"]["data"]) for row in records]
    image = read_cluster_metadata(metadata)
    topics = {fields["name"]: fields["topicId"] for name, fields in data if name == "TOPIC_RECORD"}
    assert image.topics.items() <= topics.items()
    brokers = [fields for name, fields in data if name == "REGISTER_BROKER_RECORD"]
    assert brokers and all(fields["brokerId"] == 1 and fields["endPoints"][0]["port"] for fields in brokers)
    partitions = [fields for name, fields in data if name == "PARTITION_RECORD"]
    assert {fields["topicId"] for fields in partitions} >= set(topics.values())
    assert all((fields["replicas"], fields["leader"]) == ([1], 1) for fields in partitions)
    text = dump(max(metadata.glob("*.log")), "--cluster-metadata-decoder")[1]
    assert 'payload: {"type":"CONFIG_RECORD","version":0,"data":{"resourceType":' in text


def test_a_metadata_record_that_cannot_be_decoded_is_marked_and_secrets_are_not_shown() -> None:
    assert decode_record("metadata", None, b"\x01\x0b\x00secret")["decodedValue"] == {
        "type": "USER_SCRAM_CREDENTIAL_RECORD",
        "version": 0,
    }
    assert "data" not in decode_record("metadata", None, b"\x01\x02\x09")["decodedValue"]
    undecodable = decode_record("metadata", None, b"\x02\x02\x00")["undecodable"]
    assert undecodable.startswith("value: ") and "frame" in undecodable
    noise = random.Random(5)
    for _ in range(2000):
        value = bytes([1, noise.randrange(30), noise.randrange(4)]) + noise.randbytes(noise.randrange(60))
        row = decode_record("metadata", None, value)
        assert ("undecodable" in row) != ("decodedValue" in row)


@pytest.mark.parametrize("name", ["nosuch", "nosuch/", "no,such", f"{BASE}.log", "topic-0"])
def test_a_path_that_does_not_exist_is_called_so(name: str, dump: Any, tmp_path: Path) -> None:
    status, out, err = dump(f"{tmp_path}/{name}")
    missing = f"{tmp_path}/{name.partition(',')[0].rstrip('/')}"
    assert (status, err) == (1, f"siltstone: {missing}: No such file or directory\n")
    assert out in ("", f"Dumping {missing}\nLog starting offset: 0\n")
