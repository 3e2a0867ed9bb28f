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
    return [each for each in log if each.sent.producer == producer]


def recent(log: list[Stored], producer: int) -> list[Stored]:
    """Its last five batches of records since its epoch changed last."""
    found: list[Stored] = []
    for each in of(log, producer):
        if found and found[-1].sent.epoch != each.sent.epoch:
            found = []
        found.append(each)
    return [each for each in found if each.sent.commit is None][-5:]


def open_from(log: list[Stored], producer: int) -> int | None:
    """Where its open transaction starts."""
    start = None
    for each in of(log, producer):
        if each.sent.commit is not None:
            start = None
        elif each.sent.transactional and start is None:
            start = each.first
    return start


def answer(log: list[Stored], sent: Sent, *, client: bool) -> int | Stored | None:
    """Kafka's error, the batch that it is again, or None: it may be appended."""
    before = of(log, sent.producer)
    kept = recent(log, sent.producer)
    epoch = before[-1].sent.epoch if before else None
    if sent.commit is None and client and epoch == sent.epoch:
        for each in kept:
            if (each.sent.sequence, each.sent.count) == (sent.sequence, sent.count):
                return each
    if epoch is not None and sent.epoch < epoch:
        return 47
    if sent.commit is not None:
        markers = [each.sent.coordinator for each in before if each.sent.commit is not None]
        return 52 if markers and sent.coordinator < markers[-1] else None
    if client and epoch is not None:
        same = epoch == sent.epoch and kept
        due = (kept[-1].sent.sequence + kept[-1].sent.count) % WRAP if same else 0
        if sent.sequence != due:
            return 45
    if open_from(log, sent.producer) is not None and not sent.transactional:
        return 48
    return None


def unstable_from(log: list[Stored], high_watermark: int) -> int:
    """The last stable offset."""
    minimum = high_watermark
    for producer in {each.sent.producer for each in log}:
        start = None
        for each in of(log, producer):
            if each.sent.commit is not None:
                if start is not None and each.first >= high_watermark:
                    minimum = min(minimum, start)
                start = None
            elif each.sent.transactional and start is None:
                start = each.first
        if start is not None:
            minimum = min(minimum, start)
    return minimum


def aborted(log: list[Stored]) -> list[tuple[int, int, int, int]]:
    """The transaction index: producer, first offset, marker's offset, last stable offset."""
    found = []
    for row, each in enumerate(log):
        start = open_from(log[:row], each.sent.producer)
        if each.sent.commit is False and start is not None:
            others = {one.sent.producer for one in log[:row]} - {each.sent.producer}
            starts = [open_from(log[:row], other) for other in others]
            stable = min((one for one in starts if one is not None), default=each.last + 1)
            found.append((each.sent.producer, start, each.first, stable))
    return found
