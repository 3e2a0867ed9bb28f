"""Random topics of a real broker, and one cleaning of them done twice: by the broker itself and by us.

What is random comes of a seed for each topic: keys, tombstones, codecs, producers that come and go,
transactions that overlap, the sizes of batches and segments. The broker decides about batches and offsets, so
two runs differ; each is compared with itself. `delete.retention.ms` is days: nothing hangs on a clock's
milliseconds but the horizons, which tell the clock of Kafka's cleaner.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from siltstone.commands import clean as app
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.report import LogResult
from siltstone.log.indexes import IndexBuilder
from tests.support.cleaning import oracle
from tests.support.cleaning.naive import read_partition
from tests.support.golden.comparing import assert_same_log, is_compressed
from tests.support.kafka import clients
from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import cleaner_checkpoint, segment_bases
from tests.support.kafka.records import Sent, workload
from tests.support.kafka.scenario import start_ms
from tests.support.records.arrays import scanned

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000
KINDS = ("log", "index", "timeindex", "txnindex")


@dataclass(frozen=True, kw_only=True)
class RandomTopic:
    """One topic: `codecs` that its producers use, `transactions` or none, `open`: one is left open."""

    name: str
    seed: int
    codecs: tuple[str, ...] = ("none",)
    transactions: bool = True
    open: bool = False
    log_append: bool = False

    @property
    def config(self) -> dict[str, str]:
        """Its settings, under which the broker's own cleaner leaves it alone."""
        rng = random.Random(self.seed)
        return {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "1.0",
            "internal.segment.bytes": str(rng.choice([6000, 8000, 12_000])),
            "segment.index.bytes": "4096",
            "index.interval.bytes": str(rng.choice([500, 1024, 4096])),
            "delete.retention.ms": str(DAY_MS * rng.randrange(1, 9)),
            "message.timestamp.type": "LogAppendTime" if self.log_append else "CreateTime",
        }

    @property
    def command_config(self) -> dict[str, str]:
        """The same as the command takes it."""
        config = {**self.config, "min.cleanable.dirty.ratio": "0.0"}
        return {**config, "segment.bytes": config.pop("internal.segment.bytes")}


TOPICS = (
    RandomTopic(name="twin-plain", seed=1, transactions=False),
    RandomTopic(name="twin-codecs", seed=2, codecs=CODECS, transactions=False, log_append=True),
    RandomTopic(name="twin-transactions", seed=3),
    RandomTopic(name="twin-mixed", seed=4, codecs=CODECS),
    RandomTopic(name="twin-append-time", seed=5, codecs=("none", "none", "lz4"), log_append=True),
    RandomTopic(name="twin-open", seed=6, codecs=("zstd", "none"), open=True),
)


class TopicWriter:
    """Writes one topic, in several sittings if need be."""

    def __init__(self, broker: Broker, topic: RandomTopic) -> None:
        self._topic, self._rng = topic, random.Random(topic.seed)
        self._records = self._endless()
        self._plain = [self._producer(broker) for _ in range(2)]
        self._idempotent = [self._producer(broker, idempotent=True) for _ in range(2)]
        names = [f"{topic.name}-{number}" for number in range(3 if topic.transactions else 0)]
        self._transactional = [
            self._producer(broker, idempotent=True, transactional_id=name, transaction_timeout_ms=600_000)
            for name in names
        ]
        for producer in self._transactional:
            producer.init_transactions(clients.CLIENT_TIMEOUT_S)
        self._begun: set[int] = set()

    def _producer(self, broker: Broker, **settings: object) -> Producer:
        size = self._rng.choice([1, 5, 40])
        codec = self._rng.choice(self._topic.codecs)
        return clients.new_producer(
            broker.bootstrap,
            codec=codec,
            batch_num_messages=size,
            **settings,  # type: ignore[arg-type]
        )

    def _endless(self) -> Iterator[Sent]:
        for seed in range(1000 * self._topic.seed, 1000 * self._topic.seed + 999):
            yield from workload(seed=seed, prefix="k", count=100, keys=60, start_ms=start_ms())

    def write(self, steps: int) -> None:
        """Some batches of somebody, or the end of a transaction, `steps` times; then the end of all."""
        for _ in range(steps):
            chance = self._rng.random()
            if chance < 0.5 and self._transactional:
                self._step(self._rng.randrange(len(self._transactional)))
            else:
                self._send(self._rng.choice([*self._plain, *self._idempotent]))
        for number in sorted(self._begun):
            self._end(number)
        if self._topic.open:
            self._begin(0)
            self._send(self._transactional[0])
        for _ in range(12 if self._topic.open else 1):
            self._send(self._plain[0])

    def _step(self, number: int) -> None:
        if number not in self._begun:
            self._begin(number)
        elif self._rng.random() < 0.5:
            self._end(number)
            return
        self._send(self._transactional[number])

    def _begin(self, number: int) -> None:
        self._transactional[number].begin_transaction()
        self._begun.add(number)

    def _end(self, number: int) -> None:
        self._begun.discard(number)
        if self._rng.random() < 0.5:
            self._transactional[number].commit_transaction(clients.CLIENT_TIMEOUT_S)
        else:
            self._transactional[number].abort_transaction(clients.CLIENT_TIMEOUT_S)

    def _send(self, producer: Producer) -> None:
        count = self._rng.choice([1, 3, 10, 30])
        clients.send(producer, self._topic.name, [next(self._records) for _ in range(count)])


