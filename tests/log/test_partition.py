"""What an open log does when an append fails, and when it rolls earlier than others."""

from __future__ import annotations

import errno
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import SiltstoneError, StorageError, TransactionCoordinatorFencedError
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.scan import scan_batches
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.indexes import read_entries
from siltstone.log.names import LEADER_EPOCH_CHECKPOINT, segment_file
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.replacement import delete_oldest
from siltstone.log.validation import Origin
from tests.support.cleaning.logs import Rec, batch
from tests.support.cleaning.transactional import marker
from tests.support.crash.disk import crash_after
from tests.support.log.batches import array
from tests.support.log.driving import read_all
from tests.support.log.managed import failing
from tests.support.log.offset_values import NOW, append, opened


def test_only_a_full_disk_leaves_a_log_online(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for full in (errno.ENOSPC, errno.EDQUOT):
        with failing(tmp_path, "write", error=full), pytest.raises(StorageError):
            append(log)
        assert log.offline is None and log.log_end_offset == 0
    append(log)
    with failing(tmp_path, "write", error=errno.EIO), pytest.raises(SiltstoneError):
        append(log)
    assert log.offline is not None and log.log_end_offset == 3
    assert repr(log) == f"<PartitionLog topic-0 in {tmp_path}: offsets 0 to 3, offline: {log.offline}>"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_segment_that_a_full_disk_leaves_half_created_is_removed(tmp_path: Path, at: int) -> None:
    """Smaller batches go on into the segment before: a start would take the other one for the log's end."""
    log = opened(tmp_path)
    append(log)
    created = list[str]()

    def full(operation: files.Operation) -> None:
        if operation[0] == "create" and not operation[1].endswith("snapshot.tmp"):
            created.append(operation[1])
            if len(created) == at:
                raise OSError(errno.ENOSPC, "the disk is full", operation[1])

    with files.observe(full), pytest.raises(OSError, match="the disk is full"):
        log._segment_list.roll(log.log_end_offset)
    assert len(created) == at
    assert [path.name for path in tmp_path.rglob(f"{log.log_end_offset:020}.*")] == []
    append(log)
    log.close()
    assert opened(tmp_path).log_end_offset == 6


def test_batches_of_several_leaders_in_one_call_begin_their_epochs_where_they_are(tmp_path: Path) -> None:
    log = opened(tmp_path)
    batches = [batch([Rec(offset=at, key=b"k", timestamp=NOW)], leader_epoch=epoch) for at, epoch in EPOCHS]
    log.append(array(b"".join(batches)), origin=Origin.REPLICATION)
    lines = (log.directory / LEADER_EPOCH_CHECKPOINT).read_text().splitlines()
    assert lines[2:] == ["3 0", "4 2", "7 3"]


EPOCHS = [(0, 3), (1, 3), (2, 4), (3, 7)]


def test_damage_in_a_closed_segment_does_not_stop_a_truncation_half_way(tmp_path: Path) -> None:
    """What was cut may be sent again: producers are those of the shorter log."""
    log = opened(tmp_path)
    for number in range(45):
        log.append(array(batch([Rec(offset=0, key=b"k", timestamp=NOW + number)])))
    sequenced = [sent_by(7, sequence) for sequence in range(2)]
    for data in sequenced:
        log.append(array(data))
    log.flush()
    with log.view.segments[0].path().open("r+b") as file:
        file.seek(8)
        file.write((-1).to_bytes(4, "big", signed=True))
    end = log.log_end_offset - 1
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    log.truncate_to(end)
    assert log.offline is None and log.log_end_offset == end
    assert not log.append(array(sequenced[1])).is_duplicate
    assert log.log_end_offset == end + 1


def sent_by(producer_id: int, sequence: int) -> bytes:
    record = Rec(offset=0, key=b"k", timestamp=NOW + 100)
    return batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_without_an_epoch_of_a_leader_batches_are_of_epoch_0(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log)
    append(log)
    data = np.frombuffer(log.view.segments[0].path().read_bytes(), np.uint8)
    assert scan_batches(data).batches["leader_epoch"].tolist() == [0, 0]


def test_offsets_that_are_large_in_themselves_begin_no_segment(tmp_path: Path) -> None:
    """An index has offsets relative to the segment's base offset."""
    log = opened(tmp_path)
    log.truncate_fully_and_start_at(1 << 40)
    append(log)
    append(log)
    assert [segment.base_offset for segment in log.view.segments] == [1 << 40]


def test_a_truncation_removes_the_index_entries_of_what_goes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(45):
        log.append(array(batch([Rec(offset=0, key=b"k", timestamp=NOW + number)])))
    base = log.view.segments[1].base_offset
    log.flush()
    log.truncate_to(base + 7)
    log.flush()
    for kind in ("index", "timeindex"):
        path = log.directory / segment_file(base, kind)
        entries = read_entries(path.read_bytes(), kind, str(path))
        assert entries["relative_offset"].max() < 7 and (entries["relative_offset"] > 0).any(), kind


def test_a_log_has_a_jitter_without_being_given_random_numbers(tmp_path: Path) -> None:
    log = open_partition(tmp_path / "topic-0", LogConfig(segment_jitter_ms=1))
    assert [segment.jitter_ms for segment in log.view.segments] == [0]


def test_the_high_watermark_may_go_back_and_stays_within_the_log(tmp_path: Path) -> None:
    """As in Kafka (``UnifiedLog.updateHighWatermark``)."""
    log = opened(tmp_path)
    append(log)
    append(log)
    log.delete_records(2)
    seen = []
    for offset in (5, 3, 9, 0, -1):
        log.set_high_watermark(offset)
        seen.append(log.high_watermark)
    assert seen == [5, 3, 6, 2, 2]
    log.set_high_watermark(9)
    append(log)
    assert log.high_watermark == 6, "the log's end at that time"


# Logs with transactions


def test_batches_of_a_coordinator_that_are_refused_stay_as_they_were(tmp_path: Path) -> None:
    """The producers are asked when offsets have been written into all batches."""
    log = opened(tmp_path)
    abort(log)
    end = log.log_end_offset
    late = end_transaction_marker(
        is_commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=-1, timestamp_ms=NOW
    )
    data = np.concatenate([array(marker(0, 8, commit=True)), array(marker(0, 9, commit=True)), late])
    before = data.tobytes()
    with pytest.raises(TransactionCoordinatorFencedError):
        log.append(data, origin=Origin.COORDINATOR)
    assert data.tobytes() == before and log.log_end_offset == end


def abort(log: PartitionLog) -> None:
    """Append a transaction of one record, and its abort."""
    record, producer = Rec(offset=0, key=b"k", timestamp=NOW), {"producer_id": 7, "producer_epoch": 0}
    log.append(array(batch([record], **producer, base_sequence=0, transactional=True)))
    log.append(array(marker(0, 7, commit=False)), origin=Origin.COORDINATOR)


def with_an_aborted_transaction(path: Path) -> PartitionLog:
    """The first segment has an aborted transaction and its marker; two more segments follow."""
    log = opened(path)
    abort(log)
    for _ in range(60):
        append(log)
    log.flush()
    assert len(log.view.segments) > 2 and log.view.segments[0].transaction_index_size
    return log


def committed_values(log: PartitionLog) -> set[bytes | None]:
    return {each.key for each in read_all(log, isolation=READ_COMMITTED)}


@pytest.mark.parametrize("way", ["an open log", "a command"])
def test_a_crash_while_a_segment_is_deleted_makes_no_aborted_record_a_committed_one(
    tmp_path: Path, way: str
) -> None:
    crashes = 0
    for count in itertools.count():
        log = with_an_aborted_transaction(tmp_path / str(count))
        end, recovery_point = log.log_end_offset, log.recovery_point
        first = log.view.segments[0].base_offset
        delete = partial(log.delete_oldest_segments, 1)
        if way == "a command":
            delete = partial(delete_oldest, log.directory, [first])
        if not crash_after(count, delete):
            break
        crashes += 1
        again = open_partition(
            log.directory,
            log.config,
            ManualClock(NOW),
            had_clean_shutdown=False,
            recovery_point=recovery_point,
        )
        assert again.log_end_offset == end
        assert b"k" not in committed_values(again), count
    assert crashes >= 5


def test_a_new_transaction_index_is_durable_with_its_name(tmp_path: Path) -> None:
    log = opened(tmp_path)
    done = list[tuple[str, str]]()
    with files.observe(lambda operation: done.append((operation[0], Path(operation[1]).name))):
        abort(log)
        log.flush()
        first = list(done)
        append(log)
        log.flush()
    index = segment_file(0, "txnindex")
    after = first[next(at for at, (_, name) in enumerate(first) if name == index) :]
    assert ("fsync", index) in after and ("fsync", log.directory.name) in after
    assert ("fsync", log.directory.name) not in done[len(first) :], "once is enough"


def test_an_entry_that_is_just_being_added_is_no_damage_of_the_transaction_index(tmp_path: Path) -> None:
    log = with_an_aborted_transaction(tmp_path)
    with (log.directory / segment_file(0, "txnindex")).open("ab") as file:
        file.write(b"the beginning")
    assert [entry.producer_id for entry in log.view.segments[0].aborted()] == [7]
