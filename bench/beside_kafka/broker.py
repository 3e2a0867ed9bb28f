"""Kafka's own cleaner: a broker as its start script would start it, and what its log says of a cleaning.

The Java options are those of Kafka's start scripts (G1, the optimising compiler, a heap of 1 GB), not those
of the tests. ``log.cleaner.backoff.ms`` is 100 instead of 15,000, so that the cleaner does not sleep long
before it sees that it may clean; all else that the default variant says of the cleaner is Kafka's default.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from tests.support.kafka.broker import Broker
from tests.support.kafka.clients import CLIENT_TIMEOUT_S
from tests.support.kafka.logdir import checkpoint

BACKOFF_MS = 100
CLEANER_TIMEOUT_S = 900.0
POLL_S = 0.005
CHECKPOINT = "cleaner-offset-checkpoint"
START_SCRIPT_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
_BEGIN = re.compile(r"^\[([^]]+)\] INFO Cleaner \d+: Beginning cleaning of log (\S+-\d+)", re.MULTILINE)
_MAP = re.compile(r"^\[([^]]+)\] INFO Cleaner \d+: Building offset map for log (\S+-\d+) for", re.MULTILINE)
_DONE = re.compile(
    r"^\[([^]]+)\] INFO \[kafka-log-cleaner-thread-\d+\]:\s+Log cleaner thread \d+ cleaned log (\S+-\d+) ",
    re.MULTILINE,
)
_CLOCK = "%Y-%m-%d %H:%M:%S,%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How the broker is set up; ``warmed``: its JVM has cleaned the workload's warm-up topic before."""

    name: str
    heap: str
    warmed: bool
    properties: Mapping[str, str] = field(default_factory=dict)


DEFAULT = Variant(
    name="Kafka, default",
    heap="1g",
    warmed=False,
    properties={"log.cleaner.threads": "1", "log.cleaner.dedupe.buffer.size": str(128 << 20)},
)
TUNED = Variant(
    name="Kafka, tuned",
    heap="3g",
    warmed=True,
    properties={"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": str(1 << 30)},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWords:
    """What the broker's log says: seconds from the first beginning to the last end, and the most passes
    that a partition took."""

    seconds: float
    passes: int


class MeasuredBroker(Broker):
    """A broker set up as ``variant`` says."""

    def __init__(self, log_dir: Path, variant: Variant) -> None:
        defaults = {"log.cleaner.backoff.ms": str(BACKOFF_MS), "log.segment.delete.delay.ms": "60000"}
        named = {name.replace(".", "_"): value for name, value in {**defaults, **variant.properties}.items()}
        super().__init__(log_dir, **named)
        self.heap = variant.heap
        self.jvm_flags = (*START_SCRIPT_FLAGS, f"-Xms{variant.heap}")

    def clean(self, topic: str, ends: Sequence[int]) -> float:
        """Give the cleaner leave, wait until its checkpoint on disk has every partition's end; seconds.

        Kafka syncs the checkpoint before it renames it into place, so what is read here is durable.
        """
        entry = ConfigEntry("min.cleanable.dirty.ratio", "0.0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self.admin()
        admin.list_topics(topic, timeout=CLIENT_TIMEOUT_S)
        began = time.perf_counter()
        admin.incremental_alter_configs([resource])[resource].result(CLIENT_TIMEOUT_S)
        self._wait(topic, ends)
        return time.perf_counter() - began

    def own_words(self, topic: str, since: int = 0) -> OwnWords:
        """From the lines of its log behind byte ``since``; once it is stopped, since the last comes late."""
        text = self.log_file.read_bytes()[since:].decode(errors="replace")
        begun, maps, ended = (_times(pattern, text, topic) for pattern in (_BEGIN, _MAP, _DONE))
        assert begun and ended, f"no cleaning of {topic} in the broker's log\n{self.diagnosis()}"
        seconds = max(when for when, _ in ended) - min(when for when, _ in begun)
        passes = Counter(name for _, name in maps)
        return OwnWords(seconds=seconds.total_seconds(), passes=max(passes.values()))

    def log_size(self) -> int:
        """Bytes of its log so far."""
        return self.log_file.stat().st_size

    def _wait(self, topic: str, ends: Sequence[int]) -> None:
        path, changed_before = self.log_dirs[0] / CHECKPOINT, -1
        deadline = time.monotonic() + CLEANER_TIMEOUT_S
        while time.monotonic() < deadline:
            changed = path.stat().st_mtime_ns if path.exists() else -1
            if changed != changed_before:
                changed_before, checkpoints = changed, checkpoint(self.log_dirs[0], CHECKPOINT)
                if all(checkpoints.get((topic, number), 0) >= end for number, end in enumerate(ends)):
                    return
            time.sleep(POLL_S)
        raise AssertionError(
            f"the cleaner did not clean {topic} in {CLEANER_TIMEOUT_S:g} s\n{self.diagnosis()}"
        )


def _times(pattern: re.Pattern[str], text: str, topic: str) -> list[tuple[datetime, str]]:
    """When the lines were written, and of which partition of the topic they tell."""
    lines = pattern.findall(text)
    return [(datetime.strptime(when, _CLOCK), name) for when, name in lines if name.startswith(f"{topic}-")]
