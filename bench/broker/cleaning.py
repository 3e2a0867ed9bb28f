"""Produce requests while the broker's own cleaner works on dirty logs, beside the same requests without it.

A directory is filled with compacted logs whose records may not be cleaned yet (``min.compaction.lag.ms``). A
broker serves it, whose cleaner is in its process (``--engine process``). In each turn requests are sent at a
pace without cleaning, then one topic is released, and they are sent until it is cleaned.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import siltstone as st
from bench.broker.nodes import Node, siltstone
from bench.broker.requests import latencies_ms
from bench.partition_log import append
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch

MEGABYTES, RECORDS, KEYS = 400, 5_000, 1_000_000
"""Of each topic: its size, the records of a batch, and of how many keys they are."""
RATE, SECONDS, WAIT_SECONDS = 500.0, 8.0, 300.0
LAG = "min.compaction.lag.ms"
TOPIC = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": str(64 << 20),
    LAG: str(1 << 40),
}
SETTINGS = {"log.cleaner.backoff.ms": "100"}


def figures_of_cleaning(folder: Path, turns: int) -> dict[str, dict[str, list[float]]]:
    """Each figure by name, without and with cleaning: one for each turn."""
    figures: dict[str, dict[str, list[float]]] = {}

    def note(figure: str, when: str, value: float) -> None:
        figures.setdefault(figure, {}).setdefault(when, []).append(value)

    with siltstone(
        folder / "siltstone", engine="process", fill=lambda path: _fill(path, turns), **SETTINGS
    ) as node:
        node.create_topic("sent", 1)
        for turn in range(turns):
            for when in ("alone", "while cleaning"):
                began, before = time.perf_counter(), node.cpu_seconds()
                if when == "while cleaning":
                    _release(node, f"dirty-{turn}")
                times = list[float]()
                while not times or (when == "while cleaning" and not _is_cleaned(folder, f"dirty-{turn}")):
                    times += latencies_ms(
                        node.address, "sent", rate=RATE, seconds=SECONDS if when == "alone" else 0.5
                    )
                    assert time.perf_counter() < began + WAIT_SECONDS, "the cleaner does not end"
                seconds = time.perf_counter() - began
                times.sort()
                note("produce requests", when, len(times))
                note("cores of the broker", when, (node.cpu_seconds() - before) / seconds)
                for percent in (50, 99, 99.9):
                    note(f"produce p{percent:g}, ms", when, float(np.percentile(times, percent)))
    return figures


def _fill(path: Path, turns: int) -> None:
    """One dirty topic for each turn. Keys repeat, so that 70 % of the records are superseded."""
    random = np.random.default_rng(1)
    value = Spans.of([bytes(100)] * RECORDS)
    with st.open(path, mode="a") as logs:
        for turn in range(turns):
            logs.topics.create(f"dirty-{turn}", 1, TOPIC)
            log = logs[f"dirty-{turn}", 0]
            while log.size < MEGABYTES << 20:
                keys = Spans.of([b"%016d" % key for key in random.integers(KEYS, size=RECORDS)])
                append(log, _batch(keys, value))
            log.roll()


def _batch(keys: Spans, values: Spans) -> np.ndarray:
    return build_batch(
        NewBatchHeader(),
        offset=np.arange(RECORDS),
        timestamp=np.full(RECORDS, int(time.time() * 1000)),
        keys=keys,
        values=values,
    )


def _release(node: Node, topic: str) -> None:
    """Let the cleaner take the topic."""
    entry = ConfigEntry(LAG, "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(60)


def _is_cleaned(folder: Path, topic: str) -> bool:
    """Has the cleaner written that it has cleaned the topic?"""
    path = folder / "siltstone" / "logs" / "cleaner-offset-checkpoint"
    return path.exists() and any(line.startswith(f"{topic} ") for line in path.read_text().splitlines())
