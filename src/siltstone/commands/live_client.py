"""Makes the requests of ``live.Admin`` to a running cluster with Kafka's protocol, through
confluent-kafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import xxhash
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, SiltstoneError
from siltstone.commands.live import LiveSetting, LiveTopic, ReadBack
from siltstone.commands.remote import ANSWER_SECONDS, answer, is_uncertain


class KafkaAdmin:
    """``live.Admin`` of a real cluster. ``config``: the client's settings, as librdkafka names them."""

    def __init__(self, bootstrap_server: str, config: Mapping[str, str]) -> None:
        self._config = {"log_level": "0", **config, "bootstrap.servers": bootstrap_server}
        with _refusals():
            self._client = AdminClient(dict(self._config))

    def cluster_id(self) -> str:
        """The cluster's id."""
        with _refusals():
            return str(self._client.list_topics(timeout=ANSWER_SECONDS).cluster_id)

    def topic(self, name: str) -> LiveTopic | None:
        """The topic of that name, None without one."""
        try:
            with _refusals():
                topics = TopicCollection([name])
                futures = self._client.describe_topics(topics, request_timeout=ANSWER_SECONDS)
                description = answer(futures[name])
        except BrokerRefusedError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        return LiveTopic(
            topic_id=str(description.topic_id),
            partitions=tuple(sorted(partition.id for partition in description.partitions)),
        )

    def settings(self, name: str) -> Mapping[str, LiveSetting]:
        """The topic's settings by name."""
        with _refusals():
            resource = ConfigResource(ResourceType.TOPIC, name)
            (future,) = self._client.describe_configs([resource], request_timeout=ANSWER_SECONDS).values()
            entries = answer(future)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            key: LiveSetting(value=str(entry.value), own=entry.source == own)
            for key, entry in entries.items()
        }

    def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change own settings, all or none; None deletes one."""
        entries = [
            ConfigEntry(
                key,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for key, value in changes.items()
        ]
        with _refusals():
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
            altered = self._client.incremental_alter_configs([resource], request_timeout=ANSWER_SECONDS)
            (future,) = altered.values()
            answer(future)

    def read_back(self, name: str, partition: int) -> ReadBack:
        """Read a partition to its last stable offset. Takes about 100 bytes of memory a key."""
        fixed = {
            "group.id": "siltstone-compact",  # required; nothing is committed
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "earliest",  # if the first records are deleted meanwhile
            "isolation.level": "read_committed",
        }
        with _refusals():
            consumer = Consumer({**self._config, **fixed})
            try:
                return _read(consumer, name, partition)
            finally:
                consumer.close()


def _read(consumer: Consumer, name: str, partition: int) -> ReadBack:
    """Read a partition to the last stable offset of now. Keys are counted by their 128-bit hashes, which take
    less memory; of the records of a key all but one are superseded."""
    # With read_committed the client's upper watermark is the last stable offset.
    start, end = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=ANSWER_SECONDS)
    keys: set[bytes] = set()
    records = keyed = 0
    consumer.assign([TopicPartition(name, partition, start)])
    last_received = time.monotonic()
    while True:
        # ``consume`` waits until it has so many messages, or the time is over; also at the end of the log.
        messages = consumer.consume(1000, timeout=0.2)
        if messages:
            last_received = time.monotonic()
        elif time.monotonic() - last_received > ANSWER_SECONDS:
            raise BrokerUnreachableError("the broker sends no records", path=f"{name}-{partition}")
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                return ReadBack(start=start, end=end, records=records, superseded=keyed - len(keys))
            if (message.offset() or 0) >= end:  # appended since
                return ReadBack(start=start, end=end, records=records, superseded=keyed - len(keys))
            records += 1
            key = message.key()
            if key is not None:
                keyed += 1
                keys.add(xxhash.xxh3_128_digest(key))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """The client's errors as BrokerRefusedError or BrokerUnreachableError."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        may_be_done = is_uncertain(cause.code())
        kind: type[SiltstoneError] = BrokerUnreachableError if may_be_done else BrokerRefusedError
        raise kind(cause.str()) from error
    except TimeoutError as error:
        raise BrokerUnreachableError("the broker does not answer") from error
