"""Log managers in tests: on a clock that stands still, without threads, with batches of small records; what
is on their disk, and disks that fail."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, parse_assignments
from siltstone.log.partition import AppendResult, PartitionLog, run_now
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, batch_of

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


def append(log: PartitionLog, count: int = 1, timestamp: int = NOW, size: int = 1) -> AppendResult:
    """Append one batch of ``count`` records."""
    records = [
        NewRecord(key=b"k%d" % number, value=b"v" * size, timestamp=timestamp) for number in range(count)
    ]
    return log.append(batch_of(records, "producer", timestamp))


def values(log: PartitionLog, offset: int | None = None) -> int:
    """How many records can be read from ``offset`` on, the log's start unless told; batch headers count."""
    at, count = log.log_start_offset if offset is None else offset, 0
    while at < log.log_end_offset:
        _, batches, _ = log.read(at).batches()
        if not len(batches):
            break
        count += int(batches["count"].sum())
        at = int(batches["last_offset"][-1]) + 1
    return count


def names_in(path: Path) -> set[str]:
    """The names of a folder's entries."""
    return {entry.name for entry in path.iterdir()}


@contextmanager
def failing(below: Path, *verbs: str, error: int = errno.EIO) -> Iterator[list[files.Operation]]:
    """Within the block, operations below a path fail, all or those of ``verbs``; yields those that did."""
    failed: list[files.Operation] = []

    def observer(operation: files.Operation) -> None:
        if operation[1].startswith(str(below)) and (not verbs or operation[0] in verbs):
            failed.append(operation)
            raise OSError(error, os.strerror(error), operation[1])

    with files.observe(observer):
        yield failed


_watching: list[list[str]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event == "open":
        _watching[-1].append(str(arguments[0]))


sys.addaudithook(_audit)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """The path of every file that Python opens within the block."""
    _watching.append([])
    try:
        yield _watching[-1]
    finally:
        _watching.pop()
