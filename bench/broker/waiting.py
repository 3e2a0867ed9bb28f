"""Produce requests beside 1,100 consumers, and ten clients that read at one time, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.broker.consumers import attending, bytes_per_second
from bench.broker.nodes import Node, kafka, siltstone
from bench.broker.requests import fill, latencies_ms, requests_per_second

WAITING, BUSY, CLIENTS = 1_000, 100, 10
SECONDS = 10.0
BATCH_BYTES, BATCHES = 16_000, 4_000
"""Of the topic that the clients read: 64 MB each."""
READS = 8
"""Reads of a turn by ten clients at one time: one takes half a second, and they differ by a third."""
FULL, MEDIAN, LATE, READ = (
    "produce requests /s, one after another",
    "produce at half load, p50, ms",
    "produce at half load, p99, ms",
    "10 clients read, MB/s",
)


def figures_of_waiting(folder: Path, turns: int) -> dict[str, dict[str, list[float]]]:
    """Each figure by name, and by broker: one for each turn, and READS of what ten clients read.

    Half load is half of the slower broker's.
    """
    figures: dict[str, dict[str, list[float]]] = {}

    def note(figure: str, node: Node, value: float) -> None:
        figures.setdefault(figure, {}).setdefault(node.name, []).append(value)

    with kafka(folder / "kafka") as theirs, siltstone(folder / "siltstone") as ours:
        for node in (theirs, ours):
            for topic in ("quiet", "read"):
                node.create_topic(topic, 1)
            fill(node.address, "read", count=BATCHES, value_bytes=BATCH_BYTES)
        for turn in range(turns):
            nodes = (theirs, ours)[:: 1 if turn % 2 == 0 else -1]
            for node in nodes:
                topic = f"full-{turn}"
                with _beside_consumers(node, topic):
                    note(FULL, node, requests_per_second(node.address, topic, in_flight=1, seconds=SECONDS))
            half = min(figures[FULL][node.name][-1] for node in nodes) / 2
            for node in nodes:
                topic = f"half-{turn}"
                with _beside_consumers(node, topic):
                    before = node.cpu_seconds()
                    times = latencies_ms(node.address, topic, rate=half, seconds=SECONDS)
                    note("produce at half load: processor, s", node, node.cpu_seconds() - before)
                note(MEDIAN, node, times[len(times) // 2])
                note(LATE, node, times[len(times) * 99 // 100])
            for node in nodes * READS:
                before = node.cpu_seconds()
                note(READ, node, bytes_per_second(node.address, "read", BATCHES, CLIENTS) / 1e6)
                note("10 clients read: processor, s", node, node.cpu_seconds() - before)
    return figures


@contextlib.contextmanager
def _beside_consumers(node: Node, topic: str) -> Iterator[None]:
    """A new topic that the busy ones read."""
    node.create_topic(topic, 1)
    with attending(node.address, topic, WAITING, BUSY):
        yield
