"""A broker in a process of its own, for tests that stop, kill and start a broker, or whose threads would
compete with the broker's for Python's interpreter lock.

::

    with siltstone.testing.BrokerProcess() as broker:
        broker.topics.create("users")
        …                                            as siltstone.testing.Broker
        broker.kill(); broker.start()                what was written is there, the address is the same
        broker.pause(); …; broker.resume()           SIGSTOP and SIGCONT

The broker's process ends with the program, however that ends (``keeper``). ``broker["users"]`` reads records
from the broker's files, not through the broker.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from siltstone.base import files
from siltstone.base.clock import Clock, ManualClock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.config import ConfigValue, config_texts
from siltstone.base.errors import BrokerUnreachableError, UsageError
from siltstone.broker.calls import Channel
from siltstone.broker.keeper import BrokerStart, Keeper, keeper
from siltstone.compaction.report import LogResult
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs, TopicLogs, logs_of_topic
from siltstone.runtime.producing import NewRecord, RecordMetadata, checked_records, header_pairs
from siltstone.runtime.topics import TopicDescription

Result = TypeVar("Result")


class BrokerClock(ManualClock):
    """The clock of a broker in another process. A time that is set here reaches the broker at once, or at its
    next start."""

    def __init__(self, broker: BrokerProcess, time_ms: int) -> None:
        self._broker, self._time_ms = broker, time_ms

    @property
    def time_ms(self) -> int:
        """The time, in ms."""
        return self._time_ms

    @time_ms.setter
    def time_ms(self, time_ms: int) -> None:
        if self._broker.is_running:
            self._broker.call(type(None), "set_time", time_ms=time_ms)
        self._time_ms = time_ms


class BrokerTopics:
    """The topics of a broker in another process: the methods of ``Topics`` that a test needs."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._call = broker.call

    def names(self) -> list[str]:
        """All topics, in order of name."""
        return self._call(list[str], "topics.names")

    def describe(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicError."""
        return self._call(TopicDescription, "topics.describe", name=name)

    def partitions_of(self, name: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions. Raises UnknownTopicError."""
        return self._call(tuple[int, ...], "topics.partitions_of", name=name)

    def partition_count(self, name: str) -> int | None:
        """How many partitions a topic has. Raises UnknownTopicError."""
        kind: Any = int | None  # Any, since a union is no ``type``
        count: int | None = self._call(kind, "topics.partition_count", name=name)
        return count

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, ConfigValue] | None = None
    ) -> TopicDescription:
        """Create a topic, as ``Topics.create``. Raises what it raises."""
        return self._call(
            TopicDescription,
            "topics.create",
            name=name,
            partitions=partitions,
            config=_settings_texts(config, name),
        )

    def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Raise a topic's number of partitions to ``count``. Raises UnknownTopicError,
        InvalidPartitionsError."""
        return self._call(TopicDescription, "topics.add_partitions", name=name, count=count)

    def alter(
        self, name: str, set_to: Mapping[str, ConfigValue] | None = None, *, remove: Iterable[str] = ()
    ) -> TopicDescription:
        """Set and remove settings of a topic, as ``Topics.alter``. Raises what it raises."""
        return self._call(
            TopicDescription,
            "topics.alter",
            name=name,
            set_to=_settings_texts(set_to, name),
            remove=list(remove),
        )

    def delete(self, name: str) -> None:
        """Delete a topic. Raises UnknownTopicError."""
        self._call(type(None), "topics.delete", name=name)


def _settings_texts(settings: Mapping[str, ConfigValue] | None, topic: str) -> dict[str, str]:
    return config_texts(settings or {}, f"topic {topic}")


class _BrokerLogs:
    """The logs in the broker's directory, read from its files, as they were when this was made, or at the
    last ``refresh``."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.refresh()

    def refresh(self) -> None:
        """Open the logs again. A broker that runs writes its checkpoints first, since readers take high
        watermarks and log start offsets from them. After ``kill``, logs are read as the next start would
        recover them."""
        if self._broker.is_running:
            self._broker.call(type(None), "write_positions")
        self._logs = ReadOnlyLogs([self._broker.directory])

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        return self._logs.partitions_of(topic)

    def get(self, topic_partition: TopicPartition) -> ReadOnlyLog:
        return self._logs.get(topic_partition)


