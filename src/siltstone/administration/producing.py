"""Records into a topic: partitioned as Kafka's clients do, appended batch by batch (as ``kcat -P``).

Records with a key go where its hash says; those without go to one partition after another, a batch each.
What was appended before an error stays appended; everything is durable when ``Producing`` is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from siltstone.administration.places import Place
from siltstone.clock import Clock, SystemClock
from siltstone.errors import UnknownTopicError, UsageError
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.embedded import NewRecord, batch_of
from siltstone.records.build import RECORD_ROOM
from siltstone.records.layout import BATCH_OVERHEAD, CODECS
from siltstone.records.partitioner import partition_for_key

_BATCH_BYTES = 256 << 10
CODEC_NAMES = CODECS
"""What ``compression`` may be."""


@dataclass(slots=True, kw_only=True)
class Produced:
    """What went into one partition: offsets of the first and the last record, how many."""

    where: TopicPartition
    first_offset: int
    last_offset: int
    records: int


class Producing:
    """An open topic that records are appended to. Use it as a context.

    ``produced``: what was appended so far, by partition.
    """

    def __init__(
        self,
        place: Place,
        topic: str,
        *,
        partition: int | None = None,
        compression: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises UnknownTopicError, UsageError for a codec, DirectoryLockedError, SiltstoneError."""
        if compression is not None and compression not in CODEC_NAMES:
            raise UsageError(f"codec {compression!r}: give one of {', '.join(CODEC_NAMES)}")
        self._compression, self._clock = compression, clock or SystemClock()
        _refuse_unknown(place, topic, partition)
        self._manager = place.open()
        try:
            numbers = self._manager.topics.describe(topic).partitions
            self._logs = {n: self._manager[topic, n] for n in numbers if partition in (None, n)}
        except BaseException:
            self._manager.close()
            raise
        self._count = len(numbers)
        self._partition = partition
        self._turn = 0
        self.produced: dict[int, Produced] = {}

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append records, in their order within each partition. Raises LogError."""
        keyless = sorted(self._logs)[self._turn % len(self._logs)]
        self._turn += 1
        by_partition: dict[int, list[NewRecord]] = {}
        for record in records:
            by_partition.setdefault(self._partition_of(record, keyless), []).append(record)
        for number, some in by_partition.items():
            for batch in _batches(some, self._logs[number]):
                self._append(number, batch)

    def _partition_of(self, record: NewRecord, keyless: int) -> int:
        if self._partition is not None:
            return self._partition
        return keyless if record.key is None else partition_for_key(record.key, self._count)

    def _append(self, number: int, records: Sequence[NewRecord]) -> None:
        log = self._logs[number]
        appended = log.append(batch_of(records, self._codec(log), self._clock.now_ms()))
        before = self.produced.get(number)
        self.produced[number] = Produced(
            where=log.where,
            first_offset=appended.first_offset if before is None else before.first_offset,
            last_offset=appended.last_offset,
            records=len(records) + (0 if before is None else before.records),
        )

    def _codec(self, log: PartitionLog) -> str:
        if self._compression is None:
            return log.config.compression_type
        return "uncompressed" if self._compression == "none" else self._compression

    def close(self) -> None:
        """Make everything durable and let go of the directories. Raises StorageError."""
        self._manager.close()

    def __enter__(self) -> Producing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse_unknown(place: Place, topic: str, partition: int | None) -> None:
    """Before anything is locked or changed: is there such a topic?"""
    look = place.look_before_making()
    if topic not in look.names():
        raise UnknownTopicError(f"there is no topic {topic!r} here; make it with siltstone topics --create")
    if partition is not None and partition not in look.topic(topic).partitions:
        raise UnknownTopicError(f"topic {topic!r} has no partition {partition}")


def _batches(records: Sequence[NewRecord], log: PartitionLog) -> Iterator[list[NewRecord]]:
    """Runs of records that fit a batch of this log; a record that is larger is one by itself."""
    most = min(_BATCH_BYTES, log.config.max_message_bytes, log.config.segment_bytes) - BATCH_OVERHEAD
    run: list[NewRecord] = []
    room = most
    for record in records:
        size = RECORD_ROOM + len(record.key or b"") + len(record.value or b"") + _headers_size(record)
        if run and size > room:
            yield run
            run, room = [], most
        run.append(record)
        room -= size
    if run:
        yield run


def _headers_size(record: NewRecord) -> int:
    pairs = record.headers.items() if hasattr(record.headers, "items") else record.headers
    return sum(20 + 4 * len(name) + len(value or b"") for name, value in pairs)
