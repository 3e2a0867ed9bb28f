"""Logs of record format v0 and v1 from real clients: opened, read by offset and time, up-converted."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.config import LogConfig
from siltstone.base.records.decode import decode_records
from siltstone.log.fetch import LogView, offset_for_time, read
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import list_segments
from tests.support.golden.listings import listed_segments
from tests.support.golden_sets import legacy_names
from tests.support.records import twin
from tests.support.records.arrays import records_of

NAMES = [
    *("v0_basic", "v0_gzip", "v0_lz4", "v0_snappy", "v0_v1_v2"),
    *("v1_basic", "v1_gzip", "v1_logappend", "v1_lz4", "v1_mixed", "v1_snappy"),
]


def opened(directory: Path) -> tuple[LogView, list[twin.Record]]:
    """The log as readers see it, and its records as Kafka's reader listed them."""
    listed = listed_segments(directory.parent / f"records_{directory.name}.jsonl")
    segments = list_segments(directory)
    assert [Path(segment.path).name for segment in segments] == sorted(listed)
    records = [record for file in sorted(listed) for batch in listed[file].records for record in batch]
    end = records[-1].offset + 1
    return (
        LogView(
            segments=tuple(LiveSegment(segment, LogConfig(), created_ms=0) for segment in segments),
            log_start_offset=segments[0].base_offset,
            log_end_offset=end,
            high_watermark=end,
            last_stable_offset=end,
            active_size=segments[-1].size,
        ),
        records,
    )


def contents(records: list[twin.Record]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(record.offset, record.timestamp, record.key, record.value) for record in records]


def test_every_set_of_an_old_format_is_tested(golden: Path) -> None:
    assert [f"legacy/{name}" for name in NAMES] == legacy_names(golden)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_bytes", [1, 3000])
def test_old_formats_are_read_by_offset(golden: Path, name: str, max_bytes: int) -> None:
    view, records = opened(golden / "legacy" / name / "before")
    for target in records[::23]:
        fetched = read(view, target.offset, max_bytes)
        assert fetched.segment is not None
        data, batches, _ = fetched.batches()
        stored = decode_records(data, batches)
        assert np.shares_memory(data, stored.data) or (batches["attributes"] & 7).any()
        assert data.tobytes() in fetched.segment.path().read_bytes()
        served = records_of(stored)
        at = next(at for at, record in enumerate(records) if record.offset == served[0].offset)
        assert contents(served) == contents(records[at : at + len(served)])
        assert served[0].offset <= target.offset <= served[-1].offset


@pytest.mark.parametrize("name", NAMES)
def test_old_formats_are_read_from_the_start_to_the_end(golden: Path, name: str) -> None:
    view, records = opened(golden / "legacy" / name / "before")
    offset, got = 0, []
    while offset < view.log_end_offset:
        data, batches, _ = read(view, offset, 5000).batches()
        got += records_of(decode_records(data, batches))
        offset = got[-1].offset + 1
    assert contents(got) == contents(records)


@pytest.mark.parametrize("name", NAMES)
def test_old_formats_are_read_by_time(golden: Path, name: str) -> None:
    view, records = opened(golden / "legacy" / name / "before")
    times = sorted({record.timestamp for record in records if record.timestamp >= 0})
    for time in itertools.chain([0], *((t - 1, t, t + 1) for t in [*times[::40], *times[-1:]])):
        place = offset_for_time(view, time)
        want = next(
            ((record.offset, record.timestamp) for record in records if record.timestamp >= time), None
        )
        assert (place and (place.offset, place.timestamp)) == want, time
