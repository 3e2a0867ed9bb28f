"""Appends while the embedded cleaner runs: how long one takes, beside the same appends without it.

Phases alternate, without and with cleaning, so that the ratio holds on a busy machine. The cleaner has one
core (``cleaner.spark.master=local[1]``) and always something to do: its logs hold unique keys, so that every
cleaning rewrites all of them, and their checkpoint is taken away after each. Appends go to one of these logs,
at a pace.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from pathlib import Path

import numpy as np

import siltstone as st
from bench.partition_log import Figure, append, batch_of
from siltstone.base.config import Config, parse_assignments
from siltstone.log.names import TopicPartition
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from siltstone.spark.embedded import start_cleaner

PARTITIONS = 2
MEGABYTES = 200
BATCH_BYTES = 1000
APPENDS_A_SECOND = 1000
TOPIC = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": str(32 << 20)}
BROKER = ["log.cleaner.threads=0", "cleaner.spark.master=local[1]"]


def _fill(logs: LogManager) -> None:
    """Unique keys: nothing is ever removed."""
    logs.topics.create("load", PARTITIONS, TOPIC)
    for number in range(PARTITIONS):
        log = logs["load", number]
        while log.size < MEGABYTES << 20:
            append(log, batch_of(100_000))
        log.roll()
        log.flush()


class _Cleaning:
    """Cleans the same logs again and again until it is stopped."""

    def __init__(self, logs: LogManager, cleaner: LogCleaner) -> None:
        self.cleaned = 0
        self._over = threading.Event()
        self._logs, self._cleaner = logs, cleaner
        self._thread = threading.Thread(target=self._clean, daemon=True)
        self._thread.start()

    def _clean(self) -> None:
        while not self._over.is_set():
            for number in range(PARTITIONS):
                topic_partition = TopicPartition("load", number)
                self._logs.directory_of(topic_partition).bound_cleaner_checkpoint(topic_partition, None)
            self.cleaned += sum(result.bytes_before for result in self._cleaner.clean_once())

    def stop(self) -> int:
        """Bytes of logs that were cleaned."""
        self._over.set()
        self._thread.join()
        return self.cleaned


def _append_for(logs: LogManager, seconds: float) -> list[float]:
    """Seconds that each append took, at a pace."""
    log, batch, took = logs["load", 0], batch_of(BATCH_BYTES), []
    began = time.perf_counter()
    due = began
    while due < began + seconds:
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        start = time.perf_counter()
        append(log, batch)
        took.append(time.perf_counter() - start)
        due += 1 / APPENDS_A_SECOND
    return took


def measure_cleaning_load(folder: Path, *, rounds: int = 5, seconds: float = 8) -> list[Figure]:
    """p50 and p99 of appends without and with cleaning, in ms, and their ratio."""
    shutil.rmtree(folder, ignore_errors=True)
    latencies: dict[str, list[list[float]]] = {"alone": [], "while cleaning": []}
    cleaned = 0
    with st.open(folder, mode="a", config=Config(parse_assignments(BROKER, "bench"))) as logs:
        _fill(logs)
        cleaner = start_cleaner(logs)
        cleaner.clean_once()
        _append_for(logs, 1)
        for _ in range(rounds):
            latencies["alone"].append(_append_for(logs, seconds))
            cleaning = _Cleaning(logs, cleaner)
            latencies["while cleaning"].append(_append_for(logs, seconds))
            cleaned += cleaning.stop()
    shutil.rmtree(folder, ignore_errors=True)
    figures = [
        Figure(name="cleaned meanwhile", value=cleaned / 1e6 / (rounds * seconds), unit="MB/s"),
    ]
    for percent in (50, 99, 99.9):
        pairs = [
            (float(np.percentile(alone, percent)), float(np.percentile(busy, percent)))
            for alone, busy in zip(latencies["alone"], latencies["while cleaning"], strict=True)
        ]
        ratio = statistics.median(busy / alone for alone, busy in pairs)
        goal = "at most 2" if percent == 99 else ""
        name = f"append of {BATCH_BYTES} B, p{percent:g}"
        alone = 1e3 * statistics.median(pair[0] for pair in pairs)
        busy = 1e3 * statistics.median(pair[1] for pair in pairs)
        figures.append(Figure(name=f"{name}, alone", value=alone, unit="ms"))
        figures.append(Figure(name=f"{name}, while cleaning", value=busy, unit="ms", ratio=ratio, goal=goal))
    return figures
