"""Planning: the documents' worked examples with their numbers, and each rule by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.ranges import CleanableRange, LogFacts, PlanSegment
from siltstone.compaction.report import CLEANED, NOT_ELIGIBLE, NOTHING_TO_DO
from siltstone.compaction.work import RetentionRules
from siltstone.log import retention
from siltstone.log.checkpoints import read_checkpoint
from tests.support.cleaning import logs
from tests.support.cleaning.logs import WHERE, one

MINUTE, HOUR = 60_000, 3_600_000
GIB = 1 << 30


def keeps_legacy_tombstones(modified_ms: int, horizon_ms: int) -> bool:
    rules = RetentionRules(
        now_ms=0,
        delete_retention_ms=0,
        last_offset=0,
        producers=np.empty((0, 3), np.int64),
        legacy_delete_horizon_ms=horizon_ms,
    )
    return rules.keeps_legacy_tombstones(modified_ms)


def segments(*bases: int, size: int = 100) -> list[PlanSegment]:
    return [PlanSegment(base_offset=base, size=size) for base in bases]


def facts(*bases: int, size: int = 100, **offsets: int | None) -> LogFacts:
    end = bases[-1] + 10
    return LogFacts(
        segments=segments(*bases, size=size),
        log_start_offset=offsets.get("log_start") or bases[0],
        log_end_offset=end,
        clean_below=end if offsets.get("stable") is None else offsets["stable"],
        checkpoint=offsets.get("checkpoint"),
    )


def cleanable(log: LogFacts, now_ms: int = 0, min_ms: int = 0, max_ms: int = LONG_MAX) -> CleanableRange:
    """The range with these lags."""
    config = LogConfig(min_compaction_lag_ms=min_ms, max_compaction_lag_ms=max_ms)
    return ranges.cleanable_range(log, config, now_ms)


def checkpoint(path: Path) -> int:
    return read_checkpoint(path / "cleaner-offset-checkpoint")[WHERE]


def groups(log: Sequence[PlanSegment], end: int, config: LogConfig) -> list[list[int]]:
    """The base offsets of the segments of each group; the groups fit each other, and the log."""
    formed = ranges.group_segments(log, end, config)
    sources = [
        [segment.base_offset for segment in log[group.first_segment : group.end_segment]] for group in formed
    ]
    assert [base for bases in sources for base in bases] == [segment.base_offset for segment in log]
    assert [group.index for group in formed] == list(range(len(formed)))
    assert [group.base_offset for group in formed] == [bases[0] for bases in sources]
    assert [group.end_offset for group in formed] == [*(bases[0] for bases in sources[1:]), end][
        : len(formed)
    ]
    return sources


def map_keys(buffer_bytes: int, load_factor: float) -> int:
    config = {
        "log.cleaner.dedupe.buffer.size": buffer_bytes,
        "log.cleaner.io.buffer.load.factor": load_factor,
    }
    return ranges.kafka_map_keys(logs.settings(config))


# the worked examples


@pytest.mark.parametrize("way", ["whole", "spread"])
def test_example_1_last_value(tmp_path: Path, way: str) -> None:
    keys = ["K1", "K2", "K1", "K1", "x4", "K2", "x6", "x7", "x8", "K2"]
    log = {0: [one(i, key) for i, key in enumerate(keys)], 10: [one(10, "K1")]}
    partition = logs.write_log(tmp_path / "log", log)
    limits = logs.one_group_a_wave(tmp_path / "log") if way == "spread" else None
    assert logs.run(tmp_path / "log", limits=limits).status == CLEANED
    remaining = [r for r in logs.records_in(logs.logs_of(partition)[0]) if r.key in (b"K1", b"K2")]
    assert [record.offset for record in remaining] == [3, 9]


KEYS_BY_OFFSET = dict(enumerate("A B B C C C D E E F G".split()))


def test_examples_2_and_3_cleaner_points_and_reading_across_gaps(tmp_path: Path) -> None:
    path, config = tmp_path / "log", {"delete.retention.ms": 0}
    first = [one(i, key, None if key in "DG" else "v") for i, key in KEYS_BY_OFFSET.items()]
    first += [one(11, None), one(12, None)]
    second = [one(13, "A"), one(14, "A"), *(one(i, "E") for i in (15, 16, 17)), one(18, None), one(19, None)]
    partition = logs.write_log(path, {0: first, 13: second})

    assert logs.run(path, config=config).cleaned_end_offset == 13
    assert checkpoint(path) == 13
    assert [offset for offset in logs.offsets(partition) if offset < 13] == [0, 2, 5, 6, 8, 9, 10]
    assert following(partition, 3) == 5

    logs.write_segment(partition, 20, b"".join(one(20 + i, f"n{i}") for i in range(8)))
    assert logs.run(path, config=config).cleaned_end_offset == 20
    assert checkpoint(path) == 20
    assert [offset for offset in logs.offsets(partition) if offset < 20] == [2, 5, 9, 14, 17]
    assert following(partition, 15) == following(partition, 16) == 17
    assert [offset for offset in logs.offsets(partition) if offset >= 20] == list(range(20, 28))

    logs.write_segment(partition, 28, one(28, "last"))
    assert logs.run(path, config=config).cleaned_end_offset == 28
    assert checkpoint(path) == 28


def following(partition: Path, offset: int) -> int:
    """Where a read at an offset starts."""
    return min(later for later in logs.offsets(partition) if later >= offset)


def at(hour: int, minute: int) -> int:
    return hour * HOUR + minute * MINUTE


def _dated(times: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[PlanSegment]:
    return [
        PlanSegment(base_offset=10 * i, size=size, modified_ms=at(*time))
        for i, (time, size) in enumerate(zip(times, sizes, strict=True))
    ]


def test_example_4_segments_and_horizons_of_the_old_formats() -> None:
    limits = LogConfig(segment_bytes=10, segment_index_bytes=GIB)
    times = [(6, 0), (6, 20), (6, 30), (6, 35), (7, 0), (7, 40), (8, 0), (8, 10)]
    log = _dated(times, [3, 3, 3, 5, 4, 7, 6, 9])

    assert ranges.legacy_delete_horizon(log, 0, HOUR) == 0
    assert all(keeps_legacy_tombstones(segment.modified_ms, 0) for segment in log)

    horizon = ranges.legacy_delete_horizon(log, 60, HOUR)
    assert horizon == at(6, 40)
    assert groups(log, 80, limits)[:3] == [[0, 10, 20], [30, 40], [50]]
    retained = [
        segment.modified_ms for segment in log if keeps_legacy_tombstones(segment.modified_ms, horizon)
    ]
    assert retained == [at(7, 0), at(7, 40), at(8, 0), at(8, 10)]

    third = _dated([(6, 30), (7, 0), (7, 40), (8, 0), (8, 10)], [2, 2, 2, 3, 9])
    assert groups(third, 50, limits) == [[0, 10, 20, 30], [40]]
    horizon = ranges.legacy_delete_horizon(third, 50, HOUR)
    assert horizon == at(7, 10)
    going = [
        segment.modified_ms for segment in third if not keeps_legacy_tombstones(segment.modified_ms, horizon)
    ]
    assert going == [at(6, 30), at(7, 0)]


def test_example_4_equal_to_the_horizon_means_gone() -> None:
    segment = PlanSegment(base_offset=0, size=1, modified_ms=at(6, 40))
    assert not keeps_legacy_tombstones(segment.modified_ms, at(6, 40))


def test_example_5_the_map(tmp_path: Path) -> None:
    """Map {K1→100, K2→110}."""
    keyed = {15: "K1", 80: "K1", 99: "K1", 100: "K1", 110: "K2"}
    log = {0: [one(offset, key) for offset, key in keyed.items()], 111: [one(111, "K1")]}
    partition = logs.write_log(tmp_path / "log", log)
    result = logs.run(tmp_path / "log")
    assert result.distinct_dirty_keys == 2
    assert logs.offsets(partition) == [100, 110, 111]


def test_example_6_map_size_and_passes() -> None:
    default = map_keys(128 << 20, 0.9)
    assert default == 5_033_164
    assert map_keys(8 << 30, 1.0) == 357_913_941
    assert default * 1024 / GIB == pytest.approx(4.8, abs=0.01)
    assert ranges.kafka_passes(default, default) == 1
    assert ranges.kafka_passes(default + 1, default) == 2
    assert ranges.kafka_passes(0, default) == 1
    assert map_keys(1_048_577, 0.9) == 39_321
    assert ranges.kafka_buffer_bytes_for_keys(9, 0.9) == 240
    for load in (0.0, 5e-324):
        assert ranges.kafka_buffer_bytes_for_keys(1, load) == (2**63 - 1) // 24 * 24


def test_example_7_groups() -> None:
    sizes = [0.4, 0.4, 0.3, 0.7, 0.3, 1.0]
    log = [PlanSegment(base_offset=i * 10, size=int(size * 10)) for i, size in enumerate(sizes)]
    assert groups(log, 60, LogConfig(segment_bytes=10, segment_index_bytes=GIB)) == [
        [0, 10],
        [20, 30],
        [40],
        [50],
    ]


def test_example_8_a_group_is_named_after_its_first_segment(tmp_path: Path) -> None:
    log = {base: [one(base, f"k{base}")] for base in (0, 100, 200, 300)}
    partition = logs.write_log(tmp_path / "log", log)
    renamed: list[str] = []
    with files.observe(
        lambda operation: renamed.append(Path(operation[2]).name) if operation[0] == "rename" else None
    ):
        logs.run(tmp_path / "log")
    zero = "0" * 20
    cleaned = [name for name in renamed if name.endswith(".cleaned")]
    assert sorted(cleaned) == [f"{zero}.{kind}.cleaned" for kind in ("index", "log", "timeindex")]
    assert sorted(logs.logs_of(partition)) == [0, 300]
    assert logs.offsets(partition) == [0, 100, 200, 300]


def test_example_9_log_start_retention() -> None:
    ends = {0: 11, 11: 23, 23: 40, 40: 50}
    log = [
        retention.SegmentMetadata(
            base_offset=base, end_offset=end, size=1, largest_timestamp=0, is_active=base == 40
        )
        for base, end in ends.items()
    ]

    def going(log_start: int) -> list[int]:
        config = LogConfig(retention_ms=-1, retention_bytes=-1)
        decisions = retention.segments_to_delete(
            log,
            now_ms=0,
            config=config,
            log_start_offset=log_start,
            high_watermark=50,
            retain_active_segment=True,
        )
        return [decision.base_offset for decision in decisions]

    assert going(25) == going(23) == [0, 11]
    assert going(22) == [0]
    assert going(0) == []
    assert going(1000) == [0, 11, 23]


def test_example_14_ratio() -> None:
    half = replace(cleanable(facts(0, 10, 20, checkpoint=10)), clean_bytes=50, cleanable_bytes=50)
    assert half.dirty_ratio == 0.5
    assert not ranges.is_eligible(half, 0.5)
    assert ranges.is_eligible(replace(half, clean_bytes=49, cleanable_bytes=51), 0.5)


def test_example_14_in_a_directory(tmp_path: Path) -> None:
    log = {base: [one(base, f"k{base:02}")] for base in (0, 10, 20)}
    logs.write_log(tmp_path / "log", log, checkpoint=10)
    even = logs.run(tmp_path / "log", config={"min.cleanable.dirty.ratio": 0.5}, force=False)
    assert (even.status, even.dirty_ratio) == (NOT_ELIGIBLE, 0.5)
    over = logs.run(tmp_path / "log", config={"min.cleanable.dirty.ratio": 0.49}, force=False)
    assert over.status == CLEANED


# where the dirty part starts


@pytest.mark.parametrize(
    ("checkpoint_offset", "first_dirty", "reset"),
    [(None, 5, False), (4, 5, True), (5, 5, False), (12, 12, False), (30, 30, False), (31, 5, True)],
)
def test_the_checkpoint_is_reset_when_it_is_outside_the_log(
    checkpoint_offset: int | None, first_dirty: int, reset: bool
) -> None:
    log = facts(0, 10, 20, log_start=5, checkpoint=checkpoint_offset)
    assert log.log_end_offset == 30
    assert ranges.first_dirty_offset(log) == (first_dirty, reset)


def test_a_reset_is_written_even_where_nothing_is_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.write_log(path, {0: [one(0, "a")]}, checkpoint=900)
    assert logs.run(path).status == NOTHING_TO_DO
    assert checkpoint(path) == 0


@pytest.mark.parametrize(("checkpoint_offset", "clean"), [(None, 0), (4, 0), (10, 0), (11, 100), (20, 100)])
def test_the_only_segment_is_clean_if_the_checkpoint_is_above_its_base(
    checkpoint_offset: int | None, clean: int
) -> None:
    range_ = cleanable(facts(10, checkpoint=checkpoint_offset), now_ms=10**15, min_ms=1, max_ms=1)
    assert (range_.end, range_.clean_end, range_.clean_bytes, range_.cleanable_bytes) == (10, 10, clean, 0)
    assert (range_.overdue_ms, range_.is_overdue, range_.is_checkpoint_reset) == (
        0,
        False,
        checkpoint_offset == 4,
    )


# where it ends


def test_the_active_segment_is_not_cleaned() -> None:
    assert cleanable(facts(0, 10, 20)).end == 20
    assert cleanable(facts(0)).end == 0


@pytest.mark.parametrize(("stable", "end"), [(30, 20), (20, 20), (19, 10), (10, 10), (9, 0), (0, 0)])
def test_a_stable_offset_inside_a_segment_leaves_the_whole_segment(stable: int, end: int) -> None:
    range_ = cleanable(facts(0, 10, 20, stable=stable))
    assert range_.end == end
    assert range_.cleanable_bytes == 10 * end


def test_a_stable_offset_below_the_checkpoint_leaves_nothing() -> None:
    range_ = cleanable(facts(0, 10, 20, checkpoint=15, stable=3))
    assert range_.end == 10
    assert range_.end <= range_.first_dirty == 15
    assert range_.cleanable_bytes == 0


def _aged(*largest: int) -> LogFacts:
    log = facts(*(10 * i for i in range(len(largest))))
    aged = [replace(s, largest_timestamp=t) for s, t in zip(log.segments, largest, strict=True)]
    return replace(log, segments=aged)


def test_minimum_lag_stops_at_the_first_young_segment() -> None:
    log = _aged(100, 500, 100, 100)
    assert cleanable(log, now_ms=600).end == 30
    assert cleanable(log, now_ms=600, min_ms=99).end == 30
    assert cleanable(log, now_ms=600, min_ms=100).end == 30
    assert cleanable(log, now_ms=600, min_ms=101).end == 10
    assert cleanable(log, now_ms=600, min_ms=600).end == 0


def test_minimum_lag_does_not_ask_clean_segments() -> None:
    log = replace(_aged(599, 100, 100), checkpoint=10)
    assert cleanable(log, now_ms=600, min_ms=100).end == 20


def test_maximum_lag_makes_a_log_overdue() -> None:
    log = facts(0, 10, 20)
    stamped = [replace(s, first_timestamp=t) for s, t in zip(log.segments, (None, 300, 100), strict=True)]
    log = replace(log, segments=stamped)
    assert not cleanable(log, now_ms=500, max_ms=200).is_overdue
    assert cleanable(log, now_ms=501, max_ms=200).is_overdue
    assert ranges.is_eligible(cleanable(log, now_ms=501, max_ms=200), 1.0)


def test_maximum_lag_goes_by_the_file_where_there_is_no_timestamp() -> None:
    log = facts(0, 10, 20)
    log = replace(log, segments=[replace(s, modified_ms=100) for s in log.segments])
    assert not cleanable(log, now_ms=300, max_ms=200).is_overdue
    assert cleanable(log, now_ms=301, max_ms=200).is_overdue


def test_overdue_without_anything_to_clean_is_not_eligible() -> None:
    nothing = replace(cleanable(facts(0, 10)), cleanable_bytes=0, is_overdue=True)
    assert not ranges.is_eligible(nothing, 0.0)
    assert nothing.dirty_ratio == 1.0 or nothing.clean_bytes == 0


def test_segments_below_and_above_the_first_dirty_one_are_counted_apart() -> None:
    range_ = cleanable(facts(0, 10, 20, 30, checkpoint=15))
    assert (range_.clean_bytes, range_.cleanable_bytes) == (200, 200)


# groups


def test_groups_keep_to_the_index_limit() -> None:
    log = [PlanSegment(base_offset=i, size=1, offset_index_size=4, time_index_size=1) for i in range(3)]
    assert groups(log, 3, LogConfig(segment_bytes=9, segment_index_bytes=8)) == [
        [0, 1],
        [2],
    ]
    log = [PlanSegment(base_offset=i, size=1, time_index_size=4) for i in range(3)]
    assert groups(log, 3, LogConfig(segment_bytes=9, segment_index_bytes=11)) == [
        [0, 1],
        [2],
    ]


def test_groups_span_at_most_two_to_the_31() -> None:
    limits, wide = LogConfig(segment_bytes=GIB, segment_index_bytes=GIB), 1 << 31
    assert groups(segments(0, 5), wide, limits) == [[0, 5]]
    assert groups(segments(0, 5), wide + 1, limits) == [[0], [5]]
    assert groups(segments(0, 5, wide), wide + 9, limits) == [[0, 5], [wide]]


def test_an_empty_segment_joins_whatever_the_span() -> None:
    limits, far = LogConfig(segment_bytes=GIB, segment_index_bytes=GIB), 1 << 33
    log = [*segments(0), PlanSegment(base_offset=far, size=0)]
    assert groups(log, far + (1 << 32), limits) == [[0, far]]


def test_a_segment_over_the_limit_is_a_group_of_its_own() -> None:
    limits = LogConfig(segment_bytes=10, segment_index_bytes=GIB)
    assert groups(segments(0, 5, 9), 20, limits) == [[0], [5], [9]]
    assert groups([], 0, limits) == []
