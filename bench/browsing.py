"""Pages of records as the console reads them: ``python -m bench.browsing [MEGABYTES]``.

A page at an offset, a page at a time and the last 50 records are read at random places of a log that has as
many segments as 100 GB in segments of 1 GiB, but less data (``SEGMENTS``); the figures are milliseconds. A
key that is not there, of the size of those that are, is then looked for in a whole partition of
``MEGABYTES``, uncompressed: MB of log for each second of the processor, so that other work on the machine
matters less. Files are in the page cache.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.generate import generate
from siltstone.base.clock import SystemClock
from siltstone.base.config import LogConfig
from siltstone.commands.browsing import BrowsedTopic, Budget, RecordQuery, browse
from siltstone.log.names import TopicPartition
from siltstone.log.partition import open_partition
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.runtime.producing import NewRecord, batch_of

SEGMENTS = 94
"""100 GB in segments of 1 GiB."""
TIMES, TURNS = 300, 5
BATCH_RECORDS = 20


def sparse_log(directory: Path) -> ReadableLog:
    """A log of many small segments."""
    log = open_partition(
        directory / "sparse-0", LogConfig(segment_bytes=200_000, index_interval_bytes=4096), SystemClock()
    )
    now_ms, number = SystemClock().now_ms() - 10_000_000, 0
    while len(log.view.segments) < SEGMENTS:
        records = [
            NewRecord(key=b"key %d" % at, value=b"v" * 100, timestamp=now_ms + at)
            for at in range(number, number + BATCH_RECORDS)
        ]
        log.append(batch_of(records, "producer", now_ms))
        number += BATCH_RECORDS
    return log


def topic_of(log: ReadableLog) -> BrowsedTopic:
    """The topic of one partition."""
    return BrowsedTopic(name="bench", logs=lambda: [log], partition_count=1)


def page_ms(log: ReadableLog, query: Callable[[], RecordQuery]) -> list[float]:
    """The milliseconds of each page; the first ones, which compile and open files, are not counted."""
    times = []
    for turn in range(TIMES + 20):
        record_query = query()
        began = time.perf_counter()
        page = browse(topic_of(log), record_query)
        assert page.records
        if turn >= 20:
            times.append(1000 * (time.perf_counter() - began))
    return times


def key_speed(log: ReadableLog, size: int) -> list[float]:
    """MB of log a second of the processor, each turn, looking for a key that is not there."""
    key = next(log.records()).key or b""
    query, speeds = RecordQuery(key=bytes([key[0] ^ 0x80]) + key[1:], any_partition=True), list[float]()
    for turn in range(TURNS + 1):
        began = time.process_time()
        page = browse(topic_of(log), query, budget=Budget(read_bytes=1 << 60, seconds=1e9))
        assert page.cursor is None and not page.records
        assert page.bytes_read >= size
        if turn:
            speeds.append(page.bytes_read / 1e6 / (time.process_time() - began))
    return speeds


def main() -> None:
    """Make both logs, measure, print."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    chosen = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        log = sparse_log(Path(folder))
        end, first = log.log_end_offset, next(log.records()).timestamp
        queries: dict[str, Callable[[], RecordQuery]] = {
            "offset": lambda: RecordQuery(start_offset=chosen.randrange(end)),
            "time": lambda: RecordQuery(start_ms=first + chosen.randrange(end)),
            "last 50": lambda: RecordQuery(last=50),
        }
        for name, query in queries.items():
            times = page_ms(log, query)
            p95 = statistics.quantiles(times, n=20)[-1]
            median = statistics.median(times)
            print(f"{name:8s} {len(log.view.segments)} segments: median {median:.1f} ms, p95 {p95:.1f} ms")
        generate(Path(folder) / "key", megabytes * 1_000_000, "none")
        whole = ReadOnlyLogs([Path(folder) / "key" / "log"])[TopicPartition("bench", 0)]
        size = sum(whole.view.size_of(number) for number in range(len(whole.view.segments)))
        speeds = key_speed(whole, size)
        print(
            f"key      {size / 1e6:.0f} MB: {statistics.median(speeds):.0f} MB for a second of the processor"
        )


if __name__ == "__main__":
    main()
