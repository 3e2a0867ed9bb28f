"""One real Kafka node (KRaft, broker and controller in one JVM) on loopback ports, over given directories.

Start waits until the node answers and every partition has its leader; stop is a controlled shutdown (SIGTERM)
that leaves `.kafka_cleanshutdown`; kill is SIGKILL. Its log goes to a file beside its server.properties, for
diagnosis and for the cleaner's lines. A stopped broker starts again on the same ports: open clients go on.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.kafka import clients
from tests.support.kafka.jars import JVM_FLAGS, java_command
from tests.support.kafka.logdir import CLEAN_MARKER, cleaner_checkpoint
from tests.support.kafka.polling import poll_until
from tests.support.kafka.records import Partition, Record, Sent
from tests.support.kafka.toolbox import run_tool

CLUSTER_ID = "U2lsdHN0b25lLXRlc3RzMA"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
CLEANER_TIMEOUT_S = 60.0
START_ATTEMPTS = 3
DEFAULTS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.segment.delete.delay.ms": "200",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "num.network.threads": "1",
    "num.io.threads": "2",
}
_OFFSET_MAP = re.compile(
    r"Building offset map for log (\S+) for \d+ segments in offset range \[(\d+), (\d+)\)"
)
_ERROR = re.compile(r"^\[[^]]+\] (ERROR|FATAL) |^(Caused by: )?\S+(Exception|Error): ")


class Broker:
    """A broker over `log_dirs`; a context manager that starts and cleanly stops it."""

    heap = "512m"
    jvm_flags: Sequence[str] = JVM_FLAGS
    stop_timeout_s = STOP_TIMEOUT_S

    def __init__(self, log_dirs: Path | Sequence[Path], **properties: str) -> None:
        """`properties`: server properties over the defaults, with underscores for dots."""
        self.log_dirs = [log_dirs] if isinstance(log_dirs, Path) else list(log_dirs)
        first = self.log_dirs[0]
        self.home = first.with_name(f"{first.name}.broker")
        self.log_file = self.home / "server.log"
        self._overrides = {name.replace("_", "."): value for name, value in properties.items()}
        self._ports: tuple[int, int] = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            if kind is None:
                self.stop()
            else:
                self._give_up()

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def is_running(self) -> bool:
        """Was it started, and not stopped?"""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process id of the running JVM."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> Self:
        """Format what is new, start, wait for all leaders; on new ports when one was taken meanwhile."""
        assert not self.is_running, "the broker is running"
        self.home.mkdir(parents=True, exist_ok=True)
        for attempt in range(START_ATTEMPTS):
            self._ports = self._ports if self._ports[0] and attempt == 0 else _free_ports()
            if self._try_start():
                return self
        raise AssertionError(f"no free ports in {START_ATTEMPTS} attempts\n{self.diagnosis()}")

    def stop(self) -> None:
        """SIGTERM: the controlled shutdown that leaves the clean-shutdown marker in every log directory."""
        code = self._end(signal.SIGTERM)
        assert code in (0, 143), f"broker stopped with exit code {code}\n{self.diagnosis()}"
        for log_dir in self.log_dirs:
            assert (log_dir / CLEAN_MARKER).exists(), f"{log_dir}: not cleanly stopped\n{self.diagnosis()}"

    def kill(self) -> None:
        """SIGKILL: what is on disk stays as it is."""
        self._end(signal.SIGKILL)

    def _give_up(self) -> None:
        """End it after a failure: what it leaves on disk does not matter."""
        self.kill()

    def admin(self) -> AdminClient:
        """An admin client; hold it until its futures are done."""
        return AdminClient(
            {"bootstrap.servers": self.bootstrap, "broker.address.family": "v4", "log_level": 0}
        )

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait for its leaders."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
        admin = self.admin()
        admin.create_topics([topic])[name].result(clients.CLIENT_TIMEOUT_S)
        poll_until(lambda: self._leaders(name), what=f"leaders of {name}", timeout_s=clients.CLIENT_TIMEOUT_S)

    def alter_config(self, topic: str, **configs: str) -> None:
        """Set topic settings (underscores for dots), the others stay."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(clients.CLIENT_TIMEOUT_S)

    def produce(
        self,
        topic: str,
        records: Iterable[Sent],
        partition: int = 0,
        *,
        codec: str = "none",
        **settings: object,
    ) -> list[int]:
        """Send with a producer of its own (see `clients.new_producer`) and return the offsets."""
        producer = clients.new_producer(self.bootstrap, codec=codec, **settings)  # type: ignore[arg-type]
        return clients.send(producer, topic, records, partition)

    def consume_all(self, topic: str, partition: int = 0) -> list[Record]:
        """Every record of a partition by librdkafka, CRCs checked."""
        return self.consume_many([(topic, partition)])[topic, partition]

    def consume_many(self, partitions: Iterable[Partition]) -> dict[Partition, list[Record]]:
        """Every record of several partitions by one librdkafka consumer."""
        return clients.consume(self.bootstrap, partitions)

    def consume_all_java(self, topics: Sequence[str], count: int) -> list[tuple[int, Record]]:
        """The records of several topics by Kafka's console consumer, one JVM for all."""
        return clients.consume_java(self.bootstrap, topics, count)

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The high watermark: the next offset, on one node."""
        return clients.watermarks(self.bootstrap, topic, partition)[1]

    def wait_for_cleaner(self, topic: str, partition: int = 0, *, offset: int) -> int:
        """Wait until the broker's own cleaner has checkpointed `offset` or more; return its checkpoint."""

        def reached() -> int | None:
            checkpoints = [cleaner_checkpoint(log_dir, topic, partition) for log_dir in self.log_dirs]
            return next((entry for entry in checkpoints if entry is not None and entry >= offset), None)

        return poll_until(
            reached, what=f"cleaner of {topic}-{partition} at {offset}", timeout_s=CLEANER_TIMEOUT_S
        )

    def cleaner_ranges(self, topic: str, partition: int = 0) -> list[tuple[int, int]]:
        """The [start, end) offsets that the broker's cleaner took for a partition, since the last start."""
        ranges = _OFFSET_MAP.findall(self.log_file.read_text(errors="replace"))
        return [(int(start), int(end)) for name, start, end in ranges if name == f"{topic}-{partition}"]

    def diagnosis(self) -> str:
        """What to show when the broker misbehaves: the errors in its log, then the log's end."""
        if not self.log_file.exists():
            return "(no broker log)"
        lines = self.log_file.read_text(errors="replace").splitlines()
        errors = [line for line in lines if _ERROR.match(line)]
        return "\n".join([*errors[-20:], "...", *lines[-20:]])

    def _try_start(self) -> bool:
        properties = self._write_properties()
        if not (self.log_dirs[0] / "meta.properties").exists():
            self._format(properties)
        try:
            self._launch(properties)
            poll_until(self._answer, what=f"broker on {self.bootstrap}", timeout_s=START_TIMEOUT_S)
        except BaseException as error:
            if self.is_running:
                self._give_up()
            if "Address already in use" in self.log_file.read_text(errors="replace"):
                return False
            raise AssertionError(f"the broker did not start: {error}\n{self.diagnosis()}") from error
        return True

    def _launch(self, properties: Path) -> None:
        with self.log_file.open("wb") as log:
            command = java_command(
                "kafka.Kafka", str(properties), heap=self.heap, log_level="INFO", flags=self.jvm_flags
            )
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.home)

    def _answer(self) -> bool | None:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"exit code {self._process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", self._ports[0]), timeout=1).close()
        except OSError:
            return None
        return self._leaders()

    def _leaders(self, topic: str | None = None) -> bool | None:
        """True when every partition has a leader that answers, None before.

        A broker publishes new metadata before its ReplicaManager has applied it, so a partition with a leader
        in the metadata may still answer NOT_LEADER_OR_FOLLOWER: each is asked for its offsets as well.
        """
        admin = self.admin()
        try:
            metadata: Any = admin.list_topics(topic, timeout=5)
            leaders = {
                TopicPartition(name, number): partition.leader
                for name, entry in metadata.topics.items()
                for number, partition in entry.partitions.items()
            }
            if not metadata.brokers or any(leader != 1 for leader in leaders.values()):
                return None
            if not leaders:
                return True if topic is None else None
            answers = admin.list_offsets(dict.fromkeys(leaders, OffsetSpec.latest()), request_timeout=5)
            for answer in answers.values():
                answer.result(5)
        except (KafkaException, TimeoutError):
            return None
        return True

    def _end(self, options: signal.Signals) -> int:
        assert self._process is not None, "the broker is not running"
        process, self._process = self._process, None
        process.send_signal(options)
        try:
            return process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"the broker did not stop in {self.stop_timeout_s:g} s\n{self.diagnosis()}"
            ) from None

    def _write_properties(self) -> Path:
        client, controller = self._ports
        addresses = {
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": ",".join(str(log_dir) for log_dir in self.log_dirs),
        }
        path = self.home / "server.properties"
        lines = [f"{name}={value}" for name, value in {**DEFAULTS, **addresses, **self._overrides}.items()]
        path.write_text("\n".join(lines) + "\n")
        return path

    def _format(self, properties: Path) -> None:
        arguments = ["format", "--config", str(properties), "--cluster-id", CLUSTER_ID]
        completed = run_tool("kafka-storage", *arguments)
        assert completed.code == 0, f"kafka-storage format: {completed.out}{completed.err}"


class HostedBroker(Broker):
    """A broker in the Java process of Kafka's tools, which has loaded and compiled Kafka's classes: it starts
    and stops in a sixth of the time. It has no flags of its own, and is shut down in order, whatever happens.
    """

    _is_running = False

    @property
    def is_running(self) -> bool:
        return self._is_running

    def kill(self) -> None:
        """Not possible: the tools and other brokers run in its Java."""
        raise AssertionError("a hosted broker cannot be killed: start a Broker, which has its own process")

    def _give_up(self) -> None:
        self._end(signal.SIGTERM)

    def _launch(self, properties: Path) -> None:
        completed = run_tool("Brokers", "start", str(properties), str(self.log_file))
        assert completed.code == 0, completed.err[-2000:]
        self._is_running = True

    def _end(self, options: signal.Signals) -> int:
        assert self._is_running, "the broker is not running"
        self._is_running = False
        return run_tool("Brokers", "stop", str(self.home / "server.properties")).code


def _free_ports() -> tuple[int, int]:
    """Two ports free on loopback now; held together while asked for, so that they differ."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return int(first.getsockname()[1]), int(second.getsockname()[1])
