"""Kafka's command-line tools, unmodified, in one Java process: `Tools.java` runs their main classes."""

from __future__ import annotations

import atexit
import functools
import struct
import subprocess
from dataclasses import dataclass
from typing import Final

from tests.support.kafka.jars import JVM_FLAGS, java_command

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
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A tool that ended."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        """Its standard output, which is text."""
        return self.stdout.decode()

    @property
    def err(self) -> str:
        """Its standard error."""
        return self.stderr.decode(errors="replace")


class Toolbox:
    """The process."""

    def __init__(self) -> None:
        flags = (*JVM_FLAGS, "--add-opens", "java.base/java.lang=ALL-UNNAMED")
        self._process = subprocess.Popen(
            java_command("Tools", heap="512m", flags=flags), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        """End the process."""
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
        out, err = (self._read(struct.unpack(">i", self._read(4))[0]) for _ in range(2))
        return Ran(code=code, stdout=out, stderr=err)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, "the Java process of Kafka's tools has ended"
        return data


@functools.cache
def _shared() -> Toolbox:
    box = Toolbox()
    atexit.register(box.close)
    return box


def run_tool(tool: str, *arguments: str, stdin: bytes = b"") -> Ran:
    """Run a tool, as `Toolbox.run`, in the one Java process that all tests of this Python process share."""
    box = _shared()
    try:
        return box.run(tool, *arguments, stdin=stdin)
    except BaseException:  # a test that ran out of time: the answer may still come, to the next request
        _shared.cache_clear()
        atexit.unregister(box.close)
        box.close()
        raise


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
