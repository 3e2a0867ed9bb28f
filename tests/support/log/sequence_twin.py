"""Kafka's rules for producers a second time, in plain Python: whole histories instead of states.

Nothing here imports siltstone. An answer is found by going through everything that was appended: slow, and
without a state that could be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

WRAP = 2**31


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A batch: of records, or a marker (``commit`` is not None)."""

    producer: int
    epoch: int
    sequence: int = 0
    count: int = 1
    transactional: bool = False
    commit: bool | None = None
    coordinator: int = 0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One of the log's batches."""

    sent: Sent
    first: int
    last: int


def of(log: list[Stored], producer: int) -> list[Stored]:
    """A producer's batches, in log order."""
    return [batch for batch in log if batch.sent.producer == producer]


def recent(log: list[Stored], producer: int) -> list[Stored]:
    """Its last five batches of records since its epoch changed last."""
    batches: list[Stored] = []
    for batch in of(log, producer):
        if batches and batches[-1].sent.epoch != batch.sent.epoch:
            batches = []
        batches.append(batch)
    return [batch for batch in batches if batch.sent.commit is None][-5:]


def open_from(log: list[Stored], producer: int) -> int | None:
    """Where its open transaction starts."""
    start = None
    for batch in of(log, producer):
        if batch.sent.commit is not None:
            start = None
        elif batch.sent.transactional and start is None:
            start = batch.first
    return start


def answer(log: list[Stored], sent: Sent, *, client: bool) -> int | Stored | None:
    """Kafka's error, the batch that it is again, or None: it may be appended."""
    before = of(log, sent.producer)
    latest = recent(log, sent.producer)
    epoch = before[-1].sent.epoch if before else None
    if sent.commit is None and client and epoch == sent.epoch:
        for batch in latest:
            if (batch.sent.sequence, batch.sent.count) == (sent.sequence, sent.count):
                return batch
    if epoch is not None and sent.epoch < epoch:
        return 47
    if sent.commit is not None:
        markers = [batch.sent.coordinator for batch in before if batch.sent.commit is not None]
        return 52 if markers and sent.coordinator < markers[-1] else None
    if client and epoch is not None:
        is_same_epoch = epoch == sent.epoch and latest
        due = (latest[-1].sent.sequence + latest[-1].sent.count) % WRAP if is_same_epoch else 0
        if sent.sequence != due:
            return 45
    if open_from(log, sent.producer) is not None and not sent.transactional:
        return 48
    return None


def unstable_from(log: list[Stored], high_watermark: int) -> int:
    """The last stable offset."""
    minimum = high_watermark
    for producer in {batch.sent.producer for batch in log}:
        start = None
        for batch in of(log, producer):
            if batch.sent.commit is not None:
                if start is not None and batch.first >= high_watermark:
                    minimum = min(minimum, start)
                start = None
            elif batch.sent.transactional and start is None:
                start = batch.first
        if start is not None:
            minimum = min(minimum, start)
    return minimum


def aborted(log: list[Stored]) -> list[tuple[int, int, int, int]]:
    """The transaction index: producer, first offset, marker's offset, last stable offset."""
    entries = []
    for row, batch in enumerate(log):
        start = open_from(log[:row], batch.sent.producer)
        if batch.sent.commit is False and start is not None:
            other_producers = {earlier.sent.producer for earlier in log[:row]} - {batch.sent.producer}
            starts = [open_from(log[:row], other_producer) for other_producer in other_producers]
            stable = min((begin for begin in starts if begin is not None), default=batch.last + 1)
            entries.append((batch.sent.producer, start, batch.first, stable))
    return entries
