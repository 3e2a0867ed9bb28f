"""What `clean` deletes after cleaning: of which logs, up to where, and what their results say of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import DryRun, InPlace
from siltstone.compaction.inplace.expiry import RemainingSegment
from siltstone.compaction.inplace.originals import Originals, check_log, read_run
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import (
    CLEANED,
    FAILED,
    NOT_ELIGIBLE,
    NOTHING_TO_DO,
    SKIPPED,
    UNCLEANABLE,
    LogResult,
)
from siltstone.compaction.staging import GroupReport
from siltstone.log import replacement, retention
from siltstone.log.directory import LogDirectory
from siltstone.log.retention import SegmentMetadata
from siltstone.log.segments import Segment
from tests.support.cleaning import logs
from tests.support.cleaning.logs import DAY, NOW, Rec, batch
from tests.support.golden_sets import load_case, partition_directory, stage_round, write_checkpoint

BOTH = {"cleanup.policy": "compact,delete", "retention.ms": DAY}
OLD, YOUNG = NOW - 2 * DAY, NOW - DAY // 2


def record(offset: int, key: str, timestamp: int) -> bytes:
    return batch([Rec(offset=offset, key=key.encode(), timestamp=timestamp)])


def write(path: Path, **more: int) -> Path:
    """Two old segments, of which the first loses its record, a young one, and an old active one."""
    return logs.write_log(
        path,
        {
            0: [record(0, "a", OLD)],
            1: [record(1, "b", OLD), record(2, "c", OLD)],
            3: [record(3, "a", YOUNG)],
            4: [record(4, "d", OLD)],
        },
        **more,
    )


def bases(partition: Path) -> list[int]:
    return sorted(logs.logs_of(partition))


def clean(path: Path, config: Mapping[str, object] = BOTH, **more: object) -> LogResult:
    return logs.run(path, config={"segment.bytes": 100, **config}, **more)  # type: ignore[arg-type]


def test_old_segments_go_after_cleaning(tmp_path: Path) -> None:
    partition = write(tmp_path)
    result = clean(tmp_path)
    assert (result.status, result.reason) == (CLEANED, "")
    assert bases(partition) == [3, 4]
    assert (result.discarded.superseded, result.discarded.expired) == (1, 2)
    assert (result.records_before, result.records_after) == (5, 2)
    assert (result.segments_before, result.segments_after) == (4, 2)
    assert result.bytes_after == sum(len(data) for data in logs.logs_of(partition).values())
    assert clean(tmp_path).status == NOTHING_TO_DO


def test_compaction_alone_deletes_nothing_by_time(tmp_path: Path) -> None:
    partition = write(tmp_path)
    result = clean(tmp_path, {"retention.ms": DAY})
    assert bases(partition) == [0, 1, 3, 4] and result.discarded.expired == 0


def test_segments_below_the_log_start_are_deleted_under_compact_alone(tmp_path: Path) -> None:
    partition = write(tmp_path, log_start=3)
    result = clean(tmp_path, {})
    assert bases(partition) == [3, 4]
    assert result.notes[-1].endswith("below the log start offset 3")


@pytest.mark.parametrize(
    ("more", "ratio", "was"),
    [({"checkpoint": 4}, "0.0", "nothing that may be cleaned"), ({"checkpoint": 3}, "0.9", "dirty ratio")],
)
def test_retention_applies_to_a_log_that_needs_no_cleaning(
    tmp_path: Path, more: dict[str, int], ratio: str, was: str
) -> None:
    partition = write(tmp_path, **more)
    result = clean(tmp_path, {**BOTH, "min.cleanable.dirty.ratio": ratio}, force=False)
    assert (result.status, result.reason) == (CLEANED, "")
    assert bases(partition) == [3, 4]
    assert (result.records_before, result.records_after, result.discarded.total()) == (5, 2, 3)
    assert (result.segments_before, result.segments_after) == (4, 2)
    assert any(note.startswith(f"not compacted: {was}") for note in result.notes)


@pytest.mark.parametrize(("checkpoint", "status"), [(4, NOTHING_TO_DO), (3, NOT_ELIGIBLE)])
def test_without_an_expired_segment_the_status_stays(tmp_path: Path, checkpoint: int, status: str) -> None:
    write(tmp_path, checkpoint=checkpoint)
    config = {**BOTH, "retention.ms": 3 * DAY, "min.cleanable.dirty.ratio": "0.9"}
    result = clean(tmp_path, config, force=False)
    assert result.status == status and result.reason and result.records_before is None


def test_a_directory_without_segments_has_nothing_to_expire(tmp_path: Path) -> None:
    """A broker that died while it created the partition leaves one; the run goes on to the other logs."""
    partition = write(tmp_path)
    for path in partition.iterdir():
        path.unlink()
    result = clean(tmp_path)
    assert (result.status, result.reason) == (NOTHING_TO_DO, "the directory holds no segments")


def test_the_active_segment_stays(tmp_path: Path) -> None:
    partition = write(tmp_path)
    result = clean(tmp_path, {**BOTH, "retention.ms": 1})
    assert bases(partition) == [4] and result.discarded.expired == 3


@pytest.mark.parametrize(("high_watermark", "expected_bases"), [(2, [1, 3, 4]), (0, [0, 1, 3, 4])])
def test_nothing_above_the_high_watermark_is_deleted(
    tmp_path: Path, high_watermark: int, expected_bases: list[int]
) -> None:
    partition = write(tmp_path, high_watermark=high_watermark)
    clean(tmp_path)
    assert bases(partition) == expected_bases


def test_without_a_high_watermark_the_log_end_counts_only_with_the_option(tmp_path: Path) -> None:
    partition = write(tmp_path, high_watermark=None)
    assert clean(tmp_path).status == SKIPPED and bases(partition) == [0, 1, 3, 4]
    clean(tmp_path, high_watermark_is_end=True)
    assert bases(partition) == [3, 4]


def test_a_high_watermark_in_the_checkpoint_bounds_retention_despite_high_watermark_end(
    tmp_path: Path,
) -> None:
    partition = write(tmp_path, high_watermark=2)
    clean(tmp_path, high_watermark_is_end=True)
    assert bases(partition) == [1, 3, 4]


@pytest.mark.parametrize("high_watermark", [None, 1 << 40])
@pytest.mark.parametrize("setting", ["retention.bytes", "retention.ms", "log start"])
def test_the_active_segment_and_the_end_stay_when_everything_has_expired(
    tmp_path: Path, setting: str, high_watermark: int | None
) -> None:
    """Beginning a new active segment is the broker's, so the one there is goes nowhere."""
    log_start = 5 if setting == "log start" else None
    partition = write(tmp_path, high_watermark=high_watermark, log_start=log_start)
    limits = {} if log_start else {"retention.ms": -1, setting: 0}
    before = logs.logs_of(partition)[4]
    result = clean(tmp_path, {**BOTH, **limits}, now_ms=NOW + 10 * DAY, high_watermark_is_end=True)
    assert result.status == CLEANED
    assert logs.logs_of(partition) == {4: before}
    assert (result.segments_after, result.records_after, result.bytes_after) == (1, 1, len(before))
    again = clean(tmp_path, {**BOTH, **limits}, now_ms=NOW + 20 * DAY, high_watermark_is_end=True)
    assert again.status == NOTHING_TO_DO and logs.logs_of(partition) == {4: before}


