"""Workloads, produced once with a real broker and kept as it left them.

::

    FOLDER/pristine/      the stopped broker's log directory, never touched again
    FOLDER/made.json      what is in it

While it is produced ``min.cleanable.dirty.ratio`` is 1, so that the broker's cleaner leaves everything alone.
At the end ``segment.ms`` of 1 and one more record (or a few) close the last segment of every partition, so
that all but these records can be cleaned.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from bench.beside_kafka.broker import TUNED, MeasuredBroker
from bench.beside_kafka.workloads import IDLE, MAIN, WARM_UP, Chunk, RecordMaker, Workload
from tests.support.kafka.jars import kafka_version
from tests.support.kafka.logdir import active_base
from tests.support.kafka.polling import poll_until

WAITING_MAX = 200_000
TAIL_KEY = b"tail"
WEEK_MS = 7 * 86_400_000
ROLL_TIMEOUT_S = 30.0
SETTLE_S = 1.0
SEEDS = {MAIN: 1, IDLE: 2, WARM_UP: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What lies in a pristine directory: by partition of ``bench`` where cleaning ends and what it leaves.

    ``size``: bytes of the closed segments of ``bench``. ``expected``: records in a partition afterwards.
    """

    shape: dict[str, object]
    kafka: str
    size: int
    ends: list[int]
    expected: list[int]


@dataclass(slots=True, kw_only=True)
class _Partition:
    """What was sent to one: ``count`` records, and at which offsets those that only close segments."""

    count: int = 0
    tails: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.count + len(self.tails)

    def expected(self, distinct: int, cleaned_end: int) -> int:
        """Records that are there after a cleaning: one a key below its end, and all behind it."""
        closed = sum(offset < cleaned_end for offset in self.tails)
        return distinct + min(1, closed) + len(self.tails) - closed


def pristine(folder: Path, workload: Workload) -> Made:
    """Produce the workload, or take what was produced of this very shape."""
    facts = folder / "made.json"
    if facts.exists():
        made = Made(**json.loads(facts.read_text()))
        if made.shape == workload.shape() and made.kafka == kafka_version():
            return made
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = _Production(folder, workload).run()
    facts.write_text(json.dumps(asdict(made)))
    return made


class _Production:
    """One broker's life: topics, records, closed segments."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._folder, self._workload = folder, workload
        self._live = folder / "pristine"
        self._sent = {
            (topic, n): _Partition() for topic, count in workload.topics.items() for n in range(count)
        }
        shapes = {MAIN: workload, IDLE: workload, WARM_UP: workload.warm_up}
        self._makers = {
            topic: RecordMaker(shapes[topic], count, SEEDS[topic]) for topic, count in workload.topics.items()
        }

    def run(self) -> Made:
        """Everything; the broker is stopped cleanly at the end."""
        with MeasuredBroker(self._live, TUNED) as broker:
            for topic, count in self._workload.topics.items():
                config = {
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": "1.0",
                    "segment.bytes": str(self._workload.segment_bytes),
                }
                broker.create_topic(topic, count, config)
            self._write(broker)
        shutil.rmtree(broker.home)
        bases = [active_base(self._live, MAIN, number) for number in range(self._workload.partitions)]
        sent = [self._sent[MAIN, number] for number in range(self._workload.partitions)]
        distinct = [self._makers[MAIN].distinct(number) for number in range(self._workload.partitions)]
        return Made(
            shape=self._workload.shape(),
            kafka=kafka_version(),
            size=sum(self._closed_size(number, base) for number, base in enumerate(bases)),
            ends=bases,
            expected=[
                partition.expected(keys, base)
                for partition, keys, base in zip(sent, distinct, bases, strict=True)
            ],
        )

    def _write(self, broker: MeasuredBroker) -> None:
        producer = _producer(broker.bootstrap, self._workload)
        for topic, maker in self._makers.items():
            self._send(producer, topic, maker.first())
        producer.flush()
        self._close_segments(broker, producer, list(self._makers))
        if self._workload.updates:
            ends = [active_base(self._live, MAIN, number) for number in range(self._workload.partitions)]
            broker.clean(MAIN, ends)
            broker.alter_config(MAIN, min_cleanable_dirty_ratio="1.0")
            time.sleep(SETTLE_S)
            self._send(producer, MAIN, self._makers[MAIN].updates())
            producer.flush()
            self._close_segments(broker, producer, [MAIN])
        for (topic, number), sent in self._sent.items():
            end = broker.end_offset(topic, number)
            assert end == sent.end, f"{topic}-{number}: {end} records instead of {sent.end}"

    def _send(self, producer: Producer, topic: str, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            pairs = zip(chunk.keys, chunk.values, strict=True)
            messages = [{"key": key, "value": value} for key, value in pairs]
            taken = producer.produce_batch(topic, messages, partition=chunk.partition)
            assert taken == len(messages), f"{topic}: the producer took {taken} of {len(messages)} records"
            self._sent[topic, chunk.partition].count += taken
            while len(producer) > WAITING_MAX:
                producer.poll(0.02)

    def _close_segments(self, broker: MeasuredBroker, producer: Producer, topics: list[str]) -> None:
        for topic in topics:
            broker.alter_config(topic, segment_ms="1")
            ends = {number: self._sent[topic, number].end for number in range(self._workload.topics[topic])}
            for number, end in ends.items():
                poll_until(
                    lambda topic=topic, number=number, end=end: self._close(producer, topic, number, end),
                    what=f"a new segment of {topic}-{number}",
                    timeout_s=ROLL_TIMEOUT_S,
                )
            broker.alter_config(topic, segment_ms=str(WEEK_MS))
        time.sleep(SETTLE_S)

    def _close(self, producer: Producer, topic: str, number: int, end: int) -> bool | None:
        if active_base(self._live, topic, number) >= end:
            return True
        sent = self._sent[topic, number]
        sent.tails.append(sent.end)
        producer.produce(topic, key=TAIL_KEY, value=b"closes the segment", partition=number)
        producer.flush()
        return True if active_base(self._live, topic, number) >= end else None

    def _closed_size(self, number: int, end: int) -> int:
        logs = (self._live / f"{MAIN}-{number}").glob("*.log")
        return sum(path.stat().st_size for path in logs if int(path.stem) < end)


def _producer(bootstrap: str, workload: Workload) -> Producer:
    """A fast one; ``batch.size`` as Kafka's own producer has it, or as the workload wants it."""
    single = workload.batch_bytes == 1
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "compression.type": workload.codec,
            "linger.ms": 0 if single else 50,
            "batch.num.messages": 1 if single else 10_000,
            "batch.size": max(workload.batch_bytes, 1024),
            "max.in.flight.requests.per.connection": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 2 << 20,
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
