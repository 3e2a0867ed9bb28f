"""Open logs whose records have their offset as value, so that a wrong record is seen; swaps of segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.log.names import CLEANED, SEGMENT_KINDS, segment_file
from siltstone.log.partition import PartitionLog, open_partition
from tests.support.cleaning.logs import Rec, batch, write_segment
from tests.support.records import twin

NOW = 1_800_000_000_000


def opened(tmp_path: Path, segment_bytes: int = 2000) -> PartitionLog:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=200)
    return open_partition(tmp_path / "topic-0", config, ManualClock(NOW))


def append(log: PartitionLog, count: int = 3) -> None:
    offsets = np.arange(count, dtype=np.int64)
    here = log.log_end_offset
    values = Spans.of([b"%d" % (here + at) for at in range(count)])
    log.append(
        build_batch(
            NewBatchHeader(), offset=offsets, timestamp=offsets + NOW - 1000, keys=values, values=values
        )
    )


def fill(log: PartitionLog, total: int) -> None:
    while log.log_end_offset < total:
        append(log)


def clean_two(
    log: PartitionLog, at: int, keeps: Callable[[twin.Record], bool] = lambda record: record.offset % 5 == 0
) -> None:
    """Swap one segment in for the closed ones ``at`` and behind it; only the records that ``keeps`` names
    stay."""
    going = log.view.segments[at : at + 2]
    data = b"".join(segment.path().read_bytes() for segment in going)
    batches = []
    for entry in twin.decode_log(data):
        retained = [record for record in entry.records if keeps(record)]
        records = [Rec(offset=r.offset, key=r.key, value=r.value, timestamp=r.timestamp) for r in retained]
        if records:
            batches.append(batch(records, base_offset=entry.first, last_offset=entry.last))
    base = going[0].base_offset
    folder = log.directory / "staging"
    folder.mkdir()
    write_segment(folder, base, b"".join(batches), 200)
    for kind in SEGMENT_KINDS:
        if (folder / segment_file(base, kind)).exists():
            (folder / segment_file(base, kind)).rename(log.directory / segment_file(base, kind, CLEANED))
    folder.rmdir()
    log.replace([base], [segment.base_offset for segment in going])
