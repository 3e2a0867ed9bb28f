"""Real producers and a consumer that go on whatever happens to the broker, and what must be true at the end.

Nothing that was acknowledged is lost or changes its place; an idempotent producer's records are there once
and in order; what a consumer has read once stays as it was.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from tests.support.thoroughness import THOROUGH  # noqa: E402

SECONDS = 120.0
TOPIC = "killed"
AT_ONCE, IN_FLIGHT_MAX = (200, 4000) if THOROUGH else (100, 600)
PRODUCERS: tuple[dict[str, Any], ...] = (
    {"enable.idempotence": True, "compression.type": "none"},
    {"enable.idempotence": True, "compression.type": "lz4", "batch.num.messages": 30},
    {"acks": "all", "compression.type": "none"},
    {"acks": "1", "compression.type": "zstd"},
)
"""Each sends to the partition of its number."""


class Sender:
    """A producer of the numbers 0, 1, 2, … to one partition; ``acknowledged``: offset by number."""

    def __init__(self, bootstrap: str, partition: int, settings: dict[str, Any]) -> None:
        self.partition, self.sent = partition, 0
        self.acknowledged: dict[int, int] = {}
        self.is_idempotent = bool(settings.get("enable.idempotence"))
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "linger.ms": 2,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                **settings,
            }
        )

    def send_some(self) -> None:
        """Send more, unless too many are under way."""
        if self.sent - len(self.acknowledged) < IN_FLIGHT_MAX:
            for number in range(self.sent, self.sent + AT_ONCE):
                value = b"%d " % number + b"x" * (number % 900)
                self._producer.produce(TOPIC, value, b"%d" % number, self.partition, on_delivery=self._note)
            self.sent += AT_ONCE
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until all is acknowledged."""
        assert self._producer.flush(SECONDS) == 0, f"partition {self.partition}: not all was acknowledged"
        assert len(self.acknowledged) == self.sent

    def _note(self, error: object, message: Any) -> None:
        assert error is None, error
        self.acknowledged[int(message.key())] = message.offset()


class Reader:
    """A consumer of all partitions; ``records``: the number at each offset of a partition."""

    def __init__(self, bootstrap: str) -> None:
        self.records: dict[int, dict[int, int]] = defaultdict(dict)
        self._consumer = kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "check.crcs": True,
                "log_level": 0,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 100,
            }
        )
        places = [kafka.TopicPartition(TOPIC, number, 0) for number in range(len(PRODUCERS))]
        self._consumer.assign(places)

    def read_some(self, seconds: float) -> set[int]:
        """Read what there is; the partitions whose ends were met."""
        ends = set()
        for message in self._consumer.consume(5000, seconds):
            error = message.error()
            if error is None:
                number = self.records[message.partition()].setdefault(message.offset(), int(message.key()))
                assert number == int(message.key()), "a record changed after it was read"
            elif error.code() == kafka.KafkaError._PARTITION_EOF:
                ends.add(message.partition())
            else:
                assert error.retriable() or error.code() in (
                    kafka.KafkaError._ALL_BROKERS_DOWN,
                    kafka.KafkaError._TRANSPORT,
                ), error
        return ends

    def close(self) -> None:
        """Close it."""
        self._consumer.close()


def senders_to(bootstrap: str, **settings: Any) -> list[Sender]:
    """One producer for each partition, of each kind."""
    return [Sender(bootstrap, number, {**producer, **settings}) for number, producer in enumerate(PRODUCERS)]


def work(senders: Sequence[Sender], watching: Reader, seconds: float) -> None:
    """Send and read for some time, whether the broker answers or not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for sender in senders:
            sender.send_some()
        watching.read_some(0.005)


def work_until(senders: Sequence[Sender], watching: Reader, *, more: int) -> None:
    """Send and read until so many more records of each are acknowledged."""
    targets = {sender.partition: len(sender.acknowledged) + more for sender in senders}
    until = time.monotonic() + SECONDS
    while any(len(sender.acknowledged) < targets[sender.partition] for sender in senders):
        assert time.monotonic() < until, "nothing more is acknowledged"
        for sender in senders:
            sender.send_some()
        watching.read_some(0.005)


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, len(PRODUCERS), 1, config={"segment.bytes": "1048576"})
    admin.create_topics([topic])[TOPIC].result(SECONDS)


def everything(bootstrap: str) -> dict[int, dict[int, int]]:
    """All records, read from the start to the end."""
    reader, ends, until = Reader(bootstrap), set[int](), time.monotonic() + SECONDS
    while len(ends) < len(PRODUCERS):
        assert time.monotonic() < until
        ends |= reader.read_some(0.5)
    reader.close()
    return reader.records


def finish(senders: Sequence[Sender], watching: Reader, bootstrap: str) -> dict[int, dict[int, int]]:
    """End the producers and the consumer; what the topic has then (see ``everything``)."""
    for sender in senders:
        sender.finish()
    log = everything(bootstrap)
    watching.close()
    return log


def assert_nothing_is_lost(
    senders: Sequence[Sender], watching: Reader, log: dict[int, dict[int, int]]
) -> None:
    """All senders have finished, and ``log`` is everything that the broker has."""
    for sender in senders:
        numbers = [number for _, number in sorted(log[sender.partition].items())]
        if sender.is_idempotent:
            assert numbers == list(range(sender.sent)), (
                f"partition {sender.partition}: lost, twice or out of order"
            )
        lost = {n for n, offset in sender.acknowledged.items() if log[sender.partition].get(offset) != n}
        assert not lost, (
            f"partition {sender.partition}: {len(lost)} acknowledged records are not in their places"
        )
    for partition, records in watching.records.items():
        assert records.items() <= log[partition].items(), "what was read once is not there any more"
