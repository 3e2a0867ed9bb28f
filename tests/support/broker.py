"""A broker's handlers in tests: over open logs in a directory, on a loop whose time only jumps."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import selectors
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from siltstone.base.clock import Clock, ManualClock
from siltstone.base.errors import NotAllowedError, StorageError
from siltstone.base.files import FileSlice
from siltstone.base.records.layout import Bytes
from siltstone.broker.request_context import ConnectionInfo, ListenerAddress, RequestContext
from siltstone.broker.store import Broker
from siltstone.commands.changes import ChangeLog
from siltstone.commands.served import Served
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import TopicDescription
from tests.support.log.batches import TIME, sent
from tests.support.log.managed import opened

NOW = TIME + 60_000
Answer = TypeVar("Answer")


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that does not sleep: when nothing happens, the loop's time is that of its next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(None if timeout is None else 0)
        if not events and timeout:
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop in which a wait of a minute is over at once, unless something else happens before."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class _Standing:
    """A catalogue and a cleaner that do nothing."""

    def refresh_soon(self) -> None:
        pass

    def resume(self, topic_partition: TopicPartition) -> None:
        pass


class _OpenLogs:
    """What a broker needs of ``Served``: the other half would cost each test its catalogue."""

    cataloguer = _Standing()

    def __init__(self, manager: LogManager, clock: Clock) -> None:
        self.manager, self.clock = manager, clock
        self.changes = ChangeLog(manager.serving()[0].path, clock)

    def opened(self) -> LogManager:
        if self.manager is None:
            raise NotAllowedError("nothing is open", advice="open it")
        return self.manager

    def describe(self, topic: str) -> TopicDescription:
        return self.manager.topics.describe(topic)

    def opened_changes(self) -> ChangeLog:
        return self.changes

    def opened_cleaner(self) -> _Standing:
        return self.cataloguer


class ServedBroker:
    """A broker and its logs. ``call`` runs a handler to its end, as the loop of a server does."""

    def __init__(self, manager: LogManager, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> None:
        self.manager, self.clock, self.loop = manager, clock, loop
        self.broker = Broker(cast("Served", _OpenLogs(manager, clock)), loop)

    def call(self, handler: Any, request: Any, version: int, client_id: str | None = "test") -> Any:
        """The handler's answer; it may wait."""
        answer = handler(self.broker, request, context_of(version, client_id))

        async def finish() -> Any:
            return await answer if inspect.isawaitable(answer) else answer

        return self.loop.run_until_complete(finish())

    def log(self, topic: str, partition: int = 0, records: int = 0, **shape: object) -> PartitionLog:
        """A partition's log, made if it is missing, with so many more records, one batch each."""
        if topic not in self.manager.topics.names():
            self.manager.topics.create(topic)
        log = self.manager[topic, partition]
        for _ in range(records):
            log.append(sent(**shape))
        return log


@contextlib.contextmanager
def served(path: Path, *more: Path, config: Mapping[str, str] | None = None) -> Iterator[ServedBroker]:
    """A broker over a directory, or several."""
    clock, loop = ManualClock(NOW), JumpingLoop()
    manager = opened(path, *more, clock=clock, config=config)
    broker = ServedBroker(manager, clock, loop)
    try:
        yield broker
    finally:
        broker.broker.close()
        loop.close()
        with contextlib.suppress(StorageError):  # a test may have broken its disk
            manager.close()


def context_of(version: int, client_id: str | None = "test") -> RequestContext:
    """The circumstances of a request."""
    listener = ListenerAddress(name="PLAINTEXT", host="localhost", port=9092)
    connection = ConnectionInfo(number=1, listener=listener, peer="127.0.0.1:5000")
    return RequestContext(
        api_key=0, version=version, correlation_id=7, client_id=client_id, connection=connection
    )


def frame(batch: Bytes) -> memoryview:
    """A batch as the records of a request are: a writable view of the frame's bytes."""
    return memoryview(bytearray(batch.tobytes()))


def bytes_of(records: object) -> bytes:
    """The records of an answer."""
    if isinstance(records, FileSlice):
        return records.read().tobytes()
    assert isinstance(records, (bytes, bytearray, memoryview, np.ndarray))
    return bytes(records)
