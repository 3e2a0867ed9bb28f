"""Logs with ledgers: what retention leaves, what truncations and starts forget, what goes with the topic."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from siltstone.base.clock import ManualClock
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import LedgerError
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.log.ledger.manifest import BY_OFFSET, BY_TIME
from siltstone.log.ledger.store import CleaningBounds, LedgerStore, cleaning_bounds
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.retention import SegmentMetadata, segments_to_delete
from siltstone.runtime.manager import LogManager
from tests.support.cleaning import logs
from tests.support.errors import raises_error
from tests.support.log import managed, plainly
from tests.support.log.managed import NOW

DAY = 86_400_000
WHERE = TopicPartition("topic", 0)
DELETES = LogConfig(retention_ms=0)


# Decisions


def segments(*bases: int, end: int) -> tuple[SegmentMetadata, ...]:
    return tuple(
        SegmentMetadata(
            base_offset=base,
            end_offset=following,
            size=100,
            largest_timestamp=0,
            is_active=following == end,
        )
        for base, following in zip(bases, (*bases[1:], end), strict=True)
    )


@pytest.mark.parametrize(
    ("retain_from", "deleted"),
    [(None, 3), (0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (99, 3)],
)
def test_a_policy_takes_only_what_is_covered_as_a_whole(retain_from: int | None, deleted: int) -> None:
    decisions = segments_to_delete(
        segments(0, 10, 20, end=30),
        now_ms=DAY,
        config=DELETES,
        log_start_offset=0,
        high_watermark=30,
        retain_from=retain_from,
    )
    assert len(decisions) == deleted


@pytest.mark.parametrize(("retain_from", "deleted"), [(0, 2), (15, 2), (29, 2), (30, 3)])
def test_what_was_given_up_goes_all_the_same(retain_from: int, deleted: int) -> None:
    decisions = segments_to_delete(
        segments(0, 10, 20, end=30),
        now_ms=DAY,
        config=DELETES,
        log_start_offset=25,
        high_watermark=30,
        retain_from=retain_from,
    )
    assert len(decisions) == deleted


# In an open directory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def manager(tmp_path: Path, clock: ManualClock) -> Iterator[LogManager]:
    with open_manager(tmp_path, clock) as opened:
        yield opened


def open_manager(path: Path, clock: ManualClock) -> LogManager:
    return managed.opened(path / "logs", clock=clock, config={"log.retention.ms": str(DAY)})


def grow(log: PartitionLog, segments: int) -> None:
    """Segments of three records, each with its own keys once, and an empty active one."""
    for _ in range(segments):
        managed.append(log, 3)
        log.roll()


def retained(manager: LogManager, clock: ManualClock) -> list[int]:
    """The segments that are left when everything is too old."""
    clock.advance(2 * DAY)
    manager.upkeep.delete_old_segments()
    return [segment.base_offset for segment in manager[WHERE].view.segments]


def test_retention_leaves_what_no_ledger_covers(manager: LogManager, clock: ManualClock) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 2)
    plainly.compact(log)
    grow(log, 2)
    assert retained(manager, clock) == [6, 9, 12]
    assert log.log_start_offset == 6
    plainly.compact(log, name="bb")
    assert retained(manager, clock) == [12]
    with log.reader(read_compacted=True) as reader:
        assert [record.offset for record in reader.records()] == [9, 10, 11]


def test_a_log_without_a_ledger_is_retained_as_before(manager: LogManager, clock: ManualClock) -> None:
    grow(manager.get_or_create(WHERE), 2)
    assert retained(manager, clock) == [6]


def test_a_reader_holds_back_retention(manager: LogManager, clock: ManualClock) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    reader = log.reader(read_compacted=True)
    grow(log, 2)
    plainly.compact(log, name="bb", merge_runs=True)
    assert retained(manager, clock) == [3, 6, 9]
    assert [record.offset for record in reader.records()] == [0, 1, 2, *range(3, 9)]
    assert retained(manager, clock) == [9]


def test_a_damaged_ledger_keeps_all_originals(
    manager: LogManager, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 2)
    plainly.compact(log)
    (log.directory / ".compacted" / "ledger-0.json").unlink()
    assert retained(manager, clock) == [0, 3, 6]
    assert "ledger-0.json: the file is missing" in caplog.text
    assert not manager.offline


def test_a_forgotten_ledger_holds_nothing_back(manager: LogManager, clock: ManualClock) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    grow(log, 1)
    LedgerStore(log.directory).delete_cursor()
    assert retained(manager, clock) == [6]


def test_deleted_records_are_given_up_by_whoever_deletes_them(
    manager: LogManager, clock: ManualClock
) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    grow(log, 3)
    manager.delete_records(WHERE, 7)
    assert retained(manager, clock) == [6, 9, 12]


def test_the_ledger_goes_with_the_topic(manager: LogManager, clock: ManualClock, tmp_path: Path) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    manager.topics.delete("topic")
    clock.advance(DAY)
    manager.tick()
    assert [path.name for path in (tmp_path / "logs").iterdir() if path.is_dir()] == []


# Truncation


@pytest.mark.parametrize(("offset", "forgotten"), [(6, False), (5, True), (0, True)])
def test_a_truncation_below_the_horizon_forgets_first(
    manager: LogManager, offset: int, forgotten: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 2)
    plainly.compact(log)
    grow(log, 1)
    assert manager.truncate_to(WHERE, offset)
    assert (LedgerStore(log.directory).cursor() is None) == forgotten
    assert ("removed compacted ledger 0, since it covers offsets below 6" in caplog.text) == forgotten
    with log.reader(read_compacted=True) as reader:
        remaining = range(offset - offset % 3) if forgotten else [3, 4, 5]  # whole batches go
        assert [record.offset for record in reader.records()] == list(remaining)


def test_a_truncation_that_cuts_nothing_forgets_nothing(manager: LogManager) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    assert not manager.truncate_to(WHERE, 3)
    assert LedgerStore(log.directory).cursor() is not None


def test_a_log_that_starts_anew_forgets(manager: LogManager) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    manager.truncate_fully_and_start_at(WHERE, 100)
    assert LedgerStore(log.directory).cursor() is None


def test_a_damaged_cursor_stops_no_truncation(manager: LogManager, caplog: pytest.LogCaptureFixture) -> None:
    log = manager.get_or_create(WHERE)
    grow(log, 1)
    plainly.compact(log)
    (log.directory / ".compacted" / "cursor.json").write_bytes(b"")
    assert manager.truncate_to(WHERE, 1)
    assert "cursor.json: the file is not JSON" in caplog.text
    with raises_error(LedgerError, path=log.directory / ".compacted" / "cursor.json"):
        log.reader(read_compacted=True)


# Starts


def test_a_start_sweeps_what_is_left_over(tmp_path: Path, clock: ManualClock) -> None:
    with open_manager(tmp_path, clock) as manager:
        log = manager.get_or_create(WHERE)
        grow(log, 1)
        plainly.compact(log)
        store = LedgerStore(log.directory)
        store.make_staging("dead")
    with open_manager(tmp_path, clock):
        assert sorted(path.name for path in store.folder.iterdir()) == [
            "cursor.json",
            "generation-0",
            "ledger-0.json",
        ]


@pytest.mark.parametrize("cut", [0, 1])
def test_a_start_that_finds_less_than_the_ledger_covers_forgets_it(
    tmp_path: Path, clock: ManualClock, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage that recovery cuts away: the same offsets are about to be given to other records."""
    with open_manager(tmp_path, clock) as manager:
        log = manager.get_or_create(WHERE)
        managed.append(log, 3)
        managed.append(log, 3)
        plainly.compact(log)
        store = LedgerStore(log.directory)
    path = log.directory / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[: -1 if cut else None])
    (tmp_path / "logs" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "logs" / "recovery-point-offset-checkpoint").unlink()
    with open_manager(tmp_path, clock) as manager:
        assert manager[WHERE].log_end_offset == (3 if cut else 6)
        assert (store.cursor() is None) == bool(cut)
        assert ("removed compacted ledger" in caplog.text) == bool(cut)
        assert store.folder.exists()
        assert list(store.folder.glob("generation-*")) == ([] if cut else [store.folder / "generation-0"])


