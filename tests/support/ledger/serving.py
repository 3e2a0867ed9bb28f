"""A manager with a topic, compactions on it that are not started, and engines that do what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from siltstone.base.clock import ManualClock
from siltstone.compaction.ledger.compactor import CompactionEngine, InProcessCompactionEngine
from siltstone.compaction.ledger.work import CompactionReport, CompactionWork
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.reading import Record
from siltstone.runtime.compactions import Compactions
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, batch_of
from tests.support.log.managed import NOW, opened

USERS = TopicPartition("users", 0)
SOON = 20


@contextmanager
def serving(
    path: Path,
    engine: Callable[[], CompactionEngine] = InProcessCompactionEngine,
    *,
    topic: Mapping[str, str] | None = None,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    clock: ManualClock | None = None,
) -> Iterator[tuple[LogManager, Compactions]]:
    """A manager with the topic ``users``, made if it is not there."""
    with opened(path, clock=clock or ManualClock(NOW), config=config) as manager:
        if "users" not in manager.topics.names():
            manager.topics.create("users", partitions, topic)
        yield manager, Compactions(manager, engine)


def put(log: PartitionLog, *pairs: tuple[str | None, str | None], timestamp: int = NOW) -> None:
    """A batch of keys and values; None is null."""
    records = [
        NewRecord(
            key=None if key is None else key.encode(),
            value=None if value is None else value.encode(),
            timestamp=timestamp,
        )
        for key, value in pairs
    ]
    log.append(batch_of(records, "producer", timestamp))


def compacted(compactions: Compactions, topic: str = "users") -> None:
    """Compact now, and wait until it is done."""
    compactions.trigger(topic)
    assert compactions.wait(SOON)


def seen(log: PartitionLog, *, read_compacted: bool = True) -> list[tuple[int, str | None, str | None]]:
    """Offset, key and value of all that a reader is given."""
    with_text = (_texts(record) for record in log.reader(read_compacted=read_compacted).records())
    return list(with_text)


def _texts(record: Record) -> tuple[int, str | None, str | None]:
    key, value = record.key, record.value
    return record.offset, None if key is None else key.decode(), None if value is None else value.decode()


class Blocking(InProcessCompactionEngine):
    """Says when everything is staged, and waits until it may go on; then raises ``error``, if any."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.staged, self.go_on = threading.Event(), threading.Event()

    def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
        """As in process, with a stop behind it."""
        report = super().compact(work, in_one_task)
        self.staged.set()
        assert self.go_on.wait(SOON)
        if self.error is not None:
            raise self.error
        return report
