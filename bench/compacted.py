"""Compaction beside the originals: a whole log, some more records, and how fast the view is read.

The log is the cleaner's: 8 million records of 124 bytes, a million keys. A run is a fresh directory of hard
links; what is dirty on the disk is settled first. Everything that a run does is in its time: links, both
phases, every check and fsync, the commit. The goals come from Pulsar 4.2.4 on two cores: 18.8 s for the whole
log on a broker that runs, to be beaten ten times; 7.1 s for 100,000 records more, fifteen times.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from bench.generate import KEYS, SEGMENT_BYTES, WHERE, Generated, generate
from bench.measure import WrongResultError, fresh_copy
from bench.partition_log import Figure
from siltstone.base import files
from siltstone.base.clock import SystemClock
from siltstone.base.config import LogConfig
from siltstone.compaction.ledger.compactor import CompactionEngine, CompactionResult, TwoPhaseCompactor
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.reading import LogReader, PolledRecords
from siltstone.log.segments import list_segments, windows

MORE_RECORDS = 100_000
WHOLE_GOAL, MORE_GOAL = 18.8 / 10, 7.1 / 15
READS = 5
BUFFER = 1 << 20
_PLACES = 10 ** np.arange(11, -1, -1)

Measured = dict[str, list[float]]


def measure_compaction(engine: CompactionEngine, folder: Path, megabytes: int, times: int) -> list[Figure]:
    """Medians over ``times`` fresh copies. Raises WrongResultError."""
    generated = generate(folder / "whole", megabytes * 1_000_000, "none")
    generate(folder / "enough", 2 * MORE_RECORDS * 124, "none", seed=2)
    small = generate(folder / "small", 80_000_000, "none")
    _run(engine, folder / "small", small, folder / "enough", {})
    measured: Measured = {}
    for _ in range(times):
        _run(engine, folder / "whole", generated, folder / "enough", measured)
    return _figures(measured)


def _run(
    engine: CompactionEngine, folder: Path, generated: Generated, more: Path, measured: Measured
) -> None:
    """Compact a copy, read it both ways, append, compact again."""
    compactor = TwoPhaseCompactor(engine, clock=SystemClock())
    with fresh_copy(folder) as copy:
        log = open_partition(
            copy / str(WHERE),
            LogConfig(segment_bytes=SEGMENT_BYTES),
            had_clean_shutdown=True,
            recovery_point=generated.records,
        )
        is_present = np.zeros(KEYS, np.bool_)
        _mark(LogReader(log), is_present)
        _timed(measured, "whole", lambda: compactor.compact(log), int(is_present.sum()))
        for _ in range(READS if measured else 1):
            reads = (("log", LogReader(log, buffer_bytes=BUFFER)), ("view", _view(log)))
            for name, reader in reads:
                began = time.perf_counter()
                records = sum(len(polled) for polled in reader)
                measured.setdefault(name, []).append(records / (time.perf_counter() - began))
        _append(log, more)
        _mark(LogReader(log, generated.records), is_present)
        os.sync()
        _timed(measured, "more", lambda: compactor.compact(log), int(is_present.sum()))
        if sum(len(polled) for polled in _view(log)) != is_present.sum():
            raise WrongResultError("the view does not hold one record a key")
        log.close()


def _view(log: PartitionLog) -> CompactedReader:
    return CompactedReader(log, buffer_bytes=BUFFER)


def _timed(measured: Measured, name: str, compact: Callable[[], CompactionResult], keys: int) -> None:
    began = time.perf_counter()
    result = compact()
    measured.setdefault(name, []).append(time.perf_counter() - began)
    if result.entries != keys:
        raise WrongResultError(f"{result.entries} records in the ledger, {keys} keys in the log")


def _mark(reader: Iterable[PolledRecords], is_present: np.ndarray) -> None:
    """Which keys there are, by their twelve digits."""
    for polled in reader:
        columns = polled.columns
        digits = columns.data[columns.key_start[:, None] + np.arange(4, 16)] - 48
        is_present[digits @ _PLACES] = True


def _append(log: PartitionLog, folder: Path) -> None:
    """Append ``MORE_RECORDS`` of another log's records, or a batch's rest more, as its producer sent them."""
    end = log.log_end_offset + MORE_RECORDS
    for segment in list_segments(folder / "log" / str(WHERE)):
        with files.Reader(segment.path) as reader:
            for window in windows(reader):
                for row in window.batches:
                    if log.log_end_offset >= end:
                        return
                    start = int(row["position"])
                    batch = window.data[start : start + int(row["size"])].copy()
                    batch[:8] = 0
                    log.append(batch)
    raise WrongResultError(f"{folder}: less than {MORE_RECORDS:,} records")


def _figures(measured: Measured) -> list[Figure]:
    times = {name: statistics.median(values) for name, values in measured.items()}
    ratio = statistics.median(view / log for view, log in zip(measured["view"], measured["log"], strict=True))
    low, high = (min(measured["whole"]), max(measured["whole"]))
    spread = f", {low:.2f}-{high:.2f}"
    more = f", {min(measured['more']):.2f}-{max(measured['more']):.2f}"
    return [
        Figure(
            name=f"compact the whole log{spread}",
            value=times["whole"],
            unit="s",
            ratio=18.8 / times["whole"],
            goal=f"{WHOLE_GOAL:.2f} s: 10 x Pulsar",
        ),
        Figure(
            name=f"compact {MORE_RECORDS:,} records more{more}",
            value=times["more"],
            unit="s",
            ratio=7.1 / times["more"],
            goal=f"{MORE_GOAL:.2f} s: 15 x Pulsar",
        ),
        Figure(name="read the log", value=times["log"] / 1e6, unit="M records/s"),
        Figure(
            name="read the compacted view",
            value=times["view"] / 1e6,
            unit="M records/s",
            ratio=ratio,
            goal="1 x the log",
        ),
    ]