def test_a_damaged_ledger_stops_no_start(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with open_manager(tmp_path, clock) as manager:
        log = manager.get_or_create(WHERE)
        grow(log, 1)
        plainly.compact(log)
    cursor = log.directory / ".compacted" / "cursor.json"
    cursor.write_bytes(cursor.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING), open_manager(tmp_path, clock) as manager:
        assert manager[WHERE].log_end_offset == 3
        assert not manager.refused
        assert str(cursor) in caplog.text
    assert (log.directory / ".compacted" / "generation-0").exists()


# Cleaning a directory that nobody has open

OLD = NOW - 2 * DAY
BOTH = {"cleanup.policy": "compact,delete", "retention.ms": DAY, "segment.bytes": 100}


def clean(path: Path) -> LogResult:
    return logs.run(path, config=BOTH)


def old_log(path: Path) -> Path:
    """Three old segments of one record, and an active one."""
    rows = {base: [logs.batch([logs.Rec(offset=base, key=b"%d" % base, timestamp=OLD)])] for base in range(4)}
    return logs.write_log(path, rows)


def with_ledger(partition: Path, horizon: int, order: str = BY_OFFSET) -> LedgerStore:
    store = LedgerStore(partition)
    records = [logs.Rec(offset=base, key=b"%d" % base) for base in range(horizon)]
    new, staged = plainly.stage(store.make_staging("aa"), 0, (0, horizon), records)
    store.commit(replace(plainly.ledger_of(0, [new]), order=order), {}, {0: staged})
    return store


@pytest.mark.parametrize(("horizon", "remaining"), [(None, [3]), (1, [1, 2, 3]), (2, [2, 3]), (4, [3])])
def test_clean_leaves_what_no_ledger_covers(
    tmp_path: Path, horizon: int | None, remaining: list[int]
) -> None:
    partition = old_log(tmp_path)
    if horizon is not None:
        store = with_ledger(partition, horizon)
    clean(tmp_path)
    assert sorted(logs.logs_of(partition)) == remaining
    if horizon is not None:
        assert (store.folder / "generation-0").exists()
        assert store.first_needed_offset() == horizon


def test_clean_says_when_damage_keeps_it_from_deleting(tmp_path: Path) -> None:
    partition = old_log(tmp_path)
    store = with_ledger(partition, 4)
    shutil.rmtree(store.folder / "generation-0")
    result = clean(tmp_path)
    assert len(logs.logs_of(partition)) > 1
    assert result.status == CLEANED
    assert any("retention was left out" in note and "generation-0" in note for note in result.notes)


def test_an_older_ledger_says_nothing_of_the_order_of_one_whose_manifest_is_missing(tmp_path: Path) -> None:
    store = with_ledger(tmp_path, 2, BY_OFFSET)
    newer = replace(plainly.ledger_of(1, store.current().runs), order=BY_TIME)  # type: ignore[union-attr]
    store.commit(newer, {}, {})
    assert cleaning_bounds(tmp_path) == CleaningBounds(2, 2)
    (store.folder / "ledger-1.json").unlink()
    assert (store.folder / "ledger-0.json").exists()
    assert cleaning_bounds(tmp_path) == CleaningBounds(0, 2)


@pytest.mark.parametrize(
    ("damaged", "by_offset", "by_time"),
    [
        ((), LONG_MAX, 2),
        (("generation-0",), LONG_MAX, 2),
        (("cursor.json",), LONG_MAX, 0),
        (("ledger-0.json",), 2, 2),
        (("cursor.json", "ledger-0.json"), 0, 0),
    ],
)
def test_damage_does_not_let_cleaning_compare_offsets_where_times_count(
    tmp_path: Path, damaged: tuple[str, ...], by_offset: int, by_time: int
) -> None:
    for order, clean_below in ((BY_OFFSET, by_offset), (BY_TIME, by_time)):
        partition = tmp_path / order
        partition.mkdir()
        store = with_ledger(partition, 2, order)
        for name in damaged:
            path = store.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.write_bytes(path.read_bytes()[:-3])
        tombstones_from = 0 if damaged else 2
        assert cleaning_bounds(partition) == CleaningBounds(tombstones_from, clean_below)
