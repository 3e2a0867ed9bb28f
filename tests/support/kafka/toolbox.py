"""Kafka's command-line tools, unmodified, in one Java process: `Tools.java` runs their main classes."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.support.kafka.jars import HERE, JVM_FLAGS, java_command

CLASSES: Final = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A tool that ended."""

    code: int
    out: str
    err: str


class Toolbox:
    """The process; a context that ends it."""

    def __init__(self) -> None:
        flags = (*JVM_FLAGS, "--add-opens", "java.base/java.lang=ALL-UNNAMED")
        command = java_command(str(HERE / "Tools.java"), flags=flags)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()

    def run(self, tool: str, *arguments: str, stdin: bytes = b"") -> Ran:
        """Run a tool by its script's name, or a main class by its own."""
        words = [word.encode() for word in (CLASSES.get(tool, tool), *arguments)]
        request = struct.pack(">i", len(words)) + b"".join(map(_sized, (*words, stdin)))
        assert self._process.stdin is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()
        (code,) = struct.unpack(">i", self._read(4))
        out, err = (self._read(struct.unpack(">i", self._read(4))[0]).decode() for _ in range(2))
        return Ran(code=code, out=out, err=err)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, "the Java process of Kafka's tools has ended"
        return data


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
