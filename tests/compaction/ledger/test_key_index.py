"""Key index files: written in parts, put together, read by ranges, and refused when damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from siltstone.base.errors import CorruptFileError
from siltstone.base.records.layout import Words
from siltstone.compaction.ledger import keys
from siltstone.compaction.ledger.keys import (
    KEY_INDEX_PARTITIONS,
    KeyIndexPart,
    assemble_key_index,
    read_key_index,
    write_key_index_part,
)
from tests.support.errors import raises_error
from tests.support.ledger.entries import spread_entries

HASH_KEY = (11, 12)
HEADER = 32 + 8 * (KEY_INDEX_PARTITIONS + 1) + 4 * KEY_INDEX_PARTITIONS + 8


def some_entries(count: int, words: int = 3) -> tuple[Words, np.ndarray]:
    random = np.random.default_rng(7)
    return spread_entries(random.integers(0, 1 << 64, (count, words), np.uint64))


def parts_of(folder: Path, entries: Words, bounds: np.ndarray, buckets: int) -> list[KeyIndexPart]:
    per_bucket, parts = KEY_INDEX_PARTITIONS // buckets, []
    for bucket in range(buckets):
        part_bounds = bounds[bucket * per_bucket : (bucket + 1) * per_bucket + 1]
        part = entries[part_bounds[0] : part_bounds[-1]]
        parts.append(
            write_key_index_part(folder, part, part_bounds - part_bounds[0], bucket * per_bucket, "0")
        )
    return parts


def written(folder: Path, count: int = 5000, buckets: int = 4, words: int = 3) -> tuple[Path, Words]:
    folder.mkdir(exist_ok=True)
    entries, bounds = some_entries(count, words)
    path = folder / "keys"
    size, _ = assemble_key_index(path, parts_of(folder, entries, bounds, buckets), words, HASH_KEY)
    assert size == path.stat().st_size
    return path, entries


def everything(path: Path, words: int = 3, first: int = 0, behind: int = KEY_INDEX_PARTITIONS) -> Words:
    parts = [entries for _, entries, _ in read_key_index(path, HASH_KEY, words, first, behind)]
    return np.concatenate([np.empty((0, words), np.uint64), *parts])


@pytest.mark.parametrize("buckets", [1, 2, 1024])
@pytest.mark.parametrize("words", [3, 4])
def test_what_was_written_in_parts_is_read_by_ranges(tmp_path: Path, buckets: int, words: int) -> None:
    path, entries = written(tmp_path, buckets=buckets, words=words)
    assert np.array_equal(everything(path, words), entries)
    _, bounds = some_entries(5000, words)
    assert np.array_equal(everything(path, words, 256, 512), entries[bounds[256] : bounds[512]])


def test_large_ranges_come_some_partitions_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_READ_BYTES", 1000)
    path, entries = written(tmp_path)
    ranges = list(read_key_index(path, HASH_KEY, 3))
    assert len(ranges) > 50 and np.array_equal(np.concatenate([part for _, part, _ in ranges]), entries)
    for first, part, bounds in ranges:
        partitions = (part[:, 0] >> np.uint64(54)).astype(np.int64) - first
        assert np.array_equal(np.searchsorted(partitions, np.arange(len(bounds))), bounds)


def test_the_bytes_do_not_depend_on_the_number_of_buckets(tmp_path: Path) -> None:
    single, _ = written(tmp_path / "one", buckets=1)
    many, _ = written(tmp_path / "many", buckets=16)
    assert single.read_bytes() == many.read_bytes()


def test_an_index_without_entries_is_valid(tmp_path: Path) -> None:
    path, _ = written(tmp_path, count=0)
    assert len(everything(path)) == 0


@pytest.mark.parametrize(
    "position", [0, 9, 12, 24, 40, 32 + 8 * KEY_INDEX_PARTITIONS, HEADER - 8, HEADER, -1]
)
def test_a_flipped_byte_is_noticed(tmp_path: Path, position: int) -> None:
    path, _ = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    with raises_error(CorruptFileError, path=path):
        everything(path)


@pytest.mark.parametrize("number", [0, 1])
def test_bounds_that_do_not_ascend_from_0_are_refused_though_their_checksum_matches(
    tmp_path: Path, number: int
) -> None:
    path, _ = written(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 32 + 8 * number, [1, 4000][number])
    struct.pack_into("<I", data, HEADER - 8, crc32c(bytes(data[: HEADER - 8])))
    path.write_bytes(data)
    with raises_error(CorruptFileError, path=path, position=32, about="ascend"):
        everything(path)


@pytest.mark.parametrize("size", [0, 10, HEADER - 1, HEADER, -24, -1])
def test_a_cut_file_is_noticed(tmp_path: Path, size: int) -> None:
    path, _ = written(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with raises_error(CorruptFileError, path=path):
        everything(path)


def test_another_hash_key_is_noticed(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with raises_error(CorruptFileError, path=path, position=24):
        next(read_key_index(path, (11, 13), 3))


def test_another_number_of_words_is_noticed(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with raises_error(CorruptFileError, path=path, position=12, about="order"):
        everything(path, 4)


def test_a_part_that_changed_before_it_was_put_together_is_noticed(tmp_path: Path) -> None:
    entries, bounds = some_entries(500)
    parts = parts_of(tmp_path, entries, bounds, 2)
    data = bytearray(Path(parts[1].path).read_bytes())
    data[-3] ^= 1
    Path(parts[1].path).write_bytes(data)
    with raises_error(CorruptFileError, path=parts[1].path):
        assemble_key_index(tmp_path / "keys", parts, 3, HASH_KEY)
