"""Records that a program appends: ``NewRecord``, the batches that they become, and ``RecordProducer``.

::

    st.append(logs["users", 0], [st.NewRecord(key=b"k", value=b"v")])         # to one partition, as one batch
    logs.send("users", key=b"k", value=b"v")                                  # to the partition of the key
    producer = logs.producer(key_serializer=str.encode, value_serializer=msgspec.json.encode)
    producer.send("users", key="anna", value={"age": 7})

A record with a key goes to the partition of the key's hash (murmur2), so the records of a key keep their
order and a Java client finds them. Records without a key stay with one partition for ``batch.size`` bytes and
then go to another one (KIP-794). Corresponds to Kafka's ``KafkaProducer`` and ``BuiltInPartitioner``. But no
record is in flight: it is in the log when ``send`` returns, and durable with ``sync`` or after a flush.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy as np

from siltstone.base.clock import Clock, SystemClock, checked_ms
from siltstone.base.codec_table import codec_number
from siltstone.base.config import LogConfig
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import StorageError, UnknownTopicError, UsageError
from siltstone.base.records.build import (
    MAX_RECORD_OVERHEAD,
    NewBatchHeader,
    Spans,
    build_batch,
    encode_headers,
)
from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.hashing import partitions_for_keys
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Int32, Int64
from siltstone.log.names import TopicPartition
from siltstone.log.partition import AppendResult, PartitionLog

Header = tuple[str | bytes, bytes | None]
Headers = Mapping[str, bytes | None] | Sequence[Header]
Serializer = Callable[[Any], bytes | None]
"""Encodes a key or a value as bytes. It is not called for None, which stays null."""
PLAIN = NewBatchHeader()
"""A batch without a producer id."""
_BATCH_BYTES = 256 << 10
"""Bytes of the largest batch that ``batches_for`` makes of several records."""
STICKY_BYTES = 16 << 10
"""Kafka's ``batch.size``: the bytes without a key that go to one partition before another one is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append; ``timestamp`` in ms, None: now. To repeat a header's name, pass ``headers`` as a
    sequence of pairs.

    Raises UsageError for a key or value that is not bytes, for ``headers`` of another form or in an iterator,
    for a name of a header that UTF-8 cannot encode, and for a timestamp in seconds.
    """

    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None

    def __post_init__(self) -> None:
        _require_bytes("key", self.key)
        _require_bytes("value", self.value)
        if self.timestamp is not None:
            checked_ms(self.timestamp, "timestamp")
        if self.headers:
            for name, value in _checked_pairs(self.headers):
                _require_bytes(f"header {name!r}", value)

    @property
    def is_empty(self) -> bool:
        """Has it neither a key nor a value nor headers?"""
        return self.key is None and self.value is None and not self.headers


def _require_bytes(name: str, value: object) -> None:
    if value is None or isinstance(value, (bytes, bytearray)):
        return
    advice = f"encode it, such as with str.encode, or pass {name}_serializer to logs.producer"
    if not isinstance(value, str):
        advice = f"pass bytes, or {name}_serializer to logs.producer"
    raise UsageError(f"{name} is of type {type(value).__name__}; a log stores bytes", advice=advice)


def header_pairs(headers: Headers) -> Iterable[Header]:
    """The names and values of headers, in order."""
    return headers.items() if isinstance(headers, Mapping) else headers


def _checked_pairs(headers: Headers) -> Iterable[Header]:
    """``header_pairs`` of headers that have the right form. Raises UsageError."""
    pairs: Iterable[Any] = header_pairs(headers)
    # Headers are read several times; an iterator would have none the second time.
    if isinstance(pairs, (str, bytes, Iterator)) or not (
        isinstance(pairs, Iterable)
        and all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], (str, bytes)) for pair in pairs
        )
    ):
        advice = 'pass a dict, or a list of pairs of a name and bytes: [("source", b"app")]'
        raise UsageError(f"headers={headers!r} are not headers", advice=advice)
    for name, _ in pairs:
        if isinstance(name, str):
            _require_utf8(name)
    return pairs


def _require_utf8(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the name of header {name!r} cannot be encoded in UTF-8: {error.reason}",
            advice="pass the name as bytes",
        ) from None


def new_record(value: bytes | None, key: bytes | None, headers: Headers, timestamp: int | None) -> NewRecord:
    """The record with these parts. Raises UsageError, also if all of them are missing."""
    record = NewRecord(value=value, key=key, headers=headers, timestamp=timestamp)
    if record.is_empty:
        raise UsageError(
            "there is nothing to append: no value, no key, no headers",
            advice="pass value=…, or only key=… for a tombstone; for a record that has none of them call "
            "append_many([NewRecord()])",
        )
    return record


def append(
    log: PartitionLog,
    records: Iterable[NewRecord],
    *,
    now_ms: int | None = None,
    sync: bool = False,
    shape: NewBatchHeader = PLAIN,
) -> AppendResult:
    """Append records to any open log as one batch, all or none; those without a time get ``now_ms``.
    ``sync``: return only when they are durable.

    ``shape``: header fields of the batch, such as the id, epoch and sequence of an idempotent or
    transactional producer. Raises LogError, and UsageError when there are no records.
    """
    if not isinstance(log, PartitionLog):
        raise UsageError(
            f"a {type(log).__name__} is not an open partition",
            advice='pass logs["users", 0] of st.open(…, mode="a"); a Log has append_many, logs have send',
        )
    now_ms = SystemClock().now_ms() if now_ms is None else checked_ms(now_ms, "now_ms")
    return log.append(
        batch_of(checked_records(records), log.config.compression_type, now_ms, shape), sync=sync
    )


def checked_records(records: Iterable[NewRecord]) -> list[NewRecord]:
    """The records of a call that takes many. Raises UsageError for one record, and for other objects."""
    if isinstance(records, NewRecord):
        raise UsageError("one record is passed where a batch is meant", advice="pass [record]")
    rows = list(records) if isinstance(records, Iterable) else [records]
    for index, row in enumerate(rows):
        if not isinstance(row, NewRecord):
            advice = 'pass a list of st.NewRecord(key=b"…", value=b"…")'
            raise UsageError(f"record {index} is of type {type(row).__name__}, no NewRecord", advice=advice)
    return rows


def batch_of(
    records: Sequence[NewRecord], compression: str, now_ms: int, shape: NewBatchHeader = PLAIN
) -> Bytes:
    """One batch with offsets from 0 on, which the log replaces. Raises UsageError when there are none."""
    if not records:
        raise UsageError("a batch cannot be empty", advice="pass at least one record")
    times = [now_ms if record.timestamp is None else record.timestamp for record in records]
    return build_batch(
        dataclasses.replace(shape, codec=codec_number(compression)),
        offset=np.arange(len(records), dtype=np.int64),
        timestamp=np.array(times, np.int64),
        keys=Spans.of([record.key for record in records]),
        values=Spans.of([record.value for record in records]),
        headers=Spans.of([_encoded(record.headers) for record in records]),
    )


def _encoded(headers: Headers) -> bytes:
    return encode_headers(
        [(name.encode() if isinstance(name, str) else name, value) for name, value in header_pairs(headers)]
    )


def record_size_max(record: NewRecord) -> int:
    """An upper bound of the bytes that a record takes in a batch."""
    # Two varints of 10 bytes for each header, 4 bytes for each character of UTF-8.
    size = MAX_RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(20 + 4 * len(name) + len(value or b"") for name, value in header_pairs(record.headers))


def batches_for(config: LogConfig, records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    """The records in batches that a log accepts; a larger record is a batch by itself."""
    size_max = min(_BATCH_BYTES, config.max_message_bytes, config.segment_bytes) - BATCH_OVERHEAD
    batch: list[NewRecord] = []
    free = size_max
    for record in records:
        size = record_size_max(record)
        if batch and size > free:
            yield batch
            batch, free = [], size_max
        batch.append(record)
        free -= size
    if batch:
        yield batch


def tombstone_batches(config: LogConfig, columns: KeyColumns, rows: Int64, now_ms: int) -> Iterator[Bytes]:
    """Batches with a tombstone for the key of each of the ``rows`` (indexes into ``columns``, int64), as
    large as ``batches_for`` makes them. Columns in, batches out: there is no object for a record."""
    size_max = min(_BATCH_BYTES, config.max_message_bytes, config.segment_bytes) - BATCH_OVERHEAD
    ends = np.cumsum(columns.key_size[rows].astype(np.int64) + MAX_RECORD_OVERHEAD)
    # Arrays of the types that ``Spans.of`` has, read-only: other types would be another kernel to compile.
    keys, nothing = columns.data.view(), np.frombuffer(b"", np.uint8)
    keys.flags.writeable = False
    start, bytes_done = 0, 0
    while start < len(rows):
        # At least one row: a record over the limit is a batch by itself.
        end = max(int(np.searchsorted(ends, bytes_done + size_max, side="right")), start + 1)
        part = rows[start:end]
        zeros, null = np.zeros(len(part), np.int64), np.full(len(part), -1, np.int32)
        yield build_batch(
            NewBatchHeader(codec=codec_number(config.compression_type)),
            offset=np.arange(len(part), dtype=np.int64),
            timestamp=np.full(len(part), now_ms, np.int64),
            keys=Spans(keys, columns.key_start[part].astype(np.int64), columns.key_size[part]),
            values=Spans(nothing, zeros, null),
            headers=Spans(nothing, zeros, np.zeros(len(part), np.int32)),
        )
        start, bytes_done = end, int(ends[end - 1])


# Partitions: one rule for every producer. ``tables.writing`` asks ``partitions_of_keys``, all others ask a
# ``Partitioner``.

_PARTITION_ADVICE = (
    "open all of its log directories, or name the partition: partition=… in a program, --partition N, a "
    "column partition in a table"
)


def partitions_of_keys(topic: str, keys: Spans, here: Sequence[int], count: int | None) -> Int32:
    """The partition that Kafka's default partitioner picks for each key, -1 for a null key; int32.

    ``here``: the topic's partitions in the directories, ascending. ``count``: how many it has by its
    metadata. If that is not known (None), all of them must be here; a gap in the numbers shows that one is
    not. Raises UsageError for a key whose partition is not known or not in ``here``.
    """
    partitions = np.full(len(keys.size), -1, np.int32)
    if not (keys.size >= 0).any():
        return partitions
    if count is None:
        count = len(here)
        if here[-1] != count - 1:
            numbers = ", ".join(map(str, here))
            raise UsageError(
                f"of topic {topic!r} the log directories have only the partitions {numbers}, and a key's "
                "partition depends on how many there are",
                advice=_PARTITION_ADVICE,
            )
    partitions_for_keys(keys.data, keys.start, keys.size, count, partitions)
    absent = np.setdiff1d(partitions, (-1, *here)) if len(here) < count else partitions[:0]
    if len(absent):
        where = f"partition {absent[0]} of the {count} of topic {topic!r}"
        raise UsageError(
            f"a key belongs to {where}, which is not in these directories", advice=_PARTITION_ADVICE
        )
    return partitions


class Partitioner:
    """Picks partitions as Kafka's default partitioner does; for any number of threads.

    The partition of a key follows from its hash. Records without a key stay with one partition for
    ``STICKY_BYTES``. ``_sticky``: by topic, that partition and how many of the bytes are left.
    """

    def __init__(self, choose: Callable[[Sequence[int]], int] = random.choice) -> None:
        """``choose``: picks one of some partitions (numbers, ascending) for records without a key."""
        self._choose = choose
        self._lock = threading.Lock()
        self._sticky: dict[str, tuple[int, int]] = {}

    def partitions(
        self,
        topic: str,
        records: Sequence[NewRecord],
        here: Sequence[int],
        count: int | None,
        is_served: Callable[[int], bool] = lambda number: True,
    ) -> list[int]:
        """The partition of each record; ``here``, ``count`` and errors as ``partitions_of_keys``.
        ``is_served``: is a partition's log open? Records without a key go to one that is, if there is one, as
        in Kafka to one with a leader."""
        keys = [record.key for record in records]
        numbers = [-1] * len(keys)
        if keys.count(None) < len(keys):
            numbers = partitions_of_keys(topic, Spans.of(keys), here, count).tolist()
        if -1 in numbers:
            with self._lock:
                number, left = self._sticky.get(topic, (-1, 0))
                if left > 0 and not is_served(number):
                    left = 0
                for row, picked in enumerate(numbers):
                    if picked >= 0:
                        continue
                    if left <= 0 or number not in here:
                        # Another partition than before, if there is one; if its log is not open, another of
                        # those whose logs are.
                        others = [candidate for candidate in here if candidate != number]
                        chosen, left = self._choose(others or here), STICKY_BYTES
                        if not is_served(chosen):
                            served = [candidate for candidate in here if is_served(candidate)]
                            others = [candidate for candidate in served if candidate != number]
                            chosen = self._choose(others or served or here)
                        number = chosen
                    left -= record_size_max(records[row])
                    numbers[row] = number
                self._sticky[topic] = number, left
        return numbers


# Sending to topics.


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """Where a sent record is (Kafka's class of this name); ``timestamp`` in ms, as it is stored."""

    topic_partition: TopicPartition
    offset: int
    timestamp: int


class SendOptions(TypedDict, total=False):
    """The keyword arguments of ``RecordProducer.send``, without the key."""

    partition: int | None
    headers: Headers
    timestamp: int | None
    sync: bool


class ServedTopics(Protocol):
    """An open ``LogManager``, as far as a producer needs it."""

    clock: Clock

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions. Raises UnknownTopicError."""
        ...

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has, here and elsewhere, None if that is not known."""
        ...

    def get(self, topic_partition: TopicPartition) -> PartitionLog:
        """The log of a partition. Raises UnknownTopicError, StorageError."""
        ...

    def flush(self) -> None:
        """Make everything that was appended durable. Raises StorageError."""
        ...


class RecordProducer:
    """Appends records to the topics of an open ``LogManager``. For any number of threads.

    Without serializers keys and values are bytes.
    """

    def __init__(
        self,
        logs: ServedTopics,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        choose: Callable[[Sequence[int]], int] = random.choice,
    ) -> None:
        """``choose``: picks a partition for records without a key."""
        self._logs = logs
        self._serialize_key, self._serialize_value = key_serializer, value_serializer
        self._partitioner = Partitioner(choose)

    def __repr__(self) -> str:
        return f"<RecordProducer of {self._logs!r}>"

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> RecordMetadata:
        """Append one record, to the partition of its key unless ``partition`` says another one.

        ``sync``: return only when it is durable. Raises UsageError, UnknownTopicError, LogError.
        """
        parts = _serialized(value, self._serialize_value), _serialized(key, self._serialize_key)
        record = new_record(*parts, headers, timestamp)
        return self.send_many(topic, [record], partition=partition, sync=sync)[0]

    def send_many(
        self, topic: str, records: Iterable[NewRecord], *, partition: int | None = None, sync: bool = False
    ) -> list[RecordMetadata]:
        """Append records, in their order within each partition; returns the place of each record. Keys and
        values are bytes: only ``send`` calls the serializers.

        Each partition gets as few batches as ``max.message.bytes`` allows. ``sync``: return only when all are
        durable. Records that were appended before
        an error stay. Raises UsageError, UnknownTopicError, LogError.
        """
        rows, numbers = checked_records(records), self._logs.partitions_of(topic)
        if partition is not None and partition not in numbers:
            advice = f"pass one of {', '.join(map(str, numbers))}, or none: the key picks it"
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}", advice=advice)
        by_partition: dict[int, list[int]] = {}
        if partition is None:
            count = self._logs.partition_count(topic)
            picked = self._partitioner.partitions(
                topic, rows, numbers, count, lambda number: self._is_served(topic, number)
            )
            for row, number in enumerate(picked):
                by_partition.setdefault(number, []).append(row)
        elif rows:
            by_partition[partition] = list(range(len(rows)))
        # Every log is looked up before the first append: one that is not served refuses the whole call.
        logs = {number: self._logs.get(TopicPartition(topic, number)) for number in by_partition}
        sent: dict[int, RecordMetadata] = {}
        for number, indexes in by_partition.items():
            appended = self._append(logs[number], [rows[index] for index in indexes], sync=sync)
            sent |= zip(indexes, appended, strict=True)
        return [sent[index] for index in range(len(rows))]

    def flush(self) -> None:
        """Make everything that was appended durable. Raises StorageError."""
        self._logs.flush()

    def _is_served(self, topic: str, number: int) -> bool:
        try:
            return self._logs.get(TopicPartition(topic, number)).is_open
        except StorageError:  # its directory is offline, or it was refused
            return False

    def _append(
        self, log: PartitionLog, records: Sequence[NewRecord], *, sync: bool
    ) -> Iterator[RecordMetadata]:
        """Append records to one log, in as few batches as possible; yields the place of each."""
        for batch in batches_for(log.config, records):
            now_ms = self._logs.clock.now_ms()
            appended = log.append(batch_of(batch, log.config.compression_type, now_ms), sync=sync)
            for offset, record in enumerate(batch, appended.first_offset):
                time_ms = now_ms if record.timestamp is None else record.timestamp
                if appended.log_append_ms >= 0:
                    time_ms = appended.log_append_ms
                yield RecordMetadata(topic_partition=log.topic_partition, offset=offset, timestamp=time_ms)


def _serialized(part: object, serializer: Serializer | None) -> Any:
    return part if serializer is None or part is None else serializer(part)
