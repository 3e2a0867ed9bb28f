"""Log managers in tests: on a clock that stands still, without threads, with batches of small records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, parse_assignments
from siltstone.log.partition import Appended, PartitionLog, run_now
from siltstone.runtime.embedded import NewRecord, batch_of
from siltstone.runtime.manager import LogManager

NOW = 1_800_000_000_000
MINUTE = 60_000


def opened(
    *directories: Path, clock: ManualClock | None = None, config: Mapping[str, str] | None = None
) -> LogManager:
    """A manager whose background tasks run at once; the same "random" bytes each time but for a count."""
    texts = [f"{key}={text}" for key, text in (config or {}).items()]
    return LogManager.open(
        directories,
        config=Config(parse_assignments(texts, "test")),
        clock=clock or ManualClock(NOW),
        background=run_now,
    )


def append(log: PartitionLog, count: int = 1, timestamp: int = NOW, size: int = 1) -> Appended:
    """Append one batch of ``count`` records."""
    records = [
        NewRecord(key=b"k%d" % number, value=b"v" * size, timestamp=timestamp) for number in range(count)
    ]
    return log.append(batch_of(records, "producer", timestamp))


def values(log: PartitionLog, offset: int | None = None) -> int:
    """How many records can be read from ``offset`` on, the log's start unless told; batch headers count."""
    at, found = log.log_start_offset if offset is None else offset, 0
    while at < log.log_end_offset:
        _, batches, _ = log.read(at).batches()
        if not len(batches):
            break
        found += int(batches["count"].sum())
        at = int(batches["last_offset"][-1]) + 1
    return found
