"""Many partitions, none of them used: what they cost to create, at a start, in memory and at a stop."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from bench.broker.nodes import DefaultKafka, Node, kafka_node, siltstone

TOPICS, PARTITIONS = 10, 1_000
SETTLE_SECONDS, WAIT_SECONDS = 10.0, 300.0
CREATE, START, RESIDENT, STOP = (
    "create, until all answer",
    "start, to the first answer",
    "resident, MB",
    "stop",
)
Figures = dict[str, float]


class _FirstAnswer(DefaultKafka):
    """Its start is over with the first answer to a metadata request, as Siltstone's is."""

    stop_timeout_s = WAIT_SECONDS

    def _answer(self) -> bool | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"exit code {self._process.returncode}")
        with contextlib.suppress(Exception):
            socket.create_connection(self.bootstrap.split(":"), timeout=1).close()  # type: ignore[arg-type]
            AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=10)
            return True
        return None


@contextlib.contextmanager
def _kafka(folder: Path) -> Iterator[Node]:
    with kafka_node(_FirstAnswer(folder / "logs")) as node:
        yield node


def _measured(start: Callable[[Path], AbstractContextManager[Node]], folder: Path) -> Figures:
    """Create the partitions, stop, start again, stop."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    figures = Figures()
    with start(folder) as node:
        began, before = time.perf_counter(), node.cpu_seconds()
        for number in range(TOPICS):
            node.create_topic(f"many-{number}", PARTITIONS, pause=0)
        _wait_for_all(node)
        figures[CREATE] = time.perf_counter() - began
        figures[f"{CREATE}: processor"] = node.cpu_seconds() - before
    with start(folder) as node:
        figures[START], figures[f"{START}: processor"] = node.start_seconds, node.cpu_seconds()
        _wait_for_all(node)
        time.sleep(SETTLE_SECONDS)
        figures[RESIDENT] = node.resident_mb()
        began = time.perf_counter()
    figures[STOP] = time.perf_counter() - began
    return figures


def _wait_for_all(node: Node) -> None:
    """Until every partition tells its end. Kafka answers that a topic is created before its logs are."""
    admin = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
    for number in range(TOPICS):
        offset_specs = {
            TopicPartition(f"many-{number}", partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for partition in range(PARTITIONS)
        }
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                for answer in admin.list_offsets(offset_specs, request_timeout=30).values():
                    answer.result(30)
                break
            except KafkaException:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)


def figures_of_partitions(folder: Path, turns: int) -> dict[str, dict[str, list[float]]]:
    """Each figure by name, and by broker: one for each turn. One broker runs at a time."""
    figures: dict[str, dict[str, list[float]]] = {}
    for turn in range(turns):
        brokers = [("Kafka", _kafka), ("Siltstone", lambda place: siltstone(place, is_new=False))]
        for name, start in brokers[:: 1 if turn % 2 == 0 else -1]:
            for figure, value in _measured(start, folder / name.lower() / str(turn)).items():
                figures.setdefault(figure, {}).setdefault(name, []).append(value)
    return figures
