"""Idle logs: tombstones go once all horizons have passed, and then the log has its rest again."""

from __future__ import annotations

from pathlib import Path

from siltstone.compaction.inplace.planning import Horizons, find_horizons
from siltstone.compaction.report import CLEANED, NOT_ELIGIBLE, NOTHING_TO_DO
from siltstone.log.segments import list_segments
from tests.support.cleaning.logs import (
    DAY,
    NOW,
    WHERE,
    Rec,
    batch,
    headers_of,
    logs_of,
    offsets,
    one,
    run,
    write_log,
)
from tests.support.golden_sets import read_checkpoint, write_checkpoint

STAMPED = 0x40


def log_with_tombstones(path: Path) -> Path:
    partition = write_log(
        path,
        {
            0: [one(0, "a"), batch([Rec(offset=1, key=b"b", value=None), Rec(offset=2, key=b"c")])],
            10: [one(10, "a"), one(11, "d", None)],
            20: [one(20, "e")],
        },
    )
    assert run(path).status == CLEANED
    assert offsets(partition) == [1, 2, 10, 11, 20]
    return partition


def checkpoint(path: Path) -> int:
    return read_checkpoint(path / "cleaner-offset-checkpoint")[WHERE.topic, WHERE.partition]


def test_tombstones_of_an_idle_log_go_once_the_last_horizon_has_passed(tmp_path: Path) -> None:
    partition = log_with_tombstones(tmp_path)
    early = run(tmp_path, now_ms=NOW + DAY - 1, force=False)
    assert (early.status, offsets(partition)) == (NOTHING_TO_DO, [1, 2, 10, 11, 20])
    due = run(tmp_path, now_ms=NOW + DAY, force=False)
    assert due.status == CLEANED
    assert due.notes == ["the delete horizons of all its tombstones have passed"]
    assert due.discarded.tombstones == due.discarded.total() == 2
    assert (due.first_dirty_offset, due.cleaned_end_offset, checkpoint(tmp_path)) == (20, 20, 20)
    assert offsets(partition) == [2, 10, 20]


def test_a_horizon_without_tombstones_does_not_have_the_log_cleaned_again(tmp_path: Path) -> None:
    partition = log_with_tombstones(tmp_path)
    run(tmp_path, now_ms=NOW + DAY, force=False)
    remaining = [header for header, _ in headers_of(logs_of(partition)[0])]
    assert [header.attributes & STAMPED for header in remaining] == [STAMPED, 0]
    before = logs_of(partition)
    again = run(tmp_path, now_ms=NOW + 2 * DAY, force=True)
    assert (again.status, logs_of(partition)) == (NOTHING_TO_DO, before)


def test_a_delete_retention_of_zero_comes_to_an_end(tmp_path: Path) -> None:
    partition = write_log(tmp_path, {0: [one(0, "a", None)], 10: [one(10, "b")]})
    config = {"delete.retention.ms": 0}
    statuses = [run(tmp_path, config=config, force=False).status for _ in range(3)]
    assert statuses == [CLEANED, CLEANED, NOTHING_TO_DO]
    assert offsets(partition) == [10]


def test_a_small_dirty_section_is_cleaned_with_a_due_horizon(tmp_path: Path) -> None:
    partition = log_with_tombstones(tmp_path)
    data = logs_of(partition)
    (tmp_path / "other").mkdir()
    write_log(tmp_path / "other", {20: [one(20, "e"), one(21, "c")], 30: [one(30, "f")]})
    for path in (tmp_path / "other" / str(WHERE)).iterdir():
        path.replace(partition / path.name)
    assert logs_of(partition)[0] == data[0]
    config = {"min.cleanable.dirty.ratio": 0.9}
    assert run(tmp_path, config=config, now_ms=NOW + DAY - 1, force=False).status == NOT_ELIGIBLE
    due = run(tmp_path, config=config, now_ms=NOW + DAY, force=False)
    assert (due.status, due.discarded.tombstones, due.discarded.superseded) == (CLEANED, 2, 1)
    assert (offsets(partition), checkpoint(tmp_path)) == ([10, 20, 21, 30], 30)


def test_the_checkpoint_does_not_go_back_into_a_segment(tmp_path: Path) -> None:
    """Kafka's full key map leaves a checkpoint amid a segment."""
    stamped = batch([Rec(offset=0, key=b"a", value=None)], delete_horizon_ms=NOW - 1)
    segments = {0: [stamped], 10: [one(10, "b"), one(12, "c")], 20: [one(20, "d")]}
    partition = write_log(tmp_path, segments, checkpoint=12, high_watermark=12)
    due = run(tmp_path, force=False)
    assert (due.status, due.discarded.tombstones, checkpoint(tmp_path)) == (CLEANED, 1, 12)
    assert offsets(partition) == [10, 12, 20]


def test_a_passed_horizon_above_the_high_watermark_cleans_nothing(tmp_path: Path) -> None:
    """The checkpoint may be above the high watermark: a follower was cleaned, then its leader truncated."""
    stamped = batch([Rec(offset=8, key=b"a", value=None)], delete_horizon_ms=NOW - 1)
    segments = {0: [], 1: [one(1, "b"), stamped], 9: []}
    partition = write_log(tmp_path, segments, checkpoint=9, high_watermark=0)
    before = logs_of(partition)
    assert run(tmp_path, force=False).status == NOTHING_TO_DO
    assert logs_of(partition) == before
    (tmp_path / "replication-offset-checkpoint").unlink()
    write_checkpoint(tmp_path / "replication-offset-checkpoint", {(WHERE.topic, WHERE.partition): 9})
    assert run(tmp_path, force=False).discarded.tombstones == 1


def test_horizons_are_read_from_headers(tmp_path: Path) -> None:
    def stamped(offset: int, horizon: int, value: bytes | None = None) -> bytes:
        return batch([Rec(offset=offset, key=b"k%d" % offset, value=value)], delete_horizon_ms=horizon)

    partition = write_log(
        tmp_path,
        {
            0: [one(0, "a"), stamped(1, NOW - 5)],
            10: [stamped(10, NOW + 9, b"v")],
            20: [stamped(20, NOW + 99)],
        },
    )
    segments = list_segments(partition)
    assert find_horizons(segments, 20, NOW) == Horizons(newest_ms=NOW + 9)
    assert find_horizons(segments, 20, NOW + 9) == Horizons(newest_ms=NOW + 9, is_due=True)
    assert find_horizons(segments[1:], 20, NOW + 9) == Horizons(newest_ms=NOW + 9)
    assert find_horizons(segments, 0, NOW) == Horizons()
