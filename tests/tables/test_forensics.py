"""Batch metadata and quarantine: every sound record is a row, and every bad byte is in one bad row."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltstone.base.errors import CorruptRecordError, UsageError
from siltstone.base.records.checksum import patch_checksums
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import HEADER, BatchHeaders, Bytes
from siltstone.log.dump import DumpOptions, log_rows
from siltstone.tables import reading
from siltstone.tables.options import ReadOptions
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.counted_reads import CountedReads
from tests.support.errors import raises_error
from tests.support.golden_sets import case_names
from tests.support.tables.tables import log_directory, table_of

RECORDS = 6
"""In each batch of ``spoiled``."""


def sound(count: int = 8, **shape: Any) -> list[bytes]:
    return [
        batch(
            [Rec(offset=RECORDS * n + k, key=b"k%d" % k, value=b"value %d" % n) for k in range(RECORDS)],
            **shape,
        )
        for n in range(count)
    ]


def spoiled(root: Path, batches: list[bytes]) -> Path:
    """A log directory that was stopped cleanly, and damaged then: its one segment has these bytes now."""
    log_directory(root, {"users-0": {0: sound(len(batches))}})
    next((root / "users-0").glob("*.log")).write_bytes(b"".join(batches))
    return root


def read(root: Path, **options: str) -> tuple[list[int], list[tuple[int, str]]]:
    """(offsets of the records, (offset, reason) of the bad batches)."""
    rows = table_of(root, badBatches="quarantine", **options).to_pylist()
    records = [row["offset"] for row in rows if row["badBatch"] is None]
    return records, [(row["offset"], row["badBatch"]) for row in rows if row["badBatch"] is not None]


def without(*numbers: int, count: int = 8) -> list[int]:
    return [offset for offset in range(RECORDS * count) if offset // RECORDS not in numbers]


def test_metadata_is_what_dump_says_of_each_batch(golden: Path, tmp_path: Path) -> None:
    seen = 0
    for name in case_names(golden)[::4]:
        directory = tmp_path / name / "topic-0"
        shutil.copytree(golden / name / "before", directory)
        table = table_of(directory, includeBatchMetadata="true", isolation="read_uncommitted")
        by_place = {
            (path, row["position"]): row
            for path in map(str, directory.glob("*.log"))
            for row in log_rows(path, DumpOptions())
            if isinstance(row, dict) and row["type"] == "batch"
        }
        for row in table.to_pylist():
            found, said = row["batch"], by_place[row["batch"]["file"], row["batch"]["position"]]
            for ours, dumps in (("crc", "crc"), ("codec", "compresscodec"), ("crcValid", "isvalid")):
                assert found[ours] == said[dumps]
            if found["magic"] == 2:
                for key in (
                    "baseOffset",
                    "lastOffset",
                    "producerId",
                    "producerEpoch",
                    "baseSequence",
                    "size",
                ):
                    assert found[key] == said[key], (name, key)
                assert found["isTransactional"] == said["isTransactional"]
            seen += 1
    assert seen > 1000


def test_a_records_sequence_counts_on_and_wraps(tmp_path: Path) -> None:
    last = (1 << 31) - 1
    shape = {"producer_id": 7, "producer_epoch": 3, "base_sequence": last - 1}
    root = spoiled(tmp_path, [*sound(1, **shape), one(RECORDS, "k")])
    found = table_of(root, includeBatchMetadata="true", columns="offset")["batch"].to_pylist()
    assert [each["sequence"] for each in found] == [last - 1, last, 0, 1, 2, 3, -1]
    assert [each["producerId"] for each in found] == [7] * RECORDS + [-1]


@pytest.mark.parametrize("codec", [0, 3])
def test_a_batch_with_a_bad_checksum_is_one_row_and_the_others_are_read(tmp_path: Path, codec: int) -> None:
    batches = sound(codec=codec)
    for number in (0, 3, 4, 7):
        batches[number] = batches[number][:-1] + bytes([batches[number][-1] ^ 1])
    records, bad = read(spoiled(tmp_path, batches))
    assert records == without(0, 3, 4, 7)
    assert bad == [(RECORDS * number, "checksum does not match") for number in (0, 3, 4, 7)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_of_logs_without_bad_batches_quarantine_has_the_same_records(
    golden: Path, tmp_path: Path, isolation: str
) -> None:
    """Those of aborted transactions too, which quarantine finds in another way: by the indexes alone."""
    seen = 0
    for name in (name for name in case_names(golden) if name.startswith("txn")):
        shutil.copytree(golden / name / "before", tmp_path / name / "topic-0")
        plain = table_of(tmp_path / name, isolation=isolation).to_pylist()
        found = table_of(tmp_path / name, isolation=isolation, badBatches="quarantine").to_pylist()
        assert [row.pop("badBatch") for row in found] == [None] * len(plain)
        assert found == plain
        seen += len(plain)
    assert seen > 200


def test_an_end_holds_with_quarantine(tmp_path: Path) -> None:
    batches = sound()
    batches[3] = batches[3][:-1] + bytes([batches[3][-1] ^ 1])
    root = spoiled(tmp_path, batches)
    for name, end in (("asOfOffset", 6), ("endingOffsets", 7)):
        records, _ = read(root, **{name: f'{{"users":{{"0":{end}}}}}'})
        assert records == list(range(7)), name
    assert read(root, asOfTimestamp="0")[0] == [
        row["offset"] for row in table_of(root, asOfTimestamp="0").to_pylist()
    ]


def test_without_quarantine_a_bad_checksum_fails_the_query(tmp_path: Path) -> None:
    batches = sound()
    batches[3] = batches[3][:-1] + bytes([batches[3][-1] ^ 1])
    root = log_directory(tmp_path, {"users-0": {0: batches[:4], RECORDS * 4: batches[4:]}})
    for metadata in ("false", "true"):
        log = root / "users-0" / f"{0:020}.log"
        position = sum(map(len, batches[:3]))
        with raises_error(CorruptRecordError, path=log, position=position, about="checksum"):
            table_of(root, includeBatchMetadata=metadata)


def with_invalid_record(whole: bytes) -> bytes:
    data = np.frombuffer(whole, np.uint8).copy()
    data[61] = 0xFF  # the first record's length
    patch_checksums(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))
    return data.tobytes()


def test_a_batch_with_invalid_records_is_one_row_with_a_valid_checksum(tmp_path: Path) -> None:
    batches = sound()
    batches[2] = with_invalid_record(batches[2])
    rows = table_of(
        spoiled(tmp_path, batches), badBatches="quarantine", includeBatchMetadata="true"
    ).to_pylist()
    assert [row["offset"] for row in rows if row["badBatch"] is None] == without(2)
    (bad,) = [row for row in rows if row["badBatch"] is not None]
    assert (bad["offset"], bad["batch"]["baseOffset"], bad["batch"]["crcValid"]) == (12, 12, True)
    assert (bad["key"], bad["value"], bad["timestamp"]) == (None, None, None)
    assert (bad["topic"], bad["partition"]) == ("users", 0)


@pytest.mark.parametrize("sound_between", [0, 1, 5])
def test_batches_between_invalid_ones_are_decoded_a_few_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_between: int
) -> None:
    batches, decoded = sound(300), 0
    bad_numbers = range(0, 300, sound_between + 1)
    for number in bad_numbers:
        batches[number] = with_invalid_record(batches[number])

    def counted(window: Bytes, headers: BatchHeaders, *arguments: Any, **options: Any) -> RecordColumns:
        nonlocal decoded
        decoded += len(headers)
        return decode_records(window, headers, *arguments, **options)

    monkeypatch.setattr(reading, "decode_records", counted)
    records, bad = read(spoiled(tmp_path, batches))
    assert records == without(*bad_numbers, count=300)
    assert [offset for offset, _ in bad] == [RECORDS * number for number in bad_numbers]
    assert decoded <= 6 * len(batches)


def test_the_row_of_a_batch_that_is_too_large_to_decompress_says_what_to_do(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"users-0": {0: sound(2, codec=1)}})
    records, bad = read(root, maxDecompressedMessageBytes="10")
    assert records == []
    assert [offset for offset, _ in bad] == [0, RECORDS]
    assert all("raise max.decompressed.message.bytes" in reason for _, reason in bad)


@pytest.mark.parametrize("damage", ["zeros", "noise", "cut", "length"])
def test_without_a_possible_header_reading_continues_at_the_next_batch(tmp_path: Path, damage: str) -> None:
    batches = sound()
    rng = random.Random(3)
    if damage == "zeros":
        batches[2:4] = [bytes(len(batches[2]) + len(batches[3]))]
    elif damage == "noise":
        batches[2:4] = [rng.randbytes(5000)]
    elif damage == "cut":
        batches[2:4] = [batches[2][:50]]
    else:
        batches[2] = batches[2][:8] + (1 << 20).to_bytes(4, "big") + batches[2][12:]
    gone = (2,) if damage == "length" else (2, 3)
    records, bad = read(spoiled(tmp_path, batches))
    assert records == without(*gone)
    assert [offset for offset, _ in bad] == [12]
    assert "hold no batch" in bad[0][1]


def test_bytes_without_a_batch_up_to_the_end_are_one_row(tmp_path: Path) -> None:
    records, bad = read(spoiled(tmp_path, [*sound(), bytes(300)]))
    assert records == without()
    assert [offset for offset, _ in bad] == [RECORDS * 8]


def test_with_one_bad_byte_anywhere_all_batches_but_its_own_are_read(tmp_path: Path) -> None:
    rng = random.Random(20)
    whole = b"".join(sound(4))
    root = spoiled(tmp_path, sound(4))
    log = next((root / "users-0").glob("*.log"))
    for _ in range(60):
        data = bytearray(whole)
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        number, inside = divmod(at, len(whole) // 4)
        log.write_bytes(data)
        records, bad = read(root)
        if 12 <= inside < 16 or (inside < 8 and number == 3):
            continue  # no checksum covers the leader epoch, and nothing is above the last batch's offset
        assert (records, [offset for offset, _ in bad]) == (
            without(number, count=4),
            [RECORDS * number],
        ), at


def forged_header(offset: int, size: int, count: int = 1) -> bytes:
    """A header of a batch of ``size`` bytes, with a wrong checksum."""
    return HEADER.pack(offset, size - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, count)


def headers_of_all_that_follows(batches: list[bytes], offset: int = RECORDS) -> list[bytes]:
    size = 600 * 61 + sum(map(len, batches[1:]))
    headers = [forged_header(offset, size - 61 * number) for number in range(600)]
    return [batches[0], b"\xff" * 61, *headers, *batches[1:]]


def headers_with_offsets_beyond_the_segment(batches: list[bytes]) -> list[bytes]:
    return headers_of_all_that_follows(batches, offset=1 << 31)


def a_header_of_all_that_follows_before_each(batches: list[bytes], count: int = 1) -> list[bytes]:
    """All end at bytes without a header; with a possible ``count`` each is the header of a bad batch."""
    size, damaged = sum(map(len, batches[:-1])) + 61 * (len(batches) - 1), []
    for number, whole in enumerate(batches[:-1]):
        damaged += [forged_header(RECORDS * number, size, count), whole]
        size -= 61 + len(whole)
    return [*damaged, b"\xff" * 61, batches[-1]]


def an_impossible_header_before_each(batches: list[bytes]) -> list[bytes]:
    return a_header_of_all_that_follows_before_each(batches, count=-1)


def a_wrong_byte_after_each(batches: list[bytes]) -> list[bytes]:
    return [whole + b"\xff" for whole in batches]


@pytest.mark.parametrize(
    ("damage", "batches_read", "unchecked"),
    [
        (headers_of_all_that_follows, range(400), 584),
        (headers_with_offsets_beyond_the_segment, range(400), None),
        (a_header_of_all_that_follows_before_each, [*range(16), 399], 1),
        (an_impossible_header_before_each, range(400), None),
        (a_wrong_byte_after_each, range(400), None),
    ],
)
def test_reading_damaged_bytes_takes_no_more_than_a_multiple_of_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[list[bytes]], list[bytes]],
    batches_read: Sequence[int],
    unchecked: int | None,
) -> None:
    batches = damage(sound(400))
    root = spoiled(tmp_path, batches)
    counted = CountedReads(monkeypatch)
    records, bad = read(root)
    size = sum(map(len, batches))
    assert counted.total < 120 * size
    assert sorted({offset // RECORDS for offset in records}) == list(batches_read)
    assert len(records) == RECORDS * len(batches_read)
    counts = [reason.partition("positions not checked: ")[2] for _, reason in bad if "may hold" in reason]
    assert counts == ([] if unchecked is None else [f"{unchecked})"])


@pytest.mark.parametrize("splits", ["1", "5", "100"])
def test_a_bad_batch_is_one_row_in_however_many_splits(tmp_path: Path, splits: str) -> None:
    batches = sound()
    batches[3] = batches[3][:-1] + b"\xff"
    root = spoiled(tmp_path, batches)
    records, bad = read(root, minPartitions=splits, maxPartitionBytes="300")
    assert (sorted(records), len(bad)) == (without(3), 1)


def test_batch_metadata_is_refused_for_views_and_columns_for_other_tables(tmp_path: Path) -> None:
    for options, about in (
        ({"includeBatchMetadata": "true", "view": "latest"}, "includeBatchMetadata"),
        ({"table": "batches", "columns": "offset"}, "table=batches"),
    ):
        with raises_error(UsageError, about=about):
            ReadOptions.of({"path": str(tmp_path), **options})