def test_a_registered_deletion_policy_does_not_delete_the_active_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(retention._policies, "all", lambda segments, now_ms, config: len(segments))
    partition = write(tmp_path, high_watermark=None)
    clean(tmp_path, {**BOTH, "siltstone.retention.policy": "all"}, high_watermark_is_end=True)
    assert bases(partition) == [4]


@pytest.mark.parametrize(
    ("setting", "value", "expected_bases"),
    [
        ("retention.bytes", -1, [0, 1, 3, 4]),
        ("retention.bytes", LONG_MAX, [0, 1, 3, 4]),
        ("retention.bytes", -LONG_MAX - 1, [0, 1, 3, 4]),
        ("retention.ms", -1, [0, 1, 3, 4]),
        ("retention.ms", LONG_MAX, [0, 1, 3, 4]),
        ("retention.ms", 0, [4]),
    ],
)
@pytest.mark.parametrize("now_ms", [NOW, LONG_MAX])
def test_extreme_retention_limits_neither_overflow_nor_wrap_around(
    tmp_path: Path, setting: str, value: int, expected_bases: list[int], now_ms: int
) -> None:
    partition = write(tmp_path)
    clean(tmp_path, {**BOTH, "retention.ms": -1, setting: value}, now_ms=now_ms)
    assert bases(partition) == expected_bases