class BrokerProcess(Closing):
    """A broker on a free port of 127.0.0.1, in a process of its own.

    ``address``: ``host:port`` for ``bootstrap.servers``; it stays when the broker is started again.
    ``directory``: its log directory. ``clock``: its time, which stands still until ``advance``. ``topics``:
    create, describe, alter and delete topics. ``pid``: its process id, None without a process. Methods that
    call the process raise BrokerUnreachableError if it has ended, UsageError while it is paused.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        config: Mapping[str, ConfigValue] | None = None,
        clock: Clock | None = None,
        port: int = 0,
    ) -> None:
        """Starts a broker on a directory (None: a temporary one, which is removed at the end). ``config``:
        the broker's settings by Kafka's names; ``clock``: None, or a SystemClock for the machine's time;
        ``port``: 0 is any free one. Raises UsageError, SiltstoneError, OSError."""
        if clock is not None and not isinstance(clock, SystemClock):
            raise UsageError(
                "a clock of this process cannot be the clock of another process",
                advice="leave it out and use the broker's clock, or pass a SystemClock",
            )
        self._config = config_texts(config or {}, "config")
        self._owner, self._is_paused, self._is_closed = os.getpid(), False, False
        self._temporary = None if directory else files.temporary_directory("siltstone-broker-")
        self.directory = Path(directory or f"{self._temporary and self._temporary.name}/logs").absolute()
        self.clock: Clock = clock or BrokerClock(self, SystemClock().now_ms())
        self.topics = BrokerTopics(self)
        self._channel: Channel | None = None
        self.pid: int | None = None
        self.address = f":{port}"  # ``start`` takes the port from it, and sets it whole
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    # The process

    @property
    def is_running(self) -> bool:
        """Has the broker a process that has not ended? (It may be paused.)"""
        if self.pid is None:
            return False
        if not self._signal(0):
            self._forget_process()
        return self.pid is not None

    def start(self) -> None:
        """Start the broker again, on its directory and its address, after ``stop`` or ``kill``. Its clock
        continues; faults are forgotten. Raises UsageError if it is running or closed, and what the first
        start raises."""
        self._refuse_in_fork()
        if self._is_closed or self.is_running:
            state = "closed" if self._is_closed else "running"
            raise UsageError(f"the broker is {state}", advice="make a new one, or stop this one first")
        start = BrokerStart(
            directory=str(self.directory),
            config=dict(self._config),
            port=int(self.address.rpartition(":")[2]),
            time_ms=self.clock.now_ms() if isinstance(self.clock, ManualClock) else None,
            is_temporary=self._temporary is not None,
        )
        self._keeper: Keeper = keeper()
        try:
            self._channel, started = self._keeper.start(start)
        except EOFError:
            raise _gone("has ended while it started") from None
        self.pid, self.address, self._is_paused = started.pid, started.address, False

    def stop(self) -> None:
        """Stop the broker in order, as ``close``, but its directory stays, and ``start`` may follow. Does
        nothing if it is not running. Raises UsageError while it is paused."""
        if self.is_running:
            with contextlib.suppress(BrokerUnreachableError):
                self.call(type(None), "close")
            self._signal(0, waits_for_end=True)
        self._forget_process()

    def kill(self) -> None:
        """SIGKILL, also while the broker is paused, and wait for its end. Its files stay as they are."""
        self._refuse_in_fork()
        if self.pid is not None:
            self._signal(signal.SIGKILL, waits_for_end=True)
        self._forget_process()

    def pause(self) -> None:
        """SIGSTOP: the broker answers no request, but its connections stay open."""
        self._refuse_in_fork()
        if not self._signal(signal.SIGSTOP):
            raise _gone("has ended")
        self._is_paused = True

    def resume(self) -> None:
        """SIGCONT: continue after ``pause``."""
        self._refuse_in_fork()
        if not self._signal(signal.SIGCONT):
            raise _gone("has ended")
        self._is_paused = False

    def close(self) -> None:
        """Stop the broker, or kill it if it is paused, and remove a temporary directory. May be called twice.
        Does nothing in a process that was forked from the broker's program."""
        if self._owner != os.getpid() or self._is_closed:
            return
        if self._is_paused:
            self.kill()
        self.stop()
        self._is_closed = True
        if self._temporary is not None:
            self._temporary.cleanup()

    def _signal(self, number: int, *, waits_for_end: bool = False) -> bool:
        """See ``Keeper.signal``; returns False also if there is no process."""
        try:
            return self.pid is not None and self._keeper.signal(self.pid, number, waits_for_end=waits_for_end)
        except EOFError:  # the keeper is gone, and its brokers with it
            return False

    def _forget_process(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel, self.pid, self._is_paused = None, None, False

    def _refuse_in_fork(self) -> None:
        """Raises UsageError in a process that was forked from the program."""
        if self._owner != os.getpid():
            raise UsageError(
                f"the broker belongs to process {self._owner}, from which this one was forked",
                advice="let a client connect to its address, or start a broker in this process",
            )

    def call(self, kind: type[Result], method: str, /, **arguments: object) -> Result:
        """Call a method in the broker's process (``broker.calls``). ``kind``: the type of its result. Raises
        what the method raises; UsageError while the process is paused, and in a process that was forked from
        the program; BrokerUnreachableError if it has ended."""
        self._refuse_in_fork()
        if self._is_paused:
            raise UsageError("the broker is paused", advice="call resume first")
        if self._channel is None:
            raise _gone("does not run")
        try:
            return self._channel.call(kind, method, **arguments)
        except EOFError:
            raise _gone("has ended") from None

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
        rows = [
            (record.key, record.value, list(header_pairs(record.headers)), record.timestamp)
            for record in checked_records(records)
        ]
        return self.call(list[RecordMetadata], "send_many", topic=topic, records=rows, partition=partition)

    def __getitem__(self, topic: str) -> TopicLogs[ReadOnlyLog]:
        """The logs of a topic as they are now: ``[record.value for record in broker["users"]]``. Raises
        UnknownTopicError."""
        return logs_of_topic(topic, _BrokerLogs(self))

    # Time and cleaning

    def compact(self, topic: str | Sequence[str] = ()) -> list[LogResult]:
        """Compact a topic now, or all, with their active segments and whatever the dirty ratio. Raises
        CompactionFailedError, UnknownTopicError, UsageError for a topic that is not compacted."""
        return self.call(list[LogResult], "compact", topic=topic if isinstance(topic, str) else list(topic))

    def tick(self) -> list[str]:
        """Do what is due by the clock: retention, flushes, checkpoints. Returns the tasks' names."""
        return self.call(list[str], "tick")

    # Faults

    def fail(self, api: str, code: int | str, *, times: int = 1, after: bool = False) -> None:
        """Answer the next ``times`` requests of an API (Kafka's name: ``Produce``, ``Fetch``, ``Metadata``,
        …) with an error, by Kafka's name or number. ``after``: carry them out first. Raises UsageError."""
        self.call(type(None), "fail", api=api, code=code, times=times, after=after)

    def delay(self, api: str, seconds: float, *, times: int = 1) -> None:
        """Carry out the next ``times`` requests of an API ``seconds`` later. Raises UsageError."""
        self.call(type(None), "delay", api=api, seconds=seconds, times=times)

    def cut(self, api: str, *, times: int = 1, after: bool = False) -> None:
        """Close the connection at the next ``times`` requests of an API, before they are carried out or
        ``after``. Raises UsageError."""
        self.call(type(None), "cut", api=api, times=times, after=after)

    @property
    def due(self) -> int:
        """How many faults have not happened yet."""
        return self.call(int, "due")

    def heal(self) -> None:
        """Forget the faults that have not happened yet."""
        self.call(type(None), "heal")


def _gone(how: str) -> BrokerUnreachableError:
    """The error for a broker without a process. ``how``: such as "has ended"."""
    return BrokerUnreachableError(
        f"the broker {how}", advice="start() starts it on its directory and address"
    )
