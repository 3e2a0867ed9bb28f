"""What Siltstone writes for a broker to read: batches of every kind, and what readers must see of them.

The model is a list of rows and one of transactions; it shares nothing with the product's readers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch, encode_headers
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import Bytes
from siltstone.log.partition import PartitionLog
from siltstone.log.validation import Origin
from tests.support.kafka.clients import ProducerState
from tests.support.kafka.records import Record, Sent

LAST_SEQUENCE = (1 << 31) - 1
FIRST_PRODUCER_ID = 9_000_000
"""Far above the ids that a broker gives to its own producers in a test."""


@dataclass(eq=False)
class Transaction:
    """A producer's records from ``first`` on; ``marker``: the offset of its end, -1 while it is open."""

    producer_id: int
    first: int
    marker: int = -1
    committed: bool = False


@dataclass(eq=False)
class OurProducer:
    """An idempotent producer, or a transactional one. ``bumps``: each marker has the next epoch (KIP-890)."""

    producer_id: int
    transactional: bool = False
    bumps: bool = False
    epoch: int = 0
    sequence: int = 0
    transaction: Transaction | None = None
    last: Bytes | None = None

    @property
    def state(self) -> ProducerState:
        """What a broker knows of it."""
        last = -1 if self.last is None else (self.sequence - 1) & LAST_SEQUENCE
        return ProducerState(self.producer_id, self.epoch, last)


@dataclass(eq=False)
class OurWriter:
    """Appends `records` to `log` as clients and a coordinator would, by chance, and remembers what."""

    log: PartitionLog
    records: list[Sent]
    seed: int
    rows: list[tuple[Record, Transaction | None]] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    producers: list[OurProducer] = field(default_factory=list)
    end_offset: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        ids = iter(range(FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + 5))
        self.producers += [
            OurProducer(next(ids), sequence=LAST_SEQUENCE - 100),
            OurProducer(next(ids)),
            OurProducer(next(ids), transactional=True),
            OurProducer(next(ids), transactional=True),
            OurProducer(next(ids), transactional=True, bumps=True),
        ]

    def write_all(self) -> None:
        """Until no record is left: batches of all codecs, some sent twice; transactions come and go."""
        step = 0
        while self.records:
            step += 1
            producer = self._rng.choice([None, *self.producers])
            chance = self._rng.random()
            if producer is not None and producer.transaction is not None and chance < 0.35:
                self.end(producer, commit=chance < 0.15)
            elif producer is not None and producer.last is not None and chance > 0.9:
                self.send_again(producer)
            else:
                self.append(producer, step % len(CODEC_NAMES), self._rng.randrange(1, 25))

    def append(self, producer: OurProducer | None, codec: int = 0, count: int = 5) -> None:
        """One batch with the next `count` records."""
        sent, self.records = self.records[:count], self.records[count:]
        batch = batch_of(sent, _shape(producer, codec))
        original = batch.copy()
        appended = self.log.append(batch)
        assert (appended.is_duplicate, appended.first_offset) == (False, self.end_offset)
        self.end_offset += len(sent)
        transaction = None
        if producer is not None:
            producer.sequence = (producer.sequence + len(sent)) & LAST_SEQUENCE
            producer.last = original
            transaction = self._transaction(producer, appended.first_offset)
        for offset, record in enumerate(sent, appended.first_offset):
            self.rows.append(
                (Record(offset, record.timestamp_ms, record.key, record.value, record.headers), transaction)
            )

    def _transaction(self, producer: OurProducer, first: int) -> Transaction | None:
        if producer.transactional and producer.transaction is None:
            producer.transaction = Transaction(producer.producer_id, first)
            self.transactions.append(producer.transaction)
        return producer.transaction

    def send_again(self, producer: OurProducer) -> None:
        """A retry whose first answer was lost: nothing is appended."""
        assert producer.last is not None
        assert self.log.append(producer.last.copy()).is_duplicate
        assert self.log.log_end_offset == self.end_offset

    def end(self, producer: OurProducer, *, commit: bool) -> None:
        """The coordinator's marker."""
        assert producer.transaction is not None
        if producer.bumps:
            producer.epoch, producer.sequence, producer.last = producer.epoch + 1, 0, None
        marker = end_transaction_marker(
            is_commit=commit,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            coordinator_epoch=0,
            timestamp_ms=self.rows[-1][0].timestamp_ms,
        )
        producer.transaction.marker = self.end_offset
        assert self.log.append(marker, origin=Origin.COORDINATOR).first_offset == self.end_offset
        self.end_offset += 1
        producer.transaction.committed = commit
        producer.transaction = None

    def end_all(self) -> None:
        """No transaction stays open."""
        for producer in self.producers:
            if producer.transaction is not None:
                self.end(producer, commit=producer.producer_id % 2 == 0)

    def uncommitted(self) -> list[Record]:
        """What a read_uncommitted reader sees."""
        return [record for record, _ in self.rows]

    def stable(self) -> int:
        """The last stable offset."""
        return min(
            (transaction.first for transaction in self.transactions if transaction.marker < 0),
            default=self.end_offset,
        )

    def committed(self) -> list[Record]:
        """What a read_committed reader sees."""
        return [
            record
            for record, transaction in self.rows
            if record.offset < self.stable() and (transaction is None or transaction.committed)
        ]

    def aborted(self) -> set[tuple[int, int, int]]:
        """Producer, first offset and marker of every aborted transaction."""
        ended = (
            transaction
            for transaction in self.transactions
            if transaction.marker >= 0 and not transaction.committed
        )
        return {(transaction.producer_id, transaction.first, transaction.marker) for transaction in ended}


def batch_of(sent: Iterable[Sent], shape: NewBatchHeader) -> Bytes:
    """A batch as a client sends it."""
    records = list(sent)
    headers = [
        encode_headers([(name.encode(), value) for name, value in record.headers]) for record in records
    ]
    return build_batch(
        shape,
        offset=np.arange(len(records), dtype=np.int64),
        timestamp=np.array([record.timestamp_ms for record in records], np.int64),
        keys=Spans.of([record.key for record in records]),
        values=Spans.of([record.value for record in records]),
        headers=Spans.of(headers),
    )


def _shape(producer: OurProducer | None, codec: int) -> NewBatchHeader:
    if producer is None:
        return NewBatchHeader(codec=codec)
    return NewBatchHeader(
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=producer.transactional,
    )