def test_retention_bytes_counts_the_sizes_after_cleaning(tmp_path: Path) -> None:
    partition = write(tmp_path)
    remaining_bytes = sum(len(data) for base, data in logs.logs_of(partition).items() if base)
    result = clean(
        tmp_path, {"cleanup.policy": "compact,delete", "retention.ms": -1, "retention.bytes": remaining_bytes}
    )
    assert bases(partition) == [1, 3, 4] and result.discarded.expired == 0
    assert result.notes == [
        f"retention: 1 segment from offset 0 (0 bytes): the log is over retention.bytes={remaining_bytes}"
    ]


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_log_that_is_skipped_loses_nothing(tmp_path: Path, policy: str) -> None:
    partition = write(tmp_path)
    config = {**BOTH, "cleanup.policy": policy, "remote.storage.enable": policy == "compact,delete"}
    assert clean(tmp_path, config).status == SKIPPED
    assert bases(partition) == [0, 1, 3, 4]


def test_an_uncleanable_log_is_left_as_it_is(tmp_path: Path) -> None:
    partition = write(tmp_path)
    path = partition / f"{3:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    before = logs.tree(partition)
    assert clean(tmp_path).status == UNCLEANABLE
    assert logs.tree(partition) == before


def test_without_a_configured_retention_ms_nothing_is_deleted_and_a_note_says_why(tmp_path: Path) -> None:
    partition = write(tmp_path)
    policy = {"cleanup.policy": "compact,delete"}
    result = clean(tmp_path, policy, now_ms=NOW + 10 * DAY)
    assert bases(partition) == [0, 1, 3, 4]
    assert "retention.ms is not set" in result.notes[-1] and "3 more" in result.notes[-1]
    with LogDirectory.open(tmp_path) as directory:
        ((topic_partition, path),) = directory.partitions.items()
        state = LogState(
            topic_partition=topic_partition, path=path, directory=directory, config=logs.settings(policy)
        )
        cleaner = Cleaner(InProcessEngine, InPlace("run"), RunLimits())
        (result,) = cleaner.run(
            [msgspec.structs.replace(state, has_brokers_defaults=True)], PlanOptions(now_ms=NOW + 10 * DAY)
        )
    assert bases(partition) == [4] and result.discarded.expired == 3


def test_a_registered_deletion_policy_gets_no_default_retention_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-1 is Kafka's number for no limit."""

    def policy(segments: Sequence[SegmentMetadata], now_ms: int, config: LogConfig) -> int:
        return 0 if config.retention_ms == -1 else 1

    monkeypatch.setitem(retention._policies, "by age", policy)
    partition = write(tmp_path)
    result = clean(tmp_path, {"cleanup.policy": "compact,delete", "siltstone.retention.policy": "by age"})
    assert bases(partition) == [0, 1, 3, 4]
    assert [note for note in result.notes if "retention.ms" in note]


def test_an_unknown_deletion_policy_deletes_nothing_and_a_note_says_why(tmp_path: Path) -> None:
    partition = write(tmp_path)
    result = clean(tmp_path, {**BOTH, "siltstone.retention.policy": "mine"})
    assert result.status == CLEANED and bases(partition) == [0, 1, 3, 4]
    assert result.notes[-1].startswith("retention was left out: siltstone.retention.policy=mine")


