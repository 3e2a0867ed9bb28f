"""Reads and appends records by Kafka's protocol, with the results of ``commands.records``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from siltstone.base.closing import Closing
from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.errors import (
    BrokerUnreachableError,
    OffsetOutOfRangeError,
    SiltstoneError,
    UndecodableValueError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands.directories import LIST_TOPICS
from siltstone.commands.records import (
    ISOLATIONS,
    ConsumedRecords,
    ConsumeRange,
    FetchedRecords,
    ProducedRecords,
)
from siltstone.commands.remote import ANSWER_SECONDS, RemoteBroker, error_of, translated_errors
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED
from siltstone.log.names import TopicPartition
from siltstone.log.reading import EARLIEST, Record
from siltstone.runtime.producing import NewRecord, Partitioner

_MESSAGES = 10_000
"""The most messages that are taken from the client library at a time."""
_POLL_SECONDS = 0.25
"""How long one call of the client library waits for messages."""
_FETCH_WAIT_MS = 50


class RemoteConsumer(Closing):
    """Reads ``partitions`` (empty: all) of a topic in ``offset_range``, as ``TopicConsumer``; ``notes`` and
    ``damage`` are empty, since a broker sends none."""

    def __init__(
        self,
        broker: RemoteBroker,
        topic: str,
        *,
        partitions: frozenset[int] = frozenset(),
        offset_range: ConsumeRange,
        isolation: str = READ_COMMITTED,
        with_headers: bool = True,
    ) -> None:
        """``with_headers``: False for records without their headers, which the client cannot read if a name
        is not UTF-8. Raises UnknownTopicError, OffsetOutOfRangeError, UsageError, BrokerUnreachableError."""
        if isolation not in ISOLATIONS:
            advice = f"pass {' or '.join(ISOLATIONS)}"
            raise UsageError(f"--isolation {isolation}: there is no such level", advice=advice)
        self.notes: list[str] = []
        self.damage: list[str] = []
        self.broker_id = int(broker.broker_id())
        numbers = broker.topic(topic).partitions
        missing = sorted(partitions - set(numbers))
        if missing:
            raise UnknownTopicError(f"topic {topic!r} has no partition {missing[0]}", advice=LIST_TOPICS)
        wanted = [
            TopicPartition(topic, number) for number in numbers if not partitions or number in partitions
        ]
        self._broker, self._range, self._is_committed = broker, offset_range, isolation == READ_COMMITTED
        self._with_headers = with_headers
        self._next = self._starts(wanted)
        """By partition, the offset that is read next."""
        self._until = self._until_offsets(wanted)
        fixed = {
            "group.id": "siltstone-consume",  # required; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            # How long the broker waits at the end of a partition before it responds.
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
        }
        with translated_errors():
            self._consumer = Consumer({**broker.config, **fixed})

    def close(self) -> None:
        """Close the connections to the broker."""
        self._consumer.close()

    def _offsets(self, wanted: Sequence[TopicPartition], time: int) -> dict[TopicPartition, int | None]:
        return self._broker.known_offsets(wanted, time, committed=self._is_committed)

    def _starts(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition is read from. Raises OffsetOutOfRangeError."""
        log_ends, firsts = self._offsets(wanted, LATEST_TIMESTAMP), self._offsets(wanted, EARLIEST_TIMESTAMP)
        asked, starts = self._range, {}
        times = {} if asked.from_ms is None else self._offsets(wanted, asked.from_ms)
        for topic_partition in wanted:
            end, first = log_ends[topic_partition] or 0, firsts[topic_partition] or 0
            if asked.offset is not None:
                start = asked.offset
            elif asked.from_ms is not None:
                at_time = times[topic_partition]
                start = end if at_time is None else at_time
            elif asked.last is not None:
                start = max(end - asked.last, first)
            else:
                start = first if asked.start == EARLIEST else end
            if not first <= start <= end:
                raise OffsetOutOfRangeError(
                    f"offset {start} is outside {first} to {end}",
                    path=str(topic_partition),
                    advice="pass -o with an offset between them, start or end",
                )
            starts[topic_partition] = start
        return starts

    def _until_offsets(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """The offset of each partition at which reading ends: of the first record at or after ``until_ms``.
        None without ``until_ms``, or without such a record."""
        if self._range.until_ms is None:
            return dict.fromkeys(wanted)
        return self._offsets(wanted, self._range.until_ms)

    def read_to_end(self) -> Iterator[ConsumedRecords]:
        """Read one partition after another, up to its end at the time of the call, or of the range if that is
        lower; then report the end of each.

        Raises BrokerUnreachableError, SiltstoneError.
        """
        log_ends = self._offsets(list(self._next), LATEST_TIMESTAMP)
        for topic_partition in self._next:
            until = self._until[topic_partition]
            end = log_ends[topic_partition] or 0
            end = end if until is None else min(end, until)
            if self._next[topic_partition] >= end:
                continue
            with translated_errors(str(topic_partition)):
                self._consumer.assign([self._position(topic_partition)])
            waited = 0.0
            # The end was read before, since a topic may be appended to faster than it is read. If the last
            # offsets are of markers or aborted records, no record reaches it: then ``at_end`` ends the loop.
            while self._next[topic_partition] < end:
                records, at_end = self._poll()
                yield from self._kept(records)
                waited = 0.0 if records else waited + _POLL_SECONDS
                if topic_partition in at_end:
                    break
                if waited > ANSWER_SECONDS:
                    raise BrokerUnreachableError("the broker sends no records", path=str(topic_partition))
        for topic_partition, offset in self._next.items():
            yield ConsumedRecords(topic_partition=topic_partition, offset=offset)

    def follow(self, wait: Callable[[], None]) -> Iterator[ConsumedRecords]:
        """Read without an end, and report each end of a partition that is reached; ``wait`` is called when
        nothing is there."""
        with translated_errors():
            self._consumer.assign([self._position(topic_partition) for topic_partition in self._next])
        reported = set[TopicPartition]()
        while True:
            records, at_end = self._poll()
            for consumed in self._kept(records):
                reported.discard(consumed.topic_partition)
                yield consumed
            for topic_partition in sorted(at_end - reported):
                yield ConsumedRecords(topic_partition=topic_partition, offset=self._next[topic_partition])
            reported |= at_end
            if not records:
                wait()

    def _position(self, topic_partition: TopicPartition) -> ClientPartition:
        return ClientPartition(topic_partition.topic, topic_partition.partition, self._next[topic_partition])

    def _poll(self) -> tuple[list[Message], set[TopicPartition]]:
        """(records that have arrived, the partitions whose end was reached)."""
        with translated_errors():
            messages = self._consumer.consume(1, timeout=_POLL_SECONDS)
            if messages:  # with a larger number, ``consume`` would wait until so many have come
                messages += self._consumer.consume(_MESSAGES, timeout=0)
            records, at_end = [], set[TopicPartition]()
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(_topic_partition_of(message))
                else:
                    raise KafkaException(error)
            return records, at_end

    def _kept(self, messages: Sequence[Message]) -> Iterator[ConsumedRecords]:
        """The records of each partition, without those at or above the end of the range (``_until``)."""
        by_partition = dict[TopicPartition, list[Message]]()
        for message in messages:
            topic_partition, offset = _topic_partition_of(message), int(message.offset() or 0)
            end = self._until[topic_partition]
            if end is None or offset < end:
                by_partition.setdefault(topic_partition, []).append(message)
            self._next[topic_partition] = offset + 1 if end is None else min(offset + 1, end)
        for topic_partition, kept in by_partition.items():
            yield ConsumedRecords(
                topic_partition=topic_partition,
                offset=self._next[topic_partition],
                fetched=FetchedRecords(
                    records=[_record(message, with_headers=self._with_headers) for message in kept],
                    is_log_append_time=[
                        message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME for message in kept
                    ],
                ),
            )


def _topic_partition_of(message: Message) -> TopicPartition:
    return TopicPartition(str(message.topic()), int(message.partition() or 0))


def _record(message: Message, *, with_headers: bool) -> Record:
    """The record in a message; its timestamp is -1 if it has none. Raises UndecodableValueError."""
    headers = _headers(message) if with_headers else ()
    kind, timestamp = message.timestamp()
    return Record(
        offset=int(message.offset() or 0),
        timestamp=timestamp if kind else -1,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=headers,
        leader_epoch=-1,
    )


def _headers(message: Message) -> tuple[tuple[bytes, bytes | None], ...]:
    try:
        headers = message.headers() or []
        pairs = headers.items() if isinstance(headers, dict) else headers
        # The client may return from ``headers`` with an exception set, which Python raises at a later step.
        return tuple((name.encode(), _bytes(value)) for name, value in pairs)
    except (UnicodeDecodeError, SystemError) as error:
        raise UndecodableValueError(
            f"the record at offset {message.offset()} has a header whose name is not UTF-8, which the client "
            "cannot read",
            path=str(_topic_partition_of(message)),
            advice="read the log directories with --dir, or continue after it with -o",
        ) from error


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


class RemoteProducer(Closing):
    """Appends records to a topic of a broker. They go to the same partitions as with ``TopicProducer``, which
    appends to log directories. ``produced``: the records that the broker has acknowledged, by partition."""

    def __init__(
        self,
        broker: RemoteBroker,
        topic: str,
        *,
        partition: int | None = None,
        compression: str | None = None,
    ) -> None:
        """Raises UnknownTopicError, UsageError for a codec, BrokerUnreachableError."""
        if compression is not None and compression not in CODEC_NAMES:
            advice = f"pass one of {', '.join(CODEC_NAMES)}"
            raise UsageError(f"there is no codec {compression!r}", advice=advice)
        numbers = broker.topic(topic).partitions
        if partition is not None and partition not in numbers:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}", advice=LIST_TOPICS)
        self._topic, self._partition, self._numbers = topic, partition, sorted(numbers)
        self._partitioner, self._round_robin_count = Partitioner(self._round_robin), 0
        self._failure: KafkaError | None = None
        self.produced: dict[int, ProducedRecords] = {}
        fixed = {"compression.type": compression or "none", "enable.idempotence": True, "linger.ms": 5}
        with translated_errors():
            self._producer = Producer({**broker.config, **fixed})

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append records, in their order within each partition, and wait for the broker. Raises UsageError,
        LogError, BrokerUnreachableError."""
        numbers = [self._partition or 0] * len(records)
        if self._partition is None:
            count = len(self._numbers)
            numbers = self._partitioner.partitions(self._topic, records, self._numbers, count)
        for number, record in zip(numbers, records, strict=True):
            self._send(number, record)
        with translated_errors(self._topic):
            unacknowledged = self._producer.flush(ANSWER_SECONDS)
        if self._failure is not None:
            raise self._error()
        if unacknowledged:
            raise BrokerUnreachableError("the broker does not answer")

    def _error(self) -> SiltstoneError:
        assert self._failure is not None
        return error_of(self._failure, self._topic)

    def _round_robin(self, _: Sequence[int]) -> int:
        """The partition of the next batch of records without a key."""
        self._round_robin_count += 1
        return self._numbers[(self._round_robin_count - 1) % len(self._numbers)]

    def _send(self, number: int, record: NewRecord) -> None:
        options: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
        pairs: Any = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
        while True:
            try:
                with translated_errors(self._topic):
                    self._producer.produce(
                        self._topic,
                        value=record.value,
                        key=record.key,
                        partition=number,
                        headers=list(pairs),
                        on_delivery=self._delivered,
                        **options,
                    )
            except BufferError:  # the client's queue is full: wait for deliveries, and try again
                self._producer.poll(_POLL_SECONDS)
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """The client calls this for each record, within ``poll`` and ``flush``. ``append`` raises the first
        error."""
        if error is not None:
            self._failure = self._failure or error
            return
        number, offset = int(message.partition() or 0), int(message.offset() or 0)
        topic_partition = TopicPartition(self._topic, number)
        produced = self.produced.setdefault(
            number, ProducedRecords(topic_partition, first_offset=offset, last_offset=offset, records=0)
        )
        produced.last_offset = max(produced.last_offset, offset)
        produced.records += 1

    def close(self) -> None:
        """Wait until the broker has acknowledged all records, ``ANSWER_SECONDS`` at most."""
        self._producer.flush(ANSWER_SECONDS)
