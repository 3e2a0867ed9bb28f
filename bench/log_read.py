"""Sequential reads of a log beside ``os.read`` of the same bytes: ``python -m bench.log_read [MEGABYTES]``.

Each figure has its reference measured right before it, in turns; the files are in the page cache. From the
inside out::

    reference   os.read of the same file, so much at once
    search      read() by offset alone, and FileSlice.read: every read searches the index
    place       the same with the place where the last read ended
    scan        with place, and the batch headers scanned (``Fetched.batches``)
    reader      LogReader: checksums and columns of records
    arrow       to_batches: key and value copied into Arrow's buffers
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.generate import generate
from siltstone.base.config import LogConfig
from siltstone.log.fetch import FetchPosition, LogView, read
from siltstone.log.names import TopicPartition
from siltstone.log.reading import LogReader
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import list_segments
from siltstone.tables.arrow import to_batches

TIMES = 7
SIZES_MB = (1, 2, 4, 8)


class Log:
    """A log as it lies in a directory, read only."""

    def __init__(self, directory: Path, end: int) -> None:
        segments = tuple(
            LiveSegment(segment, LogConfig(), created_ms=0) for segment in list_segments(directory)
        )
        self.view = LogView(segments, segments[0].base_offset, end, end, end, segments[-1].size)
        self.topic_partition = TopicPartition("bench", 0)
        self.size = sum(segment.size for segment in segments)
        self.paths = [segment.path() for segment in segments]


def _read_files(log: Log, size: int) -> None:
    for path in log.paths:
        descriptor = os.open(path, os.O_RDONLY)
        while os.read(descriptor, size):
            pass
        os.close(descriptor)


def _slices(log: Log, size: int) -> list[tuple[int, FetchPosition]]:
    """The offsets that a sequential reader asks for, with their places."""
    positions, place, offset = [], None, log.view.log_start_offset
    while (fetched := read(log.view, offset, size, resume_at=place)).slice is not None:
        behind = fetched.position_after(fetched.batches()[1])
        assert behind is not None and fetched.segment is not None
        positions.append((offset, FetchPosition(fetched.segment, fetched.slice.position, offset)))
        offset, place = behind.offset, behind
    return positions


def _read_at(log: Log, size: int, positions: list[tuple[int, FetchPosition]], *, by_place: bool) -> None:
    for offset, place in positions:
        fetched = read(log.view, offset, size, resume_at=place if by_place else None)
        assert fetched.slice is not None
        fetched.slice.read()


def _scan(log: Log, size: int) -> None:
    offset, place = log.view.log_start_offset, None
    while (fetched := read(log.view, offset, size, resume_at=place)).slice is not None:
        place = fetched.position_after(fetched.batches()[1])
        assert place is not None
        offset = place.offset


def _drain(items: Iterator[object]) -> None:
    for _ in items:
        pass


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(log: Log, size: int) -> Iterator[tuple[str, float, float]]:
    """(what, GB/s, share of the reference's speed) of each step, medians."""
    positions = _slices(log, size)
    steps: dict[str, Callable[[], None]] = {
        "os.read": lambda: _read_files(log, size),
        "search": lambda: _read_at(log, size, positions, by_place=False),
        "place": lambda: _read_at(log, size, positions, by_place=True),
        "scan": lambda: _scan(log, size),
        "reader": lambda: _drain(iter(LogReader(log, buffer_bytes=size))),
        "arrow": lambda: _drain(to_batches(log, columns=["key", "value"], batch_bytes=size)),
    }
    for name, action in steps.items():
        action()
        pairs = [(_seconds(steps["os.read"]), _seconds(action)) for _ in range(TIMES)]
        speed = log.size / statistics.median(ours for _, ours in pairs) / 1e9
        yield name, speed, statistics.median(reference / ours for reference, ours in pairs)


def main() -> None:
    """Make a log, measure, print a table."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    with tempfile.TemporaryDirectory() as folder:
        generated = generate(Path(folder) / "read", megabytes * 1_000_000, "none")
        log = Log(Path(folder) / "read" / "log" / "bench-0", generated.records)
        assert np.isclose(log.size, generated.closed_size, rtol=0.05)
        for size in SIZES_MB:
            for name, speed, share in measure(log, size << 20):
                print(f"{size} MiB  {name:8s} {speed:6.2f} GB/s  {share:5.2f} of os.read")


if __name__ == "__main__":
    main()