def test_a_disk_error_during_retention_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)

    def refusing(*arguments: object, **named: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("siltstone.compaction.inplace.destination.delete_oldest", refusing)
    result = clean(tmp_path)
    assert result.status == FAILED and "old segments could not be deleted" in result.reason
    assert result.discarded.expired == 0 and result.segments_after == 4


@pytest.mark.parametrize("whole_log_bytes", [0, 1 << 30])
def test_an_interrupt_during_retention_leaves_a_cleaned_log_cleaned(
    tmp_path: Path, whole_log_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint has moved, and what was discarded counts once."""
    write(tmp_path)

    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("siltstone.compaction.inplace.expiry.segments_to_delete", interrupted)
    with LogDirectory.open(tmp_path) as directory:
        ((topic_partition, path),) = directory.partitions.items()
        config = logs.settings({"segment.bytes": 100, **BOTH})
        state = LogState(topic_partition=topic_partition, path=path, directory=directory, config=config)
        cleaner = Cleaner(InProcessEngine, InPlace("run"), RunLimits(whole_log_bytes=whole_log_bytes))
        with pytest.raises(KeyboardInterrupt):
            cleaner.run([state], PlanOptions(now_ms=NOW, force=True))
    (result,) = cleaner.results
    assert (result.status, result.cleaned_end_offset) == (CLEANED, 4)
    assert result.discarded.superseded == result.discarded.total() == 1


def test_the_seconds_of_a_result_are_those_since_its_cleaning_began(tmp_path: Path) -> None:
    """Retention's included. (The stopwatch is not asked how long that may be.)"""
    write(tmp_path)
    began = time.perf_counter()
    result = clean(tmp_path)
    assert 0 < result.seconds <= time.perf_counter() - began


@pytest.mark.parametrize("largest", [None, -1, 0])
def test_a_new_segment_without_timestamps_is_as_old_as_its_file(largest: int | None) -> None:
    segment = Segment(directory="/log/a-0", base_offset=0, size=1, modified_ns=7_000_000)
    new = GroupReport(group_index=0, largest_timestamp=largest)
    assert RemainingSegment(segment, new).largest_timestamp() == 7
    assert RemainingSegment(segment, replace(new, largest_timestamp=1)).largest_timestamp() == 1


@pytest.mark.parametrize("checkpoint", [None, 4])
def test_a_dry_run_changes_nothing_and_reports_what_a_run_would(
    tmp_path: Path, checkpoint: int | None
) -> None:
    partition = write(tmp_path, checkpoint=checkpoint)
    before = logs.tree(tmp_path)
    simulated = clean(tmp_path, destination=DryRun(), force=False)
    assert {name: data for name, data in logs.tree(tmp_path).items() if name != ".lock"} == before
    actual = clean(tmp_path, force=False)
    simulated.seconds = actual.seconds = 0.0
    assert simulated == actual and bases(partition) == [3, 4]


@pytest.mark.parametrize("checkpoint", [None, 4])
@pytest.mark.parametrize("name", ["log", os.fsdecode(b"\xff, which is not UTF-8")])
def test_kept_originals_bring_deleted_segments_back(
    tmp_path: Path, checkpoint: int | None, name: str
) -> None:
    partition = write(tmp_path / name, checkpoint=checkpoint)
    before = logs.tree(partition)
    keep = tmp_path / "keep" / "run"
    keep.mkdir(parents=True)
    clean(tmp_path / name, destination=InPlace("run", Originals(keep)))
    assert bases(partition) == [3, 4]
    with LogDirectory.open(tmp_path / name) as directory:
        ((place, log),) = read_run(keep)
        assert len(check_log(place, log).restore(directory)) == (3 if checkpoint is None else 2)
    assert logs.tree(partition) == before


def test_a_deletion_that_was_broken_off_is_finished_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write(tmp_path, checkpoint=4)
    with monkeypatch.context() as patch:
        patch.setattr(replacement, "remove_deleted", lambda directory, from_base=0: [])
        clean(tmp_path)
    assert list(partition.glob("*.deleted"))
    result = clean(tmp_path)
    assert not list(partition.glob("*.deleted")) and bases(partition) == [3, 4]
    assert result.status == NOTHING_TO_DO and any(note.startswith("removed ") for note in result.notes)


@pytest.mark.parametrize("name", ["v0_gzip", "v1_basic", "v1_gzip"])
def test_message_sets_are_counted_record_by_record(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = load_case(cleaned, f"old_formats/{name}")
    stage_round(case, case.rounds[0], tmp_path / "log")
    partition = partition_directory(case, tmp_path / "log")
    active = max(bases(partition))
    write_checkpoint(tmp_path / "log" / "cleaner-offset-checkpoint", {(case.topic, case.partition): active})
    end = case.rounds[0].checkpoints_before["replication-offset-checkpoint"]
    result = clean(tmp_path / "log", {**BOTH, "retention.ms": 0}, now_ms=NOW + 1000 * DAY)
    assert (result.discarded.expired, result.records_before, result.records_after) == (
        active,
        end,
        end - active,
    )


def test_a_log_file_under_another_segments_name_is_not_deleted_by_that_segments_times(tmp_path: Path) -> None:
    """Its index says that all of it is old; what it holds is not."""
    partition = write(tmp_path, checkpoint=4)
    first, young = (partition / f"{base:020d}.log" for base in (1, 3))
    data = first.read_bytes(), young.read_bytes()
    first.write_bytes(data[1])
    young.write_bytes(data[0])
    before = logs.tree(partition)
    result = clean(tmp_path)
    assert result.status == FAILED and "are not of this segment" in result.reason
    assert result.discarded.expired == 0 and logs.tree(partition) == before
