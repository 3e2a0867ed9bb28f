"""A manager with a compacted topic, an embedded cleaner on it, and engines that do what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from siltstone.base.clock import ManualClock
from siltstone.base.records.control import end_transaction_marker
from siltstone.commands.cleaning_conditions import CleaningConditions
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.staging import LogReport
from siltstone.compaction.work import LogWork
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.validation import Origin
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, batch_of
from tests.support.cleaning.logs import Rec
from tests.support.log import driving
from tests.support.log.batches import of_records
from tests.support.log.managed import NOW, opened

USERS = TopicPartition("users", 0)
SOON = 20
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "1000",
    "index.interval.bytes": "100",
    "min.cleanable.dirty.ratio": "0.5",
}


@contextmanager
def serving(
    path: Path,
    engine: Callable[[], Engine] = InProcessEngine,
    *,
    topic: Mapping[str, str] | None = None,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    limits: RunLimits | None = None,
    clock: ManualClock | None = None,
) -> Iterator[tuple[LogManager, LogCleaner]]:
    """A manager with the topic ``users``, made if it is not there, and a cleaner that is not started."""
    with opened(path, clock=clock or ManualClock(NOW), config=config) as manager:
        if "users" not in manager.topics.names():
            manager.topics.create("users", partitions, {**TOPIC, **(topic or {})})
        yield manager, LogCleaner(manager, engine, limits=limits)


def write(
    log: PartitionLog, count: int, *, keys: int = 5, timestamp: int = NOW, value: bytes | None = b"v" * 50
) -> None:
    """That many batches of one record, keys in turn."""
    for _ in range(count):
        offset = log.log_end_offset
        content = None if value is None else b"%d " % offset + value
        record = NewRecord(key=b"k%d" % (offset % keys), value=content, timestamp=timestamp)
        log.append(batch_of([record], "producer", timestamp))


def conditions_in(manager: LogManager, now_ms: int = NOW, **more: Any) -> CleaningConditions:
    """The conditions of ``users-0`` as it is."""
    (served,) = manager.serving()
    return CleaningConditions(
        log=manager[USERS],
        config=manager.topics.settings("users"),
        now_ms=now_ms,
        checkpoint=served.cleaner_checkpoint().get(USERS),
        **more,
    )


class TransactionalWriter:
    """A transactional producer, a batch of one record at a time."""

    def __init__(self, log: PartitionLog, producer_id: int) -> None:
        self.log, self.producer_id, self.sequence = log, producer_id, 0

    def put(self, key: str, value: str | None) -> None:
        """Append one record of the open transaction."""
        content = None if value is None else value.encode() * 20
        data = of_records(
            [Rec(offset=0, key=key.encode(), value=content, timestamp=NOW)],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.log.append(data)
        self.sequence += 1

    def end(self, *, commit: bool) -> None:
        """Append the marker that commits or aborts it."""
        marker = end_transaction_marker(
            is_commit=commit,
            producer_id=self.producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=NOW,
        )
        self.log.append(marker, origin=Origin.COORDINATOR)


def table(log: PartitionLog) -> dict[bytes | None, bytes]:
    """What a reader from the start ends with."""
    last = {record.key: record.value for record in driving.read_all(log)}
    return {key: value for key, value in last.items() if value is not None}


def in_background(call: Callable[[], object]) -> threading.Thread:
    """The call in a thread of its own."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    """Wait for it, not for ever."""
    thread.join(SOON)
    assert not thread.is_alive()


class Blocking(InProcessEngine):
    """Says when it has begun and, when it has staged everything, waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.staged, self.go_on = threading.Event(), threading.Event(), threading.Event()

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """As in process, with a stop in the middle."""
        self.begun.set()
        reports = list(super().clean_whole(works))
        self.staged.set()
        assert self.go_on.wait(SOON)
        yield from reports


class Jobs(InProcessEngine):
    """Remembers which logs came together; raises ``error`` of the next jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[list[str]] = []
        self.errors: list[Exception] = []

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """As in process, unless an error is due."""
        self.jobs.append([work.name for work in works])
        if self.errors:
            raise self.errors.pop(0)
        yield from super().clean_whole(works)
