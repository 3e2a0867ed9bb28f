"""The current records of ``__consumer_offsets``, of which a server reads only what is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.commands.group_records import CurrentRecord, KeptRecords
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from tests.cli.test_groups import batches, broker
from tests.support import coordinator_records as encoded
from tests.support.cleaning.logs import write_segment
from tests.support.cleaning.transactional import marker, write_index
from tests.support.counted_reads import CountedReads

OFFSETS = TopicPartition("__consumer_offsets", 0)


def commits(start: int, value: bytes | None, *partitions: int, **shape: object) -> bytes:
    return batches(
        [(encoded.commit_key("billing", "orders", number), value) for number in partitions], start, **shape
    )


def transactional(start: int, offset: int, producer: int, *partitions: int) -> bytes:
    return commits(
        start,
        encoded.commit(offset),
        *partitions,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def written(directory: Path, *log: bytes) -> Path:
    write_segment(directory / str(OFFSETS), 0, b"".join(log), interval=100)
    return directory


def current(kept: KeptRecords, directory: Path) -> list[CurrentRecord]:
    return list(kept.current(ReadOnlyLogs([directory])[OFFSETS]))


def offsets_of(records: list[CurrentRecord]) -> dict[int, int]:
    return {record.subkey.partition: record.value["offset"] for record in records}


def test_only_new_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [commits(20 * n, encoded.commit(n, "x" * (5000 if n < 2 else 0)), *range(20)) for n in range(3)]
    directory, kept = broker(tmp_path / "logs", *old), KeptRecords()
    assert offsets_of(current(kept, directory)) == dict.fromkeys(range(20), 2)
    new = [commits(60, encoded.commit(9), 4), commits(61, None, 5)]
    log = ReadOnlyLogs([written(directory, *old, *new)])[OFFSETS]
    counted = CountedReads(monkeypatch)
    found = offsets_of(list(kept.current(log)))
    assert found == {number: 9 if number == 4 else 2 for number in range(20) if number != 5}
    assert 0 < counted.total < 20_000, "of over 200,000"


def test_what_is_kept_is_what_is_read_anew(tmp_path: Path) -> None:
    """After each batch, with open, committed and aborted transactions, tombstones, records that cannot be
    decoded and those of streams groups, whatever fits the bound."""
    history = [
        commits(0, encoded.commit(1), 0, 1, 2),
        transactional(3, 2, 7, 0, 3),
        commits(5, encoded.commit(3), 0),
        commits(6, None, 1),
        marker(7, 7, commit=True),
        transactional(8, 4, 8, 0, 2),
        commits(10, encoded.commit(5), 2),
        batches([(encoded.key(1, "x"), b"\0"), (encoded.key(17, "s"), b""), (encoded.key(99, "y"), b"")], 11),
        marker(14, 8, commit=False),
        commits(15, encoded.commit(6), 1),
        transactional(16, 7, 7, 1),
        commits(17, encoded.commit(8), 4),
    ]
    directory = broker(tmp_path / "logs", history[0])
    (directory / ".kafka_cleanshutdown").unlink()  # the producers' states are read from the batches then
    all_kept, none_kept = KeptRecords(), KeptRecords(0)
    for count in range(1, len(history) + 1):
        written(directory, *history[:count])
        if count == 9:
            write_index(directory / str(OFFSETS), 0, (8, 8, 14, 15))
        expected = current(KeptRecords(), directory)
        assert current(all_kept, directory) == current(none_kept, directory) == expected
    assert [record.offset for record in expected] == [4, 5, 10, 11, 12, 15, 17]
    assert [record.problem is None for record in expected].count(False) == 1


def test_a_log_that_was_truncated_is_read_again(tmp_path: Path) -> None:
    head, kept = commits(0, encoded.commit(1), 0, 1), KeptRecords()
    directory = broker(tmp_path / "logs", head, commits(2, encoded.commit(2), 0))
    assert offsets_of(current(kept, directory)) == {0: 2, 1: 1}
    written(directory, head, commits(2, encoded.commit(3), 1), commits(3, encoded.commit(4), 2))
    assert offsets_of(current(kept, directory)) == {0: 1, 1: 3, 2: 4}
    written(directory, head)
    assert offsets_of(current(kept, directory)) == {0: 1, 1: 1}


def test_records_below_a_log_start_that_moved_are_forgotten(tmp_path: Path) -> None:
    directory, kept = broker(tmp_path / "logs", commits(0, encoded.commit(1), 0, 1, 2)), KeptRecords()
    assert len(current(kept, directory)) == 3
    (directory / "log-start-offset-checkpoint").write_text(f"0\n1\n{OFFSETS.topic} 0 2\n")
    assert offsets_of(current(kept, directory)) == {2: 1}


def test_a_tombstone_that_a_cleaning_removed_before_it_was_read_counts(tmp_path: Path) -> None:
    first, second = commits(0, encoded.commit(1), 0), commits(1, encoded.commit(1), 1)
    directory, kept = broker(tmp_path / "logs", first, second), KeptRecords()
    assert offsets_of(current(kept, directory)) == {0: 1, 1: 1}
    # Offset 2 was a tombstone of the key at 0: both are gone, and the batch at 1 is as it was.
    written(directory, second, commits(3, encoded.commit(2), 2))
    (directory / "cleaner-offset-checkpoint").write_text(f"0\n1\n{OFFSETS.topic} 0 3\n")
    assert offsets_of(current(kept, directory)) == {1: 1, 2: 2}
