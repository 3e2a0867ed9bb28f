"""The two brokers: a real Kafka as its start script starts it, and ``siltstone serve`` in its own process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.beside_kafka.broker import START_SCRIPT_FLAGS
from tests.support.kafka.broker import Broker, _free_ports

START_SECONDS = 60.0


class DefaultKafka(Broker):
    """Kafka with the heap and the collector of its start script, and its default threads."""

    heap = "1g"
    jvm_flags = START_SCRIPT_FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A running broker. ``start_seconds``: from its start to the first answer."""

    name: str
    address: str
    pid: int
    start_seconds: float

    def cpu_seconds(self) -> float:
        """Processor seconds that it has taken."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def resident_mb(self) -> float:
        """Memory of the process, in MB."""
        return float(psutil.Process(self.pid).memory_info().rss / 1e6)

    def create_topic(self, name: str, partitions: int, *, pause: float = 0.5) -> None:
        """Create a topic, and wait ``pause`` seconds."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result(
            300
        )
        time.sleep(pause)


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Node]:
    """A real Kafka over a new directory."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    properties = {"num.network.threads": "3", "num.io.threads": "8"}
    with kafka_node(DefaultKafka(folder / "logs", **properties)) as node:
        yield node


@contextlib.contextmanager
def kafka_node(broker: Broker) -> Iterator[Node]:
    """A real Kafka, running within the block."""
    started = time.perf_counter()
    with broker:
        yield Node(
            name="Kafka",
            address=broker.bootstrap,
            pid=broker.pid,
            start_seconds=time.perf_counter() - started,
        )


@contextlib.contextmanager
def siltstone(
    folder: Path,
    *,
    is_new: bool = True,
    engine: str = "auto",
    fill: Callable[[Path], object] | None = None,
    **settings: str,
) -> Iterator[Node]:
    """``siltstone serve`` over a new directory, or over the one that is there. ``fill``: fills the log
    directory before; ``engine``: the cleaner's; ``settings``: more of the broker's."""
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    if fill is not None:
        fill(folder / "logs")
    port, http = _free_ports()
    properties = folder / "server.properties"
    properties.write_text(
        f"log.dirs={folder / 'logs'}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
        f"siltstone.http.listeners=http://127.0.0.1:{http}\n"
        + "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    command = [sys.executable, "-m", "siltstone", "serve", "--config", str(properties), "--engine", engine]
    started = time.perf_counter()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ})
    try:
        _wait_until_it_answers(f"127.0.0.1:{port}", process, folder / "server.log")
        yield Node(
            name="Siltstone",
            address=f"127.0.0.1:{port}",
            pid=process.pid,
            start_seconds=time.perf_counter() - started,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(300)


def _wait_until_it_answers(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    admin, end = AdminClient({"bootstrap.servers": address, "log_level": 0}), time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(Exception):
            admin.list_topics(timeout=0.2)
            return
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"siltstone serve does not answer:\n{log.read_text()[-3000:]}")