@dataclass(frozen=True, kw_only=True)
class Twins:
    """A stopped directory, and what Kafka's cleaner made of it on a copy that was not touched by us."""

    before: Path
    after: Path

    def rules(self, topic: RandomTopic, now_ms: int = 0) -> oracle.Cleaning:
        """What the broker went by."""
        config = topic.command_config
        return oracle.Cleaning(
            now_ms=now_ms,
            checkpoint=cleaner_checkpoint(self.before, topic.name),
            delete_retention_ms=int(config["delete.retention.ms"]),
            segment_bytes=int(config["segment.bytes"]),
            index_bytes=int(config["segment.index.bytes"]),
        )

    def now_ms(self, topic: RandomTopic) -> int:
        """The clock of Kafka's cleaner: the newest horizon that it stamped, less the retention."""
        stamped = _horizons(self.after / f"{topic.name}-0") - _horizons(self.before / f"{topic.name}-0")
        assert len(stamped) == 1, f"{topic.name}: cleaned {len(stamped)} times"
        return stamped.pop() - int(topic.config["delete.retention.ms"])


def _horizons(partition: Path) -> set[int]:
    batches = (batch for segment in read_partition(partition).values() for batch in segment.batches)
    return {batch.horizon for batch in batches if batch.horizon is not None}


def end_of_cleaning(log_dir: Path, topic: RandomTopic) -> int:
    """Up to where a cleaner may go: the active segment, or the one with an open transaction's start."""
    return oracle.clean(log_dir / f"{topic.name}-0", oracle.Cleaning(now_ms=0)).end


def let_the_broker_clean(broker: Broker, before: Path) -> None:
    """Have its own cleaner go over every topic once."""
    for topic in TOPICS:
        broker.alter_config(topic.name, min_cleanable_dirty_ratio="0.0")
    for topic in TOPICS:
        end = end_of_cleaning(before, topic)
        assert broker.wait_for_cleaner(topic.name, offset=end) == end
    for topic in TOPICS:
        broker.alter_config(topic.name, min_cleanable_dirty_ratio="1.0")


def clean(log_dir: Path, topic: RandomTopic, now_ms: int) -> LogResult:
    """Clean one topic in place as the command does."""
    request = app.CleanRequest(
        directories=[log_dir],
        in_place=True,
        topics=[topic.name],
        config=[f"{key}={value}" for key, value in topic.command_config.items()],
        now_ms=now_ms,
    )
    (result,) = app.clean(request, engine=lambda request, progress: InProcessEngine(3)).results
    return result


def assert_same_files(ours: Path, kafkas: Path, end: int, interval: int) -> None:
    """Every segment below ``end``: the same bytes of its log and its indexes.

    Kafka's compressor may be another one. Batches have the same records then, but not their sizes, on which
    the index entries hang: each log has the indexes that belong to it.
    """
    our_segments, kafka_segments = _segments(ours, end), _segments(kafkas, end)
    assert list(our_segments) == list(kafka_segments)
    for base, files in kafka_segments.items():
        assert_same_log(our_segments[base]["log"], files["log"], f"{base}.log")
        assert our_segments[base]["txnindex"] == files["txnindex"], f"{base}.txnindex"
        are_alike = our_segments[base]["log"] == files["log"]
        assert are_alike or is_compressed(files["log"]), f"{base}.log"
        if are_alike:
            assert our_segments[base] == files, base
            continue
        for segment in (our_segments[base], files):
            assert _indexes(base, segment["log"], interval) == (segment["index"], segment["timeindex"]), base


def _indexes(base: int, data: bytes, interval: int) -> tuple[bytes, bytes]:
    """What a log's bytes give, which the golden sets show to be what Kafka's cleaner writes."""
    builder = IndexBuilder(base, interval, 4096)
    builder.add_batches(scanned(data)[1])
    built = builder.finish()
    return built["index"], built["timeindex"]


def _segments(partition: Path, end: int) -> dict[int, dict[str, bytes]]:
    """The files of each segment; without a ``.txnindex`` there is nothing in it."""
    return {
        base: {
            kind: path.read_bytes() if (path := partition / f"{base:020}.{kind}").exists() else b""
            for kind in KINDS
        }
        for base in segment_bases(partition.parent, *_topic_of(partition))
        if base < end
    }


def _topic_of(partition: Path) -> tuple[str, int]:
    topic, _, number = partition.name.rpartition("-")
    return topic, int(number)
