"""A broker within the process of a test or a program: no Java, no Docker, a fresh directory, a free port.

::

    with siltstone.testing.Broker() as broker:
        broker.topics.create("users", config={"cleanup.policy": "compact"})
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
        …
        broker.compact("users")                                  now, with the active segment
        broker.clock.advance(86_400_000); broker.tick()          retention as if a day had passed
        broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER")         the next Produce request is refused
        broker.cut("Produce", after=True)                        the next one is stored, its response is lost
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.base import files
from siltstone.base.clock import Clock, ManualClock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.config import ConfigValue
from siltstone.base.errors import CompactionFailedError
from siltstone.broker.dispatch import HANDLERS
from siltstone.broker.faults import Faults, InjectedFault, code_named
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.commands.library import clean_open_logs
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import TopicLogs
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, RecordMetadata
from siltstone.runtime.topics import Topics

if TYPE_CHECKING:
    from siltstone.compaction.report import LogResult

_DEFAULTS: Mapping[str, ConfigValue] = {"log.cleaner.enable": False, "auto.create.topics.enable": True}
"""The settings that ``config`` may replace. Logs are cleaned by ``compact`` alone: the embedded cleaner would
clean them at moments that a test cannot choose."""


class EmbeddedBroker(Closing):
    """A broker on a free port of 127.0.0.1, in this process.

    ``address``: ``host:port`` for ``bootstrap.servers``. ``directory``: its log directory. ``clock``: its
    time, which stands still until ``advance``; clients' own timestamps are real. ``topics``: create,
    describe, alter and delete topics. No log is cleaned except by ``compact``, and retention runs only in
    ``tick``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        config: Mapping[str, ConfigValue] | None = None,
        clock: Clock | None = None,
        port: int = 0,
    ) -> None:
        """Opens the directory (None: a temporary one, which ``close`` removes) and listens. ``config``: the
        broker's settings by Kafka's names; ``clock``: None for one that begins at the present time and stands
        still; ``port``: 0 for a free one. Raises UsageError, SiltstoneError, OSError."""
        self._temporary = None if directory else files.temporary_directory("siltstone-broker-")
        self.directory = Path(directory or f"{self._temporary and self._temporary.name}/logs")
        self.clock = clock or ManualClock(SystemClock().now_ms())
        self._faults = Faults()
        settings = {**_DEFAULTS, **(config or {})}
        options = ServeOptions(paths=(self.directory,), settings=settings, engine="process")
        self._served = Served(options, self.clock)
        try:
            self._server = BrokerServer(
                self._served, [BrokerListener(port=port)], handlers=self._faults.around(HANDLERS)
            )
        except BaseException:
            self._served.close()
            raise
        self._server.start()
        bound_address = self._server.addresses[0]
        self.address = f"{bound_address.host}:{bound_address.port}"

    @property
    def logs(self) -> LogManager:
        """The open logs."""
        return self._served.opened()

    @property
    def topics(self) -> Topics:
        """The topics."""
        return self.logs.topics

    # Seeding and inspecting

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Append a record without a client. Raises UnknownTopicError, LogError."""
        return self.send_many(topic, [NewRecord(key=key, value=value)], partition=partition)[0]

    def send_many(
        self, topic: str, records: Iterable[NewRecord], *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """Append records without a client, each to its partition by Kafka's partitioner."""
        return self.logs.send_many(topic, records, partition=partition)

    def __getitem__(self, topic: str) -> TopicLogs[PartitionLog]:
        """The logs of a topic: ``[record.value for record in broker["users"]]``. Raises UnknownTopicError."""
        return self.logs[topic]

    # Time and cleaning

    def compact(self, topic: str | Sequence[str] = ()) -> list[LogResult]:
        """Compact a topic or several, or all if none is named, now: with their active segments, whatever the
        dirty ratio. Raises CompactionFailedError, UnknownTopicError, UsageError for a topic that is not
        compacted."""
        results = clean_open_logs(self.logs, topic)
        for result in results:
            if result.status in ("failed", "uncleanable"):
                raise CompactionFailedError(
                    f"not compacted: {result.reason}", path=str(result.topic_partition)
                )
        return results

    def tick(self) -> list[str]:
        """Do what is due by the clock: retention, flushes, checkpoints. Returns the names of these tasks."""
        return self.logs.tick()

    # Faults

    def fail(self, api: str, code: int | str, *, times: int = 1, after: bool = False) -> None:
        """Answer the next ``times`` requests of an API (Kafka's name: ``Produce``, ``Fetch``, ``Metadata``,
        …) with an error, by Kafka's name or number. ``after``: carry them out first. Raises UsageError."""
        self._faults.add(api, InjectedFault(code=code_named(code), after=after), times)

    def delay(self, api: str, seconds: float, *, times: int = 1) -> None:
        """Carry out the next ``times`` requests of an API ``seconds`` later. Raises UsageError."""
        self._faults.add(api, InjectedFault(delay_s=seconds), times)

    def cut(self, api: str, *, times: int = 1, after: bool = False) -> None:
        """Close the connection at the next ``times`` requests of an API, before they are carried out or
        ``after``. Raises UsageError."""
        self._faults.add(api, InjectedFault(cuts=True, after=after), times)

    @property
    def due(self) -> int:
        """How many faults have not happened yet."""
        return self._faults.due

    def heal(self) -> None:
        """Forget the faults that have not happened yet."""
        self._faults.clear()

    def close(self) -> None:
        """Answer the running requests, close the connections of those that are delayed, and close the
        directory in order; a temporary one is removed. May be called twice."""
        with contextlib.suppress(RuntimeError):  # the second time: the loop is closed
            self._server.broker.loop.call_soon_threadsafe(self._faults.end)
        self._server.stop()
        self._served.close()
        if self._temporary is not None:
            self._temporary.cleanup()
