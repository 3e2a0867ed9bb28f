"""The log itself beside plain files: appends, reads, recovery, opening, memory.

Each figure has its reference measured right beside it, in turns, so that ratios hold on a busy machine.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base.config import LogConfig
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.runtime.manager import LogManager

RECORD_VALUE = bytes(range(100))
SEGMENT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement: ``value`` in ``unit``; ``ratio`` to the reference, and what the goal for it is."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    goal: str = ""

    def to_json(self) -> dict[str, object]:
        """Numbers for machines."""
        return {"value": self.value, "unit": self.unit, "ratio": self.ratio, "goal": self.goal}


def batch_of(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """An uncompressed batch of about ``size`` bytes, of records of 124 bytes; at least one record."""
    count = max(1, size // 124)
    offsets = np.arange(count, dtype=np.int64)
    return build_batch(
        NewBatchHeader(),
        offset=offsets,
        timestamp=offsets + int(time.time() * 1000) - count,
        keys=Spans.of([b"key %08d" % number for number in range(count)]),
        values=Spans.of([RECORD_VALUE] * count),
    )


def append(log: PartitionLog, batch: np.ndarray) -> None:
    """Append it once more: the log has written its offset into it, clients send 0."""
    batch[:8] = 0
    log.append(batch)


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _in_turns(ours: Callable[[], object], reference: Callable[[], object], times: int) -> tuple[float, float]:
    """Median seconds of ours, and the median of reference seconds over ours."""
    pairs = [(_timed(reference), _timed(ours)) for _ in range(times)]
    return statistics.median(b for _, b in pairs), statistics.median(a / b for a, b in pairs)


def _fresh(folder: Path, name: str) -> Path:
    shutil.rmtree(folder / name, ignore_errors=True)
    return folder / name


def open_log(directory: Path, config: LogConfig | None = None) -> PartitionLog:
    """A log that is opened as a program would open it."""
    directory.mkdir(parents=True, exist_ok=True)
    return open_partition(directory, config)


def large_appends(folder: Path, megabytes: int = 512) -> Figure:
    """Batches of 1 MB, each against writing the same bytes with ``os.write``; neither waits for the disk.

    They take turns batch by batch: what a page of the page cache costs changes with the machine's memory, by
    a factor of three and for seconds, and so both of them meet the same.
    """
    batch = batch_of(1_000_000)
    log = open_log(_fresh(folder, "large-0"))
    descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    pairs = [
        (_timed(lambda: os.write(descriptor, batch.data)), _timed(lambda: append(log, batch)))
        for _ in range(megabytes)
    ]
    os.close(descriptor)
    (folder / "plain").unlink()
    seconds = statistics.median(ours for _, ours in pairs)
    ratio = statistics.median(reference / ours for reference, ours in pairs)
    return Figure(
        name="append batches of 1 MB",
        value=len(batch) / seconds / 1e9,
        unit="GB/s",
        ratio=ratio,
        goal="0.6 of a file",
    )


def small_appends(folder: Path, count: int = 200_000) -> Figure:
    """One record a batch, one thread."""
    batch, log = batch_of(1), open_log(_fresh(folder, "small-0"))
    for _ in range(1000):
        append(log, batch)
    seconds = [_timed(lambda: [append(log, batch) for _ in range(count // 5)]) for _ in range(5)]
    speed = count / 5 / statistics.median(seconds)
    return Figure(name="append batches of one record", value=speed, unit="batches/s", goal="40,000")


def reads(folder: Path) -> Figure:
    """The large log from start to end by ``read``, against ``os.read`` of the same file."""
    log = open_log(folder / "large-0")
    size = 4 << 20

    def ours() -> None:
        offset, place = log.log_start_offset, None
        while offset < log.log_end_offset:
            fetched = log.read(offset, size, resume_at=place)
            _, batches, _ = fetched.batches()
            offset, place = int(batches["last_offset"][-1]) + 1, fetched.position_after(batches)

    def by_os_read() -> None:
        for path in sorted((folder / "large-0").glob("*.log")):
            descriptor = os.open(path, os.O_RDONLY)
            while os.read(descriptor, size):
                pass
            os.close(descriptor)

    seconds, ratio = _in_turns(ours, by_os_read, 7)
    return Figure(
        name="read it all", value=log.size / seconds / 1e9, unit="GB/s", ratio=ratio, goal="0.7 of os.read"
    )


def recovery(folder: Path) -> Figure:
    """Opening the large log after a crash: everything is scanned, checksums and all."""
    size = sum(path.stat().st_size for path in (folder / "large-0").glob("*.log"))
    seconds = [_timed(lambda: open_log(folder / "large-0")) for _ in range(5)]
    return Figure(
        name="recovery scan", value=size / statistics.median(seconds) / 1e9, unit="GB/s", goal="1 a core"
    )


def opening(folder: Path, partitions: int = 2000) -> Figure:
    """Opening many cleanly closed partitions."""
    directory = _fresh(folder, "many")
    directory.mkdir(parents=True)
    with LogManager.open([directory]) as manager:
        manager.topics.create("many", partitions=partitions)
        for number in range(partitions):
            manager["many", number].append(batch_of(1))
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        manager = LogManager.open([directory])
        seconds.append(time.perf_counter() - began)
        manager.close()
    shutil.rmtree(directory)
    return Figure(
        name=f"open {partitions:,} closed partitions", value=statistics.median(seconds), unit="s", goal="3"
    )


def memory(folder: Path, gigabytes: int) -> Figure:
    """How much a process grows from the first tenth of a long append to its end."""
    command = [sys.executable, "-m", "bench.partition_log", str(_fresh(folder, "long-0")), str(gigabytes)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(folder / "long-0")
    return Figure(
        name=f"growth over {gigabytes} GB of appends", value=float(completed.stdout), unit="MB", goal="flat"
    )


def _append_long(directory: Path, gigabytes: int) -> None:
    log, batch = open_log(directory), batch_of(1_000_000)
    grown = []
    for number in range(gigabytes * 1000):
        append(log, batch)
        if number in (gigabytes * 100, gigabytes * 1000 - 1):
            grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if number % 1000 == 0:
            log.delete_oldest_segments(len(log.view.segments) - 2)
            for path in directory.glob("*.deleted"):
                path.unlink()
    print(round(grown[1] - grown[0], 1))


def measure_log(folder: Path, *, gigabytes: int = 10) -> list[Figure]:
    """All figures; ``folder`` is made, and empty afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        figures = [small_appends(folder), large_appends(folder), reads(folder), recovery(folder)]
        shutil.rmtree(folder / "large-0")
        return [*figures, opening(folder), memory(folder, gigabytes)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _append_long(Path(sys.argv[1]), int(sys.argv[2]))
