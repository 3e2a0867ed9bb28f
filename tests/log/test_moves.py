"""What a log tells of its moves, and appends that never wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    CorruptMessageError,
    LogError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    StorageError,
)
from siltstone.base.records.layout import CRC_POSITION
from siltstone.log.partition import TRY_APPEND_BYTES_MAX, PartitionLog, open_partition
from siltstone.log.validation import Origin
from tests.support.cleaning.logs import Rec
from tests.support.cleaning.transactional import marker
from tests.support.log.batches import TIME, array, edited, of_records, sent
from tests.support.log.managed import failing

NOW = TIME + 60_000


def opened(path: Path, clock: ManualClock | None = None, **config: object) -> PartitionLog:
    settings = LogConfig(**config)  # type: ignore[arg-type]
    return open_partition(path / "topic-0", settings, clock or ManualClock(NOW))


def begun(path: Path, clock: ManualClock | None = None, **config: object) -> PartitionLog:
    """A log with one record, so that its leader epoch is on the disk."""
    log = opened(path, clock, **config)
    log.append(sent())
    return log


# The hook


@pytest.fixture
def moved(tmp_path: Path) -> tuple[PartitionLog, list[PartitionLog]]:
    """A log with ten records, and the logs that its hook was called with since."""
    log, calls = opened(tmp_path), list[PartitionLog]()
    log.append(sent(10))
    log.when_moved = calls.append
    return log, calls


MOVES: dict[str, Callable[[PartitionLog], object]] = {
    "an append": lambda log: log.append(sent()),
    "a try": lambda log: log.try_append(sent()),
    "the high watermark": lambda log: log.set_high_watermark(5),
    "deleted records": lambda log: log.delete_records(3),
    "a truncation": lambda log: log.truncate_to(4),
    "a new start": lambda log: log.truncate_fully_and_start_at(50),
    "a close": lambda log: log.close(),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_move_is_reported(
    moved: tuple[PartitionLog, list[PartitionLog]], move: Callable[[PartitionLog], object]
) -> None:
    log, calls = moved
    move(log)
    assert calls
    assert set(calls) == {log}


def test_the_view_is_there_when_a_move_is_reported(moved: tuple[PartitionLog, list[PartitionLog]]) -> None:
    log, _ = moved
    ends = list[int]()
    log.when_moved = lambda log: ends.append(log.view.log_end_offset)
    log.append(sent(2))
    assert ends == [12]


def test_what_moves_nothing_is_not_reported(moved: tuple[PartitionLog, list[PartitionLog]]) -> None:
    log, calls = moved
    log.roll()
    log.flush()
    log.update_config(LogConfig(retention_ms=5))
    log.delete_records(0)
    with pytest.raises(CorruptMessageError):
        log.append(edited(sent(), CRC_POSITION, 0, 4, sealed=False))
    assert calls == []


def test_the_last_stable_offset_is_reported_alone(tmp_path: Path) -> None:
    """The end and the high watermark stand still; a marker below the high watermark ends the transaction."""
    log, stable = opened(tmp_path), list[int]()
    log.append(sent(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    log.set_high_watermark(2)
    log.append(array(marker(2, 7, commit=True)), origin=Origin.COORDINATOR)
    log.when_moved = lambda log: stable.append(log.view.last_stable_offset)
    log.set_high_watermark(3)
    assert stable == [3]


def test_a_log_that_goes_offline_says_so(moved: tuple[PartitionLog, list[PartitionLog]]) -> None:
    log, calls = moved
    with failing(log.directory, "write"), pytest.raises(StorageError):
        log.append(sent())
    assert calls == [log]
    assert not log.is_open


# Appends that never wait


def test_a_try_appends_like_an_append(tmp_path: Path) -> None:
    one, other = begun(tmp_path / "one"), begun(tmp_path / "other")
    for sequence in (0, 3, 0):  # the last is sent again
        batch = sent(3, producer_id=7, producer_epoch=0, base_sequence=sequence)
        tried, appended = batch.copy(), batch.copy()
        assert one.try_append(tried) == other.append(appended)
        assert tried.tobytes() == appended.tobytes()
    assert one.view.offsets == other.view.offsets
    assert one.read(0).batches()[0].tobytes() == other.read(0).batches()[0].tobytes()


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (edited(sent(), CRC_POSITION, 0, 4, sealed=False), CorruptMessageError),
        (array(b""), LogError),
        (array(b"\0" * 30), CorruptMessageError),
    ],
    ids=["checksum", "nothing", "zeros"],
)
def test_a_try_refuses_like_an_append(tmp_path: Path, batch: object, kind: type[LogError]) -> None:
    log = begun(tmp_path)
    before = batch.tobytes()  # type: ignore[attr-defined]
    with pytest.raises(kind):
        log.try_append(batch)  # type: ignore[arg-type]
    assert batch.tobytes() == before  # type: ignore[attr-defined]
    assert log.log_end_offset == 1


def test_a_try_refuses_a_sequence(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.try_append(sent(producer_id=7, producer_epoch=0, base_sequence=0))
    with pytest.raises(OutOfOrderSequenceError):
        log.try_append(sent(producer_id=7, producer_epoch=0, base_sequence=5))


LARGE = [Rec(offset=0, key=b"key", value=bytes(TRY_APPEND_BYTES_MAX), timestamp=TIME)]
SLOW = {
    "a batch that is large": ({}, of_records(LARGE)),
    "a batch that decompresses to much": ({}, of_records(LARGE, codec=1)),
    "another codec": ({"compression_type": "zstd"}, sent()),
    "a full segment": ({"segment_bytes": 200}, sent(3)),
    "a flush after records": ({"flush_messages": 3}, sent(2)),
    "a flush after time": ({"flush_ms": 0}, sent()),
}


@pytest.mark.parametrize(("config", "batch"), SLOW.values(), ids=SLOW)
def test_what_would_wait_is_left_to_another_thread(
    tmp_path: Path, config: dict[str, object], batch: object
) -> None:
    log = begun(tmp_path, **config)
    before, files = batch.tobytes(), sorted(log.directory.iterdir())  # type: ignore[attr-defined]
    assert log.try_append(batch) is None  # type: ignore[arg-type]
    assert batch.tobytes() == before  # type: ignore[attr-defined]
    assert (log.log_end_offset, sorted(log.directory.iterdir())) == (1, files)
    assert log.append(batch).first_offset == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_small_batch_with_a_codec_is_tried(tmp_path: Path, codec: int) -> None:
    log = begun(tmp_path)
    assert log.try_append(sent(30, codec=codec)) == (1, 30, -1, False, 0)


def test_a_batch_that_is_too_large_for_the_topic_is_refused_elsewhere(tmp_path: Path) -> None:
    log = begun(tmp_path, max_message_bytes=1000)
    assert log.try_append(sent(100)) is None
    with pytest.raises(MessageTooLargeError):
        log.append(sent(100))


def test_a_flush_that_is_not_due_yet_is_no_reason(tmp_path: Path) -> None:
    log = begun(tmp_path, flush_messages=4)
    assert log.try_append(sent(2)) is not None
    assert log.try_append(sent()) is None


def test_the_first_append_writes_the_leader_epoch(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.try_append(sent()) is None
    log.append(sent())
    assert log.try_append(sent()) is not None
    assert log.try_append(sent(), leader_epoch=4) is None


def test_a_segment_that_is_too_old_rolls_elsewhere(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    log = begun(tmp_path, clock, segment_ms=1000)
    assert log.try_append(sent(first_time=TIME + 1000)) is not None
    assert log.try_append(sent(first_time=TIME + 1001)) is None


def test_a_try_does_not_wait_for_the_lock(tmp_path: Path) -> None:
    log = begun(tmp_path)
    is_held, is_done = threading.Event(), threading.Event()

    def hold(_: PartitionLog) -> None:
        is_held.set()
        is_done.wait(60)

    log.when_moved = hold  # within the lock
    other = threading.Thread(target=log.append, args=(sent(),))
    other.start()
    try:
        assert is_held.wait(60)
        assert log.try_append(sent()) is None
    finally:
        is_done.set()
        other.join(60)
    log.when_moved = None
    assert log.try_append(sent()) == (2, 2, -1, False, 0)


def test_a_closed_log_refuses_a_try(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.close()
    with pytest.raises(StorageError):
        log.try_append(sent())


# Leader epochs


def test_a_leader_epoch_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert (log.leader_epoch, log.end_of_epoch(0), log.end_of_epoch(1)) == (0, (0, 0), None)
    log.append(sent(2), leader_epoch=3)
    log.append(sent(2), leader_epoch=5)
    ends = {epoch: log.end_of_epoch(epoch) for epoch in range(-2, 7)}
    assert (ends[-2], ends[-1], ends[6]) == ((-2, 0), None, None)  # -1 is no epoch, -2 is one before all
    assert [ends[epoch] for epoch in range(6)] == [(0, 0), (1, 0), (2, 0), (3, 2), (3, 2), (5, 4)]
    assert log.leader_epoch == 5


def test_the_epoch_of_an_offset(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.epoch_at(0) == 0
    log.append(sent(2), leader_epoch=3)
    log.append(sent(2), leader_epoch=5)
    assert [log.epoch_at(offset) for offset in (0, 1, 2, 9)] == [3, 3, 5, 5]
