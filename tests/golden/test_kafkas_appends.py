"""What a real broker appended, appended again: our segments, indexes and snapshots are its, byte for byte.

Every batch of a golden ``before`` directory goes through ``PartitionLog.append`` under the topic's settings.
Where Kafka rolled, we roll; where it added an index entry, we add it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, LogConfig, parse_topic_config
from siltstone.log.names import SEGMENT_KINDS, SNAPSHOT, segment_file
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.segments import Segment, list_segments, windows
from siltstone.log.validation import Origin
from tests.support.golden.sets import CLEANED, ONLY_RETENTION
from tests.support.golden_sets import Case, load_case

STARTED_HIGHER = {"delete_records_compact"}
"""Sets whose first segment is not the log's first: what Kafka knew of what came before is not in it."""


def append_all(log: PartitionLog, segment: Segment) -> None:
    with files.Reader(segment.path) as reader:
        for window in windows(reader):
            for position, size in window.batches[["position", "size"]].tolist():
                log.append(window.data[position : position + size].copy(), origin=Origin.REPLICATION)


def replay(case: Case, directory: Path) -> list[Segment]:
    segments = list_segments(case.rounds[0].before)
    config = LogConfig.of(Config(parse_topic_config(case.raw["created_with"], case.name)))
    log = open_partition(directory, config, ManualClock(1))
    if segments[0].base_offset:
        log.truncate_fully_and_start_at(segments[0].base_offset)
    for segment in segments:
        if segment is segments[-1] and not segment.size:
            log.roll(segment.base_offset)
        append_all(log, segment)
    log.close()
    return segments


@pytest.mark.parametrize("name", sorted({*CLEANED, *ONLY_RETENTION}))
def test_the_same_batches_make_the_same_files(golden: Path, tmp_path: Path, name: str) -> None:
    case = load_case(golden, name)
    segments = replay(case, tmp_path / "topic-0")
    assert [segment.base_offset for segment in list_segments(tmp_path / "topic-0")] == [
        segment.base_offset for segment in segments
    ]
    for segment in segments:
        for kind in (*SEGMENT_KINDS, SNAPSHOT):
            file = segment_file(segment.base_offset, kind)
            kafkas_file, our_file = case.rounds[0].before / file, tmp_path / "topic-0" / file
            if kind == SNAPSHOT and segment is segments[0] and name in STARTED_HIGHER:
                continue
            assert kafkas_file.exists() == our_file.exists(), file
            if kafkas_file.exists():
                assert kafkas_file.read_bytes() == our_file.read_bytes(), file


def test_reading_gives_back_every_byte(golden: Path, tmp_path: Path) -> None:
    case = load_case(golden, "basic")
    segments = replay(case, tmp_path / "topic-0")
    log = open_partition(tmp_path / "topic-0")
    offset, place, chunks = 0, None, []
    while offset < log.log_end_offset:
        fetched = log.read(offset, 3000, resume_at=place)
        data, batches, _ = fetched.batches()
        chunks.append(data.copy())
        offset, place = int(batches["last_offset"][-1]) + 1, fetched.position_after(batches)
    assert np.concatenate(chunks).tobytes() == b"".join(
        Path(segment.path).read_bytes() for segment in segments
    )
